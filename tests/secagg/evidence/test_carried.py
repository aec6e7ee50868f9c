"""Tools that nobody here wrote take the statement: securesystemslib the envelope, in-toto-attestation the statement.

`pip install 'share-secagg[oracles]'` installs them; without one of them, its tests are skipped.
"""

import base64
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from secagg import Identity
from secagg.evidence import check_envelope, envelope, sign_evidence, statement
from tests.secagg.evidence.common import honest
from tests.secagg.evidence.run_common import honest as honest_run

HUB, OTHER = Identity.from_private(bytes(range(32))), Identity.from_private(bytes(range(1, 33)))
Change = Callable[[dict[str, Any]], object]


def made(kind: str) -> tuple[bytes, str]:
    """Evidence and the hub's envelope about it."""
    data = honest("fixed") if kind == "whole" else honest_run("groups")
    return data, envelope(data, HUB, name="training.evidence")


def accepted(text: str, hub: Identity = HUB) -> Any:
    """The envelope as securesystemslib reads it, verified with the hub's public key; it raises if that is wrong."""
    dsse, signer = pytest.importorskip("securesystemslib.dsse"), pytest.importorskip("securesystemslib.signer")
    public = hub.public.hex()
    key = signer.SSlibKey(public, "ed25519", "ed25519", {"public": public})
    found = dsse.Envelope.from_dict(json.loads(text))
    assert found.verify([key], 1) == {public: key}
    return found


@pytest.mark.parametrize("kind", ["whole", "survivors"])
def test_securesystemslib_verifies_the_envelope_and_writes_the_same_one(kind: str, tmp_path: Path) -> None:
    data, text = made(kind)
    found = accepted(text)
    assert found.to_dict() == json.loads(text), "also its base64 is ours"
    subject = json.loads(found.payload)["subject"]
    assert subject == [{"name": "training.evidence", "digest": {"sha256": hashlib.sha256(data).hexdigest()}}]
    place = tmp_path / "training.evidence"
    place.write_bytes(data)
    assert accepted(sign_evidence(place, HUB).read_text()) == found, "the file beside the evidence has the same"


def test_an_envelope_that_securesystemslib_signs_holds_here() -> None:
    """The other direction: the same payload, with its encoding, its key and its signature."""
    dsse, signer = pytest.importorskip("securesystemslib.dsse"), pytest.importorskip("securesystemslib.signer")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    data, text = made("whole")
    private = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    key = signer.SSlibKey.from_crypto(private.public_key())
    theirs = dsse.Envelope(base64.b64decode(json.loads(text)["payload"]), "application/vnd.in-toto+json", {})
    theirs.sign(signer.CryptoSigner(private, key))
    assert check_envelope(json.dumps(theirs.to_dict()), data, HUB.public) == []
    assert check_envelope(json.dumps(theirs.to_dict()), data, OTHER.public) != []


@pytest.mark.parametrize(
    "encoding",
    [
        lambda kind, payload: payload,
        lambda kind, payload: b"DSSEv1 %s %s" % (kind.encode(), payload),
        lambda kind, payload: b"DSSEv1 %d %s %d %s" % (len(payload), kind.encode(), len(kind), payload),
        lambda kind, payload: b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(payload) + 1, payload),
        lambda kind, payload: b"DSSEv1 %d %s %d %s\n" % (len(kind), kind.encode(), len(payload), payload),
        lambda kind, payload: b"DSSEv2 %d %s %d %s" % (len(kind), kind.encode(), len(payload), payload),
    ],
)
def test_another_encoding_before_the_signature_is_refused(
    encoding: Callable[[str, bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = pytest.importorskip("securesystemslib.exceptions")
    monkeypatch.setattr(statement, "_authenticated", encoding)
    with pytest.raises(errors.VerificationError):
        accepted(made("whole")[1])


@pytest.mark.parametrize(
    "change",
    [
        lambda outer: outer["signatures"][0].update(keyid=OTHER.public.hex()),
        lambda outer: outer["signatures"][0].update(keyid=hashlib.sha256(HUB.public).hexdigest()),
        lambda outer: outer["signatures"][0].pop("keyid"),
        lambda outer: outer["signatures"][0].update(sig=base64.b64decode(outer["signatures"][0]["sig"]).hex()),
        lambda outer: outer.update(payload=base64.b32encode(base64.b64decode(outer["payload"])).decode()),
        lambda outer: outer.update(payload=base64.b64encode(base64.b64decode(outer["payload"]) + b" ").decode()),
        lambda outer: outer.update(payloadType="application/json"),
        lambda outer: outer.update(signatures=[]),
        lambda outer: outer.pop("payloadType"),
    ],
)
def test_a_wrong_key_id_and_a_wrong_base64_are_refused(change: Change) -> None:
    errors = pytest.importorskip("securesystemslib.exceptions")
    outer = json.loads(made("whole")[1])
    change(outer)
    with pytest.raises((errors.Error, ValueError, KeyError)):
        accepted(json.dumps(outer))


def test_another_key_does_not_verify_it() -> None:
    errors = pytest.importorskip("securesystemslib.exceptions")
    with pytest.raises(errors.VerificationError):
        accepted(made("whole")[1], OTHER)


def read_statement(payload: bytes) -> Any:
    """The statement as in-toto-attestation reads it, and validated; it raises if the shape is wrong."""
    theirs = pytest.importorskip("in_toto_attestation.v1.statement")
    from google.protobuf import json_format
    from in_toto_attestation.v1.statement_pb2 import Statement

    found = theirs.Statement.copy_from_pb(json_format.Parse(payload, Statement()))  # unknown fields raise
    found.validate()
    return found.pb


@pytest.mark.parametrize("kind", ["whole", "survivors"])
def test_in_toto_attestation_reads_the_statement(kind: str) -> None:
    data, text = made(kind)
    found = read_statement(base64.b64decode(json.loads(text)["payload"]))
    assert (found.type, found.predicate_type) == ("https://in-toto.io/Statement/v1", "urn:secagg:evidence:v1")
    (subject,) = found.subject
    assert (subject.name, dict(subject.digest)) == ("training.evidence", {"sha256": hashlib.sha256(data).hexdigest()})
    assert found.predicate["kind"] == kind
    assert found.predicate["rounds"]["count"] > 0


@pytest.mark.parametrize(
    "change",
    [
        lambda outer: outer.update(_type="https://in-toto.io/Statement/v0.1"),
        lambda outer: outer.pop("_type"),
        lambda outer: outer.update(subject=[]),
        lambda outer: outer["subject"][0].update(digest={}),
        lambda outer: outer.update(predicateType=""),
        lambda outer: outer.pop("predicate"),
        lambda outer: outer.update(subjects=outer.pop("subject")),
    ],
)
def test_another_shape_of_the_statement_is_refused(change: Change) -> None:
    pytest.importorskip("in_toto_attestation.v1.statement")
    from google.protobuf.json_format import ParseError

    statement = json.loads(base64.b64decode(json.loads(made("whole")[1])["payload"]))
    change(statement)
    with pytest.raises((ParseError, ValueError)):
        read_statement(json.dumps(statement).encode())

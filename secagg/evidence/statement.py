"""An in-toto Statement about evidence, in a DSSE envelope that a hub signs, so that existing tools can carry it.

The formats are in-toto Attestation Framework, Statement v1, and DSSE v1; docs/evidence.md has the predicate.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any, Final

from secagg.arguments import instance, raw
from secagg.codec import Buffer
from secagg.crypto.keys import KEY_BYTES, Identity, verify
from secagg.errors import PeerError, UsageError
from secagg.evidence.verify import Report
from secagg.evidence.verify import verify as verify_evidence

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "urn:secagg:evidence:v1"
PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
MOST_ENVELOPE: Final = 2**20


def envelope(data: Buffer, identity: Identity, *, name: str = "evidence") -> str:
    """The signed statement that this evidence was verified and holds, as JSON; UsageError if it does not hold.

    `name` is what the evidence is called where it is kept, usually its file name.

    >>> from secagg import Identity
    >>> envelope(b"something else", Identity.generate())
    Traceback (most recent call last):
    secagg.errors.UsageError: this evidence does not hold: these bytes are not evidence of version 1
    """
    instance("identity", identity, Identity)
    report = verify_evidence(data)
    if not report.holds:  # audit: envelope-evidence-holds
        raise UsageError(f"this evidence does not hold: {report.problems[0]}")
    payload = json.dumps(_statement(data, report, name), sort_keys=True, separators=(",", ":")).encode()
    signature = identity.sign(_authenticated(PAYLOAD_TYPE, payload))
    signed = {"keyid": identity.public.hex(), "sig": base64.b64encode(signature).decode()}
    return json.dumps(
        {"payloadType": PAYLOAD_TYPE, "payload": base64.b64encode(payload).decode(), "signatures": [signed]}
    )


def check_envelope(text: str, data: Buffer, hub: bytes) -> list[str]:
    """What is wrong with a statement about this evidence that the hub with this Ed25519 key should have signed.

    >>> check_envelope("{}", b"", bytes(32))
    ['the statement is not a DSSE envelope with an in-toto Statement v1']
    """
    hub = raw("hub", hub, KEY_BYTES)
    try:
        if len(text) > MOST_ENVELOPE:  # audit: envelope-bounded
            raise ValueError(f"{len(text)} characters")
        outer = json.loads(text)
        payload = base64.b64decode(outer["payload"], validate=True)
        signatures = [base64.b64decode(one["sig"], validate=True) for one in outer["signatures"]]
        statement = json.loads(payload)
        kinds = (outer["payloadType"], statement["_type"], statement["predicateType"])
        digests = [subject["digest"]["sha256"] for subject in statement["subject"]]
        fingerprint = statement["predicate"]["agreement"]
    except (ValueError, KeyError, TypeError, RecursionError):  # the last for JSON that is nested without end
        return ["the statement is not a DSSE envelope with an in-toto Statement v1"]
    problems = []
    if kinds != (PAYLOAD_TYPE, STATEMENT_TYPE, PREDICATE_TYPE):  # audit: envelope-types
        problems.append(f"the statement has the types {', '.join(map(str, kinds))}; this is {PREDICATE_TYPE}")
    if not any(_signed(hub, signature, payload) for signature in signatures):  # audit: envelope-signed
        problems.append("the statement has no valid signature of this hub")
    if digests != [hashlib.sha256(data).hexdigest()]:  # audit: envelope-of-this-evidence
        problems.append("the statement is about other evidence: its digest differs")
    report = verify_evidence(data)
    if fingerprint != report.fingerprint:  # audit: envelope-agreement
        problems.append("the statement names another agreement")
    said = statement["predicate"]
    wrong = [name for name, value in _statement(data, report, "")["predicate"].items() if said.get(name) != value]
    if wrong:  # audit: envelope-predicate
        problems.append(f"the statement says something else than the evidence about: {', '.join(wrong)}")
    return problems


def is_stated(text: str, data: Buffer, hub: bytes) -> bool:
    """Whether the hub with this Ed25519 key has signed this very text about these bytes. It verifies no evidence.

    >>> is_stated("{}", b"", bytes(32))
    False
    """
    try:
        outer = json.loads(text)
        payload = base64.b64decode(outer["payload"], validate=True)
        signatures = [base64.b64decode(one["sig"], validate=True) for one in outer["signatures"]]
        digests = [subject["digest"]["sha256"] for subject in json.loads(payload)["subject"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
    # audit: statement-of-these-bytes
    if outer.get("payloadType") != PAYLOAD_TYPE or digests != [hashlib.sha256(data).hexdigest()]:
        return False
    return any(_signed(hub, signature, payload) for signature in signatures)  # audit: statement-of-this-hub


def _signed(hub: bytes, signature: bytes, payload: bytes) -> bool:
    try:
        verify(hub, signature, _authenticated(PAYLOAD_TYPE, payload), signer=0)
    except PeerError:
        return False
    return True


def _statement(data: Buffer, report: Report, name: str) -> dict[str, Any]:
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": hashlib.sha256(data).hexdigest()}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "agreement": report.fingerprint,
            "training": report.name,
            "members": report.members,
            "kind": report.kind,
            "rounds": {"count": report.rounds, "first": report.first_round, "last": report.last_round},
            "answers": report.answers,
            "groups": {"opened": report.opened, "lost": report.lost},
            "exposure": {"anonymity": report.anonymity, "leverage": report.leverage, "memory": report.memory},
            "blamed": {str(client): why for client, why in report.blamed.items()},
        },
    }


def _authenticated(kind: str, payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding."""
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(payload), payload)

"""The in-toto statement about evidence, and `secagg verify`."""

import base64
import json
from pathlib import Path

import pytest

from secagg import Identity, UsageError
from secagg.agreement.folder import MemberFolder
from secagg.cli.main import main
from secagg.evidence import PREDICATE_TYPE, check_envelope, envelope, sign_evidence
from secagg.simulation import WholeRun
from secagg.whole import FileStore
from tests.secagg.evidence.common import agreed, flipped, honest

HUB = Identity.from_private(bytes(range(32)))


def test_the_envelope_is_dsse_with_an_in_toto_statement() -> None:
    """The names and the signed bytes are those of in-toto Statement v1 and DSSE v1, written out."""
    outer = json.loads(envelope(honest("fixed"), HUB, name="training.evidence"))
    assert outer["payloadType"] == "application/vnd.in-toto+json"
    payload = base64.b64decode(outer["payload"])
    (signature,) = outer["signatures"]
    signed = b"DSSEv1 28 application/vnd.in-toto+json " + str(len(payload)).encode() + b" " + payload
    assert base64.b64decode(signature["sig"]) == HUB.sign(signed)
    statement = json.loads(payload)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == PREDICATE_TYPE == "urn:secagg:evidence:v1"
    (subject,) = statement["subject"]
    assert subject["name"] == "training.evidence"
    assert statement["predicate"]["rounds"] == {"count": 4, "first": 0, "last": 3}
    assert statement["predicate"]["agreement"] == agreed("fixed")[0].fingerprint.hex()


def test_a_statement_is_held_against_its_hub_and_its_evidence() -> None:
    data = honest("fixed")
    text = envelope(data, HUB)
    assert check_envelope(text, data, HUB.public) == []
    assert check_envelope(text, data, bytes(32)) == ["the statement has no valid signature of this hub"]
    assert "the statement is about other evidence: its digest differs" in check_envelope(
        text, honest("atoms"), HUB.public
    )
    outer = json.loads(text)
    outer["payload"] = base64.b64encode(flipped(base64.b64decode(outer["payload"]), 400)).decode()
    assert check_envelope(json.dumps(outer), data, HUB.public)
    for broken in ("", "[]", "{", json.dumps({**outer, "payload": "?"})):
        assert "not a DSSE envelope" in check_envelope(broken, data, HUB.public)[0]


def test_evidence_that_does_not_hold_gets_no_statement() -> None:
    with pytest.raises(UsageError, match="does not hold"):
        envelope(honest("fixed")[:-1], HUB)


def test_a_statement_is_signed_again_only_if_it_is_not_this_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, made = tmp_path / "evidence", []

    def counted(data: bytes, identity: Identity, *, name: str) -> str:
        made.append(name)
        return envelope(data, identity, name=name)

    monkeypatch.setattr("secagg.evidence.beside.envelope", counted)
    place.write_bytes(honest("fixed"))
    statement = sign_evidence(place, HUB)
    first = statement.read_text()
    assert sign_evidence(place, HUB).read_text() == first
    assert len(made) == 1
    outer = json.loads(first)
    others = [
        "",
        "[]",
        first[:-20],
        json.dumps({**outer, "payloadType": "text/plain"}),
        json.dumps({**outer, "signatures": []}),
        envelope(honest("fixed"), Identity.generate()),
        envelope(honest("atoms"), HUB),
    ]
    for other in others:
        statement.write_text(other)
        assert sign_evidence(place, HUB).read_text() == first, other
    assert len(made) == 1 + len(others)
    place.write_bytes(honest("atoms"))
    assert check_envelope(sign_evidence(place, HUB).read_text(), honest("atoms"), HUB.public) == []
    before = statement.read_text()
    place.write_bytes(honest("fixed"))
    sign_evidence(place, HUB, keep=lambda path, text: None)
    assert statement.read_text() == before
    place.write_bytes(honest("fixed")[:-1])
    with pytest.raises(UsageError, match="does not hold"):
        sign_evidence(place, HUB)
    assert statement.read_text() == before


def test_a_full_disk_leaves_the_statement_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "evidence"
    place.write_bytes(honest("fixed"))
    before = sign_evidence(place, HUB).read_text()
    place.write_bytes(honest("atoms"))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        sign_evidence(place, HUB)
    assert (tmp_path / "evidence.intoto.json").read_text() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evidence", "evidence.intoto.json"]


def test_the_command_says_whether_the_evidence_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "training.evidence"
    place.write_bytes(honest("fixed"))
    assert main(["verify", str(place)]) == 0
    shown = capsys.readouterr().out
    assert "The evidence holds." in shown
    assert "note: nothing shows that the evidence goes on" in shown
    data = bytearray(honest("fixed"))
    data[-200] ^= 1
    place.write_bytes(bytes(data))
    assert main(["verify", str(place), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["holds"] is False
    assert report["problems"]
    place.write_bytes(b"")
    assert main(["verify", str(place)]) == 1
    assert "THIS EVIDENCE DOES NOT HOLD" in capsys.readouterr().out


def test_the_command_reads_a_journal_and_writes_and_checks_a_statement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = WholeRun(*agreed("fixed"), store=FileStore(tmp_path / "journal"))
    run.round(0, {v: [v, 0, 1] for v in range(6)})
    place = tmp_path / "training.evidence"
    place.write_bytes(run.evidence())
    hub = MemberFolder.create(tmp_path / "hub")
    assert main(["verify", str(place), "--journal", str(tmp_path / "journal"), "--sign", str(hub.path)]) == 0
    assert "all rounds in these journals were compared" in capsys.readouterr().out
    statement = ["--statement", f"{place}.intoto.json", "--hub"]
    assert main(["verify", str(place), *statement, hub.identity.public.hex()]) == 0
    assert "The in-toto statement holds." in capsys.readouterr().out
    assert main(["verify", str(place), *statement, "00" * 32]) == 1
    assert "no valid signature of this hub" in capsys.readouterr().out
    (tmp_path / "not text").write_bytes(b"\xff\xfe")
    assert main(["verify", str(place), "--statement", str(tmp_path / "not text"), "--hub", "00" * 32]) == 1
    assert "the statement is not a DSSE envelope" in capsys.readouterr().out
    assert main(["verify", str(place), "--earlier", str(tmp_path / "not text")]) == 2
    assert "not text: expected an agreement or settings in TOML, in UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize("more", [["--hub", "00" * 32], ["--statement", "x"], ["--statement", "x", "--hub", "text"]])
def test_half_a_question_is_the_callers_mistake(tmp_path: Path, more: list[str]) -> None:
    place = tmp_path / "training.evidence"
    place.write_bytes(honest("fixed"))
    (tmp_path / "x").write_text("{}")
    assert main(["verify", str(place), *(str(tmp_path / "x") if word == "x" else word for word in more)]) == 2

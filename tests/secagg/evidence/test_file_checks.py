"""Every check of the file, of its texts, of the log and of the statement, one at a time."""

import base64
import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from secagg import Identity, UsageError, WireError
from secagg.codec import Blob, to_bytes
from secagg.evidence import Evidence, EvidenceLog, RoundRecord, RunRecord, check_envelope, envelope, verify
from secagg.evidence.record import MOST_TEXT, printable
from tests.secagg.evidence import second
from tests.secagg.evidence.common import agreed, honest

HUB = Identity.from_private(bytes(range(32)))


# --- the file -------------------------------------------------------------------------------------------------------


def test_evidence_of_another_version_is_refused_as_such() -> None:
    data = honest("fixed").replace(b"secagg evidence 1\n", b"secagg evidence 2\n", 1)
    assert verify(data).problems == ("these bytes are not evidence of version 1",)
    assert second.check(data)


def test_members_signatures_are_in_order() -> None:
    """The same signatures backwards, and one of them twice."""
    data = honest("fixed")
    whole = Evidence.from_bytes(data)
    entries = [v.to_bytes(4, "little") + sign for v, sign in sorted(whole.signatures.items())]
    written = len(entries).to_bytes(4, "little") + b"".join(entries)
    assert data.count(written) == 1
    for changed in (entries[::-1], [*entries, entries[-1]]):
        other = data.replace(written, len(changed).to_bytes(4, "little") + b"".join(changed))
        (problem,) = verify(other).problems
        assert "are not canonical" in problem
        assert second.check(other)


def with_adverts(change: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> bytes:
    """A file of one round whose adverts are written like this."""
    whole = Evidence.from_bytes(honest("fixed"))
    record = replace(whole.rounds[0], adverts=change(whole.rounds[0].adverts))
    return replace(whole, rounds=()).to_bytes() + to_bytes(Blob(), record.to_bytes())


def test_adverts_are_in_order(tmp_path: Path) -> None:
    """Also when a log is continued, which encodes nothing again."""
    whole = Evidence.from_bytes(honest("fixed"))
    for change in (lambda adverts: adverts[::-1], lambda adverts: (*adverts, adverts[-1])):
        data = with_adverts(change)
        assert verify(data).problems == ("round 0: the adverts are not in the order of ids, or one is there twice",)
        assert second.check(data) == "adverts ascend"
        (tmp_path / "evidence").write_bytes(data)
        with pytest.raises(UsageError, match="is damaged, record 0: round 0: the adverts are not in the order"):
            EvidenceLog(tmp_path / "evidence", whole.agreement, whole.signatures)


def test_records_are_of_the_kind_of_the_agreement() -> None:
    agreement, _ = agreed("fixed")
    with pytest.raises(UsageError, match="the other kind"):
        Evidence(agreement=agreement, signatures={}, runs=(RunRecord(round=0, cell=0, context=b""),))


def test_a_text_is_not_longer_than_it_may_be() -> None:
    """A hub cannot fill the file, or the memory of a reader, with its words."""
    long = RoundRecord(round=0, context=bytes(32), skipped=b"x" * MOST_TEXT)
    assert RoundRecord.from_bytes(long.to_bytes()) == long
    size = (MOST_TEXT + 1).to_bytes(4, "little")
    longer = long.to_bytes().replace(MOST_TEXT.to_bytes(4, "little") + b"x", size + b"xx")
    with pytest.raises(WireError):
        RoundRecord.from_bytes(longer)


def test_a_text_that_is_not_utf_8_is_not_printable() -> None:
    assert printable([b"gone", "gegangen, für heute".encode()])
    assert not printable([b"gone", b"\xff"])
    assert not printable([b"\x1b[2K"])


# --- the statement ----------------------------------------------------------------------------------------------------


@cache
def stated() -> dict[str, Any]:
    """The envelope of a hub about honest evidence."""
    found: dict[str, Any] = json.loads(envelope(honest("fixed"), HUB))
    return found


def signed(**changes: Any) -> str:
    """The statement with other fields, signed by the hub."""
    payload = json.dumps(json.loads(base64.b64decode(stated()["payload"])) | changes).encode()
    kind = stated()["payloadType"].encode()
    signature = HUB.sign(b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload))
    entry = {"keyid": HUB.public.hex(), "sig": base64.b64encode(signature).decode()}
    return json.dumps({**stated(), "payload": base64.b64encode(payload).decode(), "signatures": [entry]})


def test_the_statement_of_a_hub_holds_however_its_fields_are_ordered() -> None:
    assert check_envelope(signed(), honest("fixed"), HUB.public) == []


@pytest.mark.parametrize("name", ["payloadType", "_type", "predicateType"])
def test_a_statement_has_the_types_of_this_predicate(name: str) -> None:
    """Another kind of statement that the hub has signed about the same file does not count as this one."""
    other = "https://example.org/another/v1"
    text = json.dumps({**stated(), name: other}) if name == "payloadType" else signed(**{name: other})
    (problem,) = check_envelope(text, honest("fixed"), HUB.public)
    assert problem.startswith("the statement has the types ")
    assert other in problem


def test_a_statement_names_the_agreement_of_the_evidence() -> None:
    predicate = json.loads(base64.b64decode(stated()["payload"]))["predicate"]
    text = signed(predicate={**predicate, "agreement": agreed("atoms")[0].fingerprint.hex()})
    assert "the statement names another agreement" in check_envelope(text, honest("fixed"), HUB.public)


def test_a_statement_is_not_longer_than_it_may_be() -> None:
    text = json.dumps(stated())
    assert check_envelope(text + " " * 1000, honest("fixed"), HUB.public) == []
    padded = check_envelope(text + " " * 2**20, honest("fixed"), HUB.public)
    assert padded == ["the statement is not a DSSE envelope with an in-toto Statement v1"]


# --- the log -------------------------------------------------------------------------------------------------------


def test_a_log_is_on_disk_with_its_name_when_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First the file and then its folder, which has the name; a record that is added needs the file alone."""
    whole = Evidence.from_bytes(honest("fixed"))
    place, synced, real = tmp_path / "evidence", list[tuple[str, int]](), os.fsync

    def fsync(handle: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{handle}")).name
        synced.append((name, place.stat().st_size))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    log = EvidenceLog(place, whole.agreement, whole.signatures)
    begun = place.stat().st_size
    assert synced == [("evidence", begun), (tmp_path.name, begun)]
    synced.clear()
    log.append([whole.rounds[0].to_bytes()])
    assert synced == [("evidence", place.stat().st_size)]
    assert place.stat().st_size > begun


def test_a_damaged_record_in_a_log_is_not_continued(tmp_path: Path) -> None:
    whole = Evidence.from_bytes(honest("fixed"))
    data = bytearray(replace(whole, rounds=whole.rounds[:1]).to_bytes())
    data[-4:] = b"\xff" * 4
    (tmp_path / "evidence").write_bytes(data)
    with pytest.raises(UsageError, match="is damaged, record 0"):
        EvidenceLog(tmp_path / "evidence", whole.agreement, whole.signatures)
    assert (tmp_path / "evidence").read_bytes() == data


def test_a_log_takes_one_round_at_a_time(tmp_path: Path) -> None:
    whole = Evidence.from_bytes(honest("fixed"))
    log = EvidenceLog(tmp_path / "evidence", whole.agreement, whole.signatures)
    before = (tmp_path / "evidence").read_bytes()
    for records in ([], [record.to_bytes() for record in whole.rounds[:2]]):
        with pytest.raises(UsageError, match="records of one round"):
            log.append(records)
    assert (tmp_path / "evidence").read_bytes() == before

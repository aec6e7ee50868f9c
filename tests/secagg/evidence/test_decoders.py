"""Malformed agreements, evidence, journals and statements give typed errors or a report with problems, nothing else.

The verifier reads what a hub has written, so it must stand any bytes, in bounded memory.
"""

from __future__ import annotations

import base64
import importlib
import json
import operator
import os
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pytest

from secagg import FileJournal, Identity, Stage, codec, labels
from secagg.agreement.agreement import Agreement
from secagg.agreement.terms import Terms
from secagg.errors import PeerError, SecAggError, UsageError, WireError
from secagg.evidence import (
    Absence,
    Evidence,
    EvidenceLog,
    RoundRecord,
    RunRecord,
    SignedRelease,
    check_envelope,
    envelope,
    run_journals,
    run_statements,
    statements,
    verify,
)
from secagg.evidence import statement as statement_module
from secagg.evidence import verify as verify_evidence
from secagg.evidence.file import head
from secagg.simulation import WholeRun
from secagg.whole import FileStore
from tests.secagg.cluster import identity
from tests.secagg.evidence import common, run_common
from tests.secagg.fuzz import Table, fuzz

EVERYTHING = [
    "Agreement",
    "Terms",
    "RoundRecord",
    "RunRecord",
    "evidence",
    "continued log",
    "journal",
    "survivors' journal",
    "statement",
    "signed payload",
]
MILLION = 1_000_000
FAST = {"evidence": 1000, "continued log": 500, "journal": 1000, "survivors' journal": 1000}  # slower to decode
HUB = Identity.from_private(bytes(range(32)))


# --- real bytes -----------------------------------------------------------------------------------------------------


@cache
def files() -> list[bytes]:
    """Whole evidence of both protocols: small, with dropouts, and with proofs of blame."""
    agreement = run_common.agreed("groups")
    results = [
        run_common.played(agreement, 0, cheats={1: "a wrong seed share"}, stops={2: Stage.INPUTS}),
        run_common.played(agreement, 1, cheats={1: "commits to another seed"}, stops={1: Stage.UNMASKING}),
    ]
    return [
        common.honest("fixed", 2),
        common.honest("atoms", 1),
        common.honest("roll call", 2),
        run_common.evidence_of(agreement, results),
        run_common.honest("flat", 1),
    ]


@cache
def convicted_round() -> RoundRecord:
    """A round with something in every list."""
    record = Evidence.from_bytes(files()[0]).rounds[0]
    return replace(
        record,
        present=(0, 1),
        releases=unsigned_releases(record),
        second=record.answers[:2],
        after=unsigned_releases(record),
        absent=(Absence(3, b"gone"), Absence(4, b"gone too")),
        inconsistent=(((0, 0), (0, 1)),),
        skipped=b"skipped",
    )


def unsigned_releases(record: RoundRecord) -> tuple[Any, ...]:
    return tuple(SignedRelease(answer.sender, bytes(64)) for answer in record.answers[:2])


@cache
def place() -> Path:
    """A folder for files that are decoded where they lie; it is removed when the process ends."""
    memory = "/dev/shm"  # a disk takes most of the time
    folder = TemporaryDirectory(prefix="decoders-", dir=memory if os.access(memory, os.W_OK) else None)
    _kept.append(folder)
    return Path(folder.name)


_kept: list[Any] = []


@cache
def with_journal() -> tuple[bytes, Path, list[bytes]]:
    """Evidence of whole groups, the record of a client in its journal, and contents that such records have."""
    agreement, identities = common.agreed("fixed")
    run = WholeRun(agreement, identities, store=FileStore(place() / "whole"))
    run.round(0, {v: [v, 0, 1] for v in agreement.terms.ids})
    slot = place() / "whole" / statements.slot_name(identities[0].public, agreement.fingerprint, 0)
    return run.evidence(), slot, [slot.read_bytes(), b"release "]


@cache
def with_runs_journal() -> tuple[bytes, Path, list[bytes]]:
    """Evidence of survivors, the record of an opening in a client's journal, and contents of such records."""
    agreement, journal = run_common.agreed("flat"), FileJournal(place() / "survivors")
    journals = dict.fromkeys(agreement.terms.ids, journal)
    data = run_common.evidence_of(agreement, [run_common.played(agreement, journals=journals)])
    name = run_statements.record_name(labels.OPENING_RECORD, identity(3).public, agreement.fingerprint, 5)
    slot = place() / "survivors" / name
    return data, slot, [slot.read_bytes()]


# --- decoders -------------------------------------------------------------------------------------------------------


@contextmanager
def quick() -> Iterator[None]:
    """Each agreement is read once, and each signature verified once: the same answers in a fraction of the time."""
    with (
        mock.patch.object(Agreement, "from_bytes", _agreement),
        mock.patch.object(verify_module(), "verify_signature", _signature),
    ):
        yield


def verify_module() -> Any:
    return importlib.import_module("secagg.evidence.verify")


_read_agreement = Agreement.from_bytes
_verify_signature = verify_module().verify_signature


@lru_cache(maxsize=64)
def _known_agreement(data: bytes) -> Agreement | SecAggError:
    try:
        return _read_agreement(data)
    except SecAggError as bad:
        return bad


def _agreement(data: Any) -> Agreement:
    found = _known_agreement(bytes(data))
    if isinstance(found, SecAggError):
        raise found
    return found


@lru_cache(maxsize=4096)
def _known_signature(public: bytes, signature: bytes, statement: bytes) -> bool:
    try:
        _verify_signature(public, signature, statement, signer=0)
    except PeerError:
        return False
    return True


def _signature(public: bytes, signature: bytes, statement: bytes, *, signer: int) -> None:
    if not _known_signature(public, bytes(signature), statement):
        raise PeerError("the signature is wrong", culprit=signer)


def decode_agreement(data: bytes) -> bytes | None:
    try:
        return _read_agreement(data).to_bytes()
    except (WireError, PeerError):  # an origin that was not signed is no matter of bytes
        return None


def decode_terms(data: bytes) -> bytes | None:
    try:
        return Terms.from_bytes(data).to_bytes()
    except WireError:
        return None


def decode_record(kind: type[RoundRecord] | type[RunRecord]) -> Callable[[bytes], bytes | None]:
    def decode(data: bytes) -> bytes | None:
        try:
            return kind.from_bytes(data).to_bytes()
        except WireError:
            return None

    return decode


def decode_evidence(data: bytes) -> bytes | None:
    """Bytes that are no evidence give a report with one problem; others are also checked to the end."""
    with quick():
        report = verify(data, threads=1)
        report.to_json()
        try:
            return Evidence.from_bytes(data).to_bytes()
        except (WireError, PeerError):
            assert len(report.problems) == 1
            return None


def decode_log(data: bytes) -> bytes | None:
    """Whatever lies there is refused and left as it is, or continued; what is continued can be read."""
    path = place() / "log"
    path.write_bytes(data)
    agreement, signatures = _log_of()
    try:
        EvidenceLog(path, agreement, signatures)
    except UsageError:
        assert path.read_bytes() == data
        return None
    kept = path.read_bytes()
    assert data.startswith(kept) or len(data) < len(kept)
    return kept


@cache
def _log_of() -> tuple[Agreement, Any]:
    evidence = Evidence.from_bytes(files()[0])
    return evidence.agreement, evidence.signatures


def same_opening(data: bytes, content: bytes) -> bool:
    """An opening says as much as this one: all its fields, and its group among others."""
    found, expected = (codec.from_bytes(run_journals._OPENING, one) for one in (data, content))
    return found | {"groups": ()} == expected | {"groups": ()} and {*found["groups"]} >= {*expected["groups"]}


def decode_journal(
    made: Callable[[], tuple[bytes, Path, list[bytes]]], same: Callable[[bytes, bytes], bool]
) -> Callable[[bytes], bytes | None]:
    def decode(data: bytes) -> bytes | None:
        evidence, slot, contents = made()
        slot.write_bytes(data)
        with quick():
            try:
                report = verify(evidence, journal=slot.parent, threads=1)
            except UsageError:
                return None
        assert report.holds == same(data, contents[0])
        return data

    return decode


def decode_statement(data: bytes) -> bytes | None:
    """The bytes of a file as a text: a list of problems, whatever is in it."""
    with quick_statement():
        return data if not check_envelope(data.decode(errors="replace"), files()[0], HUB.public) else None


def decode_payload(data: bytes) -> bytes | None:
    """Whatever a hub has signed."""
    kind = statement_module.PAYLOAD_TYPE.encode()
    signature = HUB.sign(b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(data), data))
    entry = {"sig": base64.b64encode(signature).decode()}
    outer = {"payloadType": kind.decode(), "payload": base64.b64encode(data).decode(), "signatures": [entry]}
    with quick_statement():
        return data if not check_envelope(json.dumps(outer), files()[0], HUB.public) else None


@contextmanager
def quick_statement() -> Iterator[None]:
    """The evidence is the same each time, and is verified once."""
    with mock.patch.object(statement_module, "verify_evidence", _verified):
        yield


@lru_cache(maxsize=1)
def _verified(data: bytes) -> Any:
    return verify_evidence(data)


@cache
def stated() -> tuple[bytes, bytes]:
    """A statement, and its payload."""
    text = envelope(files()[0], HUB)
    return text.encode(), base64.b64decode(json.loads(text)["payload"])


@cache
def decoders() -> Table:
    """Name -> decoder, real bytes, how many leading bytes to keep, whether each value has one encoding."""
    read = [Evidence.from_bytes(data) for data in files()]
    agreements = [one.agreement.to_bytes() for one in read]
    rounds = [convicted_round().to_bytes(), *(record.to_bytes() for one in read for record in one.rounds)]
    runs = [record.to_bytes() for one in read for record in one.runs]
    begun = len(head(*_log_of()))
    return {
        "Agreement": (decode_agreement, agreements, 0, True),
        "Terms": (decode_terms, [one.agreement.terms.to_bytes() for one in read], 0, True),
        "RoundRecord": (decode_record(RoundRecord), rounds, 0, True),
        "RunRecord": (decode_record(RunRecord), runs, 0, True),
        "evidence": (decode_evidence, files(), 18, True),
        "continued log": (decode_log, files()[:1], begun, False),  # what is incomplete is cut off
        "journal": (decode_journal(with_journal, operator.eq), with_journal()[2], 0, True),
        "survivors' journal": (decode_journal(with_runs_journal, same_opening), with_runs_journal()[2], 0, True),
        "statement": (decode_statement, [stated()[0]], 0, False),  # its JSON may be written in any way
        "signed payload": (decode_payload, [stated()[1]], 0, False),
    }


# --- tests ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERYTHING[2:])  # tests.secagg.agreement.test_bytes has the first two
def test_mutated_bytes_give_a_value_with_that_encoding_or_a_typed_error(name: str) -> None:
    report = fuzz(name, FAST.get(name, 3000), 0, decoders())
    assert 0 < report.decoded < report.inputs


@pytest.mark.long
@pytest.mark.parametrize("name", EVERYTHING[2:])
def test_a_million_mutated_inputs_give_values_or_typed_errors_in_bounded_memory(name: str) -> None:
    report = fuzz(name, MILLION, 1, decoders())
    print(report)
    assert report.grown_kb < 64 * 1024


def test_the_corpus_has_real_bytes_of_every_kind() -> None:
    assert set(decoders()) == set(EVERYTHING)
    for data in files():
        assert verify(data).holds
    assert {bool(Evidence.from_bytes(data).runs) for data in files()} == {True, False}
    runs = [record for data in files() for record in Evidence.from_bytes(data).runs]
    assert any(record.wrong for record in runs)
    assert any(record.dealt for record in runs)
    for decode, bases, _, _ in decoders().values():
        assert decode(bases[0]) == bases[0]


def peak_of(act: Callable[[], None]) -> int:
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["RoundRecord", "RunRecord", "evidence", "survivors' journal"])
def test_a_count_of_four_billion_allocates_little(name: str) -> None:
    """Overwrites every four bytes of real bytes, and so every count."""
    read, bases, keep, _ = decoders()[name]
    raw = min(bases, key=len)
    step = max(1, len(raw) // 400)

    def act() -> None:
        for at in range(keep, len(raw) - 3, step):
            read(raw[:at] + b"\xff\xff\xff\xff" + raw[at + 4 :])

    act()
    assert peak_of(act) < 4_000_000  # with the signatures that are remembered here

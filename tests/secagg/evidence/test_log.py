"""Evidence that grows on disk: continued over restarts, whole or plainly cut after a kill at any byte."""

import os
from pathlib import Path

import pytest

from secagg import JournalError, UsageError
from secagg.evidence import Evidence, EvidenceLog, verify
from secagg.evidence import log as log_module
from tests.secagg.evidence import common, run_common


def opened(path: Path, data: bytes) -> EvidenceLog:
    evidence = Evidence.from_bytes(data)
    return EvidenceLog(path, evidence.agreement, evidence.signatures)


def records(data: bytes) -> list[bytes]:
    return [record.to_bytes() for record in Evidence.from_bytes(data).records]


@pytest.mark.parametrize("data", [common.honest("fixed"), run_common.honest("flat")], ids=["whole", "survivors"])
def test_every_round_is_appended_by_another_process(tmp_path: Path, data: bytes) -> None:
    place = tmp_path / "new" / "evidence"
    for record in records(data):
        opened(place, data).append([record])
        assert verify(place.read_bytes(), threads=1).holds
    assert place.read_bytes() == data
    assert place.stat().st_mode & 0o077 == 0


def test_a_kill_at_any_byte_leaves_a_file_that_holds_or_says_that_it_is_cut(tmp_path: Path) -> None:
    data, place = common.honest("fixed"), tmp_path / "evidence"
    every = records(data)
    log = opened(place, data)
    for record in every[:2]:
        log.append([record])
    kept = len(place.read_bytes())
    for end in (kept, kept + 1, kept + 3, kept + 4, kept + 200, len(data) - 1):
        place.write_bytes(data[:end])
        report = verify(place.read_bytes(), threads=1)
        assert report.holds if end == kept else "the evidence is cut" in report.problems[0]
        again = opened(place, data)
        assert verify(place.read_bytes(), threads=1).holds  # what was incomplete is gone
        for record in every[2:]:
            again.append([record])
        assert place.read_bytes() == data
    for end in (0, 5, 40):  # a kill while the beginning was written
        place.write_bytes(data[:end])
        opened(place, data).append([every[0]])
        assert verify(place.read_bytes(), threads=1).holds


def test_a_round_that_is_closed_again_takes_the_place_of_its_first_record(tmp_path: Path) -> None:
    data, place = common.honest("fixed"), tmp_path / "evidence"
    log = opened(place, data)
    for record in records(data):
        log.append([record])
    log.append([records(data)[-1]])
    assert place.read_bytes() == data
    opened(place, data).append([records(data)[-1]])
    assert place.read_bytes() == data


def test_an_older_round_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    data, place = common.honest("fixed"), tmp_path / "evidence"
    log = opened(place, data)
    for record in records(data):
        log.append([record])
    for again in (log, opened(place, data)):
        with pytest.raises(UsageError, match=r"expected those of round \d+ or a later one, got round 0"):
            again.append([records(data)[0]])
        assert place.read_bytes() == data


def test_a_log_of_another_agreement_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    data, place = common.honest("fixed"), tmp_path / "evidence"
    place.write_bytes(common.honest("atoms"))
    with pytest.raises(UsageError, match="another agreement"):
        opened(place, data)
    damaged = bytearray(data)
    start = len(data) - len(records(data)[-1])
    damaged[-4:] = b"\xff\xff\xff\xff"
    assert start
    place.write_bytes(damaged)
    with pytest.raises(UsageError, match="damaged"):
        opened(place, data)


def test_wrong_calls_and_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = common.honest("fixed")
    log = opened(tmp_path / "evidence", data)
    with pytest.raises(UsageError, match="records of one round"):
        log.append(records(data)[:2])
    with pytest.raises(UsageError, match="damaged"):
        log.append([b"something else"])
    with pytest.raises(UsageError, match="path of a file"):
        EvidenceLog("", Evidence.from_bytes(data).agreement, {})

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log_module.os, "fsync", full)
    with pytest.raises(JournalError, match="could not be written"):
        log.append([records(data)[0]])
    assert os.path.exists(tmp_path / "evidence")

"""Exclusive records: one creator wins permanently, between threads and between processes."""

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from secagg import FileJournal, Journal, MemoryJournal


@pytest.fixture(params=["memory", "file"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Journal:
    return MemoryJournal() if request.param == "memory" else FileJournal(tmp_path / "records")


def test_the_first_record_stays(journal: Journal) -> None:
    assert journal.create("a", b"first") is None
    assert journal.create("a", b"second") == b"first"
    assert journal.create("a", b"first") == b"first"  # even the same content was there before
    assert journal.create("b", b"") is None
    assert journal.create("b", b"") == b""


def test_one_of_many_threads_wins(journal: Journal) -> None:
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda i: journal.create("name", b"%d" % i), range(40)))
    winners = [i for i, outcome in enumerate(outcomes) if outcome is None]
    assert len(winners) == 1
    assert {outcome for outcome in outcomes if outcome is not None} == {b"%d" % winners[0]}


def test_one_of_many_processes_wins(tmp_path: Path) -> None:
    script = (
        "import sys; from secagg.protocol.journal import FileJournal; "
        f"print(FileJournal({str(tmp_path)!r}).create('name', sys.argv[1].encode()) is None)"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", script, str(i)], stdout=subprocess.PIPE, text=True) for i in range(4)
    ]
    assert sorted(process.communicate()[0].strip() for process in running) == ["False"] * 3 + ["True"]


def test_records_survive_a_new_journal_and_are_private(tmp_path: Path) -> None:
    FileJournal(tmp_path / "j").create("name", b"content")
    assert FileJournal(tmp_path / "j").create("name", b"other") == b"content"
    assert stat.S_IMODE(os.stat(tmp_path / "j" / "name").st_mode) == 0o600
    assert stat.S_IMODE(os.stat(tmp_path / "j").st_mode) == 0o700
    assert os.listdir(tmp_path / "j") == ["name"]  # no draft is left behind


def test_a_record_that_cannot_be_stored_is_an_error(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path / "j")
    (tmp_path / "j").rmdir()
    with pytest.raises(OSError, match="name"):
        journal.create("name", b"content")

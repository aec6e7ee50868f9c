"""Exclusive records: one creator wins permanently, between threads and between processes."""

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from secagg import FileJournal, Journal, JournalError, MemoryJournal, UsageError
from secagg.protocol.journal import load, store


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
    with pytest.raises(JournalError, match=r"store the record 'name'.*No such file.*nothing was sent.*retry"):
        journal.create("name", b"content")
    with pytest.raises(JournalError, match="read the record 'name'"):  # nobody knows what the folder held
        journal.read("name")
    (tmp_path / "j").write_bytes(b"")
    with pytest.raises(JournalError, match=r"open .*j"):
        FileJournal(tmp_path / "j")


def test_an_os_error_of_any_journal_becomes_a_journal_error() -> None:
    class Broken(MemoryJournal):
        def create(self, name: str, content: bytes) -> bytes | None:
            raise OSError("quota exceeded")

        def read(self, name: str) -> bytes | None:
            raise PermissionError(13, "Permission denied")

    with pytest.raises(JournalError, match="store the record 'name': quota exceeded"):
        store(Broken(), "name", b"")
    with pytest.raises(JournalError, match="read the record 'name': Permission denied"):
        load(Broken(), "name")


def test_a_record_is_read_as_it_was_stored(journal: Journal) -> None:
    assert journal.read("a") is None
    journal.create("a", b"first")
    journal.create("a", b"second")
    journal.create("b", b"")
    assert (journal.read("a"), journal.read("b"), journal.read("c")) == (b"first", b"", None)


BAD_NAMES: list[Any] = [
    "",
    ".",
    "..",
    "../x",
    "/etc/x",
    "a/b",
    "a\\b",
    "a\0b",
    "a\n",
    ".x",
    "x" * 201,
    "é",
    None,
    5,
    b"a",
]


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_a_name_that_could_leave_the_folder_is_refused(name: Any, journal: Journal, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match="name of a record"):
        journal.create(name, b"content")
    with pytest.raises(UsageError, match="name of a record"):
        journal.read(name)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("content", [None, 5, "text", ["a"]], ids=repr)
def test_content_that_is_not_bytes_is_refused(content: Any, journal: Journal) -> None:
    with pytest.raises(UsageError, match="content of a record is bytes"):
        journal.create("name", content)
    assert journal.read("name") is None


class Synced:
    """What `os.fsync` was called for, in order: the inode, and which of the watched names existed then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *watched: Path) -> None:
        self.calls: list[tuple[int, bool]] = []
        self._watched = watched
        real = os.fsync

        def fsync(descriptor: int) -> None:
            self.calls.append((os.fstat(descriptor).st_ino, all(path.exists() for path in self._watched)))
            real(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)

    def inodes(self) -> list[int]:
        return [inode for inode, _ in self.calls]


def inode(path: Path) -> int:
    return path.stat().st_ino


def test_a_new_record_is_synced_before_it_has_its_name_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, record = FileJournal(tmp_path / "j"), tmp_path / "j" / "name"
    synced = Synced(monkeypatch, record)
    journal.create("name", b"content")
    assert synced.calls == [(inode(record), False), (inode(record.parent), True)]


def test_a_record_that_is_found_is_synced_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever linked it may not have synced yet; who relies on it must."""
    journal, record = FileJournal(tmp_path / "j"), tmp_path / "j" / "name"
    record.write_bytes(b"linked by a process that died before it synced")
    for use in (lambda: journal.create("name", b"other"), lambda: journal.read("name")):
        synced = Synced(monkeypatch)
        assert use() is not None
        assert synced.inodes()[-2:] == [inode(record), inode(record.parent)]
        monkeypatch.undo()


def test_the_folders_that_a_journal_makes_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = Synced(monkeypatch)
    FileJournal(tmp_path / "a" / "b")
    assert set(synced.inodes()) == {inode(tmp_path), inode(tmp_path / "a")}
    synced.calls.clear()
    FileJournal(tmp_path / "a" / "b")
    assert synced.calls == []


def test_a_folder_of_version_1_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / ("0f" * 32)).write_bytes(b"")
    with pytest.raises(UsageError, match=r"is a journal of version 1, this is version 2: use another$"):
        FileJournal(tmp_path)

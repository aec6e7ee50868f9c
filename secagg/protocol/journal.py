"""Durable, exclusive records: what may happen once happens once, also across processes.

A client stores a record in its journal *before* it sends anything. The application owns the journal: secagg
does no I/O by itself. Two processes restored from the same saved bytes ask for the same record, and only one
of them gets it. Most applications want `FileJournal`.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

from secagg import labels
from secagg.crypto.keys import digest
from secagg.errors import JournalError, UsageError

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _.-]{0,199}")
_VERSION_1: Final = re.compile("[0-9a-f]{64}")


def record_name(label: bytes, *parts: bytes) -> str:
    """The name of a record: the version, and the hash of what the record is about."""
    return f"v{labels.VERSION}-{digest(label, *parts).hex()}"


class Journal(Protocol):
    """Write-once storage that outlives the process. `MemoryJournal` shows the contract in a few lines.

    >>> from secagg.protocol import Journal, MemoryJournal
    >>> journal: Journal = MemoryJournal()
    >>> journal.create("step 1", b"first"), journal.create("step 1", b"second")
    (None, b'first')
    >>> journal.read("step 1"), journal.read("step 2")
    (b'first', None)
    """

    def create(self, name: str, content: bytes) -> bytes | None:
        """Store `content` under `name` permanently and return None, or return what is already there.

        It must be atomic between processes, and durable when it returns: a journal that forgets (a disk
        restored from a backup) lets an update be opened twice. Raise to refuse; then nothing is sent.
        """
        ...

    def read(self, name: str) -> bytes | None:
        """What is stored under `name`, or None. What it returns must be durable, as after `create`."""
        ...


class MemoryJournal:
    """For simulations and tests, where all clients live in one process.

    >>> MemoryJournal().create("step 1", b"") is None
    True
    """

    def __init__(self) -> None:
        self._records: dict[str, tuple[bytes]] = {}

    def create(self, name: str, content: bytes) -> bytes | None:
        record = (_checked_content(content),)
        existing = self._records.setdefault(_checked(name), record)
        return None if existing is record else existing[0]

    def read(self, name: str) -> bytes | None:
        existing = self._records.get(_checked(name))
        return existing[0] if existing else None


class FileJournal:
    """One small file per record in a folder: written, synced to disk, then linked to its exclusive name.

    A record that another process has just linked may not be on disk yet. So a record that is found is synced as
    well, file and folder, before anyone relies on it.

    >>> from tempfile import mkdtemp
    >>> folder = mkdtemp()
    >>> FileJournal(folder).create("step 1", b"first"), FileJournal(folder).create("step 1", b"second")
    (None, b'first')
    """

    def __init__(self, folder: Path | str) -> None:
        if not isinstance(folder, (str, os.PathLike)) or not str(folder):
            raise UsageError(f"a journal needs the path of a folder, not {folder!r}")
        self._folder = Path(folder)
        with storage_errors("journal", f"open {folder}"):
            missing = [place for place in (self._folder, *self._folder.parents) if not place.exists()]
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for place in missing:
                sync(place.parent)  # audit: journal-folder-durable
            names = [record.name for record in self._folder.iterdir()]
        if any(map(_VERSION_1.fullmatch, names)):  # audit: journal-version
            raise UsageError(f"{self._folder} is a journal of version 1, this is version {labels.VERSION}: use another")

    def create(self, name: str, content: bytes) -> bytes | None:
        final, content = self._folder / _checked(name), _checked_content(content)
        draft = self._folder / f"{name}.{os.getpid()}.{os.urandom(8).hex()}"
        with storage_errors("journal", f"store the record {name!r}"):
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())  # audit: journal-record-durable
                # audit: journal-exclusive
                os.link(draft, final)  # atomic; fails if the name exists, so nobody reads an incomplete record
            except FileExistsError:
                return self._existing(final)
            finally:
                with suppress(OSError):  # a draft that stays behind does no harm
                    draft.unlink()
            sync(self._folder)  # audit: journal-name-durable
            return None

    def read(self, name: str) -> bytes | None:
        final = self._folder / _checked(name)
        with storage_errors("journal", f"read the record {name!r}"):
            try:
                return self._existing(final)
            except FileNotFoundError:
                sync(self._folder)  # an error if the folder has disappeared: nobody knows what it held
                return None

    def _existing(self, final: Path) -> bytes:
        sync(final)  # audit: journal-found-record-durable
        sync(self._folder)  # audit: journal-found-name-durable
        return final.read_bytes()


def check_journal(journal: Journal) -> None:
    """UsageError unless this has the two methods of a journal."""
    for method in ("create", "read"):
        if isinstance(journal, type) or not callable(getattr(journal, method, None)):
            raise UsageError(f"journal: expected a Journal with {method}(), got {journal!r}")


def store(journal: Journal, name: str, content: bytes) -> bytes | None:
    """`journal.create`, with JournalError for an OSError of any journal."""
    with storage_errors("journal", f"store the record {name!r}"):
        return journal.create(name, content)


def load(journal: Journal, name: str) -> bytes | None:
    """`journal.read`, with JournalError for an OSError of any journal."""
    with storage_errors("journal", f"read the record {name!r}"):
        return journal.read(name)


@contextmanager
def storage_errors(where: str, what: str) -> Iterator[None]:
    """JournalError for an OSError: what could not be done, and that nothing was sent."""
    try:
        yield
    except OSError as error:
        reason = f"{error.strerror or error} ({type(error).__name__})"
        raise JournalError(f"the {where} could not {what}: {reason}; nothing was sent: repair it and retry") from error


def sync(place: Path) -> None:
    """Write a file or the names in a folder to the disk."""
    handle = os.open(place, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _checked(name: str) -> str:
    """The name of a record, if it names a file in the journal's own folder."""
    # audit: journal-name-stays-in-folder
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"the name of a record has 1 to 200 letters, digits, spaces or any of _.- and begins with a letter "
            f"or a digit, not {name!r}"
        )
    return name


def _checked_content(content: bytes) -> bytes:
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise UsageError(f"the content of a record is bytes, not {type(content).__name__}")
    return bytes(content)

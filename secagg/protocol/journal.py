"""Durable, exclusive records: what may happen once happens once, also across processes.

A client stores a record in its journal *before* it sends anything. The application owns the journal: secagg
does no I/O by itself. Two processes restored from the same saved bytes ask for the same record, and only one
of them gets it. Most applications want `FileJournal`.
"""

import os
from pathlib import Path
from typing import Protocol


class Journal(Protocol):
    """Write-once storage that outlives the process. `MemoryJournal` shows the contract in four lines.

    >>> from secagg.protocol import Journal, MemoryJournal
    >>> journal: Journal = MemoryJournal()
    >>> journal.create("step 1", b"first"), journal.create("step 1", b"second")
    (None, b'first')
    """

    def create(self, name: str, content: bytes) -> bytes | None:
        """Store `content` under `name` permanently and return None, or return what is already there.

        It must be atomic between processes, and durable when it returns: a journal that forgets (a disk
        restored from a backup) lets an update be opened twice. Raise to refuse; then nothing is sent.
        """
        ...


class MemoryJournal:
    """For simulations and tests, where all clients live in one process.

    >>> MemoryJournal().create("step 1", b"") is None
    True
    """

    def __init__(self) -> None:
        self._records: dict[str, tuple[bytes]] = {}

    def create(self, name: str, content: bytes) -> bytes | None:
        record = (bytes(content),)
        existing = self._records.setdefault(name, record)
        return None if existing is record else existing[0]


class FileJournal:
    """One small file per record in a folder: written, synced to disk, then linked to its exclusive name.

    >>> from tempfile import mkdtemp
    >>> folder = mkdtemp()
    >>> FileJournal(folder).create("step 1", b"first"), FileJournal(folder).create("step 1", b"second")
    (None, b'first')
    """

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def create(self, name: str, content: bytes) -> bytes | None:
        final = self._folder / name
        draft = self._folder / f"{name}.{os.getpid()}.{os.urandom(8).hex()}"
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            # audit: journal-exclusive
            os.link(draft, final)  # atomic; fails if the name exists, so nobody reads an incomplete record
        except FileExistsError:
            return final.read_bytes()
        finally:
            draft.unlink(missing_ok=True)
        self._sync_folder()
        return None

    def _sync_folder(self) -> None:
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

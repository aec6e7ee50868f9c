"""The durable, exclusive records that make one-shot rules hold across processes.

A client asks its journal for a record *before* anything leaves. The journal is the application's: secagg
does no I/O of its own accord. Two processes restored from the same saved bytes ask for the same record, and
only one of them gets it. `FileJournal` is what most applications want.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol


class Journal(Protocol):
    """Write-once storage that outlives the process."""

    def create(self, name: str, content: bytes) -> bytes | None:
        """Store `content` under `name` for good and return None, or return what is there already.

        It must be atomic between processes, and durable when it returns: a journal that forgets (an older
        copy of the disk put back) lets an update be opened twice. Raise to refuse; nothing is sent then.
        """
        ...


class MemoryJournal:
    """For simulations and tests, where all clients live and die in one process."""

    def __init__(self) -> None:
        self._records: dict[str, tuple[bytes]] = {}

    def create(self, name: str, content: bytes) -> bytes | None:
        record = (bytes(content),)
        existing = self._records.setdefault(name, record)
        return None if existing is record else existing[0]


class FileJournal:
    """One small file per record in a folder, written whole, fsynced, and linked into place exclusively."""

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
            os.link(draft, final)  # atomic, and fails if the name exists: a half-written record is never seen
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

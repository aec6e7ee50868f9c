"""Files that survive a kill at any moment, and a lock that one process holds."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from secagg.codec import Buffer
from secagg.errors import UsageError
from secagg.protocol.journal import storage_errors, sync

_TRIES: Final = 40  # to write a file while no file descriptor is free
_PAUSE: Final = 0.05  # seconds


def place(name: str, value: object) -> Path:
    """The path of a folder or a file.

    >>> place("folder", 5)
    Traceback (most recent call last):
    secagg.errors.UsageError: folder: expected a path, got int
    """
    if not isinstance(value, (str, os.PathLike)) or not str(value):
        raise UsageError(f"{name}: expected a path, got {type(value).__name__}")
    return Path(value)


def replace_file(path: Path, parts: Sequence[Buffer], *, durable: bool = True) -> None:
    """Write a private file so that a reader sees the old or the new one, also after a crash."""
    draft = path.with_name(f".{path.name}.new")  # the folder's lock is held: nobody else writes here
    with storage_errors("folder", f"write {path}"):
        for left in reversed(range(_TRIES if durable else 1)):
            try:
                return _write(draft, path, parts, durable)
            except OSError as bad:
                if bad.errno not in (errno.EMFILE, errno.ENFILE) or not left:
                    raise
                time.sleep(_PAUSE)  # connections end all the time, and each one frees a file descriptor


def _write(draft: Path, path: Path, parts: Sequence[Buffer], durable: bool) -> None:
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.writelines(parts)
        if durable:
            file.flush()
            os.fsync(file.fileno())  # audit: hub-file-durable
    os.replace(draft, path)
    if durable:
        sync(path.parent)  # audit: hub-file-name-durable


def read_file(path: Path) -> bytes | None:
    """What is in a file, or None if there is none."""
    with storage_errors("folder", f"read {path}"):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None


class FolderLock:
    """One process at a time works in a folder: a second one is refused, and a killed one leaves nothing behind."""

    def __init__(self, folder: Path) -> None:
        with storage_errors("folder", f"open {folder}"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # audit: one-process-per-folder
        except OSError:
            os.close(self._handle)
            raise UsageError(f"another process works in {folder}; stop it first") from None

    def release(self) -> None:
        os.close(self._handle)

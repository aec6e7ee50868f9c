"""Watches when files and folders are written to the disk, and when a file gets its name."""

import os
from pathlib import Path
from typing import Any

import pytest


class Disk:
    """What `os.fsync` and `os.replace` were called for, in order.

    `("file", name, size)` for a file that was synced, with the bytes that were in it; `("name", name, size)` for a file
    that got this name; `("folder", name, count)` for a folder, with the number of names that it had.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[tuple[str, str, int]] = []
        fsync, replace = os.fsync, os.replace

        def synced(handle: int) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{handle}"))
            fsync(handle)
            if path.is_dir():
                self.events.append(("folder", path.name, len(os.listdir(path))))
            else:
                self.events.append(("file", path.name, os.fstat(handle).st_size))

        def replaced(source: Any, target: Any, **more: Any) -> None:
            replace(source, target, **more)
            self.events.append(("name", Path(target).name, Path(target).stat().st_size))

        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(os, "replace", replaced)

    def replaced(self, path: Path) -> bool:
        """Whether the last that happened is: the whole draft was synced, got this name, and its folder was synced.

        A crash before the first leaves the old file, one after the last the new one, and one in between either.
        """
        draft, named, folder = ([("", "", -1)] * 3 + self.events)[-3:]
        size = path.stat().st_size
        return (
            (draft[0], draft[2]) == ("file", size)
            and draft[1] != path.name
            and named == ("name", path.name, size)
            and folder == ("folder", path.parent.name, len(os.listdir(path.parent)))
        )

"""A full disk under a command that can simply be given again: a report, a picture, a sweep.

A training says that it can be resumed. These commands have no `--resume`: they write everything again, or continue.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fl.errors import RecordError

FULL: Final = (errno.ENOSPC, errno.EDQUOT)
AGAIN: Final = "; free some space, then give the same command again"


def advised(error: BaseException) -> str:
    """The text of an error; if the disk is full, with what helps where nothing is resumed."""
    cause = error.__cause__
    if not isinstance(error, RecordError) or not isinstance(cause, OSError) or cause.errno not in FULL:
        return str(error)
    return str(error).partition("; free some space")[0] + AGAIN


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Make an error of the system a RecordError that says what to do. `path` is named if the error names no file."""
    try:
        yield
    except RecordError as error:
        raise RecordError(advised(error)) from error.__cause__
    except OSError as error:
        hint = AGAIN if error.errno in FULL else ""
        raise RecordError(f"cannot write {error.filename or path}: {error.strerror or error}{hint}") from error

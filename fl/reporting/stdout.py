"""With `--json`, a command prints one JSON document on stdout. All else goes to stderr."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout


@contextmanager
def kept_clean(as_json: bool) -> Iterator[None]:
    """With JSON, send to stderr what is printed meanwhile: by a user's functions, by libraries and by workers."""
    if not as_json or sys.stdout is None:  # None if its descriptor is closed
        yield
        return
    sys.stdout.flush()
    stdout = os.dup(1)
    try:
        os.dup2(2, 1)  # for processes that start meanwhile, and for code that writes to the descriptor
        with redirect_stdout(sys.stderr):
            yield
    finally:
        try:
            sys.stdout.flush()
            ctypes.CDLL(None).fflush(None)  # what C code has printed
        finally:
            os.dup2(stdout, 1)
            os.close(stdout)

"""Processes that start together compile different things, and find what the others have compiled.

In a fresh clone, kernels take half a minute to compile and test files take as long. Without this, each process would
compile all of them at the same time as the others. Once they are compiled, this costs two seconds.
"""

import fcntl
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

import secagg
from robust.kernels import distances, jit, order
from secagg.crypto import FixedPoint, hashing, noise, prg, shamir
from secagg.exposure import Policy, Schedule, audit

TESTS = Path(__file__).parent


def masks_and_shares() -> None:
    prg.backend()
    hashing.has_kernel()
    shamir.combine(shamir.split(bytes(32), 2, 3))
    for dtype in (np.float32, np.float64):
        FixedPoint(clients=1, clip=1.0).encode(np.zeros(8, dtype))


def rules() -> None:
    for module in (distances, order):
        for kernel in vars(module).values():
            if isinstance(kernel, jit._Kernel):
                kernel._build()


def noise_and_audit() -> None:
    noise.discrete_gaussian(1, 1)
    groupings = Schedule(name="random", size=4, groupings=3).draw(range(12), bytes(32), round=0)
    audit(groupings, range(12), Policy(anonymity=3), plan_hash=b"")


PARTS = {
    masks_and_shares: "__init__.py",
    rules: "conftest.py",
    noise_and_audit: "sharing.py",
}  # the file that is locked meanwhile


def compile_kernels(worker: int) -> None:
    """Compile or load all kernels; every second process has the parts in the other order."""
    for part, name in list(PARTS.items())[:: -1 if worker % 2 else 1]:
        with only_one(TESTS / name):
            part()
    secagg.warm_up()  # the few that no part needs


@contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Wait until no other process has locked the file."""
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def compile_tests(worker: int) -> None:
    """Every second process imports the test files from the last to the first, and meets the others in the middle."""
    if worker % 2 and not sys.dont_write_bytecode:
        for path in sorted(TESTS.rglob("test_*.py"), reverse=True):
            with suppress(Exception, pytest.skip.Exception):  # if it fails, it fails again when it is collected
                importlib.import_module(".".join(path.relative_to(TESTS.parent).with_suffix("").parts))

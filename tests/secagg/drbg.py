"""Randomness that a test fixes: SHAKE-256 of a name, read as a stream."""

from hashlib import shake_256


class Drbg:
    """`Drbg(b"client 3")` is an Entropy whose whole output is fixed by its name."""

    def __init__(self, name: bytes) -> None:
        self._name = name
        self._calls = 0

    def __call__(self, count: int) -> bytes:
        self._calls += 1
        return shake_256(self._name + b"/" + str(self._calls).encode()).digest(count)

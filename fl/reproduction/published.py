"""The curves that the authors of the paper published, as the package keeps them."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

EVERY_ROUND = 100  # up to here the file has every round, later every tenth
UNIT = 10_000

Points = tuple[tuple[int, float], ...]


@cache
def published() -> dict[str, Points]:
    """(round, test accuracy) of every published curve by its name.

    >>> published()["LF-zeno-m3"][9]
    (10, 0.5285)
    """
    lines = (files("fl.reproduction") / "published.txt").read_text("utf-8").splitlines()
    found = {}
    for name, *numbers in (line.split() for line in lines if not line.startswith("#")):
        rounds = [i if i <= EVERY_ROUND else EVERY_ROUND + 10 * (i - EVERY_ROUND) for i in range(1, len(numbers) + 1)]
        found[name] = tuple((i, int(number) / UNIT) for i, number in zip(rounds, numbers, strict=True))
    return found

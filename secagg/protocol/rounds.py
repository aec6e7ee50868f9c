"""Rounds go forward: a client opens no round before the last one that it signed.

The rounds that a client signed for a training are numbered records in its journal, each with its round. The last one
is found by doubling and halving. Two processes that sign at the same time ask for the same number.
"""

from collections.abc import Callable
from dataclasses import replace

from secagg import codec
from secagg.errors import AlreadyUsed
from secagg.protocol.client_state import OPENING, Opening
from secagg.protocol.journal import Journal, load, store


def record_opening(journal: Journal, name: str, rounds: Callable[[int], str], round: int, wanted: Opening) -> None:
    """Store what a client agrees to open, once per update, and no earlier round than the last one."""
    stored = load(journal, name)
    if stored is None:
        claim_round(journal, rounds, round)
        stored = store(journal, name, codec.to_bytes(OPENING, wanted))
    if stored is None:
        return
    earlier: Opening = codec.from_bytes(OPENING, stored)
    # audit: one-opening-per-update opening-never-grows
    if replace(earlier, groups=wanted.groups) != wanted or not set(wanted.groups) <= set(earlier.groups):
        raise AlreadyUsed("this update was opened before, in another run or for other survivors or groups")


def claim_round(journal: Journal, name: Callable[[int], str], round: int) -> None:
    """Record that this round is opened. AlreadyUsed if a later one was; `name` gives the name of each record."""
    count = count_records(journal, name)
    last = load(journal, name(count - 1)) if count else None
    while last is None or round != _number(last):
        if last is not None and round < _number(last):  # audit: rounds-go-forward
            raise AlreadyUsed(f"round {_number(last)} was signed before: round {round} is too early to be opened now")
        last, count = store(journal, name(count), round.to_bytes(8, "little")), count + 1
        if last is None:
            return


def count_records(journal: Journal, name: Callable[[int], str]) -> int:
    """The number of records: the least k for which record k does not exist."""
    high = 1
    while load(journal, name(high - 1)) is not None:
        high *= 2
    low = high // 2  # records below `low` exist; record `high - 1` does not
    while low < high - 1:
        middle = (low + high - 1) // 2
        if load(journal, name(middle)) is None:
            high = middle + 1
        else:
            low = middle + 1
    return low


def _number(record: bytes) -> int:
    return int.from_bytes(record, "little")

"""Which records of a client's journal belong to an agreement. Names of records are hashes, so rounds are tried."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from secagg.errors import UsageError
from secagg.types import ClientId

BEYOND: Final = 1000  # rounds that are tried after the last known one
MOST_TRIED: Final = 5_000_000  # names: about ten seconds


class Searched(NamedTuple):
    """The names of records by client and round, and for each client the first round that was not tried, if any."""

    found: Mapping[ClientId, Mapping[int, str]]
    untried: Mapping[ClientId, int]

    def describe(self) -> str:
        """Up to which rounds the search speaks for whom."""
        ends = {v: max(rounds) for v, rounds in self.found.items()}
        ends |= {v: first - 1 for v, first in self.untried.items() if v in ends}
        who = ", ".join(f"client {v} to round {end}" for v, end in sorted(ends.items())[:8])
        return f"all rounds in these journals were compared: {who}; rounds without these clients can still be missing"


def names_in(folder: Path) -> set[str]:
    """The names of the files of a journal."""
    if not folder.is_dir():  # audit: journal-is-a-folder
        raise UsageError(f"{folder} is not the folder of a journal")
    return {path.name for path in folder.iterdir()}


def search(
    agreed: range, known: Collection[int], names: Collection[str], name_of: Mapping[ClientId, Callable[[int], str]]
) -> Searched:
    """Try the rounds in `known`, then every round up to 1000 after the last one that is known or found.

    A hub chooses the numbers of rounds in its evidence. So the second part tries at most five million names. Those of
    clients that have a record come first.

    >>> found = search(range(10**15), {0, 10**12}, {"3", "1002", "1000000000000"}, {7: str})
    >>> found.found, found.untried
    ({7: {3: '3', 1002: '1002', 1000000000000: '1000000000000'}}, {7: 5000000})
    """
    found = {
        client: {round: name(round) for round in known if round in agreed and name(round) in names}
        for client, name in name_of.items()
    }
    untried: dict[ClientId, int] = {}
    left = MOST_TRIED
    owners = sum(map(bool, found.values())) or len(found)
    for place, client in enumerate(sorted(found, key=lambda one: (not found[one], one))):
        mine, name, here = found[client], name_of[client], agreed.start
        last = max((agreed.start - 1, *known, *mine))
        most = left // max(1, owners - place)
        while here <= last + BEYOND and here in agreed:
            if not most:  # audit: journal-search-ends
                untried[client] = here
                break
            most, left = most - 1, left - 1
            if (called := name(here)) in names:
                mine[here], last = called, max(last, here)
            here += 1
    return Searched({client: dict(sorted(mine.items())) for client, mine in found.items() if mine}, untried)

"""Who is left out of the next runs, because of what happened in earlier ones.

The *blamed* are convicted by evidence and left out permanently. In a *dispute* between a dealer and a peer that says it
got no good share, one of the two cheats, and nobody else can see which. Every dispute has a cheating end, so a matching
of the disputes has at most as many pairs as there are cheaters: suspending both ends of each pair suspends at most one
honest client per cheater.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from secagg.arguments import each, ids, instance, settle, whole
from secagg.protocol.result import Result
from secagg.types import ClientId


@dataclass(slots=True)
class Suspects:
    """Carry it from run to run: `excluded(round)` before a run, `learn(result)` after it.

    A suspect sits out one round, then two, four, and so on, each time that it is in a dispute again. At most `most`
    clients are suspended at a time: n - t minus the dropouts that you expect, so that the runs still finish.

    >>> suspects = Suspects(most=4)
    >>> suspects.suspend(7, [(0, 5), (0, 6), (3, 5)])  # dealer 0 is disputed by 5 and 6, dealer 3 by 5
    >>> suspects.excluded(8), suspects.excluded(9)
    ((0, 5), ())
    """

    most: int
    blamed: dict[ClientId, str] = field(default_factory=dict)
    until: dict[ClientId, int] = field(default_factory=dict)  # the last round that a suspect sits out
    times: dict[ClientId, int] = field(default_factory=dict)  # how often a client was suspended

    def __post_init__(self) -> None:
        settle(self, whole, "most", least=0)

    def learn(self, result: Result) -> None:
        """Take what one run showed."""
        self.blamed.update(instance("result", result, Result).blamed)
        self.suspend(result.plan.round, result.disputes)

    def suspend(self, round: int, disputes: Iterable[tuple[ClientId, ClientId]]) -> None:
        """Suspend both ends of each pair of a maximal matching. A dispute with a blamed client is explained."""
        round, taken = whole("round", round, 0), set(self.blamed)
        for pair in sorted({ids("disputes", pair) for pair in each("disputes", disputes, tuple)}):
            if taken.intersection(pair):
                continue
            taken.update(pair)  # audit: disputes-are-matched
            away = {v for v, last in self.until.items() if last > round}
            if len(away.union(pair)) > self.most:  # audit: suspects-limited
                return
            for client in pair:
                self.until[client] = round + 2 ** self.times.get(client, 0)
                self.times[client] = self.times.get(client, 0) + 1

    def excluded(self, round: int) -> tuple[ClientId, ...]:
        """The clients to leave out of this round: `Server(plan, exclude=...)`."""
        round = whole("round", round, 0)
        return tuple(sorted({*self.blamed, *(v for v, last in self.until.items() if last >= round)}))

"""A series of rounds: how many a hub was asked for, kept in its folder, so that a restart goes on and not anew."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from secagg.net.files import read_file, replace_file
from secagg.net.hub import Hub
from secagg.net.outcome import Outcome

FILE: Final = "series.json"
_LATE: Final = 20.0  # seconds for sites to come back if only the end of a series is left to tell


class Series:
    """The rounds from one call to the end. The same call after a kill or a stop has only those that are left.

    >>> from tempfile import mkdtemp
    >>> place = Path(mkdtemp())
    >>> series = Series(place, rounds=5, next_round=0, last_round=9)
    >>> series.begin()
    >>> again = Series(place, rounds=5, next_round=2, last_round=9)  # killed after two rounds
    >>> again.until
    5
    >>> again.done()
    >>> Series(place, rounds=5, next_round=5, last_round=9).until
    10
    """

    def __init__(self, folder: Path, *, rounds: int, next_round: int, last_round: int) -> None:
        self._path = folder / FILE
        saved = read_file(self._path)
        values: dict[str, Any] = json.loads(saved) if saved else {}
        self.until, self.new = min(next_round + rounds, last_round + 1), True
        if values.get("rounds") == rounds and not values["done"]:
            self.until, self.new = int(values["until"]), False
        self._values = {"rounds": rounds, "until": self.until, "done": False}

    def begin(self) -> None:
        """Keep how far it goes, before its first round."""
        self._store()

    def done(self) -> None:
        """All rounds are over, and the sites were told: the next call begins another series."""
        self._values["done"] = True
        self._store()

    def _store(self) -> None:
        replace_file(self._path, [json.dumps(self._values).encode()])


async def run_series(
    hub: Hub,
    *,
    rounds: int,
    every: float,
    most_lost: int,
    data: bytes,
    outcomes: list[Outcome],
    on_outcome: Callable[[Outcome], None] | None,
) -> None:
    """Run the rounds that are left and tell the sites. Stop early after so many in a row that opened nothing."""
    first, last_round, lost = hub.next_round, hub.agreement.terms.last_round, 0
    series = Series(hub.folder, rounds=rounds, next_round=first, last_round=last_round)
    if series.new:
        hub.check_left()
    series.begin()
    while hub.next_round < series.until:
        last = hub.since_last()
        if every > 0 and last is not None and hub.unfinished is None:
            await asyncio.sleep(max(0.0, every - last))
        outcome = await hub.round(data)
        outcomes.append(outcome)
        if on_outcome is not None:
            on_outcome(outcome)
        lost = 0 if outcome.opened else lost + 1
        if lost >= most_lost and hub.next_round < series.until:
            return await hub.finish(_given_up(lost, hub.next_round, series.until - 1))
    if not outcomes:
        await hub.all_present(_LATE)
    await hub.finish()
    series.done()


def _given_up(lost: int, first: int, last: int) -> str:
    left = f"round {first} is" if first == last else f"rounds {first} to {last} are"
    return f"{lost} rounds in a row opened nothing, so the hub stops; {left} left"

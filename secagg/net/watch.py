"""What the drivers of both kinds of groups share: mailboxes, deadlines, measurements, and where results go."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from secagg.agreement.terms import Terms
from secagg.errors import TooFewSurvivors
from secagg.evidence import EvidenceLog
from secagg.net.desk import Desk
from secagg.net.events import Events
from secagg.net.metrics import Metrics
from secagg.net.outcome import Outcome
from secagg.net.settings import Deadlines
from secagg.types import ClientId

_CLIENT: Final = re.compile(r"\bclient (\d{1,10})\b")


class Watch:
    """Waits for members, and tells people whom it waits for."""

    def __init__(
        self,
        terms: Terms,
        folder: Path,
        desk: Desk,
        deadlines: Deadlines,
        events: Events,
        metrics: Metrics,
        evidence: EvidenceLog,
    ) -> None:
        self.terms, self.results, self.desk = terms, folder / "results", desk
        self.deadlines, self.events, self.metrics = deadlines, events, metrics
        self._evidence = evidence
        self._names = {member.id: member.name or str(member.id) for member in terms.members}

    def keep(self, outcome: Outcome) -> None:
        """Store the evidence of a round, then its results: no result is there without its evidence."""
        self._evidence.append(outcome.records)  # audit: hub-keeps-evidence
        outcome.store(self.results)

    def name(self, member: ClientId) -> str:
        return self._names[member]

    def refused(self, member: ClientId, reason: str) -> None:
        """A site says that it will not answer."""
        self.events.tell("refused", member=self.name(member), reason=reason)

    def named(self, text: str) -> str:
        """A reason of the protocol, with the names of clients for their ids."""
        return _CLIENT.sub(lambda found: self._names.get(int(found[1]), found[0]), text)

    @asynccontextmanager
    async def stage(self, name: str, round: int, waiting: Callable[[], list[ClientId]]) -> AsyncIterator[None]:
        """Measure and report one stage; whom it waits for is shown every second while it lasts."""
        began = time.monotonic()
        self.events.status(round=round, stage=name)
        self.events.tell("stage", round=round, stage=name)
        self.metrics.set("secagg_round", round)
        watcher = asyncio.create_task(self._show(name, round, waiting))
        try:
            yield
        finally:
            watcher.cancel()
            seconds = time.monotonic() - began
            self.metrics.add("secagg_stage_seconds_total", seconds, stage=name)
            self.metrics.add("secagg_stages_total", stage=name)
            self.events.tell("stage over", round=round, stage=name, seconds=round_to(seconds))

    async def _show(self, name: str, round: int, waiting: Callable[[], list[ClientId]]) -> None:
        shown: list[str] | None = None
        while True:
            await asyncio.sleep(1)
            names = [self.name(member) for member in waiting()]
            if names != shown:
                self.events.status(round=round, stage=name, waiting_for=names)
                self.events.tell("waiting", round=round, stage=name, waiting_for=names)
                shown = names

    async def until(self, done: Callable[[], bool], seconds: float, enough: Callable[[], bool] | None = None) -> bool:
        """Wait until all is done, or the deadline has passed and there is enough. TooFewSurvivors after `give_up`."""
        began = time.monotonic()
        while True:
            self.desk.arrived.clear()
            if done():
                return True
            elapsed = time.monotonic() - began
            if elapsed >= seconds and (enough is None or enough()):
                return False
            if enough is not None and 0 < self.deadlines.give_up <= elapsed:
                raise TooFewSurvivors(
                    f"after {elapsed:.0f} seconds too few sites are there; the hub gives up (deadlines.give_up)"
                )
            left = seconds - elapsed if elapsed < seconds else 0.5
            try:
                async with asyncio.timeout(min(left, 0.5)):
                    await self.desk.arrived.wait()
            except TimeoutError:
                continue


def round_to(seconds: float) -> float:
    return round(seconds, 3)

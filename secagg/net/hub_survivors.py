"""The hub's rounds with survivors: five stages per cell, with dropouts recovered from shares.

The state of each cell is stored after a stage is closed and before anything of the next one is sent. So a hub that was
killed sends the same messages again, and sites answer them with the same bytes. A run that fails in the first three
stages is repeated with the same plan; later it is only resumed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from secagg import codec
from secagg.agreement.agreement import Agreement
from secagg.codec import U8, U32, U64, Blob, Struct
from secagg.errors import SecAggError, TooFewSurvivors, UsageError
from secagg.net import messages
from secagg.net.files import read_file, replace_file
from secagg.net.outcome import Outcome
from secagg.net.watch import Watch
from secagg.protocol import Result, Server, Stage, Suspects, encode
from secagg.types import ClientId, Group, GroupId

MOST_ATTEMPTS: Final = 4  # runs of one round and cell
_EXTENSIONS: Final = 3  # how often a stage that must not be repeated waits for its deadline again
_ROUND: Final = Struct(dict, (("next", U64), ("open", U8), ("data", Blob())))
_CELL: Final = Struct(dict, (("round", U64), ("attempt", U32), ("server", Blob())))


@dataclass(slots=True)
class Run:
    """One run of one cell."""

    server: Server
    attempt: int
    waiting: set[ClientId] = field(default_factory=set)
    away: frozenset[ClientId] = frozenset()  # who was not connected when the run began: nobody waits for its keys


@dataclass(frozen=True, slots=True)
class Lost:
    """A cell without a result: why, why its members dropped out in the last run, and what that leaves as evidence."""

    why: str
    dropouts: Mapping[ClientId, str]
    record: bytes = field(repr=False)


class SurvivorRounds:
    """Drives one `secagg.protocol.Server` per cell with the messages that arrive."""

    def __init__(self, agreement: Agreement, folder: Path, watch: Watch) -> None:
        self._agreement, self._folder, self._watch = agreement, folder, watch
        terms = agreement.terms
        saved = read_file(folder / "round.state")
        new: dict[str, Any] = {"next": terms.first_round, "open": 0, "data": b""}
        state = new if saved is None else _parsed(_ROUND, saved)
        self._next, self._open, self._data = int(state["next"]), bool(state["open"]), bytes(state["data"])
        self._runs: dict[ClientId, Run] = {}
        least = min(terms.cells)
        self._suspects = Suspects(most=max(0, (least - terms.threshold_of(least)) // 2))

    @property
    def unfinished(self) -> int | None:
        return self._next if self._open else None

    @property
    def next_round(self) -> int:
        return self._next

    def check_left(self) -> None:
        """UsageError if the agreement has no round left."""
        if self._next > self._agreement.terms.last_round:
            raise UsageError(
                f"round {self._agreement.terms.last_round} was the last one of this agreement; make a new one"
            )

    # --- messages (in any thread) --------------------------------------------------------------------

    def receive(self, member: ClientId, message: bytes) -> str | None:
        run = self._runs.get(member)
        if run is None:
            return "no run waits for a message of this member"
        dropout = run.server.receive(member, message)
        if member not in run.server.waiting_for():
            run.waiting.discard(member)
        return None if dropout is None else dropout.reason

    def refused(self, member: ClientId, reason: str) -> None:
        run = self._runs.get(member)
        if run is not None:
            run.server.give_up(member, reason[:200])
            run.waiting.discard(member)
        self._watch.refused(member, reason)

    # --- a round -------------------------------------------------------------------------------------

    async def round(self, data: bytes) -> Outcome:
        """Run the next round, or finish the one that was interrupted."""
        t, fresh, began = self._next, not self._open, time.monotonic()
        if fresh:
            self._data = data
            await self._store_round(open=True)
        cells = self._agreement.cells(t)
        self._watch.desk.clear()
        runs = [asyncio.create_task(self._cell(t, cell, fresh)) for cell in range(len(cells))]
        try:
            found = await asyncio.gather(*runs)
        finally:
            for one in runs:
                one.cancel()
        outcome = self._outcome(t, found, time.monotonic() - began)
        await asyncio.to_thread(self._watch.keep, outcome)
        self._next, self._data, self._runs = t + 1, b"", {}
        await self._store_round(open=False)
        for cell in range(len(cells)):
            self._path(cell).unlink(missing_ok=True)
        self._watch.desk.clear()
        return outcome

    async def _cell(self, t: int, cell: int, fresh: bool) -> Result | Lost:
        """The result of one cell, or why it has none."""
        plan = self._agreement.plan(t, cell, messages.run_context(self._data))
        run = None if fresh else await asyncio.to_thread(self._restored, t, cell, plan)
        excluded: set[ClientId] = set(self._suspects.excluded(t)) & set(plan.ids)
        why, gone, record = "too few sites", dict[ClientId, str](), b""
        while True:
            if run is None:
                attempt = self._attempt(cell, t) + 1
                if attempt >= MOST_ATTEMPTS:
                    return Lost(f"{why} ({attempt} attempts)", gone, record or Server(plan).record(why))
                run = Run(Server(plan, exclude=sorted(excluded)), attempt)
                await self._gather(t, run)
                await self._store_cell(cell, t, run)
            self._runs |= dict.fromkeys(plan.ids, run)
            try:
                result, bad_dealers = await self._stages(t, cell, run)
            except TooFewSurvivors as few:
                why, gone = str(few), {v: one.reason for v, one in run.server.dropouts.items()}
                record = run.server.record(why)
                if run.server.stage is not Stage.FAILED:  # it must not be repeated any more
                    return Lost(why, gone, record)
                run = None
                continue
            if result is not None:
                self._suspects.learn(result)
                return result
            excluded |= bad_dealers
            why = f"members {sorted(bad_dealers)} sent unusable shares"
            record, run = run.server.record(why), None

    async def _gather(self, t: int, run: Run) -> None:
        """Wait until all members of a cell are connected, or enough of them."""
        watch, plan = self._watch, run.server.plan
        wanted = set(plan.ids) - set(run.server.dropouts)

        def away() -> set[ClientId]:
            return wanted - watch.desk.present()

        async with watch.stage("gather", t, lambda: sorted(away())):
            await watch.until(lambda: not away(), watch.deadlines.gather, lambda: len(wanted - away()) >= plan.t)
        run.away = frozenset(away())

    async def _stages(self, t: int, cell: int, run: Run) -> tuple[Result | None, set[ClientId]]:
        """Play a run from its stage to the end: its result, or the dealers without whom it must be repeated."""
        server, watch, extensions = run.server, self._watch, 0
        while server.stage < Stage.DONE:
            stage = server.stage
            await self._send(t, run)
            seconds = getattr(watch.deadlines, stage.name.lower())
            async with watch.stage(stage.name.lower(), t, lambda: sorted(run.waiting)):
                await watch.until(lambda: not run.waiting or not server.waiting_for(), seconds)
            doomed = server.doomed_groups() if stage is Stage.INPUTS else {}
            if doomed and run.attempt + 1 < MOST_ATTEMPTS:
                return None, {dealer for dealers in doomed.values() for dealer in dealers}
            try:
                await asyncio.to_thread(server.advance)
            except TooFewSurvivors:
                extensions += 1
                if server.stage is Stage.FAILED or extensions > _EXTENSIONS:
                    raise
                continue
            if server.stage < Stage.DONE:
                await self._store_cell(cell, t, run)  # audit: stage-stored-before-sent
        return server.result(), set()

    async def _send(self, t: int, run: Run) -> None:
        """Put this stage's message into the mailbox of everybody who has not answered it."""
        desk, ids = self._watch.desk, run.server.plan.ids
        box = await asyncio.to_thread(self._box, t, run)
        run.waiting = set(box) - run.away
        desk.clear(member for member in ids if member not in box)
        for member, message in box.items():
            desk.put(member, message)

    def _box(self, t: int, run: Run) -> Mapping[ClientId, bytes]:
        if run.server.stage is Stage.KEYS:
            begin = messages.Begin(self._agreement.fingerprint, t, run.attempt, self._data)
            return dict.fromkeys(run.server.waiting_for(), messages.encode(begin))
        return {member: encode(message) for member, message in run.server.outbox().items()}

    # --- the outcome ---------------------------------------------------------------------------------

    def _outcome(self, t: int, found: Collection[Result | Lost], seconds: float) -> Outcome:
        sums: dict[GroupId, Any] = {}
        members: dict[GroupId, tuple[ClientId, ...]] = {}
        lost: dict[GroupId, str] = {}
        dropouts: dict[ClientId, str] = {}
        blamed: dict[ClientId, str] = {}
        meant: dict[GroupId, Group] = {}
        shift = 0
        for cell, result in enumerate(found):
            parts = self._agreement.cells(t)[cell].groupings
            groups = {(r, g): members for r, part in enumerate(parts) for g, members in enumerate(part)}
            meant |= {(r, g + shift): tuple(members) for (r, g), members in groups.items()}
            if isinstance(result, Lost):
                lost |= {(r, g + shift): result.why for r, g in groups}
                dropouts |= result.dropouts
            else:
                sums |= {(r, g + shift): result.sum((r, g)) for r, g in result.groups}
                members |= {(r, g + shift): one.members for (r, g), one in result.groups.items()}
                lost |= {(r, g + shift): why for (r, g), why in {**result.closed, **result.lost}.items()}
                dropouts |= {member: one.reason for member, one in result.dropouts.items()}
                blamed |= result.blamed
            shift += 1 + max(g for _, g in groups)
        return Outcome(
            round=t,
            sums=sums,
            members=members,
            lost={group: self._watch.named(why) for group, why in lost.items()},
            dropouts=dropouts,
            blamed=blamed,
            groups=meant,
            results=tuple(one for one in found if not isinstance(one, Lost)),
            records=tuple(one.record for one in found),
            terms=self._agreement.terms,
            seconds=seconds,
        )

    # --- state in files ------------------------------------------------------------------------------

    def _path(self, cell: int) -> Path:
        return self._folder / f"cell-{cell}.state"

    def _attempt(self, cell: int, t: int) -> int:
        """The last attempt of this round and cell; -1 before the first."""
        saved = read_file(self._path(cell))
        state = None if saved is None else _parsed(_CELL, saved)
        return int(state["attempt"]) if state is not None and state["round"] == t else -1

    def _restored(self, t: int, cell: int, plan: Any) -> Run | None:
        saved = read_file(self._path(cell))
        state = None if saved is None else _parsed(_CELL, saved)
        if state is None or state["round"] != t:
            return None
        return Run(Server.restore(state["server"], plan=plan), int(state["attempt"]))

    async def _store_round(self, *, open: bool) -> None:
        self._open = open
        state = {"next": self._next, "open": int(open), "data": self._data}
        await asyncio.to_thread(replace_file, self._folder / "round.state", [codec.to_bytes(_ROUND, state)])

    async def _store_cell(self, cell: int, t: int, run: Run) -> None:
        def write() -> None:
            state = {"round": t, "attempt": run.attempt, "server": run.server.checkpoint()}
            replace_file(self._path(cell), [codec.to_bytes(_CELL, state)])

        await asyncio.to_thread(write)


def _parsed(layout: Struct, data: bytes) -> dict[str, Any]:
    try:
        values: dict[str, Any] = codec.from_bytes(layout, data)
    except SecAggError as damaged:
        raise UsageError(f"the hub's state is damaged: {damaged}") from None
    return values

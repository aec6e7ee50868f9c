"""The hub's rounds with whole groups: gather the keys, send the round, add up the answers.

The state is stored before a round is sent and when it is over. An answer that the hub lost in between is asked for
again: every site keeps its last answer and sends the same bytes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from secagg.agreement.agreement import Agreement
from secagg.errors import UsageError
from secagg.net.files import read_file, replace_file
from secagg.net.messages import type_of
from secagg.net.outcome import Outcome
from secagg.net.watch import Watch
from secagg.types import ClientId
from secagg.whole import Server, Stage, WholeResult, encode
from secagg.whole.flat import objection
from secagg.whole.messages import TYPES, Answer

_STATE: Final = "server.state"
_ANSWER: Final = TYPES[Answer]
_MOST_REST: Final = 16  # rounds


class Resting:
    """Members that a roll call leaves out for a while, since it waited for their answers in vain.

    One that is called and does not answer loses the round of all the others. After the first time it is left out of one
    round, then of 2, 4, ... up to 16 in a row; an answer ends it.

    >>> resting = Resting()
    >>> resting.note(5, silent={2}, answered={0, 1})
    >>> resting.at(6), resting.at(7)
    ({2: 'left out of the roll call until round 7: it did not answer round 5'}, {})
    """

    def __init__(self) -> None:
        self._last: dict[ClientId, tuple[int, int]] = {}  # the round without its answer, and how many it is left out of

    def note(self, round: int, *, silent: Iterable[ClientId], answered: Iterable[ClientId]) -> None:
        """Who answered this round and who did not, of those that were called."""
        for member in answered:
            self._last.pop(member, None)
        for member in silent:
            self._last[member] = round, min(_MOST_REST, 2 * self._last[member][1]) if member in self._last else 1

    def at(self, round: int) -> dict[ClientId, str]:
        """Whom to leave out of this round, and why."""
        return {
            member: f"left out of the roll call until round {last + count + 1}: it did not answer round {last}"
            for member, (last, count) in self._last.items()
            if round <= last + count
        }


class WholeRounds:
    """Drives `secagg.whole.Server` with the messages that arrive."""

    def __init__(self, agreement: Agreement, folder: Path, watch: Watch) -> None:
        self._agreement, self._watch = agreement, watch
        self._path = folder / _STATE
        saved = read_file(self._path)
        self._server = Server(agreement) if saved is None else Server.restore(saved, agreement)
        self._waiting: set[ClientId] = set()
        self._left: dict[ClientId, str] = {}  # whom this round's roll call leaves out, and why
        self._resting = Resting()

    @property
    def unfinished(self) -> int | None:
        """The round that was open when the hub stopped, if any."""
        return self._server.round if self._server.stage is Stage.OPEN else None

    @property
    def next_round(self) -> int:
        """The round that `round` runs: the unfinished one, or the one after the last."""
        if self.unfinished is not None:
            return self.unfinished
        return self._agreement.terms.first_round if self._server.round is None else self._server.round + 1

    # --- messages (in any thread) --------------------------------------------------------------------

    def receive(self, member: ClientId, message: bytes) -> str | None:
        why = self._server.receive(member, message)
        if why is None and len(message) > 1 and type_of(message) == _ANSWER:
            self._waiting.discard(member)
        return why

    def refused(self, member: ClientId, reason: str) -> None:
        self._server.give_up(member, reason)
        self._waiting.discard(member)
        self._watch.refused(member, reason)

    # --- a round -------------------------------------------------------------------------------------

    async def round(self, data: bytes) -> Outcome:
        """Run the next round, or finish the one that was interrupted."""
        server, watch, began = self._server, self._watch, time.monotonic()
        self._left = {}
        if self.unfinished is None:
            t = self.next_round
            present = await self._gather(t)
            await asyncio.to_thread(server.begin, t, data=data, present=present)
            await self._store()  # audit: whole-round-stored-before-sent
        assert server.round is not None
        box = await asyncio.to_thread(server.outbox)
        self._waiting = set(box)
        watch.desk.clear()
        for member, message in box.items():
            watch.desk.put(member, encode(message))
        async with watch.stage("answers", server.round, lambda: sorted(self._waiting)):
            await watch.until(lambda: not self._waiting, watch.deadlines.answers)
        silent = server.waiting_for()
        result = await asyncio.to_thread(server.close)
        self._resting.note(result.round, silent=silent, answered=result.answered)
        return await self._finish(result, time.monotonic() - began)

    async def _gather(self, t: int) -> list[ClientId] | None:
        """Wait until every member of the round is connected and has sent its key, or enough of them.

        Enough are the members of the least number of groups. With a roll call, those that are there are enough if the
        agreement allows a sum over them; they are returned. Those that rest are left out if that is
        allowed too.
        """
        watch, terms, groups = self._watch, self._agreement.terms, self._agreement.groups(t)
        seated = {member for members in groups.values() for member in members}
        resting = self._left_out(t, seated)
        asked = self._server.hello(t)
        watch.desk.clear(seated - asked.keys())
        for member, message in asked.items():
            watch.desk.put(member, encode(message))

        def missing() -> set[ClientId]:
            lacking = set(self._server.hello(t))
            return (lacking | (seated - watch.desk.present())) - resting

        def enough() -> bool:
            away = missing()
            if terms.roll_call:
                return not objection(terms, seated - away - resting)
            complete = sum(not away.intersection(members) for members in groups.values())
            return complete >= terms.least_groups

        async with watch.stage("gather", t, lambda: sorted(missing())):
            await watch.until(lambda: not missing(), watch.deadlines.gather, enough)
        return sorted(seated - missing() - resting) if terms.roll_call else None

    def _left_out(self, t: int, seated: set[ClientId]) -> set[ClientId]:
        """The members that a roll call of this round leaves out, which the status says."""
        terms, watch = self._agreement.terms, self._watch
        found = {member: why for member, why in self._resting.at(t).items() if member in seated}
        if not terms.roll_call or objection(terms, seated - found.keys()):
            found = {}
        self._left = found
        watch.events.status(left_out={watch.name(member): why for member, why in found.items()})
        return set(found)

    async def _finish(self, result: WholeResult, seconds: float) -> Outcome:
        """Store the outcome, then that the round is over."""
        lost = result.lost or ({(0, 0): result.skipped} if result.skipped else {})
        outcome = Outcome(
            round=result.round,
            sums={group: result.sum(group) for group in result.groups},
            members={group: found.members for group, found in result.groups.items()},
            lost={group: self._watch.named(why) for group, why in lost.items()},
            dropouts={member: self._left.get(member, why) for member, why in result.dropouts.items()},
            blamed=dict(result.blamed),
            groups=self._agreement.groups(result.round),
            results=(result,),
            records=(result.record,),
            terms=self._agreement.terms,
            seconds=seconds,
        )
        await asyncio.to_thread(self._watch.keep, outcome)
        await self._store()
        self._watch.desk.clear()
        return outcome

    async def _store(self) -> None:
        await asyncio.to_thread(lambda: replace_file(self._path, [self._server.save()]))

    def check_left(self) -> None:
        """UsageError if the agreement has no round left."""
        if self.next_round > self._agreement.terms.last_round:
            raise UsageError(
                f"round {self._agreement.terms.last_round} was the last one of this agreement; make a new one"
            )

"""A site: it asks the hub what to do, computes its vector, and sends it masked."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from secagg.agreement import file
from secagg.agreement.credentials import Credentials
from secagg.agreement.folder import MemberFolder
from secagg.agreement.proposal import Proposal
from secagg.agreement.terms import WHOLE
from secagg.arguments import each, function, instance
from secagg.errors import (
    AgreementRefused,
    AlreadyUsed,
    BudgetExceeded,
    JournalError,
    PeerError,
    SecAggError,
    UsageError,
)
from secagg.net import messages, tls
from secagg.net.answers import Membership, Reply, SurvivorAnswers, Wanted, WholeAnswers
from secagg.net.channel import Channel
from secagg.net.events import Events
from secagg.net.events import Listener as Reporter
from secagg.net.files import FolderLock, place
from secagg.net.hub import check_signed
from secagg.net.limits import most_to_site
from secagg.net.settings import Settings, checked_settings
from secagg.net.trouble import printable
from secagg.privacy.budget import Budget

Source = Callable[[int, bytes], Any | Awaitable[Any]]  # (round, the hub's data) -> the vector


class Site:
    """One member of an agreement, for as long as the `async with` lasts.

    `proposal` is the signed agreement, as `read_agreement` gives it; `folder` has the member's identity and certificate
    and keeps its state. `source(round, data)` gives the vector of a round: an array, or a dict for named segments. It
    may be a coroutine; an ordinary function runs in a thread. If it raises an exception, the site refuses the
    round, and stays away from the hub until `ready()` returns without an exception (without `ready`, it does not stay
    away). `hubs` are other addresses of the same hub, for a tunnel or a forwarded port. The site knows the hub by its
    certificate.

    `journal` is a folder for all agreements on the same data (`folder/journal`): another agreement on that data must
    name the earlier ones, and `budget` limits what all of them cost together. Without it, the budget in
    `folder/floors.toml` holds, if there is one.

    >>> from tempfile import mkdtemp
    >>> from secagg.net import Site, trial
    >>> place = mkdtemp()
    >>> proposal = trial(place, members=3, size=3, length=2, bound=9)
    >>> site = Site(proposal, f"{place}/1", lambda round, data: [1, 2])  # `Hub` shows how it runs
    >>> site.me
    1
    """

    def __init__(
        self,
        proposal: Proposal,
        folder: Path | str,
        source: Source,
        *,
        ready: Callable[[], object] | None = None,
        hubs: Sequence[str] = (),
        budget: Budget | None = None,
        journal: Path | str | None = None,
        settings: Settings | None = None,
        on_event: Reporter | None = None,
    ) -> None:
        self.agreement = check_signed(proposal)
        folder = place("folder", folder)
        for name, given in (("source", source), ("ready", ready), ("on_event", on_event)):
            if name == "source" or given is not None:
                function(name, given)
        budget = _own_budget(folder) if budget is None else instance("budget", budget, Budget)
        member, self._credentials = MemberFolder(folder), Credentials(folder)
        self.me = member.member_of(self.agreement.terms)
        transport = self.agreement.terms.transport
        assert transport is not None
        known = transport.member_with(self.agreement.terms.ids, self._credentials.certificate)
        if known != self.me:  # audit: own-certificate-in-agreement
            raise UsageError(f"{self._credentials.path} is not this member's certificate in the agreement")
        hubs = each("hubs", hubs, str)
        self._transport = replace(transport, hubs=hubs) if hubs else transport
        self._source, self._ready, self._settings = source, ready, checked_settings(settings)
        self.folder = folder / "site" / self.agreement.fingerprint.hex()[:32]
        self._member = Membership(
            agreement=self.agreement,
            signatures=proposal.signature_bytes,
            me=self.me,
            identity=member.identity,
            folder=self.folder,
            journal=folder / "journal" if journal is None else place("journal", journal),
            earlier=tuple(member.earlier(self.agreement.terms)),  # kept when this member signed
            budget=budget,
        )
        self._on_event = on_event
        self._lock: FolderLock | None = None
        self.answered = 0  # messages of this process that the hub took
        self._heard = -1  # the last round whose end the hub told
        self._bad = 0  # messages of the hub in a row that were refused

    async def __aenter__(self) -> Site:
        self._lock = FolderLock(self.folder)
        try:
            self._events = Events(self.folder, "site", self._on_event)
            kind = WholeAnswers if self.agreement.terms.groups == WHOLE else SurvivorAnswers
            self._answers: WholeAnswers | SurvivorAnswers = await asyncio.to_thread(kind, self._member)
            await asyncio.to_thread(self._answers.idle)
            self._channel = Channel(
                self._transport.hubs,
                self.agreement.fingerprint,
                tls.site_context(self._credentials.path, self._transport),
                most_to_site(self.agreement.terms, self._settings.limits.data),
                self._settings,
                self._trouble,
            )
            await self._channel.__aenter__()
        except BaseException:
            self._lock.release()
            raise
        self._events.status(state="running", member=self.me, agreement=self.agreement.fingerprint.hex())
        self._events.tell("started", member=self.me, hubs=self._transport.hubs)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.__aexit__(kind, error, trace)
        self._events.status(state="stopped")
        self._events.tell("stopped")
        assert self._lock is not None
        self._lock.release()

    def _trouble(self, reason: str) -> None:
        self._events.tell("hub not reached", level=logging.WARNING, reason=reason)
        self._events.status(trouble=reason)

    async def run(self, *, stay: bool = False) -> str:
        """Answer the hub until it says that there are no more rounds; its words. With `stay`, never end."""
        tag, waited = "", 0.0
        while True:
            found = await self._channel.next(tag)
            if found is None:
                continue
            tag, message = found
            word = self._word(message)
            if isinstance(word, messages.Over):
                await self._note(word)
            elif isinstance(word, messages.End):
                text = printable(word.text, messages.MOST_TEXT)
                self._events.tell("end", text=text)
                if not stay:
                    return text
                waited = min(self._settings.retry_most, waited + 1)
                await asyncio.sleep(waited)
            else:
                waited = 0.0
                await self._deal_with(tag, message)

    def _word(self, message: bytes) -> messages.End | messages.Over | None:
        """What the hub only says, if this is no message to answer."""
        try:
            word = messages.decode(message) if messages.type_of(message) in messages.NET_TYPES else None
        except PeerError:
            return None  # it is refused like every other bad message
        if isinstance(word, messages.Over) and word.round not in self.agreement.terms.rounds:
            return None
        known = isinstance(word, messages.End | messages.Over) and word.fingerprint == self.agreement.fingerprint
        return word if known else None  # type: ignore[return-value]

    async def _note(self, over: messages.Over) -> None:
        """Show how a round ended, once."""
        if over.round <= self._heard:
            return await self._slow_down()
        self._heard = over.round
        values: dict[str, Any] = {
            "round": over.round,
            "opened": over.sites > 0,
            "sites": over.sites,
            "reason": printable(over.text, messages.MOST_TEXT),
        }
        self._events.tell("round over", **values)
        self._events.status(last=values)

    async def _deal_with(self, tag: str, message: bytes) -> None:
        """Answer one message, or refuse it. A storage error ends the site: nothing was sent."""
        try:
            reply = await self._reply(message)
        except JournalError:
            raise
        except (PeerError, AlreadyUsed, UsageError, BudgetExceeded) as refused:
            kept = refused.kept if isinstance(refused, SourceError) else str(refused)
            self._events.tell("refused", level=logging.WARNING, only_here={"reason": str(refused)}, reason=kept)
            self._events.status(refused=kept)
            # audit: refusal-tells-no-budget
            own = isinstance(refused, UsageError | BudgetExceeded)  # what it says of this site's data stays here
            await self._channel.refuse(tag, "it could not compute its vector" if own else f"it refused: {refused}")
            if isinstance(refused, AgreementRefused | BudgetExceeded):
                raise  # it cannot answer any round of this agreement
            await (self._until_ready() if own else self._slow_down())
            return
        self._bad = 0
        why = await self._channel.send(tag, reply)
        await asyncio.to_thread(self._answers.idle)
        if why is None:
            self.answered += 1
            self._events.tell("answered", bytes=sum(map(len, reply)))
        else:
            self._events.tell("not counted", level=logging.WARNING, reason=why)

    async def _until_ready(self) -> None:
        """Stay away from the hub until this site can compute its vector again: a round with it would be lost."""
        pause, said = 0.5, False
        while self._ready is not None:
            try:
                await asyncio.to_thread(self._ready)
            except Exception as bad:
                if not said:
                    kept = type(bad).__name__  # the text may have data in it
                    self._events.tell("not ready", level=logging.WARNING, only_here={"reason": str(bad)}, reason=kept)
                    said = True
            else:
                if said:
                    self._events.tell("ready")
                return self._events.status(refused="")
            await asyncio.sleep(pause)
            pause = min(2 * pause, self._settings.retry_most)

    async def _slow_down(self) -> None:
        """Pauses that grow while the hub sends nothing but bad or old messages: they must not fill a disk."""
        self._bad += 1
        await asyncio.sleep(min(self._settings.retry_most, 0.01 * 2 ** min(self._bad, 20)))

    async def _reply(self, message: bytes) -> Reply:
        answers = self._answers
        if messages.type_of(message) in messages.NET_TYPES:
            begin = messages.decode(message)
            if not isinstance(begin, messages.Begin):
                raise PeerError("the message belongs to another agreement, or to a round that it does not have")
            if not isinstance(answers, SurvivorAnswers):
                raise PeerError("the hub begins a run of survivors, but the agreement has whole groups")
            return await asyncio.to_thread(answers.begin, begin)
        found = await asyncio.to_thread(answers.open, message)
        if not isinstance(found, Wanted):
            return found
        self._events.tell("round", round=found.round)
        self._events.status(round=found.round, trouble="")
        update = await self._vector(found)
        return await asyncio.to_thread(answers.answer, found, update)

    async def _vector(self, wanted: Wanted) -> Any:
        """What the source gives; SourceError if it fails, except for what ends the site."""
        try:
            if inspect.iscoroutinefunction(self._source):
                return await self._source(wanted.round, wanted.data)
            return await asyncio.to_thread(self._source, wanted.round, wanted.data)
        except Exception as failed:
            if isinstance(failed, SecAggError) and (type(failed) is not UsageError):
                raise
            raise SourceError(wanted.round, failed) from failed


class SourceError(UsageError):
    """The source of a round failed. `kept` is what the log and the status say: the text may have data in it."""

    def __init__(self, round: int, failed: Exception) -> None:
        self.kept = f"the source of round {round} failed: {type(failed).__name__}"  # audit: source-text-stays-here
        super().__init__(f"{self.kept}: {failed}")


def _own_budget(folder: Path) -> Budget | None:
    """The budget among the member's floors, if it has any."""
    path = folder / "floors.toml"
    if not path.exists():
        return None
    try:
        return file.read_floors(path.read_text(encoding="utf-8")).budget  # audit: site-reads-its-budget
    except UsageError as bad:
        raise UsageError(f"{path}: {bad}") from None

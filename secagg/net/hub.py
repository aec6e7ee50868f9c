"""The hub: it relays and adds up what sites send, and learns the opened sums."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from secagg.agreement.agreement import Agreement
from secagg.agreement.credentials import Credentials
from secagg.agreement.folder import MemberFolder
from secagg.agreement.proposal import Proposal
from secagg.agreement.terms import WHOLE
from secagg.arguments import function, instance, raw
from secagg.errors import UsageError
from secagg.evidence import EvidenceLog
from secagg.net import messages, tls
from secagg.net.desk import Desk
from secagg.net.events import Events
from secagg.net.events import Listener as Reporter
from secagg.net.files import FolderLock, place
from secagg.net.hub_survivors import SurvivorRounds
from secagg.net.hub_whole import WholeRounds
from secagg.net.listener import Listener, start_ops
from secagg.net.messages import MOST_TEXT
from secagg.net.metrics import Metrics
from secagg.net.outcome import Outcome, told
from secagg.net.settings import Settings, checked_settings, host_and_port
from secagg.net.signing import Signing
from secagg.net.watch import Watch


def check_signed(proposal: Proposal) -> Agreement:
    """The agreement in a file, if it is complete, has a transport, and all members have signed it."""
    problem = next(iter(instance("proposal", proposal, Proposal).problems()), None)
    if problem is not None:  # audit: net-needs-all-signatures
        raise UsageError(f"the agreement is not complete: {problem}")
    if proposal.terms.transport is None:
        raise UsageError("the agreement has no section transport; `secagg agree --collect` makes one that has")
    return proposal.agreement


class Hub:
    """The server of an agreement, for as long as the `async with` lasts.

    `proposal` is the signed agreement, as `read_agreement` gives it. `folder` has the hub's certificate and keeps its
    state, its results and the evidence (docs/evidence.md): a hub that was killed goes on where it was. `port` is where
    it listens once it runs. `key` is the public key of its Ed25519 identity, which it makes in the folder when it first
    starts. With it the hub signs a statement about the evidence, when `finish` is called or the last round is over.

    >>> import asyncio
    >>> from tempfile import mkdtemp
    >>> from secagg.net import Hub, Site, trial
    >>> place = mkdtemp()
    >>> proposal = trial(place, members=3, size=3, length=2, bound=9)
    >>> async def main():
    ...     async with Hub(proposal, f"{place}/hub") as hub:
    ...         async def site(me):
    ...             async with Site(proposal, f"{place}/{me}", lambda round, data: [me, 1]) as site:
    ...                 return await site.run()
    ...         sites = [asyncio.create_task(site(me)) for me in range(3)]
    ...         outcome = await hub.round()
    ...         await hub.finish()
    ...         return outcome.sum(), await asyncio.gather(*sites)
    >>> asyncio.run(main())
    (array([3, 3]), ['all rounds are done', 'all rounds are done', 'all rounds are done'])
    """

    def __init__(
        self,
        proposal: Proposal,
        folder: Path | str,
        *,
        settings: Settings | None = None,
        on_event: Reporter | None = None,
    ) -> None:
        self.agreement = check_signed(proposal)
        self._signatures = {member: part.signature for member, part in proposal.signatures.items()}
        terms = self.agreement.terms
        assert terms.transport is not None
        self._transport, self._settings = terms.transport, checked_settings(settings)
        if on_event is not None:
            function("on_event", on_event)
        folder = place("folder", folder)
        self._credentials = Credentials(folder)
        if not terms.transport.authority and self._credentials.certificate != terms.transport.hub:
            raise UsageError(f"{self._credentials.path} is not the hub's certificate in this agreement")
        self._identity = MemberFolder.create(folder).identity
        self.key = self._identity.public
        self.folder = folder / "hub" / self.agreement.fingerprint.hex()[:32]
        self.metrics = Metrics()
        self._on_event = on_event
        self._lock: FolderLock | None = None
        self._ops: web.AppRunner | None = None
        self.port = 0
        self._busy = asyncio.Lock()  # one round at a time

    async def __aenter__(self) -> Hub:
        terms, settings = self.agreement.terms, self._settings
        self._lock = FolderLock(self.folder)
        try:
            self._events = Events(self.folder, "hub", self._on_event)
            self._desk = Desk(terms.ids)
            evidence = await asyncio.to_thread(EvidenceLog, self.folder / "evidence", self.agreement, self._signatures)
            watch = Watch(terms, self.folder, self._desk, settings.deadlines, self._events, self.metrics, evidence)
            kind: Any = WholeRounds if terms.groups == WHOLE else SurvivorRounds
            self._rounds: WholeRounds | SurvivorRounds = kind(self.agreement, self.folder, watch)
            self._check_state(evidence.last_round)
            self._listener = Listener(
                terms, self.agreement.fingerprint, self._desk, self._rounds, settings, self.metrics, self._events
            )
            self._signing = Signing(evidence.path, self._identity, self._events)
            self._tell_last()
            await self._listen()
            self._sign_if_over()
        except BaseException:
            self._lock.release()
            raise
        return self

    def _check_state(self, last: int | None) -> None:
        """The state is at most one round behind the evidence, which is written first."""
        here = self._rounds.next_round
        if last is not None and last > here:  # audit: hub-state-not-older
            raise UsageError(
                f"{self.folder} has the state of a hub before round {here}, and evidence up to round {last}: an older "
                "copy of the state was put back; put the newest one back"
            )

    async def _listen(self) -> None:
        settings, first = self._settings, urlsplit(self._transport.hubs[0])
        host, port = host_and_port("listen", settings.listen) if settings.listen else ("", first.port or 443)
        self.metrics.set("secagg_members", len(self.agreement.terms.members))
        context = tls.hub_context(self._credentials.path, self._transport)
        self.port = await self._listener.start(host, port, context)
        if settings.ops:
            self._ops = await start_ops(*host_and_port("ops", settings.ops), self.metrics, self._health)
        known = {"agreement": self.agreement.fingerprint.hex(), "key": self.key.hex()}
        self._events.status(state="running", port=self.port, **known)
        self._events.tell("listening", port=self.port, unfinished=self._rounds.unfinished, key=self.key.hex())

    def _health(self) -> dict[str, Any]:
        now = {"round": self._rounds.next_round, "present": len(self._desk.present())}
        return {"status": "ok", "key": self.key.hex(), **now}

    def _sign_if_over(self) -> None:
        """Sign the evidence if the agreement has no round left: also after a kill, if the statement is not there."""
        if self._rounds.next_round > self.agreement.terms.last_round:
            self._signing.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._lock is not None
        try:
            if kind is None or not issubclass(kind, asyncio.CancelledError):
                await self._signing.wait()
        finally:
            self._signing.drop()  # a hub that is told to stop waits for nothing; its next start signs
            try:
                await self._stop()
            finally:
                self._lock.release()

    async def _stop(self) -> None:
        await self._listener.stop()
        if self._ops is not None:
            await self._ops.cleanup()
        self._events.status(state="stopped")
        self._events.tell("stopped")

    @property
    def next_round(self) -> int:
        """The round that the next call of `round` runs."""
        return self._rounds.next_round

    @property
    def unfinished(self) -> int | None:
        """The round that was in progress when this hub's folder was left, if any; `round` finishes it first."""
        return self._rounds.unfinished

    def since_last(self) -> float | None:
        """Seconds since the last round in this folder ended, also under an earlier process; None before the first."""
        ended = [path.stat().st_mtime for path in self.folder.glob("results/round-*.json")]
        return max(0.0, time.time() - max(ended)) if ended else None

    def check_left(self) -> None:
        """UsageError if the agreement has no round left."""
        self._rounds.check_left()

    def present(self) -> set[int]:
        """The members that are connected."""
        return self._desk.present()

    async def all_present(self, seconds: float) -> bool:
        """Wait at most so many seconds until all members are connected; returns whether they are."""
        deadline = time.monotonic() + seconds
        while not (there := self._desk.present() >= set(self.agreement.terms.ids)) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        return there

    async def round(self, data: bytes = b"") -> Outcome:
        """Run one round and return its outcome, which is also stored in the folder.

        `data` goes to every site, which computes its vector from it. A round that was interrupted is finished first,
        with its own data.
        """
        data = raw("data", data)
        if len(data) > self._settings.limits.data:
            raise UsageError(f"data: expected at most {self._settings.limits.data} bytes, got {len(data)}")
        async with self._busy:
            self.check_left()
            self._signing.forget()
            outcome = await self._rounds.round(data)
        self._tell(outcome.to_json())
        self.metrics.add("secagg_rounds_total", outcome="opened" if outcome.opened else "lost")
        for why in outcome.dropouts.values():
            self.metrics.add("secagg_dropouts_total", reason=_class_of(why))
        self._events.tell("round over", **outcome.to_json())
        self._events.status(stage="idle", last=outcome.to_json(), waiting_for=[])
        self._sign_if_over()
        return outcome

    def _tell(self, values: dict[str, Any]) -> None:
        """Leave a note for every site: how the round ended for it."""
        fingerprint, round = self.agreement.fingerprint, int(values["round"])
        for member in self.agreement.terms.members:
            if (word := told(values, member.name or str(member.id))) is not None:
                note = messages.Over(fingerprint, round, word[0], word[1].encode()[:MOST_TEXT])
                self._desk.tell(member.id, messages.encode(note))

    def _tell_last(self) -> None:
        """Tell again how the last round ended: sites may not have heard it before this folder was left."""
        found = [int(path.stem.removeprefix("round-")) for path in self.folder.glob("results/round-*.json")]
        if found and max(found) != self._rounds.unfinished:
            self._tell(json.loads((self.folder / "results" / f"round-{max(found)}.json").read_text()))

    async def finish(self, text: str = "all rounds are done", seconds: float = 5.0) -> None:
        """Tell connected sites that there are no more rounds for now, and give them a moment to hear it.

        Then the hub signs its evidence, if that holds: this takes seconds if there is much of it.
        """
        end = messages.encode(messages.End(self.agreement.fingerprint, text.encode()[:MOST_TEXT]))
        self._events.tell("finished", text=text)
        there = self._desk.present()
        for member in self.agreement.terms.ids:
            self._desk.put(member, end)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._desk.told(there):
            await asyncio.sleep(0.02)
        if not self._busy.locked():  # a round would add to the evidence
            self._signing.start()
            await self._signing.wait()


def _class_of(reason: str) -> str:
    """A reason without what a member's message put into it, for a metric's label."""
    known = (
        "it sent no advert",
        "it did not answer in time",
        "it could not compute its vector",
        "it refused",
        "it released the round",
        "left out by the application",
        "left out of the roll call",
    )
    return next((one for one in known if reason.startswith(one)), "other")

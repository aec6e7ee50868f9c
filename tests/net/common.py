"""A hub and its sites in one process, each with a folder of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from secagg import Policy
from secagg.agreement import MemberFolder, Proposal, Signature, Transport
from secagg.agreement.credentials import Credentials
from secagg.net import Deadlines, Hub, Settings, Site
from secagg.simulation import make_agreement
from secagg.simulation.agree import agree_on

FAST = Settings(
    poll=2.0,
    retry_most=0.3,
    listen="127.0.0.1:0",
    deadlines=Deadlines(gather=20, answers=20, keys=15, shares=15, inputs=15, consistency=15, unmasking=15, give_up=60),
)


def make_world(place: Path, members: int = 3, *, port: int = 1, **more: Any) -> Proposal:
    """Folders place/hub and place/0, place/1, ..., and the agreement that all members signed."""
    more = {"size": members, "length": 4, "clip": 8.0, "rounds": 50, "policy": Policy(anonymity=2)} | more
    hub = Credentials.create(place / "hub")
    folders = {v: MemberFolder.create(place / str(v)) for v in range(members)}
    certificates = tuple(Credentials.create(place / str(v)).certificate for v in folders)
    transport = Transport(hubs=(f"https://127.0.0.1:{port}",), hub=hub.certificate, members=certificates)
    change = dict(more.pop("change", {}))
    transport = change.pop("transport", transport)
    terms = replace(make_agreement(members=members, **more)[0].terms, **change)
    known = tuple(replace(one, identity=folders[one.id].identity.public) for one in terms.members)
    identities = {v: folder.identity for v, folder in folders.items()}
    agreement = agree_on(replace(terms, members=known, transport=transport), identities)
    return Proposal.of(agreement).add(Signature(v, agreement.sign(v, identities[v])) for v in identities)


def vector(member: int, round: int, length: int = 4) -> np.ndarray[Any, Any]:
    return np.arange(length) / 4 + member + round / 8


def expected(members: Mapping[int, Any] | Any, round: int, length: int = 4) -> np.ndarray[Any, Any]:
    return np.sum([vector(v, round, length) for v in members], axis=0)


class RunningSite:
    """A site in a task of its own, which dials the port where the hub really listens."""

    def __init__(
        self, proposal: Proposal, place: Path, member: int, port: int, source: Any = None, **more: Any
    ) -> None:
        self.calls: list[int] = []
        self.events: list[tuple[str, dict[str, Any]]] = []

        def mine(round: int, data: bytes) -> Any:
            self.calls.append(round)
            return vector(member, round, proposal.terms.length)

        self.site = Site(
            proposal,
            place / str(member),
            source or mine,
            hubs=[f"https://127.0.0.1:{port}"],
            settings=FAST,
            on_event=lambda event, values: self.events.append((event, values)),
            **more,
        )
        self.task: asyncio.Task[str] | None = None

    async def __aenter__(self) -> RunningSite:
        await self.site.__aenter__()
        self.task = asyncio.create_task(self.site.run(stay=True))
        return self

    async def __aexit__(self, *error: Any) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.site.__aexit__(None, None, None)


@asynccontextmanager
async def running(
    place: Path, proposal: Proposal, sites: Any = None, settings: Settings = FAST
) -> AsyncIterator[tuple[Hub, dict[int, RunningSite]]]:
    """A hub and these sites (all: None)."""
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(Hub(proposal, place / "hub", settings=settings))
        ids = proposal.terms.ids if sites is None else sites
        made = {v: RunningSite(proposal, place, v, hub.port) for v in ids}
        for one in made.values():
            await stack.enter_async_context(one)
        yield hub, made

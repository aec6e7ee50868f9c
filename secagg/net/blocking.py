"""The network service in blocking calls, for programs and commands without an event loop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from secagg.agreement.proposal import Proposal
from secagg.arguments import function, raw, real, whole
from secagg.net.events import Listener as Reporter
from secagg.net.hub import Hub
from secagg.net.outcome import Outcome
from secagg.net.series import run_series
from secagg.net.settings import Settings
from secagg.net.site import Site, Source
from secagg.privacy.budget import Budget

Found = TypeVar("Found")


def serve(
    proposal: Proposal,
    folder: Path | str,
    *,
    rounds: int = 1,
    every: float = 0.0,
    most_lost: int = 3,
    data: bytes = b"",
    settings: Settings | None = None,
    on_outcome: Callable[[Outcome], None] | None = None,
    on_event: Reporter | None = None,
) -> list[Outcome]:
    """Run a hub for some rounds, and tell the sites when it is over. SIGTERM stops it.

    A round begins `every` so many seconds after the end of the one before, also after a restart. The agreement's last
    round is the last. After a stop or a kill, the same call runs the rounds that are left. After `most_lost` rounds in
    a row that opened nothing it stops, so that a site that cannot answer does not use up the others.

    >>> from tempfile import mkdtemp
    >>> from threading import Thread
    >>> from secagg.net import join, serve, trial
    >>> place = mkdtemp()
    >>> proposal = trial(place, members=3, size=3, length=2, bound=9, rounds=2)
    >>> def site(me):
    ...     join(proposal, f"{place}/{me}", lambda round, data: [me, round])
    >>> sites = [Thread(target=site, args=(me,)) for me in range(3)]  # real sites are processes
    >>> for one in sites:
    ...     one.start()
    >>> [outcome.sum() for outcome in serve(proposal, f"{place}/hub", rounds=2)]
    [array([3, 0]), array([3, 3])]
    >>> for one in sites:
    ...     one.join()
    """

    asked: dict[str, Any] = {"rounds": whole("rounds", rounds, 1), "every": real("every", every)}
    asked |= {"most_lost": whole("most_lost", most_lost, 1), "data": raw("data", data)}
    hub_of = Hub(proposal, folder, settings=settings, on_event=on_event)
    if on_outcome is not None:
        function("on_outcome", on_outcome)

    async def play(outcomes: list[Outcome]) -> list[Outcome]:
        async with hub_of as hub:
            await run_series(hub, outcomes=outcomes, on_outcome=on_outcome, **asked)
        return outcomes

    done: list[Outcome] = []
    return _until_signal(play(done), done)


def join(
    proposal: Proposal,
    folder: Path | str,
    source: Source,
    *,
    ready: Callable[[], object] | None = None,
    stay: bool = False,
    hubs: Sequence[str] = (),
    budget: Budget | None = None,
    journal: Path | str | None = None,
    settings: Settings | None = None,
    on_event: Reporter | None = None,
) -> str | None:
    """Run a site until the hub says that all rounds are done; returns its words, or None if SIGTERM stopped the site.

    `Site` has the arguments. With `stay`, it waits for more rounds.

    >>> from secagg.agreement import Proposal
    >>> from secagg.net import join  # `serve` shows both together
    >>> from secagg.simulation import make_agreement
    >>> unsigned = Proposal.of(make_agreement(members=3, size=3, length=2, bound=9)[0])
    >>> join(unsigned, "north", lambda round, data: [1, 2])
    Traceback (most recent call last):
    secagg.errors.UsageError: the agreement is not complete: member 0 has not signed
    """

    kept: dict[str, Any] = {"budget": budget, "journal": journal, "ready": ready}
    site_of = Site(proposal, folder, source, hubs=hubs, settings=settings, on_event=on_event, **kept)

    async def play() -> str | None:
        async with site_of as site:
            return await site.run(stay=bool(stay))

    return _until_signal(play(), None)


def _until_signal(work: Coroutine[Any, Any, Found], stopped: Found) -> Found:
    """Run to the end, or to SIGTERM: then everything is closed, and `stopped` is returned."""

    async def run() -> Found:
        task = asyncio.ensure_future(work)
        told: list[int] = []

        def stop() -> None:
            told.append(signal.SIGTERM)
            task.cancel()

        with suppress(NotImplementedError, ValueError, RuntimeError):  # not in the main thread
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
        try:
            return await task
        except asyncio.CancelledError:
            if told:
                return stopped
            raise

    return asyncio.run(run())

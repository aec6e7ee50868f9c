"""The hub's statement about its evidence, signed in a thread of its own when no round is under way."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread

from secagg.crypto.keys import Identity
from secagg.errors import SecAggError
from secagg.evidence.beside import SUFFIX, keep_statement, sign_evidence
from secagg.net.events import LOGGER, Events


class Signing:
    """Verifies the evidence and writes `evidence.intoto.json` beside it, if the evidence holds.

    Verification of much evidence takes seconds. A hub that is stopped does not wait for it, so the thread is a daemon.
    A round that begins drops it, and removes the statement of before: it would be about evidence that is no longer all
    there is.
    """

    def __init__(self, evidence: Path, identity: Identity, events: Events) -> None:
        self._evidence, self._identity, self._events = evidence, identity, events
        self._job: asyncio.Future[None] | None = None
        self._writing = Lock()  # what is dropped is either written already, or never

    def start(self) -> None:
        """Begin, unless it is under way."""
        if self._job is not None and not self._job.done():
            return
        loop = asyncio.get_running_loop()
        job = self._job = loop.create_future()

        def work() -> None:
            found = self._sign(job)
            with suppress(RuntimeError):  # the loop is closed: the hub was stopped
                loop.call_soon_threadsafe(self._over, job, found)

        try:
            Thread(target=work, name="secagg statement", daemon=True).start()
        except RuntimeError as bad:  # the system starts no more threads
            self._over(job, {"reason": str(bad)})

    async def wait(self) -> None:
        """Until what is under way is over, or was dropped."""
        if self._job is not None:
            await asyncio.wait([self._job])

    def drop(self) -> None:
        """Whatever is under way writes nothing any more."""
        with self._writing:
            if self._job is not None:
                self._job.cancel()

    def forget(self) -> None:
        """Drop what is under way, and remove the statement that is there."""
        self.drop()
        self._evidence.with_name(self._evidence.name + SUFFIX).unlink(missing_ok=True)  # audit: statement-not-stale
        self._events.status(statement="")

    def _sign(self, job: asyncio.Future[None]) -> dict[str, str]:
        def keep(path: Path, text: str) -> None:
            with self._writing:
                if not job.cancelled():  # audit: statement-dropped
                    keep_statement(path, text)

        try:
            return {"path": str(sign_evidence(self._evidence, self._identity, keep=keep))}
        except SecAggError as bad:  # the evidence does not hold
            return {"reason": str(bad)}
        except OSError as bad:
            return {"reason": f"it could not be written: {bad.strerror or bad}"}
        except Exception as bad:  # whoever waits must hear of it
            LOGGER.exception("error in the hub")
            return {"reason": type(bad).__name__}

    def _over(self, job: asyncio.Future[None], found: dict[str, str]) -> None:
        if job.cancelled():
            return
        try:
            if "path" in found:
                self._events.status(statement=found["path"])
                self._events.tell("statement", path=found["path"])
            else:
                self._events.status(statement=f"none: {found['reason']}")
                self._events.tell("no statement", level=logging.WARNING, reason=found["reason"])
        finally:  # whoever listens may raise; whoever waits must not wait for ever
            job.set_result(None)

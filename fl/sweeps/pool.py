"""Several processes that train the runs of a sweep, each one run after the other with one torch thread.

A process that dies takes only its own run with it: the run is told as failed, and a new process continues with the
rest. All processes end when this one does, whichever way.
"""

import itertools
import selectors
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from fl.training.channel import Message, send
from fl.training.child import Child

WORKER: Final = "fl.sweeps.worker"  # the module whose `serve` each process runs
LAST: Final = ("finished", "failed", "impossible", "measured", "compared")  # a message of one of these kinds ends a job


class Job(NamedTuple):
    """A run to train in a folder. Without a folder, only its first rounds are measured.

    With `compare`, only the functions and data of the run in the folder are compared with the present ones.
    """

    id: str
    name: str
    experiment: dict[str, Any]
    folder: str | None
    compare: bool = False


Hear = Callable[[Job, Message], None]


def work(jobs: Iterable[Job], at_once: int, hear: Hear) -> None:
    """Do all jobs, so many at once. `hear` is called with every message about a job; the last ends it.

    A job is taken from the iterable when a process is free for it.
    """
    pool = _Pool(jobs, hear)
    try:
        pool.start(at_once)
        while pool.busy:
            pool.listen()
    finally:
        pool.close()


class _Pool:
    """The processes, and the job that each of them does."""

    def __init__(self, jobs: Iterable[Job], hear: Hear) -> None:
        self._waiting, self._hear = iter(jobs), hear
        self._selector = selectors.DefaultSelector()
        self._children: dict[Child, Job] = {}

    @property
    def busy(self) -> bool:
        return bool(self._children)

    def start(self, count: int) -> None:
        """Start so many processes with a job each, or as many as there are jobs."""
        for job in itertools.islice(self._waiting, count):
            child = Child(WORKER)
            self._selector.register(child.socket, selectors.EVENT_READ, child)
            self._give(child, job)

    def listen(self) -> None:
        """Wait for messages and pass them on. A process that is done gets the next job; a dead one is replaced."""
        for key, _ in self._selector.select():
            child: Child = key.data
            job, message = self._children[child], child.heard()
            if message is None:
                self._end(child)
                self._hear(job, {"do": "failed", "error": str(child.died(f"training {job.name}"))})
                self.start(1)
            else:
                self._hear(job, message)
                if message["do"] in LAST:
                    following = next(self._waiting, None)
                    self._end(child) if following is None else self._give(child, following)

    def _give(self, child: Child, job: Job) -> None:
        self._children[child] = job
        with suppress(OSError):  # of a process that has ended: the next message says so
            send(child.socket, {"experiment": job.experiment, "folder": job.folder, "compare": job.compare})

    def _end(self, child: Child) -> None:
        self._selector.unregister(child.socket)
        del self._children[child]
        child.end()

    def close(self) -> None:
        for child in list(self._children):
            self._end(child)
        self._selector.close()

"""What runs of secure aggregation cost: seconds and bytes, by stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from secagg.arguments import instance, real
from secagg.errors import UsageError
from secagg.protocol.result import Stage

_BY_STAGE = ("client_seconds", "client_clock", "server_seconds", "bytes_up", "bytes_down")


@dataclass(slots=True)
class Cost:
    """Seconds and bytes of one run or of several, all clients together.

    In a simulation, `client_seconds` is CPU time, because the clients share the cores. `server_seconds` is
    CPU time while the server takes messages, and wall-clock time while it closes a stage, because then it
    has all cores to itself. `client_clock` is the wall-clock time of clients on other machines.

    >>> cost = Cost(clients=3)
    >>> cost.count("bytes_up", Stage.KEYS, 300)
    >>> cost.add(cost)
    >>> cost.as_dict()["bytes_up"], cost.clients
    ({'keys': 600}, 6)
    """

    client_seconds: dict[Stage, float] = field(default_factory=dict)
    client_clock: dict[Stage, float] = field(default_factory=dict)
    server_seconds: dict[Stage, float] = field(default_factory=dict)
    bytes_up: dict[Stage, int] = field(default_factory=dict)
    bytes_down: dict[Stage, int] = field(default_factory=dict)
    clients: int = 0

    def count(self, what: str, stage: Stage, amount: float) -> None:
        """Add an amount to one of the fields that are kept by stage."""
        if not isinstance(what, str) or what not in _BY_STAGE:
            raise UsageError(f"what: expected one of {', '.join(_BY_STAGE)}, got {what!r}")
        amounts = getattr(self, what)
        stage = instance("stage", stage, Stage)
        real("amount", amount)
        amounts[stage] = amounts.get(stage, 0) + amount

    def answered(self, stage: Stage, seconds: float, *, up: int, down: int) -> None:
        """Count one client's answer: its seconds, and the bytes that it sent and received."""
        self.count("client_seconds", stage, seconds)
        self.count("bytes_up", stage, up)
        self.count("bytes_down", stage, down)

    def add(self, other: Cost) -> None:
        """Add the cost of another run."""
        self.clients += instance("other", other, Cost).clients
        for what in _BY_STAGE:
            for stage, amount in list(getattr(other, what).items()):
                self.count(what, stage, amount)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; stages by their names in lower case."""
        named = {
            what: {stage.name.lower(): amount for stage, amount in getattr(self, what).items()}
            for what in _BY_STAGE
            if what != "client_clock" or self.client_clock
        }
        return {**named, "clients": self.clients}

    @contextmanager
    def serving(self, stage: Stage, clock: Callable[[], float]) -> Iterator[None]:
        """Count the time spent inside, by this clock, as the server's."""
        start = clock()
        try:
            yield
        finally:
            self.count("server_seconds", stage, clock() - start)

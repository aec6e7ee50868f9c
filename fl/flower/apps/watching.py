"""Flower's grid for one strategy, which reports every answer as it arrives.

Flower's own `send_and_receive` looks for answers every 3 seconds, all at once. So nobody sees who has answered, and one
answer that does not decode ends the run for all. Here every answer is fetched separately.
"""

import time
from collections.abc import Callable, Iterable
from logging import WARNING
from typing import Any, Final

from flwr.app import Message
from flwr.supercore import log

from fl.flower.network import pull_one

POLL: Final = 0.25  # seconds between two looks for answers


class WatchedGrid:
    """A grid that calls `told` with the node of each answer, and about every quarter of a second with None."""

    def __init__(self, grid: Any, told: Callable[[int | None], None]) -> None:
        self._grid, self._told = grid, told

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """As Flower's: the replies that arrive in time."""
        sent = list(messages)
        numbers = list(self._grid.push_messages(sent))
        waiting = {number: one.metadata.dst_node_id for number, one in zip(numbers, sent, strict=True) if number}
        del sent
        end = None if timeout is None else time.monotonic() + timeout
        found: list[Message] = []
        while waiting:
            last = end is not None and time.monotonic() >= end
            for number, node in list(waiting.items()):
                for reply in pull_one(self._grid, number):
                    waiting.pop(number, None)
                    if reply is None:  # audit: app-undecodable-alone
                        log(WARNING, "share: node %d: Flower cannot decode its answer", node)
                        continue
                    found.append(reply)
                    self._told(node)
            if last:
                break
            self._told(None)
            time.sleep(POLL if waiting else 0.0)
        return found

"""Flower's grid without its processes: every message runs the real client app here, in the order sent.

A test may kill a node (it loses its context and returns under a new id), replace its answer, or keep it silent.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from fl.flower.client import client_app
from fl.flower.supernode import FOLDER, SIMULATE

RUN_ID = 77
Hook = Callable[[int, str, Message], Message | None]


@dataclass
class InProcessGrid:
    """Nodes by Flower's node id. `before` may swallow or replace a request, `after` a reply."""

    folders: list[Path]
    simulate: bool = True
    app: ClientApp = field(default_factory=client_app)
    before: Hook = lambda client, action, message: message
    after: Hook = lambda client, action, message: message
    contexts: dict[int, Context] = field(default_factory=dict)
    client_of: dict[int, int] = field(default_factory=dict)
    log: list[tuple[int, str]] = field(default_factory=list)
    _replies: dict[str, Message] = field(default_factory=dict)
    _sent: int = 0
    _next_node: int = 1000

    def __post_init__(self) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN_ID, 1, 1  # as Flower sets them
        for client in range(len(self.folders)):
            self.start(client)

    def start(self, client: int) -> int:
        """Start a new SuperNode for this client, which knows nothing of an earlier one."""
        self._next_node += 1
        node = self._next_node
        config = {FOLDER: str(self.folders[client]), SIMULATE: self.simulate}
        self.contexts[node] = Context(RUN_ID, node, config, RecordDict(), {})
        self.client_of[node] = client
        return node

    def kill(self, client: int) -> None:
        for node in [node for node, number in self.client_of.items() if number == client]:
            del self.contexts[node], self.client_of[node]

    def node_of(self, client: int) -> int:
        return next(node for node, number in self.client_of.items() if number == client)

    # --- the part of Flower's Grid that the server uses ---

    def get_node_ids(self) -> list[int]:
        return sorted(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self._deliver(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._replies.pop(number) for number in message_ids if number in self._replies]

    def _deliver(self, message: Message) -> str:
        self._sent += 1
        number = f"message-{self._sent}"
        message.metadata.__dict__["_message_id"] = number
        node = message.metadata.dst_node_id
        if node not in self.contexts:
            return number
        client, action = self.client_of[node], message.metadata.message_type.removeprefix("query.")
        self.log.append((client, action))
        asked = self.before(client, action, message)
        if asked is None or node not in self.contexts:
            return number
        asked.metadata.__dict__["_message_id"] = number
        reply = self.after(client, action, self.app(asked, self.contexts[node]))
        if reply is not None and node in self.contexts:
            reply.metadata.__dict__["_reply_to_message_id"] = number
            self._replies[number] = reply
        return number


def broken(message: Message) -> Message:
    """What Flower sends if an app raised an exception."""
    return Message(Error(code=2, reason="something"), reply_to=message)

"""Flower's grid without its processes, for apps with Flower's own functions and strategies."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from fl.flower.apps.vectors import segments_of
from fl.flower.node import make_node
from fl.flower.supernode import FOLDER
from fl.flower.training import AGREEMENT
from secagg import Identity, Member, Schedule, Terms
from secagg.agreement import Proposal, Signature, write_agreement
from secagg.simulation import agree_on

RUN_ID = 77
Hook = Callable[[int, Message], Message | None]


def members_of(place: Path, nodes: int) -> dict[int, Identity]:
    return {i: make_node(place / f"node-{i}") for i in range(nodes)}


def agree(place: Path, identities: dict[int, Identity], parameters: int, **more: Any) -> Path:
    """Every node signs an agreement for an app; the server's copy is in `place`."""
    train, evaluate = (
        more.pop("train", {"train_loss": 20.0}),
        more.pop("evaluate", {"eval_loss": 20.0, "eval_acc": 1.0}),
    )
    weights = more.pop("weights", [1] * len(identities))
    terms = Terms(
        name=more.pop("name", "an app"),
        members=tuple(Member(i, one.public, f"node-{i}", weights[i]) for i, one in identities.items()),
        segments=segments_of(parameters, clip=more.pop("clip", 4.0), train=train, evaluate=evaluate),
        schedule=Schedule(name="fixed", size=more.pop("size", 3), groupings=more.pop("groupings", 1)),
        last_round=more.pop("rounds", 20) - 1,
        **more,
    )
    agreement = agree_on(terms, identities)
    signed = Proposal.of(agreement).add(Signature(i, agreement.sign(i, one)) for i, one in identities.items())
    for folder in (place, *(place / f"node-{i}" for i in identities)):
        (folder / AGREEMENT).write_text(write_agreement(signed))
    return place / AGREEMENT


def action_of(message: Message) -> str:
    """`hello`, `train`, `evaluate` or `query.NAME`."""
    parts = message.content.get("parts", {})
    return "hello" if "hello" in parts or "seat" in parts else message.metadata.message_type


@dataclass
class AppGrid:
    """Runs an app for every node, in the order of the messages. `before` and `after` may replace or drop a message."""

    app: ClientApp
    folders: list[Path] | None
    nodes: int
    before: Hook = lambda client, message: message
    after: Hook = lambda client, message: message
    config: dict[str, Any] = field(default_factory=dict)
    contexts: dict[int, Context] = field(default_factory=dict)
    log: list[tuple[int, str]] = field(default_factory=list)
    replies: list[Message] = field(default_factory=list)
    _sent: int = 0
    _waiting: dict[str, Message] = field(default_factory=dict)

    def __post_init__(self) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN_ID, 1, 1  # as Flower sets them
        for client in range(self.nodes):
            self.start(client)

    def start(self, client: int) -> None:
        """Start a SuperNode for this client, which knows nothing of an earlier one."""
        config: dict[str, Any] = {"partition-id": client, "num-partitions": self.nodes}
        if self.folders:
            config[FOLDER] = str(self.folders[client])
        self.contexts[1000 + client] = Context(RUN_ID, 1000 + client, config, RecordDict(), dict(self.config))

    def get_node_ids(self) -> list[int]:
        return sorted(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        numbers = []
        for message in list(messages):
            reply = self._deliver(message)
            numbers.append(f"message-{self._sent}")
            if reply is not None:
                self._waiting[numbers[-1]] = reply
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._waiting.pop(number) for number in message_ids if number in self._waiting]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _deliver(self, message: Message) -> Message | None:
        self._sent += 1
        node = message.metadata.dst_node_id
        client = node - 1000
        self.log.append((client, action_of(message)))
        copy = Message(RecordDict(dict(message.content)), node, message.metadata.message_type)
        copy.metadata.__dict__["_message_id"] = f"message-{self._sent}"
        asked = self.before(client, copy)
        if asked is None or node not in self.contexts:
            return None
        reply = self.app(asked, self.contexts[node])
        self.replies.append(reply)
        return self.after(client, reply)

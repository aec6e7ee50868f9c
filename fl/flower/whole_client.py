"""The node's side of whole groups: one `secagg.whole.Client` for all rounds, on disk between two messages.

    NODE/whole/FINGERPRINT/client.state   its private keys, sealed under the node's key
    NODE/whole/FINGERPRINT/*.spool        its last answer, which is masked
    NODE/journal/                         the exclusive slot of every round

Flower runs every message in a process of its own. Each of them restores the client, takes one step and saves it, under
a lock. Training happens outside the lock: if two processes train for one round, the first to fill its slot answers, and
the second sends the same bytes again. A node that is restarted has lost nothing.
"""

import fcntl
import hashlib
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from fl.errors import ConfigError
from fl.flower.node import WHOLE_FOLDER, WHOLE_STATE, MistakeError, Node, RefusedError
from fl.secure.population import as_entry
from fl.training.randomness import context
from secagg import Agreement, AgreementRefused, Budget, FileJournal, Identity, LossWarning, UsageError
from secagg.agreement import MemberFolder
from secagg.whole import Advert, Client, FileStore, Hello, Resend, Task, encode, recall, respond

FOLDER: Final = WHOLE_FOLDER
STATE: Final = WHOLE_STATE
ALL_ROUNDS: Final = 2**64 - 1  # in place of a round, where a state is sealed


class Holder(Protocol):
    """A node that has a client: of a training (`fl.flower.node`) or of an app (`fl.flower.apps.member`)."""

    @property
    def place(self) -> Path: ...
    @property
    def client(self) -> int: ...
    @property
    def identity(self) -> Identity: ...
    @property
    def agreement(self) -> Agreement: ...
    @property
    def signatures(self) -> Mapping[int, bytes]: ...
    @property
    def journal(self) -> FileJournal: ...
    @property
    def budget(self) -> Budget | None: ...
    def seal(self, round: int, content: bytes) -> bytes: ...
    def unseal(self, round: int, sealed: bytes) -> bytes | None: ...


class Membership:
    """The client of a node, restored from its folder. Use it inside `opened`."""

    def __init__(self, node: Holder, place: Path) -> None:
        self._node, self._path = node, place / STATE
        self.store = FileStore(place, node.journal)
        earlier = MemberFolder(node.place).earlier(node.agreement.terms)
        who = (node.agreement, node.signatures, node.client, node.identity)
        if self._path.exists():
            content = node.unseal(ALL_ROUNDS, self._path.read_bytes())
        else:  # a new node, or a new state.key
            content = recall(node.agreement, node.client, node.identity, self.store)
        if content is None:  # audit: whole-state-sealed
            raise ConfigError(
                f"{self._path} was changed or belongs to another node; remove it: the journal still keeps every round "
                "from being answered twice"
            )
        self.client = Client.restore(content, *who, earlier=earlier, budget=node.budget)

    def save(self) -> None:
        """Store the client before anything leaves this node. The earlier state, with keys that are erased, is gone."""
        draft = self._path.with_name(f".{STATE}.new")  # the lock is held: nobody else writes here
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(self._node.seal(ALL_ROUNDS, self.client.save()))
            file.flush()
            os.fsync(file.fileno())  # audit: whole-state-durable
        os.replace(draft, self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # audit: whole-state-name-durable
        finally:
            os.close(folder)


@contextmanager
def opened(node: Holder) -> Iterator[Membership]:
    """The node's client, for one process at a time. A process that is killed leaves no lock behind."""
    place = node.place / FOLDER / node.agreement.fingerprint.hex()[:32]
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(place / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield Membership(node, place)
    finally:
        os.close(handle)


def advert(node: Node, round: int) -> bytes:
    """A signed key for a round; nothing if this node is not drawn for it or has answered it."""
    if not drawn(node, round):
        return b""
    with opened(node) as member:
        client = member.client
        if client.answered is not None and round <= client.answered:
            return b""
        found = client.receive(Hello(node.training.fingerprint, round))
        assert isinstance(found, Advert)
        member.save()  # audit: whole-key-stored-before-sent
        return encode(found)


def drawn(node: Node, round: int) -> bool:
    """Whether this node takes part in a round of the training. Only the agreed rounds exist."""
    agreement = node.training.agreement
    if round not in agreement.terms.rounds or not 0 <= round < node.training.experiment.rounds:
        return False
    return any(node.client in group for group in agreement.groups(round).values())


def reply(node: Node, round: int, message: bytes, *, source: str | None, classes: int | None) -> bytes:
    """The answer to a Round: masked after training, or the spool of the answer that was sent before."""
    if not drawn(node, round):  # audit: whole-agreed-rounds-only
        raise RefusedError(f"this node does not take part in round {round + 1}")
    found = _step(node, round, message)
    if isinstance(found, bytes):
        return found
    from fl.flower.task import local_update

    training = node.training
    if len(found.data) != 4 * training.parameters:
        raise RefusedError(f"the model has {len(found.data)} bytes, the agreement {training.parameters} parameters")
    x = np.frombuffer(found.data, dtype="<f4")
    update = local_update(node, round, x, source=source, classes=classes)
    if not np.isfinite(update).all():
        raise RefusedError("its update is not finite")
    weight = training.weights[node.client] / training.cohort.mean_weight
    again = _step(node, round, message, as_entry(training.agreement.terms.encoding, update, weight))
    assert isinstance(again, bytes)
    return again


def _step(node: Node, round: int, message: bytes, entry: Any = None) -> bytes | Task:
    """Take a Round: what to send, or the task if it waits for an update that is not there yet."""
    with opened(node) as member:
        client, store = member.client, member.store
        found = client.receive(message)
        if isinstance(found, Advert) or found.round != round:  # audit: whole-message-of-this-round
            raise RefusedError(f"expected the message of round {round + 1}")
        if isinstance(found, Resend):
            return bytes(store.load(found.name))
        if entry is None and store.look(found.slot) is None:
            return found
        bound = context(node.training.experiment, hashlib.sha256(found.data).digest())
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", LossWarning)  # the experiment sets the clip; it counts what is lost
                parts = respond(client, store, found, entry, context=bound)
        except AgreementRefused:
            raise
        except UsageError as error:
            raise MistakeError("its update does not fit the agreement", str(error)) from None
        member.save()
        return b"".join(parts)

"""The node's side of SHARE over Flower: a handler for each action of the server.

With whole groups a round is one action (`fl.flower.whole_client`). With survivors it has four, each a step of one
`secagg.Client`: Flower runs every message in a process of its own, so between two messages this client is bytes in the
node's context, sealed under the node's key, and the journal makes each step happen once. A handler that refuses sends a
sentence and never a traceback, which could reveal the node's data. A node that refuses or has lost its state is a
dropout of this round. Only `round` and `mask` import torch.
"""

import hashlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import Any, Final

import numpy as np
from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

import secagg
from fl.errors import ConfigError
from fl.flower import envelope, whole_client
from fl.flower.envelope import Envelope, MalformedError
from fl.flower.node import KeyFileError, MistakeError, Node, RefusedError
from fl.flower.supernode import FOLDER, SIMULATE
from fl.secure.population import as_entry
from fl.training.randomness import absences, attackers, context
from secagg import AgreementRefused, BudgetExceeded, Client, JournalError, Plan, SecAggError, Stage
from secagg.agreement import WHOLE
from secagg.protocol import Bundle, State, ToServer

STATE: Final = "share"
KEPT_ROUNDS: Final = 2  # this round's client, and the keys for the next round
NO_ANSWER: Final = "it did not answer in time"
STEPS: Final = (envelope.DEAL, envelope.MASK, envelope.SIGN, envelope.UNMASK)  # of a run with survivors
HASH_BYTES: Final = hashlib.sha256().digest_size
ANSWERED: Final = b"\xff" * HASH_BYTES  # in saved state, in place of the hash of the model: the last answer follows
NOT_READY: Final = "this node is not set up for this training; its own log says why"
SHOWN: Final = 16  # characters of a fingerprint


@dataclass(frozen=True, slots=True)
class Session:
    """One request to a node, with what it keeps in Flower's context until it restarts: sealed bytes by round."""

    node: Node
    context: Context = field(repr=False)
    round: int
    parts: Mapping[str, bytes] = field(repr=False)

    def part(self, name: str) -> bytes:
        if name not in self.parts:
            raise RefusedError(f"the request has no {name}")
        return self.parts[name]

    def load(self) -> tuple[bytes, bytes]:
        """(hash of the model, saved client) of the round."""
        sealed = self._records().get(self._key)
        if not isinstance(sealed, bytes):
            raise RefusedError("this node has no keys for this round (perhaps it was restarted)")
        content = self.node.unseal(self.round, sealed)
        if content is None:
            raise RefusedError("the saved state of this round was changed or belongs to another node")
        return content[:HASH_BYTES], content[HASH_BYTES:]

    def restore(self) -> tuple[bytes, Client]:
        """(hash of the model, client) of the round; the client accepts nothing but the plan that it derives."""
        model_hash, saved = self.load()
        node = self.node
        return model_hash, Client.restore(saved, node.identity, node.training.agreement, node.journal)

    def save(self, model_hash: bytes, content: bytes) -> None:
        records = self._records() | {self._key: self.node.seal(self.round, model_hash + content)}
        self.context.state[STATE] = ConfigRecord({key: records[key] for key in sorted(records)[-KEPT_ROUNDS:]})

    def wipe(self) -> None:
        records = self._records()
        records.pop(self._key, None)
        self.context.state[STATE] = ConfigRecord(records)

    def absent(self, stage: Stage) -> bool:
        """Whether a simulation has dropped this client by this stage. Only the node's operator allows one."""
        if not bool(self.context.node_config.get(SIMULATE, False)):
            return False
        last = absences(self.node.training.experiment, self.round).get(self.node.client)
        return last is not None and stage >= last

    @property
    def _key(self) -> str:
        return f"{self.round:020d}"

    def _records(self) -> dict[str, Any]:
        found = self.context.state.get(STATE)
        return dict(found) if isinstance(found, ConfigRecord) else {}


Handler = Callable[[Session], dict[str, bytes]]  # hello, deal, mask, sign, unmask


def hello(session: Session) -> dict[str, bytes]:
    """Prove which client this Flower node is, and send fresh keys if it was drawn for the round."""
    node, advert = session.node, b""
    _check_fingerprint(node, session.part("fingerprint"))
    if _whole(node):
        advert = b"" if session.absent(Stage.KEYS) else whole_client.advert(node, session.round)
    elif node.training.plan_of(node.client, session.round) is not None and not session.absent(Stage.KEYS):
        client = Client(node.client, node.identity, node.training.agreement, session.round, node.journal)
        advert = secagg.encode(client.hello())
        session.save(bytes(HASH_BYTES), client.save())
    run_id, node_id = session.context.run_id, session.context.node_id
    proof = node.identity.sign(location_statement(node.training.fingerprint, run_id, node_id, node.client, advert))
    found = {"member": node.client.to_bytes(4, "little"), "seat": proof}
    return found | {"advert": advert} if advert else found


def _whole(node: Node) -> bool:
    return node.training.agreement.terms.groups == WHOLE


def _check_fingerprint(node: Node, theirs: bytes) -> None:
    """The first message names the agreement, so that a node with another one can say so."""
    mine = node.training.fingerprint
    if theirs != mine:
        raise MistakeError(
            f"this node has the agreement {mine.hex()[:SHOWN]}..., the server {theirs.hex()[:SHOWN]}...: all need the "
            "same agreement.toml and training.toml"
        )


def location_statement(fingerprint: bytes, run_id: int, node_id: int, client: int, advert: bytes) -> bytes:
    """What a client signs to say at which Flower node it is. Another node cannot reuse its advert."""
    where = run_id.to_bytes(8, "little") + node_id.to_bytes(8, "little") + client.to_bytes(4, "little")
    return b"fl/flower/seat/v2\n" + fingerprint + where + hashlib.sha256(advert).digest()


def answer_round(session: Session, source: str | None, classes: int | None) -> dict[str, bytes]:
    """With whole groups: train on this node's data, mask the update, and send it with keys for the next rounds."""
    node = session.node
    if not _whole(node):
        raise RefusedError("the agreement has groups of survivors")
    if session.absent(Stage.DONE):
        raise RefusedError(NO_ANSWER)
    found = whole_client.reply(node, session.round, session.part("message"), source=source, classes=classes)
    return {"message": _instead(session, found)}


def _instead(session: Session, reply: bytes) -> bytes:
    """The reply. If a simulation makes this node misbehave, what it sends instead."""
    node, e = session.node, session.node.training.experiment
    if e.attack.protocol == "none" or node.client not in attackers(e):
        return reply
    if e.attack.protocol == "silence":
        raise RefusedError("simulated silence")
    return hashlib.shake_256(node.training.fingerprint + node.identity.public).digest(100)


def deal(session: Session) -> dict[str, bytes]:
    """Share this node's secrets, if the server has the plan that this node derives itself."""
    model_hash = session.part("model-hash")
    if len(model_hash) != HASH_BYTES:
        raise RefusedError(f"expected {HASH_BYTES} bytes of model-hash")
    _, client = session.restore()
    reply = client.receive(session.part("message"), context=context(session.node.training.experiment, model_hash))
    session.save(model_hash, client.save())
    return {"message": _reply_bytes(session, client.plan, Stage.SHARES, reply)}


def mask(session: Session, source: str | None, classes: int | None) -> dict[str, bytes]:
    """Train on this node's data from the model whose hash is in the plan, and mask the update."""
    model, bundle = session.part("model"), secagg.decode(session.part("message"))
    model_hash, client = session.restore()
    if hashlib.sha256(model).digest() != model_hash:
        raise RefusedError("this is not the model whose hash is in the plan")
    if client.state is not State.DEALT or not isinstance(bundle, Bundle):
        raise RefusedError(f"expected a Bundle after dealing, got a {type(bundle).__name__}")
    training = session.node.training
    if len(model) != 4 * training.parameters:
        raise RefusedError(f"the model has {len(model)} bytes, the agreement {training.parameters} parameters")
    from fl.flower.task import local_update

    x = np.frombuffer(model, dtype="<f4")
    update = local_update(session.node, session.round, x, source=source, classes=classes)
    weight = training.weights[session.node.client] / training.cohort.mean_weight
    reply = client.receive(bundle, update=as_entry(training.agreement.terms.encoding, update, weight))
    session.save(model_hash, client.save())
    return {"message": _reply_bytes(session, client.plan, Stage.INPUTS, reply)}


def sign(session: Session) -> dict[str, bytes]:
    """Audit what the sums of these survivors would reveal, and sign that they may be opened."""
    model_hash, client = session.restore()
    reply = client.receive(session.part("message"))
    session.save(model_hash, client.save())
    return {"message": _reply_bytes(session, client.plan, Stage.CONSISTENCY, reply)}


def unmask(session: Session) -> dict[str, bytes]:
    """Send the shares that open the signed sums, delete the round's secrets, and send keys for the next one.

    The answer is kept in place of the secrets. If it is lost on the way, the same answer is sent again.
    """
    model_hash, saved = session.load()
    if model_hash == ANSWERED:
        return {"message": saved} | _next_keys(session)
    _, client = session.restore()
    session.wipe()
    reply = client.receive(session.part("message"))
    message = _reply_bytes(session, client.plan, Stage.UNMASKING, reply)
    session.save(ANSWERED, message)
    return {"message": message} | _next_keys(session)


def _next_keys(session: Session) -> dict[str, bytes]:
    if "next" not in session.parts:
        return {}
    try:
        following = int.from_bytes(session.parts["next"], "little")
        parts = {"fingerprint": session.node.training.fingerprint}
        return hello(replace(session, round=following, parts=parts))
    except Exception:  # whatever it is: without new keys the shares must still be sent, and others wait for them
        traceback.print_exc(file=sys.stderr)
        return {}


def _reply_bytes(session: Session, plan: Plan, stage: Stage, reply: ToServer) -> bytes:
    """The encoded reply. If a simulation makes this node misbehave, what it sends instead."""
    node, e = session.node, session.node.training.experiment
    if e.attack.protocol == "none" or node.client not in attackers(e):
        return secagg.encode(reply)
    from secagg.simulation import Misbehaviour

    instead = Misbehaviour(e.attack.protocol).reply(stage, reply, plan=plan, identity=node.identity)
    if instead is None:
        raise RefusedError("simulated silence")
    return instead if isinstance(instead, bytes) else secagg.encode(instead)


def client_app(data: str | None = None, *, classes: int | None = None) -> ClientApp:
    """A Flower ClientApp that takes part in SHARE.

    `data` names a function as "module:function". It is called with this node's name and returns the node's (inputs,
    labels); its module is imported only where the node trains. `classes` is the number of labels that all nodes have
    together. Without `data` the node takes its part of a data set of `fl` (simulations). The node's operator starts the
    SuperNode with `--node-config 'share-node="FOLDER"'`.
    """
    app = ClientApp()
    handlers: dict[str, Handler] = {
        envelope.HELLO: hello,
        envelope.DEAL: deal,
        envelope.MASK: partial(mask, source=data, classes=classes),
        envelope.SIGN: sign,
        envelope.UNMASK: unmask,
        envelope.ROUND: partial(answer_round, source=data, classes=classes),
    }
    for action, handler in handlers.items():
        app.query(action)(partial(answer, action=action, handler=handler))
    return app


def answer(message: Message, context: Context, *, action: str, handler: Handler) -> Message:
    """Run one handler. Any error becomes a refusal in words."""
    with suppress(Exception):  # before the clock starts; if something is missing, the handler says so
        secagg.load_compiler()
        if action in (envelope.MASK, envelope.ROUND):
            import_module("fl.flower.task")
    start, clock = time.process_time(), time.perf_counter()
    round, parts, session = 0, {}, None
    refused, permanent = "", False
    try:
        request = envelope.unpack(message.content)
        round = request.round
        session = Session(_node(context), context, round, request.parts)
        if action in STEPS and session.absent(envelope.STAGE_OF[action]):
            raise RefusedError(NO_ANSWER)
        parts = handler(session)
    except Exception as error:
        refused, permanent = refusal(error)
    if refused:
        print(f"share: round {round + 1}, {action}: {refused}", file=sys.stderr)
        if session is not None and action in STEPS:
            session.wipe()  # a refusal ends the round: the server gets no second try
    seconds, passed = time.process_time() - start, time.perf_counter() - clock
    reply = Envelope(round, parts, seconds=seconds, clock=passed, refused=refused, permanent=permanent)
    return Message(envelope.pack(reply, inside=True), reply_to=message)


def refusal(error: Exception) -> tuple[str, bool]:
    """What the server is told of an error, and whether every later round would fail as well.

    What may name files, data or budgets of this node goes to its own log.
    """
    match error:
        case MistakeError():
            if error.detail:
                print(f"share: {error.detail}", file=sys.stderr)
            return str(error), True
        case AgreementRefused() | BudgetExceeded():
            print(f"share: {error}", file=sys.stderr)
            return "this node may not answer under this agreement any more; its own log says why", True
        case JournalError():
            print(f"share: {error}", file=sys.stderr)
            return "the storage of this node failed; its own log says why", False
        case RefusedError() | MalformedError() | SecAggError():
            return str(error), False
        case ConfigError():
            print(f"share: {error}", file=sys.stderr)
            return NOT_READY, True
        case _:  # of the app's own model and data too: the server gets the type and never the text
            traceback.print_exception(error, file=sys.stderr)
            return f"{type(error).__name__} on the node; its log has the details", False


def _node(context: Context) -> Node:
    folder = context.node_config.get(FOLDER)
    if not isinstance(folder, str):
        raise ConfigError(f"start this SuperNode with --node-config '{FOLDER}=\"FOLDER\"'")
    try:
        node = Node.open(folder)
    except KeyFileError:
        raise
    except ConfigError as error:  # of the two files that all members and the server have
        raise MistakeError(str(error).replace(f"{folder}{os.sep}", ""), str(error)) from None
    e = node.training.experiment
    simulated = e.byzantine or e.dropout.rate or e.dropout.schedule or node.training.simulated
    if simulated and not bool(context.node_config.get(SIMULATE, False)):
        raise ConfigError(
            f"attacks, dropouts and keys that everybody knows are for simulations: --node-config '{SIMULATE}=true'"
        )
    return node

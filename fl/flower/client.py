"""The node's side of SHARE over Flower: five handlers, each a step of one `secagg.Client`.

Flower runs every message in a process of its own, so between two messages the client is bytes in the node's
context, sealed under the node's key; the journal beside it makes each step happen once. A handler refuses in
words (never with a traceback, which could tell of the node's data), and a node that refuses or has lost its
state is a dropout of this round, no more. Only `mask` imports torch.
"""

from __future__ import annotations

import hashlib
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Final

import numpy as np
from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from fl.config.schema import Experiment
from fl.errors import ConfigError
from fl.flower import envelope
from fl.flower.envelope import Envelope, MalformedError
from fl.flower.node import Node, Refused
from fl.training.randomness import absences, attackers, context
from secagg.crypto.keys import HASH_BYTES
from secagg.errors import PlanRefused, SecAggError
from secagg.protocol.client import Client
from secagg.protocol.client_state import State
from secagg.protocol.floors import Floors
from secagg.protocol.messages import Bundle, KeyList, ToServer
from secagg.protocol.plan import Plan
from secagg.protocol.result import Stage
from secagg.protocol.wire import decode, encode
from secagg.simulation import Misbehaviour

Train = Callable[[Node, int, NDArray[np.float32]], NDArray[np.float32]]
STATE: Final = "share"
KEPT_ROUNDS: Final = 2  # this round's client, and the next one's keys
FOLDER: Final = "share-node"
SIMULATE: Final = "share-simulate"


ANSWERED: Final = b"\xff" * HASH_BYTES  # in the place of a model's hash: what follows is the last answer
NOT_READY: Final = "this node is not set up for this training; its own log says why"


@dataclass(slots=True)
class Memory:
    """What a node keeps in Flower's context: sealed bytes by round. A restart of the node loses it."""

    node: Node
    context: Context

    def load(self, round: int) -> tuple[bytes, bytes]:
        """(hash of the model, saved client) of a round."""
        sealed = self._records().get(_key(round))
        if not isinstance(sealed, bytes):
            raise Refused("this node has no keys for this round (perhaps it was restarted)")
        content = self.node.unseal(round, sealed)
        if content is None:
            raise Refused("what this node kept for this round was changed, or is another node's")
        return content[:HASH_BYTES], content[HASH_BYTES:]

    def store(self, round: int, model_hash: bytes, client: bytes) -> None:
        records = self._records()
        records[_key(round)] = self.node.seal(round, model_hash + client)
        for old in sorted(records)[:-KEPT_ROUNDS]:
            del records[old]
        self.context.state[STATE] = ConfigRecord(records)

    def wipe(self, round: int) -> None:
        records = self._records()
        records.pop(_key(round), None)
        self.context.state[STATE] = ConfigRecord(records)

    def absent(self, stage: Stage, round: int) -> bool:
        """Whether a simulation has this client gone by this stage. Only the node's operator allows one."""
        if not bool(self.context.node_config.get(SIMULATE, False)):
            return False
        gone = absences(self.node.enrolment.experiment, round).get(self.node.client)
        return gone is not None and stage >= gone

    def _records(self) -> dict[str, Any]:
        found = self.context.state.get(STATE)
        return dict(found) if isinstance(found, ConfigRecord) else {}


def _key(round: int) -> str:
    return f"{round:020d}"


# --- the five handlers --------------------------------------------------------------------------------------


def hello(node: Node, memory: Memory, asked: Envelope) -> dict[str, bytes]:
    """Proof of who sits at this Flower node, and fresh keys for a round, if this member was drawn for it."""
    plan = node.enrolment.plan_of(node.client, asked.round)
    advert = b""
    if plan is not None and not memory.absent(Stage.KEYS, asked.round):
        client = Client(node.client, node.identity, Floors.for_plan(plan), asked.round, node.journal)
        advert = encode(client.hello())
        memory.store(asked.round, bytes(HASH_BYTES), client.save())
    here = memory.context
    seat = seat_statement(node.enrolment.training_id, here.run_id, here.node_id, node.client, advert)
    return {"member": node.client.to_bytes(4, "little"), "seat": node.identity.sign(seat)} | (
        {"advert": advert} if advert else {}
    )


def seat_statement(training_id: bytes, run_id: int, node_id: int, client: int, advert: bytes) -> bytes:
    """What a member signs to be reached at a Flower node: a copied advert does not steal its seat."""
    where = run_id.to_bytes(8, "little") + node_id.to_bytes(8, "little") + client.to_bytes(4, "little")
    return b"fl/flower/seat/v1\n" + training_id + where + hashlib.sha256(advert).digest()


def deal(node: Node, memory: Memory, asked: Envelope) -> dict[str, bytes]:
    """Accept the plan, if it is the one that this node derives itself, and share its secrets."""
    model_hash = _part(asked, "model-hash")
    if len(model_hash) != HASH_BYTES:
        raise Refused("a model has a hash of 32 bytes")
    message = decode(_part(asked, "message"))
    if not isinstance(message, KeyList):
        raise Refused("a list of keys was expected")
    bound = context(node.enrolment.experiment, model_hash)
    _check_plan(node, asked.round, message.plan, bound)
    _, saved = memory.load(asked.round)
    client = restored(node, asked.round, saved)
    reply = client.receive(message, context=bound)
    memory.store(asked.round, model_hash, client.save())
    return {"message": _sent(node, client.plan, Stage.SHARES, reply)}


def _check_plan(node: Node, round: int, offered: bytes, bound: bytes) -> None:
    """Everything in a plan but the vector's length follows from the enrolment, and that from the model.

    A model of another length than this node's own is refused where the node trains.
    """
    try:
        plan = Plan.from_bytes(offered)
    except SecAggError as error:
        raise PlanRefused(f"plan refused: {error}") from None
    mine = node.enrolment.plan_of(node.client, round, plan.length, bound)
    if mine is None:
        raise PlanRefused("plan refused: this node was not drawn for this round")
    if mine.to_bytes() != offered:
        raise PlanRefused(f"plan refused: its {_difference(mine, plan)} is not what was enrolled")


def _difference(mine: Plan, theirs: Plan) -> str:
    names = ("training_id", "round", "roster", "t", "assumed_colluders", "schedule", "training_seed")
    more = ("clip", "weights", "policy", "context", "degree")
    differing = [name for name in names + more if getattr(mine, name) != getattr(theirs, name)]
    return {"t": "threshold", "assumed_colluders": "number of colluders"}.get(
        next(iter(differing), "encoding"), next(iter(differing), "encoding")
    )


def mask(node: Node, memory: Memory, asked: Envelope, train: Train) -> dict[str, bytes]:
    """Train on this node's data from the model that everybody was promised, and mask the update."""
    model, bundle = _part(asked, "model"), decode(_part(asked, "message"))
    model_hash, saved = memory.load(asked.round)
    if hashlib.sha256(model).digest() != model_hash:
        raise Refused("this is not the model whose hash is in the plan")
    client = restored(node, asked.round, saved)
    if client.state is not State.DEALT or not isinstance(bundle, Bundle):
        raise Refused("it is not time to train")
    if len(model) != 4 * client.plan.length:
        raise Refused(f"the model has {len(model)} bytes, the plan {client.plan.length} coordinates")
    if client.plan.rows_of[node.client]:
        update = train(node, asked.round, np.frombuffer(model, dtype="<f4"))
    else:
        update = np.zeros(client.plan.length, dtype=np.float32)  # left out by lot: only holds shares
    reply = client.receive(bundle, update=update)
    memory.store(asked.round, model_hash, client.save())
    return {"message": _sent(node, client.plan, Stage.INPUTS, reply)}


def sign(node: Node, memory: Memory, asked: Envelope) -> dict[str, bytes]:
    """Audit what the sums of these survivors would reveal, and sign that they may be opened."""
    model_hash, saved = memory.load(asked.round)
    client = restored(node, asked.round, saved)
    reply = client.receive(_part(asked, "message"))
    memory.store(asked.round, model_hash, client.save())
    return {"message": _sent(node, client.plan, Stage.CONSISTENCY, reply)}


def unmask(node: Node, memory: Memory, asked: Envelope) -> dict[str, bytes]:
    """Give the shares that open the signed rows, forget this round, and send keys for the next one.

    The answer is kept in the place of the secrets: if it was lost on the way, it is sent again as it was.
    """
    model_hash, saved = memory.load(asked.round)
    if model_hash == ANSWERED:
        return {"message": saved} | _next_keys(node, memory, asked)
    client = restored(node, asked.round, saved)
    memory.wipe(asked.round)
    reply = client.receive(_part(asked, "message"))
    message = _sent(node, client.plan, Stage.UNMASKING, reply)
    memory.store(asked.round, ANSWERED, message)
    return {"message": message} | _next_keys(node, memory, asked)


def _next_keys(node: Node, memory: Memory, asked: Envelope) -> dict[str, bytes]:
    if "next" not in asked.parts:
        return {}
    try:
        return hello(node, memory, Envelope(int.from_bytes(asked.parts["next"], "little")))
    except Exception:  # the shares are owed whether or not there are keys to give
        traceback.print_exc(file=sys.stderr)
        return {}


def restored(node: Node, round: int, saved: bytes) -> Client:
    """The client of a round, under floors that accept nothing but the enrolled plan."""
    plan = node.enrolment.plan_of(node.client, round)
    if plan is None:
        raise Refused("this node was not drawn for this round")
    return Client.restore(saved, node.identity, Floors.for_plan(plan), node.journal)


def _part(asked: Envelope, name: str) -> bytes:
    if name not in asked.parts:
        raise Refused(f"the request has no {name}")
    return asked.parts[name]


def _sent(node: Node, plan: Plan, stage: Stage, reply: ToServer) -> bytes:
    """The reply in bytes; where a simulation has this node misbehave, what it sends instead."""
    deed = misdeed(node.enrolment.experiment, node.client)
    if deed == "none":
        return encode(reply)
    instead = Misbehaviour(deed).reply(stage, reply, plan=plan, identity=node.identity)
    if instead is None:
        raise Refused("simulated silence")
    return instead if isinstance(instead, bytes) else encode(instead)


def misdeed(e: Experiment, client: int) -> str:
    return e.attack.protocol if e.attack.protocol != "none" and client in attackers(e) else "none"


# --- the app ------------------------------------------------------------------------------------------------

Handler = Callable[[Node, Memory, Envelope], dict[str, bytes]]
_STAGE_OF: Final = dict(zip(envelope.ACTIONS, list(Stage)[: Stage.DONE], strict=True))


def client_app(data: str | None = None, *, classes: int | None = None) -> ClientApp:
    """A Flower ClientApp that takes part in SHARE.

    `data` names a function, as "module:function", that is called with this node's name and returns its
    (inputs, labels); it is imported only where the node trains. `classes` is the number of labels that all
    nodes together have. Without `data` the node takes its part of a data set of `fl` (simulations).

    The node's operator starts the SuperNode with `--node-config 'share-node="FOLDER"'`.
    """
    app = ClientApp()
    train = partial(_train, source=data, classes=classes)
    handlers: dict[str, Handler] = {
        envelope.HELLO: hello,
        envelope.DEAL: deal,
        envelope.MASK: partial(mask, train=train),
        envelope.SIGN: sign,
        envelope.UNMASK: unmask,
    }
    for action, handler in handlers.items():
        app.query(action)(partial(answer, action=action, handler=handler))
    return app


def answer(message: Message, context: Context, *, action: str, handler: Handler) -> Message:
    """Run one handler; whatever goes wrong becomes a refusal in words."""
    with suppress(Exception):  # before the clock; if something is missing, the handler will say so
        import_module("secagg.kernels.jit").load()
        if action == envelope.MASK:
            import_module("fl.flower.task")
    start, clock = time.process_time(), time.perf_counter()
    round, parts, refused, memory = 0, {}, "", None
    try:
        asked = envelope.unpack(message.content)
        round = asked.round
        node = _node(context)
        memory = Memory(node, context)
        if action != envelope.HELLO and memory.absent(_STAGE_OF[action], round):
            raise Refused("it did not answer in time")
        parts = handler(node, memory, asked)
    except (Refused, MalformedError, SecAggError) as error:
        refused = str(error)
    except ConfigError as error:
        print(f"share: {error}", file=sys.stderr)  # it may name files: for the node's operator alone
        refused = NOT_READY
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        refused = f"{type(error).__name__} on the node; its log has the details"
    if refused:
        print(f"share: round {round + 1}, {action}: {refused}", file=sys.stderr)
        if memory is not None and action != envelope.HELLO:
            memory.wipe(round)  # one doubt ends the round: no second try with a better lie
    reply = Envelope(
        round,
        parts,
        seconds=time.process_time() - start,
        clock=time.perf_counter() - clock,
        refused=refused,
    )
    return Message(envelope.pack(reply), reply_to=message)


def _node(context: Context) -> Node:
    folder = context.node_config.get(FOLDER)
    if not isinstance(folder, str):
        raise ConfigError(f"start this SuperNode with --node-config '{FOLDER}=\"FOLDER\"'")
    node = Node.open(folder)
    e = node.enrolment.experiment
    if (
        misdeed(e, node.client) != "none" or e.byzantine or e.dropout.rate or e.dropout.schedule
    ) and not bool(context.node_config.get(SIMULATE, False)):
        raise ConfigError(f"attacks and dropouts are for simulations: --node-config '{SIMULATE}=true'")
    return node


def _train(
    node: Node, round: int, x: NDArray[np.float32], *, source: str | None, classes: int | None
) -> NDArray[np.float32]:
    from fl.flower.task import node_update

    return node_update(node, round, x, source=source, classes=classes)

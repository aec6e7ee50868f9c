"""The client's side: a mod around the functions of an app, whose replies leave the node only inside a secure sum.

The mod takes every request. One that secure aggregation does not protect is refused, also for functions of the app that
the server may call by name. The app gets what it would get without the mod. Its reply is turned into a vector, masked,
and recorded in the node's journal before it is sent. The client is on the node's disk between two messages
(`fl.flower.whole_client`): neither another run nor a restart makes it forget. An error of the app is reported by its
type alone.
"""

import sys
import warnings
from typing import Any, Final

from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp.typing import ClientAppCallable

from fl.errors import ConfigError
from fl.flower import envelope
from fl.flower.apps import vectors
from fl.flower.apps.digest import content_hash
from fl.flower.apps.member import AppNode
from fl.flower.apps.messages import (
    FINGERPRINT,
    HELLO,
    MEMBER,
    MESSAGE,
    SEAT,
    SKIP,
    seat_statement,
    without_envelope,
)
from fl.flower.client import refusal
from fl.flower.envelope import Envelope, MalformedError
from fl.flower.node import MistakeError, RefusedError
from fl.flower.supernode import FOLDER
from fl.flower.whole_client import opened
from secagg import AgreementRefused, LossWarning
from secagg.whole import Advert, Hello, Resend, encode, respond

MOST_SHOWN: Final = 16  # digits of a fingerprint in an error


def secure_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Use it as `ClientApp(mods=[secure_mod])`; the server uses `SecureStrategy`.

    The node's operator starts the SuperNode with `--node-config 'share-node="FOLDER"'`. The folder has the node's keys
    and the agreement that all members signed (docs/flower-apps.md).

    >>> from flwr.clientapp import ClientApp
    >>> from fl.flower import secure_mod
    >>> app = ClientApp(mods=[secure_mod])
    """
    round, refused, permanent = 0, "", False
    parts: dict[str, bytes] = {}
    try:
        request = envelope.unpack(message.content)
        round = request.round
        parts = _answer(_node(context), request, message, context, call_next)
    except MalformedError:
        refused = (
            f"this node answers only inside secure sums, and the request {message.metadata.message_type!r} is not for "
            "one: use SecureStrategy on the server"
        )
    except AgreementRefused as error:
        refused, permanent = str(error), True
    except Exception as error:
        refused, permanent = refusal(error)
    if refused:
        print(f"share: {message.metadata.message_type}: {refused}", file=sys.stderr, flush=True)
    return Message(envelope.pack(Envelope(round, parts, refused=refused, permanent=permanent)), reply_to=message)


def _node(context: Context) -> AppNode:
    folder = context.node_config.get(FOLDER)
    if not isinstance(folder, str):
        raise ConfigError(f"start this SuperNode with --node-config '{FOLDER}=\"FOLDER\"'")
    return AppNode.open(folder)


def _answer(
    node: AppNode, request: Envelope, message: Message, context: Context, call_next: ClientAppCallable
) -> dict[str, bytes]:
    mine, theirs = node.agreement.fingerprint, request.parts.get(FINGERPRINT, b"")
    if theirs != mine:
        raise MistakeError(
            f"another agreement: this node signed {mine.hex()[:MOST_SHOWN]}..., the server has "
            f"{theirs.hex()[:MOST_SHOWN]}..."
        )
    if HELLO in request.parts:
        return _hello(node, request.round, context)
    kind = message.metadata.message_type.partition(".")[0]
    if kind not in vectors.KINDS:  # audit: app-other-requests-refused
        raise RefusedError(f"this node answers no {kind!r}: only training and evaluation are summed securely")
    asked = request.parts.get(MESSAGE, b"")
    again = _step(node, asked)
    if again is not None:
        return {MESSAGE: again}
    message.content = without_envelope(message.content)
    # audit: app-context-from-what-came
    bound = content_hash(message.metadata.message_type, message.content, context.run_config)
    message.metadata.group_id = ""  # audit: app-gets-no-group-id
    given = _arrays(message)
    reply = call_next(message, context)
    if reply.has_error():
        raise RefusedError(f"the app reports error {reply.error.code}; the node's log has the details")
    terms = node.agreement.terms
    weight = terms.relative_weight(node.client)
    skip = request.parts.get(SKIP, b"").decode("utf-8", "replace")
    entry = vectors.entry_of(terms, weight, kind, given, reply.content, skip)
    found = _step(node, asked, entry, bound)
    assert found is not None
    return {MESSAGE: found}


def _hello(node: AppNode, round: int, context: Context) -> dict[str, bytes]:
    """Which member this node is, and a key for the round if it is drawn for it."""
    mine, advert = node.agreement.fingerprint, b""
    if any(node.client in group for group in node.agreement.groups(round).values()):
        with opened(node) as member:
            advert = encode(member.client.receive(Hello(mine, round)))  # type: ignore[arg-type]
            member.save()  # audit: app-key-stored-before-sent
    seat = node.identity.sign(seat_statement(mine, context.run_id, context.node_id, node.client, advert))
    return {MEMBER: node.client.to_bytes(4, "little"), SEAT: seat, MESSAGE: advert}


def _step(node: AppNode, asked: bytes, entry: dict[str, Any] | None = None, bound: bytes = b"") -> bytes | None:
    """Take a Round: what to send, or None if it waits for what the app returns. A filled slot is sent again."""
    with opened(node) as member:
        task = member.client.receive(asked)
        if isinstance(task, Advert):
            raise RefusedError("expected the message of a round")
        if isinstance(task, Resend):
            return bytes(member.store.load(task.name))
        if entry is None and member.store.look(task.slot) is None:
            return None
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", LossWarning)
            pieces = respond(member.client, member.store, task, entry, context=bound)
        for one in told:
            print(f"share: round {task.round}: {one.message}", file=sys.stderr, flush=True)
        member.save()
        return b"".join(pieces)


def _arrays(message: Message) -> ArrayRecord:
    """The model as the app gets it, before the app can change it."""
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise RefusedError(f"expected one ArrayRecord in the request, got {len(records)}")
    return ArrayRecord(dict(records[0]))

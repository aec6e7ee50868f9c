"""The client's side: a mod around the functions of an app, whose replies leave the node only inside a secure sum.

The mod takes every request. One that secure aggregation does not protect is refused, also for functions of the app that
the server may call by name. The app gets what it would get without the mod. Its reply is turned into a vector, masked,
and recorded in the node's journal before it is sent. An error of the app is reported by its type alone.
"""

import sys
import traceback
import warnings
from typing import Final

from flwr.app import ArrayRecord, ConfigRecord, Context, Message
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
from fl.flower.client import NOT_READY
from fl.flower.envelope import Envelope, MalformedError
from fl.flower.node import MistakeError, RefusedError
from fl.flower.supernode import FOLDER
from secagg import AgreementRefused, LossWarning, SecAggError
from secagg.whole import Client, Hello, Resend, encode, respond

STATE: Final = "share-app"
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
    except (MistakeError, AgreementRefused) as error:
        refused, permanent = str(error), True
    except (RefusedError, SecAggError) as error:
        refused = str(error)
    except ConfigError as error:
        print(f"share: {error}", file=sys.stderr)  # for the operator alone: it may name files of the node
        refused, permanent = NOT_READY, True
    except Exception as error:  # of the app too: the server gets the type and never the text
        traceback.print_exc(file=sys.stderr)
        refused = f"{type(error).__name__} on the node; its log has the details"
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
    client = node.member(_sealed(context))
    if HELLO in request.parts:
        advert = b""
        if any(node.client in group for group in node.agreement.groups(request.round).values()):
            advert = encode(client.receive(Hello(mine, request.round)))  # type: ignore[arg-type]
            _keep(context, node, client)
        statement = seat_statement(mine, context.run_id, context.node_id, node.client, advert)
        seat = node.identity.sign(statement)
        return {MEMBER: node.client.to_bytes(4, "little"), SEAT: seat, MESSAGE: advert}
    kind = message.metadata.message_type.partition(".")[0]
    if kind not in vectors.KINDS:  # audit: app-other-requests-refused
        raise RefusedError(f"this node answers no {kind!r}: only training and evaluation are summed securely")
    task = client.receive(request.parts.get(MESSAGE, b""))
    if isinstance(task, Resend):
        return {MESSAGE: bytes(node.store.load(task.name))}
    message.content = without_envelope(message.content)
    # audit: app-context-from-what-came
    bound = content_hash(message.metadata.message_type, message.content, context.run_config)
    given = _arrays(message)
    reply = call_next(message, context)
    if reply.has_error():
        raise RefusedError(f"the app reports error {reply.error.code}; the node's log has the details")
    terms = node.agreement.terms
    weight = terms.relative_weight(node.client)
    skip = request.parts.get(SKIP, b"").decode("utf-8", "replace")
    entry = vectors.entry_of(terms, weight, kind, given, reply.content, skip)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", LossWarning)
        pieces = respond(client, node.store, task, entry, context=bound)  # type: ignore[arg-type]
    for one in told:
        print(f"share: round {task.round}: {one.message}", file=sys.stderr, flush=True)
    _keep(context, node, client)
    return {MESSAGE: b"".join(pieces)}


def _arrays(message: Message) -> ArrayRecord:
    """The model as the app gets it, before the app can change it."""
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise RefusedError(f"expected one ArrayRecord in the request, got {len(records)}")
    return ArrayRecord(dict(records[0]))


def _sealed(context: Context) -> bytes | None:
    record = context.state.get(STATE)
    found = record.get("client") if isinstance(record, ConfigRecord) else None
    return found if isinstance(found, bytes) else None


def _keep(context: Context, node: AppNode, client: Client) -> None:
    context.state[STATE] = ConfigRecord({"client": node.saved(client)})

"""What travels between `SecureStrategy` and `secure_mod`, beside what the app itself sends.

A request to train or to evaluate is the app's own message plus an envelope with the Round of secure aggregation. The
reply is an envelope with the masked answer and nothing of what the app returned. `hello` asks a node who it is.
"""

import hashlib
from typing import Final

from flwr.app import RecordDict

from fl.flower.envelope import Envelope, pack

FINGERPRINT, MEMBER, SEAT, MESSAGE, SKIP = "fingerprint", "member", "seat", "message", "skip"
HELLO: Final = "hello"  # in a request: say who you are. Its type is "train", because mods see no unknown types
OURS: Final = frozenset(pack(Envelope(0)))  # the records of an envelope


def with_envelope(content: RecordDict, envelope: Envelope) -> RecordDict:
    """A request: what the app gets, and what secure aggregation needs."""
    return RecordDict({**content, **pack(envelope)})


def without_envelope(content: RecordDict) -> RecordDict:
    """What the app gets of a request."""
    return RecordDict({name: record for name, record in content.items() if name not in OURS})


def seat_statement(fingerprint: bytes, run_id: int, node_id: int, client: int, advert: bytes) -> bytes:
    """What a member signs to say at which Flower node it is. Another node cannot reuse it."""
    where = run_id.to_bytes(8, "little") + node_id.to_bytes(8, "little") + client.to_bytes(4, "little")
    return b"fl/flower/apps/seat/v1\n" + fingerprint + where + hashlib.sha256(advert).digest()

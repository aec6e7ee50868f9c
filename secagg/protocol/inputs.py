"""Masked vectors as the server takes them: their hash, which the sender signed, and their sums."""

from collections.abc import Iterable

import numpy as np

from secagg.agreement.plan import Plan
from secagg.codec import BUFFERS, Buffer
from secagg.errors import PeerError
from secagg.protocol import transcript
from secagg.protocol.messages import MaskedInput, ToServer
from secagg.protocol.wire import decode
from secagg.types import ClientId, GroupId, Ring32


def shape_of(plan: Plan, sender: ClientId) -> tuple[int, int]:
    """How many masked vectors a client sends, and of which length; nothing if it was left out at random."""
    count = len(plan.groups_of[sender])
    return count, plan.length if count else 0


def hash_of(plan: Plan, sender: ClientId, message: ToServer | Buffer, threads: int | None) -> bytes:
    """The hash of the vectors in a message, or nothing unless it is a masked input of the right shape."""
    try:
        read = decode(message) if isinstance(message, BUFFERS) else message  # vectors are views, not copies
    except PeerError:
        return b""
    if not isinstance(read, MaskedInput) or read.vectors.shape != shape_of(plan, sender):
        return b""
    return transcript.vectors_hash(read.vectors, threads)


def add(sums: dict[GroupId, Ring32], places: Iterable[GroupId], vectors: Ring32) -> None:
    """Add each vector to the sum at its place."""
    for place, vector in zip(places, vectors, strict=True):
        if place in sums:
            np.add(sums[place], vector, out=sums[place])
        else:
            sums[place] = np.array(vector, dtype=np.uint32)

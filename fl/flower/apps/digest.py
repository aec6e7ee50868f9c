"""The hash of what a server sends to an app: all members of a group must have got the same, bit for bit.

The hash covers the type of the message, every record in it and the run configuration, so that a server that gives one
node another model, learning rate or number of epochs than its mates gets no sum of their group. (With no epochs, the
mates' updates would be zero, and the sum would be the update of the one.) The order of records and arrays counts too:
many apps take the arrays of a model one after the other, and two layers of one shape could change places.
"""

import hashlib
import struct
from collections.abc import Iterator, Mapping

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

_LABEL = b"fl/flower/apps/content/v2\n"


def content_hash(message_type: str, content: RecordDict, run_config: Mapping[str, object]) -> bytes:
    """SHA-256 over the type of a message, its records in their order, and the run configuration, in any order.

    >>> from flwr.app import ConfigRecord, RecordDict
    >>> from fl.flower.apps.digest import content_hash
    >>> content = RecordDict({"config": ConfigRecord({"lr": 0.1})})
    >>> content_hash("train", content, {}) == content_hash("evaluate", content, {})
    False
    """
    found = hashlib.sha256(_LABEL)
    for piece in _pieces(message_type, content, run_config):
        found.update(struct.pack("<Q", len(piece)))
        found.update(piece)
    return found.digest()


def _pieces(message_type: str, content: RecordDict, run_config: Mapping[str, object]) -> Iterator[bytes]:
    """Every value with its name and its kind. Each piece is hashed with its length, and each list has a count."""
    yield from (message_type.encode(), str(len(run_config)).encode())
    for key in sorted(run_config):
        yield key.encode()
        yield from _value(run_config[key])
    for name, record in content.items():
        yield from (name.encode(), type(record).__name__.encode(), str(len(record)).encode())
        if isinstance(record, ArrayRecord):
            for key, array in record.items():  # audit: app-order-bound
                yield from (key.encode(), array.dtype.encode(), repr(tuple(array.shape)).encode())
                yield from (array.stype.encode(), array.data)
        elif isinstance(record, (ConfigRecord, MetricRecord)):
            for key, value in record.items():
                yield key.encode()
                yield from _value(value)


def _value(value: object) -> Iterator[bytes]:
    if isinstance(value, list):
        yield from (b"list", str(len(value)).encode())
        for one in value:
            yield from _value(one)
        return
    yield type(value).__name__.encode()
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, float):
        yield struct.pack("<d", value)
    else:
        yield str(value).encode()

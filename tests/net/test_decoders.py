"""Malformed messages between hub and sites give typed errors; values have one encoding."""

import pytest

from secagg.errors import WireError
from secagg.net.messages import Begin, End, Message, Over, decode, encode
from tests.secagg.fuzz import Table, fuzz

MESSAGES: list[Message] = [
    Begin(bytes(range(32)), 3, 1, b"the model of round 3"),
    Begin(bytes(32), 0, 0, b""),
    End(bytes(range(32)), b"there are no more rounds"),
    End(bytes(32), b""),
    Over(bytes(range(32)), 3, 5, b""),
    Over(bytes(32), 2**40, 0, b"too few sites"),
]


def decode_message(data: bytes) -> bytes | None:
    try:
        return encode(decode(data))
    except WireError:
        return None


def decoders() -> Table:
    """Name -> decoder, real bytes, how many leading bytes to keep, whether each value has one encoding."""
    kinds = {
        type(message).__name__: [encode(one) for one in MESSAGES if type(one) is type(message)] for message in MESSAGES
    }
    return {name: (decode_message, bases, 2, True) for name, bases in kinds.items()}


@pytest.mark.parametrize("name", ["Begin", "End", "Over"])
def test_mutated_bytes_give_a_value_with_that_encoding_or_a_typed_error(name: str) -> None:
    report = fuzz(name, 5000, 0, decoders())
    assert 0 < report.decoded < report.inputs


@pytest.mark.long
@pytest.mark.parametrize("name", ["Begin", "End", "Over"])
def test_a_million_mutated_inputs_give_values_or_typed_errors_in_bounded_memory(name: str) -> None:
    report = fuzz(name, 1_000_000, 1, decoders())
    print(report)
    assert report.grown_kb < 64 * 1024

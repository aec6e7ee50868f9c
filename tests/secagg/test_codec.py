"""The codecs of all messages and files: the bytes of each value, and each refusal, at the first byte that is wrong."""

import re
import struct
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest

from secagg import UsageError, WireError
from secagg.codec import (
    U8,
    U16,
    U32,
    U64,
    Ascending,
    AscendingGroups,
    Blob,
    Codec,
    Fixed,
    Float,
    Many,
    Matrix,
    Reader,
    Struct,
    Wire,
    from_bytes,
    to_bytes,
)
from secagg.labels import VERSION


def refused(problem: str, kind: type[Exception] = WireError) -> Any:
    return pytest.raises(kind, match=f"^{re.escape(problem)}$")


def u32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


PAIR = Struct(dict, (("a", U8), ("b", Blob(5))))
VALUES: list[tuple[Codec, Any, bytes, int, str]] = [  # a value, its bytes, the least bytes of any value, the layout
    (U8, 255, b"\xff", 1, "u8"),
    (U16, 258, b"\2\1", 2, "u16"),
    (U32, 2**32 - 2, b"\xfe\xff\xff\xff", 4, "u32"),
    (U64, 2**63, bytes(7) + b"\x80", 8, "u64"),
    (Float(), -1.5, struct.pack("<d", -1.5), 8, "f64, finite"),
    (Float(), 0.0, bytes(8), 8, "f64, finite"),
    (Fixed(3), b"abc", b"abc", 3, "3 bytes"),
    (Blob(), b"ab", u32(2) + b"ab", 4, "u32 length, bytes"),
    (Blob(2), b"", u32(0), 4, "u32 length, bytes"),
    (Many(U16), (1, 2), u32(2) + b"\1\0\2\0", 4, "u32 count, each: u16"),
    (Ascending(), (1, 3), u32(2, 1, 3), 4, "u32 count, u32 each, strictly ascending"),
    (Ascending(), (), u32(0), 4, "u32 count, u32 each, strictly ascending"),
    (
        AscendingGroups(),
        ((0, 1), (0, 2), (1, 0)),
        u32(3) + struct.pack("<HIHIHI", 0, 1, 0, 2, 1, 0),
        4,
        "u32 count, (u16 grouping, u32 group) each, strictly ascending",
    ),
    (PAIR, {"a": 7, "b": b"x"}, b"\7" + u32(1) + b"x", 5, "(a: u8; b: u32 length, bytes)"),
]


@pytest.mark.parametrize(("codec", "value", "data", "least", "layout"), VALUES)
def test_a_value_has_these_bytes_and_no_others(codec: Codec, value: Any, data: bytes, least: int, layout: str) -> None:
    assert to_bytes(codec, value) == data
    assert from_bytes(codec, data) == value
    assert type(from_bytes(codec, data)) is type(value)
    assert (codec.least, codec.layout) == (least, layout)
    with refused("1 extra bytes after the message"):
        from_bytes(codec, data + b"\0")
    with pytest.raises(WireError):
        from_bytes(codec, data[:-1])


def test_a_reader_tells_how_much_is_missing_and_takes_nothing_then() -> None:
    reader = Reader(bytearray(b"abc"))
    assert (reader.left, bytes(reader.take(2)), reader.left) == (3, b"ab", 1)
    assert reader.take(0).readonly
    with refused("message ends 4 bytes too early"):
        reader.take(5)
    with refused("message ends 1 bytes too early"):
        reader.take(2)
    assert bytes(reader.take(1)) == b"c"
    reader.end()
    with refused("expected bytes, got str", UsageError):
        Reader("abc")  # type: ignore[arg-type]
    assert Reader(memoryview(bytes(6)).cast("H")).left == 6  # bytes, whatever the items are


@pytest.mark.parametrize(
    ("codec", "most", "size"), [(Blob(7), 7, 1), (Many(U8, 7), 7, 1), (Ascending(7), 7, 4), (AscendingGroups(7), 7, 6)]
)
def test_a_count_is_at_most_what_the_layout_says(codec: Codec, most: int, size: int) -> None:
    def value(count: int) -> Any:
        return bytes(count) if size == 1 else tuple(range(count)) if size == 4 else tuple((0, i) for i in range(count))

    assert from_bytes(codec, to_bytes(codec, value(most))) == (
        tuple(value(most)) if isinstance(codec, Many) else value(most)
    )
    with refused(f"count {most + 1} exceeds the limit {most}"):
        to_bytes(codec, value(most + 1))
    with refused(f"count {most + 1} exceeds the limit {most}"):
        from_bytes(codec, u32(most + 1) + bytes(size * (most + 1)))


@pytest.mark.parametrize(
    ("codec", "most"), [(Blob(), 2**32 - 1), (Many(U8), 65535), (Ascending(), 65535), (AscendingGroups(), 2**20)]
)
def test_without_a_limit_a_count_has_this_one(codec: Any, most: int) -> None:
    """The last count is refused because the bytes are missing, the next because of the limit."""
    with pytest.raises(WireError, match=r"bytes too early|bytes follow"):
        from_bytes(codec, u32(most))
    if most < 2**32 - 1:
        with refused(f"count {most + 1} exceeds the limit {most}"):
            from_bytes(codec, u32(most + 1))
    else:
        assert codec.most == most


def test_declared_values_are_compared_with_the_bytes_that_follow() -> None:
    assert from_bytes(Many(U16), u32(2) + bytes(4)) == (0, 0)
    with refused("3 values declared, but only 5 bytes follow"):
        from_bytes(Many(U16), u32(3) + bytes(5))
    with refused("2 values declared, but only 9 bytes follow"):
        from_bytes(Many(PAIR), u32(2) + bytes(9))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), -0.0])
def test_a_number_is_finite_and_no_negative_zero(value: float) -> None:
    with refused(f"expected a finite number and not -0.0, got {value}"):
        from_bytes(Float(), struct.pack("<d", value))


@pytest.mark.parametrize("values", [(1, 1), (2, 1), (0, 5, 5)])
def test_ids_and_groups_ascend_strictly(values: tuple[int, ...]) -> None:
    with refused("ids must be strictly ascending"):
        from_bytes(Ascending(), u32(len(values), *values))
    with refused("groups must be strictly ascending"):
        from_bytes(AscendingGroups(), u32(len(values)) + b"".join(struct.pack("<HI", 0, value) for value in values))
    with refused("groups must be strictly ascending"):
        from_bytes(AscendingGroups(), u32(2) + struct.pack("<HIHI", 1, 0, 0, 9))


def test_bytes_of_another_size_or_type_are_not_written() -> None:
    for wrong in (b"ab", b"abcd"):
        with refused(f"expected 3 bytes, got {len(wrong)} in bytes"):
            to_bytes(Fixed(3), wrong)
    with refused("expected 3 bytes, got 3 in str"):
        to_bytes(Fixed(3), "abc")
    with refused("expected bytes, got str", TypeError):
        to_bytes(Blob(), "abc")


@pytest.mark.parametrize("shape", [(2, 3), (1, 1), (0, 0), (0, 3)])
def test_a_matrix_is_written_row_after_row(shape: tuple[int, int]) -> None:
    values = np.arange(shape[0] * shape[1], dtype=np.uint32).reshape(shape)
    data = u32(*shape) + values.astype("<u4").tobytes()
    assert to_bytes(Matrix(), values) == data
    assert to_bytes(Matrix(), np.asfortranarray(values)) == data
    found = from_bytes(Matrix(), data)
    assert found.shape == shape
    assert (found == values).all()
    assert not found.flags.writeable
    assert (Matrix().least, Matrix().layout) == (8, "u32 rows, u32 columns, u32 each, row after row")


def test_a_matrix_with_rows_has_columns() -> None:
    with refused("a matrix of 2 rows has no columns"):
        from_bytes(Matrix(), u32(2, 0))
    with refused("message ends 4 bytes too early"):
        from_bytes(Matrix(), u32(2, 3) + bytes(20))
    with refused("4 extra bytes after the message"):
        from_bytes(Matrix(), u32(2, 3) + bytes(28))
    assert to_bytes(Matrix(), np.zeros((2, 0), np.uint32)) == u32(2, 0)


# --- messages ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class First:
    a: Annotated[int, U8, "the codec comes first"]
    b: Annotated[bytes, Blob(4)]


@dataclass(frozen=True)
class Second:
    c: Annotated[tuple[int, ...], Ascending(3)]


def made() -> Wire:
    return Wire((First, Second), first=8)


def test_a_message_is_a_version_a_type_and_its_fields() -> None:
    wire = made()
    for message, data in (
        (First(3, b"xy"), bytes([VERSION, 8, 3]) + u32(2) + b"xy"),
        (Second((1, 2)), bytes([VERSION, 9]) + u32(2, 1, 2)),
    ):
        assert b"".join(wire.parts(message)) == data
        assert wire.decode(data) == message
        with refused("1 extra bytes after the message"):
            wire.decode(data + b"\0")
        with refused(f"wire version {VERSION + 1}, this is version {VERSION}"):
            wire.decode(bytes([VERSION + 1]) + data[1:])
        for tag in (7, 10):
            with refused(f"unknown message type {tag}"):
                wire.decode(bytes([VERSION, tag]) + data[2:])
    assert wire.types == {First: 8, Second: 9}
    assert wire.layouts[8].fields == (("a", U8), ("b", Blob(4)))
    with refused("message ends 1 bytes too early"):
        wire.decode(bytes([VERSION]))


@pytest.mark.parametrize(
    "wrong",
    [First(256, b""), First(-1, b""), First("a", b""), First(1, "b"), Second((-1,)), Second(5)],  # type: ignore[arg-type]
)
def test_a_field_of_a_wrong_type_or_size_is_not_written(wrong: Any) -> None:
    with pytest.raises(UsageError, match=f"^a field of this {type(wrong).__name__} has a wrong type or size: "):
        made().parts(wrong)


def test_only_messages_of_the_protocol_are_written() -> None:
    with refused("expected a message of this protocol, got dict", UsageError):
        made().parts({})
    with refused("count 5 exceeds the limit 4"):
        made().parts(First(1, b"12345"))

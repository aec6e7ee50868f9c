"""Small strict codecs: one value to bytes and back, with exactly one encoding for each value.

Every codec knows the smallest number of bytes that a value takes. A declared count is compared with the bytes
that follow before anything is allocated. Integers are little-endian and of fixed width. Vectors are read as
views of the received buffer, not as copies.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, ClassVar, Final, Protocol, get_type_hints

import numpy as np

from secagg.arguments import BUFFERS as BUFFERS
from secagg.errors import UsageError, WireError
from secagg.labels import VERSION
from secagg.types import Ring32, u32

Buffer = bytes | bytearray | memoryview


class Reader:
    """A cursor over received bytes."""

    __slots__ = ("_data", "_next")

    def __init__(self, data: Buffer) -> None:
        if not isinstance(data, BUFFERS):
            raise UsageError(f"expected bytes, got {type(data).__name__}")
        self._data = memoryview(data).toreadonly().cast("B")
        self._next = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._next

    def take(self, count: int) -> memoryview:
        if count > self.left:  # audit: no-truncated-message
            raise WireError(f"message ends {count - self.left} bytes too early")
        start, self._next = self._next, self._next + count
        return self._data[start : self._next]

    def count(self, most: int) -> int:
        """A u32 that counts what follows."""
        return _check_count(int.from_bytes(self.take(4), "little"), most)

    def end(self) -> None:
        if self.left:  # audit: no-trailing-bytes
            raise WireError(f"{self.left} extra bytes after the message")


class Codec(Protocol):
    """The layout of one kind of field. docs/protocol.md prints `layout`."""

    @property
    def least(self) -> int: ...
    @property
    def layout(self) -> str: ...
    def put(self, parts: list[Buffer], value: Any) -> None: ...
    def get(self, reader: Reader) -> Any: ...


@dataclass(frozen=True, slots=True)
class Uint:
    """An unsigned integer of a fixed number of bytes."""

    least: int

    @property
    def layout(self) -> str:
        return f"u{8 * self.least}"

    def put(self, parts: list[Buffer], value: int) -> None:
        parts.append(value.to_bytes(self.least, "little"))

    def get(self, reader: Reader) -> int:
        return int.from_bytes(reader.take(self.least), "little")


@dataclass(frozen=True, slots=True)
class Float:
    """A finite IEEE 754 double; negative zero is refused, so that each value has one encoding."""

    least: ClassVar[int] = 8
    layout: ClassVar[str] = "f64, finite"

    def put(self, parts: list[Buffer], value: float) -> None:
        parts.append(struct.pack("<d", value))

    def get(self, reader: Reader) -> float:
        (value,) = struct.unpack("<d", reader.take(8))
        # audit: floats-canonical
        if not math.isfinite(value) or (value == 0 and math.copysign(1, value) < 0):
            raise WireError(f"expected a finite number and not -0.0, got {value}")
        return float(value)


@dataclass(frozen=True, slots=True)
class Fixed:
    """Exactly this number of bytes."""

    least: int

    @property
    def layout(self) -> str:
        return f"{self.least} bytes"

    def put(self, parts: list[Buffer], value: bytes) -> None:
        if len(value) != self.least or not isinstance(value, BUFFERS):
            raise WireError(f"expected {self.least} bytes, got {len(value)} in {type(value).__name__}")
        parts.append(value)

    def get(self, reader: Reader) -> bytes:
        return bytes(reader.take(self.least))


@dataclass(frozen=True, slots=True)
class Blob:
    """A u32 length and that many bytes."""

    most: int = 2**32 - 1
    least: ClassVar[int] = 4
    layout: ClassVar[str] = "u32 length, bytes"

    def put(self, parts: list[Buffer], value: Buffer) -> None:
        if not isinstance(value, BUFFERS):
            raise TypeError(f"expected bytes, got {type(value).__name__}")
        parts += (u32(_check_count(len(value), self.most)), value)

    def get(self, reader: Reader) -> bytes:
        return bytes(reader.take(reader.count(self.most)))


@dataclass(frozen=True, slots=True)
class Many:
    """A u32 count and that many values, as a tuple."""

    item: Codec
    most: int = 65535
    least: ClassVar[int] = 4

    @property
    def layout(self) -> str:
        return f"u32 count, each: {self.item.layout}"

    def put(self, parts: list[Buffer], value: Sequence[Any]) -> None:
        parts.append(u32(_check_count(len(value), self.most)))
        for item in value:
            self.item.put(parts, item)

    def get(self, reader: Reader) -> tuple[Any, ...]:
        count = reader.count(self.most)
        if count * self.item.least > reader.left:
            raise WireError(f"{count} values declared, but only {reader.left} bytes follow")
        return tuple(self.item.get(reader) for _ in range(count))


@dataclass(frozen=True, slots=True)
class Ascending:
    """A u32 count and that many u32 values, each larger than the one before."""

    most: int = 65535
    least: ClassVar[int] = 4
    layout: ClassVar[str] = "u32 count, u32 each, strictly ascending"

    def put(self, parts: list[Buffer], value: Sequence[int]) -> None:
        parts.append(struct.pack(f"<I{len(value)}I", _check_count(len(value), self.most), *value))

    def get(self, reader: Reader) -> tuple[int, ...]:
        count = reader.count(self.most)
        values = struct.unpack(f"<{count}I", reader.take(4 * count))
        if any(a >= b for a, b in pairwise(values)):  # audit: ids-ascend
            raise WireError("ids must be strictly ascending")
        return values


@dataclass(frozen=True, slots=True)
class AscendingGroups:
    """A u32 count and that many groups (u16 grouping, u32 group), each after the one before."""

    most: int = 2**20
    least: ClassVar[int] = 4
    layout: ClassVar[str] = "u32 count, (u16 grouping, u32 group) each, strictly ascending"

    def put(self, parts: list[Buffer], value: Sequence[tuple[int, int]]) -> None:
        parts.append(u32(_check_count(len(value), self.most)))
        parts.extend(struct.pack("<HI", *group) for group in value)

    def get(self, reader: Reader) -> tuple[tuple[int, int], ...]:
        groups = tuple(struct.iter_unpack("<HI", reader.take(6 * reader.count(self.most))))
        if any(a >= b for a, b in pairwise(groups)):  # audit: sums-ascend
            raise WireError("groups must be strictly ascending")
        return groups


@dataclass(frozen=True, slots=True)
class Matrix:
    """u32 rows, u32 columns, then rows times columns u32 values; read as a view of the message."""

    least: ClassVar[int] = 8
    layout: ClassVar[str] = "u32 rows, u32 columns, u32 each, row after row"

    def put(self, parts: list[Buffer], value: Ring32) -> None:
        rows, columns = value.shape
        parts.append(struct.pack("<II", rows, columns))
        for row in value:
            parts.append(np.ascontiguousarray(row, dtype="<u4").data.cast("B") if columns else b"")

    def get(self, reader: Reader) -> Ring32:
        rows, columns = struct.unpack("<II", reader.take(8))
        flat = np.frombuffer(reader.take(4 * rows * columns), dtype="<u4")
        if columns == 0 and rows:
            raise WireError(f"a matrix of {rows} rows has no columns")
        return flat.reshape(rows, columns)


@dataclass(frozen=True, slots=True)
class Struct:
    """The fields of a dataclass, or the items of a dict, one after the other."""

    cls: type[Any]
    fields: tuple[tuple[str, Codec], ...]

    @classmethod
    def of(cls, record: type[Any]) -> Struct:
        """The layout of a dataclass whose fields are annotated with their codecs."""
        hints = get_type_hints(record, include_extras=True)
        return cls(record, tuple((field.name, hints[field.name].__metadata__[0]) for field in fields(record)))

    @property
    def least(self) -> int:
        return sum(codec.least for _, codec in self.fields)

    @property
    def layout(self) -> str:
        return "(" + "; ".join(f"{name}: {codec.layout}" for name, codec in self.fields) + ")"

    def put(self, parts: list[Buffer], value: Any) -> None:
        for name, codec in self.fields:
            codec.put(parts, value[name] if self.cls is dict else getattr(value, name))

    def get(self, reader: Reader) -> Any:
        return self.cls(**{name: codec.get(reader) for name, codec in self.fields})


class Wire:
    """Messages to bytes and back: a version byte, a type byte, then the fields, and nothing else.

    `decode(encode(x))` is x, and `encode(decode(b))` is b. Nothing is allocated for a length that the bytes do not
    hold.
    """

    def __init__(self, messages: Sequence[type[Any]], *, first: int) -> None:
        self.layouts = {tag: Struct.of(message) for tag, message in enumerate(messages, start=first)}
        self.types = {layout.cls: tag for tag, layout in self.layouts.items()}

    def parts(self, message: Any) -> list[Buffer]:
        """The message as buffers to send one after the other; large vectors are views, not copies."""
        tag = self.types.get(type(message))
        if tag is None:
            raise UsageError(f"expected a message of this protocol, got {type(message).__name__}")
        out: list[Buffer] = [bytes((VERSION, tag))]
        try:
            self.layouts[tag].put(out, message)
        except (AttributeError, TypeError, ValueError, OverflowError, struct.error) as wrong:
            raise UsageError(f"a field of this {type(message).__name__} has a wrong type or size: {wrong}") from None
        return out

    def decode(self, data: Buffer) -> Any:
        """One message from exactly these bytes, or WireError. A vector is a read-only view of `data`."""
        reader = Reader(data)
        version, tag = reader.take(2)
        if version != VERSION:  # audit: wire-version
            raise WireError(f"wire version {version}, this is version {VERSION}")
        layout = self.layouts.get(tag)
        if layout is None:
            raise WireError(f"unknown message type {tag}")
        message = layout.get(reader)
        reader.end()
        return message


U8: Final = Uint(1)
U16: Final = Uint(2)
U32: Final = Uint(4)
U64: Final = Uint(8)


def to_bytes(codec: Codec, value: Any) -> bytes:
    """One value as bytes."""
    parts: list[Buffer] = []
    codec.put(parts, value)
    return b"".join(parts)


def from_bytes(codec: Codec, data: Buffer) -> Any:
    """One value from exactly these bytes, or WireError."""
    reader = Reader(data)
    value = codec.get(reader)
    reader.end()
    return value


def _check_count(count: int, most: int) -> int:
    if count > most:
        raise WireError(f"count {count} exceeds the limit {most}")
    return count

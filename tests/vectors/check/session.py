"""The state of a test vector: named bytes, recorded randomness, clients and a server."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from secagg import labels
from secagg.agreement.plan import Plan
from secagg.agreement.terms import Terms
from secagg.crypto.keys import Identity
from secagg.crypto.segments import Segment
from secagg.errors import UsageError
from secagg.exposure import Policy, Schedule
from secagg.exposure.audit import REPORT_EVEN_IF_EXPOSED
from secagg.protocol import client_state
from secagg.protocol.client import Client
from secagg.protocol.client_state import ClientMemory
from secagg.protocol.server import Server
from secagg.types import Entropy, GroupId, Ring32, u32
from secagg.whole import Client as WholeClient
from secagg.whole import MemoryStore
from secagg.whole import Server as WholeServer

Values = dict[str, Any]
Operation = Callable[["Session", Values], Values]


class Mismatch(Exception):  # noqa: N818
    """The implementation does not match the vector."""


def words(vector: npt.NDArray[Any]) -> str:
    return vector.astype("<u4").tobytes().hex()


def ring(text: str) -> Ring32:
    return np.frombuffer(bytes.fromhex(text), "<u4").astype(np.uint32)


def update_of(segments: Sequence[Segment], given: Any) -> Any:
    """An update of a vector file: numbers, or a list with one part per segment, in order."""
    if not isinstance(given, list):
        return numbers(given)
    parts = [numbers(part).reshape(segment.shape) for segment, part in zip(segments, given, strict=True)]
    named = {segment.name: part for segment, part in zip(segments, parts, strict=True)}
    return named.get("", named)


def doubles(values: npt.ArrayLike) -> str:
    return np.asarray(values, "<f8").tobytes().hex()


def row_name(row: GroupId) -> str:
    return f"{row[0]}/{row[1]}"


def numbers(value: Mapping[str, Any]) -> npt.NDArray[Any]:
    """An update: {"f64": hex} or {"f32": hex}, little-endian, or {"i64": [integers]}."""
    ((kind, content),) = value.items()
    if kind == "i64":
        return np.array(content, np.int64)
    stored, native = {"f32": ("<f4", np.float32), "f64": ("<f8", np.float64)}[kind]
    return np.frombuffer(bytes.fromhex(content), stored).astype(native)


def hexes(values: list[str]) -> list[bytes]:
    return [bytes.fromhex(value) for value in values]


def box_address(plan_hash: bytes, sender: int, receiver: int) -> bytes:
    """The address of a box: its HKDF info and associated data."""
    return labels.SHARE_BOX + plan_hash + u32(sender) + u32(receiver)


class Tape:
    """An entropy source that returns the draws of a vector in order and checks their sizes."""

    def __init__(self, name: str, draws: list[str]) -> None:
        self.name = name
        self._draws = [bytes.fromhex(draw) for draw in draws]
        self._next = 0

    @property
    def left(self) -> int:
        return len(self._draws) - self._next

    def __call__(self, count: int) -> bytes:
        if not self.left or len(self._draws[self._next]) != count:
            has = f"{len(self._draws[self._next])} bytes" if self.left else "no further draw"
            raise Mismatch(f"draw {self._next} of {self.name}: {count} bytes wanted, the vector has {has}")
        self._next += 1
        return self._draws[self._next - 1]


class Records:
    """A journal whose records can be listed."""

    def __init__(self, records: Mapping[str, bytes]) -> None:
        self.records = dict(records)

    def create(self, name: str, content: bytes) -> bytes | None:
        if name in self.records:
            return self.records[name]
        self.records[name] = bytes(content)
        return None

    def read(self, name: str) -> bytes | None:
        return self.records.get(name)


@dataclass(frozen=True, slots=True)
class GivenPlan:
    """What a client asks of an agreement, for a vector that gives the plan itself and needs no ceremony."""

    only: Plan
    sparse_risk: ClassVar[float] = 1.0  # the graphs of vectors are small

    @property
    def fingerprint(self) -> bytes:
        return self.only.training_id

    @property
    def terms(self) -> Terms:
        """Terms without noise: nothing else in them is asked for."""
        plan, quiet = self.only, Policy(mode=REPORT_EVEN_IF_EXPOSED)
        schedule = Schedule(name="fixed", size=plan.schedule.size)
        parts = {"members": plan.roster, "segments": plan.encoding.segments, "schedule": schedule, "policy": quiet}
        return Terms(name="vector", first_round=plan.round, last_round=plan.round, groups="survivors", **parts)

    def cell_of(self, client: int, round: int) -> int:
        return 0

    def plan(self, round: int, cell: int, context: bytes) -> Plan:
        if round != self.only.round:
            raise UsageError(f"expected round {self.only.round}, got {round}: the vector has one plan")
        return self.only if context == self.only.context else replace(self.only, context=context)


@dataclass(slots=True)
class Actor:
    """One client of a vector, with the arguments that it was made from."""

    machine: Client
    identity: Identity = field(repr=False)
    agreed: GivenPlan
    journal: Records
    entropy: Entropy = field(repr=False)

    def memory(self) -> ClientMemory:
        """The client's state, read by `save`; the client is restored from the same bytes."""
        data = self.machine.save()
        self.restore(data)
        return client_state.restore(data)

    def restore(self, data: bytes) -> None:
        self.machine = Client.restore(data, self.identity, self.agreed, self.journal, entropy=self.entropy)


@dataclass(slots=True)
class WholeActor:
    """One client of whole groups. Actors of the same client share the store."""

    machine: WholeClient
    identity: Identity = field(repr=False)
    signatures: Mapping[int, bytes]
    store: MemoryStore


class Session:
    """The state that the operations of one file act on.

    `given` contains the inputs of the file, `known` its named byte strings, and `hashed` the SHA-256 of
    outputs that are too long to print. When vectors are made, `draw` supplies randomness, and unknown names
    are added. Without `draw`, both must be in the file.
    """

    def __init__(
        self,
        given: Values,
        known: dict[str, bytes],
        hashed: Mapping[str, bytes],
        draw: Callable[[str], Entropy] | None = None,
    ) -> None:
        self.given = given
        self.known = known
        self._hashed = hashed
        self._draw = draw
        self.tapes: list[Tape] = []
        self.journals: dict[str, Records] = {}
        self.actors: dict[str, Actor] = {}
        self._server: Server | None = None
        self.stores: dict[int, MemoryStore] = {}
        self.whole_actors: dict[str, WholeActor] = {}
        self._whole_server: WholeServer | None = None

    def get(self, name: str) -> bytes:
        return self.known[name]

    def put(self, name: str, data: bytes) -> str:
        """Compare an output with the bytes of that name in the vector."""
        if self._draw is not None or self._hashed.get(name) == sha256(data).digest():
            self.known.setdefault(name, data)
        if self.known.get(name) != data:
            wanted = self.known.get(name, b"").hex() or f"SHA-256 {self._hashed.get(name, b'').hex()}"
            raise Mismatch(f"{name} is {data.hex()}, the vector has {wanted}")
        return name

    def entropy(self, name: str) -> Entropy:
        if self._draw is not None and name not in self.given["entropy"]:
            return self._draw(name)
        self.tapes.append(Tape(name, self.given["entropy"][name]))
        return self.tapes[-1]

    def journal(self, name: str) -> Records:
        if name not in self.journals:
            before = self.given.get("journals", {}).get(name, {})
            self.journals[name] = Records({record: bytes.fromhex(text) for record, text in before.items()})
        return self.journals[name]

    @property
    def server(self) -> Server:
        if self._server is None:
            raise UsageError("the vector uses a server before it makes one")
        return self._server

    @server.setter
    def server(self, server: Server) -> None:
        self._server = server

    @property
    def whole_server(self) -> WholeServer:
        if self._whole_server is None:
            raise UsageError("the vector uses a server before it makes one")
        return self._whole_server

    @whole_server.setter
    def whole_server(self, server: WholeServer) -> None:
        self._whole_server = server

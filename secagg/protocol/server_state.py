"""What a server remembers between two messages, and how it lies in the bytes of `Server.save`."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Final

from secagg.errors import SecAggError, UsageError
from secagg.protocol import codec
from secagg.protocol.codec import U8, U32, Blob, Fixed, Many, Matrix, Struct
from secagg.protocol.messages import Consistency, Dealing, KeyAdvert, Survivor, Unmasking
from secagg.protocol.plan import Plan
from secagg.protocol.result import Dropout, Stage
from secagg.protocol.wire import ADVERT, LAYOUTS, ROWS, SURVIVOR
from secagg.types import ClientId, GroupId, Ring32


@dataclass(frozen=True, slots=True)
class Departure:
    """A dropout as it lies in a saved server."""

    id: ClientId
    stage: int
    reason: bytes

    @property
    def dropout(self) -> Dropout:
        return Dropout(Stage(self.stage), self.reason.decode())


@dataclass(slots=True, kw_only=True)
class Ledger:
    """Everything a server must remember between two messages, and what `Server.save` writes."""

    stage: Stage = Stage.KEYS
    instance: bytes
    plan: bytes
    adverts: tuple[KeyAdvert, ...] = ()
    dealings: tuple[Dealing, ...] = ()
    survivors: tuple[Survivor, ...] = ()
    units: tuple[GroupId, ...] = ()
    sums: Ring32 = field(repr=False)
    rows: tuple[GroupId, ...] = ()
    endorsements: tuple[Consistency, ...] = ()
    unmaskings: tuple[Unmasking, ...] = ()
    dropouts: tuple[Departure, ...] = ()

    @property
    def checked_plan(self) -> Plan:
        return Plan.from_bytes(self.plan)


_SAVED_SERVER: Final = b"secagg server 1\n"
_DEPARTURE: Final = Struct(Departure, (("id", U32), ("stage", U8), ("reason", Blob(1000))))
_LEDGER: Final = Struct(
    Ledger,
    (
        ("stage", U8),
        ("instance", Fixed(16)),
        ("plan", Blob()),
        ("adverts", Many(ADVERT)),
        ("dealings", Many(LAYOUTS[3])),
        ("survivors", Many(SURVIVOR)),
        ("units", ROWS),
        ("sums", Matrix()),
        ("rows", ROWS),
        ("endorsements", Many(LAYOUTS[7])),
        ("unmaskings", Many(LAYOUTS[9])),
        ("dropouts", Many(_DEPARTURE)),
    ),
)
assert [name for name, _ in _LEDGER.fields] == [f.name for f in fields(Ledger)]


def save(ledger: Ledger) -> bytes:
    return _SAVED_SERVER + codec.to_bytes(_LEDGER, ledger)


def restore(data: bytes) -> Ledger:
    """The ledger that `save` wrote; UsageError for anything else."""
    if data[: len(_SAVED_SERVER)] != _SAVED_SERVER:
        raise UsageError("these bytes are not a saved server of this version")
    try:
        ledger: Ledger = codec.from_bytes(_LEDGER, memoryview(data)[len(_SAVED_SERVER) :])
        ledger.stage = Stage(ledger.stage)
        _ = ledger.checked_plan, [left.dropout for left in ledger.dropouts]
        if len(ledger.units) != len(ledger.sums):
            raise ValueError("its sums and their names differ in number")
    except (SecAggError, ValueError) as damaged:
        raise UsageError(f"this saved server is damaged: {damaged}") from None
    return ledger

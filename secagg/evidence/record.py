"""What a training with whole groups leaves behind, and its bytes: the agreement, and a record of each round.

A record has every signed message of its round without the vectors, which are there by their hashes. It holds nothing
that a client keeps secret: keys are public, masked vectors and sums are hashed. docs/evidence.md has every byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Final

from secagg import codec
from secagg.agreement.agreement import Agreement
from secagg.agreement.plan import MOST_CLIENTS, MOST_GROUPINGS, MOST_PLACES
from secagg.arguments import each, instance, keyed
from secagg.codec import U16, U32, U64, Ascending, AscendingGroups, Blob, Buffer, Fixed, Many, Reader, Struct
from secagg.crypto.keys import HASH_BYTES, KEY_BYTES, SIGNATURE_BYTES
from secagg.errors import SecAggError, UsageError, WireError
from secagg.privacy.budget import Charge
from secagg.types import ClientId, GroupId

MAGIC: Final = b"secagg evidence 1\n"
MOST_ROUNDS: Final = 2**20
MOST_TEXT: Final = 2**16

Id = Annotated[ClientId, U32]
RoundNumber = Annotated[int, U64]
Hash = Annotated[bytes, Fixed(HASH_BYTES)]
Key = Annotated[bytes, Fixed(KEY_BYTES)]
Signature = Annotated[bytes, Fixed(SIGNATURE_BYTES)]
Text = Annotated[bytes, Blob(MOST_TEXT)]


@dataclass(frozen=True, slots=True)
class SignedKey:
    """An advert: the public key of one client for one round, and its signature.

    >>> SignedKey(3, 7, bytes(32), bytes(64)).round
    7
    """

    sender: Id
    round: RoundNumber
    key: Key
    signature: Signature


@dataclass(frozen=True, slots=True)
class SignedRelease:
    """A client's signed statement that it does not answer the record's round.

    >>> SignedRelease(3, bytes(64)).sender
    3
    """

    sender: Id
    signature: Signature


_KEY: Final = Struct.of(SignedKey)
_RELEASES: Final = Many(Struct.of(SignedRelease), MOST_CLIENTS)


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """An answer without its vectors: `rows` has the hash of each. Context, groups and keys are those of the round.

    >>> AnswerRecord(3, bytes(32), (), (bytes(32),), bytes(64)).previous == bytes(32)
    True
    """

    sender: Id
    previous: Hash
    ahead: Annotated[tuple[SignedKey, ...], Many(_KEY, 64)]
    rows: Annotated[tuple[bytes, ...], Many(Fixed(HASH_BYTES), MOST_GROUPINGS)]
    signature: Signature


@dataclass(frozen=True, slots=True)
class OpenedSum:
    """An opened group and the hash of its sum.

    >>> OpenedSum(0, 4, bytes(32)).group
    (0, 4)
    """

    grouping: Annotated[int, U16]
    number: Annotated[int, U32]
    sum: Hash

    @property
    def group(self) -> GroupId:
        return (self.grouping, self.number)


@dataclass(frozen=True, slots=True)
class LostGroup:
    """A group that was not opened, and why.

    >>> LostGroup(0, 4, b"client 3: did not answer").group
    (0, 4)
    """

    grouping: Annotated[int, U16]
    number: Annotated[int, U32]
    reason: Text

    @property
    def group(self) -> GroupId:
        return (self.grouping, self.number)


@dataclass(frozen=True, slots=True)
class Absence:
    """A client without an accepted answer, and why.

    >>> Absence(3, b"it sent no advert").reason.decode()
    'it sent no advert'
    """

    client: Id
    reason: Text


_CHARGE: Final = Struct(Charge, (("rho", U64), ("eta", U64)))
_ANSWERS: Final = Many(Struct.of(AnswerRecord), MOST_CLIENTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """What one round leaves behind.

    `adverts` are the keys that the round began with. `second` has what convicts a client beside `answers`: another
    answer that it signed, or an answer to a round that it had released. `after` has releases signed after an answer.
    `charge` is what the round costs a member at most, if there is noise.

    >>> record = RoundRecord(round=0, context=bytes(32))
    >>> RoundRecord.from_bytes(record.to_bytes()) == record
    True
    """

    round: RoundNumber
    context: Hash
    present: Annotated[tuple[ClientId, ...], Ascending(MOST_CLIENTS)] = ()
    adverts: Annotated[tuple[SignedKey, ...], Many(_KEY, MOST_CLIENTS)] = ()
    releases: Annotated[tuple[SignedRelease, ...], _RELEASES] = ()
    answers: Annotated[tuple[AnswerRecord, ...], _ANSWERS] = ()
    second: Annotated[tuple[AnswerRecord, ...], _ANSWERS] = ()
    after: Annotated[tuple[SignedRelease, ...], _RELEASES] = ()
    opened: Annotated[tuple[OpenedSum, ...], Many(Struct.of(OpenedSum), MOST_PLACES)] = ()
    lost: Annotated[tuple[LostGroup, ...], Many(Struct.of(LostGroup), MOST_PLACES)] = ()
    absent: Annotated[tuple[Absence, ...], Many(Struct.of(Absence), MOST_CLIENTS)] = ()
    inconsistent: Annotated[tuple[tuple[GroupId, ...], ...], Many(AscendingGroups(), MOST_PLACES)] = ()
    skipped: Text = b""
    charge: Annotated[tuple[Charge, ...], Many(_CHARGE, 1)] = ()

    def to_bytes(self) -> bytes:
        """The only encoding of this record."""
        return codec.to_bytes(ROUND, self)

    @classmethod
    def from_bytes(cls, data: Buffer) -> RoundRecord:
        """The record that these bytes encode; WireError for anything else."""
        record: RoundRecord = codec.from_bytes(ROUND, data)
        return record


ROUND: Final = Struct.of(RoundRecord)
_SIGNATURES: Final = Many(Struct(dict, (("id", U32), ("signature", Fixed(SIGNATURE_BYTES)))), MOST_CLIENTS)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The agreement with its members' signatures, and the records of its rounds, in order.

    >>> from secagg.simulation import WholeRun, make_agreement
    >>> agreement, identities = make_agreement(members=6, size=3, length=2, bound=9)
    >>> run = WholeRun(agreement, identities)
    >>> result = run.round(0, {v: [v, 1] for v in range(6)})
    >>> data = run.evidence()
    >>> len(Evidence.from_bytes(data).rounds), Evidence.from_bytes(data).to_bytes() == data
    (1, True)
    """

    agreement: Agreement
    signatures: Mapping[ClientId, bytes]
    rounds: tuple[RoundRecord, ...] = field(repr=False)

    def __post_init__(self) -> None:
        instance("agreement", self.agreement, Agreement)
        keyed("signatures", self.signatures, bytes)
        object.__setattr__(self, "rounds", each("rounds", self.rounds, RoundRecord))

    def to_bytes(self) -> bytes:
        """The only encoding of this evidence. Adverts that an answer of the file brought are not repeated."""
        parts: list[Buffer] = [MAGIC]
        Blob().put(parts, self.agreement.to_bytes())
        _SIGNATURES.put(parts, [{"id": v, "signature": sign} for v, sign in sorted(self.signatures.items())])
        U32.put(parts, len(self.rounds))
        for record, brought in zip(self.rounds, _brought(self.rounds), strict=True):
            kept = tuple(advert for advert in record.adverts if brought.get(advert.sender) != advert)
            ROUND.put(parts, replace(record, adverts=kept))
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: Buffer) -> Evidence:
        """The evidence that these bytes encode, nothing of it checked but the agreement; WireError for other bytes."""
        if bytes(data[: len(MAGIC)]) != MAGIC:
            raise WireError("these bytes are not evidence of version 1")
        reader = Reader(memoryview(data)[len(MAGIC) :])
        try:
            agreement = Agreement.from_bytes(Blob().get(reader))
            signed = _SIGNATURES.get(reader)
        except UsageError as bad:
            raise WireError(f"the evidence has an agreement that cannot be kept: {bad}") from None
        if [entry["id"] for entry in signed] != sorted({entry["id"] for entry in signed}):
            raise WireError("the members' signatures are not in the order of ids, or one is there twice")
        count = reader.count(MOST_ROUNDS)
        stripped = [ROUND.get(reader) for _ in range(count)]
        reader.end()
        found = cls(
            agreement=agreement,
            signatures={entry["id"]: entry["signature"] for entry in signed},
            rounds=tuple(_completed(stripped)),
        )
        if found.to_bytes() != data:  # audit: evidence-canonical
            raise WireError("the evidence repeats an advert that an answer brought: its bytes are not canonical")
        return found


def assemble(agreement: Agreement, signatures: Mapping[ClientId, bytes], records: Sequence[bytes]) -> bytes:
    """The evidence of a training, from the records that `Server.close` gave for its rounds (`WholeResult.record`).

    >>> from secagg.simulation import WholeRun, make_agreement
    >>> agreement, identities = make_agreement(members=6, size=3, length=2, bound=9)
    >>> run = WholeRun(agreement, identities)
    >>> record = run.round(0, {v: [v, 1] for v in range(6)}).record
    >>> signatures = {v: agreement.sign(v, identities[v]) for v in range(6)}
    >>> assemble(agreement, signatures, [record]) == run.evidence()
    True
    """
    try:
        rounds = tuple(RoundRecord.from_bytes(record) for record in records)
    except SecAggError as damaged:
        raise UsageError(f"a record of a round is damaged: {damaged}") from None
    return Evidence(agreement=agreement, signatures=signatures, rounds=rounds).to_bytes()


def _brought(rounds: Iterable[RoundRecord]) -> Iterable[Mapping[ClientId, SignedKey]]:
    """For each record, the adverts of its round that answers of earlier records brought; a later one replaces."""
    later: dict[int, dict[ClientId, SignedKey]] = {}
    for record in rounds:
        yield later.pop(record.round, {})
        for answer in record.answers:
            for advert in answer.ahead:
                later.setdefault(advert.round, {})[advert.sender] = advert


def _completed(stripped: Iterable[RoundRecord]) -> Iterable[RoundRecord]:
    """The records with the adverts that earlier answers brought."""
    later: dict[int, dict[ClientId, SignedKey]] = {}
    for record in stripped:
        adverts = later.pop(record.round, {}) | {advert.sender: advert for advert in record.adverts}
        written = [advert.sender for advert in record.adverts]
        if written != sorted(set(written)):
            raise WireError(f"round {record.round}: the adverts are not in the order of ids, or one is there twice")
        yield replace(record, adverts=tuple(adverts[v] for v in sorted(adverts)))
        for answer in record.answers:
            for advert in answer.ahead:
                later.setdefault(advert.round, {})[advert.sender] = advert

"""The file: the agreement with all signatures, then one record after the other, each with its length.

Records are appended round by round, so a file that a kill has cut says so, and everything before the cut is readable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from secagg.agreement.agreement import Agreement
from secagg.agreement.plan import MOST_CLIENTS
from secagg.agreement.terms import WHOLE
from secagg.arguments import each, instance, keyed
from secagg.codec import U32, Blob, Buffer, Fixed, Many, Reader, Struct
from secagg.crypto.keys import HASH_BYTES, SIGNATURE_BYTES
from secagg.errors import SecAggError, UsageError, WireError
from secagg.evidence.charges import charged
from secagg.evidence.record import Absence, LostGroup, RoundRecord, SignedKey, text
from secagg.evidence.runs import RunRecord
from secagg.types import ClientId

MAGIC: Final = b"secagg evidence 1\n"
_SIGNATURES: Final = Many(Struct(dict, (("id", U32), ("signature", Fixed(SIGNATURE_BYTES)))), MOST_CLIENTS)
Record = RoundRecord | RunRecord
Later = dict[int, dict[ClientId, SignedKey]]  # adverts by the round that they are for


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The agreement with its members' signatures, and the records: `rounds` of whole groups, or `runs` of survivors.

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
    rounds: tuple[RoundRecord, ...] = field(default=(), repr=False)
    runs: tuple[RunRecord, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        instance("agreement", self.agreement, Agreement)
        keyed("signatures", self.signatures, bytes)
        object.__setattr__(self, "rounds", each("rounds", self.rounds, RoundRecord))
        object.__setattr__(self, "runs", each("runs", self.runs, RunRecord))
        if self.runs if self.agreement.terms.groups == WHOLE else self.rounds:  # audit: evidence-records-of-kind
            raise UsageError("expected records of the kind of groups that the agreement has, got the other kind")

    @property
    def records(self) -> tuple[Record, ...]:
        """The records, of either kind."""
        return self.rounds or self.runs

    def to_bytes(self) -> bytes:
        """The only encoding of this evidence. Adverts that an answer of the file brought are not repeated."""
        parts: list[Buffer] = [head(self.agreement, self.signatures)]
        later: Later = {}
        for record in self.records:
            Blob().put(parts, stripped(record, later).to_bytes())
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: Buffer) -> Evidence:
        """The evidence that these bytes encode, nothing of it checked but the agreement; WireError for other bytes."""
        agreement, signatures, reader = read_head(data)
        whole, rounds, runs, later = agreement.terms.groups == WHOLE, list[RoundRecord](), list[RunRecord](), Later()
        while reader.left:
            record = read_record(next_record(reader, len(rounds) + len(runs)), whole, later)
            if isinstance(record, RunRecord):
                runs.append(record)
            else:
                rounds.append(record)
        read = cls(agreement=agreement, signatures=signatures, rounds=tuple(rounds), runs=tuple(runs))
        if read.to_bytes() != data:  # audit: evidence-canonical
            raise WireError(
                "the bytes of the evidence are not canonical: it repeats an advert that an answer brought, or its "
                "members' signatures are not in order"
            )
        return read


def head(agreement: Agreement, signatures: Mapping[ClientId, bytes]) -> bytes:
    """The beginning of a file, before its records."""
    parts: list[Buffer] = [MAGIC]
    Blob().put(parts, agreement.to_bytes())
    _SIGNATURES.put(parts, [{"id": v, "signature": sign} for v, sign in sorted(signatures.items())])
    return b"".join(parts)


def read_head(data: Buffer) -> tuple[Agreement, Mapping[ClientId, bytes], Reader]:
    """The agreement, the signatures, and a reader at the first record."""
    if bytes(data[: len(MAGIC)]) != MAGIC:  # audit: evidence-version
        raise WireError("these bytes are not evidence of version 1")
    reader = Reader(memoryview(data)[len(MAGIC) :])
    try:
        agreement = Agreement.from_bytes(Blob().get(reader))
        signed = _SIGNATURES.get(reader)
    except UsageError as bad:
        raise WireError(f"the evidence has an agreement that cannot be kept: {bad}") from None
    return agreement, {entry["id"]: entry["signature"] for entry in signed}, reader


def next_record(reader: Reader, number: int) -> memoryview:
    """The bytes of the next record; WireError says that the file is cut."""
    left, size = reader.left, -1
    if left >= 4:
        size = int.from_bytes(reader.take(4), "little")
    if size < 0 or size > reader.left:  # audit: evidence-not-cut
        raise WireError(
            f"the evidence is cut: it ends inside record {number + 1}; the {number} records before it are complete"
        )
    return reader.take(size)


def stripped(record: Record, later: Later) -> Record:
    """The record as it is written, and what its answers bring for later rounds. `later` belongs to one file."""
    if isinstance(record, RunRecord):
        return record
    brought = later.pop(record.round, {})
    _bring(record, later)
    return replace(record, adverts=tuple(one for one in record.adverts if brought.get(one.sender) != one))


def read_record(data: memoryview, whole: bool, later: Later) -> Record:
    """A record as it was before it was written."""
    if not whole:
        return RunRecord.from_bytes(data)
    record = RoundRecord.from_bytes(data)
    written = [advert.sender for advert in record.adverts]
    if written != sorted(set(written)):  # audit: evidence-adverts-in-order
        raise WireError(f"round {record.round}: the adverts are not in the order of ids, or one is there twice")
    adverts = later.pop(record.round, {}) | {advert.sender: advert for advert in record.adverts}
    _bring(record, later)
    return replace(record, adverts=tuple(adverts[v] for v in sorted(adverts)))


def _bring(record: RoundRecord, later: Later) -> None:
    """Note the adverts that answers brought; a later one replaces an earlier one of the same sender."""
    for answer in record.answers:
        for advert in answer.ahead:
            later.setdefault(advert.round, {})[advert.sender] = advert


def decoded(agreement: Agreement, records: Iterable[bytes]) -> tuple[Record, ...]:
    """Records that results gave, of the kind of this agreement.

    With survivors, the records of a round are in the order of its cells. Charges follow from the agreement.
    """
    try:
        if agreement.terms.groups == WHOLE:
            return tuple(RoundRecord.from_bytes(record) for record in records)
        runs = [RunRecord.from_bytes(record) for record in records]
        seen: Counter[int] = Counter()
        for number, run in enumerate(runs):
            runs[number] = charged(agreement, replace(run, cell=seen[run.round]))
            seen[run.round] += 1
        return tuple(runs)
    except SecAggError as damaged:
        raise UsageError(f"a record of a round is damaged: {damaged}") from None


def interrupted(agreement: Agreement, round: int, why: str) -> bytes:
    """The record of a round with whole groups that began and was not closed: nothing was opened.

    >>> from secagg.simulation import make_agreement
    >>> agreement, _ = make_agreement(members=6, size=3, length=2, bound=9)
    >>> RoundRecord.from_bytes(interrupted(agreement, 0, "the server was stopped")).skipped
    b'the server was stopped'
    """
    groups, reason = instance("agreement", agreement, Agreement).groups(round), text(instance("why", why, str))
    drawn = sorted({client for members in groups.values() for client in members})
    return RoundRecord(
        round=round,
        context=bytes(HASH_BYTES),
        lost=tuple(LostGroup(*group, reason) for group in sorted(groups)),
        absent=tuple(Absence(client, reason) for client in drawn),
        skipped=reason,
    ).to_bytes()


def assemble(agreement: Agreement, signatures: Mapping[ClientId, bytes], records: Sequence[bytes]) -> bytes:
    """The evidence of a training, from the records of its rounds (`WholeResult.record`, `Result.record`).

    >>> from secagg.simulation import WholeRun, make_agreement
    >>> agreement, identities = make_agreement(members=6, size=3, length=2, bound=9)
    >>> run = WholeRun(agreement, identities)
    >>> record = run.round(0, {v: [v, 1] for v in range(6)}).record
    >>> signatures = {v: agreement.sign(v, identities[v]) for v in range(6)}
    >>> assemble(agreement, signatures, [record]) == run.evidence()
    True
    """
    found = decoded(instance("agreement", agreement, Agreement), records)
    parts: list[Buffer] = [head(agreement, keyed("signatures", signatures, bytes))]
    later: Later = {}
    for record in found:
        Blob().put(parts, stripped(record, later).to_bytes())
    return b"".join(parts)

"""Evidence that grows on disk, round by round, and survives a kill at any moment.

A kill while a record is written leaves a file that is cut: `verify` says so, and the next `EvidenceLog` removes what is
incomplete. A round that is closed again after a restart takes the place of its first record.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from secagg.agreement.agreement import Agreement
from secagg.agreement.terms import WHOLE
from secagg.arguments import instance, keyed
from secagg.codec import Blob, Buffer, Reader
from secagg.errors import JournalError, UsageError, WireError
from secagg.evidence.file import Later, decoded, head, next_record, read_record, stripped
from secagg.types import ClientId


class EvidenceLog:
    """The evidence of a training in a file that is continued over restarts.

    `append` takes the records of one round. What it has written is on disk when it returns.

    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> from secagg.evidence import verify
    >>> from secagg.simulation import WholeRun, make_agreement
    >>> agreement, identities = make_agreement(members=6, size=3, length=2, bound=9, rounds=2)
    >>> signatures = {v: agreement.sign(v, identities[v]) for v in range(6)}
    >>> run, place = WholeRun(agreement, identities), Path(mkdtemp()) / "evidence"
    >>> for t in range(2):
    ...     result = run.round(t, {v: [v, 1] for v in range(6)})
    ...     EvidenceLog(place, agreement, signatures).append([result.record])  # another process each time
    >>> verify(place.read_bytes()).rounds, place.read_bytes() == run.evidence()
    (2, True)
    """

    def __init__(self, path: Path | str, agreement: Agreement, signatures: Mapping[ClientId, bytes]) -> None:
        if not isinstance(path, (str, os.PathLike)) or not str(path):
            raise UsageError(f"path: expected the path of a file, got {path!r}")
        self.path, self._agreement = Path(path), instance("agreement", agreement, Agreement)
        self._head = head(agreement, keyed("signatures", signatures, bytes))
        self._rounds: list[tuple[int, int]] = []  # round and place of each record
        self._later: Later = {}
        self._end = 0
        with _writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._open()

    @property
    def last_round(self) -> int | None:
        """The last round with a record; None without one."""
        return self._rounds[-1][0] if self._rounds else None

    def _open(self, before: int | None = None) -> None:
        """Read what is there, and cut off what is incomplete, and records from round `before` on."""
        data = self.path.read_bytes() if self.path.exists() else b""
        if not self._head.startswith(data[: len(self._head)]):  # audit: evidence-log-of-this-agreement
            raise UsageError(f"{self.path} is the evidence of another agreement; choose another place")
        self._rounds, self._later, self._end = [], {}, len(self._head)
        if len(data) < len(self._head):
            self._write(0, self._head)
            sync_folder(self.path.parent)  # audit: evidence-log-name-durable
            return
        reader = Reader(memoryview(data)[self._end :])
        while reader.left:
            try:
                found = next_record(reader, len(self._rounds))
            except WireError:
                break  # a kill has cut it here
            round = int.from_bytes(found[:8], "little")  # the first field of both kinds of records
            if before is not None and round >= before:
                break
            try:
                read_record(found, self._agreement.terms.groups == WHOLE, self._later)
            except WireError as bad:
                # audit: evidence-log-undamaged
                raise UsageError(f"{self.path} is damaged, record {len(self._rounds)}: {bad}") from None
            self._rounds.append((round, self._end))
            self._end = len(data) - reader.left
        if self._end < len(data):
            self._write(self._end, b"")  # audit: evidence-log-cuts-tail

    def append(self, records: Sequence[bytes]) -> None:
        """Write the records of one round, one per cell with survivors.

        Rounds go forward. The last one can be written again, and takes the place of its first record.
        """
        found = decoded(self._agreement, records)
        if len({record.round for record in found}) != 1:  # audit: evidence-log-round-at-once
            raise UsageError(f"records: expected the records of one round, got {len(found)}")
        round, last = found[0].round, self.last_round
        if last is not None and round < last:  # audit: evidence-log-forward
            raise UsageError(f"records: expected those of round {last} or a later one, got round {round}")
        with _writing(self.path):
            if last == round:
                self._open(before=round)  # audit: evidence-log-one-record-per-round
            parts: list[Buffer] = []
            places = []
            for record in found:
                places.append((round, self._end + sum(map(len, parts))))
                Blob().put(parts, stripped(record, self._later).to_bytes())
            self._write(self._end, b"".join(parts))
            self._rounds += places
            self._end += sum(map(len, parts))

    def _write(self, place: int, data: bytes) -> None:
        """Replace what follows `place`, and wait until it is on disk."""
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(handle, "r+b") as file:
            file.truncate(place)
            file.seek(place)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # audit: evidence-log-durable


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = f"{error.strerror or error} ({type(error).__name__})"
        raise JournalError(f"the evidence could not be written to {path}: {reason}; repair it and retry") from error

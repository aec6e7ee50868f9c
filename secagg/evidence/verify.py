"""Check evidence without believing anybody: who signed what, what could be opened, and what was.

Nothing here uses the code of the server or the clients. What the agreement permits is drawn and judged again; every
signature is verified over bytes that this module builds itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from secagg.agreement.agreement import Agreement
from secagg.agreement.audit import audit_round, audit_training
from secagg.agreement.terms import WHOLE
from secagg.codec import Buffer
from secagg.crypto.keys import verify as verify_signature
from secagg.errors import PeerError, SecAggError, WireError
from secagg.evidence import journals, run_journals
from secagg.evidence.file import Evidence
from secagg.evidence.record import shown
from secagg.evidence.rounds import CheckedRound, check_round
from secagg.evidence.run_check import CheckedRun, check_run
from secagg.kernels.threads import spread, thread_count
from secagg.types import ClientId

FIRST: Final = bytes(32)  # stands for the answer before the first one
CLAIMS_NO_END: Final = (
    "nothing shows that the evidence goes on to the end of the training: a hub can leave out its last rounds; a "
    "client's journal shows it (--journal)"
)
CLAIMS_NO_CHAIN: Final = (
    "nothing shows that all rounds are here: messages of survivors are not chained, so a hub can leave out any round; "
    "a client's journal shows it (--journal)"
)
NO_SUMS: Final = (
    "nothing shows that the hashes of opened sums are right: clients signed the hashes of their vectors, but the "
    "evidence has no vectors from which a sum could be computed again"
)


@dataclass(frozen=True, kw_only=True)
class Report:
    """The verdict on evidence: `problems` (none if it holds), and `notes` on what it does not show.

    >>> from secagg.simulation import WholeRun, make_agreement
    >>> agreement, identities = make_agreement(members=6, size=3, length=2, bound=9)
    >>> run = WholeRun(agreement, identities)
    >>> result = run.round(0, {v: [v, 1] for v in range(6)})
    >>> report = verify(run.evidence())
    >>> report.holds, report.rounds, report.opened, report.problems
    (True, 1, 2, ())
    """

    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    fingerprint: str = ""
    name: str = ""
    kind: str = ""
    members: int = 0
    rounds: int = 0
    first_round: int | None = None
    last_round: int | None = None
    answers: int = 0
    opened: int = 0
    lost: int = 0
    anonymity: str = ""
    leverage: float | None = None
    memory: str = ""
    blamed: Mapping[ClientId, str] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        names = (
            "name",
            "fingerprint",
            "kind",
            "members",
            "rounds",
            "first_round",
            "last_round",
            "answers",
            "opened",
            "lost",
        )
        found: dict[str, Any] = {"holds": self.holds, **{name: getattr(self, name) for name in names}}
        found |= {"anonymity": self.anonymity, "leverage": self.leverage, "memory": self.memory}
        found |= {"blamed": {str(v): why for v, why in self.blamed.items()}}
        return found | {"problems": list(self.problems), "notes": list(self.notes)}


def verify(
    data: Buffer,
    *,
    journal: Path | str | None = None,
    earlier: Collection[Agreement] = (),
    threads: int | None = None,
) -> Report:
    """The verdict on evidence. `journal` is the folder of one or more clients' records, to find what was left out.

    `earlier` are the agreements that this one names as predecessors. It raises nothing for wrong evidence: the report
    has the problems.

    >>> verify(b"something else").problems
    ('these bytes are not evidence of version 1',)
    """
    try:
        evidence = Evidence.from_bytes(data)
    except SecAggError as bad:  # also a wrong origin of the seed, and a policy that the permitted groups break
        return Report(problems=(str(bad),))
    notes = [NO_SUMS]
    problems = list(_members(evidence))
    checked: list[CheckedRound] | list[CheckedRun]
    if evidence.agreement.terms.groups == WHOLE:
        checked = rounds = [check_round(evidence.agreement, record) for record in evidence.rounds]
        problems += [*_order(evidence, notes), *_chains(rounds, notes)]
    else:
        checked = runs = [check_run(evidence.agreement, record) for record in evidence.runs]
        problems += _run_order(evidence, notes)
        notes += [*_unproved(runs), *_doubted(runs)]
    for one in checked:
        problems += one.problems
    wrong = _wrong_signatures(evidence, checked, thread_count(threads))
    problems += [text for _, text in wrong]
    problems += _earlier(evidence.agreement, tuple(earlier), notes)
    if evidence.agreement.terms.groups == WHOLE:
        problems += _left_out(evidence.agreement, rounds, journal, notes)
    else:
        problems += _runs_left_out(evidence.agreement, runs, journal, notes)
    return _report(evidence, checked, {round for round, _ in wrong}, problems, notes)


def _left_out(
    agreement: Agreement, checked: Sequence[CheckedRound], journal: Path | str | None, notes: list[str]
) -> Iterator[str]:
    if journal is None:
        notes.append(CLAIMS_NO_END)
    else:
        yield from journals.against(agreement, checked, Path(journal), notes)


def _runs_left_out(
    agreement: Agreement, checked: Sequence[CheckedRun], journal: Path | str | None, notes: list[str]
) -> Iterator[str]:
    if journal is None:
        notes.append(CLAIMS_NO_CHAIN)
    else:
        yield from run_journals.against(agreement, checked, Path(journal), notes)


def _report(
    evidence: Evidence,
    checked: Sequence[CheckedRound] | Sequence[CheckedRun],
    forged: Collection[int],
    problems: Sequence[str],
    notes: Sequence[str],
) -> Report:
    agreement, records = evidence.agreement, evidence.records
    if not agreement.terms.policy.enforced:  # audit: evidence-unenforced-told
        notes = [*notes, "the policy only reports: every sum may be opened, whatever it exposes"]
    # Notes on single rounds repeat what the hub says, as often as it likes: they do not come before the others.
    notes = sorted(notes, key=lambda note: note.startswith("round "))  # audit: evidence-limits-first
    blamed: dict[ClientId, str] = {}
    for one in checked:
        if one.round not in forged and not one.problems:  # audit: evidence-blame-signed evidence-blame-of-right-records
            blamed |= one.blamed
    anonymity, leverage = _exposure(agreement, checked)
    answers = [len(record.answers) for record in evidence.rounds] + [len(record.inputs) for record in evidence.runs]
    return Report(
        problems=tuple(problems),
        notes=tuple(notes),
        fingerprint=agreement.fingerprint.hex(),
        name=agreement.terms.name,
        kind=agreement.terms.groups,
        members=len(agreement.terms.members),
        rounds=len({record.round for record in records}),
        first_round=records[0].round if records else None,
        last_round=records[-1].round if records else None,
        answers=sum(answers),
        opened=sum(len(record.opened) for record in evidence.rounds)
        + sum(len(record.sums) for record in evidence.runs),
        lost=sum(len(record.lost) for record in records),
        anonymity=anonymity,
        leverage=leverage,
        memory=agreement.terms.policy.memory,
        blamed=dict(sorted(blamed.items())),
    )


def _exposure(agreement: Agreement, checked: Sequence[CheckedRound] | Sequence[CheckedRun]) -> tuple[str, float | None]:
    """What the permitted sums reveal; with survivors and memory = "round", what the opened ones do in the worst run."""
    over_all = agreement.terms.policy.memory == "training"
    if agreement.terms.groups == WHOLE or over_all:
        # Alone: what it reveals together with earlier agreements is judged if they are given.
        found = audit_training(agreement, None) if over_all else audit_round(agreement)  # audit: evidence-exposure-span
        return str(found.anonymity), found.leverage
    verdicts = [one.verdict for one in checked if isinstance(one, CheckedRun) and one.verdict and one.record.openings]
    if not verdicts:
        return "no sum was opened", None
    worst = min(verdicts, key=lambda verdict: (verdict.anonymity.lower, -max(verdict.leverage.values(), default=0.0)))
    return str(worst.anonymity), max(max(verdict.leverage.values(), default=0.0) for verdict in verdicts)


def _members(evidence: Evidence) -> Iterator[str]:
    """Every member signed the agreement, and nobody else did."""
    agreement = evidence.agreement
    for member in agreement.terms.members:
        signature = evidence.signatures.get(member.id)
        if signature is None:  # audit: evidence-all-members-signed
            yield f"the agreement lacks the signature of member {member.id}"
            continue
        try:
            # audit: evidence-member-signatures
            verify_signature(member.identity, signature, agreement.statement(member.id), signer=member.id)
        except PeerError:
            yield f"the signature of member {member.id} on the agreement is wrong"
    # audit: evidence-only-members-signed
    for stranger in sorted(set(evidence.signatures).difference(agreement.terms.ids)):
        yield f"the agreement is signed by client {stranger}, who is not a member"


def _order(evidence: Evidence, notes: list[str]) -> Iterator[str]:
    """One record per round, in order, inside the agreement. Rounds may be missing: `_chains` finds some of those."""
    last = None
    for record in evidence.rounds:
        if record.round not in evidence.agreement.terms.rounds:  # audit: evidence-rounds-agreed
            yield f"round {record.round} is not in the agreement"
        if last is not None and record.round <= last:  # audit: evidence-rounds-in-order
            yield f"round {record.round} follows round {last}: a round is opened once, in order"
        last = record.round
    if gaps := _gaps({record.round for record in evidence.rounds}):
        later = "whoever answered them has not answered since, or counts as one whose answer did not arrive in time"
        notes.append(f"rounds are missing between others: {gaps}; {later}")


def _gaps(rounds: Collection[int]) -> str:
    """The first rounds that are missing between others."""
    gaps = [t for a, b in pairwise(sorted(rounds)) for t in range(a + 1, min(b, a + 10))]
    return ", ".join(map(str, gaps[:10]))


def _run_order(evidence: Evidence, notes: list[str]) -> Iterator[str]:
    """One record per round and cell, in order, inside the agreement; a round has all its cells."""
    terms, last = evidence.agreement.terms, (-1, -1)
    cells: dict[int, int] = {}
    for record in evidence.runs:
        here = record.round, record.cell
        if record.round not in terms.rounds:  # audit: evidence-runs-agreed
            yield f"round {record.round} is not in the agreement"
        if here <= last:  # audit: evidence-runs-in-order
            where = f"round {here[0]}, cell {here[1]} follows round {last[0]}, cell {last[1]}"
            yield f"{where}: each is opened once, in order"
        last = here
        cells[record.round] = cells.get(record.round, 0) + 1
    for round, count in cells.items():
        if count < len(terms.cells):  # audit: evidence-all-cells
            yield f"round {round} has records of {count} of its {len(terms.cells)} cells"
    if gaps := _gaps(cells):
        notes.append(f"rounds are missing between others: {gaps}")


def _unproved(checked: Sequence[CheckedRun]) -> Iterator[str]:
    """The hub's word against clients is no proof, and is told as such."""
    for one in checked:
        for blamed in one.record.unproved:
            why = shown(blamed.reason)
            yield f"{one.where}: the hub blames client {blamed.client}, without a proof here: {why}"


def _doubted(checked: Sequence[CheckedRun]) -> Iterator[str]:
    """Dealers that too many peers dispute: nobody signs the boxes, so the hub may have spoiled them on the way."""
    for one in checked:
        for dealer, count in one.doubted.items():
            yield (
                f"{one.where}: {count} clients signed that they hold no good share of client {dealer}: client {dealer} "
                "cheated, or the hub that relayed its shares"
            )


def _wrong_signatures(
    evidence: Evidence, checked: Sequence[CheckedRound] | Sequence[CheckedRun], threads: int
) -> list[tuple[int, str]]:
    """The rounds with a wrong signature, and whose. An advert that an answer brought is in two rounds, checked once."""
    identities = evidence.agreement.terms.identities
    todo: list[tuple[ClientId, bytes, bytes, str]] = []
    rounds: dict[tuple[ClientId, bytes, bytes], list[int]] = {}
    for one in checked:
        for claim in one.signed:
            # One signature may be claimed for several senders: each must have made it.
            where = rounds.setdefault(claim[:3], [])  # audit: evidence-every-signer
            if not where:
                todo.append(claim)
            where.append(one.round)  # audit: evidence-every-round-of-a-signature
    wrong: list[tuple[int, int, str]] = []

    def work(start: int, stop: int) -> None:
        for place in range(start, stop):
            sender, signature, statement, what = todo[place]
            try:
                # audit: evidence-signatures
                verify_signature(identities[sender], signature, statement, signer=sender)
            except PeerError:
                for round in rounds[sender, signature, statement]:
                    text = f"round {round}: the signature of client {sender} on its {what} is wrong"
                    wrong.append((place, round, text))

    if todo:
        spread(work, 0, len(todo), step=512, threads=threads)
    return [(round, text) for _, round, text in sorted(wrong)]


def _chains(checked: Sequence[CheckedRound], notes: list[str]) -> Iterator[str]:
    """Each client's answers name each other. A gap is explained by a round that has no answer of this client.

    The client must have been drawn for that round. A hub may call anybody absent, but nobody answers a round that it is
    not drawn for, so such an absence explains nothing.
    """
    last: dict[ClientId, bytes] = {}
    unanswered: set[ClientId] = set()
    gaps = 0
    for one in checked:
        for sender, (hash, previous) in one.chain.items():
            if previous != last.get(sender, FIRST):
                if sender not in unanswered:  # audit: evidence-answers-chained
                    yield (
                        f"round {one.round}: the answer of client {sender} follows an answer that is not here; a round "
                        "was left out, or its answer replaced"
                    )
                gaps += 1
            last[sender] = hash
            unanswered.discard(sender)
        could = one.drawn.intersection({*one.asked, *one.absent})  # audit: evidence-gap-of-drawn
        unanswered |= could.difference(one.chain)
    if gaps:
        notes.append(f"{gaps} answers follow an answer that did not arrive in time")


def _earlier(agreement: Agreement, earlier: tuple[Agreement, ...], notes: list[str]) -> Iterator[str]:
    """The exposure of earlier agreements on the same data, if they are given."""
    if agreement.terms.predecessors and not earlier:
        notes.append("the agreement names earlier ones on the same data, which were not given: --earlier judges them")
    elif agreement.terms.predecessors or earlier:
        try:
            agreement.check(earlier)  # audit: evidence-earlier-judged
        except (SecAggError, WireError) as bad:
            yield f"together with the earlier agreements: {bad}"

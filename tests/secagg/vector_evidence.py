"""Vectors of evidence: what runs leave behind, and the same changed in one place, with the verdict on each."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from secagg import Policy, Stage
from secagg.agreement import Agreement
from secagg.crypto.keys import Identity
from secagg.evidence import Absence, Evidence, LostGroup, OpenedSum, RoundRecord, RunRecord, SignedRelease
from secagg.evidence.runs import EarlySignature
from secagg.privacy.budget import Charge
from secagg.simulation import agree_on
from tests.secagg import cluster
from tests.secagg.drbg import Drbg
from tests.secagg.evidence.common import flipped, noise
from tests.secagg.evidence.run_common import evidence_of, played
from tests.secagg.vector_case import Case, identity, vector

Change = Callable[[Any], Any]
Changes = Mapping[str, tuple[int, Change]]  # by what they do: the place of a record, and the record instead
NOT_MINE = bytes(64)  # nobody's signature


def judge(case: Case, name: str, data: bytes, *, holds: bool = False) -> None:
    out = case.do("evidence.verify", {"evidence": case.give(f"evidence/{name}", data)})
    assert out["holds"] is holds, (case.name, name)


def one(name: str, place: int, **fields: Any) -> Change:
    """Change fields of one message of a record; a function is given the old value."""

    def change(record: Any) -> Any:
        values = list(getattr(record, name))
        old = values[place]
        new = {field: value(getattr(old, field)) if callable(value) else value for field, value in fields.items()}
        values[place] = replace(old, **new)
        return replace(record, **{name: tuple(values)})

    return change


def without(name: str, place: int) -> Change:
    return lambda record: replace(
        record,
        **{name: tuple(v for k, v in enumerate(getattr(record, name)) if k != place % len(getattr(record, name)))},
    )


def twice(name: str) -> Change:
    return lambda record: replace(record, **{name: (getattr(record, name)[0], *getattr(record, name))})


def fields(**values: Any) -> Change:
    return lambda record: replace(record, **values)


def first_row(rows: tuple[bytes, ...]) -> tuple[bytes, ...]:
    return flipped(rows[0]), *rows[1:]


def half(charges: tuple[Charge, ...]) -> tuple[Charge, ...]:
    return (Charge(charges[0].rho // 2, charges[0].eta),)


def records_of(evidence: Evidence) -> tuple[Any, ...]:
    return evidence.rounds or evidence.runs


def with_records(evidence: Evidence, records: tuple[Any, ...]) -> bytes:
    kind = "rounds" if evidence.rounds else "runs"
    return replace(evidence, **{kind: records}).to_bytes()  # type: ignore[arg-type]


def head(evidence: Evidence) -> bytes:
    return replace(evidence, rounds=(), runs=()).to_bytes()


def changed(case: Case, data: bytes, changes: Changes, *, holds: bool = False) -> None:
    evidence = Evidence.from_bytes(data)
    for name, (place, change) in changes.items():
        records = list(records_of(evidence))
        records[place] = change(records[place])
        assert records[place] != records_of(evidence)[place], name
        found = with_records(evidence, tuple(records))
        at = len(with_records(evidence, tuple(records[:place])) if place else head(evidence))
        if found[at : at + 4] != data[at : at + 4]:  # the length alone first: two short changes and not a long one
            case.give(f"evidence/{name}/length", data[:at] + found[at : at + 4] + data[at + 4 :])
        judge(case, name, found, holds=holds)


def spoiled(case: Case, data: bytes, keys: Mapping[int, Identity]) -> None:
    """What can be done to every evidence: the bytes, the signatures on the agreement, the order of records."""
    evidence = Evidence.from_bytes(data)
    records, signatures = records_of(evidence), dict(evidence.signatures)
    member = min(signatures)
    for name, found in {
        "another version": data.replace(b"evidence 1", b"evidence 2"),
        "cut inside a record": data[:-1],
        "one byte more": data + b"\x00",
        "a byte of the agreement": flipped(data, 60),
        "a record twice": with_records(evidence, (records[0], *records)),
        "a round after the agreement": with_records(evidence, (*records[:-1], replace(records[-1], round=10**6))),
    }.items():
        judge(case, name, found)
    rest = {v: signature for v, signature in signatures.items() if v != member}
    wrong = {
        "a member's signature missing": rest,
        "a member's signature forged": {**rest, member: flipped(signatures[member])},
        "a member's signature exchanged": {**rest, member: max(signatures.items())[1]},
        "a stranger's signature": {**signatures, 10**6: signatures[member]},
    }
    for name, given in wrong.items():
        judge(case, name, replace(evidence, signatures=dict(sorted(given.items()))).to_bytes())
    other = agree_on(evidence.agreement.terms, keys, Drbg(f"vectors/{case.name}/another seed".encode()))
    signed = {v: other.sign(v, keys[v]) for v in sorted(keys)}
    judge(case, "another agreement of the same terms", replace(evidence, agreement=other, signatures=signed).to_bytes())


# --- whole groups ------------------------------------------------------------------------------------------


def left_by(case: Case) -> bytes:
    """The evidence of the run that the case continues; it holds."""
    case.do("whole.server.evidence", {"agreement": "agreement", "as": "evidence"})
    assert case.do("evidence.verify", {"evidence": "evidence"})["holds"]
    return case.session.get("evidence")


def keys_of(case: Case) -> dict[int, Identity]:
    return {v: identity(v) for v in Agreement.from_bytes(case.session.get("agreement")).terms.ids}


def called_lost(record: RoundRecord, reason: bytes) -> RoundRecord:
    return replace(record, opened=record.opened[1:], lost=(LostGroup(*record.opened[0].group, reason),))


def nobody_answered_for(record: RoundRecord) -> RoundRecord:
    """A group is opened, and one of its members is called absent."""
    gone = record.answers[0].sender
    return replace(record, answers=record.answers[1:], absent=(Absence(gone, b"it did not answer in time"),))


WHOLE: Changes = {
    "an advert's key": (0, one("adverts", 1, key=flipped)),
    "an advert's signature": (0, one("adverts", 1, signature=flipped)),
    "an advert of another round": (0, one("adverts", 1, round=8)),
    "an advert left out": (0, without("adverts", 2)),
    "another context": (1, lambda record: replace(record, context=flipped(record.context))),
    "an answer's signature": (1, one("answers", 3, signature=flipped)),
    "an answer that follows another": (1, one("answers", 3, previous=flipped)),
    "the hash of vectors": (0, one("answers", 0, vectors_hash=flipped)),
    "an answer of somebody else": (0, one("answers", 5, sender=14)),
    "an answer left out": (1, without("answers", 4)),
    "an answer left out and its sender called absent": (1, nobody_answered_for),
    "an answer twice": (0, twice("answers")),
    "answers in another order": (0, lambda r: replace(r, answers=(r.answers[1], r.answers[0], *r.answers[2:]))),
    "a group that does not exist": (0, lambda r: replace(r, opened=(*r.opened, OpenedSum(0, 9, bytes(32))))),
    "a group forgotten": (0, without("opened", 0)),
    "a group opened and lost": (0, lambda r: replace(r, lost=(LostGroup(*r.opened[0].group, b"no reason"),))),
    "a group lost without a reason": (0, lambda record: called_lost(record, b"")),
    "blame without another answer": (1, lambda record: replace(record, second=record.answers[:1])),
    "a release after an answer that nobody signed": (1, fields(after=(SignedRelease(2, NOT_MINE),))),
    "a release that nobody signed": (1, fields(releases=(SignedRelease(2, NOT_MINE),))),
    "a roll call that was not agreed": (0, fields(present=(2, 3))),
    "a contradiction of a group that does not exist": (0, fields(inconsistent=(((0, 0), (5, 5)),))),
    "skipped, and opened": (0, fields(skipped=b"too few")),
    "a charge without noise": (0, fields(charge=(Charge(1, 0),))),
}


@vector("evidence_whole", base="whole_plain", after="8 closed")
def evidence_whole(case: Case) -> None:
    """What two rounds of whole groups leave, changed in one place; what a hub can hide holds."""
    data = left_by(case)
    spoiled(case, data, keys_of(case))
    changed(case, data, WHOLE)
    evidence = Evidence.from_bytes(data)
    judge(case, "rounds in another order", replace(evidence, rounds=evidence.rounds[::-1]).to_bytes())
    judge(case, "the first round left out", replace(evidence, rounds=evidence.rounds[1:]).to_bytes())
    judge(case, "the last round left out", replace(evidence, rounds=evidence.rounds[:1]).to_bytes(), holds=True)
    hidden: Changes = {
        "an opened group called lost": (1, lambda record: called_lost(record, b"it was lost")),
        "the hash of a sum": (1, one("opened", 0, sum=flipped)),
    }
    changed(case, data, hidden, holds=True)


@vector("evidence_whole_lost", base="whole_two_groupings", after="10 closed")
def evidence_whole_lost(case: Case) -> None:
    """Rounds with clients that were silent, lost groups and a round that was skipped."""
    data = left_by(case)
    found: Changes = {
        "a lost group opened": (
            0,
            lambda r: replace(
                r,
                lost=r.lost[1:],
                opened=tuple(sorted((*r.opened, OpenedSum(*r.lost[0].group, bytes(32))), key=lambda one: one.group)),
            ),
        ),
        "silence without a reason": (1, fields(absent=())),
        "a client absent that has answered": (
            1,
            lambda r: replace(r, absent=(Absence(r.answers[0].sender, b"late"), *r.absent)),
        ),
        "a contradiction of a lost group": (1, lambda r: replace(r, inconsistent=((r.lost[0].group,),))),
        "one group opened where two are asked for": (
            1,
            lambda r: replace(
                r,
                opened=r.opened[:1],
                lost=tuple(
                    sorted((*r.lost, *(LostGroup(*o.group, b"no") for o in r.opened[1:])), key=lambda one: one.group)
                ),
            ),
        ),
        "a reason that clears the screen": (1, one("lost", 0, reason=b"\x1b[2J")),
    }
    changed(case, data, found)


@vector("evidence_whole_release", base="whole_flat_release", after="8 closed")
def evidence_whole_release(case: Case) -> None:
    """A flat sum that one member has left before the round."""
    data = left_by(case)
    found: Changes = {
        "the release left out": (0, fields(releases=())),
        "the release's signature": (0, one("releases", 0, signature=flipped)),
        "the release of another member": (0, one("releases", 0, sender=2)),
        "the release in another round": (1, fields(releases=Evidence.from_bytes(data).rounds[0].releases)),
    }
    changed(case, data, found)


@vector("evidence_whole_noise", base="whole_noise", after="8 closed")
def evidence_whole_noise(case: Case) -> None:
    """Rounds with noise, whose charge follows from the agreement."""
    data = left_by(case)
    found: Changes = {
        "half the charge": (0, lambda record: replace(record, charge=half(record.charge))),
        "twice the charge": (0, lambda r: replace(r, charge=(Charge(2 * r.charge[0].rho, r.charge[0].eta),))),
        "another eta": (1, lambda r: replace(r, charge=(Charge(r.charge[0].rho, r.charge[0].eta + 2**50),))),
        "no charge": (1, fields(charge=())),
    }
    changed(case, data, found)


# --- survivors ---------------------------------------------------------------------------------------------

POLICY = Policy(min_survivors=2, anonymity=2, max_leverage=1.0, memory="round")
SIGNED_BY_NOBODY: Changes = {
    "an advert's channel key": (0, one("adverts", 1, channel=flipped)),
    "an advert's mask key": (0, one("adverts", 1, mask=flipped)),
    "the hash of a dealing": (0, one("dealings", 2, hash=flipped)),
    "an early signature of a client that stayed": (0, fields(early=(EarlySignature(2, NOT_MINE),))),
    "an early signature": (1, one("early", 0, signature=flipped)),
    "no early signature": (1, fields(early=())),
    "a commitment in a shown dealing": (2, one("shown", 0, commitments=first_row)),
    "a commitment too many in a shown dealing": (2, one("shown", 0, commitments=lambda found: (*found, bytes(32)))),
    "a root in a shown dealing": (2, one("shown", 0, root=flipped)),
    "no shown dealing": (2, fields(shown=())),
    "the hash of masked vectors": (0, one("inputs", 0, vectors_hash=flipped)),
    "a masked input's signature": (0, one("inputs", 0, signature=flipped)),
    "a dispute": (0, one("inputs", 0, disputes=(3,))),
    "an opening's signature": (0, one("openings", 1, signature=flipped)),
    "what was given in stage 4": (0, one("unmaskings", 1, content=flipped)),
    "an unmasking's signature": (0, one("unmaskings", 1, signature=flipped)),
    "another context": (0, lambda record: replace(record, context=record.context + b"x")),
    "another cell": (0, fields(cell=1)),
}
RUNS: Changes = {
    "an advert left out": (0, without("adverts", 1)),
    "a dealing left out": (0, without("dealings", 1)),
    "a masked input left out": (0, without("inputs", 1)),
    "an opening left out": (0, without("openings", 1)),
    "a masked input twice": (0, twice("inputs")),
    "an opening twice": (0, twice("openings")),
    "a message of somebody else": (0, one("adverts", 4, sender=10**6)),
    "too few openings": (1, lambda record: replace(record, openings=record.openings[:2])),
    "too few unmaskings": (1, lambda record: replace(record, unmaskings=record.unmaskings[:1])),
    "a sum too many": (0, lambda r: replace(r, sums=(*r.sums, bytes(32)))),
    "a group that nobody signed": (0, fields(closed=((0, 0),))),
    "a closed group that does not exist": (0, fields(closed=((0, 9),))),
    "a group forgotten": (0, without("sums", 0)),
    "a group opened and lost": (0, lambda r: replace(r, lost=(LostGroup(0, 0, b"no reason"),))),
    "a lost group that does not exist": (0, fields(lost=(LostGroup(0, 9, b"it is lost"),))),
    "a contradiction of a group that does not exist": (0, fields(inconsistent=(((0, 0), (5, 5)),))),
    "failed, and opened": (0, fields(failed=b"it failed")),
    "silence without a reason": (1, fields(absent=())),
    "a charge without noise": (0, fields(settled=(Charge(1, 0),))),
    "a proof against another client": (2, one("wrong", 0, sender=0)),
    "a proof with other seeds": (2, one("wrong", 0, seeds=flipped)),
    "a proof without the hashes of the dealer": (2, one("wrong", 0, dealt=())),
}


def of_survivors(case: Case, agreement: Agreement, rounds: list[dict[str, Any]]) -> bytes:
    data = evidence_of(agreement, [played(agreement, t, **more) for t, more in enumerate(rounds)])
    judge(case, "honest", data, holds=True)
    return data


@vector("evidence_survivors")
def evidence_survivors(case: Case) -> None:
    """Three runs of five clients: all answer, one is silent, one sends a wrong share; then changed in one place."""
    agreement = cluster.make_agreement(5, seed=b"vectors", colluders=1, threshold=4, last_round=9, policy=POLICY)
    rounds: list[dict[str, Any]] = [{}, {"stops": {4: Stage.INPUTS}}, {"cheats": {3: "a wrong seed share"}}]
    data = of_survivors(case, agreement, rounds)
    assert case.operations[0]["out"]["blamed"] == [3]
    spoiled(case, data, {v: cluster.identity(v) for v in agreement.terms.ids})
    changed(case, data, SIGNED_BY_NOBODY)
    changed(case, data, RUNS)
    whole = Evidence.from_bytes(data)
    for name, runs in {"the first run left out": whole.runs[1:], "the last run left out": whole.runs[:-1]}.items():
        judge(case, name, replace(whole, runs=runs).to_bytes(), holds=True)
    changed(case, data, {"the hash of a sum": (0, fields(sums=first_row(whole.runs[0].sums)))}, holds=True)


@vector("evidence_survivors_noise")
def evidence_survivors_noise(case: Case) -> None:
    """A run with noise: what senders of masked inputs reserve, and what is settled in the end."""
    more: dict[str, Any] = {"colluders": 1, "threshold": 4, "policy": POLICY, "noise": noise()}
    agreement = cluster.make_agreement(5, seed=b"vectors", last_round=6, **more)
    data = of_survivors(case, agreement, [{"stops": {4: Stage.CONSISTENCY}}])
    assert isinstance(Evidence.from_bytes(data).runs[0], RunRecord)
    found: Changes = {
        "half of what is reserved": (0, lambda record: replace(record, reserved=half(record.reserved))),
        "half of what is settled": (0, lambda record: replace(record, settled=half(record.settled))),
        "nothing reserved": (0, fields(reserved=())),
        "nothing settled": (0, fields(settled=())),
    }
    changed(case, data, found)

"""Generated evidence of runs with survivors, honest and tampered in one place: both verifiers find every tampering."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from secagg.evidence import Evidence, LostGroup, RunRecord, assemble, verify
from secagg.evidence.runs import ShownDealing
from secagg.privacy.budget import Charge
from secagg.simulation import agree_on
from tests.secagg.evidence import second_runs as second
from tests.secagg.evidence.run_common import KINDS, agreed, honest, identity, torn, unsafe
from tests.secagg.evidence.test_generated import bit, cut, moved, one_of

SEEDS, MOST_SEEDS = 2, 8
Spoil = Callable[[Evidence, random.Random], Evidence | None]


def of_run(change: Callable[[RunRecord, random.Random], RunRecord | None]) -> Spoil:
    """A change of one record, at random; None if it does not fit the record."""

    def spoil(evidence: Evidence, draw: random.Random) -> Evidence | None:
        runs = list(evidence.runs)
        place = draw.randrange(len(runs))
        found = change(runs[place], draw)
        if found is None:
            return None
        runs[place] = found
        return replace(evidence, runs=tuple(runs))

    return spoil


def message(name: str, field: str) -> Spoil:
    """One bit of one field of one message."""

    def flip(one: Any, draw: random.Random) -> Any:
        value = getattr(one, field)
        found = one_of(value, draw, lambda part: bit(part, draw)) if isinstance(value, tuple) else bit(value, draw)
        return replace(one, **{field: found})

    def spoil(record: RunRecord, draw: random.Random) -> RunRecord | None:
        fit = [k for k, one in enumerate(getattr(record, name)) if getattr(one, field)]
        if not fit:
            return None
        messages = list(getattr(record, name))
        place = draw.choice(fit)
        messages[place] = flip(messages[place], draw)
        return replace(record, **{name: tuple(messages)})

    return of_run(spoil)


def dropped(name: str) -> Spoil:
    """A message whose sender answered later stages too is gone."""

    def spoil(record: RunRecord, draw: random.Random) -> RunRecord | None:
        place = draw.choice([k for k, one in enumerate(getattr(record, name)) if one.sender in gave(record)])
        messages = getattr(record, name)
        return replace(record, **{name: messages[:place] + messages[place + 1 :]})

    return of_run(spoil)


def twice(name: str) -> Spoil:
    def spoil(record: RunRecord, draw: random.Random) -> RunRecord | None:
        messages = getattr(record, name)
        place = draw.randrange(len(messages))
        return replace(record, **{name: (*messages[:place], messages[place], *messages[place:])})

    return of_run(spoil)


def gave(record: RunRecord) -> set[int]:
    return {one.sender for one in record.unmaskings}


def disputed(record: RunRecord, draw: random.Random) -> RunRecord | None:
    place = draw.randrange(len(record.inputs))
    one = record.inputs[place]
    others = [dealing.sender for dealing in record.dealings if dealing.sender not in (one.sender, *one.disputes)]
    changed = replace(one, disputes=tuple(sorted((*one.disputes, draw.choice(others)))))
    return replace(record, inputs=(*record.inputs[:place], changed, *record.inputs[place + 1 :]))


def swapped(record: RunRecord, draw: random.Random) -> RunRecord | None:
    if len(record.inputs) < 2:
        return None
    first, second = draw.sample(range(len(record.inputs)), 2)
    inputs = list(record.inputs)
    inputs[first] = replace(inputs[first], vectors_hash=record.inputs[second].vectors_hash)
    inputs[second] = replace(inputs[second], vectors_hash=record.inputs[first].vectors_hash)
    return replace(record, inputs=tuple(inputs))


def opened_too_much(record: RunRecord, draw: random.Random) -> RunRecord | None:
    closed = [one for one in record.lost if one.group in record.closed]
    if not closed:
        return None
    chosen = draw.choice(closed)
    left = tuple(group for group in record.closed if group != chosen.group or draw.random() < 0.5)
    sums = (*record.sums, bytes(32))
    return replace(record, sums=sums, closed=left, lost=tuple(one for one in record.lost if one != chosen))


def sum_too_many(record: RunRecord, draw: random.Random) -> RunRecord:
    return replace(record, sums=(*record.sums, bytes(32)))


def group_forgotten(record: RunRecord, draw: random.Random) -> RunRecord | None:
    return replace(record, sums=record.sums[:-1]) if record.sums else None


def group_both(record: RunRecord, draw: random.Random) -> RunRecord | None:
    if not record.sums:
        return None
    lost = {one.group: one for one in record.lost}
    first = next((0, g) for g in range(9) if (0, g) not in lost)
    lost[first] = LostGroup(*first, b"no reason")
    return replace(record, lost=tuple(lost[group] for group in sorted(lost)))


def lost_elsewhere(record: RunRecord, draw: random.Random) -> RunRecord:
    return replace(record, lost=(*record.lost, LostGroup(9, draw.randrange(9), b"it is lost")))


def dealing_shown(record: RunRecord, draw: random.Random) -> RunRecord | None:
    """A dealing that nobody signed."""
    if not record.dealings:
        return None
    shown = {one.dealer: one for one in record.shown}
    dealer = draw.choice(record.dealings).sender
    false = replace(shown.get(dealer, ShownDealing(dealer, (bytes(32),), bytes(32))), root=draw.randbytes(32))
    return replace(record, shown=tuple(one for _, one in sorted((shown | {dealer: false}).items())))


def fewer_groups(record: RunRecord, draw: random.Random) -> RunRecord | None:
    lost = {one.group: one for one in record.lost}
    if not record.sums or (0, 0) in lost:
        return None
    gone = (0, 0)
    lost[gone] = LostGroup(*gone, b"it failed")
    return replace(
        record,
        closed=tuple(sorted((gone, *record.closed))),
        sums=record.sums[1:],
        lost=tuple(lost[group] for group in sorted(lost)),
    )


def below_threshold(record: RunRecord, draw: random.Random) -> RunRecord | None:
    return replace(record, unmaskings=record.unmaskings[:1]) if record.sums else None


def absent_forgotten(record: RunRecord, draw: random.Random) -> RunRecord | None:
    silent = [one for one in record.absent if one.client not in gave(record)]
    if not silent:
        return None
    gone = draw.choice(silent)
    return replace(record, absent=tuple(one for one in record.absent if one != gone))


def blamed_falsely(record: RunRecord, draw: random.Random) -> RunRecord | None:
    """Another client in the place of a cheater, or a proof with one bit changed."""
    if not record.wrong:
        return None
    proof = record.wrong[0]
    others = sorted(gave(record) - {one.sender for one in record.wrong})
    seeds = bit(proof.seeds, draw) if proof.seeds else proof.seeds + b"x"
    changed = draw.choice([replace(proof, sender=draw.choice(others)), replace(proof, seeds=seeds)])
    return replace(record, wrong=(changed,))


def charge_moved(sign: int) -> Spoil:
    def spoil(record: RunRecord, draw: random.Random) -> RunRecord | None:
        name = draw.choice(["reserved", "settled"])
        found = [moved(charge, draw, sign) for charge in getattr(record, name)]
        return replace(record, **{name: tuple(found)}) if any(found) else None  # type: ignore[arg-type]

    return of_run(spoil)


def charge_missing(record: RunRecord, draw: random.Random) -> RunRecord | None:
    names = [name for name in ("reserved", "settled") if getattr(record, name)]
    return replace(record, **{draw.choice(names): ()}) if names else None


def charge_added(record: RunRecord, draw: random.Random) -> RunRecord | None:
    names = [name for name in ("reserved", "settled") if not getattr(record, name)]
    charge = Charge(draw.randrange(2), draw.randrange(2))
    return replace(record, **{draw.choice(names): (charge,)}) if names else None


def origin(evidence: Evidence) -> tuple[str, int]:
    """The kind and the seed of honest evidence."""
    every = ((kind, seed) for kind in KINDS for seed in range(MOST_SEEDS))
    return next(one for one in every if agreed(*one).fingerprint == evidence.agreement.fingerprint)


def policy_broken(evidence: Evidence, draw: random.Random) -> Evidence:
    """Everything is in order, but the agreement permits more than its policy does."""
    return unsafe(*origin(evidence))


def graph_torn(evidence: Evidence, draw: random.Random) -> Evidence | None:
    result = torn(*origin(evidence))
    if result is None:
        return None
    return replace(evidence, runs=(decoded_run(evidence, result), *evidence.runs[1:]))


def decoded_run(evidence: Evidence, result: Any) -> RunRecord:
    (record,) = Evidence.from_bytes(assemble(evidence.agreement, evidence.signatures, [result.record])).runs
    return record


def cell_missing(evidence: Evidence, draw: random.Random) -> Evidence | None:
    if len(evidence.agreement.terms.cells) == 1:
        return None
    place = draw.randrange(len(evidence.runs))
    return replace(evidence, runs=evidence.runs[:place] + evidence.runs[place + 1 :])


def other_schedule(evidence: Evidence, draw: random.Random) -> Evidence:
    """The same terms with another seed, signed by everybody: the records are not of this agreement."""
    terms = evidence.agreement.terms
    other = agree_on(terms, {v: identity(v) for v in terms.ids})
    return replace(evidence, agreement=other, signatures={v: other.sign(v, identity(v)) for v in terms.ids})


def member_forged(evidence: Evidence, draw: random.Random) -> Evidence:
    forged = draw.choice(sorted(evidence.signatures))
    rest = {v: sign for v, sign in evidence.signatures.items() if v != forged}
    found = bit(evidence.signatures[forged], draw)
    return replace(evidence, signatures=rest if draw.random() < 0.5 else {**rest, forged: found})


SPOILS: dict[str, Spoil] = {
    "advert's channel key": message("adverts", "channel"),
    "advert's mask key": message("adverts", "mask"),
    "early signature": message("early", "signature"),
    "early signature missing": of_run(lambda record, draw: replace(record, early=()) if record.early else None),
    "dealing's hash": message("dealings", "hash"),
    "dealing that nobody signed": of_run(dealing_shown),
    "root in a shown dealing": message("shown", "root"),
    "commitment in a shown dealing": message("shown", "commitments"),
    "masked input's signature": message("inputs", "signature"),
    "hash of masked vectors": message("inputs", "vectors_hash"),
    "hashes of masked vectors swapped": of_run(swapped),
    "opening's signature": message("openings", "signature"),
    "content of an unmasking": message("unmaskings", "content"),
    "unmasking's signature": message("unmaskings", "signature"),
    "dispute": of_run(disputed),
    "context": of_run(lambda record, draw: replace(record, context=record.context + b"x")),
    "round": of_run(lambda record, draw: replace(record, round=record.round + 50)),
    "cell": of_run(lambda record, draw: replace(record, cell=record.cell + 1)),
    "cell missing": cell_missing,
    "advert dropped": dropped("adverts"),
    "dealing dropped": dropped("dealings"),
    "masked input dropped": dropped("inputs"),
    "opening dropped": dropped("openings"),
    "masked input twice": twice("inputs"),
    "opening twice": twice("openings"),
    "too few unmaskings": of_run(below_threshold),
    "group opened that was closed": of_run(opened_too_much),
    "sum too many": of_run(sum_too_many),
    "group lost that does not exist": of_run(lost_elsewhere),
    "group forgotten": of_run(group_forgotten),
    "group opened and lost": of_run(group_both),
    "other groups than were signed": of_run(fewer_groups),
    "silence without a reason": of_run(absent_forgotten),
    "blame without a proof": of_run(blamed_falsely),
    "charge too low": charge_moved(-1),
    "charge too high": charge_moved(1),
    "charge missing": of_run(charge_missing),
    "charge where there is no cost": of_run(charge_added),
    "policy broken": policy_broken,
    "too many dropouts for a sparse graph": graph_torn,
    "failed and opened": of_run(lambda record, draw: replace(record, failed=b"it failed") if record.sums else None),
    "rounds reordered": lambda evidence, draw: replace(evidence, runs=(*evidence.runs[1:], evidence.runs[0])),
    "round repeated": lambda evidence, draw: replace(evidence, runs=(*evidence.runs, evidence.runs[-1])),
    "another schedule": other_schedule,
    "member's signature": member_forged,
}


def generated(number: int, seeds: int) -> tuple[str, bytes]:
    """What was done ("" for nothing), and the evidence."""
    draw = random.Random(number)
    data = honest(draw.choice(sorted(KINDS)), seed=draw.randrange(seeds))
    if draw.random() < 0.2:
        return "", data
    if draw.random() < 0.1:
        return "cut", cut(data, draw)
    while True:
        name = draw.choice(sorted(SPOILS))
        found = SPOILS[name](Evidence.from_bytes(data), draw)
        if found is not None:
            return name, found.to_bytes()


def judged(number: int, seeds: int = SEEDS) -> None:
    what, data = generated(number, seeds)
    mine, theirs = verify(data, threads=1), second.check(data)
    assert mine.holds == (not what), (number, what, mine.problems)
    assert (not theirs) == (not what), (number, what, theirs)
    if not what:
        assert set(mine.blamed) == second.blamed(data)


@pytest.mark.parametrize("number", range(24))
def test_both_verifiers_find_every_tampering_and_accept_what_is_honest(number: int) -> None:
    judged(number)


@pytest.mark.parametrize("kind", KINDS)
def test_both_verifiers_accept_honest_files_of_every_kind(kind: str) -> None:
    for seed in range(SEEDS):
        data = honest(kind, seed=seed)
        assert not verify(data, threads=1).problems
        assert second.check(data) == ""


@pytest.mark.long
def test_both_verifiers_agree_on_a_thousand_files() -> None:
    for number in range(1000, 2000):
        judged(number, seeds=MOST_SEEDS)


@pytest.mark.long
@pytest.mark.parametrize("name", SPOILS)
def test_each_kind_of_tampering_is_found_by_both(name: str) -> None:
    draw, tried = random.Random(5), 0
    for kind in KINDS:
        for seed in range(3):
            found = SPOILS[name](Evidence.from_bytes(honest(kind, seed=seed)), draw)
            if found is not None:
                data = found.to_bytes()
                mine, theirs = verify(data, threads=1).problems, second.check(data)
                assert mine
                assert theirs
                for word in ("charge", "policy"):  # found for this reason and for no other
                    assert not name.startswith(word) or all(word in problem for problem in (*mine, theirs))
                tried += 1
    assert tried

"""Generated evidence, honest and tampered in one place: both verifiers agree, and both find every tampering."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from secagg.evidence import Evidence, LostGroup, OpenedSum, RoundRecord, verify
from secagg.privacy.budget import Charge
from secagg.simulation import agree_on
from tests.secagg.evidence import second
from tests.secagg.evidence.common import KINDS, agreed, flipped, honest, unsafe

SEEDS = 3
Spoil = Callable[[Evidence, random.Random], Evidence | None]


def of_round(change: Callable[[RoundRecord, random.Random], RoundRecord | None]) -> Spoil:
    """A change of one record, at random; None if it does not fit the record."""

    def spoil(evidence: Evidence, draw: random.Random) -> Evidence | None:
        rounds = list(evidence.rounds)
        place = draw.randrange(len(rounds))
        found = change(rounds[place], draw)
        if found is None:
            return None
        rounds[place] = found
        return replace(evidence, rounds=tuple(rounds))

    return spoil


def one_of(values: tuple[Any, ...], draw: random.Random, change: Callable[[Any], Any]) -> tuple[Any, ...] | None:
    if not values:
        return None
    place = draw.randrange(len(values))
    return (*values[:place], change(values[place]), *values[place + 1 :])


def list_change(name: str, change: Callable[[Any, random.Random], Any]) -> Spoil:
    def spoil(record: RoundRecord, draw: random.Random) -> RoundRecord | None:
        found = one_of(getattr(record, name), draw, lambda value: change(value, draw))
        return None if found is None else replace(record, **{name: found})

    return of_round(spoil)


def bit(data: bytes, draw: random.Random) -> bytes:
    return flipped(data, draw.randrange(len(data)))


def without_a_round(evidence: Evidence, draw: random.Random) -> Evidence | None:
    """A round in the middle whose answers all arrived."""
    whole = [k for k, r in enumerate(evidence.rounds[:-1]) if k and r.answers]
    for place in draw.sample(whole, len(whole)):
        answered = {answer.sender for answer in evidence.rounds[place].answers}
        later = {a.sender for r in evidence.rounds[place + 1 :] for a in r.answers}
        left = replace(evidence, rounds=evidence.rounds[:place] + evidence.rounds[place + 1 :])
        if answered & later:
            return left
    return None


def other_context(record: RoundRecord, draw: random.Random) -> RoundRecord | None:
    return replace(record, context=bit(record.context, draw)) if record.answers else None


def opened_too_much(record: RoundRecord, draw: random.Random) -> RoundRecord | None:
    if not record.lost:
        return None
    chosen = draw.choice(record.lost)
    opened = sorted((*record.opened, OpenedSum(*chosen.group, bytes(32))), key=lambda one: one.group)
    return replace(record, opened=tuple(opened), lost=tuple(one for one in record.lost if one != chosen))


def opened_elsewhere(record: RoundRecord, draw: random.Random) -> RoundRecord:
    return replace(record, opened=(*record.opened, OpenedSum(9, draw.randrange(9), bytes(32))))


def answer_dropped(record: RoundRecord, draw: random.Random) -> RoundRecord | None:
    if not record.opened:
        return None
    place = draw.randrange(len(record.answers))
    return replace(record, answers=record.answers[:place] + record.answers[place + 1 :])


def answer_twice(record: RoundRecord, draw: random.Random) -> RoundRecord | None:
    if not record.answers:
        return None
    place = draw.randrange(len(record.answers))
    return replace(record, answers=(*record.answers[:place], record.answers[place], *record.answers[place:]))


def blamed_falsely(record: RoundRecord, draw: random.Random) -> RoundRecord | None:
    return replace(record, second=(draw.choice(record.answers),)) if record.answers else None


def group_forgotten(record: RoundRecord, draw: random.Random) -> RoundRecord | None:
    return replace(record, opened=record.opened[:-1]) if record.opened else None


def group_both(record: RoundRecord, draw: random.Random) -> RoundRecord | None:
    if not record.opened:
        return None
    lost = sorted((*record.lost, LostGroup(*record.opened[0].group, b"no reason")), key=lambda one: one.group)
    return replace(record, lost=tuple(lost))


def reordered(evidence: Evidence, draw: random.Random) -> Evidence:
    return replace(evidence, rounds=(*evidence.rounds[1:], evidence.rounds[0]))


def repeated(evidence: Evidence, draw: random.Random) -> Evidence:
    place = draw.randrange(len(evidence.rounds))
    return replace(evidence, rounds=(*evidence.rounds[: place + 1], *evidence.rounds[place:]))


def origin(evidence: Evidence) -> tuple[str, int]:
    """The kind and the seed of honest evidence."""
    every = ((kind, seed) for kind in KINDS for seed in range(SEEDS))
    return next(one for one in every if agreed(*one)[0].terms == evidence.agreement.terms)


def other_schedule(evidence: Evidence, draw: random.Random) -> Evidence:
    """The same terms with another seed, signed by everybody: the records are not of this agreement."""
    _, identities = agreed(*origin(evidence))
    other = agree_on(evidence.agreement.terms, identities)
    return replace(evidence, agreement=other, signatures={v: other.sign(v, identities[v]) for v in other.terms.ids})


def policy_broken(evidence: Evidence, draw: random.Random) -> Evidence | None:
    """Everything is in order, but the agreement permits more than its policy does."""
    kind, seed = origin(evidence)
    found = [unsafe(kind, what, seed) for what in ("leverage", "memory", "anonymity")]
    return draw.choice([one for one in found if one])


def moved(charge: Charge, draw: random.Random, sign: int) -> Charge | None:
    """Another charge, by a unit or by a part."""
    name = draw.choice(["rho", "eta"])
    value = getattr(charge, name)
    value += sign * draw.choice([1, 1 + value // 2])
    return replace(charge, **{name: value}) if value >= 0 else None


def charge_moved(sign: int) -> Spoil:
    def spoil(record: RoundRecord, draw: random.Random) -> RoundRecord | None:
        found = [moved(charge, draw, sign) for charge in record.charge]
        return replace(record, charge=tuple(found)) if any(found) else None  # type: ignore[arg-type]

    return of_round(spoil)


def charge_added(record: RoundRecord, draw: random.Random) -> RoundRecord | None:
    return None if record.charge else replace(record, charge=(Charge(draw.randrange(2), draw.randrange(2)),))


def member_unsigned(evidence: Evidence, draw: random.Random) -> Evidence:
    gone = draw.choice(sorted(evidence.signatures))
    return replace(evidence, signatures={v: s for v, s in evidence.signatures.items() if v != gone})


def member_forged(evidence: Evidence, draw: random.Random) -> Evidence:
    forged = draw.choice(sorted(evidence.signatures))
    return replace(evidence, signatures={**evidence.signatures, forged: bit(evidence.signatures[forged], draw)})


SPOILS: dict[str, Spoil] = {
    "advert's key": list_change("adverts", lambda one, draw: replace(one, key=bit(one.key, draw))),
    "advert's signature": list_change("adverts", lambda one, draw: replace(one, signature=bit(one.signature, draw))),
    "answer's signature": list_change("answers", lambda one, draw: replace(one, signature=bit(one.signature, draw))),
    "answer's predecessor": list_change("answers", lambda one, draw: replace(one, previous=bit(one.previous, draw))),
    "vector's hash": list_change("answers", lambda one, draw: replace(one, vectors_hash=bit(one.vectors_hash, draw))),
    "context": of_round(other_context),
    "round left out": without_a_round,
    "group opened that was lost": of_round(opened_too_much),
    "group opened that does not exist": of_round(opened_elsewhere),
    "answer dropped": of_round(answer_dropped),
    "answer twice": of_round(answer_twice),
    "blame without a proof": of_round(blamed_falsely),
    "group forgotten": of_round(group_forgotten),
    "group opened and lost": of_round(group_both),
    "rounds reordered": reordered,
    "round repeated": repeated,
    "another schedule": other_schedule,
    "member's signature missing": member_unsigned,
    "member's signature forged": member_forged,
    "charge too low": charge_moved(-1),
    "charge too high": charge_moved(1),
    "charge missing": of_round(lambda record, draw: replace(record, charge=()) if record.charge else None),
    "charge where there is no cost": of_round(charge_added),
    "policy broken": policy_broken,
}


def cut(data: bytes, draw: random.Random) -> bytes:
    """The file without its end, which is inside a record or before the first."""
    ends, at = {len(data)}, len(replace(Evidence.from_bytes(data), rounds=(), runs=()).to_bytes())
    while at < len(data):
        ends.add(at)
        at += 4 + int.from_bytes(data[at : at + 4], "little")
    return data[: draw.choice([place for place in draw.sample(range(len(data)), 20) if place not in ends])]


def generated(number: int) -> tuple[str, bytes]:
    """What was done ("" for nothing), and the evidence."""
    draw = random.Random(number)
    data = honest(draw.choice(sorted(KINDS)), rounds=4, seed=draw.randrange(SEEDS))
    if draw.random() < 0.2:
        return "", data
    if draw.random() < 0.15:
        return "cut", cut(data, draw)
    while True:
        name = draw.choice(sorted(SPOILS))
        found = SPOILS[name](Evidence.from_bytes(data), draw)
        if found is not None:
            return name, found.to_bytes()


def judged(number: int) -> None:
    what, data = generated(number)
    mine, theirs = verify(data, threads=1), second.check(data)
    assert mine.holds == (not what), (number, what, mine.problems)
    assert (not theirs) == (not what), (number, what, theirs)


@pytest.mark.parametrize("number", range(40))
def test_both_verifiers_find_every_tampering_and_accept_what_is_honest(number: int) -> None:
    judged(number)


@pytest.mark.long
def test_both_verifiers_agree_on_a_thousand_files() -> None:
    for number in range(1000, 2000):
        judged(number)


@pytest.mark.parametrize("kind", KINDS)
def test_both_verifiers_accept_honest_files_of_every_kind(kind: str) -> None:
    for seed in range(SEEDS):
        data = honest(kind, seed=seed)
        assert not verify(data, threads=1).problems
        assert second.check(data) == ""


@pytest.mark.parametrize("name", SPOILS)
def test_each_kind_of_tampering_is_found_by_both(name: str) -> None:
    draw = random.Random(5)
    tried = 0
    for kind in KINDS:
        found = SPOILS[name](Evidence.from_bytes(honest(kind)), draw)
        if found is not None:
            data = found.to_bytes()
            mine, theirs = verify(data, threads=1).problems, second.check(data)
            assert mine
            assert theirs
            for word in ("charge", "policy"):  # found for this reason and for no other
                assert not name.startswith(word) or all(word in problem for problem in (*mine, theirs))
            tried += 1
    assert tried

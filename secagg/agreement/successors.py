"""An agreement and the earlier ones on the same data that it names: they belong together; kept groups are theirs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from secagg.agreement.keeping import Kept, draw_kept, together
from secagg.agreement.terms import WHOLE, Terms
from secagg.arguments import has, ids
from secagg.errors import AgreementRefused, UsageError
from secagg.exposure.schedules import Drawn, Schedule
from secagg.types import ClientId


class Training(Protocol):
    """What the audit needs of an agreement."""

    @property
    def terms(self) -> Terms: ...
    @property
    def seed(self) -> bytes: ...
    @property
    def fingerprint(self) -> bytes: ...
    def cells(self, round: int) -> tuple[Drawn, ...]: ...


def successor_terms(earlier: Training, leavers: Iterable[ClientId], *, name: str, **changes: Any) -> Terms:
    """Terms of a successor that keeps the groups of an agreement, without these members and those they leave with.

    A group of `fixed` leaves as a whole, and with several groupings every group that is connected to it; with `atoms`,
    an atom. Without leavers all members go on in their groups. `changes` are other fields of the terms, such as the
    rounds.

    >>> from secagg.simulation import make_agreement
    >>> agreement, _ = make_agreement(members=9, size=3, length=4, clip=1.0)
    >>> terms = successor_terms(agreement, [4], name="without 4")
    >>> len(terms.members), 4 in terms.keep.dropped, terms.predecessors == (agreement.fingerprint,)
    (6, True, True)
    """
    has("earlier", earlier, "an agreement", "terms", "seed", "fingerprint")
    terms = earlier.terms
    gone = set(ids("leavers", leavers, terms.identities))
    if name == terms.name:
        raise UsageError(f"name: expected another name than {name!r}: a member signs one agreement per name")
    units = [set(unit) for unit in together(terms.keep, terms.schedule, terms.ids, earlier.seed)]
    while more := set().union(*(unit for unit in units if unit & gone)) - gone:
        gone |= more
    left = tuple(member for member in terms.members if member.id not in gone)
    if gone.issuperset(set().union(*units)):
        raise UsageError(f"leavers: {len(gone)} members would leave together, and no group would be left; agree anew")
    dropped = gone.union(terms.keep.dropped if terms.keep else ())
    fields: dict[str, Any] = {
        "name": name,
        "members": left,
        "predecessors": (*terms.predecessors, earlier.fingerprint),
        "keep": Kept(_origin(earlier), tuple(sorted(dropped))),
        "transport": terms.transport and terms.transport.without(terms.ids, gone),
    }
    return replace(terms, **fields | changes)


def drawn_cells(terms: Terms, seed: bytes, round: int) -> tuple[Drawn, ...]:
    """What this seed draws for a round of these terms: the groupings of each cell."""
    sample = terms.sample or None
    if terms.keep is None:
        return terms.schedule.draw_cells(terms.ids, seed, round, terms.cells, sample)
    return (draw_kept(terms.keep, terms.schedule, terms.ids, seed, round, sample),)


def check_earlier(training: Training, earlier: Sequence[Training]) -> None:
    """Everything that was agreed on the same data is there, and everybody is who they were in it."""
    named, terms = set(training.terms.predecessors), training.terms
    if named != {one.fingerprint for one in earlier}:  # audit: successor-with-all-predecessors
        missing = len(named - {one.fingerprint for one in earlier})
        raise AgreementRefused(
            f"predecessors: the agreement names {len(named)} earlier agreements on the same data; {missing} of them "
            f"are missing among the {len(earlier)} that were given; give exactly those"
        )
    known = {one.fingerprint: one for one in earlier}
    for one in earlier:
        if not named.issuperset(one.terms.predecessors):  # audit: successor-names-all
            raise AgreementRefused("predecessors: an earlier agreement has predecessors that this one does not name")
        _check_before(one.terms, [known[name] for name in one.terms.predecessors])  # audit: predecessors-checked-too
    _check_before(terms, earlier)


def _check_before(terms: Terms, earlier: Sequence[Training]) -> None:
    """Members and kept groups of an agreement are those of the agreements that it names."""
    for one in earlier:
        _check_members(terms, one.terms)
    if terms.keep is not None:
        _check_kept(terms, earlier)


def _check_members(terms: Terms, before: Terms) -> None:
    """A member has one id and one weight in all agreements on the same data, and an id has one member."""
    known = {member.identity: member.id for member in before.members}
    for member in terms.members:
        if known.get(member.identity, member.id) != member.id:  # audit: successor-keeps-ids
            raise AgreementRefused(
                f"members: member {member.id} was member {known[member.identity]} in an earlier agreement on the "
                "same data; a member keeps its id"
            )
        if before.identities.get(member.id, member.identity) != member.identity:  # audit: successor-ids-not-reused
            raise AgreementRefused(
                f"members: id {member.id} belonged to another identity in an earlier agreement on the same data; "
                "a new member, or a member with a new identity, needs an id that nobody had before"
            )
        if before.weights.get(member.id, member.weight) != member.weight:  # audit: successor-keeps-weights
            raise AgreementRefused(
                f"members: member {member.id} had weight {before.weights[member.id]} in an earlier agreement on "
                f"the same data and has {member.weight} now; the difference of two sums would show its update, so "
                "weights stay"
            )


def check_comparable(training: Training, earlier: Sequence[Training]) -> None:
    """What these agreements open is known beforehand, so that it can be judged together."""
    every = (*earlier, training) if earlier else ()
    # audit: successor-of-survivors
    if any(one.terms.groups != WHOLE and one.terms.schedule.name != "atoms" for one in every):
        raise AgreementRefused(
            "policy: with survivors, groups shrink with the dropouts, so nothing is promised over several agreements "
            "on the same data except with whole atoms. Set memory = 'round', which promises each round alone, or use "
            "groups = 'whole' or the schedule 'atoms' in all of them"
        )


def _check_kept(terms: Terms, earlier: Sequence[Training]) -> None:
    """The kept groups are those of an earlier agreement: the same seed, the same members, the same schedule."""
    kept = terms.keep
    assert kept is not None
    seeds = {_origin(one): one for one in earlier}
    if kept.seed not in seeds:  # audit: kept-seed-of-predecessor
        offers = ", ".join(seed.hex() for seed in seeds)
        raise AgreementRefused(
            f"groups.keep.seed: expected the seed that drew an earlier agreement's groups ({offers}), got "
            f"{kept.seed.hex()}"
        )
    one = seeds[kept.seed].terms
    before, now = _everybody(one), _everybody(terms)
    if before != now:  # audit: kept-members-of-predecessor
        change = [f"add {v} to dropped" for v in sorted(before - now)] + [
            f"{v} was no member" for v in sorted(now - before)
        ]
        raise AgreementRefused(f"groups.keep.dropped: members and dropped are not those of before: {change[0]}")
    if _drawn_by(one.schedule) != _drawn_by(terms.schedule):  # audit: kept-schedule-of-predecessor
        raise AgreementRefused(
            f"groups.keep: expected the schedule of the earlier agreement, {one.schedule}, got {terms.schedule}; only "
            "groups of atoms may have another size"
        )


def _origin(training: Training) -> bytes:
    """The seed that drew the groups or atoms."""
    return training.terms.keep.seed if training.terms.keep else training.seed


def _everybody(terms: Terms) -> set[ClientId]:
    return {*terms.ids, *(terms.keep.dropped if terms.keep else ())}


def _drawn_by(schedule: Schedule) -> tuple[object, ...]:
    """What decides the lasting groups or atoms, besides members and seed."""
    return (schedule.name, schedule.atom) if schedule.atom else (schedule.name, schedule.size, schedule.groupings)

"""What the permitted groups of an agreement reveal, computed once, before anything is sent.

The groups of all rounds follow from the agreement. `audit_round` judges the groups of each round alone;
`audit_training` judges those of all rounds together, and of earlier agreements on the same data. Schedules with
structure need little work: `fixed` opens the same groups in every round; with `atoms`, every sum is a combination of
the atoms' sums, so the atoms themselves bound what any number of rounds reveals. For other schedules the groups are
drawn and judged.

Whole groups have nothing else to reveal. With survivors, groups shrink with the dropouts: there the clients judge each
round's survivors again before they unmask, and this module judges the round in which nobody drops out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from secagg.agreement.keeping import lasting_atoms, lasting_groupings
from secagg.agreement.successors import Training, check_comparable, check_earlier
from secagg.agreement.terms import WHOLE, Terms
from secagg.arguments import each, has
from secagg.errors import AgreementRefused
from secagg.exposure.audit import REPORT_EVEN_IF_EXPOSED, Anonymity, Verdict, audit
from secagg.exposure.schedules import Drawn
from secagg.types import ClientId, Group, Grouping

SLACK: Final = 1e-9  # as in the audit of a run: a computed 1/3 can be slightly above a written 1/3
REPORTED_ROUNDS: Final = 10  # where every round differs and nothing is enforced, the report looks at the first
FEW_GROUPS: Final = 64  # so many are always judged together, however few members there are
MOST_PLACES: Final = 2**22  # members times groupings times rounds, where each round must be judged by itself
Weights = Mapping[ClientId, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Permitted:
    """What a set of permitted groups reveals together: of one round, or of all rounds.

    `leverage` is the highest of any client, `worst`; `bound` says that it is an upper bound and not computed exactly.
    `objections` say where the groups break the policy. `partial` says that not all rounds were judged: together,
    the first `rounds` reveal this much already; alone, the first few were looked at.

    >>> from secagg.simulation import make_agreement
    >>> agreement, _ = make_agreement(members=6, size=3, length=4, clip=1.0, rounds=100)
    >>> found = audit_training(agreement)
    >>> str(found.anonymity), found.rounds, sorted(found.exposed)
    ('T = 3 (exact)', 100, [])
    """

    rounds: int
    anonymity: Anonymity
    exposed: frozenset[ClientId]
    leverage: float
    worst: ClientId
    objections: tuple[str, ...] = ()
    bound: bool = False
    partial: bool = False


def audit_round(training: Training) -> Permitted:
    """What the groups of one round reveal, in the worst round of the agreement.

    >>> from secagg.simulation import make_agreement
    >>> agreement, _ = make_agreement(members=12, size=4, length=1, clip=1.0)
    >>> audit_round(agreement).leverage
    0.25
    """
    has("training", training, "an agreement", "terms", "seed", "cells")
    terms = training.terms
    found = _audit_round(training)
    return _with_roll_call(terms, found) if terms.roll_call and terms.varying else found


def _with_roll_call(terms: Terms, found: Permitted) -> Permitted:
    """What a round reveals if the server says who is present: sums of disjoint sets that keep the policy."""
    least = terms.least_summed
    squares = sorted(weight**2 for weight in terms.weights.values())
    heaviest = squares[-1] / (squares[-1] + sum(squares[: least - 1]))
    return replace(
        found,
        anonymity=Anonymity(least, least, "the fewest members of a roll call"),  # audit: roll-call-anonymity
        leverage=min(terms.policy.max_leverage, heaviest),
        bound=True,
    )


def _audit_round(training: Training) -> Permitted:
    terms, schedule = training.terms, training.terms.schedule
    if schedule.name == "fixed":
        return _judge(terms, _all_fixed(training), rounds=1)
    if schedule.groupings == 1 and not _weighted(terms):
        return _judge(terms, _groupings(training, terms.first_round), rounds=1)
    if schedule.name == "atoms":
        found = _judge(terms, (_atoms(training),), rounds=1)
        if not found.objections:
            return replace(found, bound=True)
    if schedule.name == "transversal" and not _weighted(terms):  # all rounds are alike up to the clients' names
        return _judge_drawn(training, terms.first_round)
    return _judge_each(training)


def _judge_each(training: Training) -> Permitted:
    """The worst round, where rounds differ. The first that breaks an enforced policy is enough to refuse it."""
    terms = training.terms
    if terms.policy.enforced and len(terms.ids) * terms.schedule.groupings * terms.round_count > MOST_PLACES:
        raise AgreementRefused(
            f"policy: {terms.round_count} rounds of {terms.schedule.groupings} new groupings of {len(terms.ids)} "
            "members are too many to judge beforehand; use the schedule 'fixed' or 'atoms', or fewer rounds"
        )
    rounds = terms.rounds if terms.policy.enforced else terms.rounds[:REPORTED_ROUNDS]
    worst = None
    for round in rounds:
        found = _judge_drawn(training, round)
        if worst is None or _badness(found) > _badness(worst):
            worst = found
        if found.objections and (terms.policy.enforced or len(found.exposed) == len(terms.ids)):
            return found
    assert worst is not None
    return replace(worst, partial=len(rounds) < terms.round_count)


def _badness(found: Permitted) -> tuple[int, int, float]:
    return len(found.objections), len(found.exposed), found.leverage


def audit_training(training: Training, earlier: Iterable[Training] | None = ()) -> Permitted:
    """What the groups of all rounds, and of earlier agreements on the same data, reveal together.

    `earlier` None judges the agreement alone, whatever predecessors it names. The worst case: every update is the same
    in all rounds, up to a factor and an offset that all clients share.

    >>> from secagg.simulation import make_agreement
    >>> agreement, _ = make_agreement(members=12, size=6, length=1, clip=1.0, rounds=9, schedule="atoms", atom=3)
    >>> audit_training(agreement).anonymity.lower  # the size of an atom
    3
    """
    has("training", training, "an agreement", "terms", "seed", "cells")
    before = None if earlier is None else each("earlier", earlier, object)
    for one in before or ():
        has("earlier, each", one, "an agreement", "terms", "seed", "cells")
    return _judge_union(training, before)  # type: ignore[arg-type]


def _judge_union(training: Training, earlier: tuple[Training, ...] | None) -> Permitted:
    terms = training.terms
    if earlier is not None:
        check_earlier(training, earlier)
        check_comparable(training, earlier)
    if terms.round_count == 1 and not earlier:
        return audit_round(training)
    if _can_differ_by_one((*(earlier or ()), training)):  # audit: varying-sums-not-compared
        return _anybody_exposed(terms)
    spans = [_over_rounds(one) for one in (*(earlier or ()), training)]
    union = list(dict.fromkeys(grouping for span in spans for grouping in span.groupings))
    partial, rounds = not all(span.whole for span in spans), spans[-1].rounds
    found = _everybody_exposed(terms, union, rounds) if partial else None
    found = found or _judge(terms, union, rounds=rounds, earlier=[one.terms for one in earlier or ()])
    if partial and not found.objections:
        found = replace(found, objections=("there are too many different groups to judge them together",))
    return replace(found, bound=not all(span.exact for span in spans), partial=partial)


def _can_differ_by_one(every: Sequence[Training]) -> bool:
    """Whether two of the sums can have the same members but one: after a roll call, or because a member released one.

    In one agreement, a member that releases a round knows that it has answered or will answer others.
    """
    return any(one.terms.varying and (one.terms.roll_call or len(every) > 1) for one in every)


def _anybody_exposed(terms: Terms) -> Permitted:
    return Permitted(
        rounds=terms.round_count,
        anonymity=Anonymity(1, 1, "two sums can differ by one member"),
        exposed=frozenset(terms.ids),
        leverage=1.0,
        worst=terms.ids[0],
        objections=("sums of members that were present or had not released can differ by one member",),
        bound=True,
    )


def _everybody_exposed(terms: Terms, groupings: Sequence[Grouping], rounds: int) -> Permitted | None:
    """The judgement if these groups expose every member in them, which is found quickly; None if they do not."""
    from secagg.exposure.incidence import Incidence
    from secagg.exposure.rowspace import RowSpace  # imports numba

    members = set(chain.from_iterable(chain.from_iterable(groupings)))
    rows = Incidence(groupings, members, plan_hash=terms.hash)
    space = RowSpace(len(rows.clients), rows.field)
    if not any(space.add(row) and space.rank == len(members) for row in rows.index.values()):
        return None
    return Permitted(
        rounds=rounds,
        anonymity=Anonymity(1, 1, "everybody is exposed"),
        exposed=frozenset(members),
        leverage=1.0,
        worst=min(members),
        objections=("the server would learn every update",),
    )


def check_policy(training: Training, earlier: tuple[Training, ...] | None = None) -> None:
    """AgreementRefused, with what would fit, if the permitted groups break the agreement's own policy.

    `earlier` None judges the agreement alone, whatever predecessors it names. With survivors the clients judge each
    run alone, so here only what several rounds reveal together is judged: the atoms.
    """
    terms = training.terms
    over_all = terms.policy.memory == "training"
    together = over_all and (terms.round_count > 1 or bool(earlier))
    if not terms.policy.enforced or (terms.groups != WHOLE and not together):  # audit: survivors-atoms-judged
        return
    found = _judge_union(training, earlier) if over_all else audit_round(training)
    if found.objections:  # audit: agreement-keeps-policy
        raise AgreementRefused(_refusal(terms, found, together))


def _refusal(terms: Terms, found: Permitted, over_all: bool) -> str:
    schedule, policy = terms.schedule, terms.policy
    what = f"{schedule.groupings} {schedule.name} grouping{'s' * (schedule.groupings > 1)} in groups of {schedule.size}"
    verb = "break" if schedule.groupings > 1 else "breaks"
    alike = schedule.name in ("fixed", "atoms")  # then the number of rounds does not matter
    count = f"the first {found.rounds}" if found.partial else "all" if alike else found.rounds
    where = f"over {count} rounds together" if over_all else "in one round"
    exposed = f"{len(found.exposed)} of {len(terms.members)} members would be exposed; " if found.exposed else ""
    offers = list(_offers(terms, over_all))
    return (
        f"policy: {what} {verb} the policy {where}: {exposed}{found.objections[0]}. Instead: {'; or '.join(offers)} "
        f"(anonymity {policy.anonymity}, max_leverage {policy.max_leverage:g})"
    )


def _offers(terms: Terms, over_all: bool) -> Iterator[str]:
    schedule, policy = terms.schedule, terms.policy
    least = max(policy.anonymity, policy.min_survivors, -int(-1 // (policy.max_leverage + SLACK)))
    if over_all and schedule.name in ("random", "transversal"):
        yield (
            f"{schedule.name} groups are new in every round and pass for single rounds only: use the schedule 'fixed', "
            f"or 'atoms' with atom = {least}"
        )
        yield (
            "set memory = 'round', which promises each round alone: a server that sees similar updates in several "
            "rounds can combine them"
        )
    elif schedule.groupings > 1:
        yield f"use fewer groupings, larger groups, or the schedule 'atoms' with atom = {least}"
    elif min(schedule.size, schedule.atom or schedule.size) < least:
        yield f"use groups{' and atoms' if schedule.atom else ''} of at least {least} members"
    else:
        yield f"use larger groups{' and atoms' if schedule.atom else ''}"
    if _weighted(terms):
        yield "make the members' weights more equal"


# The groups


def _groupings(training: Training, round: int) -> tuple[Grouping, ...]:
    """The groupings of a round over all cells."""
    parts = (cell.groupings for cell in training.cells(round))
    return tuple(tuple(chain.from_iterable(part)) for part in zip(*parts, strict=True))


def _all_fixed(training: Training) -> tuple[Grouping, ...]:
    """Every group that a fixed schedule can open, whatever is sampled."""
    terms = training.terms
    if not terms.sample:
        return _groupings(training, terms.first_round)
    return lasting_groupings(terms.keep, terms.schedule, terms.ids, training.seed)


def _atoms(training: Training) -> Grouping:
    terms = training.terms
    return lasting_atoms(terms.keep, terms.schedule, terms.ids, training.seed)


@dataclass(frozen=True, slots=True)
class _Span:
    """Groupings that span what `rounds` rounds open: all rounds (`whole`), and no more than they open (`exact`)."""

    groupings: Sequence[Grouping]
    rounds: int
    whole: bool = True
    exact: bool = True


def _over_rounds(training: Training) -> _Span:
    terms, schedule = training.terms, training.terms.schedule
    if schedule.name == "fixed":
        return _Span(_all_fixed(training), terms.round_count)
    if schedule.name == "atoms" and terms.groups != WHOLE:  # groups shrink by whole atoms
        return _Span((_atoms(training),), terms.round_count, exact=False)
    if schedule.size == len(terms.members) or terms.round_count == 1:  # one group of all, in every round
        return _Span(_groupings(training, terms.first_round), terms.round_count)
    if schedule.name == "atoms":
        return _Span((_atoms(training),), terms.round_count, exact=False)
    found, groups = list[Grouping](), 0
    for rounds, round in enumerate(terms.rounds):
        if 10 * groups > 12 * len(terms.members) and groups > FEW_GROUPS:  # enough to expose everybody, if they differ
            return _Span(found, rounds, whole=False)
        groupings = _groupings(training, round)
        groups += sum(map(len, groupings))
        found += groupings
    return _Span(found, terms.round_count)


# The judgement


def _weighted(terms: Terms) -> bool:
    """Whether updates enter the sums with different weights. Integers are never weighted."""
    return len(set(terms.weights.values())) > 1 and any(segment.clip is not None for segment in terms.segments)


def _weightings(terms: Terms, earlier: Sequence[Terms] = ()) -> list[Weights]:
    """The weights of floats, and those of integers if the vectors have both kinds. Leavers keep theirs."""
    every = (*earlier, terms)
    integers = any(segment.bound is not None for one in every for segment in one.segments)
    floats = any(segment.clip is not None for one in every for segment in one.segments)
    weights = {client: weight for one in every for client, weight in one.weights.items()}  # audit: leavers-weigh-too
    weighted = floats and len(set(weights.values())) > 1
    return [weights] + [None] * integers if weighted else [None]  # audit: audit-counts-weights


def _judge_drawn(training: Training, round: int) -> Permitted:
    (cell,) = cells if len(cells := training.cells(round)) == 1 else (Drawn(_groupings(training, round)),)
    return _judge(training.terms, cell.groupings, rounds=1, columns=cell.columns)


def _judge(
    terms: Terms,
    groupings: Sequence[Grouping],
    *,
    rounds: int,
    columns: Sequence[Group] = (),
    earlier: Sequence[Terms] = (),
) -> Permitted:
    """What these groups reveal together, and where they break the policy. Some may be groups of `earlier` terms."""
    weightings = _weightings(terms, earlier)
    groups = list(dict.fromkeys(chain.from_iterable(groupings)))
    members = list(chain.from_iterable(groups))
    if len(set(members)) == len(members):
        every = [_judge_disjoint(terms, groups, weights, rounds) for weights in weightings]
    else:
        policy = replace(terms.policy, mode=REPORT_EVEN_IF_EXPOSED)
        every = [
            _permitted(
                terms,
                audit(groupings, set(members), policy, weights=weights, plan_hash=terms.hash, columns=columns),
                rounds,
            )
            for weights in weightings
        ]
    return max(every, key=lambda found: (len(found.objections), found.leverage))


def _judge_disjoint(terms: Terms, groups: Sequence[Group], weights: Weights, rounds: int) -> Permitted:
    """Groups that share no client: the server learns their sums and nothing else."""
    policy = terms.policy
    least, limit = max(policy.anonymity, policy.min_survivors), policy.max_leverage
    smallest = min(groups, key=len)
    squares = [[1.0 if weights is None else float(weights[v]) ** 2 for v in group] for group in groups]
    worst = max((max(row) / sum(row), k) for k, row in enumerate(squares))
    leverage, client = worst[0], groups[worst[1]][squares[worst[1]].index(max(squares[worst[1]]))]
    objections = []
    if len(smallest) < least:
        objections.append(f"a group has {len(smallest)} members, fewer than {least}")
    if leverage > limit + SLACK:
        objections.append(f"the leverage of client {client} would be {leverage:.3f}, above {limit:g}")
    return Permitted(
        rounds=rounds,
        anonymity=Anonymity(len(smallest), len(smallest), "the groups share no client"),
        exposed=frozenset(chain.from_iterable(group for group in groups if len(group) == 1)),
        leverage=leverage,
        worst=client,
        objections=tuple(objections),
    )


def _permitted(terms: Terms, verdict: Verdict, rounds: int) -> Permitted:
    anonymity, objections = verdict.anonymity, tuple(verdict.objections.values())
    if not objections and anonymity.lower < terms.policy.anonymity:  # the decision went further than the report
        anonymity = replace(anonymity, lower=terms.policy.anonymity)
    worst = max(verdict.leverage, key=lambda client: verdict.leverage[client])
    return Permitted(
        rounds=rounds,
        anonymity=anonymity,
        exposed=verdict.exposed,
        leverage=verdict.leverage[worst],
        worst=worst,
        objections=objections,
    )

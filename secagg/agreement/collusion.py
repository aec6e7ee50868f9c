"""How likely it is that colluders leave an honest client alone in its group.

A group sum hides a member only among its honest members. Colluders that were fixed before the seed fall into random
groups, so this is a matter of chance, and `alone_in_grouping` computes it exactly. `alone` does so for a round, or all
rounds, of an agreement, or bounds it where groupings depend on each other.

With survivors the server also chooses who drops out, up to the threshold, and with a roll call it says who is present.
It leaves the victim with as many others as the policy demands, all of them colluders. So a group is counted if it has
that many colluders.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import comb, expm1, log1p, sqrt

from secagg.agreement.terms import Terms
from secagg.arguments import instance, real, whole
from secagg.errors import UsageError


@dataclass(frozen=True, slots=True)
class Risk:
    """A probability: exact (up to rounding of the last digits), or an upper bound.

    >>> str(Risk(0.25, exact=True)), str(Risk(0.5, exact=False))
    ('0.25', 'at most 0.5')
    """

    probability: float
    exact: bool

    def __str__(self) -> str:
        return f"{'' if self.exact else 'at most '}{self.probability:.2g}"


def alone_in_grouping(members: int, colluders: int, *, size: int, groups: int, least: int = 0) -> float:
    """The probability that some group of one random grouping has an honest member and `least` - 1 or more colluders.

    `least` 0 stands for the group size: all members of the group but one collude. Members outside the groups were left
    out at random. Of all C(members, colluders) sets of colluders, those that leave every group in order number the
    coefficient of x^colluders in G(x)^groups (1 + x)^rest. G has a term C(size, j) x^j for every number j of
    colluders that a group may have: fewer than `least` - 1, or all of it.

    >>> [round(alone_in_grouping(60, 12, size=m, groups=60 // m), 3) for m in (3, 4, 5, 6)]
    [0.924, 0.301, 0.052, 0.008]
    """
    members, colluders = whole("members", members), whole("colluders", colluders)
    size, groups = whole("size", size), whole("groups", groups)
    least = whole("least", least) or size
    rest = members - size * groups
    if not (0 <= colluders <= members and 2 <= least <= size and rest >= 0 and groups >= 1):
        raise UsageError(f"no {groups} groups of {size} (least {least}) among {members} with {colluders} colluders")
    return _alone_in_grouping(members, colluders, size, groups, least)


@lru_cache(maxsize=256)
def _alone_in_grouping(members: int, colluders: int, size: int, groups: int, least: int) -> float:
    rest = members - size * groups
    group = [comb(size, j) if j < least - 1 or j == size else 0 for j in range(size + 1)]
    good = _power(group, groups, colluders)
    in_order = sum(good[colluders - j] * comb(rest, j) for j in range(min(rest, colluders) + 1))
    ways = comb(members, colluders)
    return (ways - in_order) / ways


def _power(polynomial: list[int], exponent: int, degree: int) -> list[int]:
    """The coefficients of polynomial^exponent up to a degree; the polynomial's constant term is 1.

    Q = P^e satisfies P Q' = e P' Q, so k q_k is the sum over i >= 1 of (i e - k + i) p_i q_(k-i).
    """
    terms = [(i, p) for i, p in enumerate(polynomial) if i and p]
    power = [1]
    for k in range(1, degree + 1):
        power.append(sum((i * exponent - k + i) * p * power[k - i] for i, p in terms if i <= k) // k)
    return power


def alone(terms: Terms, colluders: int, *, rounds: int = 1) -> Risk:
    """The probability that, in some of this many rounds, an honest client is alone in its group among colluders.

    The colluders are fixed before the seed. Independent groupings give an exact result; groupings that depend on each
    other give a bound, the sum of their probabilities. With atoms, several groupings show the atoms' sums, so a client
    counts that is alone in its atom. With other schedules, sums of groups that overlap can isolate more clients than
    those that are alone in one group.

    >>> from secagg.simulation import make_agreement
    >>> agreement, _ = make_agreement(members=60, size=6, length=1, clip=1.0, rounds=200)
    >>> str(alone(agreement.terms, 12, rounds=200))
    '0.0076'
    """
    colluders, rounds = whole("colluders", colluders, 0), whole("rounds", rounds, 1)
    if instance("terms", terms, Terms).groups == "survivors" and not terms.policy.enforced:
        return Risk(1.0, exact=True)  # groups with one survivor are opened too
    schedule, n = terms.schedule, len(terms.members)
    if schedule.name == "atoms" and (rounds > 1 or schedule.groupings > 1 or terms.groups == "survivors"):
        return Risk(alone_in_grouping(n, colluders, size=schedule.atom, groups=n // schedule.atom), exact=False)
    once = schedule.name == "fixed"
    drawn = n if once else terms.drawn  # over the rounds, every fixed group is drawn
    groups = schedule.groups(drawn)
    one = alone_in_grouping(n, colluders, size=schedule.size, groups=groups, least=least_left(terms))
    independent = schedule.name in ("random", "fixed") and groups * schedule.size == n
    per_round = _repeat(Risk(one, exact=True), schedule.groupings, independent)
    return per_round if once else _repeat(per_round, rounds, independent=True)


def _repeat(risk: Risk, times: int, independent: bool) -> Risk:
    if times == 1 or risk.probability in (0.0, 1.0):
        return risk
    if independent:
        return Risk(-expm1(times * log1p(-risk.probability)), risk.exact)
    return Risk(min(1.0, times * risk.probability), exact=False)


def least_left(terms: Terms) -> int:
    """The fewest members that a server can leave in a group that is still opened."""
    size, policy = terms.schedule.size, terms.policy
    if terms.groups == "whole":
        return min(size, terms.least_summed) if terms.roll_call else size  # audit: roll-call-collusion
    least = max(policy.anonymity, policy.min_survivors)
    if terms.degree:  # the threshold counts neighbours and does not bound the dropouts
        return min(least, size)
    return min(size, max(least, size - max(cell - terms.threshold_of(cell) for cell in terms.cells)))


def correlation(leverage: float) -> float:
    """The correlation of the best least-squares estimate of an update with that update: the root of its leverage.

    It holds for independent updates of equal variance (docs/exposure.md, section 4, has the proof). What updates
    have in common raises it.

    >>> round(correlation(0.5), 3), round(correlation(0.8), 3)
    (0.707, 0.894)
    """
    if not 0 <= real("leverage", leverage) <= 1:
        raise UsageError(f"leverage: expected 0 to 1, got {leverage}")
    return sqrt(leverage)


def certain_colluders(anonymity: int) -> int:
    """The number of colluders, whoever they are, that learn no other update from sums with this T.

    >>> certain_colluders(3)
    1
    """
    return max(0, anonymity - 2)

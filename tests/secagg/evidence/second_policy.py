"""What noise costs, and what permitted sums reveal: for the second verifiers. It imports nothing of secagg.

docs/evidence.md has all of it ("What a record costs", "What an agreement permits"). It computes in fractions and
decimals, and tries all sets of colluders and of clients, so it is for small groups.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache
from itertools import chain, combinations

from tests.secagg.second import leverages, rank
from tests.secagg.second_whole import ATOMS, FIXED, Agreement, Drawing, Group, Refused, need

Members = tuple[int, ...]
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
RHO, ETA, MOST = 2**40, 2**60, 2**63 - 1  # units in one, and the largest number of them
TINY, STEPS = Fraction(1, 10**9), 2**24
Cost = tuple[int, int]  # rho and eta, in units


# --- what a record costs ------------------------------------------------------------------------------------


def check_charge(found: Sequence[Cost], costs: Collection[Cost]) -> None:
    """A record charges the largest rho and the largest eta of these; nothing if there are none."""
    need(len(found) == bool(costs), "there is a charge exactly if something is charged")
    for rho, eta in found:
        need(rho == max(cost[0] for cost in costs), "the charge has the largest rho")
        need(eta == max(cost[1] for cost in costs), "the charge has the largest eta")


@cache
def smoothed(kernel: int, square: int, sigma: int, length: int) -> Fraction:
    """The eta of one segment, for a lattice of this rank, whose vectors have this squared norm."""
    if not kernel:
        return Fraction(0)
    with localcontext() as context:
        context.prec, more = 400, 1 + Decimal("1e-9")  # e can be as small as exp(-700)
        exponent = 2 * PI**2 * sigma**2 / square * (1 - Decimal("1e-12"))
        if exponent > 700:
            e = 2 * kernel * Decimal(-700).exp()
        else:
            grown = exponent.exp() - 2 * kernel
            need(grown > 0, "the noise is large enough for the grid")
            e = 2 * kernel / grown * more
        need(e < 1, "the noise is large enough for the grid")
        eta = Fraction(length * ((1 + e) / (1 - e)).ln() * more)
    power = 0
    while eta * Fraction(2) ** power < 2**31:
        power += 1
    while eta * Fraction(2) ** power >= 2**32:
        power -= 1
    return math.ceil(eta * Fraction(2) ** power) / Fraction(2) ** power


def cost(agreement: Agreement, who: int, share: Fraction, kernel: int = 0, square: int = 2) -> Cost:
    """For a member with this leverage."""
    terms, rho, eta = agreement.terms, Fraction(0), Fraction(0)
    assert terms.noise is not None
    for part, one in zip(terms.segments, terms.noise.segments, strict=True):
        norm = part.norm(one.clip, terms.relative(who), terms.size)
        rho += share * Fraction(norm**2, 2 * one.sigma**2)
        if share < 1:
            eta += smoothed(kernel, square, one.sigma, part.length)
    return min(MOST, math.ceil(rho * RHO)), min(MOST, math.ceil(eta * ETA))


def own(agreement: Agreement, who: int) -> Cost:
    """By the member's own noise alone."""
    return cost(agreement, who, Fraction(1))


def flat(agreement: Agreement, who: int, members: int) -> Cost:
    """One sum of this many members."""
    assert agreement.terms.noise is not None
    return cost(agreement, who, Fraction(1, max(1, members - agreement.terms.noise.colluders)), members - 1)


def crossed(agreement: Agreement, who: int, groupings: Iterable[Iterable[Members]]) -> Cost:
    """Several groupings. Only what is connected with the member counts, and equal groupings count once."""
    assert agreement.terms.noise is not None
    parts, k = connected(groupings, who), agreement.terms.noise.colluders
    if len(parts) == len(parts[0]) == 1:
        return flat(agreement, who, len(parts[0][0]))
    clients = {v for part in parts for group in part for v in group}
    if k > 2 or len(clients) > (600 if len(parts) == 2 else 100):
        return own(agreement, who)
    exact = worst(tuple(sorted(set(chain.from_iterable(parts)))), who, k)
    share = min(Fraction(1), Fraction(math.ceil((exact + TINY) * STEPS), STEPS))
    if len(parts) == 2:
        return cost(agreement, who, share, len(clients) - 1, 2 * min(map(len, parts)))
    return cost(agreement, who, share, *lattice(tuple(chain.from_iterable(parts)), k))


def connected(groupings: Iterable[Iterable[Members]], who: int) -> list[tuple[Members, ...]]:
    known, there = [sorted(tuple(sorted(group)) for group in grouping) for grouping in groupings], {who}
    while more := {v for group in chain.from_iterable(known) if there & set(group) for v in group} - there:
        there |= more
    parts = [tuple(group for group in grouping if there & set(group)) for grouping in known]
    return list(dict.fromkeys(part for part in parts if part))


@cache
def worst(groups: tuple[Members, ...], who: int, k: int) -> Fraction:
    """The highest leverage of a client, whichever k others collude, in the groups without those."""
    clients = sorted(set(chain.from_iterable(groups)))
    others, found = [v for v in clients if v != who], Fraction(0)
    for gone in combinations(others, min(k, len(others))):
        left = [v for v in clients if v not in gone]
        found = max(found, leverages(independent([[Fraction(v in g) for v in left] for g in groups]))[left.index(who)])
    return found


def independent(rows: Iterable[list[Fraction]]) -> list[list[Fraction]]:
    kept: list[list[Fraction]] = []
    for row in rows:
        if any(row) and rank([*kept, row]) > len(kept):
            kept.append(row)
    return kept


@cache
def lattice(groups: tuple[Members, ...], k: int) -> tuple[int, int]:
    """The rank and the squared norm for three groupings or more: the basis of the kernel by the free columns."""
    clients = sorted(set(chain.from_iterable(groups)))
    rows, pivots = [[Fraction(v in g) for v in clients] for g in groups], list[int]()
    for column in range(len(clients)):
        there = [row for row in rows[len(pivots) :] if row[column]]
        if not there:
            continue
        rows.remove(there[0])
        top = [x / there[0][column] for x in there[0]]
        rows = [[x - row[column] * y for x, y in zip(row, top, strict=True)] for row in rows]
        rows.insert(len(pivots), top)
        pivots.append(column)
    basis = []
    for free in sorted(set(range(len(clients))) - set(pivots)):
        vector = [Fraction(column == free) for column in range(len(clients))]
        for row, pivot in zip(rows, pivots, strict=False):
            vector[pivot] = -row[free]
        whole = math.lcm(*(x.denominator for x in vector))
        basis.append([int(x * whole) for x in vector])
    square = max((sum(x * x for x in vector) for vector in basis), default=0)
    entry = max((abs(x) for vector in basis for x in vector), default=0)
    for _ in range(k):
        square, entry = max(square, 4 * entry**2 * square), max(entry, 2 * entry**2)
    return len(basis), square


def of_round(agreement: Agreement, t: int, complete: Mapping[Group, Sequence[int]]) -> list[Cost]:
    """What all pay who were asked in a round with whole groups."""
    terms = agreement.terms
    if terms.noise is None:
        return []
    found = []
    for who, count in {who: len(members) for members in complete.values() for who in members}.items():
        if agreement.is_flat(t) or terms.groupings == 1:
            found.append(flat(agreement, who, count))
        elif terms.schedule == ATOMS:
            found.append(flat(agreement, who, terms.atom))
        else:
            found.append(crossed(agreement, who, agreement.groupings(t)))
    return found


def reserved(agreement: Agreement, senders: Iterable[int]) -> list[Cost]:
    """What those reserve who send masked vectors in a run with survivors."""
    terms = agreement.terms
    if terms.noise is None:
        return []
    if terms.mode == 0 and (terms.schedule == ATOMS or terms.groupings == 1):
        least = terms.atom or max(terms.anonymity, terms.min_survivors)
        return [flat(agreement, who, least) for who in senders]
    return [own(agreement, who) for who in senders]


def settled(agreement: Agreement, senders: Iterable[int], summed: Iterable[Sequence[int]]) -> list[Cost]:
    """What those pay in the end who unmask the sums of these members."""
    if agreement.terms.noise is None:
        return []
    groupings = [[tuple(group)] for group in summed if group]
    there = {v for (group,) in groupings for v in group}
    found = []
    for who in senders:
        try:
            found.append(crossed(agreement, who, groupings) if who in there else (0, 0))
        except Refused:  # too little noise for the grid
            found += reserved(agreement, [who])
    return found


# --- what an agreement permits ------------------------------------------------------------------------------


def lasting(agreement: Agreement) -> list[Members]:
    """The groups of fixed groupings, or the atoms: those that no round draws again."""
    terms, here, draw = (
        agreement.terms,
        set(agreement.terms.ids),
        Drawing(agreement.terms, agreement.terms.ids, agreement.seed),
    )
    for seed, dropped in terms.keep:
        draw = Drawing(terms, sorted({*terms.ids, *dropped}), seed)
    units = draw.atoms() if terms.schedule == ATOMS else chain.from_iterable(draw.fixed())
    return [unit for unit in units if here.issuperset(unit)]


def keeps(agreement: Agreement, groups: Collection[Members]) -> bool:
    """Whether the sums of these groups together keep the policy."""
    terms, weights = agreement.terms, [member.weight for member in agreement.terms.members]
    if min(map(len, groups)) < max(terms.anonymity, terms.min_survivors):
        return False
    clients = sorted(set(chain.from_iterable(groups)))
    rows = independent([Fraction(v in group) for v in clients] for group in dict.fromkeys(groups))
    for count in range(1, terms.anonymity):
        for few in combinations(range(len(clients)), count):
            rest = [[x for place, x in enumerate(row) if place not in few] for row in rows]
            if not rest[0] or rank(rest) < len(rows):
                return False
    scales = [[1] * len(clients)]
    if any(part.floats for part in terms.segments) and len(set(weights)) > 1:
        weighted = [terms.member(v).weight for v in clients]
        scales = [weighted] if all(part.floats for part in terms.segments) else [weighted, *scales]
    limit = Fraction(terms.max_leverage) + Fraction(1, 10**9)
    scaled = [[[x * s for x, s in zip(row, scale, strict=True)] for row in rows] for scale in scales]
    return all(max(leverages(matrix)) <= limit for matrix in scaled)


KEPT: dict[bytes, bool] = {}  # by fingerprint


def check_policy(agreement: Agreement) -> None:
    """The permitted groups keep the policy; with survivors, as far as it follows from the terms."""
    if agreement.fingerprint not in KEPT:
        try:
            _check_policy(agreement)
            KEPT[agreement.fingerprint] = True
        except Refused:
            KEPT[agreement.fingerprint] = False
    need(KEPT[agreement.fingerprint], "the permitted groups keep the policy")


def _check_policy(agreement: Agreement) -> None:
    terms = agreement.terms
    if terms.mode == 1:
        return
    several, over_all = terms.last_round > terms.first_round, terms.memory == 0
    least = max(terms.anonymity, terms.min_survivors)
    need(terms.size >= least and (not terms.atom or terms.atom >= least), "groups and atoms are large enough")
    if terms.groups == 1:
        need(not (over_all and several) or terms.schedule == ATOMS, "survivors promise rounds alone, except with atoms")
        need(not (over_all and several) or keeps(agreement, lasting(agreement)), "atoms keep the policy")
        return
    rounds = [list(agreement.groups(t).values()) for t in range(terms.first_round, terms.last_round + 1)]
    if terms.schedule == FIXED:
        need(keeps(agreement, lasting(agreement)), "fixed groups keep the policy")
    elif over_all and several and terms.size == len(terms.members):
        need(keeps(agreement, rounds[0]), "one group keeps the policy")
    elif over_all and several and terms.schedule == ATOMS:
        need(keeps(agreement, lasting(agreement)), "atoms keep the policy")
    elif over_all and several:
        need(keeps(agreement, list(chain.from_iterable(rounds))), "all rounds together keep the policy")
    elif terms.schedule != ATOMS or not keeps(agreement, lasting(agreement)):
        need(all(keeps(agreement, groups) for groups in rounds), "each round keeps the policy")

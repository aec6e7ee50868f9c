"""The plan of a cell that follows from an agreement, for the second verifier of runs. It imports nothing of secagg.

docs/protocol.md, sections 4 and 5, and docs/sparse.md have all of it. It does not know cells of the
transversal schedule, nor cells of a sample.
"""

import struct
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, chain, pairwise
from math import comb

from tests.secagg.second import Plan, blob, ids, many, u32, u64
from tests.secagg.second_whole import ATOMS, FIXED, TRANSVERSAL, Agreement, Drawing, Grouping, Terms, need

RISK = Fraction(1, 2**40)
Cell = tuple[list[Grouping], list[tuple[int, ...]]]  # its groupings, and its atoms


def sizes(terms: Terms) -> list[int]:
    """How many clients each cell of a round has."""
    n, m, most = terms.sample or len(terms.ids), terms.size, terms.cell  # type: ignore[attr-defined]
    if not most or n <= most:
        return [n // m * m]
    need(terms.schedule != TRANSVERSAL and not terms.sample, "cells that this verifier knows")
    groups, count = n // m, -(-(n // m) // (most // m))
    return [m * (groups // count + (k < groups % count)) for k in range(count)]


def cells(agreement: Agreement, t: int) -> list[Cell]:
    """Who is in which cell of a round, and in which group of it."""
    terms, each = agreement.terms, sizes(agreement.terms)
    draw = Drawing(terms, terms.ids, agreement.seed)
    if len(each) == 1:
        groupings = agreement.groupings(t)
        seated = {v for group in groupings[0] for v in group}
        return [(groupings, [atom for atom in draw.atoms() if seated.issuperset(atom)] if terms.atom else [])]
    now, once = t + 1, 0 if terms.schedule in (FIXED, ATOMS) else t + 1
    units = draw.atoms() if terms.atom else [(v,) for v in sorted(draw.shuffle(terms.ids, once, "lot")[: sum(each)])]
    order = draw.shuffle(units, once, "cells")
    found, m = list[Cell](), terms.size
    for cell, (start, end) in enumerate(pairwise(accumulate(each, initial=0))):
        mine = sorted(order[start // len(units[0]) : end // len(units[0])])
        groupings = []
        for r in range(terms.groupings):
            mixed = draw.shuffle(mine, 0 if terms.schedule == FIXED else now, "grouping", cell * 2**32 + r)
            flat = list(chain.from_iterable(mixed))
            groupings.append([tuple(sorted(flat[at : at + m])) for at in range(0, len(flat), m)])
        found.append((groupings, mine if terms.atom else []))
    return found


def colluders_in(terms: Terms, cell: int) -> int:
    """How many colluders a cell of this many clients withstands."""
    n, several = len(terms.ids), len(sizes(terms)) > 1
    assumed = terms.colluders[0] if terms.colluders else n // 3
    once = not terms.sample and (terms.schedule == FIXED or (terms.schedule == ATOMS and several))
    draws = len(sizes(terms)) * (1 if once else terms.last_round - terms.first_round + 1)
    draws *= 1 if terms.beacon else n - 1
    ways = [comb(assumed, x) * comb(n - assumed, cell - x) if x <= cell else 0 for x in range(assumed + 1)]
    fit = (k for k in range(assumed + 1) if draws * sum(ways[k + 1 :]) * 2**40 < comb(n, cell))
    return next(fit)


def risk(n: int, degree: int, t: int, colluders: int, dropouts: int) -> Fraction:
    """A bound on the probability that a sparse graph exposes somebody (docs/sparse.md, (a) and (b))."""
    if colluders + dropouts > n - 2:
        return Fraction(1)
    tail = sum(comb(colluders, x) * comb(n - 1 - colluders, degree - x) for x in range(t, min(degree, colluders) + 1))
    outnumbered = Fraction(n * tail, comb(n - 1, degree))
    cut = Fraction(0)
    for removed in range(degree, colluders + dropouts + 1):
        left = n - removed
        pairs = Fraction(left * (left - 1), 2)
        cut = max(cut, pairs * Fraction(comb(n - degree - 1, left - 1), comb(n - 1, left - 1)))
    return outnumbered + cut


def check_cells(terms: Terms) -> None:
    """Every cell has a threshold that fits its colluders, or a graph that fits them."""
    need(terms.groups == 1, "groups of survivors")
    for cell in set(sizes(terms)):
        k, t = colluders_in(terms, cell), threshold_in(terms, cell)
        degree = terms.degree  # type: ignore[attr-defined]
        if degree:
            need(cell == terms.size and terms.groupings == 1 and 2 <= t <= degree < cell, "one group with neighbours")
            need(terms.mode == 1 or risk(cell, degree, t, k, 0) <= RISK, "enough neighbours for the colluders")
        else:
            need(2 <= t <= cell and 2 * t > cell + k, "the threshold fits the colluders")


def threshold_in(terms: Terms, cell: int) -> int:
    found: int = terms.threshold[0] if terms.threshold else (cell + colluders_in(terms, cell)) // 2 + 1
    return found


def plan_of(agreement: Agreement, t: int, cell: int, context: bytes) -> Plan:
    """The plan of one cell of a round (protocol.md, sections 4 and 5)."""
    terms, drawn = agreement.terms, cells(agreement, t)
    need(cell < len(drawn), "the cell exists")
    groupings, atoms = drawn[cell]
    roster = sorted(chain.from_iterable(groupings[0]))
    weights = [terms.member(v).weight for v in roster]
    weighted = any(part.floats for part in terms.segments) and len({m.weight for m in terms.members}) > 1
    segments = many(
        blob(part.name) + ids(part.shape) + struct.pack("<BdI", part.floats, part.clip, part.bound)
        for part in terms.segments
    )
    limits = u32(threshold_in(terms, len(roster))) + u32(colluders_in(terms, len(roster)))
    data = b"".join(
        (
            struct.pack("<B", 2) + agreement.fingerprint + u64(t),
            many(u32(v) + terms.member(v).identity for v in roster),
            limits + u32(terms.length) + struct.pack("<BdI", 0, 0.0, 0),
            ids(weights) if weighted else u32(0),
            struct.pack("<BIHI", terms.schedule, terms.size, terms.groupings, terms.atom) + agreement.seed,
            struct.pack("<IIdB", terms.min_survivors, terms.anonymity, terms.max_leverage, terms.mode),
            u32(terms.degree) + blob(context) + segments,  # type: ignore[attr-defined]
        )
    )
    return placed(Plan(data), groupings, atoms)


def placed(plan: Plan, groupings: Sequence[Grouping], atoms: Sequence[tuple[int, ...]]) -> Plan:
    """The plan with the groups of its cell, which are drawn from all members."""
    plan.groupings, plan.atoms = [[list(group) for group in grouping] for grouping in groupings], list(atoms)
    places = [(v, (r, g)) for r, grouping in enumerate(groupings) for g, group in enumerate(grouping) for v in group]
    plan.places = {v: [place for who, place in places if who == v] for v in plan.ids}
    return plan

"""Anonymity T: the least number of clients in any combination of updates that the server can learn.

T is the minimum distance of the code spanned by the opened rows. It is at least T exactly when every T - 1
columns of a null-space basis are independent (MacWilliams and Sloane 1977, ch. 1, thm 10, with the null space
as parity check): no zero column for T = 2 (nobody is exposed), no two parallel for T = 3, no three in a plane
for T = 4. `dependent` decides this on the random null vectors of `RowSpace`. It is cheap up to T = 4 and its
cost grows with n^(T-2) beyond. So a larger T is decided only within a budget, proved by the schedule or, for
two groupings, found as a minimum cut (`by_minimum_cut`).
"""

from collections.abc import Collection, Mapping, Sequence
from math import comb, lcm

import numpy as np

from secagg.exposure.rowspace import RowSpace
from secagg.kernels import montgomery
from secagg.kernels.jit import kernel
from secagg.kernels.montgomery import Index, Words
from secagg.types import ClientId, Group, GroupId, Grouping

EXACT_UP_TO = 4
DECISION_BUDGET = 10**8  # products mod p for a decision beyond T = 4: about a second
REPORT_BUDGET = 5 * 10**6  # the same for a report, where a bound is enough
DECISION_DEPTH = 57  # null vectors for a decision: beyond t = 58, T >= t exceeds the budget anyway
REPORT_DEPTH = 6  # null vectors for a report: bounds are computed up to T = 7 where that is cheap


def steps(n: int, t: int) -> int:
    """How many products mod p a decision of T >= t takes for n columns, up to a small factor."""
    return comb(n, max(0, t - 3)) * n * max(1, t - 1)


def decidable(n: int, t: int) -> bool:
    """Whether T >= t is decided exactly: always up to 4, and beyond that within the budget."""
    return t <= EXACT_UP_TO or steps(n, t) <= DECISION_BUDGET


def dependent(space: RowSpace, null: Words, t: int) -> tuple[int, ...]:
    """At most t - 1 columns that are dependent (so T < t), or () if there are none (so T >= t)."""
    columns = null[: t - 1]
    if t <= 1 or not columns.shape[1]:
        return ()
    zero = np.flatnonzero(~columns.any(axis=0))
    if zero.size:
        return (int(zero[0]),)
    if t == 2:
        return ()
    found = montgomery.dependent(np.ascontiguousarray(columns), space.field.one, space.field.prime, space.field.inverse)
    return tuple(int(i) for i in sorted(found) if i >= 0)


def bounds(space: RowSpace, rows: Mapping[GroupId, Sequence[int]]) -> tuple[int, int]:
    """Proven lower and found upper bound on T for the row space of these (nonempty) rows.

    T is the least over the connected components of rows: combining rows of different components only adds clients.
    """
    parts = [_component_bounds(space, np.array(sorted(columns)), kept) for columns, kept in _components(rows)]
    return min(low for low, _ in parts), min(high for _, high in parts)


def _component_bounds(space: RowSpace, columns: Index, rows: Mapping[GroupId, Sequence[int]]) -> tuple[int, int]:
    exact = by_minimum_cut(rows, columns.tolist())
    if exact is not None:
        return exact, exact
    upper = min(space.lightest(columns), *map(len, rows.values()))
    lower = 1
    for t in range(2, min(upper, len(space.null) + 1) + 1):
        if t > EXACT_UP_TO and steps(len(columns), t) > REPORT_BUDGET:
            break
        found = dependent(space, space.null[:, columns], t)
        if found:
            return len(found), len(found)
        lower = t
    return lower, upper


def _components(rows: Mapping[GroupId, Sequence[int]]) -> list[tuple[set[int], dict[GroupId, Sequence[int]]]]:
    """The columns and the rows of every connected component."""
    parts: list[tuple[set[int], dict[GroupId, Sequence[int]]]] = []
    for row, members in rows.items():
        columns, kept = set(members), {row: members}
        apart = []
        for part in parts:
            if part[0].isdisjoint(columns):
                apart.append(part)
            else:
                columns |= part[0]
                kept |= part[1]
        parts = [*apart, (columns, kept)]
    return parts


def atom_bound(row: Collection[ClientId], atoms: Sequence[Group], missing: Collection[ClientId]) -> int:
    """The survivors of the smallest atom in a row that consists of whole atoms; 0 for any other row.

    Every combination of such rows has one coefficient for all survivors of an atom, so it involves all of
    them or none. T is at least the least of these bounds, for any number of rows.
    """
    members, absent = frozenset(row), frozenset(missing)
    parts = [rest for rest in (frozenset(atom) - absent for atom in atoms) if rest & members]
    whole = sum(map(len, parts)) == len(members) and frozenset[ClientId]().union(*parts) == members
    return min(map(len, parts)) if parts and whole else 0


def transversal_guarantee(m: int, c: int, groupings: int) -> int:
    """The T that a transversal schedule of c groups of m guarantees without dropouts.

    min(m, 2(m - R + 1)) if c has no prime factor below m; `docs/exposure.md`, "Transversal", proves this and the
    general case. `columns[d]` is the least number of nonzero classes in a combination with a Fourier component of order
    d; where the orders have the least common multiple L, each of these classes has at least 2c/L nonzero coefficients.
    """
    if not 1 <= groupings <= min(m, c):
        return 0
    columns = {d: _nonzero_columns(m, d, groupings) for d in range(2, c + 1) if c % d == 0}
    guarantee = m
    for most in set(columns.values()):
        period = lcm(*(d for d, least in columns.items() if least <= most))
        guarantee = min(guarantee, 2 * (c // period) * most)
    return guarantee


def _nonzero_columns(m: int, d: int, groupings: int) -> int:
    """m minus the columns where a polynomial of degree below R can vanish: min(R, d) - 1 residues mod d."""
    sizes = sorted((len(range(residue, m, d)) for residue in range(d)), reverse=True)
    return m - sum(sizes[: min(groupings, d) - 1])


def transversal_bound(groupings: Sequence[Grouping], columns: Sequence[Group], missing: int) -> int:
    """A proven lower bound on T if the groupings are those of a transversal schedule, else 0.

    The guarantee for all its rows, minus one for each of the `missing` clients: removing a client removes at
    most one coefficient of any combination. Fewer rows span less, so the bound holds for any subset.
    """
    m, c = len(columns), len(columns[0])
    at = {client: (a, b) for a, column in enumerate(columns) for b, client in enumerate(column)}
    if len(at) != m * c or any(len(column) != c for column in columns):
        return 0
    for r, grouping in enumerate(groupings):
        lines = [{column[(k - r * a) % c] for a, column in enumerate(columns)} for k in range(c)]
        if [set(group) for group in grouping] != lines:
            return 0
    return max(0, transversal_guarantee(m, c, len(groupings)) - missing)


@kernel
def minimum_cut(edges: Index) -> int:
    """The weight of the lightest cut of a connected multigraph, given as a symmetric matrix (overwritten).

    Vertex 0 always comes first. A vertex that was merged into another has no edges left, so nothing pulls it.
    """
    vertices = edges.shape[0]
    lightest = np.int64(2**62)
    for phase in range(vertices - 1):
        seen = np.zeros(vertices, np.bool_)
        pull = np.zeros(vertices, np.int64)
        last, before = -1, -1
        for _ in range(vertices - phase):
            pick = -1
            for v in range(vertices):
                if not seen[v] and (pick < 0 or pull[v] > pull[pick]):
                    pick = v
            before, last = last, pick
            seen[pick] = True
            for v in range(vertices):
                pull[v] += edges[pick, v]
        cut = np.int64(0)
        for v in range(vertices):
            if v != last:
                cut += edges[last, v]
        lightest = min(lightest, cut)
        for v in range(vertices):
            edges[before, v] += edges[last, v]
            edges[v, before] = edges[before, v]
            edges[v, last] = 0
        edges[before, before] = 0
    return int(lightest)


def by_minimum_cut(rows: Mapping[GroupId, Sequence[int]], columns: Collection[int]) -> int | None:
    """T for connected rows of at most two groupings over these columns; None for more groupings.

    Draw a vertex for every opened group and an edge for every client, from its group in one grouping to its group in
    the other. An edge of a client whose group is closed ends at a common ground vertex. A combination gives client (u,
    v) the coefficient f(u) + g(v). With the sign of g changed, this is a difference of potentials with the ground at 0.
    So the combinations that the server can learn are the cut space of the graph, and the one with the fewest clients is
    a minimum cut (Stoer and Wagner 1997). A client is exposed exactly if its edge is a bridge. Without dropouts there
    is no bridge, because a regular bipartite graph has none.
    """
    sides = sorted({g for g, _ in rows})
    if len(sides) > 2 or not rows:
        return None
    place = [dict[int, int](), dict[int, int]()]
    for vertex, (row, members) in enumerate(sorted(rows.items()), start=1):
        place[sides.index(row[0])] |= dict.fromkeys(members, vertex)
    ends = [(place[0].get(column, 0), place[1].get(column, 0)) for column in columns]
    grounded = any(0 in end for end in ends)
    edges = np.zeros((len(rows) + 1, len(rows) + 1), np.int64)
    for u, v in ends:
        edges[u, v] += 1
        edges[v, u] += 1
    return minimum_cut(edges if grounded else np.ascontiguousarray(edges[1:, 1:]))

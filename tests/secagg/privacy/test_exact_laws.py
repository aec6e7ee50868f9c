"""The charge holds on the grid: exact laws of the opened sums, by enumeration, for every small schedule.

For all ways to split up to four clients once or twice into groups, for every client, and for up to two colluders, who
subtract their own noise: the Renyi divergence between the sums with and without the client's vector.
"""

import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations, combinations_with_replacement, permutations, product

import numpy as np
import pytest

from secagg.privacy import Kernel, excess, kernel, leverage, smoothing
from secagg.privacy.smoothing import _basis
from secagg.types import Group, Grouping

ORDERS = (1.5, 2.0, 4.0, 8.0, 32.0)
Case = tuple[tuple[tuple[int, ...], ...], int]  # the honest clients' rows of A; how many colluders were left out


def partitions(clients: tuple[int, ...]) -> Iterator[Grouping]:
    if not clients:
        yield ()
        return
    first, rest = clients[0], clients[1:]
    for count in range(len(rest) + 1):
        for mates in combinations(rest, count):
            others = tuple(v for v in rest if v not in mates)
            for more in partitions(others):
                yield ((first, *mates), *more)


def schedules(n: int) -> Iterator[tuple[Grouping, ...]]:
    every = list(partitions(tuple(range(n))))
    yield from ((one,) for one in every)
    yield from combinations_with_replacement(every, 2)


def seen(groupings: tuple[Grouping, ...], colluders: Group, n: int) -> tuple[tuple[int, ...], ...]:
    """The rows of A without the colluders' columns, where client 0 comes first; the least among equal ones."""
    honest = [v for v in range(n) if v not in colluders]
    rows = {tuple(int(v in group) for v in honest) for grouping in groupings for group in grouping}
    rows.discard((0,) * len(honest))
    return min(
        tuple(sorted({(row[0], *(row[1 + p] for p in order)) for row in rows}, reverse=True))
        for order in permutations(range(len(honest) - 1))
    )


def cases(n: int) -> dict[tuple[tuple[int, ...], ...], tuple[Fraction, Kernel]]:
    """Every different view of client 0, with the least charge that the library makes for it."""
    found: dict[tuple[tuple[int, ...], ...], tuple[Fraction, Kernel]] = {}
    for groupings in schedules(n):
        for k in range(min(2, n - 1) + 1):
            share, lattice = leverage(groupings, 0, k), kernel(groupings, 0, k)
            assert lattice is not None
            for colluders in combinations(range(1, n), k):
                view = seen(groupings, colluders, n)
                old = found.get(view, (Fraction(2), Kernel(99, 99)))
                found[view] = min(old[0], share), min(old[1], lattice, key=lambda one: smoothing(one, 1))
    return found


def divergences(rows: tuple[tuple[int, ...], ...], sigma: float, shift: int) -> Iterator[tuple[float, float]]:
    """(order, the Renyi divergence) of A z + A e_0 shift from A z, z discrete Gaussian.

    The sum over y of P(y)^a Q(y)^(1 - a) has its weight around a times the shift, in the row space of A. There, one z
    is taken for each y = A z, and the laws are sums over whole cosets z + K, K the kernel of A.
    """
    matrix, lattice = np.array(rows), np.array(_basis([list(row) for row in rows])).reshape(-1, len(rows[0]))
    n, reach = matrix.shape[1], math.ceil(7.5 * sigma)
    normal = np.log(np.exp(-(np.arange(-400, 401.0) ** 2) / (2 * sigma**2)).sum()) * n
    projected, back = (np.linalg.pinv(matrix) @ matrix)[:, 0], np.linalg.pinv(lattice) if len(lattice) else None
    most = math.ceil(8 * sigma)
    steps = product(range(-most, most + 1), repeat=len(lattice))
    moves = np.array([np.array(step, int) @ lattice for step in steps])
    moves = moves[(moves**2).sum(axis=1) <= (10 * sigma) ** 2]
    keys = np.array([1009**i for i in range(len(rows))])
    for order in ORDERS:
        centre = np.rint(order * shift * projected).astype(int)
        z = np.indices((2 * reach + 1,) * n).reshape(n, -1).T - reach + centre
        _, first = np.unique((z - centre) @ matrix.T @ keys, return_index=True)
        z = z[first]
        if back is not None:
            z = z - np.rint(z @ back).astype(int) @ lattice  # the middle of its coset
        away = np.zeros(n, int)
        away[0] = shift
        p, q = (_coset_sums(z - offset, moves, sigma) - normal for offset in (away, 0 * away))
        terms = order * p + (1 - order) * q
        top = terms.max()
        yield order, (top + math.log(np.exp(terms - top).sum())) / (order - 1)


def _coset_sums(z: np.ndarray, moves: np.ndarray, sigma: float) -> np.ndarray:
    """The logarithm of the Gaussian mass of each z + K."""
    squares, best = np.zeros(len(z)), (z.astype(float) ** 2).sum(axis=1)
    for move in moves:
        change = (2 * z @ move + (move**2).sum()).astype(float)  # of the squared norm
        squares += np.exp(-change / (2 * sigma**2))
    result: np.ndarray = np.log(squares) - best / (2 * sigma**2)
    return result


def check(n: int, sigma: int, shift: int) -> tuple[int, float]:
    """Every divergence is below the charge with its smoothing term. The number of views, and the tightest ratio."""
    tightest, count = 0.0, 0
    for rows, (share, lattice) in cases(n).items():
        eta = excess(lattice, sigma, 1)
        if math.isinf(eta):  # the agreement is refused
            continue
        count += 1
        rho = float(share) * shift**2 / (2 * sigma**2)
        for order, found in divergences(rows, sigma, shift):
            limit = order * rho + (2 * order - 1) / (order - 1) * eta
            assert found <= limit * (1 + 1e-9) + 1e-9, (rows, order, found, limit)
            tightest = max(tightest, found / limit)
    return count, tightest


@pytest.mark.parametrize(
    ("n", "sigma", "shift"),
    [
        (2, 1, 1), (2, 3, 2), (3, 1, 1), (3, 2, 1), (3, 2, 3), (4, 1, 1),
        pytest.param(4, 1, 2, marks=pytest.mark.long),
        pytest.param(3, 3, 2, marks=pytest.mark.long),
        pytest.param(4, 2, 1, marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_renyi_divergences_of_exact_laws_are_never_above_the_charge(n: int, sigma: int, shift: int) -> None:
    count, tightest = check(n, sigma, shift)
    assert count >= n
    assert tightest > 0.999  # the charge is not idle


def test_four_clients_in_two_pairings_cost_what_is_charged() -> None:
    groupings: tuple[Grouping, ...] = (((0, 1), (2, 3)), ((0, 2), (1, 3)))
    for order, found in divergences(seen(groupings, (), 4), 1, 1):
        assert found == pytest.approx(order * 0.75 / 2, rel=1e-2)


def test_noise_that_is_too_small_exceeds_the_ideal_cost_and_the_smoothing_term_covers_it() -> None:
    """Two clients and sigma = 1/2: the ideal law alone would be charged too little."""
    sigma = 0.5
    e = 2 / (math.exp(math.pi**2 * sigma**2) - 2)
    eta = math.log((1 + e) / (1 - e))
    assert e < 1
    ratios = []
    for order, found in divergences(((1, 1),), sigma, 1):
        ideal = order * 0.5 / (2 * sigma**2)
        assert found <= ideal + (2 * order - 1) / (order - 1) * eta
        ratios.append(found / ideal)
    assert max(ratios) > 1.02


@pytest.mark.parametrize(("rank", "square", "sigma"), [(2, 2, 1), (30, 2, 1), (59, 40, 5)])
def test_where_the_smoothing_term_is_not_below_one_it_is_infinite(rank: int, square: int, sigma: int) -> None:
    lattice = Kernel(rank, square)
    exact = 2 * rank / (math.exp(2 * math.pi**2 * sigma**2 / square) - 2 * rank)
    if 0 <= exact < 1:
        assert smoothing(lattice, sigma) == pytest.approx(exact)
        assert excess(lattice, sigma, 10) == pytest.approx(10 * math.log((1 + exact) / (1 - exact)))
    else:
        assert excess(Kernel(20_000, 2), 1, 1) == math.inf
    assert excess(Kernel(10_000, 2), 1, 1) == math.inf
    assert excess(lattice, 1000, 2_156_490) < 1e-200

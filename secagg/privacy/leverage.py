"""How much of one client's vector the opened sums hold, once noise is in every vector: its leverage among them.

The server sees A (u + z): A has a row of zeros and ones for each opened group, z is independent noise of one variance.
With P = A^+ A and Q = I - P, the leverage of client i is P_ii. Clients K that collude know their own noise (or add
none), which leaves l_i(K) = P_ii + Q_iK Q_KK^+ Q_Ki: the leverage of i in A without the columns of K. In zCDP, zeroing
a vector of norm D costs l_i(K) D^2 / (2 sigma^2) (docs/differential-privacy.md). Weights are applied before the noise,
so they change D and not A. The mean of all leverages is rank / n; a client's own can be much larger.

For one group of m it is 1 / (m - k). For several groupings the worst K of at most two clients is found by trying all;
beyond that, the leverage is taken to be 1: then the client's own noise protects it alone.
"""

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import chain
from typing import Final

import numpy as np
import numpy.typing as npt

from secagg.types import ClientId, Group, Grouping

MOST_SEARCHED: Final = 2  # colluders among several groupings
MOST_CLIENTS: Final = 600  # in one component of several groupings; the projector of more takes too long
_SLACK: Final = Fraction(1, 10**9)  # above the errors of the projector
_STEPS: Final = 2**24  # of a computed leverage from 0 to 1: far wider than what machines differ by, so that they agree
_ZERO: Final = 1e-12  # what is zero in exact arithmetic stays below it
_SMALL: Final = 1e-7  # what is between is not trusted

Matrix = npt.NDArray[np.float64]


def component(groupings: Iterable[Grouping], client: ClientId) -> tuple[Grouping, ...]:
    """The groups that hang together with those of a client, grouping by grouping, without repetitions."""
    groupings = list(groupings)
    reached, size = {client}, 0
    while len(reached) > size:
        size = len(reached)
        for group in chain.from_iterable(groupings):
            if not reached.isdisjoint(group):
                reached.update(group)
    parts = (tuple(sorted(tuple(sorted(g)) for g in one if not reached.isdisjoint(g))) for one in groupings)
    return tuple(dict.fromkeys(part for part in parts if part))


def leverage(groupings: Sequence[Grouping], client: ClientId, colluders: int) -> Fraction:
    """The most leverage of a client, over all sets of at most this many colluders, rounded up.

    >>> leverage([[(0, 1, 2, 3, 4)]], client=0, colluders=2)
    Fraction(1, 3)
    >>> pairs = [[(0, 1), (2, 3)], [(0, 2), (1, 3)]]
    >>> round(float(leverage(pairs, 0, 0)), 6), round(float(leverage(pairs, 0, 1)), 6)
    (0.75, 1.0)
    """
    parts = component(groupings, client)
    if len(parts) == 1 and len(parts[0]) == 1:
        return alone(len(parts[0][0]), colluders)
    clients = sorted(set(chain.from_iterable(chain.from_iterable(parts))))
    if colluders > MOST_SEARCHED or len(clients) > MOST_CLIENTS:  # audit: leverage-local-beyond
        return Fraction(1)
    groups = list(dict.fromkeys(chain.from_iterable(parts)))
    projector = _kernel_projector(groups, clients)
    found = _searched(projector, clients.index(client), colluders)
    return min(Fraction(1), _stepped(Fraction(found) + _SLACK))  # audit: leverage-rounded-up


def _stepped(value: Fraction) -> Fraction:
    """The next multiple of a step: whoever computes it gets the same, whatever the last bits of its floats are."""
    return Fraction(math.ceil(value * _STEPS), _STEPS)  # audit: leverage-same-everywhere


def alone(size: int, colluders: int) -> Fraction:
    """The leverage in one group of this size: 1 if nobody honest is left beside the client."""
    return Fraction(1, max(1, size - colluders))  # audit: colluders-removed


def _kernel_projector(groups: Sequence[Group], clients: Sequence[ClientId]) -> Matrix:
    """Q = I - A^+ A."""
    place = {client: i for i, client in enumerate(clients)}
    rows = np.zeros((len(groups), len(clients)))
    for row, group in zip(rows, groups, strict=True):
        row[[place[client] for client in group]] = 1.0
    _, values, right = np.linalg.svd(rows)
    rank = int((values > 1e-9 * values[0]).sum())
    kernel = right[rank:]
    result: Matrix = kernel.T @ kernel
    return result


def _searched(q: Matrix, i: int, colluders: int) -> float:
    """1 - Q_ii and what the worst colluders add, one column of Q eliminated after the other."""
    best = least = 1 - float(q[i, i])
    if colluders == 0:
        return best
    gain = _gains(q[i], np.diag(q), i)
    best = least + float(gain.max())
    if colluders == 2:
        for a in np.flatnonzero(np.diag(q) > _SMALL):
            if a != i:
                row = q[i] - q[i, a] * q[a] / q[a, a]
                diagonal = np.diag(q) - q[a] ** 2 / q[a, a]
                best = max(best, least + float(gain[a]) + float(_gains(row, diagonal, i).max()))
    return best


def _gains(row: npt.NDArray[np.float64], diagonal: npt.NDArray[np.float64], i: int) -> npt.NDArray[np.float64]:
    """Q_iv^2 / Q_vv for every v: what v's column adds. Where it cannot be told, 1."""
    gains = np.zeros_like(row)
    safe = diagonal > _SMALL
    gains[safe] = row[safe] ** 2 / diagonal[safe]
    gains[~safe & ((diagonal > _ZERO) | (abs(row) > _SMALL))] = 1.0
    gains[i] = 0.0
    return gains

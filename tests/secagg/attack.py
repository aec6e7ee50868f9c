"""The attack on opened sums: what an honest-but-curious server computes from the results of a run."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from secagg.types import ClientId, GroupId

BLOCK = 1 << 16  # coordinates that `solve` handles at a time


def solve(
    groups: Mapping[GroupId, Collection[ClientId]],
    sums: Mapping[GroupId, npt.NDArray[Any]],
    *,
    weights: Mapping[ClientId, float] | None = None,
) -> dict[ClientId, npt.NDArray[np.float64]]:
    """The attack: every update that follows from group sums by least squares, to floating-point accuracy.

    This is what an honest-but-curious server can do with the results of a run. It shares no code with the
    audit, so a test can compare the two.
    """
    clients = sorted({client for members in groups.values() for client in members})
    ordered = sorted(groups)
    weight = {client: 1.0 if weights is None else weights[client] for client in clients}
    matrix = np.zeros((len(ordered), len(clients)))
    for row, group in zip(matrix, ordered, strict=True):
        members = frozenset(groups[group])
        row[:] = [weight[client] * (client in members) for client in clients]
    inverse = np.linalg.pinv(matrix, rcond=1e-10)
    known = np.flatnonzero(np.diag(inverse @ matrix) > 1 - 1e-6)
    found = {clients[i]: np.empty(np.shape(sums[ordered[0]])) for i in known}
    for start in range(0, len(sums[ordered[0]]) if ordered else 0, BLOCK):
        block = np.array([sums[group][start : start + BLOCK] for group in ordered], np.float64)
        for i in known:
            found[clients[i]][start : start + BLOCK] = inverse[i] @ block
    return found

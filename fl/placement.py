"""Attackers and dropouts placed at random: in how many rounds a rule withstands them.

For the planner (`fl.planner`). `draw` and `withstood` count clusters in many rounds without an audit; `place` takes the
groups that an audit left open. The f of a rule is one number for all rounds, so a round that has too few clusters left
for it is skipped, and does not hold.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fl.config import rules
from secagg import Policy, Schedule
from secagg.agreement import WHOLE
from secagg.exposure import Drawn

PATTERNS = 1000  # rounds with dropouts and attackers in which clusters are only counted, without an audit
SCHEDULES = 8  # rounds of the schedule that the patterns are spread over
MOST_DRAWN = 2_000_000  # clients times rounds that are drawn at once
PLACEMENTS = 200  # random placements of the attackers in each simulated round
BLOCK = 20  # placements that are held in memory together
Counts = NDArray[np.int64]


def withstood(rule: str, f: int | None, left: Counts, bad: Counts) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """For each round whether the rule can run, and whether it withstands its bad clusters, in every grouping.

    Both have a row for each round: how many clusters each grouping has left, and how many of them are bad. A rule with
    f skips a grouping that is too small for f. A rule without f withstands what its number of clusters allows.
    """
    most = np.array([-1, *(rules.tolerated(rule, count) for count in range(1, int(left.max(initial=0)) + 1))])[left]
    fits = np.asarray((most >= (f or 0)).all(axis=1))
    return fits, np.asarray(fits & (bad <= (most if f is None else f)).all(axis=1))


def draw(
    groups: str,
    policy: Policy,
    schedule: Schedule,
    sizes: Sequence[int],
    seed: bytes,
    rng: np.random.Generator,
    *,
    byzantine: int,
    dropout: float,
) -> tuple[Counts, Counts]:
    """How many clusters each grouping has left in rounds with random dropouts and attackers, and how many are bad.

    Nothing is audited, so there can be many rounds: the clusters are counted in which enough clients are left.
    """
    clients = sum(sizes)
    left = np.zeros((PATTERNS, schedule.groupings), dtype=np.int64)
    bad = np.zeros_like(left)
    step = max(1, min(PATTERNS // SCHEDULES, MOST_DRAWN // clients))
    for number, first in enumerate(range(0, PATTERNS, step)):
        count = min(step, PATTERNS - first)
        there = rng.random((count, clients)) >= dropout
        attacking = np.zeros_like(there)
        if byzantine:
            order = rng.random((count, clients), dtype=np.float32).argpartition(byzantine, axis=1)
            np.put_along_axis(attacking, order[:, :byzantine], True, axis=1)
        for drawn in schedule.draw_cells(range(clients), seed, number % SCHEDULES, sizes):
            opened = enough(groups, policy, drawn, there)
            spoiled = (there & attacking)[:, np.array(drawn.groupings)].any(axis=3)
            left[first : first + count] += opened.sum(axis=2)
            bad[first : first + count] += (opened & spoiled).sum(axis=2)
    return left, bad


def enough(groups: str, policy: Policy, drawn: Drawn, there: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which clusters have enough clients to be opened: by round, grouping and cluster.

    `there` has a row for each round with the clients that did not drop out; those of broken atoms are removed from it.
    """
    members = np.array(drawn.groupings)
    if groups == WHOLE:
        return np.asarray(there[:, members].all(axis=3))
    if drawn.atoms:
        atoms = np.array(drawn.atoms)
        there[:, atoms] &= there[:, atoms].all(axis=2, keepdims=True)
    least = max(policy.min_survivors, policy.anonymity, math.ceil(1 / policy.max_leverage - 1e-9))
    return np.asarray(there[:, members].sum(axis=3) >= least)


def place(
    rule: str,
    f: int | None,
    groupings: Sequence[Sequence[Sequence[int]]],
    clients: int,
    byzantine: int,
    cell: int,
    cells: int,
    rng: np.random.Generator,
) -> tuple[float, float, float]:
    """(probability that all groupings hold, that the rule can run on all, mean number of spoiled ones per grouping)."""
    if not all(groupings):
        return 0.0, 0.0, 0.0
    masks = [np.stack([_indicator(members, cell) for members in grouping]) for grouping in groupings]
    # Attackers fall into cells at random. All cells have the same clusters as the first one.
    spoiled = np.empty((len(masks), PLACEMENTS), dtype=np.int64)
    for first in range(0, PLACEMENTS, BLOCK):
        placed = np.zeros((min(BLOCK, PLACEMENTS - first), cells, cell), dtype=np.float32)
        for placement in placed:
            counts = [byzantine]
            if cells > 1:
                counts = rng.multivariate_hypergeometric([cell] * cells, byzantine).tolist()
            for row, count in zip(placement, counts, strict=True):
                row[rng.permutation(cell)[:count]] = 1.0
        for found, mask in zip(spoiled, masks, strict=True):
            found[first : first + BLOCK] = np.count_nonzero(placed @ mask.T, axis=(1, 2))
    left = np.repeat([[len(mask) * cells for mask in masks]], PLACEMENTS, axis=0)
    fits, fine = withstood(rule, f, left, spoiled.T)
    return float(fine.mean()), float(fits.mean()), float(spoiled.mean())


def _indicator(members: Sequence[int] | NDArray[np.int64], cell: int) -> NDArray[np.float32]:
    """A vector with 1 for each of these clients of a cell, and 0 for the others."""
    vector = np.zeros(cell, dtype=np.float32)
    vector[np.asarray(members, dtype=np.int64)] = 1.0
    return vector

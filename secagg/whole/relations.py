"""Opened sums held against each other: every linear relation between the groups must hold between their sums.

If the members of some groups are, with coefficients, the members of others (all groups of one grouping and all groups
of another, for example), honest sums satisfy the same relation. The sums are projected to one number each with secret
random weights, and the numbers are reduced together with the incidence matrix of groups and clients, modulo a prime. A
contradiction escapes with probability about 2^-16.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from secagg.protocol.result import GroupSum
from secagg.types import GroupId, Ring32

PRIME: Final = 2**31 - 1
_CHUNK: Final = 2**15  # values of 31 bits times weights of 16 bits: their sum has at most 62 bits
Words = npt.NDArray[np.int64]


def contradictions(sums: Mapping[GroupId, GroupSum]) -> tuple[tuple[GroupId, ...], ...]:
    """Sets of groups whose sums break a relation, the members of which did not all send one vector to all groups."""
    if len({grouping for grouping, _ in sums}) < 2:
        return ()
    groups = sorted(sums)
    incidence = _incidence([sums[group].members for group in groups])
    numbers = _projections([sums[group].total for group in groups])
    matrix = np.concatenate([incidence, numbers[:, None]], axis=1)
    if not _residue(matrix.copy(), incidence.shape[1])[:, 0].any():
        return ()
    traced = np.concatenate([matrix, np.eye(len(groups), dtype=np.int64)], axis=1)
    residue = _residue(traced, incidence.shape[1])
    wrong = residue[residue[:, 0] != 0]
    return tuple(tuple(groups[i] for i in np.flatnonzero(row[1:])) for row in wrong)


def _incidence(members: list[tuple[int, ...]]) -> Words:
    """One row per group and one column per client; clients that are always together share a column."""
    clients = sorted({client for group in members for client in group})
    place = {client: column for column, client in enumerate(clients)}
    matrix = np.zeros((len(members), len(clients)), np.int64)
    for row, group in enumerate(members):
        matrix[row, [place[client] for client in group]] = 1
    return np.unique(matrix, axis=1)


def _projections(totals: list[Ring32]) -> Words:
    """Each total, read as signed numbers, times the same random weights, modulo the prime."""
    from secagg.kernels import vectors

    length = len(totals[0])
    weights = np.frombuffer(os.urandom(2 * length), np.uint16)
    chunks = np.empty(-(-length // _CHUNK), np.int64)
    numbers = []
    for total in totals:
        vectors.project(total, weights, _CHUNK, chunks)
        numbers.append(sum(map(int, chunks)) % PRIME)
    return np.array(numbers, np.int64)


def _residue(matrix: Words, columns: int) -> Words:
    """Reduce by the first columns; what is left of the rest in rows without a pivot."""
    row = 0
    for column in range(columns):
        found = np.flatnonzero(matrix[row:, column])
        if not len(found):
            continue
        matrix[[row, row + found[0]]] = matrix[[row + found[0], row]]
        matrix[row] = matrix[row] * pow(int(matrix[row, column]), -1, PRIME) % PRIME
        below = row + 1 + np.flatnonzero(matrix[row + 1 :, column])
        matrix[below] = (matrix[below] - matrix[below, column][:, None] * matrix[row]) % PRIME
        row += 1
    return matrix[row:, columns:]

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

from secagg.crypto.segments import Segments
from secagg.protocol.result import TOO_LARGE, GroupSum
from secagg.types import Group, GroupId

PRIME: Final = 2**31 - 1
_CHUNK: Final = 2**15  # values of 31 bits times weights of 16 bits: their sum has at most 62 bits
Words = npt.NDArray[np.int64]


def possible_sums(
    encoding: Segments, sums: Mapping[GroupId, GroupSum]
) -> tuple[dict[GroupId, GroupSum], dict[GroupId, str], tuple[tuple[GroupId, ...], ...]]:
    """One pass: the sums that honest members can reach, why others are lost, and which contradict each other."""
    weights = np.frombuffer(os.urandom(2 * encoding.length), np.uint16)
    groups, numbers, lost = {}, {}, {}
    for group, opened in sorted(sums.items()):
        number = _projection(encoding, opened, weights)
        if number is None:  # audit: too-large-sum-discarded impossible-sum-discarded
            lost[group] = TOO_LARGE
            continue
        groups[group], numbers[group] = opened, number
    members = {group: opened.members for group, opened in groups.items()}
    return groups, lost, contradictions(members, numbers)


def _projection(encoding: Segments, opened: GroupSum, weights: npt.NDArray[np.uint16]) -> int | None:
    """A sum times secret random weights; None if honest members cannot reach some value of it."""
    from secagg.kernels import vectors

    number, start = 0, 0
    for segment, reach in zip(encoding.segments, encoding.reach(len(opened.members)), strict=True):
        stop = start + segment.length
        chunks = np.empty(-(-segment.length // _CHUNK), np.int64)
        lowest, highest = vectors.survey(opened.total[start:stop], weights[start:stop], _CHUNK, chunks)
        if max(-int(lowest), int(highest)) > reach:
            return None
        number, start = number + sum(map(int, chunks)), stop
    return number % PRIME


def contradictions(members: Mapping[GroupId, Group], numbers: Mapping[GroupId, int]) -> tuple[tuple[GroupId, ...], ...]:
    """Sets of groups whose numbers break a relation: some member did not send one vector to all its groups."""
    if len({grouping for grouping, _ in members}) < 2:
        return ()
    groups = sorted(members)
    incidence = _incidence([members[group] for group in groups])
    column = np.array([[numbers[group] % PRIME] for group in groups], np.int64)
    matrix = np.concatenate([incidence, column], axis=1)
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

"""The rule that stands for the authors' Krum has the two differences that its text names, and no others."""

import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

import numpy as np
import pytest

import robust


@pytest.fixture
def theirs() -> Iterator[ModuleType]:
    """The module registers its rule when it is imported; other tests look at all rules that are registered."""
    module = import_module("tests.paper.their_krum")
    yield module
    robust.AGGREGATORS.remove(module.their_krum.name)
    del sys.modules["tests.paper.their_krum"]


def test_distances_are_sums_of_norms_of_tensors(theirs: ModuleType) -> None:
    lengths = theirs.TENSORS[13_706]
    rows = np.random.default_rng(0).normal(size=(3, sum(lengths))).astype(np.float32)
    cuts = np.cumsum(lengths)[:-1]
    expected = sum(np.linalg.norm(part) for part in np.split(rows[0].astype(float) - rows[2], cuts))
    assert np.isclose(theirs.distances(rows)[0, 2], expected)
    assert all(sum(lengths) == total for total, lengths in theirs.TENSORS.items())


def test_the_first_score_is_right_and_later_ones_read_sorted_rows(theirs: ModuleType) -> None:
    exact = np.abs(np.subtract.outer([0.0, 1.0, 10.0, 12.0], [0.0, 1.0, 10.0, 12.0]))
    right = [np.sort(row)[1:3].sum() for row in exact]
    assert right == [11.0, 10.0, 11.0, 13.0]
    # Row 2, which is 10, 9, 0, 2, has been sorted when row 3 reads its last entry: 10, and not 2.
    assert theirs.scores(exact, f=0).tolist() == [11.0, 10.0, 11.0, 21.0]


def test_it_can_choose_another_row_than_krum(theirs: ModuleType) -> None:
    differ = 0
    for seed in range(40):
        rows = np.random.default_rng(seed).normal(size=(10, 5)).astype(np.float32)
        differ += not np.array_equal(theirs.their_krum(rows, f=3), robust.krum(rows, f=3))
    assert differ > 0

"""Exposed over a training and alone among colluders: checked against ranks, and against counting all placements."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl.config.checks import experiment
from fl.secure.figures import alone_probability, exposed_together
from fl.secure.population import Population


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sets(st.integers(0, 8), min_size=2, max_size=4), min_size=1, max_size=12))
def test_a_client_is_exposed_if_its_unit_vector_is_in_the_row_space(groups: list[set[int]]) -> None:
    rows = np.array([[float(c in group) for c in range(9)] for group in groups])
    rank = np.linalg.matrix_rank(rows)
    expected = {c for c in range(9) if np.linalg.matrix_rank(np.vstack([rows, np.eye(9)[c]])) == rank}
    assert exposed_together(groups) == expected


def test_disjoint_clusters_expose_nobody_and_a_cluster_of_one_its_client() -> None:
    clusters = [range(5 * k, 5 * k + 5) for k in range(2000)]
    assert exposed_together([*clusters, *clusters]) == frozenset()
    assert exposed_together([{3}, {4, 5}]) == {3}


@pytest.mark.parametrize("size", [3, 4, 6])
def test_alone_is_the_part_of_all_placements_that_leave_somebody_alone(size: int) -> None:
    """12 clients, of which 2 collude: counted over all pairs for the clusters that were drawn."""
    chosen = experiment(clients=12, clusters={"size": size}, secure=False)
    groups = Population(chosen, [10] * 12, 3).cells(0, b"")[0].clusters.values()
    pairs = list(combinations(range(12), 2))
    alone = sum(any(len(set(group) - set(pair)) == 1 for group in groups) for pair in pairs)
    assert alone_probability(chosen, 7) == pytest.approx(alone / len(pairs))


def test_new_clusters_in_every_round_leave_somebody_alone_sooner_or_later() -> None:
    fixed = experiment(clients=60)
    moving = experiment(clients=60, clusters={"schedule": "random"}, privacy={"memory": "round"})
    assert alone_probability(fixed, 1) == alone_probability(fixed, 20) == alone_probability(moving, 1)
    assert alone_probability(moving, 20) > 0.9999
    exposing = experiment(clients=12, method="no-share", privacy={"expose_every_client": True})
    assert alone_probability(exposing, 1) == 1.0

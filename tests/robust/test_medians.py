"""The networks that a search found are right for every input, and no longer than Batcher's."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robust.kernels import network, straight_line
from robust.kernels.network import operations
from tests.robust.find_networks import middle, search

Pairs = list[tuple[int, int]]


def every_input(n: int) -> tuple[np.ndarray, np.ndarray]:
    """All 2^n inputs of zeros and ones, a bit for each: one row per wire; and how many ones each has."""
    numbers = np.arange(2**n, dtype=np.uint32)
    wires = [np.packbits((numbers >> i & 1).astype(np.uint8)) for i in range(n)]
    return np.stack(wires), np.bitwise_count(numbers)


@pytest.mark.parametrize("n", sorted(network.MEDIANS))
def test_found_networks_are_right_for_all_zeros_and_ones(n: int) -> None:
    """The zero-one principle (Knuth, TAOCP 3, 5.3.4): right for all of these, right for everything."""
    low, high = middle(n)
    given_wires, ones = every_input(n)
    at_least = {rank: np.packbits(ones >= n - rank) for rank in (low, high - 1)}
    for last in {low + 1, high}:
        wires = given_wires.copy()
        for i, j in network.shortest(n, low, last):
            wires[i], wires[j] = wires[i] & wires[j], wires[i] | wires[j]
        if last == low + 1:  # one rank, on its own wire
            assert np.array_equal(wires[low], at_least[low])
        else:
            assert np.array_equal(wires[low] & wires[high - 1], at_least[low])
            assert np.array_equal(wires[low] | wires[high - 1], at_least[high - 1])


@pytest.mark.parametrize("n", sorted(network.MEDIANS))
def test_the_shortest_network_is_used(n: int) -> None:
    low, high = middle(n)
    found = [(ord(i) - 97, ord(j) - 97) for i, j in re.findall("(.)(.)", network.MEDIANS[n])]
    assert operations(found, range(low, high)) <= operations(network.pruned(n, low, high), range(low, high))
    for last in {low + 1, high}:
        used = operations(network.shortest(n, low, last), range(low, last))
        assert used <= operations(network.pruned(n, low, last), range(low, last))
        assert used <= operations(found, range(low, high)) + 1


def test_needed_counts_what_is_used_later() -> None:
    assert operations([], range(1)) == 0
    assert operations([(0, 1)], range(1)) == 1
    assert operations([(0, 1), (1, 2)], range(2, 3)) == 2  # of the first pair the larger alone
    assert operations([(0, 1), (0, 2)], range(1, 2)) == 1  # and of the second neither


def test_all_numbers_of_rows_that_straight_line_code_serves_have_one() -> None:
    assert sorted(network.MEDIANS) == list(range(3, straight_line.MOST_ROWS + 1))
    assert operations(network.shortest(20, 9, 11), range(9, 11)) == 112  # as the module says
    assert operations(network.pruned(20, 9, 11), range(9, 11)) == 148


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 6)).filter(lambda pair: pair[0] < pair[1]), max_size=20
    )
)
def test_another_order_is_the_same_network(pairs: Pairs) -> None:
    wires, _ = every_input(7)
    other = wires.copy()
    for i, j in pairs:
        wires[i], wires[j] = wires[i] & wires[j], wires[i] | wires[j]
    order = network.in_register_order(pairs, range(3, 4))
    for i, j in order:
        other[i], other[j] = other[i] & other[j], other[i] | other[j]
    assert sorted(order) == sorted(pairs)
    assert np.array_equal(wires, other)


@pytest.mark.parametrize(("n", "low", "high"), [(4, 1, 2), (4, 1, 3), (8, 3, 4), (9, 4, 5), (20, 9, 10)])
def test_straight_line_code_of_a_found_network_gives_the_ranks(n: int, low: int, high: int) -> None:
    x = np.random.default_rng(n).standard_normal((n, 1000), dtype=np.float32)
    found = straight_line.middle_mean(x, np.arange(n), low, high)
    assert found is not None
    expected = np.sort(x.astype(np.float64), axis=0)[low:high].mean(axis=0)
    np.testing.assert_array_max_ulp(found, expected.astype(np.float32), maxulp=1)


def test_the_search_finds_the_shortest_of_five() -> None:
    least, pairs = search(5, seconds=1.0)
    assert least == operations(pairs, range(2, 3)) == 10  # which is known to be least
    wires, ones = every_input(5)
    for i, j in pairs:
        wires[i], wires[j] = wires[i] & wires[j], wires[i] | wires[j]
    assert np.array_equal(wires[2], np.packbits(ones >= 3))

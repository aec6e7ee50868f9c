"""Networks are right for every input, and the ones in the table are no longer than Batcher's.

The zero-one principle (Knuth, TAOCP 3, 5.3.4): a network that is right for all zeros and ones is right for all inputs.
"""

from collections.abc import Iterable
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robust.kernels import network, straight_line
from robust.kernels.network import operations
from tests.robust.find_networks import middle, search

Pairs = list[tuple[int, int]]
any_pairs = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 6)).filter(lambda pair: pair[0] < pair[1]), max_size=20
)


def zeros_and_ones(n: int) -> np.ndarray:
    """All 2^n inputs of zeros and ones, one row per wire."""
    return (np.arange(2**n, dtype=np.uint32) >> np.arange(n, dtype=np.uint32)[:, None] & 1).astype(np.int8)


def exchanged(values: np.ndarray, pairs: Iterable[tuple[int, int]]) -> np.ndarray:
    """The values on the wires after these comparators."""
    values = values.copy()
    for i, j in pairs:
        values[i], values[j] = np.minimum(values[i], values[j]), np.maximum(values[i], values[j])
    return values


def comparators(table: Iterable[Iterable[int]]) -> Pairs:
    """The comparators of the steps of a table."""
    return list(chain(*([(a, b)] if c < 0 else [(a, c), (b, d), (b, c)] for a, b, c, d in table)))


def run_steps(table: np.ndarray, values: np.ndarray) -> np.ndarray:
    """A table's steps in numpy, after the sorting that loading does."""
    values = values.copy()
    n = len(values)
    whole = n - n % network.RUN
    for start in range(0, whole, network.RUN):
        values[start : start + network.RUN].sort(axis=0)
    if n - whole >= network.RUN // 2:
        values[whole : whole + network.RUN // 2].sort(axis=0)
    return exchanged(values, comparators(table))


@pytest.mark.parametrize("n", range(1, 13))
def test_networks_are_right_for_all_zeros_and_ones(n: int) -> None:
    every = zeros_and_ones(n)
    ordered = np.sort(every, axis=0)
    assert np.array_equal(run_steps(network.steps_to_sort(n), every), ordered)
    for low in range(n):
        for high in range(low + 1, n + 1):
            found = run_steps(network.steps_to_select(n, low, high), every)
            assert np.array_equal(np.sort(found[low:high], axis=0), ordered[low:high])


def test_the_table_has_medians_of_3_to_24_values() -> None:
    assert list(network.MEDIANS) == list(range(3, 25))


@pytest.mark.parametrize("n", [13, 16, 17, 20, 31, 33, 60, 64, 100, 131, 200])
def test_networks_are_right_for_random_inputs(n: int) -> None:
    values = np.random.default_rng(n).permuted(np.tile(np.arange(n), (300, 1)), axis=1).T
    ordered = np.sort(values, axis=0)
    assert np.array_equal(run_steps(network.steps_to_sort(n), values), ordered)
    for low, high in [((n - 1) // 2, n // 2 + 1), (n // 5, n - n // 5), (0, 1), (n - 1, n), (2, n - 2)]:
        found = run_steps(network.steps_to_select(n, low, high), values)
        assert np.array_equal(np.sort(found[low:high], axis=0), ordered[low:high])


@pytest.mark.parametrize("n", range(1, 42))
def test_steps_leave_out_what_loading_has_done_and_nothing_else(n: int) -> None:
    """Loading sorts runs of eight rows, and a half run of four after them: the stages below 8 and 4 there."""
    loaded = {8: n // 8 * 8, 4: n // 4 * 4}
    left = [
        pair
        for stage, pair in network.batcher(n)
        if not any(stage < run and pair[1] < end for run, end in loaded.items())
    ]
    assert sorted(comparators(network.steps_to_sort(n).tolist())) == sorted(left)


@pytest.mark.parametrize(("n", "low", "high"), [(5, 2, 3), (8, 3, 5), (13, 6, 7), (20, 9, 11), (24, 4, 20)])
def test_each_comparator_adds_the_fewest_wires_in_use(n: int, low: int, high: int) -> None:
    """Of those that may come next: all earlier ones on their wires are done. Of equal ones, the fewest new wires."""
    left, loaded, wanted = network.pruned(n, low, high), set[int](), range(low, high)
    for chosen in network.in_register_order(left, wanted):
        costs: dict[tuple[int, int], tuple[int, int]] = {}
        for at, pair in enumerate(left):
            if any(set(pair) & set(earlier) for earlier in left[:at]):
                continue
            new = len(set(pair) - loaded)
            later = {wire for other in left[at + 1 :] for wire in other}
            costs[pair] = (new - len([wire for wire in pair if wire not in later and wire not in wanted]), new)
        assert costs[chosen] == min(costs.values())
        loaded.update(chosen)
        left.remove(chosen)
    assert left == []


@settings(max_examples=200, deadline=None)
@given(any_pairs)
def test_grouping_and_reordering_do_not_change_a_network(pairs: Pairs) -> None:
    every = zeros_and_ones(7)
    expected = exchanged(every, pairs)
    assert np.array_equal(exchanged(every, comparators(network._grouped(pairs))), expected)
    order = network.in_register_order(pairs, range(3, 4))
    assert sorted(order) == sorted(pairs)
    assert np.array_equal(exchanged(every, order), expected)


def test_tables_are_shared_and_cannot_be_changed() -> None:
    table = network.steps_to_select(20, 9, 11)
    assert table is network.steps_to_select(20, 9, 11)
    with pytest.raises(ValueError, match="read-only"):
        table[0] = 0


def packed(n: int) -> tuple[np.ndarray, np.ndarray]:
    """All 2^n inputs of zeros and ones as bits, one row per wire; and how many ones each input has."""
    numbers = np.arange(2**n, dtype=np.uint32)
    wires = [np.packbits((numbers >> i & 1).astype(np.uint8)) for i in range(n)]
    return np.stack(wires), np.bitwise_count(numbers)


@pytest.mark.parametrize("n", sorted(network.MEDIANS))
def test_networks_in_the_table_are_right_for_all_zeros_and_ones(n: int) -> None:
    low, high = middle(n)
    given_wires, ones = packed(n)
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
    wires = [ord(letter) - ord("a") for letter in network.MEDIANS[n]]
    found = list(zip(wires[::2], wires[1::2], strict=True))
    assert operations(found, range(low, high)) <= operations(network.pruned(n, low, high), range(low, high))
    for last in {low + 1, high}:
        used = operations(network.shortest(n, low, last), range(low, last))
        assert used <= operations(network.pruned(n, low, last), range(low, last))
        assert used <= operations(found, range(low, high)) + 1


def test_operations_counts_only_what_is_used_later() -> None:
    assert operations([], range(1)) == 0
    assert operations([(0, 1)], range(1)) == 1
    assert operations([(0, 1), (1, 2)], range(2, 3)) == 2  # of the first pair only the larger
    assert operations([(0, 1), (0, 2)], range(1, 2)) == 1  # and of the second neither


def test_the_table_covers_all_rows_that_straight_line_code_serves() -> None:
    assert sorted(network.MEDIANS) == list(range(3, straight_line.MOST_ROWS + 1))
    assert operations(network.shortest(20, 9, 11), range(9, 11)) == 112  # as the documentation says
    assert operations(network.pruned(20, 9, 11), range(9, 11)) == 148


@pytest.mark.long
def test_the_search_finds_the_shortest_network_for_five_rows() -> None:
    least, pairs = search(5, seconds=1.0)
    assert least == operations(pairs, range(2, 3)) == 10  # which is known to be least
    assert np.array_equal(exchanged(zeros_and_ones(5), pairs)[2], np.sort(zeros_and_ones(5), axis=0)[2])

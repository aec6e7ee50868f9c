"""Elimination modulo a prime agrees with rational elimination."""

from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.exposure.rowspace import Field, RowSpace, draw_prime, is_prime
from secagg.exposure.schedules import uniform
from secagg.kernels import montgomery
from tests.secagg import rational

FIELD = Field.drawn_from(b"a test")
CARMICHAEL = (561, 1105, 1729, 2465, 2821, 6601, 8911, 3215031751, 3825123056546413051)

rows_of_columns = st.integers(1, 9).flatmap(
    lambda n: st.tuples(
        st.just(n), st.lists(st.sets(st.integers(0, n - 1), min_size=1).map(tuple), min_size=1, max_size=9)
    )
)


def test_primality_is_right_below_ten_thousand_and_for_pseudoprimes():
    sieve = [False, False] + [True] * 9998
    for p in range(2, 100):
        if sieve[p]:
            sieve[p * p :: p] = [False] * len(sieve[p * p :: p])
    assert [is_prime(number) for number in range(10_000)] == sieve
    assert not any(map(is_prime, CARMICHAEL))
    assert is_prime(2**61 - 1)
    assert not is_prime((2**31 - 1) * (2**30 - 35))


def test_primes_have_61_bits_and_come_from_the_key():
    primes = {draw_prime(uniform(bytes([key]))) for key in range(40)}
    assert len(primes) == 40
    assert all(prime.bit_length() == 61 and is_prime(prime) for prime in primes)
    assert Field.drawn_from(b"x") == Field.drawn_from(b"x") != Field.drawn_from(b"y")


@settings(deadline=None)
@given(st.integers(0, int(FIELD.prime) - 1), st.integers(0, int(FIELD.prime) - 1))
def test_montgomery_products_and_inverses_are_those_of_python(a, b):
    p = int(FIELD.prime)
    product = int(montgomery.mul(np.uint64(a), np.uint64(b), FIELD.prime, FIELD.inverse))
    assert product == a * b * pow(2**64, -1, p) % p
    inverse = int(montgomery.inverse(np.uint64(a), FIELD.one, FIELD.prime, FIELD.inverse))
    assert inverse * a * pow(2**64, -1, p) % p == (2**64 % p if a else 0)


@settings(deadline=None, max_examples=300)
@given(rows_of_columns)
def test_rank_and_exposed_columns_are_the_rational_ones(case):
    n, rows = case
    space = RowSpace(n, FIELD)
    new = [space.add(row) for row in rows]
    assert sum(new) == space.rank == rational.rank(rows, range(n))
    assert space.exposed() == rational.exposed(rows, range(n))


@settings(deadline=None)
@given(rows_of_columns)
def test_null_vectors_stay_null_vectors_and_fill_the_null_space(case):
    n, rows = case
    space = RowSpace(n, FIELD, depth=n)
    for row in rows:
        space.add(row)
        for vector in space.null.tolist():
            assert all(sum(vector[i] for i in seen) % int(FIELD.prime) == 0 for seen in rows[: rows.index(row) + 1])
    echelon = RowSpace(n, FIELD)
    assert _rank_mod_p(space.null.tolist()) == n - space.rank
    assert echelon.rank == 0


def _rank_mod_p(rows: list[list[int]]) -> int:
    p, rank = int(FIELD.prime), 0
    rows = [row[:] for row in rows]
    for column in range(len(rows[0])):
        at = next((i for i in range(rank, len(rows)) if rows[i][column] % p), None)
        if at is None:
            continue
        rows[rank], rows[at] = rows[at], rows[rank]
        scale = pow(rows[rank][column], -1, p)
        for i in range(rank + 1, len(rows)):
            factor = rows[i][column] * scale % p
            rows[i] = [(a - factor * b) % p for a, b in zip(rows[i], rows[rank], strict=True)]
        rank += 1
    return rank


@settings(deadline=None)
@given(rows_of_columns)
def test_considering_changes_nothing_and_a_copy_is_independent(case):
    n, rows = case
    space = RowSpace(n, FIELD, depth=2)
    for row in rows[:-1]:
        space.add(row)
    copy = deepcopy(space)
    before = (space.rank, space.exposed(), space.null.tolist())
    space.consider(rows[-1])
    assert (space.rank, space.exposed(), space.null.tolist()) == before
    copy.add(rows[-1])
    assert (space.rank, space.exposed(), space.null.tolist()) == before


def test_two_primes_give_the_same_answers_on_large_random_rows():
    rng = np.random.default_rng(1)
    rows = [tuple(rng.choice(120, 4, replace=False).tolist()) for _ in range(115)]
    spaces = [RowSpace(120, Field.drawn_from(key)) for key in (b"one", b"two")]
    for space in spaces:
        for row in rows:
            space.add(row)
    assert spaces[0].rank == spaces[1].rank
    assert spaces[0].exposed() == spaces[1].exposed()


@pytest.mark.parametrize("n", [0, 1])
def test_a_space_of_very_few_columns_works(n):
    space = RowSpace(n, FIELD)
    assert space.add(range(n)) is (n == 1)
    assert space.exposed() == frozenset(range(n))


def test_a_new_space_has_one_null_vector_and_no_row_to_accept():
    space = RowSpace(3, FIELD)
    assert (space.null.shape, space.rank, space.exposed()) == ((1, 3), 0, frozenset())
    assert RowSpace(3, FIELD, depth=4).null.shape == (4, 3)
    with pytest.raises(AssertionError):
        space.accept()


def test_the_lightest_of_rows_without_common_columns_is_the_shortest():
    space = RowSpace(9, FIELD)
    for row in ((0, 8), (1, 4, 7), (2, 3, 5, 6)):
        space.add(row)
    assert space.lightest(np.arange(9)) == 2
    assert [space.lightest(np.array(row)) for row in ((0, 8), (1, 4, 7), (2, 3, 5, 6))] == [2, 3, 4]
    assert space.lightest(np.array([], np.int64)) == 10

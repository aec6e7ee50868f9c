"""What follows from terms: cells and draws, rounds, flat sums, weights, and room for noise."""

from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

from secagg import AgreementRefused, Policy, UsageError, WireError
from secagg.agreement import Noise, Terms, all_rounds, graph, summarise
from secagg.arguments import MOST_ROUND
from secagg.crypto import Segment, SegmentNoise
from tests.secagg.agreement.common import Trial, named, plain_terms, pulse

ROUND = Policy(memory="round")
REPORT = Policy(mode="report-even-if-exposed")
SURVIVORS: dict[str, Any] = {"groups": "survivors", "policy": ROUND}
FLAT: dict[str, Any] = {"size": 6, "policy": ROUND}


def test_a_sparse_graph_exposes_with_two_to_the_minus_forty_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sparse: dict[str, Any] = {"members": 60, "size": 60, **SURVIVORS}
    assert plain_terms(**sparse, degree=58, threshold=50, colluders=3).degree == 58
    with pytest.raises(
        AgreementRefused,
        match=r"^degree: with 20 colluders among 60 clients, 10 neighbours expose somebody with probability 2\^-[\d.]+"
        r", more than 2\^-40; degree = \d+ with threshold = \d+ would do, for 5% dropouts$",
    ):
        plain_terms(**sparse, degree=10, threshold=9, colluders=20)
    with pytest.raises(AgreementRefused, match=r"2\^-40; use degree = 0, where every client shares with all others$"):
        plain_terms(**sparse, degree=10, threshold=9, colluders=57)
    monkeypatch.setattr(graph, "assess", lambda *_, **__: SimpleNamespace(privacy=-40.0))
    plain_terms(**sparse, degree=10, threshold=9, colluders=20)
    likely = SimpleNamespace(privacy=-39.9, degree=12, threshold=9)
    monkeypatch.setattr(graph, "assess", lambda *_, **__: likely)
    with pytest.raises(AgreementRefused, match=r"expose somebody with probability 2\^-39.9, more than 2\^-40; "):
        plain_terms(**sparse, degree=10, threshold=9, colluders=20)
    monkeypatch.undo()
    report = sparse | {"policy": REPORT}
    assert plain_terms(**report, degree=10, threshold=9, colluders=20).degree == 10


def test_a_third_may_collude_unless_the_terms_say_otherwise() -> None:
    assert plain_terms(members=12, **SURVIVORS).assumed_colluders == 4
    assert plain_terms(members=12, **SURVIVORS, colluders=0).assumed_colluders == 0


def test_a_threshold_that_is_given_is_that_of_every_cell() -> None:
    given: dict[str, Any] = {"members": 12, "size": 12, **SURVIVORS, "colluders": 1}
    assert plain_terms(**given).threshold_of(12) == 7
    assert plain_terms(**given, threshold=9).threshold_of(12) == 9


@pytest.mark.parametrize(
    ("more", "draws"),
    [
        ({"rounds": 5}, 11),  # one fixed cell, 11 seeds
        ({"rounds": 5, "schedule": "random"}, 5 * 11),
        ({"rounds": 5, "cell": 6}, 2 * 11),
        ({"rounds": 5, "cell": 6, "sample": 6}, 5 * 11),
        ({"rounds": 5, "schedule": "random", "cell": 6}, 2 * 5 * 11),
        ({"rounds": 5, "schedule": "atoms", "atom": 3}, 5 * 11),  # the left-out atoms may differ
        ({"rounds": 5, "schedule": "atoms", "atom": 3, "cell": 6}, 2 * 11),
        ({"first_round": 3, "last_round": 4, "schedule": "random"}, 2 * 11),
    ],
)
def test_every_random_cell_of_every_seed_counts(more: dict[str, Any], draws: int) -> None:
    terms = plain_terms(**{"members": 12, "size": 6, "colluders": 0, **SURVIVORS} | more)
    assert terms.draws == draws
    assert replace(terms, beacon=named(pulse())).draws == draws // 11


def test_rounds_are_counted_however_many_there_are() -> None:
    assert plain_terms(rounds=5).rounds == range(5)
    some = plain_terms(first_round=3, last_round=7)
    assert (some.rounds, some.round_count) == (range(3, 8), 5)
    noise = Noise(segments=(SegmentNoise(clip=1.0, sigma=1000),))
    terms = plain_terms(last_round=MOST_ROUND, noise=noise)
    assert terms.round_count == 2**63
    assert Terms.from_bytes(terms.to_bytes()) == terms
    assert all_rounds(Trial(terms)).local.rho == 2**63 - 1  # a charge has no more units
    assert f"all {2**63} rounds together: " in "\n".join(summarise(terms).lines())


@pytest.mark.parametrize(
    ("more", "varying"),
    [
        (FLAT, True),
        ({**FLAT, "policy": Policy()}, False),
        ({**FLAT, "policy": Policy(memory="round", min_survivors=5)}, True),
        ({**FLAT, "policy": Policy(memory="round", min_survivors=6)}, False),
        ({**FLAT, "size": 3}, False),
        ({**FLAT, "groups": "survivors", "colluders": 0}, False),
        ({**FLAT, "members": 11}, True),  # one group of 6 of 11
        ({**FLAT, "members": 12}, False),
        ({**FLAT, "members": 12, "sample": 6}, True),
    ],
)
def test_a_flat_sum_varies_if_its_policy_promises_each_round_alone(more: dict[str, Any], varying: bool) -> None:
    assert plain_terms(**more).varying is varying


def test_a_flat_sum_is_one_group() -> None:
    assert plain_terms(size=6).flat
    assert not plain_terms().flat
    assert not plain_terms(groupings=2, policy=REPORT).flat  # two groups, twice


def test_a_flat_sum_is_opened_for_no_fewer_than_the_policy_says() -> None:
    assert plain_terms(policy=Policy()).least_summed == 3
    assert plain_terms(policy=Policy(anonymity=2, min_survivors=3)).least_summed == 3
    assert plain_terms(policy=Policy(anonymity=2, min_survivors=2)).least_summed == 2


def test_a_weight_is_relative_to_the_mean_of_all() -> None:
    terms = plain_terms(weights=(1, 2, 3, 4, 5, 6))
    assert [Fraction(terms.relative_weight(v)).limit_denominator(99) for v in range(6)] == [Fraction(2 * (v + 1), 7) for v in range(6)]  # fmt: skip  # noqa: E501
    with pytest.raises(UsageError, match=r"^client: client 6 is not on the roster$"):
        terms.relative_weight(6)


def test_noise_has_room_for_the_sums_of_all_rounds() -> None:
    """A sum wraps with probability 2^-40 at most, over all groups, groupings and rounds of the agreement."""
    given: dict[str, Any] = {
        "members": 12,
        "size": 6,
        "segments": (Segment(shape=(4,), bound=3 * 10**8),),
        "policy": REPORT,
    }

    def most(**more: Any) -> int:
        with pytest.raises(UsageError, match=r"use at most (\d+)$") as told:
            plain_terms(**given, noise=Noise(segments=(SegmentNoise(clip=3e8, sigma=2**26),)), **more)
        return int(str(told.value).rpartition(" ")[2])

    assert most(rounds=40) == most(rounds=20, groupings=2) == most(rounds=80, sample=6) < most(rounds=39)


def test_bytes_that_are_no_terms_are_refused() -> None:
    data = plain_terms(last_round=1).to_bytes()
    assert Terms.from_bytes(bytearray(data)).to_bytes() == data
    short = plain_terms(first_round=1, last_round=1).to_bytes()
    (place,) = [i for i, (a, b) in enumerate(zip(data, short, strict=True)) if a != b]
    with pytest.raises(WireError, match=r"^terms that cannot be kept: rounds: expected"):
        Terms.from_bytes(data[:place] + b"\2" + data[place + 1 :])

"""Plans: what may not be built cannot be built, and what everybody types works."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import Agreement, Member, Plan, Policy, Schedule, UsageError, WireError
from secagg.agreement.plan import MOST_CONTEXT
from secagg.agreement.thresholds import default_colluders, default_threshold
from tests.secagg.drbg import Drbg


def roster(n: int) -> tuple[Member, ...]:
    return tuple(Member(i, Drbg(b"member %d" % i)(32)) for i in range(n))


def plan(n: int = 6, **changes: Any) -> Plan:
    settings: dict[str, Any] = {
        "training_id": bytes(32),
        "round": 0,
        "roster": roster(n),
        "length": 4,
        "schedule": Schedule(name="random", size=n),
        "training_seed": bytes(range(32)),
        "clip": 1.0,
    }
    return Plan(**{**settings, **changes})


@given(st.integers(3, 80), st.data())
def test_only_thresholds_that_stop_a_lying_server_are_built(n: int, data: st.DataObject) -> None:
    colluders = data.draw(st.integers(0, n - 1))
    threshold = data.draw(st.integers(0, n + 1))
    if 2 <= threshold <= n and 2 * threshold > n + colluders:
        assert plan(n, colluders=colluders, threshold=threshold).t == threshold
    else:
        with pytest.raises(UsageError, match="threshold"):
            plan(n, colluders=colluders, threshold=threshold)


@pytest.mark.parametrize(("n", "colluders", "t"), [(3, 0, 2), (3, 1, 3), (10, 3, 7), (60, 20, 41)])
def test_defaults_are_those_of_the_documents(n: int, colluders: int, t: int) -> None:
    assert default_threshold(n, colluders) == t
    assert plan(n, colluders=colluders).t == t
    assert plan(n).assumed_colluders == default_colluders(n) == n // 3


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"roster": ()}, "needs 2 to"),
        ({"roster": roster(6)[::-1]}, "ascending"),
        ({"roster": (*roster(5), Member(9, roster(5)[0].identity))}, "share one identity"),
        ({"training_id": b"short"}, "training_id must have 32 bytes"),
        ({"training_seed": bytes(31)}, "training_seed must have 32 bytes"),
        ({"training_id": "text"}, "training_id: expected bytes, got str"),
        ({"round": -1}, "round"),
        ({"round": 2**63}, "round"),
        ({"round": 1.5}, "round: expected a whole number"),
        ({"length": 0}, "length"),
        ({"length": 2**31}, "length"),
        ({"clip": None}, "clip .* or bound"),
        ({"bound": 5}, "clip .* or bound"),
        ({"clip": float("nan")}, "clip"),
        ({"clip": None, "bound": 2**31}, "could wrap"),
        ({"weights": (1, 2)}, "2 weights for 6"),
        ({"weights": (1, 1, 1, 1, 1, 0)}, "positive"),
        ({"weights": (1, 1, 1, 1, 1, 1.5)}, "weights, each: expected a whole number"),
        ({"clip": None, "bound": 5, "weights": (1, 1, 1, 1, 1, 2)}, "cannot be weighted"),
        ({"context": bytes(MOST_CONTEXT + 1)}, "context"),
        ({"colluders": 6}, "colluders"),
        ({"degree": 3, "threshold": 2}, "degree"),
        ({"degree": 4}, "explicit threshold"),
        ({"degree": 4, "threshold": 5}, "sparse threshold"),
        ({"degree": 4, "threshold": 1}, "sparse threshold"),
        ({"degree": 4, "threshold": 3, "schedule": Schedule(name="random", size=3)}, "one group"),
        ({"policy": Policy(anonymity=7)}, "no group could be opened"),
        ({"policy": Policy(min_survivors=7)}, "no group could be opened"),
        ({"roster": roster(12), "schedule": Schedule(name="atoms", size=6, groupings=2, atom=2)}, "never hide 3"),
        ({"schedule": Schedule(name="random", size=7)}, "7"),
    ],
)
def test_what_is_unsafe_or_senseless_cannot_be_built(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        plan(**changes)


def test_numpy_integers_lists_and_buffers_are_taken_for_what_they_mean() -> None:
    typed = plan(weights=(1, 2, 3, 4, 5, 6))
    loose = plan(
        weights=list(np.arange(1, 7)),
        length=np.int64(4),
        round=np.uint8(0),
        roster=list(roster(6)),
        training_id=bytearray(32),
    )
    assert loose == typed
    assert loose.hash == typed.hash


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_plan_has_one_encoding_and_comes_back(data: st.DataObject) -> None:
    n = data.draw(st.integers(3, 12))
    made = plan(
        n,
        round=data.draw(st.integers(0, 2**63 - 1)),
        length=data.draw(st.integers(1, 2**31 - 1)),
        weights=tuple(data.draw(st.lists(st.integers(1, 2**32 - 1), min_size=n, max_size=n))),
        context=data.draw(st.binary(max_size=40)),
        clip=data.draw(st.floats(2.0**-20, 2.0**10)),
    )
    data_bytes = made.to_bytes()
    assert Plan.from_bytes(data_bytes) == made
    assert Plan.from_bytes(data_bytes).hash == made.hash
    for bad in (data_bytes[:-1], data_bytes + b"\0", b"\1" + data_bytes[1:]):
        with pytest.raises((WireError, UsageError)):
            Plan.from_bytes(bad)


def test_everything_in_a_plan_is_in_its_hash() -> None:
    base = plan(12, schedule=Schedule(name="random", size=6, groupings=2), weights=(1,) * 12)
    changes: list[dict[str, Any]] = [
        {"training_id": b"\1" * 32},
        {"round": 1},
        {"roster": (*base.roster[:-1], Member(99, base.roster[-1].identity))},
        {"length": 5},
        {"schedule": Schedule(name="random", size=6, groupings=3)},
        {"schedule": Schedule(name="random", size=4, groupings=2)},
        {"schedule": Schedule(name="fixed", size=6, groupings=1)},
        {"training_seed": bytes(32)},
        {"clip": 2.0},
        {"clip": None, "bound": 5},
        {"threshold": 12},
        {"colluders": 1},
        {"weights": (2,) * 12},
        {"policy": Policy(anonymity=4)},
        {"policy": Policy(min_survivors=4)},
        {"policy": Policy(max_leverage=0.7)},
        {"policy": Policy(mode="report-even-if-exposed")},
        {"context": b"model"},
    ]
    hashes = {base.hash, *(replace(base, **change).hash for change in changes)}
    assert len(hashes) == len(changes) + 1


def test_relative_weights_average_to_one() -> None:
    made = plan(6, weights=(1, 2, 3, 4, 5, 6))
    assert sum(made.relative_weight(v) for v in made.ids) == pytest.approx(6)
    assert plan(6).relative_weight(0) == 1.0


def test_the_audit_of_a_run_counts_the_weights() -> None:
    weighted = plan(weights=(3, 2, 2, 2, 2, 2))
    assert weighted.audit(weighted.ids).leverage[0] == pytest.approx(9 / 29)


def test_a_sparse_graph_may_risk_two_to_the_minus_forty() -> None:
    assert Agreement.sparse_risk == 2.0**-40

"""Each floor, one below: the plan is refused before anything is sent or recorded; at it, it is taken."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import Floors, Plan, PlanRefused, Policy, Schedule, Stage, UsageError
from secagg.exposure.audit import REPORT_EVEN_IF_EXPOSED
from secagg.protocol.client_state import State
from secagg.protocol.messages import Dealing, KeyAdvert, KeyList
from tests.secagg.cluster import LOOSE, make_plan
from tests.secagg.malicious import World

N = 7
TRIPLES = Schedule(name="random", size=3, groupings=2)


def floors_of(plan: Plan, **changes: Any) -> Floors:
    """What a careful client pinned before it saw the plan."""
    settings: dict[str, Any] = {
        "roster": plan.roster,
        "training_id": plan.training_id,
        "training_seed": plan.training_seed,
        "colluders": 2,
        "policy": Policy(min_survivors=3, anonymity=3, max_leverage=0.8),
        "clip": (1.0, 2.0),
        "weight_ratio": 3.0,
        "groupings": 2,
    }
    return Floors(**{**settings, **changes})


def base(**changes: Any) -> Plan:
    settings: dict[str, Any] = {
        "colluders": 2,
        "schedule": TRIPLES,
        "bound": None,
        "clip": 1.5,
        "policy": Policy(min_survivors=3, anonymity=3, max_leverage=0.8),
        "context": b"model",
    }
    return make_plan(N, **{**settings, **changes})


def offered(plan: Plan, floors: Floors, *, context: bytes = b"model") -> Any:
    """A plan shown to a client whose keys are for the round it expects. What it answered, or its refusal."""
    world = World(plan, floors=floors)
    adverts = [world.puppet(v).hello() for v in range(N)]
    puppet = world.puppets[0]
    records = set(world.journals[0]._records)
    try:
        return puppet.tell(world.key_list(adverts), context=context)
    except PlanRefused as refusal:
        assert puppet.client.state is State.FAILED
        assert set(world.journals[0]._records) == records  # a refusal leaves no trace, and nothing was sent
        assert len(puppet.said) == 1
        return refusal


def weights(*low: int) -> tuple[int, ...]:
    return low + (10,) * (N - len(low))


AT_THE_FLOOR: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "colluders": ({"colluders": 2}, {}),
    "default colluders": ({"colluders": N // 3}, {"colluders": None}),
    "min survivors": ({}, {}),
    "least clip": ({"clip": 1.0}, {}),
    "most clip": ({"clip": 2.0}, {}),
    "weights": ({"weights": (10,) * (N - 1) + (30,)}, {}),
    "my weight": ({"weights": (10,) * N}, {"weight": 10}),
    "groupings": ({"schedule": TRIPLES}, {}),
    "integers": ({"clip": None, "bound": 100}, {"bound": 100}),
    "schedule": ({}, {"schedule": TRIPLES}),
    "leverage": ({"policy": Policy(min_survivors=3, anonymity=3, max_leverage=0.8)}, {}),
    "stricter": ({"policy": Policy(min_survivors=3, anonymity=3, max_leverage=0.5), "colluders": 3}, {}),
    "bound": ({"clip": None, "bound": 100}, {"bound": 100}),
    "larger bound": ({"clip": None, "bound": 101}, {"bound": 100}),
    "sparse": (
        {"schedule": Schedule(name="random", size=N), "degree": 6, "threshold": 6},
        {"accept_semi_honest_server_only": True},
    ),
    "report floor": (
        {"policy": Policy(anonymity=2, mode=REPORT_EVEN_IF_EXPOSED)},
        {"policy": Policy(mode=REPORT_EVEN_IF_EXPOSED)},
    ),
}

BELOW: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "one colluder fewer": ({"colluders": 1}, {}, "assumes 1 colluders, my floor is 2"),
    "default colluders": ({"colluders": N // 3 - 1}, {"colluders": None}, "my floor is 2"),
    "one survivor fewer": ({"policy": Policy(min_survivors=2, anonymity=3)}, {}, "weaker"),
    "anonymity one less": ({"policy": Policy(min_survivors=3, anonymity=2)}, {}, "weaker"),
    "leverage a little more": ({"policy": Policy(min_survivors=3, anonymity=3, max_leverage=0.8000001)}, {}, "weaker"),
    "report instead of enforce": (
        {"policy": Policy(min_survivors=3, anonymity=3, mode=REPORT_EVEN_IF_EXPOSED)},
        {},
        "weaker",
    ),
    "clip a little less": ({"clip": 0.999}, {}, "clip 0.999 is outside"),
    "clip a little more": ({"clip": 2.001}, {}, "clip 2.001 is outside"),
    "weights a little further apart": ({"weights": (10,) * (N - 1) + (31,)}, {}, "differ by more than 3"),
    "not my weight": ({"weights": (11, *(10,) * (N - 1))}, {"weight": 10}, "weight for me is not my own"),
    "integers not expected": ({"clip": None, "bound": 100}, {}, "would reveal which clients exceed"),
    "bound one less": ({"clip": None, "bound": 99}, {"bound": 100}, "would reveal which clients exceed"),
    "neighbourhoods too small": (
        {"schedule": Schedule(name="random", size=N), "degree": 4, "threshold": 2},
        {"accept_semi_honest_server_only": True},
        "neighbourhoods are too small",
    ),
    "one grouping more": (
        {"schedule": replace(TRIPLES, groupings=3), "policy": LOOSE},
        {"policy": LOOSE},
        "3 groupings, my maximum is 2",
    ),
    "another schedule": ({"schedule": replace(TRIPLES, name="fixed")}, {"schedule": TRIPLES}, "schedule"),
    "groups of another size": ({"schedule": Schedule(name="random", size=3)}, {"schedule": TRIPLES}, "schedule"),
    "integers one below mine": ({"clip": None, "bound": 99}, {"bound": 100}, "bound 99 would reveal"),
    "integers where I sum none": ({"clip": None, "bound": 100}, {"bound": None}, "mine is None"),
    "a sparse graph that two colluders may cut": (
        {"schedule": Schedule(name="random", size=N), "degree": 2, "threshold": 2},
        {"accept_semi_honest_server_only": True},
        "neighbourhoods are too small",
    ),
    "another training": ({}, {"training_id": bytes(32)}, "another training"),
    "another training seed": ({"training_seed": bytes(32)}, {"training_seed": bytes(31) + b"\1"}, "seed"),
    "the sparse mode": ({"schedule": Schedule(name="random", size=N), "degree": 4, "threshold": 3}, {}, "semi-honest"),
}


@pytest.mark.parametrize("name", AT_THE_FLOOR)
def test_a_plan_at_the_floor_is_taken(name: str) -> None:
    plan, floors = AT_THE_FLOOR[name]
    made = base(**plan)
    assert isinstance(offered(made, floors_of(made, **floors)), Dealing)


@pytest.mark.parametrize("name", BELOW)
def test_a_plan_one_below_a_floor_is_refused_before_anything_is_sent(name: str) -> None:
    plan, floors, why = BELOW[name]
    made = base(**plan)
    refusal = offered(made, floors_of(made, **floors))
    assert isinstance(refusal, PlanRefused)
    assert why in str(refusal)


def test_a_plan_for_another_round_is_refused() -> None:
    plan, floors = base(round=6), floors_of(base())
    world = World(base(round=5), floors=floors)
    adverts = [world.puppet(v).hello() for v in range(N)]
    with pytest.raises(PlanRefused, match="round 6, my keys are for round 5"):
        world.puppets[0].tell(KeyList(plan.to_bytes(), tuple(adverts)))


@pytest.mark.parametrize("change", ["one less", "one more", "another key", "another id"])
def test_a_roster_that_is_not_the_pinned_one_is_refused(change: str) -> None:
    pinned = base()
    roster = {
        "one less": pinned.roster[:-1],
        "one more": make_plan(N + 1).roster,
        "another key": (*pinned.roster[:-1], replace(pinned.roster[-1], identity=make_plan(9).roster[8].identity)),
        "another id": (*pinned.roster[:-1], replace(pinned.roster[-1], id=70)),
    }[change]
    world = World(pinned, floors=floors_of(pinned))
    adverts = [world.puppet(v).hello() for v in range(N)]
    plan = replace(pinned, roster=roster, threshold=None)
    with pytest.raises(PlanRefused, match="roster is not the one I pinned"):
        world.puppets[0].tell(KeyList(plan.to_bytes(), tuple(adverts)), context=b"model")


@pytest.mark.parametrize("context", [b"", b"Model", b"model "])
def test_another_context_is_refused(context: bytes) -> None:
    plan = base()
    refusal = offered(plan, floors_of(plan), context=context)
    assert isinstance(refusal, PlanRefused)
    assert "context" in str(refusal)


@settings(deadline=None, max_examples=300)
@given(n=st.integers(2, 300), colluders=st.integers(0, 300), t=st.integers(0, 320))
def test_a_threshold_that_two_sets_could_reach_cannot_be_built(n: int, colluders: int, t: int) -> None:
    """2t > n + colluders and t <= n, for every n, t and number of colluders; nothing else is accepted."""
    flat: Any = make_plan(2)
    roster = ROSTER[:n]
    fields = {"schedule": Schedule(name="random", size=n), "bound": 1, "policy": LOOSE}
    allowed = 2 <= t <= n and 2 * t > n + colluders and colluders < n
    try:
        plan = replace(flat, roster=roster, threshold=t, colluders=colluders, **fields)
    except UsageError:
        assert not allowed
    else:
        assert allowed
        assert plan.t == t


ROSTER = tuple(replace(make_plan(2).roster[0], id=v, identity=v.to_bytes(32, "little")) for v in range(300))


def test_a_server_cannot_lower_the_threshold_in_the_bytes_of_a_plan() -> None:
    plan = base()
    world = World(plan, floors=floors_of(plan))
    adverts = tuple(world.puppet(v).hello() for v in range(N))
    data = plan.to_bytes()
    at = 1 + 32 + 8 + 4 + 36 * N  # version, training id, round, count and members of the roster
    assert data[at : at + 4] == plan.t.to_bytes(4, "little")
    for t in (0, 1, 2, plan.t - 1, N + 1, 2**32 - 1):
        lowered = data[:at] + t.to_bytes(4, "little") + data[at + 4 :]
        with pytest.raises(PlanRefused, match="threshold"):
            world.puppets[0].fork().tell(KeyList(lowered, adverts), context=b"model")


def test_defaults_are_those_of_the_design() -> None:
    for n, colluders, t in ((10, 3, 7), (60, 20, 41), (3, 1, 3), (100, 33, 67)):
        schedule = Schedule(name="random", size=n)
        plan = replace(make_plan(2), roster=ROSTER[:n], schedule=schedule, bound=1, threshold=None, colluders=None)
        assert (plan.assumed_colluders, plan.t) == (colluders, t)


def test_keys_are_advertised_before_any_plan_and_a_refused_plan_spends_them() -> None:
    plan = base()
    world = World(plan, floors=floors_of(plan, groupings=1))
    puppets = world.run_to(Stage.KEYS)
    adverts = [p.find(KeyAdvert) for p in puppets.values()]
    with pytest.raises(PlanRefused):
        puppets[0].tell(world.key_list(adverts), context=b"model")
    with pytest.raises(Exception, match="not expected in state FAILED"):
        puppets[0].tell(world.key_list(adverts), context=b"model")


@pytest.mark.parametrize(
    "weaker",
    [
        {"schedule": Schedule(name="random", size=2, groupings=2)},
        {"weights": (3, 2, 1, 1, 1, 1, 1)},
        {"colluders": 1, "threshold": 5},
        {"clip": 1.25},
    ],
)
def test_floors_made_for_a_plan_refuse_every_weaker_plan(weaker: dict[str, Any]) -> None:
    plan = base(weights=(1, 2, 3, 1, 1, 1, 1), policy=LOOSE)
    floors = Floors.for_plan(plan, me=0)
    floors.check(plan, 0, plan.round, plan.context)
    other = base(**{"weights": plan.weights, "policy": LOOSE, **weaker})
    with pytest.raises(PlanRefused):
        floors.check(other, 0, plan.round, plan.context)


def test_floors_made_for_a_sparse_plan_keep_the_limit_of_its_risk() -> None:
    plan = base(schedule=Schedule(name="random", size=N), degree=2, threshold=2, policy=LOOSE)
    with pytest.raises(PlanRefused, match="neighbourhoods are too small"):
        Floors.for_plan(plan).check(plan, 0, plan.round, plan.context)
    Floors.for_plan(plan, sparse_risk=1.0).check(plan, 0, plan.round, plan.context)

"""Cells and their results, field by field: who was summed with whom, what is missing and why, and what was clipped."""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fl.config.checks import experiment
from fl.config.read import from_tables
from fl.errors import ConfigError
from fl.secure import cohort, figures, population
from fl.secure.cohort import Cell, CellResult, Cohort, why_lost
from fl.secure.layout import policy, sampling_seed, segments_of
from fl.secure.population import Population, as_entry, capped_weights
from fl.secure.suspects import LeftOut, most_suspects
from secagg import Dropout, Stage, UsageError, Verdict
from secagg.crypto import Segments
from secagg.evidence import verify
from secagg.exposure import Anonymity, shuffled
from secagg.simulation import Cost, Misbehaviour

EXPOSED: dict[str, Any] = {"method": "no-share", "privacy": {"expose_every_client": True}}
SURVIVORS: dict[str, Any] = {"clusters": {"size": 4, "groups": "survivors"}, "privacy": {"memory": "round"}}
C = b"c" * 32


def people(sizes: list[int] | None = None, length: int = 3, clients: int = 12, **tables: Any) -> Population:
    chosen = experiment({"clients": clients, "secure": False, "clusters": {"size": 4}, **tables})
    return Population(chosen, sizes or [20] * clients, length)


def updates(n: int = 12, length: int = 3) -> dict[int, np.ndarray]:
    return {c: np.full(length, c + 1, np.float32) / 16 for c in range(n)}


def summed(population: Population, round: int = 3, **more: Any) -> CellResult:
    (cell,) = population.cells(round, C)
    return population.aggregate(cell, more.pop("inputs", updates()), **{"drop": {}, "misbehave": {}, **more})


def test_a_result_of_whole_groups_field_by_field() -> None:
    sizes = [20, 22] * 6
    everybody = people(sizes)
    (cell,) = everybody.cells(3, C)
    first = cell.clusters[0, 0]
    gone = {first[1]: Stage.INPUTS, 99: Stage.KEYS}
    found = summed(everybody, drop=gone, misbehave={98: Misbehaviour.SILENCE})
    assert cell == Cell(0, 3, tuple(range(12)), cell.clusters, C)
    assert (found.cell, found.weights, found.mean_weight) == (cell, dict(enumerate(sizes)), 21)
    assert found.dropouts == {first[1]: Dropout(Stage.INPUTS, "it did not answer in time")}
    assert (found.clusters, found.closed, found.blamed, found.disputes) == (cell.clusters, {}, {}, ())
    assert found.lost == {(0, 0): f"client {first[1]}: it did not answer in time"}
    assert (found.left_out, found.failed, found.cost.clients) == ({}, "", 12)
    assert found.state((0, 0)) == ("lost", f"client {first[1]}: it did not answer in time")
    assert found.state((0, 1)) == ("opened", "")
    assert found.opened(0) == [(0, 1), (0, 2)]
    assert found.verdict is not None
    assert (found.verdict.clients, len(found.verdict.opened)) == (8, 2)
    given = updates()
    for cluster in found.opened(0):
        members = cell.clusters[cluster]
        mean = np.average([given[c] for c in members], axis=0, weights=[sizes[c] for c in members])
        np.testing.assert_allclose(found.mean(cluster), mean, atol=1e-6)
        into = np.empty(3, np.float32)
        assert found.mean(cluster, out=into) is into
    total, weight = found.total(0)
    others = [c for c in range(12) if c not in first]
    assert weight == sum(sizes[c] for c in others)
    np.testing.assert_allclose(total, sum(given[c].astype(float) * sizes[c] for c in others), atol=1e-4)


def test_a_cluster_that_a_silent_client_lost_has_a_reason() -> None:
    found = summed(people(), misbehave={0: Misbehaviour.SILENCE})
    ((cluster, why),) = found.lost.items()
    assert 0 in found.clusters[cluster]
    assert "client 0" in why
    assert set(found.dropouts) == {0}


def test_a_result_of_survivors_field_by_field() -> None:
    everybody = people(**SURVIVORS)
    (cell,) = everybody.cells(3, C)
    assert cell.plan is not None
    assert (cell.index, cell.round, cell.clients, cell.context) == (0, 3, cell.plan.ids, C)
    assert cell.clusters == {(0, g): group for g, group in enumerate(cell.plan.groupings[0])}
    (one, *_), (two, *_), _ = cell.clusters.values()
    found = summed(everybody, drop={one: Stage.INPUTS}, left_out={two: "it was caught", 99: "no member"})
    assert found.left_out == {two: "it was caught"}
    assert found.dropouts[two] == Dropout(Stage.KEYS, "it was caught")
    assert set(found.dropouts) == {one, two}
    assert found.clusters == {g: tuple(c for c in group if c not in (one, two)) for g, group in cell.clusters.items()}
    assert {g: part.members for g, part in found.groups.items()} == found.clusters
    assert (found.lost, found.closed, found.failed, found.blamed, found.disputes) == ({}, {}, "", {}, ())
    assert found.encoding == cell.plan.encoding


def test_a_cell_that_could_not_finish_has_a_reason_and_no_sums() -> None:
    everybody = people(**SURVIVORS)
    drop = dict.fromkeys(range(5), Stage.INPUTS)
    found = summed(everybody, drop=drop, misbehave={7: Misbehaviour.SILENCE, 8: Misbehaviour.GARBAGE})
    assert "threshold" in found.failed
    assert found.clusters == {(0, 0): (), (0, 1): (), (0, 2): ()}
    assert found.dropouts == {c: Dropout(Stage.INPUTS, "it did not answer in time") for c in (7, *range(5))}
    assert (found.groups, found.verdict, found.opened(0)) == ({}, None, [])
    assert found.state((0, 1)) == ("lost", "too few clients answered")


def test_what_became_of_a_cluster_is_lost_before_closed_before_opened() -> None:
    found = summed(people())
    found.lost, found.closed = {(0, 0): "gone"}, {(0, 0): "refused", (0, 1): "refused"}
    assert [found.state((0, g)) for g in range(3)] == [("lost", "gone"), ("closed", "refused"), ("opened", "")]


def test_sums_of_one_grouping_can_be_forgotten() -> None:
    report = {"audit": "report-even-if-exposed", "memory": "round"}
    found = summed(people(clusters={"size": 4, "groupings": 2, "schedule": "random"}, privacy=report))
    assert found.opened(1) == [(1, 0), (1, 1), (1, 2)]
    one, other = found.total(0), found.total(1)
    assert (one[0] == other[0]).all()
    assert one[1] == other[1] == 240
    found.forget(0)
    assert (found.opened(0), found.opened(1)) == ([], [(1, 0), (1, 1), (1, 2)])


@pytest.mark.parametrize("tables", [{}, SURVIVORS, EXPOSED], ids=["whole", "survivors", "no-share"])
def test_clipped_coordinates_are_counted_and_of_how_many(tables: dict[str, Any]) -> None:
    given = updates()
    given[2][:2], given[7][0] = 100, -100
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the experiment sets the clip: nobody is warned
        assert summed(people(**tables), inputs=given).clipped(0) == (3, 36)


def test_a_lost_cluster_names_the_members_that_dropped_out_and_why() -> None:
    reasons = {3: "it did not answer in time", 5: "its update is not finite", 8: "it did not answer in time"}
    told = "client 5: its update is not finite; client 3: it did not answer in time"
    assert why_lost((5, 1, 3), reasons) == told
    assert why_lost((1, 2), reasons) == ""


def test_updates_that_are_not_finite_are_the_reason_of_the_dropouts_and_of_their_lost_clusters() -> None:
    everybody = people()
    (cell,) = everybody.cells(3, C)
    (one, late, *_), (silent, *_), _ = cell.clusters.values()
    found = summed(everybody, drop=dict.fromkeys((one, late, silent), Stage.INPUTS))
    found.reject([one])
    in_time, finite = "it did not answer in time", "its update is not finite"
    assert {c: dropout.reason for c, dropout in found.dropouts.items()} == {one: finite, late: in_time, silent: in_time}
    assert found.lost == {
        (0, 0): "; ".join(
            f"client {c}: {finite if c == one else in_time}" for c in cell.clusters[0, 0] if c in (one, late)
        ),
        (0, 1): f"client {silent}: {in_time}",
    }


def test_clusters_of_survivors_that_are_lost_keep_their_reason() -> None:
    """They are not lost with a member, but with shares that are missing, for example."""
    everybody = people(**SURVIVORS)
    (cell,) = everybody.cells(3, C)
    one = cell.clusters[0, 0][0]
    found = summed(everybody, drop={one: Stage.INPUTS})
    found.lost = {(0, 0): "too few good shares"}
    found.reject([one])
    assert found.lost == {(0, 0): "too few good shares"}
    assert found.dropouts[one] == Dropout(Stage.INPUTS, "its update is not finite")


def test_without_an_agreement_clients_are_drawn_from_the_seed() -> None:
    everybody = people(participation=0.5, seed=4, **EXPOSED)
    for round in (0, 1):
        order = shuffled(range(12), sampling_seed(4), round, b"fl/sample")
        assert everybody.drawn(round) == sorted(order[:6])
    clients = tuple(everybody.drawn(1))
    assert everybody.cells(1, C) == [Cell(0, 1, clients, {(0, c): (c,) for c in clients}, C)]
    assert everybody.evidence() is None


def test_without_share_the_server_sees_every_update() -> None:
    everybody = people([10] * 6 + [30] * 6, **EXPOSED)
    found = summed(everybody, drop={2: Stage.KEYS}, misbehave={5: Misbehaviour.GARBAGE})
    left = tuple(c for c in range(12) if c not in (2, 5))
    assert found.dropouts == {
        2: Dropout(Stage.KEYS, "it did not answer in time"),
        5: Dropout(Stage.INPUTS, f"it misbehaved: {Misbehaviour.GARBAGE.value}"),
    }
    assert found.clusters == {(0, c): (c,) for c in left}
    assert {g: part.members for g, part in found.groups.items()} == found.clusters
    assert (found.mean_weight, found.cost.clients, found.encoding.segments[0].shape) == (20, 12, (3,))
    assert found.verdict == Verdict(
        policy=policy(everybody.experiment),
        opened=frozenset((0, c) for c in left),
        closed={},
        objections={},
        exposed=frozenset(left),
        would_expose=frozenset(left),
        clients=10,
        rank=10,
        leverage=dict.fromkeys(left, 1.0),
        anonymity=Anonymity(1, 1, "every update is visible"),
        sentences=("NO SECURE AGGREGATION: the server learns every client's update exactly",),
    )
    assert found.encoding == Segments(clients=1, segments=segments_of(3, 8.0, 1))
    nobody = everybody.aggregate(found.cell, {}, drop=dict.fromkeys(range(12), Stage.KEYS), misbehave={})
    assert (nobody.groups, nobody.encoding.segments[0].shape) == ({}, (1,))


def test_fixed_clusters_are_audited_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    real = cohort.verdict_of
    monkeypatch.setattr(cohort, "verdict_of", lambda *given: asked.append(given[3]) or real(*given))
    everybody = people()
    for round in range(3):
        summed(everybody, round)
    assert asked == [None]  # weights that are all equal need not be weighed
    summed(everybody, 3, drop={0: Stage.INPUTS})
    assert len(asked) == 2
    heavy = people([20] * 11 + [22])
    summed(heavy)
    assert asked[2:] == [heavy.weights]


def test_eight_verdicts_are_kept_and_then_they_are_begun_anew() -> None:
    everybody = people(clusters={"size": 4, "schedule": "random"}, privacy={"memory": "round"}, rounds=20)
    kept = []
    for round in range(20):
        summed(everybody, round)
        kept.append(len(everybody._verdicts))
    assert kept == [*range(1, 9), *range(1, 9), *range(1, 5)]


def test_a_plan_that_is_refused_is_a_problem_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    everybody = people(**SURVIVORS)

    def refuse(*_: object) -> None:
        raise UsageError("too few")

    monkeypatch.setattr(type(everybody.agreement), "plan", refuse)
    with pytest.raises(ConfigError, match=r"^privacy: too few$"):
        everybody.cells(0, C)


def test_a_cohort_keeps_what_it_was_given() -> None:
    chosen = from_tables({"clients": 3, "method": "no-share"})
    weights = {0: 1, 1: 2, 2: 6}
    found = Cohort(chosen, weights, None)
    weights[0] = 99
    assert (found.weights, found.mean_weight, found.agreement, found.experiment) == (
        {0: 1, 1: 2, 2: 6},
        3,
        None,
        chosen,
    )


@pytest.mark.parametrize("tables", [{}, SURVIVORS], ids=["whole", "survivors"])
def test_evidence_begins_with_the_first_round_that_was_played(tables: dict[str, Any]) -> None:
    everybody = people(secure=True, machine={"workers": 0}, **tables)
    assert everybody.evidence() is None
    costs = [summed(everybody, round).cost for round in (3, 4)]
    found = everybody.evidence()
    assert found is not None
    assert found[0] == 3
    report = verify(found[1])
    assert report.holds, report.problems
    assert (report.first_round, report.last_round) == (3, 4)
    assert [cost.clients for cost in costs] == [12, 12]
    clear = people(**tables)
    summed(clear)
    assert clear.evidence() is None


def test_a_round_of_survivors_that_failed_is_in_the_evidence_and_an_unfinished_one_is_not() -> None:
    everybody = people(secure=True, machine={"workers": 0}, **SURVIVORS)
    summed(everybody, 1, drop=dict.fromkeys(range(6), Stage.INPUTS))
    summed(everybody, 2)
    everybody._records[5] = []
    found = everybody.evidence()
    assert found is not None
    report = verify(found[1])
    assert report.holds, report.problems
    assert (found[0], report.first_round, report.last_round, report.rounds) == (1, 1, 2, 2)


@pytest.mark.parametrize(
    ("clients", "length", "processes"), [(23, 3, 1), (24, 3, 3), (10, 999_998, 1), (10, 999_999, 3)]
)
def test_processes_are_started_for_24_clients_or_ten_million_values(clients: int, length: int, processes: int) -> None:
    """An update has one more value: how many of its coordinates were clipped."""
    everybody = people(length=length, clients=24, machine={"workers": 3}, **SURVIVORS)
    cell = Cell(0, 0, tuple(range(clients)), {}, C)
    assert everybody._processes_for(cell) == processes


@pytest.mark.parametrize(("length", "processes"), [(499_998, 1), (499_999, 3)])
def test_values_are_counted_in_every_grouping(length: int, processes: int) -> None:
    clusters = {"size": 4, "groups": "survivors", "groupings": 2, "schedule": "random"}
    privacy = {"audit": "report-even-if-exposed", "memory": "round"}
    everybody = people(length=length, machine={"workers": 3}, clusters=clusters, privacy=privacy)
    assert everybody._processes_for(Cell(0, 0, tuple(range(10)), {}, C)) == processes


def test_by_default_there_are_as_many_processes_as_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(population, "cores", lambda: 5)
    assert people().processes == 5
    assert people(machine={"workers": 3}).processes == 3


@pytest.mark.parametrize(("workers", "secure", "warm"), [(0, True, 0), (1, True, 0), (2, True, 1), (2, False, 0)])
def test_kernels_are_compiled_before_processes_are_started(
    workers: int, secure: bool, warm: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[bool] = []
    monkeypatch.setattr(population.secagg, "warm_up", lambda: called.append(True))
    found = people(secure=secure, machine={"workers": workers})
    assert (found.secure, found.processes, len(called)) == (secure, max(workers, 1), warm)
    assert not people(secure=True, machine={"workers": 0}, **EXPOSED).secure


def test_an_entry_is_zero_up_to_half_a_step_and_counts_what_is_clipped() -> None:
    encoding = Segments(clients=4, segments=segments_of(3, 8.0, 4))
    scale = cohort.floats_of(encoding).scale
    half = np.array([0.5 / scale, 0, 0], np.float32)
    for update in (half, -half):
        assert as_entry(encoding, update, 1.0)["update"].tolist() == [0, 0, 0]
        assert as_entry(encoding, update, 1.01)["update"].tolist() == update.tolist()
    for update, weight, clipped in (
        ([8.0, -8.0, 0], 1.0, 0),
        ([8.5, -8.0, 0], 1.0, 1),
        ([-8.5, 3.0, 9.0], 1.0, 2),
        ([4.5, -4.0, 0], 2.0, 1),
        ([9.0, 9.0, 9.0], 0.5, 0),
    ):
        entry = as_entry(encoding, np.array(update, np.float32), weight)
        assert (entry["update"].tolist(), entry["clipped"]) == (update, clipped)
    short = replace(encoding, segments=segments_of(3, 8.0, 2**30))
    assert as_entry(short, np.full(3, 99, np.float32), 1.0)["clipped"] == 1  # where the sum could wrap


@pytest.mark.parametrize(
    ("sizes", "ratio", "weights"),
    [
        ([10, 100], 10.0, (10, 100)),
        ([10, 101], 10.0, (18, 101)),
        ([10, 10, 100, 100, 1000], 10.0, (32, 32, 100, 100, 316)),  # 100 / sqrt(10) and 100 * sqrt(10)
        ([1, 1, 1, 50], 4.0, (1, 1, 1, 2)),
        ([100, 100, 100, 10**6, 1], 4.0, (100, 100, 100, 200, 50)),
        ([3, 9], 1.0, (6, 6)),
        ([0, 0, 5], 4.0, (1, 1, 1)),
        ([1, 2], 1.0, (2, 2)),
    ],
)
def test_weights_are_capped_around_the_median(sizes: list[int], ratio: float, weights: tuple[int, ...]) -> None:
    assert capped_weights(sizes, ratio) == weights


def test_a_fifth_of_the_clients_is_taken_to_collude() -> None:
    assert [figures.colluding(from_tables({"clients": n, "clusters": {"size": 3}})) for n in (4, 5, 9, 10, 60)] == [
        0, 1, 1, 2, 12
    ]  # fmt: skip


CHAIN = [{0, 1}, {1, 2}, {2, 3}, {0, 1, 2}]  # shows all four


@pytest.mark.parametrize(("most", "enough"), [(16, True), (15, False)])
def test_too_many_sums_are_not_compared(most: int, enough: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "MOST_ENTRIES", most)
    assert figures.exposed_together(CHAIN) == (frozenset(range(4)) if enough else None)


def test_a_few_more_sums_than_clients_are_tried_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as many sums as clients, then all of them, unless everybody is exposed by then."""
    tried: list[int] = []
    real = figures.revealed

    def revealed(groups: Any) -> Any:
        groups = list(groups)
        tried.append(len(groups))
        return real(groups)

    monkeypatch.setattr(figures, "revealed", revealed)
    pairs = [{a, b} for a in range(4) for b in range(4, 8)]  # sixteen sums of two halves: nobody is exposed
    assert figures.exposed_together(pairs) == frozenset()
    assert tried == [16]
    wide = [{a, b} for a in range(5) for b in range(5, 10)]
    assert figures.exposed_together(wide) == frozenset()
    assert tried[1:] == [20, 25]
    assert figures.exposed_together([*CHAIN, {1, 3}, {0, 2}, {0, 3}, {0, 1, 3}, {1, 2, 3}]) == {0, 1, 2, 3}
    assert tried[3:] == [8]
    assert figures.exposed_together([{4, 5}, {6, 7, 8}]) == frozenset()
    assert len(tried) == 4  # a single sum of several clients shows nobody
    assert figures.MOST_ENTRIES == 20_000_000


def test_who_was_caught_stays_out_and_who_was_in_a_dispute_comes_back() -> None:
    chosen = experiment({"clients": 12, "secure": False, "dropout": {"rate": 0.0}, **SURVIVORS})
    agreement = people(**SURVIVORS).agreement
    assert agreement is not None
    known = LeftOut(chosen, agreement)
    known.remember({"round": 1, "blamed": {"3": "two answers"}})
    known.remember({"round": 2, "blamed": {}, "disputes": [[5, 6]]})
    assert known.in_round(2) == {
        3: "it was caught: two answers",
        5: "it was in a dispute: suspended up to round 3",
        6: "it was in a dispute: suspended up to round 3",
    }
    assert known.in_round(3) == {3: "it was caught: two answers"}
    slack = 12 - agreement.terms.threshold_of(12)
    for rate, expected in ((0.0, slack), (0.01, slack - 1), (0.25, max(slack - 3, 0)), (0.9, 0)):
        assert most_suspects(from_tables({"clients": 12, "dropout": {"rate": rate}}), agreement) == expected
    assert LeftOut(chosen, None).in_round(2) == {}


def test_a_cost_counts_the_clients_of_a_clear_cell_once() -> None:
    assert summed(people()).cost == Cost(clients=12)

"""Cells, weights and sums: secure and clear sums agree bit for bit; averaging by weight is FedAvg."""

import warnings
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl.config.checks import experiment
from fl.config.read import from_tables
from fl.config.schema import STAGES
from fl.errors import ConfigError
from fl.secure.cohort import CellResult
from fl.secure.figures import alone_probability
from fl.secure.layout import Layout, _disjoint, _safe_groupings, policy, segments_of
from fl.secure.population import Population, as_entry, capped_weights
from fl.training.randomness import context, stage_named
from secagg import Policy, Schedule, Stage, audit
from secagg.crypto.fixedpoint import FixedPoint
from secagg.crypto.segments import Segments
from secagg.protocol import GroupId
from secagg.simulation import Cost, Misbehaviour
from tests.fl.runs import tiny

KINDS = ("silence", "garbage", "wrong-shares", "broken-boxes")
REPORT = {"audit": "report-even-if-exposed", "memory": "round"}
SCHEDULES: dict[str, dict[str, Any]] = {
    "random": {"size": 4, "schedule": "random"},
    "fixed": {"size": 4, "schedule": "fixed"},
    "transversal": {"size": 4, "groupings": 2, "schedule": "transversal"},
    "atoms": {"size": 6, "groupings": 3, "schedule": "atoms", "atom": 3},
}


def survivors(clusters: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """The tables of a training whose dropouts are recovered."""
    return {"clusters": {"groups": "survivors", **(clusters or {})}, "privacy": {"memory": "round"}, **more}


def vectors(n: int, d: int = 40, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.3, (n, d)).astype(np.float32)


def aggregated(
    tables: dict[str, Any],
    updates: np.ndarray,
    *,
    sizes: list[int] | None = None,
    drop: dict[int, str] | None = None,
    misbehave: dict[int, str] | None = None,
) -> list[CellResult]:
    chosen = experiment({"clients": len(updates), **tables})
    population = Population(chosen, sizes or [20] * len(updates), updates.shape[1])
    return [
        population.aggregate(
            cell,
            {client: updates[client] for client in cell.clients},
            drop={client: stage_named(stage) for client, stage in (drop or {}).items()},
            misbehave={client: Misbehaviour(kind) for client, kind in (misbehave or {}).items()},
        )
        for cell in population.cells(3, b"c" * 32)
    ]


def sums(results: list[CellResult]) -> dict[tuple[int, GroupId], bytes]:
    return {
        (result.cell.index, cluster): result.mean(cluster).tobytes()
        for result in results
        for cluster in result.clusters
        if result.state(cluster)[0] == "opened"
    }


def states(result: CellResult) -> dict[GroupId, tuple[tuple[int, ...], str]]:
    """The survivors of every cluster, and what became of its sum."""
    return {cluster: (members, result.state(cluster)[0]) for cluster, members in result.clusters.items()}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("stage", STAGES)
def test_secure_and_clear_sums_have_the_same_bits_with_dropouts_at_any_stage(schedule: str, stage: str) -> None:
    tables = survivors(SCHEDULES[schedule])
    tables["privacy"] |= {"max_leverage": 0.8}
    updates, sizes = vectors(24), list(range(10, 34))
    drop = {2: stage, 11: stage}
    secured = aggregated(tables, updates, sizes=sizes, drop=drop)
    cleared = aggregated({**tables, "secure": False}, updates, sizes=sizes, drop=drop)
    assert sums(secured) == sums(cleared)
    assert sums(secured)
    assert states(secured[0]) == states(cleared[0])
    for cluster in secured[0].clusters:
        assert secured[0].state(cluster) == cleared[0].state(cluster)
    assert set(secured[0].dropouts) == set(cleared[0].dropouts) >= {2, 11}


@pytest.mark.parametrize("groups", ["whole", "survivors"])
@pytest.mark.parametrize("secure", [True, False])
def test_updates_that_vanish_count_as_zeros_and_clipped_ones_warn_nobody(secure: bool, groups: str) -> None:
    tables: dict[str, Any] = {"clusters": {"size": 4, "groups": groups}, "privacy": REPORT, "secure": secure}
    updates, zeros = vectors(12), vectors(12)
    updates[3], zeros[3] = 1e-12, 0  # as at the end of a training
    updates[5] = zeros[5] = 1e6  # as an attack has it
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sums(aggregated(tables, updates)) == sums(aggregated(tables, zeros))


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_whole_groups_have_the_same_bits_with_and_without_cryptography(data: st.DataObject) -> None:
    """For any schedule, weights, dropouts and silent clients; a sum is of all members of its cluster or missing."""
    clusters = SCHEDULES[data.draw(st.sampled_from(sorted(SCHEDULES)))]
    n = data.draw(st.integers(20, 25))
    sizes = data.draw(st.lists(st.integers(5, 40), min_size=n, max_size=n))
    drop = dict.fromkeys(data.draw(st.sets(st.integers(0, n - 1), max_size=3)), "inputs")
    cheats = data.draw(st.dictionaries(st.integers(0, n - 1), st.sampled_from(["silence", "garbage"]), max_size=2))
    cheats = {client: kind for client, kind in cheats.items() if client not in drop}
    tables = {"clusters": clusters, "privacy": REPORT, "participation": data.draw(st.sampled_from([0.6, 1.0]))}
    updates = vectors(n, seed=data.draw(st.integers(0, 99)))
    (secured,) = aggregated(tables, updates, sizes=sizes, drop=drop, misbehave=cheats)
    (cleared,) = aggregated({**tables, "secure": False}, updates, sizes=sizes, drop=drop, misbehave=cheats)
    assert sums([secured]) == sums([cleared])
    assert states(secured) == states(cleared)
    assert set(drop).intersection(secured.cell.clients) <= set(secured.dropouts) <= set(cleared.dropouts)
    missing = {*drop, *cheats}
    for cluster, (members, state) in states(secured).items():
        assert (state == "lost") == bool(missing.intersection(members))
        assert len(members) == clusters["size"]
        if state == "opened":
            weights = np.array([sizes[c] for c in members], dtype=np.float64)
            expected = (updates[list(members)] * weights[:, None]).sum(0) / weights.sum()
            np.testing.assert_allclose(secured.mean(cluster), expected, atol=1e-6)
        else:
            assert secured.state(cluster)[1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_cheater_changes_no_other_sum_and_is_blamed_or_a_dropout(kind: str) -> None:
    updates = vectors(15)
    clusters = survivors({"size": 5})
    secured = aggregated(clusters, updates, misbehave={4: kind})
    cleared = aggregated({**clusters, "secure": False}, updates, misbehave={4: kind})
    honest = aggregated({**clusters, "secure": False}, updates)
    assert sums(secured) == sums(cleared)
    assert states(secured[0]) == states(cleared[0])
    others = {(0, cluster) for cluster, members in honest[0].clusters.items() if 4 not in members}
    assert {key: value for key, value in sums(secured).items() if key in others} == {
        key: value for key, value in sums(honest).items() if key in others
    }
    if kind in ("wrong-shares", "broken-boxes"):
        assert set(secured[0].blamed) == {4}
    else:
        assert 4 in secured[0].dropouts
        assert not secured[0].blamed


def test_too_few_survivors_fail_the_cell_with_a_reason_and_no_sum() -> None:
    drop = dict.fromkeys(range(5), "inputs")
    for tables in ({}, {"secure": False}):
        (opened,) = aggregated(survivors({"size": 4}, **tables), vectors(12), drop=drop)
        assert "threshold" in opened.failed
        assert not sums([opened])
        assert {state for _, state in states(opened).values()} == {"lost"}
        assert set(opened.dropouts) == set(drop)


def oracle(updates: np.ndarray, sizes: list[int], clients: list[int], group: int) -> np.ndarray:
    """FedAvg in integers: encode every update as a client does, add them, and divide once at the end."""
    total = sum(sizes[c] for c in clients)
    mean = total / len(clients)
    encoding = FixedPoint(clients=group, clip=8.0)
    whole = np.zeros(updates.shape[1], dtype=np.int64)
    for c in clients:
        whole += encoding.encode(updates[c], weight=sizes[c] * len(clients) / total)[0].view(np.int32)
    return whole.astype(np.float64) * (mean / encoding.scale) / total


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_averaging_by_weight_equals_fedavg_exactly_whatever_the_clusters(data: st.DataObject) -> None:
    """Lemma 1 of SHARE: integers are added, so the order does not matter."""
    size = data.draw(st.integers(3, 6))
    clusters = data.draw(st.integers(2, 5))
    n = size * clusters
    sizes = data.draw(st.lists(st.integers(5, 40), min_size=n, max_size=n))
    tables = {
        "clusters": {
            "size": size,
            "groupings": data.draw(st.integers(1, 4)),
            "schedule": "random",
            "groups": data.draw(st.sampled_from(["whole", "survivors"])),
        },
        "privacy": REPORT,
        "secure": False,
    }
    updates = vectors(n, seed=data.draw(st.integers(0, 99)))
    (opened,) = aggregated(tables, updates, sizes=sizes)
    expected = oracle(updates, sizes, list(range(n)), size)
    for grouping in range(tables["clusters"]["groupings"]):
        total, weight = opened.total(grouping)
        assert weight == sum(sizes)
        assert (total / weight == expected).all()


def test_flat_fedavg_is_the_same_oracle_with_one_group() -> None:
    updates, sizes = vectors(9), [5, 9, 14, 30, 12, 8, 8, 8, 21]
    (opened,) = aggregated({"method": "fedavg"}, updates, sizes=sizes)
    total, weight = opened.total(0)
    assert (total / weight == oracle(updates, sizes, list(range(9)), 9)).all()


def test_a_cluster_mean_is_the_weighted_mean_of_its_survivors() -> None:
    updates, sizes = vectors(12), [10 + 3 * i for i in range(12)]
    (opened,) = aggregated(survivors({"size": 4}), updates, sizes=sizes, drop={3: "inputs"})
    for cluster in opened.opened(0):
        members = opened.clusters[cluster]
        assert 3 not in members
        weights = np.array([sizes[c] for c in members], dtype=np.float64)
        expected = (updates[list(members)] * weights[:, None]).sum(0) / weights.sum()
        np.testing.assert_allclose(opened.mean(cluster), expected, atol=1e-6)


def test_without_share_every_client_is_reported_as_exposed() -> None:
    updates = vectors(6)
    (opened,) = aggregated({"method": "no-share", "privacy": {"expose_every_client": True}}, updates, drop={2: "keys"})
    assert opened.verdict is not None
    assert opened.verdict.exposed == {0, 1, 3, 4, 5}
    assert "NO SECURE AGGREGATION" in opened.verdict.sentences[0]
    for cluster in opened.opened(0):
        np.testing.assert_allclose(opened.mean(cluster), updates[cluster[1]], atol=1e-7)


def test_without_share_clients_of_any_size_send_their_update_and_count_by_their_examples() -> None:
    updates, sizes = vectors(6), [10, 20, 30, 40, 50, 60]
    (opened,) = aggregated({"method": "no-share", "privacy": {"expose_every_client": True}}, updates, sizes=sizes)
    for cluster in opened.opened(0):
        np.testing.assert_allclose(opened.mean(cluster), updates[cluster[1]], atol=1e-6)
    total, weight = opened.total(0)
    np.testing.assert_allclose(total / weight, np.average(updates, axis=0, weights=sizes), atol=1e-6)


@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=30), st.floats(1, 100))
def test_capped_weights_never_differ_by_more_than_the_ratio(sizes: list[int], ratio: float) -> None:
    found = capped_weights(sizes, ratio)
    assert min(found) >= 1
    assert max(found) <= ratio * min(found)
    assert all((found[i] <= found[j]) for i in range(len(sizes)) for j in range(len(sizes)) if sizes[i] <= sizes[j])
    if max(sizes) <= ratio * min(sizes):
        assert list(found) == sizes


def test_one_false_size_changes_no_other_weight() -> None:
    assert capped_weights([100] * 9 + [10**6], 10)[:9] == (100,) * 9
    assert capped_weights([100] * 9 + [1], 10)[:9] == (100,) * 9


@settings(deadline=None, max_examples=60)
@given(
    st.integers(40, 3000),
    st.sampled_from(["random", "fixed", "transversal", "atoms"]),
    st.integers(2, 6),
    st.integers(30, 300),
)
def test_cells_keep_to_their_limit_and_leave_out_few_clients(n: int, schedule: str, size: int, cell: int) -> None:
    size = 2 * size if schedule == "atoms" else size + 1
    clusters = {"size": size, "schedule": schedule, "cell": cell, "atom": size // 2 if schedule == "atoms" else 0}
    tables = survivors(clusters, clients=n, secure=False)
    with suppress(ConfigError):  # an impossible layout is refused
        _check_layout(n, cell, size, Layout.of(from_tables(tables)))


def _check_layout(n: int, cell: int, size: int, layout: Layout) -> None:
    assert max(layout.cells) <= max(cell, size)
    assert layout.clusters * size == layout.clustered <= n
    assert n - layout.clustered <= max(size, 0.1 * n)


def test_each_client_is_in_one_cell_and_cells_change_every_round() -> None:
    chosen = experiment(survivors({"size": 5, "cell": 60, "schedule": "random"}, clients=200, secure=False))
    population = Population(chosen, [10] * 200, 3)
    rounds = [population.cells(t, b"") for t in range(3)]
    for cells in rounds:
        everyone = [client for cell in cells for client in cell.clients]
        assert len(everyone) == len(set(everyone)) == 200
        assert len(cells) == 4
    assert rounds[0][0].clients != rounds[1][0].clients
    again = Population(chosen, [10] * 200, 3).cells(0, b"")
    assert [cell.clients for cell in again] == [cell.clients for cell in rounds[0]]


@pytest.mark.parametrize("schedule", ["fixed", "atoms"])
def test_cells_of_fixed_clusters_and_atoms_do_not_change(schedule: str) -> None:
    clusters = {"size": 6, "cell": 60, "schedule": schedule, "atom": 3 if schedule == "atoms" else 0}
    population = Population(experiment(survivors(clusters, clients=180, secure=False)), [10] * 180, 3)
    first, second = population.cells(0, b""), population.cells(1, b"")
    assert [cell.clients for cell in first] == [cell.clients for cell in second]
    assert len(first) == 3
    if schedule == "fixed":
        assert [cell.clusters for cell in first] == [cell.clusters for cell in second]


def test_whole_groups_are_one_cell_with_the_groups_of_the_agreement() -> None:
    population = Population(experiment(clients=800, clusters={"size": 8}, secure=False), [10] * 800, 3)
    (cell,), (later,) = population.cells(0, b""), population.cells(9, b"")
    assert population.agreement is not None
    assert cell.clusters == later.clusters == population.agreement.groups(5)
    assert len(cell.clients) == 800


@pytest.mark.parametrize(
    ("clusters", "at_once"),
    [({"schedule": "random"}, 1), ({}, 3), ({"schedule": "atoms", "atom": 3, "size": 6, "groupings": 2}, 3)],
)
def test_each_round_draws_a_new_sample_of_whole_units(clusters: dict[str, Any], at_once: int) -> None:
    """Single clients, fixed clusters or atoms; all clients that are in one take part over time."""
    chosen = experiment(clients=40, rounds=40, participation=0.3, clusters=clusters, privacy=REPORT, secure=False)
    population = Population(chosen, [10] * 40, 3)
    samples = [frozenset(population.cells(t, b"")[0].clients) for t in range(40)]
    assert {len(sample) for sample in samples} == {12}
    assert len(set(samples)) > 20
    together = {c: frozenset.intersection(*(s for s in samples if c in s)) for c in frozenset[int]().union(*samples)}
    assert len(together) == 40 - 40 % at_once
    assert {len(mates) for mates in together.values()} == {at_once}


def test_the_same_experiment_makes_the_same_agreement_and_another_seed_another() -> None:
    def made(**changes: Any) -> bytes:
        agreement = Population(experiment(clients=6, **changes), [10, 12, 10, 10, 10, 10], 5).agreement
        assert agreement is not None
        return agreement.fingerprint

    assert made() == made(rounds=3, secure=False, name="other", local={"lr": 0.5})
    assert len({made(), made(seed=1), made(privacy={"clip": 4.0})}) == 3


def test_weights_are_relative_to_those_of_all_members() -> None:
    population = Population(experiment(clients=6, secure=False, participation=0.5), [10, 12, 10, 12, 10, 12], 5)
    assert population.agreement is not None
    assert population.agreement.terms.relative_weight(5) == pytest.approx(12 / 11)
    assert population.mean_weight == 11


def test_weights_that_would_reveal_too_much_of_a_client_are_refused_with_what_fits() -> None:
    sizes = [10, 20, 10, 10, 10, 30]
    with pytest.raises(ConfigError, match=r"leverage of client 5.*privacy\.weight_ratio = 1\.41"):
        Population(experiment(clients=6, secure=False), sizes, 5)
    fitting = Population(experiment(clients=6, secure=False, privacy={"weight_ratio": 1.41}), sizes, 5)
    assert max(fitting.weights.values()) / min(fitting.weights.values()) <= 1.41


def test_a_result_holds_the_verdict_of_its_audit() -> None:
    (opened,) = aggregated(
        {"clusters": {"size": 3, "groupings": 8, "schedule": "random"}, "privacy": REPORT}, vectors(12)
    )
    assert opened.verdict is not None
    assert len(opened.verdict.exposed) == 12
    assert opened.verdict.anonymity.lower == 1
    (safe,) = aggregated({"clusters": {"size": 3}}, vectors(12))
    assert safe.verdict is not None
    assert (safe.verdict.exposed, safe.verdict.anonymity.lower) == (set(), 3)
    assert safe.verdict.mean_leverage == pytest.approx(1 / 3)


def test_bytes_and_seconds_are_counted_only_where_cryptography_ran() -> None:
    (secured,) = aggregated(survivors({"size": 3}), vectors(12))
    (cleared,) = aggregated(survivors({"size": 3}, secure=False), vectors(12))
    (whole,) = aggregated({"clusters": {"size": 3}}, vectors(12))
    assert set(secured.cost.as_dict()["bytes_up"]) == set(STAGES)
    assert set(whole.cost.as_dict()["bytes_up"]) == {"keys", "inputs"}
    assert sum(secured.cost.bytes_up.values()) > 12 * 4 * 40
    assert not cleared.cost.bytes_up
    total = Cost()
    total.add(secured.cost)
    total.add(secured.cost)
    assert total.clients == 24
    assert total.bytes_up[Stage.INPUTS] == 2 * secured.cost.bytes_up[Stage.INPUTS]


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_the_verdict_on_disjoint_groups_is_that_of_the_audit(data: st.DataObject) -> None:
    size, count = data.draw(st.integers(3, 6)), data.draw(st.integers(1, 6))
    clients = data.draw(st.permutations(range(size * count)))
    groups = [tuple(sorted(clients[i : i + size])) for i in range(0, len(clients), size)]
    weights = data.draw(st.none() | st.fixed_dictionaries(dict.fromkeys(clients, st.integers(4, 9))))
    rules = Policy(mode=data.draw(st.sampled_from(["enforce", "report-even-if-exposed"])))
    judged = audit([tuple(groups)], set(clients), rules, weights=weights, plan_hash=b"")
    quick = _disjoint(groups, rules, weights)
    assert (quick is None) == bool(judged.objections)
    if quick is not None:
        for name in ("opened", "closed", "exposed", "would_expose", "clients", "rank", "sentences"):
            assert getattr(quick, name) == getattr(judged, name)
        assert quick.leverage == pytest.approx(judged.leverage)
        assert str(quick.anonymity) == str(judged.anonymity)


def test_what_a_round_reveals_counts_the_weights() -> None:
    sizes = [20] * 11 + [26]
    (result,) = aggregated({"clusters": {"size": 4}}, vectors(12), sizes=sizes)
    assert result.verdict.leverage[11] == pytest.approx(26**2 / (26**2 + 3 * 20**2))


def test_the_context_binds_the_configuration_and_the_model() -> None:
    one, other = experiment(clients=12), experiment(clients=12, seed=5)
    assert len({context(e, model) for e in (one, other) for model in (bytes(32), bytes(31) + b"1")}) == 4


def test_the_policy_has_the_limits_of_the_configuration() -> None:
    privacy = {"min_survivors": 4, "anonymity": 3, "max_leverage": 0.4, "memory": "round"}
    assert policy(experiment(clients=12, clusters={"size": 6}, privacy=privacy)) == Policy(**privacy)


def test_atoms_of_survivors_are_not_sampled() -> None:
    clusters = {"groups": "survivors", "schedule": "atoms", "atom": 3, "size": 6}
    with pytest.raises(ConfigError, match="participation: fixed clusters and atoms of survivors"):
        experiment(clients=24, participation=0.5, clusters=clusters)


def test_without_clusters_every_client_is_alone_in_one_grouping() -> None:
    exposed = tiny(method="no-share", privacy={"expose_every_client": True})
    assert Layout.of(exposed) == Layout((12,), None, 12, 12, 1)
    assert alone_probability(exposed, 3) == 1.0
    assert alone_probability(tiny(), 0) == 0.0


def test_groups_that_no_grouping_may_open_are_not_offered() -> None:
    """Pairs cannot hide anybody among three: not even one grouping of them is safe."""
    strict = tiny(privacy={"anonymity": 3})
    assert _safe_groupings(12, Schedule(name="random", size=2, groupings=1), strict) == 0
    assert _safe_groupings(12, Schedule(name="random", size=3, groupings=1), strict) >= 1


@pytest.mark.parametrize(("workers", "processes"), [(0, 1), (1, 1), (3, 3)])
def test_clients_are_simulated_in_as_many_processes_as_the_machine_section_says(workers: int, processes: int) -> None:
    assert Population(tiny(machine={"workers": workers}), [20] * 12, 4).processes == processes


def test_a_count_of_clipped_values_ends_where_a_sum_could_wrap() -> None:
    assert segments_of(1000, 1.0, 3)[1].bound == 1000
    assert segments_of(2**30, 1.0, 3)[1].bound == (2**31 - 1) // 3
    assert segments_of(2**30, 1.0, 1)[1].bound == 2**30
    encoding = Segments(clients=3, segments=segments_of(4, 1.0, 3))
    for update, clipped in (([1e-12, 0, 0, 0], 0), ([0.5, -1.0, 0, 0], 0), ([0.5, -1.5, 2, 0], 2)):
        entry = as_entry(encoding, np.array(update, np.float32), 1.0)
        assert list(entry.values())[1] == clipped

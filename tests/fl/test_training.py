"""Whole trainings: every baseline, attack and failure, and the same model with and without cryptography."""

import hashlib
import io
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fl
import robust
from fl.config.checks import experiment
from fl.config.read import packaged_experiments, read_tables, with_curve, with_settings
from fl.config.schema import STAGES
from fl.errors import ConfigError
from fl.reporting.progress import LineProgress
from fl.reporting.records import Folder
from fl.secure.layout import Layout
from fl.training import aggregation
from fl.training import round as rounds
from fl.training.aggregation import Decision
from fl.training.loop import Trained, run, stop_reason
from fl.training.randomness import absences, attackers
from tests.fl.runs import tiny

SURVIVORS = {"groups": "survivors", "schedule": "random"}
ROUND = {"memory": "round"}
REPORT = {"audit": "report-even-if-exposed", "memory": "round"}
UNEVEN = {"data": {"partition": "dirichlet", "alpha": 0.3}, "privacy": {"weight_ratio": 1.41}}
FLIP = {"byzantine": 2, "attack": {"name": "sign_flip", "options": {"scale": 10.0}}}


def accuracy(trained: Trained) -> float:
    return trained.accuracy


def states(trained: Trained, round_: int = 0) -> list[str]:
    return [cluster["state"] for cluster in trained.history[round_]["clusters"]]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"clusters": {"size": 4, "groupings": 2, "schedule": "transversal"}, "privacy": ROUND, "clients": 20},
        {"clusters": {"size": 6, "groupings": 3, "schedule": "atoms", "atom": 3}, "clients": 24},
        {"clusters": {"groupings": 4, "schedule": "random"}, "privacy": REPORT, "dropout": {"rate": 0.1}},
        {"dropout": {"rate": 0.1, "stage": "any"}, "clients": 30, **UNEVEN},
        {**FLIP, "attack": {**FLIP["attack"], "protocol": "garbage"}, "clients": 18},
        {"clients": 36, "participation": 0.5},
        {"method": "fedavg"},
        {"clusters": SURVIVORS, "privacy": ROUND},
        {
            "clusters": {"size": 6, "groupings": 3, "schedule": "atoms", "atom": 3, "groups": "survivors"},
            "clients": 24,
        },
        {"aggregation": {"rule": "weighted-mean"}, **UNEVEN},
        {
            "dropout": {"rate": 0.1, "stage": "any"},
            "clients": 30,
            "clusters": {"size": 5, **SURVIVORS},
            "privacy": ROUND,
        },
        {
            **FLIP,
            "attack": {**FLIP["attack"], "protocol": "broken-boxes"},
            "clients": 18,
            "clusters": SURVIVORS,
            "privacy": ROUND,
        },
        {"clients": 40, "clusters": {"size": 4, "cell": 20, **SURVIVORS}, "privacy": ROUND},
    ],
    ids=[
        *("fixed", "transversal", "atoms", "reclustering", "dropouts", "cheats", "sample", "fedavg"),
        *("survivors", "survivors-atoms", "weighted", "survivors-dropouts", "survivors-cheats", "cells"),
    ],
)
def test_secure_and_clear_training_end_in_the_same_bits(changes: dict[str, Any]) -> None:
    secured, cleared = run(tiny(secure=True, **changes)), run(tiny(secure=False, **changes))
    assert secured.x.tobytes() == cleared.x.tobytes()
    assert [r["accuracy"] for r in secured.history] == [r["accuracy"] for r in cleared.history]
    assert secured.summary["bytes_up_per_client"] > 0 == cleared.summary["bytes_up_per_client"]


@pytest.mark.parametrize("name", sorted(set(packaged_experiments()) - {"ten-thousand"}))
def test_every_packaged_experiment_trains_a_round(name: str) -> None:
    """With the digits and a small model in the place of its own."""
    tables = read_tables(name)
    tables["data"] = {"examples": 900, "test_examples": 50, "validation": tables["data"].get("validation", 0.0)}
    settings = ["model=linear", "rounds=1", "secure=false", "local.epochs=1", "machine.workers=0"]
    trained = run(experiment(with_settings(with_curve(tables, name, None), settings)))
    assert trained.history[0]["skipped"] == ""
    loud = trained.experiment.privacy.audit != "enforce"
    assert len(trained.summary["exposed"]) == (Layout.of(trained.experiment).clustered if loud else 0)


def test_training_learns() -> None:
    assert accuracy(run(tiny(rounds=6))) > 0.8


def test_a_weighted_mean_of_clusters_is_fedavg() -> None:
    """Lemma 1 end to end. Flat FedAvg has another fixed-point scale, so it agrees up to its resolution."""
    uneven = {"partition": "dirichlet", "alpha": 0.5}
    share = run(tiny(aggregation={"rule": "weighted-mean"}, data=uneven, rounds=1, privacy=REPORT))
    flat = run(tiny(method="fedavg", data=uneven, rounds=1))
    np.testing.assert_allclose(share.x, flat.x, atol=2e-7)
    clusters = {"groupings": 5, "schedule": "random"}
    again = run(tiny(aggregation={"rule": "weighted-mean"}, data=uneven, rounds=1, clusters=clusters, privacy=REPORT))
    assert again.x.tobytes() == share.x.tobytes()


def test_share_withstands_what_fedavg_does_not() -> None:
    attacked = {"clients": 24, "rounds": 6, "byzantine": 2, "attack": {"name": "sign_flip", "options": {"scale": 30.0}}}
    attacked |= {"aggregation": {"rule": "multi_krum"}, "data": {"examples": 480}, "local": {"epochs": 2}}
    share, fedavg = run(tiny(**attacked)), run(tiny(method="fedavg", **attacked))
    assert accuracy(share) > 0.75
    assert accuracy(fedavg) < 0.5


def test_no_share_exposes_every_client_and_reports_it() -> None:
    trained = run(tiny(method="no-share", privacy={"expose_every_client": True}, **FLIP))
    assert trained.summary["exposed"] == list(range(12))
    assert len(trained.history[0]["clusters"]) == 12
    assert "NO SECURE AGGREGATION" in trained.history[0]["exposure"]["sentences"][0]


def test_fixed_clusters_stay_and_random_ones_move() -> None:
    def members(schedule: str) -> list[list[list[int]]]:
        trained = run(tiny(clusters={"schedule": schedule}, privacy=ROUND))
        return [[cluster["members"] for cluster in record["clusters"]] for record in trained.history]

    fixed, random = members("fixed"), members("random")
    assert fixed[0] == fixed[1]
    assert random[0] != random[1]


@pytest.mark.parametrize("name", [*robust.ATTACKS, "label-flip"])
def test_every_attack_runs_and_changes_the_outcome(name: str) -> None:
    clean = run(tiny(rounds=1, method="fedavg"))
    attacked = run(tiny(rounds=1, method="fedavg", byzantine=3, attack={"name": name}))
    assert attacked.x.tobytes() != clean.x.tobytes()
    assert np.isfinite(attacked.x).all()


@pytest.mark.parametrize("rule", [*robust.AGGREGATORS, "weighted-mean"])
def test_every_rule_trains_under_attack(rule: str) -> None:
    aggregation = {"rule": rule, "options": {"trusted": 0} if rule == "monna" else {}}
    trained = run(
        tiny(clients=30, byzantine=1, attack=FLIP["attack"], aggregation=aggregation, data={"validation": 0.1})
    )
    assert not trained.summary["skipped_rounds"]
    assert np.isfinite(trained.x).all()
    assert trained.history[0]["groupings"][0]["opened"] == 10


@pytest.mark.parametrize("before", robust.PRE_AGGREGATORS)
def test_every_pre_aggregation_trains(before: str) -> None:
    options = {"clipping": {"radius": 1.0}, "bucketing": {"size": 2}}.get(before, {})
    trained = run(tiny(clients=30, aggregation={"rule": "median", "before": [before], "before_options": options}))
    assert not trained.summary["skipped_rounds"]


def test_attackers_stay_the_same_and_an_attack_may_start_late() -> None:
    late = {"attack": {**FLIP["attack"], "start": 2}, "byzantine": 2, "method": "fedavg"}
    before, after = run(tiny(rounds=2, method="fedavg")), run(tiny(rounds=2, **late))
    assert before.history[0]["accuracy"] == after.history[0]["accuracy"]
    assert before.history[0]["update_norm"] == after.history[0]["update_norm"]
    assert before.x.tobytes() != after.x.tobytes()
    assert attackers(tiny(**FLIP)) == attackers(tiny(rounds=9, **FLIP))
    assert len(attackers(tiny(**FLIP))) == 2


def test_poisoned_clusters_are_those_with_attackers_in_them() -> None:
    trained = run(tiny(**FLIP))
    bad = attackers(tiny(**FLIP))
    for record in trained.history:
        for cluster in record["clusters"]:
            assert cluster["bad"] == len(bad & set(cluster["members"]))


@pytest.mark.parametrize("stage", STAGES)
def test_scheduled_dropouts_leave_at_their_stage(stage: str) -> None:
    schedule = [{"round": 2, "clients": [1, 5], "stage": stage}]
    trained = run(tiny(clusters={**SURVIVORS, "size": 6}, privacy=ROUND, dropout={"schedule": schedule}, secure=True))
    assert trained.history[0]["dropouts"] == []
    dropouts = trained.history[1]["dropouts"]
    assert [(d["client"], d["stage"]) for d in dropouts] == [(1, stage), (5, stage)]
    members = {client for cluster in trained.history[1]["clusters"] for client in cluster["members"]}
    assert ({1, 5} <= members) == (stage in ("consistency", "unmasking"))


def test_dropouts_by_rate_come_at_about_that_rate_and_at_every_stage() -> None:
    dropout = {"rate": 0.2, "stage": "any"}
    chosen = tiny(clients=200, dropout=dropout, clusters=SURVIVORS, privacy=ROUND, data={"examples": None})
    drawn = [absences(chosen, t) for t in range(20)]
    assert 0.17 < sum(map(len, drawn)) / 4000 < 0.23
    assert {stage.name.lower() for absent in drawn for stage in absent.values()} == set(STAGES)
    assert absences(chosen, 3) == drawn[3] != drawn[4]


def test_a_client_that_does_not_answer_loses_its_cluster_for_the_round() -> None:
    schedule = [{"round": 1, "clients": [0], "stage": "inputs"}]
    for secure in (True, False):
        trained = run(tiny(dropout={"schedule": schedule}, secure=secure))
        first = trained.history[0]
        assert sorted(states(trained)) == ["lost", "opened", "opened", "opened"]
        lost = next(c for c in first["clusters"] if c["state"] == "lost")
        assert 0 in lost["members"]
        assert len(lost["members"]) == 3
        assert "client 0" in lost["why"]
        assert first["groupings"][0]["opened"] == 3
        assert [entry["client"] for entry in first["dropouts"]] == [0]
        assert states(trained, 1) == ["opened"] * 4


def test_a_round_without_any_whole_cluster_is_skipped_and_the_next_continues() -> None:
    dropouts = [cluster["members"][0] for cluster in run(tiny(rounds=1)).history[0]["clusters"]]
    for secure in (True, False):
        trained = run(tiny(rounds=3, secure=secure, dropout={"schedule": [{"round": 2, "clients": dropouts}]}))
        assert trained.summary["skipped_rounds"] == [2]
        assert states(trained, 1) == ["lost"] * 4
        assert "0 complete groups" in trained.history[1]["skipped"]
        assert trained.history[1]["accuracy"] == trained.history[0]["accuracy"]
        assert trained.history[2]["accuracy"] != trained.history[1]["accuracy"]


def test_clusters_that_the_audit_closes_are_left_out_and_counted() -> None:
    schedule = [{"round": 1, "clients": [0], "stage": "inputs"}]
    trained = run(tiny(dropout={"schedule": schedule}, clusters=SURVIVORS, privacy=ROUND))  # T = 3: one closes
    assert sorted(states(trained)) == ["closed", "opened", "opened", "opened"]
    closed = next(c for c in trained.history[0]["clusters"] if c["state"] == "closed")
    assert closed["why"]
    assert trained.history[0]["groupings"][0]["opened"] == 3
    assert states(trained, 1) == ["opened"] * 4


def test_a_round_without_enough_survivors_is_skipped_and_the_next_continues() -> None:
    dropouts = [{"round": 2, "clients": list(range(6)), "stage": "inputs"}]
    for secure in (True, False):
        trained = run(tiny(rounds=3, secure=secure, dropout={"schedule": dropouts}, clusters=SURVIVORS, privacy=ROUND))
        assert trained.summary["skipped_rounds"] == [2]
        assert "threshold" in trained.history[1]["skipped"]
        assert trained.history[1]["accuracy"] == trained.history[0]["accuracy"]
        assert trained.history[1]["update_norm"] == 0
        assert trained.history[2]["accuracy"] != trained.history[1]["accuracy"]


def test_a_round_in_which_no_sum_may_be_opened_is_skipped() -> None:
    # One client of every cluster drops out: the two that are left are fewer than the anonymity of 3.
    privacy = {"threshold": 8, "colluders": 3, **ROUND}
    first = run(tiny(rounds=1, clusters=SURVIVORS, privacy=privacy))
    schedule = [{"round": 1, "clients": [cluster["members"][0] for cluster in first.history[0]["clusters"]]}]
    trained = run(tiny(rounds=1, privacy=privacy, clusters=SURVIVORS, dropout={"schedule": schedule}))
    assert states(trained) == ["closed"] * 4
    assert "no sum was opened" in trained.history[0]["skipped"]


def test_a_rule_that_gets_too_few_clusters_skips_the_grouping_with_the_reason() -> None:
    dropouts = [{"round": 1, "clients": [0], "stage": "inputs"}]
    trained = run(tiny(rounds=1, aggregation={"rule": "trimmed_mean", "f": 1}, dropout={"schedule": dropouts}))
    assert trained.history[0]["skipped"] == ""
    trained = run(
        tiny(rounds=1, clients=9, aggregation={"rule": "trimmed_mean", "f": 1}, dropout={"schedule": dropouts})
    )
    assert "trimmed_mean" in trained.history[0]["skipped"]


def test_a_client_whose_update_is_not_finite_is_a_dropout() -> None:
    class Fragile(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(x)

    clients = [(torch.randn(10, 4), torch.randint(0, 2, (10,))) for _ in range(12)]
    clients[7] = (torch.full((10, 4), float("inf")), clients[7][1])
    trained = fl.train(Fragile(), clients, clients[0], rounds=1, secure=False, clusters={"size": 4})
    assert [dropout["client"] for dropout in trained.history[0]["dropouts"]] == [7]
    assert np.isfinite(trained.x).all()


def test_partial_participation_draws_new_clients_each_round() -> None:
    trained = run(tiny(clients=24, participation=0.5, rounds=3))
    drawn = [{m for c in record["clusters"] for m in c["members"]} for record in trained.history]
    assert [len(some) for some in drawn] == [12, 12, 12]
    assert drawn[0] != drawn[1]


def test_the_server_learning_rate_scales_the_step() -> None:
    start = run(tiny(rounds=1, server_lr=1e-30)).x
    one, half = run(tiny(rounds=1)).x, run(tiny(rounds=1, server_lr=0.5)).x
    np.testing.assert_allclose(half - start, (one - start) / 2, atol=1e-7)


def test_the_average_over_groupings_is_the_mean_of_what_each_gave() -> None:
    """All groupings of equal clients have the same mean of means, so their average is that of all clients."""
    clusters = {"groupings": 3, "schedule": "random", "size": 6}
    mean = {"rule": "mean"}
    several = run(tiny(rounds=1, clusters=clusters, aggregation=mean, privacy=REPORT))
    flat = run(tiny(rounds=1, method="fedavg"))
    groups = [[c["members"] for c in several.history[0]["clusters"] if c["grouping"] == r] for r in range(3)]
    assert groups[0] != groups[1]
    np.testing.assert_allclose(several.x, flat.x, atol=1e-6)
    median = run(tiny(rounds=1, clusters={**clusters, "size": 4}, aggregation={"rule": "median"}, privacy=REPORT))
    assert not np.allclose(median.x, flat.x, atol=1e-6)


@pytest.mark.parametrize(
    ("stop", "history", "expected"),
    [
        ({"accuracy": 0.8}, [(0.5, 1.0), (0.85, 0.9)], "reached the goal"),
        ({"accuracy": 0.8}, [(0.85, 1.0), (0.5, 0.9)], ""),
        ({"patience": 2}, [(0.5, 1.0), (0.6, 1.1), (0.6, 1.2)], "since round 1"),
        ({"patience": 2}, [(0.5, 1.0), (0.6, 1.1), (0.6, 0.9)], ""),
        ({"patience": 1}, [(0.5, None), (0.5, None)], "since round 1"),
        ({}, [(1.0, 0.0)], ""),
    ],
)
def test_the_stopping_criterion(stop: dict[str, Any], history: list[tuple[float, float | None]], expected: str) -> None:
    records = [{"round": i + 1, "accuracy": a, "loss": loss} for i, (a, loss) in enumerate(history)]
    reason = stop_reason(tiny(stop=stop), records)
    assert (expected in reason) if expected else reason == ""


def test_training_stops_early_and_gives_the_reason() -> None:
    trained = run(tiny(rounds=20, stop={"accuracy": 0.6}))
    assert trained.summary["rounds"] < 20
    assert "goal" in trained.summary["stopped"]


def test_the_result_does_not_depend_on_the_number_of_workers() -> None:
    alone, spread = run(tiny(machine={"workers": 0})), run(tiny(machine={"workers": 2}))
    assert alone.x.tobytes() == spread.x.tobytes()


def test_cells_are_aggregated_together() -> None:
    clusters = {**SURVIVORS, "size": 4, "cell": 20}
    trained = run(tiny(clients=40, clusters=clusters, privacy=ROUND, data={"examples": 400}))
    assert trained.history[0]["groupings"][0]["opened"] == 10
    assert {cluster["cell"] for cluster in trained.history[0]["clusters"]} == {0, 1}


def test_cheaters_are_named_in_the_summary_and_training_continues() -> None:
    cheating = {"byzantine": 2, "attack": {"name": "none", "protocol": "wrong-shares"}}
    chosen = tiny(clients=18, secure=True, rounds=2, clusters=SURVIVORS, privacy=ROUND, **cheating)
    said = io.StringIO()
    trained = run(chosen, show=LineProgress(said))
    names = sorted(attackers(chosen))
    assert trained.summary["blamed"].keys() == set(map(str, names))
    assert f"cheated: {', '.join(map(str, names))}" in said.getvalue()
    assert not trained.summary["skipped_rounds"]
    assert accuracy(trained) > 0.3


def test_train_takes_a_model_and_data_and_returns_a_model_and_a_record(tmp_path: Any) -> None:
    torch.manual_seed(0)
    points = torch.randn(240, 2)
    labels = (points[:, 0] > 0).long()
    clients = [(points[i::12], labels[i::12]) for i in range(12)]
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    trained = fl.train(
        net, clients, (points, labels), rounds=8, out=tmp_path / "run", local={"lr": 0.2}, clusters={"size": 3}
    )
    assert trained.accuracy > 0.9
    predicted = trained.model(points).argmax(1)
    assert (predicted == labels).float().mean().item() == pytest.approx(trained.accuracy)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert len(trained.history) == 8
    assert trained.folder == tmp_path / "run"
    again = {"out": tmp_path / "run", "resume": True, "local": {"lr": 0.2}}
    longer = fl.train(net, clients, (points, labels), rounds=8, **again)
    assert longer.x.tobytes() == trained.x.tobytes()


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        ([], "at least"),
        ([(np.zeros((3, 2)), [0, 1])] * 12, "client 0"),
        ([(np.zeros((3, 2)), ["a", "b", "c"])] * 12, "client 0"),
        ([(np.zeros((3, 2)), [0, 1, 1])] * 2 + [(np.zeros((3, 4)), [0, 1, 1])] * 10, "one shape"),
        ([(np.zeros((3, 2)), [0, 1, 1])] * 2, "clusters"),
    ],
)
def test_train_with_wrong_data_is_one_clear_error(clients: list, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        fl.train("linear", clients, (np.zeros((3, 2)), [0, 1, 1]), rounds=1)


def test_a_model_that_cannot_be_used_is_one_clear_error() -> None:
    with pytest.raises(ConfigError, match="model"):
        run(tiny(model="tests.fl.runs:nothing"))
    with pytest.raises(ConfigError, match="model"):
        run(tiny(model="nowhere:nothing"))
    with pytest.raises(ConfigError, match="data"):
        run(tiny(data={"name": "nowhere:nothing"}))
    with pytest.raises(ConfigError, match="data"):
        run(tiny(clients=300, data={"examples": 100}))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_missing_gpu_is_one_clear_error() -> None:
    with pytest.raises(ConfigError, match=r"machine\.device"):
        run(tiny(machine={"device": "cuda"}))
    assert run(tiny(rounds=1, machine={"device": "auto"})).summary["rounds"] == 1


def test_a_recorded_run_holds_the_model_by_parameter_names(tmp_path: Any) -> None:
    from safetensors.torch import load_file

    chosen = tiny()
    with Folder.create(tmp_path / "run", chosen) as folder:
        trained = run(chosen, folder=folder)
    module = trained.task.build()
    module.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
    for mine, theirs in zip(module.parameters(), trained.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_grouping_that_gave_nothing_is_left_out_of_the_average(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"rounds": 1, "clusters": {"groupings": 2, "schedule": "random", "size": 4}, "privacy": REPORT}
    combine, given = rounds.combine, []

    def first_only(setting: Any, t: int, r: int, *rest: Any) -> Decision:
        if r:
            return Decision(None, (), (), "nothing was opened")
        given.append(combine(setting, t, r, *rest))
        return given[0]

    start = run(tiny(**settings, server_lr=1e-30)).x
    monkeypatch.setattr(rounds, "combine", first_only)
    after = run(tiny(**settings)).x
    np.testing.assert_allclose(after - start, given[0].update, atol=1e-7)


def test_every_grouping_and_round_draws_its_own_validation_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    draw, drawn = aggregation._validation_batch, []

    def remembering(*arguments: Any) -> Any:
        drawn.append(tuple(draw(*arguments)))
        return np.array(drawn[-1])

    monkeypatch.setattr(aggregation, "_validation_batch", remembering)
    rule = {"rule": "zeno++", "validation_batch": 8}
    clusters = {"groupings": 2, "schedule": "random", "size": 4}
    run(tiny(data={"validation": 0.2}, aggregation=rule, clusters=clusters, privacy=REPORT))
    assert len(set(drawn)) == len(drawn) == 4


def test_centred_clipping_begins_at_the_update_before(monkeypatch: pytest.MonkeyPatch) -> None:
    aggregate, centres, results = robust.aggregate, [], []

    def remembering(*arguments: Any, **options: Any) -> Any:
        centres.append(options["centre"])
        results.append(aggregate(*arguments, **options))
        return results[-1]

    monkeypatch.setattr(robust, "aggregate", remembering)
    run(tiny(aggregation={"rule": "centered_clipping"}))
    assert not centres[0].any()
    np.testing.assert_allclose(centres[1], results[0].vector, atol=1e-7)


def test_the_context_of_a_round_is_that_of_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    hashes: list[bytes] = []

    def remembering(_: Any, model_hash: bytes) -> bytes:
        hashes.append(model_hash)
        return model_hash

    monkeypatch.setattr(rounds, "context", remembering)
    start = run(tiny(rounds=1, server_lr=1e-30)).x
    hashes.clear()
    run(tiny())
    assert hashes[0] == hashlib.sha256(start.tobytes()).digest() != hashes[1]


ADAPTIVE = {"byzantine": 2, "attack": {"name": "fall_of_empires", "adaptive": True}}
MANY = {"dropout": {"rate": 0.4}, "rounds": 10, "aggregation": {"rule": "median"}}


@pytest.mark.parametrize(
    "clusters",
    [
        {"clusters": {"size": 3}},
        {"clusters": {"size": 3, **SURVIVORS}, "privacy": ROUND},
        {"clusters": {"size": 6, "groupings": 2, "schedule": "atoms", "atom": 3, "groups": "survivors"}},
    ],
    ids=["whole", "survivors", "atoms"],
)
def test_an_adaptive_attack_goes_on_if_no_cluster_is_left_to_attack(clusters: dict[str, Any]) -> None:
    attacked = run(tiny(**clusters, **ADAPTIVE, **MANY))
    assert len(attacked.history) == 10
    assert any(record["skipped"] for record in attacked.history)


def test_attackers_without_an_honest_client_beside_them_send_what_they_trained() -> None:
    most = {"byzantine": 11, "rounds": 1, "clusters": {"size": 3}, "aggregation": {"rule": "mean"}}
    (honest,) = set(range(12)) - attackers(tiny(**most, attack={"name": "sign_flip"}))
    most["dropout"] = {"schedule": [{"round": 1, "clients": [honest], "stage": "inputs"}]}
    now, later = (run(tiny(**most, attack={"name": "sign_flip", "start": start})) for start in (1, 2))
    assert not now.history[0]["skipped"]
    assert np.array_equal(now.x, later.x)


@pytest.mark.parametrize(("groups", "leverage"), [("whole", 0.5), ("survivors", 0.5), ("survivors", 0.25)])
def test_an_adaptive_attacker_aims_at_the_clusters_that_are_opened(
    groups: str, leverage: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It computes the mean of each cluster over those who stay: all that the server opens, and nothing else."""
    seen = list[list[tuple[int, ...]]]()
    will_open = rounds._will_open

    def noted(*args: Any) -> list[tuple[int, ...]]:
        seen.append(will_open(*args))
        return seen[-1]

    monkeypatch.setattr(rounds, "_will_open", noted)
    privacy = ROUND | {"max_leverage": leverage}
    clusters = {"clusters": {"size": 5, "groups": groups, "schedule": "random"}, "privacy": privacy, "clients": 30}
    attacked = run(tiny(**clusters, **ADAPTIVE, **MANY | {"dropout": {"rate": 0.25}}))
    opened = [[tuple(c["members"]) for c in r["clusters"] if c["state"] == "opened"] for r in attacked.history]
    assert seen == [found for found, record in zip(opened, attacked.history, strict=True) if record["clusters"]]
    assert any(opened)
    assert groups == "whole" or any(len(cluster) < 5 for found in seen for cluster in found)


@pytest.mark.parametrize("groups", ["whole", "survivors"])
def test_an_update_that_is_not_finite_does_not_stop_an_adaptive_attack(
    groups: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = rounds.train

    def broken(*args: Any) -> Any:
        updates = train(*args)
        updates[0] = np.nan
        return updates

    monkeypatch.setattr(rounds, "train", broken)
    clusters = {"clusters": {"size": 4, "groups": groups, "schedule": "random"}, "privacy": ROUND}
    attacked = run(tiny(rounds=1, **clusters, **ADAPTIVE, aggregation={"rule": "median"}))
    assert np.isfinite(attacked.x).all()
    assert len(attacked.history[0]["dropouts"]) == 1

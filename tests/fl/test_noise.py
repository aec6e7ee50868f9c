"""Trainings with noise: secure and clear ones are the same, records have three figures, keys belong together."""

import math
import tomllib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl
from fl.config.checks import experiment
from fl.config.read import from_tables
from fl.errors import ConfigError
from fl.plan_text import as_text, toml
from fl.planner import Question, plan
from fl.reporting.privacy import panel
from fl.reporting.records import Folder, Recorded, recorded
from fl.reporting.report import html
from fl.secure.layout import placeholder_members, terms_of
from fl.secure.population import Population, as_entry
from secagg import Budget
from secagg.agreement import most_per_round, worst_round
from secagg.privacy.budget import RHO_UNIT

NOISE = {"norm_clip": 1.0, "noise": 0.5, "noise_colluders": 1, "clip": 64.0}


def tables(**more: Any) -> dict[str, Any]:
    return {
        "clients": 12, "rounds": 2, "clusters": {"size": 6}, "privacy": NOISE, "data": {"name": "digits"}, **more,
    }  # fmt: skip


@pytest.mark.parametrize("groups", ["whole", "survivors"])
def test_secure_and_clear_sums_have_the_same_noise(groups: str) -> None:
    sums = []
    for secure in (True, False):
        more = {"secure": secure, "clusters": {"size": 6, "groups": groups}, "privacy": {**NOISE, "memory": "round"}}
        population = Population(experiment(tables(**more)), [10] * 12, 40)
        (cell,) = population.cells(0, b"")
        updates = {c: np.random.default_rng(c).normal(0, 3, 40).astype(np.float32) for c in range(12)}
        result = population.aggregate(cell, updates, drop={}, misbehave={})
        sums.append({group: result.mean(group) for group in result.opened(0)})
    assert sums[0].keys() == sums[1].keys()
    assert len(sums[0]) == 2
    for group in sums[0]:
        assert np.array_equal(sums[0][group], sums[1][group])
        assert 0.1 < sums[0][group].std() < 0.5  # 0.5 / sqrt(6), and what is left of updates of norm 1


def test_noise_is_in_steps_of_the_grid_and_nobody_counts_what_it_clipped() -> None:
    population = Population(experiment(tables()), [10] * 12, 40)
    assert population.agreement is not None
    terms = population.agreement.terms
    assert terms.noise is not None
    scale = terms.encoding.encodings[0].scale  # type: ignore[union-attr]
    assert terms.noise.segments[0].sigma == 0.5 * scale
    assert terms.noise.colluders == 1
    assert as_entry(terms.encoding, np.full(40, 1e6, np.float32), 1.0)["clipped"] == 0


@pytest.mark.parametrize(
    ("privacy", "problem"),
    [
        ({"noise": 1.0}, "privacy.norm_clip: expected a number beside privacy.noise"),
        ({"epsilon": 1.0}, "privacy.norm_clip: expected a number beside privacy.epsilon"),
        ({"norm_clip": 1.0}, "privacy.noise: expected it, or privacy.epsilon, beside privacy.norm_clip"),
        ({"noise_colluders": 1}, "privacy.noise_colluders: only with privacy.noise"),
        ({**NOISE, "epsilon": 1.0}, "privacy.epsilon: set noise, or epsilon .* not both"),
        ({"norm_clip": 1.0, "epsilon": 0.001}, "privacy: .*clip"),
        ({"norm_clip": 1.0, "epsilon": 1.0, "delta": 0.7}, "privacy.delta"),
        ({**NOISE, "clip": 1.0, "noise": 5.0}, "privacy: .*clip"),
    ],
)
def test_keys_of_noise_belong_together(privacy: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        experiment(tables(privacy=privacy))


def test_records_have_three_figures_that_grow_with_the_rounds() -> None:
    found = experiment(tables(model="linear", secure=False, machine={"workers": 0}))
    records = fl.run(found).history
    first, second = (record["epsilon"] for record in records)
    assert first["everybody"] < first["assumed"] < first["local"]
    assert all(first[name] < second[name] for name in ("everybody", "assumed", "local"))
    assert first["delta"] == 1e-6
    assert [record["clipped"] for record in records] == [None, None]


PROMISE = {"norm_clip": 1.0, "epsilon": 4.0, "delta": 1e-5, "noise_colluders": 1, "clip": 64.0}
KINDS: dict[str, dict[str, Any]] = {
    "whole": {"clusters": {"size": 6}},
    "atoms": {"clients": 24, "clusters": {"size": 6, "schedule": "atoms", "atom": 3, "groupings": 3}},
    "new groups": {"clusters": {"size": 6, "schedule": "random"}, "privacy": {"memory": "round"}},
    "two groupings": {
        "clients": 36,
        "clusters": {"size": 6, "groupings": 2, "schedule": "transversal"},
        "privacy": {"memory": "round"},
    },
    "survivors": {"clusters": {"size": 6, "groups": "survivors"}, "privacy": {"memory": "round", "min_survivors": 5}},
    "one sum": {"method": "fedavg", "privacy": {"min_survivors": 8}},
    "many colluders": {"clusters": {"size": 6}, "privacy": {"noise_colluders": 7}},
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [(10, 10), (10, 20)], ids=["equal weights", "unequal weights"])
def test_noise_computed_from_epsilon_is_the_least_that_fits(kind: str, sizes: tuple[int, int]) -> None:
    more = {"rounds": 7, **KINDS[kind]}
    privacy = {**PROMISE, "max_leverage": 0.9, **more.pop("privacy", {})}
    found = experiment(tables(**more, privacy=privacy))
    agreement = Population(found, [sizes[c % 2] for c in range(found.clients)], 40).agreement
    assert agreement is not None
    budget, noise = Budget(4.0, 1e-5), agreement.terms.noise
    assert noise is not None
    spent = worst_round(agreement).assumed.times(7)
    assert budget.allows(spent)
    assert len(agreement.terms.rounds) == 7
    if kind != "two groupings":  # there the cost depends on the draw, and noise is for the worst one
        less = replace(noise.segments[0], sigma=noise.segments[0].sigma - 1)
        terms = replace(agreement.terms, noise=replace(noise, segments=(less, noise.segments[1])))
        assert most_per_round(agreement.terms).assumed.times(7) == spent
        assert not budget.allows(most_per_round(terms).assumed.times(7))
        assert 0.99 * 4.0 < spent.epsilon(1e-5) <= 4.0


@pytest.mark.parametrize(
    ("epsilon", "delta", "rounds", "size", "colluders"),
    [
        (0.2, 1e-12, 300, 3, 0),
        (60.0, 0.1, 1, 12, 11),
        (8.0, 1e-6, 20, 6, 2),
        (1.0, 1e-3, 1, 4, 7),
        (30.0, 1e-9, 3, 12, 1),
    ],
)
def test_computed_noise_is_what_the_formula_says(
    epsilon: float, delta: float, rounds: int, size: int, colluders: int
) -> None:
    privacy = {"epsilon": epsilon, "delta": delta, "norm_clip": 1.0, "noise_colluders": colluders, "clip": 4096.0}
    chosen = from_tables(tables(rounds=rounds, clients=2 * size, clusters={"size": size}, privacy=privacy))
    terms = terms_of(chosen, placeholder_members(2 * size))
    assert terms.noise is not None
    rho = Budget(epsilon, delta).limit.rho * RHO_UNIT
    wanted = math.sqrt(rounds / max(1, size - colluders) / (2 * rho)) * terms.encoding.encodings[0].scale  # type: ignore[union-attr]
    assert terms.noise.segments[0].sigma == pytest.approx(wanted, rel=1e-4, abs=2)


def run_linear(**more: Any) -> Any:
    return fl.run(experiment(tables(**{"model": "linear", "machine": {"workers": 0}, "data": SMALL, **more})))


SMALL = {"name": "digits", "examples": 240, "test_examples": 60}


@pytest.mark.parametrize("groups", ["whole", "survivors"])
def test_secure_and_clear_trainings_with_noise_are_the_same_bit_for_bit(groups: str) -> None:
    more = {"clusters": {"size": 6, "groups": groups}, "privacy": {**PROMISE, "memory": "round"}}
    secure, clear = (run_linear(secure=secure, **more) for secure in (True, False))
    assert secure.x.tobytes() == clear.x.tobytes()
    assert [record["epsilon"] for record in secure.history] == [record["epsilon"] for record in clear.history]
    quiet = run_linear(secure=False, clusters=more["clusters"], privacy={"memory": "round"})
    assert quiet.x.tobytes() != clear.x.tobytes()


@pytest.mark.parametrize("secure", [True, False])
def test_a_resumed_training_continues_the_ledger(secure: bool, tmp_path: Path) -> None:
    tables_of = tables(model="linear", machine={"workers": 0}, data=SMALL, secure=secure, rounds=4)
    whole = fl.run(experiment(tables_of))
    with Folder.create(tmp_path / "run", experiment({**tables_of, "rounds": 2})) as folder:
        fl.run(folder.experiment, folder=folder)
    with Folder.resume(tmp_path / "run", ["rounds=4"]) as folder:
        resumed = fl.run(folder.experiment, folder=folder)
    assert resumed.x.tobytes() == whole.x.tobytes()
    spent = [record["epsilon"] for record in recorded(tmp_path / "run").rounds]
    assert spent == [record["epsilon"] for record in whole.history]
    assert all(a["assumed"] < b["assumed"] for a, b in pairwise(spent))


def test_noise_computed_for_rounds_is_not_for_more_of_them(tmp_path: Path) -> None:
    chosen = experiment(tables(model="linear", machine={"workers": 0}, data=SMALL, secure=False, privacy=PROMISE))
    with Folder.create(tmp_path / "run", chosen) as folder:
        last = fl.run(chosen, folder=folder).history[-1]["epsilon"]
    assert 3.9 < last["assumed"] <= 4.0
    with pytest.raises(ConfigError, match=r"rounds changed.* the noise was computed for their number"):
        Folder.resume(tmp_path / "run", ["rounds=4"])


def test_the_report_shows_three_figures_over_the_rounds(tmp_path: Path) -> None:
    chosen = experiment(tables(model="linear", machine={"workers": 0}, data=SMALL, secure=False, privacy=PROMISE))
    with Folder.create(tmp_path / "run", chosen) as folder:
        last = fl.run(chosen, folder=folder).history[-1]["epsilon"]
    page = html([recorded(tmp_path / "run")])
    for name in ("assumed", "everybody", "local"):
        assert f"{last[name]:.3g}" in page
    assert "computed for epsilon 4 over all 2 rounds" in page
    for curve in ("assumed colluders", "everybody adds noise", "own noise alone"):
        assert f"{curve}, round 1: " in page
        assert f"{curve}, round 2: " in page


def test_noise_too_large_for_the_grid_is_refused_with_a_clip_that_fits() -> None:
    wanted = {"norm_clip": 1.0, "epsilon": 0.5, "clip": 8.0}
    with pytest.raises(ConfigError, match=r"noise of [\d.]+ norm clips from each client .* try ([\d.]+)$") as refused:
        experiment(tables(rounds=20, privacy=wanted))
    fitting = float(str(refused.value).rpartition(" ")[2])
    assert experiment(tables(rounds=20, privacy={**wanted, "clip": fitting})).privacy.clip == fitting


def test_a_report_without_noise_has_no_panel_and_an_infinite_figure_is_said(tmp_path: Path) -> None:
    quiet = Recorded(tmp_path, experiment(tables(privacy={})), {}, [{"round": 1}], {})
    assert panel(quiet) is None
    spent = {"everybody": 1.0, "assumed": 2.0, "local": None, "delta": 1e-6}
    found = panel(replace(quiet, experiment=experiment(tables()), rounds=[{"round": 1, "epsilon": spent}]))
    assert found is not None
    assert found["figures"] == {"assumed": "2", "everybody": "1", "local": "infinite"}


def test_the_planner_shows_the_price_that_a_training_pays() -> None:
    question = Question(clients=24, byzantine=2, rounds=7, epsilon=4.0, delta=1e-5, noise_colluders=1)
    answer = plan(question)
    best = answer.recommended
    assert best is not None
    assert best.price is not None
    config = tomllib.loads("\n".join(toml(answer)))
    assert config["privacy"]["epsilon"] == 4.0
    found = experiment(clients=24, byzantine=2, attack={"name": "sign_flip"}, rounds=7, **config)
    terms = terms_of(found, placeholder_members(24))
    assert terms.noise is not None
    own = terms.noise.segments[0].sigma / terms.encoding.encodings[0].scale  # type: ignore[union-attr]
    assert best.price.noise == pytest.approx(own, rel=1e-4)
    assert best.price.cluster_noise == pytest.approx(own / math.sqrt(best.size), rel=1e-4)
    assert best.price.mean_noise == pytest.approx(own / math.sqrt(best.size * best.clusters), rel=1e-4)
    assert best.price.everybody < best.price.assumed <= 4.0 < best.price.local
    text = as_text(answer)
    assert "Noise for epsilon 4 at delta 1e-05 over 7 rounds, without that of 1 colluder" in text
    assert f"{best.price.cluster_noise:.3g}" in text
    assert answer.to_json()["recommended"]["price"]["noise"] == best.price.noise
    sizes = {c.size: c.price.cluster_noise for c in answer.candidates if c.price and c.groupings == 1}
    assert sizes[3] > sizes[4] > sizes[8]


def test_a_plan_without_epsilon_has_no_price() -> None:
    answer = plan(Question(clients=24, byzantine=2))
    assert all(candidate.price is None for candidate in answer.candidates)
    assert "noise" not in as_text(answer).lower()
    for wrong in ({"epsilon": 0.0}, {"epsilon": 1.0, "delta": 0.0}, {"noise_colluders": 24}):
        with pytest.raises(ConfigError, match="expected"):
            Question(clients=24, byzantine=2, **wrong)  # type: ignore[arg-type]

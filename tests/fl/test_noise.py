"""Trainings with noise: secure and clear ones are the same, records have three figures, keys belong together."""

from typing import Any

import numpy as np
import pytest

import fl
from fl.config.checks import experiment
from fl.errors import ConfigError
from fl.secure.population import Population, as_entry

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
        ({"norm_clip": 1.0}, "privacy.noise: expected a number beside privacy.norm_clip"),
        ({"noise_colluders": 1}, "privacy.noise_colluders: only with privacy.noise"),
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

"""The noise of an experiment in steps of the grid: at its limits, from epsilon, and what a promise costs."""

import hashlib
import math
from types import SimpleNamespace
from typing import Any

import pytest

from fl.config.read import from_tables
from fl.errors import ConfigError
from fl.secure import noise
from fl.secure.layout import placeholder_members, terms_of
from fl.secure.noise import check_noise, noise_source, price, with_noise
from secagg import UsageError
from secagg.agreement import Noise, Terms, most_per_round
from secagg.crypto import MOST_SIGMA, SegmentNoise

SIX: dict[str, Any] = {"clients": 12, "rounds": 7, "clusters": {"size": 6}}


def of(**privacy: Any) -> Any:
    return from_tables({**SIX, "privacy": {"clip": 64.0, **privacy}})


def quiet() -> Terms:
    """The same terms without noise."""
    return terms_of(of(), placeholder_members(12))


SCALE = noise._scale(quiet())


@pytest.mark.parametrize(
    ("privacy", "sigma"),
    [
        ({"norm_clip": 1.0, "noise": 0.3}, math.ceil(0.3 * SCALE)),
        ({"norm_clip": 2.0, "noise": 0.3}, math.ceil(0.6 * SCALE)),
        ({"norm_clip": 0.5, "noise": 0.25}, int(SCALE / 8)),
    ],
)
def test_noise_is_rounded_up_to_steps_of_the_grid(privacy: dict[str, Any], sigma: int) -> None:
    found = with_noise(of(**privacy, noise_colluders=2), quiet())
    own, count = SegmentNoise(clip=privacy["norm_clip"], sigma=sigma), SegmentNoise(clip=1.0, sigma=2**20)
    assert found.noise == Noise(segments=(own, count), colluders=2)


def test_noise_has_one_step_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(noise, "_noisy", lambda terms, privacy, sigma: asked.append(sigma))
    with_noise(of(norm_clip=1.0, noise=1e-12), quiet())
    with_noise(of(norm_clip=1.0, noise=1.5 / SCALE), quiet())
    assert asked == [1, 2]


def test_terms_without_noise_stay_as_they_are() -> None:
    terms = quiet()
    assert with_noise(of(), terms) is terms
    exposed = from_tables({**SIX, "method": "no-share", "privacy": {"norm_clip": 1.0, "noise": 1.0}})
    assert with_noise(exposed, terms) is terms


@pytest.mark.parametrize(("times", "wider"), [(1.0, 0), (1.5, 128), (2.0, 128), (2.5, 256), (4.0, 256)])
def test_noise_beyond_the_largest_is_refused_with_a_grid_that_is_coarse_enough(times: float, wider: int) -> None:
    privacy, sigma = of(norm_clip=2.0, noise=1.0).privacy, int(MOST_SIGMA * times)
    if not wider:
        found = noise._noisy(quiet(), privacy, sigma).noise
        assert found is not None
        assert found.segments[0].sigma == MOST_SIGMA
        sigma, wider = MOST_SIGMA + 1, 128
    with pytest.raises(UsageError) as caught:
        noise._noisy(quiet(), privacy, sigma)
    assert str(caught.value) == (
        f"noise of {sigma / SCALE / 2:.3g} norm clips from each client has {sigma} steps of the grid, expected at most "
        f"{MOST_SIGMA}; a larger privacy.clip makes the grid coarser: try {wider}"
    )


@pytest.mark.parametrize("epsilon", [2.0, 8.0])
@pytest.mark.parametrize("norm", [0.5, 2.0])
def test_computed_noise_is_the_least_that_the_budget_allows(epsilon: float, norm: float) -> None:
    privacy = of(norm_clip=norm, epsilon=epsilon, delta=1e-5, clip=512.0).privacy
    terms = terms_of(of(clip=512.0), placeholder_members(12))
    budget = noise._budget(privacy)
    for rounds in (1, 7):
        found = noise._least(terms, privacy, rounds).noise
        assert found is not None
        sigma = found.segments[0].sigma
        for steps, enough in ((sigma, True), (sigma - 1, False)):
            assert budget.allows(most_per_round(noise._noisy(terms, privacy, steps)).assumed.times(rounds)) is enough
        assert noise._needed(terms, privacy, rounds) == pytest.approx(sigma, rel=1e-3, abs=2)


def test_a_promise_costs_what_its_noise_costs() -> None:
    privacy = of(norm_clip=2.0, epsilon=4.0, delta=1e-5, noise_colluders=2, clip=512.0).privacy
    terms = terms_of(of(clip=512.0), placeholder_members(12))
    scale, rounds = noise._scale(terms), 7
    found = price(terms, privacy, rounds, 12)
    sigma = noise._least(terms, privacy, rounds).noise.segments[0].sigma  # type: ignore[union-attr]
    own = sigma / scale / 2.0
    assert (found.noise, found.cluster_noise, found.mean_noise) == pytest.approx(
        (own, own / math.sqrt(6), own / math.sqrt(12)), rel=1e-3
    )
    each = most_per_round(noise._noisy(terms, privacy, sigma))
    expected = [one.times(rounds).epsilon(1e-5) for one in (each.everybody, each.assumed, each.local)]
    assert [found.everybody, found.assumed, found.local] == pytest.approx(expected, rel=1e-3)
    assert found.everybody < found.assumed <= 4.0 < found.local


@pytest.mark.parametrize(("rho", "enough"), [(0, False), (1, True)])
def test_a_budget_without_a_unit_of_rho_is_too_small(rho: int, enough: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = SimpleNamespace(limit=SimpleNamespace(rho=rho))
    monkeypatch.setattr(noise, "_made", lambda epsilon, delta: budget)
    privacy = of(norm_clip=1.0, epsilon=0.25, delta=1e-5).privacy
    if enough:
        assert noise._budget(privacy) is budget
        return
    with pytest.raises(UsageError) as caught:
        noise._budget(privacy)
    assert str(caught.value) == "epsilon 0.25 at delta 1e-05 is too small for any noise"


def test_simulated_noise_follows_from_the_seed_the_round_and_the_client() -> None:
    draw = noise_source(5)(2, 3)
    assert draw(8) == hashlib.shake_256(b"fl/noise:5:3:2:0").digest(8)
    assert draw(4) == hashlib.shake_256(b"fl/noise:5:3:2:1").digest(4)
    assert noise_source(5)(2, 3)(8) == hashlib.shake_256(b"fl/noise:5:3:2:0").digest(8)


KEYS = {"norm_clip": 1.0, "noise": 1.0}


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ({}, ""),
        ({"privacy": KEYS}, ""),
        ({"privacy": {**KEYS, "noise_colluders": 1}}, ""),
        ({"privacy": {"norm_clip": 1.0, "epsilon": 1.0}}, ""),
        ({"method": "no-share"}, ""),
        (
            {"privacy": {**KEYS, "epsilon": 1.0}},
            "privacy.epsilon: set noise, or epsilon from which noise is computed, not both",
        ),
        ({"privacy": {"noise": 1.0}}, "privacy.norm_clip: expected a number beside privacy.noise, got none"),
        ({"privacy": {"epsilon": 1.0}}, "privacy.norm_clip: expected a number beside privacy.epsilon, got none"),
        (
            {"privacy": {"norm_clip": 1.0}},
            "privacy.noise: expected it, or privacy.epsilon, beside privacy.norm_clip; got neither",
        ),
        (
            {"privacy": {"noise_colluders": 1}},
            "privacy.noise_colluders: only with privacy.noise or privacy.epsilon",
        ),
        (
            {"method": "no-share", "privacy": KEYS},
            "privacy.noise: `no-share` shows every update to the server; use another method",
        ),
    ],
)
def test_keys_of_noise_that_do_not_belong_together_are_named(tables: dict[str, Any], told: str) -> None:
    chosen = from_tables({**SIX, **tables})
    if not told:
        check_noise(chosen)
        return
    with pytest.raises(ConfigError) as caught:
        check_noise(chosen)
    assert str(caught.value) == told

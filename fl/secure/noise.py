"""The noise of an experiment: as it is given, or the least with which all rounds keep `privacy.epsilon`.

What a round costs must be known before the seed is drawn, because noise is part of the terms. With one grouping, with
atoms and with survivors it is. With other groupings it depends on who is drawn: then every client is charged as if its
own noise were alone, which holds for every draw.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from typing import Final

from fl.config.schema import Experiment, Privacy
from fl.errors import ConfigError
from secagg import AgreementRefused, Budget, UsageError
from secagg.agreement import Figures, Noise, Terms, most_per_round
from secagg.crypto import MOST_SIGMA, FixedPoint, SegmentNoise

NO_COUNT: Final = 2**20  # sigma of the count of clipped coordinates, which is always zero with noise


def with_noise(experiment: Experiment, terms: Terms) -> Terms:
    """These terms with the noise of an experiment, in steps of the grid. With noise, nobody counts what it clipped."""
    privacy = experiment.privacy
    if privacy.norm_clip is None or experiment.method == "no-share":
        return terms
    if privacy.noise is not None:
        return _noisy(terms, privacy, max(1, math.ceil(privacy.noise * privacy.norm_clip * _scale(terms))))
    return _least(terms, privacy, experiment.rounds)


def _noisy(terms: Terms, privacy: Privacy, sigma: int) -> Terms:
    assert privacy.norm_clip is not None
    if sigma > MOST_SIGMA:
        own = sigma / _scale(terms) / privacy.norm_clip
        wider = privacy.clip * 2 ** math.ceil(math.log2(sigma / MOST_SIGMA))
        raise UsageError(
            f"noise of {own:.3g} norm clips from each client has {sigma} steps of the grid, expected at most "
            f"{MOST_SIGMA}; a larger privacy.clip makes the grid coarser: try {wider:g}"
        )
    update, nothing = SegmentNoise(clip=privacy.norm_clip, sigma=sigma), SegmentNoise(clip=1.0, sigma=NO_COUNT)
    return replace(terms, noise=Noise(segments=(update, nothing), colluders=privacy.noise_colluders))


def _scale(terms: Terms) -> float:
    """Steps of the grid in a unit of the update."""
    grid = terms.encoding.encodings[0]
    assert isinstance(grid, FixedPoint)
    return grid.scale


def _least(terms: Terms, privacy: Privacy, rounds: int) -> Terms:
    """The terms with the least sigma for which a client with this budget takes part in all rounds."""
    budget = _budget(privacy)

    def fits(sigma: int) -> bool:
        try:
            return budget.allows(most_per_round(_noisy(terms, privacy, sigma)).assumed.times(rounds))
        except AgreementRefused:  # too small for the grid
            return False

    sigma = max(1, math.floor(_needed(terms, privacy, rounds)))
    while not fits(sigma):
        sigma += 1
    while sigma > 1 and fits(sigma - 1):
        sigma -= 1
    return _noisy(terms, privacy, sigma)


def _needed(terms: Terms, privacy: Privacy, rounds: int) -> float:
    """Sigma in steps of the grid: rho falls with its square."""
    sigma, each = _hundredth(terms, privacy)
    return sigma * math.sqrt(each.assumed.rho * rounds / _budget(privacy).limit.rho)


def _hundredth(terms: Terms, privacy: Privacy) -> tuple[int, Figures]:
    """A hundredth of the clip in steps of the grid, which is enough noise for any grid, and what it costs."""
    assert privacy.norm_clip is not None
    sigma = max(64, math.ceil(privacy.norm_clip * _scale(terms) / 100))
    return sigma, most_per_round(_noisy(terms, privacy, sigma))


def _budget(privacy: Privacy) -> Budget:
    assert privacy.epsilon is not None
    budget = _made(privacy.epsilon, privacy.delta)
    if budget.limit.rho < 1:
        raise UsageError(f"epsilon {privacy.epsilon:g} at delta {privacy.delta:g} is too small for any noise")
    return budget


@lru_cache(maxsize=8)  # its limit takes a search, and a plan asks for it hundreds of times
def _made(epsilon: float, delta: float) -> Budget:
    return Budget(epsilon, delta)


@dataclass(frozen=True, slots=True)
class Price:
    """What a promise costs: the noise of each client, of a cluster's mean and of the mean of all, in norm clips.

    `everybody`, `assumed` and `local` are the three figures of epsilon for all rounds.
    """

    noise: float
    cluster_noise: float
    mean_noise: float
    everybody: float
    assumed: float
    local: float


def price(terms: Terms, privacy: Privacy, rounds: int, clients: int) -> Price:
    """The price of `privacy.epsilon` for these terms, where this many clients are in clusters."""
    assert privacy.norm_clip is not None
    sigma = _needed(terms, privacy, rounds)
    start, each = _hundredth(terms, privacy)
    shrink = (start / sigma) ** 2
    figures = [
        replace(one, rho=math.ceil(one.rho * rounds * shrink), eta=0).epsilon(privacy.delta)
        for one in (each.everybody, each.assumed, each.local)
    ]
    own = sigma / _scale(terms) / privacy.norm_clip
    return Price(own, own / math.sqrt(terms.schedule.size), own / math.sqrt(clients), *figures)


def noise_source(seed: int) -> Callable[[int, int], Callable[[int], bytes]]:
    """The source of a simulated client's noise in a round: the same for the same seed, in secure and clear trainings.

    Everybody who knows the seed knows the noise: this is for simulations only.
    """

    def source(client: int, round: int) -> Callable[[int], bytes]:
        calls = count()
        return lambda size: hashlib.shake_256(b"fl/noise:%d:%d:%d:%d" % (seed, round, client, next(calls))).digest(size)

    return source


def check_noise(experiment: Experiment) -> None:
    """Raise ConfigError for keys of noise that do not belong together."""
    privacy = experiment.privacy
    chosen = [key for key in ("noise", "epsilon") if getattr(privacy, key) is not None]
    if len(chosen) > 1:
        raise ConfigError("privacy.epsilon: set noise, or epsilon from which noise is computed, not both")
    if chosen and privacy.norm_clip is None:
        raise ConfigError(f"privacy.norm_clip: expected a number beside privacy.{chosen[0]}, got none")
    if privacy.norm_clip is not None and not chosen:
        raise ConfigError("privacy.noise: expected it, or privacy.epsilon, beside privacy.norm_clip; got neither")
    if privacy.noise_colluders and not chosen:
        raise ConfigError("privacy.noise_colluders: only with privacy.noise or privacy.epsilon")
    if chosen and experiment.method == "no-share":
        raise ConfigError(f"privacy.{chosen[0]}: `no-share` shows every update to the server; use another method")

"""An attack: is one client's update in the sums? The best linear test, against the promise and against its own theory.

The server knows every update and asks whether the victim's is in the sum or was replaced by zeros. It projects what it
sees on the victim's update; for Gaussian noise no test is better (Neyman and Pearson). The charge is rho, so the two
laws of the projection lie mu = sqrt(2 rho) apart, in standard deviations, and the area under the curve of the test is
Phi(mu / sqrt(2)). An attack with a smaller area would not be the best one; one with a larger would break the promise.
"""

import math

import numpy as np
import pytest

from secagg.crypto import Segment, SegmentNoise, Segments
from secagg.privacy import epsilon, leverage
from secagg.types import Grouping
from tests.secagg.drbg import Drbg

TRIALS, LENGTH, NORM = 20_000, 4, 200
FLAT: tuple[Grouping, ...] = (((0, 1, 2, 3),),)
PAIRS: tuple[Grouping, ...] = (((0, 1), (2, 3)), ((0, 2), (1, 3)))
DELTAS = (1e-5, 1e-2, 0.1)


def projections(groupings: tuple[Grouping, ...], sigma: int, colluder: bool) -> tuple[np.ndarray, np.ndarray, float]:
    """What the attacker computes with the update in the sums and without it, and the rho that is charged."""
    segment = Segment(shape=(TRIALS, LENGTH), bound=10_000)
    encoding = Segments(clients=4, segments=(segment,), noise=(SegmentNoise(clip=NORM, sigma=sigma),))
    one = Segments(clients=4, segments=(Segment(shape=(LENGTH,), bound=10_000),), noise=encoding.noise)
    update = one.encode(np.array([900, -500, 300, 100]))[0].view(np.int32).astype(float)  # clipped to the norm
    noise = np.array(
        [encoding.draw_noise(Drbg(b"client %d" % v)).view(np.int32).reshape(TRIALS, LENGTH) for v in range(4)], float
    )
    if colluder:
        noise[3] = 0
    rows = np.array([[float(v in group) for v in range(4)] for grouping in groupings for group in grouping])
    honest = rows[:, :3] if colluder else rows
    weights = np.linalg.pinv(honest @ honest.T) @ honest[:, 0]
    in_it = np.arange(TRIALS) % 2 == 0
    vectors = noise.copy()
    vectors[0, in_it] += update
    seen = np.einsum("gv,vtd->gtd", rows, vectors)  # the others' updates are known and subtracted
    found = np.einsum("g,gtd,d->t", weights, seen, update)
    charged = float(leverage(groupings, 0, int(colluder))) * NORM**2 / (2 * sigma**2)
    return found[in_it], found[~in_it], charged


def upper(count: int, total: int, miss: float = 0.0005) -> float:
    """The upper end of a Clopper-Pearson interval of 99.9%: there, so few successes have probability `miss`."""
    if count >= total:
        return 1.0
    logs = np.array(
        [math.lgamma(total + 1) - math.lgamma(k + 1) - math.lgamma(total - k + 1) for k in range(count + 1)]
    )
    low, high = count / total, 1.0
    for _ in range(40):
        p = (low + high) / 2
        terms = logs + np.arange(count + 1) * math.log(p) + (total - np.arange(count + 1)) * math.log1p(-p)
        low, high = (p, high) if np.exp(terms).sum() > miss else (low, p)
    return high


def broken(with_it: np.ndarray, without: np.ndarray, rho: float) -> bool:
    """Whether some threshold tells the two apart better than rho allows, at one of the deltas."""
    promised = [(epsilon(rho, delta), delta) for delta in DELTAS]
    half = len(with_it)
    for threshold in np.quantile(without, [0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 1.0]):
        hits, false = int((with_it > threshold).sum()), int((without > threshold).sum())
        least, most = 1 - upper(half - hits, half), upper(false, half)
        if any(least > math.exp(min(e, 50)) * most + delta for e, delta in promised):
            return True
    return False


def area(with_it: np.ndarray, without: np.ndarray) -> float:
    """The probability that the attacker's number is larger if the update is in the sum."""
    return float(np.searchsorted(np.sort(without), with_it).mean() / len(without))


@pytest.mark.parametrize("sigma", [50, 100, 200])
@pytest.mark.parametrize(
    ("groupings", "colluder"), [(FLAT, False), (FLAT, True), (PAIRS, False)], ids=["flat", "colluder", "two groupings"]
)
def test_the_best_attack_does_what_the_charge_says_and_no_more(
    groupings: tuple[Grouping, ...], colluder: bool, sigma: int
) -> None:
    with_it, without, rho = projections(groupings, sigma, colluder)
    mu = math.sqrt(2 * rho)
    assert area(with_it, without) == pytest.approx((1 + math.erf(mu / 2)) / 2, abs=0.02)
    assert not broken(with_it, without, rho)


def test_the_attack_finds_a_charge_that_is_too_low() -> None:
    for groupings, colluder in ((FLAT, False), (FLAT, True), (PAIRS, False)):
        with_it, without, rho = projections(groupings, 50, colluder)
        assert broken(with_it, without, rho / 3)

"""Statistics with noise: what is declared, and that the error bars in the result are those of the noise."""

import json
import math
import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secagg import UsageError
from secagg.agreement import Noise, Proposal, Terms, read_agreement, write_agreement
from secagg.crypto import SegmentNoise
from secagg.crypto.noise import discrete_gaussian
from secagg.protocol.result import GroupSum
from secagg.simulation import simulate_statistics
from secagg.statistics import (
    Bins,
    Categories,
    Contingency,
    Count,
    Histogram,
    LeastSquares,
    Mean,
    Numbers,
    Quantiles,
    Report,
    Sum,
    Variance,
    evaluate,
    site_update,
    statistics_noise,
)
from tests.secagg.drbg import Drbg
from tests.secagg.statistics.common import plain_terms, terms_for

AGE = Numbers("age", 0, 120, step=1)
SITES = 20
ASKED = (
    Count(name="n"),
    Sum(name="sum", of=AGE),
    Mean(name="mean", of=AGE),
    Variance(name="variance", of=AGE),
    Histogram(name="bins", of=Bins("age", (0, 30, 60, 120))),
    Contingency(name="table", rows=Categories("sex", ("f", "m")), by=Bins("age", (0, 60, 120))),
    Quantiles(name="quantiles", of=Bins.even("age", 0, 120, 12)),
    LeastSquares(name="fit", target=AGE, features=(Numbers("x", 0, 50, step=1), Numbers("z", 0, 10, step=1))),
    LeastSquares(name="through zero", target=AGE, features=(Numbers("x", 0, 50, step=1),), intercept=False),
)


def noisy_terms(*asked: Any, multiplier: float, **more: Any) -> Terms:
    terms = terms_for(*asked, sites=SITES, most_rows=400, **more)
    assert terms.statistics is not None
    return replace(terms, noise=statistics_noise(terms.statistics, SITES, multiplier, colluders=1))


def data(seed: int = 0) -> list[dict[str, Any]]:
    generator = np.random.default_rng(seed)
    sites = []
    for _ in range(SITES):
        x, z = generator.integers(0, 51, 400), generator.integers(0, 11, 400)
        age = np.clip(20 + x + 3 * z + generator.integers(-10, 11, 400), 0, 120)
        sites.append({"age": age, "x": x, "z": z, "sex": np.where(generator.random(400) < 0.5, "f", "m")})
    return sites


@pytest.fixture(scope="module")
def reports() -> tuple[Report, list[Report]]:
    """The report without noise, and many with."""
    terms = noisy_terms(*ASKED, multiplier=0.0001)
    clear = replace(terms, noise=None)
    total = sum(clear.encoding.encode(site_update(clear, one).update)[0] for one in data())
    members, entropy = tuple(range(SITES)), Drbg(b"noise of statistics")
    assert terms.noise is not None
    parts = [
        discrete_gaussian(150 * SITES * segment.length, one.sigma, entropy=entropy).reshape(150, SITES, -1).sum(axis=1)
        for segment, one in zip(terms.segments, terms.noise.segments, strict=True)
    ]
    noise = np.concatenate(parts, axis=1).astype(np.int32).view(np.uint32)
    noisy = [evaluate(terms, [GroupSum(total + one, members)]) for one in noise]
    return evaluate(clear, [GroupSum(total, members)]), noisy


def numbers(report: Report) -> dict[str, tuple[float, float]]:
    """Every number of a report with its noise."""
    found = {
        "n": (report["n"].rows, report["n"].noise),
        "used": (report["mean"].used, report["mean"].noise),
        "bin": (report["bins"].counts[1], report["bins"].noise),
        "cell": (report["table"].counts[0][1], report["table"].noise),
    }
    for name in ("sum", "mean", "variance"):
        found |= {f"{name} {what}": (value.value, value.noise) for what, value in report[name].values.items()}
    for name in ("fit", "through zero"):
        found |= {f"{name} {one.column}": (one.value, one.noise) for one in report[name].coefficients}
    return found


def test_error_bars_are_the_standard_deviation_of_the_noise(reports: tuple[Report, list[Report]]) -> None:
    exact, noisy = reports
    truth, found = numbers(exact), [numbers(report) for report in noisy]
    assert len(truth) == 13
    for name, (value, none) in truth.items():
        assert none is None
        errors = np.array([one[name][0] - value for one in found])
        stated = np.mean([one[name][1] for one in found])
        assert 0.75 * stated < math.sqrt(np.mean(errors**2)) < 1.25 * stated, name  # 150 draws: about 4 deviations
        assert abs(errors.mean()) < 0.4 * stated, name


def test_quantiles_lie_between_their_bounds(reports: tuple[Report, list[Report]]) -> None:
    exact, noisy = reports
    for part in (0.25, 0.5, 0.75):
        truth = exact["quantiles"][part]
        inside = [report["quantiles"][part] for report in noisy]
        held = [
            (one.low is None or one.low <= truth.low) and (one.high is None or one.high >= truth.high) for one in inside
        ]
        assert np.mean(held) >= 0.95


def test_noise_stands_in_text_json_and_csv(reports: tuple[Report, list[Report]]) -> None:
    exact, noisy = reports
    text = noisy[0].text()
    assert "Every site added noise" in text
    assert "noise in each count" in text
    assert noisy[0].to_json()["statistics"]["mean"]["mean"]["noise"] > 0
    assert "Every site added noise" not in exact.text()
    assert "noise" not in str(exact.to_json())


def test_noise_that_drowns_the_data_is_told_and_breaks_nothing() -> None:
    terms = noisy_terms(*ASKED, multiplier=1.0)
    members = tuple(range(SITES))
    for _ in range(5):
        noise = sum(terms.encoding.draw_noise(os.urandom) for _ in range(SITES))
        report = evaluate(terms, [GroupSum(noise, members)])
        assert report.text()
        assert report.to_json()
        assert report.to_csv()
        assert report["fit"].problem or report["fit"].coefficients


FIT = LeastSquares(name="fit", target=AGE, features=(Numbers("x", 0, 50, step=1), Numbers("z", 0, 10, step=1)))
FAR, NARROW = 2.0**100, 2.0**-100


def of_numbers(terms: Terms, *given: int) -> Report:
    """What these numbers come to, as the sums that a group opens."""
    return evaluate(terms, [GroupSum(np.array(given, np.int64).astype(np.uint32), tuple(range(SITES)))])


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize(
    "products",  # x x, x z, x y, z z, z y, y y: sums are 0, so that they are the entries of the matrix
    [
        pytest.param((-2500, 1000, 0, -100, 0, 10**6), id="the inverse has a positive diagonal, no square is positive"),
        pytest.param((2500, 1000, 0, 100, 0, 10**6), id="the second pivot is negative"),
        pytest.param((-2500, 0, 0, 100, 0, 10**6), id="the first pivot is negative"),
        pytest.param((2500, 0, 30000, 100, 0, 10**5), id="the residual is negative"),
        pytest.param((2500, 0, 0, 100, 0, -1), id="the target's square is negative"),
    ],
)
def test_sums_that_no_data_has_get_no_coefficients(products: tuple[int, ...], intercept: bool) -> None:
    noisy = noisy_terms(replace(FIT, intercept=intercept, limbs=1), multiplier=0.0001)
    for terms in (noisy, replace(noisy, noise=None)):
        report = of_numbers(terms, 50, 0, 0, 0, 0, 0, 0, *products)
        assert "no data has such sums" in report["fit"].problem
        assert report["fit"].coefficients == ()
        assert report.text()


def test_a_negative_number_of_rows_gets_no_coefficients() -> None:
    report = of_numbers(noisy_terms(FIT, multiplier=0.0001), -7, 0, 0, 0, 0, 0, 0, 9, 0, 0, 9, 0, 9)
    assert report["fit"].problem == "-7 complete rows are too few for 3 coefficients"


def test_noise_that_only_some_numbers_have_stands_in_a_table() -> None:
    terms = noisy_terms(Variance(name="age", of=AGE), multiplier=0.0001)
    report = of_numbers(terms, 2, 0, 0, 0, 60, 1800)  # with a row less, there is a mean but no variance
    assert report["age"]["mean"].noise is not None
    assert report["age"]["variance"].noise is None
    assert "noise -" in report.text()


@pytest.mark.parametrize(("low", "high"), [(-FAR, FAR), (0, NARROW), (FAR - 2.0**60, FAR), (-1, 1)])
def test_numbers_of_any_size_and_any_sums_give_a_report(low: float, high: float) -> None:
    x, y, z = Numbers("x", low, high), Numbers("y", -FAR, FAR), Numbers("z", 0, NARROW)
    fits = [LeastSquares(name=f"{a.column}{b.column}", target=a, features=(b, z), limbs=1) for a, b in ((x, y), (y, x))]
    asked = (Sum(name="s", of=x, limbs=1), Variance(name="v", of=x, limbs=1), *fits)
    terms = terms_for(*asked, sites=SITES, most_rows=400)
    assert terms.statistics is not None
    noisy = replace(terms, noise=statistics_noise(terms.statistics, SITES, 0.001))
    stream = Drbg(f"any sums {low} {high}".encode())
    for one in (terms, noisy):
        for spread in (2**32, 2**16, 5):
            for _ in range(10):
                words = np.frombuffer(stream(4 * one.length), np.uint32).astype(np.int64) % spread
                report = of_numbers(one, *(words - spread // 2))
                assert json.dumps(report.to_json(), allow_nan=False)
                assert report.text()
                assert report.to_csv()


def test_numbers_too_large_or_too_close_for_floats_are_refused() -> None:
    for low, high in ((0, 2 * FAR), (-2 * FAR, 0), (-1e308, 1e308)):
        with pytest.raises(UsageError, match="use a larger unit"):
            Numbers("x", low, high)
        with pytest.raises(UsageError, match="use a larger unit"):
            Bins("x", (low, high))
    with pytest.raises(UsageError, match="use a smaller unit"):
        Numbers("x", 0, NARROW / 2)


def test_a_multiplier_gives_each_segment_a_clip_that_changes_nothing_and_its_sigma() -> None:
    terms = noisy_terms(Count(name="n"), Mean(name="age", of=AGE), multiplier=2.5)
    assert terms.noise == Noise(
        segments=(
            SegmentNoise(clip=401.0, sigma=1003),
            SegmentNoise(clip=693.0, sigma=1733),
            SegmentNoise(clip=48001.0, sigma=120003),
        ),
        colluders=1,
    )
    most = {"age": [121.5] * 400}  # clipped and rounded: the largest counts and sums
    update = site_update(terms, most).update
    clear = replace(terms, noise=None).encoding.encode(update)[0]
    assert (terms.encoding.encode(update)[0] == clear).all()


def test_a_file_may_have_one_multiplier_or_one_for_each_statistic() -> None:
    terms = terms_for(Count(name="n"), Mean(name="age", of=AGE), sites=SITES, most_rows=400)
    text = write_agreement(Proposal(terms=terms))
    assert terms.statistics is not None
    for lines, multiplier in (("multiplier = 2.5", 2.5), ("multiplier = { n = 1, age = 4.5 }", {"n": 1, "age": 4.5})):
        found = read_agreement(f"{text}\n[noise]\ncolluders = 1\n{lines}\n").terms
        assert found.noise == statistics_noise(terms.statistics, SITES, multiplier, colluders=1)  # type: ignore[arg-type]
        assert read_agreement(write_agreement(Proposal(terms=found))).terms == found
        assert Terms.from_bytes(found.to_bytes()) == found
    for wrong, problem in (
        ("multiplier = { n = 1 }", "expected one for each statistic"),
        ("multiplier = 0", "expected a number above 0"),
        ("multiplier = true", "expected a number, or a table"),
    ):
        with pytest.raises(UsageError, match=problem):
            read_agreement(f"{text}\n[noise]\ncolluders = 1\n{wrong}\n")


def test_noise_on_limbs_is_refused() -> None:
    fine = Mean(name="x", of=Numbers("x", 0, 1))
    terms = terms_for(fine, sites=SITES, most_rows=400)
    assert terms.statistics is not None
    with pytest.raises(UsageError, match="a sum must fit into one place of the vector"):
        statistics_noise(terms.statistics, SITES, 1.0)
    noise = Noise(segments=tuple(SegmentNoise(clip=1.0, sigma=10) for _ in terms.segments))
    with pytest.raises(UsageError, match=r"statistics.x: .* set limbs = 1"):
        replace(terms, noise=noise)


def test_a_dry_run_with_noise_goes_through_the_protocol() -> None:
    terms = noisy_terms(Count(name="n"), Mean(name="age", of=AGE), multiplier=0.02)
    report = simulate_statistics(terms, dict(enumerate(data())))
    assert report["n"].noise == pytest.approx(9 * math.sqrt(SITES))
    assert abs(report["n"].rows - 8000) < 8 * report["n"].noise
    mean = report["age"]["mean"]
    truth = np.mean(np.concatenate([one["age"] for one in data()]))
    assert abs(mean.value - truth) < 8 * mean.noise


def test_plain_terms_without_statistics_have_their_own_noise() -> None:
    with pytest.raises(UsageError, match="unknown key"):
        read_agreement(write_agreement(Proposal(terms=plain_terms(3))) + "\n[noise]\nmultiplier = 1\ncolluders = 0\n")

"""The benchmark measures every backend, judges its bars rightly, and can be printed."""

import json

import pytest

from secagg.crypto import prg
from tests.benchmarks.secagg import primitives as bench


def rate(maker: str, threads: int, clock: float, core: float = 0.0, words: int = 10) -> bench.MaskRate:
    return bench.MaskRate(
        words=words, keys=1, maker=maker, threads=threads, gb_per_s=clock, gb_per_core_s=core or clock
    )


def sharing(maker: str, total: float) -> bench.SharingTime:
    return bench.SharingTime(
        holders=100, threshold=67, maker=maker, split_ms=total / 2, coefficients_ms=0.0, combine_ms=total / 2
    )


def test_every_backend_is_measured_beside_raw_openssl() -> None:
    rates = bench.measure_masks(3000, 3, rounds=1)
    assert {r.maker for r in rates} == {"raw openssl", *prg.available_backends()}
    assert all(r.gb_per_s > 0 and r.gb_per_core_s > 0 for r in rates)


def test_bars_take_the_worst_size_and_the_right_clock() -> None:
    masks = [
        *(rate(m, 1, c, core) for m, c, core in (("raw openssl", 1, 10), ("vaes", 5, 30), ("openssl", 1, 9))),
        rate("vaes", 2, 9.5),
        rate("raw openssl", 1, 10, words=20),
        rate("vaes", 1, 20, words=20),
        rate("openssl", 1, 8, words=20),
        rate("vaes", 2, 34, words=20),
    ]
    bars = bench.bars(masks, [sharing("secagg", 2.0), sharing("pycryptodome", 100.0)])
    assert [(bar.value, bar.met) for bar in bars] == [
        (pytest.approx(2.0), True),
        (pytest.approx(0.8), False),
        (pytest.approx(1.9), True),
        (pytest.approx(1.7), False),
        (pytest.approx(50.0), True),
    ]


def test_a_report_can_be_printed_for_people_and_for_machines() -> None:
    masks = bench.measure_masks(3000, 2, rounds=1)
    shared = bench.measure_sharing(5, 3, rounds=1)
    report = bench.Report(
        machine=bench.machine(),
        masks=tuple(masks),
        passes=tuple(bench.measure_passes(1000, rounds=1)),
        sharing=(shared,),
        flower={"words": 1.0, "mask_ms": 1.0, "holders": 5.0, "threshold": 3.0, "split_ms": 1.0, "combine_ms": 1.0},
        bars=tuple(bench.bars(masks, [shared])),
    )
    assert {bar["met"] for bar in json.loads(json.dumps(report.as_dict()))["bars"]} <= {True, False}
    text = bench.as_text(report)
    assert "raw openssl" in text
    assert text.count("pass  ") + text.count("MISS  ") == len(report.bars)


def test_measuring_again_keeps_the_better_of_each_and_judges_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def rates(first: float, second: float) -> list[bench.MaskRate]:
        return [
            bench.MaskRate(words=8, keys=1, maker=maker, threads=1, gb_per_s=rate, gb_per_core_s=rate)
            for maker, rate in (("raw openssl", first), ("openssl", second))
        ]

    report = bench.Report(machine={}, masks=tuple(rates(7.0, 5.0)), passes=(), sharing=(), flower={}, bars=())
    monkeypatch.setattr(bench, "MASK_SIZES", ((8, 1),))
    monkeypatch.setattr(bench, "measure_masks", lambda words, keys, rounds: rates(6.0, 6.3))
    again = bench.measure_masks_again(report)
    assert [rate.gb_per_s for rate in again.masks] == [7.0, 6.3]
    assert [rate.gb_per_core_s for rate in again.masks] == [7.0, 6.3]
    assert {bar.name: bar.value for bar in again.bars} == {
        "one core: OpenSSL fallback to raw OpenSSL": pytest.approx(0.9)
    }

"""The benchmark counts what it says it counts and prints what it measured. Nothing here is timed."""

import dataclasses
import io
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg import UsageError
from secagg.crypto import keys
from secagg.protocol import client_checks, dealing, server, transcript, unmask
from secagg.protocol import masking as client_masking
from secagg.protocol.result import Stage
from tests.benchmarks import __main__ as benchmarks
from tests.benchmarks.secagg import growth, parts, round
from tests.benchmarks.secagg.flower import Flower, flower_table
from tests.benchmarks.secagg.flower import bars as flower_bars
from tests.benchmarks.secagg.memory import Watch, held
from tests.benchmarks.secagg.progress import Progress
from tests.benchmarks.secagg.report import Bar, Table, bar_table, rewrite
from tests.benchmarks.secagg.runs import (
    PUBLISHED,
    STAGES,
    Run,
    cpu_seconds,
    make_updates,
    measure_run,
    run_once,
    run_table,
    stage_table,
)
from tests.benchmarks.secagg.runs import bars as run_bars
from tests.benchmarks.secagg.work import Rates, Size, Work

RATES = Rates(agree_us=40, verify_us=100, sign_us=50, mask_gb_per_s=10, hash_gb_per_s=2, copy_gb_per_s=20)


def made_up(size: Size, *, client: float = 1.0, server: float = 2.0) -> Run:
    """A run whose stages all cost the same."""
    return Run(
        size=size,
        seconds=3.0,
        cpu_seconds=4.0,
        client_seconds=(client,) * 5,
        server_seconds=(server,) * 5,
        bytes_up=(1000 * size.clients,) * 5,
        bytes_down=(2000 * size.clients,) * 5,
    )


@pytest.mark.parametrize(
    "size",
    [
        Size(clients=6, length=40),
        Size(clients=7, length=40, dropped=2),
        Size(clients=8, length=40, group=2, groupings=3),
        Size(clients=12, length=40, group=4, groupings=2),
    ],
    ids=str,
)
def test_the_floor_counts_exactly_what_a_run_does(size: Size, monkeypatch: pytest.MonkeyPatch) -> None:
    done: Counter[str] = Counter()
    agreed = size.agreement()

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            done[name] += 1
            return function(*args, **options)

        return counted

    def masking(vector: Any, mask_keys: Any, signs: Any, **options: Any) -> None:
        done["mask bytes"] += 4 * len(vector) * len(mask_keys)
        add_masks(vector, mask_keys, signs, **options)

    def hashing(vectors: Any, *options: Any) -> bytes:
        done["hash bytes"] += vectors.nbytes
        return row_hashes(vectors, *options)

    add_masks, row_hashes = client_masking.add_masks, transcript.row_hashes
    monkeypatch.setattr(transcript, "row_hashes", hashing)
    monkeypatch.setattr(keys.AgreementKey, "agree", counting("agree", keys.AgreementKey.agree))
    monkeypatch.setattr(keys.Identity, "sign", counting("sign", keys.Identity.sign))
    for module in (client_checks, dealing, server):
        monkeypatch.setattr(module, "verify", counting("verify", module.verify))
    monkeypatch.setattr(client_masking, "add_masks", masking)
    monkeypatch.setattr(unmask, "add_masks", masking)
    run_once(size, make_updates(size), agreed, processes=1)
    work = Work.of(size)
    assert done["verify"] == work.verifications
    assert done["sign"] == work.signatures
    assert done["mask bytes"] == work.mask_bytes
    assert done["hash bytes"] == work.hash_bytes
    if size.groupings == 1:
        assert done["agree"] == work.agreements
    else:  # clients who meet again in another grouping agree once
        assert size.clients * (size.clients - 1) < done["agree"] <= work.agreements


def test_the_papers_round_has_the_masks_that_its_authors_would_count() -> None:
    assert Work.of(round.PAPER).mask_bytes == 60 * 10 * (3 + 1) * 4 * 2_156_490
    assert Work.of(Size(clients=100)).agreements == 2 * 100 * 99


def test_rates_turn_work_into_seconds() -> None:
    work = Work(
        agreements=1000,
        verifications=100,
        signatures=20,
        mask_bytes=3 * 10**9,
        hash_bytes=10**9,
        vector_bytes=2 * 10**9,
    )
    assert RATES.floor(work) == pytest.approx(0.04 + 0.01 + 0.001 + 0.3 + 0.5 + 0.1)


def test_this_machine_has_rates() -> None:
    assert all(rate > 0 for rate in dataclasses.astuple(Rates.measure()))


@pytest.mark.parametrize("dropped", range(6))
def test_those_who_drop_are_as_many_as_said_and_all_different(dropped: int) -> None:
    drop = Size(clients=20, dropped=dropped).drop()
    assert len(drop) == dropped
    assert set(drop) <= set(range(20))
    assert set(drop.values()) <= {Stage.INPUTS}


def test_a_third_may_drop_with_the_default_threshold() -> None:
    for n in (20, 100, 500, 1000):
        assert n - n * 30 // 100 >= Size(clients=n).threshold


def test_a_measured_run_is_complete_and_tells_how_far_it_is() -> None:
    told: list[float] = []
    run = measure_run(Size(clients=6, length=50, dropped=1), processes=1, on_progress=told.append)
    assert all(seconds > 0 for seconds in (*run.client_seconds, *run.server_seconds, run.seconds))
    assert run.bytes_up[Stage.INPUTS] > 5 * 4 * 50  # five vectors and what is signed
    assert run.cpu_seconds >= 0
    assert told == sorted(told)
    assert told[-1] == pytest.approx(1.0)


def test_a_wrong_sum_is_not_reported_as_a_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = unmask.add_masks

    def forget_one(vector: Any, mask_keys: Any, signs: Any, **options: Any) -> None:
        real(vector, mask_keys[1:], signs[1:], **options)

    monkeypatch.setattr(unmask, "add_masks", forget_one)
    with pytest.raises(AssertionError, match="not exact"):
        measure_run(Size(clients=4, length=50), processes=1)


def test_children_that_have_ended_count_as_cpu_time() -> None:
    before = cpu_seconds()
    sum(range(10**6))
    assert cpu_seconds() >= before


def test_the_tables_of_runs_hold_the_published_figures_beside_ours() -> None:
    runs = [made_up(Size(clients=500, dropped=50)), made_up(Size(clients=20))]
    text = run_table(runs, RATES).as_text()
    assert "62,239" in text
    assert "6x" in text  # 62 s over ten seconds
    by_stage = stage_table(runs)
    assert len(by_stage.rows) == 2 * len(STAGES)
    assert [row[1] for row in by_stage.rows[:5]] == ["keys", "shares", "inputs", "consistency", "unmasking"]


def test_the_server_has_bounds() -> None:
    quick = made_up(Size(clients=1000, dropped=300), server=0.2)
    slow = made_up(Size(clients=500, dropped=50), server=1.0)
    small = made_up(Size(clients=20))
    (first, second) = run_bars([quick, slow, small])
    assert (first.met, first.value) == (True, pytest.approx(413.767))
    assert (second.met, second.value) == (False, pytest.approx(62.239 / 5))
    assert run_bars([made_up(Size(clients=500, dropped=50, length=10))]) == []
    assert set(PUBLISHED) == {(n, percent) for n in (500, 1000) for percent in (0, 10, 30)}


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_a_power_law_is_fitted_exactly(exponent: float) -> None:
    values = [1.0, 2.0, 5.0, 40.0]
    assert growth.slope(values, [3 * x**exponent for x in values]) == pytest.approx(exponent)


def test_growth_beyond_the_formula_misses_a_bound() -> None:
    sizes = [Size(clients=10), Size(clients=100)]
    series = growth.client_series(sizes)
    tame = growth.fit(series, [made_up(sizes[0], server=1), made_up(sizes[1], server=100)])
    wild = growth.fit(series, [made_up(sizes[0], server=1), made_up(sizes[1], server=1000)])
    assert [bar.met for bar in growth.bars(tame)] == [True, True, True]
    assert [bar.met for bar in growth.bars(wild)] == [True, True, False]
    assert "3.00" in growth.growth_table(wild).as_text()


def test_every_series_varies_what_it_says_and_can_be_run() -> None:
    for series in growth.extra_series():
        values = [series.measure(size) for size in series.sizes]
        assert values == sorted(set(values))
        assert len(values) >= 3
        fields = [dataclasses.asdict(size) for size in series.sizes]
        assert sum(len({size[name] for size in fields}) > 1 for name in fields[0]) == 1
    measure_run(growth.extra_series(scale=10_000)[1].sizes[1], processes=1)


def test_a_round_is_measured_beside_its_keystream_and_its_memory() -> None:
    one = round.measure_round(Size(clients=6, length=500, group=3, groupings=2), repeats=1)
    assert one.raw_seconds > 0
    assert one.group_sums_gb == pytest.approx(4e-9 * 500 * 4)
    text = round.round_table(one).as_text()
    assert "raw OpenSSL" in text
    assert "inputs" in text


def test_a_slow_or_greedy_round_misses_a_bound() -> None:
    run = made_up(round.PAPER)  # three seconds
    sums = 4e-9 * 200 * 2_156_490

    def bars(raw: float, memory: float | None) -> dict[str, bool]:
        one = round.Round(size=run.size, best=run, raw_seconds=raw, memory_gb=memory)
        return {bar.name: bar.met for bar in round.bars(one)}

    assert all(bars(1.1, sums + 0.4).values())
    assert list(bars(1.1, sums + 0.6).values())[-1] is False
    assert len(bars(1.1, None)) == len(bars(1.1, sums)) - 1
    if len(bars(1.1, sums)) == 2:  # the bound on time is for processors with VAES
        assert list(bars(0.9, sums).values()) == [False, True]


@pytest.mark.skipif(held() is None, reason="this system does not tell how much memory processes share")
def test_memory_is_watched_while_it_is_held() -> None:
    with Watch(0.001) as watch:
        block = np.ones(30_000_000, np.uint8)
        while watch.above is not None and watch.above < 25_000_000:
            assert block[-1] == 1
        del block
    assert watch.above is not None
    assert 25_000_000 < watch.above < 200_000_000


def test_what_cannot_be_watched_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.benchmarks.secagg.memory._PROC", Path("/nowhere"))
    with Watch(0.001) as watch:
        pass
    assert watch.above is None


# --- Flower -------------------------------------------------------------------------------------------------

FLOWER = Flower(
    version="1.42.0",
    clients=100,
    length=100_000,
    mask=1e-3,
    split_key=2.0,
    split_seed=0.4,
    combine_seed=1.0,
    agree=1e-3,
    box=1e-4,
)


def test_flowers_operations_add_up_as_its_protocol_does() -> None:
    assert FLOWER.client_seconds == pytest.approx(0.1 + 2.4 + 2 * 0.099 + 0.0099)
    assert FLOWER.server_seconds == pytest.approx(100 * (1.0 + 1e-3))
    assert FLOWER.total == pytest.approx(100 * FLOWER.client_seconds + 100.1)


def test_flower_is_compared_as_measured_or_as_recorded_and_says_which() -> None:
    ours = made_up(Size(clients=100))  # four CPU seconds
    (measured,), (recorded,) = flower_bars(ours, FLOWER), flower_bars(ours, None)
    assert measured.value == pytest.approx(FLOWER.total / 4)
    assert "extrapolated" in measured.name
    assert recorded.value == pytest.approx(430 / 4)
    assert "recorded" in recorded.name
    assert flower_bars(made_up(Size(clients=20)), FLOWER) == []
    assert "extrapolated" in flower_table(ours, FLOWER).as_text()
    assert "recorded" in flower_table(ours, None).as_text()


# --- what is printed ----------------------------------------------------------------------------------------

TABLE = Table(name="runs", title="Runs", header=("a", "value"), rows=(("x", "1"), ("long", "22")), notes=("so",))


def test_a_table_is_text_or_markdown() -> None:
    assert TABLE.as_text() == "Runs\na     value\nx         1\nlong     22\nso"
    assert TABLE.as_markdown() == "Runs\n\n| a | value |\n| :-- | --: |\n| x | 1 |\n| long | 22 |\n\nso"


@pytest.mark.parametrize(
    ("value", "at_most", "met"), [(2.0, False, True), (1.9, False, False), (2.0, True, True), (2.1, True, False)]
)
def test_a_bar_bounds_from_below_or_above(value: float, at_most: bool, met: bool) -> None:
    bar = Bar(name="speed", value=value, bound=2.0, at_most=at_most)
    assert bar.met is met
    assert bar_table([bar]).rows[0][-1] == ("yes" if met else "NO")


def test_a_document_gets_new_tables_and_keeps_its_text(tmp_path: Path) -> None:
    document = tmp_path / "performance.md"
    document.write_text("before\n<!-- bench runs -->\nold\n<!-- /bench runs -->\nafter <!-- bench x -->\n")
    rewrite(document, [TABLE, dataclasses.replace(TABLE, title="More")])
    text = document.read_text()
    assert "old" not in text
    assert text.startswith("before\n<!-- bench runs -->\nRuns\n")
    assert "More\n\n| a | value |" in text
    assert text.endswith("<!-- /bench runs -->\nafter <!-- bench x -->\n")
    rewrite(document, [TABLE])
    assert "More" not in document.read_text()


def test_a_document_without_a_place_for_a_table_is_left_alone(tmp_path: Path) -> None:
    document = tmp_path / "performance.md"
    document.write_text("nothing here")
    with pytest.raises(UsageError, match="no place for table 'runs'"):
        rewrite(document, [TABLE])
    assert document.read_text() == "nothing here"


def test_the_document_of_this_project_has_a_place_for_every_table() -> None:
    text = (Path(__file__).parents[3] / "docs" / "performance.md").read_text()
    for name in ("machine", "masks", "passes", "sharing", "runs", "stages", "growth", "round", "flower", "bars"):
        assert text.count(f"<!-- bench {name} -->") == text.count(f"<!-- /bench {name} -->") == 1, name


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_progress_off_a_terminal_is_plain_lines_without_control_codes() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream, total=100, clock=clock)
    progress.begin("first", 20)
    progress.at(0.5)
    clock.now = 40
    progress.begin("second", 80)
    progress.end()
    assert stream.getvalue() == "  0% first, about 2 min left\n 20% second, about 3 min left\n"


def test_progress_on_a_terminal_is_one_line_that_moves_and_goes() -> None:
    stream, clock = Terminal(), Clock()
    progress = Progress(stream, total=10, clock=clock)
    progress.begin("task", 10)
    clock.now = 5
    progress.at(0.5)
    progress.at(0.6)  # too soon to be drawn
    progress.end()
    drawn = stream.getvalue().split("\r\x1b[K")
    assert drawn[-2] == "[##########..........]  50% task, about 5 s left"
    assert drawn[-1] == ""
    assert "\n" not in stream.getvalue()


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates as if measured, and the engine in this process: what is tested is what comes out."""
    monkeypatch.setattr(parts.Rates, "measure", lambda: RATES)
    monkeypatch.setattr(growth, "extra_series", lambda: ())


@pytest.mark.usefixtures("_quick")
def test_the_command_prints_json_that_holds_every_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmarks.main(["--json", "--only", "runs,growth", "--clients", "10,5", "--length", "50"]) in (0, 1)
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert [(one["size"]["clients"], one["size"]["dropped"]) for one in found["runs"]] == [
        (5, 0), (5, 0), (5, 1), (10, 0), (10, 1), (10, 3)
    ]  # fmt: skip
    assert {one["what"] for one in found["growth"]} >= {"clients, n (0% dropped)"}
    assert {"machine", "rates", "bars"} <= set(found)
    assert "5 clients, 50 numbers" in err


@pytest.mark.usefixtures("_quick")
def test_the_command_prints_tables_and_fails_when_a_bound_is_missed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--only", "runs", "--clients", "5", "--length", "50"]
    assert benchmarks.main(arguments) == 0
    assert "Whole runs, 50 numbers" in capsys.readouterr().out
    broken = Bar(name="never kept", value=0.0, bound=1.0)
    monkeypatch.setattr("tests.benchmarks.secagg.runs.bars", lambda runs: [broken])
    assert benchmarks.main([*arguments, "--markdown"]) == 1
    assert "| never kept | 0.00 | at least 1 | NO |" in capsys.readouterr().out


@pytest.mark.usefixtures("_quick")
def test_the_command_rewrites_a_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = tmp_path / "tables.md"
    names = ("machine", "runs", "stages")
    document.write_text("".join(f"<!-- bench {name} -->\n<!-- /bench {name} -->\n" for name in names))
    arguments = ["--only", "runs", "--clients", "4", "--length", "50", "--markdown", str(document)]
    assert benchmarks.main(arguments) == 0
    assert "| 4 | 0% |" in document.read_text()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "arguments", [["--only", "everything"], ["--clients", "many"], ["--clients", "2", "--only", "runs"]]
)
def test_what_cannot_be_measured_is_one_clear_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = benchmarks.main(arguments)
    except SystemExit as stopped:  # argparse
        code = stopped.code
    assert code == 2
    assert capsys.readouterr().err.strip().splitlines()[-1].startswith(("python -m tests.benchmarks", "benchmarks"))

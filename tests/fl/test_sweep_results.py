"""What a sweep makes of its runs: means, intervals, the worst attack, and the measure that it compares."""

import csv
from math import inf
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import SubFigure

from fl.config.grid import Axis, Value, from_mapping
from fl.errors import ConfigError
from fl.reporting.compared import HIGHER, KNOWN, LOWER, Measure
from fl.reporting.results import FINISHED, LeftOut, Mean, Outcome, Results, grouped, mean_of
from fl.reporting.sweep_page import MOST_CHARTS, main_heat, panels, shades, sweep_page
from fl.reporting.sweep_picture import draw_sweep
from fl.sweeps import folder

SMALL: dict[str, Any] = {
    "rounds": 2,
    "clients": 12,
    "model": "linear",
    "secure": False,
    "byzantine": 2,
    "data": {"examples": 240, "test_examples": 100},
    "local": {"epochs": 1, "batch_size": 10, "lr": 0.1},
}

ALL = [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")]


def axis(name: str, key: str, *labels: str) -> Axis:
    return Axis(name, tuple(Value(label, {key: label}) for label in labels))


def results(values: dict[tuple[str, str], list[float]], measure: str | Measure = "accuracy") -> Results:
    """Rules a and b, attacks x and y, two seeds; a value that is not there is a run that failed."""
    axes = [axis("seed", "seed", "0", "1"), axis("rule", "aggregation.rule", "a", "b")]
    axes.append(axis("attack", "attack.name", "x", "y"))
    outcomes = []
    for seed in range(2):
        for rule, attack in (("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")):
            found = values[rule, attack]
            labels = {"rule": rule, "attack": attack, "seed": str(seed)}
            points = [(1.0, 0.1), (2.0, found[seed])] if seed < len(found) else []
            outcomes.append(Outcome(f"{rule}{attack}{seed}", labels, FINISHED if points else "failed", points))
    return Results("test", axes, KNOWN[measure] if isinstance(measure, str) else measure, outcomes)


def test_means_intervals_and_the_worst_attack() -> None:
    found = results({("a", "x"): [0.8, 0.9], ("a", "y"): [0.6, 0.6], ("b", "x"): [0.5], ("b", "y"): []})
    mean = found.cells[0].mean
    assert mean is not None
    assert mean[:2] == (pytest.approx(0.85), pytest.approx(0.85 - 12.706 * 0.05))
    assert (mean.high, mean.half) == (1.0, pytest.approx(12.706 * 0.05))  # no accuracy is above 1
    assert found.cells[1].mean == Mean(0.6, 0.6, 0.6, 0.0)
    assert found.cells[2].mean == Mean(0.5, None, None)  # one seed has no interval
    assert (found.cells[2].finished, found.cells[2].wanted) == (1, 2)
    assert found.cells[3].mean is None
    assert [(entry.labels["rule"], entry.attack) for entry in found.worst] == [("a", "y"), ("b", "")]
    assert found.worst[1].mean is None  # not the best of those that are there
    assert found.table()[1] == ["a", "85.0% ± 63.5", "60.0% ± 0.0", "60.0% ± 0.0"]
    assert found.table()[2] == ["b", "50.0% (1 of 2)", "-", "-"]
    assert found.footnotes == ["no worst case for b: y has no finished run"]
    none = results({("a", "x"): [0.8, 0.9], ("a", "y"): [0.6, 0.6], ("b", "x"): [], ("b", "y"): []})
    assert none.footnotes == ["no worst case for b: x, y have no finished run"]


@pytest.mark.parametrize(("sizes", "said"), [(12, []), (13, ["12 of 13 groups of curves; the page has all of them"])])
def test_a_picture_without_room_for_all_curves_says_so(
    sizes: int, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles: list[str] = []
    monkeypatch.setattr(SubFigure, "suptitle", lambda self, text, **style: titles.append(text))
    labels = [str(size) for size in range(sizes)]
    axes = [axis("rule", "aggregation.rule", "a", "b"), axis("size", "clusters.size", *labels)]
    outcomes = [
        Outcome(rule + size, {"rule": rule, "size": size}, FINISHED, [(1.0, 0.5)]) for rule in "ab" for size in labels
    ]
    draw_sweep(Results("test", axes, KNOWN["accuracy"], outcomes), tmp_path / "report.png")
    assert titles == said


def test_the_worst_loss_is_the_largest() -> None:
    found = results({("a", "x"): [2.0, 2.0], ("a", "y"): [1.0, 1.0], ("b", "x"): [1, 1], ("b", "y"): [3, 3]}, "loss")
    assert [entry.attack for entry in found.worst] == ["x", "y"]
    assert found.cells[0].best == 0.1


def test_a_rule_that_cannot_run_under_an_attack_has_no_worst_case() -> None:
    """As with skip_impossible: the runs of rule b under attack y are not there at all."""
    whole = results({("a", "x"): [0.8, 0.9], ("a", "y"): [0.6, 0.6], ("b", "x"): [0.9, 0.9], ("b", "y"): [0.1, 0.1]})
    left = [outcome for outcome in whole.outcomes if not outcome.id.startswith("by")]
    found = Results("test", whole.axes, whole.measure, left)
    assert [(entry.attack, entry.mean is None) for entry in found.worst] == [("y", False), ("", True)]
    assert found.worst[1].impossible == ["y"]
    assert found.table()[2] == ["b", "90.0% ± 0.0", "-", "-"]
    assert found.footnotes == ["no worst case for b: y cannot run (skip_impossible)"]
    assert found.worst_csv().splitlines()[2] == "b,,0,2,,,"
    few = Results("test", whole.axes, whole.measure, [outcome for outcome in left if outcome.id != "ay0"])
    assert few.table()[1][2] == "60.0% (1 of 2)"  # of the seeds that were asked for


def test_a_worst_case_says_if_seeds_are_missing() -> None:
    """Also if they are missing in another attack than the worst: with them, that one might be the worst."""
    values = {("a", "x"): [0.9, 0.9], ("a", "y"): [0.5], ("b", "x"): [0.6], ("b", "y"): [0.5, 0.5]}
    found = results(values)
    assert [row[-1] for row in found.table()] == ["worst", "50.0% (1 of 2)", "50.0% ± 0.0 (1 of 2)"]
    rows = list(csv.DictReader(found.worst_csv().splitlines()))
    assert [(row["finished"], row["wanted"]) for row in rows] == [("1", "2"), ("1", "2")]
    assert [entry["finished"] for entry in found.to_json()["worst"]] == [1, 1]
    heat = main_heat(found)
    assert [cells[0].detail for _, cells in heat.rows] == ["1 of 2 seeds", "1 of 2 seeds"]
    whole = results({**values, ("a", "y"): [0.5, 0.5]})
    assert main_heat(whole).rows[0][1][0].detail == "± 0.0"


def test_the_rows_of_a_table_say_what_they_are() -> None:
    found = results({key: [0.5, 0.6] for key in ALL})
    assert found.table()[0] == ["rule", "x", "y", "worst"]
    assert main_heat(found).corner == "rule"
    page = sweep_page(found, [], toml="", info={})
    assert "<tr><th>rule</th><th>worst</th><th>x</th>" in page
    assert '<td class="name">rule<small>aggregation.rule</small></td>' in page
    assert '<td class="name">seed</td>' in page


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_every_cell_of_a_heat_map_can_be_read() -> None:
    """At least 4.5:1, as WCAG 2 asks for small text, on light and dark pages."""
    for heat in (None, *(i / 200 for i in range(201))):
        for colours in shades(heat):
            low, high = sorted(map(luminance, colours))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (heat, colours)
    page = sweep_page(results({key: [0.5] for key in ALL}), [], toml="", info={})
    assert page.count("--paint: ") == page.count('<td class="cell') == 6


@pytest.mark.parametrize(
    ("values", "measure", "words"),
    [
        ([0.5, 0.9], "accuracy", "The faintest colour is 50.0%, the strongest 90.0%."),
        ([0.9, 0.9], "accuracy", "The faintest colour is 75.0%, the strongest 100.0%."),
        ([0.4, 0.5], "accuracy", "The faintest colour is 32.5%, the strongest 57.5%."),
        ([2.0, 3.0], "loss", "The faintest colour is 2, the strongest 3."),
        ([2.0, 2.0], "loss", "There is only one value, so the colours say nothing."),
    ],
)
def test_a_heat_map_says_what_its_colours_mean(values: list[float], measure: str, words: str) -> None:
    low, high = values
    found = results({("a", "x"): [low], ("a", "y"): [high], ("b", "x"): [high], ("b", "y"): [high]}, measure)
    assert words in sweep_page(found, [], toml="", info={})
    if low == high:
        assert all((cell.heat or 0) < 0.7 for _, cells in main_heat(found).rows for cell in cells)


def test_what_has_no_value_is_not_drawn_and_maps_are_as_many_as_charts() -> None:
    names = [f"v{i}" for i in range(40)]
    axes = [
        axis("rule", "aggregation.rule", "a", "b"),
        axis("size", "clusters.size", "3", "4"),
        axis("v", "local.lr", *names),
    ]
    outcomes = [
        Outcome(f"{rule}{size}{v}", {"rule": rule, "size": size, "v": v}, FINISHED if v != "v0" else "failed", points)
        for rule in "ab"
        for size in "34"
        for v in names
        for points in [[(1.0, 0.5)] if v != "v0" else []]
    ]
    found = Results("test", axes, KNOWN["accuracy"], outcomes)
    assert "v v0" not in " ".join(panel.title for panel in panels(found)[0])
    page = sweep_page(found, [], toml="", info={})
    assert page.count('<table class="heat">') == 1 + MOST_CHARTS
    assert "19 more maps are not drawn" in page  # of 39 + 2 + 2 with values
    assert "v v0</h3>" not in page


def test_failures_are_grouped_below_the_results() -> None:
    """One line at the top; the table has a line per error, and names that can break between words."""
    found = results({("a", "x"): [0.5], ("a", "y"): [0.5], ("b", "x"): [0.5, 0.5], ("b", "y"): [0.5, 0.5]})
    whys = {"ax1": "no memory in rule a, attack x, seed 1", "ay1": "no memory in rule a, attack y, seed 1"}
    outcomes = [each._replace(error=whys.get(each.id, "")) for each in found.outcomes]
    left_out = [LeftOut({"rule": "c", "attack": "x", "seed": str(i)}, "too few") for i in range(2)]
    page = sweep_page(Results("test", found.axes, found.measure, outcomes, left_out), [], toml="", info={})
    top, rest = page.split("<h2>Results</h2>")
    assert "2 runs failed and are in no mean" in top
    assert "2 more combinations cannot run" in top
    assert "no memory" not in top
    assert rest.count("no memory in the run") == 1
    assert "rule a, attack x, seed 1; rule a, attack y, seed 1" in rest
    assert rest.count("too few") == 1
    assert "rule c, attack x, seed 0; rule c, attack x, seed 1" in rest


def test_a_name_that_is_part_of_a_longer_name_or_number_stays_in_a_text() -> None:
    assert grouped([("seed 1", "expected at most seed 10")]) == [("expected at most seed 10", ["seed 1"])]
    assert grouped([("alpha 0", "alpha 0.5 in alpha 0.")]) == [("alpha 0.5 in the run.", ["alpha 0"])]


@pytest.mark.parametrize(("better", "worst", "best"), [(LOWER, ["x", "y"], 0.1), (HIGHER, ["y", "x"], 2.0)])
def test_the_worst_of_a_metric_of_your_own_follows_its_direction(better: str, worst: list[str], best: float) -> None:
    values = {("a", "x"): [2.0, 2.0], ("a", "y"): [1.0, 1.0], ("b", "x"): [1.0, 1.0], ("b", "y"): [3.0, 3.0]}
    found = results(values, Measure("rmse", better))
    assert [entry.attack for entry in found.worst] == worst
    assert found.cells[0].best == best
    assert found.to_json()["better"] == better


def compared_in(task: dict[str, Any], **keys: str) -> Measure:
    tables = {"experiment": {**SMALL, "byzantine": 0, "task": task}, "grid": {"seed": [0]}, **keys}
    return folder.checked(from_mapping(tables)).measure


def test_a_sweep_must_say_the_direction_of_a_metric_of_your_own() -> None:
    own = {"metrics": ["reg:rmse", "r2"]}
    for keys in ({}, {"measure": "rmse"}):
        with pytest.raises(ConfigError, match=r'better: rmse is a metric of your own.* set better = "lower"'):
            compared_in(own, **keys)
        assert compared_in(own, **keys, better="lower") == Measure("rmse", LOWER)
    assert compared_in(own, measure="r2").better == HIGHER
    with pytest.raises(ConfigError, match="better: higher r2 is better, got 'lower'"):
        compared_in(own, measure="r2", better="lower")
    with pytest.raises(ConfigError, match="mine:accuracy has the name of another measure, 'accuracy'"):
        compared_in({"metrics": ["mine:accuracy"]}, better="lower")


def test_the_measure_is_by_default_the_first_metric_of_the_task() -> None:
    assert compared_in({}) == KNOWN["accuracy"]
    assert compared_in({"metrics": ["mean-absolute-error", "r2"]}).lower_is_better
    assert compared_in({"metrics": []}).name == "loss"
    assert (compared_in({}, measure="loss").least, compared_in({"loss": "my:own"}, measure="loss").least) == (0, -inf)
    with pytest.raises(ConfigError, match="measure: expected one of r2, loss; 'accuracy' is not measured in the run"):
        compared_in({"metrics": ["r2"]}, measure="accuracy")
    task = {"several": {"task.metrics": ["r2", "f1"]}, "one": {"task.metrics": ["f1"]}}
    several = {"experiment": {**SMALL, "byzantine": 0}, "variants": {"task": task}}
    with pytest.raises(ConfigError, match="expected one of f1, loss; 'r2' is not measured in the run task one"):
        folder.checked(from_mapping(several))
    assert folder.checked(from_mapping({**several, "measure": "f1"})).measure == KNOWN["f1"]


def test_what_records_measure_can_be_compared_and_the_worst_backdoor_succeeds_most() -> None:
    backdoor = {"byzantine": 2, "attack.name": "backdoor"}
    for measure, changes in (
        ("backdoor success", backdoor),
        ("worst class", {"task.per_class": True}),
        ("worst client", {"task.per_client": True}),
    ):
        asked = {"experiment": {**SMALL, "byzantine": 0}, "grid": {"seed": [0]}, "measure": measure}
        with pytest.raises(ConfigError, match="measure: expected one of"):
            folder.checked(from_mapping(asked))
        assert folder.checked(from_mapping({**asked, "variants": {"what": {"it": changes}}})).possible
    attacks = {("a", "x"): [0.2, 0.2], ("a", "y"): [0.9, 0.9], ("b", "x"): [0.5, 0.5], ("b", "y"): [0.1, 0.1]}
    assert [entry.attack for entry in results(attacks, "backdoor success").worst] == ["y", "x"]


@pytest.mark.parametrize(
    ("measure", "low", "high"),
    [
        (KNOWN["accuracy"], 0.0, 1.0),
        (KNOWN["backdoor success"], 0.0, 1.0),
        (KNOWN["mean-absolute-error"], 0.0, 0.5 + 12.706 * 0.4),
        (KNOWN["r2"], 0.5 - 12.706 * 0.4, 1.0),
        (Measure("rmse", LOWER), 0.5 - 12.706 * 0.4, 0.5 + 12.706 * 0.4),
    ],
    ids=str,
)
def test_an_interval_ends_where_the_values_of_its_measure_do(measure: Measure, low: float, high: float) -> None:
    values = [0.1, 0.9]
    found = results(dict.fromkeys([("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")], values), measure)
    for table in (found.table_csv(), found.worst_csv()):
        row = next(csv.DictReader(table.splitlines()))
        assert (float(row["mean"]), float(row["low"]), float(row["high"])) == pytest.approx((0.5, low, high))
    answer = found.to_json()
    assert [*answer["cells"][0]["curve"][1][1:]] == pytest.approx([0.5, low, high])
    assert answer["worst"][0]["mean"]["half"] == pytest.approx(12.706 * 0.4)


@pytest.mark.parametrize(("n", "t"), [(2, 12.706), (3, 4.303), (31, 2.042), (61, 2.000), (1001, 1.962)])
def test_intervals_are_those_of_student(n: int, t: float) -> None:
    """The points are those of printed tables of Student's t."""
    values = [0.0, 1.0] * (n // 2) + [0.5] * (n % 2)
    spread = (sum((value - 0.5) ** 2 for value in values) / (n - 1)) ** 0.5
    high = mean_of(values).high
    assert high is not None
    assert (high - 0.5) / spread * n**0.5 == pytest.approx(t, abs=6e-4)

"""`share reproduce`: the list of panels, slices that give the same bits, and what stands in the table."""

import csv
import json
from pathlib import Path

import pytest

from fl.cli import main
from fl.config.read import read_tables
from fl.config.schema import to_tables
from fl.errors import ConfigError
from fl.reporting.records import recorded
from fl.reproduction.compare import UNEXPLAINED, compare, explanation, table
from fl.reproduction.explained import EXPLAINED
from fl.reproduction.measured import Measured, joined, measured
from fl.reproduction.page import NAMES, page, write_all
from fl.reproduction.panels import PANELS, Curve, chosen, every_curve
from fl.reproduction.published import published
from fl.reproduction.roles import MAIN, role
from fl.reproduction.run import Budget, train_curves
from fl.reproduction.safety import cells, prices, safe_curve

DOCS = Path(__file__).parents[2] / "docs"
SMALL = [
    *("data.name=digits", "data.examples=600", "data.test_examples=60", "model=linear", "local.epochs=1"),
    *("machine.workers=0", "secure=false"),
]
SET = [part for setting in SMALL[:-1] for part in ("--set", setting)]


def test_every_panel_names_experiments_and_published_curves_that_exist() -> None:
    for curve in every_curve().values():
        tables = read_tables(curve.file)
        assert curve.curve is None or curve.curve in tables["curves"], curve.name
        assert curve.published == "" or curve.published in published(), curve.name
    drawn = {curve.published for curve in every_curve().values()}
    assert drawn == {"", *published()} - {"LF-nodef-q12-s1"}, "a published curve has no panel"
    assert len({panel.name for panel in PANELS}) == len(PANELS)


def test_published_curves_have_the_numbers_of_the_papers_tables() -> None:
    """Final accuracies that the table in docs/experiments.md has, from the last round of the file."""
    found = {name: points[-1] for name, points in published().items()}
    assert found["LF-zeno-m3"] == (200, 0.6939)
    assert found["FoE10-krum-m10"] == (200, 0.1)
    assert found["SH10-zeno-m3"][0] == 50
    assert all(0 <= value <= 1 for points in published().values() for _, value in points)
    assert all(points[99][0] == 100 for points in published().values() if len(points) > 99)


@pytest.mark.parametrize("curve", [curve for curve in every_curve().values() if curve.safe], ids=lambda c: c.name)
def test_a_safe_curve_enforces_the_audit_in_fixed_clusters(curve: Curve) -> None:
    e = curve.experiment()
    assert (e.privacy.audit, e.privacy.memory) == ("enforce", "training")
    assert (e.clusters.schedule, e.clusters.groups, e.clusters.groupings) == ("fixed", "whole", 1)


def test_unknown_names_and_times_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean label-flip-zeno"):
        chosen(["label-flip-zena"])
    for wrong in (["--time", "150"], ["--rounds", "0"], ["--only-write"]):
        assert main(["reproduce", "label-flip-zeno-m3", "--out", str(tmp_path), *wrong]) == 2
    assert "such as 150m" in capsys.readouterr().err


def test_without_a_name_the_panels_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(PANELS) + 1
    assert main(["reproduce", "--json"]) == 0
    assert [entry["panel"] for entry in json.loads(capsys.readouterr().out)] == [panel.name for panel in PANELS]


def test_a_colour_has_one_meaning_in_all_panels() -> None:
    """What a name ends in decides the colour: here the experiments themselves say whether the name is right."""
    for panel in PANELS:
        colours = [role(curve)[0] for curve in panel.curves]
        assert len(set(colours)) == len(colours), panel.name
    for curve in every_curve().values():
        e, (colour, meaning) = curve.experiment(), role(curve)
        fixed = e.method == "share" and e.clusters.schedule == "fixed"
        assert (colour == "c1") == fixed, curve.name
        assert (colour == "c2") == (e.method == "fedavg" and e.byzantine > 0), curve.name
        assert (colour == "c3") == (e.method == "fedavg" and not e.byzantine), curve.name
        assert (colour == "c6") == (e.method == "no-share"), curve.name
        assert (colour == "c7") == (e.method == "share" and e.clusters.groupings == 1 and not fixed), curve.name
        if meaning == MAIN:
            assert (e.method, e.clusters.groupings) == ("share", 10), curve.name
    assert len(dict(map(role, every_curve().values()))) == len(set(map(role, every_curve().values()))) == 8


def test_the_page_explains_colours_and_every_part_of_a_name() -> None:
    runs = {name: Measured(2, ((1, 0.2), (2, 0.3)), (), True, 60, 0, "2 rounds") for name in every_curve()}
    text = page(PANELS, runs, table(PANELS, runs))
    for colour, meaning in set(map(role, every_curve().values())):
        assert f'<span><i class="{colour}"></i>{meaning}</span>' in text
    told = {part for names, _ in NAMES for part in names.split(", ")}
    assert all(f"<dt>{names}</dt>" in text for names, _ in NAMES)
    known = {"label", "flip", "zeno", "krum", "trimmed", "mean", "median", "shakespeare", "sign", "reclustering"}
    known |= {"a", "b", "c", "1", "5", "labels", "minus", "no", "defence", "attack"}  # words, panels and "beta-1"
    parts = {part for name in every_curve() for part in name.split("-")}
    assert parts - known <= told
    theirs = {part for name in {curve.published for curve in every_curve().values()} - {""} for part in name.split("-")}
    rules_of_theirs = {"zeno", "krum", "trmean", "median", "IID", "is", "nodef", "noattack"}
    assert theirs - rules_of_theirs <= told


def test_slices_end_in_the_bits_of_one_run(tmp_path: Path) -> None:
    """New clusters in every round, for which a run keeps the number of rounds that it began with."""
    curves = chosen(["label-flip-krum-m10"])
    assert not train_curves(curves, tmp_path / "none", rounds=2, settings=SMALL, budget=Budget(0.0))
    assert not (tmp_path / "none").exists()
    assert train_curves(curves, tmp_path / "once", rounds=2, settings=SMALL)
    for rounds in (1, 2, 2):
        assert train_curves(curves, tmp_path / "sliced", rounds=rounds, settings=SMALL)
    with pytest.raises(ConfigError, match=r"sliced.* was trained with other settings: local.lr changed"):
        train_curves(curves, tmp_path / "sliced", rounds=2, settings=[*SMALL, "local.lr=5.0"])
    for curve in curves:
        once, sliced = (tmp_path / name / curve.name for name in ("once", "sliced"))
        assert (once / "model.safetensors").read_bytes() == (sliced / "model.safetensors").read_bytes()
        assert len(recorded(sliced).rounds) == 2


def test_a_budget_that_runs_out_stops_after_a_round_and_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Budget, "left", lambda self, needed: needed == 0.0)
    command = ["reproduce", "label-flip-no-defence", "--rounds", "2", "--time", "150m", "--out", str(tmp_path), *SET]
    assert main(command) == 1
    shown = capsys.readouterr()
    assert "the same command continues" in shown.out
    assert "round 1/2  " in shown.err, "the rounds that were asked for, not the paper's 200"
    assert len(recorded(tmp_path / "label-flip-no-defence").rounds) == 1


def test_the_page_and_the_tables_have_every_trained_curve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["label-flip-zeno-safe", "label-flip-no-defence"]
    assert main(["reproduce", *names, "--rounds", "1", "--out", str(tmp_path), *SET, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["curve"] for row in rows] == names
    assert [row["explanation"][:14] for row in rows] == ["other settings"] * 2, "the digits are not the paper's data"
    assert recorded(tmp_path / names[0]).summary["exposed"] == []
    page = (tmp_path / "reproduction.html").read_text()
    assert all(name in page for name in names)
    assert "LF-nodef-q12" not in page
    assert (tmp_path / "label-flip-zeno.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "reproduction.csv").open() as file:
        assert [row["curve"] for row in csv.DictReader(file)] == names


def test_curves_of_two_folders_are_joined_and_the_longer_one_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What one machine has measured stands on the page of another one, without its runs."""
    one, other, curves = tmp_path / "one", tmp_path / "other", ["label-flip-no-defence", "no-attack"]
    assert main(["reproduce", *curves, "--rounds", "2", "--out", str(one), *SET]) == 0
    assert main(["reproduce", curves[0], "--rounds", "1", "--out", str(other), *SET]) == 0
    assert [entry["rounds"] for entry in json.loads((other / "reproduction.json").read_text())] == [1]
    join = ["--only-write", "--join", str(one / "reproduction.json")]
    assert main(["reproduce", "--out", str(other), *join]) == 0
    for name in ("reproduction.json", "reproduction.md", "reproduction.csv"):
        assert (other / name).read_bytes() == (one / name).read_bytes()
    assert main(["reproduce", "--out", str(tmp_path / "new"), *join]) == 0, "a page needs no run of its own"
    assert main(["reproduce", curves[1], "--out", str(tmp_path / "new"), *join]) == 0
    assert [entry["curve"] for entry in json.loads((tmp_path / "new/reproduction.json").read_text())] == curves[1:]
    assert main(["reproduce", "nope", "--out", str(tmp_path / "new"), *join]) == 2
    for text in ("{}", "[3]", '[{"curve": "no-attack"}]', "no JSON"):
        (tmp_path / "wrong.json").write_text(text)
        capsys.readouterr()
        code = main(["reproduce", "--only-write", "--out", str(tmp_path / "x"), "--join", str(tmp_path / "wrong.json")])
        assert code == 2, text
        assert "that `share reproduce` wrote" in capsys.readouterr().err


def test_a_row_compares_the_last_common_round_and_names_the_largest_difference(tmp_path: Path) -> None:
    curve = every_curve()["label-flip-no-defence"]
    train_curves([curve], tmp_path, rounds=1, settings=SMALL)
    run = recorded(tmp_path / curve.name)
    theirs = dict(published()["LF-nodef-q12"])
    shift = {1: 0.01, 2: -0.03, 3: 0.0}
    rounds = [{**run.rounds[0], "round": i, "accuracy": theirs[i] + shift[i]} for i in shift]
    paper = curve.experiment(["secure=false"])
    row = compare("p", curve, measured(curve, type(run)(run.folder, paper, run.info, rounds, {})))
    assert (row.compared, row.largest_round) == (3, 2)
    assert row.difference == pytest.approx(0.0)
    assert row.largest == pytest.approx(-0.03)
    assert row.mean == pytest.approx(-0.02 / 3)
    other = curve.experiment(["secure=false", "privacy.clip=8.0"])
    row = compare("p", curve, measured(curve, type(run)(run.folder, other, run.info, rounds, {})))
    assert (row.compared, row.explanation) == (3, "other settings than the paper's (privacy)")


def test_an_explanation_stands_only_for_the_rounds_that_it_is_about() -> None:
    close = "within 2 points in every round"
    unknown = Curve("unknown", "digits")
    assert explanation(unknown, {1: 0.02, 2: -0.02}) == close
    assert explanation(unknown, {1: 0.01, 2: -0.03}) == f"{UNEXPLAINED} in round 2"
    assert explanation(unknown._replace(note="another file"), {1: 0.5}) == "another file"
    for name, known in EXPLAINED.items():
        curve, last = every_curve()[name], known.rounds[-1]
        assert explanation(curve, {1: 0.0, last: 0.01}) == close
        assert explanation(curve, {last: -0.03, last + 1: 0.01}) == known.why
        assert explanation(curve, {last + 1: 0.03, last + 2: 0.3}) == (
            f"{UNEXPLAINED} in rounds {last + 1}, {last + 2}"
        )
        both = explanation(curve, {last: 0.03, last + 1: 0.03})
        assert both == f"{known.why}; {UNEXPLAINED} in round {last + 1}"


def test_two_seeds_of_the_authors_differ_as_the_explanation_says() -> None:
    first, second = (dict(published()[name]) for name in ("LF-nodef-q12", "LF-nodef-q12-s1"))
    apart = {number: abs(first[number] - second[number]) for number in range(1, 11)}
    assert (max(apart, key=apart.__getitem__), f"{100 * max(apart.values()):.1f}") == (5, "3.6")
    assert "differ by 3.6 points in round 5" in EXPLAINED["label-flip-no-defence"].why


def run_of(points: dict[int, float], exposed: int | None) -> Measured:
    return Measured(len(points), tuple(points.items()), (), True, 60, exposed, "")


def test_the_price_of_safety_compares_rounds_that_both_curves_have() -> None:
    main = run_of({1: 0.2, 2: 0.3, 3: 0.4, 4: 0.5}, 60)
    runs = {"foe-krum-m3": main, "foe-krum-safe": run_of({1: 0.1, 2: 0.35, 3: 0.39}, 0), "foe-zeno-m3": main}
    (row,) = prices(PANELS, runs)
    assert (row.panel, row.main, row.safe, row.rounds) == ("foe-krum", "foe-krum-m3", "foe-krum-safe", 3)
    assert (row.main_accuracy, row.safe_accuracy) == (0.4, 0.39)
    assert (row.difference, row.largest, row.mean) == pytest.approx((-0.01, -0.1, -0.02))
    assert cells(row) == ["foe-krum", "3", "40.0%", "39.0%", "-1.0", "-2.0", "-10.0 (round 1)", "60 of 60", "none"]
    runs["foe-krum-safe"] = run_of({5: 0.3}, None)
    assert prices(PANELS, runs) == [], "no round in common"
    runs["foe-krum-safe"] = run_of({4: 0.3}, None)
    assert cells(prices(PANELS, runs)[0])[-1] == "not computed"


def test_every_panel_has_a_safe_curve() -> None:
    """And it differs from the main one only in what is protected, but for one curve as the authors ran it."""
    for panel in PANELS:
        safe = safe_curve(panel)
        assert safe is not None, panel.name
        one, other = (to_tables(curve.experiment()) for curve in (panel.curves[0], safe))
        apart = {name for name in one if one[name] != other[name]}
        authors = {"aggregation"} if panel.name == "fixed-or-reclustering-zeno" else set()
        assert apart == {"name", "clusters", "privacy"} | authors, panel.name


def test_exposure_counts_all_rounds_together(tmp_path: Path) -> None:
    """Six different clusterings expose clients together, also where none of them does so alone."""
    curve = every_curve()["reclustering-krum-R1"]
    train_curves([curve], tmp_path, rounds=6, settings=SMALL)
    run = recorded(tmp_path / curve.name)
    assert run.summary["exposed"] == []
    found = measured(curve, run)
    assert (found.clients, found.exposed) == (50, run.summary["exposed_over_training"])
    assert found.exposed


def test_the_pages_tables_are_those_of_the_committed_curves(tmp_path: Path) -> None:
    """The tables in docs/experiments.md follow from the accuracies in docs/reproduction, and so do the files there."""
    page, place = (DOCS / "experiments.md").read_text("utf-8"), DOCS / "reproduction"
    write_all(PANELS, joined(every_curve().values(), tmp_path, [place / "reproduction.json"]), tmp_path)
    for name in ("reproduction", "safety"):
        table = page.partition(f"<!-- {name} -->\n")[2].partition("<!-- end -->")[0]
        assert table == (tmp_path / f"{name}.md").read_text("utf-8"), name
    for path in tmp_path.iterdir():
        if path.suffix != ".png":  # other versions of matplotlib draw other bytes
            assert path.read_bytes() == (place / path.name).read_bytes(), path.name
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in place.iterdir()}

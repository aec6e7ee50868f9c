"""A report is one self-contained file, shows what was recorded, and works in a real browser."""

import errno
import io
import math
import os
import re
import shutil
from dataclasses import replace
from itertools import combinations, pairwise, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fl
from fl.errors import RecordError
from fl.reporting import charts, detail, measures, picture, privacy, report, sections
from fl.reporting.banner import banner, seen
from fl.reporting.measures import describe_summary
from fl.reporting.progress import LiveProgress, describe_round, sparkline
from fl.reporting.records import Folder, Recorded, recorded
from fl.reporting.report import read_reference
from fl.training.loop import run
from tests.fl.colours import distance
from tests.fl.runs import tiny

ATTACKED = {
    "clients": 24,
    "byzantine": 2,
    "rounds": 3,
    "attack": {"name": "sign_flip", "options": {"scale": 10.0}, "protocol": "wrong-shares"},
    "aggregation": {"rule": "multi_krum"},
    "dropout": {"schedule": [{"round": 2, "clients": [3]}]},
    "clusters": {"groups": "survivors", "schedule": "random"},
    "privacy": {"memory": "round"},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("runs")
    runs = {
        "share": tiny(name="<b>SHARE</b> & co", secure=True, **ATTACKED),
        "fedavg": tiny(name="FedAvg", method="fedavg", **{**ATTACKED, "secure": True}),
        "exposed": tiny(
            name="exposing",
            clusters={"groupings": 8, "schedule": "random"},
            privacy={"audit": "report-even-if-exposed", "memory": "round"},
            rounds=2,
        ),
    }
    for name, e in runs.items():
        with Folder.create(place / name, e) as folder:
            run(e, folder=folder)
    return [place / name for name in runs]


@pytest.fixture(scope="module")
def page(folders: list[Path]) -> str:
    report.report(folders, folders[0].parent / "report.html", picture=folders[0].parent / "report.png")
    return (folders[0].parent / "report.html").read_text("utf-8")


def test_the_page_is_self_contained(page: str) -> None:
    assert not re.findall(r"<script|<link|<img|<iframe|@import|url\(|https?://", page)
    assert "default-src 'none'" in page


def test_names_are_escaped(page: str) -> None:
    assert "<b>SHARE</b>" not in page
    assert "&lt;b&gt;SHARE&lt;/b&gt; &amp; co" in page


def test_the_page_shows_what_was_recorded(page: str, folders: list[Path]) -> None:
    for folder in folders:
        found = recorded(folder)
        assert f"{found.rounds[-1]['accuracy']:.1%}" in page
    assert "12 of 12 clients were exposed" in page
    assert "Caught cheating in the protocol" in page
    assert "Left out because of earlier rounds" in page
    assert "gave a wrong share" in page
    assert "kept closed by the audit" in page
    assert "poisoned, filtered out" in page
    assert "cluster 1</text>" in page  # rows have names
    assert "grouping 8</text>" in page


def test_one_banner_says_who_was_exposed_and_names_the_runs(page: str, folders: list[Path]) -> None:
    top = page[: page.index("<h2>")]
    assert top.count('class="banner') == 1
    assert 'class="banner warn"' in top
    assert "exposing: 12 of 12 clients were exposed" in top
    assert "if no update had changed over the last rounds" in top  # SHARE draws new clusters in every round
    several = [recorded(folders[2])] * 5 + [recorded(folders[0])]
    text = report.html(several)
    assert text[: text.index("<h2>")].count('class="banner') == 1
    assert "5 of 6 runs, such as exposing: up to 12 of 12 clients were exposed" in text
    assert text.count('<details class="run">') == 6  # sections of many runs are closed
    assert page.count('<details class="run">') == 0


HEAD = r"<th(?: [^>]*)?>(.*?)</th>"
PLAIN = {"run", "client", "evidence", "reason", "really an attacker", "stage", "times"}  # heads that say it themselves
ALIAS = sections.COLUMNS | {"over all rounds": "exposed"}


def test_every_column_and_every_term_of_a_section_has_a_line_of_help(page: str) -> None:
    told = set(re.findall(r"<dt>(.*?)</dt>", page))
    above = page[: page.index("Where the runs differ")]  # below are names of runs
    heads = set(re.findall(HEAD, above))
    assert {"accuracy", "over all rounds", "rounds", "ms per client", "evidence", "reason"} <= heads
    assert {head for head in heads - PLAIN if ALIAS.get(head, head) not in told} == set()
    kinds = {"m", "R", "fixed", "random", "whole", "survivors"} - {"fixed"}  # no run has fixed clusters
    assert kinds | {"exact", "REPORT ONLY", "leverage", "T", "cluster"} <= told
    legends = re.findall(r'<span><i class="p\d"></i>(.*?): ', page)
    assert set(legends) > {name for _, name, _ in sections.PHASES}
    assert set(legends) <= told
    assert page.count("<dt>exposed</dt>") > 1
    for stage in ("keys", "shares", "inputs", "consistency", "unmasking"):
        assert f"<dt>{stage}</dt>" in page


def test_a_word_within_another_word_of_the_audit_has_no_line_of_help(folders: list[Path]) -> None:
    """A sentence that ends in "exactly" says nothing about T."""
    found = recorded(folders[0])
    last = {**found.rounds[-1], "exposure": {**found.rounds[-1]["exposure"], "sentences": ["learns 3 updates exactly"]}}
    assert "<dt>exact</dt>" not in report.html([replace(found, rounds=[last])])


def test_one_number_has_one_name(page: str, folders: list[Path]) -> None:
    """Exposed in a round is not exposed over the training, and parts of a round are not all of it."""
    assert "share of clients exposed in a round: " in page
    assert re.search(r"parts of a round that takes [0-9.]+ s: [0-9.]+ s", page)
    text = report.html([recorded(folders[0]), recorded(folders[1])])
    assert "Both runs: " in text
    assert "All 2 runs" not in text
    clear = report.html([recorded(folders[2])])
    assert "0 B" not in clear
    assert "<span>per client and round</span><b>-</b><small>nothing was sent</small>" in clear
    heads = re.findall(HEAD, clear)
    assert heads.index("over all rounds") < heads.index("last 10")
    row = re.findall(r"<td[^>]*>(.*?)</td>", clear[clear.index("<tbody>") :])
    assert row[heads.index("traffic")] == "-"


def test_a_report_of_many_runs_says_which_run_has_which_settings(folders: list[Path]) -> None:
    """The names of a sweep's runs say it; other names need not."""
    found = [recorded(folder) for folder in folders]
    many = [replace(found[i % 3], label=f"run {i}") for i in range(9)]
    table = sections._differences(many)
    assert [row[0] for row in table.rows] == [run.name for run in many]
    sizes = [str(run.experiment.clusters.groupings) for run in many]
    assert [row[list(table.heads).index("clusters.groupings")] for row in table.rows] == sizes
    compared = sections._comparison(many, sections.main_curves(many))
    assert all(row[0].detail for row in compared.rows)
    swept = [replace(run, folder=Path(f"rule=krum,seed={i}")) for i, run in enumerate(many)]
    mixed = [many[0], *swept[1:]]
    assert list(sections._differences(mixed).heads) == list(table.heads)
    assert not sections._differences([replace(found[0], label=f"run {i}") for i in range(9)]).rows
    assert sections._differences(swept).heads == ["key", "values"]
    assert not any(row[0].detail for row in sections._comparison(swept, sections.main_curves(swept)).rows)


def test_what_all_names_of_many_runs_share_stands_once(folders: list[Path]) -> None:
    found = recorded(folders[2])
    many = [replace(found, label=f"rule mean, attack {i}, seed 0") for i in range(9)]
    text = report.html(many)
    assert '"></i>attack 3<' in text
    assert "rule mean; seed 0.</p>" in text
    few = report.html(many[:2])
    assert '"></i>rule mean, attack 1, seed 0<' in few
    same = report.html([replace(found, label="rule mean, seed 0")] * 9)
    assert '"></i>rule mean, seed 0<' in same


def test_a_dashed_curve_has_a_dashed_mark_and_notes_of_a_run_are_one_quiet_box(folders: list[Path]) -> None:
    curves = [charts.Line("ours", [(1, 0.5)], "c0"), charts.Line("theirs", [(1, 0.4)], "c0", dashed=True)]
    assert charts.legend_of(curves) == [("c0", "ours: 50.00%"), ("c0 dashed", "theirs: 40.00%")]
    found = recorded(folders[0])
    cut = [{**record, "clipped": 0.02, "attack_clipped": 0.3} for record in found.rounds]
    text = report.html([type(found)(found.folder, found.experiment, found.info, cut, {})])
    below = text[text.index("Clipped coordinates: up to 2.0%") - 200 :]
    assert below.index('class="banner note"') < below.index("Clipped coordinates of attackers: up to 30.0% in a round")
    assert 'class="banner warn"' not in below[: below.index("</div>")]


TOGETHER = [  # colours of one chart
    [f"c{i}" for i in range(8)],  # all eight in the panels of the paper's figures
    [*measures.OUTCOMES],
    ["most", "exposed"],
    [colour for _, _, colour in privacy.FIGURES],
    [colour for _, _, colour in sections.PHASES],
]


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_no_two_meanings_have_colours_that_look_alike(mode: int) -> None:
    """All may stand on one page. In one chart, colour-blind readers can tell them apart too."""
    shown = {name: colours[mode] for name, colours in charts.COLOURS.items()}
    near = {pair: distance(shown[pair[0]], shown[pair[1]]) for pair in combinations(shown, 2)}
    assert {pair: far for pair, far in near.items() if far < 20} == {}
    for reader, group in product(("protanopia", "deuteranopia"), TOGETHER):
        blind = {pair: distance(shown[pair[0]], shown[pair[1]], reader) for pair in combinations(group, 2)}
        assert {pair: far for pair, far in blind.items() if far < 13} == {}, reader


def test_a_distance_of_colours_is_that_of_cie_1976() -> None:
    assert distance("#000000", "#ffffff") == pytest.approx(100, abs=0.01)
    assert distance("#ff0000", "#00ff00") == pytest.approx(170.58, abs=0.05)
    assert distance("#26384f", "#475569") == pytest.approx(13.0, abs=0.1)
    assert distance("#cc3333", "#339933", "deuteranopia") < distance("#cc3333", "#339933") / 2


def test_every_meaning_has_a_colour() -> None:
    used = {"used", "wasted", "poisoned", "caught", "closed", "lost"}
    assert used == set(measures.OUTCOMES)
    assert {colour for _, _, colour in sections.PHASES} == {f"p{i}" for i in range(5)}
    assert {charts.curve_colour(i) for i in range(20)} == {f"c{i}" for i in range(7)}


def test_many_runs_share_few_colours_and_one_legend(folders: list[Path]) -> None:
    found = [recorded(folder) for folder in folders]
    many = [found[i % 3] for i in range(24)]
    curves = sections.main_curves(many)
    legend = sections.curve_legend(many, curves)
    assert legend == [("c0", "rule multi_krum"), ("c1", "rule median")]
    assert [curve.colour for curve in curves[:3]] == ["c0", "c0", "c1"]
    assert len(sections.curve_legend(found, sections.main_curves(found))) == 3


def test_a_run_without_rounds_does_not_stop_the_report_of_others(folders: list[Path], tmp_path: Path) -> None:
    Folder.create(tmp_path / "new", tiny()).close()
    assert len(report.report([folders[2], tmp_path / "new"], tmp_path / "r.html")) == 1
    assert "1 more without a round yet" in (tmp_path / "r.html").read_text("utf-8")


def test_every_cluster_of_every_round_is_a_square_with_its_clients(page: str, folders: list[Path]) -> None:
    found = recorded(folders[0])
    for record in found.rounds:
        for cluster in record["clusters"]:
            who = ", ".join(map(str, cluster["members"]))
            assert f"round {record['round']}: " in page
            assert f"Clients {who}" in page


def test_only_a_run_that_is_safe_over_all_rounds_has_a_green_banner(folders: list[Path], tmp_path: Path) -> None:
    e = tiny(name="safe", secure=True)
    with Folder.create(tmp_path / "safe", e) as folder:
        run(e, folder=folder)
    text = report.html([recorded(tmp_path / "safe")])
    assert '<div class="banner fine"><p>No client was exposed, in a round or over all rounds' in text
    assert "banner warn" not in text
    random = report.html([recorded(folders[0])])
    assert "banner fine" not in random
    assert "no client was exposed, but if no update had changed over the last rounds" in random


def cluster(bad: int, kept: float | None, state: str = "opened") -> dict[str, object]:
    return {"bad": bad, "kept": kept, "state": state, "members": [1, 2, 3], "cell": 0, "grouping": 0, "cluster": 0}


@pytest.mark.parametrize(
    ("entry", "colour"),
    [
        (cluster(0, 1.0), "used"),
        (cluster(0, None), "used"),
        (cluster(0, 0.0), "wasted"),
        (cluster(2, 0.0), "caught"),
        (cluster(2, 0.49), "caught"),
        (cluster(2, 0.5), "poisoned"),
        (cluster(2, None), "poisoned"),
        (cluster(0, None, "closed"), "closed"),
        (cluster(1, None, "lost"), "lost"),
    ],
)
def test_the_outcome_of_a_cluster(entry: dict[str, object], colour: str) -> None:
    assert measures.outcome(entry) == colour


def test_leverage_grows_over_rounds_if_updates_stay_the_same(folders: list[Path]) -> None:
    found = recorded(folders[0])
    alone = Recorded(found.folder, found.experiment, found.info, found.rounds[:1], {})
    assert measures.leverage_if_unchanged(alone) == pytest.approx(1 / 3, abs=0.01)
    together = measures.leverage_if_unchanged(found)
    assert together is not None
    assert together > 0.6
    facts = measures.summarise(found.experiment, found.rounds)
    quiet = {**facts, "exposed": [], "exposed_over_training": 0, "closed": "", "clipped": 0, "skipped_rounds": []}
    top = banner([seen("run", found.experiment, quiet, together)])
    assert top.level == "warn"  # no green zero above "would explain 100%"
    assert f"would explain {together:.0%}" in top.sentences[0]
    assert banner([seen("run", found.experiment, quiet, 0.2)]).level == "fine"


def test_many_clusters_become_columns(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sections, "MOST_SQUARES", 3)
    text = report.html([recorded(folders[0])])
    assert "8 clean, used" in text or re.search(r"round 1: \d+ clean, used", text)


def test_a_published_curve_is_shown_beside_the_run(folders: list[Path], tmp_path: Path) -> None:
    csv = tmp_path / "curves.csv"
    csv.write_text("curve_id,round,test_acc\nA,1,0.25\nA,2,0.5\nB,1,0.1\nA,99,0.9\n")
    reference = read_reference(csv, "A")
    assert reference.points == ((1.0, 0.25), (2.0, 0.5), (99.0, 0.9))
    text = report.html([recorded(folders[0])], [reference])
    assert "A, round 2: 50.00%" in text
    assert "round 99" not in text  # after the last round of the run
    with pytest.raises(RecordError, match="no curve"):
        read_reference(csv, "C")
    csv.write_text("a,b\n1,2\n")
    with pytest.raises(RecordError):
        read_reference(csv, "A")
    with pytest.raises(RecordError):
        read_reference(tmp_path / "none.csv", "A")


def test_a_run_without_rounds_is_refused(tmp_path: Path) -> None:
    Folder.create(tmp_path / "new", tiny()).close()
    with pytest.raises(RecordError, match="no round"):
        report.report([tmp_path / "new"], tmp_path / "r.html")


def test_runs_of_one_name_are_told_apart_by_their_folders(folders: list[Path], tmp_path: Path) -> None:
    places = [tmp_path / "a" / "run", tmp_path / "b" / "run", tmp_path / "c"]
    for place in places:
        shutil.copytree(folders[2], place)
    runs = report.report([*places, folders[1], places[0]], tmp_path / "r.html", picture=tmp_path / "r.png")
    names = ["exposing (a/run)", "exposing (b/run)", "exposing (c)", "FedAvg"]
    assert [run.name for run in runs] == names  # the one that was given twice is there once
    text = (tmp_path / "r.html").read_text("utf-8")
    for name in names:
        assert f"<summary>{name} <span>" in text
        assert f"{name}: " in text[text.index('class="legend"') : text.index("What the columns below mean")]
    assert "name = &#34;exposing&#34;" in text  # the configuration is as it was
    assert [run.name for run in report.report(folders, tmp_path / "r.html")] == [recorded(f).name for f in folders]


def test_a_run_with_a_cut_record_is_refused(folders: list[Path], tmp_path: Path) -> None:
    shutil.copytree(folders[0], tmp_path / "run")
    records = tmp_path / "run" / "rounds.jsonl"
    records.write_bytes(b"".join(records.read_bytes().splitlines(keepends=True)[:2]))
    with pytest.raises(RecordError, match=r"has 2 of the 3 rounds that checkpoint.json counts: put the recorded file"):
        report.report([tmp_path / "run"], tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


def test_the_picture_is_a_png(page: str, folders: list[Path]) -> None:
    content = (folders[0].parent / "report.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 20_000


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 0.3), (1, 200), (0, 1234), (3, 4), (0, 1e-6)])
def test_ticks_cover_the_range_with_few_round_numbers(low: float, high: float) -> None:
    marks = charts.ticks(low, high)
    assert marks[0] <= low
    assert marks[-1] >= high * 0.999
    assert 2 <= len(marks) <= 9


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9), st.sampled_from([1e-6, 1.0]), st.sampled_from([0, 1e5]))
def test_the_marks_of_an_axis_are_apart_cover_all_values_and_are_inside(
    values: list[float], unit: float, more: float
) -> None:
    found = [value * unit + more for value in values]
    scale = charts.scale_of(found)
    close = 1e-6 * max(map(abs, found))
    assert scale.low <= min(found) + close
    assert scale.high >= max(found) - close
    chart = charts.lines([charts.Line("a", list(enumerate(found)), "c0")], y_label="a", scale=scale)
    heights = [float(y) for y in re.findall(r'<line class="grid" [^>]*y1="([^"]*)"', chart)]
    assert len(heights) >= 2
    assert all(low - high > 8 for low, high in pairwise(heights))
    assert (max(heights), min(heights)) == (184.0, 10.0)
    labels = re.findall(r'<text class="tick" x="([^"]*)"[^>]*text-anchor="end">([^<]*)<', chart)
    assert len({label for _, label in labels}) == len(labels) == len(heights)
    assert all(float(x) >= 6 * len(label) for x, label in labels)  # nothing is cut off at the left


@pytest.mark.parametrize("values", [[1e308, -1e308], [5e-324, 0.0], [1.7e308, 0.0], [math.nan, math.inf], [1e-320]])
def test_extreme_values_do_not_end_a_report(values: list[float]) -> None:
    scale = charts.scale_of(values)
    assert all(map(math.isfinite, scale.marks))
    charts.lines([charts.Line("a", list(enumerate(values)), "c0")], y_label="a", scale=scale)


def test_marks_of_small_shares_are_not_rounded() -> None:
    for most in (0.05, 0.11, 0.3, 0.9, 2.0):
        scale = charts.shares_up_to(most)
        assert [float(scale.text.format(mark).strip("%")) for mark in scale.marks] == [100 * m for m in scale.marks]


@pytest.mark.parametrize(("low", "high", "marks"), [(0.6, 0.9, [0.6, 0.7, 0.8, 0.9]), (-5, -1, [-5, -4, -3, -2, -1])])
def test_the_ends_of_an_axis_have_marks(low: float, high: float, marks: list[float]) -> None:
    assert charts.ticks(low, high) == marks
    chart = charts.lines(
        [charts.Line("a", [(1, low), (2, high)], "c0")], y_label="a", scale=charts.scale_of([low, high])
    )
    found = re.findall(r'<text class="tick" [^>]*text-anchor="end">([^<]*)<', chart)
    assert found == [f"{mark:g}" for mark in marks]


@pytest.fixture(scope="module")
def learning(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recorded]:
    """A regression with an own metric, and a backdoor with accuracies per class and client."""
    place = tmp_path_factory.mktemp("learning")
    random = np.random.default_rng(0)
    inputs = [random.standard_normal((20, 3)).astype(np.float32) for _ in range(12)]
    clients = [(x, x @ np.array([0.4, -0.3, 0.2], dtype=np.float32)) for x in inputs]
    settings = {"rounds": 2, "secure": False, "machine": {"workers": 0}, "local": {"lr": 0.05, "batch_size": 10}}
    given = {"loss": "squared-error", "metrics": {"r2": "r2", "spread": lambda found, wanted: found.std()}}
    fl.train("linear", clients, clients[0], out=place / "regression", name="regression", **given, **settings)
    e = tiny(
        name="marked", task={"per_class": True, "per_client": True}, byzantine=2, attack={"name": "backdoor"}, rounds=2
    )
    with Folder.create(place / "backdoor", e) as folder:
        run(e, folder=folder)
    return {name: recorded(place / name) for name in ("regression", "backdoor")}


def test_a_regression_is_reported_by_its_own_measures(learning: dict[str, Recorded], tmp_path: Path) -> None:
    found = learning["regression"]
    text, last = report.html([found]), found.rounds[-1]
    assert "nothing was measured" not in text
    assert "accuracy" not in text[: text.index("The whole configuration")]
    assert f"<span>r2</span><b>{last['metrics']['r2']:.4g}</b>" in text
    assert "<h2>R2</h2>" in text
    for name, value in {**last["metrics"], "loss": last["loss"]}.items():
        assert f'aria-label="test {name}"' in text
        assert f'<td class="n ">{value:.4g}</td>' in text
    assert "<dt>r2</dt>" in text
    picture.draw([found, learning["backdoor"]], tmp_path / "both.png")
    told = describe_summary(found.experiment, found.summary)
    assert (
        f"r2 {last['metrics']['r2']:.4g}, spread {last['metrics']['spread']:.4g}, loss {last['loss']:.4g} after 2"
        in told
    )
    assert "accuracy" not in told


def test_backdoor_classes_and_clients_are_shown_beside_accuracy(learning: dict[str, Recorded]) -> None:
    found = learning["backdoor"]
    text, last = report.html([found]), found.rounds[-1]
    success = f"{last['metrics']['backdoor success']:.1%}"
    assert f"<span>backdoor success</span><b>{success}</b>" in text
    assert 'aria-label="test backdoor success"' in text
    told = describe_summary(found.experiment, found.summary)
    assert (
        f"accuracy {last['accuracy']:.2%}, backdoor success {last['metrics']['backdoor success']:.2%} after 2" in told
    )
    classes = text[text.index("Accuracy of each class") :]
    for number, value in enumerate(last["per_class"]):
        assert re.search(rf">{number}</td><td class=\"n[^>]*>{value:.1%}</td>", classes)
    clients = text[text.index("Accuracy of each client") :]
    honest = [value for client, value in enumerate(last["per_client"]) if client not in found.info["byzantine"]]
    assert f"{min(honest):.1%} (client " in clients
    assert '<th class="n">honest clients</th><th class="n">attackers</th>' in clients
    assert '>number</td><td class="n ">10</td><td class="n ">2</td>' in clients
    assert "Only a simulation" in clients
    assert "Accuracy of each client" not in report.html([learning["regression"]])


def test_runs_of_different_tasks_have_a_chart_and_a_column_per_measure(learning: dict[str, Recorded]) -> None:
    text = report.html(list(learning.values()))
    for name in ("accuracy", "backdoor success", "r2", "spread", "worst class", "loss"):
        assert text.count(f'aria-label="test {name}"') == 1
        assert f">{name}</th>" in text


def test_many_classes_show_the_lowest(learning: dict[str, Recorded]) -> None:
    found = learning["backdoor"]
    rounds = [{**record, "per_class": [None, *(i / 100 for i in range(60, 10, -1))]} for record in found.rounds]
    shown = detail.by_class(Recorded(found.folder, found.experiment, found.info, rounds, {}))
    assert shown is not None
    assert shown["left_out"] == 31
    assert list(shown["table"].rows[0]) == ["50", "11.0%"]


def test_nothing_is_called_secure_where_no_cryptography_ran(
    learning: dict[str, Recorded], folders: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    found = learning["regression"]
    for text in (report.html([found]), describe_summary(found.experiment, found.summary)):
        assert "secure aggregation" not in text.replace("Secure aggregation would give the same", "").lower()
        assert "of it secure" not in text
    assert "s aggregation)" in describe_round(found.rounds[0])
    real = recorded(folders[0])
    assert "s secure aggregation)" in describe_round(real.rounds[0])
    assert "of it secure aggregation" in describe_summary(real.experiment, real.summary)


def test_the_live_line_shows_the_main_measure(learning: dict[str, Recorded]) -> None:
    stream = io.StringIO()
    for name, words in (("regression", "r2 "), ("backdoor", "accuracy ")):
        show = LiveProgress(stream)
        show.begin(name, 2, 0)
        for record in learning[name].rounds:
            show.round(record)
        show.end()
        assert words in stream.getvalue()
    assert sparkline([1.0, 2.0, 3.0], 3, shares=False) == "▁▅█"
    assert sparkline([0.0, 0.5, 1.0], 3) == "▁▅█"


@pytest.mark.parametrize("what", ["page", "picture"])
def test_a_full_disk_under_a_report_asks_for_the_same_command(
    what: str, folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if what == "page":
        monkeypatch.setattr(os, "fsync", full)
    else:
        monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    with pytest.raises(RecordError) as refused:
        report.report(folders, tmp_path / "page.html", picture=tmp_path / "page.png")
    name = "page.html" if what == "page" else "page.png"
    told = "No space left on device; free some space, then give the same command again"
    assert str(refused.value) == f"cannot write {tmp_path / name}: {told}"

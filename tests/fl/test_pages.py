"""Pages in a real browser: narrow and wide, light and dark, of few runs and of many, nothing sticks out or is cut."""

import itertools
import math
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from fl.config.grid import from_mapping
from fl.reporting import report
from fl.reporting.banner import seen
from fl.reporting.compared import KNOWN, LOWER, Measure
from fl.reporting.measures import summarise
from fl.reporting.records import Folder, Recorded, recorded
from fl.reporting.results import FINISHED, LeftOut, Outcome, Results
from fl.reporting.sweep_page import sweep_page
from fl.reproduction.compare import table
from fl.reproduction.measured import Measured
from fl.reproduction.page import page as reproduction_page
from fl.reproduction.panels import PANELS, every_curve
from fl.training.loop import run
from tests.fl.browser import CHROMIUM, browser, look
from tests.fl.runs import tiny

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
WIDTHS = (400, 1100)
RULES = ("mean", "trimmed_mean", "median", "multi_krum", "geometric_median", "centered_clipping")
ATTACKS = ("none", "sign-flip", "fall-of-empires", "a-little-is-enough")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Recorded]:
    """One run with secure sums and an attack, one of all in the clear, one that exposes its clients."""
    place = tmp_path_factory.mktemp("runs")
    attacked = {"clients": 24, "byzantine": 2, "rounds": 3, "attack": {"name": "sign_flip"}}
    chosen = {
        "secure": tiny(name="SHARE with multi_krum", secure=True, aggregation={"rule": "multi_krum"}, **attacked),
        "fedavg": tiny(name="FedAvg", method="fedavg", **attacked),
        "exposing": tiny(
            name="exposing",
            clusters={"groupings": 8, "schedule": "random"},
            privacy={"audit": "report-even-if-exposed", "memory": "round"},
        ),
    }
    for name, e in chosen.items():
        with Folder.create(place / name, e) as folder:
            run(e, folder=folder)
    return [recorded(place / name) for name in chosen]


def many(runs: list[Recorded]) -> list[Recorded]:
    """24 runs with the long names that a sweep gives them."""
    names = [f"rule {rule}, attack {attack}, seed 0" for rule, attack in itertools.product(RULES, ATTACKS)]
    return [replace(found, label=name) for found, name in zip(itertools.cycle(runs), names, strict=False)]


def sweep_of(measure: Measure, runs: list[Recorded]) -> str:
    """The page of 96 runs: rules and sizes, attacks, seeds. One cell has no run, and one run has failed."""
    grid = {"seed": [0, 1], "aggregation.rule": list(RULES), "clusters.size": [3, 4]}
    variants = {"attack": {name: {"attack.name": name} for name in ATTACKS}}
    axes = from_mapping({"grid": grid, "variants": variants}).axes
    outcomes = []
    for rule, size, attack, seed in itertools.product(RULES, ("3", "4"), ATTACKS, ("0", "1")):
        if (rule, attack) == (RULES[-1], ATTACKS[-1]):
            continue
        strong = 0.2 + 0.1 * RULES.index(rule) + 0.03 * ATTACKS.index(attack)
        points = [(float(t), strong * (1 - math.exp(-t / 3)) + 0.02 * int(seed)) for t in range(1, 13)]
        labels = {"rule": rule, "size": size, "attack": attack, "seed": seed}
        outcomes.append(Outcome(",".join(labels.values()), labels, FINISHED, points))
    broken = "a worker process was ended by SIGKILL while training"
    outcomes[-1] = outcomes[-1]._replace(status="failed", points=(), error=broken)
    left_out = [LeftOut({**outcomes[0].labels, "attack": ATTACKS[-1], "rule": RULES[-1]}, "krum needs more clusters")]
    found = Results("rules and attacks", axes, measure, outcomes, left_out)
    banners = [seen(each.name, each.experiment, summarise(each.experiment, each.rounds)) for each in runs]
    return sweep_page(found, banners, toml='name = "rules"\n' * 20, info=runs[0].info)


def reproduction() -> str:
    """The page of all curves of the paper, which differ from the published ones in many rounds."""
    points = tuple((number, 0.1 + 0.005 * number) for number in range(1, 101))
    runs = {name: Measured(100, points, (), True, 60, 60, "100 of 200 rounds, seed 0") for name in every_curve()}
    return reproduction_page(PANELS, runs, table(PANELS, runs))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("what", ["one run", "three runs", "24 runs", "sweep", "sweep of errors", "reproduction"])
def test_nothing_sticks_out_is_cut_or_cannot_be_read(
    what: str, dark: bool, runs: list[Recorded], tmp_path: Path
) -> None:
    page = {
        "one run": lambda: report.html(runs[:1]),
        "three runs": lambda: report.html(runs),
        "24 runs": lambda: report.html(many(runs)),
        "sweep": lambda: sweep_of(KNOWN["accuracy"], runs),
        "sweep of errors": lambda: sweep_of(Measure("root_mean_squared_error", LOWER), runs),
        "reproduction": reproduction,
    }[what]()
    found = look(page, tmp_path, WIDTHS, dark=dark)
    assert [each["width"] for each in found] == list(WIDTHS)
    for each in found:
        assert each["dark"] == dark
        assert each["scroll"] <= each["width"]
        assert (each["outside"], each["cut"], each["faint"]) == ([], [], [])
        assert each["labels"] > 20


def test_an_explanation_is_as_wide_as_a_narrow_window(tmp_path: Path) -> None:
    """In a row of its own, in letters that can be read: it is not squeezed below a name."""
    narrow, wide = look(reproduction(), tmp_path, WIDTHS)
    told = narrow["told"]
    assert len(told) == len(every_curve())
    assert all(width > 340 and size >= 12 for width, size in told)
    assert wide["told"] == []


def test_names_have_room_and_exposure_over_all_rounds_is_in_sight(runs: list[Recorded], tmp_path: Path) -> None:
    narrow, wide = look(report.html(many(runs)), tmp_path, WIDTHS)
    assert len(wide["names"]) == 24
    assert min(wide["names"]) >= 300
    assert narrow["heads"][3] <= narrow["width"], "over all rounds"


def test_what_sticks_out_is_cut_or_cannot_be_read_is_found(tmp_path: Path) -> None:
    page = """<!doctype html><html><body style="background: white"><p style="width: 900px">sticks out</p>
    <div class="scroll" style="overflow: auto"><p style="width: 900px">scrolls</p></div>
    <table><tr><th style="display: block; max-width: 30px; overflow: hidden; white-space: nowrap">a long head</th></tr>
    </table><p style="color: #eee">faint</p><svg width="50" height="20"><text x="30" y="15">a label</text></svg>"""
    narrow, wide = look(page, tmp_path, WIDTHS)
    assert narrow["scroll"] > narrow["width"]
    assert (narrow["outside"], wide["outside"]) == (["sticks out"], [])
    for each in (narrow, wide):
        assert each["cut"] == ["a long head", "a label"]
        assert [words for words, _ in each["faint"]] == ["faint"]


@pytest.mark.parametrize("size", ["1100,2400", "420,2400"])
def test_a_browser_shows_the_page_without_errors(size: str, runs: list[Recorded], tmp_path: Path) -> None:
    page, place, shot = report.html(runs), tmp_path / "report.html", tmp_path / "shot.png"
    place.write_text(page, "utf-8")
    command = browser(tmp_path / "profile", f"--window-size={size}")
    drawn = subprocess.run(
        [*command, f"--screenshot={shot}", place.as_uri()], capture_output=True, timeout=120, check=True
    )
    assert b"CONSOLE" not in drawn.stderr  # no violation of the page's security policy
    assert shot.stat().st_size > 30_000
    dumped = subprocess.run([*command, "--dump-dom", place.as_uri()], capture_output=True, timeout=120, check=True)
    tree = dumped.stdout.decode()
    assert tree.count("<svg") == page.count("<svg") > 5
    assert tree.count("<rect") == page.count("<rect")

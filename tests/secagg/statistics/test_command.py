"""`secagg statistics`: what may be asked, what a site would send, a dry run through the real protocol."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from secagg import Policy, TooFewSurvivors
from secagg.agreement import Proposal, write_agreement
from secagg.cli.main import main
from secagg.simulation import make_agreement, simulate_statistics
from secagg.statistics import Categories, Histogram, Mean, Numbers, Statistics
from tests.secagg.statistics.common import plain_terms, terms_for

ASKED = (
    Mean(name="age", of=Numbers("age", 0, 120, step=1)),
    Histogram(name="sex", of=Categories("sex", ("f", "m")), suppress=3),
)
FILES = {"a.csv": "age,sex\n30,f\n40,m\n", "b.csv": "age;sex\n50;f\nNA;f\n", "c.csv": "age,sex\n200,d\n"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "study.toml").write_text(write_agreement(Proposal(terms=terms_for(*ASKED))))
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(["statistics", "study.toml", *arguments]) == code
    found = capsys.readouterr()
    return found.err if code else found.out


@pytest.mark.usefixtures("folder")
def test_the_command_says_what_may_be_asked(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys)
    assert text.startswith("Each site sends 9 whole numbers, of at most 1000 rows")
    assert "- age: mean of 'age' (numbers from 0 to 120, in steps of 1)\n" in text
    assert "- sex: counts of 'sex' (categories f, m); counts from 1 to 2 are not shown\n" in text
    assert json.loads(printed(capsys, "--json"))["age"]["sends"]["age.sums"] == {"shape": [1], "most": 120_000}


@pytest.mark.usefixtures("folder")
def test_what_may_be_asked_stands_in_what_an_agreement_allows(capsys: pytest.CaptureFixture[str]) -> None:
    main(["agree", "study.toml"])
    text = capsys.readouterr().out
    assert "each with 9 whole numbers for the statistics below\n" in text
    assert "may be asked: age: mean of 'age' (numbers from 0 to 120, in steps of 1)\n" in text


@pytest.mark.usefixtures("folder")
def test_an_operator_sees_every_number_that_would_be_sent(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "b.csv", "--show")
    assert text.startswith("b.csv: 2 rows. This stays on this machine")
    assert "warning: age: 1 of 2 values missing in 'age'\n" in text
    assert "  age.counts = [1, 1, 0, 0]\n  age.sums = [50]\n  sex.counts = [2, 0, 0, 0]\n" in text
    assert "sex.counts" not in printed(capsys, "b.csv")
    found = json.loads(printed(capsys, "b.csv", "--json"))
    assert found["sends"] == {"age.counts": [1, 1, 0, 0], "age.sums": [50], "sex.counts": [2, 0, 0, 0]}
    assert found["own"]["sex"]["counts"] == [2, 0, 0, 0]  # the site's own counts are not suppressed
    assert "age,mean,mean,,,50.0,0.0,,1\n" in printed(capsys, "b.csv", "--csv")


@pytest.mark.usefixtures("folder")
def test_a_dry_run_gives_the_results_of_all_files(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "a.csv", "b.csv", "c.csv", "--simulate")
    assert text.startswith("simulation, round 0: 3 of 3 sites")
    assert "  mean  60  exact\n  4 values used, 1 with a missing value, 1 clipped\n" in text
    found = json.loads(printed(capsys, "a.csv", "b.csv", "c.csv", "--simulate", "--json"))
    assert found["statistics"]["sex"]["counts"] == [3, None, None, 0]
    lines = list(csv.DictReader(io.StringIO(printed(capsys, "a.csv", "b.csv", "c.csv", "--simulate", "--csv"))))
    assert lines[0]["value"] == "60.0"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["a.csv", "b.csv"], "expected one CSV file, or --simulate"),
        (["a.csv", "--simulate"], "expected 3 files, one for each member in this order (site 0, site 1, site 2; -"),
        (["a.csv", "b.csv", "-", "--simulate"], "no sum was opened: "),
        (["--show"], "expected a CSV file"),
        (["none.csv"], "none.csv"),
        (["a.csv", "--delimiter", ";;"], "delimiter: expected one character"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str) -> None:
    text = printed(capsys, *arguments, code=2)
    assert problem in text
    assert text.startswith("secagg: ")
    assert text.count("\n") == 1


def test_an_agreement_without_statistics_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "study.toml").write_text(write_agreement(Proposal(terms=plain_terms(3))))
    assert "this agreement declares none" in printed(capsys, code=2)


@pytest.mark.parametrize(
    "more",
    [
        {"size": 3},
        {"size": 6, "groups": "survivors", "schedule": "random"},
        {"size": 3, "groups": "survivors", "schedule": "random", "colluders": 1},
        {"size": 6, "roll_call": True, "policy": Policy(anonymity=3, memory="round")},
    ],
    ids=["whole groups", "flat, survivors", "groups of survivors", "roll call"],
)
def test_the_protocol_gives_what_the_pooled_data_has(more: Any) -> None:
    agreement, _ = make_agreement(members=6, statistics=Statistics(most_rows=10, asked=ASKED), rounds=1, **more)
    data = {site: {"age": [10 * site, 100], "sex": ["f", "m"]} for site in range(6)}
    report = simulate_statistics(agreement.terms, data)
    assert list(report.sites) == list(range(6))
    assert report["age"]["mean"].value == 62.5
    assert report["sex"].counts == (6, 6, 0, 0)
    del data[2]
    if more["size"] == 3 and "groups" in more:
        with pytest.raises(TooFewSurvivors, match="no sum was opened"):
            simulate_statistics(agreement.terms, {site: data[site] for site in (0, 1)})
        return
    report = simulate_statistics(agreement.terms, data)
    assert 2 in report.missing
    present = [10 * site for site in report.sites]
    assert report["age"]["mean"].value == (sum(present) + 100 * len(present)) / (2 * len(present))

"""The quickstart: fixed clusters and SHARE learn under attack, FedAvg does not; what each exposes is said."""

import json
from pathlib import Path

import pytest

from fl.cli import main
from fl.config.checks import experiment
from fl.config.schema import to_tables
from fl.quickstart import NAMES, experiments
from fl.reporting.records import Folder, recorded
from fl.training.interrupt import Stopped
from fl.training.loop import run


def test_quickstart_trains_three_ways_and_says_what_each_exposes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two rounds with real cryptography; the test below has what twelve rounds learn, from the same bits."""
    out = tmp_path / "quick"
    assert main(["quickstart", "--out", str(out), "--rounds", "2"]) == 0
    said = capsys.readouterr().out
    fixed, share, fedavg = (recorded(out / folder) for folder in NAMES)
    assert [len(found.summary["exposed"]) for found in (fixed, share, fedavg)] == [0, 55, 0]
    assert [found.summary["exposed_over_training"] for found in (fixed, share, fedavg)] == [0, 55, 0]
    assert fixed.summary["alone"] < 0.1 < share.summary["alone"]
    assert fedavg.summary["alone"] < 1e-6
    for found in (fixed, share, fedavg):
        assert found.experiment.secure
        assert f"{found.summary['accuracy']:.1%}" in said
    assert (fixed.experiment.groups, fixed.experiment.privacy.audit) == ("whole", "enforce")
    assert fixed.summary["least_anonymity"] == 5
    for words in ("exposed in a round", "if updates stood still", "alone among colluders", "for cryptography"):
        assert words in said
    for name in ("report.html", "report.png"):
        assert (out / name).exists()
        assert str((out / name).resolve()) in said
    assert main(["quickstart", "--out", str(out)]) == 2


def test_what_an_interrupted_start_left_does_not_block_the_quickstart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in NAMES:
        Folder.create(tmp_path / folder, experiment(rounds=1)).close()

    def started(*_: object) -> None:
        raise Stopped("here")

    monkeypatch.setattr("fl.quickstart._train", started)
    assert main(["quickstart", "--out", str(tmp_path)]) == 130
    (tmp_path / "share" / "rounds.jsonl").write_text("{}\n")
    assert main(["quickstart", "--out", str(tmp_path)]) == 2


def test_quickstart_prints_three_summaries_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the clear, which is faster."""
    clear = [experiment({**to_tables(e), "secure": False}) for e in experiments(0, 1)]
    monkeypatch.setattr("fl.quickstart.experiments", lambda seed, rounds: clear)
    assert main(["quickstart", "--out", str(tmp_path), "--rounds", "1", "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert [entry.pop("folder") for entry in found] == [str(tmp_path / name) for name in NAMES]
    assert found == [recorded(tmp_path / name).summary for name in NAMES]
    assert "report.html" in said.err


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2, 3))])
def test_quickstart_learns_under_attack_but_for_fedavg(seed: int) -> None:
    """In the clear, which gives the same models. Other seeds show that it is not luck."""
    fixed, share, fedavg = (experiment({**to_tables(e), "secure": False}) for e in experiments(seed))
    assert run(fixed).accuracy >= 0.9
    assert run(share).accuracy >= 0.9
    assert run(fedavg).accuracy < 0.6

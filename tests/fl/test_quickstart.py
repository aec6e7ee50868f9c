"""The quickstart: SHARE learns under attack, FedAvg does not, no client is exposed, and there is a report."""

from pathlib import Path

import pytest

from fl.cli import main
from fl.config.checks import experiment
from fl.config.schema import to_tables
from fl.quickstart import experiments
from fl.reporting.records import recorded
from fl.training.loop import run


def test_in_quickstart_share_learns_and_fedavg_does_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "quick"
    assert main(["quickstart", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    share, fedavg = recorded(out / "share"), recorded(out / "fedavg")
    assert share.summary["accuracy"] >= 0.9
    assert fedavg.summary["accuracy"] < 0.6
    for found in (share, fedavg):
        assert found.summary["exposed"] == []
        assert found.experiment.secure
        assert found.experiment.privacy.audit == "enforce"
        assert f"{found.summary['accuracy']:.1%}" in said
    assert share.summary["least_anonymity"] >= 3
    assert "for cryptography" in said
    assert "per client and round" in said
    for name in ("report.html", "report.png"):
        assert (out / name).exists()
        assert str((out / name).resolve()) in said
    assert main(["quickstart", "--out", str(out)]) == 2


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_quickstart_does_not_depend_on_luck(seed: int) -> None:
    """In the clear, which gives the same models."""
    share, fedavg = (experiment({**to_tables(e), "secure": False}) for e in experiments(seed))
    assert run(share).accuracy >= 0.9
    assert run(fedavg).accuracy < 0.6

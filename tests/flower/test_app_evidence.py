"""An app of Flower with secure sums leaves evidence, also if its server is stopped in the middle of a round."""

from pathlib import Path

import pytest

from secagg.evidence import verify
from tests.flower.test_apps import NODES, over, run, secured


def test_an_app_leaves_evidence_that_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = secured(tmp_path)
    run(over(tmp_path), grid, rounds=1)
    place = next(tmp_path.rglob("evidence"))
    first = verify(place.read_bytes(), threads=1)
    assert first.holds, first.problems
    assert first.opened
    stopped = over(tmp_path)
    monkeypatch.setattr(stopped._seats, "close", lambda replies: 1 / 0)  # the answers came, and the server is gone
    with pytest.raises(ZeroDivisionError):
        run(stopped, grid, rounds=1)
    run(over(tmp_path), grid, rounds=1)
    report = verify(place.read_bytes(), threads=1)
    assert report.holds, report.problems
    assert report.rounds == 2 * first.rounds + 1
    assert any("did not arrive in time" in note for note in report.notes)


def test_a_second_run_and_a_restart_of_all_nodes_do_not_accuse_the_server(tmp_path: Path) -> None:
    """Answers name the answer before them, also across runs: the client is on the node's disk."""
    grid = secured(tmp_path, evaluate={})
    for _ in range(2):
        run(over(tmp_path), grid, rounds=1)
        for client in range(NODES):
            grid.start(client)
    report = verify(next(tmp_path.rglob("evidence")).read_bytes(), threads=1)
    assert report.holds, report.problems
    assert report.rounds == 2

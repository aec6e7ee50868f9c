"""The vectors of evidence: `secagg verify` and the verifier that was written from the document give each verdict."""

import json
from pathlib import Path

import pytest

from secagg.cli.main import main
from tests.secagg.evidence import second, second_runs
from tests.secagg.test_vectors import FILES, case_of, known_bytes

NAMES = [name for name in FILES if name.startswith("evidence")]


def test_every_kind_of_evidence_has_vectors_that_hold_and_others_that_do_not() -> None:
    assert len(NAMES) == 6
    for name in NAMES:
        found = [step["out"]["holds"] for step in case_of(name)["operations"] if step["op"] == "evidence.verify"]
        assert True in found, name
        assert False in found, name


@pytest.mark.parametrize("name", NAMES)
def test_the_second_verifier_gives_the_same_verdicts(name: str) -> None:
    known, verifier = known_bytes(name), second if "whole" in name else second_runs
    for step in case_of(name)["operations"]:
        if step["op"] == "evidence.verify":
            data = known[step["in"]["evidence"]]
            assert data is not None
            problem = verifier.check(data)
            assert (not problem) is step["out"]["holds"], (step["in"], problem)
            if "survivors" in name and not problem:
                assert sorted(second_runs.blamed(data)) == step["out"]["blamed"]


@pytest.mark.parametrize("name", NAMES)
def test_the_command_gives_the_same_verdicts(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known, place = known_bytes(name), tmp_path / "training.evidence"
    for step in case_of(name)["operations"]:
        if step["op"] == "evidence.verify":
            data, wanted = known[step["in"]["evidence"]], step["out"]
            assert data is not None
            place.write_bytes(data)
            assert main(["verify", str(place), "--json"]) == (0 if wanted["holds"] else 1), step["in"]
            shown = json.loads(capsys.readouterr().out)
            assert shown["holds"] is wanted["holds"]
            assert bool(shown["problems"]) is not wanted["holds"]
            if wanted["holds"]:
                rounds = [shown["rounds"], shown["first_round"], shown["last_round"]]
                assert (rounds, sorted(map(int, shown["blamed"]))) == (wanted["rounds"], wanted["blamed"])
                assert [shown[key] for key in ("answers", "opened", "lost")] == [
                    wanted[key] for key in ("answers", "opened", "lost")
                ]

"""The `secagg exposure` command: a verdict for people, for machines, and as a picture."""

import json
import sys

import pytest

from secagg.cli.main import main

PAPER = ["exposure", "--clients", "60", "--size", "3", "--groupings", "10", "--schedule", "random"]


def test_the_papers_default_is_described_in_words(capsys):
    assert main(PAPER) == 0
    said = capsys.readouterr().out
    assert "60 clients, 10 random groupings into groups of 3" in said
    assert "If all 200 group sums were opened: the server learns the update of every client" in said
    assert "opening grouping 3 would expose clients 0, 1, 2, 3, 4, 5, 6, 7 and 52 others" in said
    assert "of 200 group sums are opened; T = 3 (exact)" in said
    assert "The first 1 of these groupings could be opened completely." in said


def test_a_safe_schedule_is_described_in_words(capsys):
    arguments = "exposure --clients 74 --size 9 --groupings 4 --schedule transversal --drop 0.05 --colluders 1"
    assert main(arguments.split()) == 0
    said = capsys.readouterr().out
    assert "2 left out at random, 4 drop out, 1 collude with the server" in said
    assert "nobody is exposed" in said
    assert "32 of 32 group sums are opened" in said
    assert "closed" not in said


def test_a_schedule_without_one_complete_grouping_is_reported(capsys):
    assert main(["exposure", "--clients", "20", "--size", "2", "--groupings", "3"]) == 0
    said = capsys.readouterr().out
    assert "0 of 30 group sums are opened; nothing is learned" in said
    assert "30 groups closed: too few survivors" in said
    assert "None of these groupings could be opened completely." in said


def test_json_holds_both_verdicts(capsys):
    assert main([*PAPER, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["all_rows"]["exposed"] == list(range(60))
    assert said["allowed"]["exposed"] == []
    assert len(said["allowed"]["rows"]) + len(said["allowed"]["closed"]) == 200
    assert said["allowed"]["anonymity"] == {"lower": 3, "upper": 3, "exact": True}
    assert max(said["allowed"]["leverage"].values()) <= 0.5
    assert said["policy"] == {"anonymity": 3, "max_leverage": 0.5, "min_survivors": 2}


def test_the_seed_and_the_round_change_the_draw(capsys):
    rows = []
    for more in ([], ["--seed", "another"], ["--round", "1"], []):
        main([*PAPER, "--max-leverage", "0.8", "--json", *more])
        rows.append(json.loads(capsys.readouterr().out)["allowed"]["rows"])
    assert rows[0] == rows[3]
    assert rows[0] != rows[1] != rows[2] != rows[0]


def test_atoms_below_the_anonymity_leave_completely(capsys):
    arguments = "exposure --clients 60 --size 10 --groupings 10 --schedule atoms --atom 5 --drop 0.2 --json"
    assert main(arguments.split()) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["allowed"]["anonymity"]["lower"] >= 3
    assert {group["why"] for group in said["allowed"]["closed"]} <= {"it has no survivors"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--clients 60 --size 3 --schedule shuffled", "random, fixed, transversal, atoms"),
        ("--clients 2 --size 3", "too few for one group"),
        ("--clients 60 --size 3 --drop 1.5", "at least 0 and below 1"),
        ("--clients 60 --size 3 --colluders 61", "--colluders must be from 0 to 60, not 61"),
        ("--clients 60 --size 3 --anonymity 1", "anonymity: expected a whole number from 2"),
        ("--clients 60 --size 3 --groupings 5 --schedule transversal", "lower groupings or raise size"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_two(arguments, says, capsys):
    assert main(["exposure", *arguments.split()]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert says in output.err
    assert output.err.count("\n") == 1


def test_the_plot_is_a_picture(tmp_path):
    file = tmp_path / "exposure.png"
    arguments = ["exposure", "--clients", "24", "--size", "6", "--groupings", "5", "--plot", str(file)]
    assert main(arguments) == 0
    assert file.read_bytes().startswith(b"\x89PNG")
    assert file.stat().st_size < 200_000


def test_without_matplotlib_the_extra_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main([*PAPER, "--plot", str(tmp_path / "no.png")]) == 2
    assert "share-secagg[plot]" in capsys.readouterr().err


def test_the_command_does_not_need_matplotlib(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(PAPER) == 0

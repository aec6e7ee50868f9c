"""The planner agrees with the audit and with exact counting, and its advice can be followed."""

import json
import tomllib
from pathlib import Path

import pytest

from fl import planner
from fl.config.checks import experiment
from fl.config.rules import rule_problem
from fl.errors import ConfigError
from fl.planner import Candidate, Question, as_text, plan, toml
from robust import tolerance


def found(question: Question, schedule: str, size: int, groupings: int) -> Candidate:
    return next(
        c
        for c in plan(question).candidates
        if (c.schedule, c.size, c.groupings) == (schedule, size, groupings) and not c.atom
    )


def test_the_papers_own_default_is_ruled_out_because_it_exposes_all_clients() -> None:
    c = found(Question(clients=60, byzantine=6, rule="krum"), "random", 3, 10)
    assert "would expose 60 of 60 clients" in c.ruled_out


def test_without_dropouts_the_chance_is_the_exact_one() -> None:
    c = found(Question(clients=60, byzantine=12, rule="krum", holds=0.01), "random", 3, 1)
    assert c.holds == pytest.approx(float(tolerance.probability_rule_holds("krum", 60, 12, 3)))
    assert not c.certain
    assert (c.anonymity, c.clusters, c.withstands) == (3, 20, 8)
    assert c.leverage == pytest.approx(1 / 3)


def test_drawn_chances_agree_with_the_exact_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "PLACEMENTS", 500)
    exact = found(Question(clients=60, byzantine=10, rule="krum", holds=0.3), "random", 3, 1)
    drawn = found(Question(clients=60, byzantine=10, rule="krum", holds=0.3, dropout=1e-9), "random", 3, 1)
    assert 0.3 < exact.holds < 0.99
    assert drawn.holds == pytest.approx(exact.holds, abs=0.04)
    assert drawn.spoiled == pytest.approx(exact.spoiled, abs=0.1)
    assert drawn != exact


def test_it_is_certain_exactly_if_every_attacker_may_have_a_cluster_of_its_own() -> None:
    assert found(Question(clients=60, byzantine=8, rule="krum"), "random", 3, 1).certain
    assert not found(Question(clients=60, byzantine=9, rule="krum"), "random", 3, 1).certain
    assert tolerance.bad_clients_worst_case("krum", 60, 3) == 8


def test_dropouts_cost_open_sums_and_never_make_it_more_robust() -> None:
    calm = found(Question(clients=60, byzantine=6, rule="krum"), "random", 3, 1)
    rough = found(Question(clients=60, byzantine=6, rule="krum", dropout=0.1), "random", 3, 1)
    assert calm.opened == 1.0
    assert 0.6 < rough.opened < 0.85  # a cluster of three stays open if all three stay: 0.73
    assert rough.holds <= calm.holds


def test_too_many_dropouts_for_the_threshold_rule_a_choice_out() -> None:
    c = found(Question(clients=20, byzantine=1, rule="median", dropout=0.4), "random", 5, 1)
    assert c.completes < 0.5
    assert "must stay until the end" in c.ruled_out


def test_small_clusters_are_not_private_and_large_ones_not_robust() -> None:
    question = Question(clients=60, byzantine=6, rule="krum", anonymity=4)
    assert "cannot hide" in found(question, "random", 3, 1).ruled_out
    assert "does not withstand any bad cluster" in found(question, "random", 20, 1).ruled_out


@pytest.mark.parametrize(
    "question",
    [
        Question(clients=60, byzantine=6, dropout=0.1, rule="krum"),
        Question(clients=50, byzantine=5, rule="median", anonymity=4),
        Question(clients=60, byzantine=20, rule="zeno", dropout=0.05),
        Question(clients=300, byzantine=30, rule="trimmed_mean", cell=120),
    ],
    ids=str,
)
def test_the_recommendation_is_a_configuration_that_is_accepted(question: Question) -> None:
    answer = plan(question)
    assert answer.recommended is not None
    assert answer.recommended.holds >= question.holds
    assert answer.recommended.anonymity >= question.anonymity
    tables = tomllib.loads("\n".join(toml(answer)))
    tables["clusters"]["cell"] = question.cell
    checked = experiment(tables, clients=question.clients, data={"validation": 0.05})
    assert rule_problem(checked, answer.recommended.clusters) == ""
    text = as_text(answer)
    assert f"Recommended: {answer.recommended.name}" in text
    assert "Ruled out" in text


def test_when_nothing_fits_it_says_what_would_help() -> None:
    answer = plan(Question(clients=30, byzantine=12, rule="krum"))
    assert answer.recommended is None
    assert "Nothing meets these requirements" in as_text(answer)
    assert "fewer attackers" in as_text(answer)
    hopeless = plan(Question(clients=6, byzantine=1, rule="krum", anonymity=6))
    assert hopeless.recommended is None
    assert as_text(hopeless)


def test_the_same_question_gets_the_same_answer_and_json_holds_it_all() -> None:
    question = Question(clients=40, byzantine=3, rule="median", dropout=0.05)
    first, second = plan(question), plan(question)
    assert first == second
    assert json.loads(json.dumps(first.to_json()))["recommended"]["size"] == first.recommended.size  # type: ignore[union-attr]


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    planner.draw(plan(Question(clients=30, byzantine=2, rule="krum")), tmp_path / "deep" / "plan.png")
    assert (tmp_path / "deep" / "plan.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"clients": 3}, "--clients"),
        ({"byzantine": 30}, "--byzantine"),
        ({"dropout": 1.0}, "--dropout"),
        ({"anonymity": 1}, "--anonymity"),
        ({"max_leverage": 0.0}, "--max-leverage"),
        ({"holds": 0.0}, "--holds"),
        ({"rule": "vibes"}, "--rule"),
    ],
)
def test_a_wrong_question_names_the_option(wrong: dict, key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        Question(**{"clients": 30, "byzantine": 2, **wrong})

"""The planner agrees with the audit and with exact counting, and its advice can be followed."""

import json
import random
import re
import tomllib
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fl import placement, planner
from fl.config.checks import experiment
from fl.config.rules import rule_problem, tolerated
from fl.errors import ConfigError
from fl.plan_text import as_text, toml
from fl.planner import Candidate, Question, percent, plan
from fl.reporting.picture import draw_plan
from robust import tolerance
from secagg import Policy, Schedule


def alone(**changes: Any) -> Question:
    """A question about single rounds, for which new clusters in every round are allowed."""
    return Question(**{"memory": "round", "max_leverage": 0.8, **changes})


def found(question: Question, schedule: str, size: int, groupings: int) -> Candidate:
    return next(
        c
        for c in plan(question).candidates
        if (c.schedule, c.size, c.groupings) == (schedule, size, groupings) and not c.atom
    )


def test_the_papers_own_default_is_ruled_out_because_it_exposes_all_clients() -> None:
    c = found(alone(clients=60, byzantine=6, rule="krum"), "random", 3, 10)
    assert "would expose 60 of 60 clients" in c.ruled_out
    assert c.exposed == 60


def test_new_clusters_are_ruled_out_if_all_rounds_count_and_their_price_is_told_if_not() -> None:
    question = Question(clients=60, byzantine=6, rule="krum")
    assert "new in every round" in found(question, "random", 3, 1).ruled_out
    assert "new in every round" in found(question, "transversal", 3, 2).ruled_out
    fixed, moving = found(question, "fixed", 3, 1), found(replace(question, memory="round"), "random", 3, 1)
    assert (fixed.exposed, fixed.exposed_over_training, fixed.ruled_out) == (0, 0, "")
    assert (moving.exposed, moving.exposed_over_training, moving.ruled_out) == (0, 60, "")
    assert fixed.alone == pytest.approx(0.924, abs=0.001)
    assert moving.alone > 0.999
    recovered = replace(question, groups="survivors")
    assert "what is left of fixed clusters differs" in found(recovered, "fixed", 3, 1).ruled_out


def test_whole_groups_weigh_dropouts_and_silent_attackers() -> None:
    rough = found(Question(clients=60, byzantine=6, rule="krum", dropout=0.1, holds=0.01), "fixed", 3, 1)
    assert rough.opened == pytest.approx(0.9**3, abs=0.12)
    assert rough.silenced == pytest.approx(rough.spoiled / 20)
    assert (rough.threshold, rough.completes) == (0, 1.0)
    few = found(Question(clients=12, byzantine=2, rule="median", holds=0.01), "fixed", 4, 1)
    assert 0 < few.silenced < 1
    assert "t  completes" not in as_text(plan(Question(clients=30, byzantine=2)))


def test_without_dropouts_the_chance_is_the_exact_one() -> None:
    c = found(Question(clients=60, byzantine=12, rule="krum", holds=0.01), "fixed", 3, 1)
    assert c.holds == pytest.approx(float(tolerance.probability_rule_holds("krum", 60, 12, 3)))
    assert not c.certain
    assert (c.anonymity, c.clusters, c.withstands) == (3, 20, 8)
    assert c.leverage == pytest.approx(1 / 3)


def test_drawn_chances_agree_with_the_exact_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "PLACEMENTS", 500)
    exact = found(Question(clients=60, byzantine=10, rule="krum", holds=0.3), "fixed", 3, 1)
    drawn = found(Question(clients=60, byzantine=10, rule="krum", holds=0.3, dropout=1e-9), "fixed", 3, 1)
    assert 0.3 < exact.holds < 0.99
    assert drawn.holds == pytest.approx(exact.holds, abs=0.04)
    assert drawn.spoiled == pytest.approx(exact.spoiled, abs=0.1)
    assert drawn != exact


def test_it_is_certain_exactly_if_every_attacker_may_have_a_cluster_of_its_own() -> None:
    assert found(Question(clients=60, byzantine=8, rule="krum"), "fixed", 3, 1).certain
    assert not found(Question(clients=60, byzantine=9, rule="krum"), "fixed", 3, 1).certain
    assert tolerance.bad_clients_worst_case("krum", 60, 3) == 8


def test_dropouts_cost_opened_sums_and_never_make_it_more_robust() -> None:
    calm = found(alone(clients=60, byzantine=6, rule="krum", groups="survivors"), "random", 3, 1)
    rough = found(alone(clients=60, byzantine=6, rule="krum", groups="survivors", dropout=0.1), "random", 3, 1)
    assert calm.opened == 1.0
    assert 0.6 < rough.opened < 0.85  # a cluster of three stays open if all three stay: 0.73
    assert rough.holds <= calm.holds


def test_too_many_dropouts_for_the_threshold_rule_a_choice_out() -> None:
    c = found(alone(clients=20, byzantine=1, rule="median", dropout=0.4, groups="survivors"), "random", 5, 1)
    assert c.completes < 0.5
    assert "must stay until the end" in c.ruled_out


def test_small_clusters_are_not_private_and_large_ones_not_robust() -> None:
    question = Question(clients=60, byzantine=6, rule="krum", anonymity=4)
    assert "cannot hide" in found(question, "fixed", 3, 1).ruled_out
    assert "does not withstand any bad cluster" in found(question, "fixed", 20, 1).ruled_out


@pytest.mark.parametrize(
    "question",
    [
        Question(clients=60, byzantine=4, dropout=0.05, rule="krum"),
        Question(clients=50, byzantine=5, rule="median", anonymity=4),
        alone(clients=60, byzantine=20, rule="zeno", dropout=0.05),
        alone(clients=300, byzantine=30, rule="trimmed_mean", cell=120, groups="survivors"),
    ],
    ids=str,
)
def test_the_recommendation_is_a_configuration_that_is_accepted(question: Question) -> None:
    answer = plan(question)
    assert answer.recommended is not None
    assert answer.recommended.holds >= question.holds
    assert answer.recommended.anonymity >= question.anonymity
    tables = tomllib.loads("\n".join(toml(answer)))
    if question.groups == "survivors":
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
    draw_plan(plan(Question(clients=30, byzantine=2, rule="krum")), tmp_path / "deep" / "plan.png")
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
        ({"groups": "half"}, "--groups"),
        ({"memory": "week"}, "--memory"),
        ({"rounds": 0}, "--rounds"),
    ],
)
def test_a_wrong_question_names_the_option(wrong: dict, key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        Question(**{"clients": 30, "byzantine": 2, **wrong})


def test_a_probability_below_the_wanted_one_never_looks_equal_to_it() -> None:
    assert percent(0.9497, 0.95) == "94%"
    assert percent(0.9549, 0.955) == "95%"
    assert percent(0.999996, 1.0) == "99%"
    assert percent(0.9551, 0.955) == "95.5%"  # and one above it never looks like less
    assert percent(0.95, 0.95) == "95%"
    assert (percent(0.07), percent(1.0), percent(0.0), percent(0.9999999)) == ("7%", "100%", "0%", "99.99999%")
    assert percent(0.99999, 0.95, 2) == "99.99%"
    answer = plan(Question(clients=60, byzantine=6, rule="krum", holds=0.951))
    for candidate in answer.candidates:
        if "holds in" in candidate.ruled_out:
            shown = candidate.ruled_out.rpartition("holds in ")[2].removeprefix("at most ").split("%")[0]
            assert float(shown) / 100 < 0.951


questions = st.builds(
    Question,
    clients=st.integers(8, 30),
    byzantine=st.integers(0, 7),
    dropout=st.sampled_from([0.0, 0.004, 0.1, 0.3]),
    rule=st.sampled_from(["krum", "median", "trimmed_mean"]),
    holds=st.one_of(st.integers(1, 100).map(lambda percent: percent / 100), st.floats(0.001, 1.0)),
    groups=st.sampled_from(["whole", "survivors"]),
    memory=st.sampled_from(["training", "round"]),
    max_leverage=st.sampled_from([0.5, 0.8]),
)


@given(question=questions)
@settings(max_examples=12, deadline=None)
@example(question=Question(clients=30, byzantine=3, dropout=0.1, rule="trimmed_mean"))
@example(question=Question(clients=20, byzantine=1, dropout=0.3, groups="survivors", memory="round", max_leverage=0.8))
@example(question=alone(clients=40, byzantine=6, rule="krum", dropout=0.1, holds=0.99))
def test_no_number_of_the_text_contradicts_the_requirement(question: Question) -> None:
    """What is refused looks like less, what fits does not, and the --holds that is proposed accepts the candidate."""
    answer = plan(question)
    text = as_text(answer)
    required = Decimal(re.findall(r"holds in ([\d.]+)% of rounds", text.split("\n")[0])[0])
    assert required == Decimal(repr(question.holds)) * 100
    table, _, rest = text.partition("Ruled out, for example:")
    for row in re.findall(r"^(?:fixed|random|transversal|atoms).*$", table, re.MULTILINE):
        shown = re.findall(r"(always|[\d.]+(?=%))", row)
        last = shown[-2 if question.groups == "survivors" else -1]
        assert last == "always" or Decimal(last) >= required
        assert question.groups != "survivors" or Decimal(shown[-1]) >= required
    refused, _, advice = rest.partition("\n\n")
    for line in refused.splitlines():
        for number in re.findall(r"(?:holds|happens) in (?:at most )?([\d.]+)% of rounds", line):
            assert Decimal(number) < required
        for number in re.findall(r"only ([\d.]+)% of the sums", line):
            assert Decimal(number) < 50
    if advice.startswith("Closest"):
        assert min(map(Decimal, re.findall(r"([\d.]+)%", advice))) < required
    if accepting := re.findall(r"Closest: (.*) holds in.*--holds ([\d.]+) would accept it", advice):
        name, holds = accepting[0]
        assert float(holds) < question.holds
        better = {c.name: c.ruled_out for c in plan(replace(question, holds=float(holds))).candidates}
        assert better[name] == ""


def test_with_dropouts_the_rule_withstands_what_it_withstands_of_the_opened_clusters() -> None:
    question = Question(clients=40, byzantine=2, dropout=0.1, rule="trimmed_mean", holds=0.5)
    answer = plan(question)
    for candidate in answer.candidates:
        if candidate.opened:
            assert candidate.counted <= candidate.clusters
            assert candidate.withstands == max(0, (candidate.counted - 1) // 2)
            assert not candidate.certain
    best = answer.recommended
    assert best is not None
    assert best.counted < best.clusters
    assert f"f = {min(2, best.withstands)}" in toml(answer)
    assert not any(line.startswith("f =") for line in toml(plan(Question(clients=60, byzantine=2))))


def counted(question: Question, groupings: Any, f: int, rounds: int = 4000) -> tuple[float, float]:
    """How often a rule with this f holds, and has enough clusters to run: dropouts and attackers drawn one by one."""
    draw, holds, fits = random.Random(1), 0, 0
    everybody, most_missing = range(question.clients), 1 if question.groups == "survivors" else 0
    for _ in range(rounds):
        gone = {client for client in everybody if draw.random() < question.dropout}
        bad = set(draw.sample(everybody, question.byzantine)) - gone
        left = [[g for g in grouping if len(gone.intersection(g)) <= most_missing] for grouping in groupings]
        enough = all(kept and tolerated(question.rule, len(kept)) >= f for kept in left)
        fits += enough
        holds += enough and all(sum(1 for group in kept if bad.intersection(group)) <= f for kept in left)
    return holds / rounds, fits / rounds


DROPOUTS = Question(clients=100, byzantine=5, rule="trimmed_mean", dropout=0.1, holds=0.3)


@pytest.mark.parametrize(
    ("question", "size", "groupings"),
    [
        (DROPOUTS, 5, 1),
        (DROPOUTS, 5, 2),
        (Question(clients=40, byzantine=2, rule="krum", dropout=0.05, holds=0.3), 4, 1),
        (alone(clients=60, byzantine=6, rule="krum", dropout=0.2, holds=0.1, groups="survivors"), 4, 1),
        (alone(clients=60, byzantine=6, rule="krum", dropout=0.2, holds=0.1, groups="survivors", cell=20), 4, 1),
    ],
    ids=["trimmed mean", "two groupings", "krum", "survivors", "cells of survivors"],
)
def test_with_dropouts_a_round_holds_only_if_the_written_f_still_fits(
    question: Question, size: int, groupings: int
) -> None:
    schedule = "fixed" if question.groups == "whole" else "random"
    candidate = found(question, schedule, size, groupings)
    f = planner.written_f(question, candidate)
    assert f is not None
    drawn = Schedule(name=schedule, size=size, groupings=groupings).draw(range(question.clients), bytes(32), 0)
    holds, fits = counted(question, drawn, f)
    assert fits < 0.99
    assert (candidate.holds, candidate.fits) == (pytest.approx(holds, abs=0.04), pytest.approx(fits, abs=0.04))


def test_a_plan_that_skips_too_many_rounds_is_refused_with_the_reason() -> None:
    refused = found(replace(DROPOUTS, holds=0.95), "fixed", 5, 1).ruled_out
    assert re.search(r"withstands 5 of 11 clusters.*too few clusters in 2\d of 100 rounds: holds in 7\d%", refused)
    few = found(Question(clients=40, byzantine=2, rule="krum", dropout=0.05), "fixed", 4, 1)
    assert few.holds == pytest.approx(0.905, abs=0.03)
    assert few.ruled_out


def test_atoms_that_lost_a_client_are_not_counted() -> None:
    question = Question(clients=24, byzantine=1, dropout=0.3, groups="survivors")
    drawn = Schedule(name="atoms", size=6, groupings=2, atom=3).draw_cells(range(24), bytes(32), 0, (24,))[0]
    there = np.ones((1, 24), dtype=bool)
    broken = [drawn.atoms[0], drawn.atoms[1]]
    there[0, [broken[0][0], broken[1][0]]] = False
    (enough,) = placement.enough(question.groups, Policy(), drawn, there)
    pair = set(broken[0]) | set(broken[1])
    expected = [[set(group) != pair for group in grouping] for grouping in drawn.groupings]
    assert enough.tolist() == expected

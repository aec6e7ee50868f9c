"""Rounds of whole groups: exact sums, lost groups exactly those with a missing member, over any schedule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.errors import UsageError
from secagg.simulation import Cost, Misbehaviour, WholeRun, clear_whole, run_whole
from secagg.whole import Answer, FileStore, MemoryStore
from secagg.whole.layout import layout
from tests.secagg.whole.cast import Cast, agreed, update_of

SCHEDULES = [
    {"members": 9, "size": 3, "schedule": "fixed"},
    {"members": 11, "size": 3, "schedule": "fixed", "groupings": 2, "sample": 9},
    {"members": 12, "size": 4, "schedule": "random", "groupings": 3, "sample": 8},
    {"members": 9, "size": 3, "schedule": "transversal", "groupings": 2},
    {"members": 12, "size": 4, "schedule": "atoms", "atom": 2, "groupings": 3},
    {"members": 5, "size": 5, "schedule": "fixed"},
]


@given(st.sampled_from(SCHEDULES), st.data())
@settings(max_examples=40, deadline=None)
def test_opened_sums_are_exact_and_groups_are_lost_exactly_if_a_member_is_missing(schedule: Any, data: Any) -> None:
    agreement, identities = agreed(**schedule)
    run = WholeRun(agreement, identities)
    for round in sorted(data.draw(st.sets(st.integers(0, 7), min_size=1, max_size=3))):
        absent = data.draw(st.sets(st.sampled_from(agreement.terms.ids), max_size=4))
        inputs = {v: update_of(agreement, v, round) for v in agreement.terms.ids}
        result = run.round(round, inputs, drop=absent, context=b"model")
        groups = layout(agreement, round).groups
        assert set(result.groups) == {g for g, members in groups.items() if not absent.intersection(members)}
        assert set(result.groups) | set(result.lost) == set(groups)
        for group, opened in result.groups.items():
            assert opened.members == groups[group]
            assert (result.sum(group) == sum(inputs[v] for v in opened.members)).all()
        assert set(result.dropouts) <= absent & set(layout(agreement, round).seats)
        for group, why in result.lost.items():
            told = [v for v in groups[group] if v in result.dropouts]
            assert why == "; ".join(f"client {v}: {result.dropouts[v]}" for v in told) != ""
        assert (result.blamed, result.inconsistent) == ({}, ())


@given(st.sampled_from(SCHEDULES), st.integers(0, 7), st.data())
@settings(max_examples=20, deadline=None)
def test_without_cryptography_the_sums_are_the_same_bit_for_bit(schedule: Any, round: int, data: Any) -> None:
    settings = {**schedule, "bound": None, "clip": 1.0}
    agreement, identities = agreed(**settings)
    absent = data.draw(st.sets(st.sampled_from(agreement.terms.ids), max_size=3))
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    inputs = {v: rng.normal(size=5).astype(np.float32) for v in agreement.terms.ids}
    secure = run_whole(agreement, round, inputs, identities, drop=absent, data=b"d", context=b"c")
    clear = clear_whole(agreement, round, inputs, absent, data=b"d", context=b"c")
    assert (secure.round, secure.context, secure.skipped) == (clear.round, clear.context, clear.skipped)
    assert (set(secure.groups), set(secure.lost)) == (set(clear.groups), set(clear.lost))
    for group in secure.groups:
        assert np.array_equal(secure.groups[group].total, clear.groups[group].total)
        assert np.array_equal(secure.mean(group), clear.mean(group))


def test_weights_are_those_of_the_agreement_over_all_members() -> None:
    from secagg.agreement import Member, Terms
    from secagg.crypto import Segment
    from secagg.exposure import Schedule
    from secagg.simulation import agree_on, make_identities
    from tests.secagg.whole.cast import LOOSE

    identities = make_identities(range(4))
    members = tuple(Member(v, identities[v].public, weight=v + 1) for v in range(4))
    terms = Terms(
        name="weights", members=members, segments=(Segment(shape=(2,), clip=8.0),), last_round=0, policy=LOOSE,
        schedule=Schedule(name="fixed", size=2),
    )  # fmt: skip
    result = run_whole(agree_on(terms, identities), 0, {v: np.array([1.0, v]) for v in range(4)}, identities)
    for group, opened in result.groups.items():
        a, b = opened.members
        wanted = np.array([1.0, (a * (a + 1) + b * (b + 1)) / (a + b + 2)])
        assert np.allclose(result.mean(group), wanted, atol=1e-6)
        assert np.allclose(result.sum(group)[0], (a + b + 2) * 4 / 10, atol=1e-6)


def test_fewer_groups_than_the_least_skip_the_round() -> None:
    agreement, identities = agreed(least_groups=3)
    inputs = {v: update_of(agreement, v, 0) for v in agreement.terms.ids}
    run = WholeRun(agreement, identities)
    assert run.round(0, inputs).skipped == ""
    result = run.round(1, inputs, drop=[0])
    assert result.skipped == "2 complete groups, the agreement asks for 3"
    assert result.groups == {}
    assert set(result.lost) == set(agreement.groups(1))
    assert clear_whole(agreement, 1, inputs, [0]).skipped == result.skipped


def test_nothing_is_sent_if_too_few_groups_have_adverts() -> None:
    cast = Cast(least_groups=3)
    assert cast.begin(0, absent=[0]) == {}
    result = cast.server.close()
    assert result.skipped
    assert sorted(result.lost.values())[1:] == ["nothing was sent, because too few groups were complete"] * 2


def test_adverts_come_with_the_answers_at_most_three_rounds_ahead() -> None:
    cast = Cast()
    sent: list[int] = []

    def look(answer: Answer) -> Answer:
        sent.extend(advert.round for advert in answer.adverts if answer.sender == 0)
        return answer

    for round in range(6):
        cast.round(round, change=look)
        assert max(sent) <= round + 3
    assert sent == [1, 2, 3, 4, 5, 6, 7]
    assert cast.server.hello(6) == {}


def test_each_answer_names_the_one_before_it() -> None:
    cast = Cast()
    chain: list[bytes] = []
    for round in range(3):
        answers: list[Answer] = []
        result = cast.round(round, change=lambda answer, seen=answers: seen.append(answer) or answer, only=[4])
        assert answers[0].previous == (chain[-1] if chain else bytes(32))
        chain.append(result.answers[4])


def test_a_client_that_missed_rounds_comes_back_with_a_new_advert() -> None:
    cast = Cast()
    cast.round(0)
    for round in range(1, 6):
        cast.round(round, absent=[2])
    assert set(cast.server.hello(6)) == {2}
    assert not cast.round(6).lost


def test_misbehaviour_and_cost_of_a_simulated_round() -> None:
    agreement, identities = agreed()
    inputs = {v: update_of(agreement, v, 0) for v in agreement.terms.ids}
    cost, heard = Cost(), []
    result = run_whole(
        agreement, 0, inputs, identities, misbehave={1: Misbehaviour.GARBAGE, 3: Misbehaviour.SILENCE}, cost=cost,
        on_answer=lambda stage, client: heard.append(client),
    )  # fmt: skip
    assert set(result.dropouts) == {1, 3}
    assert "wire version" in result.dropouts[1]
    assert 1 in heard
    assert 3 not in heard
    assert cost.clients == 6
    assert cost.as_dict()["bytes_up"]["inputs"] > 0
    with pytest.raises(UsageError, match="whole groups have no shares"):
        run_whole(agreement, 0, inputs, identities, misbehave={1: Misbehaviour.WRONG_SHARES})
    with pytest.raises(UsageError, match="client 77 is not on the roster"):
        run_whole(agreement, 0, inputs, identities, drop=[77])


def test_forked_processes_give_the_same_sums_over_several_rounds(tmp_path: Path) -> None:
    agreement, identities = agreed(members=12, size=4, schedule="atoms", atom=2, groupings=3)
    run = WholeRun(agreement, identities, processes=2, store=FileStore(tmp_path))
    for round in range(4):
        absent = {round} if round else set()
        inputs = {v: update_of(agreement, v, round) for v in agreement.terms.ids}
        heard: list[int] = []
        result = run.round(
            round, inputs, drop=absent, misbehave={11: Misbehaviour.GARBAGE} if round == 2 else None,
            on_answer=lambda stage, client, seen=heard: seen.append(client),
        )  # fmt: skip
        assert sorted(heard) == [v for v in agreement.terms.ids if v not in absent]
        clear = clear_whole(agreement, round, inputs, absent | ({11} if round == 2 else set()))
        assert set(result.groups) == set(clear.groups)
        assert all(np.array_equal(result.groups[g].total, clear.groups[g].total) for g in clear.groups)
    assert run.client(5).answered == 3
    assert len(list(tmp_path.glob("*.spool"))) == 12


def test_a_mistake_in_a_forked_process_is_raised_here() -> None:
    agreement, identities = agreed()
    inputs: dict[int, Any] = {v: update_of(agreement, v, 0) for v in agreement.terms.ids}
    with pytest.raises(UsageError, match="shape"):
        run_whole(agreement, 0, {**inputs, 3: np.zeros(4, np.int64)}, identities, processes=2)
    with pytest.raises(UsageError, match="none of client 5"):
        run_whole(agreement, 0, {v: inputs[v] for v in range(5)}, identities, processes=2)

    class Lazy(dict[int, Any]):
        def __getitem__(self, client: int) -> Any:
            raise ZeroDivisionError(f"client {client}")

    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        run_whole(agreement, 0, Lazy(inputs), identities, processes=2)
    with pytest.raises(UsageError, match="use a FileStore"):
        run_whole(agreement, 0, inputs, identities, processes=2, store=MemoryStore())

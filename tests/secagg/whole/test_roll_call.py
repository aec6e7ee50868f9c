"""Roll calls: a flat sum of the members that are present, one set per client and round."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.agreement import Terms, alone, audit_round, audit_training, summarise
from secagg.agreement.file import read, write
from secagg.agreement.proposal import Proposal
from secagg.errors import AgreementRefused, PeerError, UsageError, WireError
from secagg.exposure.audit import Policy
from secagg.exposure.schedules import Schedule
from secagg.simulation import Misbehaviour, WholeRun, agree_on, clear_whole, make_agreement
from secagg.whole import (
    Advert,
    Hello,
    Release,
    Resend,
    Round,
    Server,
    Task,
    WholeResult,
    encode,
    respond,
    server_state,
    transcript,
)
from secagg.whole.result import NO_ADVERT, NOT_CALLED
from tests.secagg.whole.cast import Cast, agreed, update_of, with_advert
from tests.secagg.whole.symbols import Row, learned, recording

ROUND = Policy(min_survivors=2, anonymity=2, max_leverage=1.0, memory="round")
CALLED = {"members": 5, "size": 5, "policy": ROUND, "roll_call": True}


# --- the terms -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"schedule": Schedule(name="fixed", size=2)}, r"a flat sum, but a round has 2 groups of 2; .*size = 5"),
        ({"policy": replace(ROUND, memory="training")}, "set memory = 'round'"),
        ({"groups": "survivors"}, "only for groups = 'whole'"),
        ({"roll_call": 1}, "roll_call: expected True or False, got 1"),
    ],
)
def test_terms_with_a_roll_call_are_flat_and_promise_each_round_alone(changes: dict[str, Any], why: str) -> None:
    terms = agreed(**CALLED)[0].terms
    with pytest.raises(UsageError, match=why):
        replace(terms, **changes)


def test_a_roll_call_is_in_the_file_and_in_the_bytes() -> None:
    terms = agreed(**CALLED)[0].terms
    text = write(Proposal(terms=terms))
    assert "roll_call = true" in text
    assert read(text).terms == Terms.from_bytes(terms.to_bytes()) == terms
    without = replace(terms, roll_call=False)
    assert read(text.replace("roll_call = true\n", "")).terms == without
    (place,) = [i for i, (a, b) in enumerate(zip(terms.to_bytes(), without.to_bytes(), strict=True)) if a != b]
    raw = terms.to_bytes()
    with pytest.raises(WireError, match="roll_call: expected 0 or 1, got 2"):
        Terms.from_bytes(raw[:place] + b"\x02" + raw[place + 1 :])
    with pytest.raises(UsageError, match="roll_call: expected true or false, got 1"):
        read(text.replace("roll_call = true", "roll_call = 1"))


# --- a round -------------------------------------------------------------------------------------------------


def called(cast: Cast, round: int = 0, *, absent: Collection[int] = (), **given: Any) -> Mapping[int, Round]:
    """The messages of a round after its roll call."""
    return cast.begin(round, absent=absent, **given)


def run(cast: Cast, round: int = 0, *, absent: Collection[int] = (), silent: Collection[int] = ()) -> WholeResult:
    for member, message in called(cast, round, absent=absent).items():
        if member not in silent:
            assert cast.server.receive(member, cast.answer(member, message)) is None
    return cast.server.close()


def total_of(cast: Cast, members: Iterable[int], round: int = 0) -> list[int]:
    return list(sum(update_of(cast.agreement, v, round) for v in members))


def to(message: Round, *present: int) -> Round:
    """The message with another set of members, among those that it has."""
    return replace(message, adverts=tuple(advert for advert in message.adverts if advert.sender in present))


@settings(deadline=None, max_examples=30)
@given(st.sets(st.integers(0, 4)), st.integers(2, 5))
def test_the_sum_is_over_those_present_if_they_are_enough(absent: set[int], least: int) -> None:
    cast = Cast(**CALLED | {"policy": replace(ROUND, anonymity=least)})
    result = run(cast, absent=absent)
    present = tuple(v for v in range(5) if v not in absent)
    if len(present) >= least:
        assert result.groups[0, 0].members == present
        assert list(result.sum()) == total_of(cast, present)
        assert result.dropouts == dict.fromkeys(sorted(absent), NO_ADVERT)
        same = clear_whole(cast.agreement, 0, {v: update_of(cast.agreement, v, 0) for v in range(5)}, drop=absent)
        assert (same.groups[0, 0].members, list(same.sum())) == (present, list(result.sum()))
    else:
        assert result.groups == {}
        assert f"{len(present)} members are summed, and the agreement asks for {least}" in result.lost[0, 0]
        assert "the agreement asks for 1" in result.skipped


def test_members_come_and_go_from_round_to_round() -> None:
    cast = Cast(**CALLED)
    for round, absent in enumerate([{1}, set(), {0, 4}, {2}]):
        assert list(run(cast, round, absent=absent).sum()) == total_of(cast, set(range(5)) - absent, round)


def test_every_round_asks_everybody_because_an_advert_says_that_a_client_is_present() -> None:
    cast = Cast(**CALLED)
    run(cast)
    assert set(cast.server.hello(1)) == set(range(5))
    assert cast.server.present(1) == ()
    assert cast.server.receive(2, cast.hello(2, 1)) is None
    assert cast.server.present(1) == (2,)


def test_a_present_member_that_does_not_answer_loses_the_sum_and_the_next_round_does_without_it() -> None:
    cast = Cast(**CALLED)
    result = run(cast, silent=[3])
    assert result.lost == {(0, 0): "client 3: it did not answer in time"}
    messages = cast.begin(1, absent=(), present=[0, 1, 2, 4])
    for member, message in messages.items():
        assert cast.server.receive(member, cast.answer(member, message)) is None
    result = cast.server.close()
    assert result.groups[0, 0].members == (0, 1, 2, 4)
    assert result.dropouts == {3: NOT_CALLED}


def test_the_application_names_members_that_are_there() -> None:
    cast = Cast(**CALLED)
    for member in (0, 1, 2):
        cast.server.receive(member, cast.hello(member))
    for present, why in (
        ([0, 1, 3], "client 3 has sent no advert"),
        ([0, 99], "client 99"),
        ("ab", "present: expected"),
    ):
        with pytest.raises(UsageError, match=why):
            cast.server.begin(0, present=present)
    assert set(cast.server.begin(0, present=[0, 2, 2])) == {0, 2}
    other = Cast()
    with pytest.raises(UsageError, match="only for an agreement with roll_call"):
        other.server.begin(0, present=[0, 1])


def test_the_server_goes_on_after_a_restart_with_the_same_members() -> None:
    cast = Cast(**CALLED)
    messages = called(cast, absent=[4])
    cast.server = Server.restore(cast.server.save(), cast.agreement)
    for member, message in messages.items():
        assert cast.server.receive(member, cast.answer(member, message)) is None
        cast.server = Server.restore(cast.server.save(), cast.agreement)
    assert cast.server.close().groups[0, 0].members == (0, 1, 2, 3)


def test_a_saved_server_with_another_roll_call_is_damaged() -> None:
    cast = Cast(**CALLED)
    called(cast, absent=[4])
    for present in ((0,), (0, 1, 2, 3, 4), (0, 77)):
        memory = replace(server_state.restore(cast.server.save(), cast.agreement), present=present)
        with pytest.raises(UsageError, match="this saved server is damaged"):
            Server.restore(server_state.save(memory), cast.agreement)


# --- a malicious server --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "weights", "present", "why"),
    [
        ({"anonymity": 3}, (), (0, 1), "2 members are summed, and the agreement asks for 3"),
        ({"anonymity": 2, "min_survivors": 4}, (), (0, 1, 2), "3 members are summed, and the agreement asks for 4"),
        ({"max_leverage": 0.4}, (3, 1, 1, 3, 3), (0, 1, 2), "leverage of client 0 is 0.818, above 0.4"),
        ({}, (), (0,), "1 members are summed, and the agreement asks for 2"),
    ],
)
def test_a_client_refuses_a_set_that_breaks_the_policy(
    policy: dict[str, Any], weights: tuple[int, ...], present: tuple[int, ...], why: str
) -> None:
    cast = Cast(**CALLED | {"policy": replace(ROUND, **policy), "weights": weights})
    message = called(cast)[0]
    with pytest.raises(PeerError, match=why):
        cast.clients[0].receive(to(message, *present))
    cast.answer(0, message)  # the refusal has changed nothing


def test_a_client_refuses_members_that_are_not_in_the_round() -> None:
    cast = Cast(**CALLED | {"members": 7, "size": 5})
    outside = sorted(set(range(7)) - set(cast.groups()[0, 0]))
    message = called(cast)[cast.groups()[0, 0][0]]
    adverts = tuple(sorted((*message.adverts, cast.advert(outside[0], 0)), key=lambda advert: advert.sender))
    with pytest.raises(PeerError, match=f"lists client {outside[0]}, who is not in the group"):
        cast.clients[cast.groups()[0, 0][0]].receive(replace(message, adverts=adverts))


def test_a_client_answers_for_one_set_only() -> None:
    """The server hides 4's answer, asks for the sum without 4, and completes the first sum: nobody answers twice."""
    cast = Cast(**CALLED)
    messages = called(cast)
    first = {v: encode(cast.answer(v, messages[v])) for v in range(4)}
    for member in range(4):
        again = cast.clients[member].receive(to(messages[member], 0, 1, 2, 3))
        assert isinstance(again, Resend)
        assert cast.stores[member].load(again.name) == first[member]
    restored = {v: cast.new_client(v) for v in range(4)}  # also a client that has forgotten everything but its store
    for member, client in restored.items():
        advert = client.receive(Hello(cast.agreement.fingerprint, 0))
        assert isinstance(advert, Advert)
        task = client.receive(to(with_advert(messages[member], advert), 0, 1, 2, 3))
        assert isinstance(task, Task)
        assert b"".join(respond(client, cast.stores[member], task, [0] * 5)) == first[member]


def test_an_update_for_one_set_is_not_sent_to_another() -> None:
    """The application was told who is present; the server changes it while the update is computed."""
    cast = Cast(**CALLED)
    message = called(cast)[0]
    task = cast.clients[0].receive(message)
    assert isinstance(task, Task)
    assert task.present == (0, 1, 2, 3, 4)
    other = cast.clients[0].receive(to(message, 0, 1))
    with pytest.raises(UsageError, match="other members"):
        cast.clients[0].answer(task, [0] * 5)
    assert isinstance(other, Task)
    assert other.present == (0, 1)


def opened_by(rows: Sequence[Row], colluders: Collection[int] = ()) -> set[frozenset[int]]:
    """The sets of honest clients whose sums a symbolic attacker computes, if it computes nothing else."""
    basis = learned(rows, colluders)
    assert all(set(line) <= {0, 1} for line in basis)
    return {frozenset(rows[i].client for i, factor in enumerate(line) if factor) for line in basis}


def answers_for(cast: Cast, sets: Mapping[int, Collection[int]]) -> list[Row]:
    """What clients send if the server tells each of them another set."""
    rows: list[Row] = []
    with recording() as recorder:
        for member, message in called(cast).items():
            if member in sets:
                rows += recorder.rows(cast.answer(member, to(message, *sets[member])))
    return rows


ALL = (0, 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("sets", "opened"),
    [
        (dict.fromkeys(ALL, ALL), {frozenset(ALL)}),
        ({0: (0, 1), 1: (0, 1), 2: (2, 3, 4), 3: (2, 3, 4), 4: (2, 3, 4)}, {frozenset({0, 1}), frozenset({2, 3, 4})}),
        ({0: ALL, 1: ALL, 2: (0, 1, 2), 3: ALL, 4: ALL}, set()),
        ({0: (0, 1), 1: (0, 1, 2), 2: (1, 2)}, set()),  # a chain: without the set in the keys, the three would open
        ({0: (0, 1, 2), 1: (0, 1, 2), 2: (0, 1, 2), 3: ALL, 4: ALL}, {frozenset({0, 1, 2})}),
        ({0: (0, 1, 2), 1: (0, 1, 2), 3: ALL, 4: ALL}, set()),
        (dict.fromkeys((0, 1, 2, 3), ALL), set()),
    ],
)
def test_only_a_set_whose_members_all_answered_for_it_opens(
    sets: dict[int, tuple[int, ...]], opened: set[frozenset[int]]
) -> None:
    assert opened_by(answers_for(Cast(**CALLED), sets)) == opened


def test_without_the_set_in_the_keys_a_chain_of_sets_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum of three, for which nobody answered. The set in the key prevents it."""
    monkeypatch.setattr(transcript, "present_hash", lambda *_: b"")
    rows = answers_for(Cast(**CALLED), {0: (0, 1), 1: (0, 1, 2), 2: (1, 2)})
    assert opened_by(rows) == {frozenset({0, 1, 2})}


@pytest.mark.parametrize("colluders", [[4], [3, 4]])
def test_colluders_are_in_several_sets_and_honest_members_in_one(colluders: list[int]) -> None:
    """The colluders answer for two sets. Both open; they share no honest member, so no difference isolates one."""
    first, second = (0, 1, *colluders), (2, 3, 4)
    sets = {0: first, 1: first, 2: second} | ({3: second} if 3 not in colluders else {})
    found = opened_by(answers_for(Cast(**CALLED), sets), colluders)
    assert found == {frozenset({0, 1}), frozenset({2, 3}) - frozenset(colluders)}


def test_enough_colluders_choose_to_be_alone_with_a_member_and_the_agreement_says_so() -> None:
    """A limit of roll calls, and the reason for the floor: T - 1 colluders and the server pick their victim."""
    cast = Cast(**CALLED | {"policy": replace(ROUND, anonymity=3)})
    rows = answers_for(cast, {0: (0, 3, 4)})
    assert opened_by(rows, [3, 4]) == {frozenset({0})}
    assert alone(cast.agreement.terms, 2).probability == 1.0
    assert alone(cast.agreement.terms, 1).probability == 0.0
    flat = Cast(**CALLED | {"policy": replace(ROUND, anonymity=3), "roll_call": False})
    assert alone(flat.agreement.terms, 2).probability == 0.0
    lines = "\n".join(summarise(cast.agreement).lines())
    assert "the server and 2 colluders can choose to be summed with one honest member" in lines
    assert "protects for certain from 1 colluder" in lines


def test_a_roll_call_has_no_releases() -> None:
    cast = Cast(**CALLED)
    with pytest.raises(UsageError, match="sends no advert"):
        cast.clients[0].release(0)
    plain = Cast(**CALLED | {"roll_call": False})
    release = plain.clients[4].release(0).message
    assert isinstance(release, Release)
    assert "no releases" in str(cast.server.receive(4, release))
    message = called(cast)[0]
    with pytest.raises(PeerError, match="no releases"):
        cast.clients[0].receive(replace(message, releases=(release,)))


# --- malicious clients ---------------------------------------------------------------------------------------


def test_a_member_that_is_not_present_adds_nothing() -> None:
    """It knows the adverts from a colluder, and signs an answer that names them."""
    cast = Cast(**CALLED)
    messages = called(cast, absent=[4])
    answers = {v: cast.answer(v, message) for v, message in messages.items()}
    stranger = cast.signed(answers[0], sender=4)
    assert cast.server.receive(4, stranger) == "it was not present when the round began"
    for member, answer in answers.items():
        assert cast.server.receive(member, answer) is None
    assert cast.server.receive(4, stranger) == "it was not present when the round began"
    result = cast.server.close()
    assert list(result.sum()) == total_of(cast, range(4))
    assert set(result.dropouts) == {4}


def test_an_answer_for_another_set_does_not_count_and_blames_nobody() -> None:
    """The server lost its memory and asks for another set; honest clients repeat their answers for the first."""
    cast = Cast(**CALLED)
    for member in cast.server.hello(0):
        cast.server.receive(member, cast.hello(member))
    saved = cast.server.save()
    answers = {v: cast.answer(v, message) for v, message in cast.server.begin(0).items()}
    cast.server = Server.restore(saved, cast.agreement)
    cast.server.begin(0, present=[0, 1, 2])
    for member, answer in answers.items():
        assert cast.server.receive(member, answer) is not None
    result = cast.server.close()
    assert (result.groups, result.blamed) == ({}, {})


# --- what the agreement allows -------------------------------------------------------------------------------


def test_the_audit_counts_the_smallest_set_and_the_heaviest_member() -> None:
    agreement = agreed(
        **CALLED | {"policy": replace(ROUND, anonymity=3), "weights": (3, 1, 1, 1, 1), "clip": 1.0, "bound": None}
    )[0]
    found = audit_round(agreement)
    assert (found.anonymity.lower, found.bound) == (3, True)
    assert found.leverage == pytest.approx(9 / 11)
    capped = agreed(**CALLED | {"policy": replace(ROUND, anonymity=3, max_leverage=0.5)})[0]
    assert audit_round(capped).leverage == pytest.approx(1 / 3)


def test_over_rounds_anybody_may_be_exposed() -> None:
    several = agreed(**CALLED)[0]
    found = audit_training(several)
    assert found.exposed == set(range(5))
    assert "EXPOSED" in "\n".join(summarise(several).lines())
    everybody = agreed(**CALLED | {"policy": replace(ROUND, anonymity=5)})[0]  # no smaller set may be called
    assert not audit_training(everybody).exposed
    one = agreed(**CALLED | {"rounds": 1})[0]
    assert not audit_training(one).exposed


@pytest.mark.parametrize("more", [{"roll_call": True}, {}])
def test_a_successor_of_sums_that_vary_promises_no_more_than_each_round(more: dict[str, Any]) -> None:
    """The earlier sum without a member, minus the sum of all: also where a member released the earlier one."""
    first, identities = make_agreement(members=5, size=5, length=1, clip=1.0, policy=Policy(memory="round"), **more)
    strict = replace(first.terms, name="next", policy=Policy(), roll_call=False, predecessors=(first.fingerprint,))
    with pytest.raises(AgreementRefused, match="differ by one member"):
        agree_on(strict, identities).check([first])
    agree_on(replace(strict, policy=Policy(memory="round")), identities).check([first])


def test_a_simulation_sums_those_that_do_not_drop_out() -> None:
    agreement, identities = make_agreement(members=5, size=5, length=2, bound=9, rounds=2, policy=ROUND, roll_call=True)
    inputs = {v: [v, 1] for v in range(5)}
    simulation = WholeRun(agreement, identities)
    assert list(simulation.round(0, inputs, drop=[1]).sum()) == [9, 4]
    result = simulation.round(1, inputs, misbehave={2: Misbehaviour.SILENCE})
    assert result.lost == {(0, 0): "client 2: it did not answer in time"}

"""Misbehaving clients never stop the others, never spoil a sum that is not theirs, and never frame anybody.

`cheats.py` is the table of what they try. Every cheat goes through the same check (`check_outcome`); then
one test per check of the server says what exactly happens to the cheater.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest

from secagg import Plan, Policy, Result, Schedule, Server, Stage, TooFewSurvivors, UsageError
from secagg.protocol.messages import MaskedInput, Unmasking
from secagg.protocol.wire import encode
from tests.secagg.cheats import CHEATS, LIARS, SPOILERS, STAGES, resign
from tests.secagg.cluster import Cluster, check_outcome, make_inputs, make_plan, remembered_signatures

TRIPLES = Schedule(name="random", size=3)


@pytest.fixture(autouse=True)
def _fast_signatures() -> Iterator[None]:
    with remembered_signatures():
        yield


def run_with(
    plan: Plan, cheaters: Mapping[int, str], absent: Mapping[int, Stage] | None = None
) -> tuple[Cluster, Result]:
    """A run in lockstep with these cheaters, and others who stop answering at a stage. Checked."""
    absent = absent or {}
    cheats = {v: CHEATS[name] for v, name in cheaters.items()}
    cheats |= {v: CHEATS[f"silence at {list(STAGES)[stage]}"] for v, stage in absent.items()}
    cluster = Cluster(plan, make_inputs(plan), cheats=cheats).start()
    result = cluster.finish()
    check_outcome(
        cluster,
        result,
        cheaters=cheaters,
        absent=absent,
        liars=[v for v, name in cheaters.items() if name in LIARS],
        spoilers=[v for v, name in cheaters.items() if name in SPOILERS],
    )
    return cluster, result


def small_plan(**changes: object) -> Plan:
    """Six clients in two groups; one cheater and one dropout leave exactly t = 4."""
    return make_plan(6, schedule=TRIPLES, colluders=1, threshold=4, **changes)


def pair_in_one_group(plan: Plan) -> tuple[int, int]:
    first, second, _ = plan.groupings[0][0]
    return first, second


@pytest.mark.parametrize("name", CHEATS)
def test_no_cheat_stops_a_run_spoils_another_group_or_frames_anybody(name: str) -> None:
    plan = small_plan()
    cheater, gone = pair_in_one_group(plan)
    _, result = run_with(plan, {cheater: name}, {gone: Stage.INPUTS})
    assert (0, 1) in result.groups
    if name not in SPOILERS and name not in LIARS:
        assert (0, 0) in result.groups or (0, 0) in result.closed  # closed: the cheater's group fell to one


@pytest.mark.parametrize("name", CHEATS)
def test_no_cheat_frames_a_client_that_vanished_before_it_gave_its_seeds(name: str) -> None:
    """Its seeds are rebuilt from shares, the cheater's among them."""
    plan = small_plan()
    cheater, gone = pair_in_one_group(plan)
    _, result = run_with(plan, {cheater: name}, {gone: Stage.UNMASKING})
    assert (0, 1) in result.groups


@pytest.mark.parametrize("name", sorted(SPOILERS))
def test_a_bad_dealer_costs_only_the_groups_that_need_its_secrets(name: str) -> None:
    """Here the dealer leaves after dealing, so that its mask key is what is needed."""
    plan = make_plan(8, schedule=Schedule(name="random", size=4), colluders=1, threshold=5)
    dealer = plan.groupings[0][0][0]

    def deal_and_leave(cluster: Cluster, me: int, message: object) -> list[bytes]:
        if STAGES["input"] is type(message):
            return []
        return CHEATS[name](cluster, me, message)  # type: ignore[arg-type]

    cluster = Cluster(plan, make_inputs(plan), cheats={dealer: deal_and_leave}).start()
    result = cluster.finish()
    check_outcome(cluster, result, cheaters=[dealer], spoilers=[dealer])
    assert (0, 1) in result.groups
    assert dealer in result.dropouts


@pytest.mark.parametrize("count", [2, 3])
def test_several_cheaters_of_all_kinds_at_once(count: int) -> None:
    """Rotate through the table so that every cheat meets the next ones in it."""
    plan = make_plan(8, schedule=Schedule(name="random", size=4), colluders=1, threshold=5)
    names = list(CHEATS)
    for start in range(0, len(names), 7):
        chosen = [names[(start + 11 * k) % len(names)] for k in range(count)]
        run_with(plan, dict(zip((1, 4, 6), chosen, strict=False)))


# --- who is named, and why -------------------------------------------------------------------------------

NAMED = {
    "a wrong seed share": "gave a wrong share",
    "a wrong nonce": "gave a wrong share",
    "every share wrong": "gave a wrong share",
    "a share not below the prime": "gave a wrong share",
    "a share too few": "wrong number of shares",
    "the other kind of share": "wrong kind",
    "shares of a stranger": "dealt none",
    "a wrong key share": "gave a wrong share",
    "keeps a share that is no field element": "gave a wrong share",
    "commits to another seed": "do not rebuild its seed",
    "masks with a seed it did not commit to": "a wrong seed of its own",
    "corrupts every box": "peers hold no good share",
    "shares not below the prime": "gave a wrong share",  # its own, of itself
}


@pytest.mark.parametrize("name", NAMED)
def test_evidence_names_the_cheater(name: str) -> None:
    plan = small_plan()
    cheater, gone = pair_in_one_group(plan)
    _, result = run_with(plan, {cheater: name}, {gone: Stage.INPUTS})
    assert NAMED[name] in result.blamed[cheater]


VANISHED = {
    "every share off the polynomial": "do not rebuild its seed",
    "commits to another seed": "do not rebuild its seed",
    "corrupts every box": "peers hold no good share",
}


@pytest.mark.parametrize("name", VANISHED)
def test_a_bad_dealer_that_vanished_is_named_and_its_group_is_lost(name: str) -> None:
    plan = small_plan()
    cheater, _ = pair_in_one_group(plan)

    def deal_and_vanish(cluster: Cluster, me: int, message: object) -> list[bytes]:
        if STAGES["unmasking"] is type(message):
            return []
        return CHEATS[name](cluster, me, message)  # type: ignore[arg-type]

    cluster = Cluster(plan, make_inputs(plan), cheats={cheater: deal_and_vanish}).start()
    result = cluster.finish()
    assert VANISHED[name] in result.blamed[cheater]
    assert set(result.lost) == {(0, 0)}
    check_outcome(cluster, result, cheaters=[cheater], spoilers=[cheater])


DROPPED = {
    "garbage at keys": (Stage.KEYS, ""),
    "wrong signature at keys": (Stage.KEYS, "wrong signature"),
    "a low-order key": (Stage.KEYS, "low-order"),
    "one key for two purposes": (Stage.KEYS, "are the same"),
    "an unmasking before its time": (Stage.KEYS, "too early"),
    "in somebody else's name at keys": (Stage.KEYS, "names client"),
    "a server's message at keys": (Stage.KEYS, "not a message to the server"),
    "silence at keys": (Stage.KEYS, "did not answer"),
    "one byte too many at shares": (Stage.SHARES, "extra bytes"),
    "wrong signature at shares": (Stage.SHARES, "wrong signature"),
    "replay of another run at shares": (Stage.SHARES, "wrong signature"),
    "hashes that do not lead to the root": (Stage.SHARES, "root"),
    "a box too few": (Stage.SHARES, "wrong dealing size"),
    "a commitment too many": (Stage.SHARES, "wrong dealing size"),
    "wrong signature at input": (Stage.INPUTS, "wrong signature"),
    "replay of another run at input": (Stage.INPUTS, "wrong signature"),
    "vectors that it did not sign": (Stage.INPUTS, "wrong signature"),
    "one bit of a vector changed on the way": (Stage.INPUTS, "wrong signature"),
    "a vector too many": (Stage.INPUTS, "shape"),
    "vectors too short": (Stage.INPUTS, "shape"),
    "disputes itself": (Stage.INPUTS, "disputes"),
    "disputes a stranger": (Stage.INPUTS, "disputes"),
    "wrong signature at consistency": (Stage.CONSISTENCY, "wrong signature"),
    "replay of another run at consistency": (Stage.CONSISTENCY, "wrong signature"),
    "garbage and then the right message at input": (Stage.INPUTS, "unknown message type"),
    "silence at consistency": (Stage.CONSISTENCY, "did not answer"),
    "wrong signature at unmasking": (Stage.UNMASKING, "wrong signature"),
    "silence at unmasking": (Stage.UNMASKING, "did not answer"),
}


@pytest.mark.parametrize("name", DROPPED)
def test_a_bad_message_makes_its_sender_a_dropout_with_a_reason(name: str) -> None:
    plan = small_plan()
    _, result = run_with(plan, {2: name})
    stage, reason = DROPPED[name]
    assert result.dropouts[2].stage is stage
    assert reason in result.dropouts[2].reason
    assert result.blamed == {}  # a dropout is not blamed: messages get lost
    assert (2 in result.survivors) == (stage > Stage.INPUTS)


@pytest.mark.parametrize("restart", [False, True])
def test_other_vectors_after_the_stage_is_closed_change_nothing(restart: bool) -> None:
    """The client signs a second set of vectors when it has seen who survives, and again before it unmasks."""
    plan = small_plan()
    cluster = Cluster(plan, make_inputs(plan)).start()
    while cluster.server.stage < Stage.DONE:
        cluster.deliver_all()
        cluster.advance()
        if Stage.INPUTS < cluster.server.stage < Stage.DONE:
            sent = next(message for message in cluster.sent[2] if isinstance(message, MaskedInput))
            other = resign(cluster, replace(sent, vectors=sent.vectors + np.uint32(7)))
            before = cluster.server._memory.survivors[2]
            if restart:
                cluster.save_and_restore_server()
            assert cluster.server.receive(2, encode(other)) is None
            assert cluster.server._memory.survivors[2] == before
    check_outcome(cluster, cluster.server.result())


def test_a_replay_at_keys_changes_nothing_because_keys_may_be_sent_ahead() -> None:
    """Keys name no plan; an old advert of this round is a good one, whose owner then cannot follow up."""
    _, result = run_with(small_plan(), {2: "replay of another run at keys"})
    assert 2 not in result.survivors


def test_a_second_answer_changes_nothing() -> None:
    plan = small_plan()
    cluster = Cluster(plan, make_inputs(plan)).start()
    while cluster.server.stage < Stage.DONE:
        while cluster.flying:
            letter = cluster.flying[0]
            cluster.deliver()
            if letter.up:
                assert cluster.server.receive(letter.client, letter.data) is None
        cluster.advance()
    check_outcome(cluster, cluster.server.result())


def test_a_message_from_outside_the_roster_is_the_applications_mistake() -> None:
    server = Server(small_plan())
    with pytest.raises(UsageError, match="not on the roster"):
        server.receive(6, b"")


def test_who_left_does_not_come_back() -> None:
    """A client that sent no keys in time cannot deal later, however well it signs."""
    plan = small_plan()
    cluster = Cluster(plan, make_inputs(plan)).start(absent=[5])
    cluster.deliver_all()
    cluster.advance()
    late = Cluster(plan, make_inputs(plan), seed=b"late").start()
    late.deliver_all()
    late.advance()
    reply = late.clients[5].receive(late.server.outbox()[5])
    out = cluster.server.receive(5, encode(reply))
    assert out is not None
    assert out.stage is Stage.KEYS
    check_outcome(cluster, cluster.finish(), absent=[5])


@pytest.mark.parametrize("n_t_c", [(3, 2, 0), (5, 3, 0), (6, 4, 1), (7, 5, 2), (8, 5, 1)])
def test_no_honest_dealer_is_blamed_on_the_word_of_as_many_liars_as_a_run_withstands(
    n_t_c: tuple[int, int, int],
) -> None:
    n, t, colluders = n_t_c
    plan = make_plan(n, threshold=t, colluders=colluders)
    liars = {n - 1 - k: "disputes everybody" for k in range(n - t)}
    _, result = run_with(plan, liars)
    assert result.blamed == {}
    assert set(result.groups) == {(0, 0)}


def test_a_dealer_disputed_by_more_peers_than_may_cheat_is_named() -> None:
    plan = make_plan(7, threshold=5, colluders=2)
    _, result = run_with(plan, {3: "corrupts every box"})
    assert "6 peers" in result.blamed[3]


def test_a_disputed_pair_is_an_erasure_and_not_an_error() -> None:
    """One holder without a share of one dealer: the group is opened with the others' shares."""
    plan = make_plan(7, threshold=5, colluders=2)
    cluster, result = run_with(plan, {3: "corrupts one box"})
    assert set(result.groups) == {(0, 0)}
    assert result.blamed == {}
    given = cluster.sent[0][-1]
    assert isinstance(given, Unmasking)
    assert given.seed_owners == (0, 1, 2, 4, 5, 6)  # it holds everybody else's


def test_wrong_shares_are_erasures_and_the_right_ones_of_the_same_message_still_count() -> None:
    """n = t + 2: with two cheaters every other share is needed, among them the rest of the cheaters' own."""
    plan = make_plan(6, threshold=4, colluders=1)
    _, result = run_with(plan, {0: "a wrong seed share", 1: "a wrong nonce"})
    assert set(result.blamed) == {0, 1}
    assert set(result.groups) == {(0, 0)}


def test_an_honest_dealer_is_not_blamed_when_too_few_good_shares_came() -> None:
    """Client 5 vanishes after its vector was counted; two of five give wrong shares, four good ones are needed."""
    plan = make_plan(6, threshold=4, colluders=1)
    _, result = run_with(plan, {0: "every share wrong", 1: "every share wrong"}, {5: Stage.UNMASKING})
    assert set(result.lost) == {(0, 0)}
    assert set(result.blamed) == {0, 1}


@pytest.mark.parametrize("stage", list(Stage)[:5])
def test_too_few_survivors_at_any_stage_is_an_error_and_the_sums_stay_hidden(stage: Stage) -> None:
    plan = make_plan(5, threshold=4, colluders=1)
    silent = CHEATS[f"silence at {list(STAGES)[stage]}"]
    cluster = Cluster(plan, make_inputs(plan), cheats={0: silent, 1: silent}).start()
    with pytest.raises(TooFewSurvivors, match="threshold is 4"):
        cluster.finish()
    assert cluster.server.stage is (Stage.FAILED if stage < Stage.CONSISTENCY else stage)
    with pytest.raises(UsageError, match="no result"):
        cluster.server.result()


@pytest.mark.parametrize("stage", list(Stage)[:5])
def test_t_survivors_are_enough_at_any_stage(stage: Stage) -> None:
    plan = make_plan(5, threshold=4, colluders=1)
    _, result = run_with(plan, {}, {0: stage})
    assert set(result.groups) == {(0, 0)}


def test_an_atom_that_fell_too_low_leaves_whole_and_the_rest_is_exact() -> None:
    plan = make_plan(
        12,
        schedule=Schedule(name="atoms", size=6, groupings=2, atom=3),
        policy=Policy(anonymity=2, max_leverage=1.0),
        colluders=0,
    )
    first, second, _ = plan.atoms[0]
    _, result = run_with(plan, {}, {first: Stage.INPUTS, second: Stage.INPUTS})
    (left,) = set(plan.atoms[0]) - {first, second}
    assert left not in result.survivors
    assert "atom" in result.dropouts[left].reason
    assert set(result.groups)


def test_a_vector_changed_under_way_makes_its_sender_a_dropout_and_every_sum_stays_exact() -> None:
    plan = small_plan()
    cluster = Cluster(plan, make_inputs(plan)).start()
    changed = 0
    while cluster.server.stage < Stage.DONE:
        while cluster.flying:
            letter = cluster.flying[0]
            if letter.up and letter.client == 2 and cluster.server.stage is Stage.INPUTS:
                cluster.corrupt(0, lambda data: data[:-4] + bytes([data[-4] ^ 1]) + data[-3:])
                changed += 1
            cluster.deliver()
        cluster.advance()
    result = cluster.server.result()
    check_outcome(cluster, result, absent=[2])
    assert changed == 1
    assert "wrong signature" in result.dropouts[2].reason
    (group,) = [row for row in result.groups if 2 in plan.group(row)]
    others = [v for v in plan.group(group) if v != 2]
    assert result.sum(group).tolist() == sum(cluster.inputs[v] for v in others).tolist()


def test_two_contexts_in_one_run_make_dropouts_and_never_a_wrong_sum() -> None:
    plan = make_plan(6, schedule=TRIPLES, colluders=1, threshold=4, context=b"model A")
    cluster = Cluster(plan, make_inputs(plan), contexts={1: b"model B", 4: b"model B"}).start()
    result = cluster.finish()
    assert set(result.survivors) == {0, 2, 3, 5}
    assert set(cluster.errors) == {1, 4}
    check_outcome(cluster, result, cheaters=[1, 4])

    half = Cluster(plan, make_inputs(plan), contexts=dict.fromkeys((0, 1, 4), b"model B")).start()
    with pytest.raises(TooFewSurvivors):
        half.finish()


def test_keys_for_another_round_make_a_dropout() -> None:
    plan = small_plan()
    other = make_plan(6, schedule=TRIPLES, colluders=1, threshold=4, round=plan.round + 1)
    advert = Cluster(other, make_inputs(other)).clients[2].hello()
    out = Server(plan).receive(2, advert)
    assert out is not None
    assert "client 2: wrong signature" in out.reason


def test_a_changed_message_without_a_new_signature_is_refused_where_a_cheaters_own_is_not() -> None:
    """So the table's cheats, which are signed, reach further than noise on the wire would."""
    plan = small_plan()
    cluster = Cluster(plan, make_inputs(plan))
    advert = cluster.clients[0].hello()
    swapped = replace(advert, mask=advert.channel, channel=advert.mask)
    assert Server(plan).receive(0, swapped) is not None
    assert Server(plan).receive(0, resign(cluster, swapped)) is None

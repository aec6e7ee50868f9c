"""What version 1 fell to, as tests: threads, large messages, other floors, kept secrets, broken atoms, rounds."""

import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Thread
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg import (
    Agreement,
    AlreadyUsed,
    Client,
    FileJournal,
    JournalError,
    MemoryJournal,
    PeerError,
    Policy,
    Schedule,
    SecAggError,
    Server,
    Stage,
    UsageError,
    encode,
)
from secagg.crypto import box, hashtree, shamir
from secagg.protocol import outcome, transcript, unmask
from secagg.protocol.client_state import ClientMemory, State
from secagg.protocol.dealing import HeldShares, share_hashes
from secagg.protocol.messages import Consistency, Dealing, MaskedInput, Survivor, Survivors, Unmasking
from secagg.protocol.relations import possible_sums
from secagg.protocol.result import BROKEN_ATOM, TOO_LARGE, GroupSum
from secagg.protocol.rounds import claim_round
from secagg.protocol.server_state import ServerMemory
from secagg.protocol.suspects import Suspects
from secagg.protocol.unmask import AgreedOpening, Shares, rebuild
from tests.secagg.cluster import (
    Cluster,
    agreement_of,
    clear_plan,
    identities_of,
    identity,
    make_agreement,
    make_inputs,
    make_plan,
    plan_from,
    run_plan,
    sends_other_vectors,
    signed,
)
from tests.secagg.drbg import Drbg
from tests.secagg.malicious import World


def answered_to(stage: Stage, **changes: object) -> Cluster:
    """A run in which everybody has answered every stage before this one, and the next messages are under way."""
    plan = make_plan(6, **changes)
    cluster = Cluster(plan, make_inputs(plan)).start()
    while cluster.server.stage < stage:
        cluster.deliver_all()
        cluster.advance()
    return cluster


# --- both roles (findings 9, 11, 12, 14) ---------------------------------------------------------------------


def threads_inside(monkeypatch: pytest.MonkeyPatch, role: type[Client] | type[Server]) -> list[int]:
    """How many threads are in `_receive` at once, one number per call; a pause lets threads meet that no lock parts."""
    take, inside, seen = role._receive, [0], []

    def slow(*arguments: object) -> object:
        inside[0] += 1
        seen.append(inside[0])
        time.sleep(0.005)
        try:
            return take(*arguments)
        finally:
            inside[0] -= 1

    monkeypatch.setattr(role, "_receive", slow)
    return seen


def test_inputs_from_six_threads_each_delivered_twice_give_the_right_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding 9: the sums were wrong in every coordinate."""
    seen = threads_inside(monkeypatch, Server)
    plan = make_plan(6, length=100_000, colluders=0, bound=1000)
    cluster = Cluster(plan, {v: np.full(plan.length, v + 1) for v in plan.ids}).start()
    for _ in range(2):
        cluster.deliver_all()
        cluster.advance()
    for letter in [letter for letter in cluster.flying if not letter.up]:
        cluster.give(letter.client, letter.data)
    inputs = [letter for letter in cluster.flying if letter.up]
    cluster.flying.clear()
    threads = [Thread(target=cluster.server.receive, args=(one.client, one.data)) for one in inputs * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cluster.advance()
    result = cluster.finish()
    assert (result.sum() == sum(range(1, 7))).all()
    assert set(seen) == {1}


def test_one_message_from_six_threads_gets_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = answered_to(Stage.SHARES)
    seen = threads_inside(monkeypatch, Client)
    letter = next(letter for letter in cluster.flying if letter.client == 2)
    answers: list[object] = []
    client = cluster.clients[2]

    def receive() -> None:
        with suppress(SecAggError):  # a second answer is refused; the count below says why
            answers.append(client.receive(letter.data))

    threads = [Thread(target=receive) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [1]  # the other five get the answer that is kept
    assert len(answers) == 6
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.parametrize("stage", [Stage.SHARES, Stage.INPUTS, Stage.CONSISTENCY, Stage.UNMASKING])
def test_a_duplicate_gets_the_same_answer_and_the_run_goes_on(stage: Stage) -> None:
    cluster = answered_to(stage)
    letter = next(letter for letter in cluster.flying if letter.client == 1)
    client, update = cluster.clients[1], cluster.inputs[1]
    first = client.receive(letter.data, update=update)
    state = client.state
    other = update + 1  # must not be masked a second time
    assert encode(client.receive(letter.data, update=other)) == encode(first)
    assert client.state is state
    cluster.flying.remove(letter)
    cluster.server.receive(1, encode(first))
    assert cluster.finish().sum().tolist() == np.sum(list(cluster.inputs.values()), axis=0).tolist()


def test_a_duplicate_after_a_restart_gets_the_saved_answer_but_never_masks_again() -> None:
    for stage in (Stage.SHARES, Stage.INPUTS, Stage.CONSISTENCY):
        cluster = answered_to(stage)
        letter = next(letter for letter in cluster.flying if letter.client == 1)
        first = cluster.clients[1].receive(letter.data, update=cluster.inputs[1])
        cluster.save_and_restore_client(1)
        if stage is Stage.INPUTS:
            with pytest.raises(UsageError, match="send that answer again"):
                cluster.clients[1].receive(letter.data, update=cluster.inputs[1] + 1)
        else:
            assert encode(cluster.clients[1].receive(letter.data)) == encode(first)
        assert cluster.clients[1].state is not State.FAILED


def test_vectors_in_memory_of_the_application_are_not_kept() -> None:
    cluster = answered_to(Stage.INPUTS)
    letter = next(letter for letter in cluster.flying if letter.client == 1)
    out = np.empty((1, 3), np.uint32)
    cluster.clients[1].receive(letter.data, update=cluster.inputs[1], out=out)
    out[:] = 7
    with pytest.raises(UsageError, match="send that answer again"):
        cluster.clients[1].receive(letter.data, update=cluster.inputs[1])


def test_a_checkpoint_has_the_bytes_of_save_and_only_one_of_the_two_goes_on() -> None:
    cluster = answered_to(Stage.SHARES)
    client, letter = cluster.clients[0], next(letter for letter in cluster.flying if letter.client == 0)
    stored = client.checkpoint()
    assert client.state is State.ADVERTISED
    client.receive(letter.data)
    twin = Client.restore(stored, identity(0), cluster.agreed, cluster.journals[0])
    with pytest.raises(AlreadyUsed):
        twin.receive(letter.data)
    assert stored == Client.restore(stored, identity(0), cluster.agreed, cluster.journals[0]).save()
    server = cluster.server
    assert server.checkpoint() == server.checkpoint() == server.save()
    with pytest.raises(UsageError, match="FAILED"):
        server.checkpoint()


def test_an_unmasking_of_megabytes_is_not_kept() -> None:
    """Finding 11: 300 MB of signed shares were kept."""
    cluster = answered_to(Stage.UNMASKING)
    cluster.give(2, next(letter.data for letter in cluster.flying if letter.client == 2))
    honest = cluster.sent[2][-1]
    assert isinstance(honest, Unmasking)
    for change in ({"seeds": bytes(3_000_000)}, {"keys": bytes(3_000_000)}, {"own": bytes(3_000_000)}):
        large = replace(honest, **change)  # type: ignore[arg-type]
        large = replace(large, signature=signed(2, transcript.unmasking_statement(cluster.plan.hash, large)))
        server = Server.restore(cluster.server.checkpoint(), MemoryJournal(), plan=cluster.plan)
        out = server.receive(2, encode(large))
        assert out is not None
        assert "wrong unmasking size" in out.reason
        assert 2 not in server._memory.unmaskings


def test_a_saved_client_is_restored_only_under_its_own_agreement() -> None:
    """Finding 12: a client saved under loose floors went on under strict ones."""
    plan = make_plan(6)
    world = World(plan)
    data = world.run_to(Stage.SHARES)[0].client.save()
    strict = agreement_of(make_plan(6, policy=Policy(min_survivors=5, anonymity=5)))
    with pytest.raises(UsageError, match="another agreement"):
        Client.restore(data, identity(0), strict, world.journals[0])
    changed = replace(plan, policy=Policy(min_survivors=5, anonymity=5))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Agreement, "plan", lambda *_: changed)  # other software, the same agreement
        with pytest.raises(UsageError, match="another plan"):
            Client.restore(data, identity(0), world.agreed, world.journals[0])
    assert Client.restore(data, identity(0), world.agreed, world.journals[0]).state is State.DEALT


def secrets_of(memory: ClientMemory) -> list[bytes]:
    return [memory.channel, memory.mask, *memory.seeds, *(held.shares for held in memory.held)]


@pytest.mark.parametrize("end", ["done", "failed", "saved"])
def test_secrets_are_dropped_when_a_run_ends(end: str) -> None:
    """Finding 14: keys, seeds and shares were kept after DONE."""
    world = World(make_plan(6))
    puppets = world.run_to(Stage.UNMASKING if end == "done" else Stage.INPUTS)
    client = puppets[0].client
    if end == "failed":
        assert all(secrets_of(client._memory))
        with pytest.raises(PeerError):
            client.receive(Survivors((), ()))
    if end == "saved":
        client.save()
    assert client.state is (State.DONE if end == "done" else State.FAILED)
    assert not any(secrets_of(client._memory))
    assert not client._agreed
    assert not {"_channel_key", "_mask_key"} & set(client.__dict__)


def test_a_server_drops_the_shares_when_it_is_done() -> None:
    cluster = answered_to(Stage.UNMASKING)
    cluster.deliver_all()
    assert cluster.server._memory.unmaskings
    cluster.advance()
    assert cluster.server.stage is Stage.DONE
    assert not cluster.server._memory.unmaskings
    assert not cluster.server._memory.sums


def test_a_journal_that_fails_ends_no_run() -> None:
    class Sometimes(MemoryJournal):
        broken = False

        def create(self, name: str, content: bytes) -> bytes | None:
            if self.broken:
                raise OSError("disk full")
            return super().create(name, content)

    plan = make_plan(6)
    journals = {v: Sometimes() for v in plan.ids}
    cluster = Cluster(plan, make_inputs(plan), journals=journals)
    client, journal = cluster.clients[1], journals[1]
    journal.broken = True
    with pytest.raises(JournalError):
        client.hello()
    journal.broken = False
    cluster.start()
    while cluster.server.stage < Stage.DONE:
        for letter in [letter for letter in cluster.flying if not letter.up and letter.client == 1]:
            state, journal.broken = client.state, True
            with pytest.raises(JournalError):
                client.receive(letter.data, update=cluster.inputs[1])
            assert client.state is state
            journal.broken = False
        cluster.deliver_all()
        cluster.advance()
    assert cluster.server.result().sum().tolist() == np.sum(list(cluster.inputs.values()), axis=0).tolist()


def test_dropouts_and_stage_are_public() -> None:
    cluster = answered_to(Stage.SHARES)
    cluster.server.give_up(3, "the application knows why")
    assert cluster.server.stage is Stage.SHARES
    assert cluster.server.dropouts[3].reason == "the application knows why"


# --- sums against each other -----------------------------------------------------------------------------------


def test_a_sum_that_honest_members_cannot_reach_is_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(6, schedule=Schedule(name="random", size=3), bound=100)
    sends_other_vectors(monkeypatch, 2, lambda vectors: vectors + np.uint32(10**6))
    result = run_plan(plan, {v: np.full(3, v) for v in plan.ids})
    (group,) = result.lost
    assert 2 in plan.group(group)
    assert result.lost[group] == TOO_LARGE
    assert not result.blamed
    assert len(result.groups) == 1


def test_different_vectors_in_two_groupings_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = Schedule(name="transversal", size=3, groupings=2)
    plan = make_plan(9, schedule=schedule, bound=1000, policy=Policy(mode="report-even-if-exposed"))
    inputs = {v: np.full(3, v) for v in plan.ids}
    assert run_plan(plan, inputs).inconsistent == ()
    sends_other_vectors(monkeypatch, 2, lambda vectors: vectors + np.array([[0], [5]], np.uint32))
    assert run_plan(plan, inputs).inconsistent


@given(st.integers(1, 5), st.lists(st.integers(-1000, 1000), min_size=3, max_size=3))
def test_range_is_exactly_what_members_can_reach(members: int, total: list[int]) -> None:
    encoding = make_plan(6, bound=100).encoding
    opened = GroupSum(np.array(total, np.int64).astype(np.uint32), tuple(range(members)))
    groups, lost, _ = possible_sums(encoding, {(0, 0): opened})
    assert bool(lost) == (max(map(abs, total)) > 100 * members) == (not groups)


# --- atoms (finding 1) -----------------------------------------------------------------------------------------


def atoms_plan(**changes: object) -> object:
    settings = {"schedule": Schedule(name="atoms", size=6, groupings=1, atom=3), "policy": Policy(anonymity=3)}
    return make_plan(12, colluders=0, **{**settings, **changes})


def test_clients_sum_whole_atoms_only_whatever_the_server_wants() -> None:
    """Finding 1: a server kept a broken atom in the sums, and two rounds exposed a client."""
    plan = atoms_plan(policy=Policy(min_survivors=2, anonymity=2, max_leverage=1.0))
    world = World(plan)
    missing = plan.atoms[0][0]
    puppets = world.run_to(Stage.INPUTS, absent={missing: Stage.INPUTS})
    inputs = [p.find(MaskedInput) for v, p in puppets.items() if v != missing]
    asked = world.survivors(inputs)
    for v, puppet in puppets.items():
        if v != missing:
            puppet.tell(asked)
    endorsed = world.signatures([p.find(Consistency) for v, p in puppets.items() if v != missing][: plan.t])
    for v, puppet in puppets.items():
        if v != missing:
            given_up = puppet.tell(endorsed)
            assert not set(plan.atoms[0]) & set(given_up.seed_owners)
            assert set(given_up.key_owners) == set(plan.atoms[0])
            assert bool(given_up.own) == (v not in plan.atoms[0])
    for found in world.attacker().learned:
        assert not found.clients & set(plan.atoms[0])


def test_a_client_does_not_sign_the_sum_of_a_broken_atom_alone() -> None:
    """Three of four members survive, as many as the policy asks for; only the rule of whole atoms closes the group."""
    plan = make_plan(12, colluders=0, schedule=Schedule(name="atoms", size=4, atom=4), policy=Policy(anonymity=3))
    world = World(plan)
    missing = plan.atoms[0][0]
    puppets = world.run_to(Stage.INPUTS, absent={missing: Stage.INPUTS})
    inputs = [p.find(MaskedInput) for v, p in puppets.items() if v != missing]
    asked = replace(world.survivors(inputs), groups=((0, 0), (0, 1), (0, 2)))
    with pytest.raises(PeerError, match="which my audit closes"):
        puppets[plan.atoms[1][0]].client.receive(encode(asked))


def test_broken_atoms_help_to_open_and_do_not_cost_the_quorum() -> None:
    plan = atoms_plan()
    gone = {atom[0]: Stage.INPUTS for atom in plan.atoms[:3]}  # 3 of 12 are absent, 9 sign, 3 are summed
    inputs = {v: np.full(3, v) for v in plan.ids}
    result = run_plan(plan, inputs, drop=gone)
    assert result.survivors == tuple(sorted(plan.atoms[3]))
    (opened,) = [group for group in result.groups if result.groups[group].members]
    assert result.sum(opened).tolist() == [sum(plan.atoms[3])] * 3
    broken = {v for v, out in result.dropouts.items() if out.reason == BROKEN_ATOM}
    assert broken == {v for atom in plan.atoms[:3] for v in atom[1:]}
    same = clear_plan(plan, inputs, drop=gone)
    assert same.survivors == result.survivors
    assert same.sum(opened).tolist() == result.sum(opened).tolist()


# --- stage 4: own seeds and other subsets ---------------------------------------------------------------------


def test_a_wrong_seed_of_ones_own_is_signed_evidence() -> None:
    plan = make_plan(6)
    identities = identities_of(plan)

    def lie(_: Stage, message: object) -> object:
        if not isinstance(message, Unmasking):
            return message
        wrong = replace(message, own=bytes(len(message.own)))
        return replace(wrong, signature=identities[2].sign(transcript.unmasking_statement(plan.hash, wrong)))

    result = run_plan(plan, make_inputs(plan), tamper={2: lie})
    assert result.blamed == {2: "client 2 gave a wrong seed of its own"}
    assert result.sum().tolist() == np.sum(list(make_inputs(plan).values()), axis=0).tolist()  # from shares


def test_a_wrong_number_of_ones_own_seeds_is_signed_evidence() -> None:
    plan = make_plan(6)
    identities = identities_of(plan)

    def lie(_: Stage, message: object) -> object:
        if not isinstance(message, Unmasking):
            return message
        wrong = replace(message, own=message.own * 2)
        return replace(wrong, signature=identities[2].sign(transcript.unmasking_statement(plan.hash, wrong)))

    result = run_plan(plan, make_inputs(plan), tamper={2: lie})
    assert result.blamed == {2: "client 2 gave the wrong number of its own seeds"}
    assert result.groups


def opened_with(bad_holders: Collection[int]) -> Shares:
    """Shares of client 0's seed from 7 holders; those of `bad_holders` are hashed, but of another secret."""
    plan = make_plan(8, colluders=0)
    assert plan.t == 5
    cheat = partial(deals_two_secrets, bad=frozenset(bad_holders))
    cluster = Cluster(plan, make_inputs(plan), cheats={0: cheat}).start()
    while cluster.server.stage < Stage.UNMASKING:
        cluster.deliver_all()
        cluster.advance()
    cluster.flying = [letter for letter in cluster.flying if letter.client != 0]  # the dealer vanishes
    cluster.deliver_all()
    memory, views = cluster.server._memory, cluster.server._views
    shares = Shares(
        AgreedOpening(
            plan=plan,
            adverts=memory.adverts,
            dealings=memory.dealings,
            holders={v: views.places(v) for v in memory.dealings},
            survivors=frozenset(memory.survivors),
            groups=memory.groups,
        )
    )
    assert not shares.add_all(memory.unmaskings.values())
    return shares


def deals_two_secrets(cluster: Cluster, me: int, message: object, *, bad: frozenset[int]) -> list[bytes]:
    """An honest client, but some holders get shares of other secrets, with matching hashes and boxes."""
    if not isinstance(message, Dealing):
        return [encode(message)]  # type: ignore[arg-type]
    plan, client = cluster.plan, cluster.clients[me]
    memory = client._memory
    holders = [advert.sender for advert in memory.adverts]
    others = [advert for advert in memory.adverts if advert.sender != me]
    secrets = [(memory.mask, *memory.seeds), (memory.mask, *(bytes(32) for _ in memory.seeds))]
    tables = [shamir.split_each(list(s), plan.t, [plan.index[v] for v in holders], Drbg(b"two")) for s in secrets]
    keys = iter(client._box_keys(others, [(me, advert.sender) for advert in others]))
    dealt, boxes = [], []
    for place, holder in enumerate(holders):
        held = HeldShares(me, bytes(31) + bytes([place]), tables[holder in bad][:, place].tobytes())
        dealt.append(held)
        if holder != me:
            content = held.nonce + held.shares
            boxes.append(box.seal(next(keys), plan.hash, me, holder, content, Drbg(b"box %d" % place)))
    hashes = share_hashes(plan, dealt, holders)
    root = hashtree.levels(hashtree.leaves(hashes))[-1]
    made = replace(message, hashes=hashes.tobytes(), root=root, boxes=b"".join(boxes))
    memory.mine = (replace(memory.mine[0], root=root),)
    advert = next(advert for advert in memory.adverts if advert.sender == me)
    return [encode(replace(made, signature=signed(me, transcript.dealing_statement(plan.hash, advert, made))))]


def test_other_subsets_are_tried_and_the_dealer_is_convicted() -> None:
    shares = opened_with({1})
    rebuilt = rebuild(shares)
    assert (0, 1) in rebuilt.secrets
    assert not rebuilt.missing
    assert set(rebuilt.cheating_dealers) == {0}


def test_no_subset_is_believed_without_its_commitment() -> None:
    rebuilt = rebuild(opened_with({1, 2, 3, 5}))
    assert (0, 1) not in rebuilt.secrets
    assert set(rebuilt.missing) == {(0, 1)}
    assert set(rebuilt.cheating_dealers) == {0}


def test_the_number_of_subsets_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = opened_with({1, 2, 3, 5})
    calls: list[object] = []
    original = unmask._combine
    monkeypatch.setattr(unmask, "_combine", lambda *given: calls.append(given) or original(*given))
    for name, most in (("SUBSETS_PER_SECRET", 2), ("SUBSETS", 1), ("SUBSETS", 0)):
        monkeypatch.setattr(unmask, name, most)
        calls.clear()
        rebuild(shares)
        assert len(calls) == 1 + most  # the first set, and `most` others


# --- rounds (finding 8) ----------------------------------------------------------------------------------------


def test_no_round_is_opened_after_a_later_one() -> None:
    """Finding 8: the server chose among round numbers until the clusters suited it."""
    agreement = make_agreement(6, round=4, last_round=6)
    first = World(plan_from(agreement, later=1))
    first.run_to(Stage.CONSISTENCY)
    earlier = World(plan_from(agreement), name=b"earlier")
    earlier.journals = first.journals
    puppets = earlier.run_to(Stage.INPUTS)
    asked = earlier.survivors(p.find(MaskedInput) for p in puppets.values())
    with pytest.raises(AlreadyUsed, match="round 5 was signed before"):
        puppets[0].tell(asked)
    later = World(plan_from(agreement, later=2), name=b"later")
    later.journals = first.journals
    later.run_to(Stage.UNMASKING)


def test_a_signed_run_may_finish_after_a_later_round() -> None:
    agreement = make_agreement(6, round=5, last_round=6)
    old = World(plan_from(agreement))
    puppets = old.run_to(Stage.INPUTS)
    asked = old.survivors(p.find(MaskedInput) for p in puppets.values())
    stored = puppets[0].client.checkpoint()
    for puppet in puppets.values():
        puppet.tell(asked)
    new = World(plan_from(agreement, later=1), name=b"new")
    new.journals = old.journals
    new.run_to(Stage.UNMASKING)
    twin = Client.restore(stored, identity(0), old.agreed, old.journals[0])
    twin._memory.step += 1  # its answer was lost after the step was recorded
    assert isinstance(twin.receive(asked), Consistency)
    puppets[1].tell(old.signatures(p.find(Consistency) for p in puppets.values()))


@given(st.lists(st.integers(0, 40), max_size=30))
def test_rounds_are_claimed_in_order_and_none_twice(rounds: list[int]) -> None:
    journal, signed_rounds = MemoryJournal(), [-1]
    for round in rounds:
        if round < signed_rounds[-1]:
            with pytest.raises(AlreadyUsed):
                claim_round(journal, str, round)
        else:
            claim_round(journal, str, round)
            signed_rounds.append(round)
    assert len(journal._records) == len(set(signed_rounds)) - 1


def test_two_processes_do_not_claim_two_rounds_in_the_wrong_order(tmp_path: object) -> None:
    class Late(FileJournal):
        """Another process claims round 9 between the search for the last record and the new one."""

        def create(self, name: str, content: bytes) -> bytes | None:
            FileJournal.create(self, name, (9).to_bytes(8, "little"))
            return FileJournal.create(self, name, content)

    with pytest.raises(AlreadyUsed, match="round 9"):
        claim_round(Late(tmp_path), str, 4)  # type: ignore[arg-type]


# --- suspects --------------------------------------------------------------------------------------------------


@given(st.data())
def test_cheaters_suspend_at_most_as_many_honest_clients(data: st.DataObject) -> None:
    n, cheaters = 12, data.draw(st.sets(st.integers(0, 11), min_size=1, max_size=3))
    suspects = Suspects(most=n)
    for round in range(6):
        present = [v for v in range(n) if v not in suspects.excluded(round)]
        pairs = [(a, b) for a in present for b in present if a != b and {a, b} & cheaters]
        disputes = data.draw(st.lists(st.sampled_from(pairs), max_size=8)) if pairs else []
        suspects.suspend(round, disputes)
        out = set(suspects.excluded(round + 1))
        assert len(out - cheaters) <= len(cheaters)
        assert all(out & set(pair) for pair in disputes)


def test_suspensions_double_and_keep_to_the_limit() -> None:
    suspects = Suspects(most=2)
    suspects.suspend(0, [(1, 2), (3, 4)])
    assert suspects.excluded(1) == (1, 2)  # a second pair would exceed the limit
    assert suspects.excluded(2) == ()
    suspects.suspend(2, [(1, 5)])
    assert [suspects.excluded(round) for round in (3, 4, 5)] == [(1, 5), (1,), ()]
    suspects.blamed[7] = "evidence"
    assert suspects.excluded(100) == (7,)
    with pytest.raises(UsageError, match="most"):
        Suspects(most=-1)


def test_a_client_whose_input_is_in_the_sums_cannot_be_given_up() -> None:
    cluster = answered_to(Stage.INPUTS)
    cluster.deliver_all()
    assert cluster.server.give_up(3, "too late") is None
    assert 3 not in cluster.server.dropouts
    cluster.advance()
    assert cluster.server.give_up(3, "too late") is None
    assert cluster.finish().survivors == cluster.plan.ids


def test_a_second_answer_in_stage_three_changes_nothing() -> None:
    cluster = answered_to(Stage.CONSISTENCY)
    cluster.deliver_all()
    before = dict(cluster.server._memory.endorsements)
    assert cluster.server.receive(3, Consistency(3, bytes(64))) is None
    assert cluster.server._memory.endorsements == before
    assert 3 not in cluster.server.dropouts


def test_a_server_that_may_not_go_on_keeps_no_sums() -> None:
    cluster = answered_to(Stage.INPUTS)
    cluster.deliver_all()
    journal = MemoryJournal()
    data = cluster.server.checkpoint()
    one, other = (Server.restore(data, journal, plan=cluster.plan) for _ in range(2))
    one.advance()
    assert other._memory.sums
    with pytest.raises(AlreadyUsed):
        other.advance()
    assert other.stage is Stage.FAILED
    assert not other._memory.sums


@pytest.mark.parametrize(("disputes", "doomed"), [(1, False), (2, True)])
def test_a_vanished_dealer_dooms_its_group_exactly_if_fewer_than_t_survivors_hold_a_good_share(
    disputes: int, doomed: bool
) -> None:
    plan = make_plan(6, threshold=4, colluders=0)  # 5 survivors hold a share of client 5
    memory = ServerMemory(plan=plan, instance=bytes(16))
    memory.survivors = {v: Survivor(v, (5,) if v < disputes else (), bytes(32), bytes(64)) for v in range(5)}
    views = SimpleNamespace(places=lambda _: {v: place for place, v in enumerate(plan.ids)})
    assert bool(outcome.doomed_groups(memory, views)) is doomed  # type: ignore[arg-type]


def test_a_message_with_too_many_key_shares_is_refused_and_its_sender_named() -> None:
    plan = make_plan(6, threshold=4, colluders=0, bound=10**6)

    def more(stage: Stage, message: object) -> object:
        if stage is not Stage.UNMASKING:
            return message
        longer = replace(message, keys=message.keys + bytes(unmask.ENTRY))
        statement = transcript.unmasking_statement(plan.hash, longer)
        return replace(longer, signature=signed(1, statement))

    inputs = make_inputs(plan)
    result = run_plan(plan, inputs, drop={5: Stage.INPUTS}, tamper={1: more})
    assert result.blamed == {1: "client 1 gave the wrong number of shares"}
    assert result.sum().tolist() == np.sum([inputs[v] for v in range(5)], axis=0).tolist()

"""One malicious client cannot make the evidence of an honest hub fail, and nothing makes the verifier raise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from secagg import AgreementRefused, Policy, Schedule, labels
from secagg.agreement import cost
from secagg.crypto.keys import digest
from secagg.evidence import Evidence, verify
from secagg.evidence.runs import DealingRecord, KeysRecord, RunRecord, SignedInput, SignedOpening, SignedUnmasking
from secagg.privacy.smoothing import excess
from secagg.protocol.messages import Dealing, Unmasking
from secagg.protocol.wire import decode, encode
from secagg.simulation import WholeRun
from secagg.simulation import make_agreement as simulated
from secagg.types import u32
from secagg.whole import Advert, Answer, Server, transcript
from tests.secagg.cheats import CHEATS, deal_again, resign, victim_of
from tests.secagg.cluster import Cluster, make_agreement, make_inputs, plan_from
from tests.secagg.evidence import second, second_runs
from tests.secagg.evidence.common import noise
from tests.secagg.evidence.run_common import agreed, evidence_of, signatures_of

CHEATER = 1
ENTRY = 65  # a share and its nonce


def cheated(kind: str, cheat: Any) -> tuple[Any, bytes]:
    """A run in which client 1 cheats; its evidence holds for both verifiers."""
    agreement = agreed(kind)
    plan = plan_from(agreement, b"model 0")
    result = Cluster(plan, make_inputs(plan), cheats={CHEATER: cheat}).start().finish()
    data = evidence_of(agreement, [result])
    assert verify(data, threads=1).problems == ()
    assert second_runs.check(data) == ""
    return result, data


@pytest.mark.parametrize("kind", ["flat", "groups", "sparse", "atoms"])
def test_nothing_after_the_last_answer_counts(kind: str) -> None:
    result, data = cheated(kind, CHEATS["the right message and then garbage at unmasking"])
    assert CHEATER not in result.dropouts
    assert CHEATER in {one.sender for one in Evidence.from_bytes(data).runs[0].unmaskings}


@pytest.mark.parametrize("name", sorted(CHEATS))
def test_no_cheat_of_a_client_voids_the_evidence(name: str) -> None:
    cheated("groups", CHEATS[name])


def forged(secret: int) -> bytes:
    """A share and a nonce that the cheater has chosen."""
    return bytes([secret + 1]) * 32 + bytes(33)


def hiding(cluster: Cluster, me: int, message: Any) -> list[bytes]:
    """A dealer that hides hashes of other own shares in the leaf of somebody else, and gives those shares."""
    plan = cluster.plan
    if isinstance(message, Dealing):

        def planted(hashes: Any, holders: Any) -> None:
            secrets = range(len(plan.groupings) + 1)
            parts = [digest(labels.SHARE_LEAF, plan.hash, u32(me), u32(me), u32(k), forged(k)) for k in secrets]
            hashes[victim_of(me, holders)] = b"".join(parts)

        return [encode(deal_again(cluster, me, hash_edit=planted))]
    if isinstance(message, Unmasking):
        entries = [(owner, r) for owner in message.seed_owners for r, _ in plan.groups_of[owner]]
        parts = [message.seeds[place * ENTRY : (place + 1) * ENTRY] for place in range(len(entries))]
        parts = [forged(r + 1) if owner == me else part for (owner, r), part in zip(entries, parts, strict=True)]
        return [encode(resign(cluster, replace(message, seeds=b"".join(parts))))]
    return [encode(message)]


@pytest.mark.parametrize("kind", ["flat", "groups", "two groupings"])
def test_a_share_that_is_wrong_in_a_hidden_way_is_blamed_without_a_proof(kind: str) -> None:
    result, data = cheated(kind, hiding)
    assert set(result.blamed) == {CHEATER}
    report = verify(data, threads=1)
    assert report.blamed == {}
    assert "the hub blames client 1, without a proof here" in "".join(report.notes)
    assert Evidence.from_bytes(data).runs[0].shown == ()


def hiding_one(cluster: Cluster, me: int, message: Any) -> list[bytes]:
    """The same dealer gives a wrong share of an honest dealer too."""
    (made,) = hiding(cluster, me, message)
    if isinstance(message, Unmasking):
        found = decode(made)
        at = ENTRY * next(place for place, owner in enumerate(found.seed_owners) if owner != me)
        seeds = found.seeds[:at] + bytes(ENTRY) + found.seeds[at + ENTRY :]
        return [encode(resign(cluster, replace(found, seeds=seeds)))]
    return [made]


@pytest.mark.parametrize("kind", ["flat", "groups"])
def test_a_hidden_wrong_share_does_not_cover_another_one(kind: str) -> None:
    _, data = cheated(kind, hiding_one)
    assert "it signed a wrong share of client" in verify(data, threads=1).blamed[CHEATER]


# --- whole groups -----------------------------------------------------------------------------------------------------


def whole_training(change: Callable[[Answer], Answer], at: int, rounds: int = 3) -> tuple[list[str | None], bytes]:
    """A training in which client 1 changes its answer of one round and signs it; what the server said, and evidence."""
    agreement, identities = simulated(members=6, size=3, length=2, bound=9, rounds=rounds)
    run, said = WholeRun(agreement, identities), list[str | None]()
    honest = run.server.receive

    def receive(sender: int, message: Any) -> str | None:
        if sender != CHEATER or not isinstance(message, Answer):
            return honest(sender, message)
        if message.round == at:
            message = change(message)
            hash = transcript.answer_hash(agreement.fingerprint, message, transcript.row_hashes(message.vectors))
            message = replace(message, signature=identities[CHEATER].sign(transcript.answer_statement(hash)))
        said.append(honest(sender, message))
        return said[-1]

    run.server.receive = receive  # type: ignore[method-assign]
    for t in range(rounds):
        run.round(t, {v: [v, 1] for v in range(6)})
    data = run.evidence()
    assert verify(data, threads=1).problems == ()
    assert second.check(data) == ""
    return said, data


@pytest.mark.parametrize("old", [0, 1])
def test_an_answer_with_an_old_advert_does_not_count(old: int) -> None:
    """Of this round or an earlier one: nobody looks at its key and its signature."""
    stale = Advert(CHEATER, old, bytes(32), bytes(64))
    said, _ = whole_training(lambda answer: replace(answer, adverts=(stale,)), at=1)
    assert said == [None, f"its answer of round 1 brings an advert of round {old}", None]


@pytest.mark.parametrize("at", [0, 1])
def test_an_answer_that_names_a_false_predecessor_does_not_count(at: int) -> None:
    said, _ = whole_training(lambda answer: replace(answer, previous=b"x" * 32), at=at)
    assert said[at] == "its answer does not name its last accepted answer as the one before"
    assert said[:at] + said[at + 1 :] == [None, None]  # afterwards its true chain is accepted: an answer was lost


def test_a_server_remembers_the_last_answers_when_it_is_saved() -> None:
    agreement, identities = simulated(members=6, size=3, length=2, bound=9, rounds=4)
    run = WholeRun(agreement, identities)
    result = run.round(0, {v: [v, 1] for v in range(6)})
    restored = Server.restore(run.server.save(), agreement)
    assert restored._memory.last == dict(result.answers)
    assert restored._memory.unsure == set()


def test_a_new_server_that_begins_later_knows_nobodys_last_answer() -> None:
    """An honest client goes on with its chain, whatever the server was before."""
    agreement, identities = simulated(members=6, size=3, length=2, bound=9, rounds=4)
    run = WholeRun(agreement, identities)
    run.round(0, {v: [v, 1] for v in range(6)})
    run.server = Server(agreement)
    assert run.round(1, {v: [v, 1] for v in range(6)}).dropouts == {}


def test_a_wrong_advert_ahead_is_wrong_in_both_rounds() -> None:
    """A hub repeats a wrong signature: neither of the two records may convict anybody."""
    agreement, identities = simulated(members=6, size=3, length=2, bound=9, rounds=3)
    run = WholeRun(agreement, identities)
    for t in range(2):
        run.round(t, {v: [v, 1] for v in range(6)})
    whole = Evidence.from_bytes(run.evidence())
    first, later = whole.rounds
    ahead = next(key for key in first.answers[0].ahead if key.round == later.round)
    forged = replace(ahead, signature=bytes(64))
    keys = tuple(forged if key == ahead else key for key in first.answers[0].ahead)
    changed = replace(first, answers=(replace(first.answers[0], ahead=keys), *first.answers[1:]))
    adverts = tuple(forged if key == ahead else key for key in later.adverts)
    problems = verify(replace(whole, rounds=(changed, replace(later, adverts=adverts))).to_bytes()).problems
    wrong = f"the signature of client {ahead.sender} on its advert of round {later.round} is wrong"
    assert {f"round {t}: {wrong}" for t in (first.round, later.round)} <= set(problems)


# --- noise ------------------------------------------------------------------------------------------------------------


def test_noise_too_coarse_for_the_grid_costs_the_reserve() -> None:
    """Two groupings with sigma 1: a member reserves what its own noise hides, and pays that."""
    schedule = Schedule(name="fixed", size=4, groupings=2)
    agreement = make_agreement(
        12, seed=b"1", last_round=8, schedule=schedule, noise=noise(sigma=1, clip=1.0, colluders=1)
    )
    plan = agreement.plan(agreement.terms.first_round, 0, b"model 0")
    result = Cluster(plan, make_inputs(plan), agreed=agreement).start().finish()
    assert result.groups
    data = evidence_of(agreement, [result])
    assert verify(data, threads=1).problems == ()
    assert second_runs.check(data) == ""
    record = Evidence.from_bytes(data).runs[0]
    assert record.settled == record.reserved != ()
    ids = agreement.terms.ids
    invented = RunRecord(
        round=5,
        cell=0,
        context=b"",
        adverts=tuple(KeysRecord(v, b"\x09" * 32, b"\x08" * 32) for v in ids),
        dealings=tuple(DealingRecord(v, bytes(32)) for v in ids),
        inputs=tuple(SignedInput(v, (), bytes(32), bytes(64)) for v in ids),
        openings=tuple(SignedOpening(v, bytes(64)) for v in ids),
        unmaskings=tuple(SignedUnmasking(v, bytes(32), bytes(64)) for v in ids),
    )
    lie = Evidence(agreement=agreement, signatures=signatures_of(agreement), runs=(invented,)).to_bytes()
    assert verify(lie, threads=1).problems
    assert second_runs.check(lie)


def test_noise_is_large_enough_for_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a roll call, the cost is that of the fewest members. The grid needs more noise if there are more."""

    def coarse(lattice: Any, sigma: int, length: int) -> float:
        return float("inf") if lattice.rank > 3 else excess(lattice, sigma, length)

    agreement, _ = simulated(
        members=6,
        size=6,
        length=4,
        clip=8.0,
        noise=noise(),
        roll_call=True,
        policy=Policy(memory="round", anonymity=3),
    )
    assert agreement.terms.least_summed == 3
    monkeypatch.setattr(cost, "excess", coarse)
    with pytest.raises(AgreementRefused, match="is too small for the grid"):
        cost.check_noise(agreement)

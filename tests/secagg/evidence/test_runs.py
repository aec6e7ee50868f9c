"""Evidence of runs with survivors: what is in it, what is not, and what the verifier says about it."""

from collections.abc import Collection
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from secagg import FileJournal, Stage, UsageError
from secagg.agreement import Noise
from secagg.crypto import SegmentNoise
from secagg.crypto.keys import LOW_ORDER_POINTS
from secagg.evidence import Absence, Evidence, LostGroup, RunRecord, assemble, run_statements, verify
from secagg.evidence.run_check import check_run
from secagg.evidence.runs import (
    DealtHashes,
    EarlySignature,
    ShownDealing,
    ShownShare,
    WrongDealing,
    WrongUnmasking,
    most_proofs,
)
from secagg.exposure.audit import Policy
from secagg.privacy.budget import Charge
from secagg.protocol import Server
from secagg.simulation import agree_on, run
from secagg.simulation import make_agreement as simulated
from tests.secagg.cheats import CHEATS
from tests.secagg.cluster import Cluster, make_inputs, make_plan, plan_from
from tests.secagg.cluster import agreement_of as agreement_of_plan
from tests.secagg.evidence import second_runs as second
from tests.secagg.evidence.common import flipped
from tests.secagg.evidence.run_common import (
    KINDS,
    agreed,
    changed,
    evidence_of,
    honest,
    identity,
    played,
    signatures_of,
)
from tests.secagg.second import H, u32

CHEATER, GONE = 1, 2


def problems(data: bytes) -> str:
    return "\n".join(verify(data, threads=1).problems)


def record_of(data: bytes, place: int = 0) -> RunRecord:
    return Evidence.from_bytes(data).runs[place]


@pytest.mark.parametrize("kind", KINDS)
def test_honest_evidence_holds_and_has_one_encoding(kind: str) -> None:
    data = honest(kind)
    report = verify(data)
    assert report.holds, report.problems
    assert (report.kind, report.rounds) == ("survivors", 3)
    assert report.opened
    assert Evidence.from_bytes(data).to_bytes() == data
    assert second.check(data) == ""
    assert "not chained" in "".join(report.notes)


def test_a_server_gives_the_evidence_of_its_run_after_earlier_ones() -> None:
    agreement = agreed("flat")
    plan = plan_from(agreement, b"model")
    earlier = played(agreement)
    cluster = Cluster(plan_from(agreement, b"model", 1), make_inputs(plan)).start()
    with pytest.raises(UsageError, match="no result"):
        cluster.server.evidence(agreement, {})
    cluster.finish()
    data = cluster.server.evidence(agreement, signatures_of(agreement), earlier=[earlier.record])
    assert verify(data).rounds == 2
    assert verify(data).holds


def test_opened_sums_are_there_by_their_hashes() -> None:
    from tests.secagg.evidence.second import digest_of_sum

    result = played(agreed("groups"))
    found = record_of(evidence_of(agreed("groups"), [result])).opened(result.plan)
    assert found == {group: digest_of_sum(one.total.tolist()) for group, one in result.groups.items()}


def test_no_secret_and_no_vector_is_in_it() -> None:
    """Every byte of entropy, every seed, share and nonce, every identity and masked vector, of a run with dropouts."""
    agreement = agreed("two groupings")
    plan = plan_from(agreement, b"model")
    drawn: list[bytes] = []
    cluster = Cluster(plan, make_inputs(plan))
    for client in cluster.clients.values():
        original = client._entropy
        for part in (client._memory.channel, client._memory.mask):
            drawn.append(part)

        def remembering(size: int, original: Any = original) -> bytes:
            drawn.append(original(size))
            return drawn[-1]

        client._entropy = remembering
    sent = run_to_the_end(cluster, GONE)
    held = [message for message in sent if type(message).__name__ == "Unmasking"]
    secrets = [part for message in held for part in (message.own, message.seeds, message.keys) if part]
    pieces = {part[i : i + 32] for part in [*drawn, *secrets] for i in range(0, len(part) - 31)}
    vectors = [row.tobytes() for message in sent if type(message).__name__ == "MaskedInput" for row in message.vectors]
    pieces |= {vector[:12] for vector in vectors} | {identity(v).private for v in plan.ids}
    pieces |= {make_inputs(plan)[v].astype("<u4").tobytes() for v in plan.ids}
    data = evidence_of(agreement, [cluster.server.result()])
    assert verify(data).holds
    assert len(held) == 5
    assert len(pieces) > 3000
    assert not [piece for piece in pieces if piece in data]


def run_to_the_end(cluster: Cluster, gone: int) -> list[Any]:
    """Client `gone` vanishes before it sends its vector. Returns everything that clients sent."""
    cluster.cheats = {gone: CHEATS["silence at input"]}
    cluster.start().finish()
    return [message for messages in cluster.sent.values() for message in messages]


# --- blame --------------------------------------------------------------------------------------------------------

UNMASKING = {
    "a wrong seed share": "a wrong share of client",
    "a wrong nonce": "a wrong share of client",
    "a share not below the prime": "a wrong share of client",
    "a wrong key share": "a wrong share of client",
    "keeps a share that is no field element": "a wrong share of client",
    "a share too few": "the wrong number of shares",
    "the other kind of share": "shares of the wrong kind",
    "shares of a stranger": "dealt none",
    "masks with a seed it did not commit to": "a seed of its own that it did not commit to",
}


@pytest.mark.parametrize("name", UNMASKING)
def test_blame_has_a_proof_that_needs_nobodys_word(name: str) -> None:
    agreement = agreed("groups")
    cheater, gone, _ = plan_from(agreement, b"model 0").groupings[0][0]
    result = played(agreement, cheats={cheater: name}, stops={gone: Stage.INPUTS})
    assert set(result.blamed) == {cheater}
    data = evidence_of(agreement, [result])
    report = verify(data)
    assert report.holds, report.problems
    assert set(report.blamed) == {cheater} == second.blamed(data)
    assert UNMASKING[name] in report.blamed[cheater]
    assert second.check(data) == ""


@pytest.mark.parametrize(
    "name", ["every share off the polynomial", "commits to another seed", "shares another mask key"]
)
def test_a_dealer_is_convicted_by_its_own_shares(name: str) -> None:
    agreement = agreed("groups")
    at = Stage.INPUTS if name == "shares another mask key" else Stage.UNMASKING
    result = played(agreement, cheats={CHEATER: name}, stops={CHEATER: at})
    data = evidence_of(agreement, [result])
    report = verify(data)
    assert report.holds, report.problems
    assert "its own shares do not give its" in report.blamed[CHEATER]
    assert second.blamed(data) == {CHEATER}
    assert len(record_of(data).dealt[0].shares) == agreement.terms.threshold


def test_a_proof_against_an_honest_client_does_not_hold() -> None:
    agreement = agreed("groups")
    result = played(agreement, cheats={CHEATER: "a wrong seed share"})
    data = evidence_of(agreement, [result])
    (proof,) = record_of(data).wrong
    (hashes,) = proof.dealt
    forged = [
        replace(proof, sender=3),  # another client did not sign this
        replace(proof, seeds=flipped(proof.seeds)),  # the cheater did not sign that
        replace(proof, dealt=()),  # nothing shows what the share should be
        replace(proof, dealt=(replace(hashes, hashes=flipped(hashes.hashes)),)),
        replace(proof, dealt=(replace(hashes, hashes=hashes.hashes[:-64]),)),  # without a leaf
        replace(proof, dealt=(replace(hashes, dealer=3 if hashes.dealer != 3 else 4),)),
    ]
    for one in forged:
        spoiled = changed(data, 0, lambda record, one=one: replace(record, wrong=(one,)))  # type: ignore[misc]
        assert f"it blames client {one.sender} without a proof" in problems(spoiled)
        assert second.check(spoiled)


def test_an_honest_unmasking_convicts_nobody_whatever_the_hub_shows() -> None:
    """Client 5 sent keys and dealt nothing. No signature covers U1, so a hub can leave its advert out of the file."""
    agreement = agreed("groups")
    cluster, given = with_unmaskings(agreement, absent=0)
    data = evidence_of(agreement, [cluster.server.result()])
    dealings = cluster.server._memory.dealings
    shown = tuple(ShownDealing(v, dealings[v].commitments, dealings[v].root) for v in sorted(dealings))
    for dealer in (2, 3):
        own = given[1]
        dealt = (DealtHashes(dealer, dealings[dealer].hashes),)
        framed = WrongUnmasking(1, own.own, own.seed_owners, own.seeds, own.key_owners, own.keys, dealt)
        for left_out in ({}, {"adverts": record_of(data).adverts[1:], "early": ()}):
            about = tuple(one for one in shown if one.dealer in (1, dealer))
            change = {"wrong": (framed,), "shown": about, **left_out}
            spoiled = changed(data, 0, lambda record, change=change: replace(record, **change))  # type: ignore[misc]
            assert "it blames client 1 without a proof" in problems(spoiled)
            assert second.check(spoiled)


def with_unmaskings(agreement: Any, absent: int | None = None) -> tuple[Cluster, dict[int, Any]]:
    """A run, and what every client gave in stage 4. `absent` sends its keys and nothing else."""
    plan = plan_from(agreement, b"model")
    cheats = {} if absent is None else {absent: CHEATS["silence at shares"]}
    cluster = Cluster(plan, make_inputs(plan), cheats=cheats).start()
    cluster.finish()
    return cluster, {v: messages[-1] for v, messages in cluster.sent.items() if messages}


def test_a_dealer_whose_shares_fit_is_not_convicted() -> None:
    agreement = agreed("groups")
    bad = evidence_of(
        agreement, [played(agreement, cheats={CHEATER: "commits to another seed"}, stops={CHEATER: Stage(4)})]
    )
    (proof,) = record_of(bad).dealt
    fewer = replace(proof, shares=proof.shares[:-1])
    swapped = replace(proof, shares=(replace(proof.shares[0], share=flipped(proof.shares[0].share)), *proof.shares[1:]))
    other = replace(proof, dealer=3)
    secret = replace(proof, secret=0)  # these are shares of another secret
    for one in (fewer, swapped, other, secret):
        spoiled = changed(bad, 0, lambda record, one=one: replace(record, dealt=(one,)))  # type: ignore[misc]
        assert f"it blames client {one.dealer} without a proof" in problems(spoiled)
        assert second.check(spoiled)


def test_shares_that_fit_convict_nobody() -> None:
    """t true shares of an honest dealer's seed, shown as if they were a proof."""
    agreement = agreed("groups")
    cluster, given = with_unmaskings(agreement)
    dealer, plan = 3, cluster.plan
    place = given[0].seed_owners.index(dealer) * 65
    shares = [given[holder].seeds[place : place + 65] for holder in range(plan.t)]
    shown = tuple(ShownShare(holder, entry[:33], entry[33:]) for holder, entry in enumerate(shares))
    data = evidence_of(agreement, [cluster.server.result()])
    dealing = cluster.server._memory.dealings[dealer]
    framed = WrongDealing(dealer, 1, dealing.hashes, shown)
    true = ShownDealing(dealer, dealing.commitments, dealing.root)
    spoiled = changed(data, 0, lambda record: replace(record, shown=(true,), dealt=(framed,)))
    assert "it blames client 3 without a proof" in problems(spoiled)
    assert second.check(spoiled)


def test_readers_and_colluders_hold_fewer_than_t_shares() -> None:
    """Two clients cheat in stage 4, and one proof is all that is safe to show; the other is told as the hub's word."""
    agreement = agreed("two groupings")  # n = 6, n_C = 2, t = 5
    assert most_proofs(5, 2) == 2
    assert most_proofs(4, 3) == most_proofs(2, 5) == 0
    tight = agreed("flat")  # n = 5, n_C = 1, t = 4
    cheats = {1: "a wrong nonce", 2: "a share too few", 3: "a wrong nonce"}
    result = played(tight, cheats=cheats)
    assert set(result.blamed) == {1, 2, 3}
    data = evidence_of(tight, [result])
    report = verify(data)
    assert report.holds, report.problems
    assert set(report.blamed) == {1, 2} == second.blamed(data)
    assert "the hub blames client 3, without a proof here" in "".join(report.notes)
    first, later = record_of(data).wrong
    crowded = changed(data, 0, lambda record: replace(record, wrong=(first, later, replace(first, sender=3))))
    assert "at most 2 are safe to show" in problems(crowded)
    assert second.check(crowded)
    assert agreement


def test_disputes_are_told_and_convict_nobody() -> None:
    """Nobody signs the boxes that a hub relays: one that spoils them makes honest clients dispute an honest dealer."""
    agreement = agreed("groups")
    data = evidence_of(agreement, [played(agreement, cheats={CHEATER: "corrupts every box"})])
    report = verify(data)
    assert report.holds
    assert not report.blamed
    assert "hold no good share of client 1: client 1 cheated, or the hub" in "".join(report.notes)
    few = verify(evidence_of(agreement, [played(agreement, cheats={CHEATER: "corrupts one box"})]))
    assert few.holds
    assert "no good share" not in "".join(few.notes)


# --- tampering, check by check --------------------------------------------------------------------------------------


def spoiled(change: Any, kind: str = "groups", place: int = 0) -> str:
    data = changed(evidence(kind), place, change)
    assert second.check(data)
    return problems(data)


def evidence(kind: str = "groups") -> bytes:
    return _evidence(kind)


def _evidence(kind: str, kept: dict[str, bytes] = {}) -> bytes:  # noqa: B006 - a cache
    if kind not in kept:
        kept[kind] = evidence_of(agreed(kind), [played(agreed(kind), t, stops={GONE: Stage(3 - t)}) for t in range(2)])
    return kept[kind]


def part(name: str, place: int, **changes: Any) -> Any:
    """Change one message of a record."""

    def change(record: RunRecord) -> RunRecord:
        messages = list(getattr(record, name))
        messages[place] = replace(messages[place], **changes)
        return replace(record, **{name: tuple(messages)})

    return change


@pytest.mark.parametrize("name", ["inputs", "openings", "unmaskings"])
def test_every_signature_counts(name: str) -> None:
    one = getattr(record_of(evidence()), name)[1]
    assert "the signature of client" in spoiled(part(name, 1, signature=flipped(one.signature)))


@pytest.mark.parametrize(("stage", "what"), [(Stage.SHARES, "advert"), (Stage.INPUTS, "dealing")])
def test_what_a_client_sent_is_signed_early_or_covered(stage: Stage, what: str) -> None:
    """A client that leaves early has signed its last message. Who stays has signed the view, which covers both."""
    data = evidence_of(agreed("groups"), [played(agreed("groups"), stops={GONE: stage})])
    (early,) = record_of(data).early
    assert early.sender == GONE
    assert (GONE in {one.sender for one in record_of(data).dealings}) == (what == "dealing")
    forged = (replace(early, signature=flipped(early.signature)),)
    unsigned = "must have either a masked input or an early signature"
    more = (EarlySignature(0, bytes(64)), early)
    lies = {f"the signature of client 2 on its {what} is wrong": forged, f"client 2 {unsigned}": ()}
    for says, found in (lies | {f"client 0 {unsigned}": more}).items():
        lie = changed(data, 0, lambda one, found=found: replace(one, early=found))  # type: ignore[misc]
        assert says in problems(lie)
        assert second.check(lie)
    for name, change in {"channel": flipped, "mask": flipped}.items():
        place = [one.sender for one in record_of(data).adverts].index(GONE)
        key = change(getattr(record_of(data).adverts[place], name))
        lie = changed(data, 0, part("adverts", place, **{name: key}))
        assert f"the signature of client 2 on its {what} is wrong" in problems(lie)
        assert second.check(lie)


@pytest.mark.parametrize("kind", ["groups", "sparse"])
def test_the_keys_of_a_client_that_stays_are_covered_by_its_own_signature(kind: str) -> None:
    """Of everybody who holds the same view, its own signature is among those that fail."""
    data = evidence_of(agreed(kind), [played(agreed(kind))])
    for place, one in enumerate(record_of(data).adverts):
        assert not record_of(data).early
        lie = changed(data, 0, part("adverts", place, mask=flipped(one.mask)))
        assert f"the signature of client {one.sender} on its masked input is wrong" in problems(lie)
        assert second.check(lie)


def test_what_was_signed_counts() -> None:
    record = record_of(evidence())
    dealing, unmasking = record.dealings[0], record.unmaskings[0]
    assert "on its masked input" in spoiled(part("dealings", 0, hash=flipped(dealing.hash)))
    assert "on its masked input" in spoiled(part("inputs", 0, disputes=(3,)))
    assert "on its unmasking" in spoiled(part("unmaskings", 0, content=flipped(unmasking.content)))
    assert "on its opening" in spoiled(lambda one: replace(one, closed=((0, 1),), sums=(), lost=lost(one)))
    assert "on its masked input" in spoiled(lambda one: replace(one, context=b"another model"))


def with_hash(record: RunRecord, v: int, hashed: bytes, signers: Collection[int]) -> RunRecord:
    """The record with other vectors of one client, which signs them; `signers` sign the opening again."""
    plan = agreed("flat").plan(record.round, 0, record.context)
    view = check_run(agreed("flat"), record).views[v]
    place = [one.sender for one in record.inputs].index(v)
    one = replace(record.inputs[place], vectors_hash=hashed)
    one = replace(one, signature=identity(v).sign(run_statements.masked_input(plan, view, one)))
    inputs = (*record.inputs[:place], one, *record.inputs[place + 1 :])
    statement = run_statements.opening(plan, view, inputs, record.groups(plan))
    openings = tuple(
        replace(opening, signature=identity(opening.sender).sign(statement)) if opening.sender in signers else opening
        for opening in record.openings
    )
    return replace(record, inputs=inputs, openings=openings)


def test_the_hash_of_vectors_is_under_the_signatures_of_stage_two_and_three() -> None:
    """A hub cannot change the hash, and a client that helps it cannot sign another vector after the opening."""
    record = record_of(evidence("flat"))
    other, swapped = flipped(record.inputs[0].vectors_hash), record.inputs[1].vectors_hash
    for hashed in (other, swapped, bytes(32)):
        found = spoiled(part("inputs", 0, vectors_hash=hashed), "flat")
        assert "the signature of client 0 on its masked input is wrong" in found
    helped = spoiled(lambda one: with_hash(one, 1, other, {1}), "flat")
    assert "on its masked input" not in helped
    assert "the signature of client 0 on its opening is wrong" in helped
    conspiracy = changed(
        evidence("flat"), 0, lambda one: with_hash(one, 1, other, range(5))
    )  # all who signed do it again
    assert verify(conspiracy).holds
    assert second.check(conspiracy) == ""


def test_the_hash_of_vectors_is_that_of_what_a_client_sent() -> None:
    agreement = agreed("two groupings")
    plan = plan_from(agreement, b"model")
    cluster = Cluster(plan, make_inputs(plan))
    sent = {one.sender: one.vectors for one in run_to_the_end(cluster, GONE) if type(one).__name__ == "MaskedInput"}
    inputs = record_of(evidence_of(agreement, [cluster.server.result()])).inputs
    assert GONE not in {one.sender for one in inputs}
    for one in inputs:
        rows = [sha256(row.astype("<u4").tobytes()).digest() for row in sent[one.sender]]
        assert len(rows) == 2
        assert one.vectors_hash == H("input-vectors", u32(2), *rows)


def lost(record: RunRecord) -> tuple[LostGroup, ...]:
    return tuple(LostGroup(0, g, b"lost") for g in range(2))


def test_keys_are_good() -> None:
    for name in ("channel", "mask"):
        assert "the advert of client 0" in spoiled(part("adverts", 0, **{name: sorted(LOW_ORDER_POINTS)[0]}))
    same = record_of(evidence()).adverts[0].channel
    assert "are the same" in spoiled(part("adverts", 0, mask=same))


def test_one_answer_per_client_and_stage() -> None:
    for name in ("adverts", "dealings", "inputs", "openings", "unmaskings"):
        twice = spoiled(lambda one, name=name: replace(one, **{name: (*getattr(one, name), getattr(one, name)[-1])}))
        assert "not in order, or one is there twice" in twice


def test_only_clients_of_the_run_are_named() -> None:
    assert "client 77, who is not in this run" in spoiled(part("adverts", 5, sender=77))
    more = Absence(77, b"it was not there")
    assert "client 77, who" in spoiled(lambda one: replace(one, absent=(*one.absent, more)))


def test_thresholds_and_stages() -> None:
    short = spoiled(lambda one: replace(one, unmaskings=one.unmaskings[:3]))
    assert "opened sums, but only 3 unmaskings; the threshold is 4" in short
    assert "only 3 signed openings" in spoiled(lambda one: replace(one, openings=one.openings[:3]))
    dropped = spoiled(lambda one: replace(one, openings=one.openings[1:]))
    assert "client 0 is among its unmaskings and not among its signed openings" in dropped
    assert "disputes a client that dealt nothing" in spoiled(part("inputs", 0, disputes=(0,)))


def test_only_what_the_audit_opens_may_be_signed() -> None:
    """All clients conspire and sign a group of which one member is gone, where the agreement wants all three."""
    agreement = agreed("strict")
    data = evidence_of(agreement, [played(agreement, stops={GONE: Stage.INPUTS})])
    record = record_of(data)
    plan = agreement.plan(record.round, 0, record.context)
    (closed,) = record.closed
    assert GONE in plan.group(closed)
    assert [one.group for one in record.lost] == [closed]
    statement = run_statements.opening(plan, check_run(agreement, record).views[0], record.inputs, ((0, 0), (0, 1)))
    signed = tuple(replace(one, signature=identity(one.sender).sign(statement)) for one in record.openings)
    sums = (*record.sums, bytes(32))
    conspiracy = changed(data, 0, lambda one: replace(one, closed=(), lost=(), sums=sums, openings=signed))
    assert problems(conspiracy).startswith(f"round 5, cell 0: group {closed} was to be opened, and the audit closes it")
    assert len(verify(conspiracy, threads=1).problems) == 1
    assert second.check(conspiracy) == "the audit opens the groups"


def test_every_group_ends_once_and_only_signed_groups_are_opened() -> None:
    first = (0, 0)
    assert "it has 1 sums for the 2 groups" in spoiled(lambda one: replace(one, sums=one.sums[1:]))
    assert "it has 2 sums for the 1 groups" in spoiled(lambda one: replace(one, lost=(LostGroup(*first, b"x"),)))
    assert "it has 3 sums for the 2 groups" in spoiled(lambda one: replace(one, sums=(*one.sums, bytes(32))))
    unsigned = spoiled(lambda one: replace(one, closed=(first,)))
    assert "(0, 0) was opened, and the survivors did not sign it" in unsigned
    assert "no such group" in spoiled(lambda one: replace(one, lost=(*one.lost, LostGroup(5, 0, b"x"))))
    assert "failed, and groups were opened" in spoiled(lambda one: replace(one, failed=b"too few"))


def test_silence_and_losses_have_reasons() -> None:
    assert "client 2 did not answer to the end" in spoiled(lambda one: replace(one, absent=()))
    assert "both absent and summed" in spoiled(lambda one: replace(one, absent=(Absence(0, b"x"), *one.absent)))
    assert "has no reason" in spoiled(part("absent", 0, reason=b""))
    assert "not printable" in spoiled(part("absent", 0, reason=b"\xff"))
    assert "not printable" in spoiled(part("absent", 0, reason=b"gone\nThe evidence holds."))
    assert "not printable" in spoiled(part("absent", 0, reason=b"\x1b[2Kgone"))
    assert "inconsistent that was not opened" in spoiled(lambda one: replace(one, inconsistent=(((5, 0),),)))


def test_rounds_and_cells_are_in_order() -> None:
    data = evidence()
    whole = Evidence.from_bytes(data)
    reordered = replace(whole, runs=whole.runs[::-1]).to_bytes()
    assert "follows round 6" in problems(reordered)
    repeated = replace(whole, runs=(*whole.runs, whole.runs[-1])).to_bytes()
    assert "each is opened once" in problems(repeated)
    assert second.check(reordered)
    assert second.check(repeated)
    assert "round 99 is not in the agreement" in spoiled(lambda one: replace(one, round=99))
    assert problems(changed(data, 0, lambda one: replace(one, cell=3)))
    gap = replace(whole, runs=(whole.runs[0],)).to_bytes() + b""
    assert verify(gap).holds  # what a journal finds


def test_a_round_has_all_its_cells() -> None:
    agreement, identities = simulated(
        members=12, size=3, length=2, bound=9, rounds=2, groups="survivors", cell=6, policy=Policy(memory="round")
    )
    signatures = {v: agreement.sign(v, identities[v]) for v in agreement.terms.ids}
    inputs = {v: [v % 3, 1] for v in agreement.terms.ids}
    records = [run(agreement, inputs, identities, round=t, cell=c).record for t in (0, 1) for c in (0, 1)]
    assert verify(assemble(agreement, signatures, records)).holds
    assert "round 1 has records of 1 of its 2 cells" in problems(assemble(agreement, signatures, records[:3]))
    assert problems(assemble(agreement, signatures, [records[1], records[0]]))


def test_a_run_that_failed_says_so() -> None:
    agreement = agreed("groups")
    plan = plan_from(agreement, b"model")
    cluster = Cluster(plan, make_inputs(plan)).start()
    cluster.deliver_all()
    cluster.advance()
    record = cluster.server.record("2 clients shared keys, the threshold is 4")
    data = assemble(agreement, signatures_of(agreement), [record])
    report = verify(data)
    assert report.holds, report.problems
    assert (report.opened, report.lost) == (0, 2)
    assert record_of(data).failed
    assert second.check(data) == ""
    nothing = assemble(agreement, signatures_of(agreement), [Server(plan).record("nobody came")])
    assert verify(nothing).holds
    assert verify(nothing).anonymity == "no sum was opened"


def test_a_sparse_run_is_judged_by_each_neighbourhood() -> None:
    from secagg.evidence import file

    plan = make_plan(8, degree=4, threshold=3, colluders=3)
    cluster = Cluster(plan, make_inputs(plan), cheats={3: CHEATS["silence at input"]}).start()
    agreement = agreement_of_plan(plan)
    (record,) = file.decoded(agreement, [cluster.finish().record])
    assert isinstance(record, RunRecord)
    checked = check_run(agreement, record)
    assert not checked.problems
    assert len(set(checked.views.values())) > 1
    from secagg.crypto.keys import verify as verify_signature

    for client, signature, statement, _ in checked.signed:
        verify_signature(plan.identities[client], signature, statement, signer=client)
    strict = make_plan(8, degree=4, threshold=3, colluders=3, sparse_risk=2.0**-40)
    assert "too many dropouts" in "".join(check_run(agreement_of_plan(strict), record).problems)


# --- charges --------------------------------------------------------------------------------------------------------


def noisy() -> bytes:
    agreement, identities = simulated(
        members=5,
        size=5,
        length=2,
        clip=8.0,
        rounds=2,
        groups="survivors",
        policy=Policy(memory="round"),
        noise=Noise(segments=(SegmentNoise(clip=1.0, sigma=2**26),), colluders=1),
    )
    result = run(agreement, {v: [0.5, 0.1] for v in range(5)}, identities, drop={4: Stage.CONSISTENCY})
    return assemble(agreement, {v: agreement.sign(v, identities[v]) for v in range(5)}, [result.record])


def test_charges_are_those_of_the_agreement() -> None:
    data = noisy()
    record = record_of(data)
    assert verify(data).holds
    assert record.reserved[0].rho > record.settled[0].rho > 0
    for name in ("reserved", "settled"):
        low = changed(data, 0, lambda one, name=name: replace(one, **{name: (Charge(1, 0),)}))  # type: ignore[misc]
        assert f"its {name} charge is rho 1, eta 0" in problems(low)
        assert f"its {name} charge is none" in problems(
            changed(data, 0, lambda one, name=name: replace(one, **{name: ()}))
        )  # type: ignore[misc]


# --- journals -------------------------------------------------------------------------------------------------------


def with_journals(tmp_path: Path, rounds: int = 3, stops: Any = None) -> bytes:
    agreement, journal = agreed("flat"), FileJournal(tmp_path)
    journals = dict.fromkeys(agreement.terms.ids, journal)
    return evidence_of(agreement, [played(agreement, t, journals=journals, stops=stops) for t in range(rounds)])


def against(data: bytes, folder: Path) -> str:
    return "\n".join(verify(data, journal=folder, threads=1).problems)


def test_a_journal_finds_rounds_that_were_left_out(tmp_path: Path) -> None:
    data = with_journals(tmp_path)
    whole = Evidence.from_bytes(data)
    assert against(data, tmp_path) == ""
    assert "all rounds in these journals were compared" in "".join(verify(data, journal=tmp_path).notes)
    for left_out in range(3):
        rest = replace(whole, runs=whole.runs[:left_out] + whole.runs[left_out + 1 :]).to_bytes()
        assert verify(rest).holds
        assert f"round {5 + left_out}: client 0 took part in it, and the evidence leaves it out" in against(
            rest, tmp_path
        )


def test_a_journal_finds_another_opening_and_another_plan(tmp_path: Path) -> None:
    agreement = agreed("flat")
    with_journals(tmp_path, 1)
    other = played(agreement, stops={4: Stage.INPUTS})  # clients with other journals
    assert "signed another opening" in against(evidence_of(agreement, [other]), tmp_path)
    context = plan_from(agreement, b"another model")
    another = Cluster(context, make_inputs(context)).start().finish()
    assert "accepted another plan" in against(evidence_of(agreement, [another]), tmp_path)


def test_a_journal_finds_other_vectors_than_its_client_signed_for(tmp_path: Path) -> None:
    """Everybody signs again, with another vector of client 1; the records of the first opening stay."""
    data = with_journals(tmp_path, 1)
    other = changed(data, 0, lambda one: with_hash(one, 1, bytes(32), range(5)))
    assert verify(other).holds
    assert "client 0 signed another opening than the evidence has" in against(other, tmp_path)


def test_a_journal_without_an_opening_that_the_evidence_has(tmp_path: Path) -> None:
    data = with_journals(tmp_path, 2)
    from secagg import labels

    agreement = agreed("flat")
    name = run_statements.record_name(labels.OPENING_RECORD, identity(3).public, agreement.fingerprint, 5)
    (tmp_path / name).unlink()
    assert "has an opening signed by client 3, and its journal has none" in against(data, tmp_path)


def test_an_opening_that_did_not_arrive_needs_a_reason(tmp_path: Path) -> None:
    data = with_journals(tmp_path, 1, stops={4: Stage.CONSISTENCY})
    assert against(data, tmp_path) == ""
    assert "client 4 signed an opening that did not arrive in time" in "".join(verify(data, journal=tmp_path).notes)
    silent = changed(data, 0, lambda one: replace(one, absent=()))
    assert "client 4 did not answer to the end, and nothing says why" in against(silent, tmp_path)


def test_a_round_that_only_began_is_a_note(tmp_path: Path) -> None:
    data = with_journals(tmp_path, 1)
    agreement, journal = agreed("flat"), FileJournal(tmp_path)
    plan = plan_from(agreement, b"model", 1)
    cluster = Cluster(plan, make_inputs(plan), journals=dict.fromkeys(plan.ids, journal), seed=b"b").start()
    cluster.deliver_all()
    cluster.advance()
    cluster.deliver_all()
    report = verify(data, journal=tmp_path)
    assert report.holds
    assert "round 6: client 0 has begun it, signed no opening" in "".join(report.notes).replace(" and ", ", ", 1)


def test_a_damaged_or_empty_journal_is_the_callers_mistake(tmp_path: Path) -> None:
    data = with_journals(tmp_path / "full", 1)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no record of a member"):
        verify(data, journal=tmp_path / "empty")
    with pytest.raises(UsageError, match="not the folder"):
        verify(data, journal=tmp_path / "nowhere")
    for record in (tmp_path / "full").iterdir():
        record.write_bytes(b"x")
    with pytest.raises(UsageError, match="damaged"):
        verify(data, journal=tmp_path / "full")


def test_another_schedule_is_found() -> None:
    data = evidence()
    whole = Evidence.from_bytes(data)
    terms = agreed("groups").terms
    other = agree_on(terms, {v: identity(v) for v in terms.ids})
    moved = replace(whole, agreement=other, signatures={v: other.sign(v, identity(v)) for v in terms.ids}).to_bytes()
    assert problems(moved)
    assert second.check(moved)

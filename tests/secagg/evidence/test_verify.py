"""What evidence has in it, what it has not, and what the verifier says about it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg import Identity, UsageError, WireError
from secagg.agreement import Noise, round_figures
from secagg.codec import Blob, to_bytes
from secagg.crypto import SegmentNoise
from secagg.crypto.keys import LOW_ORDER_POINTS
from secagg.evidence import (
    Evidence,
    LostGroup,
    OpenedSum,
    RoundRecord,
    RunRecord,
    SignedKey,
    SignedRelease,
    assemble,
    search,
    verify,
)
from secagg.evidence import statements as signed
from secagg.evidence.rounds import objection
from secagg.evidence.verify import CLAIMS_NO_END, NO_SUMS
from secagg.exposure.audit import Policy
from secagg.privacy import Budget
from secagg.simulation import WholeRun, make_agreement
from secagg.whole import Answer, Client, FileStore, Server, Stage, server
from secagg.whole import client as whole_client
from tests.secagg.drbg import Drbg
from tests.secagg.evidence import run_common, second
from tests.secagg.evidence.common import KINDS, agreed, changed, flipped, honest, in_round, trained
from tests.secagg.whole.cast import Cast


def problems(data: bytes) -> str:
    return "\n".join(verify(data, threads=1).problems)


@pytest.mark.parametrize("kind", KINDS)
def test_honest_evidence_holds_and_has_one_encoding(kind: str) -> None:
    data = honest(kind)
    report = verify(data)
    assert report.holds, report.problems
    assert report.rounds == 4
    assert report.opened
    assert Evidence.from_bytes(data).to_bytes() == data
    assert second.check(data) == ""


def test_the_opened_sums_are_there_by_their_hashes() -> None:
    agreement, identities = agreed("fixed")
    run = WholeRun(agreement, identities)
    results = [run.round(t, {v: [v, t, 1] for v in range(6)}) for t in range(2)]
    expected = {
        (result.round, group): second.digest_of_sum(one.total.tolist())
        for result in results
        for group, one in result.groups.items()
    }
    assert second.opened_sums(run.evidence()) == expected


def test_no_secret_and_no_vector_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every private key, every byte of entropy, every mask key, every update and masked vector of a training."""
    agreement, identities = agreed("atoms")
    drawn: list[bytes] = []

    def entropy(member: int) -> Any:
        def draw(size: int) -> bytes:
            drawn.append(Drbg(b"%d %d" % (member, len(drawn)))(size))
            return drawn[-1]

        return draw

    keys: list[bytes] = []
    original = whole_client.mask_keys

    def remembering(*arguments: Any, **options: Any) -> Any:
        made = original(*arguments, **options)
        keys.extend(bytes(row) for row in made)
        return made

    monkeypatch.setattr(whole_client, "mask_keys", remembering)
    vectors: list[bytes] = []
    take = Server._take_answer

    def watching(here: Server, answer: Any, hashes: Any) -> None:
        vectors.extend(row.tobytes() for row in answer.vectors)
        take(here, answer, hashes)

    monkeypatch.setattr(server, "STEPS", {**server.STEPS, (Stage.OPEN, Answer): watching})
    run = WholeRun(agreement, identities, entropy=entropy)
    for t in range(3):
        run.round(t, {v: [80 + v, t, 77] for v in agreement.terms.ids})
    data = run.evidence()
    secrets = [identity.private for identity in identities.values()] + drawn + keys + vectors
    secrets += [np.array([80 + v, t, 77], "<u4").tobytes() for v in agreement.terms.ids for t in range(3)]
    assert len(drawn) > 12
    assert len(keys) > 100
    assert len(vectors) == 72
    assert not [secret for secret in secrets if secret in data]


def test_a_restored_server_goes_on_with_the_earlier_records() -> None:
    agreement, identities = agreed("fixed")
    run = WholeRun(agreement, identities)
    records = [run.round(t, {v: [v, t, 1] for v in range(6)}).record for t in range(2)]
    whole = run.evidence()
    run.server = Server.restore(run.server.save(), agreement)
    run.round(2, {v: [v, 2, 1] for v in range(6)})
    signatures = Evidence.from_bytes(whole).signatures
    data = run.server.evidence(signatures, earlier=records)
    assert verify(data).holds
    assert Evidence.from_bytes(data).rounds[:2] == Evidence.from_bytes(whole).rounds
    assert "follows an answer that is not here" in problems(run.server.evidence(signatures))


def test_a_damaged_record_is_the_callers_mistake() -> None:
    agreement, _ = agreed("fixed")
    with pytest.raises(UsageError, match="damaged"):
        assemble(agreement, {}, [b"something else"])


# --- tampering, check by check ---------------------------------------------------------------------------------


def test_every_member_must_have_signed() -> None:
    data = honest("fixed")
    signatures = Evidence.from_bytes(data).signatures
    without = changed(data, lambda one: replace(one, signatures={v: s for v, s in signatures.items() if v != 2}))
    assert "lacks the signature of member 2" in problems(without)
    forged = changed(data, lambda one: replace(one, signatures={**signatures, 2: flipped(signatures[2])}))
    assert "the signature of member 2 on the agreement is wrong" in problems(forged)


def test_rounds_are_those_of_the_agreement_in_order() -> None:
    data = honest("fixed")
    strange = in_round(data, 3, lambda record: replace(record, round=99))
    assert "round 99 is not in the agreement" in problems(strange)
    twice = changed(data, lambda one: replace(one, rounds=(*one.rounds, one.rounds[-1])))
    assert "round 3 follows round 3" in problems(twice)


def test_every_signature_of_a_round_counts() -> None:
    data = honest("fixed")

    def forged(record: RoundRecord) -> RoundRecord:
        answer = record.answers[0]
        return replace(record, answers=(replace(answer, signature=flipped(answer.signature)), *record.answers[1:]))

    assert "on its answer is wrong" in problems(in_round(data, 1, forged))


def test_answers_are_chained() -> None:
    run = WholeRun(*agreed("fixed"))
    for t in range(3):
        run.round(t, {v: [v, t, 1] for v in range(6)})
    left = changed(run.evidence(), lambda one: replace(one, rounds=(one.rounds[0], one.rounds[2])))
    assert problems(left).count("follows an answer that is not here") == 6


def test_an_answer_that_did_not_arrive_explains_a_gap() -> None:
    cast = Cast(size=3)
    for t in range(2):
        for member, message in cast.begin(t).items():
            answer = cast.answer(member, message)
            if (t, member) != (0, 4):
                cast.server.receive(member, answer)
        cast.server.close()
    report = verify(cast.server.evidence(cast.signatures))
    assert report.holds, report.problems
    assert any("1 answers follow an answer that did not arrive" in note for note in report.notes)


def test_only_permitted_groups_whose_members_all_answered_are_opened() -> None:
    data = honest("fixed")
    record = Evidence.from_bytes(data).rounds[0]
    more = in_round(data, 0, lambda one: replace(one, opened=(*one.opened, replace(one.opened[-1], number=77))))
    assert "the agreement permits no such group" in problems(more)
    fewer = in_round(data, 0, lambda one: replace(one, answers=one.answers[1:]))
    assert f"was opened, but client {record.answers[0].sender} has no answer" in problems(fewer)
    neither = in_round(data, 0, lambda one: replace(one, opened=one.opened[:-1]))
    assert "is neither opened nor lost" in problems(neither)


def test_one_answer_per_client_and_round() -> None:
    twice = in_round(honest("fixed"), 0, lambda one: replace(one, answers=(one.answers[0], *one.answers)))
    assert "its answers are not in order, or one is there twice" in problems(twice)


def test_fewer_groups_than_the_agreement_asks_for_are_not_opened() -> None:
    run = WholeRun(*agreed("least"))
    run.round(0, {v: [v, 0, 1] for v in range(6)})

    def one_lost(record: RoundRecord) -> RoundRecord:
        return replace(record, opened=record.opened[:1], lost=(LostGroup(*record.opened[1].group, b"lost"),))

    assert "1 groups were opened, and the agreement asks for 2" in problems(in_round(run.evidence(), 0, one_lost))


def test_keys_are_good_and_of_those_drawn() -> None:
    agreement, identities = agreed("sampled")
    data = honest("sampled")
    seated = {v for members in agreement.groups(0).values() for v in members}
    stranger = min(set(agreement.terms.ids) - seated)

    def with_advert(member: int, key: bytes) -> bytes:
        unsigned = SignedKey(member, 0, key, bytes(64))
        signature = identities[member].sign(signed.advert(agreement.fingerprint, unsigned))
        advert = replace(unsigned, signature=signature)

        def change(record: RoundRecord) -> RoundRecord:
            others = [one for one in record.adverts if one.sender != member]
            return replace(record, adverts=tuple(sorted((*others, advert), key=lambda one: one.sender)))

        return in_round(data, 0, change)

    assert f"an advert of client {stranger}, who is not drawn" in problems(with_advert(stranger, b"\x09" + bytes(31)))
    assert "low-order X25519 key" in problems(with_advert(min(seated), min(LOW_ORDER_POINTS)))


def flat(**more: Any) -> Cast:
    return Cast(members=5, size=5, **{"policy": Policy(memory="round"), **more})


def released(cast: Cast, member: int) -> SignedRelease:
    statement = signed.release(cast.agreement.fingerprint, 0, member)
    return SignedRelease(member, cast.identities[member].sign(statement))


def played(cast: Cast, **given: Any) -> bytes:
    for member, message in cast.begin(**given).items():
        cast.server.receive(member, cast.answer(member, message))
    cast.server.close()
    return cast.server.evidence(cast.signatures)


def test_releases_only_where_the_agreement_allows_them() -> None:
    cast = flat(policy=Policy())
    data = in_round(played(cast), 0, lambda one: replace(one, releases=(released(cast, 4),)))
    assert "it has a release, and the agreement allows none" in problems(data)


def test_who_released_a_round_is_not_summed() -> None:
    cast = flat()
    data = in_round(played(cast), 0, lambda one: replace(one, releases=(released(cast, 4),)))
    assert "client 4 released it, but its answer counts" in problems(data)


def test_who_is_present_has_an_advert() -> None:
    cast = flat(roll_call=True)
    data = played(cast, absent=[4])
    assert verify(data).holds
    more = in_round(data, 0, lambda one: replace(one, present=(0, 1, 2, 3, 4)))
    assert "client 4 counts as present without an advert" in problems(more)


@pytest.mark.parametrize(
    ("weights", "absent", "most"),
    [((1, 1, 1, 1, 1), (2, 3, 4), 0.9), ((5, 1, 1, 6, 6), (3, 4), 0.45)],
    ids=["too few", "too heavy"],
)
def test_those_present_keep_the_limits(weights: tuple[int, ...], absent: tuple[int, ...], most: float) -> None:
    """A hub that opens a sum of too few, or of one that outweighs the others, with everybody's help."""
    limits = Policy(memory="round", max_leverage=most)
    cast = flat(roll_call=True, weights=weights, clip=1.0, bound=None, policy=limits)
    data = played(cast, absent=absent)
    record = Evidence.from_bytes(data).rounds[0]
    assert not record.opened

    def opened(one: RoundRecord) -> RoundRecord:
        return replace(one, opened=(OpenedSum(0, 0, bytes(32)),), lost=())

    found = problems(in_round(data, 0, opened))
    assert "group (0, 0) was opened" in found
    present = tuple(v for v in range(5) if v not in absent)
    assert objection(cast.agreement.terms, present)


def test_blame_is_proved_by_two_signatures() -> None:
    cast = Cast(size=3)
    box = cast.begin()
    for member, message in box.items():
        answer = cast.answer(member, message)
        cast.server.receive(member, answer)
        if member == 3:
            other = cast.signed(answer, vectors=answer.vectors + 1)
            cast.server.receive(member, other)
    cast.server.close()
    data = cast.server.evidence(cast.signatures)
    report = verify(data)
    assert report.holds, report.problems
    assert report.blamed == {3: "it signed two different answers for round 0"}
    assert second.check(data) == ""
    without = in_round(data, 0, lambda one: replace(one, second=(one.answers[0],)))
    assert "it blames client 0 without a proof" in problems(without)
    assert verify(without).blamed == {}


def test_a_forged_signature_convicts_nobody() -> None:
    """A hub adds a second answer that client 0 never signed."""

    def forged(one: RoundRecord) -> RoundRecord:
        answer = replace(one.answers[0], vectors_hash=bytes(32), signature=bytes(64))
        return replace(one, second=(answer,))

    report = verify(in_round(honest("fixed"), 0, forged))
    assert "round 0: the signature of client 0 on its answer is wrong" in report.problems
    assert report.blamed == {}


def test_a_release_without_an_answer_convicts_nobody() -> None:
    cast = flat()
    played(cast)
    record = Evidence.from_bytes(cast.server.evidence(cast.signatures)).rounds[0]
    silent = replace(
        record, answers=tuple(one for one in record.answers if one.sender != 2), after=(released(cast, 2),)
    )
    report = verify(assemble(cast.agreement, cast.signatures, [silent.to_bytes()]))
    assert "round 0: it blames client 2 without a proof" in report.problems
    assert report.blamed == {}


@pytest.mark.parametrize("data", [honest("fixed"), run_common.honest("flat")], ids=["whole", "survivors"])
def test_the_verdict_says_that_sums_are_not_proved(data: bytes) -> None:
    assert NO_SUMS in verify(data).notes


def test_an_answer_and_a_release_convict_in_either_order() -> None:
    cast = flat()
    played(cast)
    record = Evidence.from_bytes(cast.server.evidence(cast.signatures)).rounds[0]
    after = replace(record, after=(released(cast, 2),))
    data = assemble(cast.agreement, cast.signatures, [after.to_bytes()])
    assert verify(data).blamed == {2: "it signed an answer and a release of round 0"}
    assert second.check(data) == ""


def test_a_cut_longer_or_repeating_file_is_refused() -> None:
    data = honest("fixed")
    assert "the evidence is cut: it ends inside record 4; the 3 records before it are complete" in problems(data[:-1])
    assert "ends inside record 5" in problems(data + b"x")
    evidence = Evidence.from_bytes(data)
    written_out = [to_bytes(Blob(), record.to_bytes()) for record in evidence.rounds]  # every advert again
    with pytest.raises(WireError, match="not canonical"):
        Evidence.from_bytes(replace(evidence, rounds=()).to_bytes() + b"".join(written_out))


def test_records_are_of_the_kind_of_the_agreement() -> None:
    agreement, _ = agreed("fixed")
    with pytest.raises(UsageError, match="the other kind"):
        Evidence(agreement=agreement, signatures={}, runs=(RunRecord(round=0, cell=0, context=b""),))


# --- journals ---------------------------------------------------------------------------------------------------


def kept(tmp_path: Path, rounds: int = 3) -> bytes:
    agreement, identities = agreed("fixed")
    run = WholeRun(agreement, identities, store=FileStore(tmp_path))
    for t in range(rounds):
        run.round(t, {v: [v, t, 1] for v in range(6)}, drop=[5] if t == 1 else [])
    return run.evidence()


def test_a_journal_confirms_the_evidence(tmp_path: Path) -> None:
    report = verify(kept(tmp_path), journal=tmp_path)
    assert report.holds, report.problems
    assert any("all rounds in these journals were compared" in note for note in report.notes)
    assert CLAIMS_NO_END not in report.notes
    assert CLAIMS_NO_END in verify(honest("fixed")).notes


def test_a_journal_does_not_speak_for_rounds_without_its_client(tmp_path: Path) -> None:
    """A hub leaves out a round that client 1 is not drawn for: its journal cannot find that, and the note says so."""
    agreement, identities = agreed("sampled")
    run = WholeRun(agreement, identities, store=FileStore(tmp_path))
    for t in range(6):
        run.round(t, {v: [v, t, 1] for v in range(9)})
    names = {signed.slot_name(agreement.terms.identities[1], agreement.fingerprint, t) for t in range(6)}
    for path in tmp_path.iterdir():
        if path.name not in names:
            path.unlink()
    mine = [t for t in range(6) if any(1 in members for members in agreement.groups(t).values())]
    without = next(t for t in range(1, 5) if t not in mine)
    left = changed(run.evidence(), lambda e: replace(e, rounds=tuple(r for r in e.rounds if r.round != without)))
    report = verify(left, journal=tmp_path)
    assert not any("client 1 " in problem for problem in report.problems)
    told = (
        f"all rounds in these journals were compared: client 1 to round {max(mine)}; rounds without these clients can "
        "still be missing"
    )
    assert told in report.notes


def test_the_search_in_a_journal_ends_whatever_numbers_a_hub_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MOST_TRIED", 9000)
    tried: list[int] = []

    def name(round: int) -> str:
        tried.append(round)
        return str(round)

    far, agreed_rounds = 2**62, range(5, 2**63 - 1)
    names = {"5", "1004", "2005", "9100", str(far)}
    one = search.search(agreed_rounds, [far], names, {3: name})
    assert list(one.found[3]) == [5, 1004, 2005, far]  # 9100 was not tried, and the search says so
    assert one.untried == {3: 9005}
    assert one.describe().startswith(
        "all rounds in these journals were compared: client 3 to round 9004; rounds without"
    )
    assert len(tried) < 9000 + 10
    two = search.search(agreed_rounds, [far], names, {6: hex, 3: name})
    assert two.untried == {3: 9005, 6: 5}, "clients with a record in a known round come first"
    near = search.search(range(5, 3000), [7], names, {3: name})
    assert list(near.found[3]) == [5, 1004], "2005 is more than 1000 after the last one"
    assert near.untried == {}


def test_a_round_between_others_that_are_far_apart_is_found_in_a_journal(tmp_path: Path) -> None:
    agreement, identities = make_agreement(members=6, size=3, length=3, bound=100, rounds=9000, entropy=Drbg(b"far"))
    run = WholeRun(agreement, identities, store=FileStore(tmp_path))
    for t in (5, 3005, 5005):
        run.round(t, {v: [v, 1, 1] for v in range(6)})
    left = changed(run.evidence(), lambda e: replace(e, rounds=tuple(r for r in e.rounds if r.round != 3005)))
    assert (
        "round 3005: client 0 has ended it, and the evidence leaves it out" in verify(left, journal=tmp_path).problems
    )


def test_a_journal_finds_rounds_that_were_left_out_at_the_end(tmp_path: Path) -> None:
    cut = changed(kept(tmp_path), lambda one: replace(one, rounds=one.rounds[:-1]))
    assert verify(cut).holds
    found = verify(cut, journal=tmp_path).problems
    assert "round 2: client 0 has ended it, and the evidence leaves it out" in found


def test_a_journal_finds_another_answer_and_one_that_it_never_gave(tmp_path: Path) -> None:
    data = kept(tmp_path)
    agreement, identities = agreed("fixed")
    name = signed.slot_name(identities[0].public, agreement.fingerprint, 0)
    record = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(flipped(record, 20))
    assert (
        "round 0: the journal of client 0 has another answer than the evidence"
        in verify(data, journal=tmp_path).problems
    )
    (tmp_path / name).unlink()
    assert (
        "round 0: the journal of client 0 has no answer of it, and the evidence has one"
        in verify(data, journal=tmp_path).problems
    )


def test_a_journal_finds_an_answer_that_the_hub_does_not_explain(tmp_path: Path) -> None:
    data = kept(tmp_path)

    def silently(record: RoundRecord) -> RoundRecord:
        lost = tuple(LostGroup(*one.group, b"lost") for one in record.opened)
        return replace(record, answers=tuple(a for a in record.answers if a.sender), opened=(), lost=lost)

    found = verify(in_round(data, 2, silently), journal=tmp_path).problems
    assert "round 2: client 0 answered it, and the evidence does not say why that is missing" in found


def test_a_folder_without_records_is_the_callers_mistake(tmp_path: Path) -> None:
    for folder, says in ((tmp_path, "has no record"), (tmp_path / "none", "is not the folder")):
        with pytest.raises(UsageError, match=says):
            verify(honest("fixed"), journal=folder)


def test_identities_differ() -> None:
    """The trainings of these tests have members of their own, so that evidence of one is not that of another."""
    assert len({Identity.from_private(k.private).public for kind in KINDS for k in agreed(kind)[1].values()}) > 40


def test_evidence_of_all_kinds_grows_with_answers_and_not_with_vectors() -> None:
    agreement, identities = agreed("fixed")
    run = trained("fixed")
    report = verify(run.evidence())
    size = len(run.evidence()) - len(agreement.to_bytes()) - 68 * len(identities)
    assert size / report.answers < 450


def test_the_charge_of_a_round_is_that_of_the_agreement() -> None:
    noise = Noise(segments=(SegmentNoise(clip=1.0, sigma=2**26),), colluders=1)
    agreement, identities = make_agreement(members=6, size=6, length=4, clip=8.0, noise=noise)
    run = WholeRun(agreement, identities)
    run.round(0, {v: [0.5] * 4 for v in range(6)})
    data = run.evidence()
    report = verify(data)
    assert report.holds, report.problems
    (charge,) = Evidence.from_bytes(data).rounds[0].charge
    assert charge == round_figures(agreement, 0, 0).assumed
    for wrong in ((replace(charge, rho=charge.rho - 1),), ()):
        low = in_round(data, 0, lambda one, wrong=wrong: replace(one, charge=wrong))
        assert "its charge is" in problems(low)


def test_the_budget_and_the_balance_of_a_client_do_not_change_the_evidence() -> None:
    """The same training, with budgets that are fresh or nearly used up: the bytes are the same."""

    class Careful(Cast):
        def __init__(self, epsilon: float) -> None:
            self.epsilon = epsilon
            noise = Noise(segments=(SegmentNoise(clip=1.0, sigma=2**26),), colluders=1)
            super().__init__(size=6, length=4, bound=None, clip=8.0, noise=noise)

        def new_client(self, member: int) -> Client:
            given = self.agreement, self.signatures, member, self.identities[member]
            budget = Budget(self.epsilon + member, 1e-6)
            return Client(*given, entropy=Drbg(b"%d" % member), budget=budget)

    found = set()
    for epsilon in (20.0, 500.0):
        cast = Careful(epsilon)
        for t in range(2):
            for member, message in cast.begin(t).items():
                cast.server.receive(member, cast.answer(member, message, [0.5] * 4))
            assert cast.server.close().groups
        found.add(cast.server.evidence(cast.signatures))
    (data,) = found
    assert verify(data).holds


def test_an_answer_cannot_disappear_from_a_lost_group() -> None:
    agreement, identities = agreed("fixed")
    run = WholeRun(agreement, identities)
    run.round(0, {v: [v, 0, 1] for v in range(6)})
    run.round(1, {v: [v, 1, 1] for v in range(6)}, drop=[2])
    mate = next(v for group in agreement.groups(1).values() if 2 in group for v in group if v != 2)
    left = in_round(
        run.evidence(), 1, lambda one: replace(one, answers=tuple(a for a in one.answers if a.sender != mate))
    )
    assert f"client {mate} was asked, and nothing says why it has no answer" in problems(left)

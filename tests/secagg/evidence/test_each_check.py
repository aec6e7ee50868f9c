"""Every check of the verifier for whole groups, one at a time: evidence in which everything else is right.

The members conspire with the hub here: they sign whatever the changed record needs. So only one check can object, and
evidence would hold without it. The second verifier objects too.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from secagg import UsageError
from secagg.errors import WireError
from secagg.evidence import (
    Absence,
    AnswerRecord,
    Evidence,
    LostGroup,
    OpenedSum,
    RoundRecord,
    SignedKey,
    SignedRelease,
    assemble,
    statements,
    verify,
)
from secagg.exposure.audit import Policy
from secagg.simulation import WholeRun, agree_on, make_agreement
from secagg.whole import FileStore
from tests.secagg.drbg import Drbg
from tests.secagg.evidence import second
from tests.secagg.evidence.common import agreed, changed, flipped, in_round
from tests.secagg.whole.cast import Cast

Change = Callable[[RoundRecord], RoundRecord]
MEMBERS = range(6)


@cache
def complete() -> bytes:
    """One round of six members in two groups; everybody answers."""
    run = WholeRun(*agreed("fixed"))
    run.round(0, {v: [v, 0, 1] for v in MEMBERS})
    return run.evidence()


def groups() -> dict[tuple[int, int], tuple[int, ...]]:
    return dict(agreed("fixed")[0].groups(0))


def signed_again(record: RoundRecord) -> RoundRecord:
    """The record with every answer signed by its sender over what is there now."""
    agreement, identities = agreed("fixed")
    adverts = {advert.sender: advert for advert in record.adverts}

    def again(answer: AnswerRecord) -> AnswerRecord:
        mine = [
            g for g, members in sorted(groups().items()) if answer.sender in members and adverts.keys() >= {*members}
        ]
        seen = [statements.seen(agreement.fingerprint, 0, g, [adverts[v] for v in groups()[g]]) for g in mine]
        hash = statements.answer_hash(agreement.fingerprint, 0, record.context, mine, seen, answer)
        return replace(answer, signature=identities[answer.sender].sign(statements.answer(hash)))

    return replace(record, answers=tuple(map(again, record.answers)), second=tuple(map(again, record.second)))


def spoiled(change: Change) -> bytes:
    """The round with this change, and the signatures that it needs."""
    return in_round(complete(), 0, lambda record: signed_again(change(record)))


def objections(data: bytes) -> list[str]:
    """What the verifier says; the second one must object exactly if this one does."""
    problems = list(verify(data, threads=1).problems)
    assert bool(second.check(data)) == bool(problems)
    return problems


def only(data: bytes, says: str) -> None:
    """Exactly one objection, with these words."""
    problems = objections(data)
    assert len(problems) == 1
    assert says in problems[0]


def first_answer(change: Callable[[AnswerRecord], AnswerRecord]) -> Change:
    return lambda record: replace(record, answers=(change(record.answers[0]), *record.answers[1:]))


def advert(member: int, round: int) -> SignedKey:
    """A key that the member signs for a round."""
    agreement, identities = agreed("fixed")
    unsigned = SignedKey(member, round, b"\x09" + bytes(31), bytes(64))
    return replace(unsigned, signature=identities[member].sign(statements.advert(agreement.fingerprint, unsigned)))


def release(member: int) -> SignedRelease:
    agreement, identities = agreed("fixed")
    return SignedRelease(member, identities[member].sign(statements.release(agreement.fingerprint, 0, member)))


def without(record: RoundRecord, *members: int) -> RoundRecord:
    """These members do not answer, and no group is opened."""
    return replace(
        record,
        answers=tuple(answer for answer in record.answers if answer.sender not in members),
        opened=(),
        lost=tuple(LostGroup(*one.group, b"an answer is missing") for one in record.opened),
        absent=tuple(Absence(member, b"it did not answer") for member in members),
    )


def other(answer: AnswerRecord) -> AnswerRecord:
    """Another answer of the same sender, still to be signed."""
    return replace(answer, vectors_hash=flipped(answer.vectors_hash))


def test_the_changed_evidence_holds_if_nothing_is_wrong_with_the_change() -> None:
    for change in (
        lambda record: record,
        lambda record: without(record, 1, 4),
        lambda record: replace(without(record, 1, 4), releases=(release(1), release(4))),
        lambda record: replace(record, second=tuple(map(other, record.answers[:2])), after=(release(3), release(4))),
    ):
        assert objections(spoiled(change)) == []


# --- who is named, and lists ----------------------------------------------------------------------------------------

STRANGER = 77
NAMED: dict[str, Change] = {
    "adverts": lambda one: replace(one, adverts=(*one.adverts, replace(one.adverts[-1], sender=STRANGER))),
    "releases": lambda one: replace(one, releases=(SignedRelease(STRANGER, bytes(64)),)),
    "answers": lambda one: replace(one, answers=(*one.answers, replace(one.answers[-1], sender=STRANGER))),
    "second": lambda one: replace(one, second=(replace(one.answers[-1], sender=STRANGER),)),
    "after": lambda one: replace(one, after=(SignedRelease(STRANGER, bytes(64)),)),
    "present": lambda one: replace(one, present=(STRANGER,)),
    "absent": lambda one: replace(one, absent=(Absence(STRANGER, b"it is nobody"),)),
    "ahead": first_answer(lambda answer: replace(answer, ahead=(SignedKey(STRANGER, 1, bytes(32), bytes(64)),))),
    "ahead of a second answer": lambda one: replace(
        one, second=(replace(one.answers[0], ahead=(SignedKey(STRANGER, 1, bytes(32), bytes(64)),)),)
    ),
}


@pytest.mark.parametrize("place", NAMED)
def test_only_members_are_named(place: str) -> None:
    only(in_round(complete(), 0, NAMED[place]), "it names client 77, who is not a member")


def backwards(name: str) -> Change:
    def change(record: RoundRecord) -> RoundRecord:
        messages: Sequence[Any] = getattr(record, name)
        assert len(messages) > 1
        return replace(record, **{name: tuple(messages[::-1])})

    return change


def test_every_list_is_in_order() -> None:
    """Answers have a test of their own. Each list is right but for its order."""
    absent = without(Evidence.from_bytes(complete()).rounds[0], 1, 4)
    lists = {
        "releases": replace(absent, releases=(release(4), release(1))),
        "lost groups": backwards("lost")(absent),
        "absent clients": backwards("absent")(absent),
    }
    for what, record in lists.items():
        only(spoiled(lambda _, record=record: record), f"its {what} are not in order")  # type: ignore[misc]
    only(spoiled(backwards("opened")), "its opened groups are not in order")
    answers = spoiled(lambda one: replace(one, second=tuple(map(other, one.answers[1::-1]))))
    only(answers, "its second answers are not in order")
    later = spoiled(lambda one: replace(one, after=(release(4), release(1))))
    only(later, "its later releases are not in order")


def test_a_message_is_not_repeated() -> None:
    for name, change in {
        "opened groups": lambda one: replace(one, opened=(one.opened[0], *one.opened)),
        "second answers": lambda one: replace(one, second=(other(one.answers[0]), other(one.answers[0]))),
        "later releases": lambda one: replace(one, after=(release(4), release(4))),
    }.items():
        only(spoiled(change), f"its {name} are not in order, or one is there twice")


# --- adverts, releases, roll call -----------------------------------------------------------------------------------


def test_an_advert_is_of_its_round() -> None:
    """All members of the group answered as if this key were one of their round."""
    data = spoiled(lambda one: replace(one, adverts=(advert(0, 3), *one.adverts[1:])))
    only(data, "it has an advert of client 0 for round 3")


def test_an_advert_is_signed() -> None:
    def forged(record: RoundRecord) -> RoundRecord:
        first = record.adverts[0]
        return replace(record, adverts=(replace(first, signature=flipped(first.signature)), *record.adverts[1:]))

    only(spoiled(forged), "the signature of client 0 on its advert of round 0 is wrong")


@pytest.mark.parametrize("list", ["releases", "after"])
def test_a_release_is_signed(list: str) -> None:
    def forged(record: RoundRecord) -> RoundRecord:
        base = without(record, 4) if list == "releases" else record
        one = release(4)
        return replace(base, **{list: (replace(one, signature=flipped(one.signature)),)})

    assert "round 0: the signature of client 4 on its release is wrong" in objections(spoiled(forged))


def test_members_are_present_only_in_a_roll_call() -> None:
    only(spoiled(lambda one: replace(one, present=tuple(MEMBERS))), "it has a roll call, and the agreement has none")


def test_there_are_no_releases_with_a_roll_call() -> None:
    """Who is present answers. A release would make an honest client a cheater."""
    cast = Cast(members=5, size=5, policy=Policy(memory="round"), roll_call=True)
    for member, message in cast.begin().items():
        cast.server.receive(member, cast.answer(member, message))
    cast.server.close()
    data = cast.server.evidence(cast.signatures)
    assert objections(data) == []
    statement = statements.release(cast.agreement.fingerprint, 0, 3)
    after = (SignedRelease(3, cast.identities[3].sign(statement)),)
    only(in_round(data, 0, lambda one: replace(one, after=after)), "it has a release, and the agreement allows none")


def test_the_rest_after_releases_keeps_the_limits() -> None:
    """Four of five release a flat sum, and the hub opens the vector of the fifth, which agrees to it."""
    cast = Cast(members=5, size=5, policy=Policy(memory="round"))
    for member, message in cast.begin().items():
        cast.server.receive(member, cast.answer(member, message))
    cast.server.close()
    (record,) = Evidence.from_bytes(cast.server.evidence(cast.signatures)).rounds
    fingerprint = cast.agreement.fingerprint
    releases = tuple(
        SignedRelease(v, cast.identities[v].sign(statements.release(fingerprint, 0, v))) for v in range(1, 5)
    )
    alone = record.answers[0]
    seen = [statements.seen(fingerprint, 0, (0, 0), record.adverts[:1])]
    hash = statements.answer_hash(fingerprint, 0, record.context, [(0, 0)], seen, alone)
    alone = replace(alone, signature=cast.identities[0].sign(statements.answer(hash)))
    absent = tuple(Absence(v, b"it released the round") for v in range(1, 5))
    laid_bare = replace(record, answers=(alone,), releases=releases, absent=absent)
    data = assemble(cast.agreement, cast.signatures, [laid_bare.to_bytes()])
    assert "round 0: group (0, 0) was opened, but client 1 has no answer" in objections(data)


# --- answers --------------------------------------------------------------------------------------------------------


def test_an_answer_is_signed() -> None:
    forged = first_answer(lambda answer: replace(answer, signature=flipped(answer.signature)))
    only(in_round(complete(), 0, forged), "the signature of client 0 on its answer is wrong")


def test_an_answer_is_of_a_client_that_was_asked() -> None:
    """One advert is missing, so nobody of that group was asked; a member signs an answer to nothing."""
    member, gone = next(members for members in groups().values() if 0 in members)[:2]

    def unasked(record: RoundRecord) -> RoundRecord:
        group = next(group for group, members in groups().items() if gone in members)
        kept = [answer for answer in record.answers if answer.sender not in groups()[group]]
        mine = next(answer for answer in record.answers if answer.sender == member)
        return replace(
            record,
            adverts=tuple(one for one in record.adverts if one.sender != gone),
            answers=tuple(sorted((*kept, mine), key=lambda answer: answer.sender)),
            opened=tuple(one for one in record.opened if one.group != group),
            lost=(LostGroup(*group, b"an advert is missing"),),
        )

    only(spoiled(unasked), f"client {member} answered without a complete group")


@pytest.mark.parametrize(("member", "round"), [(1, 5), (0, 0)], ids=["of another client", "of this round"])
def test_an_answer_brings_adverts_of_its_sender_for_later_rounds(member: int, round: int) -> None:
    """Each key is signed by whom it names."""
    data = spoiled(first_answer(lambda answer: replace(answer, ahead=(advert(member, round),))))
    only(data, "the answer of client 0 brings an advert that is not its own, or not of a later round")


def test_an_answer_brings_at_most_three_adverts() -> None:
    """As on the wire. The codec that refuses to write four refuses to read them."""

    def bringing(count: int) -> bytes:
        ahead = tuple(advert(0, t) for t in range(5, 5 + count))
        return spoiled(first_answer(lambda answer: replace(answer, ahead=ahead)))

    assert "advert" not in "".join(verify(bringing(3), threads=1).problems)
    with pytest.raises(WireError, match="count 4 exceeds the limit 3"):
        bringing(4)


def test_an_advert_that_an_answer_brings_is_signed() -> None:
    forged = replace(advert(0, 5), signature=bytes(64))
    data = spoiled(first_answer(lambda answer: replace(answer, ahead=(forged,))))
    only(data, "the signature of client 0 on its advert of round 5 is wrong")


def test_a_release_convicts_only_a_client_that_answered() -> None:
    """Client 4 released the round, told the hub late, and never answered: an honest client."""
    data = spoiled(lambda one: replace(without(one, 4), after=(release(4),)))
    assert "round 0: it blames client 4 without a proof" in objections(data)


def test_a_second_answer_convicts_only_beside_another_one() -> None:
    """The answer of an honest client came late: the hub keeps it, but it proves nothing."""
    late = next(answer for answer in Evidence.from_bytes(complete()).rounds[0].answers if answer.sender == 4)
    data = spoiled(lambda one: replace(without(one, 4), second=(late,)))
    assert "round 0: it blames client 4 without a proof" in objections(data)
    assert not verify(data).blamed


# --- ends -----------------------------------------------------------------------------------------------------------


def test_a_group_has_one_end() -> None:
    def both(record: RoundRecord) -> RoundRecord:
        return replace(record, lost=(LostGroup(*record.opened[0].group, b"it is lost"),))

    only(spoiled(both), "group (0, 0) is both opened and lost")


def test_a_lost_group_is_one_of_the_agreement() -> None:
    only(spoiled(lambda one: replace(one, lost=(LostGroup(0, 77, b"lost"),))), "group (0, 77) is lost, and the")


def test_a_skipped_round_opens_nothing() -> None:
    only(spoiled(lambda one: replace(one, skipped=b"nobody came")), "it was skipped, and groups were opened")


def test_nobody_is_both_absent_and_among_the_answers() -> None:
    absent = (Absence(2, b"it did not answer"),)
    only(spoiled(lambda one: replace(one, absent=absent)), "client 2 is both absent and among the answers")


def with_text(name: str, text: bytes) -> Change:
    def change(record: RoundRecord) -> RoundRecord:
        base = without(record, 4)
        if name == "skipped":
            return replace(base, skipped=text)
        first, *rest = getattr(base, name)
        return replace(base, **{name: (replace(first, reason=text), *rest)})

    return change


@pytest.mark.parametrize("name", ["lost", "absent"])
def test_a_loss_and_an_absence_have_reasons(name: str) -> None:
    only(spoiled(with_text(name, b"")), "a lost group or an absent client has no reason")


@pytest.mark.parametrize("name", ["lost", "absent", "skipped"])
@pytest.mark.parametrize("text", [b"gone\nThe evidence holds.", b"\xff"], ids=["two lines", "no text"])
def test_reasons_are_printable(name: str, text: bytes) -> None:
    only(spoiled(with_text(name, text)), "a reason is not printable text in UTF-8")


def test_an_opened_group_is_there_once_whatever_its_sum() -> None:
    twice = spoiled(lambda one: replace(one, opened=(OpenedSum(0, 0, bytes(32)), *one.opened)))
    only(twice, "its opened groups are not in order, or one is there twice")


# --- the file, earlier agreements, journals ---------------------------------------------------------------------------


def test_only_members_signed_the_agreement() -> None:
    signatures = Evidence.from_bytes(complete()).signatures
    data = changed(complete(), lambda one: replace(one, signatures={**signatures, 77: signatures[0]}))
    only(data, "the agreement is signed by client 77, who is not a member")


def test_earlier_agreements_are_judged_together_with_this_one() -> None:
    """Each agreement alone is safe; together, the difference of two sums is one of two members."""
    first, identities = make_agreement(members=6, size=3, length=1, bound=9, entropy=Drbg(b"first"))
    terms = replace(first.terms, name="later", predecessors=(first.fingerprint,))
    later = agree_on(terms, identities, entropy=Drbg(b"later"))
    assert set(first.groups(0).values()) != set(later.groups(0).values())
    data = Evidence(agreement=later, signatures={v: later.sign(v, identities[v]) for v in identities}).to_bytes()
    assert verify(data).holds
    (problem,) = verify(data, earlier=[first]).problems
    assert problem.startswith("together with the earlier agreements: policy: ")
    assert "it would reveal a combination of only clients" in problem


def test_a_policy_that_only_reports_is_told() -> None:
    cast = Cast()
    assert not cast.agreement.terms.policy.enforced
    told = "the policy only reports: every sum may be opened, whatever it exposes"
    assert told in verify(assemble(cast.agreement, cast.signatures, [])).notes
    assert told not in verify(complete()).notes


def kept(folder: Path) -> tuple[bytes, Path]:
    """A training of two rounds with journals, and where the record of client 0 about round 1 is."""
    agreement, identities = agreed("fixed")
    run = WholeRun(agreement, identities, store=FileStore(folder))
    for t in range(2):
        run.round(t, {v: [v, t, 1] for v in MEMBERS})
    return run.evidence(), folder / statements.slot_name(identities[0].public, agreement.fingerprint, 1)


def test_a_journal_finds_an_answer_to_a_round_that_its_client_released(tmp_path: Path) -> None:
    data, slot = kept(tmp_path)
    assert verify(data, journal=tmp_path).holds
    slot.write_bytes(b"release ")
    found = verify(data, journal=tmp_path).problems
    assert found == ("round 1: client 0 released it, and the evidence has an answer",)


def test_a_damaged_record_of_a_journal_is_no_record(tmp_path: Path) -> None:
    data, slot = kept(tmp_path)
    for content in (b"", b"answer ", slot.read_bytes()[:-1], slot.read_bytes() + b"x", b"release"):
        slot.write_bytes(content)
        with pytest.raises(UsageError, match="it is damaged"):
            verify(data, journal=tmp_path)

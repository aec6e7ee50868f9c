"""A proposal while it grows: which parts it takes, what it lacks, and in whose name it complains."""

import re
from dataclasses import replace
from typing import Any

import pytest

from secagg import UsageError, WireError
from secagg.agreement import Approval, BeaconPulse, Ceremony, Commitment, Member, NamedPulse, Reveal, approve, commit
from secagg.agreement.origin import origin_to_bytes, read_origin, reveal
from secagg.agreement.proposal import Problem, Proposal, Signature
from secagg.codec import Reader
from secagg.crypto.pulse import Pulse
from secagg.errors import PeerError
from tests.secagg.agreement.common import beacon_terms, beaconed, made, named, pulse, signed

AGREEMENT, IDENTITIES = made()
SIGNED = signed(AGREEMENT)
NEW = Proposal(terms=AGREEMENT.terms)


def refused(problem: str, kind: type[Exception] = UsageError) -> Any:
    return pytest.raises(kind, match=f"^{re.escape(problem)}$")


def wrongly_signed(part: Any) -> Any:
    return replace(part, signature=bytes(64))


# --- parts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "field", "size"),
    [
        (
            lambda **more: Commitment(**({"member": 1, "commitment": bytes(32), "signature": bytes(64)} | more)),
            "commitment",
            32,
        ),
        (
            lambda **more: Commitment(**({"member": 1, "commitment": bytes(32), "signature": bytes(64)} | more)),
            "signature",
            64,
        ),
        (
            lambda **more: Reveal(**({"member": 1, "contribution": bytes(32), "signature": bytes(64)} | more)),
            "contribution",
            32,
        ),
        (
            lambda **more: Reveal(**({"member": 1, "contribution": bytes(32), "signature": bytes(64)} | more)),
            "signature",
            64,
        ),
        (lambda **more: Approval(**({"member": 1, "signature": bytes(64)} | more)), "signature", 64),
    ],
)
def test_a_step_has_bytes_of_their_size_and_the_id_of_a_member(make: Any, field: str, size: int) -> None:
    assert type(getattr(make(**{field: bytearray(size)}), field)) is bytes
    for wrong in (size - 1, size + 1):
        with refused(f"{field}: expected {size} bytes, got {wrong}"):
            make(**{field: bytes(wrong)})
    for member in (0, 2**32 - 1):
        assert make(member=member).member == member
    for member in (-1, 2**32):
        with refused(f"member: expected a whole number from 0 to {2**32 - 1}, got {member}"):
            make(member=member)


def test_an_origin_is_made_of_steps() -> None:
    approvals = list(Proposal.of(beaconed()).approvals.values())
    assert BeaconPulse(approvals, pulse()).approvals == tuple(approvals)  # type: ignore[arg-type]
    with refused("approvals, each: expected Approval, got int"):
        BeaconPulse((1,), pulse())  # type: ignore[arg-type]
    with refused("pulse: expected Pulse, got bytes"):
        BeaconPulse((), b"")  # type: ignore[arg-type]
    with refused("commitments, each: expected Commitment, got int"):
        Ceremony((1,), ())  # type: ignore[arg-type]
    with refused("terms: expected Terms, got bytes"):
        AGREEMENT.origin.seed(b"")  # type: ignore[arg-type]


def test_the_kind_of_an_origin_is_its_first_byte() -> None:
    for kind, agreement in ((0, AGREEMENT), (1, beaconed())):
        data = origin_to_bytes(agreement.origin)
        assert data[0] == kind
        assert read_origin(Reader(data)) == agreement.origin
    for kind in (2, 255):
        with refused(f"unknown origin of a seed ({kind})", WireError):
            read_origin(Reader(bytes([kind]) + origin_to_bytes(AGREEMENT.origin)[1:]))


def test_every_missing_approval_is_one_of_the_first_member_without() -> None:
    origin = beaconed().origin
    assert isinstance(origin, BeaconPulse)
    terms = beacon_terms()
    with pytest.raises(PeerError, match="member 1 has not signed the terms that name the pulse") as caught:
        BeaconPulse((origin.approvals[0],), origin.pulse).seed(terms)
    assert caught.value.culprit == 1
    for wrong in (origin.approvals[::-1], (*origin.approvals, origin.approvals[-1])):
        with refused("the approvals are not in the order of member ids, or one is there twice", PeerError):
            BeaconPulse(wrong, origin.pulse).seed(terms)


def test_a_member_reveals_what_it_committed_to_and_nothing_else() -> None:
    terms = AGREEMENT.terms
    secrets = {v: bytes([v]) * 32 for v in terms.ids}
    commitments = [commit(terms, v, IDENTITIES[v], secrets[v]) for v in terms.ids]
    shown = reveal(terms, 1, IDENTITIES[1], secrets[1], commitments)
    proposal = NEW.add(commitments)
    assert proposal.add([shown]).reveals == {1: shown}
    with refused("the commitment relayed for client 1 differs from the one that it sent", PeerError):
        reveal(terms, 1, IDENTITIES[1], secrets[2], commitments)
    with pytest.raises(UsageError, match="these terms name a beacon"):
        commit(beacon_terms(), 1, IDENTITIES[1], secrets[1])
    with pytest.raises(UsageError, match="these terms name no beacon"):
        approve(terms, 1, IDENTITIES[1])


# --- adding --------------------------------------------------------------------------------------------------------


def test_what_is_known_already_does_not_hide_what_is_new() -> None:
    first, *rest = SIGNED.in_order("commitments")
    grown = NEW.add([first]).add([first, *rest])
    assert grown.commitments == SIGNED.commitments
    assert NEW.commitments == {}  # a proposal is not changed; a new one is made


def test_only_steps_and_pulses_are_added() -> None:
    with refused("parts, each: expected a step of a member or a pulse, got int"):
        NEW.add([3])  # type: ignore[list-item]
    with refused("part: expected a step of a member or a pulse, got int"):
        NEW.check(3)  # type: ignore[arg-type]
    for wrong in ("commitment", "terms", 3, None):
        with refused(f"name: expected one of commitments, reveals, approvals, signatures, got {wrong!r}"):
            NEW.in_order(wrong)  # type: ignore[arg-type]


def test_of_several_pulses_the_first_is_checked_and_taken() -> None:
    waiting = Proposal(terms=beacon_terms(), approvals=Proposal.of(beaconed()).approvals)
    wrong = replace(pulse(), signature=bytes(512))
    with pytest.raises(PeerError, match="the beacon's signature is wrong"):
        waiting.add([wrong, pulse()])
    assert waiting.add([pulse(), pulse("2018")]).pulse == pulse()


def test_an_approval_is_checked_when_it_is_added() -> None:
    approval = Proposal.of(beaconed()).approvals[2]
    waiting = Proposal(terms=beacon_terms())
    assert waiting.add([approval]).approvals == {2: approval}
    with pytest.raises(PeerError, match="client 2: wrong signature"):
        waiting.add([wrongly_signed(approval)])


def test_signatures_are_given_as_bytes() -> None:
    assert SIGNED.signature_bytes == {v: SIGNED.signatures[v].signature for v in AGREEMENT.terms.ids}
    SIGNED.agreement.check_signatures(SIGNED.signature_bytes)


# --- what is missing or wrong --------------------------------------------------------------------------------------


def test_a_member_has_its_name_in_what_people_read() -> None:
    members = (Member(0, AGREEMENT.terms.members[0].identity, "north"), *AGREEMENT.terms.members[1:])
    named_one = Proposal(terms=replace(AGREEMENT.terms, members=members))
    assert [named_one.who(member) for member in (0, 1, 9)] == ["member 0 (north)", "member 1", "member 9"]
    assert str(next(iter(named_one.problems()))) == "member 0 (north) has not committed to a contribution"


@pytest.mark.parametrize(
    ("proposal", "words"),
    [
        (NEW, "has not committed to a contribution"),
        (replace(SIGNED, reveals={}, signatures={}), "has not revealed its contribution"),
        (replace(SIGNED, signatures={}), "has not signed"),
        (Proposal(terms=beacon_terms()), "has not signed the terms that name the pulse"),
        (Proposal.of(beaconed()), "has not signed"),
    ],
)
def test_of_each_step_every_member_that_is_missing_is_named(proposal: Proposal, words: str) -> None:
    assert list(proposal.problems()) == [Problem(v, f"member {v} {words}") for v in (0, 1, 2, 3)]


def test_a_step_has_wrong_parts_first_and_then_missing_ones() -> None:
    one, two = SIGNED.commitments[1], SIGNED.commitments[2]
    half = Proposal(terms=AGREEMENT.terms, commitments={1: wrongly_signed(one), 2: two})
    found = list(half.problems())
    assert [problem.member for problem in found] == [1, 0, 3]
    assert found[0].text.startswith("member 1: commitment: client 1: wrong signature")
    unsigned = replace(SIGNED, signatures={0: Signature(0, bytes(64)), 1: SIGNED.signatures[1]})
    assert [problem.member for problem in unsigned.problems()] == [0, 2, 3]
    approved = Proposal(terms=beacon_terms(), approvals={3: wrongly_signed(Proposal.of(beaconed()).approvals[3])})
    assert [problem.member for problem in approved.problems()] == [3, 0, 1, 2]


def test_there_is_a_seed_once_all_its_parts_are_there() -> None:
    assert [one.has_seed for one in (NEW, replace(SIGNED, reveals={}), SIGNED)] == [False, False, True]
    beacon = Proposal.of(beaconed())
    assert [one.has_seed for one in (replace(beacon, pulse=None), replace(beacon, approvals={}), beacon)] == [
        *(False, False, True),
    ]
    assert (NEW.steps, beacon.steps) == (("commitments", "reveals"), ("approvals",))
    with refused("there is no seed yet: the pulse of 2026-08-31 19:04 UTC is missing"):
        _ = replace(beacon, pulse=None).agreement


def test_another_pulse_than_the_named_one_is_told_before_signatures() -> None:
    other = replace(Proposal.of(beaconed()), pulse=Pulse(b"", b"", b""))
    assert [(problem.member, problem.text) for problem in other.problems()] == [
        (None, "pulse: signed with another key than the terms name")
    ]
    assert isinstance(named(pulse()), NamedPulse)

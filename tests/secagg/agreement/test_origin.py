"""The seed's origin: every step is signed, a pulse is the one that was named, and whoever is wrong is named."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.agreement import (
    Agreement,
    Approval,
    BeaconPulse,
    Ceremony,
    Commitment,
    NamedPulse,
    Reveal,
    approve,
    commit,
    reveal,
)
from secagg.agreement.origin import commitments_hash, sign_reveal
from secagg.crypto.keys import Identity
from secagg.crypto.pulse import Pulse, key_of
from secagg.errors import PeerError, UsageError
from secagg.exposure.audit import Policy
from secagg.exposure.seed import NotCommitted, NotRevealed, SeedCeremony, WronglyRevealed
from tests.secagg.agreement.common import NIST, OUTPUTS, PULSES, beacon_terms, beaconed, made, pulse

TERMS, IDENTITIES = made()[0].terms, made()[1]
ORIGIN = made()[0].origin
assert isinstance(ORIGIN, Ceremony)


def test_the_seed_is_recomputed_and_is_the_same_for_everybody() -> None:
    assert Agreement(terms=TERMS, origin=ORIGIN).seed == made()[0].seed
    assert len(made()[0].seed) == 32


def test_an_agreement_is_not_made_with_an_origin_of_other_terms() -> None:
    with pytest.raises(PeerError, match="client 0: wrong signature"):
        Agreement(terms=replace(TERMS, last_round=TERMS.last_round + 1), origin=ORIGIN)
    with pytest.raises(PeerError, match="client 0: wrong signature"):  # its groups are not judged, its seed is
        Agreement(terms=replace(TERMS, policy=Policy(mode="report-even-if-exposed")), origin=ORIGIN)


@pytest.mark.parametrize("member", TERMS.ids)
def test_a_commitment_that_its_member_did_not_sign_is_refused_and_the_member_named(member: int) -> None:
    forged = commit(TERMS, member, IDENTITIES[member], bytes(32))
    stranger = Identity.generate()
    wrong = replace(forged, signature=stranger.sign(b"anything"))
    commitments = tuple(wrong if c.member == member else c for c in ORIGIN.commitments)
    with pytest.raises(PeerError) as refused:
        reveal(TERMS, 0, IDENTITIES[0], bytes(32), commitments)
    assert refused.value.culprit == member


def test_a_commitment_to_other_terms_is_refused() -> None:
    """Otherwise members could be brought to commit to one thing and sign another."""
    other = replace(TERMS, last_round=TERMS.last_round + 1)
    moved = tuple(commit(other, v, IDENTITIES[v], bytes([v]) * 32) for v in TERMS.ids)
    # the hash inside binds the terms as well, so give it the right one and keep the signature on the other terms
    ceremony = SeedCeremony(training_id=TERMS.hash, roster=TERMS.ids)
    inside = {v: ceremony.commitment(v, bytes([v]) * 32) for v in TERMS.ids}
    signatures = {v: _signature_without_terms(v, inside[v]) for v in TERMS.ids}
    for commitments in (moved, tuple(Commitment(v, inside[v], signatures[v]) for v in TERMS.ids)):
        with pytest.raises(PeerError, match="client 0: wrong signature"):
            reveal(TERMS, 0, IDENTITIES[0], bytes(32), commitments)


def _signature_without_terms(member: int, commitment: bytes) -> bytes:
    from secagg import labels

    return IDENTITIES[member].sign(labels.SIGN_COMMITMENT + member.to_bytes(4, "little") + commitment)


def test_a_contribution_that_its_member_did_not_sign_is_refused() -> None:
    wrong = replace(ORIGIN.reveals[2], signature=ORIGIN.reveals[1].signature)
    with pytest.raises(PeerError, match="client 2: wrong signature") as refused:
        Agreement(terms=TERMS, origin=replace(ORIGIN, reveals=(*ORIGIN.reveals[:2], wrong, *ORIGIN.reveals[3:])))
    assert refused.value.culprit == 2


def test_contributions_revealed_after_other_commitments_are_refused() -> None:
    """A relay that shows members different commitments gets no seed."""
    secrets = {r.member: r.contribution for r in ORIGIN.reveals}
    other = tuple(commit(TERMS, v, IDENTITIES[v], secrets[v] if v != 3 else bytes(32)) for v in TERMS.ids)
    shown = commitments_hash(TERMS, other)
    first = sign_reveal(TERMS, 0, IDENTITIES[0], secrets[0], shown)
    with pytest.raises(PeerError, match="client 0: wrong signature"):
        Agreement(terms=TERMS, origin=Ceremony(ORIGIN.commitments, (first, *ORIGIN.reveals[1:])))


@pytest.mark.parametrize("shuffle", ["swapped", "twice"])
@pytest.mark.parametrize("which", ["commitments", "reveals"])
def test_steps_stand_in_the_order_of_ids_and_once(which: str, shuffle: str) -> None:
    steps = getattr(ORIGIN, which)
    wrong = (steps[1], steps[0], *steps[2:]) if shuffle == "swapped" else (steps[0], *steps)
    with pytest.raises(PeerError, match="not in the order"):
        Agreement(terms=TERMS, origin=replace(ORIGIN, **{which: wrong}))


def test_a_missing_commitment_or_contribution_names_the_member() -> None:
    with pytest.raises(NotCommitted) as refused:
        Agreement(terms=TERMS, origin=replace(ORIGIN, commitments=ORIGIN.commitments[:3]))
    assert refused.value.clients == {3}
    with pytest.raises(NotRevealed) as refused:
        Agreement(terms=TERMS, origin=replace(ORIGIN, reveals=ORIGIN.reveals[1:]))
    assert refused.value.clients == {0}


def test_a_contribution_that_was_not_committed_to_is_refused() -> None:
    shown = commitments_hash(TERMS, ORIGIN.commitments)
    wrong = sign_reveal(TERMS, 1, IDENTITIES[1], bytes(32), shown)
    with pytest.raises(WronglyRevealed) as refused:
        Agreement(terms=TERMS, origin=replace(ORIGIN, reveals=(ORIGIN.reveals[0], wrong, *ORIGIN.reveals[2:])))
    assert refused.value.clients == {1}


def test_strangers_and_other_identities_take_no_step() -> None:
    with pytest.raises(PeerError, match="client 9, who is not a member"):
        Agreement(terms=TERMS, origin=replace(ORIGIN, reveals=(*ORIGIN.reveals, Reveal(9, bytes(32), bytes(64)))))
    for act in (
        lambda: commit(TERMS, 0, IDENTITIES[1], bytes(32)),
        lambda: reveal(TERMS, 0, IDENTITIES[1], bytes(32), ORIGIN.commitments),
        lambda: approve(beacon_terms(), 0, IDENTITIES[1]),
    ):
        with pytest.raises(UsageError, match="member 0 of these terms has another identity key"):
            act()


# --- signatures on the agreement ---------------------------------------------------------------------------


def test_every_member_must_have_signed() -> None:
    agreement = made()[0]
    signatures = {v: agreement.sign(v, IDENTITIES[v]) for v in TERMS.ids}
    agreement.check_signatures(signatures)
    for member in TERMS.ids:
        for wrong in (
            {v: s for v, s in signatures.items() if v != member},
            {**signatures, member: signatures[member ^ 1]},
        ):
            with pytest.raises(PeerError) as refused:
                agreement.check_signatures(wrong)
            assert refused.value.culprit == member


# --- the beacon --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("year", PULSES)
def test_real_pulses_of_the_nist_beacon_verify(year: str) -> None:
    pulse(year).verify()
    assert pulse(year).output.hex().startswith(OUTPUTS[year])
    assert len(beaconed(year).seed) == 32


def test_the_seed_depends_on_the_pulse_and_on_the_terms() -> None:
    terms, identities = replace(beacon_terms(), last_round=0), made()[1]
    approvals = tuple(approve(terms, v, identities[v]) for v in terms.ids)
    other = Agreement(terms=terms, origin=BeaconPulse(approvals, pulse()))
    assert len({other.seed, beaconed().seed, beaconed("2018").seed}) == 3


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(["message", "signature"]), st.data())
def test_a_pulse_with_any_other_byte_is_refused(field: str, data: st.DataObject) -> None:
    right = getattr(pulse(), field)
    at, bit = data.draw(st.integers(0, len(right) - 1)), data.draw(st.integers(0, 7))
    wrong = bytearray(right)
    wrong[at] ^= 1 << bit
    with pytest.raises(PeerError, match="pulse"):
        beacon_terms().beacon.seed(b"t", replace(pulse(), **{field: bytes(wrong)}))  # type: ignore[union-attr]


def test_a_pulse_whose_signature_is_wrong_is_refused() -> None:
    wrong = replace(pulse(), signature=bytes(512))
    with pytest.raises(PeerError, match="the beacon's signature is wrong"):
        wrong.verify()


def test_a_pulse_under_another_key_is_refused() -> None:
    """Anybody can sign a pulse of their own choice with a key of their own."""
    pinned = replace(beacon_terms().beacon, key=bytes(32))  # type: ignore[type-var]
    with pytest.raises(PeerError, match="another key than the terms name"):
        pinned.seed(b"t", pulse())  # type: ignore[union-attr]


@pytest.mark.parametrize("change", [{"chain": 1}, {"time": 1788203040000 + 60000}])
def test_another_pulse_than_the_one_named_beforehand_is_refused(change: dict[str, int]) -> None:
    named = replace(beacon_terms().beacon, **change)  # type: ignore[type-var]
    with pytest.raises(PeerError, match="expected chain"):
        named.seed(b"t", pulse())  # type: ignore[union-attr]


def test_every_member_signed_the_terms_before_the_pulse() -> None:
    origin = beaconed().origin
    assert isinstance(origin, BeaconPulse)
    for member in TERMS.ids:
        rest = tuple(a for a in origin.approvals if a.member != member)
        with pytest.raises(PeerError, match=f"member {member} has not signed") as refused:
            Agreement(terms=beacon_terms(), origin=replace(origin, approvals=rest))
        assert refused.value.culprit == member


def test_an_approval_that_its_member_did_not_sign_is_refused() -> None:
    origin = beaconed().origin
    assert isinstance(origin, BeaconPulse)
    wrong = (Approval(0, origin.approvals[1].signature), *origin.approvals[1:])
    with pytest.raises(PeerError, match="client 0: wrong signature"):
        Agreement(terms=beacon_terms(), origin=replace(origin, approvals=wrong))


def test_the_origin_is_of_the_kind_that_the_terms_name() -> None:
    with pytest.raises(PeerError, match="name no beacon"):
        Agreement(terms=TERMS, origin=beaconed().origin)
    terms = beacon_terms()
    secrets = {v: bytes([v]) * 32 for v in terms.ids}
    ceremony = SeedCeremony(training_id=terms.hash, roster=terms.ids)
    from secagg.agreement.origin import _commitment_statement

    commitments = []
    for v in terms.ids:
        inside = ceremony.commitment(v, secrets[v])
        commitments.append(Commitment(v, inside, IDENTITIES[v].sign(_commitment_statement(terms, v, inside))))
    shown = commitments_hash(terms, commitments)
    reveals = tuple(sign_reveal(terms, v, IDENTITIES[v], secrets[v], shown) for v in terms.ids)
    with pytest.raises(PeerError, match=r"name a beacon's pulse \(2026-08-31 19:04 UTC\), got a ceremony"):
        Agreement(terms=terms, origin=Ceremony(tuple(commitments), reveals))
    with pytest.raises(UsageError, match="approve them instead"):
        commit(terms, 0, IDENTITIES[0], bytes(32))
    with pytest.raises(UsageError, match="commit to a contribution"):
        approve(TERMS, 0, IDENTITIES[0])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('"cipherSuite" : 0', '"cipherSuite" : "x"'), "cipherSuite: expected a whole number"),
        (('"timeStamp" : "2026-08-31', '"timeStamp" : 5, "x" : "'), "timeStamp: expected text"),
        (('"localRandomValue" : "3D', '"localRandomValue" : "zz'), "localRandomValue: expected hexadecimal"),
        (('"previous"', '"hour"'), "listValues: expected previous, hour, day, month, year"),
        (('"external"', '"internal"'), "external.sourceId"),
        (('"pulse" ', '"impulse" '), "an object 'pulse'"),
        (("{", ""), "the beacon's JSON"),
    ],
)
def test_a_pulse_file_that_is_not_one_says_what_was_expected(change: tuple[str, str], says: str) -> None:
    text, certificate = PULSES["2026"]
    wrong = (NIST / text).read_text().replace(*change, 1)
    with pytest.raises(UsageError, match=says):
        Pulse.from_json(wrong, (NIST / certificate).read_bytes())


def test_a_pulse_has_one_reading() -> None:
    for message in (pulse().message + b"\0", pulse().message[:-1], b""):
        with pytest.raises(PeerError, match="pulse"):
            replace(pulse(), message=message).verify()
    for key in (b"", b"no key", key_of((NIST / "certificate_2018.pem").read_bytes())):
        with pytest.raises(PeerError, match="pulse"):
            replace(pulse(), key=key).verify()
    with pytest.raises(UsageError, match="certificate"):
        key_of(b"-----BEGIN CERTIFICATE-----")


@pytest.mark.parametrize("bad", [{"chain": -1}, {"chain": 1.5}, {"time": 1}, {"time": -60000}, {"key": b"short"}])
def test_a_named_pulse_is_checked_when_it_is_named(bad: dict[str, object]) -> None:
    fields: dict[str, object] = {"chain": 2, "time": 60000, "key": bytes(32)}
    with pytest.raises(UsageError, match=f"{next(iter(bad))}: expected"):
        NamedPulse(**{**fields, **bad})  # type: ignore[arg-type]

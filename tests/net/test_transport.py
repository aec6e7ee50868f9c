"""The section `transport`: certificates and addresses, checked when they are given, in bytes and in the file."""

import datetime
from dataclasses import replace
from functools import cache

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from secagg.agreement import Agreement, Proposal, Terms, Transport, read_agreement, write_agreement
from secagg.crypto.certificates import CertificatePair, check_pinned, from_pem, to_pem
from secagg.errors import UsageError, WireError
from secagg.simulation import make_agreement

HUBS = ("https://hub.example:8443", "https://10.0.0.1:9000")


@cache
def certificate(number: int) -> bytes:
    return CertificatePair.generate().certificate


@cache
def transport(members: int = 3) -> Transport:
    return Transport(hubs=HUBS, hub=certificate(-1), members=tuple(map(certificate, range(members))))


@cache
def agreed(members: int = 3) -> Agreement:
    more = {"transport": transport(members)}
    return make_agreement(members=members, size=3, length=2, clip=1.0, **more)[0]


def issued(*, ca: bool | None, names: tuple[str, ...] = (), by: Ed25519PrivateKey | None = None) -> bytes:
    """A certificate of any shape, self-signed unless `by` signs it."""
    key = Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "any")])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    )  # fmt: skip
    if ca is not None:
        builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(list(map(x509.DNSName, names))), critical=False)
    return builder.sign(by or key, None).public_bytes(Encoding.DER)


def test_terms_with_a_transport_round_trip_through_bytes_and_file() -> None:
    agreement = agreed()
    assert Terms.from_bytes(agreement.terms.to_bytes()) == agreement.terms
    assert read_agreement(write_agreement(Proposal.of(agreement))).agreement == agreement
    without = replace(agreement.terms, transport=None)
    assert agreement.terms.to_bytes().startswith(without.to_bytes())
    assert agreement.terms.hash != without.hash


def test_an_authority_with_names_round_trips_and_names_one_member() -> None:
    authority = issued(ca=True)
    made = Transport(hubs=HUBS, authority=authority, names=("a.example", "b.example", "c.example"))
    terms = replace(agreed().terms, transport=made)
    assert Terms.from_bytes(terms.to_bytes()) == terms
    assert read_agreement(write_agreement(Proposal(terms=terms))).terms == terms
    assert made.member_with((4, 5, 6), issued(ca=False, names=("b.example",))) == 5
    assert made.member_with((4, 5, 6), issued(ca=False, names=("other.example",))) is None
    assert made.member_with((4, 5, 6), issued(ca=False, names=("a.example", "b.example"))) is None
    assert made.member_with((4, 5, 6), issued(ca=False)) is None


def test_a_member_is_known_by_its_whole_certificate() -> None:
    ids = (3, 5, 9)
    assert [transport().member_with(ids, certificate(i)) for i in range(3)] == [3, 5, 9]
    assert transport().member_with(ids, certificate(-1)) is None
    assert transport().member_with(ids, certificate(77)) is None


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"hubs": ()}, "1 to 8 different addresses"),
        ({"hubs": ("http://hub:80",)}, "such as https"),
        ({"hubs": ("https://hub",)}, "such as https"),
        ({"hubs": ("https://user@hub:1",)}, "such as https"),
        ({"hubs": ("https://hub:8443/path",)}, "such as https"),
        ({"hubs": ("https://hub:99999",)}, "such as https"),
        ({"hubs": HUBS[:1] * 2}, "different addresses"),
        ({"hub": b""}, "1 to 8192 bytes"),
        ({"hub": b"no certificate"}, "in DER"),
        ({"names": ("a",)}, "only with an authority"),
    ],
)
def test_what_cannot_be_a_transport_is_refused_when_given(change: dict[str, object], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        replace(transport(), **change)


def test_certificates_that_could_let_others_in_are_refused() -> None:
    for ca in (True, None):
        with pytest.raises(UsageError, match="CA=FALSE"):
            replace(transport(), members=(certificate(0), issued(ca=ca)))
    with pytest.raises(UsageError, match="self-signed"):
        replace(transport(), hub=issued(ca=False, by=Ed25519PrivateKey.generate()))
    with pytest.raises(UsageError, match="one key"):
        replace(transport(), members=(certificate(0), certificate(1), certificate(-1)))
    with pytest.raises(UsageError, match="CA=TRUE"):
        Transport(hubs=HUBS, authority=certificate(0), names=("a", "b", "c"))
    with pytest.raises(UsageError, match="got both"):
        Transport(hubs=HUBS, authority=issued(ca=True), hub=certificate(0))
    for names in (("a", "a"), ("a", "hub.example")):
        with pytest.raises(UsageError, match="all different"):
            Transport(hubs=HUBS, authority=issued(ca=True), names=names)
    with pytest.raises(UsageError, match="DNS name"):
        Transport(hubs=HUBS, authority=issued(ca=True), names=("*.example",))


def test_each_member_needs_a_certificate() -> None:
    with pytest.raises(UsageError, match="one certificate for each of 3 members, got 2"):
        replace(agreed().terms, transport=replace(transport(), members=transport().members[:2]))


@given(st.data())
def test_changed_bytes_are_refused_or_mean_something_else(data: st.DataObject) -> None:
    raw = bytearray(agreed().terms.to_bytes())
    start = len(replace(agreed().terms, transport=None).to_bytes())
    place = data.draw(st.integers(start, len(raw) - 1))
    raw[place] ^= data.draw(st.integers(1, 255))
    try:
        terms = Terms.from_bytes(bytes(raw))
    except WireError:
        return
    assert terms != agreed().terms
    assert terms.to_bytes() == bytes(raw)


def test_pem_and_der_are_one_certificate() -> None:
    assert from_pem(to_pem(certificate(0)).encode()) == certificate(0)
    with pytest.raises(UsageError, match="PEM"):
        from_pem(b"nothing")
    with pytest.raises(UsageError, match="DER"):
        check_pinned(certificate(0) + b"\0")


def test_the_private_key_is_not_shown() -> None:
    pair = CertificatePair.generate()
    assert "PRIVATE" not in repr(pair)
    assert "key" not in repr(pair)

"""The bytes of an agreement: one encoding, typed errors for all others, little memory."""

import resource
import tracemalloc
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg import Policy
from secagg.agreement import Agreement, Terms, sections, successor_terms
from secagg.agreement.sections import Section
from secagg.codec import U32, Reader
from secagg.errors import PeerError, WireError
from secagg.simulation.agree import agree_on
from tests.secagg.agreement.common import beaconed, made
from tests.secagg.drbg import Drbg
from tests.secagg.fuzz import Mutator

CALLED = made(4, 4, policy=Policy(anonymity=2, memory="round"), roll_call=True)[0]
KEPT = agree_on(successor_terms(made()[0], [0], name="successor"), made()[1], Drbg(b"successor"))
AGREEMENTS = [made()[0], made(6, 3, groups="survivors", colluders=1)[0], beaconed(), CALLED, KEPT]


@pytest.mark.parametrize("agreement", AGREEMENTS)
def test_an_agreement_has_one_encoding(agreement: Agreement) -> None:
    raw = agreement.to_bytes()
    again = Agreement.from_bytes(raw)
    assert again == agreement
    assert again.fingerprint == agreement.fingerprint
    assert again.seed == agreement.seed
    for wrong in (raw + b"\0", raw[:-1], b""):
        with pytest.raises(WireError):
            Agreement.from_bytes(wrong)


def test_every_truncation_is_a_wire_error() -> None:
    raw = AGREEMENTS[0].to_bytes()
    for end in range(len(raw)):
        with pytest.raises(WireError):
            Agreement.from_bytes(raw[:end])


def test_terms_of_another_version_are_refused() -> None:
    raw = made()[0].terms.to_bytes()
    for version in (0, 1, 3, 255):
        if version != raw[0]:
            with pytest.raises(WireError, match=f"terms of version {version}"):
                Terms.from_bytes(bytes([version]) + raw[1:])


def test_an_unknown_section_is_refused() -> None:
    raw = made()[0].terms.to_bytes()
    with pytest.raises(WireError, match="unknown section 7 in the terms"):
        Terms.from_bytes(raw + b"\x07\x01")


def made_up(number: int, version: int = 1) -> Section:
    """A section whose value is a number."""
    return Section(
        number=number,
        version=version,
        name=f"part{number}",
        layout=U32,
        flat=lambda value: value,
        build=lambda value: value,
        read=lambda table: table,
        lines=lambda value: iter([f"part{number} = {value}"]),
    )


@given(values=st.dictionaries(st.sampled_from([1, 4, 200]), st.integers(0, 2**32 - 1)))
def test_sections_round_trip_and_absent_ones_take_no_bytes(values: dict[int, int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sections, "SECTIONS", tuple(map(made_up, (1, 4, 200))))
        terms = SimpleNamespace(**{f"part{number}": values.get(number) for number in (1, 4, 200)})
        raw = sections.to_bytes(terms)
        assert len(raw) == 10 * len(values)
        assert sections.read(Reader(raw)) == {f"part{number}": value for number, value in values.items()}


def test_sections_out_of_order_twice_or_of_another_version_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sections, "SECTIONS", (made_up(1), made_up(4, version=2)))
    one, four = b"\x01\x01\x04\0\0\0abcd", b"\x04\x02\x04\0\0\0abcd"
    assert len(sections.read(Reader(one + four))) == 2
    for raw, message in ((four + one, "stands after section 4"), (one + one, "stands after section 1")):
        with pytest.raises(WireError, match=message):
            sections.read(Reader(raw))
    with pytest.raises(WireError, match="version 1; this is version 2"):
        sections.read(Reader(b"\x04\x01" + four[2:]))
    with pytest.raises(WireError, match="extra bytes"):
        sections.read(Reader(b"\x01\x01\x05\0\0\0abcde"))


def test_terms_in_another_encoding_are_refused() -> None:
    """A bound in a segment of floats means nothing, so it has to be zero."""
    raw = made()[0].terms.to_bytes()
    clip = bytes.fromhex("000000000000f03f")
    assert raw.count(clip) == 1
    at = raw.index(clip) + 8
    with pytest.raises(WireError, match="not canonical"):
        Terms.from_bytes(raw[:at] + b"\x01" + raw[at + 1 :])


def test_terms_that_cannot_be_kept_are_a_wire_error() -> None:
    raw = made()[0].terms.to_bytes()
    first, last = (value.to_bytes(8, "little") for value in (0, 4))
    assert raw.count(first + last) == 1
    with pytest.raises(WireError, match="terms that cannot be kept: rounds"):
        Terms.from_bytes(raw.replace(first + last, last + first))


def fuzz(kind: type[Agreement] | type[Terms], count: int, seed: int) -> tuple[int, int]:
    """Decode mutated bytes; how many decoded (each to a value with exactly these bytes), and the memory in KB."""
    bases = [one.to_bytes() if kind is Agreement else one.terms.to_bytes() for one in AGREEMENTS]
    mutate, decoded = Mutator(bases, seed, 0), 0
    allowed = PeerError if kind is Agreement else WireError  # an origin that was not signed is no matter of bytes
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(count):
        data = mutate()
        try:
            assert kind.from_bytes(data).to_bytes() == data
            decoded += 1
        except allowed:
            pass
        except BaseException as failure:
            failure.add_note(data.hex())
            raise
    return decoded, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before


@pytest.mark.parametrize(("kind", "count"), [(Agreement, 1500), (Terms, 4000)])
def test_mutated_bytes_give_a_value_with_that_encoding_or_a_typed_error(kind: type[Agreement], count: int) -> None:
    decoded, _ = fuzz(kind, count, seed=0)
    assert 0 < decoded < count


@pytest.mark.long
@pytest.mark.parametrize("kind", [Agreement, Terms])
def test_a_million_mutated_inputs_give_typed_errors_in_bounded_memory(kind: type[Agreement]) -> None:
    decoded, grown = fuzz(kind, 1_000_000, seed=1)
    print(f"{kind.__name__}: {decoded} of a million decoded, peak memory +{grown / 1024:.1f} MB")
    assert grown < 64 * 1024


def test_an_agreement_with_a_count_of_four_billion_allocates_little() -> None:
    raw = AGREEMENTS[2].to_bytes()

    def act() -> None:
        for at in range(0, len(raw) - 3, 5):
            with pytest.raises(PeerError):
                Agreement.from_bytes(raw[:at] + b"\xff\xff\xff\xff" + raw[at + 4 :])

    act()
    tracemalloc.start()
    try:
        act()
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()

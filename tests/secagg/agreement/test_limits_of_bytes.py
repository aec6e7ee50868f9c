"""The counts and choices in the bytes of terms: the last that is read, and the first that is refused."""

import hashlib
import re
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from secagg import Member, Policy, Schedule, UsageError, WireError
from secagg.agreement import Kept, NamedPulse, Terms, sections
from secagg.agreement.canonical import fields_from_bytes
from secagg.agreement.draft import read_draft
from secagg.agreement.keeping import together
from secagg.codec import Reader
from secagg.crypto import Segment

MEMBERS = tuple(Member(place, bytes([place + 1]) * 32) for place in range(4))
PLAIN: dict[str, Any] = {
    "name": "x",
    "members": MEMBERS,
    "schedule": Schedule(name="fixed", size=2),
    "last_round": 0,
    "segments": (Segment(shape=(5,), bound=9),),
    "policy": Policy(anonymity=2, max_leverage=0.5),
}
SURVIVORS = PLAIN | {"groups": "survivors", "colluders": 1, "threshold": 4}
NAMED = NamedPulse(chain=2, time=60000, key=bytes(32))


def u32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def refused(problem: str, kind: type[Exception] = WireError) -> Any:
    return pytest.raises(kind, match=f"^{re.escape(problem)}$")


def kept() -> dict[str, Any]:
    units = together(None, PLAIN["schedule"], (0, 1, 2, 3), bytes(32))
    gone = next(unit for unit in units if 3 in unit)
    left = tuple(member for member in MEMBERS if member.id not in gone)
    return PLAIN | {"members": left, "predecessors": (bytes(32),), "keep": Kept(bytes(32), tuple(sorted(gone)))}


def optional() -> Iterator[tuple[str, dict[str, Any], bytes]]:
    """Fields that are there once or not at all, and the bytes of a second one."""
    yield "colluders", SURVIVORS, u32(1)
    yield "threshold", SURVIVORS, u32(4)
    yield "beacon", PLAIN | {"beacon": NAMED}, struct.pack("<QQ", 2, 60000) + bytes(32)
    yield "keep", kept(), bytes(32) + u32(2, *kept()["keep"].dropped)


@pytest.mark.parametrize(("field", "given", "more"), tuple(optional()))
def test_a_field_is_there_once_or_not_at_all(field: str, given: dict[str, Any], more: bytes) -> None:
    terms = Terms(**given)
    data, without = terms.to_bytes(), replace(terms, **{field: None}).to_bytes()
    assert Terms.from_bytes(data) == terms
    place = next(place for place, (a, b) in enumerate(zip(data, without, strict=False)) if a != b)
    assert data == without[:place] + u32(1) + more + without[place + 4 :]
    with refused("count 2 exceeds the limit 1"):
        Terms.from_bytes(without[:place] + u32(2) + more * 2 + without[place + 4 :])


def test_at_most_64_predecessors_are_named() -> None:
    earlier = tuple(bytes([place]) * 32 for place in range(65))
    terms = Terms(**PLAIN | {"predecessors": earlier[:64]})
    data = terms.to_bytes()
    assert Terms.from_bytes(data) == terms
    with pytest.raises(UsageError, match=r"^predecessors: expected at most 64 different fingerprints of 32 bytes"):
        Terms(**PLAIN | {"predecessors": earlier})
    place = data.rindex(u32(64) + earlier[0])
    with refused("count 65 exceeds the limit 64"):
        Terms.from_bytes(
            data[:place] + u32(65) + data[place + 4 : place + 4 + 64 * 32] + earlier[64] + data[place + 4 + 64 * 32 :]
        )


@pytest.mark.parametrize(
    ("field", "known", "before"),
    [
        # what stands before the byte, so that its place is known: the last number of the field before it
        ("schedule", 4, u32(9)),
        ("groups", 2, struct.pack("<IHI", 2, 1, 0)),
        ("mode", 2, struct.pack("<IId", 2, 2, 0.5)),
        ("memory", 2, struct.pack("<IIdB", 2, 2, 0.5, 0)),
    ],
)
def test_a_choice_that_is_unknown_is_refused(field: str, known: int, before: bytes) -> None:
    terms = Terms(**PLAIN)
    data = terms.to_bytes()
    values = fields_from_bytes(data)
    assert (values["schedule"], values["groups"], values["policy"]) == (terms.schedule, terms.groups, terms.policy)
    place = data.index(before) + len(before)
    for wrong in (known, 255):
        with refused(f"unknown {field} ({wrong}) in the terms"):
            Terms.from_bytes(data[:place] + bytes([wrong]) + data[place + 1 :])


def test_a_name_is_utf_8_of_at_most_800_bytes() -> None:
    name = "\U0001d49c" * 200  # four bytes each
    terms = Terms(**PLAIN | {"name": name})
    assert len(name.encode()) == 800
    assert Terms.from_bytes(terms.to_bytes()) == terms
    data = Terms(**PLAIN).to_bytes()
    assert data[1:6] == u32(1) + b"x"
    with refused("count 801 exceeds the limit 800"):
        Terms.from_bytes(data[:1] + u32(801) + b"x" * 801 + data[6:])
    with refused("a name is not UTF-8"):
        Terms.from_bytes(data[:1] + u32(1) + b"\xff" + data[6:])


def test_a_segment_is_of_floats_or_of_integers_and_has_at_most_32_sides() -> None:
    floats = Segment(name="a", shape=(2, 3), clip=0.5)
    integers = Segment(name="b", shape=(1,) * 31 + (7,), bound=0)
    data = Terms(**PLAIN | {"segments": (floats, integers)}).to_bytes()
    first = u32(1) + b"a" + u32(2, 2, 3) + b"\1" + struct.pack("<dI", 0.5, 0)
    second = u32(1) + b"b" + u32(32, *(1,) * 31, 7) + b"\0" + struct.pack("<dI", 0.0, 0)
    assert u32(2) + first + second in data
    place = data.index(first) + len(first) - 13
    for wrong in (2, 255):
        with refused(f"unknown encoding ({wrong}) of a segment"):
            Terms.from_bytes(data[:place] + bytes([wrong]) + data[place + 1 :])
    sides = u32(33, *(1,) * 32, 7)
    with refused("count 33 exceeds the limit 32"):
        Terms.from_bytes(data.replace(u32(32, *(1,) * 31, 7), sides))


def test_at_most_65535_segments() -> None:
    data = Terms(**PLAIN).to_bytes()
    one = u32(1) + u32(0) + u32(1, 5) + b"\0" + struct.pack("<dI", 0.0, 9)
    assert data.count(one) == 1
    with refused("count 65536 exceeds the limit 65535"):
        Terms.from_bytes(data.replace(one, u32(65536) + one[4:]))
    with pytest.raises(WireError, match=r"^65535 values declared, but only"):
        Terms.from_bytes(data.replace(one, u32(65535) + one[4:]))


def test_a_section_has_at_most_64_megabytes() -> None:
    with refused(f"count {2**26 + 1} exceeds the limit {2**26}"):
        sections.read(Reader(b"\2\1" + u32(2**26 + 1)))
    with refused(f"message ends {2**26} bytes too early"):
        sections.read(Reader(b"\2\1" + u32(2**26)))


def test_section_zero_is_unknown_and_sections_have_these_numbers() -> None:
    assert [(one.number, one.version, one.name) for one in sections.SECTIONS] == [
        (2, 1, "statistics"),
        (3, 1, "transport"),
        (5, 1, "noise"),
    ]
    with refused("unknown section 0 in the terms; this version knows [2, 3, 5]"):
        sections.read(Reader(b"\0\1"))
    assert sections.read(Reader(b"")) == {}


# --- drafts --------------------------------------------------------------------------------------------------------

DRAFT = """
version = 2
name = "study"
rounds = {{ last = 0 }}
groups = {{ size = {size} }}
vector = {{ length = 2, clip = 1.0 }}
members = [{members}]
{more}
"""


def draft(count: int = 3, more: str = "", extra: str = "") -> Terms:
    names = ", ".join(f'{{ name = "m{place}"{extra} }}' for place in range(count))
    return read_draft(DRAFT.format(size=count, members=names, more=more))


def test_members_of_a_draft_have_different_stand_ins_for_identities() -> None:
    count = 300  # more than a byte counts
    found = draft(count).members
    stand_in = hashlib.sha256
    assert [member.identity for member in found] == [
        stand_in(b"a member of a draft" + place.to_bytes(2, "big")).digest() for place in range(count)
    ]
    assert [member.name for member in found] == [f"m{place}" for place in range(count)]


def test_a_draft_names_hubs_whose_certificates_are_collected_later() -> None:
    assert draft(more='transport = { hubs = ["https://hub.example:8443"] }').transport is None
    with refused("transport.hubs: expected 1 to 8 different addresses, got 0", UsageError):
        draft(more="transport = { hubs = [] }")
    with refused("transport.hub: unknown key; did you mean 'hubs'?", UsageError):
        draft(more='transport = { hub = "" }')


def test_a_file_with_identities_is_no_draft_and_is_read_as_it_is() -> None:
    key = "01" * 32
    with pytest.raises(UsageError, match="two of them have one identity key"):
        draft(extra=f', identity = "{key}"')
    keys = [f"0{place}" * 32 for place in range(3)]
    whole = DRAFT.format(size=3, members=", ".join(f'{{ identity = "{key}" }}' for key in keys), more="")
    assert [member.identity.hex() for member in read_draft(whole).members] == keys


def test_a_draft_is_a_draft_until_the_first_identity() -> None:
    mixed = DRAFT.format(size=2, members='{ name = "a" }, { identity = "' + "01" * 32 + '" }', more="")
    with pytest.raises(UsageError, match=r"members\[0\].identity: expected 64 lower-case hexadecimal digits"):
        read_draft(mixed)
    assert replace(draft(), name="other").name == "other"

"""The section `transport` at its limits: addresses, names and certificates, in bytes and in the file."""

import re
from typing import Any

import pytest

from secagg import UsageError, WireError
from secagg.agreement.transport import TRANSPORT, Transport, check_hubs
from secagg.codec import from_bytes, to_bytes
from secagg.crypto.certificates import CertificatePair
from tests.net.test_transport import issued

HUB = "https://hub.example:8443"
PINNED = [CertificatePair.generate().certificate for _ in range(4)]
AUTHORITY = issued(ca=True)


def refused(problem: str, kind: type[Exception] = UsageError) -> Any:
    return pytest.raises(kind, match=f"^{re.escape(problem)}$")


def pinned(**more: Any) -> Transport:
    return Transport(**({"hubs": (HUB,), "hub": PINNED[0], "members": tuple(PINNED[1:])} | more))


def named(*names: str, **more: Any) -> Transport:
    return Transport(**({"hubs": (HUB,), "authority": AUTHORITY, "names": names} | more))


# --- addresses -----------------------------------------------------------------------------------------------------


def test_a_hub_has_one_to_eight_different_addresses() -> None:
    eight = [f"https://hub{place}.example:443" for place in range(8)]
    check_hubs(eight)
    check_hubs(eight[:1])
    for wrong, came in (([*eight, HUB], "9"), ([], "0"), ([HUB, HUB], "2"), ((HUB,), f"('{HUB}',)"), (None, "None")):
        with refused(f"transport.hubs: expected 1 to 8 different addresses, got {came}"):
            check_hubs(wrong)


@pytest.mark.parametrize(
    "address",
    [
        "http://hub.example:8443",
        "HTTPS://hub.example:8443",
        "https://hub.example",
        "https://hub.example:0",
        "https://hub.example:65536",
        "https://hub.example:x",
        "https://:8443",
        "https://me@hub.example:8443",
        "https://hub.example:8443/",
        "https://hub.example:8443/path",
        "https://hub.example:8443?query",
        "https://hub.example:8443#part",
        "https://hüb.example:8443",
        "https://hub\x7f.example:8443",
        "https://[::1:8443",
        "https://" + "a" * 288 + ":8443",  # 301 characters
        "",
        5,
    ],
)
def test_an_address_is_https_with_a_host_and_a_port_and_nothing_else(address: Any) -> None:
    shown = repr(address if isinstance(address, str) else "")
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    with refused(f"transport.hubs: expected an address such as https://hub.example:8443, got {shown}"):
        check_hubs([address])


@pytest.mark.parametrize(
    "address", [HUB, "https://10.0.0.1:1", "https://[::1]:65535", "https://" + "a" * 287 + ":8443"]
)
def test_an_address_may_be_a_name_or_a_number_of_300_characters(address: str) -> None:
    check_hubs([address])


# --- certificates and names ----------------------------------------------------------------------------------------


def test_the_lists_of_a_transport_are_kept_as_tuples() -> None:
    found = pinned(hubs=[HUB], members=list(PINNED[1:]))
    assert (found.hubs, found.members, found.names, found.authority) == ((HUB,), tuple(PINNED[1:]), (), b"")
    with refused("hubs, each: expected str, got int"):
        pinned(hubs=(5,))
    with refused("members, each: expected bytes, got str"):
        pinned(members=("a",))
    with refused("names, each: expected str, got bytes"):
        named(b"a")  # type: ignore[arg-type]


def test_a_name_is_a_dns_name_of_at_most_253_characters() -> None:
    longest = ".".join(["a" * 63] * 3 + ["a" * 61])
    assert len(longest) == 253
    assert named(longest, "b-1.example", "0").names[1] == "b-1.example"
    for wrong in (longest + "a", "a" * 64, "A", "a..b", "-a", "a_b", ""):
        shown = repr(wrong) if len(repr(wrong)) <= 60 else repr(wrong)[:57] + "..."
        with refused(f"transport.names: expected a DNS name in lower case, got {shown}"):
            named(wrong)


def test_hub_and_members_are_told_apart() -> None:
    for names in (("a", "a"), ("hub.example", "b")):
        with refused("transport.names: hub and members need a name each, all different"):
            named(*names)
    with refused("transport: two certificates have one key; hub and members need a key each"):
        pinned(members=(PINNED[1], PINNED[1]))
    with refused("transport: two certificates have one key; hub and members need a key each"):
        pinned(members=(PINNED[0], PINNED[1]))
    for more in ({"hub": PINNED[0]}, {"members": (PINNED[1],)}):
        with refused("transport: expected certificates or an authority, got both"):
            named("a", **more)
    with refused("transport.names: only with an authority"):
        pinned(names=("a",))
    with pytest.raises(UsageError, match="CA=TRUE"):
        named("a", authority=PINNED[0])


def test_there_is_one_for_each_member() -> None:
    pinned().check_members((4, 5, 6))
    named("a", "b").check_members((4, 5))
    for ids in ((4, 5), (4, 5, 6, 7)):
        with refused(f"transport: expected one certificate for each of {len(ids)} members, got 3"):
            pinned().check_members(ids)
    with refused("transport: expected one name for each of 3 members, got 2"):
        named("a", "b").check_members((4, 5, 6))


def test_those_that_are_left_keep_their_certificates_or_names() -> None:
    left = pinned().without((4, 5, 6), {5})
    assert left == pinned(members=(PINNED[1], PINNED[3]))
    assert named("a", "b", "c").without((4, 5, 6), [4]) == named("b", "c")


def test_a_certificate_names_one_member_or_nobody() -> None:
    found = named("a.example", "b.example")
    for names, member in ((("b.example",), 5), (("a.example", "b.example"), None), (("c.example",), None), ((), None)):
        assert found.member_with((4, 5), issued(ca=False, names=names)) == member
    assert [pinned().member_with((7, 8, 9), one) for one in PINNED] == [None, 7, 8, 9]
    for transport, certificate in ((found, issued(ca=False)), (pinned(), PINNED[1])):
        with pytest.raises(ValueError, match="zip"):  # never a member of another list
            transport.member_with((7,), certificate)


# --- bytes and file ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", [pinned(), named("a", "b")], ids=["pinned", "authority"])
def test_a_transport_comes_back_from_bytes(transport: Transport) -> None:
    data = to_bytes(TRANSPORT.layout, TRANSPORT.flat(transport))
    assert TRANSPORT.build(from_bytes(TRANSPORT.layout, data)) == transport
    assert (TRANSPORT.number, TRANSPORT.version, TRANSPORT.name) == (3, 1, "transport")


def test_a_transport_has_these_lines() -> None:
    members = "".join(f'    "{one.hex()}",\n' for one in PINNED[1:])
    assert "\n".join(TRANSPORT.lines(pinned(hubs=(HUB, "https://b:1")))) == (
        f'[transport]\nhubs = ["{HUB}", "https://b:1"]\nhub = "{PINNED[0].hex()}"\nmembers = [\n{members}]'
    )
    assert list(TRANSPORT.lines(named("a", "b"))) == [
        "[transport]",
        f'hubs = ["{HUB}"]',
        f'authority = "{AUTHORITY.hex()}"',
        'names = ["a", "b"]',
    ]


def test_a_transport_is_read_from_the_file() -> None:
    table: dict[str, Any] = {"hubs": [HUB], "hub": PINNED[0].hex(), "members": [one.hex() for one in PINNED[1:]]}
    assert TRANSPORT.read(table) == pinned()
    assert TRANSPORT.read({"hubs": [HUB], "authority": AUTHORITY.hex(), "names": ["a"]}) == named("a")
    for changes, problem in (
        ({"hubs": HUB}, f"transport.hubs: expected a list of texts, got '{HUB}'"),
        ({"hubs": [1]}, "transport.hubs: expected a list of texts, got [1]"),
        ({"members": "00"}, "transport.members: expected a list of texts, got '00'"),
        ({"members": ["0"]}, "transport.members.0: expected lower-case hexadecimal digits, got '0'"),
        ({"hub": ""}, "transport.hub: expected lower-case hexadecimal digits, got ''"),
        ({"authority": ""}, "transport.authority: expected lower-case hexadecimal digits, got ''"),
        ({"port": 1}, "transport.port: unknown key; expected one of authority, hub, hubs, members, names"),
    ):
        with refused(problem):
            TRANSPORT.read(table | changes)


@pytest.mark.parametrize(
    ("field", "value", "most"),
    [
        ("hubs", lambda size: [b"a"] * size, 8),
        ("hubs", lambda size: [bytes(size)], 300),
        ("hub", bytes, 8192),
        ("members", lambda size: [bytes(size)], 8192),
        ("members", lambda size: [b""] * size, 65535),
        ("authority", bytes, 8192),
        ("names", lambda size: [bytes(size)], 253),
        ("names", lambda size: [b""] * size, 65535),
    ],
)
def test_the_parts_in_bytes_have_these_sizes_at_most(field: str, value: Any, most: int) -> None:
    flat: dict[str, Any] = {"hubs": [], "hub": b"", "members": [], "authority": b"", "names": []}
    last = from_bytes(TRANSPORT.layout, to_bytes(TRANSPORT.layout, flat | {field: value(most)}))[field]
    assert last == (value(most) if isinstance(last, bytes) else tuple(value(most)))
    with refused(f"count {most + 1} exceeds the limit {most}", WireError):
        to_bytes(TRANSPORT.layout, flat | {field: value(most + 1)})


def test_bytes_that_make_no_transport_are_refused() -> None:
    flat = TRANSPORT.flat(pinned())
    with refused("a transport that cannot be kept: transport.names: only with an authority", WireError):
        TRANSPORT.build({**flat, "names": (b"a",)})
    with refused("a name is not UTF-8", WireError):
        TRANSPORT.build({**flat, "hubs": (b"\xff",)})

"""The section `transport` of an agreement: where the hub is, and by which certificates both ends know each other.

Each certificate is self-signed and pinned here, so no authority is needed. A network that has one can name it instead,
with the DNS name of each member; whoever runs the authority can then pose as any member towards the hub (it can make
the member drop out; it cannot sign for it).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from secagg.agreement.layout import text
from secagg.agreement.section import Section
from secagg.agreement.table import Table, quoted, show
from secagg.arguments import each, settle
from secagg.codec import Blob, Many, Struct
from secagg.crypto import certificates
from secagg.errors import UsageError, WireError
from secagg.types import ClientId

MOST_HUBS: Final = 8
MOST_ADDRESS: Final = 300
_NAME: Final = re.compile(r"(?!-)[a-z0-9-]{1,63}(\.[a-z0-9-]{1,63})*")


@dataclass(frozen=True, kw_only=True)
class Transport:
    """How sites and the hub of the network service reach and recognise each other.

    `hubs` are the hub's addresses, which sites try in turn. Either `hub` is the hub's certificate and `members` those
    of the members in the order of their ids, all self-signed and in DER; or `authority` issued all of them, and `names`
    has the DNS name in each member's certificate.

    >>> from secagg.crypto.certificates import CertificatePair
    >>> hub, *sites = (CertificatePair.generate().certificate for _ in range(4))
    >>> transport = Transport(hubs=("https://hub.example:8443",), hub=hub, members=tuple(sites))
    >>> transport.member_with((7, 8, 9), sites[1])
    8
    """

    hubs: tuple[str, ...]
    hub: bytes = b""
    members: tuple[bytes, ...] = ()
    authority: bytes = b""
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        settle(self, each, "hubs", "names", kind=str)
        settle(self, each, "members", kind=bytes)
        check_hubs(list(self.hubs))
        if self.authority:
            self._check_names()
        else:
            self._check_certificates()

    def _check_certificates(self) -> None:
        if self.names:
            raise UsageError("transport.names: only with an authority")
        for der in (self.hub, *self.members):
            certificates.check_pinned(der)
        keys = [certificates.public_key_of(der) for der in (self.hub, *self.members)]
        if len(set(keys)) < len(keys):  # audit: one-certificate-one-member
            raise UsageError("transport: two certificates have one key; hub and members need a key each")

    def _check_names(self) -> None:
        if self.hub or self.members:
            raise UsageError("transport: expected certificates or an authority, got both")
        certificates.check_authority(self.authority)
        hosts = {urlsplit(address).hostname for address in self.hubs}
        for name in self.names:
            if len(name) > 253 or not _NAME.fullmatch(name):
                raise UsageError(f"transport.names: expected a DNS name in lower case, got {show(name)}")
        if len(set(self.names)) < len(self.names) or hosts & set(self.names):  # audit: one-name-one-member
            raise UsageError("transport.names: hub and members need a name each, all different")

    def check_members(self, ids: tuple[ClientId, ...]) -> None:
        """UsageError unless there is a certificate or a name for each of these members."""
        known = self.names if self.authority else self.members
        if len(known) != len(ids):
            what = "name" if self.authority else "certificate"
            raise UsageError(f"transport: expected one {what} for each of {len(ids)} members, got {len(known)}")

    def without(self, ids: tuple[ClientId, ...], gone: Collection[ClientId]) -> Transport:
        """The same for those of these members that are left."""
        left = [place for place, client in enumerate(ids) if client not in gone]
        members = tuple(self.members[place] for place in left) if self.members else ()
        return replace(self, members=members, names=tuple(self.names[place] for place in left) if self.names else ())

    def member_with(self, ids: tuple[ClientId, ...], certificate: bytes) -> ClientId | None:
        """The member with this certificate, or None. With an authority, TLS has checked that it was issued by it."""
        if not self.authority:
            return dict(zip(self.members, ids, strict=True)).get(certificate)  # audit: member-by-whole-certificate
        names = certificates.dns_names(certificate)
        found = [one for one, name in zip(ids, self.names, strict=True) if name in names]
        return found[0] if len(found) == 1 else None  # audit: certificate-names-one-member


def check_hubs(hubs: object) -> None:
    """UsageError unless this is a list of addresses that sites can dial."""
    if not isinstance(hubs, list) or not 1 <= len(hubs) <= MOST_HUBS or len(set(map(str, hubs))) < len(hubs):
        came = len(hubs) if isinstance(hubs, list) else show(hubs)
        raise UsageError(f"transport.hubs: expected 1 to {MOST_HUBS} different addresses, got {came}")
    for address in hubs:
        _check_address(address if isinstance(address, str) else "")


def _check_address(address: str) -> None:
    try:
        parts: SplitResult = urlsplit(address)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    plain = f"https://{parts.netloc}" == address and "@" not in parts.netloc and address.isascii()
    if not plain or not parts.hostname or not port or len(address) > MOST_ADDRESS or not address.isprintable():
        raise UsageError(f"transport.hubs: expected an address such as https://hub.example:8443, got {show(address)}")


# --- bytes and file ----------------------------------------------------------------------------------------

_CERTIFICATE: Final = Blob(certificates.MOST_BYTES)
_LAYOUT: Final = Struct(
    dict,
    (
        ("hubs", Many(Blob(MOST_ADDRESS), MOST_HUBS)),
        ("hub", _CERTIFICATE),
        ("members", Many(_CERTIFICATE)),
        ("authority", _CERTIFICATE),
        ("names", Many(Blob(253))),
    ),
)


def _flat(value: Transport) -> dict[str, Any]:
    return {
        "hubs": [address.encode() for address in value.hubs],
        "hub": value.hub,
        "members": value.members,
        "authority": value.authority,
        "names": [name.encode() for name in value.names],
    }


def _build(values: Mapping[str, Any]) -> Transport:
    named = {**values, "hubs": tuple(map(text, values["hubs"])), "names": tuple(map(text, values["names"]))}
    try:
        return Transport(**named)
    except UsageError as bad:
        raise WireError(f"a transport that cannot be kept: {bad}") from None


def _read(values: object) -> Transport:
    table = Table(values, "transport", ("hubs", "hub", "members", "authority", "names"))
    most = certificates.MOST_BYTES
    rows = {str(place): value for place, value in enumerate(_texts(table, "members"))}
    members = Table(rows, "transport.members", tuple(rows))
    return Transport(
        hubs=_texts(table, "hubs"),
        hub=table.hex("hub", most=most) if "hub" in table else b"",
        members=tuple(members.hex(place, most=most) for place in rows),
        authority=table.hex("authority", most=most) if "authority" in table else b"",
        names=_texts(table, "names"),
    )


def _texts(table: Table, key: str) -> tuple[str, ...]:
    values = table.raw(key, [])
    if not isinstance(values, list) or any(not isinstance(value, str) for value in values):
        raise UsageError(f"{table.path(key)}: expected a list of texts, got {show(values)}")
    return tuple(values)


def _lines(value: Transport) -> Iterator[str]:
    yield from ("[transport]", f"hubs = [{', '.join(map(quoted, value.hubs))}]")
    if value.authority:
        yield f'authority = "{value.authority.hex()}"'
        yield f"names = [{', '.join(map(quoted, value.names))}]"
        return
    yield f'hub = "{value.hub.hex()}"'
    yield "members = ["
    yield from (f'    "{certificate.hex()}",' for certificate in value.members)
    yield "]"


TRANSPORT: Final = Section(
    number=3, version=1, name="transport", layout=_LAYOUT, flat=_flat, build=_build, read=_read, lines=_lines
)

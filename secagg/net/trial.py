"""A hub and its sites on one machine, to try the network service out: folders, certificates and a signed agreement."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

from secagg.agreement.credentials import Credentials
from secagg.agreement.folder import MemberFolder
from secagg.agreement.proposal import Proposal, Signature
from secagg.agreement.transport import Transport
from secagg.simulation import agree_on, make_agreement


def trial(folder: Path | str, *, members: int, **terms: Any) -> Proposal:
    """An agreement that all members signed, with a hub on a free port of this machine.

    The folders are `folder/hub`, `folder/0`, `folder/1` and so on. `terms` are those of
    `secagg.simulation.make_agreement`. This process knows all secrets, so it is for trying out only.

    >>> from tempfile import mkdtemp
    >>> proposal = trial(mkdtemp(), members=3, size=3, length=4, clip=1.0)
    >>> len(proposal.terms.transport.members), list(proposal.problems())
    (3, [])
    """
    place = Path(folder)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    drawn = make_agreement(members=members, **terms)[0].terms
    identities = {v: MemberFolder.create(place / str(v)).identity for v in drawn.ids}
    transport = Transport(
        hubs=(f"https://127.0.0.1:{port}",),
        hub=Credentials.create(place / "hub").certificate,
        members=tuple(Credentials.create(place / str(v)).certificate for v in drawn.ids),
    )
    known = tuple(replace(member, identity=identities[member.id].public) for member in drawn.members)
    agreement = agree_on(replace(drawn, members=known, transport=transport), identities)
    return Proposal.of(agreement).add(Signature(v, agreement.sign(v, identities[v])) for v in identities)

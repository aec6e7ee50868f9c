"""Small agreements for the tests of this folder."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from secagg import Policy, Schedule
from secagg.agreement import Agreement, BeaconPulse, Member, NamedPulse, Terms, approve
from secagg.agreement.proposal import Proposal, Signature
from secagg.agreement.successors import drawn_cells
from secagg.crypto.keys import Identity
from secagg.crypto.pulse import Pulse
from secagg.crypto.segments import Segment
from secagg.exposure.schedules import Drawn
from secagg.simulation.agree import make_agreement
from secagg.types import Grouping
from tests.secagg.drbg import Drbg

NIST = Path(__file__).parent / "nist"
PULSES = {
    "2026": ("pulse_2-1921300.json", "certificate_2026.pem"),
    "2018": ("pulse_1-54610.json", "certificate_2018.pem"),
}
OUTPUTS = {"2026": "ebc85c439a72062c703bc1ddfa8f7f55", "2018": "274e031530b2c773494ebfd9827df4b2"}  # as published


@cache
def made(members: int = 4, size: int = 2, **more: object) -> tuple[Agreement, dict[int, Identity]]:
    more.setdefault("policy", Policy(anonymity=2, memory="round" if "groups" in more else "training"))
    return make_agreement(members=members, size=size, length=3, clip=1.0, rounds=5, entropy=Drbg(b"agreement"), **more)


@cache
def pulse(year: str = "2026") -> Pulse:
    text, certificate = PULSES[year]
    return Pulse.from_json((NIST / text).read_text(), (NIST / certificate).read_bytes())


def named(one: Pulse) -> NamedPulse:
    return NamedPulse(chain=one.chain, time=one.time, key=hashlib.sha256(one.key).digest())


@cache
def beacon_terms(year: str = "2026") -> Terms:
    return replace(made()[0].terms, beacon=named(pulse(year)))


@cache
def beaconed(year: str = "2026") -> Agreement:
    terms, identities = beacon_terms(year), made()[1]
    approvals = tuple(approve(terms, member, identities[member]) for member in terms.ids)
    return Agreement(terms=terms, origin=BeaconPulse(approvals, pulse(year)))


def signed(agreement: Agreement) -> Proposal:
    identities = made()[1]
    return Proposal.of(agreement).add(Signature(v, agreement.sign(v, identities[v])) for v in agreement.terms.ids)


@dataclass(frozen=True)
class Trial:
    """Terms with any seed: what the audit and the cost of an agreement need, without keys and signatures."""

    terms: Terms
    seed: bytes = bytes(range(32))
    fingerprint: bytes = bytes(32)

    def cells(self, round: int) -> tuple[Drawn, ...]:
        return drawn_cells(self.terms, self.seed, round)

    def groupings(self, round: int) -> tuple[Grouping, ...]:
        (cell,) = self.cells(round)
        return cell.groupings


def plain_terms(
    members: int = 6,
    size: int = 3,
    weights: Sequence[int] = (),
    rounds: int = 1,
    schedule: str = "fixed",
    groupings: int = 1,
    atom: int = 0,
    **more: Any,
) -> Terms:
    """Terms of members with made-up keys; one number each unless `segments` says otherwise."""
    fields: dict[str, Any] = {
        "name": "plain",
        "members": tuple(
            Member(v, (v + 1).to_bytes(32, "big"), weight=w) for v, w in enumerate(weights or (1,) * members)
        ),
        "segments": (Segment(shape=(1,), clip=1.0),),
        "schedule": Schedule(name=schedule, size=size, groupings=groupings, atom=atom),
        "last_round": rounds - 1,
    }
    return Terms(**fields | more)

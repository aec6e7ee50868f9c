"""Small agreements for the tests of this folder."""

import hashlib
from dataclasses import replace
from functools import cache
from pathlib import Path

from secagg import Policy
from secagg.agreement import Agreement, BeaconPulse, NamedPulse, Terms, approve
from secagg.agreement.proposal import Proposal, Signature
from secagg.crypto.keys import Identity
from secagg.crypto.pulse import Pulse
from secagg.simulation.agree import make_agreement
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

"""The bytes of an agreement, made again from docs/agreement.md alone, with hashlib and struct."""

import hashlib
import struct

import pytest

from secagg.agreement import Agreement, BeaconPulse, Ceremony
from secagg.crypto.keys import verify
from tests.secagg.agreement.common import beaconed, made

AGREEMENTS = [
    made()[0],
    made(6, 3, schedule="random", groups="survivors", colluders=1)[0],
    beaconed(),
    made(6, 6, schedule="atoms", atom=3, name="Ä", first_round=2, least_groups=1, predecessors=(b"p" * 32,))[0],
]


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def sized(data: bytes) -> bytes:
    return u32(len(data)) + data


def label(name: str) -> bytes:
    return f"secagg/v2/{name}\n".encode()


def H(name: str, *parts: bytes) -> bytes:  # noqa: N802 - as the page writes it
    return hashlib.sha256(label(name) + b"".join(parts)).digest()


def F(name: str, *parts: bytes) -> bytes:  # noqa: N802
    return hashlib.sha256(b"".join(struct.pack(">Q", len(p)) + p for p in (label(name), *parts))).digest()


def terms_bytes(agreement: Agreement) -> bytes:
    t = agreement.terms
    out = b"\x02" + sized(t.name.encode()) + u32(len(t.members))
    for m in t.members:
        out += u32(m.id) + m.identity + sized(m.name.encode()) + u32(m.weight)
    out += struct.pack("<QQI", t.first_round, t.last_round, len(t.segments))
    for s in t.segments:
        shape = b"".join(map(u32, s.shape))
        out += sized(s.name.encode()) + u32(len(s.shape)) + shape
        out += struct.pack("<BdI", s.clip is not None, s.clip or 0.0, s.bound or 0)
    kind = ["random", "fixed", "transversal", "atoms"].index(t.schedule.name)
    out += struct.pack("<BIHI", kind, t.schedule.size, t.schedule.groupings, t.schedule.atom)
    out += struct.pack("<BII", ["whole", "survivors"].index(t.groups), t.sample, t.least_groups)
    for value in (t.colluders, t.threshold):
        out += u32(0) if value is None else u32(1) + u32(value)
    p = t.policy
    out += struct.pack("<IIBIId", t.cell, t.degree, t.roll_call, p.min_survivors, p.anonymity, p.max_leverage)
    out += bytes([["enforce", "report-even-if-exposed"].index(p.mode), ["training", "round"].index(p.memory)])
    out += u32(0) if t.beacon is None else u32(1) + struct.pack("<QQ", t.beacon.chain, t.beacon.time) + t.beacon.key
    out += u32(len(t.predecessors)) + b"".join(t.predecessors)
    dropped = t.keep.dropped if t.keep else ()
    return out + (u32(1) + t.keep.seed + u32(len(dropped)) + b"".join(map(u32, dropped)) if t.keep else u32(0))


@pytest.mark.parametrize("agreement", AGREEMENTS, ids=["whole", "survivors", "beacon", "atoms"])
def test_terms_seed_fingerprint_and_signatures_are_as_the_page_says(agreement: Agreement) -> None:
    terms, origin = terms_bytes(agreement), agreement.origin
    assert agreement.terms.to_bytes() == terms
    T, ids, keys = H("terms", terms), agreement.terms.ids, agreement.terms.identities
    roster = b"".join(struct.pack(">I", v) for v in ids)
    if isinstance(origin, Ceremony):
        x = {r.member: r.contribution for r in origin.reveals}
        c = {v: F("seed-contribution-commitment", T, roster, struct.pack(">I", v), x[v]) for v in ids}
        first = b"".join(u32(v) + c[v] + s.signature for v, s in zip(ids, origin.commitments, strict=True))
        shown = H("commitments", T, u32(len(ids)), first)
        for v, one, two in zip(ids, origin.commitments, origin.reveals, strict=True):
            verify(keys[v], one.signature, label("sign-commitment") + T + u32(v) + c[v], signer=v)
            verify(keys[v], two.signature, label("sign-reveal") + T + shown + u32(v) + x[v], signer=v)
        seed = F("training-seed", T, roster, *(x[v] for v in ids))
        second = b"".join(u32(v) + x[v] + r.signature for v, r in zip(ids, origin.reveals, strict=True))
        steps = b"\x00" + u32(len(ids)) + first + u32(len(ids)) + second
    else:
        assert isinstance(origin, BeaconPulse)
        for one in origin.approvals:
            verify(keys[one.member], one.signature, label("sign-terms") + T + u32(one.member), signer=one.member)
        pulse, beacon = origin.pulse, agreement.terms.beacon
        assert beacon is not None
        output = hashlib.sha512(pulse.message + pulse.signature).digest()
        seed = F("beacon-seed", T, b"NIST 2.0, chain %d" % beacon.chain, b"%d" % beacon.time, output)
        approvals = b"".join(u32(a.member) + a.signature for a in origin.approvals)
        steps = b"\x01" + u32(len(ids)) + approvals + sized(pulse.message) + sized(pulse.signature) + sized(pulse.key)
    assert agreement.seed == seed
    assert agreement.to_bytes() == sized(terms) + steps
    fingerprint = H("agreement", sized(terms) + steps)
    assert agreement.fingerprint == fingerprint
    assert agreement.statement(ids[0]) == label("sign-agreement") + fingerprint + u32(ids[0])

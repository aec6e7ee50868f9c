"""Agreements as bytes, good and refused, for other implementations: `python -m tests.secagg.agreement.vectors` writes.

Each vector in vectors.json has the bytes of an agreement, and either what follows from them (seed, fingerprint, groups
of the first round) or the kind of error: "wire" for bytes that are no agreement, "peer" for a step that is not signed
or does not fit, with the member who is to blame.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from secagg import Policy
from secagg.agreement import Agreement, BeaconPulse, Ceremony
from secagg.codec import Blob, to_bytes
from secagg.errors import PeerError, WireError
from secagg.simulation import make_agreement
from secagg.statistics import (
    Bins,
    Categories,
    Contingency,
    Count,
    Histogram,
    LeastSquares,
    Mean,
    Numbers,
    Present,
    Quantiles,
    Statistics,
    Sum,
    Variance,
)
from tests.secagg.agreement.common import beaconed, made
from tests.secagg.drbg import Drbg

FILE = Path(__file__).with_name("vectors.json")


def good() -> dict[str, Agreement]:
    return {
        "whole groups, ceremony": made()[0],
        "survivors": made(6, 3, schedule="random", groups="survivors", colluders=1)[0],
        "atoms, a later first round": made(6, 6, schedule="atoms", atom=3, first_round=2)[0],
        "statistics": with_statistics(),
        "a pulse of 2026": beaconed(),
        "a pulse of 2018": beaconed("2018"),
    }


def with_statistics() -> Agreement:
    """One declaration of each kind."""
    age, bins = Numbers("age", 0, 120, step=1), Bins("age", (0, 18, 65))
    sex = Categories("sex", ("f", "m", "ä"))
    asked = (
        Count(name="patients"),
        Count(name="aged", of=Present("age")),
        Sum(name="sum", of=age, min_sites=2),
        Mean(name="mean", of=Numbers("x", -1.5, 2.5), limbs=1),
        Variance(name="variance", of=Numbers("x", -1.5, 2.5)),
        Histogram(name="sex", of=sex, suppress=5),
        Quantiles(name="quantiles", of=bins, probabilities=(0.1, 0.5)),
        Contingency(name="table", rows=sex, by=bins),
        LeastSquares(name="fit", target=age, features=(Numbers("x", 0, 1),), intercept=False),
    )
    statistics = Statistics(most_rows=1000, min_sites=1, asked=asked)
    policy = Policy(anonymity=2)
    return make_agreement(members=4, size=2, statistics=statistics, policy=policy, entropy=Drbg(b"statistics"))[0]


def refused() -> Iterator[tuple[str, bytes]]:
    agreement = made()[0]
    raw, terms, origin = agreement.to_bytes(), agreement.terms.to_bytes(), agreement.origin
    assert isinstance(origin, Ceremony)
    steps = raw[4 + len(terms) :]
    yield "nothing", b""
    yield "one byte too few", raw[:-1]
    yield "one byte too many", raw + b"\0"
    yield "terms of version 1", to_bytes(Blob(), b"\x01" + terms[1:]) + steps
    yield "an unknown section", to_bytes(Blob(), terms + b"\xff\x01") + steps
    asked = with_statistics()
    yield "segments that are not those of the statistics", asked.to_bytes().replace(b"sum.counts", b"sum.counte")
    yield "an unknown origin", raw[: 4 + len(terms)] + b"\x02" + steps[1:]
    yield "a ceremony of other terms", to_bytes(Blob(), replace(agreement.terms, name="other").to_bytes()) + steps
    last = origin.reveals[-1]
    yield "the last contribution not signed", raw[:-64] + origin.reveals[0].signature
    yield "a contribution that was not committed to", raw[: -64 - 32] + bytes(32) + last.signature
    pulse = beaconed()
    assert isinstance(pulse.origin, BeaconPulse)
    data = pulse.to_bytes()
    signature = pulse.origin.pulse.signature
    yield "a pulse with a wrong signature", data.replace(signature, signature[::-1])
    approval = pulse.origin.approvals[1].signature
    yield "a member did not sign the terms that name the pulse", data.replace(approval, bytes(64))


def outcome(data: bytes) -> dict[str, Any]:
    """What an implementation makes of these bytes."""
    try:
        agreement = Agreement.from_bytes(data)
    except WireError:
        return {"error": "wire"}
    except PeerError as bad:
        return {"error": "peer", "member": bad.culprit}
    groups = [list(group) for group in agreement.groups(agreement.terms.first_round).values()]
    return {"seed": agreement.seed.hex(), "fingerprint": agreement.fingerprint.hex(), "groups": groups}


def vectors() -> list[dict[str, Any]]:
    found = [(name, agreement.to_bytes()) for name, agreement in good().items()] + list(refused())
    return [{"name": name, "bytes": data.hex(), **outcome(data)} for name, data in found]


if __name__ == "__main__":
    FILE.write_text(json.dumps(vectors(), indent=1) + "\n")

"""Vectors of noise: samples, a run of whole groups with noise and charges, and what must be refused."""

import struct

from secagg import Schedule
from secagg.agreement import Noise, Terms
from secagg.crypto import Segment, SegmentNoise
from tests.secagg.vector_case import Case, vector
from tests.secagg.vector_whole import CONTEXT, DATA, LOOSE, SIX, Run, answering, blob, given_for, make_terms, new_run

SEGMENTS = (Segment(name="model", shape=(2, 2), clip=4.0), Segment(name="cases", shape=(3,), bound=1000))
NOISE = Noise(
    segments=(SegmentNoise(clip=1.5, sigma=2**26), SegmentNoise(clip=300.5, sigma=700)),
    colluders=1,
)


def noisy_terms() -> Terms:
    return make_terms(
        SIX,
        Schedule(name="fixed", size=3),
        segments=SEGMENTS,
        weights=(2, 3, 2, 3, 2, 3),
        noise=NOISE,
        policy=LOOSE,
    )


def noise_run() -> Case:
    """Other cases start from this one."""
    about = "Floats and counts with noise, weighted, in groups of three: two rounds, and what they cost each member."
    run = new_run("whole_noise", about, noisy_terms())
    case = run.case
    run.adverts(7)
    run.answers(7)
    assert len(case.do("whole.server.close", {})["rows"]) == 2
    case.mark("7 closed")
    for v in (2, 3):
        case.do("whole.client.memory", {"client": str(v)})
    assert len(run.round(8)["rows"]) == 2
    records = case.do("whole.client.memory", {"client": "2"})["records"]
    assert len(records) == 2 + 1 + 2 * 2  # answers, the agreement, and two records of each charge
    return case


@vector("discrete_gaussian")
def discrete_gaussian(case: Case) -> None:
    """Samples of the discrete Gaussian: small and large sigma, and the ends of two pieces of the stream."""
    keys = (bytes(16), bytes(range(16)), b"\xff" * 16)
    for key in keys:
        for sigma in (1, 2, 3, 20, 1000, 2**26):
            case.do("discrete-gaussian", {"key": key.hex(), "sigma": sigma, "first": 0, "count": 40})
    for first in (2**14 - 5, 2**15 - 5):
        case.do("discrete-gaussian", {"key": keys[1].hex(), "sigma": 100, "first": first, "count": 10})


@vector("bad_whole_noise_terms", base="whole_noise", after="started")
def bad_whole_noise_terms(case: Case) -> None:
    """Terms whose section of noise nobody may keep."""
    good = case.session.get("terms")
    body = struct.pack("<II", 1, 2) + struct.pack("<dIdI", 1.5, 2**26, 300.5, 700)
    section = b"\x05\x01" + blob(body)
    assert good.endswith(section)
    start = good[: -len(section)]

    def part(colluders: int, *pairs: tuple[float, int]) -> bytes:
        listed = b"".join(struct.pack("<dI", clip, sigma) for clip, sigma in pairs)
        return b"\x05\x01" + blob(struct.pack("<II", colluders, len(pairs)) + listed)

    floats, counts = (1.5, 2**26), (300.5, 700)
    bad = {
        "version 2": b"\x05\x02" + blob(body),
        "version 0": b"\x05\x00" + blob(body),
        "another number": b"\x06\x01" + blob(body),
        "twice": section + section,
        "one byte short": section[:-1],
        "one byte more inside": b"\x05\x01" + blob(body + b"\x00"),
        "one byte more": section + b"\x00",
        "empty": b"\x05\x01" + blob(b""),
        "noise for one segment of two": part(1, floats),
        "noise for three segments of two": part(1, floats, counts, counts),
        "as many colluders as members": part(6, floats, counts),
        "sigma 0": part(1, floats, (300.5, 0)),
        "sigma beyond every sample": part(1, (1.5, 2**26 + 1), counts),
        "no room in the ring": part(1, (100.0, 2**26), counts),
        "clip 0": part(1, (0.0, 2**26), counts),
        "clip negative zero": part(1, (-0.0, 2**26), counts),
        "clip below 0": part(1, (-1.5, 2**26), counts),
        "clip infinite": part(1, (float("inf"), 2**26), counts),
        "clip not a number": part(1, (float("nan"), 2**26), counts),
        "clip below a step": part(1, (1e-9, 2**26), counts),
        "clip of counts below 1": part(1, floats, (0.5, 700)),
    }
    for name, data in bad.items():
        terms = case.give(f"terms/{name}", start + data)
        case.do("agreement.make", {"terms": terms, "as": "nothing", "entropy": "nothing"}, "WireError")


@vector("bad_whole_noise", given=given_for(noisy_terms()))
def bad_whole_noise(case: Case) -> None:
    """A client whose budget allows one round sends nothing in the second; its records stay, and its group is lost."""
    run = Run(case, noisy_terms(), {2: [12.0, 1e-6]})
    assert len(run.round(7)["rows"]) == 2
    paid = case.do("whole.client.memory", {"client": "2"})
    run.adverts(8)
    request = {"round": 8, "data": DATA.hex(), "context": CONTEXT.hex(), "as": "8/round"}
    sent = case.do("whole.server.begin", request)["messages"]
    case.do("whole.client.receive", answering("2", sent["2"], 8, "nothing"), "BudgetExceeded")
    assert case.do("whole.client.memory", {"client": "2"})["records"] == paid["records"]
    for v in ("3", "5", "7", "11", "13"):
        case.do("whole.client.receive", answering(v, sent[v], 8, f"8/answer/{v}"))
        run.take(int(v), f"8/answer/{v}")
    assert len(case.do("whole.server.close", {})["lost"]) == 1

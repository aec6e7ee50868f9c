"""Survivors with noise: two implementations send the same masked inputs and open the same noisy sums."""

from typing import Any

import numpy as np

import secagg
from secagg import Member, MemoryJournal, Policy, Schedule
from secagg.agreement import Noise, Terms
from secagg.crypto import Segment, SegmentNoise
from secagg.protocol.wire import encode
from secagg.simulation import agree_on, make_identities
from tests.secagg import second, second_noise
from tests.secagg.drbg import Drbg

PARTS = (Segment(name="model", shape=(2, 2), clip=4.0), Segment(name="cases", shape=(3,), bound=1000))
NOISE = Noise(segments=(SegmentNoise(clip=1.5, sigma=2**24), SegmentNoise(clip=300.5, sigma=700)), colluders=1)


def test_two_implementations_add_the_same_noise_to_inputs_of_survivors() -> None:
    identities = make_identities(range(4), Drbg(b"survivors"))
    terms = Terms(
        name="survivors",
        members=tuple(Member(v, one.public, weight=1 + v % 2) for v, one in identities.items()),
        segments=PARTS,
        schedule=Schedule(name="fixed", size=4),
        last_round=0,
        groups="survivors",
        policy=Policy(memory="round"),
        noise=NOISE,
    )
    agreement = agree_on(terms, identities, Drbg(b"agreement"))
    plan = agreement.plan(0, 0, b"")
    second_plan = second.Plan(plan.to_bytes())
    parts = [second_noise.SegmentNoise(one.clip, one.sigma) for one in NOISE.segments]
    first: dict[int, Any] = {}
    other: dict[int, second_noise.Survivor] = {}
    for v, identity in identities.items():
        first[v] = secagg.Client(v, identity, agreement, 0, MemoryJournal(), entropy=Drbg(b"client %d" % v))
        drawn = Drbg(b"client %d" % v)
        other[v] = second_noise.Survivor(v, identity.private, second_plan, drawn, noise=second_noise.Noise(1, parts))
    server = secagg.Server(plan)
    answers = {v: client.hello() for v, client in first.items()}
    assert {v: encode(answer) for v, answer in answers.items()} == {v: one.hello() for v, one in other.items()}
    for stage in range(2):
        for v, answer in answers.items():
            server.receive(v, answer)
        sent = {v: encode(message) for v, message in server.advance().items()}
        for v, message in sent.items():
            values = np.arange(4.0).reshape(2, 2) * (v - 1.3), np.array([v, -1000, 999 - v])
            update = dict(zip(("model", "cases"), values, strict=True)) if stage else None
            answers[v] = first[v].receive(message, update=update)
            flat = [np.ravel(part).tolist() for part in values]
            made = other[v].masked(message, flat) if stage else other[v].deal(message)
            assert encode(answers[v]) == made

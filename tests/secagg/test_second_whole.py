"""Two implementations of agreements and whole groups make the same bytes and open the same sums.

Every member is played twice, by the product and by `second_whole`, with the same randomness, and so is the server. What
one of them makes must be what the other one makes, so either could stand in for the other at any point.
"""

from __future__ import annotations

import ast
import math
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import Identity, Member, Policy, Schedule
from secagg.agreement import Agreement, Noise, Terms, successor_terms
from secagg.crypto import Segment, SegmentNoise
from secagg.errors import PeerError, SecAggError, UsageError
from secagg.exposure.audit import REPORT_EVEN_IF_EXPOSED
from secagg.simulation.agree import agree_on
from secagg.whole import Client, MemoryStore, Resend, Server, Task, WholeResult, encode, respond
from tests.secagg import second_noise, second_whole
from tests.secagg.agreement import common
from tests.secagg.drbg import Drbg

FLOATS = Segment(name="floats", shape=(2, 2), clip=0.75)
COUNTS = Segment(name="counts", shape=(3,), bound=1000)
ONE = Segment(shape=(5,), clip=2.0)
NOISY = {
    FLOATS: SegmentNoise(clip=0.5, sigma=2**22),
    COUNTS: SegmentNoise(clip=700.5, sigma=30),
    ONE: SegmentNoise(clip=3.0, sigma=1000),
}


@st.composite
def terms(draw: st.DrawFn) -> Terms:
    """Terms with any schedule, sampling, weights, segments and rounds, small enough for a quick run."""
    name = draw(st.sampled_from(["random", "fixed", "transversal", "atoms", "flat", "called"]))
    name, called = ("flat", True) if name == "called" else (name, False)
    atom = 2 if name == "atoms" else 0
    size = draw(st.integers(2, 4)) if not atom else 4
    count = 1 if name == "flat" else draw(st.integers(2, 3))
    n = size * count + (0 if name == "flat" else draw(st.integers(0, 2)))
    groupings = 1 if name == "flat" else draw(st.integers(1, min(2, size, count)))
    sample = 0 if name == "flat" else draw(st.sampled_from([0, size, n]))
    if sample == size and groupings > 1:
        sample = 0
    ids = sorted(draw(st.sets(st.integers(0, 2**32 - 1), min_size=n, max_size=n)))
    weights = draw(st.lists(st.integers(1, 9), min_size=n, max_size=n))
    first = draw(st.sampled_from([0, 5, 2**40]))
    segments = draw(st.sampled_from([(ONE,), (FLOATS, COUNTS), (COUNTS,)]))
    noisy = groupings == 1 and draw(st.booleans())
    return Terms(
        name="two implementations",
        members=tuple(
            Member(v, identity_of(v).public, name=f"site {i}" if i else "", weight=w)
            for i, (v, w) in enumerate(zip(ids, weights, strict=True))
        ),
        first_round=first,
        last_round=first + draw(st.integers(0, 5)),
        segments=segments,
        noise=Noise(segments=tuple(NOISY[one] for one in segments), colluders=1) if noisy else None,
        schedule=Schedule(name="fixed" if name == "flat" else name, size=size, groupings=groupings, atom=atom),
        sample=sample,
        policy=Policy(
            min_survivors=2,
            anonymity=2,
            max_leverage=draw(st.sampled_from([0.4, 0.9, 1.0])),
            mode=REPORT_EVEN_IF_EXPOSED,
            memory="round" if called else draw(st.sampled_from(["round", "training"])),
        ),
        roll_call=called,
    )


def identity_of(member: int) -> Identity:
    return Identity.from_private(private_of(member))


def private_of(member: int) -> bytes:
    return Drbg(f"identity {member}".encode())(32)


def both_agreements(made: Terms) -> tuple[Agreement, second_whole.Agreement]:
    """One agreement, made and checked by both implementations."""
    agreement = agree_on(made, {v: identity_of(v) for v in made.ids}, Drbg(b"ceremony"))
    secrets = Drbg(b"ceremony")
    privates = {v: private_of(v) for v in made.ids}
    data, signatures = second_whole.found_agreement(second_terms(made), privates, {v: secrets(32) for v in made.ids})
    assert data == agreement.to_bytes()
    assert signatures == {v: agreement.sign(v, identity_of(v)) for v in made.ids}
    other = second_whole.Agreement(data, signatures)
    assert Agreement.from_bytes(data).fingerprint == other.fingerprint
    assert agreement.seed == other.seed
    return agreement, other


def second_terms(made: Terms) -> bytes:
    policy = made.policy
    return second_whole.terms_bytes(
        made.name.encode(),
        [second_whole.Person(m.id, m.identity, m.name.encode(), m.weight) for m in made.members],
        (made.first_round, made.last_round),
        [
            second_whole.Part(s.name.encode(), s.shape, int(s.clip is not None), s.clip or 0.0, s.bound or 0)
            for s in made.segments
        ],
        schedule=["random", "fixed", "transversal", "atoms"].index(made.schedule.name),
        size=made.schedule.size,
        groupings=made.schedule.groupings,
        atom=made.schedule.atom,
        sample=made.sample,
        least_groups=made.least_groups,
        min_survivors=policy.min_survivors,
        anonymity=policy.anonymity,
        max_leverage=policy.max_leverage,
        mode=int(policy.mode == REPORT_EVEN_IF_EXPOSED),
        memory=["training", "round"].index(policy.memory),
        roll_call=int(made.roll_call),
        noise=second_noise_of(made),
        predecessors=made.predecessors,
        keep=[(made.keep.seed, made.keep.dropped)] if made.keep else [],
    )


def second_noise_of(made: Terms) -> second_whole.Noise | None:
    if made.noise is None:
        return None
    parts = [second_whole.SegmentNoise(one.clip, one.sigma) for one in made.noise.segments]
    return second_whole.Noise(made.noise.colluders, parts)


class TwoClients:
    """One member, played by both implementations."""

    def __init__(self, agreements: tuple[Agreement, second_whole.Agreement], member: int) -> None:
        agreement, other = agreements
        signatures = {v: agreement.sign(v, identity_of(v)) for v in agreement.terms.ids}
        name = f"client {member}".encode()
        self.first = Client(agreement, signatures, member, identity_of(member), entropy=Drbg(name))
        self.store = MemoryStore()
        self.second = second_whole.Client(member, private_of(member), other, Drbg(name))

    def hello(self, message: bytes) -> bytes:
        made = encode(self.first.receive(message))  # type: ignore[arg-type]
        assert made == self.second.hello(message)
        return made

    def release(self, t: int) -> bytes | None:
        try:
            pending = self.first.release(t)
            self.first.stored(self.store.keep(pending))
        except SecAggError:
            with pytest.raises(second_whole.Refused):
                self.second.release(t)
            return None
        made = b"".join(pending.parts)
        assert made == self.second.release(t)
        return made

    def answer(self, message: bytes, context: bytes, update: Mapping[str, Any]) -> bytes | None:
        """None if both refuse or find no group to answer."""
        values = update.get("", update)
        parts = [np.ravel(part).tolist() for part in update.values()]
        try:
            asked = self.first.receive(message)
            assert isinstance(asked, Task | Resend)
            if isinstance(asked, Resend):
                made = self.store.load(asked.name)
            else:
                made = b"".join(respond(self.first, self.store, asked, values, context=context))
        except PeerError:
            with suppress(second_whole.Refused):
                assert self.second.answer(message, context, parts) is None
            return None
        assert made == self.second.answer(message, context, parts)
        assert (self.store.spent().rho, self.store.spent().eta) == second_noise.spent(self.second.slots)
        return bytes(made)


class TwoServers:
    """The server, played by both implementations."""

    def __init__(self, agreements: tuple[Agreement, second_whole.Agreement]) -> None:
        self.first, self.second = Server(agreements[0]), second_whole.Server(agreements[1])

    def hello(self, t: int) -> dict[int, bytes]:
        made = {v: encode(message) for v, message in self.first.hello(t).items()}
        assert made == self.second.hello(t)
        return made

    def begin(self, t: int, data: bytes, context: bytes, present: list[int] | None = None) -> dict[int, bytes]:
        started = self.first.begin(t, data=data, context=context, present=present)
        made = {v: encode(message) for v, message in started.items()}
        assert made == self.second.begin(t, data, context, present)
        return made

    def receive(self, sender: int, message: bytes) -> bool:
        """Whether the message counts."""
        counts = self.first.receive(sender, message) is None
        assert (not self.second.receive(sender, message)) == counts
        return counts

    def close(self) -> WholeResult:
        result, sums = self.first.close(), self.second.open()
        assert {group: opened.total.tolist() for group, opened in result.groups.items()} == sums
        for group, total in sums.items():
            shown = result.sum(group)
            shown = list(shown.values()) if isinstance(shown, dict) else [shown]
            assert [np.ravel(part).tolist() for part in shown] == self.second.agreement.decode(total)
            assert result.groups[group].members == tuple(self.second.complete[group])
        assert set(result.blamed) == self.second.convicted
        assert set(result.answered) == set(self.second.answers)
        assert set(self.second.dropouts) <= set(result.dropouts)
        assert bool(result.inconsistent) == self.second.contradictions(sums)
        return result


def update_of(made: Terms, rng: random.Random) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for segment in made.segments:
        count = math.prod(segment.shape)
        drawn = (
            [rng.randint(-segment.bound, segment.bound) for _ in range(count)]
            if segment.bound
            else [rng.uniform(-1.5, 1.5) for _ in range(count)]
        )
        values[segment.name] = np.array(drawn).reshape(segment.shape)
    return values


def play(made: Terms, rng: random.Random) -> None:
    """All rounds with absent members, releases, repeated and damaged messages."""
    agreements = both_agreements(made)
    clients = {v: TwoClients(agreements, v) for v in made.ids}
    servers = TwoServers(agreements)
    for t in made.rounds:
        if rng.random() < 0.2:
            continue
        for v in made.ids:
            release = clients[v].release(t) if rng.random() < 0.1 else None
            if release is not None:
                servers.receive(v, release)
        for v, message in servers.hello(t).items():
            if rng.random() < 0.9 and clients[v].first.answered != t:
                assert servers.receive(v, clients[v].hello(message))
        sums: dict[int, Any] = {}
        present = [v for v in servers.first.present(t) if rng.random() < 0.9] if made.roll_call else None
        for v, message in servers.begin(t, b"model %d" % t, b"code", present).items():
            other = without_one(message, v, rng)
            if made.roll_call and other and rng.random() < 0.1:  # another set, and then this one: the slot is filled
                clients[v].answer(other, b"code", update_of(made, rng))
            context = b"code" if rng.random() < 0.97 else b"other code"
            update = update_of(made, rng)
            answer = clients[v].answer(message, context, update)
            if answer is None or rng.random() < 0.05:
                continue
            if rng.random() < 0.1:
                servers.receive(v, damaged(answer, rng))
            if servers.receive(v, answer):
                sums[v] = agreements[1].encode(v, [np.ravel(part).tolist() for part in update.values()], Drbg(b"none"))
            if rng.random() < 0.2:
                assert clients[v].answer(message, b"", update_of(made, rng)) == answer
                servers.receive(v, answer)
        result = servers.close()
        for opened in result.groups.values():
            total = np.sum([sums[v] for v in opened.members], axis=0, dtype=np.uint64).astype(np.uint32)
            assert made.noise or np.array_equal(opened.total, total)


def without_one(message: bytes, member: int, rng: random.Random) -> bytes:
    """The Round without one of the other members' adverts."""
    start = second_whole.Start.read(message)
    others = [advert for advert in start.adverts if advert[0] != member]
    start.adverts.remove(rng.choice(others))
    return start.wire()


def damaged(message: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(message))
    return message[:at] + bytes([message[at] ^ 1 << rng.randrange(8)]) + message[at + 1 :]


@settings(max_examples=25, deadline=None)
@given(made=terms(), seed=st.integers(0, 2**32))
def test_both_implementations_make_the_same_messages_and_sums(made: Terms, seed: int) -> None:
    play(made, random.Random(seed))


@settings(max_examples=25, deadline=None)
@given(made=terms())
def test_both_implementations_draw_the_same_groups_from_the_same_fingerprint(made: Terms) -> None:
    agreement, other = both_agreements(made)
    assert agreement.fingerprint == other.fingerprint
    for t in made.rounds:
        assert dict(agreement.groups(t)) == other.groups(t)


def small(n: int, size: int, **changes: Any) -> Terms:
    """Terms without a policy that could refuse them."""
    given: dict[str, Any] = {
        "name": "small",
        "members": tuple(Member(v, identity_of(v).public) for v in range(n)),
        "segments": (COUNTS,),
        "schedule": Schedule(name="random", size=size, groupings=2 if size < n else 1),
        "last_round": 3,
        "policy": Policy(anonymity=2, max_leverage=1.0, mode=REPORT_EVEN_IF_EXPOSED, memory="round"),
    }
    return Terms(**given | changes)


def begun(made: Terms, t: int) -> tuple[dict[int, TwoClients], TwoServers, dict[int, bytes]]:
    """Clients and servers after the first messages of a round."""
    agreements = both_agreements(made)
    clients, servers = {v: TwoClients(agreements, v) for v in made.ids}, TwoServers(agreements)
    for v, message in servers.hello(t).items():
        assert servers.receive(v, clients[v].hello(message))
    return clients, servers, servers.begin(t, b"model", b"")


@pytest.mark.parametrize(("weights", "left"), [((1, 1, 1, 1), True), ((1, 1, 1, 5), True), ((1, 1, 5, 1), False)])
def test_released_members_leave_a_flat_sum_if_the_policy_is_kept(weights: tuple[int, ...], left: bool) -> None:
    members = tuple(Member(v, identity_of(v).public, weight=w) for v, w in enumerate(weights))
    policy = Policy(anonymity=3, max_leverage=1 / 3, mode=REPORT_EVEN_IF_EXPOSED, memory="round")
    made = small(4, 4, members=members, policy=policy)
    agreements, rng = both_agreements(made), random.Random(3)
    clients, servers = {v: TwoClients(agreements, v) for v in made.ids}, TwoServers(agreements)
    release = clients[3].release(0)
    assert release is not None
    assert servers.receive(3, release)
    for v, message in servers.hello(0).items():
        assert v != 3
        servers.receive(v, clients[v].hello(message))
    for v, message in servers.begin(0, b"", b"").items():
        answer = clients[v].answer(message, b"", update_of(made, rng))
        assert answer is not None
        assert servers.receive(v, answer)
    opened = servers.close().groups
    assert [group.members for group in opened.values()] == ([(0, 1, 2)] if left else [])


def test_kept_groups_are_drawn_as_documented() -> None:
    """The successor of a successor, with a sample, for fixed groups and for atoms."""
    policy = Policy(anonymity=2, max_leverage=1.0, mode=REPORT_EVEN_IF_EXPOSED)
    schedules = [Schedule(name="fixed", size=3), Schedule(name="fixed", size=2, groupings=2)]
    for schedule in (
        *schedules,
        Schedule(name="atoms", size=4, groupings=2, atom=2),
        Schedule(name="atoms", size=2, atom=2),
    ):
        for sample in (0, 8):
            made = small(30, 3, schedule=schedule, sample=sample, policy=policy, last_round=9)
            for name, leaver in (("first", 5), ("second", 9)):
                try:
                    made = successor_terms(both_agreements(made)[0], [leaver], name=name)
                except UsageError:
                    break  # it left before
                agreement, other = both_agreements(made)
                for t in made.rounds:
                    assert dict(agreement.groups(t)) == other.groups(t)
                data = made.to_bytes()
                assert made.keep is not None
                stranger = replace(made.keep, dropped=tuple(v for v in made.keep.dropped if v != leaver))
                with pytest.raises(UsageError):
                    replace(made, keep=stranger)
                dropped = b"".join(map(second_whole.u32, made.keep.dropped))
                fewer = b"".join(map(second_whole.u32, stranger.dropped))
                count = second_whole.u32
                bad = data.replace(count(len(made.keep.dropped)) + dropped, count(len(stranger.dropped)) + fewer)
                with pytest.raises(second_whole.Refused):
                    second_whole.Terms(bad)


def test_two_answers_to_one_round_convict_their_sender() -> None:
    made, rng = small(4, 2), random.Random(4)
    clients, servers, rounds = begun(made, 0)
    two = second_whole.Client(1, private_of(1), clients[1].second.agreement, Drbg(b"another"))
    two.keys = dict(clients[1].second.keys)
    for answer in (clients[1].answer(rounds[1], b"", update_of(made, rng)), two.answer(rounds[1], b"", [[1, 2, 3]])):
        assert answer is not None
        assert servers.receive(1, answer)
    assert set(servers.close().blamed) == {1}


def test_different_vectors_to_two_groups_are_reported() -> None:
    made, rng = small(4, 2), random.Random(5)
    t = next(t for t in made.rounds if len(set(both_agreements(made)[1].groups(t).values())) == 4)
    clients, servers, rounds = begun(made, t)
    for v, message in rounds.items():
        answer = clients[v].answer(message, b"", update_of(made, rng))
        assert answer is not None
        if v == 2:
            reply = second_whole.Reply.read(answer)
            reply.vectors[1] = bytes([reply.vectors[1][0] ^ 1]) + reply.vectors[1][1:]
            name = clients[v].second.agreement.answer_hash(reply.fields(), reply.vectors)
            reply.signature = second_whole.sign(private_of(v), second_whole.label("sign-answer") + name)
            answer = reply.wire()
        assert servers.receive(v, answer)
    assert len(servers.close().inconsistent) == 1


def test_fixed_groupings_that_connect_members_are_sampled_as_documented() -> None:
    made = small(24, 2, name="sample 2", schedule=Schedule(name="fixed", size=2, groupings=2), last_round=9, sample=12)
    agreement, other = both_agreements(made)
    drawn = [other.groups(t) for t in made.rounds]
    assert drawn == [dict(agreement.groups(t)) for t in made.rounds]
    assert len({tuple(sorted(groups.values())) for groups in drawn}) > 1


@settings(max_examples=25, deadline=None)
@given(made=terms(), data=st.data())
def test_changed_bytes_of_an_agreement_are_refused_by_both(made: Terms, data: st.DataObject) -> None:
    agreement, other = both_agreements(made)
    good = agreement.to_bytes()
    at = data.draw(st.integers(0, len(good) - 1))
    bad = good[:at] + bytes([good[at] ^ 1 << data.draw(st.integers(0, 7))]) + good[at + 1 :]
    signatures = {v: agreement.sign(v, identity_of(v)) for v in made.ids}
    with pytest.raises(SecAggError):
        Agreement.from_bytes(bad).check_signatures(signatures)
    with pytest.raises(second_whole.Refused):
        second_whole.Agreement(bad, signatures)
    with pytest.raises(second_whole.Refused):
        second_whole.Agreement(good, {v: signatures[v] for v in made.ids[1:]})
    assert other.bytes == good


@pytest.mark.parametrize("year", ["2018", "2026"])
def test_a_pulse_gives_both_the_same_seed_and_a_changed_one_is_refused(year: str) -> None:
    agreement, identities = common.beaconed(year), common.made()[1]
    signatures = {v: agreement.sign(v, identity) for v, identity in identities.items()}
    other = second_whole.Agreement(agreement.to_bytes(), signatures)
    assert (other.seed, other.fingerprint) == (agreement.seed, agreement.fingerprint)
    good = agreement.to_bytes()
    for at in range(len(agreement.terms.to_bytes()), len(good), 97):
        bad = good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :]
        with pytest.raises(second_whole.Refused):
            second_whole.Agreement(bad, signatures)
        with pytest.raises(SecAggError):
            Agreement.from_bytes(bad)


def test_the_second_implementation_imports_nothing_of_the_first() -> None:
    tree = ast.parse(Path(second_whole.__file__).read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert not any(str(module).startswith(("secagg", "numpy")) for module in modules)

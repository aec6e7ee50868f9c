"""Hostile runs of whole groups, generated from a seed: a server, a network and clients that do what they like.

Honest members are real clients with a store each. The adversary drops, delays, repeats, reorders, damages and replays
messages, shows different members different adverts, different data and different sets of members present, asks for
rounds out of order, and restarts clients and the server, from old bytes as well. `play(seed)` checks every round and,
at the end, what a symbolic attacker can compute from all that honest members ever sent.
`python -m tests.secagg.whole.hostile 1234` repeats a run.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from secagg.crypto.keys import LOW_ORDER_POINTS
from secagg.errors import SecAggError, UsageError
from secagg.exposure.audit import REPORT_EVEN_IF_EXPOSED, Policy
from secagg.whole import (
    Advert,
    Answer,
    Client,
    Hello,
    Release,
    Resend,
    Round,
    Server,
    Task,
    WholeResult,
    decode,
    encode,
    respond,
    transcript,
)
from secagg.whole.layout import layout
from tests.secagg.drbg import Drbg
from tests.secagg.whole.cast import Cast, agreed, with_advert
from tests.secagg.whole.symbols import Recorder, Row, learned, rank, recording

OPEN = Policy(min_survivors=2, anonymity=2, max_leverage=1.0, memory="round", mode=REPORT_EVEN_IF_EXPOSED)
ROUNDS = 3
BOUND = 1000


@dataclass
class Outcome:
    """Counts of one run."""

    opened: int = 0
    must_open: int = 0
    lost: int = 0
    refused: int = 0
    blamed: int = 0
    rows: int = 0
    learned: int = 0
    split: int = 0
    restarts: int = 0
    releases: int = 0
    resends: int = 0
    called: int = 0


class Members(Cast):
    """The members of a cast, with randomness that the seed fixes. No two clients get the same."""

    def __init__(self, seed: int, **settings: Any) -> None:
        self._names = iter(b"run %d, client %d" % (seed, k) for k in range(10**6))
        super().__init__(**settings)

    def new_client(self, member: int) -> Client:
        entropy = Drbg(next(self._names))
        return Client(self.agreement, self.signatures, member, self.identities[member], entropy=entropy)

    def restore(self, member: int, data: bytes) -> Client:
        identity, entropy = self.identities[member], Drbg(next(self._names))
        return Client.restore(data, self.agreement, self.signatures, member, identity, entropy=entropy)


def draw_settings(rng: random.Random) -> dict[str, Any]:
    """Settings of an agreement; those that the package refuses are drawn again."""
    while True:
        n, name = rng.randint(2, 7), rng.choice(["fixed", "random", "random", "transversal", "atoms", "flat", "called"])
        settings: dict[str, Any] = {"members": n, "schedule": name, "size": rng.randint(2, min(n, 4))}
        settings |= {"groupings": rng.choice([1, 1, 2, 3]), "length": rng.randint(1, 3), "bound": BOUND}
        settings |= {"rounds": ROUNDS, "policy": OPEN}
        if name in ("flat", "called"):
            settings |= {"schedule": "fixed", "size": n, "groupings": 1, "roll_call": name == "called"}
        if name == "atoms":
            settings |= {"atom": 2, "size": rng.choice([2, 4])}
        if rng.random() < 0.2:
            settings["sample"] = rng.randint(min(settings["size"], n), n)
        with suppress(UsageError):
            agreed(**settings)
            return settings


class Hostile:
    """One run: honest members, colluders, and an adversary between all of them and the server."""

    def __init__(self, seed: int, recorder: Recorder) -> None:
        self.rng = rng = random.Random(seed)
        self.cast, self.recorder, self.outcome = Members(seed, **draw_settings(rng)), recorder, Outcome()
        ids = list(self.cast.clients)
        self.colluders = frozenset(rng.sample(ids, rng.choice([0, 0, 1, 2, rng.randint(0, len(ids))]) % (len(ids) + 1)))
        self.trouble = rng.choice([0.0, 0.05, 0.2, 0.4])
        self.saves: dict[int, list[bytes]] = {v: [self.cast.clients[v].save()] for v in ids}
        self.adverts: dict[tuple[int, int], list[Advert]] = {}  # every signed advert that anybody made
        self.rounds: list[Round] = []
        self.sent: dict[bytes, Answer] = {}  # every answer that left an honest member
        self.by_hash: dict[bytes, list[Row]] = {}
        self.released: dict[tuple[int, int], Release] = {}
        self.touched: set[int] = set()  # members that were disturbed in this round
        self.hurt: set[int] = set()  # members that were disturbed permanently
        self.late: list[tuple[int, bytes]] = []
        self.told: dict[int, Round] = {}  # what members are sent instead of their round

    def chance(self, factor: float = 1.0) -> bool:
        return self.rng.random() < self.trouble * factor

    @property
    def flat(self) -> bool:
        return len(self.cast.groups()) == 1

    @property
    def called(self) -> bool:
        return self.cast.agreement.terms.roll_call

    @property
    def honest(self) -> frozenset[int]:
        return frozenset(self.cast.clients) - self.colluders

    # --- the whole run ---------------------------------------------------------------------------------

    def play(self) -> Outcome:
        for round in range(ROUNDS):
            self.touched = set()
            self.collect_adverts(round)
            self.release_some(round)
            data = self.rng.randbytes(2)
            box = self.cast.server.begin(round, data=data, present=self.present(round))
            self.rounds += box.values()
            self.restart_server()
            self.told = self.split_roll_call(box)
            letters = [letter for v in self.shuffled(box) for letter in self.ask(v, box[v])]
            self.deliver(letters)
            self.check(round, self.cast.server.close(), box)
        self.check_knowledge()
        return self.outcome

    def present(self, round: int) -> list[int] | None:
        """Whom the server's application calls: mostly everybody that is there."""
        if not self.called or not self.chance():
            return None
        return [v for v in self.cast.server.present(round) if self.rng.random() < 0.8]

    def split_roll_call(self, box: Mapping[int, Round]) -> dict[int, Round]:
        """Tell each member another set: disjoint ones, or a chain in which neighbours are in each other's sets."""
        if not self.called or not self.chance():
            return {}
        order = self.shuffled(box)
        parts = [order[i : i + 2] for i in range(0, len(order), 2)]
        sets = {v: part for part in parts for v in part}
        if self.rng.random() < 0.7:
            sets = {v: order[max(0, i - 1) : i + 2] for i, v in enumerate(order)}
        return {v: replace(box[v], adverts=tuple(one for one in box[v].adverts if one.sender in sets[v])) for v in sets}

    def shuffled(self, items: Any) -> list[Any]:
        items = list(items)
        self.rng.shuffle(items)
        return items

    # --- adverts and releases --------------------------------------------------------------------------

    def collect_adverts(self, round: int) -> None:
        for member, hello in self.cast.server.hello(round).items():
            if self.chance():
                self.touched.add(member)
                continue
            if self.chance():
                self.hurt.add(member)  # a Hello of another round makes a client forget keys
                other = replace(hello, round=self.rng.choice([round + 1, round + 2, 10**6]))
                self.tell(member, self.damaged(encode(other)))
            advert = self.tell(member, hello)
            if not isinstance(advert, Advert):
                self.touched.add(member)
                continue
            if member in self.colluders:
                advert = self.bad_advert(advert)
            self.adverts.setdefault((member, round), []).append(advert)
            self.to_server(member, encode(advert), spoil=True)
        for member in self.shuffled(layout(self.cast.agreement, round).seats):
            if self.chance(0.3):
                self.second_advert(member, round)

    def second_advert(self, member: int, round: int) -> None:
        """Asked for a later round and then for this one again, a client makes a new key. The adversary has both."""
        self.hurt.add(member)
        self.tell(member, Hello(self.cast.agreement.fingerprint, round + 1))
        advert = self.tell(member, Hello(self.cast.agreement.fingerprint, round))
        if isinstance(advert, Advert):
            self.adverts.setdefault((member, round), []).append(advert)
            self.cast.server.receive(member, advert)

    def bad_advert(self, advert: Advert) -> Advert:
        """A colluder's advert: its own, of another's key, of low order, of a key that it makes up, unsigned."""
        made = self.cast.advert(advert.sender, advert.round)
        self.adverts.setdefault((advert.sender, advert.round), []).append(made)
        known = [one.key for adverts in self.adverts.values() for one in adverts]
        other = self.cast.advert(advert.sender, advert.round, self.rng.choice(known))
        low = self.cast.advert(advert.sender, advert.round, min(LOW_ORDER_POINTS))
        return self.rng.choice([advert, advert, advert, made, other, low, replace(advert, signature=bytes(64))])

    def release_some(self, round: int) -> None:
        for member in self.cast.clients:
            if self.chance(0.2):
                self.hurt.add(member)
                client = self.cast.clients[member]
                with suppress(SecAggError):
                    pending = client.release(round)
                    client.stored(self.cast.stores[member].keep(pending))
                    assert isinstance(pending.message, Release)
                    self.released[member, round] = pending.message
                    self.outcome.releases += 1
                    self.to_server(member, encode(pending.message), spoil=True)

    # --- what clients are told -------------------------------------------------------------------------

    def ask(self, member: int, message: Round) -> Iterator[tuple[int, bytes]]:
        """Send a member its round, and other things before and after; what it sends back."""
        self.saves[member].append(self.cast.clients[member].save())
        messages: list[tuple[Round, bool]] = [(self.told.get(member, message), member in self.told)]
        while self.chance():
            messages.insert(self.rng.randrange(len(messages) + 1), (self.tampered(member, message), True))
        if self.chance():
            messages = [(m, bad) for m, bad in messages if bad]
            self.touched.add(member)
        for one, bad in messages:
            if bad:
                self.touched.add(member)
                if one.round > message.round:
                    self.hurt.add(member)
            self.restart(member)
            data = encode(one)
            yield from self.answered(member, self.tell(member, self.damaged(data) if bad and self.chance() else data))
            if self.chance(0.5):
                yield from self.rewind(member, message)

    def rewind(self, member: int, message: Round) -> Iterator[tuple[int, bytes]]:
        """A client restarts from the bytes before its answer, and is asked for the same round with other data."""
        self.hurt.add(member)
        self.outcome.restarts += 1
        self.cast.clients[member] = self.cast.restore(member, self.saves[member][-2:][0])
        other = replace(message, data=self.rng.choice([message.data, self.rng.randbytes(2)]))
        yield from self.answered(member, self.tell(member, other))

    def tampered(self, receiver: int, message: Round) -> Round:
        """A message that the server never sent: changed data, adverts, groups, releases, or one of another time."""
        rng, kind = self.rng, self.rng.randrange(9)
        if self.called and rng.random() < 0.6:
            kept = [one for one in message.adverts if one.sender == receiver or rng.random() < 0.6]
            return replace(message, adverts=tuple(kept))
        if self.flat and rng.random() < 0.3:
            kind = 7
        elif rng.random() < 0.3:
            kind = 1
        advert = rng.choice(message.adverts)
        if kind == 0:
            return replace(message, data=rng.randbytes(2))
        if kind == 1:
            known = [one for (v, _), adverts in self.adverts.items() if v == advert.sender for one in adverts]
            known = [one for one in known if one.round == message.round or rng.random() < 0.3]
            return with_advert(message, rng.choice([*known, replace(advert, signature=bytes(64))]))
        if kind == 2:
            return with_advert(message, replace(advert, key=rng.choice(message.adverts).key))
        if kind == 3:
            return replace(message, adverts=tuple(one for one in message.adverts if one is not advert))
        if kind == 4:
            return replace(message, groups=message.groups[rng.randrange(2) :: 2])
        if kind == 5:
            return replace(message, adverts=tuple(self.shuffled(message.adverts)))
        if kind == 6:
            return replace(message, round=rng.randrange(ROUNDS + 1))
        if kind == 7:
            have = [one for (_, t), one in sorted(self.released.items()) if t == message.round]
            have += [self.forged_release(v, message.round) for v in sorted(self.colluders)]
            unsigned = [Release(v, message.round, bytes(64)) for v in sorted(self.honest)]
            chosen = [rng.choice(unsigned)] if unsigned and rng.random() < 0.3 else rng.sample(have, len(have) // 2)
            return replace(message, releases=tuple(sorted(chosen, key=lambda one: one.sender)))
        return rng.choice(self.rounds)

    def forged_release(self, member: int, round: int) -> Release:
        unsigned = Release(member, round, b"")
        statement = transcript.release_statement(self.cast.agreement.fingerprint, unsigned)
        return replace(unsigned, signature=self.cast.identities[member].sign(statement))

    def tell(self, member: int, message: bytes | Hello | Round) -> Any:
        """What a client makes of a message; None if it refuses."""
        try:
            return self.cast.clients[member].receive(message)
        except SecAggError:
            self.outcome.refused += 1
            return None

    def answered(self, member: int, reply: Any) -> Iterator[tuple[int, bytes]]:
        """What a member sends after a message: an answer to a task, its spool again, or nothing."""
        client, store = self.cast.clients[member], self.cast.stores[member]
        if isinstance(reply, Task) and self.chance(0.3):
            self.touched.add(member)  # it is busy, and leaves the task
        elif isinstance(reply, Task):
            numbers = [self.rng.randint(-BOUND, BOUND) for _ in range(self.cast.agreement.terms.length)]
            try:
                data = b"".join(respond(client, store, reply, np.array(numbers)))
            except SecAggError:
                self.outcome.refused += 1
                return
            yield from self.left(member, data)
        elif isinstance(reply, Resend):
            self.outcome.resends += 1
            with suppress(SecAggError):  # an old spool may be gone
                yield from self.left(member, bytes(store.load(reply.name)))
        self.saves[member].append(client.save())

    def left(self, member: int, data: bytes) -> Iterator[tuple[int, bytes]]:
        """An answer leaves a member. Whatever happens to it, the adversary has it."""
        answer = decode(data)
        assert isinstance(answer, Answer)
        for advert in answer.adverts:
            self.adverts.setdefault((member, advert.round), []).append(advert)
        if member in self.honest:
            if data not in self.sent:
                self.sent[data] = answer
                rows = transcript.row_hashes(answer.vectors)
                hash = transcript.answer_hash(self.cast.agreement.fingerprint, answer, rows)
                self.by_hash[hash] = self.recorder.rows(answer)
            yield member, data
        else:
            yield from ((member, encode(one)) for one in self.bad_answers(answer))

    def bad_answers(self, answer: Answer) -> list[Answer | Release]:
        """What a colluder makes of its answer."""
        rng, signed = self.rng, self.cast.signed
        other = answer.vectors + np.uint32(rng.choice([1, 2**31, 2**32 - 1]))
        choices: list[list[Answer | Release]] = [
            [answer],
            [signed(answer, vectors=other)],
            [answer, signed(answer, vectors=other)],
            [signed(answer, context=bytes(32))],
            [signed(answer, groups=answer.groups[1:], seen=answer.seen[1:], vectors=answer.vectors[1:])],
            [signed(answer, seen=tuple(bytes(32) for _ in answer.seen))],
            [answer, self.forged_release(answer.sender, answer.round)],
            [self.forged_release(answer.sender, answer.round), answer],
            [],
        ]
        if self.sent:
            stolen = rng.choice(list(self.sent.values()))
            choices.append([signed(stolen, sender=answer.sender, adverts=()), stolen])
        return rng.choice(choices)

    # --- the way to the server -------------------------------------------------------------------------

    def deliver(self, letters: list[tuple[int, bytes]]) -> None:
        letters, self.late = [*letters, *self.late], []
        if self.trouble:
            letters = self.shuffled(letters)
        for member, data in letters:
            if self.chance():
                self.touched.add(member)
                self.late.append((member, data))
                continue
            self.to_server(member, data, spoil=True)
            self.restart_server()

    def to_server(self, member: int, data: bytes, spoil: bool) -> None:
        server = self.cast.server
        if spoil and self.chance():
            self.touched.add(member)
            if self.chance():
                return
            server.receive(member, self.damaged(data))
            if self.chance():
                return
        server.receive(member, data)
        if self.chance():
            server.receive(member, data)
        if self.chance():
            server.receive(self.rng.choice(list(self.cast.clients)), data)

    def damaged(self, data: bytes) -> bytes:
        place = self.rng.randrange(len(data))
        return data[:place] + bytes([data[place] ^ 1 << self.rng.randrange(8)]) + data[place + 1 :]

    # --- restarts --------------------------------------------------------------------------------------

    def restart(self, member: int) -> None:
        if not self.chance(0.5):
            return
        self.outcome.restarts += 1
        client, saves = self.cast.clients[member], self.saves[member]
        data = client.save()
        if self.chance(2.0):
            data = self.rng.choice(saves)
            self.hurt.add(member)
        self.cast.clients[member] = self.cast.restore(member, data)
        self.touched.add(member)

    def restart_server(self) -> None:
        if self.chance(0.3):
            self.cast.server = Server.restore(self.cast.server.save(), self.cast.agreement)

    # --- what must hold --------------------------------------------------------------------------------

    def check(self, round: int, result: WholeResult, box: Mapping[int, Round]) -> None:
        groups = self.cast.groups(round)
        assert set(result.groups) | set(result.lost) == set(groups)
        assert not set(result.groups) & set(result.lost)
        assert set(result.blamed) <= self.colluders, result.blamed
        self.outcome.opened += len(result.groups)
        self.outcome.lost += len(result.lost)
        self.outcome.blamed = len(result.blamed)
        for group, opened in result.groups.items():
            total = np.zeros(self.cast.agreement.terms.length, np.uint32)
            for member in self.honest.intersection(opened.members):
                (row,) = [one for one in self.by_hash[result.answers[member]] if one.group == group]
                assert (row.round, row.context) == (round, result.context)
                total += np.array(row.encoded, np.uint32)
            if self.honest.issuperset(opened.members):
                assert (opened.total == total).all()
        for group, members in groups.items():
            if self.called:
                members = tuple(box)
                assert group not in result.groups or result.groups[group].members == members
                self.outcome.called += group in result.groups and set(members) < set(groups[group])
            calm = bool(members) and set(members) <= self.honest - self.touched - self.hurt and set(members) <= set(box)
            if calm:
                self.outcome.must_open += 1
                assert group in result.groups, result.lost[group]

    def check_knowledge(self) -> None:
        """The symbolic attacker computes what the theorem grants, and nothing else."""
        rows = [row for found in self.by_hash.values() for row in found]
        granted, certain = [], []
        for row in rows:
            self.check_members(row)
        # A roll call is bound in the keys: sets with the same honest members and other colluders are different sets.
        kinds = [
            (row.round, row.group, row.context, self.honest_of(row), row.members if self.called else ()) for row in rows
        ]
        for kind in sorted(set(kinds)):
            chosen = [i for i, other in enumerate(kinds) if other == kind]
            if sorted(rows[i].client for i in chosen) == list(kind[3]):
                one = [int(i in chosen) for i in range(len(rows))]
                granted.append(one)
                certain += [one] if len({rows[i].seen for i in chosen}) == 1 else []
        found = learned(rows, self.colluders)
        self.outcome.rows, self.outcome.learned = len(rows), len(found)
        self.outcome.split = len(granted) - len(certain)
        assert len({(row.client, row.round, row.group) for row in rows}) == len(rows), "two answers of one client"
        assert rank([*found, *granted]) == rank(granted), "the attacker computes more than the theorem grants"
        assert rank([*found, *certain]) == len(found), "a sum that the theorem grants is not there"

    def honest_of(self, row: Row) -> tuple[int, ...]:
        return tuple(v for v in row.members if v in self.honest)

    def check_members(self, row: Row) -> None:
        """A client masks with all members of a group; in a flat sum, without those that released or are not present."""
        places = layout(self.cast.agreement, row.round)
        missing = set(places.groups[row.group]) - set(row.members)
        assert set(row.members) <= set(places.groups[row.group])
        assert not missing or len(places.groups) == 1
        assert row.client in row.members
        if self.called:
            assert len(row.members) >= OPEN.anonymity
        else:
            assert all(v in self.colluders or (v, row.round) in self.released for v in missing)
        assert not any(row.client == v and row.round == t for v, t in self.released), "answered and released"


def play(seed: int) -> Outcome:
    with recording() as recorder:
        return Hostile(seed, recorder).play()


def play_all(seeds: range) -> dict[str, int]:
    """Play runs and add up their outcomes."""
    totals = dict.fromkeys(Outcome.__dataclass_fields__, 0)
    for seed in seeds:
        try:
            outcome = play(seed)
        except BaseException as failure:
            failure.add_note(f"hostile run {seed}")
            raise
        for name in totals:
            totals[name] += getattr(outcome, name)
    return {"runs": len(seeds), **totals}


if __name__ == "__main__":
    first, last = int(sys.argv[1]), int(sys.argv[-1]) + 1
    print(play_all(range(first, last)))

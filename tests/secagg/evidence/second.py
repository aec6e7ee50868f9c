"""A second verifier, written from docs/evidence.md and docs/protocol-whole.md alone. It stops at the first problem.

Charges and the policy are those of `second_policy`.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from tests.secagg.evidence import second_policy
from tests.secagg.second import H
from tests.secagg.second_whole import (
    Advert,
    Agreement,
    Group,
    Refused,
    Strict,
    advert_bytes,
    ascending,
    good_key,
    label,
    need,
    read_advert,
    u32,
    u64,
    verified,
)

TEXT = 2**16


@dataclass
class Answer:
    sender: int
    previous: bytes
    ahead: list[Advert]
    vectors: bytes  # their hash
    signature: bytes


@dataclass
class Record:
    round: int
    context: bytes
    present: list[int]
    adverts: dict[int, Advert]
    releases: list[tuple[int, bytes]]
    answers: list[Answer]
    second: list[Answer]
    after: list[tuple[int, bytes]]
    opened: list[tuple[Group, bytes]]
    lost: list[tuple[Group, bytes]]
    absent: list[tuple[int, bytes]]
    inconsistent: list[list[Group]]
    skipped: bytes
    charge: list[tuple[int, int]]


class File(Strict):
    def answer(self) -> Answer:
        sender, previous = self.number("I"), self.take(32)
        ahead = self.many(lambda: read_advert(self))
        need(len(ahead) <= 3, "at most three adverts")
        return Answer(sender, previous, ahead, self.take(32), self.take(64))

    def text(self) -> bytes:
        found = self.blob()
        need(len(found) <= TEXT, "texts are not longer than they may be")
        return found

    def group(self) -> Group:
        return self.number("H"), self.number("I")

    def record(self, brought: dict[int, dict[int, Advert]]) -> Record:
        t, context, present = self.number("Q"), self.take(32), self.ids()
        written = self.many(lambda: read_advert(self))
        need(ascending([sender for sender, *_ in written]), "adverts ascend")
        adverts = brought.pop(t, {})
        need(all(adverts.get(advert[0]) != advert for advert in written), "no advert is written twice")
        adverts = adverts | {advert[0]: advert for advert in written}
        record = Record(
            t,
            context,
            present,
            dict(sorted(adverts.items())),
            self.many(lambda: (self.number("I"), self.take(64))),
            self.many(self.answer),
            self.many(self.answer),
            self.many(lambda: (self.number("I"), self.take(64))),
            self.many(lambda: (self.group(), self.take(32))),
            self.many(lambda: (self.group(), self.text())),
            self.many(lambda: (self.number("I"), self.text())),
            self.many(lambda: self.many(self.group)),
            self.text(),
            self.many(lambda: (self.number("Q"), self.number("Q"))),
        )
        for answer in record.answers:
            for advert in answer.ahead:
                brought.setdefault(advert[1], {})[advert[0]] = advert
        return record


def read(data: bytes) -> tuple[Agreement, list[Record]]:
    head = b"secagg evidence 1\n"
    need(data.startswith(head), "the file says what it is")
    file = File(data[len(head) :])
    agreed = file.blob()
    signatures = file.many(lambda: (file.number("I"), file.take(64)))
    need(ascending([who for who, _ in signatures]), "members ascend")
    agreement = Agreement(agreed, dict(signatures))
    brought: dict[int, dict[int, Advert]] = {}
    records = []
    while file.at < len(file.data):
        inside = File(file.blob())
        records.append(inside.record(brought))
        inside.end()
    return agreement, records


class Round:
    """One record against the agreement (checks 4 to 11)."""

    def __init__(self, agreement: Agreement, record: Record) -> None:
        self.a, self.r, self.t = agreement, record, record.round
        self.groups = agreement.groups(self.t)
        self.released = {sender for sender, _ in record.releases}
        self.hashes: dict[int, bytes] = {}
        self._named()
        self.summed = {g: self._summed(g) for g in self.groups}
        called = agreement.terms.roll_call and not agreement.keeps_limits(record.present)
        full = [g for g, members in self.summed.items() if all(who in record.adverts for who in members)]
        self.complete = [] if called else sorted(full)
        self.asked = {who for g in self.complete for who in self.summed[g]}
        self._adverts()
        self._releases()
        self._answers()
        self._ends()
        complete = {g: self.summed[g] for g in self.complete}
        second_policy.check_charge(record.charge, second_policy.of_round(agreement, self.t, complete))

    def _summed(self, group: Group) -> list[int]:
        if self.a.terms.roll_call:
            return [who for who in self.groups[group] if who in self.r.present]
        return self.a.summed(self.t, group, self.released, ())

    def _named(self) -> None:
        r = self.r
        answers = [*r.answers, *r.second]
        named = {*r.present, *r.adverts, *(w for w, _ in (*r.releases, *r.after, *r.absent))}
        named |= {a.sender for a in answers} | {advert[0] for a in answers for advert in a.ahead}
        need(named <= set(self.a.terms.ids), "members are named")
        lists: list[Sequence[Any]] = [r.present, [w for w, _ in r.releases], [w for w, _ in r.after]]
        lists += [[a.sender for a in r.answers], [a.sender for a in r.second], [w for w, _ in r.absent]]
        lists += [[g for g, _ in r.opened], [g for g, _ in r.lost], *r.inconsistent]
        need(all(map(ascending, lists)), "lists ascend")

    def _adverts(self) -> None:
        seated = {who for members in self.groups.values() for who in members}
        for sender, t, key, _ in self.r.adverts.values():
            need(t == self.t and sender in seated and good_key(key), "an advert of this round by a seated member")
        ahead = [advert for answer in self.r.answers for advert in answer.ahead]
        for sender, t, key, signature in (*self.r.adverts.values(), *ahead):
            need(self.a.signed(sender, signature, "advert", u64(t), u32(sender), key), "an advert is signed")

    def _releases(self) -> None:
        releases = (*self.r.releases, *self.r.after)
        need(not releases or not self.a.no_releases(self.t), "releases are allowed")
        for sender, signature in releases:
            need(self.a.signed(sender, signature, "release", u64(self.t), u32(sender)), "a release is signed")
        need(bool(self.a.terms.roll_call) or not self.r.present, "a roll call is agreed")
        need(set(self.r.present) <= set(self.r.adverts), "those present have adverts")

    def _hash(self, answer: Answer) -> bytes:
        mine = [g for g in self.complete if answer.sender in self.summed[g]]
        need(bool(mine), "an answer is of a client with a complete group")
        need(all(w == answer.sender and t > self.t for w, t, *_ in answer.ahead), "adverts ahead are the sender's own")
        keys = {who: advert[2] for who, advert in self.r.adverts.items()}
        seen = [self.a.seen(self.t, g, keys, self.summed[g]) for g in mine]
        fields = [u32(answer.sender), u64(self.t), self.r.context, u32(len(mine))]
        fields += [struct.pack("<HI", *g) for g in mine]
        fields += [u32(len(seen)), *seen, answer.previous, u32(len(answer.ahead)), *map(advert_bytes, answer.ahead)]
        shown = b"".join(fields) + bytes(64) + u32(0) + u32(0)
        hash = H("answer", self.a.fingerprint, shown, answer.vectors)
        identity = self.a.terms.member(answer.sender).identity
        need(verified(identity, answer.signature, label("sign-answer") + hash), "an answer is signed")
        return hash

    def _answers(self) -> None:
        for answer in self.r.answers:
            need(answer.sender not in self.released, "a released client does not answer")
            self.hashes[answer.sender] = self._hash(answer)
        for answer in self.r.second:
            hash = self._hash(answer)
            other = self.hashes.get(answer.sender, hash) != hash
            need(answer.sender in self.released or other, "blame has a proof")
        need(all(sender in self.hashes for sender, _ in self.r.after), "blame has a proof")

    def _ends(self) -> None:
        r = self.r
        opened, lost = {g for g, _ in r.opened}, {g for g, _ in r.lost}
        need(opened | lost == set(self.groups) and not opened & lost, "each group is opened or lost")
        for g in opened:
            need(g in self.complete and all(who in self.hashes for who in self.summed[g]), "an opened group is whole")
        need(not opened or len(opened) >= self.a.terms.least_groups, "enough groups are opened")
        need(not (opened and r.skipped), "a skipped round opens nothing")
        told = self.hashes.keys() | {who for who, _ in r.absent}
        need(len(self.complete) < self.a.terms.least_groups or self.asked <= told, "silence is explained")
        need(not self.hashes.keys() & {who for who, _ in r.absent}, "who answered is not absent")
        reasons = [reason for _, reason in (*r.lost, *r.absent)]
        need(all(reasons), "reasons are not empty")
        for text in (*reasons, r.skipped):
            try:
                need(text.decode().isprintable(), "reasons are printable")
            except UnicodeDecodeError:
                raise Refused("reasons are text") from None
        need(opened.issuperset(g for part in r.inconsistent for g in part), "inconsistent groups were opened")


def check(data: bytes) -> str:
    """The first problem, or nothing."""
    try:
        agreement, records = read(data)
        rounds = [record.round for record in records]
        second_policy.check_policy(agreement)
        need(ascending(rounds), "rounds ascend")
        need(all(agreement.terms.first_round <= t <= agreement.terms.last_round for t in rounds), "rounds are agreed")
        last: dict[int, bytes] = {}
        silent: set[int] = set()
        for record in records:
            one = Round(agreement, record)
            for answer in record.answers:
                chained = answer.previous == last.get(answer.sender, bytes(32))
                need(chained or answer.sender in silent, "answers are chained")
            last |= one.hashes
            drawn = {who for members in one.groups.values() for who in members}
            asked = one.asked | ({who for who, _ in record.absent} & drawn)
            silent = (silent - one.hashes.keys()) | (asked - one.hashes.keys())
    except (Refused, struct.error) as problem:
        return str(problem) or "unreadable"
    return ""


def digest_of_sum(values: Sequence[int]) -> bytes:
    return sha256(b"".join(u32(value) for value in values)).digest()


def opened_sums(data: bytes) -> Mapping[tuple[int, Group], bytes]:
    """The hash of every opened sum, by round and group."""
    return {(record.round, group): sum for record in read(data)[1] for group, sum in record.opened}

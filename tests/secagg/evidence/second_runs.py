"""The second verifier for runs with survivors, written from docs/evidence.md and docs/protocol.md alone.

The audit of a run is that of `tests.secagg.second`, plans are those of `second_plan`, charges and the policy those of
`second_policy`, in plain integers and fractions. It stops at the first problem.
"""

import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

from tests.secagg.evidence import second_policy
from tests.secagg.evidence.second import File
from tests.secagg.evidence.second_plan import RISK, check_cells, plan_of, risk, sizes
from tests.secagg.second import (
    H,
    P,
    audit,
    blob,
    combine,
    dealing_hash,
    ids,
    label,
    many,
    public_of,
    rows,
    tree,
    u32,
    u64,
)
from tests.secagg.second import whole_atoms as summed_of
from tests.secagg.second_whole import Agreement, Group, Refused, ascending, good_key, need, verified

Named = tuple[int, bytes]  # a client, and a text, a hash or a signature


@dataclass
class Keys:
    sender: int
    both: bytes  # channel key and mask key


@dataclass
class Dealt:
    """A dealing that is shown for a proof."""

    dealer: int
    commitments: list[bytes]
    root: bytes


@dataclass
class Masked:
    sender: int
    disputes: list[int]
    vectors: bytes  # their hash
    signature: bytes


@dataclass
class Wrong:
    """A stage-4 message, with all hashes of at most one dealer."""

    sender: int
    own: bytes
    seed_owners: list[int]
    seeds: bytes
    key_owners: list[int]
    keys: bytes
    dealt: list[tuple[int, bytes]]

    def hash(self) -> bytes:
        parts = blob(self.own), ids(self.seed_owners), blob(self.seeds), ids(self.key_owners), blob(self.keys)
        return H("unmasking", *parts)


@dataclass
class Record:
    round: int
    cell: int
    context: bytes
    adverts: list[Keys]
    dealings: list[Named]
    early: list[Named]
    inputs: list[Masked]
    closed: list[Group]
    openings: list[Named]
    unmaskings: list[tuple[int, bytes, bytes]]
    sums: list[bytes]
    lost: list[tuple[Group, bytes]]
    absent: list[Named]
    inconsistent: list[list[Group]]
    failed: bytes
    shown: list[Dealt]
    wrong: list[Wrong]
    dealt: list[tuple[int, int, bytes, list[tuple[int, bytes, bytes]]]]
    unproved: list[Named]
    reserved: list[tuple[int, int]]
    settled: list[tuple[int, int]]


class RunFile(File):
    """Reads the records of runs."""

    def groups(self) -> list[Group]:
        found = self.rows()
        need(ascending(found), "groups ascend")
        return found

    def sorted_ids(self) -> list[int]:
        found = self.ids()
        need(ascending(found), "ids ascend")
        return found

    def hashes(self) -> list[bytes]:
        return self.many(lambda: self.take(32))

    def named(self) -> Named:
        return self.number("I"), self.text()

    def charge(self) -> list[tuple[int, int]]:
        found = self.many(lambda: (self.number("Q"), self.number("Q")))
        need(len(found) <= 1, "at most one charge")
        return found

    def wrong(self) -> Wrong:
        head = self.number("I"), self.blob(), self.sorted_ids(), self.blob(), self.sorted_ids(), self.blob()
        found = Wrong(*head, self.many(lambda: (self.number("I"), self.blob())))
        need(len(found.dealt) <= 1, "at most one dealer's hashes")
        return found

    def share(self) -> tuple[int, bytes, bytes]:
        return self.number("I"), self.take(33), self.take(32)

    def run(self) -> Record:
        return Record(
            self.number("Q"),
            self.number("I"),
            self.blob(),
            self.many(lambda: Keys(self.number("I"), self.take(64))),
            self.many(lambda: (self.number("I"), self.take(32))),
            self.many(lambda: (self.number("I"), self.take(64))),
            self.many(lambda: Masked(self.number("I"), self.sorted_ids(), self.take(32), self.take(64))),
            self.groups(),
            self.many(lambda: (self.number("I"), self.take(64))),
            self.many(lambda: (self.number("I"), self.take(32), self.take(64))),
            self.hashes(),
            self.many(lambda: (self.group(), self.text())),
            self.many(self.named),
            self.many(self.groups),
            self.text(),
            self.many(lambda: Dealt(self.number("I"), self.hashes(), self.take(32))),
            self.many(self.wrong),
            self.many(lambda: (self.number("I"), self.number("I"), self.blob(), self.many(self.share))),
            self.many(self.named),
            self.charge(),
            self.charge(),
        )


def read(data: bytes) -> tuple[Agreement, list[Record]]:
    head = b"secagg evidence 1\n"
    need(data.startswith(head), "the file says what it is")
    file = RunFile(data[len(head) :])
    agreed = file.blob()
    signatures = file.many(lambda: (file.number("I"), file.take(64)))
    need(ascending([who for who, _ in signatures]), "members ascend")
    agreement, records = Agreement(agreed, dict(signatures)), []
    while file.at < len(file.data):
        inside = RunFile(file.blob())
        records.append(inside.run())
        inside.end()
    return agreement, records


class Run:
    """One record against its plan (checks 12 to 18)."""

    def __init__(self, agreement: Agreement, record: Record) -> None:
        self.a, self.r = agreement, record
        need(len(record.context) <= 4096, "a context is short")
        self.p = plan_of(agreement, record.round, record.cell, record.context)
        self.adverts = {one.sender: one for one in record.adverts}
        self.dealings = dict(record.dealings)
        self.shown = {one.dealer: one for one in record.shown}
        self._named()
        self._stages()
        self.inputs = [one.sender for one in record.inputs]
        self.summed = summed_of(self.p, self.inputs)
        self.every = [(x, g) for x, grouping in enumerate(self.p.groupings) for g in range(len(grouping))]
        need(set(record.closed) <= set(self.every), "closed groups are of the plan")
        need(not record.closed or bool(record.openings), "closed groups are signed")
        self.groups = [g for g in self.every if g not in record.closed] if record.openings else []
        self._signatures()
        self._ends()
        self._charges()
        self._blame()

    def _named(self) -> None:
        r = self.r
        self.stages = [list(self.adverts), list(self.dealings), [one.sender for one in r.inputs]]
        self.stages += [[v for v, _ in r.openings], [v for v, *_ in r.unmaskings]]
        counts = len(r.adverts), len(r.dealings)
        need(counts == (len(self.adverts), len(self.dealings)), "one message per client")
        others = [[v for v, _ in r.absent], [v for v, _ in r.unproved], [one.sender for one in r.wrong]]
        others += [[dealer for dealer, *_ in r.dealt], [v for v, _ in r.early], [one.dealer for one in r.shown]]
        about = {v for part in others[2:4] for v in part} | {dealer for one in r.wrong for dealer, _ in one.dealt}
        need(about <= set(self.p.ids) and set(others[5]) <= about, "proofs are about members, and shown dealings too")
        lists: list[Sequence[Any]] = [*self.stages, *others, [g for g, _ in r.lost]]
        need(all(map(ascending, lists)), "lists ascend")
        need({v for part in (*self.stages, *others) for v in part} <= set(self.p.ids), "members are named")

    def _stages(self) -> None:
        for before, now in zip(self.stages, self.stages[1:], strict=False):
            need(set(now) <= set(before) and (not now or len(before) >= self.p.t), "at least t of the stage before")
        need(not self.r.sums or len(self.stages[-1]) >= self.p.t, "at least t unmaskings")
        for shown in self.r.shown:
            need(dealing_hash(shown.commitments, shown.root) == self.dealings.get(shown.dealer), "a shown dealing")
            need(len(shown.commitments) == self.p.R, "R commitments")
        for one in self.r.inputs:
            need(set(one.disputes) <= self.dealings.keys() - {one.sender}, "dealers are disputed")

    def _is_signed(self, who: int, signature: bytes, what: str, *parts: bytes) -> None:
        identity = dict(self.p.roster)[who]
        need(verified(identity, signature, label(f"sign-{what}") + b"".join(parts)), f"{what} of {who} is signed")

    def _view(self, client: int) -> bytes:
        seen = [v for v in self.p.peers[client] if v in self.dealings]
        parts = [u32(v) + self.adverts[v].both + self.dealings[v] for v in seen]
        return H("view", self.p.hash, u32(len(parts)), *parts)

    def _signatures(self) -> None:
        p, r = self.p, self.r
        for one in r.adverts:
            channel, mask = one.both[:32], one.both[32:]
            need(good_key(channel) and good_key(mask) and channel != mask, "keys are good and differ")
        early = [v for v in self.adverts if v not in self.inputs]
        need(early == [v for v, _ in r.early], "clients without masked inputs have early signatures")
        for v, signature in r.early:
            keys = u32(v), self.adverts[v].both
            if v in self.dealings:
                self._is_signed(v, signature, "shares", p.hash, *keys, self.dealings[v])
            else:
                self._is_signed(v, signature, "keys", p.training_id, u64(p.round), p.roster_hash, *keys)
        for masked in r.inputs:
            v = masked.sender
            disputed = H("disputes", ids(masked.disputes))
            self._is_signed(v, masked.signature, "view", p.hash, u32(v), self._view(v), disputed, masked.vectors)
        vectors = H("inputs", many(u32(masked.sender) + masked.vectors for masked in r.inputs))
        for v, signature in r.openings:
            view = bytes(32) if p.degree else self._view(v)
            opening = H("opening", p.hash, view, ids(self.inputs), vectors, rows(self.groups))
            self._is_signed(v, signature, "opening", opening)
        for v, content, signature in r.unmaskings:
            self._is_signed(v, signature, "unmasking", p.hash, u32(v), content)

    def _ends(self) -> None:
        r, p = self.r, self.p
        if self.groups:
            need(set(self.groups) <= set(audit(p, self.summed)), "the audit opens the groups")
        if p.degree and r.openings:
            gone = len(p.ids) - len(self.inputs)
            need(risk(len(p.ids), p.degree, p.t, p.colluders, gone) <= RISK, "the graph bears the dropouts")
        lost = {g for g, _ in r.lost}
        opened = set(self.every) - lost
        need(lost <= set(self.every) and len(opened) == len(r.sums), "each group is opened or lost")
        need(opened <= set(self.groups), "opened groups were signed")
        need(not (opened and r.failed), "a failed run opens nothing")
        gave, absent = set(self.stages[-1]), {v for v, _ in r.absent}
        need(bool(r.failed) or gave | absent == set(p.ids), "silence is explained")
        need(not gave & absent & self.summed, "who is summed to the end is not absent")
        reasons = [reason for _, reason in r.lost] + [reason for _, reason in (*r.absent, *r.unproved)]
        need(all(reasons), "reasons are not empty")
        for text in (*reasons, r.failed):
            try:
                need(text.decode().isprintable(), "reasons are printable")
            except UnicodeDecodeError:
                raise Refused("reasons are text") from None
        need(opened.issuperset(g for part in r.inconsistent for g in part), "inconsistent groups were opened")

    def _charges(self) -> None:
        groups = [[v for v in self.p.groupings[x][g] if v in self.summed] for x, g in self.groups]
        second_policy.check_charge(self.r.reserved, second_policy.reserved(self.a, self.inputs))
        second_policy.check_charge(self.r.settled, second_policy.settled(self.a, self.stages[-1], groups))

    # --- check 17

    def _blame(self) -> None:
        r, p = self.r, self.p
        need(len(r.wrong) <= max(0, p.t - 1 - p.colluders), "few shares are shown")
        need(all(self._convicts(one) for one in r.wrong), "a wrong unmasking convicts")
        need(all(self._is_bad(*one) for one in r.dealt), "a wrong dealing convicts")

    @cached_property
    def blamed(self) -> set[int]:
        return {one.sender for one in self.r.wrong} | {dealer for dealer, *_ in self.r.dealt}

    @cached_property
    def doubted(self) -> set[int]:
        holders = self.p.degree + 1 if self.p.degree else len(self.p.ids)
        disputed = Counter(v for one in self.r.inputs for v in one.disputes)
        return {v for v, count in disputed.items() if count > max(self.p.colluders, holders - self.p.t)}

    def _groupings(self, client: int) -> list[int]:
        return [x for x, g in self.p.places[client] if (x, g) in self.groups]

    def _are_of(self, dealer: int, hashes: bytes) -> bool:
        """Whether these are all hashes under the root of a dealer."""
        width = 32 * (self.p.R + 1)
        if dealer not in self.shown or not hashes or len(hashes) % width:
            return False
        leaves = [hashes[i : i + width] for i in range(0, len(hashes), width)]
        levels = tree([sha256(label("tree-leaf") + leaf).digest() for leaf in leaves])
        return levels[-1] == [self.shown[dealer].root]

    def _fits(self, dealer: int, holder: int, k: int, entry: bytes, hashes: bytes) -> bool:
        """Whether a share is in the field, and its hash is that of secret k in some leaf."""
        width, found = 32 * (self.p.R + 1), H("share-leaf", self.p.hash, u32(dealer), u32(holder), u32(k), entry)
        there = [hashes[i + 32 * k : i + 32 * k + 32] for i in range(0, len(hashes), width)]
        return found in there and int.from_bytes(entry[:33], "little") < P

    def _convicts(self, one: Wrong) -> bool:
        v, signed = one.sender, {who: content for who, content, _ in self.r.unmaskings}
        if signed.get(v) != one.hash():
            return False
        mine = self._groupings(v) if v in self.summed else []
        owners = {*one.seed_owners, *one.key_owners}
        if len(one.own) != 32 * len(mine) or not owners <= set(self.dealings):
            return True
        if not set(one.seed_owners) <= self.summed or self.summed & set(one.key_owners):
            return True
        wanted = [(w, x + 1) for w in one.seed_owners for x in self._groupings(w)]
        if len(one.seeds) != 65 * len(wanted) or len(one.keys) != 65 * len(one.key_owners):
            return True
        for place, x in enumerate(mine):
            seed = one.own[32 * place : 32 * place + 32]
            committed = H("seed-commitment", self.p.hash, u32(v), u32(x), seed)
            if v in self.shown and committed != self.shown[v].commitments[x]:
                return True
        wanted += [(w, 0) for w in one.key_owners]
        if any(v not in self.p.peers[w] for w, _ in wanted):
            return True
        shares = one.seeds + one.keys
        for dealer, hashes in one.dealt:
            good = [
                self._fits(dealer, v, k, shares[65 * place : 65 * place + 65], hashes)
                for place, (w, k) in enumerate(wanted)
                if w == dealer
            ]
            return self._are_of(dealer, hashes) and not all(good)
        return False

    def _is_bad(self, dealer: int, k: int, hashes: bytes, shown: Sequence[tuple[int, bytes, bytes]]) -> bool:
        holders = [holder for holder, *_ in shown]
        if len(holders) != self.p.t or not ascending(holders) or k > self.p.R:
            return False
        if not self._are_of(dealer, hashes) or not set(holders) <= set(self.p.peers[dealer]):
            return False
        if not all(self._fits(dealer, holder, k, share + nonce, hashes) for holder, share, nonce in shown):
            return False
        total = 0
        for i, share in (points := {self.p.index[h]: share for h, share, *_ in shown}).items():
            weight = 1
            for j in points:
                weight = weight * (j * pow(j - i, -1, P) if j != i else 1) % P
            total += weight * int.from_bytes(share, "little")
        value = total % P
        if value >= 2**256:
            return True
        secret = combine(points)
        if k == 0:
            return public_of(secret) != self.adverts[dealer].both[32:]
        found = H("seed-commitment", self.p.hash, u32(dealer), u32(k - 1), secret)
        return found != self.shown[dealer].commitments[k - 1]


def check(data: bytes) -> str:
    """The first problem, or nothing."""
    try:
        agreement, records = read(data)
        terms, places = agreement.terms, [(record.round, record.cell) for record in records]
        need(ascending(places), "rounds ascend")
        need(all(terms.first_round <= t <= terms.last_round for t, _ in places), "rounds are agreed")
        check_cells(terms)
        second_policy.check_policy(agreement)
        counts = Counter(t for t, _ in places)
        need(set(counts.values()) <= {len(sizes(terms))}, "a round has all its cells")
        for record in records:
            Run(agreement, record)
    except (Refused, struct.error) as problem:
        return str(problem) or "unreadable"
    return ""


def blamed(data: bytes) -> set[int]:
    """Whom the file convicts."""
    agreement, records = read(data)
    return set().union(*(Run(agreement, record).blamed for record in records))

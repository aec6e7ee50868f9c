"""A second implementation of agreements and whole groups, written only from docs/protocol-whole.md.

It imports nothing of secagg. Unlike `second`, it makes the checks of the document, in plain integers and fractions.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from hashlib import sha256, sha512
from itertools import pairwise
from math import isfinite
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA512
from cryptography.hazmat.primitives.serialization import load_der_public_key

from tests.secagg import second_noise
from tests.secagg.second import (
    Draw,
    H,
    Reader,
    add,
    agree,
    blob,
    fisher_yates,
    framed,
    hkdf,
    label,
    many,
    public_of,
    rows,
    stream,
    u8,
    u16,
    u32,
    u64,
)

Noise, SegmentNoise = second_noise.Noise, second_noise.SegmentNoise
Group = tuple[int, int]
Update = Sequence[Sequence[float]]
Grouping = list[tuple[int, ...]]
RANDOM, FIXED, TRANSVERSAL, ATOMS = range(4)
HELLO, ADVERT, ROUND, ANSWER, RELEASE = range(32, 37)
MOST_AHEAD = 3
LOW_ORDER = {
    (0).to_bytes(32, "little"),
    (1).to_bytes(32, "little"),
    (2**255 - 20).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
}


class Refused(Exception):  # noqa: N818 - not a fault of this program
    """A message or an agreement that breaks a rule of the document."""


def need(held: bool, rule: str) -> None:
    if not held:
        raise Refused(rule)


class Strict(Reader):
    """A reader that refuses short input instead of failing an assertion."""

    def take(self, count: int) -> bytes:
        need(self.at + count <= len(self.data), "the input is too short")
        return super().take(count)

    def end(self) -> None:
        need(self.at == len(self.data), "the input has extra bytes")

    def real(self) -> float:
        data = self.take(8)
        value: float = struct.unpack("<d", data)[0]
        need(abs(value) < float("inf") and data != struct.pack("<d", -0.0), "an f64 is finite and not negative zero")
        return value


def ascending(values: Sequence[Any]) -> bool:
    return all(a < b for a, b in pairwise(values))


def sign(identity: bytes, data: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(identity).sign(data)


def verified(identity: bytes, signature: bytes, data: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(signature, data)
    except InvalidSignature:
        return False
    return True


def good_key(key: bytes) -> bool:
    return int.from_bytes(key, "little") < 2**255 - 19 and key not in LOW_ORDER


# --- section 2 -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Person:
    id: int
    identity: bytes
    name: bytes
    weight: int


@dataclass(frozen=True)
class Part:
    """One segment."""

    name: bytes
    shape: tuple[int, ...]
    floats: int
    clip: float
    bound: int

    @property
    def length(self) -> int:
        product = 1
        for side in self.shape:
            product *= side
        return product

    def frac_bits(self, clients: int) -> int:
        def fits(f: int) -> bool:
            most = Fraction(self.clip) * Fraction(2) ** f
            return clients * most < 2**31 and clients * round(most) < 2**31

        f = 200
        while not fits(f):
            f -= 1
        return f

    def most(self, clients: int) -> int:
        """The largest absolute value of one encoded entry."""
        return round(self.clip * 2.0 ** self.frac_bits(clients)) if self.floats else self.bound

    def encode(self, values: Sequence[float], weight: float, clients: int) -> list[int]:
        need(len(values) == self.length, "a part has the length of its segment")
        if not self.floats:
            need(all(abs(x) <= self.bound for x in values), "integers are within the bound")
            return [int(x) % 2**32 for x in values]
        scale = 2.0 ** self.frac_bits(clients)
        limit = self.clip * scale
        need(all(map(isfinite, values)), "values are finite")
        encoded = [round(min(max(float(x) * (weight * scale), -limit), limit)) % 2**32 for x in values]
        need(any(encoded) or not any(values), "some value of the part does not vanish")
        return encoded

    def norm(self, clip: float, weight: float, clients: int) -> int:
        return second_noise.norm(clip, weight, self.frac_bits(clients) if self.floats else None)

    def encode_for_noise(self, values: Sequence[float], weight: float, clients: int, clip: float) -> list[int]:
        need(len(values) == self.length and all(map(isfinite, values)), "finite values, as many as the segment has")
        factor, limit = 1.0, float(self.bound)
        if self.floats:
            scale = 2.0 ** self.frac_bits(clients)
            factor, limit = weight * scale, self.clip * scale
        return second_noise.clipped(values, factor, Fraction(self.norm(clip, weight, clients)), limit)

    def decode(self, total: Sequence[int], clients: int) -> list[float]:
        signed = [x - 2**32 if x >= 2**31 else x for x in total]
        if not self.floats:
            return list(signed)
        return [float(x) * (1.0 / 2.0 ** self.frac_bits(clients)) for x in signed]


# --- section 3 -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drawing:
    """Draws from ids and a seed."""

    terms: "Terms"
    ids: Sequence[int]
    seed: bytes

    def shuffle(self, items: Sequence[Any], when: int, purpose: str, index: int = 0) -> list[Any]:
        numbers = (when.to_bytes(8, "big"), index.to_bytes(8, "big"))
        key = framed("schedule", purpose.encode("ascii"), *numbers, self.seed)

        def words() -> Iterable[int]:
            counter = 0
            while True:
                yield from struct.unpack(">4Q", sha256(key + counter.to_bytes(8, "big")).digest())
                counter += 1

        return fisher_yates(items, words())

    @property
    def count(self) -> int:
        """Groups in a grouping of a round."""
        return (self.terms.sample or len(self.ids)) // self.terms.size

    def fixed(self) -> list[Grouping]:
        return self.cut(0, len(self.ids) // self.terms.size)

    def crossed(self, t: int) -> list[Grouping]:
        m, count = self.terms.size, self.count
        seats = self.shuffle(sorted(self.shuffle(self.ids, t + 1, "lot")[: count * m]), t + 1, "transversal")
        return [
            [tuple(sorted(seats[a * count + (k - r * a) % count] for a in range(m))) for k in range(count)]
            for r in range(self.terms.groupings)
        ]

    def atoms(self) -> list[tuple[int, ...]]:
        k, order = self.terms.atom, self.shuffle(self.ids, 0, "atoms")
        return [tuple(sorted(order[i : i + k])) for i in range(0, len(order) // k * k, k)]

    def of_atoms(self, atoms: Sequence[tuple[int, ...]], t: int) -> list[Grouping]:
        m, k = self.terms.size, self.terms.atom
        count = min(self.terms.sample or len(atoms) * k, len(atoms) * k) // m
        seated = sorted(self.shuffle(atoms, t + 1, "lot")[: count * m // k])
        drawn = []
        for r in range(self.terms.groupings):
            flat = [who for atom in self.shuffle(seated, t + 1, "grouping", r) for who in atom]
            drawn.append([tuple(sorted(flat[g * m : (g + 1) * m])) for g in range(count)])
        return drawn

    def cut(self, when: int, count: int) -> list[Grouping]:
        m, drawn = self.terms.size, []
        lot = sorted(self.shuffle(self.ids, when, "lot")[: count * m])
        for r in range(self.terms.groupings):
            order = self.shuffle(lot, when, "grouping", r)
            drawn.append([tuple(sorted(order[g * m : (g + 1) * m])) for g in range(count)])
        return drawn

    def sampled(self, groupings: list[Grouping], t: int) -> list[Grouping]:
        if not self.terms.sample:
            return groupings
        sets: list[set[int]] = []
        for group in (set(group) for grouping in groupings for group in grouping):
            touching = [other for other in sets if other & group]
            sets = [other for other in sets if not other & group] + [group.union(*touching)]
        left, taken = self.terms.sample, set[int]()
        for connected in self.shuffle(sorted(tuple(sorted(one)) for one in sets), t + 1, "sample"):
            if len(connected) <= left:
                left -= len(connected)
                taken |= set(connected)
        return [[group for group in grouping if set(group) <= taken] for grouping in groupings]


NUMBERS = (  # fields of the terms that are single numbers, in three runs between the lists
    (("first_round", "Q"), ("last_round", "Q")),
    (("schedule", "B"), ("size", "I"), ("groupings", "H"), ("atom", "I"), ("groups", "B"), ("sample", "I")),
    (("cell", "I"), ("degree", "I"), ("roll_call", "B"), ("min_survivors", "I"), ("anonymity", "I")),
)


class Terms:
    """The terms, read from their bytes."""

    first_round: int
    last_round: int
    schedule: int
    size: int
    groupings: int
    atom: int
    groups: int
    sample: int
    roll_call: int
    min_survivors: int
    anonymity: int

    def __init__(self, data: bytes) -> None:
        read = Strict(data)
        need(read.number("B") == 2, "the version is 2")
        self.name = read.blob()
        self.members = read.many(lambda: Person(read.number("I"), read.take(32), read.blob(), read.number("I")))
        self._numbers(read, 0)
        self.segments = read.many(lambda: self._segment(read))
        self._numbers(read, 1)
        self.least_groups = read.number("I")
        self.colluders, self.threshold = (read.many(lambda: read.number("I")) for _ in range(2))
        self._numbers(read, 2)
        self.max_leverage = read.real()
        self.mode, self.memory = read.number("B"), read.number("B")
        self.beacon = read.many(lambda: (read.number("Q"), read.number("Q"), read.take(32)))
        self.predecessors = read.many(lambda: read.take(32))
        self.keep = read.many(lambda: (read.take(32), read.many(lambda: read.number("I"))))
        self.noise = self._sections(read)
        read.end()
        self.bytes, self.hash = data, H("terms", data)
        self._check()

    def _numbers(self, read: Reader, part: int) -> None:
        for name, form in NUMBERS[part]:
            setattr(self, name, read.number(form))

    @staticmethod
    def _segment(read: Strict) -> Part:
        name, shape = read.blob(), tuple(read.many(lambda: read.number("I")))
        return Part(name, shape, read.number("B"), read.real(), read.number("I"))

    @staticmethod
    def _sections(read: Strict) -> Noise | None:
        """Section 10 is the only one that this implementation knows."""
        found = None
        while read.at < len(read.data):
            number, version = read.number("B"), read.number("B")
            need((number, version) == (5, 1) and found is None, "a known section, once")
            body = Strict(read.blob())
            found = Noise(body.number("I"), body.many(lambda: SegmentNoise(body.real(), body.number("I"))))  # noqa: B023
            body.end()
        return found

    def _check_noise(self, noise: Noise) -> None:
        need(noise.colluders < len(self.members), "fewer colluders than members")
        need(len(noise.segments) == len(self.segments), "noise for each segment")
        groups = (self.sample or len(self.members)) // self.size
        opened = (self.last_round - self.first_round + 1) * self.groupings * groups
        weights = [self.relative(who) for who in self.ids]
        for part, one in zip(self.segments, noise.segments, strict=True):
            need(one.clip >= 2.0**-1022 and 1 <= one.sigma <= 2**26, "a clip and a sigma in range")
            light, heavy = (part.norm(one.clip, weight, self.size) for weight in (min(weights), max(weights)))
            need(light >= 1, "the norm is at least a step")
            largest = part.most(self.size)
            need(second_noise.room(one, self.size, largest, heavy, opened * part.length), "sums have room for noise")

    def relative(self, who: int) -> float:
        return self.member(who).weight * len(self.members) / sum(m.weight for m in self.members)

    def _check(self) -> None:
        need(bool(self.name), "the agreement has a name")
        for text in (self.name, *(m.name for m in self.members), *(p.name for p in self.segments)):
            try:
                need(len(text.decode()) <= 200 and text.decode().isprintable(), "a name is printable")
            except UnicodeDecodeError:
                raise Refused("a name is UTF-8") from None
        need(ascending([member.id for member in self.members]), "ids are strictly ascending")
        parts = [part.name for part in self.segments]
        for differing in ([m.identity for m in self.members], [m.name for m in self.members if m.name], parts):
            need(len(set(differing)) == len(differing), "identities and names differ")
        need(all(parts) or len(parts) == 1, "only a single segment has no name")
        need(all(member.weight >= 1 for member in self.members), "weights are at least 1")
        need(self.first_round <= self.last_round < 2**63, "the last round is not below the first")
        need(self.schedule <= ATOMS and self.groups <= 1 and self.mode <= 1 and self.memory <= 1, "a known number")
        need(max(map(len, (self.colluders, self.threshold, self.beacon, self.keep))) <= 1, "at most one")
        need(bool(self.atom) == (self.schedule == ATOMS), "an atom only for the schedule of atoms")
        self._check_roll_call()
        self._check_keep()
        for part in self.segments:
            need(part.floats <= 1 and (not part.bound if part.floats else not part.clip), "a clip or a bound")
        if self.noise:
            self._check_noise(self.noise)

    def _check_roll_call(self) -> None:
        need(self.roll_call <= 1, "a roll call or none")
        one = self.groupings == 1 and (self.sample or len(self.members)) // self.size == 1
        need(not self.roll_call or (one and not self.groups and self.memory == 1), "a roll call of one group and round")

    def _check_keep(self) -> None:
        for seed, dropped in self.keep:
            need(bool(dropped) and ascending(dropped), "the dropped ones are ascending")
            need(not set(dropped) & set(self.ids), "the dropped ones are no members")
            need(bool(self.predecessors) and not self.groups, "kept groups are whole and of a named agreement")
            need(self.schedule in (FIXED, ATOMS), "only fixed groups and atoms are kept")
            earlier = Drawing(self, sorted({*self.ids, *dropped}), seed)
            fixed = [group for grouping in earlier.fixed() for group in grouping]
            units = earlier.atoms() if self.schedule == ATOMS else fixed
            for unit in units:
                need(len({who in dropped for who in unit}) == 1, "a group or an atom is kept whole or dropped whole")

    @property
    def ids(self) -> list[int]:
        return [member.id for member in self.members]

    def member(self, who: int) -> Person:
        found: Person = next(member for member in self.members if member.id == who)
        return found

    @property
    def length(self) -> int:
        return sum(part.length for part in self.segments)


def pulse_fields(signed: bytes) -> tuple[int, int, int]:
    """The cipher suite, the chain and the time of a pulse."""
    read, kinds = Strict(signed), "ttIIvQQtvvIvvvvvvvI"  # text, value, u32, u64
    found: list[Any] = []
    for kind in kinds:
        if kind in "tv":
            content = read.take(int.from_bytes(read.take(4), "big"))
            need(kind == "t" or len(content) == 64, "values have 64 bytes")
            found.append(content)
        else:
            found.append(int.from_bytes(read.take(struct.calcsize("<" + kind)), "big"))
    read.end()
    when = datetime.strptime(found[7].decode("ascii"), "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
    return found[2], found[5], int(when.timestamp() * 1000)


class Agreement:
    """Terms and the origin of the seed, checked; and every member's signature."""

    def __init__(self, data: bytes, signatures: Mapping[int, bytes]) -> None:
        read = Strict(data)
        self.terms = Terms(read.blob())
        need(read.number("B") == len(self.terms.beacon), "the origin is the one that the terms ask for")
        self.seed = self._pulse(read) if self.terms.beacon else self._ceremony(read)
        read.end()
        self.bytes, self.fingerprint = data, H("agreement", data)
        self._drawn: dict[int, list[Grouping]] = {}
        need(sorted(signatures) == self.terms.ids, "every member signs the agreement")
        for who, signature in signatures.items():
            need(self.signed(who, signature, "agreement", u32(who)), f"the agreement's signature of {who}")

    def signed(self, who: int, signature: bytes, what: str, *parts: bytes) -> bool:
        """Whether this is a member's signature over a label, the fingerprint and these parts."""
        data = label(f"sign-{what}") + self.fingerprint + b"".join(parts)
        return verified(self.terms.member(who).identity, signature, data)

    def _ceremony(self, read: Strict) -> bytes:
        terms = self.terms
        commitments, reveals = (read.many(lambda: (read.number("I"), read.take(32), read.take(64))) for _ in range(2))
        roster = b"".join(who.to_bytes(4, "big") for who in terms.ids)
        shown = H("commitments", terms.hash, many(u32(who) + value + proof for who, value, proof in commitments))
        for told in (commitments, reveals):
            need([who for who, *_ in told] == terms.ids, "every member once, by ascending id")
        for (who, commitment, first), (_, contribution, second) in zip(commitments, reveals, strict=True):
            identity = terms.member(who).identity
            statement = label("sign-commitment") + terms.hash + u32(who) + commitment
            need(verified(identity, first, statement), f"the commitment's signature of {who}")
            statement = label("sign-reveal") + terms.hash + shown + u32(who) + contribution
            need(verified(identity, second, statement), f"the reveal's signature of {who}")
            made = framed("seed-contribution-commitment", terms.hash, roster, who.to_bytes(4, "big"), contribution)
            need(made == commitment, f"{who} reveals what it committed to")
        return framed("training-seed", terms.hash, roster, *(contribution for _, contribution, _ in reveals))

    def _pulse(self, read: Strict) -> bytes:
        terms, ((chain, time, pinned),) = self.terms, self.terms.beacon
        approvals = read.many(lambda: (read.number("I"), read.take(64)))
        signed, signature, key = read.blob(), read.blob(), read.blob()
        need([who for who, _ in approvals] == terms.ids, "every member approves once, by ascending id")
        for who, approval in approvals:
            statement = label("sign-terms") + terms.hash + u32(who)
            need(verified(terms.member(who).identity, approval, statement), f"the approval of {who}")
        need(sha256(key).digest() == pinned, "the key of the pulse is the pinned one")
        need(pulse_fields(signed) == (0, chain, time), "the pulse is the named one, with cipher suite 0")
        public = load_der_public_key(key)
        assert isinstance(public, RSAPublicKey)
        try:
            public.verify(signature, signed, PKCS1v15(), SHA512())
        except InvalidSignature:
            raise Refused("the signature of the beacon is valid") from None
        name, number = b"NIST 2.0, chain %d" % chain, b"%d" % time
        return framed("beacon-seed", terms.hash, name, number, sha512(signed + signature).digest())

    def groupings(self, t: int) -> list[Grouping]:
        """The groups of a round, by grouping."""
        if t not in self._drawn:
            self._drawn[t] = self._draw(t)
        return self._drawn[t]

    def _draw(self, t: int) -> list[Grouping]:
        terms = self.terms
        need(terms.first_round <= t <= terms.last_round, "the round is in the agreement")
        draw, fixed, atoms = Drawing(terms, terms.ids, self.seed), None, None
        for seed, dropped in terms.keep:
            before, here = Drawing(terms, sorted({*terms.ids, *dropped}), seed), set(terms.ids)
            if terms.schedule == FIXED:
                fixed = [[group for group in grouping if here.issuperset(group)] for grouping in before.fixed()]
            else:
                atoms = [atom for atom in before.atoms() if here.issuperset(atom)]
        if terms.schedule == FIXED:
            return draw.sampled(fixed or draw.fixed(), t)
        if terms.schedule == RANDOM:
            return draw.cut(t + 1, draw.count)
        if terms.schedule == TRANSVERSAL:
            return draw.crossed(t)
        return draw.of_atoms(atoms or draw.atoms(), t)

    def groups(self, t: int) -> dict[Group, tuple[int, ...]]:
        """The members of every group (r, g) of a round."""
        return {(r, g): group for r, row in enumerate(self.groupings(t)) for g, group in enumerate(row)}

    def of(self, who: int, t: int) -> list[Group]:
        return [group for group, members in self.groups(t).items() if who in members]

    # --- section 4

    def encode(self, who: int, update: Update, draw: Draw) -> list[int]:
        terms = self.terms
        need(len(update) == len(terms.segments), "one part per segment")
        if terms.noise:
            return self._encode_with_noise(terms.noise, self._relative(who), update, draw)
        parts = zip(terms.segments, update, strict=True)
        return [x for part, values in parts for x in part.encode(values, self._relative(who), terms.size)]

    def _encode_with_noise(self, noise: Noise, weight: float, update: Update, draw: Draw) -> list[int]:
        encoded: list[int] = []
        for part, one, values in zip(self.terms.segments, noise.segments, update, strict=True):
            encoded += part.encode_for_noise(values, weight, self.terms.size, one.clip)
        drawn = [
            second_noise.gaussian(draw(16), part.length, one.sigma)
            for part, one in zip(self.terms.segments, noise.segments, strict=True)
        ]
        return [(a + b) % 2**32 for a, b in zip(encoded, (x for part in drawn for x in part), strict=True)]

    def charge(self, who: int, members: int) -> tuple[int, int]:
        """What an answer costs, in whole units; for one grouping."""
        terms = self.terms
        assert terms.noise is not None
        assert terms.groupings == 1
        parts = list(zip(terms.segments, terms.noise.segments, strict=True))
        norms = [part.norm(one.clip, self._relative(who), terms.size) for part, one in parts]
        found = second_noise.charge(terms.noise, members, norms, [part.length for part, _ in parts])
        if found is None:
            raise Refused("the noise is large enough for the grid")
        return found

    def decode(self, total: Sequence[int]) -> list[list[float]]:
        values, at = [], 0
        for part in self.terms.segments:
            values.append(part.decode(total[at : at + part.length], self.terms.size))
            at += part.length
        return values

    def mean(self, part: Part, sums: Sequence[float], members: Sequence[int]) -> list[float]:
        """Floats by the relative weights of the members, integers by their number."""
        if not part.floats:
            return [x / len(members) for x in sums]
        scale, weight = 2.0 ** part.frac_bits(self.terms.size), sum(self._relative(who) for who in members)
        return [x * scale * (1.0 / (scale * weight)) for x in sums]

    def _relative(self, who: int) -> float:
        return self.terms.relative(who)

    # --- section 6

    def context_hash(self, data: bytes, context: bytes) -> bytes:
        return H("context", blob(data), blob(context))

    def seen(self, t: int, group: Group, keys: Mapping[int, bytes], summed: Sequence[int]) -> bytes:
        r, g = group
        return H("group-adverts", self.fingerprint, u64(t), u32(r), u32(g), *(u32(w) + keys[w] for w in summed))

    def answer_hash(self, fields: bytes, vectors: Sequence[bytes]) -> bytes:
        """`fields` are those of the answer before its signature."""
        shown = fields + bytes(64) + u32(0) + u32(0)
        return H("answer", self.fingerprint, shown, H("answer-vectors", *(sha256(v).digest() for v in vectors)))

    def called(self, t: int, summed: Sequence[int]) -> bytes:
        """The present hash, or nothing without a roll call."""
        return H("present", self.fingerprint, u64(t), *map(u32, summed)) if self.terms.roll_call else b""

    def mask_key(self, secret: bytes, t: int, bound: bytes, r: int, one: tuple[int, bytes], other: Any) -> bytes:
        """`bound` is the context hash, and after it the present hash of a roll call."""
        (low, low_key), (high, high_key) = sorted((one, other))
        pair = u32(low) + low_key + u32(high) + high_key
        return hkdf(secret, label("group-mask") + self.fingerprint + u64(t) + bound + u32(r) + pair, 16)

    # --- section 7, what client and server share

    def is_flat(self, t: int) -> bool:
        return len(self.groups(t)) == 1

    def no_releases(self, t: int) -> bool:
        return bool(self.terms.roll_call) or (self.is_flat(t) and self.terms.memory == 0)

    def keeps_limits(self, left: Sequence[int]) -> bool:
        if len(left) < max(2, self.terms.anonymity, self.terms.min_survivors):
            return False
        squares = [self.terms.member(who).weight ** 2 for who in left]
        return Fraction(max(squares), sum(squares)) <= self.terms.max_leverage + 1e-9

    def summed(self, t: int, group: Group, released: set[int], present: Sequence[int]) -> list[int]:
        """The members of a group that are summed."""
        members = list(self.groups(t)[group])
        if self.terms.roll_call:
            return list(present)
        left = [who for who in members if who not in released]
        return left if self.is_flat(t) and self.keeps_limits(left) else members


# --- section 5 -------------------------------------------------------------------------------------------

Advert = tuple[int, int, bytes, bytes]  # sender, round, key, signature
Release = tuple[int, int, bytes]  # sender, round, signature


def opened(data: bytes, kind: int) -> Strict:
    need(data[:2] == bytes((2, kind)), "version 2 and the type of the message")
    return Strict(data[2:])


def read_advert(read: Reader) -> Advert:
    return read.number("I"), read.number("Q"), read.take(32), read.take(64)


def read_release(read: Reader) -> Release:
    return read.number("I"), read.number("Q"), read.take(64)


def advert_bytes(advert: Advert) -> bytes:
    sender, t, key, signature = advert
    return u32(sender) + u64(t) + key + signature


def release_bytes(release: Release) -> bytes:
    sender, t, signature = release
    return u32(sender) + u64(t) + signature


@dataclass
class Start:
    """A decoded Round."""

    fingerprint: bytes
    round: int
    data: bytes
    groups: list[Group]
    adverts: list[Advert]
    releases: list[Release]

    @classmethod
    def read(cls, data: bytes) -> "Start":
        read = opened(data, ROUND)
        start = cls(
            read.take(32),
            read.number("Q"),
            read.blob(),
            read.rows(),
            read.many(lambda: read_advert(read)),
            read.many(lambda: read_release(read)),
        )
        read.end()
        need(ascending(start.groups), "groups are strictly ascending")
        return start

    def wire(self) -> bytes:
        return (
            u8(2) + u8(ROUND) + self.fingerprint + u64(self.round) + blob(self.data) + rows(self.groups)
            + many(map(advert_bytes, self.adverts)) + many(map(release_bytes, self.releases))
        )  # fmt: skip


@dataclass
class Reply:
    """A decoded Answer."""

    sender: int
    round: int
    context: bytes
    groups: list[Group]
    seen: list[bytes]
    previous: bytes
    adverts: list[Advert]
    signature: bytes
    vectors: list[bytes]

    @classmethod
    def read(cls, data: bytes) -> "Reply":
        read = opened(data, ANSWER)
        numbers = read.number("I"), read.number("Q"), read.take(32), read.rows(), read.many(lambda: read.take(32))
        rest = read.take(32), read.many(lambda: read_advert(read)), read.take(64)
        height, width = read.number("I"), read.number("I")
        vectors = [read.take(4 * width) for _ in range(height)]
        read.end()
        reply = cls(*numbers, *rest, vectors)
        need(ascending(reply.groups), "groups are strictly ascending")
        need(len(reply.adverts) <= MOST_AHEAD, "at most three adverts")
        return reply

    def fields(self) -> bytes:
        head = u32(self.sender) + u64(self.round) + self.context + rows(self.groups) + many(self.seen)
        return head + self.previous + many(map(advert_bytes, self.adverts))

    def wire(self) -> bytes:
        width = len(self.vectors[0]) // 4 if self.vectors else 0
        shape = u32(len(self.vectors)) + u32(width)
        return u8(2) + u8(ANSWER) + self.fields() + self.signature + shape + b"".join(self.vectors)


# --- section 7 -------------------------------------------------------------------------------------------


@dataclass
class Client:
    """One member. `slots` is its exclusive storage by name, `spool` its stored answers by hash."""

    id: int
    identity: bytes
    agreement: Agreement
    draw: Draw
    slots: dict[str, bytes] = field(default_factory=dict)
    spool: dict[bytes, bytes] = field(default_factory=dict)
    keys: dict[int, bytes] = field(default_factory=dict)
    last: int | None = None
    previous: bytes = bytes(32)
    budget: tuple[float, float] | None = None  # epsilon and delta

    def __post_init__(self) -> None:
        need(self.id in self.agreement.terms.ids, "a client is a member of its agreement")
        public = Ed25519PrivateKey.from_private_bytes(self.identity).public_key().public_bytes_raw()
        need(public == self.agreement.terms.member(self.id).identity, "a member has the identity of the agreement")

    def _expect(self, fingerprint: bytes, t: int) -> None:
        need(fingerprint == self.agreement.fingerprint, "the fingerprint is my agreement's")
        need(bool(self.agreement.of(self.id, t)), "I am seated")

    def _sign(self, what: str, *parts: bytes) -> bytes:
        return sign(self.identity, label(f"sign-{what}") + self.agreement.fingerprint + b"".join(parts))

    def _advert(self, t: int) -> Advert:
        key = public_of(self.keys[t])
        return self.id, t, key, self._sign("advert", u64(t), u32(self.id), key)

    def slot(self, t: int) -> str:
        public = self.agreement.terms.member(self.id).identity
        return "v2-" + H("answer-record", public, self.agreement.fingerprint, u64(t)).hex()

    def hello(self, data: bytes) -> bytes:
        read = opened(data, HELLO)
        fingerprint, t = read.take(32), read.number("Q")
        read.end()
        self._expect(fingerprint, t)
        need(self.last is None or t > self.last, "the round comes after the last one answered")
        self.keys = {when: key for when, key in self.keys.items() if t <= when <= t + MOST_AHEAD}
        if t not in self.keys:
            self.keys[t] = self.draw(32)
        return u8(2) + u8(ADVERT) + advert_bytes(self._advert(t))

    def release(self, t: int) -> bytes:
        agreement = self.agreement
        need(not agreement.no_releases(t), "a flat sum with memory = training has no releases")
        need(self.slots.setdefault(self.slot(t), b"release ") == b"release ", "the round was answered")
        if self.last is None or t > self.last:
            self.last = t
            self.keys = {when: key for when, key in self.keys.items() if when > t}
        return u8(2) + u8(RELEASE) + release_bytes((self.id, t, self._sign("release", u64(t), u32(self.id))))

    def answer(self, data: bytes, context: bytes, update: Update) -> bytes | None:
        """The answer to a Round, or None if no group can be answered."""
        agreement, start = self.agreement, Start.read(data)
        t = start.round
        self._expect(start.fingerprint, t)  # 1
        if self.last is not None and t <= self.last:  # 2
            record = self.slots.get(self.slot(t), b"")
            need(t == self.last and record.startswith(b"answer "), "the round is a new one, or the last one answered")
            return self.spool[record.removeprefix(b"answer ")]
        keys = self._keys(start)  # 3
        present = self._present(start)
        released = self._released(start)
        if self.slot(t) in self.slots:
            return self._settled(t, self.slots[self.slot(t)])
        bound = agreement.context_hash(start.data, context)  # 4
        encoded, keys_before = agreement.encode(self.id, update, self.draw), dict(self.keys)
        answered: list[tuple[Group, bytes, bytes]] = []
        summed: list[int] = []
        for group in agreement.of(self.id, t):  # 5
            summed = agreement.summed(t, group, released, present)
            if group not in start.groups or not all(who in keys for who in summed):
                continue
            vector = self._masked(encoded, t, bound + agreement.called(t, summed), group[0], keys, summed)  # 6
            answered.append((group, agreement.seen(t, group, keys, summed), vector))
        if not answered:
            return None
        made = self._reply(t, bound, answered)
        name = agreement.answer_hash(made.fields(), made.vectors)
        self._enrol()
        if agreement.terms.noise:
            cost = agreement.charge(self.id, len(summed))
            if not second_noise.pay(self.slots, self.slot(t).encode(), cost, self.budget):
                self.keys = keys_before
                raise Refused("the answer is within the budget")
        self.spool[name] = made.wire()
        return self._settled(t, self.slots.setdefault(self.slot(t), b"answer " + name))  # 7

    def _enrol(self) -> None:
        public, mine = self.agreement.terms.member(self.id).identity, self.agreement.fingerprint
        for k in range(2**32):
            found = self.slots.setdefault("v2-" + H("agreement-record", public, u64(k)).hex(), mine)
            if found == mine:
                return
            need(found in self.agreement.terms.predecessors, "the stored agreements are named as predecessors")

    def _settled(self, t: int, record: bytes) -> bytes:
        self.keys = {when: key for when, key in self.keys.items() if when > t}  # 8
        self.last = t
        need(record.startswith(b"answer "), "the round was released")
        self.previous = record.removeprefix(b"answer ")
        return self.spool[self.previous]  # 9

    def _keys(self, start: Start) -> dict[int, bytes]:
        """The keys that may be masked with, by member; my own is among them."""
        agreement, t = self.agreement, start.round
        need(ascending([advert[0] for advert in start.adverts]), "adverts are in ascending order, one each")
        need(t in self.keys, "I have a key for this round")
        mine = public_of(self.keys[t])
        need(any(a[:3] == (self.id, t, mine) for a in start.adverts), "the advert under my id is mine")
        keys = {self.id: mine}
        for who, when, key, signature in start.adverts:
            known = who != self.id and who in agreement.terms.ids and when == t and good_key(key)
            if known and agreement.signed(who, signature, "advert", u64(t), u32(who), key):
                keys[who] = key
        return keys

    def _present(self, start: Start) -> list[int]:
        if not self.agreement.terms.roll_call:
            return []
        present = [advert[0] for advert in start.adverts]
        (members,) = self.agreement.groups(start.round).values()
        need(set(present) <= set(members), "the members present are in the group of the round")
        need(self.agreement.keeps_limits(present), "the members present keep the limits")
        return present

    def _released(self, start: Start) -> set[int]:
        agreement, t, senders = self.agreement, start.round, [release[0] for release in start.releases]
        need(ascending(senders), "releases are in ascending order")
        need(not (senders and agreement.no_releases(t)), "a flat sum with memory = training has no releases")
        for who, when, signature in start.releases:
            need(who in agreement.terms.ids and who != self.id and when == t, "a release is another member's")
            need(agreement.signed(who, signature, "release", u64(t), u32(who)), f"the release's signature of {who}")
        return set(senders)

    def _masked(
        self, encoded: list[int], t: int, bound: bytes, r: int, keys: Mapping[int, bytes], summed: Sequence[int]
    ) -> bytes:
        vector, me = encoded, (self.id, keys[self.id])
        for who in summed:
            if who != self.id:
                secret = agree(self.keys[t], keys[who])
                key = self.agreement.mask_key(secret, t, bound, r, me, (who, keys[who]))
                vector = add(vector, stream(key, len(vector)), 1 if self.id < who else -1)
        return struct.pack(f"<{len(vector)}I", *vector)

    def _reply(self, t: int, context: bytes, answered: Sequence[tuple[Group, bytes, bytes]]) -> Reply:
        agreement, adverts = self.agreement, []
        for later in range(t + 1, min(t + MOST_AHEAD, agreement.terms.last_round) + 1):
            if agreement.of(self.id, later) and later not in self.keys and not agreement.terms.roll_call:
                self.keys[later] = self.draw(32)
                adverts.append(self._advert(later))
        groups, seen, vectors = (list(column) for column in zip(*answered, strict=True))
        reply = Reply(self.id, t, context, groups, seen, self.previous, adverts, bytes(64), vectors)
        name = agreement.answer_hash(reply.fields(), vectors)
        reply.signature = sign(self.identity, label("sign-answer") + name)
        return reply


# --- section 8 -------------------------------------------------------------------------------------------


@dataclass
class Server:
    """Begins rounds, takes answers and opens groups."""

    agreement: Agreement
    round: int | None = None
    is_open: bool = False
    next: int = 0
    adverts: dict[tuple[int, int], Advert] = field(default_factory=dict)  # by round and member
    releases: dict[tuple[int, int], Release] = field(default_factory=dict)
    answers: dict[int, Reply] = field(default_factory=dict)
    dropouts: dict[int, str] = field(default_factory=dict)
    convicted: set[int] = field(default_factory=set)
    complete: dict[Group, list[int]] = field(default_factory=dict)
    present: list[int] = field(default_factory=list)
    data: bytes = b""
    context: bytes = b""

    def __post_init__(self) -> None:
        self.next = self.agreement.terms.first_round

    def hello(self, t: int) -> dict[int, bytes]:
        """The Hello for every client of a round whose advert is missing."""
        self.next = t
        seated = sorted({who for members in self.agreement.groups(t).values() for who in members})
        message = u8(2) + u8(HELLO) + self.agreement.fingerprint + u64(t)
        return {who: message for who in seated if (t, who) not in self.adverts and (t, who) not in self.releases}

    def receive(self, sender: int, data: bytes) -> str:
        """Take a message of this sender: empty, or why it does not count."""
        try:
            kind = data[1] if len(data) > 1 else 0
            {ADVERT: self._advert, ANSWER: self._answer, RELEASE: self._release}.get(kind, self._unknown)(sender, data)
        except Refused as why:
            if self.is_open and sender not in self.answers:
                self.dropouts.setdefault(sender, str(why))
            return str(why)
        return ""

    def _unknown(self, sender: int, data: bytes) -> None:
        raise Refused("a message to the server")

    def _advert(self, sender: int, data: bytes) -> None:
        read = opened(data, ADVERT)
        advert = read_advert(read)
        read.end()
        self._keep(sender, advert)

    def _keep(self, sender: int, advert: Advert) -> None:
        who, t, key, signature = advert
        need(who == sender, "the sender is the one that the channel names")
        if self.round is not None and t <= self.round:
            return
        need(t <= self.next + MOST_AHEAD, "an advert is at most three rounds ahead of the next")
        need(bool(self.agreement.of(who, t)), "the sender is seated")
        need(good_key(key), "the key is canonical and not of low order")
        need(self.agreement.signed(who, signature, "advert", u64(t), u32(who), key), f"the signature of {who}")
        self.adverts[t, who] = advert

    def _release(self, sender: int, data: bytes) -> None:
        read, agreement = opened(data, RELEASE), self.agreement
        who, t, signature = release = read_release(read)
        read.end()
        need(who == sender, "the sender is the one that the channel names")
        need(t <= self.next + MOST_AHEAD, "a release is at most three rounds ahead of the next")
        need(not agreement.no_releases(t), "a flat sum with memory = training has no releases")
        need(agreement.signed(who, signature, "release", u64(t), u32(who)), f"the signature of {who}")
        if self.round is None or t > self.round:
            self.releases[t, who] = release
        elif t == self.round and who in self.answers:
            self.convicted.add(who)

    def begin(self, t: int, data: bytes, context: bytes, present: Sequence[int] | None = None) -> dict[int, bytes]:
        """The Round for every client with a complete group; none: the round is skipped."""
        agreement = self.agreement
        self.round, self.data, self.context = t, data, agreement.context_hash(data, context)
        self.is_open, self.next = True, t + 1
        self.answers, self.dropouts, self.complete = {}, {}, {}
        released = {who for when, who in self.releases if when == t}
        self.present = sorted(present if present is not None else [who for when, who in self.adverts if when == t])
        for group in agreement.groups(t):
            summed = agreement.summed(t, group, released, self.present)
            if agreement.terms.roll_call and not agreement.keeps_limits(summed):
                continue
            if all((t, who) in self.adverts for who in summed):
                self.complete[group] = summed
        if len(self.complete) < agreement.terms.least_groups:
            self.complete = {}
        return {who: self._start(who, t) for who in sorted({w for summed in self.complete.values() for w in summed})}

    def _start(self, who: int, t: int) -> bytes:
        mine = self._complete_of(who)
        mates = sorted({mate for group in mine for mate in self.complete[group]})
        adverts = [self.adverts[t, mate] for mate in mates]
        flat = self.agreement.is_flat(t)
        releases = [self.releases[key] for key in sorted(self.releases) if key[0] == t and flat]
        return Start(self.agreement.fingerprint, t, self.data, mine, adverts, releases).wire()

    def _complete_of(self, who: int) -> list[Group]:
        return [group for group, summed in self.complete.items() if who in summed]

    def _answer(self, sender: int, data: bytes) -> None:
        reply = Reply.read(data)
        need(reply.sender == sender, "the sender is the one that the channel names")
        if self.is_open:
            self._judge(reply)
        for advert in reply.adverts:
            self._keep(sender, advert)
        if self.is_open:
            self._count(reply)

    def _judge(self, reply: Reply) -> None:
        agreement, t, who = self.agreement, self.round, reply.sender
        assert t is not None
        need(reply.round == t, "the round is this one")
        need(reply.context == self.context, "the context is the server's")
        need(not agreement.terms.roll_call or who in self.present, "the sender is present")
        mine = [group for group in self.complete if who in agreement.groups(t)[group]]
        if (t, who) in self.releases:
            mine = [group for group in mine if who in self.complete[group]]
        need(reply.groups == mine and bool(mine), "the groups are all the sender's complete ones")
        length = 4 * agreement.terms.length
        need(len(reply.vectors) == len(mine) and all(len(v) == length for v in reply.vectors), "the vectors' shape")
        keys = {sender: advert[2] for (when, sender), advert in self.adverts.items() if when == t}
        shown = [agreement.seen(t, group, keys, self.complete[group]) for group in mine]
        need(reply.seen == shown, "the adverts are those that were sent")
        statement = label("sign-answer") + agreement.answer_hash(reply.fields(), reply.vectors)
        need(verified(agreement.terms.member(who).identity, reply.signature, statement), "the signature is valid")

    def _count(self, reply: Reply) -> None:
        who = reply.sender
        if (reply.round, who) in self.releases:
            self.convicted.add(who)
            raise Refused("the round was released")
        if who not in self.answers:
            self.answers[who] = reply
            self.dropouts.pop(who, None)
        elif self.answers[who].wire() != reply.wire():
            self.convicted.add(who)

    def open(self) -> dict[Group, list[int]]:
        """End the round: the sums of the groups that open, modulo 2^32; none: the round is skipped."""
        self.is_open = False
        sums = dict[Group, list[int]]()
        for group, summed in self.complete.items():
            if all(who in self.answers for who in summed):
                total = [0] * self.agreement.terms.length
                for reply in (self.answers[who] for who in summed):
                    vector = reply.vectors[reply.groups.index(group)]
                    total = add(total, struct.unpack(f"<{len(total)}I", vector))
                if self._reachable(total, len(summed)):
                    sums[group] = total
        return sums if len(sums) >= self.agreement.terms.least_groups else {}

    def _reachable(self, total: Sequence[int], clients: int) -> bool:
        terms = self.agreement.terms
        added = [second_noise.spread(one.sigma, clients) for one in terms.noise.segments] if terms.noise else []
        most = [
            min(2**31 - 1, clients * part.most(terms.size) + (added[place] if added else 0))
            for place, part in enumerate(terms.segments)
            for _ in range(part.length)
        ]
        return all(min(x, 2**32 - x) <= limit for x, limit in zip(total, most, strict=True))

    def contradictions(self, sums: Mapping[Group, Sequence[int]]) -> bool:
        """Whether some linear relation between the opened groups' members does not hold between their sums."""
        groups, ids = self.agreement.groups(self.round or 0), self.agreement.terms.ids
        kept: list[tuple[list[Fraction], list[Fraction]]] = []
        for group, total in sums.items():
            row = [Fraction(who in groups[group]) for who in ids]
            value = [Fraction(x - 2**32 if x >= 2**31 else x) for x in total]
            for line, held in kept:
                pivot = next(i for i, x in enumerate(line) if x)
                factor = row[pivot] / line[pivot]
                row = [a - factor * b for a, b in zip(row, line, strict=True)]
                value = [a - factor * b for a, b in zip(value, held, strict=True)]
            if any(row):
                kept.append((row, value))
            elif any(value):
                return True
        return False


def found_agreement(
    terms: bytes, identities: Mapping[int, bytes], contributions: Mapping[int, bytes]
) -> tuple[bytes, dict[int, bytes]]:
    """The agreement's bytes and all signatures, from every member's private key and contribution."""
    name, members = H("terms", terms), sorted(identities)
    roster = b"".join(who.to_bytes(4, "big") for who in members)
    commitments = []
    for who in members:
        value = framed("seed-contribution-commitment", name, roster, who.to_bytes(4, "big"), contributions[who])
        commitments.append(u32(who) + value + sign(identities[who], label("sign-commitment") + name + u32(who) + value))
    shown = H("commitments", name, many(commitments))
    reveals = []
    for who in members:
        told = u32(who) + contributions[who]
        reveals.append(told + sign(identities[who], label("sign-reveal") + name + shown + told))
    data = blob(terms) + u8(0) + many(commitments) + many(reveals)
    fingerprint = H("agreement", data)
    return data, {who: sign(identities[who], label("sign-agreement") + fingerprint + u32(who)) for who in members}


def terms_bytes(
    name: bytes, members: Sequence[Person], rounds: tuple[int, int], segments: Sequence[Part], **settings: Any
) -> bytes:
    """The bytes of terms for whole groups with a ceremony; `settings` are the other fields."""
    people = [u32(m.id) + m.identity + blob(m.name) + u32(m.weight) for m in members]
    parts = [
        blob(p.name) + many(map(u32, p.shape)) + u8(p.floats) + struct.pack("<d", p.clip) + u32(p.bound)
        for p in segments
    ]
    draws = u8(settings["schedule"]) + u32(settings["size"]) + u16(settings["groupings"]) + u32(settings["atom"])
    draws += u8(0) + u32(settings["sample"]) + u32(settings["least_groups"])
    survivors = many([]) + many([]) + u32(0) + u32(0) + u8(settings.get("roll_call", 0))
    policy = u32(settings["min_survivors"]) + u32(settings["anonymity"]) + struct.pack("<d", settings["max_leverage"])
    policy += u8(settings["mode"]) + u8(settings["memory"])
    head = u8(2) + blob(name) + many(people) + u64(rounds[0]) + u64(rounds[1]) + many(parts)
    kept = [seed + many(map(u32, dropped)) for seed, dropped in settings.get("keep", [])]
    done = head + draws + survivors + policy + many([]) + many(settings.get("predecessors", [])) + many(kept)
    noise = settings.get("noise")
    return done if noise is None else done + u8(5) + u8(1) + blob(noise_bytes(noise))


def noise_bytes(noise: Noise) -> bytes:
    return u32(noise.colluders) + many(struct.pack("<d", one.clip) + u32(one.sigma) for one in noise.segments)

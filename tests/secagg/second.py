"""A second implementation of honest runs, written only from docs/protocol.md. It imports nothing of secagg.

It shows that the document is sufficient. It trusts every message (it checks neither floors nor signatures)
and uses plain integers and fractions.
"""

import hmac
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from hashlib import sha256, shake_256
from itertools import combinations
from math import prod
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

P = 2**257 - 93
Draw = Callable[[int], bytes]


def label(name: str) -> bytes:
    return f"secagg/v2/{name}\n".encode("ascii")


def H(name: str, *parts: bytes) -> bytes:  # noqa: N802 - as the document writes it
    return sha256(label(name) + b"".join(parts)).digest()


def u8(value: int) -> bytes:
    return struct.pack("<B", value)


def u16(value: int) -> bytes:
    return struct.pack("<H", value)


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def blob(data: bytes) -> bytes:
    return u32(len(data)) + data


def many(items: Iterable[bytes]) -> bytes:
    listed = list(items)
    return u32(len(listed)) + b"".join(listed)


def ids(values: Iterable[int]) -> bytes:
    return many(u32(value) for value in values)


def rows(values: Iterable[tuple[int, int]]) -> bytes:
    return many(u16(r) + u32(g) for r, g in values)


class Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        self.at += count
        assert self.at <= len(self.data)
        return self.data[self.at - count : self.at]

    def number(self, form: str) -> Any:
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))[0]

    def blob(self) -> bytes:
        return self.take(self.number("I"))

    def many(self, item: Callable[[], Any]) -> list[Any]:
        return [item() for _ in range(self.number("I"))]

    def ids(self) -> list[int]:
        return self.many(lambda: self.number("I"))

    def rows(self) -> list[tuple[int, int]]:
        return self.many(lambda: (self.number("H"), self.number("I")))

    def end(self) -> None:
        assert self.at == len(self.data)


def message(data: bytes, kind: int) -> Reader:
    assert data[:2] == bytes((2, kind))
    return Reader(data[2:])


def hkdf(secret: bytes, info: bytes, length: int) -> bytes:
    extracted = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")[:length]


def public_of(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, public: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))


def stream(key: bytes, length: int) -> list[int]:
    encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return list(struct.unpack(f"<{length}I", encryptor.update(bytes(4 * length))))


def add(vector: Sequence[int], other: Sequence[int], sign: int = 1) -> list[int]:
    return [(a + sign * b) % 2**32 for a, b in zip(vector, other, strict=True)]


def split(secret: bytes, t: int, indices: Sequence[int], draw: Draw) -> list[bytes]:
    polynomial, drawn = [int.from_bytes(secret, "little")], draw(33 * (t - 1))
    while True:
        for start in range(0, len(drawn), 33):
            candidate = int.from_bytes(drawn[start : start + 33], "little") % 2**257
            polynomial += [candidate] if candidate < P else []
        if len(polynomial) == t:
            break
        drawn = draw(33)
    return [(sum(a * x**k for k, a in enumerate(polynomial)) % P).to_bytes(33, "little") for x in indices]


def combine(shares: dict[int, bytes]) -> bytes:
    total = 0
    for i, share in shares.items():
        others = [j for j in shares if j != i]
        weight = prod(others) * pow(prod(j - i for j in others), -1, P)
        total += weight * int.from_bytes(share, "little")
    return (total % P).to_bytes(33, "little")[:32]


def tree(leaves: Sequence[bytes]) -> list[list[bytes]]:
    levels = [list(leaves)]
    while len(levels[-1]) > 1:
        level = levels[-1] + [sha256(label("tree-empty")).digest()] * (len(levels[-1]) % 2)
        levels.append([sha256(label("tree-node") + level[i] + level[i + 1]).digest() for i in range(0, len(level), 2)])
    return levels


def proof(levels: Sequence[Sequence[bytes]], place: int) -> bytes:
    siblings = []
    for level in levels[:-1]:
        beside = place ^ 1
        siblings.append(level[beside] if beside < len(level) else sha256(label("tree-empty")).digest())
        place //= 2
    return u8(len(siblings)) + b"".join(siblings)


def climb(leaf: bytes, place: int, siblings: Sequence[bytes]) -> bytes:
    for sibling in siblings:
        pair = sibling + leaf if place % 2 else leaf + sibling
        leaf, place = sha256(label("tree-node") + pair).digest(), place // 2
    return leaf


def framed(name: str, *parts: bytes) -> bytes:
    """SHA-256 of a label and parts, each preceded by its length (section 5)."""
    return sha256(b"".join(len(part).to_bytes(8, "big") + part for part in (label(name), *parts))).digest()


@dataclass
class Segment:
    """A part of the vector with its own encoding."""

    name: bytes
    shape: list[int]
    floats: int
    clip: float
    bound: int

    @property
    def length(self) -> int:
        return prod(self.shape)

    def encode(self, values: Sequence[float], weight: float, clients: int) -> list[int]:
        if not self.floats:
            return [int(x) % 2**32 for x in values]
        scale = 2.0 ** self.frac_bits(clients)
        factor, limit = weight * scale, self.clip * scale
        return [round(min(max(x * factor, -limit), limit)) % 2**32 for x in values]

    def frac_bits(self, clients: int) -> int:
        def fits(f: int) -> bool:
            most = Fraction(self.clip) * Fraction(2) ** f
            return clients * most < 2**31 and clients * round(most) < 2**31

        f = 200
        while not fits(f):
            f -= 1
        return f


class Plan:
    def __init__(self, data: bytes) -> None:
        read = Reader(data)
        assert read.number("B") == 2
        self.training_id, self.round = read.take(32), read.number("Q")
        self.roster = read.many(lambda: (read.number("I"), read.take(32)))
        self.t, self.colluders, self.length = (read.number("I") for _ in range(3))
        self.floats, self.clip, self.bound = read.number("B"), read.number("d"), read.number("I")
        self.weights = read.ids()
        self.schedule, self.size = read.number("B"), read.number("I")
        self.R, self.atom, self.seed = read.number("H"), read.number("I"), read.take(32)
        self.policy = read.number("I"), read.number("I"), read.number("d"), read.number("B")
        self.degree, self.context = read.number("I"), read.blob()
        self.tail, self.segments = data[read.at :], []
        if self.tail:
            self.segments = read.many(
                lambda: Segment(read.blob(), read.ids(), read.number("B"), read.number("d"), read.number("I"))
            )
        read.end()
        if not self.segments:
            self.segments = [Segment(b"", [self.length], self.floats, self.clip, self.bound)]
        assert sum(segment.length for segment in self.segments) == self.length
        self.bytes, self.hash = data, H("plan", data)
        self.parts = [H("plan-part", name.encode() + b"\n", part) for name, part in self._parts()]
        self.ids = [client for client, _ in self.roster]
        self.roster_hash = H("roster", many(u32(client) + key for client, key in self.roster))
        self.index = {client: place for place, client in enumerate(self.ids, start=1)}
        self.atoms: list[tuple[int, ...]] = []
        self.groupings = self._groupings()
        self.places = {
            v: [(r, g) for r, grouping in enumerate(self.groupings) for g, c in enumerate(grouping) if v in c]
            for v in self.ids
        }
        self.peers = self._peers()

    def _parts(self) -> list[tuple[str, bytes]]:
        survivors, anonymity, leverage, mode = self.policy
        return [
            ("version", u8(2)),
            ("agreement", self.training_id),
            ("round", u64(self.round)),
            ("roster", many(u32(client) + key for client, key in self.roster)),
            ("thresholds", u32(self.t) + u32(self.colluders)),
            ("vector", u32(self.length) + u8(self.floats) + struct.pack("<d", self.clip) + u32(self.bound) + self.tail),
            ("weights", ids(self.weights)),
            ("schedule", u8(self.schedule) + u32(self.size) + u16(self.R) + u32(self.atom)),
            ("seed", self.seed),
            ("policy", u32(survivors) + u32(anonymity) + struct.pack("<d", leverage) + u8(mode)),
            ("graph", u32(self.degree)),
            ("context", blob(self.context)),
        ]

    def _shuffle(self, items: Sequence[Any], when: int, purpose: str, index: int = 0) -> list[Any]:
        numbers = (when.to_bytes(8, "big"), index.to_bytes(8, "big"))
        key = framed("schedule", purpose.encode("ascii"), *numbers, self.seed)

        def words() -> Iterable[int]:
            counter = 0
            while True:
                yield from struct.unpack(">4Q", sha256(key + counter.to_bytes(8, "big")).digest())
                counter += 1

        return fisher_yates(items, words())

    def _groupings(self) -> list[list[list[int]]]:
        m, c = self.size, len(self.ids) // self.size
        now = 0 if self.schedule == 1 else self.round + 1
        if self.schedule == 3:
            k = self.atom
            order = self._shuffle(self.ids, 0, "atoms")
            atoms = [tuple(sorted(order[i : i + k])) for i in range(0, len(order) // k * k, k)]
            self.atoms = sorted(self._shuffle(atoms, now, "lot")[: c * m // k])
            drawn = []
            for r in range(self.R):
                flat = [v for atom in self._shuffle(self.atoms, now, "grouping", r) for v in atom]
                drawn.append([sorted(flat[g * m : (g + 1) * m]) for g in range(c)])
            return drawn
        lot = sorted(self._shuffle(self.ids, now, "lot")[: c * m])
        if self.schedule == 2:
            seats = self._shuffle(lot, now, "transversal")
            return [[sorted(seats[a * c + (k - r * a) % c] for a in range(m)) for k in range(c)] for r in range(self.R)]
        orders = [self._shuffle(lot, now, "grouping", r) for r in range(self.R)]
        return [[sorted(order[g * m : (g + 1) * m]) for g in range(c)] for order in orders]

    def _peers(self) -> dict[int, list[int]]:
        if not self.degree:
            return dict.fromkeys(self.ids, self.ids)

        def words() -> Iterable[int]:
            block = 0
            while True:
                given = label("neighbour-graph") + u64(block) + self.seed + u64(self.round)
                yield from struct.unpack("<1024Q", shake_256(given).digest(8192))
                block += 1

        circle, n, half = fisher_yates(self.ids, words()), len(self.ids), self.degree // 2
        return {
            v: sorted(circle[(place + step) % n] for step in range(-half, half + 1)) for place, v in enumerate(circle)
        }

    def encode(self, client: int, update: Sequence[Sequence[float]]) -> list[int]:
        """The update, a list with one part per segment, in the ring."""
        parts = zip(self.segments, update, strict=True)
        return [x for segment, part in parts for x in segment.encode(part, self.weight(client), self.size)]

    def weight(self, client: int) -> float:
        if not self.weights:
            return 1.0
        return self.weights[self.ids.index(client)] * len(self.ids) / sum(self.weights)


def fisher_yates(items: Sequence[Any], words: Iterable[int]) -> list[Any]:
    order, source = list(items), iter(words)
    for last in range(len(order) - 1, 0, -1):
        word = next(source)
        while word >= 2**64 - 2**64 % (last + 1):
            word = next(source)
        other = word % (last + 1)
        order[last], order[other] = order[other], order[last]
    return order


def mask_key(plan: Plan, agreed: bytes, v: int, w: int, r: int) -> bytes:
    pair = u32(min(v, w)) + u32(max(v, w))
    return hkdf(agreed, label("pairwise-mask") + plan.hash + pair + u32(r), 16)


def own_key(plan: Plan, seed: bytes, v: int, r: int) -> bytes:
    return hkdf(seed, label("self-mask") + plan.hash + u32(v) + u32(r), 16)


def dealing_hash(commitments: list[bytes], root: bytes) -> bytes:
    return H("dealing", many(commitments), root)


def view_of(plan: Plan, keys: dict[int, bytes], dealers: dict[int, tuple[list[bytes], bytes]]) -> bytes:
    parts = [u32(v) + keys[v] + dealing_hash(*dealt) for v, dealt in dealers.items()]
    return H("view", plan.hash, u32(len(parts)), *parts)


def share_hash(plan: Plan, dealer: int, holder: int, k: int, share: bytes, nonce: bytes) -> bytes:
    return H("share-leaf", plan.hash, u32(dealer), u32(holder), u32(k), share, nonce_of(nonce, k))


def nonce_of(pair_nonce: bytes, k: int) -> bytes:
    return H("share-nonce", pair_nonce, u32(k))


@dataclass
class Client:
    """One client. `held` has, for each dealer, the pair nonce and R + 1 shares."""

    id: int
    identity: bytes
    plan: Plan
    draw: Draw
    keys: dict[int, bytes] = field(default_factory=dict)  # channel and mask key, 64 bytes
    dealers: dict[int, tuple[list[bytes], bytes]] = field(default_factory=dict)
    held: dict[int, tuple[bytes, list[bytes]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.instance, self.channel, self.mask = self.draw(16), self.draw(32), self.draw(32)
        self.survivors: list[int] = []
        self.rows: list[tuple[int, int]] = []

    def sign(self, data: bytes) -> bytes:
        return Ed25519PrivateKey.from_private_bytes(self.identity).sign(data)

    def hello(self) -> bytes:
        plan, publics = self.plan, public_of(self.channel) + public_of(self.mask)
        signed = label("sign-keys") + plan.training_id + u64(plan.round) + plan.roster_hash
        return b"\x02\x01" + u32(self.id) + publics + self.sign(signed + u32(self.id) + publics)

    def deal(self, key_list: bytes) -> bytes:
        plan, read = self.plan, message(key_list, 2)
        assert read.take(32) == plan.hash
        assert read.many(lambda: read.take(32)) == plan.parts
        for sender, publics, _ in read.many(lambda: (read.number("I"), read.take(64), read.take(64))):
            self.keys[sender] = publics
        read.end()
        self.seeds = [self.draw(32) for _ in range(plan.R)]
        holders = sorted(self.keys)
        indices = [plan.index[v] for v in holders]
        table = [split(secret, plan.t, indices, self.draw) for secret in (self.mask, *self.seeds)]
        hashes, boxes = [], []
        for place, holder in enumerate(holders):
            nonce, shares = self.draw(32), [row[place] for row in table]
            hashes.append(b"".join(share_hash(plan, self.id, holder, k, s, nonce) for k, s in enumerate(shares)))
            if holder == self.id:
                self.held[self.id] = nonce, shares
                continue
            address = label("share-box") + plan.hash + u32(self.id) + u32(holder)
            key = hkdf(agree(self.channel, self.keys[holder][:32]), address, 32)
            box_nonce = self.draw(12)
            boxes.append(box_nonce + AESGCM(key).encrypt(box_nonce, nonce + b"".join(shares), address))
        root = tree([sha256(label("tree-leaf") + row).digest() for row in hashes])[-1][0]
        commitments = [H("seed-commitment", plan.hash, u32(self.id), u32(r), b) for r, b in enumerate(self.seeds)]
        signed = label("sign-shares") + plan.hash + u32(self.id) + self.keys[self.id]
        signature = self.sign(signed + dealing_hash(commitments, root))
        public = u32(self.id) + many(commitments) + root + signature
        return b"\x02\x03" + public + blob(b"".join(hashes)) + blob(b"".join(boxes))

    def masked(self, bundle: bytes, update: Sequence[Sequence[float]]) -> bytes:
        plan, read = self.plan, message(bundle, 4)
        for v, commitments, root in read.many(
            lambda: (read.number("I"), read.many(lambda: read.take(32)), read.take(32))
        ):
            self.dealers[v] = commitments, root
        boxes, proofs = Reader(read.blob()), Reader(read.blob())
        read.end()
        disputes = []
        for dealer in [v for v in self.dealers if v != self.id]:
            sealed, place = boxes.take(28 + 32 + 33 * (plan.R + 1)), proofs.number("H")
            siblings = [proofs.take(32) for _ in range(proofs.number("B"))]
            if not self._open(dealer, sealed, place, siblings):
                disputes.append(dealer)
        vectors, encoded = [], self.encoded(update)
        for r, g in plan.places[self.id]:
            vector = add(encoded, stream(own_key(plan, self.seeds[r], self.id, r), plan.length))
            for w in [w for w in plan.groupings[r][g] if w != self.id and w in self.dealers]:
                key = mask_key(plan, agree(self.mask, self.keys[w][32:]), self.id, w, r)
                vector = add(vector, stream(key, plan.length), 1 if self.id < w else -1)
            vectors.append(struct.pack(f"<{plan.length}I", *vector))
        view = view_of(plan, self.keys, self.dealers)
        hashed = H("input-vectors", u32(len(vectors)), *(sha256(vector).digest() for vector in vectors))
        signed = label("sign-view") + plan.hash + u32(self.id) + view + H("disputes", ids(disputes)) + hashed
        shape = u32(len(vectors)) + u32(plan.length if vectors else 0)
        return b"\x02\x05" + u32(self.id) + ids(disputes) + self.sign(signed) + shape + b"".join(vectors)

    def encoded(self, update: Sequence[Sequence[float]]) -> list[int]:
        """The update in the ring, before it is masked; `second_noise` adds noise to it."""
        return self.plan.encode(self.id, update)

    def _open(self, dealer: int, sealed: bytes, place: int, siblings: Sequence[bytes]) -> bool:
        plan = self.plan
        address = label("share-box") + plan.hash + u32(dealer) + u32(self.id)
        key = hkdf(agree(self.channel, self.keys[dealer][:32]), address, 32)
        try:
            content = AESGCM(key).decrypt(sealed[:12], sealed[12:], address)
        except InvalidTag:
            return False
        nonce, shares = content[:32], [content[i : i + 33] for i in range(32, len(content), 33)]
        hashes = [share_hash(plan, dealer, self.id, k, share, nonce) for k, share in enumerate(shares)]
        leaf = sha256(label("tree-leaf") + b"".join(hashes)).digest()
        good = climb(leaf, place, siblings) == self.dealers[dealer][1]
        if good and all(int.from_bytes(share, "little") < P for share in shares):
            self.held[dealer] = nonce, shares
            return True
        return False

    def endorse(self, survivors: bytes) -> bytes:
        plan, read = self.plan, message(survivors, 6)
        members = read.many(lambda: (read.number("I"), read.ids(), read.take(32), read.take(64)))
        self.survivors = [v for v, *_ in members]
        self.rows = read.rows()
        read.end()
        view = bytes(32) if plan.degree else view_of(plan, self.keys, self.dealers)
        inputs = H("inputs", many(u32(v) + hashed for v, _, hashed, _ in members))
        opening = H("opening", plan.hash, view, ids(self.survivors), inputs, rows(self.rows))
        return b"\x02\x07" + u32(self.id) + self.sign(label("sign-opening") + opening)

    def unmask(self, signatures: bytes) -> bytes:
        plan, own, seeds, keys = self.plan, b"", b"", b""
        seed_owners, key_owners, summed = [], [], whole_atoms(self.plan, self.survivors)
        for dealer, (nonce, shares) in sorted(self.held.items()):
            opened = [r for r, g in plan.places[dealer] if (r, g) in self.rows]
            if opened and dealer in summed:
                own += b"".join(self.seeds[r] for r in opened) if dealer == self.id else b""
                seed_owners.append(dealer)
                seeds += b"".join(shares[r + 1] + nonce_of(nonce, r + 1) for r in opened)
            elif opened:
                key_owners.append(dealer)
                keys += shares[0] + nonce_of(nonce, 0)
        given = blob(own) + ids(seed_owners) + blob(seeds) + ids(key_owners) + blob(keys)
        signed = label("sign-unmasking") + plan.hash + u32(self.id) + H("unmasking", given)
        return b"\x02\x09" + u32(self.id) + given + self.sign(signed)


def whole_atoms(plan: Plan, survivors: Iterable[int]) -> set[int]:
    """Section 6, stage 3: whose vectors are summed."""
    alive = set(survivors)
    broken = [atom for atom in plan.atoms if not alive.issuperset(atom)] if plan.policy[3] == 0 else []
    return alive.difference(*broken)


# --- section 9 -------------------------------------------------------------------------------------------

Vector = list[Fraction]


def audit(plan: Plan, survivors: set[int]) -> list[tuple[int, int]]:
    """The group sums that may be opened, ascending."""
    least, anonymity, leverage, report = plan.policy
    members = {
        (r, g): [v for v in group if v in survivors]
        for r, grouping in enumerate(plan.groupings)
        for g, group in enumerate(grouping)
    }
    if report:
        return sorted(row for row, alive in members.items() if alive)
    weak = [row for row, alive in members.items() if len(alive) < max(least, anonymity)]
    lost = [sum(r == grouping for r, _ in weak) for grouping in range(plan.R)]
    atoms = [set(atom) & survivors for atom in plan.atoms]

    def uncovered(row: tuple[int, int]) -> bool:
        inside = [atom for atom in atoms if atom & set(members[row])]
        whole = inside and set().union(*inside) == set(members[row])
        return not (whole and min(map(len, inside)) >= anonymity)

    order = sorted(
        (row for row in members if row not in weak),
        key=lambda row: (uncovered(row), lost[row[0]], row[0], -len(members[row]), row),
    )
    orders = [order]
    if len(set(lost)) > 1:
        orders.append(sorted(order, key=lambda row: (uncovered(row), -lost[row[0]])))
    best: list[tuple[int, int]] | None = None
    for order in orders:
        kept = one_pass(plan, members, order, anonymity, Fraction(leverage))
        if best is None or len(kept) > len(best):
            best = kept
        if len(kept) == len(order):
            break
    return sorted(best or [])


def one_pass(
    plan: Plan,
    members: dict[tuple[int, int], list[int]],
    order: Sequence[tuple[int, int]],
    anonymity: int,
    limit: Fraction,
) -> list[tuple[int, int]]:
    columns = sorted({v for alive in members.values() for v in alive})
    weights = dict(zip(plan.ids, plan.weights or [1] * len(plan.ids), strict=True))
    kept, span = [], list[Vector]()
    for row in order:
        new = [*span, [Fraction(v in members[row]) for v in columns]]
        if rank(new) == len(span):
            kept.append(row)
            continue
        few = any(
            rank([[x for i, x in enumerate(line) if i not in chosen] for line in new]) < len(new)
            for count in range(1, anonymity)
            for chosen in combinations(range(len(columns)), count)
        )
        weighted = [[x * weights[v] for x, v in zip(line, columns, strict=True)] for line in new]
        if not few and (limit == 1 or max(leverages(weighted)) <= limit + Fraction(1, 10**9)):
            kept.append(row)
            span = new
    return kept


def rank(matrix: Sequence[Vector]) -> int:
    """By elimination over the rational numbers."""
    left, found = [list(line) for line in matrix], 0
    for column in range(len(left[0])):
        pivot = next((line for line in left[found:] if line[column]), None)
        if pivot is None:
            continue
        left.remove(pivot)
        left.insert(found, pivot)
        for line in left[found + 1 :]:
            factor = line[column] / pivot[column]
            line[:] = [a - factor * b for a, b in zip(line, pivot, strict=True)]
        found += 1
    return found


def leverages(matrix: Sequence[Vector]) -> list[Fraction]:
    """The diagonal of the projector on the span of independent rows, by orthogonalising them."""
    basis: list[Vector] = []
    for line in matrix:
        rest = list(line)
        for vector in basis:
            factor = dot(line, vector) / dot(vector, vector)
            rest = [a - factor * b for a, b in zip(rest, vector, strict=True)]
        basis.append(rest)
    return [sum((v[i] ** 2 / dot(v, v) for v in basis), Fraction(0)) for i in range(len(matrix[0]))]


def dot(a: Vector, b: Vector) -> Fraction:
    return sum((x * y for x, y in zip(a, b, strict=True)), Fraction(0))


@dataclass
class Server:
    """Stores and relays messages. A client that does not answer in one stage is not in the next."""

    plan: Plan
    adverts: dict[int, bytes] = field(default_factory=dict)
    dealings: dict[int, dict[str, Any]] = field(default_factory=dict)
    inputs: dict[int, bytes] = field(default_factory=dict)
    vectors: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    endorsements: dict[int, bytes] = field(default_factory=dict)
    shares: dict[tuple[int, int], dict[int, bytes]] = field(default_factory=dict)
    own: dict[tuple[int, int], bytes] = field(default_factory=dict)
    summed: set[int] = field(default_factory=set)
    opened: list[tuple[int, int]] = field(default_factory=list)

    def take(self, sender: int, data: bytes) -> None:
        kind, body = data[1], Reader(data[6:])
        if kind == 1:
            self.adverts[sender] = data[2:]
        elif kind == 3:
            commitments, root = body.many(lambda: body.take(32)), body.take(32)
            body.take(64)
            self.dealings[sender] = {
                "public": u32(sender) + many(commitments) + root,
                "hashes": body.blob(),
                "boxes": body.blob(),
            }
        elif kind == 5:
            disputes, signature = body.ids(), body.take(64)
            count, columns = body.number("I"), body.number("I")
            vectors = [body.take(4 * columns) for _ in range(count)]
            hashed = H("input-vectors", u32(count), *(sha256(vector).digest() for vector in vectors))
            self.inputs[sender] = u32(sender) + ids(disputes) + hashed + signature
            for (r, _), vector in zip(self.plan.places[sender], vectors, strict=True):
                self.vectors[sender, r] = list(struct.unpack(f"<{columns}I", vector))
        elif kind == 7:
            self.endorsements[sender] = u32(sender) + body.take(64)
        else:
            self._take_shares(sender, body)

    def _take_shares(self, sender: int, body: Reader) -> None:
        plan = self.plan
        own = Reader(body.blob())
        for r, g in plan.places[sender] if sender in self.summed else ():
            if (r, g) in self.opened:
                self.own[sender, r + 1] = own.take(32)
        owners, seeds = body.ids(), Reader(body.blob())
        key_owners, keys = body.ids(), Reader(body.blob())
        wanted = [(v, r + 1, seeds) for v in owners for r, g in plan.places[v] if (r, g) in self.opened]
        for v, k, source in [*wanted, *((v, 0, keys) for v in key_owners)]:
            share, nonce = source.take(33), source.take(32)
            place = (self.holders(v).index(sender) * (plan.R + 1) + k) * 32
            found = H("share-leaf", plan.hash, u32(v), u32(sender), u32(k), share, nonce)
            if self.dealings[v]["hashes"][place : place + 32] == found:
                self.shares.setdefault((v, k), {})[sender] = share

    def holders(self, dealer: int) -> list[int]:
        return [v for v in self.plan.peers[dealer] if v in self.adverts]

    def key_list(self, client: int) -> bytes:
        return (
            b"\x02\x02" + self.plan.hash + many(self.plan.parts) + many(self.adverts[v] for v in self.holders(client))
        )

    def bundle(self, client: int) -> bytes:
        plan, boxes, proofs = self.plan, b"", b""
        size, width = 28 + 32 + 33 * (plan.R + 1), 32 * (plan.R + 1)
        dealers = [v for v in plan.peers[client] if v in self.dealings]
        for dealer in [v for v in dealers if v != client]:
            dealing, holders = self.dealings[dealer], self.holders(dealer)
            place = holders.index(client)
            box = [v for v in holders if v != dealer].index(client)
            boxes += dealing["boxes"][box * size : (box + 1) * size]
            leaves = [dealing["hashes"][i : i + width] for i in range(0, len(dealing["hashes"]), width)]
            levels = tree([sha256(label("tree-leaf") + leaf).digest() for leaf in leaves])
            proofs += u16(place) + proof(levels, place)
        public = many(self.dealings[v]["public"] for v in dealers)
        return b"\x02\x04" + public + blob(boxes) + blob(proofs)

    def survivors(self) -> bytes:
        self.summed = whole_atoms(self.plan, self.inputs)
        self.opened = audit(self.plan, self.summed)
        return b"\x02\x06" + many(self.inputs[v] for v in sorted(self.inputs)) + rows(self.opened)

    def signatures(self, client: int) -> bytes:
        signers = [v for v in self.plan.peers[client] if v in self.endorsements]
        return b"\x02\x08" + many(self.endorsements[v] for v in signers[: self.plan.t])

    def rebuilt(self, owner: int, k: int) -> bytes:
        if (owner, k) in self.own:
            return self.own[owner, k]
        good = sorted(self.shares[owner, k].items())[: self.plan.t]
        assert len(good) == self.plan.t
        return combine({self.plan.index[v]: share for v, share in good})

    def totals(self) -> dict[tuple[int, int], list[int]]:
        plan, found = self.plan, {}
        for r, g in self.opened:
            group = plan.groupings[r][g]
            alive, total = [v for v in group if v in self.summed], [0] * plan.length
            for v in alive:
                total = add(total, self.vectors[v, r])
                total = add(total, stream(own_key(plan, self.rebuilt(v, r + 1), v, r), plan.length), -1)
            for w in [w for w in group if w in self.dealings and w not in self.summed]:
                key = self.rebuilt(w, 0)
                for v in [v for v in alive if v in plan.peers[w]]:
                    agreed = agree(key, self.adverts[v][36:68])
                    mask = stream(mask_key(plan, agreed, v, w, r), plan.length)
                    total = add(total, mask, -1 if v < w else 1)
            found[r, g] = total
        return found

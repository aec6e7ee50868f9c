"""The whole protocol in plain Python integers: a reader starts here, and the tests compare with it.

One function per stage, in order, each over all clients at once. There is no state machine and no wire format. AES,
HKDF, X25519 and Ed25519 come from `cryptography`, hashes from hashlib; everything else is written out here and shares
no code with the rest of secagg. All clients are honest, but any client may stop at any stage. With the same randomness,
`Client` and `Server` make the same shares, masks, masked vectors and totals.

`run` takes a plan (`Agreement.plan`) and not the agreement: it judges the run. Drawing groups and auditing them is no
part of it, and needs more than a page; the tests have a second implementation of both, from docs/protocol.md alone.

The names are those of Bonawitz et al. 2017, Fig. 4: c^PK/c^SK are the channel keys, s^PK/s^SK the mask keys, b the
self-mask seeds, and U1, U2, U3 the clients that are left after each stage. The protocol adds to that paper: R groupings
of the clients at once with one seed each, a signed hash of every share, a commitment to every seed, the view of U2
signed with the masked vectors, and an audit of what the opened sums reveal (SHARE, Appendix C).
"""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence, Sized
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from secagg import labels
from secagg.agreement.plan import Plan
from secagg.errors import PeerError, TooFewSurvivors
from secagg.protocol.messages import Dealer, KeyAdvert
from secagg.protocol.result import Stage
from secagg.types import ClientId, Entropy, GroupId

PRIME = 2**257 - 93
Expand = Callable[[bytes, int], list[int]]
Vector = list[int]


def little(number: int, size: int = 4) -> bytes:
    return number.to_bytes(size, "little")


def digest(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def hkdf(secret: bytes, info: bytes, length: int = 32) -> bytes:
    return HKDF(SHA256(), length, salt=None, info=info).derive(secret)


def expand(key: bytes, length: int) -> Vector:
    """A mask: AES-128-CTR of the key, read as 32-bit integers."""
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(4 * length))
    return [int.from_bytes(stream[i : i + 4], "little") for i in range(0, 4 * length, 4)]


def add(a: Sequence[int], b: Sequence[int], sign: int, modulus: int) -> Vector:
    """a + sign * b in the ring."""
    return [(x + sign * y) % modulus for x, y in zip(a, b, strict=True)]


def split(secret: int, threshold: int, indices: Sequence[int], entropy: Entropy) -> dict[int, int]:
    """Shamir 1979: points of a random polynomial of degree t - 1 whose value at 0 is the secret."""
    coefficients, wanted = [secret], threshold - 1
    while len(coefficients) < threshold:
        stream, wanted = entropy(33 * wanted), 1
        candidates = [int.from_bytes(stream[i : i + 33], "little") % 2**257 for i in range(0, len(stream), 33)]
        # rejection sampling: every coefficient, 0 included, is equally likely
        coefficients += [candidate for candidate in candidates if candidate < PRIME]
    return {x: sum(a * x**k for k, a in enumerate(coefficients)) % PRIME for x in indices}


def combine(shares: Mapping[int, int]) -> int:
    """The value at 0 of the polynomial through the shares (Lagrange)."""
    total = 0
    for i, share in shares.items():
        above = below = 1
        for j in shares:
            if j != i:
                above, below = above * j % PRIME, below * (j - i) % PRIME
        total += share * above * pow(below, -1, PRIME)
    return total % PRIME


def public_half(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, public: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))


def sign(private: bytes, statement: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(private).sign(statement)


def self_key(seed: bytes, plan_hash: bytes, owner: ClientId, grouping: int) -> bytes:
    """The key of a client's own mask."""
    return hkdf(seed, labels.SELF_MASK + plan_hash + little(owner) + little(grouping), 16)


def pairwise_key(agreed: bytes, plan_hash: bytes, a: ClientId, b: ClientId, grouping: int) -> bytes:
    """The key of the mask that two clients share: the lower id adds the mask, the higher subtracts it."""
    pair = little(min(a, b)) + little(max(a, b))
    return hkdf(agreed, labels.PAIRWISE_MASK + plan_hash + pair + little(grouping), 16)


def box_address(plan_hash: bytes, sender: ClientId, receiver: ClientId) -> bytes:
    return labels.SHARE_BOX + plan_hash + little(sender) + little(receiver)


def seal(agreed: bytes, address: bytes, content: bytes, entropy: Entropy) -> bytes:
    """AES-256-GCM: nonce, ciphertext and tag."""
    nonce = entropy(12)
    return nonce + AESGCM(hkdf(agreed, address)).encrypt(nonce, content, address)


def unseal(agreed: bytes, address: bytes, box: bytes) -> bytes:
    return AESGCM(hkdf(agreed, address)).decrypt(box[:12], box[12:], address)


def share_nonce(pair_nonce: bytes, secret: int) -> bytes:
    """The nonce of one share, from the one nonce that dealer and holder have."""
    return digest(labels.SHARE_NONCE, pair_nonce, little(secret))


def share_hash(plan_hash: bytes, dealer: ClientId, holder: ClientId, secret: int, share: bytes, nonce: bytes) -> bytes:
    """The public hash of one share. Secret 0 is the mask key; secret r + 1 is the seed of grouping r."""
    return digest(labels.SHARE_LEAF, plan_hash, little(dealer), little(holder), little(secret), share, nonce)


def tree_leaf(content: bytes) -> bytes:
    return digest(labels.TREE_LEAF, content)


def tree_root(nodes: list[bytes]) -> bytes:
    """The root of the Merkle tree over these leaves."""
    while len(nodes) > 1:
        nodes = nodes + [digest(labels.TREE_EMPTY)] * (len(nodes) % 2)
        nodes = [digest(labels.TREE_NODE, *nodes[i : i + 2]) for i in range(0, len(nodes), 2)]
    return nodes[0]


@dataclass
class Party:
    """A client: its randomness, its keys, its seeds, and the shares that others gave it."""

    id: ClientId
    identity: bytes = field(repr=False)  # the private Ed25519 key
    entropy: Entropy = field(repr=False)
    channel: bytes = field(default=b"", repr=False)  # c^SK
    mask: bytes = field(default=b"", repr=False)  # s^SK
    seeds: list[bytes] = field(default_factory=list, repr=False)  # b, one per grouping
    held: dict[ClientId, list[int]] = field(default_factory=dict, repr=False)


@dataclass
class Transcript:
    """Everything that the server sees, and also the shares, for the tests."""

    plan: Plan
    adverts: dict[ClientId, KeyAdvert] = field(default_factory=dict)  # U1
    dealers: dict[ClientId, Dealer] = field(default_factory=dict)  # U2
    boxes: dict[tuple[ClientId, ClientId], bytes] = field(default_factory=dict)
    hashes: dict[tuple[ClientId, ClientId], list[bytes]] = field(default_factory=dict)
    shares: dict[tuple[ClientId, ClientId], list[int]] = field(default_factory=dict)  # (dealer, holder)
    masked: dict[ClientId, list[Vector]] = field(default_factory=dict)  # U3
    vectors: dict[ClientId, bytes] = field(default_factory=dict)  # the hash of each client's masked vectors
    views: dict[ClientId, bytes] = field(default_factory=dict)  # stage-2 signatures
    opened: tuple[GroupId, ...] = ()
    endorsements: dict[ClientId, bytes] = field(default_factory=dict)  # stage-3 signatures
    totals: dict[GroupId, Vector] = field(default_factory=dict)

    def enough(self, clients: Sized) -> None:
        if len(clients) < self.plan.t:
            raise TooFewSurvivors(f"{len(clients)} clients left, the threshold is {self.plan.t}")

    def peers(self, client: ClientId, stage: Collection[ClientId]) -> list[ClientId]:
        """The peers of a client, itself included, that have completed a stage."""
        return [v for v in self.plan.peers(client) if v in stage]


def run(
    plan: Plan,
    inputs: Mapping[ClientId, Sequence[int]],
    identities: Mapping[ClientId, bytes],
    entropy: Callable[[ClientId], Entropy],
    *,
    drop: Mapping[ClientId, Stage] | None = None,
    modulus: int = 2**32,
    expand: Expand = expand,
) -> Transcript:
    """A whole run over encoded inputs. A client in `drop` stops answering at that stage."""
    parties = {v: Party(v, identities[v], entropy(v)) for v in plan.ids}

    def present(stage: Stage) -> list[Party]:
        return [parties[v] for v in plan.ids if (drop or {}).get(v, Stage.DONE) > stage]

    seen = Transcript(plan)
    keys(seen, present(Stage.KEYS))
    share(seen, present(Stage.SHARES))
    mask(seen, present(Stage.INPUTS), inputs, modulus, expand)
    agree_on_survivors(seen, present(Stage.CONSISTENCY))
    unmask(seen, present(Stage.UNMASKING), modulus, expand)
    return seen


def keys(seen: Transcript, present: Sequence[Party]) -> None:
    """Stage 0. Each client makes two X25519 keys and signs them with its identity key of the roster."""
    plan = seen.plan
    for party in present:
        party.entropy(16)  # the name of this run in the client's journal
        party.channel, party.mask = party.entropy(32), party.entropy(32)
        channel, mask = public_half(party.channel), public_half(party.mask)
        context = plan.training_id + little(plan.round, 8) + plan.roster_hash
        signature = sign(party.identity, labels.SIGN_KEYS + context + little(party.id) + channel + mask)
        seen.adverts[party.id] = KeyAdvert(party.id, channel, mask, signature)
    seen.enough(seen.adverts)


def share(seen: Transcript, present: Sequence[Party]) -> None:
    """Stage 1. Each client splits its mask key and a fresh seed per grouping, and seals shares for its peers.

    It publishes a commitment to each seed, and signs the root of a tree over the hashes of all shares.
    """
    plan = seen.plan
    for party in [p for p in present if p.id in seen.adverts]:
        holders = seen.peers(party.id, seen.adverts)
        indices = [plan.index[v] for v in holders]
        party.seeds = [party.entropy(32) for _ in plan.groupings]
        secrets = [int.from_bytes(s, "little") for s in (party.mask, *party.seeds)]
        polynomials = [split(secret, plan.t, indices, party.entropy) for secret in secrets]
        leaves = []
        for holder, index in zip(holders, indices, strict=True):
            nonce, shares = party.entropy(32), [points[index] for points in polynomials]
            hashes = share_hashes(plan, party.id, holder, nonce, shares)
            leaves.append(tree_leaf(b"".join(hashes)))
            seen.shares[party.id, holder], seen.hashes[party.id, holder] = shares, hashes
            if holder == party.id:
                party.held[party.id] = shares
            else:
                content = nonce + b"".join(little(value, 33) for value in shares)
                agreed = agree(party.channel, seen.adverts[holder].channel)
                address = box_address(plan.hash, party.id, holder)
                seen.boxes[party.id, holder] = seal(agreed, address, content, party.entropy)
        context = labels.SEED_COMMITMENT + plan.hash + little(party.id)
        commitments = tuple(digest(context, little(r), seed) for r, seed in enumerate(party.seeds))
        seen.dealers[party.id] = Dealer(party.id, commitments, tree_root(leaves))
    seen.enough(seen.dealers)


def share_hashes(plan: Plan, dealer: ClientId, holder: ClientId, nonce: bytes, shares: Sequence[int]) -> list[bytes]:
    """The public hashes of all shares that one dealer gives to one holder."""
    return [
        share_hash(plan.hash, dealer, holder, k, little(value, 33), share_nonce(nonce, k))
        for k, value in enumerate(shares)
    ]


def mask(
    seen: Transcript, present: Sequence[Party], inputs: Mapping[ClientId, Sequence[int]], modulus: int, expand: Expand
) -> None:
    """Stage 2. Each client opens its boxes, masks its input once per grouping, signs its view of U2 and its vectors.

    The masks are its own one and, for each other client of its group in U2, a pairwise one.
    """
    plan = seen.plan
    for party in [p for p in present if p.id in seen.dealers]:
        members = seen.peers(party.id, seen.dealers)
        for dealer in [v for v in members if v != party.id]:
            agreed = agree(party.channel, seen.adverts[dealer].channel)
            content = unseal(agreed, box_address(plan.hash, dealer, party.id), seen.boxes[dealer, party.id])
            shares = [int.from_bytes(content[i : i + 33], "little") for i in range(32, len(content), 33)]
            if share_hashes(plan, dealer, party.id, content[:32], shares) != seen.hashes[dealer, party.id]:
                raise PeerError(f"client {dealer} dealt a share that it did not sign", culprit=dealer)
            party.held[dealer] = shares
        vectors = []
        for r, g in plan.groups_of[party.id]:
            own = self_key(party.seeds[r], plan.hash, party.id, r)
            vector = add(inputs[party.id], expand(own, plan.length), 1, modulus)
            for peer in [v for v in plan.groupings[r][g] if v != party.id and v in members]:
                agreed = agree(party.mask, seen.adverts[peer].mask)
                key = pairwise_key(agreed, plan.hash, party.id, peer, r)
                vector = add(vector, expand(key, plan.length), 1 if party.id < peer else -1, modulus)
            vectors.append(vector)
        seen.masked[party.id], seen.vectors[party.id] = vectors, vectors_hash(vectors)
        seen.views[party.id] = sign(party.identity, view_statement(seen, party.id, party.id))
    seen.enough(seen.masked)


def dealing_hash(dealer: Dealer) -> bytes:
    """The hash of a dealer's commitments and root."""
    return digest(labels.DEALING, little(len(dealer.commitments)), *dealer.commitments, dealer.root)


def view(seen: Transcript, client: ClientId) -> bytes:
    """What a client saw of U2."""
    members = [(seen.adverts[v], seen.dealers[v]) for v in seen.peers(client, seen.dealers)]
    rows = [little(d.id) + a.channel + a.mask + dealing_hash(d) for a, d in members]
    return digest(labels.VIEW, seen.plan.hash, little(len(rows)), *rows)


def vectors_hash(vectors: Sequence[Vector]) -> bytes:
    """The hash of a client's masked vectors."""
    rows = [digest(b"".join(map(little, vector))) for vector in vectors]
    return digest(labels.INPUT_VECTORS, little(len(rows)), *rows)


def view_statement(seen: Transcript, sender: ClientId, client: ClientId) -> bytes:
    """What the sender signs in stage 2 if it has the same view as the client, and no disputes."""
    disputes = digest(labels.DISPUTES, little(0))
    signed = labels.SIGN_VIEW + seen.plan.hash + little(sender) + view(seen, client)
    return signed + disputes + seen.vectors[sender]


def agree_on_survivors(seen: Transcript, present: Sequence[Party]) -> None:
    """Stage 3. Each client checks that all of U3 signed the same U2, and signs U3, its vectors, and what is opened."""
    plan = seen.plan
    survivors = sorted(seen.masked)
    seen.opened = tuple(sorted(plan.audit(plan.summed(survivors)).opened))
    ids = little(len(survivors)) + b"".join(map(little, survivors))
    inputs = digest(labels.INPUTS, little(len(survivors)), *(little(v) + seen.vectors[v] for v in survivors))
    groups = little(len(seen.opened)) + b"".join(little(r, 2) + little(g) for r, g in seen.opened)
    for party in [p for p in present if p.id in seen.masked]:
        for v in survivors if not plan.semi_honest_only else [party.id]:
            identity = Ed25519PublicKey.from_public_bytes(plan.identities[v])
            identity.verify(seen.views[v], view_statement(seen, v, party.id))
        # In sparse mode, each client has a view of its own neighbours, which nobody else can check.
        common = bytes(32) if plan.semi_honest_only else view(seen, party.id)
        statement = labels.SIGN_OPENING + digest(labels.OPENING, plan.hash, common, ids, inputs, groups)
        seen.endorsements[party.id] = sign(party.identity, statement)
    seen.enough(seen.endorsements)


def unmask(seen: Transcript, present: Sequence[Party], modulus: int, expand: Expand) -> None:
    """Stage 4. Clients give their own seeds, and shares of the seeds of U3 and of the mask keys of U2 minus U3.

    Then the server rebuilds the secrets of the groups to open, and removes the masks from their sums.
    """
    plan, helpers = seen.plan, [p for p in present if p.id in seen.endorsements]
    seen.enough(helpers)
    summed = frozenset(plan.summed(seen.masked))
    own = {(p.id, r + 1): seed for p in helpers if p.id in summed for r, seed in enumerate(p.seeds)}

    def rebuild(owner: ClientId, secret: int) -> bytes:
        if (owner, secret) in own:
            return own[owner, secret]
        points = {plan.index[p.id]: p.held[owner][secret] for p in helpers if owner in p.held}
        return little(combine(dict(sorted(points.items())[: plan.t])), 32)

    for r, g in seen.opened:
        group = plan.group((r, g))
        alive = [v for v in group if v in summed]
        total = [0] * plan.length
        for v in alive:
            place = [grouping for grouping, _ in plan.groups_of[v]].index(r)
            total = add(total, seen.masked[v][place], 1, modulus)
            key = self_key(rebuild(v, r + 1), plan.hash, v, r)
            total = add(total, expand(key, plan.length), -1, modulus)
        for dropout in [v for v in group if v in seen.dealers and v not in summed]:
            private = rebuild(dropout, 0)
            for v in [v for v in alive if v in plan.peers(dropout)]:
                key = pairwise_key(agree(private, seen.adverts[v].mask), plan.hash, v, dropout, r)
                total = add(total, expand(key, plan.length), -1 if v < dropout else 1, modulus)
        seen.totals[r, g] = total

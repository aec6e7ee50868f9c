"""The whole protocol in plain Python integers: where a reader starts, and what the tests compare with.

One function per stage, in order, each over all clients at once; no state machine, no wire format, no numba.
Everybody here is honest, but anybody may leave at any stage. With the same randomness, the real `Client` and
`Server` make the same shares, masks, masked vectors and totals as this page.

The names are those of Bonawitz et al. 2017, Fig. 4: c^PK/c^SK are the channel keys, s^PK/s^SK the mask keys,
b the self-mask seeds, U1, U2, U3 who is left after each stage. What is added to that paper: R groupings of
the clients at once with one seed each, a signed hash of every share, a commitment to every seed, the view of
U2 signed with the masked input, and an audit of what the opened rows reveal (SHARE, Appendix C).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from secagg.crypto import box, hashtree, prg
from secagg.crypto.keys import AgreementKey, Identity, verify
from secagg.crypto.masks import pairwise_key, self_key
from secagg.crypto.shamir import PRIME, SHARE_BYTES
from secagg.errors import PeerError, TooFewSurvivors
from secagg.protocol import transcript
from secagg.protocol.client_state import nonce_of
from secagg.protocol.messages import Dealer, KeyAdvert
from secagg.protocol.plan import Plan
from secagg.protocol.result import Stage
from secagg.types import ClientId, Entropy, GroupId

Expand = Callable[[bytes, int], list[int]]
Vector = list[int]


# --- the arithmetic ------------------------------------------------------------------------------------


def expand(key: bytes, length: int) -> Vector:
    """A mask: AES-128-CTR of the key, read as 32-bit integers."""
    return [int(word) for word in prg.expand(key, length)]


def add(a: Sequence[int], b: Sequence[int], sign: int, modulus: int) -> Vector:
    """a + sign * b in the ring."""
    return [(x + sign * y) % modulus for x, y in zip(a, b, strict=True)]


def split(secret: int, threshold: int, indices: Sequence[int], entropy: Entropy) -> dict[int, int]:
    """Shamir 1979: points of a random polynomial of degree t - 1 whose value at 0 is the secret."""
    coefficients, stream = [secret], entropy(SHARE_BYTES * (threshold - 1))
    while True:
        for start in range(0, len(stream), SHARE_BYTES):
            candidate = int.from_bytes(stream[start : start + SHARE_BYTES], "little") % 2**257
            if candidate < PRIME:  # rejection sampling: every coefficient, 0 included, is as likely
                coefficients.append(candidate)
        if len(coefficients) == threshold:
            break
        stream = entropy(SHARE_BYTES)
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


# --- one client, and what everybody can see --------------------------------------------------------------


@dataclass
class Party:
    """A client: its randomness, its keys, its seeds, and the shares that others gave it."""

    id: ClientId
    identity: Identity = field(repr=False)
    entropy: Entropy = field(repr=False)
    channel: bytes = field(default=b"", repr=False)  # c^SK
    mask: bytes = field(default=b"", repr=False)  # s^SK
    seeds: list[bytes] = field(default_factory=list, repr=False)  # b, one per grouping
    held: dict[ClientId, tuple[bytes, list[int]]] = field(default_factory=dict, repr=False)


@dataclass
class Transcript:
    """Everything the server sees, and the shares and masks as well, for the tests."""

    plan: Plan
    adverts: dict[ClientId, KeyAdvert] = field(default_factory=dict)  # U1
    dealers: dict[ClientId, Dealer] = field(default_factory=dict)  # U2
    boxes: dict[tuple[ClientId, ClientId], bytes] = field(default_factory=dict)
    hashes: dict[ClientId, dict[ClientId, list[bytes]]] = field(default_factory=dict)
    shares: dict[tuple[ClientId, ClientId], list[int]] = field(default_factory=dict)  # (dealer, holder)
    masked: dict[ClientId, list[Vector]] = field(default_factory=dict)  # U3
    views: dict[ClientId, bytes] = field(default_factory=dict)  # stage-2 signatures
    rows: tuple[GroupId, ...] = ()
    endorsements: dict[ClientId, bytes] = field(default_factory=dict)  # stage-3 signatures
    totals: dict[GroupId, Vector] = field(default_factory=dict)

    def enough(self, who: Mapping[ClientId, object]) -> None:
        if len(who) < self.plan.t:
            raise TooFewSurvivors(f"{len(who)} left, the threshold is {self.plan.t}")


def run(
    plan: Plan,
    inputs: Mapping[ClientId, Sequence[int]],
    identities: Mapping[ClientId, Identity],
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


# --- the five stages -------------------------------------------------------------------------------------


def keys(seen: Transcript, present: Sequence[Party]) -> None:
    """Stage 0. Two fresh X25519 keys each, signed with the identity key of the roster."""
    plan = seen.plan
    for party in present:
        party.entropy(16)  # the name of this run in the client's journal
        party.channel, party.mask = party.entropy(32), party.entropy(32)
        channel, mask = AgreementKey.from_private(party.channel), AgreementKey.from_private(party.mask)
        advert = KeyAdvert(party.id, channel.public, mask.public, b"")
        statement = transcript.key_statement(plan.training_id, plan.round, plan.roster_hash, advert)
        signature = party.identity.sign(statement)
        verify(party.identity.public, signature, statement, signer=party.id)  # by the server and every client
        seen.adverts[party.id] = KeyAdvert(party.id, advert.channel, advert.mask, signature)
    seen.enough(seen.adverts)


def share(seen: Transcript, present: Sequence[Party]) -> None:
    """Stage 1. Shamir shares of the mask key and of a fresh seed per grouping, sealed for each peer.

    Publicly, a commitment to each seed, and the hash of every share in a tree whose root is signed.
    """
    plan = seen.plan
    for party in [p for p in present if p.id in seen.adverts]:
        holders = [v for v in plan.peers(party.id) if v in seen.adverts]
        indices = [plan.index[v] for v in holders]
        party.seeds = [party.entropy(32) for _ in plan.groupings]
        secrets = [int.from_bytes(s, "little") for s in (party.mask, *party.seeds)]
        polynomials = [split(secret, plan.t, indices, party.entropy) for secret in secrets]
        channel, table = AgreementKey.from_private(party.channel), {}
        for holder, index in zip(holders, indices, strict=True):
            nonce, shares = party.entropy(32), [points[index] for points in polynomials]
            seen.shares[party.id, holder] = shares
            table[holder] = share_hashes(plan, party.id, holder, nonce, shares)
            if holder == party.id:
                party.held[party.id] = nonce, shares
            else:
                agreed = channel.agree(seen.adverts[holder].channel)
                content = nonce + b"".join(s.to_bytes(SHARE_BYTES, "little") for s in shares)
                sealed = box.seal(agreed, plan.hash, party.id, holder, content, party.entropy)
                seen.boxes[party.id, holder] = sealed
        leaves = b"".join(hashtree.leaf(b"".join(table[v])) for v in holders)
        commitments = tuple(
            transcript.seed_commitment(plan.hash, party.id, r, seed) for r, seed in enumerate(party.seeds)
        )
        seen.dealers[party.id] = Dealer(party.id, commitments, hashtree.levels(leaves)[-1])
        seen.hashes[party.id] = table
    seen.enough(seen.dealers)


def share_hashes(
    plan: Plan, dealer: ClientId, holder: ClientId, nonce: bytes, shares: Sequence[int]
) -> list[bytes]:
    """The public hash of each share of one pair."""
    return [
        transcript.share_hash(
            plan.hash, dealer, holder, k, value.to_bytes(SHARE_BYTES, "little"), nonce_of(nonce, k)
        )
        for k, value in enumerate(shares)
    ]


def mask(
    seen: Transcript,
    present: Sequence[Party],
    inputs: Mapping[ClientId, Sequence[int]],
    modulus: int,
    expand: Expand,
) -> None:
    """Stage 2. Open the boxes; per grouping, add the own mask and the pairwise masks of the group in U2."""
    plan = seen.plan
    for party in [p for p in present if p.id in seen.dealers]:
        members = [v for v in plan.peers(party.id) if v in seen.dealers]
        channel, mine = AgreementKey.from_private(party.channel), AgreementKey.from_private(party.mask)
        for dealer in [v for v in members if v != party.id]:
            agreed = channel.agree(seen.adverts[dealer].channel)
            sealed = seen.boxes[dealer, party.id]
            content = box.unseal(agreed, plan.hash, dealer, party.id, sealed)
            nonce, data = content[:32], content[32:]
            shares = [
                int.from_bytes(data[i : i + SHARE_BYTES], "little") for i in range(0, len(data), SHARE_BYTES)
            ]
            if share_hashes(plan, dealer, party.id, nonce, shares) != seen.hashes[dealer][party.id]:
                raise PeerError(f"client {dealer} dealt a share that it did not sign", culprit=dealer)
            party.held[dealer] = nonce, shares
        vectors = []
        for r, g in plan.rows_of[party.id]:
            vector = list(inputs[party.id])
            own = self_key(party.seeds[r], plan.hash, party.id, r)
            vector = add(vector, expand(own, plan.length), 1, modulus)
            for peer in [v for v in plan.groupings[r][g] if v != party.id and v in members]:
                key = pairwise_key(mine.agree(seen.adverts[peer].mask), plan.hash, party.id, peer, r)
                sign = 1 if party.id < peer else -1
                vector = add(vector, expand(key, plan.length), sign, modulus)
            vectors.append(vector)
        seen.masked[party.id] = vectors
        seen.views[party.id] = party.identity.sign(
            transcript.view_statement(plan.hash, party.id, view(seen, party.id), ())
        )
    seen.enough(seen.masked)


def view(seen: Transcript, client: ClientId) -> bytes:
    """What a client saw of U2."""
    members = [v for v in seen.plan.peers(client) if v in seen.dealers]
    return transcript.view(seen.plan.hash, [(seen.adverts[v], seen.dealers[v]) for v in members])


def agree_on_survivors(seen: Transcript, present: Sequence[Party]) -> None:
    """Stage 3. Everybody in U3 signed the same U2, the audit allows the rows: sign U3 and the rows."""
    plan = seen.plan
    for v in plan.too_few_in_atom(seen.masked):
        del seen.masked[v]
    seen.enough(seen.masked)
    survivors = sorted(seen.masked)
    seen.rows = tuple(sorted(plan.audit(survivors).rows))
    for party in [p for p in present if p.id in seen.masked]:
        for v in survivors if not plan.semi_honest_only else ():
            statement = transcript.view_statement(plan.hash, v, view(seen, party.id), ())
            verify(plan.identities[v], seen.views[v], statement, signer=v)
        statement = transcript.opening(plan, view(seen, party.id), survivors, seen.rows)
        seen.endorsements[party.id] = party.identity.sign(statement)
    seen.enough(seen.endorsements)


def unmask(seen: Transcript, present: Sequence[Party], modulus: int, expand: Expand) -> None:
    """Stage 4. Shares of the seeds of U3 and of the keys of U2 minus U3, never both of one client.

    Then the server rebuilds what the opened rows need, and takes the masks off.
    """
    plan, helpers = seen.plan, [p for p in present if p.id in seen.endorsements]
    seen.enough({p.id: p for p in helpers})

    def rebuild(owner: ClientId, secret: int) -> bytes:
        points = {plan.index[p.id]: p.held[owner][1][secret] for p in helpers if owner in p.held}
        chosen = dict(sorted(points.items())[: plan.t])
        return combine(chosen).to_bytes(32, "little")

    for row in seen.rows:
        r, group = row[0], plan.group(row)
        alive = [v for v in group if v in seen.masked]
        total = [0] * plan.length
        for v in alive:
            place = [rr for rr, _ in plan.rows_of[v]].index(r)
            total = add(total, seen.masked[v][place], 1, modulus)
            own = self_key(rebuild(v, r + 1), plan.hash, v, r)
            total = add(total, expand(own, plan.length), -1, modulus)
        for gone in [v for v in group if v in seen.dealers and v not in seen.masked]:
            key = AgreementKey.from_private(rebuild(gone, transcript.KEY_SECRET))
            for v in [v for v in alive if v in plan.peers(gone)]:
                agreed = pairwise_key(key.agree(seen.adverts[v].mask), plan.hash, v, gone, r)
                total = add(total, expand(agreed, plan.length), -1 if v < gone else 1, modulus)
        seen.totals[row] = total

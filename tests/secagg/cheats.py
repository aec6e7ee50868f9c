"""What a misbehaving client may send instead of the message that the protocol wants: a table of cheats.

Each is made with everything such a client has: its keys, its seeds, its identity. `LIARS` are those who do
not follow stage 2 (their vector is not the input plus the committed masks): nothing can protect the sum of
their own groups from them, as it cannot from a false input. `SPOILERS` deal shares that do not fit together:
the groups that need their secrets are lost, and reported.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg import TooFewSurvivors, reference
from secagg.agreement.plan import Plan
from secagg.crypto import box, hashtree, shamir
from secagg.crypto.keys import HASH_BYTES
from secagg.protocol import transcript
from secagg.protocol.client import Client
from secagg.protocol.dealing import HeldShares, share_hashes
from secagg.protocol.messages import Consistency, Dealer, Dealing, KeyAdvert, MaskedInput, ToServer, Unmasking
from secagg.protocol.wire import encode
from tests.secagg.cluster import Cheat, Cluster, signed
from tests.secagg.drbg import Drbg

Shares = npt.NDArray[np.uint8]
STAGES: Final = {
    "keys": KeyAdvert,
    "shares": Dealing,
    "input": MaskedInput,
    "consistency": Consistency,
    "unmasking": Unmasking,
}
CHEATS: Final[dict[str, Cheat]] = {}
LIARS: Final = frozenset(
    {
        "lies about its vector",
        "masks with a seed it did not commit to",
        "masks with nobody",
        "two signed inputs, the first one wrong",
    }
)
SPOILERS: Final = frozenset(
    {
        "one share off the polynomial",
        "every share off the polynomial",
        "commits to another seed",
        "shares another mask key",
        "shares not below the prime",
        "corrupts every box",
        "swaps its boxes",
        "signs a wrong hash for one holder",
        "corrupts one box",
    }
)


def cheat(name: str, at: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register what replaces one message; all others go as they are."""

    def register(make: Callable[..., Any]) -> Callable[..., Any]:
        def apply(cluster: Cluster, me: int, message: ToServer) -> list[bytes]:
            if type(message) is not at:
                return [encode(message)]
            made = make(cluster, me, message)
            letters = made if isinstance(made, list) else [made]
            return [letter if isinstance(letter, bytes) else encode(letter) for letter in letters]

        assert name not in CHEATS
        CHEATS[name] = apply
        return make

    return register


def statement_of(cluster: Cluster, message: Any) -> bytes:
    """What an honest client would sign under this message."""
    plan, client = cluster.plan, cluster.clients[message.sender]
    if isinstance(message, KeyAdvert):
        return transcript.key_statement(plan.training_id, plan.round, plan.roster_hash, message)
    if isinstance(message, Dealing):
        return transcript.dealing_statement(plan.hash, own_advert(client), message)
    if isinstance(message, MaskedInput):
        hashed = transcript.vectors_hash(message.vectors)
        return transcript.view_statement(plan.hash, message.sender, client._view, message.disputes, hashed)
    if isinstance(message, Consistency):
        return client._statement()
    return transcript.unmasking_statement(plan.hash, message)


def view_of(client: Client) -> bytes:
    memory = client._memory
    adverts = {advert.sender: advert for advert in memory.adverts}
    seen = [(adverts[dealer.id], dealer) for dealer in memory.dealers]
    return transcript.view(client.plan.hash, seen)


def own_advert(client: Client) -> KeyAdvert:
    return next(advert for advert in client._memory.adverts if advert.sender == client.me)


def resign(cluster: Cluster, message: Any) -> Any:
    return replace(message, signature=signed(message.sender, statement_of(cluster, message)))


def _everywhere(stage: str, kind: type) -> None:
    @cheat(f"silence at {stage}", kind)
    def silence(cluster: Cluster, me: int, message: Any) -> list[bytes]:
        return []

    @cheat(f"garbage at {stage}", kind)
    def garbage(cluster: Cluster, me: int, message: Any) -> bytes:
        return Drbg(b"garbage")(100)

    @cheat(f"one byte too many at {stage}", kind)
    def slack(cluster: Cluster, me: int, message: Any) -> bytes:
        return encode(message) + b"\0"

    @cheat(f"wrong signature at {stage}", kind)
    def unsigned(cluster: Cluster, me: int, message: Any) -> Any:
        return replace(message, signature=bytes([message.signature[0] ^ 1]) + message.signature[1:])

    @cheat(f"somebody else's signature at {stage}", kind)
    def borrowed(cluster: Cluster, me: int, message: Any) -> Any:
        return replace(message, signature=signed(me + 1000, statement_of(cluster, message)))

    @cheat(f"in somebody else's name at {stage}", kind)
    def impersonation(cluster: Cluster, me: int, message: Any) -> Any:
        return replace(message, sender=next(v for v in cluster.plan.ids if v != me))

    @cheat(f"replay of another run at {stage}", kind)
    def replay(cluster: Cluster, me: int, message: Any) -> bytes:
        return another_run(cluster.plan)[me][list(STAGES).index(stage)]

    @cheat(f"the right message and then garbage at {stage}", kind)
    def afterthought(cluster: Cluster, me: int, message: Any) -> list[Any]:
        return [message, b"\x02\xff"]

    @cheat(f"garbage and then the right message at {stage}", kind)
    def too_late(cluster: Cluster, me: int, message: Any) -> list[Any]:
        return [b"\x02\xff", message]

    @cheat(f"a server's message at {stage}", kind)
    def reflected(cluster: Cluster, me: int, message: Any) -> bytes:
        return bytes((2, 8, 0, 0, 0, 0))  # Signatures of nobody


for _stage, _kind in STAGES.items():
    _everywhere(_stage, _kind)


@cache
def another_run(plan: Plan) -> dict[int, list[bytes]]:
    """Everything that everybody sent in another run of the same plan, with other keys."""
    inputs = {v: np.zeros(plan.length, np.int64 if plan.bounds else np.float64) for v in plan.ids}
    cluster = Cluster(plan, inputs, seed=b"another run").start()
    with suppress(TooFewSurvivors):  # some plans never come to an end
        cluster.finish()
    return {v: [encode(message) for message in sent] + [b""] * 5 for v, sent in cluster.sent.items()}


@cheat("an unmasking before its time", KeyAdvert)
def _too_early(cluster: Cluster, me: int, message: Any) -> list[Any]:
    return [Unmasking(me, b"", (), b"", (), b"", bytes(64)), message]


@cheat("two different adverts", KeyAdvert)
def _two_adverts(cluster: Cluster, me: int, message: Any) -> list[Any]:
    other = replace(message, mask=cluster.clients[me]._channel_key.public, channel=message.mask)
    return [message, resign(cluster, other)]


@cheat("a low-order key", KeyAdvert)
def _low_order(cluster: Cluster, me: int, message: Any) -> Any:
    return resign(cluster, replace(message, mask=b"\x01" + bytes(31)))


@cheat("one key for two purposes", KeyAdvert)
def _one_key(cluster: Cluster, me: int, message: Any) -> Any:
    return resign(cluster, replace(message, channel=message.mask))


def deal_again(
    cluster: Cluster,
    me: int,
    *,
    secrets: Sequence[bytes] | None = None,
    edit: Callable[[Shares, list[int]], None] | None = None,
    commit: Sequence[bytes] | None = None,
    hash_edit: Callable[[list[bytes], list[int]], None] | None = None,
) -> Dealing:
    """A dealing as `Client._deal` makes it, with other secrets, shares, commitments or hashes; signed."""
    client, plan, entropy = cluster.clients[me], cluster.plan, Drbg(b"cheater %d" % me)
    memory = client._memory
    adverts = {advert.sender: advert for advert in memory.adverts}
    holders = sorted(adverts)
    shares = shamir.split_each(
        secrets or [memory.mask, *memory.seeds], plan.t, [plan.index[v] for v in holders], entropy
    )
    if edit is not None:
        edit(shares, holders)
    hashes, boxes = [], []
    for place, holder in enumerate(holders):
        held = HeldShares(me, entropy(HASH_BYTES), shares[:, place].tobytes())
        hashes.append(share_hashes(client.plan, [held], [holder]).tobytes())
        if holder == me:
            memory.held = (held,)
        else:
            (key,) = client._box_keys([adverts[holder]], [(me, holder)])
            boxes.append(box.seal(key, plan.hash, me, holder, held.nonce + held.shares, entropy))
    if hash_edit is not None:
        hash_edit(hashes, holders)
    root = hashtree.levels(b"".join(reference.tree_leaf(row) for row in hashes))[-1]
    commitments = tuple(
        transcript.seed_commitment(plan.hash, me, r, seed) for r, seed in enumerate(commit or memory.seeds)
    )
    memory.mine = (Dealer(me, commitments, root),)
    made = Dealing(me, commitments, root, b"", b"".join(hashes), b"".join(boxes))
    return resign(cluster, made)


def victim_of(me: int, holders: Sequence[int]) -> int:
    """The place of somebody other than the cheater."""
    return next(place for place, holder in enumerate(holders) if holder != me)


@cheat("one share off the polynomial", Dealing)
def _one_off(cluster: Cluster, me: int, message: Any) -> Dealing:
    def edit(shares: Shares, holders: list[int]) -> None:
        shares[:, victim_of(me, holders), 0] ^= 1

    return deal_again(cluster, me, edit=edit)


@cheat("every share off the polynomial", Dealing)
def _all_off(cluster: Cluster, me: int, message: Any) -> Dealing:
    def edit(shares: Shares, holders: list[int]) -> None:
        shares[..., :32] = np.frombuffer(Drbg(b"noise")(shares[..., :32].size), np.uint8).reshape(
            shares[..., :32].shape
        )

    return deal_again(cluster, me, edit=edit)


@cheat("shares not below the prime", Dealing)
def _not_canonical(cluster: Cluster, me: int, message: Any) -> Dealing:
    def edit(shares: Shares, holders: list[int]) -> None:
        shares[...] = 255

    return deal_again(cluster, me, edit=edit)


@cheat("keeps a share that is no field element", Dealing)
def _own_not_canonical(cluster: Cluster, me: int, message: Any) -> Dealing:
    """Only its own shares are bad, and it gives them in stage 4 with hashes that match."""

    def edit(shares: Shares, holders: list[int]) -> None:
        shares[:, holders.index(me)] = 255

    return deal_again(cluster, me, edit=edit)


@cheat("commits to another seed", Dealing)
def _other_commitment(cluster: Cluster, me: int, message: Any) -> Dealing:
    return deal_again(cluster, me, commit=[Drbg(b"other")(32) for _ in message.commitments])


@cheat("shares another mask key", Dealing)
def _other_key(cluster: Cluster, me: int, message: Any) -> Dealing:
    seeds = cluster.clients[me]._memory.seeds
    return deal_again(cluster, me, secrets=[Drbg(b"other")(32), *seeds])


@cheat("masks with a seed it did not commit to", Dealing)
def _other_seed(cluster: Cluster, me: int, message: Any) -> Dealing:
    """Shares and commitment fit together, but the mask in its vector is another's."""
    others = [Drbg(b"other %d" % r)(32) for r in range(len(message.commitments))]
    return deal_again(cluster, me, secrets=[cluster.clients[me]._memory.mask, *others], commit=others)


@cheat("signs a wrong hash for one holder", Dealing)
def _wrong_hash(cluster: Cluster, me: int, message: Any) -> Dealing:
    def hash_edit(hashes: list[bytes], holders: list[int]) -> None:
        hashes[victim_of(me, holders)] = bytes(len(hashes[0]))

    return deal_again(cluster, me, hash_edit=hash_edit)


@cheat("hashes that do not lead to the root", Dealing)
def _no_root(cluster: Cluster, me: int, message: Any) -> Any:
    return replace(message, hashes=bytes(len(message.hashes)))


@cheat("corrupts one box", Dealing)
def _one_box(cluster: Cluster, me: int, message: Any) -> Any:
    return replace(message, boxes=bytes([message.boxes[0] ^ 1]) + message.boxes[1:])


@cheat("corrupts every box", Dealing)
def _all_boxes(cluster: Cluster, me: int, message: Any) -> Any:
    return replace(message, boxes=bytes(len(message.boxes)))


@cheat("swaps its boxes", Dealing)
def _swapped(cluster: Cluster, me: int, message: Any) -> Any:
    half = len(message.boxes) // 2
    return replace(message, boxes=message.boxes[half:] + message.boxes[:half])


@cheat("a box too few", Dealing)
def _too_few_boxes(cluster: Cluster, me: int, message: Any) -> Any:
    return replace(message, boxes=message.boxes[: len(message.boxes) // 2])


@cheat("a commitment too many", Dealing)
def _commitments(cluster: Cluster, me: int, message: Any) -> Any:
    return resign(cluster, replace(message, commitments=(*message.commitments, bytes(32))))


def _disputing(name: str, choose: Callable[[Cluster, int], list[int]]) -> None:
    @cheat(name, MaskedInput)
    def dispute(cluster: Cluster, me: int, message: Any) -> Any:
        return resign(cluster, replace(message, disputes=tuple(choose(cluster, me))))


def _dealers(cluster: Cluster, me: int) -> list[int]:
    return [dealer.id for dealer in cluster.clients[me]._memory.dealers]


_disputing("disputes an honest dealer", lambda cluster, me: [v for v in _dealers(cluster, me) if v != me][:1])
_disputing("disputes everybody", lambda cluster, me: [v for v in _dealers(cluster, me) if v != me])
_disputing("disputes itself", lambda cluster, me: [me])
_disputing("disputes a stranger", lambda cluster, me: [max(cluster.plan.ids) + 1])


@cheat("lies about its vector", MaskedInput)
def _lie(cluster: Cluster, me: int, message: Any) -> Any:
    return resign(cluster, replace(message, vectors=message.vectors + np.uint32(12345)))


@cheat("masks with nobody", MaskedInput)
def _unpaired(cluster: Cluster, me: int, message: Any) -> Any:
    return resign(cluster, replace(message, vectors=np.zeros_like(message.vectors)))


@cheat("vectors that it did not sign", MaskedInput)
def _unsigned_vectors(cluster: Cluster, me: int, message: Any) -> Any:
    return replace(message, vectors=message.vectors + np.uint32(12345))


@cheat("one bit of a vector changed on the way", MaskedInput)
def _one_bit(cluster: Cluster, me: int, message: Any) -> Any:
    vectors = np.array(message.vectors)
    vectors[-1:, -1:] ^= np.uint32(1 << 31)
    return replace(message, vectors=vectors)


@cheat("two signed inputs, the first one wrong", MaskedInput)
def _two_inputs(cluster: Cluster, me: int, message: Any) -> list[Any]:
    return [resign(cluster, replace(message, vectors=np.zeros_like(message.vectors))), message]


@cheat("two signed inputs, the second one wrong", MaskedInput)
def _second_thoughts(cluster: Cluster, me: int, message: Any) -> list[Any]:
    return [message, resign(cluster, replace(message, vectors=np.zeros_like(message.vectors)))]


@cheat("a vector too many", MaskedInput)
def _extra_vector(cluster: Cluster, me: int, message: Any) -> Any:
    return replace(message, vectors=np.zeros((len(message.vectors) + 1, cluster.plan.length), np.uint32))


@cheat("vectors too short", MaskedInput)
def _short(cluster: Cluster, me: int, message: Any) -> Any:
    return replace(message, vectors=np.zeros((max(len(message.vectors), 1), cluster.plan.length + 1), np.uint32))


def _edited(name: str, edit: Callable[[Cluster, int, Unmasking], Any]) -> None:
    @cheat(name, Unmasking)
    def unmask(cluster: Cluster, me: int, message: Any) -> Any:
        return resign(cluster, edit(cluster, me, message))


def _flip(data: bytes, place: int) -> bytes:
    if not data:
        return data
    place %= len(data)
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


_edited("a wrong seed share", lambda _, me, m: replace(m, seeds=_flip(m.seeds, 0)))
_edited("a wrong key share", lambda _, me, m: replace(m, keys=_flip(m.keys, 0)))
_edited("a wrong nonce", lambda _, me, m: replace(m, seeds=_flip(m.seeds, 40)))
_edited("every share wrong", lambda _, me, m: replace(m, seeds=bytes(len(m.seeds)), keys=bytes(len(m.keys))))
_edited("a share not below the prime", lambda _, me, m: replace(m, seeds=b"\xff" * 33 + m.seeds[33:]))
_edited("a share too few", lambda _, me, m: replace(m, seeds=m.seeds[:-65]))
_edited("no shares at all", lambda _, me, m: Unmasking(me, b"", (), b"", (), b"", b""))
_edited("the other kind of share", lambda _, me, m: replace(m, seed_owners=m.key_owners, key_owners=m.seed_owners))
_edited(
    "shares of a stranger",
    lambda cluster, me, m: replace(m, key_owners=(*m.key_owners, max(cluster.plan.ids) + 1), keys=m.keys + bytes(65)),
)

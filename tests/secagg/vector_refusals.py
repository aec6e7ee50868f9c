"""Vectors of refusals: messages that a client must refuse and a server must not count.

Each starts at some point of the run n5_flat, with one message changed. A client that refuses a message has
failed permanently; a server drops the sender and continues.
"""

import struct
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from secagg import Member, Plan, Policy, Schedule, codec, labels, reference
from secagg.agreement.plan import LAYOUT, flat
from secagg.crypto import hashtree
from secagg.crypto.hashing import row_hashes
from secagg.crypto.keys import LOW_ORDER_POINTS, AgreementKey, digest
from secagg.crypto.shamir import PRIME
from secagg.protocol import transcript
from secagg.protocol.client_state import OPENING, Opening
from secagg.protocol.journal import record_name
from secagg.protocol.messages import (
    Bundle,
    Consistency,
    Dealer,
    Dealing,
    Endorsement,
    KeyAdvert,
    KeyList,
    MaskedInput,
    Message,
    Signatures,
    Survivor,
    Survivors,
    Unmasking,
)
from secagg.protocol.wire import decode, encode
from tests.secagg.drbg import Drbg
from tests.secagg.vector_case import Case, identity, vector
from tests.secagg.vector_runs import FIVE, crossed_plan, flat_plan

ME = 2  # the client that receives the bad messages
M = TypeVar("M", bound=Message)


class BadMessages:
    """Sends bad messages, each to a client restored from the same saved state."""

    def __init__(self, case: Case, client: int) -> None:
        self.case, self.client = case, client
        case.do("client.save", {"client": str(client), "as": "before"})

    def send(self, name: str, message: Message | bytes, ok: str, **extra: Any) -> None:
        """Send a message to a restored copy of the client, which refuses it with this error and fails."""
        case, data = self.case, message if isinstance(message, bytes) else encode(message)
        actor = f"{self.client} hears {name}"
        case.do("client.restore", {"client": str(self.client), "bytes": "before", "actor": actor})
        request = {"client": actor, "message": case.give(f"lie/{name}", data), "as": "nothing"}
        case.do("client.receive", {**request, **extra}, ok)
        assert case.do("client.state", {"client": actor}) == {"state": "FAILED"}


def got(case: Case, name: str, kind: type[M]) -> M:
    message = decode(case.session.get(name))
    assert isinstance(message, kind)
    return message


def flip(data: bytes, place: int = 0) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def view_of(plan: Plan, adverts: Iterable[KeyAdvert], dealers: Iterable[Dealer]) -> bytes:
    """The view of U2 that a client has from its key list and its bundle."""
    keys = {advert.sender: advert for advert in adverts}
    return transcript.view(plan.hash, [(keys[dealer.id], dealer) for dealer in dealers])


@vector("bad_plan_bytes")
def bad_plan_bytes(case: Case) -> None:
    """Bytes that no plan makes: version, length, order, second encodings."""
    plan = flat_plan(weights=(1, 2, 3, 2, 1))
    good = plan.to_bytes()
    case.do("plan", {"plan": case.give("good", good)})
    n = len(FIVE)
    clip = 1 + 32 + 8 + 4 + 36 * n + 12 + 1
    weights = clip + 8 + 4
    schedule = weights + 4 + 4 * n
    mode = schedule + 1 + 4 + 2 + 4 + 32 + 4 + 4 + 8
    changed = {
        "trailing byte": good + b"\x00",
        "one byte short": good[:-1],
        "empty": b"",
        "version 0": b"\x00" + good[1:],
        "version 1": b"\x01" + good[1:],
        "huge roster": good[:41] + b"\xff" * 4 + good[45:],
        "huge context": good[: -len(plan.context) - 4] + b"\xff" * 4 + plan.context,
        "no such encoding": good[: clip - 1] + b"\x02" + good[clip:],
        "not a number": good[:clip] + struct.pack("<d", np.nan) + good[clip + 8 :],
        "infinite": good[:clip] + struct.pack("<d", np.inf) + good[clip + 8 :],
        "clip and bound": good[: clip + 8] + (1).to_bytes(4, "little") + good[clip + 12 :],
        "no such schedule": good[:schedule] + b"\x04" + good[schedule + 1 :],
        "no such mode": good[:mode] + b"\x02" + good[mode + 1 :],
    }
    for name, data in changed.items():
        case.do("plan", {"plan": case.give(name, data)}, "WireError")
    integers = flat_plan(clip=None, bound=7).to_bytes()
    zero = integers[:clip] + struct.pack("<d", -0.0) + integers[clip + 8 :]
    unused = integers[:clip] + struct.pack("<d", 1.0) + integers[clip + 8 :]
    case.do("plan", {"plan": case.give("negative zero", zero)}, "WireError")
    case.do("plan", {"plan": case.give("unused clip", unused)}, "WireError")


def patched(plan: Plan, **fields: Any) -> bytes:
    """The bytes of a plan that `Plan` refuses to build."""
    return codec.to_bytes(LAYOUT, {**flat(plan), **fields})


@vector("bad_plans")
def bad_plans(case: Case) -> None:
    """Well-formed plans that may not be built, because they would not be safe."""
    plan = flat_plan()
    roster = plan.roster
    for name, fields in {
        "threshold with 2t = n + colluders + 0": {"threshold": 3},
        "threshold over n": {"threshold": 6},
        "threshold 1": {"threshold": 1, "colluders": 0},
        "as many colluders as clients": {"colluders": 5},
        "roster of one": {"roster": roster[:1], "size": 2},
        "roster out of order": {"roster": roster[::-1]},
        "client twice": {"roster": (*roster[:4], roster[3])},
        "one identity for two": {"roster": (*roster[:4], Member(12, roster[3].identity))},
        "no length": {"length": 0},
        "length over 2^31 - 1": {"length": 2**31},
        "round over 2^63 - 1": {"round": 2**63},
        "groups of one": {"size": 1},
        "group over the roster": {"size": 6},
        "no groupings": {"groupings": 0},
        "two equal groupings": {"groupings": 2},
        "too many groupings": {"size": 2, "groupings": 1025},
        "atom without atoms": {"atom": 2},
        "weight 0": {"weights": (1, 0, 1, 1, 1)},
        "a weight too few": {"weights": (1, 1, 1, 1)},
        "weighted integers": {"floats": 0, "clip": 0.0, "bound": 5, "weights": (1, 2, 1, 1, 1)},
        "integers that wrap": {"floats": 0, "clip": 0.0, "bound": 2**29},
        "clip 0": {"clip": 0.0},
        "clip that does not fit float32": {"clip": 1e39},
        "rows of one survivor": {"min_survivors": 1},
        "no anonymity": {"anonymity": 1},
        "anonymity over the group": {"anonymity": 6},
        "leverage over 1": {"max_leverage": 1.5},
        "odd degree": {"degree": 3, "threshold": 2},
        "sparse threshold over the degree": {"degree": 2, "threshold": 3},
        "sparse groups": {"degree": 2, "threshold": 2, "size": 2},
    }.items():
        case.do("plan", {"plan": case.give(name, patched(plan, **fields))}, "UsageError")


# --- bytes -----------------------------------------------------------------------------------------------

SENT = (
    *("advert/2", "keylist", "dealing/2", "bundle/2", "masked/2"),
    *("survivors", "consistency/2", "signatures", "unmasking/2"),
)


@vector("messages", after="unmasking made")
def messages(case: Case) -> None:
    """One message of each type, field by field."""
    for name in SENT:
        case.do("message", {"message": name})
    left_out = MaskedInput(9, (1, 4), bytes(64), np.empty((0, 0), np.uint32))
    case.do("message", {"message": case.give("no vectors", encode(left_out))})


@vector("bad_wire", after="unmasking made")
def wire_errors(case: Case) -> None:
    """Bytes that are not exactly one message: a byte more or less, another version or type, lengths that the
    bytes do not hold (a few bytes that claim 4 GB cost nothing), lists out of order.
    """
    changed: dict[str, bytes] = {"empty": b"", "version only": b"\x02"}
    for name in SENT:
        good = case.session.get(name)
        changed[f"{name}: trailing byte"] = good + b"\x00"
        changed[f"{name}: one byte short"] = good[:-1]
        changed[f"{name}: version 0"] = b"\x00" + good[1:]
        changed[f"{name}: version 1"] = b"\x01" + good[1:]
    changed |= {
        "type 0": b"\x02\x00",
        "type 10": b"\x02\x0a",
        "plan of 4 GB": b"\x02\x02" + b"\xff" * 4,
        "4 billion adverts": b"\x02\x02" + bytes(4) + b"\xff" * 4,
        "65,536 adverts": b"\x02\x02" + bytes(4) + (65536).to_bytes(4, "little"),
        "matrix of 2^64 words": b"\x02\x05" + bytes(4 + 4 + 64) + b"\xff" * 8,
        "matrix without columns": b"\x02\x05" + bytes(4 + 4 + 64) + struct.pack("<II", 5, 0),
        "disputes out of order": b"\x02\x05" + bytes(4) + struct.pack("<III", 2, 5, 3) + bytes(64 + 8),
        "dispute twice": b"\x02\x05" + bytes(4) + struct.pack("<III", 2, 5, 5) + bytes(64 + 8),
        "row twice": b"\x02\x06" + bytes(4) + struct.pack("<IHIHI", 2, 0, 1, 0, 1),
        "2^20 + 1 rows": b"\x02\x06" + bytes(4) + (2**20 + 1).to_bytes(4, "little"),
        "1025 commitments": b"\x02\x03" + bytes(4) + (1025).to_bytes(4, "little"),
    }
    for name, data in changed.items():
        case.do("message", {"message": case.give(name, data)}, "WireError")


@vector("bad_lowered_threshold", after="keylist sent")
def lowered_threshold(case: Case) -> None:
    """The server's plan has a threshold that would let it open two survivor sets: 2t <= n + colluders."""
    bad = BadMessages(case, ME)
    honest, plan = got(case, "keylist", KeyList), flat_plan()
    context = plan.context.hex()
    lowered = digest(labels.PLAN, patched(plan, threshold=3))  # no such plan may be built
    bad.send("t3", replace(honest, plan=lowered), "PlanRefused", context=context)
    fewer = flat_plan(colluders=0, threshold=3)  # a valid plan, but not the agreed one
    bad.send("t3 with no colluders", offering(honest, fewer), "PlanRefused", context=context)


def offering(honest: KeyList, plan: Plan) -> KeyList:
    """The key list of a server with this plan."""
    return replace(honest, plan=plan.hash, parts=tuple(plan.parts.values()))


@vector("bad_plan_not_agreed", after="keylist sent")
def plan_not_agreed(case: Case) -> None:
    """A server with another plan than the client's, which differs in one part; and a context that is not its own."""
    bad = BadMessages(case, ME)
    honest, plan = got(case, "keylist", KeyList), flat_plan()
    bad.send("another context", honest, "PlanRefused", context=b"model 2".hex())
    for name, changes in {
        "another round": {"round": 8},
        "another training": {"training_id": bytes(32)},
        "another roster": {"roster": tuple(Member(m.id, identity(m.id + 50).public) for m in plan.roster)},
        "another seed": {"training_seed": bytes(32)},
        "another length": {"length": 7},
        "a tiny clip": {"clip": 2.0**-30},
        "report only": {"policy": Policy(mode="report-even-if-exposed")},
        "weaker policy": {"policy": Policy(anonymity=2)},
        "weights": {"weights": (1, 1, 1, 1, 1000)},
        "another schedule": {"schedule": Schedule(name="fixed", size=5)},
        "fewer colluders": {"colluders": 0},
        "sparse": {"degree": 4, "threshold": 3},
    }.items():
        bad.send(name, offering(honest, replace(plan, **changes)), "PlanRefused", context=plan.context.hex())
    bad.send("no parts", replace(honest, plan=bytes(32), parts=()), "PlanRefused", context=plan.context.hex())


def signed_advert(plan: Plan, client: int, channel: bytes, mask: bytes) -> KeyAdvert:
    """An advert with these keys and a valid signature of its sender."""
    advert = KeyAdvert(client, channel, mask, b"")
    statement = transcript.key_statement(plan.training_id, plan.round, plan.roster_hash, advert)
    return replace(advert, signature=identity(client).sign(statement))


@vector("bad_key_list", after="keylist sent")
def key_lists(case: Case) -> None:
    """Key lists that a client must refuse: wrong or swapped signatures, keys that are not its own, somebody
    missing, twice, out of order or unknown; the error names the culprit where there is one.
    """
    bad = BadMessages(case, ME)
    honest, plan = got(case, "keylist", KeyList), flat_plan()
    adverts = {advert.sender: advert for advert in honest.adverts}
    mine, three, five = adverts[ME], adverts[3], adverts[5]

    def with_three(advert: KeyAdvert) -> KeyList:
        return replace(honest, adverts=tuple(advert if a.sender == 3 else a for a in honest.adverts))

    def only(*wanted: KeyAdvert) -> KeyList:
        return replace(honest, adverts=wanted)

    old = KeyAdvert(3, three.channel, three.mask, b"")
    earlier = transcript.key_statement(plan.training_id, plan.round - 1, plan.roster_hash, old)
    foreign = transcript.key_statement(plan.training_id, plan.round, bytes(32), old)
    for name, forged in {
        "wrong signature": with_three(replace(three, signature=flip(three.signature))),
        "another's signature": with_three(replace(three, signature=five.signature)),
        "signature of an earlier round": with_three(replace(old, signature=identity(3).sign(earlier))),
        "signature over another roster": with_three(replace(old, signature=identity(3).sign(foreign))),
        "channel key swapped": with_three(replace(three, channel=five.channel)),
        "mask key swapped": with_three(replace(three, mask=five.mask)),
        "channel and mask exchanged": with_three(replace(three, channel=three.mask, mask=three.channel)),
        "one key for both": with_three(signed_advert(plan, 3, three.mask, three.mask)),
        "my keys are others": only(replace(mine, mask=three.mask), *honest.adverts[1:]),
        "without me": only(*honest.adverts[1:]),
        "out of order": only(*honest.adverts[::-1]),
        "somebody twice": only(*honest.adverts, honest.adverts[-1]),
        "a stranger": only(*honest.adverts, replace(five, sender=12)),
    }.items():
        bad.send(name, forged, "PeerError", context=plan.context.hex())
    bad.send("three clients", only(*honest.adverts[:3]), "TooFewSurvivors", context=plan.context.hex())


@vector("bad_low_order_keys", after="keylist sent")
def low_order_keys(case: Case) -> None:
    """Client 3 advertises, with its own signature, keys of low order or with a second encoding."""
    bad = BadMessages(case, ME)
    honest, plan = got(case, "keylist", KeyList), flat_plan()
    three = next(advert for advert in honest.adverts if advert.sender == 3)
    above = (2**255 - 19 + 9).to_bytes(32, "little")
    for place, point in enumerate([*sorted(LOW_ORDER_POINTS), above]):
        for what, advert in (
            ("channel", signed_advert(plan, 3, point, three.mask)),
            ("mask", signed_advert(plan, 3, three.channel, point)),
        ):
            forged = replace(honest, adverts=tuple(advert if a.sender == 3 else a for a in honest.adverts))
            bad.send(f"{what} {place}", forged, "PeerError", context=plan.context.hex())


@vector("bad_reflected_box", after="bundle sent")
def reflected_box(case: Case) -> None:
    """In place of client 3's box, client 2 is handed the box that it sealed for client 3 itself, and in place
    of client 5's the one that client 5 sealed for client 7: neither opens. They are disputed pairs, not
    errors: client 2 goes on without these shares, and says so under its signature.
    """
    bundle = got(case, "bundle/2", Bundle)
    size = len(bundle.boxes) // 4
    mine = got(case, "dealing/2", Dealing).boxes[:size]
    sevens = got(case, "dealing/5", Dealing).boxes[2 * size : 3 * size]
    forged = replace(bundle, boxes=mine + sevens + bundle.boxes[2 * size :])
    case.give("lie", encode(forged))
    case.do("client.receive", {"client": "2", "message": "lie", "update": "2", "as": "masked/2/disputing"})
    assert got(case, "masked/2/disputing", MaskedInput).disputes == (3, 5)
    case.do("message", {"message": "masked/2/disputing"})


@vector("bad_noncanonical_share", after="bundle sent")
def noncanonical_share(case: Case) -> None:
    """Client 3 deals client 2 the share 2^257 - 93, hashes and signs it correctly. It is not a field element:
    a disputed pair. (The wrong place in a proof, or a wrong sibling, is one as well.)
    """
    plan, bundle = flat_plan(), got(case, "bundle/2", Bundle)
    actor = case.session.actors["3"]
    memory = actor.memory()
    agreed = AgreementKey.from_private(memory.channel).agree(memory.adverts[0].channel)
    size = len(bundle.boxes) // 4
    content = reference.unseal(agreed, reference.box_address(plan.hash, 3, 2), bundle.boxes[:size])
    nonce, shares = content[:32], [PRIME.to_bytes(33, "little"), content[-33:]]
    hashes = [
        reference.share_hash(plan.hash, 3, 2, k, s, reference.share_nonce(nonce, k)) for k, s in enumerate(shares)
    ]
    dealing = got(case, "dealing/3", Dealing)
    table = b"".join(hashes) + dealing.hashes[64:]
    leaves = [reference.tree_leaf(table[i : i + 64]) for i in range(0, len(table), 64)]
    tree = hashtree.levels(b"".join(leaves))
    address, content = reference.box_address(plan.hash, 3, 2), nonce + b"".join(shares)
    sealed = reference.seal(agreed, address, content, Drbg(b"vectors/noncanonical"))
    proof = (0).to_bytes(2, "little") + bytes([len(tree) - 1]) + b"".join(hashtree.proof(tree, 0))
    threes = Dealer(3, bundle.dealers[1].commitments, tree[-1])
    noncanonical = Bundle(
        (bundle.dealers[0], threes, *bundle.dealers[2:]),
        sealed + bundle.boxes[size:],
        proof + bundle.proofs[len(proof) :],
    )
    case.do("client.save", {"client": "2", "as": "before"})
    place = flip(bundle.proofs, 0)
    sibling = flip(bundle.proofs, len(proof) - 1)
    for name, forged in {
        "noncanonical": noncanonical,
        "wrong place": replace(bundle, proofs=place),
        "wrong sibling": replace(bundle, proofs=sibling),
        "wrong root": replace(
            bundle, dealers=(bundle.dealers[0], replace(bundle.dealers[1], root=bytes(32)), *bundle.dealers[2:])
        ),
    }.items():
        # every copy takes the same step, so each needs its own journal
        case.do("client.restore", {"client": "2", "bytes": "before", "actor": name, "journal": name})
        case.give(f"lie/{name}", encode(forged))
        case.do("client.receive", {"client": name, "message": f"lie/{name}", "update": "2", "as": f"masked/{name}"})
        assert got(case, f"masked/{name}", MaskedInput).disputes == (3,)


@vector("bad_bundle", after="bundle sent")
def bundles(case: Case) -> None:
    """Bundles that a client must refuse: U2 without it, outside U1, out of order or too small, its own
    dealing changed, commitments, boxes or proofs missing.
    """
    bad = BadMessages(case, ME)
    honest = got(case, "bundle/2", Bundle)
    mine, three = honest.dealers[0], honest.dealers[1]
    size = len(honest.boxes) // 4
    proof = len(honest.proofs) // 4
    for name, forged in {
        "without me": replace(honest, dealers=honest.dealers[1:]),
        "out of order": replace(honest, dealers=honest.dealers[::-1]),
        "somebody twice": replace(honest, dealers=(*honest.dealers, honest.dealers[-1])),
        "a stranger": replace(honest, dealers=(*honest.dealers, replace(three, id=12))),
        "my root is another": replace(honest, dealers=(replace(mine, root=bytes(32)), *honest.dealers[1:])),
        "my commitment is another": replace(
            honest, dealers=(replace(mine, commitments=three.commitments), *honest.dealers[1:])
        ),
        "two commitments": replace(
            honest, dealers=(mine, replace(three, commitments=three.commitments * 2), *honest.dealers[2:])
        ),
        "no commitment": replace(honest, dealers=(mine, replace(three, commitments=()), *honest.dealers[2:])),
        "a box too few": replace(honest, boxes=honest.boxes[size:]),
        "a byte of box too many": replace(honest, boxes=honest.boxes + b"\x00"),
        "a proof too few": replace(honest, proofs=honest.proofs[proof:]),
        "a proof cut off": replace(honest, proofs=honest.proofs[:-1]),
    }.items():
        bad.send(name, forged, "PeerError", update="2")
    few = Bundle(honest.dealers[:3], honest.boxes[: 2 * size], honest.proofs[: 2 * proof])
    bad.send("U2 of three", few, "TooFewSurvivors", update="2")


@vector("bad_split_view", after="survivors sent")
def split_views(case: Case) -> None:
    """A member of U3 signed another view of U2 than client 2 saw (without client 11, or with another root or
    key), or another set of disputes, or other vectors, or for another run: client 2 does not sign stage 3.
    """
    bad = BadMessages(case, ME)
    plan, honest = flat_plan(), got(case, "survivors", Survivors)
    adverts = {advert.sender: advert for advert in got(case, "keylist", KeyList).adverts}
    dealers = got(case, "bundle/2", Bundle).dealers
    seen = [(adverts[dealer.id], dealer) for dealer in dealers]
    view = transcript.view(plan.hash, seen)

    def with_three(view: bytes, *, plan_hash: bytes = plan.hash, sender: int = 3, signer: int = 3) -> Survivors:
        hashed = next(m.vectors_hash for m in honest.members if m.id == 3)
        signature = identity(signer).sign(transcript.view_statement(plan_hash, sender, view, (), hashed))
        three = Survivor(3, (), hashed, signature)
        return replace(honest, members=tuple(three if m.id == 3 else m for m in honest.members))

    for name, forged in {
        "smaller U2": with_three(transcript.view(plan.hash, seen[:-1])),
        "another root": with_three(
            transcript.view(plan.hash, [*seen[:-1], (seen[-1][0], replace(seen[-1][1], root=bytes(32)))])
        ),
        "another mask key": with_three(
            transcript.view(plan.hash, [*seen[:-1], (replace(seen[-1][0], mask=bytes(32)), seen[-1][1])])
        ),
        "another plan": with_three(view, plan_hash=flat_plan(round=8).hash),
        "another sender": with_three(view, sender=5),
        "another signer": with_three(view, signer=5),
        "disputes not signed": replace(
            honest, members=tuple(replace(m, disputes=(5,)) if m.id == 3 else m for m in honest.members)
        ),
        "wrong signature": replace(
            honest, members=tuple(replace(m, signature=flip(m.signature)) if m.id == 3 else m for m in honest.members)
        ),
        "vectors not signed": replace(
            honest,
            members=tuple(replace(m, vectors_hash=flip(m.vectors_hash)) if m.id == 3 else m for m in honest.members),
        ),
        "another's vectors": replace(
            honest,
            members=tuple(
                replace(m, vectors_hash=honest.members[0].vectors_hash) if m.id == 3 else m for m in honest.members
            ),
        ),
        "my vectors not signed": replace(
            honest,
            members=tuple(replace(m, vectors_hash=bytes(32)) if m.id == ME else m for m in honest.members),
        ),
    }.items():
        bad.send(name, forged, "PeerError")


@vector("bad_survivors", after="survivors sent")
def survivors(case: Case) -> None:
    """Survivor sets that a client must refuse: without it, outside U2, out of order, or too small."""
    bad = BadMessages(case, ME)
    honest = got(case, "survivors", Survivors)
    for name, forged in {
        "without me": replace(honest, members=honest.members[1:]),
        "out of order": replace(honest, members=honest.members[::-1]),
        "somebody twice": replace(honest, members=(*honest.members, honest.members[-1])),
        "a stranger": replace(honest, members=(*honest.members, replace(honest.members[0], id=12))),
    }.items():
        bad.send(name, forged, "PeerError")
    bad.send("three survivors", replace(honest, members=honest.members[:3]), "TooFewSurvivors")


@vector("bad_exposing_rows", after="survivors sent", base="n9_transversal_weights")
def unaudited_rows(case: Case) -> None:
    """The server asks client 100 to open rows that its audit keeps closed, all together or one of them, or
    rows that do not exist.
    """
    bad = BadMessages(case, 100)
    honest = got(case, "survivors", Survivors)
    assert honest.groups == ((0, 0), (0, 1), (0, 2), (1, 0))
    case.do("audit", {"plan": "plan", "survivors": [member.id for member in honest.members]})
    for name, rows in {
        "all rows": (*honest.groups, (1, 1), (1, 2)),
        "one more row": (*honest.groups, (1, 1)),
        "that row alone": ((1, 2),),
        "no such group": (*honest.groups, (1, 3)),
        "no such grouping": (*honest.groups, (2, 0)),
    }.items():
        bad.send(name, replace(honest, groups=rows), "PeerError")


@vector("bad_both_kinds", after="signatures sent")
def both_kinds(case: Case) -> None:
    """After client 2 signed that client 3 survived, the server names survivors without client 3, which would
    give it both kinds of share of client 3; or other rows.
    """
    bad = BadMessages(case, ME)
    honest = got(case, "survivors", Survivors)
    without = tuple(member for member in honest.members if member.id != 3)
    bad.send("another survivor set", replace(honest, members=without), "PeerError")
    bad.send("no rows", replace(honest, groups=()), "PeerError")


@vector("bad_signatures", after="signatures sent")
def endorsements(case: Case) -> None:
    """Stage-3 signatures that a client must not count: over other survivors, vectors or rows or for another run, by a
    stranger, twice, out of order, or too few of them.
    """
    bad = BadMessages(case, ME)
    plan, honest = flat_plan(), got(case, "signatures", Signatures)
    actor = case.session.actors["3"]
    memory = actor.memory()
    view = view_of(plan, memory.adverts, memory.dealers)

    def with_last(statement: bytes, *, signer: int | None = None) -> Signatures:
        last = honest.endorsements[-1]
        signature = identity(last.id if signer is None else signer).sign(statement)
        return Signatures((*honest.endorsements[:-1], Endorsement(last.id, signature)))

    everyone, inputs, rows = memory.survivors, memory.inputs, memory.groups
    good = transcript.opening(plan, view, everyone, inputs, rows)
    other = flat_plan(round=8)
    for name, forged in {
        "other survivors": with_last(transcript.opening(plan, view, everyone[:-1], inputs, rows)),
        "other rows": with_last(transcript.opening(plan, view, everyone, inputs, ())),
        "another view": with_last(transcript.opening(plan, bytes(32), everyone, inputs, rows)),
        "other vectors": with_last(transcript.opening(plan, view, everyone, flip(inputs), rows)),
        "another plan": with_last(transcript.opening(other, view, everyone, inputs, rows)),
        "another signer": with_last(good, signer=2),
        "a stage-2 signature": Signatures(
            (
                *honest.endorsements[:-1],
                replace(honest.endorsements[-1], signature=got(case, "masked/7", MaskedInput).signature),
            )
        ),
        "somebody twice": Signatures((*honest.endorsements[:-1], honest.endorsements[0])),
        "out of order": Signatures(honest.endorsements[::-1]),
        "a stranger": Signatures((*honest.endorsements[:-1], Endorsement(12, bytes(64)))),
    }.items():
        bad.send(name, forged, "PeerError")
    bad.send("three signatures", Signatures(honest.endorsements[:-1]), "TooFewSurvivors")
    bad.send("no signature", Signatures(()), "TooFewSurvivors")


@vector("bad_replays", after="started")
def replays_to_a_client(case: Case) -> None:
    """In every state, the message answered last, which gets the same answer again; and every message of the run that is
    not expected there, and a message to the server: refused, and the run is over for this client.
    """
    kinds = {"keylist": "DEALT", "bundle/2": "MASKED", "survivors": "SIGNED", "signatures": "DONE"}
    expected = {"NEW": (), "ADVERTISED": ("keylist",), "DEALT": ("keylist", "bundle/2")}
    expected |= {"MASKED": ("bundle/2", "survivors"), "SIGNED": ("survivors", "signatures"), "DONE": ("signatures",)}
    order = ["hello", *kinds]
    for state in ("DEALT", "MASKED", "SIGNED", "DONE"):
        actor = f"{state} hears it again"
        case.do("client.new", {"client": 2, "round": 7, "actor": actor, "entropy": "2", "journal": actor})
        _walk(case, actor, state, order)
        step = list(kinds.values()).index(state)
        reply = ("dealing/2", "masked/2", "consistency/2", "unmasking/2")[step]
        case.do("client.receive", {"client": actor, "message": list(kinds)[step], "as": reply})
        case.do("client.state", {"client": actor})
    for state, allowed in expected.items():
        for bad in [*[kind for kind in kinds if kind not in allowed], "advert/3"]:
            actor = f"{state} hears {bad}"
            new = {"client": 2, "round": 7, "actor": actor, "entropy": "2", "journal": actor}
            case.do("client.new", new)
            _walk(case, actor, state, order)
            extra = {"update": "2"} if state == "DEALT" else {}
            case.do("client.receive", {"client": actor, "message": bad, "as": "nothing", **extra}, "PeerError")
            case.do("client.state", {"client": actor})


def _walk(case: Case, actor: str, state: str, order: list[str]) -> None:
    """Bring a client to a state with the messages of the run."""
    path = {"NEW": 0, "ADVERTISED": 1, "DEALT": 2, "MASKED": 3, "SIGNED": 4, "DONE": 5}
    replies = ("advert/2", "dealing/2", "masked/2", "consistency/2", "unmasking/2")
    for step in range(path[state]):
        if step == 0:
            case.do("client.hello", {"client": actor, "as": replies[0]})
            continue
        extra = {"context": flat_plan().context.hex()} if step == 1 else {}
        extra |= {"update": "2"} if step == 2 else {}
        request = {"client": actor, "message": order[step], "as": replies[step]}
        case.do("client.receive", {**request, **extra})


@vector("bad_another_plan", after="dealing made")
def another_plan(case: Case) -> None:
    """The update was bound to n5_flat's plan when client 2 accepted it. A second run for the same round with
    another plan is refused, though the client derives that plan itself.
    """
    plan = flat_plan(policy=Policy(min_survivors=3))
    case.give("again/plan", plan.to_bytes())
    case.do("client.new", {"client": 2, "round": 7, "actor": "2 again", "plan": "again/plan"})
    case.do("client.hello", {"client": "2 again", "as": "again/advert/2"})
    mine = got(case, "again/advert/2", KeyAdvert)
    keys = got(case, "keylist", KeyList)
    forged = replace(offering(keys, plan), adverts=(mine, *keys.adverts[1:]))
    case.give("again/keylist", encode(forged))
    request = {"client": "2 again", "message": "again/keylist", "context": plan.context.hex(), "as": "nothing"}
    case.do("client.receive", request, "AlreadyUsed")
    case.do("client.state", {"client": "2 again"})
    case.do("client.records", {"client": 2})


@vector("bad_repeated_run", after="consistency made")
def repeated_run(case: Case) -> None:
    """All clients signed stage 3 of n5_flat. They run the same plan again, with new keys: the second run must
    not be opened, for it would not be the same run (AlreadyUsed at stage 3).
    """
    plan = flat_plan()
    again = {v: f"{v} again" for v in FIVE}
    case.do("server.new", {"plan": "plan", "entropy": "server again"})
    inbox: dict[int, str] = {}
    for stage, (up, down) in enumerate((("advert", "keylist"), ("dealing", "bundle"), ("masked", "survivors"))):
        for v, actor in again.items():
            name = f"again/{up}/{v}"
            if stage == 0:
                case.do("client.new", {"client": v, "round": 7, "actor": actor})
                case.do("client.hello", {"client": actor, "as": name})
            else:
                extra = {"context": plan.context.hex()} if stage == 1 else {"update": str(v)}
                case.do("client.receive", {"client": actor, "message": inbox[v], "as": name, **extra})
            case.do("server.receive", {"client": v, "message": name})
        out = case.do("server.advance", {"as": f"again/{down}"})
        inbox = {int(v): name for v, name in out["messages"].items()}
    for v, actor in again.items():
        request = {"client": actor, "message": inbox[v], "as": "nothing"}
        case.do("client.receive", request, "AlreadyUsed")
    case.do("client.state", {"client": again[2]})


@vector("bad_interrupted_opening", after="survivors sent", base="n9_transversal_weights")
def interrupted(case: Case) -> None:
    """Client 100 stored the record of an opening and stopped before its answer left. Restored, it signs the
    same survivors with the same rows or fewer; more rows, other survivors, other vectors of theirs, another run
    (view) or another plan are refused.
    """
    client = 100
    honest, plan = got(case, "survivors", Survivors), crossed_plan()
    memory = case.session.actors[str(client)].memory()
    view = view_of(plan, memory.adverts, memory.dealers)
    survivors, inputs = tuple(member.id for member in honest.members), transcript.inputs_hash(honest.members)
    update = identity(client).public + plan.training_id + plan.round.to_bytes(8, "little")
    name = record_name(labels.OPENING_RECORD, update)
    before = {
        "the same": (Opening(plan.hash, view, survivors, inputs, honest.groups), True),
        "more rows before": (Opening(plan.hash, view, survivors, inputs, (*honest.groups, (1, 1))), True),
        "fewer rows before": (Opening(plan.hash, view, survivors, inputs, honest.groups[1:]), "AlreadyUsed"),
        "other survivors": (Opening(plan.hash, view, survivors[:-1], inputs, honest.groups), "AlreadyUsed"),
        "other vectors": (Opening(plan.hash, view, survivors, flip(inputs), honest.groups), "AlreadyUsed"),
        "another run": (Opening(plan.hash, bytes(32), survivors, inputs, honest.groups), "AlreadyUsed"),
        "another plan": (Opening(bytes(32), view, survivors, inputs, honest.groups), "AlreadyUsed"),
    }
    journals = {what: {name: codec.to_bytes(OPENING, record).hex()} for what, (record, _) in before.items()}
    case.given["journals"] = case.session.given["journals"] = journals
    case.do("client.save", {"client": str(client), "as": "before"})
    for what, (_, ok) in before.items():
        case.do("client.restore", {"client": str(client), "bytes": "before", "actor": what, "journal": what})
        request = {"client": what, "message": "survivors", "as": "consistency/100" if ok is True else "nothing"}
        case.do("client.receive", request, ok)


@vector("bad_two_copies", after="bundle sent")
def two_copies(case: Case) -> None:
    """Client 2 is restored twice from the same bytes. The first copy answers; the second finds the step
    taken, and gives nothing away.
    """
    case.do("client.save", {"client": "2", "as": "before"})
    case.do("client.receive", {"client": "2", "message": "bundle/2", "update": "2", "as": "nothing"}, "PeerError")
    for copy in ("first", "second"):
        case.do("client.restore", {"client": "2", "bytes": "before", "actor": copy})
    case.do("client.receive", {"client": "first", "message": "bundle/2", "update": "2", "as": "masked/2"})
    request = {"client": "second", "message": "bundle/2", "update": "2", "as": "nothing"}
    case.do("client.receive", request, "AlreadyUsed")
    case.do("client.state", {"client": "second"})


@vector(
    "bad_updates",
    after="bundle sent",
    given={
        "updates": {
            "short": {"f64": "00" * 8},
            "nan": {"f64": "00" * 40 + "000000000000f87f"},
        }
    },
)
def application_mistakes(case: Case) -> None:
    """The application's own mistakes: no update, a wrong length, a NaN. They are told before the run is at
    stake: client 2 then answers all the same.
    """
    request = {"client": "2", "message": "bundle/2", "as": "nothing"}
    case.do("client.receive", request, "UsageError")
    for name in ("short", "nan"):
        case.do("client.receive", {**request, "update": name}, "UsageError")
    case.do("client.state", {"client": "2"})
    case.do("client.receive", {**request, "update": "2", "as": "masked/2"})
    case.do("client.hello", {"client": "2", "as": "nothing"}, "UsageError")
    case.do("client.state", {"client": "2"})
    case.do("client.save", {"client": "2", "as": "nothing"}, "UsageError")


class BadMessagesToServer:
    """Sends messages that must not count, each to a server restored from the same bytes."""

    def __init__(self, case: Case) -> None:
        self.case = case
        case.do("server.save", {"as": "server before"})

    def send(self, name: str, message: Message | bytes, *, client: int = 3, outcome: str = "dropped") -> None:
        case, data = self.case, message if isinstance(message, bytes) else encode(message)
        case.do("server.restore", {"bytes": "server before", "journal": name})
        out = case.do("server.receive", {"client": client, "message": case.give(f"fraud/{name}", data)})
        assert out == {"outcome": outcome}, (name, out)


@vector("bad_adverts_to_server", after="advert made")
def adverts_to_server(case: Case) -> None:
    """Key adverts that make their sender a dropout: wrong signature, low-order key, another's name, bytes
    that are no message, a message for clients.
    """
    plan, bad = flat_plan(), BadMessagesToServer(case)
    three, five = got(case, "advert/3", KeyAdvert), got(case, "advert/5", KeyAdvert)
    for name, forged in {
        "wrong signature": replace(three, signature=flip(three.signature)),
        "mask key swapped": replace(three, mask=five.mask),
        "low order": signed_advert(plan, 3, bytes(32), three.mask),
        "one key for both": signed_advert(plan, 3, three.mask, three.mask),
        "in another's name": five,
        "a key list": got(case, "keylist", KeyList),
        "trailing byte": encode(three) + b"\x00",
        "nothing": b"",
        "version 1": b"\x01" + encode(three)[1:],
    }.items():
        bad.send(name, forged)
    case.do("server.receive", {"client": 12, "message": "advert/3"}, "UsageError")


@vector("bad_dealings_to_server", after="dealing made")
def dealings_to_server(case: Case) -> None:
    """Dealings that make their sender a dropout: wrong signature or root, hashes, boxes or commitments
    missing, another's name.
    """
    plan, bad = flat_plan(), BadMessagesToServer(case)
    honest = got(case, "dealing/3", Dealing)
    advert = got(case, "advert/3", KeyAdvert)

    def signed(dealing: Dealing, plan_hash: bytes = plan.hash, by: KeyAdvert = advert) -> Dealing:
        statement = transcript.dealing_statement(plan_hash, by, dealing)
        return replace(dealing, signature=identity(3).sign(statement))

    for name, forged in {
        "wrong signature": replace(honest, signature=flip(honest.signature)),
        "for another plan": signed(honest, plan_hash=flat_plan(round=8).hash),
        "with other keys": signed(honest, by=replace(advert, mask=advert.channel)),
        "another root": signed(replace(honest, root=bytes(32))),
        "another hash": replace(honest, hashes=flip(honest.hashes)),
        "a hash too few": replace(honest, hashes=honest.hashes[32:]),
        "a box too few": replace(honest, boxes=honest.boxes[: -len(honest.boxes) // 4]),
        "a byte of box too many": replace(honest, boxes=honest.boxes + b"\x00"),
        "two commitments": signed(replace(honest, commitments=honest.commitments * 2)),
        "no commitment": signed(replace(honest, commitments=())),
        "in another's name": got(case, "dealing/5", Dealing),
    }.items():
        bad.send(name, forged)


@vector("bad_inputs_to_server", after="masked made")
def inputs_to_server(case: Case) -> None:
    """Masked inputs that make their sender a dropout: wrong shape, another view, disputes with nobody, vectors that
    the signature does not cover.
    """
    plan, bad = flat_plan(), BadMessagesToServer(case)
    honest = got(case, "masked/3", MaskedInput)
    memory = case.session.actors["3"].memory()
    view = view_of(plan, memory.adverts, memory.dealers)

    def signed(view: bytes, disputes: tuple[int, ...], hashed: bytes | None = None) -> MaskedInput:
        hashed = transcript.vectors_hash(honest.vectors) if hashed is None else hashed
        statement = transcript.view_statement(plan.hash, 3, view, disputes, hashed)
        return replace(honest, disputes=disputes, signature=identity(3).sign(statement))

    for name, forged in {
        "two vectors": replace(honest, vectors=np.concatenate([honest.vectors, honest.vectors])),
        "no vector": replace(honest, vectors=np.empty((0, 0), np.uint32)),
        "a word too few": replace(honest, vectors=honest.vectors[:, 1:]),
        "wrong signature": replace(honest, signature=flip(honest.signature)),
        "another view": signed(bytes(32), ()),
        "disputes itself": signed(view, (3,)),
        "disputes a stranger": signed(view, (12,)),
        "disputes not signed": replace(honest, disputes=(5,)),
        "vectors not signed": replace(honest, vectors=honest.vectors + np.uint32(1)),
        "another's vectors": replace(honest, vectors=got(case, "masked/5", MaskedInput).vectors),
        "a wrong hash signed": signed(view, (), bytes(32)),
        "the bare hash of the row signed": signed(view, (), row_hashes(honest.vectors)),
        "in another's name": got(case, "masked/5", MaskedInput),
    }.items():
        bad.send(name, forged)
    bad.send("a dispute", signed(view, (5,)), outcome="counted")


@vector("bad_consistency_to_server", after="consistency made")
def openings_to_server(case: Case) -> None:
    """Stage-3 signatures that make their sender a dropout."""
    plan, bad = flat_plan(), BadMessagesToServer(case)
    memory = case.session.actors["3"].memory()
    view = view_of(plan, memory.adverts, memory.dealers)

    def signed(*statement: Any) -> Consistency:
        return Consistency(3, identity(3).sign(transcript.opening(*statement)))

    for name, forged in {
        "wrong signature": Consistency(3, flip(got(case, "consistency/3", Consistency).signature)),
        "other survivors": signed(plan, view, memory.survivors[:-1], memory.inputs, memory.groups),
        "other vectors": signed(plan, view, memory.survivors, flip(memory.inputs), memory.groups),
        "no rows": signed(plan, view, memory.survivors, memory.inputs, ()),
        "another view": signed(plan, bytes(32), memory.survivors, memory.inputs, memory.groups),
        "in another's name": got(case, "consistency/5", Consistency),
    }.items():
        bad.send(name, forged)


@vector("bad_unmaskings_to_server", after="unmasking made")
def unmaskings_to_server(case: Case) -> None:
    """Stage-4 messages with a wrong signature make their sender a dropout. Signed ones are counted, and when
    the stage is closed whoever gave both kinds of share, shares of the wrong kind or of nobody, or a wrong
    number of them, is blamed, while the others' shares give the exact sum.
    """
    plan, bad = flat_plan(), BadMessagesToServer(case)
    honest = got(case, "unmasking/3", Unmasking)
    bad.send("wrong signature", replace(honest, signature=flip(honest.signature)))
    bad.send("changed share", replace(honest, seeds=flip(honest.seeds)))
    bad.send("in another's name", got(case, "unmasking/5", Unmasking))
    entry = honest.seeds[:65]
    # the real share of client 5's mask key, although client 5 survived
    channel = bytes.fromhex(case.session.given["entropy"]["3"][1])
    agreed = AgreementKey.from_private(channel).agree(got(case, "advert/5", KeyAdvert).channel)
    boxes = got(case, "dealing/5", Dealing).boxes
    size = len(boxes) // 4
    content = reference.unseal(agreed, reference.box_address(plan.hash, 5, 3), boxes[size : 2 * size])
    true_key = content[32:65] + reference.share_nonce(content[:32], 0)
    for name, changes in {
        "both kinds": {"key_owners": (5,), "keys": true_key},
        "a key of a survivor": {"key_owners": (5,), "keys": entry},
        "the wrong kind": {
            "seed_owners": honest.seed_owners[1:],
            "seeds": honest.seeds[65:],
            "key_owners": (2,),
            "keys": entry,
        },
        "of nobody": {"key_owners": (12,), "keys": entry},
        "a share too few": {"seeds": honest.seeds[65:]},
        "a byte too many": {"seeds": honest.seeds + b"\x00"},
        "a changed nonce": {"seeds": flip(honest.seeds, 64)},
        "not a field element": {"seeds": PRIME.to_bytes(33, "little") + honest.seeds[33:]},
    }.items():
        changed = replace(honest, **changes)
        signature = identity(3).sign(transcript.unmasking_statement(plan.hash, changed))
        bad.send(name, replace(changed, signature=signature), outcome="counted")
        for v in (2, 5, 7, 11):
            case.do("server.receive", {"client": v, "message": f"unmasking/{v}"})
        case.do("server.advance", {"as": "nothing"})
        result = case.do("server.result", {})
        assert (list(result["rows"]), result["blamed"]) == (["0/0"], [3]), name


@vector("bad_out_of_turn", after="dealing made")
def out_of_turn(case: Case) -> None:
    """Messages that come too early make their sender a dropout, and so does silence; after that, nothing it
    sends counts.
    """
    bad = BadMessagesToServer(case)
    for name in ("masked/3", "consistency/3", "unmasking/3"):
        bad.send(f"{name} in stage 1", case.session.get(name))
    case.do("server.receive", {"client": 3, "message": "dealing/3"})
    case.do("server.restore", {"bytes": "server before"})
    for v in (2, 5, 7, 11):
        case.do("server.receive", {"client": v, "message": f"dealing/{v}"})
    case.do("server.advance", {"as": "without 3/bundle"})
    # client 3 dealt nothing and has dropped out, although it signs the right view
    plan, bundle = flat_plan(), got(case, "without 3/bundle/2", Bundle)
    view = view_of(plan, got(case, "keylist", KeyList).adverts, bundle.dealers)
    honest = got(case, "masked/3", MaskedInput)
    hashed = transcript.vectors_hash(honest.vectors)
    signature = identity(3).sign(transcript.view_statement(plan.hash, 3, view, (), hashed))
    uninvited = replace(honest, signature=signature)
    out = case.do("server.receive", {"client": 3, "message": case.give("uninvited", encode(uninvited))})
    assert out == {"outcome": "dropped"}


@vector("bad_two_servers", after="masked taken")
def two_servers(case: Case) -> None:
    """The server is restored twice from the same bytes. Each stage is closed once: by the first."""
    case.do("server.save", {"as": "server before"})
    case.do("server.restore", {"bytes": "server before"})
    case.do("server.advance", {"as": "survivors"})
    case.do("server.restore", {"bytes": "server before"})
    case.do("server.advance", {"as": "survivors"}, "AlreadyUsed")
    case.do("server.advance", {"as": "survivors"}, "UsageError")

"""Operations without state: primitives, values derived from a plan, and decoded messages."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from secagg import labels
from secagg.agreement import graph
from secagg.agreement.plan import Plan
from secagg.crypto import box, hashtree, prg, shamir
from secagg.crypto.fixedpoint import Encoding, FixedPoint, Integers
from secagg.crypto.keys import AgreementKey, Identity, digest, hkdf, verify
from secagg.crypto.noise import discrete_gaussian
from secagg.crypto.prg import pairwise_keys, pairwise_sign, self_key
from secagg.exposure.schedules import Schedule, shuffled
from secagg.exposure.seed import Beacon, SeedCeremony
from secagg.protocol import transcript
from secagg.protocol.dealing import share_nonces
from secagg.protocol.messages import Unmasking
from secagg.protocol.wire import decode, encode
from secagg.types import Bytes
from secagg.whole import messages
from tests.vectors.check.session import (
    Mismatch,
    Operation,
    Session,
    Tape,
    Values,
    box_address,
    doubles,
    hexes,
    numbers,
    ring,
    row_name,
    words,
)

FIRST_WHOLE: Final = 32  # types from here on are messages of whole groups

# --- primitives ----------------------------------------------------------------------------------------


def _label(_: Session, v: Values) -> Values:
    return {"bytes": getattr(labels, v["name"]).hex()}


def _hkdf(_: Session, v: Values) -> Values:
    return {"okm": hkdf(bytes.fromhex(v["secret"]), bytes.fromhex(v["info"]), v["length"]).hex()}


def _digest(_: Session, v: Values) -> Values:
    return {"hash": digest(getattr(labels, v["label"]), *hexes(v["parts"])).hex()}


def _discrete_gaussian(_: Session, v: Values) -> Values:
    """Integers from `first` on of those that a key gives."""
    key, stop = bytes.fromhex(v["key"]), v["first"] + v["count"]
    found = discrete_gaussian(stop, v["sigma"], entropy=lambda _: key)
    return {"samples": found[v["first"] :].tolist()}


def _x25519_public(_: Session, v: Values) -> Values:
    return {"public": AgreementKey.from_private(bytes.fromhex(v["private"])).public.hex()}


def _x25519_agree(_: Session, v: Values) -> Values:
    key = AgreementKey.from_private(bytes.fromhex(v["private"]))
    return {"secret": key.agree(bytes.fromhex(v["public"])).hex()}


def one_row(data: bytes) -> Bytes:
    """The argument of a function that takes many rows."""
    return np.frombuffer(data, np.uint8).reshape(1, -1)


def _ed25519_sign(_: Session, v: Values) -> Values:
    identity = Identity.from_private(bytes.fromhex(v["private"]))
    return {"public": identity.public.hex(), "signature": identity.sign(bytes.fromhex(v["message"])).hex()}


def _ed25519_verify(_: Session, v: Values) -> Values:
    public, signature, message = hexes([v["public"], v["signature"], v["message"]])
    verify(public, signature, message, signer=v["signer"])
    return {}


def _aes_ctr(_: Session, v: Values) -> Values:
    mask = np.zeros(v["length"], np.uint32)
    prg.add_masks(mask, [bytes.fromhex(v["key"])], [v["sign"]], offset=v["offset"])
    return {"words": words(mask)}


def _box_seal(_: Session, v: Values) -> Values:
    agreed, plan_hash, content = hexes([v["agreed"], v["plan_hash"], v["content"]])
    entropy = Tape("the nonce", [v["nonce"]])
    [key] = box.box_keys([agreed], plan_hash, [(v["sender"], v["receiver"])])
    sealed = box.seal(key, plan_hash, v["sender"], v["receiver"], content, entropy)
    address = box_address(plan_hash, v["sender"], v["receiver"])
    return {"address": address.hex(), "key": key.hex(), "box": sealed.hex()}


def _box_unseal(_: Session, v: Values) -> Values:
    agreed, plan_hash, sealed = hexes([v["agreed"], v["plan_hash"], v["box"]])
    [key] = box.box_keys([agreed], plan_hash, [(v["sender"], v["receiver"])])
    return {"content": box.unseal(key, plan_hash, v["sender"], v["receiver"], sealed).hex()}


def _shamir_split(_: Session, v: Values) -> Values:
    entropy = Tape("the polynomials", v["entropy"])
    shares = shamir.split_each(hexes(v["secrets"]), v["threshold"], v["indices"], entropy)
    if entropy.left:
        raise Mismatch(f"{entropy.left} draws of the polynomials were not used")
    return {"shares": [[share.tobytes().hex() for share in row] for row in shares]}


def _shamir_combine(_: Session, v: Values) -> Values:
    weights = shamir.coefficients(v["indices"])
    (secret,) = shamir.combine_each(weights, [hexes(v["shares"])])
    return {
        "coefficients": [value.tobytes().hex() for value in weights],
        "secret": None if secret is None else secret.hex(),
    }


def _encoding(v: Values) -> Encoding:
    if "clip" in v:
        return FixedPoint(clients=v["clients"], clip=v["clip"])
    return Integers(clients=v["clients"], bound=v["bound"])


def _encode(_: Session, v: Values) -> Values:
    encoding = _encoding(v)
    encoded, clipped = encoding.encode(numbers(v["update"]), weight=v["weight"])
    bits = {"frac_bits": encoding.frac_bits} if isinstance(encoding, FixedPoint) else {}
    return {**bits, "encoded": words(encoded), "clipped": clipped}


def _decode(_: Session, v: Values) -> Values:
    values = _encoding(v).decode(ring(v["total"]), divisor=v["divisor"])
    values = values.astype(np.float32) if "clip" in v else values  # as in a model
    return {"values": values.astype(values.dtype.newbyteorder("<")).tobytes().hex()}


def _tree(_: Session, v: Values) -> Values:
    leaves = [hashtree.leaves(one_row(content)) for content in hexes(v["contents"])]
    levels = hashtree.levels(b"".join(leaves))
    proofs = [[step.hex() for step in hashtree.proof(levels, place)] for place in range(len(leaves))]
    return {"levels": [level.hex() for level in levels], "root": levels[-1].hex(), "proofs": proofs}


def _tree_climb(_: Session, v: Values) -> Values:
    leaf = one_row(hashtree.leaves(one_row(bytes.fromhex(v["content"]))))
    return {"root": hashtree.roots(leaf, [v["place"]], [hexes(v["siblings"])])[0].hex()}


def _shuffle(_: Session, v: Values) -> Values:
    purpose = v["purpose"].encode("ascii")
    return {"order": shuffled(v["items"], bytes.fromhex(v["seed"]), v["round"], purpose, v["index"])}


def _schedule(_: Session, v: Values) -> Values:
    schedule = Schedule(name=v["name"], size=v["size"], groupings=v["groupings"], atom=v["atom"])
    seed = bytes.fromhex(v["seed"])
    return {
        "groupings": _lists(schedule.draw(v["ids"], seed, v["round"])),
        "atoms": _lists(schedule.atoms(v["ids"], seed, v["round"])),
        "columns": _lists(schedule.columns(v["ids"], seed, v["round"])),
    }


def _seed(_: Session, v: Values) -> Values:
    ceremony = SeedCeremony(training_id=bytes.fromhex(v["training_id"]), roster=tuple(v["ids"]))
    drawn = {int(client): bytes.fromhex(text) for client, text in v["contributions"].items()}
    committed = {int(client): bytes.fromhex(text) for client, text in v["commitments"].items()}
    return {"seed": ceremony.seed(committed, drawn).hex()}


def _seed_contribution(_: Session, v: Values) -> Values:
    ceremony = SeedCeremony(training_id=bytes.fromhex(v["training_id"]), roster=tuple(v["ids"]))
    return {"commitment": ceremony.commitment(v["client"], bytes.fromhex(v["contribution"])).hex()}


def _seed_beacon(_: Session, v: Values) -> Values:
    beacon = Beacon(name=v["name"], pulse=v["pulse"])
    return {"seed": beacon.seed(*hexes([v["training_id"], v["value"]])).hex()}


def _lists(value: Any) -> Any:
    return [_lists(item) for item in value] if isinstance(value, (tuple, list)) else value


def _graph(_: Session, v: Values) -> Values:
    seed = bytes.fromhex(v["seed"])
    near = graph.neighbours(v["ids"], v["degree"], seed)
    return {
        "circle": graph.circle(v["ids"], seed),
        "neighbours": {str(client): list(peers) for client, peers in near.items()},
    }


def _plan(s: Session, v: Values) -> Values:
    plan = Plan.from_bytes(s.get(v["plan"]))
    bits = [one.frac_bits if isinstance(one, FixedPoint) else None for one in plan.encoding.encodings]
    several = {
        "segments": [
            {"name": one.name, "shape": list(one.shape), "clip": one.clip, "bound": one.bound, "frac_bits": f}
            for one, f in zip(plan.segments, bits, strict=bool(plan.segments))
        ]
    }
    return {
        **(several if plan.segments else {}),
        "training_id": plan.training_id.hex(),
        "round": plan.round,
        "roster": {str(member.id): member.identity.hex() for member in plan.roster},
        "threshold": plan.t,
        "colluders": plan.assumed_colluders,
        "length": plan.length,
        "clip": plan.clip,
        "bound": plan.bound,
        "frac_bits": None if plan.segments else bits[0],
        "weights": list(plan.weights),
        "relative_weights": doubles([plan.relative_weight(v) for v in plan.ids]),
        "schedule": plan.schedule.name,
        "size": plan.schedule.size,
        "training_seed": plan.training_seed.hex(),
        "policy": {
            "min_survivors": plan.policy.min_survivors,
            "anonymity": plan.policy.anonymity,
            "max_leverage": plan.policy.max_leverage,
            "mode": plan.policy.mode,
        },
        "degree": plan.degree,
        "context": plan.context.hex(),
        "roster_hash": plan.roster_hash.hex(),
        "hash": plan.hash.hex(),
        "groupings": _lists(plan.groupings),
        "atoms": _lists(plan.atoms),
        "peers": {str(v): list(plan.peers(v)) for v in plan.ids} if plan.degree else None,
    }


def _audit(s: Session, v: Values) -> Values:
    plan = Plan.from_bytes(s.get(v["plan"]))
    verdict = plan.audit(v["survivors"])
    return {
        "leave_with_their_atom": list(plan.in_broken_atoms(v["survivors"])),
        "rows": [row_name(row) for row in sorted(verdict.opened)],
        "closed": [row_name(row) for row in sorted(verdict.closed)],
    }


def _message(s: Session, v: Values) -> Values:
    data = s.get(v["message"])
    whole = len(data) > 1 and data[1] >= FIRST_WHOLE
    message: Any = messages.decode(data) if whole else decode(data)
    if (messages.encode(message) if whole else encode(message)) != data:
        raise Mismatch("the message has another encoding")
    return {"type": type(message).__name__, "fields": _fields(message)}


def _fields(value: Any) -> Any:
    """A message as JSON, field by field."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, np.ndarray):
        return [words(row) for row in value]
    if isinstance(value, tuple):
        return [_fields(item) for item in value]
    if isinstance(value, int):
        return value
    names = {"groups": "rows"}  # as the files call them
    return {names.get(name, name): _fields(getattr(value, name)) for name in value.__dataclass_fields__}


def _pairwise_key(_: Session, v: Values) -> Values:
    agreed, plan_hash = hexes([v["agreed"], v["plan_hash"]])
    pairs = np.array([[v["a"], v["b"], v["grouping"]]], np.uint32)
    key = pairwise_keys(one_row(agreed), plan_hash, pairs)
    return {"key": key.tobytes().hex(), "sign_of_a": pairwise_sign(v["a"], v["b"])}


def _self_key(_: Session, v: Values) -> Values:
    seed, plan_hash = hexes([v["seed"], v["plan_hash"]])
    return {"key": self_key(seed, plan_hash, v["owner"], v["grouping"]).hex()}


def _share_hash(_: Session, v: Values) -> Values:
    plan_hash, share, pair_nonce = hexes([v["plan_hash"], v["share"], v["pair_nonce"]])
    nonce = share_nonces(one_row(pair_nonce), v["secret"] + 1)[-1].tobytes()
    ids = np.array([[v["dealer"], v["holder"], v["secret"]]], np.uint32)
    found = transcript.share_hashes(plan_hash, ids, one_row(share + nonce))
    return {"nonce": nonce.hex(), "hash": found.tobytes().hex()}


def _seed_commitment(_: Session, v: Values) -> Values:
    plan_hash, seed = hexes([v["plan_hash"], v["seed"]])
    return {"commitment": transcript.seed_commitment(plan_hash, v["owner"], v["grouping"], seed).hex()}


def _unmasking_signed(s: Session, v: Values) -> Values:
    message = decode(s.get(v["message"]))
    assert isinstance(message, Unmasking)
    plan = Plan.from_bytes(s.get(v["plan"]))
    return {"signed": transcript.unmasking_statement(plan.hash, message).hex()}


OPERATIONS: Final[Mapping[str, Operation]] = {
    "discrete-gaussian": _discrete_gaussian,
    "label": _label,
    "hash": _digest,
    "hkdf": _hkdf,
    "x25519.public": _x25519_public,
    "x25519.agree": _x25519_agree,
    "ed25519.sign": _ed25519_sign,
    "ed25519.verify": _ed25519_verify,
    "aes-ctr": _aes_ctr,
    "box.seal": _box_seal,
    "box.unseal": _box_unseal,
    "shamir.split": _shamir_split,
    "shamir.combine": _shamir_combine,
    "encode": _encode,
    "decode": _decode,
    "tree": _tree,
    "tree.climb": _tree_climb,
    "shuffle": _shuffle,
    "schedule": _schedule,
    "graph": _graph,
    "seed.contribution": _seed_contribution,
    "seed": _seed,
    "seed.beacon": _seed_beacon,
    "plan": _plan,
    "audit": _audit,
    "message": _message,
    "pairwise-key": _pairwise_key,
    "self-key": _self_key,
    "share-hash": _share_hash,
    "seed-commitment": _seed_commitment,
    "unmasking.signed": _unmasking_signed,
}

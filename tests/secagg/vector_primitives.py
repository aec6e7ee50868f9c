"""Vectors of the primitives, and of values that are derived from public ones."""

from itertools import pairwise
from typing import Any

import numpy as np

from secagg import labels
from secagg.crypto import shamir
from secagg.crypto.keys import _RULE as RULE
from secagg.crypto.keys import LOW_ORDER_POINTS, AgreementKey, Identity
from tests.secagg.drbg import Drbg
from tests.secagg.vector_case import Case, vector
from tests.vectors.check.session import doubles

PLAN_HASH = Drbg(b"vectors/plan hash")(32)
OTHER_HASH = Drbg(b"vectors/other plan hash")(32)
AGREED = Drbg(b"vectors/agreed")(32)
SEED = Drbg(b"vectors/seed")(32)
ED25519_ORDER = 2**252 + 27742317777372353535851937790883648493
FIELD_25519 = 2**255 - 19

# RFC 7748, section 6.1: private and public keys of Alice and Bob, and their secret
RFC_7748 = (
    ("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a",
     "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"),
    ("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb",
     "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"),
)  # fmt: skip
RFC_7748_SECRET = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
# RFC 8032, section 7.1, tests 1 and 2: private key, message, signature
RFC_8032 = (
    ("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60", "",
     "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
     "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"),
    ("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb", "72",
     "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
     "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"),
)  # fmt: skip


@vector("labels")
def label_list(case: Case) -> None:
    """Every domain-separation label, byte for byte."""
    for name in sorted(dir(labels)):
        if name[0].isupper() and isinstance(getattr(labels, name), bytes):
            case.do("label", {"name": name})


@vector("hkdf_and_hash")
def hashing(case: Case) -> None:
    """HKDF-SHA256 with an empty salt, and SHA-256 of a label and parts."""
    rfc = case.do("hkdf", {"secret": "0b" * 22, "info": "", "length": 32})  # first block of RFC 5869, A.3
    assert rfc["okm"] == "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
    info = labels.SELF_MASK + PLAN_HASH + bytes(8)
    for length in (1, 16, 32):
        case.do("hkdf", {"secret": AGREED.hex(), "info": info.hex(), "length": length})
    for length in (0, 33):
        case.do("hkdf", {"secret": AGREED.hex(), "info": info.hex(), "length": length}, "UsageError")
    case.do("hash", {"label": "PLAN", "parts": []})
    case.do("hash", {"label": "VIEW", "parts": [PLAN_HASH.hex(), "00000000"]})


@vector("x25519")
def agreement(case: Case) -> None:
    """X25519 key pairs and agreements: RFC 7748, section 6.1, and two more pairs."""
    for private, public in RFC_7748:
        assert case.do("x25519.public", {"private": private})["public"] == public
    (a, public_a), (b, public_b) = RFC_7748
    assert case.do("x25519.agree", {"private": a, "public": public_b})["secret"] == RFC_7748_SECRET
    assert case.do("x25519.agree", {"private": b, "public": public_a})["secret"] == RFC_7748_SECRET
    ours = [Drbg(f"vectors/x25519/{k}".encode())(32) for k in range(3)]
    for private in ours:
        case.do("x25519.public", {"private": private.hex()})
    for one, other in pairwise(ours):
        public = AgreementKey.from_private(other).public.hex()
        case.do("x25519.agree", {"private": one.hex(), "public": public})


@vector("bad_x25519_keys")
def bad_agreement(case: Case) -> None:
    """Public keys of low order, and every encoding that is not canonical (u >= 2^255 - 19, or the top bit
    set), are refused before an agreement is computed.
    """
    private = Drbg(b"vectors/x25519/0")(32).hex()
    odd = [FIELD_25519 + k for k in range(19)]  # every value from p to 2^255 - 1
    odd += [value + 2**255 for value in (0, 1, 9, FIELD_25519 - 1)]  # the bit that RFC 7748 would ignore
    publics = sorted(LOW_ORDER_POINTS) + [value.to_bytes(32, "little") for value in odd]
    for public in publics:
        case.do("x25519.agree", {"private": private, "public": public.hex()}, "PeerError")
    for size in (0, 31, 33):
        case.do("x25519.agree", {"private": private, "public": "09" * size}, "PeerError")


@vector("ed25519")
def signatures(case: Case) -> None:
    """Ed25519 signatures: RFC 8032, section 7.1, tests 1 and 2, and one under a label."""
    mine = labels.SIGN_KEYS + PLAN_HASH
    for private, message, wanted in (*RFC_8032, (Drbg(b"vectors/ed25519")(32).hex(), mine.hex(), None)):
        out = case.do("ed25519.sign", {"private": private, "message": message})
        assert wanted in (None, out["signature"])
        case.do("ed25519.verify", {**out, "message": message, "signer": 1})


@vector("bad_ed25519")
def bad_signatures(case: Case) -> None:
    """Signatures that must not verify; the error names the signer."""
    signer, other = (Identity.generate(Drbg(name)) for name in (b"vectors/ed25519", b"vectors/ed25519/2"))
    message = labels.SIGN_VIEW + PLAN_HASH
    good = signer.sign(message)
    scalar = int.from_bytes(good[32:], "little") + ED25519_ORDER
    for public, signature, signed in (
        (signer.public, good, message + b"\x00"),
        (signer.public, good, labels.SIGN_OPENING + PLAN_HASH),
        (signer.public, good, labels.SIGN_VIEW + OTHER_HASH),
        (other.public, good, message),
        (signer.public, bytes([good[0] ^ 1]) + good[1:], message),
        (signer.public, good[:-1] + bytes([good[-1] ^ 1]), message),
        (signer.public, good[:32] + scalar.to_bytes(32, "little"), message),  # malleable: S + L
        (signer.public, bytes(64), message),
        (signer.public, good[:63], message),
        (b"\x02" + bytes(31), good, message),  # not a point of the curve
        (signer.public[:31], good, message),
        (signer.public + b"\x00", good, message),
    ):
        values = {"public": public.hex(), "signature": signature.hex(), "message": signed.hex(), "signer": 4}
        case.do("ed25519.verify", values, "PeerError")
    for _, accepted, by, made in RULE:  # points of small order; rules with and without the cofactor
        values = {"public": by, "signature": made, "message": b"which rule".hex(), "signer": 4}
        case.do("ed25519.verify", values, *(() if accepted else ("PeerError",)))


@vector("aes_ctr")
def streams(case: Case) -> None:
    """AES-128-CTR streams as words: FIPS 197 at key zero, offsets, lengths and signs."""
    zero = case.do("aes-ctr", {"key": "00" * 16, "length": 4, "offset": 0, "sign": 1})
    assert zero["words"] == "66e94bd4ef8a2c3b884cfa59ca342b2e"  # AES-128 of the zero block
    key = Drbg(b"vectors/aes")(16).hex()
    for length, offset, sign in ((0, 0, 1), (1, 0, 1), (9, 0, 1), (9, 0, -1), (7, 3, 1), (8, 1023, 1)):
        case.do("aes-ctr", {"key": key, "length": length, "offset": offset, "sign": sign})
    case.do("aes-ctr", {"key": key, "length": 9, "offset": 2**34 - 5, "sign": 1})  # counters pass 2^32
    for wrong in ({"key": key[:-2]}, {"sign": 0}, {"offset": -1}):
        good: dict[str, Any] = {"key": key, "length": 4, "offset": 0, "sign": 1}
        case.do("aes-ctr", {**good, **wrong}, "UsageError")


def _box(**changes: Any) -> dict[str, Any]:
    return {"agreed": AGREED.hex(), "plan_hash": PLAN_HASH.hex(), "sender": 2, "receiver": 5, **changes}


@vector("box")
def boxes(case: Case) -> None:
    """Sealed boxes: their address, key, nonce, ciphertext and tag."""
    for place, size in enumerate((0, 1, 98)):
        content = Drbg(f"vectors/box/{place}".encode())(size)
        nonce = Drbg(f"vectors/box nonce/{place}".encode())(12)
        sealed = case.do("box.seal", _box(content=content.hex(), nonce=nonce.hex()))["box"]
        assert case.do("box.unseal", _box(box=sealed)) == {"content": content.hex()}


@vector("bad_box")
def bad_boxes(case: Case) -> None:
    """Boxes that must not open: reflected, redirected, of another run, cut or changed."""
    content, nonce = Drbg(b"vectors/box")(98), Drbg(b"vectors/box nonce")(12)
    sealed = case.do("box.seal", _box(content=content.hex(), nonce=nonce.hex()))["box"]
    flipped = f"{int(sealed[:2], 16) ^ 1:02x}" + sealed[2:]
    for changes in (
        {"sender": 5, "receiver": 2},  # reflected to its sender
        {"receiver": 7},
        {"sender": 3},
        {"plan_hash": OTHER_HASH.hex()},
        {"agreed": bytes(32).hex()},
        {"box": flipped},
        {"box": sealed[:-2]},
        {"box": sealed + "00"},
        {"box": sealed[:24]},
        {"box": ""},
    ):
        case.do("box.unseal", _box(**{"box": sealed, **changes}), "PeerError")


def _field(value: int) -> str:
    return value.to_bytes(shamir.SHARE_BYTES, "little").hex()


@vector("shamir")
def sharing(case: Case) -> None:
    """Shares of 32-byte secrets: which draws become coefficients, the shares, the Lagrange coefficients at 0,
    and the secret again. A candidate >= 2^257 - 93 is skipped and another one drawn.
    """
    low = Drbg(b"vectors/shamir/low")
    plain = [low(33 * 2), low(33 * 2)]
    over = shamir.PRIME.to_bytes(33, "little")
    top = (shamir.PRIME - 1 + 2**260).to_bytes(33, "little")  # bits above 257 do not count
    cases: list[tuple[list[bytes], int, list[int], list[bytes]]] = [
        ([bytes(32), b"\xff" * 32], 3, [1, 2, 3, 4, 5], plain),
        ([low(32)], 2, [1, 65535], [low(33)]),
        ([low(32)], 1, [7], []),
        ([low(32)], 3, [9, 2, 4], [over + top, bytes(33)]),  # p is skipped, p - 1 and 0 are accepted
        ([low(32)], 3, [1, 2, 3], [over + over, over, low(33), over, low(33)]),
        ([low(32)], 5, [1, 2, 3, 4, 5], [low(33 * 4)]),
    ]
    for secrets, threshold, indices, entropy in cases:
        drawn = {"entropy": [draw.hex() for draw in entropy]}
        given = {"secrets": [s.hex() for s in secrets], "threshold": threshold, "indices": indices}
        shares = case.do("shamir.split", {**given, **drawn})["shares"]
        for secret, row in zip(secrets, shares, strict=True):
            for some in (slice(0, threshold), slice(len(indices) - threshold, None), slice(None)):
                out = case.do("shamir.combine", {"indices": indices[some], "shares": row[some]})
                assert out["secret"] == secret.hex()


@vector("bad_shamir")
def bad_sharing(case: Case) -> None:
    """Index 0 (the secret itself), indices that repeat or do not fit, shares that are not field elements,
    thresholds that make no sense, and shares that do not belong together (no secret: null).
    """
    secret, entropy = Drbg(b"vectors/shamir")(32).hex(), [Drbg(b"vectors/shamir/a")(33).hex()]
    good: dict[str, Any] = {"secrets": [secret], "threshold": 2, "indices": [1, 2, 3], "entropy": entropy}
    shares = case.do("shamir.split", good)["shares"][0]
    for changes in (
        {"indices": [0, 1, 2]},
        {"indices": [1, 1, 2]},
        {"indices": [1, 2, 65536]},
        {"indices": []},
        {"threshold": 0},
        {"threshold": 4},
        {"secrets": [secret + "00"]},
        {"secrets": [secret[:-2]]},
    ):
        case.do("shamir.split", {**good, **changes, "entropy": []}, "UsageError")
    for indices in ([0, 1], [2, 2], [1, 65536], []):
        case.do("shamir.combine", {"indices": indices, "shares": shares[: len(indices)]}, "UsageError")
    for wrong in (_field(shamir.PRIME), "ff" * 33, shares[1][:-2], shares[1] + "00"):
        case.do("shamir.combine", {"indices": [1, 2], "shares": [shares[0], wrong]}, "UsageError")
    # f(1) = f(2) = 2^256 gives f(0) = 2^256, which does not fit in 32 bytes
    apart = case.do("shamir.combine", {"indices": [1, 2], "shares": [_field(2**256)] * 2})
    assert apart["secret"] is None


@vector("fixed_point")
def fixed_point(case: Case) -> None:
    """Floats to the ring and back: the scale for a number of clients and a clip, rounding to nearest with
    ties to even, clipping, weights, and the float32 that a total and a divisor stand for.
    """
    shapes = ((1, 1.0), (3, 1.0), (5, 1.0), (60, 0.25), (100, 3.0), (7, 1e-9), (2, 1e6), (10, 2.0**100))
    for clients, clip in shapes:
        values = np.array([0, 1, -1, 0.5, -0.3, 1 / 3, 1.5, -7]) * clip
        for weight in (1.0, 0.4, 2.5):
            update = {"f64": doubles(values)}
            case.do("encode", {"clients": clients, "clip": clip, "update": update, "weight": weight})
    ties = {"f64": doubles(np.array([0.5, 1.5, 2.5, -0.5, -1.5]) * 2.0**-30)}  # the scale of this clip is 2^30
    case.do("encode", {"clients": 1, "clip": 1.0, "update": ties, "weight": 1.0})
    single = {"f32": np.array([0.1, -0.7, 3], "<f4").tobytes().hex()}
    case.do("encode", {"clients": 4, "clip": 2.0, "update": single, "weight": 0.75})
    totals = np.array([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 123456789], "<u4").tobytes().hex()
    for clients, clip in shapes:
        for divisor in (1.0, 3.0, 0.7):
            case.do("decode", {"clients": clients, "clip": clip, "total": totals, "divisor": divisor})


@vector("integers")
def integers(case: Case) -> None:
    """Exact integers to the ring and back."""
    for clients, bound in ((1, 2**31 - 1), (5, 1000), (65535, 32767), (3, 0)):
        values = [0, bound, -bound, bound // 2]
        out = case.do("encode", {"clients": clients, "bound": bound, "update": {"i64": values}, "weight": 1.0})
        case.do("decode", {"clients": clients, "bound": bound, "total": out["encoded"], "divisor": 1.0})


@vector("bad_numbers")
def bad_numbers(case: Case) -> None:
    """Numbers that cannot be encoded, and encodings whose sums could wrap."""
    fine = {"f64": doubles([0.5])}
    for changes in (
        {"update": {"f64": doubles([0.1, np.nan])}},
        {"update": {"f64": doubles([np.inf])}},
        {"update": {"f64": doubles([-np.inf])}},
        {"update": {"i64": [1]}},
        {"weight": 0.0},
        {"weight": -1.0},
        {"clients": 0},
        {"clip": 0.0},
        {"clip": -1.0},
        {"clip": 1e39},
        {"clip": 2.0**-65},
        {"clients": 2**32},
    ):
        good: dict[str, Any] = {"clients": 5, "clip": 1.0, "update": fine, "weight": 1.0}
        case.do("encode", {**good, **changes}, "UsageError")
    for changes in (
        {"update": {"i64": [11]}},
        {"update": {"i64": [-11]}},
        {"update": {"i64": [2**32]}},
        {"update": fine},
        {"weight": 2.0},
        {"bound": -1},
        {"bound": 2**31},
        {"clients": 2**28, "bound": 8},
    ):
        good = {"clients": 5, "bound": 10, "update": {"i64": [1]}, "weight": 1.0}
        case.do("encode", {**good, **changes}, "UsageError")


@vector("hash_tree")
def trees(case: Case) -> None:
    """Roots, levels and proofs of trees of 1 to 9 leaves, and what a wrong proof gives."""
    for count in (1, 2, 3, 4, 5, 9):
        contents = [Drbg(f"vectors/leaf/{k}".encode())(64).hex() for k in range(count)]
        out = case.do("tree", {"contents": contents})
        for place in {0, count - 1}:
            climbed = case.do(
                "tree.climb", {"content": contents[place], "place": place, "siblings": out["proofs"][place]}
            )
            assert climbed["root"] == out["root"]
    wrong = case.do("tree.climb", {"content": contents[3], "place": 2, "siblings": out["proofs"][3]})
    assert wrong["root"] != out["root"]


@vector("derived")
def derived_keys(case: Case) -> None:
    """Mask keys from agreed secrets and seeds, nonces and hashes of shares, commitments to seeds."""
    common = {"plan_hash": PLAN_HASH.hex()}
    for a, b, grouping in ((2, 5, 0), (5, 2, 0), (2, 5, 1), (2, 2**32 - 1, 0)):
        case.do("pairwise-key", {"agreed": AGREED.hex(), **common, "a": a, "b": b, "grouping": grouping})
    for owner, grouping in ((2, 0), (2, 1), (5, 0)):
        case.do("self-key", {"seed": SEED.hex(), **common, "owner": owner, "grouping": grouping})
        case.do("seed-commitment", {"seed": SEED.hex(), **common, "owner": owner, "grouping": grouping})
    share = Drbg(b"vectors/share")(32).hex() + "00"
    for dealer, holder, secret in ((2, 5, 0), (2, 5, 1), (5, 2, 0)):
        ids = {"dealer": dealer, "holder": holder, "secret": secret}
        case.do("share-hash", {**common, **ids, "share": share, "pair_nonce": SEED.hex()})


SCHEDULES: tuple[tuple[str, int, int, int, int], ...] = (
    ("random", 5, 5, 1, 0),
    ("random", 6, 3, 2, 0),
    ("random", 11, 4, 3, 0),
    ("fixed", 8, 4, 2, 0),
    ("transversal", 9, 3, 2, 0),
    ("transversal", 16, 3, 3, 0),
    ("atoms", 13, 6, 2, 3),
    ("atoms", 12, 4, 3, 2),
)


@vector("schedules")
def schedules(case: Case) -> None:
    """Shuffles and groupings drawn from a training seed and a round, with those left out."""
    for purpose, index in (("lot", 0), ("grouping", 0), ("grouping", 1)):
        values = {"items": list(range(8)), "seed": SEED.hex(), "purpose": purpose, "index": index}
        case.do("shuffle", {**values, "round": 3})
        case.do("shuffle", {**values, "round": None})
    for name, n, size, groupings, atom in SCHEDULES:
        ids = [3 * k + 1 for k in range(n)]
        for round in (0, 1):
            shape = {"name": name, "size": size, "groupings": groupings, "atom": atom}
            case.do("schedule", {**shape, "ids": ids, "seed": SEED.hex(), "round": round})


@vector("bad_schedules")
def bad_schedules(case: Case) -> None:
    """Schedules that hide nobody, repeat themselves or cannot be drawn."""
    good: dict[str, Any] = {"name": "random", "size": 3, "groupings": 2, "atom": 0, "ids": list(range(9))}
    for changes in (
        {"name": "chosen"},
        {"size": 1},
        {"size": 10},
        {"size": 9},  # two groupings of one group are equal
        {"groupings": 0},
        {"atom": 3},
        {"name": "atoms", "atom": 1},
        {"name": "atoms", "atom": 2},  # does not divide the group size
        {"name": "atoms", "atom": 3},  # every atom is a whole group, so the groupings are equal
        {"name": "transversal", "groupings": 4},
        {"ids": [0, 2, 1, 3, 4, 5]},
        {"ids": [0, 1, 1, 2, 3, 4]},
        {"ids": [0, 1, 2, 3, 4, 2**32]},
        {"seed": "00" * 15},
        {"round": -1},
        {"round": 2**63},
    ):
        case.do("schedule", {**good, "seed": SEED.hex(), "round": 0, **changes}, "UsageError")


@vector("neighbours")
def graphs(case: Case) -> None:
    """The circle and the neighbours of the sparse mode, and degrees that no circle has."""
    out = case.do("graph", {"ids": list(range(10)), "degree": 4, "seed": ""})
    assert out["circle"] == [8, 0, 4, 6, 9, 5, 1, 7, 2, 3]
    for degree in (2, 6):
        seed = (SEED + (7).to_bytes(8, "little")).hex()
        case.do("graph", {"ids": [3 * k + 1 for k in range(8)], "degree": degree, "seed": seed})
    for degree in (0, 1, 3, 8, 10):
        case.do("graph", {"ids": list(range(8)), "degree": degree, "seed": ""}, "UsageError")


@vector("training_seed")
def training_seeds(case: Case) -> None:
    """The training seed by commit and reveal, and from a beacon. Somebody who does not commit, does not
    reveal or reveals something else is named.
    """
    common = {"training_id": SEED.hex(), "ids": [1, 4, 9]}
    drawn = {str(v): Drbg(f"vectors/contribution/{v}".encode())(32).hex() for v in common["ids"]}
    committed = {
        v: case.do("seed.contribution", {**common, "client": int(v), "contribution": drawn[v]})["commitment"]
        for v in drawn
    }
    good = {**common, "contributions": drawn, "commitments": committed}
    case.do("seed", good)
    fewer = {v: text for v, text in drawn.items() if v != "4"}
    case.do("seed", {**good, "contributions": fewer}, "NotRevealed")
    case.do("seed", {**good, "contributions": {**drawn, "4": drawn["9"]}}, "WronglyRevealed")
    copied = {**committed, "4": committed["9"]}  # the owner's id is part of the commitment
    opened = {**drawn, "4": drawn["9"]}
    case.do("seed", {**good, "commitments": copied, "contributions": opened}, "WronglyRevealed")
    silent = {v: text for v, text in committed.items() if v != "4"}
    case.do("seed", {**good, "commitments": silent}, "NotCommitted")
    pulse = {"name": "a beacon", "pulse": 123, "training_id": SEED.hex()}
    case.do("seed.beacon", {**pulse, "value": OTHER_HASH.hex()})
    case.do("seed.beacon", {**pulse, "value": "00" * 31}, "UsageError")

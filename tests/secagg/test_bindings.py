"""What every statement, hash, key and box binds: change any one part, and it is another.

A signature or a mask that left one of these out could be moved: to another run, client, grouping or holder.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secagg import PeerError, Stage
from secagg.crypto import box
from secagg.crypto.keys import digest
from secagg.crypto.prg import mask, pairwise_keys, pairwise_sign, self_key
from secagg.protocol import transcript
from secagg.protocol.messages import Dealer, Dealing, KeyAdvert, MaskedInput, Survivor, Unmasking
from tests.secagg.cluster import make_plan
from tests.secagg.malicious import World

A, B, C = (digest(name) for name in (b"a", b"b", b"c"))
ADVERT = KeyAdvert(1, A, B, bytes(64))
DEALER = Dealer(1, (A, B), C)
DEALING = Dealing(1, (A, B), C, bytes(64), b"", b"")
SHARES = Unmasking(1, b"own", (1, 2), b"seeds", (3,), b"keys", bytes(64))
SURVIVOR = Survivor(1, (2,), A, bytes(64))
ROWS = np.arange(6, dtype=np.uint32).reshape(2, 3)
PLAN = make_plan(4)


# name -> (function, arguments, other values for each argument)
def pairwise_key(agreed: bytes, plan_hash: bytes, a: int, b: int, grouping: int) -> bytes:
    pairs = np.array([[a, b, grouping]], np.uint32)
    return pairwise_keys(np.frombuffer(agreed, np.uint8).reshape(1, -1), plan_hash, pairs).tobytes()


def share_hash(plan_hash: bytes, dealer: int, holder: int, secret: int, share: bytes, nonce: bytes) -> bytes:
    ids, entries = np.array([[dealer, holder, secret]], np.uint32), np.frombuffer(share + nonce, np.uint8)
    return transcript.share_hashes(plan_hash, ids, entries.reshape(1, -1)).tobytes()


BOUND: dict[str, tuple[Any, dict[str, Any], dict[str, list[Any]]]] = {
    "stage 0 signature": (
        transcript.key_statement,
        {"training_id": A, "round": 1, "roster_hash": B, "advert": ADVERT},
        {
            "training_id": [B],
            "round": [0, 2, 2**32 + 1],
            "roster_hash": [A],
            "advert": [replace(ADVERT, sender=2), replace(ADVERT, channel=C), replace(ADVERT, mask=C)],
        },
    ),
    "hash of a dealing": (
        transcript.dealing_hash,
        {"dealing": DEALING},
        {
            "dealing": [
                replace(DEALING, commitments=(A, C)),
                replace(DEALING, commitments=(A,)),
                replace(DEALING, commitments=(B, A)),
                replace(DEALING, root=A),
            ]
        },
    ),
    "stage 1 signature": (
        transcript.dealing_statement,
        {"plan_hash": A, "advert": ADVERT, "dealing": DEALING},
        {
            "plan_hash": [B],
            "advert": [replace(ADVERT, sender=2), replace(ADVERT, channel=C), replace(ADVERT, mask=C)],
            "dealing": [
                replace(DEALING, commitments=(A, C)),
                replace(DEALING, commitments=(A,)),
                replace(DEALING, commitments=(B, A)),
                replace(DEALING, root=A),
            ],
        },
    ),
    "view of U2": (
        transcript.view,
        {"plan_hash": A, "members": [(ADVERT, DEALER)]},
        {
            "plan_hash": [B],
            "members": [
                [],
                [(replace(ADVERT, channel=C), DEALER)],
                [(replace(ADVERT, mask=C), DEALER)],
                [(ADVERT, replace(DEALER, id=2))],
                [(ADVERT, replace(DEALER, commitments=(A, C)))],
                [(ADVERT, replace(DEALER, root=A))],
                [(ADVERT, DEALER), (replace(ADVERT, sender=2), replace(DEALER, id=2))],
            ],
        },
    ),
    "stage 2 signature": (
        transcript.view_statement,
        {"plan_hash": A, "sender": 1, "view_digest": B, "disputes": (2, 3), "hashed": C},
        {
            "plan_hash": [B],
            "sender": [2],
            "view_digest": [C],
            "disputes": [(), (2,), (2, 4), (2, 3, 4)],
            "hashed": [A, B],
        },
    ),
    "hash of masked vectors": (
        transcript.vectors_hash,
        {"vectors": ROWS},
        {"vectors": [ROWS[:1], ROWS[::-1], ROWS + 1, ROWS[:, :2], ROWS.reshape(3, 2), ROWS.reshape(1, 6), ROWS[:0]]},
    ),
    "hash of all masked inputs": (
        transcript.inputs_hash,
        {"members": [SURVIVOR]},
        {
            "members": [
                [],
                [replace(SURVIVOR, id=2)],
                [replace(SURVIVOR, vectors_hash=B)],
                [SURVIVOR, replace(SURVIVOR, id=2)],
            ]
        },
    ),
    "stage 3 signature": (
        transcript.opening,
        {"plan": PLAN, "view_digest": A, "survivors": (0, 1, 2), "inputs": B, "groups": ((0, 0),)},
        {
            "plan": [make_plan(4, round=6), make_plan(4, context=b"x"), make_plan(4, length=4)],
            "view_digest": [B],
            "survivors": [(0, 1), (0, 1, 3), (0, 1, 2, 3)],
            "inputs": [A, C],
            "groups": [(), ((0, 1),), ((0, 0), (0, 1)), ((1, 0),)],
        },
    ),
    "stage 4 signature": (
        transcript.unmasking_statement,
        {"plan_hash": A, "message": SHARES},
        {
            "plan_hash": [B],
            "message": [
                replace(SHARES, sender=2),
                replace(SHARES, own=b"other"),
                replace(SHARES, own=b"own\x02"),
                replace(SHARES, own=b"OWN"),  # of the same length
                replace(SHARES, seed_owners=(1,)),
                replace(SHARES, seeds=b"other"),
                replace(SHARES, seeds=b"seed", keys=b"skeys"),
                replace(SHARES, key_owners=(4,)),
                replace(SHARES, keys=b"other"),
            ],
        },
    ),
    "seed commitment": (
        transcript.seed_commitment,
        {"plan_hash": A, "owner": 1, "grouping": 0, "seed": B},
        {"plan_hash": [B], "owner": [0, 2], "grouping": [1], "seed": [C]},
    ),
    "share hash": (
        share_hash,
        {"plan_hash": A, "dealer": 1, "holder": 2, "secret": 0, "share": bytes(33), "nonce": B},
        {"plan_hash": [B], "dealer": [3], "holder": [3], "secret": [1], "share": [b"\1" + bytes(32)], "nonce": [C]},
    ),
    "pairwise mask": (
        pairwise_key,
        {"agreed": A, "plan_hash": B, "a": 1, "b": 2, "grouping": 0},
        {"agreed": [C], "plan_hash": [C], "a": [0, 3], "b": [0, 3], "grouping": [1, 256]},
    ),
    "self mask": (
        self_key,
        {"seed": A, "plan_hash": B, "owner": 1, "grouping": 0},
        {"seed": [C], "plan_hash": [C], "owner": [0, 2], "grouping": [1, 256]},
    ),
}


@pytest.mark.parametrize("name", BOUND)
def test_everything_that_should_be_bound_is(name: str) -> None:
    make, arguments, others = BOUND[name]
    assert set(others) == set(arguments)  # no argument is forgotten
    results = [make(**arguments)]
    results += [make(**{**arguments, part: value}) for part, values in others.items() for value in values]
    assert len(set(results)) == len(results)


def test_no_statement_can_be_taken_for_another() -> None:
    """Each opens with a label of its own, and no label is a prefix of another."""
    made = {name: make(**arguments) for name, (make, arguments, _) in BOUND.items() if "signature" in name}
    heads = {name: statement.split(b"\n")[0] for name, statement in made.items()}
    assert len(set(heads.values())) == len(heads) == 5


@pytest.mark.parametrize("wrong", ["agreed", "plan_hash", "sender", "receiver", "reflected", "box"])
def test_a_box_opens_only_for_its_pair_direction_and_plan(wrong: str) -> None:
    def unseal(agreed: bytes, plan_hash: bytes, sender: int, receiver: int, sealed: bytes) -> bytes:
        [key] = box.box_keys([agreed], plan_hash, [(sender, receiver)])
        return box.unseal(key, plan_hash, sender, receiver, sealed)

    [key] = box.box_keys([A], B, [(1, 2)])
    sealed = box.seal(key, B, 1, 2, b"shares")
    address: dict[str, Any] = {"agreed": A, "plan_hash": B, "sender": 1, "receiver": 2, "sealed": sealed}
    assert unseal(**address) == b"shares"
    changes: dict[str, dict[str, Any]] = {
        "agreed": {"agreed": C},
        "plan_hash": {"plan_hash": C},
        "sender": {"sender": 3},
        "receiver": {"receiver": 3},
        "reflected": {"sender": 2, "receiver": 1},
        "box": {"sealed": sealed[:-1] + bytes([sealed[-1] ^ 1])},
    }
    with pytest.raises(PeerError, match="does not open") as caught:
        unseal(**{**address, **changes[wrong]})
    assert caught.value.culprit == changes[wrong].get("sender", 1)


def test_both_sides_of_a_pair_make_the_same_mask_with_opposite_signs() -> None:
    assert pairwise_key(A, B, 1, 2, 0) == pairwise_key(A, B, 2, 1, 0)
    assert pairwise_sign(1, 2) == -pairwise_sign(2, 1) == 1


def test_masks_of_neighbouring_groupings_pairs_and_runs_are_independent() -> None:
    """Bit by bit and word by word: as many equal bits as chance gives, and no correlation at small lags."""
    base: dict[str, Any] = {"agreed": A, "plan_hash": B, "a": 1, "b": 2, "grouping": 0}
    neighbours = [{"grouping": 1}, {"a": 0}, {"b": 3}, {"plan_hash": C}, {"agreed": C}]
    words = 20_000
    first = mask(pairwise_key(**base), words)
    for change in neighbours:
        other = mask(pairwise_key(**{**base, **change}), words)
        equal = np.unpackbits((~(first ^ other)).view(np.uint8)).mean()
        assert abs(equal - 0.5) < 6 * 0.5 / np.sqrt(32 * words)
        for lag in range(3):
            x, y = first[: words - lag].astype(np.float64), other[lag:].astype(np.float64)
            assert abs(np.corrcoef(x, y)[0, 1]) < 6 / np.sqrt(words)


def test_another_plan_gives_other_masks_for_the_same_keys_seeds_and_input() -> None:
    """So a server that shows two clients two plans gets noise: nothing cancels."""
    inputs = {v: np.zeros(8, np.int64) for v in range(4)}
    plans = [make_plan(4, length=8, context=context) for context in (b"model A", b"model B")]
    runs = [World(plan, inputs=inputs, name=b"same").run_to(Stage.INPUTS) for plan in plans]
    for v in range(4):
        a, b = (run[v].find(MaskedInput).vectors[0] for run in runs)
        assert runs[0][v].client._memory.seeds == runs[1][v].client._memory.seeds
        assert not (a == b).any()

"""All domain-separation labels, in one file, so that no two uses collide.

A label begins the `info` of each HKDF call and the bytes of each signature and each hash. No label is a
prefix of another: each ends with a newline, which appears nowhere else in it.
"""

from typing import Final

VERSION: Final = 2
_PREFIX: Final = b"secagg/v%d/" % VERSION


def _label(name: str) -> bytes:
    return _PREFIX + name.encode("ascii") + b"\n"


# HKDF info strings
PAIRWISE_MASK: Final = _label("pairwise-mask")
SELF_MASK: Final = _label("self-mask")
SHARE_BOX: Final = _label("share-box")
GROUP_MASK: Final = _label("group-mask")

# hashes
SHARE_NONCE: Final = _label("share-nonce")
NEIGHBOUR_GRAPH: Final = _label("neighbour-graph")
SCHEDULE: Final = _label("schedule")
SEED_CONTRIBUTION: Final = _label("seed-contribution-commitment")
TRAINING_SEED: Final = _label("training-seed")
BEACON_SEED: Final = _label("beacon-seed")
AUDIT_SETS: Final = _label("audit-sets")
AUDIT_PRIME: Final = _label("audit-prime")
AUDIT_NULL_VECTORS: Final = _label("audit-null-vectors")
ROSTER: Final = _label("roster")
PLAN: Final = _label("plan")
PLAN_PART: Final = _label("plan-part")
SEED_COMMITMENT: Final = _label("seed-commitment")
SHARE_LEAF: Final = _label("share-leaf")
TREE_LEAF: Final = _label("tree-leaf")
TREE_NODE: Final = _label("tree-node")
TREE_EMPTY: Final = _label("tree-empty")
DEALING: Final = _label("dealing")
VIEW: Final = _label("view")
DISPUTES: Final = _label("disputes")
INPUT_VECTORS: Final = _label("input-vectors")
INPUTS: Final = _label("inputs")
OPENING: Final = _label("opening")
UNMASKING: Final = _label("unmasking")
STEP_RECORD: Final = _label("step-record")
UPDATE_RECORD: Final = _label("update-record")
OPENING_RECORD: Final = _label("opening-record")
ROUND_RECORD: Final = _label("round-record")
LEDGER_RECORD: Final = _label("ledger-record")
CHARGE_RECORD: Final = _label("charge-record")
ANSWERED: Final = _label("answered")
TERMS: Final = _label("terms")
COMMITMENTS: Final = _label("commitments")
AGREEMENT: Final = _label("agreement")
CONTEXT: Final = _label("context")
GROUP_ADVERTS: Final = _label("group-adverts")
PRESENT: Final = _label("present")
ANSWER: Final = _label("answer")
ANSWER_VECTORS: Final = _label("answer-vectors")
ANSWER_RECORD: Final = _label("answer-record")
AGREEMENT_RECORD: Final = _label("agreement-record")
NET_DATA: Final = _label("net-data")

# signatures
SIGN_KEYS: Final = _label("sign-keys")
SIGN_SHARES: Final = _label("sign-shares")
SIGN_VIEW: Final = _label("sign-view")
SIGN_OPENING: Final = _label("sign-opening")
SIGN_UNMASKING: Final = _label("sign-unmasking")
SIGN_TERMS: Final = _label("sign-terms")
SIGN_COMMITMENT: Final = _label("sign-commitment")
SIGN_REVEAL: Final = _label("sign-reveal")
SIGN_AGREEMENT: Final = _label("sign-agreement")
SIGN_ADVERT: Final = _label("sign-advert")
SIGN_ANSWER: Final = _label("sign-answer")
SIGN_RELEASE: Final = _label("sign-release")
SIGN_ENROLMENT: Final = _label("sign-enrolment")

ALL: Final = tuple(value for name, value in sorted(globals().items()) if name[0].isupper() and type(value) is bytes)

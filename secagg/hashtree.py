"""A Merkle tree over a dealer's share hashes: one signed root, and a short proof per holder.

A dealer signs the root; the server keeps all leaves; each holder checks its own leaf with log2(n) hashes
instead of downloading every other holder's. Leaves and nodes are hashed under different labels (as in
RFC 6962, section 2.1), and an odd node is paired with a fixed filler, so the shape is fixed by the number
of leaves and no leaf can pose as a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from secagg import labels

_FILLER: Final = sha256(labels.TREE_EMPTY).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return sha256(labels.TREE_NODE + left + right).digest()


def leaf(content: bytes) -> bytes:
    """The hash of one leaf's content."""
    return sha256(labels.TREE_LEAF + content).digest()


def levels(leaves: Sequence[bytes]) -> list[list[bytes]]:
    """Every level from the leaves (already hashed) up to the root; the root is `levels(x)[-1][0]`."""
    rows = [list(leaves) or [_FILLER]]
    while len(rows[-1]) > 1:
        row = rows[-1] + [_FILLER] * (len(rows[-1]) % 2)
        rows.append([_node(row[i], row[i + 1]) for i in range(0, len(row), 2)])
    return rows


def proof(rows: Sequence[Sequence[bytes]], index: int) -> tuple[bytes, ...]:
    """The siblings of leaf `index` from the bottom up."""
    path = []
    for row in rows[:-1]:
        sibling = index ^ 1
        path.append(row[sibling] if sibling < len(row) else _FILLER)
        index //= 2
    return tuple(path)


def root_from(leaf_hash: bytes, index: int, path: Sequence[bytes]) -> bytes:
    """The root that this leaf, position and path lead to."""
    for sibling in path:
        leaf_hash = _node(sibling, leaf_hash) if index % 2 else _node(leaf_hash, sibling)
        index //= 2
    return leaf_hash


def depth(count: int) -> int:
    """How long a proof is for `count` leaves."""
    return max(count - 1, 0).bit_length()

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

import numpy as np

from secagg import labels
from secagg.crypto.hashing import Bytes, sha256_each

SIZE: Final = 32
_FILLER: Final = sha256(labels.TREE_EMPTY).digest()


Forest = list[Bytes]  # from the leaves up to below the root: (nodes, trees, 32)


def _node(children: bytes) -> bytes:
    return sha256(labels.TREE_NODE + children).digest()


def leaf(content: bytes) -> bytes:
    """The hash of one leaf's content."""
    return sha256(labels.TREE_LEAF + content).digest()  # audit: leaf-and-node-labels


def leaves(contents: Bytes) -> bytes:
    """The hashes of many leaves, one after the other, from one content per row."""
    return sha256_each(labels.TREE_LEAF, contents).tobytes()


def levels(leaves: bytes) -> list[bytes]:
    """Every level from the leaves (their hashes, one after the other) up to the root, which is the last."""
    rows = [leaves or _FILLER]
    while len(rows[-1]) > SIZE:
        row = rows[-1] + _FILLER * (len(rows[-1]) // SIZE % 2)
        pairs = np.frombuffer(row, np.uint8).reshape(-1, 2 * SIZE)
        rows.append(sha256_each(labels.TREE_NODE, pairs).tobytes())
    return rows


def proof(rows: Sequence[bytes], place: int) -> tuple[bytes, ...]:
    """The siblings of one leaf from the bottom up."""
    path = []
    for row in rows[:-1]:
        start = (place ^ 1) * SIZE
        path.append(row[start : start + SIZE] or _FILLER)
        place //= 2
    return tuple(path)


def forest(trees: Sequence[Sequence[bytes]]) -> Forest:
    """Trees of one shape, side by side, so that a path can be read from all of them at once.

    What lies at one place in all trees is together: it is read once per client, and written once.
    """
    levels = []
    for height in range(len(trees[0]) - 1):
        filler = _FILLER * (len(trees[0][height]) // SIZE % 2)
        level = np.frombuffer(b"".join([tree[height] + filler for tree in trees]), np.uint8)
        levels.append(np.ascontiguousarray(level.reshape(len(trees), -1, SIZE).swapaxes(0, 1)))
    return levels


def root_from(leaf_hash: bytes, place: int, path: Sequence[bytes]) -> bytes:
    """The root that this leaf, place and path lead to."""
    for sibling in path:
        leaf_hash = _node(sibling + leaf_hash if place % 2 else leaf_hash + sibling)
        place //= 2
    return leaf_hash


def roots_from(leaf_hashes: Bytes, places: Sequence[int], paths: Sequence[Sequence[bytes]]) -> list[bytes]:
    """`root_from` of many, one leaf per row; paths of one length are followed together."""
    if len({len(path) for path in paths}) != 1:
        rows = zip(leaf_hashes, places, paths, strict=True)
        return [root_from(leaf_hash.tobytes(), place, path) for leaf_hash, place, path in rows]
    siblings = np.frombuffer(b"".join([node for path in paths for node in path]), np.uint8)
    siblings = siblings.reshape(len(paths), -1, SIZE)
    hashes, where = leaf_hashes, np.array(places)
    for height in range(siblings.shape[1]):
        pairs = np.stack([hashes, siblings[:, height]], axis=1)
        right = where % 2 == 1  # this node is the right one of its pair
        pairs[right] = pairs[right, ::-1]
        where //= 2
        hashes = sha256_each(labels.TREE_NODE, pairs.reshape(-1, 2 * SIZE))
    return [row.tobytes() for row in hashes]

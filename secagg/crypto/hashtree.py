"""Merkle trees over the hashes of a dealer's shares: one signed root, and a short proof per holder.

The dealer signs the root and the server keeps all leaves, so a holder checks its own leaf with log2(n) hashes instead
of a download of all leaves. Leaves and nodes are hashed under different labels (as in RFC 6962, section 2.1), and an
odd node is paired with a fixed filler. So the number of leaves fixes the shape, and a node cannot pass for a leaf.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Final

import numpy as np

from secagg import labels
from secagg.crypto.hashing import sha256_each
from secagg.types import Bytes

SIZE: Final = 32
_FILLER: Final = sha256(labels.TREE_EMPTY).digest()

Forest = list[Bytes]  # from the leaves up to the children of the root: (nodes, trees, 32)


def leaves(contents: Bytes) -> bytes:
    """The hashes of leaves, one after the other, from one content per row."""
    return sha256_each(labels.TREE_LEAF, contents).tobytes()  # audit: leaf-and-node-labels


def levels(leaves: bytes) -> list[bytes]:
    """All levels of a tree, from the hashes of its leaves up to the root, which is last."""
    rows = [leaves or _FILLER]
    while len(rows[-1]) > SIZE:
        row = rows[-1] + _FILLER * (len(rows[-1]) // SIZE % 2)
        pairs = np.frombuffer(row, np.uint8).reshape(-1, 2 * SIZE)
        rows.append(sha256_each(labels.TREE_NODE, pairs).tobytes())
    return rows


def proof(rows: Sequence[bytes], place: int) -> tuple[bytes, ...]:
    """The siblings on the path from one leaf up to the root."""
    path = []
    for row in rows[:-1]:
        start = (place ^ 1) * SIZE
        path.append(row[start : start + SIZE] or _FILLER)
        place //= 2
    return tuple(path)


def forest(trees: Sequence[Sequence[bytes]]) -> Forest:
    """Trees of one shape, side by side: the nodes of all trees at one place lie together in memory."""
    levels = []
    for height in range(len(trees[0]) - 1):
        filler = _FILLER * (len(trees[0][height]) // SIZE % 2)
        level = np.frombuffer(b"".join([tree[height] + filler for tree in trees]), np.uint8)
        levels.append(np.ascontiguousarray(level.reshape(len(trees), -1, SIZE).swapaxes(0, 1)))
    return levels


def roots(leaf_hashes: Bytes, places: Sequence[int], paths: Sequence[Sequence[bytes]]) -> list[bytes]:
    """The root that each leaf, place and path lead to. Paths of one length are followed together."""
    if len({len(path) for path in paths}) != 1:
        ones = [slice(i, i + 1) for i in range(len(paths))]
        return [root for one in ones for root in roots(leaf_hashes[one], places[one], paths[one])]
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

"""The tree over share hashes: every leaf has a proof, and nothing else has one."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg import labels, reference
from secagg.crypto import hashtree
from secagg.crypto.hashing import KERNEL_ROWS
from tests.secagg.drbg import Drbg

leaves = st.lists(st.binary(min_size=1, max_size=8), min_size=1, max_size=40)


def leaf(content: bytes) -> bytes:
    return hashtree.leaves(np.frombuffer(content, np.uint8).reshape(1, -1))


def hashed(contents: list[bytes]) -> bytes:
    return b"".join(leaf(content) for content in contents)


def root(leaf_hash: bytes, place: int, path: Sequence[bytes]) -> bytes:
    return hashtree.roots(np.frombuffer(leaf_hash, np.uint8).reshape(1, -1), [place], [path])[0]


def climb(leaf_hash: bytes, place: int, path: Sequence[bytes]) -> bytes:
    """The same, one hash at a time."""
    for sibling in path:
        pair = sibling + leaf_hash if place % 2 else leaf_hash + sibling
        leaf_hash, place = reference.digest(labels.TREE_NODE, pair), place // 2
    return leaf_hash


@given(leaves)
def test_every_leaf_has_a_proof_of_logarithmic_length(contents: list[bytes]) -> None:
    rows = hashtree.levels(hashed(contents))
    for place, content in enumerate(contents):
        path = hashtree.proof(rows, place)
        assert len(path) == (len(contents) - 1).bit_length()
        assert root(leaf(content), place, path) == rows[-1]


@given(leaves, st.data())
def test_another_leaf_place_or_sibling_leads_elsewhere(contents: list[bytes], data: st.DataObject) -> None:
    rows = hashtree.levels(hashed(contents))
    place = data.draw(st.integers(0, len(contents) - 1))
    path = hashtree.proof(rows, place)
    assert root(leaf(contents[place] + b"!"), place, path) != rows[-1]
    if path:
        level = data.draw(st.integers(0, len(path) - 1))
        bent = [*path[:level], bytes(32), *path[level + 1 :]]
        assert root(leaf(contents[place]), place, bent) != rows[-1]


@given(st.lists(st.tuples(st.integers(0, 2**16 - 1), st.integers(0, 70)), max_size=2 * KERNEL_ROWS), st.booleans())
def test_many_paths_at_once_lead_where_each_leads_alone(ends: list[tuple[int, int]], ragged: bool) -> None:
    """Of one length or of several, places beyond the tree included: a server may send anything."""
    draw = Drbg(b"paths")
    paths = [[draw(32) for _ in range(depth if ragged else 7)] for _, depth in ends]
    hashes = np.frombuffer(draw(32 * len(ends)), np.uint8).reshape(-1, 32)
    alone = [climb(row.tobytes(), place, path) for row, (place, _), path in zip(hashes, ends, paths, strict=True)]
    assert hashtree.roots(hashes, [place for place, _ in ends], paths) == alone


@given(leaves)
def test_number_of_leaves_is_part_of_the_root(contents: list[bytes]) -> None:
    assert hashtree.levels(hashed(contents))[-1] != hashtree.levels(hashed([*contents, b"more"]))[-1]


def test_a_node_cannot_pose_as_a_leaf() -> None:
    one, two = leaf(b"1"), leaf(b"2")
    node = hashtree.levels(one + two)[-1]
    assert leaf(one + two) != node


@pytest.mark.parametrize("count", [1, 2, KERNEL_ROWS - 1, KERNEL_ROWS, 2 * KERNEL_ROWS + 3])
def test_many_leaves_and_nodes_at_once_are_those_one_by_one(count: int) -> None:
    contents = np.frombuffer(Drbg(b"contents")(count * 64), np.uint8).reshape(count, 64)
    row = [reference.tree_leaf(content.tobytes()) for content in contents]
    assert hashtree.leaves(contents) == b"".join(row)
    assert hashtree.levels(b"".join(row))[-1] == reference.tree_root(row)


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_a_forest_has_the_paths_of_its_trees(count: int) -> None:
    draw = Drbg(b"forest")
    trees = [hashtree.levels(draw(count * 32)) for _ in range(3)]
    forest = hashtree.forest(trees)
    for place in range(count):
        paths = [level[place >> height ^ 1] for height, level in enumerate(forest)]
        for k, tree in enumerate(trees):
            assert tuple(path[k].tobytes() for path in paths) == hashtree.proof(tree, place)


def test_an_empty_tree_has_a_root_of_its_own() -> None:
    assert hashtree.levels(b"")[-1] not in (leaf(b""), bytes(32))

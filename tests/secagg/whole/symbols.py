"""What the adversary can compute: every mask is a symbol, and linear algebra over what it saw does the rest.

`Recorder` watches the masking of real clients: each masked vector becomes a `Row`, the client's encoded update plus
signed masks, each named by its key. `learned` are the combinations of rows in which all masks cancel that the adversary
does not know; `allowed` are the sums that the theorem of docs/whole-groups.md grants.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest

from secagg.whole import client as whole_client
from secagg.whole import masking
from secagg.whole.messages import Answer

PRIME = 2**31 - 1


@dataclass(frozen=True)
class Row:
    """One masked vector of one client."""

    client: int
    round: int
    group: tuple[int, int]
    members: tuple[int, ...]  # that the client masked with, and itself
    context: bytes
    seen: bytes
    encoded: tuple[int, ...]
    masks: tuple[tuple[bytes, int], ...]  # key and sign
    ends: tuple[int, ...]  # the mate of each mask


@dataclass
class Recorder:
    """The masks of every vector that was masked while it watched, by client and bytes of the vector."""

    found: dict[tuple[int, bytes], tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[bytes, int], ...]]] = field(
        default_factory=dict
    )

    def rows(self, answer: Answer) -> list[Row]:
        """The rows of an answer that one of the watched clients made."""
        rows = []
        for group, seen, vector in zip(answer.groups, answer.seen, answer.vectors, strict=True):
            encoded, members, masks = self.found[answer.sender, vector.tobytes()]
            ends = tuple(v for v in members if v != answer.sender)
            row = (answer.sender, answer.round, group, members, answer.context, seen, encoded, masks, ends)
            rows.append(Row(*row))
        return rows


@contextmanager
def recording() -> Iterator[Recorder]:
    recorder, applied = Recorder(), list[tuple[tuple[bytes, int], ...]]()
    mask, add = masking.masked, masking.add_masks

    def watched_add(vector: Any, keys: Any, signs: Sequence[int], **more: Any) -> None:
        applied.append(tuple((bytes(key), sign) for key, sign in zip(keys, signs, strict=True)))
        add(vector, keys, signs, **more)

    def watched_mask(encoded: Any, me: int, groups: Any, keys: Any, **more: Any) -> Any:
        applied.clear()
        vectors = mask(encoded, me, groups, keys, **more)
        for (_, members), masks, vector in zip(groups, applied, vectors, strict=True):
            recorder.found[me, vector.tobytes()] = (tuple(map(int, encoded)), members, masks)
        return vectors

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masking, "add_masks", watched_add)
        patch.setattr(whole_client, "masked", watched_mask)
        yield recorder


# --- the symbolic attacker -----------------------------------------------------------------------------------


def unknown_masks(row: Row, colluders: Collection[int]) -> dict[bytes, int]:
    """The masks between this client and honest mates. The adversary is given those towards colluders."""
    masks: dict[bytes, int] = {}
    for (key, sign), mate in zip(row.masks, row.ends, strict=True):
        if mate not in colluders:
            masks[key] = masks.get(key, 0) + sign
    return masks


def learned(rows: Sequence[Row], colluders: Collection[int] = ()) -> list[list[int]]:
    """A basis of the combinations of rows without unknown masks, modulo a prime: one coefficient per row."""
    masks = [unknown_masks(row, colluders) for row in rows]
    columns = {key: column for column, key in enumerate(sorted({key for found in masks for key in found}))}
    matrix = []
    for place, found in enumerate(masks):
        line = [0] * (len(columns) + len(rows))
        for key, sign in found.items():
            line[columns[key]] = sign % PRIME
        line[len(columns) + place] = 1
        matrix.append(line)
    return [line[len(columns) :] for line in reduce(matrix, len(columns))]


def reduce(matrix: list[list[int]], columns: int) -> list[list[int]]:
    """Gaussian elimination of the first columns; the rows without a pivot."""
    done = 0
    for column in range(columns):
        pivot = next((i for i in range(done, len(matrix)) if matrix[i][column]), None)
        if pivot is None:
            continue
        matrix[done], matrix[pivot] = matrix[pivot], matrix[done]
        inverse = pow(matrix[done][column], -1, PRIME)
        first = [value * inverse % PRIME for value in matrix[done]]
        matrix[done] = first
        for i in range(done + 1, len(matrix)):
            factor = matrix[i][column]
            if factor:
                matrix[i] = [(a - factor * b) % PRIME for a, b in zip(matrix[i], first, strict=True)]
        done += 1
    return matrix[done:]


def rank(vectors: Iterable[Sequence[int]]) -> int:
    matrix = [[value % PRIME for value in vector] for vector in vectors]
    return len(matrix) - len(reduce(matrix, len(matrix[0]))) if matrix else 0


def allowed(
    rows: Sequence[Row], groups: Mapping[tuple[int, tuple[int, int]], Collection[int]], colluders: Collection[int] = ()
) -> list[list[int]]:
    """The sums that the theorem grants: of groups whose honest members all answered, under one context.

    `groups` has the members of every permitted group by round and group, without members that released the round.
    """
    sums = []
    for (round, group), members in groups.items():
        honest = set(members).difference(colluders)
        places = [i for i, row in enumerate(rows) if (row.round, row.group) == (round, group)]
        for context in sorted({rows[i].context for i in places}):
            chosen = [i for i in places if rows[i].context == context and rows[i].client in honest]
            if honest and {rows[i].client for i in chosen} == honest:
                sums.append([int(i in chosen) for i in range(len(rows))])
    return sums


# --- by counting ---------------------------------------------------------------------------------------------


def views(
    rows: Sequence[Row], inputs: Sequence[int], ring: int, colluders: Collection[int] = ()
) -> Counter[tuple[int, ...]]:
    """How often the adversary sees each list of masked values, over all values of the masks it does not know."""
    masks = [unknown_masks(row, colluders) for row in rows]
    keys = sorted({key for found in masks for key in found})
    terms = [[(keys.index(key), sign) for key, sign in found.items()] for found in masks]
    return Counter(
        tuple(
            (value + sum(sign * values[place] for place, sign in found)) % ring
            for value, found in zip(inputs, terms, strict=True)
        )
        for values in product(range(ring), repeat=len(keys))
    )

"""Anonymity for two groupings: a minimum cut gives it exactly, for any T.

Draw a vertex for every opened group and an edge for every client, from its group in one grouping to its group
in the other. An edge of a client whose group is closed ends at a common ground vertex. A combination gives
client (u, v) the coefficient f(u) + g(v). With the sign of g changed, this is a difference of potentials with
the ground at 0. So the combinations that the server can learn are the cut space of the graph, and the one
with the fewest clients is a minimum cut (Stoer and Wagner 1997). A client is exposed exactly if its edge is a
bridge. Without dropouts there is no bridge, because a regular bipartite graph has none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from secagg.kernels.jit import kernel
from secagg.types import GroupId


@kernel
def minimum_cut(edges: npt.NDArray[np.int64]) -> int:
    """The weight of the lightest cut of a connected multigraph, given as a symmetric matrix (overwritten)."""
    vertices = edges.shape[0]
    merged = np.zeros(vertices, np.bool_)
    lightest = np.int64(2**62)
    for phase in range(vertices - 1):
        seen = np.zeros(vertices, np.bool_)
        pull = np.zeros(vertices, np.int64)
        last, before = -1, -1
        for _ in range(vertices - phase):
            pick = -1
            for v in range(vertices):
                if not merged[v] and not seen[v] and (pick < 0 or pull[v] > pull[pick]):
                    pick = v
            before, last = last, pick
            seen[pick] = True
            for v in range(vertices):
                pull[v] += edges[pick, v]
        cut = np.int64(0)
        for v in range(vertices):
            if v != last:
                cut += edges[last, v]
        lightest = min(lightest, cut)
        for v in range(vertices):
            edges[before, v] += edges[last, v]
            edges[v, before] = edges[before, v]
            edges[last, v] = 0
            edges[v, last] = 0
        edges[before, before] = 0
        merged[last] = True
    return int(lightest)


def anonymity(rows: Mapping[GroupId, Sequence[int]], columns: Collection[int]) -> int | None:
    """T for connected rows of at most two groupings over these columns; None for more groupings."""
    sides = sorted({g for g, _ in rows})
    if len(sides) > 2 or not rows:
        return None
    place = [dict[int, int](), dict[int, int]()]
    for vertex, (row, members) in enumerate(sorted(rows.items()), start=1):
        place[sides.index(row[0])] |= dict.fromkeys(members, vertex)
    ends = [(place[0].get(column, 0), place[1].get(column, 0)) for column in columns]
    grounded = any(0 in end for end in ends)
    edges = np.zeros((len(rows) + 1, len(rows) + 1), np.int64)
    for u, v in ends:
        edges[u, v] += 1
        edges[v, u] += 1
    np.fill_diagonal(edges, 0)
    return minimum_cut(edges if grounded else np.ascontiguousarray(edges[1:, 1:]))

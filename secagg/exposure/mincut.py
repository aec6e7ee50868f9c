"""Two groupings: anonymity is an edge connectivity, so it is exact for any T.

Draw a vertex for every opened row and an edge for every client, from its row in one grouping to its row in
the other; a client whose row is closed hangs on a common ground vertex. A combination gives client (u, v) the
coefficient f(u) + g(v). Change the sign of g: it is a difference of potentials, ground at 0, so the
combinations the server can learn are the cut space of the graph, and the lightest of them is a minimum cut
(Stoer and Wagner 1997 find it). A client is exposed exactly if its edge is a bridge; without dropouts there
is none, because a regular bipartite graph has no bridge.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from secagg.exposure.schedules import Row
from secagg.kernels.jit import kernel


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


def anonymity(rows: Mapping[Row, Sequence[int]], columns: Collection[int]) -> int | None:
    """T exactly, for connected rows of at most two groupings over these columns; None for more groupings."""
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

"""Which rows may be opened together: a deterministic rule that keeps as many as it can.

Closing a weak row alone does not help when another grouping gives away the total, so rows are judged by what
they span together. A pass adds rows in a fixed order and keeps each one that leaves the policy satisfied. The
row space only grows, so what was refused once stays refused, and no row can be added to what a pass kept. A
grouping with a weak row thus loses that row and, if its total is known from elsewhere, one more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from secagg.exposure import mincut
from secagg.exposure.anonymity import DEEPEST, decidable, dependent
from secagg.exposure.leverage import Leverage
from secagg.exposure.rows import Realised
from secagg.exposure.rowspace import RowSpace
from secagg.exposure.schedules import ClientId, Row

SLACK = 1e-9  # leverage may exceed its limit by this much: 1/3 computed is not always below 1/3 written
NAMED = 8  # how many clients a sentence names before it counts the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the kept rows must satisfy. `proven` gives, per row, a T that the schedule guarantees.

    A guarantee covers all rows that carry it together, but not their mixtures with others.
    """

    survivors: int
    anonymity: int
    leverage: float
    proven: Mapping[Row, int]

    def covers(self, row: Row) -> bool:
        return self.proven.get(row, 0) >= self.anonymity


def choose(rows: Realised, limits: Limits) -> tuple[list[Row], dict[Row, str]]:
    """The rows to open, and why each other row stays closed: the best of a few passes."""
    weak = {
        row: _few(rows.alive[row], len(members), limits.survivors)
        for row, members in rows.members.items()
        if len(members) < limits.survivors
    }
    best: Walk | None = None
    for order in _orders(rows, limits, weak):
        walk = Walk(rows, limits)
        walk.take(order)
        if best is None or len(walk.kept) > len(best.kept):
            best = walk
        if not walk.refused:
            break
    assert best is not None
    return best.kept, dict(sorted((weak | best.refused).items()))


def _orders(rows: Realised, limits: Limits, weak: Collection[Row]) -> Iterator[list[Row]]:
    """Grouping by grouping, those that lost few rows first, or last; large rows first.

    Rows that the schedule's proof covers come before the others, because it does not hold for mixtures.
    """
    lost = Counter(g for g, _ in weak)
    strong = sorted(
        (row for row in rows.members if row not in weak),
        key=lambda row: (not limits.covers(row), lost[row[0]], row[0], -len(rows.members[row]), row),
    )
    yield strong
    if len({lost[g] for g in range(len(rows.groupings))}) > 1:
        yield sorted(strong, key=lambda row: (not limits.covers(row), -lost[row[0]]))


@dataclass(slots=True)
class _Span:
    """What the rows kept so far amount to."""

    space: RowSpace
    leverage: Leverage | None
    component: npt.NDArray[np.int64]  # columns linked by rows carry the same number
    used: npt.NDArray[np.bool_]  # columns that are in some row kept
    kept: list[Row] = field(default_factory=list)
    refused: dict[Row, str] = field(default_factory=dict)
    proven: bool = True  # every row so far is covered by the schedule's proof
    tangled: set[int] = field(default_factory=set)  # components of several rows: their T must be computed

    def copy(self) -> _Span:
        leverage = None if self.leverage is None else self.leverage.copy()
        return _Span(
            self.space.copy(), leverage, self.component.copy(), self.used.copy(), self.kept.copy(),
            self.refused.copy(), self.proven, self.tangled.copy(),
        )  # fmt: skip


class Walk:
    """One pass over rows in a given order."""

    def __init__(self, rows: Realised, limits: Limits) -> None:
        n = len(rows.clients)
        self.rows = rows
        self.limits = limits
        self._span = _Span(
            RowSpace(n, rows.field, depth=min(limits.anonymity - 1, DEEPEST)),
            Leverage(rows.weights) if limits.leverage < 1.0 else None,
            np.arange(n),
            np.zeros(n, np.bool_),
        )

    @property
    def kept(self) -> list[Row]:
        return self._span.kept

    @property
    def refused(self) -> dict[Row, str]:
        return self._span.refused

    def take(self, order: Sequence[Row]) -> None:
        """Keep each row that leaves the policy satisfied.

        Beyond T = 3 a test is dear, so it is made once for many rows, which are taken apart only if it fails;
        the outcome is that of testing after every row.
        """
        need = self.limits.anonymity
        if need <= 3 or len(order) <= 1:
            for row in order:
                self._try(row, need)
            return
        before = self._span.copy()
        for row in order:
            self._try(row, 3)
        span = self._span
        if any(
            self._too_few(label, span.component, span.kept, span.space.null, need)
            for label in sorted(span.tangled)
        ):
            self._span = before
            half = len(order) // 2
            self.take(order[:half])
            self.take(order[half:])

    def _try(self, row: Row, need: int) -> None:
        span, members = self._span, self.rows.index[row]
        null = span.space.consider(members)
        if null is None:  # the server knows this sum already
            span.kept.append(row)
            return
        labels = span.component[list(members)]
        touched = np.zeros(len(span.component), np.bool_)
        touched[labels] = True
        joined = touched[span.component]
        alone = not span.used[list(members)].any()  # no client in common with the kept rows: T is its size
        proven = span.proven and self.limits.covers(row)
        component = np.where(joined, members[0], span.component)
        reason = (
            None if alone or proven else self._too_few(members[0], component, [*span.kept, row], null, need)
        )
        reason = reason or self._too_much(members)
        if reason:
            span.refused[row] = reason
            return
        span.space.accept()
        if span.leverage is not None:
            span.leverage.accept()
        span.proven = proven
        span.component = component
        span.used[list(members)] = True
        span.tangled.difference_update(labels.tolist())
        if not (alone or proven):
            span.tangled.add(members[0])
        span.kept.append(row)

    def _too_few(
        self,
        label: int,
        component: npt.NDArray[np.int64],
        kept: Sequence[Row],
        null: npt.NDArray[np.uint64],
        need: int,
    ) -> str | None:
        """A combination of fewer than `need` clients of this component, or that we cannot rule it out."""
        inside = np.flatnonzero(component == label)
        if not decidable(len(inside), need):
            rows = {row: self.rows.index[row] for row in kept if component[self.rows.index[row][0]] == label}
            exact = mincut.anonymity(rows, inside.tolist())
            if exact is not None and exact >= need:
                return None
            if exact is not None:
                return f"with the rows opened before, it would reveal a combination of only {exact} clients"
            return f"anonymity {need} among {len(inside)} clients is neither proven nor within reach"
        found = [self.rows.clients[inside[i]] for i in dependent(self._span.space, null[:, inside], need)]
        if not found:
            return None
        if len(found) == 1:
            return f"with the rows opened before, it would expose {names(found)}"
        return f"with the rows opened before, it would reveal a combination of only {names(found)}"

    def _too_much(self, members: Sequence[int]) -> str | None:
        """A client whose leverage would pass the limit."""
        leverage, limit = self._span.leverage, self.limits.leverage
        if leverage is None:
            return None
        ahead = leverage.consider(members)
        worst = int(np.argmax(ahead))
        if ahead[worst] <= limit + SLACK:
            return None
        return (
            f"the leverage of client {self.rows.clients[worst]} would be {ahead[worst]:.3f}, above {limit:g}"
        )


def _few(alive: int, honest: int, floor: int) -> str:
    if not alive:
        return "nobody in it survived"
    colluding = f", {alive - honest} of them assumed to collude" if alive > honest else ""
    return f"it has {alive} survivor{'s' if alive > 1 else ''}{colluding}, fewer than {floor}"


def names(clients: Collection[ClientId]) -> str:
    """'client 7', 'clients 7 and 23', 'clients 1, 2, 3 and 57 others'."""
    ordered = sorted(clients)
    if len(ordered) == 1:
        return f"client {ordered[0]}"
    if len(ordered) > NAMED:
        return f"clients {', '.join(map(str, ordered[:NAMED]))} and {len(ordered) - NAMED} others"
    return f"clients {', '.join(map(str, ordered[:-1]))} and {ordered[-1]}"

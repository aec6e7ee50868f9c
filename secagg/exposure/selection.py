"""Which rows may be opened together: a deterministic rule that keeps as many as it can.

Closing a weak row alone does not help when another grouping reveals the total. So rows are judged by what
they span together. A pass adds rows in a fixed order and keeps each one that leaves the policy satisfied. The
row space only grows, so a refused row stays refused, and no row can be added to what a pass kept. A grouping
with a weak row thus loses that row and, if its total is known from elsewhere, one more.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from secagg.exposure.anonymity import DECISION_DEPTH, by_minimum_cut, decidable, dependent
from secagg.exposure.incidence import Incidence
from secagg.exposure.leverage import Leverage
from secagg.exposure.rowspace import RowSpace
from secagg.kernels.montgomery import Index, Words
from secagg.types import ClientId, GroupId

SLACK = 1e-9  # tolerance on the leverage limit: a computed 1/3 can be slightly above a written 1/3
NAMED = 8  # a sentence names this many clients and counts the others


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the kept rows must satisfy. `proven` has, per row, a T that the schedule guarantees.

    The guarantee holds for any set of rows that have it, but not for combinations with other rows.
    """

    survivors: int
    anonymity: int
    leverage: float
    proven: Mapping[GroupId, int]

    def covers(self, row: GroupId) -> bool:
        return self.proven.get(row, 0) >= self.anonymity


def choose(rows: Incidence, limits: Limits) -> tuple[list[GroupId], dict[GroupId, str]]:
    """The rows to open, and why each other row stays closed: the best of at most two passes."""
    weak = {
        row: _survivor_problem(rows.alive[row], len(members), limits.survivors)
        for row, members in rows.members.items()
        if len(members) < limits.survivors
    }
    trials = []
    for order in _orders(rows, limits, weak):
        trial = Pass(rows, limits)
        trial.add_all(order)
        trials.append(trial.span)
        if not trial.span.refused:
            break
    best = max(trials, key=lambda span: len(span.kept))  # the first of equals
    return best.kept, dict(sorted((weak | best.refused).items()))


def _orders(rows: Incidence, limits: Limits, weak: Collection[GroupId]) -> Iterator[list[GroupId]]:
    """Orders to try: grouping by grouping, those with few weak rows first, or last; large rows first.

    Rows that the schedule's proof covers come before the others, because it does not cover combinations.
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
    """The rows kept so far and what they span."""

    space: RowSpace
    leverage: Leverage | None
    component: Index  # columns that rows connect have the same label
    used: npt.NDArray[np.bool_]  # columns that are in a kept row
    kept: list[GroupId] = field(default_factory=list)
    refused: dict[GroupId, str] = field(default_factory=dict)
    proven: bool = True  # the schedule's proof covers every row so far
    unproven: set[int] = field(default_factory=set)  # components whose T must be computed


class Pass:
    """One pass over rows in a given order."""

    def __init__(self, rows: Incidence, limits: Limits) -> None:
        n = len(rows.clients)
        self.rows = rows
        self.limits = limits
        space = RowSpace(n, rows.field, depth=min(limits.anonymity - 1, DECISION_DEPTH))
        leverage = Leverage(rows.weights) if limits.leverage < 1.0 else None
        self.span = _Span(space, leverage, np.arange(n), np.zeros(n, np.bool_))

    def add_all(self, order: Sequence[GroupId]) -> None:
        """Keep each row that leaves the policy satisfied.

        Beyond T = 3 a test is expensive: test a batch, bisect on failure. The result is the same as with a
        test after every row.
        """
        need = self.limits.anonymity
        if need <= 3 or len(order) <= 1:
            for row in order:
                self._try(row, need)
            return
        before = deepcopy(self.span)
        for row in order:
            self._try(row, 3)
        now, check = self.span, self._anonymity_problem
        if any(check(label, now.component, now.kept, now.space.null, need) for label in sorted(now.unproven)):
            self.span, half = before, len(order) // 2
            self.add_all(order[:half])
            self.add_all(order[half:])

    def _try(self, row: GroupId, need: int) -> None:
        span, members = self.span, self.rows.index[row]
        null = span.space.consider(members)
        if null is None:  # the server already knows this sum
            span.kept.append(row)
            return
        labels = span.component[list(members)]
        alone = not span.used[list(members)].any()  # shares no client with the kept rows: T is its size
        proven = span.proven and self.limits.covers(row)
        touched = np.zeros(len(span.component), np.bool_)
        touched[labels] = True
        component = np.where(touched[span.component], members[0], span.component)
        reason = None
        if not (alone or proven):
            reason = self._anonymity_problem(members[0], component, [*span.kept, row], null, need)
        reason = reason or self._leverage_problem(members)
        if reason:
            span.refused[row] = reason
            return
        span.space.accept()
        if span.leverage is not None:
            span.leverage.accept()
        span.proven = proven
        span.component = component
        span.used[list(members)] = True
        span.unproven.difference_update(labels.tolist())
        if not (alone or proven):
            span.unproven.add(members[0])
        span.kept.append(row)

    def _anonymity_problem(
        self, label: int, component: Index, kept: Sequence[GroupId], null: Words, need: int
    ) -> str | None:
        """Why T of this component may be below `need`; None if it is not."""
        inside = np.flatnonzero(component == label)
        if not decidable(len(inside), need):
            rows = {row: self.rows.index[row] for row in kept if component[self.rows.index[row][0]] == label}
            exact = by_minimum_cut(rows, inside.tolist())
            if exact is None:
                return f"anonymity {need} among {len(inside)} clients is not proven and too expensive to compute"
            few = f"{exact} clients" if exact < need else ""
        else:
            found = [self.rows.clients[inside[i]] for i in dependent(self.span.space, null[:, inside], need)]
            if len(found) == 1:
                return f"with the sums opened before, it would expose {names(found)}"
            few = names(found) if found else ""
        return f"with the sums opened before, it would reveal a combination of only {few}" if few else None

    def _leverage_problem(self, members: Sequence[int]) -> str | None:
        """Why a client's leverage would exceed the limit; None if it would not."""
        leverage, limit = self.span.leverage, self.limits.leverage
        if leverage is None:
            return None
        ahead = leverage.consider(members)
        worst = int(np.argmax(ahead))
        if ahead[worst] <= limit + SLACK:
            return None
        return f"the leverage of client {self.rows.clients[worst]} would be {ahead[worst]:.3f}, above {limit:g}"


def _survivor_problem(alive: int, honest: int, floor: int) -> str:
    if not alive:
        return "it has no survivors"
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

"""What a set of row sums tells the server about single clients, and which rows may be opened.

SHARE shows the server R different sums of the same updates. The opened rows are a linear map A·x of the
updates x, and the server can compute exactly the combinations in the row space of A: a client is **exposed**
when its own unit vector lies there. SHARE, section 5.3 ("Privacy"), bounds the danger by a formula that does
not hold (`tests.paper.formulas`); this module computes it.

`audit` depends only on public sets, so every client runs it for itself, all of them reach the same verdict,
and refusing tells nothing about the updates. Opening fewer rows than the verdict allows is always safe: fewer
rows span less. `docs/exposure.md` has the theory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from secagg.errors import UsageError
from secagg.exposure.rows import Realised
from secagg.exposure.schedules import ClientId, Group, Grouping, Row

if TYPE_CHECKING:
    from secagg.exposure.rowspace import RowSpace

ENFORCE: Literal["enforce"] = "enforce"
REPORT_EVEN_IF_EXPOSED: Literal["report-even-if-exposed"] = "report-even-if-exposed"
Mode = Literal["enforce", "report-even-if-exposed"]
BLOCK = 1 << 16  # coordinates that the attack solves for at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the opened rows must not reveal.

    `anonymity`: every combination the server can learn involves at least this many clients; so not even
    `anonymity - 2` clients who collude with it learn another's update. `min_survivors`: no row with fewer
    survivors (never less than `anonymity`, since a row is a combination). `max_leverage`: see
    `secagg.exposure.leverage`; the default also keeps integer sums from giving away what real ones would not
    (`docs/exposure.md`, "Whole numbers leak more than real ones"). REPORT_EVEN_IF_EXPOSED opens every row and
    says what that revealed: it is there to repeat published experiments, and protects nobody.
    """

    min_survivors: int = 2
    anonymity: int = 3
    max_leverage: float = 0.8
    mode: Mode = ENFORCE

    def __post_init__(self) -> None:
        if self.mode not in (ENFORCE, REPORT_EVEN_IF_EXPOSED):
            raise UsageError(f"mode is {ENFORCE!r} or {REPORT_EVEN_IF_EXPOSED!r}, not {self.mode!r}")
        if type(self.min_survivors) is not int or self.min_survivors < 2:
            raise UsageError(
                f"a row of one survivor is its update; min_survivors={self.min_survivors!r} is below 2"
            )
        if type(self.anonymity) is not int or self.anonymity < 2:
            raise UsageError(f"anonymity={self.anonymity!r} exposes single clients; it must be at least 2")
        if not 0.0 < self.max_leverage <= 1.0:
            raise UsageError(f"max_leverage={self.max_leverage!r} is not in (0, 1]")

    @property
    def enforced(self) -> bool:
        return self.mode == ENFORCE

    def at_least(self, floor: Policy) -> bool:
        """Whether this policy protects at least as well as `floor` in every respect."""
        if not floor.enforced:
            return True
        return (
            self.enforced
            and self.min_survivors >= floor.min_survivors  # audit: policy-survivors
            and self.anonymity >= floor.anonymity  # audit: policy-anonymity
            and self.max_leverage <= floor.max_leverage  # audit: policy-leverage
        )


@dataclass(frozen=True, slots=True)
class Anonymity:
    """T lies between `lower` (always proven) and `upper` (a combination that was found).

    `upper` is None when nothing at all can be learned. `how` says where the lower bound comes from.
    """

    lower: int
    upper: int | None
    how: str

    @property
    def exact(self) -> bool:
        return self.lower == self.upper

    def __str__(self) -> str:
        if self.upper is None:
            return "nothing is learned"
        if self.exact:
            return f"T = {self.upper} (exact)"
        return f"{self.lower} <= T <= {self.upper} (lower bound proven: {self.how}; upper bound found)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Which rows may be opened, and what the server learns from exactly those.

    `exposed`, `rank`, `leverage` and `anonymity` describe the opened `rows`; `would_expose` describes all
    rows that have a survivor. `objections` are the rows that `enforce` keeps closed, with the reason; under
    `enforce` they are the closed ones, under REPORT_EVEN_IF_EXPOSED they are opened all the same.
    """

    policy: Policy
    rows: frozenset[Row]
    closed: Mapping[Row, str]
    objections: Mapping[Row, str]
    exposed: frozenset[ClientId]
    would_expose: frozenset[ClientId]
    clients: int
    rank: int
    leverage: Mapping[ClientId, float] = field(repr=False)
    anonymity: Anonymity
    sentences: tuple[str, ...]

    @property
    def mean_leverage(self) -> float:
        return self.rank / self.clients if self.clients else 0.0


def audit(
    groupings: Sequence[Grouping],
    survivors: Collection[ClientId],
    policy: Policy,
    *,
    weights: Mapping[ClientId, float] | None = None,
    colluders: Collection[ClientId] = (),
    plan_hash: bytes,
    atoms: Sequence[Group] = (),
    columns: Sequence[Group] = (),
) -> Verdict:
    """Decide which rows may be opened, given who survived and who is assumed to collude with the server.

    `colluders` have nothing to hide: their columns are removed. `atoms` (`Schedule.units`) and `columns`
    (`Schedule.columns`) let the schedule's proof stand in for a computation, after checking that the realised
    rows fit it. The prime that decides is drawn from the plan hash and all these sets, so nobody can look for
    survivors that fit a prime known beforehand.
    """
    from secagg.exposure.selection import Limits, choose  # compiles with numba: not before it is needed

    rows = Realised(groupings, survivors, colluders=colluders, weights=weights, plan_hash=plan_hash)
    limits = Limits(
        survivors=max(policy.min_survivors, policy.anonymity),
        anonymity=policy.anonymity,
        leverage=policy.max_leverage,
        proven=_proven(rows, atoms, columns),
    )
    opened, objections = choose(rows, limits)
    closed = objections
    if not policy.enforced:
        opened = [row for row in rows.members if rows.alive[row]]
        closed = {row: "nobody in it survived" for row in rows.members if not rows.alive[row]}
    return _describe(rows, policy, limits.proven, opened, closed, objections)


@dataclass(frozen=True, slots=True)
class Revealed:
    """What a set of rows tells about the clients in them."""

    clients: tuple[ClientId, ...]
    rank: int
    exposed: frozenset[ClientId]
    leverage: Mapping[ClientId, float] = field(repr=False)


def revealed(
    rows: Iterable[Collection[ClientId]], *, weights: Mapping[ClientId, float] | None = None
) -> Revealed:
    """What these rows reveal together if every client's update is the same in all of them.

    Give it the opened rows of several rounds to see the worst case over a training: updates that hardly
    change from round to round.
    """
    groupings = [(tuple(sorted(row)),) for row in rows]
    everyone = {client for (group,) in groupings for client in group}
    realised = Realised(groupings, everyone, weights=weights, plan_hash=b"")
    space, leverage = _span(realised, list(realised.members))
    return Revealed(realised.clients, space.rank, *leverage)


def solve(
    rows: Mapping[Row, Collection[ClientId]],
    sums: Mapping[Row, npt.NDArray[Any]],
    *,
    weights: Mapping[ClientId, float] | None = None,
) -> dict[ClientId, npt.NDArray[np.float64]]:
    """The attack: every update that follows from row sums by least squares, to floating-point accuracy.

    What an honest-but-curious server can do with the results of a run, and nothing more. It shares no code
    with the audit, so each can be held against the other.
    """
    clients = sorted({client for members in rows.values() for client in members})
    ordered = sorted(rows)
    weight = {client: 1.0 if weights is None else weights[client] for client in clients}
    matrix = np.zeros((len(ordered), len(clients)))
    for at, row in enumerate(ordered):
        members = frozenset(rows[row])
        matrix[at] = [weight[client] * (client in members) for client in clients]
    inverse = np.linalg.pinv(matrix, rcond=1e-10)
    known = np.flatnonzero(np.diag(inverse @ matrix) > 1 - 1e-6)
    found = {clients[i]: np.empty(np.shape(sums[ordered[0]])) for i in known}
    for start in range(0, len(sums[ordered[0]]) if ordered else 0, BLOCK):
        block = np.array([sums[row][start : start + BLOCK] for row in ordered], np.float64)
        for i in known:
            found[clients[i]][start : start + BLOCK] = inverse[i] @ block
    return found


def _proven(rows: Realised, atoms: Sequence[Group], columns: Sequence[Group]) -> Mapping[Row, int]:
    """A T for each row that holds for all rows with at least that T together; 0 without a proof."""
    from secagg.exposure.anonymity import atom_bound, transversal_bound

    if columns:
        return dict.fromkeys(rows.members, transversal_bound(rows.groupings, columns, len(rows.missing)))
    if atoms:
        return {row: atom_bound(members, atoms, rows.missing) for row, members in rows.members.items()}
    return {}


def _describe(
    rows: Realised,
    policy: Policy,
    proven: Mapping[Row, int],
    opened: Sequence[Row],
    closed: Mapping[Row, str],
    objections: Mapping[Row, str],
) -> Verdict:
    space, (exposed, leverage) = _span(rows, opened)
    told = _who_each_grouping_would_expose(rows)
    anonymity = _anonymity(rows, policy, space, opened, proven)
    return Verdict(
        policy=policy,
        rows=frozenset(opened),
        closed=MappingProxyType(dict(closed)),
        objections=MappingProxyType(dict(objections)),
        exposed=exposed,
        would_expose=frozenset(client for _, clients in told for client in clients),
        clients=len(rows.clients),
        rank=space.rank,
        leverage=leverage,
        anonymity=anonymity,
        sentences=_sentences(policy, len(rows.members), len(opened), exposed, told, objections, anonymity),
    )


def _span(
    rows: Realised, opened: Sequence[Row]
) -> tuple[RowSpace, tuple[frozenset[ClientId], Mapping[ClientId, float]]]:
    """The row space of the opened rows, who is exposed by it, and everyone's leverage."""
    from secagg.exposure.anonymity import DEPTH
    from secagg.exposure.leverage import Leverage
    from secagg.exposure.rowspace import RowSpace

    space, leverage = RowSpace(len(rows.clients), rows.field, depth=DEPTH), Leverage(rows.weights)
    for row in opened:
        if space.add(rows.index[row]):
            leverage.add(rows.index[row])
    exposed = frozenset(rows.clients[i] for i in space.exposed())
    values = {
        client: 1.0 if client in exposed else float(min(1.0, value))
        for client, value in zip(rows.clients, leverage.values, strict=True)
    }
    return space, (exposed, MappingProxyType(values))


def _who_each_grouping_would_expose(rows: Realised) -> list[tuple[int, frozenset[ClientId]]]:
    """Opening everything, grouping by grouping: the first one that gives each client away."""
    from secagg.exposure.rowspace import RowSpace

    space = RowSpace(len(rows.clients), rows.field)
    told, before = [], frozenset[ClientId]()
    for g, grouping in enumerate(rows.groupings):
        for k in range(len(grouping)):
            space.add(rows.index[g, k])
        now = frozenset(rows.clients[i] for i in space.exposed())
        if now > before:
            told.append((g, now - before))
        before = now
    return told


def _anonymity(
    rows: Realised, policy: Policy, space: RowSpace, opened: Sequence[Row], proven: Mapping[Row, int]
) -> Anonymity:
    from secagg.exposure.anonymity import bounds

    seen = [row for row in opened if rows.index[row]]
    if not seen:
        return Anonymity(len(rows.clients) + 1, None, "no row is opened")
    lower, upper = bounds(space, {row: rows.index[row] for row in seen})
    promised = min(proven.get(row, 0) for row in seen)
    if promised > lower:
        return Anonymity(promised, upper, "by the schedule")
    decided = policy.anonymity if policy.enforced else 0  # no row is open that would have broken it
    return Anonymity(max(lower, decided), upper, "computed")


def _sentences(
    policy: Policy,
    total: int,
    opened: int,
    exposed: Collection[ClientId],
    told: Sequence[tuple[int, Collection[ClientId]]],
    objections: Mapping[Row, str],
    anonymity: Anonymity,
) -> tuple[str, ...]:
    from secagg.exposure.selection import names

    lines = [f"{opened} of {total} rows are opened; {anonymity}"]
    if not policy.enforced:
        lines.insert(0, "REPORT ONLY: every row is opened, whatever it exposes")
    if exposed:
        lines.append(f"the server learns the updates of {names(exposed)} exactly")
    lines += [f"opening grouping {g} would expose {names(clients)}" for g, clients in told]
    kept = "stays closed" if policy.enforced else "should stay closed"
    lines += [f"row {k} of grouping {g} {kept}: {why}" for (g, k), why in objections.items()]
    return tuple(lines)

"""What a set of row sums tells the server about single clients, and which rows may be opened.

SHARE shows the server R different sums of the same updates. The opened rows are a linear map A·x of the
updates x, and the server can compute exactly the combinations in the row space of A: a client is **exposed**
when its own unit vector lies there. SHARE, section 5.2 ("Privacy"), bounds the danger by a formula that does
not hold (`secagg.formulas`); this module computes it.

`audit` depends only on public sets, so every client runs it for itself, all of them reach the same verdict,
and refusing tells nothing about the updates. Opening fewer rows than the verdict allows is always safe: fewer
rows span less. `docs/exposure.md` has the theory.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from secagg.errors import UsageError
from secagg.groupings import ClientId, Group, Grouping, Row

if TYPE_CHECKING:
    from secagg.leverage import Leverage
    from secagg.linear import RowSpace

ENFORCE: Literal["enforce"] = "enforce"
REPORT_EVEN_IF_EXPOSED: Literal["report-even-if-exposed"] = "report-even-if-exposed"
Mode = Literal["enforce", "report-even-if-exposed"]
SLACK = 1e-9  # leverage may exceed its limit by this much: 1/3 computed is not always below 1/3 written
NAMED = 8  # how many clients a sentence names before it counts the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the opened rows must not reveal.

    `anonymity`: every combination the server can learn involves at least this many clients; so not even
    `anonymity - 2` clients who collude with it learn another's update. `min_survivors`: no row with fewer
    survivors (never less than `anonymity`, since a row is a combination). `max_leverage`: see
    `secagg.leverage`; the default also keeps integer sums from giving away what real ones would not
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
            and self.min_survivors >= floor.min_survivors
            and self.anonymity >= floor.anonymity
            and self.max_leverage <= floor.max_leverage
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

    `colluders` contribute nothing to hide: their columns are removed. `atoms` (`Schedule.units`) and
    `columns` (`Schedule.columns`) let the schedule's proof stand in for a computation; a proof is used only
    after checking that the realised rows fit it. The prime that decides is drawn from the plan hash and all
    these sets, so nobody can look for survivors that fit a prime known beforehand.
    """
    case = _Case(groupings, survivors, policy, weights, colluders, plan_hash, atoms, columns)
    if policy.enforced:
        opened, closed = case.choose()
        return case.verdict(opened, closed, closed)
    _, objections = case.choose()
    opened = [row for row in case.members if case.alive[row]]
    closed = {row: "nobody in it survived" for row in case.members if not case.alive[row]}
    return case.verdict(opened, closed, objections)


class Auditor:
    """`audit` that remembers its last answers, for one process that plays many clients.

    The answer depends only on the arguments, all public, so clients of one run may share it.
    """

    def __init__(self, capacity: int = 16) -> None:
        if capacity < 1:
            raise UsageError(f"an Auditor that remembers {capacity} answers is no use; call audit itself")
        self.capacity = capacity
        self._answers: OrderedDict[bytes, Verdict] = OrderedDict()

    def audit(
        self,
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
        """The same as `exposure.audit`."""
        key = _digest(
            groupings, frozenset(survivors), frozenset(colluders), plan_hash, policy, weights, atoms, columns
        )
        if key in self._answers:
            self._answers.move_to_end(key)
            return self._answers[key]
        verdict = audit(
            groupings, survivors, policy, weights=weights, colluders=colluders, plan_hash=plan_hash,
            atoms=atoms, columns=columns,
        )  # fmt: skip
        self._answers[key] = verdict
        if len(self._answers) > self.capacity:
            self._answers.popitem(last=False)
        return verdict


class _Case:
    """One audit: the realised rows over the columns of the honest survivors."""

    def __init__(
        self,
        groupings: Sequence[Grouping],
        survivors: Collection[ClientId],
        policy: Policy,
        weights: Mapping[ClientId, float] | None,
        colluders: Collection[ClientId],
        plan_hash: bytes,
        atoms: Sequence[Group],
        columns: Sequence[Group],
    ) -> None:
        self.policy = policy
        self.groupings = groupings
        self.key = _digest(groupings, frozenset(survivors), frozenset(colluders), plan_hash)
        alive, hidden = frozenset(survivors), frozenset(survivors) - frozenset(colluders)
        self.alive: dict[Row, int] = {}
        self.members: dict[Row, Group] = {}
        for g, grouping in enumerate(groupings):
            seen: set[ClientId] = set()
            for k, group in enumerate(grouping):
                if len(seen | set(group)) != len(seen) + len(group):
                    raise UsageError(f"grouping {g} has a client in two places; groups must be disjoint")
                seen |= set(group)
                self.alive[g, k] = len(alive.intersection(group))
                self.members[g, k] = tuple(sorted(hidden.intersection(group)))
        self.clients = tuple(sorted({client for row in self.members.values() for client in row}))
        self.at = {client: index for index, client in enumerate(self.clients)}
        self.index = {row: tuple(self.at[c] for c in members) for row, members in self.members.items()}
        self.weights: npt.NDArray[np.float64] = np.array(
            [1.0 if weights is None else float(weights[client]) for client in self.clients]
        )
        if not (np.isfinite(self.weights).all() and (self.weights > 0).all()):
            raise UsageError("weights must be positive and finite")
        scheduled = {client for grouping in groupings for group in grouping for client in group}
        self.known = scheduled - set(self.clients)
        self.atoms = atoms
        self.columns = columns
        self.proven = self._proven()

    def _proven(self) -> dict[Row, int]:
        """Rows that a schedule's proof covers jointly, with the bound on T that it gives for them."""
        from secagg.anonymity import atom_bound, transversal_bound

        bounds: dict[Row, int] = {}
        if self.columns:
            bound = transversal_bound(self.groupings, self.columns, len(self.known))
            bounds = dict.fromkeys(self.members, bound)
        if self.atoms:
            for row, members in self.members.items():
                bounds[row] = atom_bound([members], self.atoms, self.known)
        return bounds

    # -- choosing rows ---------------------------------------------------------------------------------------

    def choose(self) -> tuple[list[Row], dict[Row, str]]:
        """The rows to open and the reason for each other one: the best of a few greedy passes.

        A pass adds rows in a fixed order and keeps each one that leaves the policy satisfied. What was
        refused once stays refused (the row space only grows), so no row can be added to what a pass kept.
        """
        floor = max(self.policy.min_survivors, self.policy.anonymity)
        weak = {
            row: _few_survivors(self.alive[row], len(members), floor)
            for row, members in self.members.items()
            if len(members) < floor
        }
        strong = [row for row in self.members if row not in weak]
        best: tuple[list[Row], dict[Row, str]] | None = None
        for order in self._orders(strong, weak):
            opened, refused = self._pass(order)
            if best is None or len(opened) > len(best[0]):
                best = opened, refused
            if not refused:
                break
        assert best is not None
        return best[0], dict(sorted((weak | best[1]).items()))

    def _orders(self, strong: Sequence[Row], weak: Collection[Row]) -> Iterable[list[Row]]:
        """Grouping by grouping: as drawn; those that lost a row first; those that lost none first.

        Rows that a schedule's proof covers always come first: the proof holds only for rows of their kind.
        """
        hurt = {g for g, _ in weak}
        strong = sorted(strong, key=lambda row: (self.proven.get(row, 0) < self.policy.anonymity, row))
        yield list(strong)
        if 0 < len(hurt) < len(self.groupings):
            yield sorted(strong, key=lambda row: row[0] not in hurt)
            yield sorted(strong, key=lambda row: row[0] in hurt)

    def _pass(self, order: Sequence[Row]) -> tuple[list[Row], dict[Row, str]]:
        walk = _Walk(self)
        walk.take(order)
        return walk.opened, walk.refused

    # -- describing what is opened ---------------------------------------------------------------------------

    def verdict(
        self, opened: Sequence[Row], closed: Mapping[Row, str], objections: Mapping[Row, str]
    ) -> Verdict:
        from secagg.anonymity import DEPTH
        from secagg.leverage import Leverage
        from secagg.linear import RowSpace

        space, leverage = RowSpace(len(self.clients), self.key, depth=DEPTH), Leverage(self.weights)
        for row in opened:
            if space.add(self.index[row]):
                leverage.add(self.index[row])
        exposed = frozenset(self.clients[i] for i in space.exposed())
        would, told = self._what_all_rows_would_expose()
        values = {
            client: 1.0 if client in exposed else min(1.0, float(value))
            for client, value in zip(self.clients, leverage.values, strict=True)
        }
        anonymity = self._anonymity(space, opened)
        return Verdict(
            policy=self.policy,
            rows=frozenset(opened),
            closed=MappingProxyType(dict(closed)),
            objections=MappingProxyType(dict(objections)),
            exposed=exposed,
            would_expose=would,
            clients=len(self.clients),
            rank=space.rank,
            leverage=MappingProxyType(values),
            anonymity=anonymity,
            sentences=self._sentences(opened, objections, exposed, told, anonymity),
        )

    def _what_all_rows_would_expose(
        self,
    ) -> tuple[frozenset[ClientId], list[tuple[int, frozenset[ClientId]]]]:
        """Who is exposed if everything is opened, and by which grouping, opened in order, each became so."""
        from secagg.linear import RowSpace

        space = RowSpace(len(self.clients), self.key)
        so_far: frozenset[ClientId] = frozenset()
        told = []
        for g, grouping in enumerate(self.groupings):
            for k in range(len(grouping)):
                space.add(self.index[g, k])
            now = frozenset(self.clients[i] for i in space.exposed())
            if now > so_far:
                told.append((g, now - so_far))
            so_far = now
        return so_far, told

    def _anonymity(self, space: RowSpace, opened: Sequence[Row]) -> Anonymity:
        from secagg.anonymity import bounds

        sizes = [len(self.index[row]) for row in opened if self.index[row]]
        proven = min((self.proven.get(row, 0) for row in opened if self.index[row]), default=0)
        if not sizes:
            return Anonymity(len(self.clients) + 1, None, "no row is opened")
        lower, upper = bounds(space, [self.index[row] for row in opened if self.index[row]])
        if proven > lower:
            return Anonymity(proven, upper, "by the schedule")
        return Anonymity(lower, upper, "by the null space")

    def _sentences(
        self,
        opened: Sequence[Row],
        objections: Mapping[Row, str],
        exposed: frozenset[ClientId],
        told: Sequence[tuple[int, frozenset[ClientId]]],
        anonymity: Anonymity,
    ) -> tuple[str, ...]:
        total = len(self.members)
        lines = []
        if not self.policy.enforced:
            lines.append("REPORT ONLY: nothing is kept closed, whatever it exposes")
        lines.append(f"{len(opened)} of {total} rows are opened; {anonymity}")
        if exposed:
            lines.append(f"the server learns the updates of {_names(exposed)} exactly")
        lines += [f"opening grouping {g} would expose {_names(clients)}" for g, clients in told]
        lines += [f"row {k} of grouping {g}: {why}" for (g, k), why in objections.items()]
        return tuple(lines)


class _Walk:
    """A greedy pass: the rows kept so far and what they span."""

    def __init__(self, case: _Case) -> None:
        from secagg.leverage import Leverage
        from secagg.linear import RowSpace

        self.case = case
        self.need = case.policy.anonymity
        self.limit = case.policy.max_leverage
        self.space = RowSpace(len(case.clients), case.key, depth=self.need - 1)
        self.leverage: Leverage | None = Leverage(case.weights) if self.limit < 1.0 else None
        self.opened: list[Row] = []
        self.refused: dict[Row, str] = {}
        self.proven = True  # every row kept so far is covered by the schedule's proof
        self.component = np.arange(len(case.clients))  # clients linked by rows carry the same number
        self.tangled: set[int] = set()  # components of more than one row, whose T must be computed

    def take(self, rows: Sequence[Row]) -> None:
        """Add rows in order, each only if the policy still holds.

        Beyond T = 3 a test is dear, so it is made once for many rows, which are taken apart only if it fails;
        the result is the same as testing after every row.
        """
        if self.need <= 3 or len(rows) == 1:
            for row in rows:
                self._try(row, self.need)
            return
        before = self._state()
        for row in rows:
            self._try(row, 3)
        if not any(self._found(label, self.space.null, self.need) for label in sorted(self.tangled)):
            return
        self.space, self.leverage, self.opened, self.refused, self.proven, self.component, self.tangled = (
            before
        )
        half = len(rows) // 2
        self.take(rows[:half])
        self.take(rows[half:])

    def _state(self) -> tuple[Any, ...]:
        leverage = self.leverage.copy() if self.leverage is not None else None
        return (
            self.space.copy(), leverage, self.opened.copy(), self.refused.copy(), self.proven,
            self.component.copy(), self.tangled.copy(),
        )  # fmt: skip

    def _try(self, row: Row, need: int) -> None:
        members = self.case.index[row]
        null = self.space.consider(members)
        if null is None:
            self.opened.append(row)
            return
        labels = set(self.component[list(members)].tolist())
        joined = np.isin(self.component, list(labels))
        alone = int(joined.sum()) == len(members)  # no client of it is in, or linked to, a row kept before
        proven = self.proven and self.case.proven.get(row, 0) >= self.need
        before, label = self.component, members[0]
        self.component = np.where(joined, label, self.component)
        reason = (None if alone or proven else self._found(label, null, need)) or self._too_much(members)
        if reason:
            self.component = before
            self.refused[row] = reason
            return
        self.space.accept()
        if self.leverage is not None:
            self.leverage.accept()
        self.proven = proven
        self.tangled -= labels
        if not alone and not proven:
            self.tangled.add(label)
        self.opened.append(row)

    def _found(self, label: int, null: npt.NDArray[np.uint64], need: int) -> str | None:
        """Fewer than `need` clients of this component in one combination, or the reason we cannot tell."""
        from secagg.anonymity import decidable, dependent

        inside = np.flatnonzero(self.component == label)
        if not decidable(len(inside), need):
            return f"anonymity {need} among {len(inside)} clients is neither proven nor within reach"
        found = dependent(self.space, null[:, inside], need)
        clients = [self.case.clients[inside[i]] for i in found]
        if len(clients) == 1:
            return f"with the rows opened before, it would expose {_names(clients)}"
        return (
            f"with the rows opened before, a mix of only {_names(clients)} would be learned"
            if clients
            else None
        )

    def _too_much(self, members: Sequence[int]) -> str | None:
        """A client whose leverage would pass the limit."""
        if self.leverage is None:
            return None
        ahead = self.leverage.consider(members)
        worst = int(np.argmax(ahead))
        if ahead[worst] <= self.limit + SLACK:
            return None
        return f"client {self.case.clients[worst]} would reach leverage {ahead[worst]:.3f} > {self.limit:g}"


def _few_survivors(alive: int, honest: int, floor: int) -> str:
    if not alive:
        return "nobody in it survived"
    colluding = f", {alive - honest} of them assumed to collude" if alive > honest else ""
    return f"{alive} survivors{colluding}: fewer than {floor}"


def _names(clients: Collection[ClientId]) -> str:
    """'client 7', 'clients 7 and 23', 'clients 1, 2, 3 and 57 others'."""
    ordered = sorted(clients)
    if len(ordered) == 1:
        return f"client {ordered[0]}"
    if len(ordered) > NAMED:
        return f"clients {', '.join(map(str, ordered[:NAMED]))} and {len(ordered) - NAMED} others"
    return f"clients {', '.join(map(str, ordered[:-1]))} and {ordered[-1]}"


def _digest(*parts: object) -> bytes:
    """A hash of public arguments, with sets and mappings in ascending order: equal arguments hash alike."""
    return hashlib.sha256(repr(tuple(_canonical(part) for part in parts)).encode()).digest()


def _canonical(part: object) -> object:
    if isinstance(part, Mapping):
        return ("map", tuple(sorted(part.items())))
    if isinstance(part, (set, frozenset)):
        return tuple(sorted(part))
    if isinstance(part, (list, tuple)):
        return tuple(_canonical(item) for item in part)
    return part

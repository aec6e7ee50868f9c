"""What a set of group sums tells the server about single clients, and which of them may be opened.

SHARE shows the server R different sums of the same updates. The opened sums are a linear map A·x of the
updates x, with one row of A per group. The server can compute exactly the combinations in the row space of
A. A client is **exposed** when its own unit vector lies there. SHARE, section 5.3 ("Privacy"), bounds this
risk by a formula that does not hold (`tests.paper.formulas`); this module computes it.

`audit` depends only on public sets. So every client runs it, all clients reach the same verdict, and a
refusal says nothing about the updates. Opening fewer sums than the verdict allows is always safe, because
fewer rows span less. `docs/exposure.md` has the theory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from secagg.arguments import MOST_ID, each, ids, instance, real, settle, whole
from secagg.errors import UsageError
from secagg.exposure.incidence import Incidence
from secagg.types import ClientId, Group, GroupId, Grouping

if TYPE_CHECKING:
    from secagg.exposure.rowspace import RowSpace

ENFORCE: Literal["enforce"] = "enforce"
REPORT_EVEN_IF_EXPOSED: Literal["report-even-if-exposed"] = "report-even-if-exposed"
Mode = Literal["enforce", "report-even-if-exposed"]
Memory = Literal["training", "round"]
MEMORIES: tuple[Memory, ...] = ("training", "round")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the opened sums must not reveal.

    - `anonymity`: every combination that the server can learn involves at least this many clients. So not
      even `anonymity - 2` clients that collude with the server learn another client's update.
    - `min_survivors`: a group with fewer survivors stays closed. The limit is never below `anonymity`,
      because a group sum is a combination.
    - `max_leverage`: see `secagg.exposure.leverage`. The default also covers integer sums, which can reveal
      what real sums would not (`docs/exposure.md`, "Whole numbers leak more than real ones").
    - `memory`: whether the limits hold for all openings of a training together ("training": they hold even if
      updates never change) or for each round alone ("round": a server that sees similar updates in several rounds
      can combine them).
    - `mode`: REPORT_EVEN_IF_EXPOSED opens every sum and reports what that reveals. It exists to repeat
      published experiments, and protects nobody.

    >>> Policy(anonymity=4).at_least(Policy())
    True
    """

    min_survivors: int = 2
    anonymity: int = 3
    max_leverage: float = 0.5
    mode: Mode = ENFORCE
    memory: Memory = "training"

    def __post_init__(self) -> None:
        if not isinstance(self.mode, str) or self.mode not in (ENFORCE, REPORT_EVEN_IF_EXPOSED):
            raise UsageError(f"mode must be {ENFORCE!r} or {REPORT_EVEN_IF_EXPOSED!r}, not {self.mode!r}")
        if not isinstance(self.memory, str) or self.memory not in MEMORIES:
            raise UsageError(f"memory must be 'training' or 'round', not {self.memory!r}")
        settle(self, whole, "min_survivors", "anonymity", least=2, most=MOST_ID)
        settle(self, real, "max_leverage")
        if not 0.0 < self.max_leverage <= 1.0:
            raise UsageError(f"max_leverage must be above 0 and at most 1, not {self.max_leverage!r}")

    @property
    def enforced(self) -> bool:
        return self.mode == ENFORCE

    def at_least(self, floor: Policy) -> bool:
        """Whether every limit of this policy is at least as strict as that of `floor`."""
        if not instance("floor", floor, Policy).enforced:
            return True
        return (
            self.enforced
            and self.min_survivors >= floor.min_survivors  # audit: policy-survivors
            and self.anonymity >= floor.anonymity  # audit: policy-anonymity
            and self.max_leverage <= floor.max_leverage  # audit: policy-leverage
            and (self.memory == "training" or floor.memory == "round")  # audit: policy-memory
        )


@dataclass(frozen=True, slots=True)
class Anonymity:
    """Bounds on T: `lower` is proven, `upper` is the size of a combination that was found.

    `upper` is None when nothing can be learned. `how` says where the lower bound comes from.

    >>> str(Anonymity(3, 3, "computed"))
    'T = 3 (exact)'
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
    """Which group sums may be opened, and what the server learns from exactly those.

    `exposed`, `rank`, `leverage` and `anonymity` describe the `opened` groups; `would_expose` describes all
    groups that have a survivor. `objections` has the groups that break the policy, with the reason. Under
    `enforce` these are the `closed` groups; under REPORT_EVEN_IF_EXPOSED they are opened nevertheless.

    >>> verdict = audit([((0, 1, 2), (3, 4, 5))], [0, 1, 2, 3, 4], Policy(), plan_hash=b"")
    >>> sorted(verdict.opened), verdict.closed[0, 1]
    ([(0, 0)], 'it has 2 survivors, fewer than 3')
    """

    policy: Policy
    opened: frozenset[GroupId]
    closed: Mapping[GroupId, str]
    objections: Mapping[GroupId, str]
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
    """Decide which group sums may be opened, given the survivors and the assumed colluders.

    The audit does not protect `colluders`: their columns are removed. With `atoms` (`Schedule.atoms`) or
    `columns` (`Schedule.columns`) the proof of the schedule replaces a computation, after a check that the
    groups fit it. The prime of the field is drawn from the plan hash and all these sets, so nobody can search
    for survivors that suit a known prime.

    >>> audit([((0, 1, 2, 3),)], range(4), Policy(), plan_hash=b"").sentences
    ('1 of 1 group sums are opened; T = 4 (exact)',)
    """
    from secagg.exposure.selection import Limits, choose  # imports numba

    instance("policy", policy, Policy)
    atoms, columns = _sets("atoms", atoms), _sets("columns", columns)
    rows = Incidence(groupings, survivors, colluders=colluders, weights=weights, plan_hash=plan_hash)
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
        closed = {row: "it has no survivors" for row in rows.members if not rows.alive[row]}
    space, exposed, leverage = _span(rows, opened)
    newly_exposed = _newly_exposed(rows)
    anonymity = _anonymity(rows, policy, space, opened, limits.proven)
    return Verdict(
        policy=policy,
        opened=frozenset(opened),
        closed=MappingProxyType(closed),
        objections=MappingProxyType(objections),
        exposed=exposed,
        would_expose=frozenset(client for _, clients in newly_exposed for client in clients),
        clients=len(rows.clients),
        rank=space.rank,
        leverage=leverage,
        anonymity=anonymity,
        sentences=(
            *([] if policy.enforced else ["REPORT ONLY: every group sum is opened, whatever it exposes"]),
            f"{len(opened)} of {len(rows.members)} group sums are opened; {anonymity}",
            *_sentences(policy, exposed, newly_exposed, objections),
        ),
    )


@dataclass(frozen=True, slots=True)
class Revealed:
    """What a set of sums reveals about the clients in them; see `revealed`.

    >>> revealed([{0, 1}, {1, 2}]).rank
    2
    """

    clients: tuple[ClientId, ...]
    rank: int
    exposed: frozenset[ClientId]
    leverage: Mapping[ClientId, float] = field(repr=False)


def revealed(groups: Iterable[Collection[ClientId]], *, weights: Mapping[ClientId, float] | None = None) -> Revealed:
    """What the sums over these sets of clients reveal if a client's update is the same in all of them.

    Pass the opened groups of several rounds to see the worst case over a training: updates that hardly
    change from round to round.

    >>> sorted(revealed([{0, 1, 2}, {0, 1}]).exposed)
    [2]
    """
    groupings = [(tuple(sorted(group)),) for group in _sets("groups", groups)]
    everyone = {client for (group,) in groupings for client in group}
    rows = Incidence(groupings, everyone, weights=weights, plan_hash=b"")
    space, exposed, leverage = _span(rows, list(rows.members))
    return Revealed(rows.clients, space.rank, exposed, leverage)


def _sets(name: str, groups: Iterable[Collection[ClientId]]) -> tuple[Group, ...]:
    return tuple(ids(f"{name}, each group", group) for group in each(name, groups, object))


def _proven(rows: Incidence, atoms: Sequence[Group], columns: Sequence[Group]) -> Mapping[GroupId, int]:
    """For each row a T that is proven for all rows with at least that T together; 0 without a proof."""
    from secagg.exposure.anonymity import atom_bound, transversal_bound

    if columns:
        return dict.fromkeys(rows.members, transversal_bound(rows.groupings, columns, len(rows.missing)))
    if atoms:
        return {row: atom_bound(members, atoms, rows.missing) for row, members in rows.members.items()}
    return {}


def _span(rows: Incidence, opened: Sequence[GroupId]) -> tuple[RowSpace, frozenset[ClientId], Mapping[ClientId, float]]:
    """The row space of the opened rows, the clients that it exposes, and the leverage of all clients."""
    from secagg.exposure.anonymity import REPORT_DEPTH
    from secagg.exposure.leverage import Leverage
    from secagg.exposure.rowspace import RowSpace

    space, leverage = RowSpace(len(rows.clients), rows.field, depth=REPORT_DEPTH), Leverage(rows.weights)
    for row in opened:
        if space.add(rows.index[row]):
            leverage.add(rows.index[row])
    exposed = frozenset(rows.clients[i] for i in space.exposed())
    values = {
        client: 1.0 if client in exposed else float(min(1.0, value))
        for client, value in zip(rows.clients, leverage.values, strict=True)
    }
    return space, exposed, MappingProxyType(values)


def _newly_exposed(rows: Incidence) -> list[tuple[int, frozenset[ClientId]]]:
    """If every grouping were opened, one after the other: the clients that each newly exposes."""
    from secagg.exposure.rowspace import RowSpace

    space = RowSpace(len(rows.clients), rows.field)
    found, before = [], frozenset[ClientId]()
    for g, grouping in enumerate(rows.groupings):
        for k in range(len(grouping)):
            space.add(rows.index[g, k])
        now = frozenset(rows.clients[i] for i in space.exposed())
        if now > before:
            found.append((g, now - before))
        before = now
    return found


def _anonymity(
    rows: Incidence, policy: Policy, space: RowSpace, opened: Sequence[GroupId], proven: Mapping[GroupId, int]
) -> Anonymity:
    from secagg.exposure.anonymity import bounds

    seen = [row for row in opened if rows.index[row]]
    if not seen:
        return Anonymity(len(rows.clients) + 1, None, "no group sum is opened")
    lower, upper = bounds(space, {row: rows.index[row] for row in seen})
    guaranteed = min(proven.get(row, 0) for row in seen)
    if guaranteed > lower:
        return Anonymity(guaranteed, upper, "by the schedule")
    decided = policy.anonymity if policy.enforced else 0  # every open row passed this test
    return Anonymity(max(lower, decided), upper, "computed")


def _sentences(
    policy: Policy,
    exposed: Collection[ClientId],
    newly_exposed: Sequence[tuple[int, Collection[ClientId]]],
    objections: Mapping[GroupId, str],
) -> Iterator[str]:
    from secagg.exposure.selection import names

    if exposed:
        yield f"the server learns the updates of {names(exposed)} exactly"
    for g, clients in newly_exposed:
        yield f"opening grouping {g} would expose {names(clients)}"
    for (g, k), why in objections.items():
        yield f"group {k} of grouping {g} {'stays' if policy.enforced else 'should stay'} closed: {why}"

"""How the clients of a round are divided into cells and clusters, and what the opened sums would reveal.

A cell is at most a few hundred clients. It is one run of secure aggregation with its own roster and threshold, and
the cluster sums of all cells go to one robust aggregation. The cost therefore grows with the number of clients and
not with its square, and only one cell's updates need to be in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import lru_cache

from fl.config.schema import Experiment, Privacy
from fl.errors import ConfigError
from secagg import Plan, Policy, Schedule, UsageError, Verdict
from secagg.protocol import GroupId, Member

MAX_LEFT_OUT_PERCENT = 10  # a cell or cluster of another size wastes fewer clients


@dataclass(frozen=True, slots=True)
class Layout:
    """The shape of every round: the size and schedule of each cell, and what all cells give together.

    `clustered` counts the clients that are in a cluster. There are no schedules for `no-share`.
    """

    cells: tuple[int, ...]
    schedules: tuple[Schedule, ...]
    clusters: int
    clustered: int
    groupings: int

    @classmethod
    def of(cls, experiment: Experiment) -> Layout:
        """The layout of an experiment; ConfigError if the clients cannot be divided as it asks."""
        n, most = experiment.per_round, experiment.clusters.cell
        try:
            if experiment.method == "no-share":
                return cls(_even_sizes(n, most), (), n, n, 1)
            if experiment.method == "fedavg":
                sizes = _even_sizes(n, most)
                schedules = tuple(Schedule(name="random", size=size) for size in sizes)
                return cls(sizes, schedules, len(sizes), n, 1)
            c = experiment.clusters
            schedule = Schedule(name=c.schedule, size=c.size, groupings=c.groupings, atom=c.atom)
            sizes = (n,) if n <= most else _cell_sizes(n, most, schedule)
            count = sum(schedule.groups(size) for size in sizes)
        except UsageError as error:
            raise ConfigError(f"clusters: {error}") from None
        return cls(sizes, (schedule,) * len(sizes), count, schedule.size * count, schedule.groupings)


@dataclass(frozen=True, slots=True)
class Cell:
    """The clients of one run of secure aggregation.

    `clustered` are those in a cluster; the others only hold shares. Without a plan (`no-share`) every client
    is a cluster of its own.
    """

    index: int
    clients: tuple[int, ...]
    clustered: tuple[int, ...]
    plan: Plan | None

    def clusters(self) -> dict[GroupId, tuple[int, ...]]:
        """The clients of every cluster, by the number of its grouping and its own number."""
        if self.plan is None:
            return {(0, client): (client,) for client in self.clients}
        groupings = enumerate(self.plan.groupings)
        return {(r, g): group for r, grouping in groupings for g, group in enumerate(grouping)}


def _even_sizes(n: int, most: int) -> tuple[int, ...]:
    """The sizes of as few cells as possible for n clients, as equal as possible."""
    count = -(-n // most)
    return tuple(n // count + (k < n % count) for k in range(count))


def _cell_sizes(n: int, most: int, schedule: Schedule) -> tuple[int, ...]:
    """The sizes of cells that are whole numbers of clusters. Clients who do not fit are left out."""
    m = schedule.size
    if most < m:
        raise UsageError(f"a cell of {most} clients has no room for a cluster of {m}; raise clusters.cell")
    if schedule.name != "transversal":
        return tuple(m * groups for groups in _even_sizes(n // m, most // m))
    fitting = [c for c in range(m, most // m + 1) if _fits(schedule, c)]
    if not fitting:
        raise UsageError(f"no cell of at most {most} clients fits clusters of {m}; raise clusters.cell")
    best = max(fitting, key=lambda c: (n // (m * c) * m * c, c))
    cells = n // (m * best)
    if 100 * (n - cells * m * best) > MAX_LEFT_OUT_PERCENT * n:
        raise UsageError(
            f"transversal cells of {m * best} clients leave out {n - cells * m * best} of {n} clients; use "
            f"{(cells + 1) * m * best} clients, another clusters.size or another clusters.cell"
        )
    return (m * best,) * cells


def _fits(schedule: Schedule, clusters: int) -> bool:
    try:
        return schedule.groups(clusters * schedule.size) == clusters
    except UsageError:
        return False


def training_seed(seed: int) -> bytes:
    """The public randomness of a simulated training. Real trainings take it from commit and reveal."""
    return hashlib.sha256(b"fl/training-seed/v1:%d" % seed).digest()


def placeholder_roster(clients: Collection[int]) -> tuple[Member, ...]:
    """A roster for runs without cryptography: hashes in the place of public keys."""
    return tuple(Member(c, hashlib.sha256(b"fl/nobody:%d" % c).digest()) for c in clients)


def policy(experiment: Experiment) -> Policy:
    """The exposure policy of an experiment."""
    p = experiment.privacy
    rules = Policy(min_survivors=p.min_survivors, anonymity=p.anonymity, max_leverage=p.max_leverage)
    return rules if p.audit == "enforce" else replace(rules, mode="report-even-if-exposed")


def check_exposure(experiment: Experiment, layout: Layout) -> None:
    """Raise ConfigError for clusters that the audit would keep closed even if nobody dropped out."""
    if experiment.method == "no-share":
        return
    privacy, size, schedule = experiment.privacy, layout.cells[0], layout.schedules[0]
    enforced = privacy.audit == "enforce"
    wanted = max(privacy.anonymity, privacy.min_survivors)
    if schedule.size < wanted and enforced:
        raise ConfigError(
            f"clusters.size: {schedule.size} clients cannot hide among {wanted} (privacy.anonymity and "
            f"min_survivors); use clusters of at least {wanted}"
        )
    try:
        plan = _sample_plan(size, schedule, policy(experiment), experiment.seed, 0, privacy)
    except UsageError as error:
        raise ConfigError(f"privacy: {error}") from None
    if not enforced or not (verdict := plan.audit(range(size))).closed:
        return
    opened, exposed = len(verdict.opened), len(verdict.would_expose)
    leak = f"expose {exposed} of {size} clients" if exposed else f"break anonymity {privacy.anonymity} or max_leverage"
    raise ConfigError(
        f"clusters.groupings: {schedule.groupings} {schedule.name} groupings in clusters of {schedule.size} "
        f"would {leak}, so only {opened} of {opened + len(verdict.closed)} sums could be opened; "
        f"{_alternatives(experiment, size, schedule)}"
    )


def _alternatives(experiment: Experiment, size: int, schedule: Schedule) -> str:
    """What to write instead: the most groupings that are safe, with this schedule and with others."""
    offers = []
    for name in dict.fromkeys((schedule.name, "transversal")):
        other = replace(schedule, name=name, atom=0, groupings=1)
        if most := _safe_groupings(size, other, policy(experiment), experiment.seed):
            offers.append(f"schedule = {name!r} allows groupings = {most}")
    atom = max(2, experiment.privacy.anonymity)
    if size >= 4 * atom:
        offers.append(f"schedule = 'atoms' with atom = {atom} and size = {2 * atom} allows any number")
    offers.append("`share plan` compares them")
    return "; ".join(offers)


def _safe_groupings(n: int, schedule: Schedule, rules: Policy, seed: int) -> int:
    """The largest number of groupings, up to 10, of which the audit opens every sum; 0 if none."""
    for groupings in range(1, 11):
        wider = replace(schedule, groupings=groupings)
        try:
            wider.check(n)
            if preview(n, wider, rules, seed=seed, round=0, dropouts=())[1].closed:
                return groupings - 1
        except UsageError:
            return groupings - 1
    return 10


@lru_cache(maxsize=4)  # the planner asks again for what it has just seen
def preview(
    n: int, schedule: Schedule, rules: Policy, *, seed: int, round: int, dropouts: tuple[int, ...]
) -> tuple[list[list[tuple[int, ...]]], Verdict]:
    """What one cell of n clients would open in a round, without running anything.

    Returns the survivors of every opened cluster, by grouping, and the verdict of the audit.
    """
    plan = _sample_plan(n, schedule, rules, seed, round)
    survivors = set(range(n)) - set(dropouts)
    survivors -= set(plan.too_few_in_atom(sorted(survivors)))
    verdict = plan.audit(sorted(survivors))
    opened = [
        [tuple(c for c in group if c in survivors) for g, group in enumerate(grouping) if (r, g) in verdict.opened]
        for r, grouping in enumerate(plan.groupings)
    ]
    return opened, verdict


def _sample_plan(
    n: int, schedule: Schedule, rules: Policy, seed: int, round: int, privacy: Privacy | None = None
) -> Plan:
    """A plan of one cell to inspect. Nobody can run it, because its roster has no real keys."""
    return Plan(
        training_id=bytes(32),
        round=round,
        roster=placeholder_roster(range(n)),
        length=1,
        schedule=schedule,
        training_seed=training_seed(seed),
        clip=1.0,
        threshold=privacy.threshold if privacy else None,
        colluders=privacy.colluders if privacy else None,
        policy=rules,
    )

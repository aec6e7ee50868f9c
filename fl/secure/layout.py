"""Updates in, cluster means out, under secure aggregation. Beside it only `fl.flower` knows `secagg`.

A round's clients are cut into cells of at most a few hundred; each cell is one run of secure aggregation
with its own roster and threshold, and the cluster sums of all cells go to one robust aggregation. So the
cost grows with the number of clients and not with its square, and only one cell's updates need be in memory.
Samples, cells, clusters and remainders are drawn by `secagg` from the training seed and the round.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

import robust
import secagg
from fl.config.schema import Experiment
from fl.errors import ConfigError
from secagg.crypto.fixedpoint import FixedPoint
from secagg.crypto.keys import Identity
from secagg.errors import TooFewSurvivors, UsageError
from secagg.exposure.audit import Policy, Verdict
from secagg.exposure.schedules import Schedule, shuffled
from secagg.protocol.plan import Member, Plan, default_colluders, default_threshold
from secagg.protocol.result import Dropout, Result, Stage
from secagg.simulation import Cost, Misbehaviour, clear, cores, make_identities, run
from secagg.types import GroupId

Vector = NDArray[np.float32]
Inputs = Callable[[int], Vector]
LEFT_OUT_AT_MOST = 10  # in percent; more would waste clients, and a smaller cell or cluster fits better


# --- who is summed with whom --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Layout:
    """The shape of every round: how many clients each cell has, and what comes out of them."""

    cells: tuple[int, ...]
    schedules: tuple[Schedule | None, ...]
    clusters: int
    seated: int
    groupings: int


def layout(e: Experiment) -> Layout:
    """How the clients of a round are cut into cells and clusters, or a ConfigError that says why not."""
    n = e.per_round
    try:
        if e.method == "no-share":
            return Layout(tuple(_even(n, e.clusters.cell)), (), n, n, 1)
        if e.method == "fedavg":
            sizes = tuple(_even(n, e.clusters.cell))
            flat = tuple(Schedule(name="random", size=size) for size in sizes)
            return Layout(sizes, flat, len(sizes), n, 1)
        schedule = _schedule(e)
        sizes = (n,) if n <= e.clusters.cell else tuple(_cells(n, e.clusters.cell, schedule))
        groups = [schedule.groups(size) for size in sizes]
    except UsageError as error:
        raise ConfigError(f"clusters: {error}") from None
    return Layout(
        sizes, (schedule,) * len(sizes), sum(groups), schedule.size * sum(groups), schedule.groupings
    )


def _schedule(e: Experiment) -> Schedule:
    c = e.clusters
    return Schedule(name=c.schedule, size=c.size, groupings=c.groupings, atom=c.atom)


def _even(n: int, most: int) -> list[int]:
    """n clients in as few cells as possible, of nearly equal size."""
    count = -(-n // most)
    return [n // count + (k < n % count) for k in range(count)]


def _cells(n: int, most: int, schedule: Schedule) -> list[int]:
    """Sizes of cells, each a whole number of clusters; those who fit nowhere are left out by lot."""
    m = schedule.size
    if most < m:
        raise UsageError(f"a cell of {most} clients has no room for a cluster of {m}; raise clusters.cell")
    if schedule.name != "transversal":
        return [m * groups for groups in _even(n // m, most // m)]
    fitting = [c for c in range(m, most // m + 1) if _fits(schedule, c)]
    if not fitting:
        raise UsageError(f"no cell of at most {most} clients fits clusters of {m}; raise clusters.cell")
    best = max(fitting, key=lambda c: (n // (m * c) * m * c, c))
    cells = n // (m * best)
    if 100 * (n - cells * m * best) > LEFT_OUT_AT_MOST * n:
        raise UsageError(
            f"transversal cells of {m * best} clients leave out {n - cells * m * best} of {n}; "
            f"{(cells + 1) * m * best} clients, another clusters.size or clusters.cell would fit"
        )
    return [m * best] * cells


def _fits(schedule: Schedule, clusters: int) -> bool:
    try:
        return schedule.groups(clusters * schedule.size) == clusters
    except UsageError:
        return False


def training_seed(seed: int) -> bytes:
    """The public randomness of a simulated training. Real trainings take it from commit and reveal."""
    return hashlib.sha256(b"fl/training-seed/v1:%d" % seed).digest()


def check_exposure(e: Experiment, plan: Layout) -> None:
    """Refuse clusters that the audit would keep closed even if nobody dropped out."""
    if e.method == "no-share":
        return
    size, schedule = plan.cells[0], plan.schedules[0]
    assert schedule is not None
    wanted = max(e.privacy.anonymity, e.privacy.min_survivors)
    if schedule.size < wanted and e.privacy.audit == "enforce":
        raise ConfigError(
            f"clusters.size: {schedule.size} clients cannot hide among {wanted} (privacy.anonymity and "
            f"min_survivors); use clusters of at least {wanted}"
        )
    try:
        sketch = _sketch(size, schedule, policy(e), e.seed, 0, e.privacy.threshold, e.privacy.colluders)
    except UsageError as error:
        raise ConfigError(f"privacy: {error}") from None
    if e.privacy.audit != "enforce":
        return
    verdict = sketch.audit(range(size))
    if not verdict.closed:
        return
    total = len(verdict.opened) + len(verdict.closed)
    whom = len(verdict.would_expose)
    leak = (
        f"expose {whom} of {size} clients"
        if whom
        else f"break anonymity {e.privacy.anonymity} or max_leverage"
    )
    raise ConfigError(
        f"clusters.groupings: {schedule.groupings} {schedule.name} groupings in clusters of {schedule.size} "
        f"would {leak}, so only {len(verdict.opened)} of {total} sums could be opened; "
        f"{_what_works(e, size, schedule)}"
    )


def _what_works(e: Experiment, size: int, schedule: Schedule) -> str:
    """What to write instead: as many groupings as are safe, with this schedule and with others."""
    offers = []
    for name in dict.fromkeys((schedule.name, "transversal")):
        most = safe_groupings(size, replace(schedule, name=name, atom=0, groupings=1), policy(e), seed=e.seed)
        if most:
            offers.append(f"schedule = {name!r} allows groupings = {most}")
    atom = max(2, e.privacy.anonymity)
    if size >= 4 * atom:
        offers.append(f"schedule = 'atoms' with atom = {atom} and size = {2 * atom} allows any number")
    offers.append("`share plan` compares them")
    return "; ".join(offers)


def safe_groupings(n: int, schedule: Schedule, rules: Policy, *, seed: int = 0, most: int = 10) -> int:
    """The largest number of groupings, up to `most`, of which the audit opens every row; 0 if none."""
    safe = 0
    for groupings in range(1, most + 1):
        try:
            wider = replace(schedule, groupings=groupings)
            wider.check(n)
            if preview(n, wider, rules, seed=seed).closed:
                break
        except UsageError:
            break
        safe = groupings
    return safe


def policy(e: Experiment) -> Policy:
    p = e.privacy
    if p.audit == "enforce":
        return Policy(min_survivors=p.min_survivors, anonymity=p.anonymity, max_leverage=p.max_leverage)
    return Policy(
        min_survivors=p.min_survivors,
        anonymity=p.anonymity,
        max_leverage=p.max_leverage,
        mode="report-even-if-exposed",
    )


def preview(
    n: int,
    schedule: Schedule,
    rules: Policy,
    *,
    seed: int = 0,
    round: int = 0,
    gone: Collection[int] = (),
) -> Verdict:
    """What one cell of n clients would reveal, without running anything."""
    return opened_rows(n, schedule, rules, seed=seed, round=round, gone=gone)[1]


def opened_rows(
    n: int,
    schedule: Schedule,
    rules: Policy,
    *,
    seed: int = 0,
    round: int = 0,
    gone: Collection[int] = (),
) -> tuple[list[list[tuple[int, ...]]], Verdict]:
    """The survivors of every row that would be opened, by grouping, and the audit's verdict."""
    plan = _sketch(n, schedule, rules, seed, round)
    missing = set(gone)
    alive = {client for client in range(n) if client not in missing}
    alive -= set(plan.too_few_in_atom(sorted(alive)))
    verdict = plan.audit(sorted(alive))
    rows = [
        [
            tuple(c for c in group if c in alive)
            for g, group in enumerate(grouping)
            if (r, g) in verdict.opened
        ]
        for r, grouping in enumerate(plan.groupings)
    ]
    return rows, verdict


def _sketch(
    n: int,
    schedule: Schedule,
    rules: Policy,
    seed: int,
    round: int,
    threshold: int | None = None,
    colluders: int | None = None,
) -> Plan:
    """A plan of one cell to look at: nobody can run it."""
    return Plan(
        training_id=bytes(32),
        round=round,
        roster=_nameless(range(n)),
        length=1,
        schedule=schedule,
        training_seed=training_seed(seed),
        clip=1.0,
        threshold=threshold,
        colluders=colluders,
        policy=rules,
    )


def thresholds(n: int) -> tuple[int, int]:
    """(colluders assumed, clients needed) by default in a cell of n."""
    colluders = default_colluders(n)
    return colluders, default_threshold(n, colluders)


def _nameless(clients: Collection[int]) -> tuple[Member, ...]:
    """A roster where no cryptography is used: bytes in the place of keys."""
    return tuple(Member(c, hashlib.sha256(b"fl/nobody:%d" % c).digest()) for c in clients)


# --- one round ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cell:
    """The clients of one run of secure aggregation. Without a plan every client is a cluster of its own."""

    index: int
    clients: tuple[int, ...]
    seated: tuple[int, ...]
    plan: Plan | None


@dataclass(frozen=True, slots=True)
class Cluster:
    """One row: who survived in it, and whether its sum was opened."""

    cell: int
    grouping: int
    index: int
    members: tuple[int, ...]
    state: str = "opened"
    why: str = ""


@dataclass(frozen=True, slots=True)
class Exposure:
    """What the server learned from one cell's opened sums."""

    exposed: tuple[int, ...]
    would_expose: int
    clients: int
    rank: int
    leverage: float
    most_leverage: float
    anonymity: int | None
    anonymity_at_most: int | None
    sentences: tuple[str, ...]


@dataclass(slots=True)
class Opened:
    """What one cell gave: its clusters, and the sums of those that were opened."""

    cell: Cell
    clusters: list[Cluster]
    dropouts: dict[int, Dropout]
    blamed: dict[int, str]
    exposure: Exposure | None
    cost: Cost
    failed: str = ""
    _totals: dict[GroupId, NDArray[np.uint32]] = field(default_factory=dict, repr=False)
    _encoding: FixedPoint | None = field(default=None, repr=False)
    _weights: dict[int, int] = field(default_factory=dict, repr=False)

    def of(self, grouping: int) -> list[Cluster]:
        """The opened clusters of one grouping."""
        return [c for c in self.clusters if c.grouping == grouping and c.state == "opened"]

    @property
    def mean_weight(self) -> float:
        """The mean n_i of the cell: updates were scaled by n_i over this before encoding."""
        return sum(self._weights.values()) / len(self._weights)

    def weight(self, cluster: Cluster) -> int:
        """The n_i of a cluster's survivors, added up."""
        return sum(self._weights[client] for client in cluster.members)

    def mean(self, cluster: Cluster, out: Vector | None = None) -> Vector:
        """The weighted mean of a cluster's updates: g_j of Algorithm 1."""
        assert self._encoding is not None
        total = self._totals[cluster.grouping, cluster.index]
        return self._encoding.decode(total, divisor=self.weight(cluster) / self.mean_weight, out=out)

    def total(self, grouping: int) -> tuple[NDArray[np.float64], int]:
        """The sum of a grouping's opened clusters, added as integers, and their weight (Lemma 1).

        Any two groupings of the same survivors give the same integers, so the same floats.
        """
        assert self._encoding is not None
        clusters = self.of(grouping)
        whole = sum(self._totals[c.grouping, c.index].view(np.int32).astype(np.int64) for c in clusters)
        scale = self.mean_weight / self._encoding.scale
        return np.asarray(whole, dtype=np.float64) * scale, sum(map(self.weight, clusters))

    def forget(self, grouping: int) -> None:
        """Let go of the sums of a grouping that has been aggregated: at the paper's size all are 1.7 GB."""
        for row in [row for row in self._totals if row[0] == grouping]:
            del self._totals[row]


class Cohort:
    """Who takes part in a training, and who is summed with whom. It holds nothing secret."""

    def __init__(
        self, e: Experiment, sizes: Sequence[int], roster: tuple[Member, ...], training_id: bytes, seed: bytes
    ) -> None:
        self.experiment = e
        self.layout = layout(e)
        self.seed = seed
        self.training_id = training_id
        self.weights = capped(sizes, e.privacy.weight_ratio)
        self._roster = roster

    def drawn(self, round: int) -> list[int]:
        """The clients drawn for a round."""
        e = self.experiment
        return sorted(shuffled(range(e.clients), self.seed, round, b"fl/sample")[: e.per_round])

    def cells(self, round: int, length: int, context: bytes) -> list[Cell]:
        """The clients drawn for a round, cut into cells, each with its plan."""
        e = self.experiment
        drawn = self.drawn(round)
        still = e.method == "share" and e.clusters.schedule in ("fixed", "atoms")
        if len(self.layout.cells) > 1:
            drawn = shuffled(drawn, self.seed, None if still else round, b"fl/cells")
        cells, start = [], 0
        for index, size in enumerate(self.layout.cells):
            clients = tuple(sorted(drawn[start : start + size]))
            start += size
            if e.method == "no-share":
                cells.append(Cell(index, clients, clients, None))
                continue
            plan = self._plan(index, clients, round, length, context)
            cells.append(Cell(index, clients, tuple(c for c in clients if plan.rows_of[c]), plan))
        return cells

    def _plan(self, index: int, clients: tuple[int, ...], round: int, length: int, context: bytes) -> Plan:
        e = self.experiment
        schedule = self.layout.schedules[index]
        assert schedule is not None
        weights = tuple(self.weights[c] for c in clients)
        try:
            return Plan(
                training_id=self.training_id,
                round=round,
                roster=tuple(self._roster[c] for c in clients),
                length=length,
                schedule=schedule,
                training_seed=self.seed,
                clip=e.privacy.clip,
                threshold=e.privacy.threshold,
                colluders=e.privacy.colluders,
                weights=weights if len(set(weights)) > 1 else (),
                policy=policy(e),
                context=context,
            )
        except UsageError as error:
            raise ConfigError(f"privacy: {error}") from None

    def opened(
        self, cell: Cell, plan: Plan, result: Result, lost: Mapping[GroupId, str], cost: Cost
    ) -> Opened:
        """The outcome of a run, in the words of training."""
        return Opened(
            cell,
            list(_clusters(cell, plan, result, lost)),
            dict(result.dropouts),
            dict(result.blamed),
            _exposure(result.verdict),
            cost,
            _totals={row: result.rows[row].total for row in result.rows if row not in lost},
            _encoding=FixedPoint(clients=plan.schedule.size, clip=self.experiment.privacy.clip),
            _weights={client: self.weights[client] for client in cell.clients},
        )

    def failed(self, cell: Cell, plan: Plan, gone: Mapping[int, Dropout], why: str, cost: Cost) -> Opened:
        """A run that opened nothing."""
        clusters = [
            Cluster(cell.index, r, g, (), "lost", "too few clients answered")
            for r, grouping in enumerate(plan.groupings)
            for g in range(len(grouping))
        ]
        return Opened(cell, clusters, dict(gone), {}, None, cost, failed=why)


class Population(Cohort):
    """A cohort whose clients all live in this process: the simulation holds every key."""

    def __init__(self, e: Experiment, sizes: Sequence[int]) -> None:
        everybody = range(e.clients)
        self.secure = e.secure and e.method != "no-share"
        self.processes = 1 if e.machine.workers == 0 else e.machine.workers or cores()
        if self.secure and self.processes > 1:
            secagg.warm_up()
        self._identities: dict[int, Identity] = make_identities(everybody) if self.secure else {}
        roster = (
            tuple(Member(c, self._identities[c].public) for c in everybody)
            if self.secure
            else _nameless(everybody)
        )
        training_id = hashlib.sha256(b"fl/training-id/v1:" + e.fingerprint).digest()
        super().__init__(e, sizes, roster, training_id, training_seed(e.seed))

    def aggregate(
        self,
        cell: Cell,
        inputs: Inputs,
        *,
        drop: Mapping[int, str],
        misbehave: Mapping[int, str],
        on_answer: Callable[[str, int], None] | None = None,
    ) -> Opened:
        """The cluster sums of one cell. `drop` and `misbehave` name clients, by stage and by deed.

        `on_answer` is told the stage and how many clients have answered in it.
        """
        stages = {
            client: Stage[stage.upper()] for client, stage in drop.items() if client in set(cell.clients)
        }
        cheats = {client: deed for client, deed in misbehave.items() if client in set(cell.clients)}
        if cell.plan is None:
            opened = self._one_by_one(cell, inputs, stages, cheats)
        else:
            opened = self._together(cell, cell.plan, inputs, stages, cheats, on_answer)
        opened.cost.clients = len(cell.clients)
        return opened

    def _together(
        self,
        cell: Cell,
        plan: Plan,
        inputs: Inputs,
        drop: dict[int, Stage],
        cheats: Mapping[int, str],
        on_answer: Callable[[str, int], None] | None,
    ) -> Opened:
        nothing = np.zeros(plan.length, dtype=np.float32)
        seated = set(cell.seated)
        cost = Cost()
        updates = {
            c: inputs(c) if c in seated else nothing
            for c in cell.clients
            if drop.get(c, Stage.DONE) > Stage.INPUTS
        }
        misbehave = {c: Misbehaviour(deed) for c, deed in cheats.items()}
        try:
            if self.secure:
                drop = drop | {
                    c: Stage.INPUTS for c, deed in cheats.items() if deed == "silence" and c not in drop
                }
                result = run(
                    plan,
                    updates,
                    {client: self._identities[client] for client in cell.clients},
                    drop=drop,
                    misbehave=misbehave,
                    processes=self.processes if _worth_forking(plan) else 1,
                    cost=cost,
                    on_answer=_counting(on_answer),
                )
            else:
                result = clear(plan, updates, drop=drop, misbehave=misbehave)
        except TooFewSurvivors as error:
            gone = {c: Dropout(stage, "it did not answer in time") for c, stage in drop.items()}
            return self.failed(cell, plan, gone, str(error), cost)
        return self.opened(cell, plan, result, result.lost, cost)

    def _one_by_one(
        self, cell: Cell, inputs: Inputs, drop: Mapping[int, Stage], cheats: Mapping[int, str]
    ) -> Opened:
        """The baseline without SHARE: the server sees every encoded update. There is nothing to protect."""
        encoding = FixedPoint(clients=1, clip=self.experiment.privacy.clip)
        gone = {c: Dropout(stage, "it did not answer in time") for c, stage in drop.items()}
        gone |= {c: Dropout(Stage.INPUTS, f"it misbehaved: {deed}") for c, deed in cheats.items()}
        alive = [client for client in cell.clients if client not in gone]
        return Opened(
            cell,
            [Cluster(cell.index, 0, client, (client,)) for client in alive],
            gone,
            {},
            Exposure(
                exposed=tuple(alive),
                would_expose=len(alive),
                clients=len(alive),
                rank=len(alive),
                leverage=1.0,
                most_leverage=1.0,
                anonymity=1,
                anonymity_at_most=1,
                sentences=("NO SECURE AGGREGATION: the server learns every client's update exactly",),
            ),
            Cost(),
            _totals={(0, client): encoding.encode(inputs(client))[0] for client in alive},
            _encoding=encoding,
            _weights={client: self.weights[client] for client in cell.clients},
        )


def _worth_forking(plan: Plan) -> bool:
    """Few clients with short vectors are done sooner than processes can be started and talked to."""
    return len(plan.roster) >= 24 or len(plan.roster) * plan.length * plan.schedule.groupings >= 10**7


def _counting(tell: Callable[[str, int], None] | None) -> Callable[[Stage, int], None] | None:
    """Tell the stage and how many clients have answered in it."""
    answered: dict[Stage, int] = {}

    def one_more(stage: Stage, client: int) -> None:
        answered[stage] = answered.get(stage, 0) + 1
        if tell is not None:
            tell(stage.name.lower(), answered[stage])

    return one_more if tell is not None else None


@contextmanager
def announced(tell: Callable[[str], None]) -> Iterator[None]:
    """Say it once if kernels have to be compiled meanwhile: a first run would seem to hang."""
    told = False

    def once(name: str) -> None:
        nonlocal told
        if not told:
            tell("compiling kernels for this machine; they are kept for the next time")
        told = True

    robust.on_compile(once)
    try:
        with secagg.announce_compilation(once):
            yield
    finally:
        robust.on_compile(None)


def capped(sizes: Sequence[int], ratio: float) -> tuple[int, ...]:
    """n_i as weights, none more than `ratio` times another.

    Where they differ by more, those too far from the median are moved to median / sqrt(ratio) or
    median * sqrt(ratio): a client that claims a million examples, or one, changes nobody else's weight.
    """
    counts = np.asarray(sizes, dtype=np.int64)
    if counts.max() <= ratio * counts.min():
        return tuple(int(count) for count in counts)
    median, spread = float(np.median(counts)), math.sqrt(ratio)
    low = max(1, math.ceil(median / spread))
    high = max(low, math.floor(min(median * spread, low * ratio)))
    return tuple(int(count) for count in np.clip(counts, low, high))


def _clusters(cell: Cell, plan: Plan, result: Result, lost: Mapping[GroupId, str]) -> Iterator[Cluster]:
    alive = set(result.survivors)
    for r, grouping in enumerate(plan.groupings):
        for g, group in enumerate(grouping):
            members = tuple(client for client in group if client in alive)
            if (r, g) in lost:
                yield Cluster(cell.index, r, g, members, "lost", lost[r, g])
            elif (r, g) in result.closed:
                yield Cluster(cell.index, r, g, members, "closed", result.closed[r, g])
            else:
                yield Cluster(cell.index, r, g, members)


def _exposure(verdict: Verdict) -> Exposure:
    learned = verdict.anonymity.upper is not None
    return Exposure(
        exposed=tuple(sorted(verdict.exposed)),
        would_expose=len(verdict.would_expose),
        clients=verdict.clients,
        rank=verdict.rank,
        leverage=verdict.mean_leverage,
        most_leverage=max(verdict.leverage.values(), default=0.0),
        anonymity=verdict.anonymity.lower if learned else None,
        anonymity_at_most=verdict.anonymity.upper,
        sentences=verdict.sentences,
    )

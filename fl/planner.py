"""Recommend clusters for given numbers of clients and attackers (`share plan`).

The planner compares combinations of schedule, cluster size m and number of reclusterings R. Smaller clusters
hide a client among fewer others. With larger clusters, the same attackers spoil a larger fraction of them.

Privacy is the verdict of the exposure audit on the sums that would be opened, and three figures: how many clients are
exposed in a round, how many over the training if no update changed, and how likely some client is alone among
colluders. Robustness is the probability that no grouping of a round has more spoiled clusters than the rule withstands,
with attackers and dropouts placed at random. It is certain if the rule withstands even the worst placement. The f of a
rule is one number for all rounds, so a round that has too few clusters left for it is skipped, and does not hold. With
whole groups a dropout loses its clusters, and so does an attacker that sends nothing; the rule must be able to do
without them. All draws come from a seed, so the same question always has the same answer.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from decimal import ROUND_DOWN, Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from fl import placement
from fl.config import rules
from fl.config.schema import CELL, GROUPS, LASTING, Clusters, Experiment, Privacy
from fl.errors import ConfigError
from fl.secure import figures
from fl.secure import layout as secure
from fl.secure.noise import Price, price
from robust import AGGREGATORS, tolerance
from secagg.agreement import SURVIVORS, WHOLE, default_colluders, default_threshold
from secagg.exposure import MEMORIES

DROPOUT_ROUNDS = 8  # audited rounds per candidate if clients drop out
ROUNDS = 3  # simulated rounds per candidate otherwise
GROUPINGS = (1, 2, 3, 5, 10)
LEAST_OPENED = 0.5  # share of the sums that must be opened after dropouts
OVER = "sums of several rounds together can expose a client (--memory round accepts that)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What to plan for: the clients, the attackers, and the required privacy and robustness."""

    clients: int
    byzantine: int
    dropout: float = 0.0
    rule: str = "median"
    anonymity: int = 3
    max_leverage: float = 0.5
    holds: float = 0.95
    groups: str = WHOLE
    memory: str = "training"
    rounds: int = 20
    cell: int = 300
    seed: int = 0
    epsilon: float | None = None
    delta: float = 1e-6
    noise_colluders: int = 0

    def __post_init__(self) -> None:
        for option, value, fits, expected in (
            ("clients", self.clients, self.clients >= 4, "at least 4"),
            ("byzantine", self.byzantine, 0 <= self.byzantine < self.clients, f"0 to {self.clients - 1}"),
            ("dropout", self.dropout, 0 <= self.dropout < 1, "a fraction, at least 0 and less than 1"),
            ("anonymity", self.anonymity, self.anonymity >= 2, "at least 2"),
            ("max-leverage", self.max_leverage, 0 < self.max_leverage <= 1, "more than 0 and at most 1"),
            ("holds", self.holds, 0 < self.holds <= 1, "a probability, more than 0 and at most 1"),
            ("groups", repr(self.groups), self.groups in GROUPS, f"one of {', '.join(GROUPS)}"),
            ("memory", repr(self.memory), self.memory in MEMORIES, f"one of {', '.join(MEMORIES)}"),
            ("rounds", self.rounds, self.rounds >= 1, "at least 1"),
            ("rule", repr(self.rule), self.rule in AGGREGATORS, f"one of {', '.join(AGGREGATORS)}"),
            ("epsilon", self.epsilon, self.epsilon is None or 0 < self.epsilon <= 1e6, "more than 0 and at most 1e6"),
            ("delta", self.delta, 0 < self.delta <= 0.5, "more than 0 and at most 0.5"),
            ("noise-colluders", self.noise_colluders, 0 <= self.noise_colluders < self.clients, "at least 0, not all"),
        ):
            if not fits:
                raise ConfigError(f"--{option}: expected {expected}, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One choice of clusters and its properties. `ruled_out` is empty if it meets all requirements.

    `holds` is the part of the rounds in which the rule withstands the attackers, `fits` the part in which dropouts
    leave it enough clusters to run at all.
    """

    schedule: str
    size: int
    groupings: int
    atom: int
    clusters: int = 0
    left_out: int = 0
    threshold: int = 0
    completes: float = 1.0
    anonymity: int = 0
    exposed: int = 0
    exposed_over_training: int | None = None
    alone: float = 0.0
    leverage: float = 0.0
    opened: float = 0.0
    withstands: int = 0
    spoiled: float = 0.0
    holds: float = 0.0
    fits: float = 1.0
    certain: bool = False
    hides: bool = True
    price: Price | None = None
    ruled_out: str = ""

    @property
    def silenced(self) -> float:
        """The part of the clusters that attackers lose for everybody if they send nothing."""
        return self.spoiled / self.clusters if self.clusters else 0.0

    @property
    def counted(self) -> int:
        """The clusters that the rule gets after dropouts: `withstands` is of so many."""
        return math.floor(self.clusters * self.opened) if self.opened else self.clusters

    @property
    def name(self) -> str:
        atoms = f" of {self.atom}" if self.atom else ""
        return f"{self.schedule}{atoms}, m = {self.size}, R = {self.groupings}"


@dataclass(frozen=True, slots=True)
class Answer:
    """All candidates, best first, and the recommended one if any meets the requirements."""

    question: Question
    recommended: Candidate | None
    candidates: tuple[Candidate, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def plan(question: Question) -> Answer:
    """Evaluate all candidates and recommend the best one that meets the requirements."""
    found = sorted((_priced(question, _evaluate(question, clusters)) for clusters in _choices(question)), key=_rank)
    best = found[0] if found and not found[0].ruled_out else None
    return Answer(question, best, tuple(found))


def closest(answer: Answer) -> tuple[Candidate, float | None] | None:
    """The candidate that would hold most often, and the largest --holds that accepts it, in whole per cent.

    Of what is ruled out early it is only known how often it holds without dropouts, or at most, and its privacy may not
    be audited. So this evaluates candidates again, as if any probability were enough, until no other can be better.
    None if none is left.
    """
    any_ = replace(answer.question, holds=math.ulp(0.0))
    best: Candidate | None = None
    for candidate in sorted((c for c in answer.candidates if c.clusters and c.hides), key=lambda c: -c.holds):
        if best is not None and _reached(best) >= candidate.holds:
            break
        found = _evaluate(any_, _clusters(any_, candidate))
        found = replace(found, holds=min(found.holds, candidate.holds))  # never more than what it was refused for
        if not found.ruled_out and (best is None or _reached(found) > _reached(best)):
            best = found
    if best is None:
        return None
    for percent in range(math.floor(_reached(best) * 100), 0, -1):  # mostly the first: draws may differ a little
        if not _evaluate(replace(any_, holds=percent / 100), _clusters(any_, best)).ruled_out:
            return best, percent / 100
    return best, None


def _reached(candidate: Candidate) -> float:
    """The largest `holds` that a candidate meets."""
    return min(candidate.holds, candidate.completes)


def _priced(question: Question, candidate: Candidate) -> Candidate:
    """The candidate with the noise that `epsilon` costs, if it is asked for and the clients can be divided so."""
    if question.epsilon is None or not candidate.clusters:
        return candidate
    experiment = noisy_experiment(question, candidate, clip=64.0)
    bare = experiment.replace(privacy=experiment.privacy.replace(norm_clip=None))
    terms = secure.terms_of(bare, secure.placeholder_members(question.clients))
    in_clusters = question.clients - candidate.left_out
    return replace(candidate, price=price(terms, experiment.privacy, question.rounds, in_clusters))


def noisy_experiment(question: Question, candidate: Candidate, clip: float) -> Experiment:
    """The experiment of a candidate, with noise for updates of norm 1."""
    clusters = _clusters(question, candidate)
    privacy = Privacy(
        anonymity=question.anonymity,
        memory=question.memory,
        clip=clip,
        norm_clip=1.0,
        epsilon=question.epsilon,
        delta=question.delta,
        noise_colluders=question.noise_colluders,
    )
    return Experiment(clients=question.clients, rounds=question.rounds, clusters=clusters, privacy=privacy)


def _clusters(question: Question, candidate: Candidate) -> Clusters:
    return Clusters(
        size=candidate.size,
        groupings=candidate.groupings,
        schedule=candidate.schedule,
        atom=candidate.atom,
        groups=question.groups,
        cell=None if question.groups == WHOLE else question.cell,
    )


def _rank(candidate: Candidate) -> tuple[Any, ...]:
    """Requirements first, then robustness, leverage, more reclusterings, fewer clients left out."""
    met = (bool(candidate.ruled_out), candidate.clusters == 0)
    robustness = (not candidate.certain, -round(candidate.holds, 2))
    return (*met, *robustness, round(candidate.leverage, 2), -candidate.groupings, candidate.left_out)


def _choices(question: Question) -> Iterator[Clusters]:
    anonymity = question.anonymity
    largest = max(anonymity, min(20, question.clients // 3))
    common = Clusters(groups=question.groups, cell=None if question.groups == WHOLE else question.cell)
    for size in range(2, largest + 1):
        for groupings in GROUPINGS:
            sized = common.replace(size=size, groupings=groupings)
            yield sized.replace(schedule="fixed")
            yield sized.replace(schedule="random")
            if 1 < groupings <= min(size, question.clients // size):
                yield sized.replace(schedule="transversal")
            for atom in {anonymity, anonymity + 1}:
                if size % atom == 0 and size > atom and groupings > 1:
                    yield sized.replace(schedule="atoms", atom=atom)


def _evaluate(question: Question, clusters: Clusters) -> Candidate:
    """Evaluate one choice. Cheap checks come first: the exposure audit is expensive."""
    size, groupings = clusters.size, clusters.groupings
    candidate = Candidate(schedule=clusters.schedule, size=size, groupings=groupings, atom=clusters.atom)
    if size < question.anonymity:
        return replace(candidate, ruled_out=f"clusters of {size} cannot hide a client among {question.anonymity}")
    if question.memory == "training" and clusters.schedule not in LASTING:
        return replace(candidate, hides=False, ruled_out=f"{clusters.schedule} clusters are new in every round: {OVER}")
    if question.memory == "training" and question.groups == SURVIVORS and clusters.schedule == "fixed":
        return replace(candidate, hides=False, ruled_out=f"what is left of fixed clusters differs: {OVER}")
    privacy = Privacy(anonymity=question.anonymity, max_leverage=question.max_leverage, memory=question.memory)
    experiment = Experiment(clients=question.clients, byzantine=question.byzantine, clusters=clusters, privacy=privacy)
    try:
        layout = secure.Layout.of(experiment)
    except ConfigError as error:
        return replace(candidate, ruled_out=str(error).removeprefix("clusters: "))
    layout = _in_parts(layout)
    cell = layout.cells[0]
    candidate = replace(
        candidate,
        clusters=layout.clusters,
        left_out=question.clients - layout.clustered,
        withstands=max(0, rules.tolerated(question.rule, layout.clusters)),
        alone=figures.alone_probability(experiment, question.rounds),
    )
    if question.groups == SURVIVORS:
        threshold = default_threshold(cell, default_colluders(cell))
        completes = 1 - _binomial_below(cell, 1 - question.dropout, threshold)
        candidate = replace(candidate, threshold=threshold, completes=completes)
    if candidate.withstands < 1 and question.byzantine:
        reason = f"{question.rule} does not withstand any bad cluster among {candidate.clusters}"
        return replace(candidate, ruled_out=reason)
    single = _exact_robustness(question, candidate)
    if single.holds < question.holds:  # all groupings must hold, and a single one already does not
        rank = min(cell, candidate.groupings * (candidate.clusters // len(layout.cells) - 1) + 1)
        at_most = "at most " if candidate.groupings > 1 or len(layout.cells) > 1 else ""
        unmet = _unmet(question, single, at_most, " without dropouts" if question.dropout else "")
        return replace(single, leverage=rank / cell, ruled_out=unmet)
    return _audited(question, candidate, experiment, layout)


def _in_parts(layout: secure.Layout) -> secure.Layout:
    """The layout with at most 300 clients in each part: an audit of more clients at once takes too long."""
    assert layout.schedule is not None
    if len(layout.cells) > 1 or layout.cells[0] <= CELL:
        return layout
    part = CELL // layout.schedule.size * layout.schedule.size
    return replace(layout, cells=(part,) * (layout.clustered // part))


def _audited(question: Question, candidate: Candidate, experiment: Experiment, layout: secure.Layout) -> Candidate:
    """Evaluate a choice with the exposure audit and with simulated rounds."""
    cell, policy = layout.cells[0], secure.policy(experiment)
    assert layout.schedule is not None
    _, verdict = secure.preview(cell, layout.schedule, policy, groups=question.groups, seed=question.seed)
    candidate = replace(
        candidate,
        anonymity=verdict.anonymity.lower,
        leverage=verdict.mean_leverage,
        exposed=len(verdict.would_expose),
    )
    if verdict.closed:
        exposed = len(verdict.would_expose)
        problem = f"expose {exposed} of {cell} clients" if exposed else "violate the required anonymity or leverage"
        reason = f"{candidate.groupings} groupings of {candidate.size} would {problem}"
        return replace(candidate, hides=False, ruled_out=reason)
    found = _robustness(replace(question, dropout=0.0), candidate, experiment, layout)
    unmet = _unmet(question, found, where=" without dropouts" if question.dropout else "")
    if question.dropout and not unmet:  # with dropouts it must hold too
        found = _robustness(question, candidate, experiment, layout)
        unmet = _unmet(question, found)
    together = None if found.ruled_out else _exposed_over_training(question, layout)
    return replace(found, exposed_over_training=together, ruled_out=unmet)


def _exposed_over_training(question: Question, layout: secure.Layout) -> int | None:
    """How many clients of a cell all its sums would expose, if nobody dropped out and no update changed."""
    assert layout.schedule is not None
    n, seed = layout.cells[0], secure.sampling_seed(question.seed)
    rounds = 1 if layout.schedule.name == "fixed" else question.rounds
    drawn = (layout.schedule.draw(range(n), seed, round) for round in range(rounds))
    groups = (group for groupings in drawn for grouping in groupings for group in grouping)
    found = figures.exposed_together(groups)
    return None if found is None else len(found)


def _robustness(question: Question, candidate: Candidate, experiment: Experiment, layout: secure.Layout) -> Candidate:
    """Simulate rounds with dropouts, audit some of them, and place attackers at random in each."""
    if not question.dropout and candidate.groupings == 1 and len(layout.cells) == 1:
        return _exact_robustness(question, candidate)
    rng = np.random.default_rng([question.seed, question.clients, candidate.size, candidate.groupings, candidate.atom])
    cell, schedule, cells = layout.cells[0], layout.schedule, len(layout.cells)
    assert schedule is not None
    rounds = DROPOUT_ROUNDS if question.dropout else ROUNDS
    opened = leverage = 0.0
    anonymity, policy, seed = candidate.anonymity, secure.policy(experiment), question.seed
    audited, foreseen = [], True
    for number in range(rounds):
        there = rng.random((1, cell)) >= question.dropout
        dropouts = tuple(np.flatnonzero(~there[0]).tolist())
        groupings, verdict = secure.preview(
            cell, schedule, policy, groups=question.groups, seed=seed, round=number, dropouts=dropouts
        )
        opened += sum(map(len, groupings)) / (candidate.groupings * candidate.clusters / cells) / rounds
        leverage += verdict.mean_leverage / rounds
        if verdict.anonymity.upper is not None:
            anonymity = min(anonymity, verdict.anonymity.lower)
        audited.append(groupings)
        if question.dropout and foreseen:
            (drawn,) = schedule.draw_cells(range(cell), secure.sampling_seed(seed), number, (cell,))
            expected = placement.enough(question.groups, policy, drawn, there).sum(axis=(0, 2))
            foreseen = expected.tolist() == list(map(len, groupings))
    drawings = None
    if question.dropout:
        in_cells = question.groups == SURVIVORS and question.clients > question.cell
        drawings = placement.draw(
            question.groups,
            policy,
            schedule,
            layout.cells if in_cells else (question.clients,),
            secure.sampling_seed(seed),
            rng,
            byzantine=question.byzantine,
            dropout=question.dropout,
        )
    if drawings is not None and foreseen:  # many more rounds than could be audited
        opened = float(drawings[0].mean()) / candidate.clusters
    candidate = replace(candidate, anonymity=anonymity, leverage=leverage, opened=round(opened, 12))
    candidate = replace(candidate, withstands=max(0, rules.tolerated(question.rule, candidate.counted)))
    f = written_f(question, candidate)
    if drawings is not None:
        left, bad = drawings
        fits, fine = placement.withstood(question.rule, f, left, bad)
        candidate = replace(candidate, holds=float(fine.mean()), spoiled=float(bad.mean()), fits=float(fits.mean()))
        if foreseen:
            return candidate
    placed = [
        placement.place(question.rule, f, groupings, question.clients, question.byzantine, cell, cells, rng)
        for groupings in audited
    ]
    held, fitted, spoiled = (round(sum(part) / rounds, 12) for part in zip(*placed, strict=True))
    if drawings is not None:  # the audit closes more than was counted, and never less
        return replace(candidate, holds=min(candidate.holds, held), fits=min(candidate.fits, fitted), spoiled=spoiled)
    certain = question.byzantine <= candidate.withstands and held > 0.999
    return replace(candidate, spoiled=spoiled, holds=1.0 if certain else held, certain=certain)


def written_f(question: Question, candidate: Candidate) -> int | None:
    """The f of the configuration that recommends a candidate: one for all rounds. None if the rule takes none."""
    if "f" not in AGGREGATORS[question.rule].parameters:
        return None
    return min(question.byzantine, candidate.withstands)


def _exact_robustness(question: Question, candidate: Candidate) -> Candidate:
    """One grouping without dropouts: the distribution of the spoiled clusters has a closed form."""
    clean = tolerance.clean_clusters(question.clients, question.byzantine, candidate.size)
    holds = sum(clean[candidate.clusters - candidate.withstands :], start=Fraction(0))
    spoiled = sum((candidate.clusters - k) * p for k, p in enumerate(clean))
    certain = question.byzantine <= candidate.withstands
    return replace(candidate, opened=1.0, spoiled=float(spoiled), holds=float(holds), certain=certain)


def _unmet(question: Question, candidate: Candidate, at_most: str = "", where: str = "") -> str:
    """The requirement that a candidate does not meet, or an empty text. The words say what its `holds` is."""
    if candidate.completes < question.holds:
        often = f"{percent(candidate.completes, question.holds)} of rounds"
        return f"{candidate.threshold} clients must stay until the end, which happens in {often}"
    if candidate.holds < question.holds:
        often = f"{at_most}{percent(candidate.holds, question.holds)} of rounds{where}"
        lacking = math.floor(100 * (1 - candidate.fits))
        few = f", dropouts leave too few clusters in {lacking} of 100 rounds" if lacking else ""
        return (
            f"{question.rule} withstands {candidate.withstands} of {candidate.counted} clusters, attackers "
            f"spoil {candidate.spoiled:.1f}{few}: holds in {often}"
        )
    if candidate.opened < LEAST_OPENED:
        return f"after dropouts only {percent(candidate.opened, LEAST_OPENED)} of the sums can be opened"
    left = math.floor(candidate.opened * (candidate.clusters - candidate.spoiled))
    if question.groups == WHOLE and rules.tolerated(question.rule, left) < 0:
        return f"silent attackers leave {left} of {candidate.clusters} clusters, too few for {question.rule}"
    return ""


def percent(share: float, wanted: float | None = None, digits: int = 0) -> str:
    """A share in per cent, rounded down, so that it never looks like the wanted one if it is less.

    It has as many digits as show on which side of the wanted one it lies. Without a wanted one it is exact.

    >>> percent(0.9497, 0.95), percent(0.9551, 0.955), percent(0.955)
    ('94%', '95.5%', '95.5%')
    """
    exact = Decimal(repr(float(share))) * 100
    if wanted is None:
        return f"{exact.normalize():f}%"
    limit = Decimal(repr(float(wanted))) * 100
    while True:
        shown = exact.quantize(Decimal(1).scaleb(-digits), ROUND_DOWN)
        if shown >= limit or exact < limit:
            return f"{shown:f}%"
        digits += 1


def _binomial_below(n: int, p: float, k: int) -> float:
    """P(X < k) for a binomial X."""
    return sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k)) if p < 1 else float(k > n)

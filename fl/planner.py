"""Which clusters? Every sensible (schedule, m, R) weighed for privacy and robustness, and one recommended.

Small clusters hide less; large ones let few attackers spoil more of them. Privacy is what the exposure audit
says of the sums that would be opened. Robustness is the chance that no grouping of a round has more spoiled
clusters than the rule withstands, over attackers and dropouts placed at random; where even the worst
placement is withstood it is certain. Everything is drawn from a seed: the same question, the same answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from fl.config import rules
from fl.config.schema import Clusters, Experiment, Privacy
from fl.errors import ConfigError
from fl.secure import layout as secure
from robust import AGGREGATORS, tolerance

DRAWS = 8  # rounds audited for each candidate
PLACEMENTS = 200  # of attackers, for each of those rounds
GROUPINGS = (1, 2, 3, 5, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be planned for."""

    clients: int
    byzantine: int
    dropout: float = 0.0
    rule: str = "median"
    anonymity: int = 3
    max_leverage: float = 0.8
    holds: float = 0.95
    cell: int = 300
    seed: int = 0

    def __post_init__(self) -> None:
        for wrong, message in (
            (self.clients < 4, f"--clients: at least 4, not {self.clients}"),
            (
                not 0 <= self.byzantine < self.clients,
                f"--byzantine: 0 to {self.clients - 1}, not {self.byzantine}",
            ),
            (not 0 <= self.dropout < 1, f"--dropout: a part from 0 to below 1, not {self.dropout}"),
            (self.anonymity < 2, f"--anonymity: at least 2, not {self.anonymity}"),
            (not 0 < self.max_leverage <= 1, f"--max-leverage: above 0, at most 1, not {self.max_leverage}"),
            (not 0 < self.holds <= 1, f"--holds: a probability, not {self.holds}"),
            (self.rule not in AGGREGATORS, f"--rule: one of {', '.join(AGGREGATORS)}, not {self.rule!r}"),
        ):
            if wrong:
                raise ConfigError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One choice and what it would give. `ruled_out` is empty for those that meet every target."""

    schedule: str
    size: int
    groupings: int
    atom: int
    clusters: int = 0
    left_out: int = 0
    threshold: int = 0
    completes: float = 0.0
    anonymity: int = 0
    leverage: float = 0.0
    opened: float = 0.0
    withstands: int = 0
    spoiled: float = 0.0
    holds: float = 0.0
    certain: bool = False
    hides: bool = True
    ruled_out: str = ""

    @property
    def name(self) -> str:
        return (
            f"{self.schedule}{f' of {self.atom}' if self.atom else ''}, m = {self.size}, R = {self.groupings}"
        )


@dataclass(frozen=True, slots=True)
class Answer:
    question: Question
    candidates: tuple[Candidate, ...]
    recommended: Candidate | None

    def to_json(self) -> dict[str, Any]:
        return {
            "question": asdict(self.question),
            "recommended": asdict(self.recommended) if self.recommended else None,
            "candidates": [asdict(candidate) for candidate in self.candidates],
        }


def plan(question: Question) -> Answer:
    """All candidates, weighed; those that meet the targets first, the best of them on top."""
    found = [_weigh(question, clusters) for clusters in _choices(question)]
    found.sort(key=_order)
    best = found[0] if found and not found[0].ruled_out else None
    return Answer(question, tuple(found), best)


def _order(candidate: Candidate) -> tuple[Any, ...]:
    """Meets the targets, holds for certain, hides best; then more reclusterings, fewer clients left out."""
    return (
        bool(candidate.ruled_out),
        candidate.clusters == 0,
        not candidate.certain,
        -round(candidate.holds, 2),
        round(candidate.leverage, 2),
        -candidate.groupings,
        candidate.left_out,
    )


def _choices(q: Question) -> Iterator[Clusters]:
    most = max(q.anonymity, min(20, q.clients // 3))
    for size in range(2, most + 1):
        for groupings in GROUPINGS:
            yield Clusters(size=size, groupings=groupings, schedule="random", cell=q.cell)
            if 1 < groupings <= min(size, q.clients // size):
                yield Clusters(size=size, groupings=groupings, schedule="transversal", cell=q.cell)
            for atom in {q.anonymity, q.anonymity + 1}:
                if size % atom == 0 and size > atom and groupings > 1:
                    yield Clusters(size=size, groupings=groupings, schedule="atoms", atom=atom, cell=q.cell)


def _weigh(q: Question, clusters: Clusters) -> Candidate:
    known = Candidate(
        schedule=clusters.schedule, size=clusters.size, groupings=clusters.groupings, atom=clusters.atom
    )
    privacy = Privacy(anonymity=q.anonymity, max_leverage=q.max_leverage)
    e = Experiment(clients=q.clients, byzantine=q.byzantine, clusters=clusters, privacy=privacy)
    if clusters.size < q.anonymity:
        return replace(
            known, ruled_out=f"clusters of {clusters.size} cannot hide a client among {q.anonymity}"
        )
    try:
        layout = secure.Layout.of(e)
    except ConfigError as error:
        return replace(known, ruled_out=str(error).removeprefix("clusters: "))
    cell = layout.cells[0]
    _, threshold = secure.thresholds(cell)
    known = replace(
        known,
        clusters=layout.clusters,
        left_out=q.clients - layout.clustered,
        threshold=threshold,
        completes=1 - _binomial_below(cell, 1 - q.dropout, threshold),
        withstands=max(0, rules.tolerated(q.rule, layout.clusters)),
    )
    if known.withstands < 1 and q.byzantine:
        return replace(known, ruled_out=f"{q.rule} withstands no bad cluster among {known.clusters}")
    once = _exactly(q, known)
    if once.holds < q.holds:  # all groupings must hold, and one of them alone does not; no need for an audit
        rank = min(cell, known.groupings * (known.clusters // len(layout.cells) - 1) + 1)
        return replace(once, leverage=rank / cell, ruled_out=_why_not(q, once))
    _, verdict = secure.preview(cell, layout.schedules[0], secure.policy(e), seed=q.seed)
    known = replace(known, anonymity=verdict.anonymity.lower, leverage=verdict.mean_leverage)
    if verdict.closed:
        whom = len(verdict.would_expose)
        why = (
            f"would expose {whom} of {cell} clients"
            if whom
            else "would break the anonymity or leverage asked for"
        )
        return replace(
            known, hides=False, ruled_out=f"{clusters.groupings} groupings of {clusters.size} {why}"
        )
    alone = _robustness(replace(q, dropout=0.0), known, e, layout)
    if q.dropout and not _why_not(q, alone):  # dropouts only make it worse, and cost an audit each
        alone = _robustness(q, known, e, layout)
    return replace(alone, ruled_out=_why_not(q, alone))


def _robustness(q: Question, known: Candidate, e: Experiment, layout: secure.Layout) -> Candidate:
    """Rounds drawn with dropouts, audited for real, with attackers placed at random in each."""
    if not q.dropout and known.groupings == 1 and len(layout.cells) == 1:
        return _exactly(q, known)
    lot = np.random.default_rng([q.seed, q.clients, known.size, known.groupings, known.atom])
    cell, schedule = layout.cells[0], layout.schedules[0]
    cells = len(layout.cells)
    draws = DRAWS if q.dropout else 3
    held = spoiled = opened = 0.0
    anonymity, leverage = known.anonymity, 0.0
    for round_ in range(draws):
        gone = np.flatnonzero(lot.random(cell) < q.dropout).tolist() if q.dropout else []
        rows, verdict = secure.preview(
            cell, schedule, secure.policy(e), seed=q.seed, round=round_, dropouts=gone
        )
        opened += sum(map(len, rows)) / (known.groupings * known.clusters / cells) / draws
        leverage += verdict.mean_leverage / draws
        if verdict.anonymity.upper is not None:
            anonymity = min(anonymity, verdict.anonymity.lower)
        fine, bad = _placements(q, rows, cell, cells, lot)
        held += fine / draws
        spoiled += bad / draws
    fewest = math.floor(known.clusters * opened)
    certain = q.byzantine <= rules.tolerated(q.rule, fewest) and not (q.dropout and opened < 0.5)
    return replace(
        known,
        anonymity=anonymity,
        leverage=leverage,
        opened=opened,
        spoiled=spoiled,
        holds=1.0 if certain and held > 0.999 else held,
        certain=certain and held > 0.999,
    )


def _exactly(q: Question, known: Candidate) -> Candidate:
    """One grouping in which nobody drops out: the distribution of spoiled clusters in closed form."""
    clean = tolerance.clean_clusters(q.clients, q.byzantine, known.size)
    holds = sum(clean[known.clusters - known.withstands :], start=Fraction(0))
    spoiled = sum((known.clusters - k) * p for k, p in enumerate(clean))
    certain = q.byzantine <= known.withstands
    return replace(known, opened=1.0, spoiled=float(spoiled), holds=float(holds), certain=certain)


def _placements(
    q: Question, rows: Sequence[Sequence[Sequence[int]]], cell: int, cells: int, lot: np.random.Generator
) -> tuple[float, float]:
    """(chance that every grouping holds, mean number of spoiled clusters per grouping)."""
    if not all(rows):
        return 0.0, 0.0
    masks = []
    for grouping in rows:
        mask = np.zeros((len(grouping), cell), dtype=np.float32)
        for i, members in enumerate(grouping):
            mask[i, list(members)] = 1.0
        masks.append(mask)
    fine, bad = 0, 0.0
    for _ in range(PLACEMENTS):
        # Attackers fall into the cells by lot; every cell is drawn like the first.
        counts = lot.multivariate_hypergeometric([cell] * cells, q.byzantine) if cells > 1 else [q.byzantine]
        places = []
        for count in counts:
            place = np.zeros(cell, dtype=np.float32)
            place[lot.permutation(cell)[:count]] = 1.0
            places.append(place)
        spoiled = [sum(int(np.count_nonzero(mask @ place)) for place in places) for mask in masks]
        limits = [rules.tolerated(q.rule, len(mask) * cells) for mask in masks]
        fine += all(count <= limit for count, limit in zip(spoiled, limits, strict=True))
        bad += sum(spoiled) / len(spoiled)
    return fine / PLACEMENTS, bad / PLACEMENTS


def _why_not(q: Question, c: Candidate) -> str:
    if c.completes < q.holds:
        return f"{c.threshold} clients must stay to the end, which happens in {c.completes:.0%} of rounds"
    if c.holds < q.holds:
        return (
            f"{q.rule} withstands {c.withstands} of {c.clusters} clusters, attackers spoil {c.spoiled:.1f}: "
            f"holds in {c.holds:.0%} of rounds"
        )
    if c.opened < 0.5:
        return f"dropouts leave only {c.opened:.0%} of the sums open"
    return ""


def _binomial_below(n: int, p: float, k: int) -> float:
    """P(X < k) for X binomial."""
    if p >= 1:
        return 0.0 if k <= n else 1.0
    return sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k)) if p > 0 else 1.0


# --- telling it ---------------------------------------------------------------------------------------------


def as_text(answer: Answer, *, most: int = 12) -> str:
    """The answer for a terminal: the best candidates, the reasons against others, and what to write."""
    q = answer.question
    fitting = [c for c in answer.candidates if not c.ruled_out]
    lines = [
        f"{q.clients} clients, {q.byzantine} of them Byzantine, {q.dropout:.0%} dropouts, rule {q.rule}; "
        f"wanted: anonymity {q.anonymity}, leverage {q.max_leverage:g}, holds in {q.holds:.0%} of rounds",
        "",
    ]
    if fitting:
        heads = (
            "clusters",
            "c",
            "T",
            "leverage",
            "opened",
            "spoiled",
            "withstands",
            "holds",
            "t",
            "completes",
        )
        rows = [
            (
                c.name,
                str(c.clusters),
                str(c.anonymity),
                f"{c.leverage:.2f}",
                f"{c.opened:.0%}",
                f"{c.spoiled:.1f}",
                str(c.withstands),
                "always" if c.certain else f"{c.holds:.0%}",
                str(c.threshold),
                f"{c.completes:.2%}",
            )
            for c in fitting[:most]
        ]
        lines += _aligned(heads, rows)
        if len(fitting) > most:
            lines.append(f"... and {len(fitting) - most} more (--json lists all)")
    else:
        lines.append("Nothing meets these targets.")
    lines += ["", "Ruled out, for example:"]
    lines += [f"  {c.name}: {c.ruled_out}" for c in _telling([c for c in answer.candidates if c.ruled_out])]
    if answer.recommended:
        lines += ["", f"Recommended: {answer.recommended.name}. {_because(answer)}", "", *toml(answer)]
    else:
        lines += ["", _way_out(answer)]
    return "\n".join(lines)


def _aligned(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    return [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in (heads, *rows)
    ]


def _telling(out: Sequence[Candidate], most: int = 6) -> list[Candidate]:
    """A few candidates for each kind of reason: the nearest misses, then the smallest clusters."""
    kinds: dict[str, list[Candidate]] = {}
    for candidate in sorted(out, key=lambda c: (-round(c.holds, 2), c.size, c.groupings)):
        words = "".join(c for c in candidate.ruled_out if c.isalpha())
        kinds.setdefault(words.replace("spoil", "")[:40], []).append(candidate)
    each = max(1, most // max(len(kinds), 1))
    return [candidate for some in kinds.values() for candidate in some[:each]][:most]


def _because(answer: Answer) -> str:
    c, q = answer.recommended, answer.question
    assert c is not None
    holds = (
        f"even if every attacker spoils a cluster of its own, {q.rule} withstands them"
        if c.certain
        else f"{q.rule} holds in {c.holds:.0%} of rounds"
    )
    return (
        f"Among those that hold best it hides best: a round's sums explain {c.leverage:.0%} of an update and "
        f"any combination of them involves at least {c.anonymity} clients; {holds}."
    )


def _way_out(answer: Answer) -> str:
    q = answer.question
    private = [c for c in answer.candidates if c.clusters and c.hides]
    if not private:
        return (
            "No clusters are private enough: lower --anonymity, raise --max-leverage, or bring more clients."
        )
    best = max(private, key=lambda c: c.holds)
    accept = f"; --holds {math.floor(best.holds * 100) / 100:g} would accept it" if best.holds >= 0.5 else ""
    return (
        f"Closest: {best.name} holds in {best.holds:.0%} of rounds with {q.rule}. More clients, fewer "
        f"attackers or a rule that validates (--rule zeno) would help{accept}."
    )


def toml(answer: Answer) -> list[str]:
    """What to write into the configuration."""
    c = answer.recommended
    assert c is not None
    lines = ["[clusters]", f"size = {c.size}", f"groupings = {c.groupings}", f'schedule = "{c.schedule}"']
    if c.atom:
        lines.append(f"atom = {c.atom}")
    lines += ["", "[privacy]", f"anonymity = {answer.question.anonymity}", "", "[aggregation]"]
    return [*lines, f'rule = "{answer.question.rule}"']


def draw(answer: Answer, path: Path) -> None:
    """The trade-off as a picture: how much a round's sums explain, against how often the rule holds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    colours = {"random": "#2563eb", "transversal": "#0d9268", "atoms": "#e2680c"}
    q = answer.question
    figure = Figure(figsize=(9, 5.6), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    axis.axhspan(q.holds, 1.02, xmin=0, color="#e8f6f0", zorder=0)
    axis.axhline(q.holds, color="#0d9268", linewidth=0.8, linestyle="--")
    for schedule, colour in colours.items():
        some = [c for c in answer.candidates if c.schedule == schedule and c.opened]
        for fits in (True, False):
            chosen = [c for c in some if bool(c.ruled_out) != fits]
            axis.scatter(
                [c.leverage for c in chosen],
                [c.holds for c in chosen],
                s=[40 + 25 * c.groupings for c in chosen],
                c=colour if fits else "none",
                edgecolors=colour,
                alpha=0.85 if fits else 0.5,
            )
        axis.scatter([], [], s=90, c=colour, label=schedule)
    for c in answer.candidates:
        if c.holds > 0.02 and c is not answer.recommended:
            axis.annotate(
                f"{c.size}/{c.groupings}",
                (c.leverage, c.holds),
                xytext=(7, 5),
                textcoords="offset points",
                fontsize=8,
                color="#5b6776",
            )
    best = answer.recommended
    if best:
        axis.annotate(
            f"recommended:\n{best.name}",
            (best.leverage, best.holds),
            xytext=(18, -46),
            textcoords="offset points",
            arrowprops={"arrowstyle": "->", "color": "#16202c"},
            fontsize=9,
            fontweight="bold",
        )
    axis.set(
        xlabel="leverage: part of an update that a round's sums explain (less is more private)",
        ylabel=f"chance that {q.rule} holds in a round",
        ylim=(-0.03, 1.04),
        title=f"{q.clients} clients, {q.byzantine} Byzantine, {q.dropout:.0%} dropouts; points are m/R",
    )
    axis.legend(loc="center right", fontsize=9, title="schedule (hollow: ruled out)")
    axis.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)

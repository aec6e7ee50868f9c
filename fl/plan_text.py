"""The planner's answer for a terminal: the best candidates, examples of rejected ones, and a configuration."""

from collections.abc import Sequence
from typing import Final

from fl.errors import ConfigError
from fl.planner import LEAST_OPENED, Answer, Candidate, Question, closest, noisy_experiment, percent, written_f
from fl.reporting.table import aligned
from fl.secure.layout import placeholder_members, terms_of
from secagg.agreement import SURVIVORS, WHOLE

MOST_SHOWN: Final = 12  # candidates in the table
MOST_RULED_OUT_SHOWN: Final = 6
LENGTH: Final = 2_000_000  # values of an update that sums must have room for
LARGEST_CLIP: Final = 2.0**20
WORTH_ACCEPTING: Final = 0.5  # a probability that advice may propose to accept
_KINDS: Final = {WHOLE: "whole groups", SURVIVORS: "groups of survivors"}
_MEMORY: Final = {"training": "all rounds together", "round": "each round alone"}


def as_text(answer: Answer) -> str:
    """The answer for a terminal: the best candidates, examples of rejected ones, and a configuration."""
    question = answer.question
    fitting = [candidate for candidate in answer.candidates if not candidate.ruled_out]
    rejected = [candidate for candidate in answer.candidates if candidate.ruled_out]
    lines = [
        f"{question.clients} clients, {question.byzantine} of them Byzantine, {percent(question.dropout)} dropouts"
        f", rule {question.rule}, {_KINDS[question.groups]}; required for {_MEMORY[question.memory]}: "
        f"anonymity {question.anonymity}, leverage at most "
        f"{question.max_leverage:g}, holds in {percent(question.holds)} of rounds",
        *_promise(question),
        "",
    ]
    lines += _table(fitting[:MOST_SHOWN], question.holds) if fitting else ["Nothing meets these requirements."]
    if len(fitting) > MOST_SHOWN:
        lines.append(f"... and {len(fitting) - MOST_SHOWN} more (--json lists all)")
    lines += ["", "Ruled out, for example:"]
    lines += [f"  {candidate.name}: {candidate.ruled_out}" for candidate in _examples(rejected)]
    if answer.recommended:
        lines += ["", f"Recommended: {answer.recommended.name}. {_justification(answer)}", "", *toml(answer)]
    else:
        lines += ["", _advice(answer)]
    return "\n".join(lines)


def _promise(question: Question) -> list[str]:
    """What noise is for, and what its columns say."""
    if question.epsilon is None:
        return []
    k, rounds = question.noise_colluders, question.rounds
    return [
        f"Noise for epsilon {question.epsilon:g} at delta {question.delta:g} over {rounds} round{'s' * (rounds != 1)}, "
        f"without that of {k} colluder{'s' * (k != 1)}, in units of the norm clip, on every value: of each client, of "
        "a cluster's mean, of the mean of all. Epsilon is `everybody` if all add noise, `own` by the own noise alone.",
    ]


def _table(candidates: Sequence[Candidate], wanted: float) -> list[str]:
    rows = ["clusters|c|T|leverage|exposed|in all|alone|opened|silenced|spoiled|withstands|holds"]
    rows += [
        f"{c.name}|{c.clusters}|{c.anonymity}|{c.leverage:.2f}|{c.exposed}|"
        f"{'-' if c.exposed_over_training is None else c.exposed_over_training}|{c.alone:.2g}|"
        f"{percent(c.opened, LEAST_OPENED)}|{c.silenced:.0%}|{c.spoiled:.1f}|{c.withstands}|"
        f"{'always' if c.certain else percent(c.holds, wanted)}"
        for c in candidates
    ]
    if any(c.threshold for c in candidates):  # survivors: so many must stay
        more = ["|t|completes", *(f"|{c.threshold}|{percent(c.completes, wanted, 2)}" for c in candidates)]
        rows = [row + end for row, end in zip(rows, more, strict=True)]
    prices = [c.price for c in candidates if c.price]
    if len(prices) == len(candidates):
        more = ["|noise|of a mean|of all|everybody|own"]
        more += [
            f"|{p.noise:.3g}|{p.cluster_noise:.3g}|{p.mean_noise:.3g}|{p.everybody:.3g}|{p.local:.3g}" for p in prices
        ]
        rows = [row + end for row, end in zip(rows, more, strict=True)]
    return aligned([row.split("|") for row in rows])


def _examples(rejected: Sequence[Candidate]) -> list[Candidate]:
    """A few candidates for each kind of reason: first those that hold best, then the smallest clusters."""
    kinds: dict[str, list[Candidate]] = {}
    for candidate in sorted(rejected, key=lambda c: (-round(c.holds, 2), c.size, c.groupings)):
        words = "".join(letter for letter in candidate.ruled_out if letter.isalpha())
        kinds.setdefault(words.replace("spoil", "")[:40], []).append(candidate)
    each = max(1, MOST_RULED_OUT_SHOWN // max(len(kinds), 1))
    return [candidate for kind in kinds.values() for candidate in kind[:each]][:MOST_RULED_OUT_SHOWN]


def _justification(answer: Answer) -> str:
    best, question = answer.recommended, answer.question
    assert best is not None
    always = "withstands the attackers even if each spoils a different cluster"
    often = f"holds in {percent(best.holds, question.holds)} of rounds"
    return (
        "It has the lowest leverage among the most robust candidates: the sums of a round explain "
        f"{best.leverage:.0%} of an update, and any combination of them involves at least {best.anonymity} "
        f"clients; {question.rule} {always if best.certain else often}. If a fifth of the clients collude, some "
        f"client is alone among them with probability {best.alone:.2g}."
    )


def _advice(answer: Answer) -> str:
    if not any(c.clusters and c.hides for c in answer.candidates):
        return "No clusters are private enough: lower --anonymity, raise --max-leverage, or use more clients."
    helps = "More clients, fewer attackers or a rule that validates (--rule zeno) would help"
    found = closest(answer)
    if found is None:
        return f"{helps}."
    best, holds = found
    often = f"holds in {percent(best.holds, answer.question.holds)} of rounds with {answer.question.rule}"
    if best.completes < answer.question.holds:
        often += f", and enough clients stay in {percent(best.completes, answer.question.holds)}"
    accept = f"; --holds {holds:g} would accept it" if holds is not None and holds >= WORTH_ACCEPTING else ""
    return f"Closest: {best.name} {often}. {helps}{accept}."


def toml(answer: Answer) -> list[str]:
    """The recommendation as lines of a configuration file."""
    best = answer.recommended
    assert best is not None
    lines = ["[clusters]", f"size = {best.size}", f"groupings = {best.groupings}"]
    lines += [f'schedule = "{best.schedule}"', *([f"atom = {best.atom}"] if best.atom else [])]
    lines += [f'groups = "{answer.question.groups}"', "", "[privacy]", f'memory = "{answer.question.memory}"']
    lines += [f"anonymity = {answer.question.anonymity}", f"max_leverage = {answer.question.max_leverage}"]
    lines += _noise_keys(answer)
    lines += ["", "[aggregation]", f'rule = "{answer.question.rule}"']
    if (f := written_f(answer.question, best)) is not None:
        lines.append(f"f = {f}")
    return lines


def _noise_keys(answer: Answer) -> list[str]:
    """The keys of noise for updates of norm 1, with the least power of two as clip that leaves room in the ring."""
    question, best = answer.question, answer.recommended
    if question.epsilon is None or best is None:
        return []
    members, clip = placeholder_members(question.clients), 8.0
    while clip < LARGEST_CLIP:
        try:
            terms_of(noisy_experiment(question, best, clip), members, LENGTH)
            break
        except ConfigError:
            clip *= 2
    keys = {"norm_clip": 1.0, "epsilon": question.epsilon, "delta": question.delta}
    return [
        *(f"{name} = {value!r}" for name, value in keys.items()),
        f"noise_colluders = {question.noise_colluders}",
        f"clip = {clip!r}",
    ]

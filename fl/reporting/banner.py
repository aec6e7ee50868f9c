"""The one message at the top of a report: who was exposed, in which runs, and what was only simulated."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fl.config.schema import Experiment
from fl.reporting.page import Banner

SHOWN = 3  # runs that a sentence names
MOST_LEVERAGE = 0.5  # of all rounds together, above which "no client was exposed" alone would mislead


class Seen(NamedTuple):
    """What a banner needs of a run."""

    name: str
    experiment: Experiment
    exposed: int
    over_training: int
    leverage: float
    troubles: tuple[str, ...]


def seen(name: str, e: Experiment, facts: Mapping[str, Any], leverage: float | None = None) -> Seen:
    """A run from its summary. `leverage` is that of its last rounds together."""
    troubles = (
        ("rounds were skipped", facts["skipped_rounds"]),
        ("sums stayed closed", facts["closed"]),
        ("coordinates were clipped; a larger privacy.clip keeps them", facts["clipped"]),
        ("the attack was clipped too; a real attacker need not clip", facts.get("attack_clipped")),
    )
    told = tuple(words for words, happened in troubles if happened)
    return Seen(name, e, len(facts["exposed"]), facts["exposed_over_training"] or 0, leverage or 0.0, told)


def banner(runs: Sequence[Seen]) -> Banner:
    """One message for all runs: a sentence for each thing to know, with the runs that it is about."""
    open_ = [run for run in runs if run.experiment.method == "no-share"]
    exposed = [run for run in runs if run.exposed and run not in open_]
    later = [run for run in runs if run.over_training and not run.exposed]
    much = [run for run in runs if run.leverage > MOST_LEVERAGE and run not in (*open_, *exposed, *later)]
    clear = [run for run in runs if not run.experiment.secure and run not in open_]
    troubles = dict.fromkeys(words for run in runs for words in run.troubles)
    sentences = []
    if open_:
        sentences.append(f"{_who(open_, runs)}: no secure aggregation. The server saw every update one by one.")
    if exposed:
        most = max(exposed, key=lambda run: run.exposed / run.experiment.clients)
        count = f"{most.exposed} of {most.experiment.clients} clients were exposed"
        upto = "" if len(exposed) == 1 else "up to "
        sentences.append(
            f"{_who(exposed, runs)}: {upto}{count}. The audit only reported (report-even-if-exposed), so the server "
            "could compute their updates exactly."
        )
    if later:
        most = max(later, key=lambda run: run.over_training / run.experiment.clients)
        upto = "" if len(later) == 1 else "up to "
        sentences.append(
            f"{_who(later, runs)}: no client was exposed in a round. Over all rounds {upto}{most.over_training} of "
            f"{most.experiment.clients} would be, if no update had changed."
        )
    if much:
        share = max(run.leverage for run in much)
        sentences.append(
            f"{_who(much, runs)}: no client was exposed, but if no update had changed over the last rounds, their sums "
            f"together would explain {share:.0%} of an update on average."
        )
    warned = bool(sentences)
    if clear:
        model = "model" if len(clear) == 1 else "models"
        sentences.append(
            f"{_who(clear, runs)}: simulated in the clear. Secure aggregation would give the same {model}."
        )
    for words in troubles:
        sentences.append(f"{_who([run for run in runs if words in run.troubles], runs)}: {words}.")
    if not warned and len(clear) < len(runs):
        told = "No client was exposed, in a round or over all rounds: the clients' own audit allowed every sum."
        sentences.insert(0, told)
    level = "warn" if warned else "note" if clear or troubles else "fine"
    return Banner(level, sentences)


def _who(some: Sequence[Seen], runs: Sequence[Seen]) -> str:
    """The runs that a sentence is about, in few words."""
    if len(some) == len(runs) > 1:
        return "Both runs" if len(runs) == 2 else f"All {len(runs)} runs"
    if len(some) > SHOWN:
        return f"{len(some)} of {len(runs)} runs, such as {some[0].name}"
    return ", ".join(run.name for run in some)

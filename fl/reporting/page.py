"""A page: one HTML file from a template, without scripts or links, and the parts that all pages share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from fl.reporting.charts import COLOURS

TERMS: Final = {  # what a reader may not know, in a line each
    "accuracy": "Share of right answers on test examples that no client holds, after the last round.",
    "backdoor success": "Share of test examples with the attackers' mark that get the class that the attackers want. "
    "Lower is better.",
    "f1": "Mean over classes or labels of 2 TP / (2 TP + FP + FN); of one logit, that of class 1.",
    "r2": "Part of the variance of the targets that the model explains: 1 is perfect, 0 is no better than their mean.",
    "mean-absolute-error": "Mean distance between prediction and target.",
    "loss": "Mean loss on the test examples: lower is better.",
    "worst class": "Accuracy on the class with the lowest.",
    "worst client": "Accuracy on the own examples of the honest client with the lowest, which only a simulation has.",
    "last 10": "Mean accuracy of the last ten rounds that were tested.",
    "exposed": "A client is exposed in a round if the server can compute its update from the sums of that round; over "
    "all rounds, if it could compute it from all sums together, supposing that no update ever changed.",
    "alone": "Probability that some honest client is in a cluster with colluders of the server only, if a fifth of the "
    "clients collude.",
    "T": "Anonymity: the smallest number of clients in any combination of updates that the server could compute.",
    "leverage": "Share of one client's update that the sums of a round explain. 1 means that the client is exposed; "
    "one grouping into clusters of m gives 1/m.",
    "epsilon": "What noise hides of one client: the smaller epsilon is, the less the server can tell whether this "
    "client sent other updates. delta is the probability that it can tell more.",
    "cluster": "Clients whose updates are summed. The server sees the sum, not the updates.",
    "grouping": "One division of all clients into clusters. SHARE may have several per round.",
    "poisoned": "A cluster with at least one attacker. Only a simulation knows which clusters these are.",
    "filtered out": "The robust rule gave the cluster less than half of a fair share of the result.",
    "m": "Size of a cluster: the number of clients in it.",
    "R": "Groupings in a round: how many times all clients are divided into clusters.",
    "fixed": "The same clusters in every round.",
    "random": "New clusters in every round, drawn at random.",
    "transversal": "Groupings in a grid: two clients meet in at most one cluster of a round.",
    "atoms": "Clients stay in small fixed groups (atoms), of which clusters are made anew.",
    "whole": "A cluster with a dropout is lost: no secret of it can be recovered.",
    "survivors": "If clients drop out, the sum of the others in their cluster is recovered.",
    "rounds": "Number of rounds that are recorded.",
    "exact": "T is proven to be this number. Where it is not, a lower and an upper bound stand there.",
    "REPORT ONLY": "The configuration lets the audit stop nothing: every sum is opened, whatever it exposes.",
    "local training": "The clients train on their own examples.",
    "attack": "The attackers make their updates.",
    "secure aggregation": "Cryptography of clients and server for the sums of clusters.",
    "aggregation in the clear": "The sums of clusters, without cryptography.",
    "robust aggregation": "The server applies the robust rule to the means of clusters.",
    "testing": "The model is measured on the test examples.",
    "ms": "Milliseconds of work for a stage and a round: of one client on average, and of the server.",
    "up, down": "Bytes that one client sends (up) and receives (down) in a stage of a round.",
    "round s": "Seconds per round, where all clients and the server share the machine named below.",
    "secure s": "Seconds per round for secure aggregation, of all clients and the server together.",
    "aggregation s": "Seconds per round for the sums of clusters, which were simulated in the clear.",
    "traffic": "Bytes that one client sends and receives in a round.",
    "keys": "Clients send fresh public keys, and get those of the others.",
    "shares": "Clients deal encrypted shares of their secrets to each other, so that dropouts can be recovered.",
    "inputs": "Clients send their masked updates.",
    "consistency": "Clients sign who is still there, so that the server cannot show them different lists.",
    "unmasking": "Clients reveal shares with which the server removes what is left of the masks in a sum.",
}


class Cell(str):
    """A cell of a table: a warning, a name with details below it, or a value with a colour of its own."""

    alert: bool
    detail: str
    swatch: str
    heat: float | None

    def __new__(
        cls, text: object, *, alert: bool = False, detail: str = "", swatch: str = "", heat: float | None = None
    ) -> Cell:
        cell = super().__new__(cls, text)
        cell.alert, cell.detail, cell.swatch, cell.heat = alert, detail, swatch, heat
        return cell


class Table(NamedTuple):
    """A table of the page. `numbers` are the columns that are aligned to the right."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[int] = ()


class Banner(NamedTuple):
    """The one message at the top: warn, note or fine, and its sentences."""

    level: str
    sentences: Sequence[str]


def terms(*names: str) -> list[tuple[str, str]]:
    """These terms, each with its line of help."""
    return [(name, TERMS[name]) for name in names]


def render(template: str, **content: Any) -> str:
    """The page as text. Everything but the charts is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("fl.reporting")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(template).render(colours=COLOURS, **content)


def flat(tables: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Tables as one table of dotted keys."""
    found: dict[str, Any] = {}
    for name, value in tables.items():
        full = f"{path}.{name}" if path else name
        found |= flat(value, full) if isinstance(value, Mapping) else {full: value}
    return found

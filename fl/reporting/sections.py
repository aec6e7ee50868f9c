"""The page of a report: one HTML file from a template, without scripts or links."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from fl.config.read import to_toml
from fl.config.schema import to_tables
from fl.reporting import measures, privacy
from fl.reporting.charts import COLOURS, Line, Part, Square, bar, columns, curve_colour, grid, lines
from fl.reporting.measures import OUTCOMES, describe_bytes, seconds_per_round, summarise
from fl.reporting.records import Recorded

MOST_SQUARES = 80  # clusters per round; a grid of more would be too small to read
MOST_REASONS = 12
PHASES = (
    ("training", "local training", "c0"),
    ("secure", "secure aggregation", "c1"),
    ("attack", "attack", "c4"),
    ("aggregation", "robust aggregation", "c2"),
    ("evaluation", "testing", "c3"),
)


class Alert(str):
    """A table cell that is shown as a warning."""

    alert = True


class Table(NamedTuple):
    """A table of the page. `numbers` are the columns that are aligned to the right."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[int] = ()


def page(runs: Sequence[Recorded], references: Sequence[Line] = ()) -> str:
    """The page as text. Everything but the charts is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("fl.reporting")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("report.html").render(
        colours=COLOURS,
        started=", ".join(dict.fromkeys(run.info.get("started", "")[:10] for run in runs if run.info)),
        accuracy=lines([*accuracy_curves(runs), *references], y_label="test accuracy"),
        comparison=_comparison(runs),
        runs=[_run_content(run) for run in runs],
        differences=_differences(runs),
    )


def accuracy_curves(runs: Sequence[Recorded]) -> list[Line]:
    return [Line(run.name, measures.accuracies(run), curve_colour(i)) for i, run in enumerate(runs)]


def _comparison(runs: Sequence[Recorded]) -> Table:
    rows = []
    for run in runs:
        e, facts = run.experiment, summarise(run.experiment, run.rounds)
        who = [run.name, measures.describe_method(e), measures.describe_clusters(e), measures.describe_attack(e)]
        learned = ["-" if share is None else f"{share:.1%}" for share in (facts["accuracy"], facts["last_10_accuracy"])]
        exposed, anonymity = len(facts["exposed"]), facts["least_anonymity"]
        together = facts["exposed_over_training"]
        seen = [Alert(exposed) if exposed else "0", "-" if together is None else Alert(together) if together else "0"]
        seen += [f"{facts['alone']:.2g}", "-" if anonymity is None else str(anonymity)]
        spent = [f"{seconds_per_round(run, name):.2f}" for name in ("secure", "total")]
        sent = describe_bytes(facts["bytes_up_per_client"] + facts["bytes_down_per_client"])
        rows.append([*who, *learned, *seen, *spent, sent, str(len(run.rounds))])
    heads = ["run", "method", "clusters", "attackers", "accuracy", "last 10", "exposed in a round", "over all rounds"]
    heads += ["alone", "T", "secure s", "round s", "per client", "rounds"]
    return Table(heads, rows, numbers=range(4, 14))


def _run_content(run: Recorded) -> dict[str, Any]:
    e, points, facts = run.experiment, measures.accuracies(run), summarise(run.experiment, run.rounds)
    up, down = facts["bytes_up_per_client"], facts["bytes_down_per_client"]
    return {
        "name": run.name,
        "info": run.info,
        "experiment": e,
        "last": points[-1] if points else None,
        "exposed": len(facts["exposed"]),
        "exposed_over_training": facts["exposed_over_training"],
        "alone": facts["alone"],
        "anonymity": facts["least_anonymity"] or 0,
        "seconds": {name: seconds_per_round(run, name) for name in ("secure", "total")},
        "traffic": [describe_bytes(count) for count in (up + down, up, down)],
        "outcomes": measures.outcomes(run.rounds),
        "told": [facts["closed"], facts["clipped"] and measures.describe_clipped(facts["clipped"])],
        "skipped": [record["skipped"] for record in run.rounds if record["skipped"]],
        "clusters": None if e.method == "fedavg" else _clusters(run),
        "exposure": None if e.method == "no-share" else _exposure(run),
        "noise": privacy.panel(run),
        "costs": _costs(run),
        "blamed": _blamed(run),
        "left_out": _left_out(run),
        "dropouts": _dropouts(run),
        "toml": to_toml(e),
    }


def _clusters(run: Recorded) -> dict[str, Any]:
    counts = measures.outcomes(run.rounds)
    kept = [c["kept"] for record in run.rounds for c in record["clusters"] if c["kept"] is not None]
    most = max((len(record["clusters"]) for record in run.rounds), default=0)
    return {
        "partly_kept": any(0 < share < 1 for share in kept),
        "legend": [(colour, meaning) for colour, meaning in OUTCOMES.items() if counts[colour]],
        "chart": _cluster_grid(run) if most <= MOST_SQUARES else _cluster_columns(run),
    }


def _cluster_grid(run: Recorded) -> Markup:
    by_round = [{(c["grouping"], c["cell"], c["cluster"]): c for c in record["clusters"]} for record in run.rounds]
    rows, before = [], None
    for key in sorted({key for clusters in by_round for key in clusters}):
        found = [(record["round"], clusters.get(key)) for record, clusters in zip(run.rounds, by_round, strict=True)]
        squares = [cluster and _square(number, cluster) for number, cluster in found]
        rows.append((f"grouping {key[0] + 1}" if key[0] != before else "", squares))
        before = key[0]
    return grid(rows, first=run.rounds[0]["round"])


def _square(number: int, cluster: Mapping[str, Any]) -> Square:
    colour = measures.outcome(cluster)
    clients = ", ".join(map(str, cluster["members"])) or "none"
    bad = f", {cluster['bad']} of them bad" if cluster["bad"] else ""
    why = f" ({cluster['why']})" if cluster.get("why") else ""
    graded = cluster["kept"] is not None and colour in ("used", "poisoned")
    strength = 0.4 + 0.6 * min(1.0, cluster["kept"]) if graded else 1.0
    return Square(colour, f"round {number}: {OUTCOMES[colour]}{why}. Clients {clients}{bad}", strength)


def _cluster_columns(run: Recorded) -> Markup:
    by_round = [measures.outcomes([record]) for record in run.rounds]
    stacks = [[Part(OUTCOMES[name], count, name) for name, count in counts.items()] for counts in by_round]
    return columns(stacks, first=run.rounds[0]["round"])


def _exposure(run: Recorded) -> dict[str, Any]:
    found = [(record["round"], record["exposure"]) for record in run.rounds]
    most = [(number, exposure["most_leverage"]) for number, exposure in found]
    share = [(number, len(exposure["exposed"]) / run.experiment.clients) for number, exposure in found]
    curves = [
        Line("mean leverage", [(number, exposure["leverage"]) for number, exposure in found], "c5"),
        Line("most leverage", most, "c3"),
        Line("exposed clients", share, "poisoned"),
    ]
    return {
        "most_leverage": max((value for _, value in most), default=0.0),
        "rounds": min(measures.WINDOW, len(found)),
        "together": measures.leverage_if_unchanged(run) if len(found) > 1 else None,
        "chart": lines(curves, y_label="leverage", height=220),
        "audit": "; ".join(found[-1][1]["sentences"]) if found else "",
    }


def _costs(run: Recorded) -> dict[str, Any]:
    parts = [Part(meaning, seconds_per_round(run, name), colour) for name, meaning, colour in PHASES]
    return {
        "legend": [(part.colour, part.name) for part in parts if part.amount > 0],
        "chart": bar("seconds per round", parts, unit="s"),
        "stages": _stages(run),
    }


def _stages(run: Recorded) -> Table:
    """Time and traffic of each stage of the protocol."""
    spent = [record["cryptography"] for record in run.rounds]
    asked = sum(entry["clients"] for entry in spent) or 1
    kinds = ("client_seconds", "server_seconds", "bytes_up", "bytes_down")
    names = dict.fromkeys(stage for entry in spent for kind in kinds for stage in entry[kind])

    rows = []
    for stage in names:
        client, server, up, down = (sum(float(entry[kind].get(stage, 0)) for entry in spent) for kind in kinds)
        times = [f"{client / asked * 1000:.2f}", f"{server / len(spent) * 1000:.1f}"]
        rows.append([stage, *times, describe_bytes(up / asked), describe_bytes(down / asked)])
    heads = ["stage", "ms per client", "ms of the server", "up per client", "down per client"]
    return Table(heads, rows, numbers=range(1, 5))


def _blamed(run: Recorded) -> Table:
    reasons = {client: why for record in run.rounds for client, why in record["blamed"].items()}
    times = Counter(client for record in run.rounds for client in record["blamed"])
    attackers = set(map(str, run.info.get("byzantine", ())))
    rows = [
        [client, reasons[client], str(times[client]), "yes" if client in attackers else Alert("no")]
        for client in sorted(reasons, key=int)
    ]
    return Table(["client", "evidence", "rounds", "really an attacker"], rows, numbers=[2])


def _left_out(run: Recorded) -> Table:
    """Who was not asked because of earlier rounds, how often, and why the last time."""
    reasons = {client: why for record in run.rounds for client, why in record.get("left_out", {}).items()}
    times = Counter(client for record in run.rounds for client in record.get("left_out", {}))
    attackers = set(map(str, run.info.get("byzantine", ())))
    rows = [
        [client, reasons[client], str(times[client]), "yes" if client in attackers else "no"]
        for client in sorted(reasons, key=int)
    ]
    return Table(["client", "reason", "rounds", "really an attacker"], rows, numbers=[2])


def _dropouts(run: Recorded) -> Table:
    times = Counter((entry["stage"], entry["why"]) for record in run.rounds for entry in record["dropouts"])
    rows = [[stage, why, str(count)] for (stage, why), count in times.most_common(MOST_REASONS)]
    return Table(["stage", "reason", "times"], rows, numbers=[2])


def _differences(runs: Sequence[Recorded]) -> Table:
    """The settings that are not the same in all runs."""
    settings = [_flat(to_tables(run.experiment)) for run in runs]
    keys = dict.fromkeys(key for each in settings for key in each if key != "name")
    rows = [[key, *(str(each.get(key, "-")) for each in settings)] for key in keys]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    return Table(["key", *(run.name for run in runs)], rows)


def _flat(tables: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tables.items():
        full = f"{path}.{name}" if path else name
        found |= _flat(value, full) if isinstance(value, Mapping) else {full: value}
    return found

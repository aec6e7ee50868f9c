"""The content of a report's page: the tables, charts and sentences that the template puts in place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from fl.config.read import to_toml
from fl.config.schema import to_tables
from fl.reporting import measures
from fl.reporting.charts import Line, Part, Square, columns, grid, lines, stacked
from fl.reporting.measures import OUTCOMES, describe_bytes, seconds_per_round
from fl.reporting.page import Alert, Table, curve_colour
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


def page_content(runs: Sequence[Recorded], references: Sequence[Line] = ()) -> dict[str, Any]:
    """Everything that the template report.html needs."""
    started = ", ".join(dict.fromkeys(run.info.get("started", "")[:10] for run in runs if run.info))
    return {
        "title": "Training with SHARE" if len(runs) > 1 else f"Training with SHARE: {runs[0].name}",
        "subtitle": f"{len(runs)} run{'s' * (len(runs) > 1)}, {started}",
        "warnings": [warning for run in runs if (warning := _warning(run))],
        "tiles": _tiles(runs[0]),
        "accuracy": _accuracy_chart(runs, references),
        "comparison": _comparison(runs),
        "runs": [_run_content(run) for run in runs],
        "differences": _differences(runs),
        "machine": _machine(runs[0].info),
    }


def _warning(run: Recorded) -> str:
    e, exposed = run.experiment, len(measures.exposed_clients(run))
    if exposed and e.method == "no-share":
        return f"{run.name}: no secure aggregation. The server saw all {exposed} updates one by one."
    if exposed:
        return (
            f"{run.name}: {exposed} of {e.clients} clients were exposed. The audit only reported "
            "(report-even-if-exposed), so the server could compute their updates exactly."
        )
    if not e.secure:
        return f"{run.name}: simulated in the clear. Secure aggregation would give the same model."
    return ""


def _tiles(run: Recorded) -> list[tuple[str, str, str]]:
    """(label, value, detail) of the numbers at the top."""
    points, anonymity = measures.accuracies(run), measures.least_anonymity(run)
    up, down = measures.traffic(run)
    secure, total = seconds_per_round(run, "secure"), seconds_per_round(run, "total") or 1e-9
    counts = measures.outcomes(run.rounds)
    poisoned = counts["caught"] + counts["poisoned"]
    tiles = [
        (
            f"{run.name}: accuracy",
            f"{points[-1][1]:.1%}" if points else "-",
            f"after round {points[-1][0]:g}" if points else "",
        ),
        (
            "exposed clients",
            str(len(measures.exposed_clients(run))),
            f"anonymity T = {anonymity}" if anonymity and anonymity > 1 else "",
        ),
        ("secure aggregation", f"{secure:.2g} s", f"per round, {secure / total:.1%} of it"),
        (
            "per client and round",
            describe_bytes(up + down),
            f"{describe_bytes(up)} up, {describe_bytes(down)} down",
        ),
    ]
    if poisoned and run.experiment.defended:
        filtered = f"{counts['caught'] / poisoned:.0%}"
        tiles.append(("poisoned clusters filtered", filtered, f"of {poisoned}"))
    return tiles


def _accuracy_chart(runs: Sequence[Recorded], references: Sequence[Line]) -> Markup:
    curves = [Line(run.name, measures.accuracies(run), curve_colour(i)) for i, run in enumerate(runs)]
    return lines([*curves, *references], y_label="test accuracy", x_label="round", percent=True, top=1.0)


def _comparison(runs: Sequence[Recorded]) -> Table:
    rows = []
    for run in runs:
        points, e = measures.accuracies(run), run.experiment
        exposed, anonymity = len(measures.exposed_clients(run)), measures.least_anonymity(run)
        ten = [accuracy for _, accuracy in points[-10:]]
        rows.append(
            [
                run.name,
                measures.describe_method(e),
                measures.describe_clusters(e),
                measures.describe_attack(e),
                f"{points[-1][1]:.1%}" if points else "-",
                f"{sum(ten) / len(ten):.1%}" if ten else "-",
                Alert(exposed) if exposed else "0",
                "-" if anonymity is None else str(anonymity),
                f"{seconds_per_round(run, 'secure'):.2f}",
                f"{seconds_per_round(run, 'total'):.2f}",
                describe_bytes(sum(measures.traffic(run))),
                str(len(run.rounds)),
            ]
        )
    heads = ["run", "method", "clusters", "attackers", "accuracy", "last 10", "exposed", "T"]
    heads += ["secure s", "round s", "per client", "rounds"]
    return Table(heads, rows, numbers=range(4, 12))


def _run_content(run: Recorded) -> dict[str, Any]:
    method = run.experiment.method
    skipped = [record["skipped"] for record in run.rounds if record["skipped"]]
    return {
        "name": run.name,
        "skipped": f"{len(skipped)} rounds were skipped: {skipped[0]}." if skipped else "",
        "clusters": None if method == "fedavg" else _clusters(run),
        "exposure": None if method == "no-share" else _exposure(run),
        "costs": _costs(run),
        "blamed": _blamed(run),
        "dropouts": _dropouts(run),
        "toml": to_toml(run.experiment),
    }


def _clusters(run: Recorded) -> dict[str, Any]:
    counts = measures.outcomes(run.rounds)
    poisoned, clean = counts["caught"] + counts["poisoned"], counts["used"] + counts["wasted"]
    facts = []
    if poisoned:
        facts.append(f"{counts['caught']} of {poisoned} poisoned clusters were filtered out")
    if clean:
        facts.append(f"{counts['used']} of {clean} clean ones were used")
    if counts["closed"]:
        facts.append(f"{counts['closed']} stayed closed, because their sums would have revealed too much")
    if counts["lost"]:
        facts.append(f"{counts['lost']} were lost to dropouts or cheating")
    text = f"{'; '.join(facts).capitalize()}. Only a simulation knows which clusters were poisoned."
    if any(c["kept"] is not None and 0 < c["kept"] < 1 for r in run.rounds for c in r["clusters"]):
        text += (
            " This rule works coordinate by coordinate: a cluster counts as used if it got at least half of "
            "a fair share. A stronger colour means a larger share."
        )
    most = max((len(record["clusters"]) for record in run.rounds), default=0)
    return {
        "text": text,
        "legend": [(colour, meaning) for colour, meaning in OUTCOMES.items() if counts[colour]],
        "chart": _cluster_grid(run) if most <= MOST_SQUARES else _cluster_columns(run),
    }


def _cluster_grid(run: Recorded) -> Markup:
    by_round = [
        {(c["grouping"], c["cell"], c["cluster"]): c for c in record["clusters"]} for record in run.rounds
    ]
    rows, before = [], None
    for key in sorted({key for clusters in by_round for key in clusters}):
        name = f"grouping {key[0] + 1}" if key[0] != before else ""
        before = key[0]
        squares = [
            _square(record["round"], clusters[key]) if key in clusters else None
            for record, clusters in zip(run.rounds, by_round, strict=True)
        ]
        rows.append((name, squares))
    return grid(rows, first=run.rounds[0]["round"], x_label="round")


def _square(number: int, cluster: Mapping[str, Any]) -> Square:
    colour = measures.outcome(cluster)
    clients = ", ".join(map(str, cluster["members"])) or "none"
    bad = f", {cluster['bad']} of them bad" if cluster["bad"] else ""
    why = f" ({cluster['why']})" if cluster.get("why") else ""
    strength = 1.0
    if cluster["kept"] is not None and colour in ("used", "poisoned"):
        strength = 0.4 + 0.6 * min(1.0, cluster["kept"])
    return Square(colour, f"round {number}: {OUTCOMES[colour]}{why}. Clients {clients}{bad}", strength)


def _cluster_columns(run: Recorded) -> Markup:
    stacks = []
    for record in run.rounds:
        counts = measures.outcomes([record])
        stacks.append([Part(meaning, counts[colour], colour) for colour, meaning in OUTCOMES.items()])
    return columns(stacks, first=run.rounds[0]["round"], x_label="round")


def _exposure(run: Recorded) -> dict[str, Any]:
    clients, exposed = run.experiment.clients, len(measures.exposed_clients(run))
    anonymity = measures.least_anonymity(run)
    leverage = [(r["round"], r["exposure"]["leverage"]) for r in run.rounds]
    most_leverage = [(r["round"], r["exposure"]["most_leverage"]) for r in run.rounds]
    facts = [f"{exposed} of {clients} clients were exposed" if exposed else "No client was exposed"]
    if anonymity is not None and anonymity > 1:
        facts.append(f"every combination the server could compute involves at least {anonymity} clients")
    worst = max((value for _, value in most_leverage), default=0.0)
    facts.append(f"the sums of one round explain at most {worst:.0%} of a client's update (its leverage)")
    text = "; ".join(facts) + "."
    together = measures.leverage_if_unchanged(run)
    if together is not None and len(run.rounds) > 1:
        text += (
            f" If no update had changed over the last {min(measures.WINDOW, len(run.rounds))} rounds, their "
            f"sums together would explain {together:.0%} on average. Only atoms whose clients all take part "
            "or all stay away protect across rounds."
        )
    shares = [(r["round"], len(r["exposure"]["exposed"]) / clients) for r in run.rounds]
    curves = [
        Line("mean leverage", leverage, "c5"),
        Line("most leverage", most_leverage, "c3"),
        Line("exposed clients", shares, "poisoned"),
    ]
    return {
        "text": text,
        "chart": lines(curves, y_label="leverage", x_label="round", percent=True, top=1.0, height=220),
        "audit": "; ".join(run.rounds[-1]["exposure"]["sentences"]) if run.rounds else "",
    }


def _costs(run: Recorded) -> dict[str, Any]:
    parts = [Part(meaning, seconds_per_round(run, name), colour) for name, meaning, colour in PHASES]
    return {
        "legend": [(part.colour, part.name) for part in parts if part.amount > 0],
        "chart": stacked([("seconds per round", parts)], unit="s"),
        "stages": _stages(run),
    }


def _stages(run: Recorded) -> Table:
    """Time and traffic of each stage of the protocol."""
    spent = [record["cryptography"] for record in run.rounds]
    asked = sum(entry["clients"] for entry in spent) or 1
    kinds = ("client_seconds", "server_seconds", "bytes_up", "bytes_down")
    names = dict.fromkeys(stage for entry in spent for kind in kinds for stage in entry[kind])

    def total(kind: str, stage: str) -> float:
        return sum(float(entry[kind].get(stage, 0)) for entry in spent)

    rows = [
        [
            stage,
            f"{total('client_seconds', stage) / asked * 1000:.2f}",
            f"{total('server_seconds', stage) / len(spent) * 1000:.1f}",
            describe_bytes(total("bytes_up", stage) / asked),
            describe_bytes(total("bytes_down", stage) / asked),
        ]
        for stage in names
    ]
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


def _dropouts(run: Recorded) -> Table:
    times = Counter((gone["stage"], gone["why"]) for record in run.rounds for gone in record["dropouts"])
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


def _machine(info: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in info.get("versions", {}).items())
    return (
        f"{versions}; {info.get('cores', '?')} cores, {info.get('workers', 0)} training processes, "
        f"{info.get('parameters', 0):,} parameters."
    )

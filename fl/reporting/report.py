"""Recorded runs as one page, one picture and a table: what was learned, what the server saw, what it cost.

Reads only what `records` wrote; needs no torch. The page is one HTML file without scripts or links.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from fl.config.schema import Experiment, to_tables, to_toml
from fl.reporting import page
from fl.reporting.charts import Line, Part, Square, columns, grid, lines, stacked
from fl.reporting.records import Recorded, RecordError, recorded, write

Record = Mapping[str, Any]
WINDOW = 10  # rounds over which leverage is added up as if updates stayed the same
MOST_SQUARES = 80  # clusters per round that a grid still shows one by one
FATES = (
    ("good", "clean, used"),
    ("right", "poisoned, filtered out"),
    ("waste", "clean, filtered out"),
    ("bad", "poisoned, used"),
    ("shut", "kept closed by the audit"),
    ("gone", "lost"),
)


@dataclass(frozen=True, slots=True)
class Reference:
    """A published curve to lay beside a run."""

    name: str
    points: tuple[tuple[float, float], ...]


def report(
    folders: Sequence[Path | str],
    out: Path,
    *,
    picture: Path | None = None,
    references: Sequence[Reference] = (),
) -> list[Recorded]:
    """Write the page, and the picture where one is wanted; returns the runs it shows."""
    runs = [recorded(folder) for folder in folders]
    if not any(run.rounds for run in runs):
        raise RecordError(f"no round has been recorded in {', '.join(str(folder) for folder in folders)}")
    out.parent.mkdir(parents=True, exist_ok=True)
    write(out, html(runs, references).encode())
    if picture is not None:
        draw(runs, picture, references)
    return runs


def read_reference(path: Path | str, curve: str) -> Reference:
    """A curve from a CSV file with the columns curve_id, round and test_acc."""
    try:
        with Path(path).open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row.get("curve_id") == curve]
        points = tuple((float(row["round"]), float(row["test_acc"])) for row in rows)
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}") from None
    except (KeyError, ValueError, TypeError):
        raise RecordError(
            f"{path}: columns curve_id, round and test_acc, with numbers in the last two"
        ) from None
    if not points:
        raise RecordError(f"{path} has no curve {curve!r}")
    return Reference(curve, points)


# --- words and numbers --------------------------------------------------------------------------------------


def method(e: Experiment) -> str:
    if e.method == "fedavg":
        return "FedAvg, no defence"
    rule = e.aggregation.rule + (" after " + ", ".join(e.aggregation.before) if e.aggregation.before else "")
    if e.method == "no-share":
        return f"{rule} on single updates"
    return f"SHARE, {rule}"


def clusters_of(e: Experiment) -> str:
    if e.method == "fedavg":
        return "one of all"
    if e.method == "no-share":
        return "single clients"
    c = e.clusters
    return f"m = {c.size}, R = {c.groupings}, {c.schedule}" + (f" of {c.atom}" if c.atom else "")


def attack_of(e: Experiment) -> str:
    if not e.byzantine:
        return "none"
    options = ", ".join(
        f"{name} {value:g}" for name, value in e.attack.options.items() if not isinstance(value, str)
    )
    name = e.attack.name if e.attack.name != "none" else ""
    deeds = " and ".join(filter(None, (name, e.attack.protocol if e.attack.protocol != "none" else "")))
    return f"{e.byzantine} of {e.clients}: {deeds}" + (f" ({options})" if options else "")


def protection(e: Experiment) -> str:
    if e.method == "no-share":
        return "none: every update is seen"
    if not e.secure:
        return "none: simulated in the clear"
    return "enforced" if e.privacy.audit == "enforce" else "reported only"


def accuracies(run: Recorded) -> list[tuple[float, float]]:
    return [(r["round"], r["accuracy"]) for r in run.rounds if r["accuracy"] is not None]


def fate(cluster: Record) -> str:
    """The colour of a cluster: what became of it, and whether it was really poisoned."""
    if cluster["state"] == "closed":
        return "shut"
    if cluster["state"] == "lost":
        return "gone"
    used = cluster["kept"] is None or cluster["kept"] >= 0.5
    if cluster["bad"]:
        return "bad" if used else "right"
    return "good" if used else "waste"


def fates(run: Recorded) -> dict[str, int]:
    counts = dict.fromkeys((colour for colour, _ in FATES), 0)
    for record in run.rounds:
        for cluster in record["clusters"]:
            counts[fate(cluster)] += 1
    return counts


def size(count: float) -> str:
    for unit, amount in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= amount:
            return f"{count / amount:.3g} {unit}"
    return f"{count:.0f} B"


def per_round(run: Recorded, name: str) -> float:
    return float(sum(record["seconds"].get(name, 0.0) for record in run.rounds)) / max(len(run.rounds), 1)


def traffic(run: Recorded) -> tuple[float, float]:
    """Bytes up and down, per client and round."""
    asked = sum(record["cryptography"]["clients"] for record in run.rounds) or 1
    up = sum(sum(record["cryptography"]["bytes_up"].values()) for record in run.rounds)
    down = sum(sum(record["cryptography"]["bytes_down"].values()) for record in run.rounds)
    return up / asked, down / asked


def exposed(run: Recorded) -> set[int]:
    return {client for record in run.rounds for client in record["exposure"]["exposed"]}


def least_anonymity(run: Recorded) -> int | None:
    found = [r["exposure"]["anonymity"] for r in run.rounds if r["exposure"]["anonymity"] is not None]
    return min(found, default=None)


def accumulated(run: Recorded) -> float | None:
    """Mean leverage of the last rounds' opened sums together, as if no update had changed between them.

    Nothing protects across rounds when updates change slowly; this says how bad that would be.
    """
    rows = [
        cluster["members"]
        for record in run.rounds[-WINDOW:]
        for cluster in record["clusters"]
        if cluster["state"] == "opened"
    ]
    clients = sorted({client for members in rows for client in members})
    if not rows or len(clients) * len(rows) > 2_000_000:
        return None
    place = {client: i for i, client in enumerate(clients)}
    matrix = np.zeros((len(rows), len(clients)))
    for i, members in enumerate(rows):
        matrix[i, [place[client] for client in members]] = 1.0
    return float(np.linalg.matrix_rank(matrix)) / len(clients)


def told(e: Experiment, summary: Mapping[str, Any]) -> str:
    """A finished run in a few lines, for a terminal."""
    spent = summary["seconds"]
    rounds = max(summary["rounds"], 1)
    accuracy = summary["accuracy"]
    lines = [
        f"{e.name}: {method(e)}; clusters: {clusters_of(e)}; attackers: {attack_of(e)}",
        f"accuracy {'-' if accuracy is None else f'{accuracy:.2%}'} after {summary['rounds']} rounds"
        + (f" ({summary['stopped']})" if summary["stopped"] else ""),
    ]
    seen = summary["exposed"]
    if e.method == "no-share":
        lines.append(f"NO SECURE AGGREGATION: the server saw the updates of all {len(seen)} clients")
    elif seen:
        lines.append(f"EXPOSED: the server could compute the updates of {len(seen)} clients exactly")
    else:
        lines.append(
            f"exposed clients: none; anonymity T = {summary['least_anonymity']}; audit {protection(e)}"
        )
    if summary["skipped_rounds"]:
        lines.append(f"skipped rounds: {', '.join(map(str, summary['skipped_rounds']))}")
    if summary["blamed"]:
        lines.append(
            "caught cheating: " + ", ".join(f"client {c} ({w})" for c, w in summary["blamed"].items())
        )
    lines.append(
        f"per round: {spent['total'] / rounds:.2f} s, {spent['secure'] / rounds:.2f} s of it secure; "
        f"per client {size(summary['bytes_up_per_client'])} up, {size(summary['bytes_down_per_client'])} down"
    )
    return "\n".join(lines)


# --- the page -----------------------------------------------------------------------------------------------


def html(runs: Sequence[Recorded], references: Sequence[Reference] = ()) -> str:
    body = [*_banners(runs), _tiles(runs[0]), *_comparison(runs, references)]
    for run in runs:
        body += _details(run, alone=len(runs) == 1)
    body += _configurations(runs)
    title = "Training with SHARE" if len(runs) > 1 else f"Training with SHARE: {runs[0].name}"
    started = ", ".join(dict.fromkeys(run.info.get("started", "")[:10] for run in runs if run.info))
    return page.page(title, f"{len(runs)} run{'s' * (len(runs) > 1)}, {started}", body)


def _banners(runs: Sequence[Recorded]) -> list[str]:
    found = []
    for run in runs:
        e, seen = run.experiment, exposed(run)
        if seen and e.method == "no-share":
            text = f"{run.name}: no secure aggregation. The server saw all {len(seen)} updates one by one."
            found.append(page.banner(text, warn=True))
        elif seen:
            text = (
                f"{run.name}: {len(seen)} of {e.clients} clients were exposed. The audit only reported "
                "(report-even-if-exposed), so the server could compute their updates exactly."
            )
            found.append(page.banner(text, warn=True))
        elif not e.secure:
            text = f"{run.name}: simulated in the clear. The model is the one that secure aggregation gives."
            found.append(page.banner(text, warn=True))
    if not found:
        found.append(
            page.banner(
                "No client was exposed: every sum the server saw was opened by the clients' own audit.",
                warn=False,
            )
        )
    return found


def _tiles(run: Recorded) -> str:
    points, e = accuracies(run), run.experiment
    up, down = traffic(run)
    total = per_round(run, "total") or 1e-9
    anonymity = least_anonymity(run)
    counts = fates(run)
    poisoned = counts["right"] + counts["bad"]
    tiles = [
        page.tile(
            f"{points[-1][1]:.1%}" if points else "-",
            f"{run.name}: accuracy",
            f"after round {points[-1][0]:g}" if points else "",
        ),
        page.tile(
            str(len(exposed(run))),
            "exposed clients",
            f"anonymity T = {anonymity}" if anonymity and anonymity > 1 else "",
        ),
        page.tile(
            f"{per_round(run, 'secure'):.2g} s",
            "secure aggregation",
            f"per round, {per_round(run, 'secure') / total:.1%} of it",
        ),
        page.tile(size(up + down), "per client and round", f"{size(up)} up, {size(down)} down"),
    ]
    if poisoned and e.defended:
        tiles.append(
            page.tile(f"{counts['right'] / poisoned:.0%}", "poisoned clusters filtered", f"of {poisoned}")
        )
    return f"<div class='tiles'>{''.join(tiles)}</div>"


def _comparison(runs: Sequence[Recorded], references: Sequence[Reference]) -> list[str]:
    curves = [
        Line(run.name, accuracies(run), page.COLOURS[i % len(page.COLOURS)]) for i, run in enumerate(runs)
    ]
    last = max((x for curve in curves for x, _ in curve.points), default=1)
    for i, reference in enumerate(references):
        colour = page.COLOURS[(i if len(references) == len(runs) else i + len(runs)) % len(page.COLOURS)]
        points = [point for point in reference.points if point[0] <= last]
        curves.append(Line(reference.name, points, colour, dashed=True))
    rows = []
    for run in runs:
        points, e, seen = accuracies(run), run.experiment, len(exposed(run))
        up, down = traffic(run)
        anonymity = least_anonymity(run)
        ten = [accuracy for _, accuracy in points[-10:]]
        rows.append(
            [
                run.name,
                method(e),
                clusters_of(e),
                attack_of(e),
                f"{points[-1][1]:.1%}" if points else "-",
                f"{sum(ten) / len(ten):.1%}" if ten else "-",
                f"!{seen}" if seen else "0",
                "-" if anonymity is None else str(anonymity),
                f"{per_round(run, 'secure'):.2f}",
                f"{per_round(run, 'total'):.2f}",
                size(up + down),
                str(len(run.rounds)),
            ]
        )
    heads = ["run", "method", "clusters", "attackers", "accuracy", "last 10", "exposed", "T"]
    heads += ["secure s", "round s", "per client", "rounds"]
    return [
        "<h2>Accuracy</h2>",
        lines(curves, y_label="test accuracy", x_label="round", percent=True, top=1.0),
        page.table(heads, rows, numbers=range(4, 12)),
        "<p class='quiet'>Accuracy is on test examples that no client holds. Secure s and round s are "
        "seconds per round on the machine below, all clients and the server in one process. T is the least "
        "number of clients in any combination of updates that the server could compute.</p>",
    ]


def _details(run: Recorded, *, alone: bool) -> list[str]:
    body = [f"<h2>{escape(run.name)}</h2>" if not alone else ""]
    skipped = [record for record in run.rounds if record["skipped"]]
    if skipped:
        body.append(page.banner(f"{len(skipped)} rounds were skipped: {skipped[0]['skipped']}.", warn=True))
    body += _clusters(run)
    body += _exposure(run)
    body += _costs(run)
    body += _people(run)
    return [part for part in body if part]


def _clusters(run: Recorded) -> list[str]:
    e, counts = run.experiment, fates(run)
    if e.method == "fedavg":
        return ["<p>One sum of all clients in every round: nothing is filtered.</p>"]
    poisoned, clean = counts["right"] + counts["bad"], counts["good"] + counts["waste"]
    told = []
    if poisoned:
        told.append(f"{counts['right']} of {poisoned} poisoned clusters were filtered out")
    if clean:
        told.append(f"{counts['good']} of {clean} clean ones were used")
    if counts["shut"]:
        told.append(f"{counts['shut']} stayed closed, because their sums would have said too much")
    if counts["gone"]:
        told.append(f"{counts['gone']} were lost to dropouts or cheats")
    soft = any(c["kept"] is not None and 0 < c["kept"] < 1 for r in run.rounds for c in r["clusters"])
    note = (
        " This rule works coordinate by coordinate: a cluster counts as used if it got at least half of a "
        "fair share; stronger colour means more of it."
        if soft
        else ""
    )
    named = [(colour, text) for colour, text in FATES if counts[colour]]
    most = max((len(record["clusters"]) for record in run.rounds), default=0)
    return [
        "<h3>Clusters, round by round</h3>",
        f"<p>{escape('; '.join(told).capitalize())}. Only a simulation knows which were poisoned."
        f"{escape(note)}</p>",
        page.legend(named),
        _cluster_grid(run) if most <= MOST_SQUARES else _cluster_columns(run),
    ]


def _cluster_grid(run: Recorded) -> str:
    keys = sorted({(c["grouping"], c["cell"], c["cluster"]) for r in run.rounds for c in r["clusters"]})
    found = {
        (r["round"], c["grouping"], c["cell"], c["cluster"]): c for r in run.rounds for c in r["clusters"]
    }
    rows, before = [], None
    for grouping, cell, cluster in keys:
        name = f"grouping {grouping + 1}" if grouping != before else ""
        before = grouping
        squares = []
        for record in run.rounds:
            entry = found.get((record["round"], grouping, cell, cluster))
            squares.append(None if entry is None else _square(record["round"], entry))
        rows.append((name, squares))
    return grid(rows, first=run.rounds[0]["round"], x_label="round")


def _square(number: int, cluster: Record) -> Square:
    colour = fate(cluster)
    what = dict(FATES)[colour]
    who = ", ".join(map(str, cluster["members"])) or "nobody left"
    bad = f", {cluster['bad']} of them bad" if cluster["bad"] else ""
    why = f" ({cluster['why']})" if cluster.get("why") else ""
    strength = 1.0
    if cluster["kept"] is not None and colour in ("good", "bad"):
        strength = 0.4 + 0.6 * min(1.0, cluster["kept"])
    return Square(colour, f"round {number}: {what}{why}. Clients {who}{bad}", strength)


def _cluster_columns(run: Recorded) -> str:
    stacks = []
    for record in run.rounds:
        counts = dict.fromkeys((colour for colour, _ in FATES), 0)
        for cluster in record["clusters"]:
            counts[fate(cluster)] += 1
        stacks.append([Part(text, counts[colour], colour) for colour, text in FATES])
    return columns(stacks, first=run.rounds[0]["round"], x_label="round")


def _exposure(run: Recorded) -> list[str]:
    e, seen = run.experiment, exposed(run)
    if e.method == "no-share":
        return ["<h3>What the server learned</h3>", "<p>Everything: each update on its own.</p>"]
    anonymity = least_anonymity(run)
    worst = max((record["exposure"]["most_leverage"] for record in run.rounds), default=0.0)
    told = [f"{len(seen)} of {e.clients} clients were exposed" if seen else "No client was exposed"]
    if anonymity is not None and anonymity > 1:
        told.append(f"every combination the server could compute involves at least {anonymity} clients")
    told.append(f"the sums of one round explain at most {worst:.0%} of a client's update (its leverage)")
    together = accumulated(run)
    text = "; ".join(told) + "."
    if together is not None and len(run.rounds) > 1:
        text += (
            f" If no update had changed over the last {min(WINDOW, len(run.rounds))} rounds, their sums "
            f"together would explain {together:.0%} on average: only atoms that take part whole or not at "
            "all protect across rounds."
        )
    curves = [
        Line("mean leverage", [(r["round"], r["exposure"]["leverage"]) for r in run.rounds], "c5"),
        Line("most leverage", [(r["round"], r["exposure"]["most_leverage"]) for r in run.rounds], "c3"),
        Line(
            "exposed clients",
            [(r["round"], len(r["exposure"]["exposed"]) / e.clients) for r in run.rounds],
            "bad",
        ),
    ]
    said = run.rounds[-1]["exposure"]["sentences"]
    return [
        "<h3>What the server learned</h3>",
        f"<p>{escape(text)}</p>",
        lines(curves, y_label="leverage", x_label="round", percent=True, top=1.0, height=220),
        f"<p class='quiet'>The audit of the last round: {escape('; '.join(said))}.</p>" if said else "",
    ]


PHASES = (
    ("training", "local training", "c0"),
    ("secure", "secure aggregation", "c1"),
    ("attack", "attack", "c4"),
    ("aggregation", "robust aggregation", "c2"),
    ("evaluation", "testing", "c3"),
)


def _costs(run: Recorded) -> list[str]:
    parts = [Part(text, per_round(run, name), colour) for name, text, colour in PHASES]
    body = [
        "<h3>Time and traffic</h3>",
        page.legend([(colour, text) for name, text, colour in PHASES if per_round(run, name) > 0]),
        stacked([("seconds per round", parts)], unit="s"),
    ]
    names: list[str] = []
    for record in run.rounds:
        for kind in ("client_seconds", "server_seconds", "bytes_up", "bytes_down"):
            names += [stage for stage in record["cryptography"][kind] if stage not in names]
    if not names:
        return [*body, "<p class='quiet'>No cryptography ran, so nothing was sent.</p>"]
    asked = sum(record["cryptography"]["clients"] for record in run.rounds) or 1
    rounds = len(run.rounds)

    def summed(kind: str, stage: str) -> float:
        return sum(float(record["cryptography"][kind].get(stage, 0)) for record in run.rounds)

    rows = [
        [
            stage,
            f"{summed('client_seconds', stage) / asked * 1000:.2f}",
            f"{summed('server_seconds', stage) / rounds * 1000:.1f}",
            size(summed("bytes_up", stage) / asked),
            size(summed("bytes_down", stage) / asked),
        ]
        for stage in names
    ]
    heads = ["stage", "ms per client", "ms of the server", "up per client", "down per client"]
    return [*body, page.table(heads, rows, numbers=range(1, 5))]


def _people(run: Recorded) -> list[str]:
    blamed: dict[str, tuple[str, int]] = {}
    for record in run.rounds:
        for client, why in record["blamed"].items():
            blamed[client] = (why, blamed.get(client, ("", 0))[1] + 1)
    reasons: dict[tuple[str, str], int] = {}
    for record in run.rounds:
        for gone in record["dropouts"]:
            reasons[gone["stage"], gone["why"]] = reasons.get((gone["stage"], gone["why"]), 0) + 1
    body = []
    if blamed:
        attackers = set(map(str, run.info.get("byzantine", ())))
        rows = [
            [client, why, str(count), "yes" if client in attackers else "!no"]
            for client, (why, count) in sorted(blamed.items(), key=lambda entry: int(entry[0]))
        ]
        body += [
            "<h3>Caught cheating in the protocol</h3>",
            page.table(["client", "evidence", "rounds", "really an attacker"], rows, numbers=[2]),
        ]
    if reasons:
        rows = [
            [stage, why, str(count)]
            for (stage, why), count in sorted(reasons.items(), key=lambda r: -r[1])[:12]
        ]
        body += ["<h3>Dropouts</h3>", page.table(["stage", "reason", "times"], rows, numbers=[2])]
    return body


def _configurations(runs: Sequence[Recorded]) -> list[str]:
    body = ["<h2>Configuration</h2>"]
    if len(runs) > 1:
        flat = [_flat(to_tables(run.experiment)) for run in runs]
        keys = [
            k for k in dict.fromkeys(k for f in flat for k in f) if len({str(f.get(k)) for f in flat}) > 1
        ]
        keys = [k for k in keys if k != "name"]
        rows = [[k, *(str(f.get(k, "-")) for f in flat)] for k in keys]
        if rows:
            body += ["<p>Where the runs differ:</p>", page.table(["key", *(run.name for run in runs)], rows)]
    for run in runs:
        body.append(
            f"<details><summary>{escape(run.name)}: the whole configuration</summary>"
            f"<pre>{escape(to_toml(run.experiment))}</pre></details>"
        )
    info = runs[0].info
    made = ", ".join(f"{name} {number}" for name, number in info.get("versions", {}).items())
    body.append(
        f"<p class='quiet'>{escape(made)}; {info.get('cores', '?')} cores, {info.get('workers', 0)} training "
        f"processes, {info.get('parameters', 0):,} parameters.</p>"
    )
    return body


def _flat(tables: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tables.items():
        full = f"{path}.{name}" if path else name
        found |= _flat(value, full) if isinstance(value, Mapping) else {full: value}
    return found


# --- the picture --------------------------------------------------------------------------------------------

PAINT = {
    "c0": "#2563eb", "c1": "#e2680c", "c2": "#0d9268", "c3": "#8b46d8", "c4": "#c81e4a", "c5": "#0b87a5",
    "c6": "#96710b", "good": "#0d9268", "right": "#2563eb", "waste": "#c9a227", "bad": "#d3213d",
    "shut": "#8a94a2", "gone": "#434c58",
}  # fmt: skip


def draw(runs: Sequence[Recorded], path: Path, references: Sequence[Reference] = ()) -> None:
    """The same in one PNG: accuracy, clusters of the first defended run, seconds, and leverage."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7.6), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2)
    top = axes[0, 0]
    for i, run in enumerate(runs):
        points = accuracies(run)
        top.plot(*zip(*points, strict=True), marker=".", color=PAINT[page.COLOURS[i % 7]], label=run.name)
    last = max(record["round"] for run in runs for record in run.rounds)
    for i, reference in enumerate(references):
        points = [point for point in reference.points if point[0] <= last]
        colour = PAINT[page.COLOURS[(i if len(references) == len(runs) else i + len(runs)) % 7]]
        top.plot(
            *zip(*points, strict=True), linestyle="--", color=colour, label=f"{reference.name} (published)"
        )
    top.set(title="Test accuracy", xlabel="round", ylim=(0, 1))
    top.legend(fontsize=8, loc="best")
    shown = next((run for run in runs if run.experiment.defended), runs[0])
    _draw_clusters(axes[0, 1], shown)
    _draw_seconds(axes[1, 0], runs)
    for i, run in enumerate(runs):
        points = [(record["round"], record["exposure"]["most_leverage"]) for record in run.rounds]
        axes[1, 1].plot(*zip(*points, strict=True), color=PAINT[page.COLOURS[i % 7]], label=run.name)
    axes[1, 1].set(title="Most that sums tell of one update (1: exposed)", xlabel="round", ylim=(0, 1.03))
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="#e4e7eb", linewidth=0.8)
        axis.set_axisbelow(True)
        axis.title.set_fontsize(11)
    axes[0, 1].yaxis.get_major_locator().set_params(integer=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def _draw_clusters(axis: Any, run: Recorded) -> None:
    numbers = [record["round"] for record in run.rounds]
    floor = np.zeros(len(numbers))
    for colour, text in FATES:
        counts = np.array([sum(fate(c) == colour for c in record["clusters"]) for record in run.rounds])
        if counts.any():
            axis.bar(numbers, counts, bottom=floor, color=PAINT[colour], width=0.85, label=text)
            floor = floor + counts
    axis.set(title=f"Clusters of {run.name}", xlabel="round")
    axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, frameon=False)


def _draw_seconds(axis: Any, runs: Sequence[Recorded]) -> None:
    names = [run.name for run in runs]
    start = np.zeros(len(runs))
    for name, text, colour in PHASES:
        amounts = np.array([per_round(run, name) for run in runs])
        if amounts.any():
            axis.barh(names, amounts, left=start, color=PAINT[colour], label=text, height=0.6)
            start = start + amounts
    axis.set(title="Seconds per round")
    axis.invert_yaxis()
    axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=3, frameon=False)

"""What a report shows of each run, and of all runs together, as content of its template."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from fl.config.read import to_toml
from fl.config.schema import to_tables
from fl.reporting import detail, learned, measures, privacy
from fl.reporting.banner import banner, seen
from fl.reporting.charts import (
    SHARES,
    Line,
    Part,
    Row,
    Scale,
    Square,
    bar,
    columns,
    curve_colour,
    grid,
    legend_of,
    lines,
    scale_of,
)
from fl.reporting.measures import OUTCOMES, describe_bytes, seconds_per_round, summarise
from fl.reporting.page import TERMS, Cell, Table, flat, render, terms
from fl.reporting.records import Recorded

MOST_SQUARES = 80  # clusters per round; a grid of more would be too small to read
MOST_ON_A_PAGE = 20_000  # squares of all runs; with more, columns take their place
MOST_REASONS = 12
FEW = 7  # runs that can have a colour each
OPEN = 3  # runs whose sections are open
TELLING = (
    "aggregation.rule",
    "method",
    "clusters.size",
    "data.partition",
    "attack.name",
)  # keys to colour many runs by
LAST = "last 10"
COLUMNS = {  # columns that have their term under another name
    "exposed in a round": "exposed",
    "over all rounds": "",
    "ms per client": "ms",
    "ms of the server": "ms",
    "up per client": "up, down",
    "down per client": "up, down",
}
AUDIT_WORDS = ("exact", "REPORT ONLY")  # of its sentences, which have a line of help
PHASES = (
    ("training", "local training", "p0"),
    ("secure", "secure aggregation", "p1"),
    ("attack", "attack", "p2"),
    ("aggregation", "robust aggregation", "p3"),
    ("evaluation", "testing", "p4"),
)


def page(runs: Sequence[Recorded], references: Sequence[Line] = (), waiting: int = 0) -> str:
    """The page as text."""
    curves, charts = main_curves(runs), _charts(runs, references)
    squares = sum(len(record["clusters"]) for run in runs for record in run.rounds)
    contents = [
        _run_content(run, curve.colour, squares <= MOST_ON_A_PAGE) for run, curve in zip(runs, curves, strict=True)
    ]
    return render(
        "report.html",
        title="Training with SHARE" + (f": {runs[0].name}" if len(runs) == 1 else ""),
        started=", ".join(dict.fromkeys(run.info.get("started", "")[:10] for run in runs if run.info)),
        waiting=waiting,
        banner=banner([content["seen"] for content in contents]),
        main=charts[0],
        charts=charts[1:],
        comparison=(comparison := _comparison(runs, curves)),
        common=_common(runs),
        comparison_terms=terms(*(term for head in comparison.heads if (term := COLUMNS.get(head, head)) in TERMS))
        + _cluster_terms(runs),
        everyone="Both runs" if len(runs) == 2 else "All runs",
        runs=contents,
        open=len(runs) <= OPEN,
        differences=_differences(runs),
    )


def main_curves(runs: Sequence[Recorded]) -> list[Line]:
    """The main measure of each run. Few runs have a colour each; many have that of a setting that tells them apart."""
    return _curves(runs, [learned.main_measure(run) for run in runs])


def _curves(runs: Sequence[Recorded], measured: Sequence[str]) -> list[Line]:
    values = _colour_values(runs)
    order = list(dict.fromkeys(values))
    return [
        Line(run.name, learned.points(run, name), curve_colour(order.index(value)))
        for run, value, name in zip(runs, values, measured, strict=True)
    ]


def scale_for(name: str, curves: Sequence[Line]) -> Scale:
    """The scale of a measure: shares from 0 to 1, others around their values."""
    return SHARES if name in learned.SHARES else scale_of(y for curve in curves for _, y in curve.points)


def _charts(runs: Sequence[Recorded], references: Sequence[Line]) -> list[dict[str, Any]]:
    """A chart of every measure of the runs, that of the first run's main measure first."""
    main, found = learned.main_measure(runs[0]), []
    for name in [main, *(name for name in learned.names(runs) if name != main)]:
        curves = _curves(runs, [name] * len(runs))
        published = references if name == learned.ACCURACY else ()
        scale = scale_for(name, [*curves, *published])
        legend = [
            *curve_legend(runs, curves, scale),
            *((line.colour, f"{line.name} (published, dashed)") for line in published),
        ]
        chart = lines([*curves, *published], y_label=f"test {name}", scale=scale)
        found.append({"name": name, "title": name[0].upper() + name[1:], "chart": chart, "legend": legend})
    return found


def curve_legend(runs: Sequence[Recorded], curves: Sequence[Line], scale: Scale = SHARES) -> list[tuple[str, str]]:
    """(colour, meaning) of the curves."""
    if len(runs) <= FEW:
        return legend_of(curves, scale)
    found = dict(zip(_colour_values(runs), (curve.colour for curve in curves), strict=True))
    return [(colour, value) for value, colour in found.items()]


def _colour_values(runs: Sequence[Recorded]) -> list[str]:
    if len(runs) <= FEW:
        return [str(i) for i in range(len(runs))]
    settings = [flat(to_tables(run.experiment)) for run in runs]
    keys = dict.fromkeys((*TELLING, *(key for each in settings for key in each if key not in ("name", "seed"))))
    for key in keys:
        values = [str(each.get(key, "not set")) for each in settings]
        if 1 < len(set(values)) <= FEW:
            return [f"{key.removesuffix('.name').rpartition('.')[2]} {value}" for value in values]
    return ["all runs"] * len(runs)


def _described(run: Recorded) -> dict[str, str]:
    e = run.experiment
    clusters, attack = measures.describe_clusters(e), measures.describe_attack(e)
    return {"method": measures.describe_method(e), "clusters": f"clusters {clusters}", "attack": f"attackers {attack}"}


def _common(runs: Sequence[Recorded]) -> str:
    """What is the same in all of several runs."""
    told = [_described(run) for run in runs]
    same = [told[0][key] for key in told[0] if len({each[key] for each in told}) == 1]
    return "; ".join([*same, *own_parts(runs)[1]]) if len(runs) > 1 else ""


def own_parts(runs: Sequence[Recorded]) -> tuple[list[str], list[str]]:
    """The names of many runs without the parts that all have, and these parts: a sweep makes names of parts."""
    parts = [run.name.split(", ") for run in runs]
    shared = [part for part in parts[0] if all(part in each for each in parts)]
    short = [", ".join(part for part in each if part not in shared) for each in parts]
    if len(runs) <= FEW or not all(short) or len(set(short)) < len({run.name for run in runs}):
        return [run.name for run in runs], []
    return short, shared


def _named_by_settings(runs: Sequence[Recorded]) -> bool:
    """Whether the names of the runs say where they differ, as in a sweep. Its folders are such as rule=krum,seed=0."""
    return all("=" in run.folder.name for run in runs)


def _cluster_terms(runs: Sequence[Recorded]) -> list[tuple[str, str]]:
    """What a line on clusters has in short: sizes, groupings, schedules and kinds of groups."""
    clusters = [run.experiment.clusters for run in runs if run.experiment.defended and run.experiment.method == "share"]
    kinds = sorted({each.schedule for each in clusters} | {each.groups for each in clusters})
    return terms(*(["m", "R"] if clusters else []), *(kind for kind in kinds if kind in TERMS))


def _comparison(runs: Sequence[Recorded], curves: Sequence[Line]) -> Table:
    rows, told, measured = [], [_described(run) for run in runs], learned.names(runs)
    name_of = dict(zip([run.name for run in runs], own_parts(runs)[0], strict=True))
    mean = [LAST] if learned.ACCURACY in measured else []
    differing = [key for key in told[0] if len(runs) == 1 or len({each[key] for each in told}) > 1]
    differing = [] if len(runs) > FEW and _named_by_settings(runs) else differing
    for run, curve, words in zip(runs, curves, told, strict=True):
        facts = summarise(run.experiment, run.rounds)
        name = Cell(name_of[run.name], detail="; ".join(words[key] for key in differing), swatch=curve.colour)
        last = learned.values(facts)
        found = [learned.show(each, last.get(each)) for each in measured]
        rest = [learned.show(learned.ACCURACY, facts["last_10_accuracy"])] * len(mean) + found[1:]
        exposed, anonymity = len(facts["exposed"]), facts["least_anonymity"]
        together = facts["exposed_over_training"]
        seen_ = [Cell(exposed, alert=exposed > 0), "-" if together is None else Cell(together, alert=together > 0)]
        told_ = [f"{facts['alone']:.2g}", "-" if anonymity is None else str(anonymity)]
        spent = [f"{seconds_per_round(run, name):.2f}" for name in ("total", "secure")]
        sent = describe_bytes(facts["bytes_up_per_client"] + facts["bytes_down_per_client"])
        sent = sent if measures.is_encrypted(run.experiment) else "-"
        rows.append([name, found[0], *seen_, *rest, *told_, *spent, sent, str(len(run.rounds))])
    heads = ["run", measured[0], "exposed in a round", "over all rounds", *mean, *measured[1:], "alone", "T"]
    encrypted = any(measures.is_encrypted(run.experiment) for run in runs)
    heads += ["round s", "secure s" if encrypted else "aggregation s", "traffic", "rounds"]
    return Table(heads, rows, numbers=range(1, len(heads)))


def _run_content(run: Recorded, colour: str, squares: bool) -> dict[str, Any]:
    e, facts, main = run.experiment, summarise(run.experiment, run.rounds), learned.main_measure(run)
    points, backdoor = learned.points(run, main), learned.points(run, learned.BACKDOOR)
    up, down = facts["bytes_up_per_client"], facts["bytes_down_per_client"]
    exposure = None if e.method == "no-share" else _exposure(run)
    return {
        "name": run.name,
        "colour": colour,
        "info": run.info,
        "experiment": e,
        "seen": seen(run.name, e, facts, exposure["together"] if exposure else None),
        "measure": main,
        "last": (points[-1][0], learned.show(main, points[-1][1])) if points else None,
        "backdoor": (backdoor[-1][0], learned.show(learned.BACKDOOR, backdoor[-1][1])) if backdoor else None,
        "encrypted": measures.is_encrypted(e),
        "by_class": detail.by_class(run),
        "by_client": detail.by_client(run),
        "exposed": len(facts["exposed"]),
        "exposed_over_training": facts["exposed_over_training"],
        "alone": facts["alone"],
        "anonymity": facts["least_anonymity"] or 0,
        "seconds": {name: seconds_per_round(run, name) for name in ("secure", "total")},
        "traffic": [describe_bytes(count) for count in (up + down, up, down)],
        "outcomes": measures.outcomes(run.rounds),
        "told": _told(facts),
        "skipped": [record["skipped"] for record in run.rounds if record["skipped"]],
        "clusters": None if e.method == "fedavg" else _clusters(run, squares),
        "exposure": exposure,
        "noise": privacy.panel(run),
        "costs": _costs(run),
        "blamed": _blamed(run),
        "left_out": _left_out(run),
        "dropouts": _dropouts(run),
        "toml": to_toml(e),
    }


def _told(facts: Mapping[str, Any]) -> list[str]:
    """What happened in a run that its user may want to change, in sentences without the final full stop."""
    clipped = facts["clipped"] and measures.describe_clipped(facts["clipped"])
    attack = facts["attack_clipped"] and measures.describe_cut(facts["attack_clipped"])
    return [text[0].upper() + text[1:] for text in (facts["closed"], clipped, attack) if text]


def _clusters(run: Recorded, squares: bool) -> dict[str, Any]:
    counts = measures.outcomes(run.rounds)
    kept = [c["kept"] for record in run.rounds for c in record["clusters"] if c["kept"] is not None]
    most = max((len(record["clusters"]) for record in run.rounds), default=0)
    return {
        "partly_kept": any(0 < share < 1 for share in kept),
        "legend": [(colour, meaning) for colour, meaning in OUTCOMES.items() if counts[colour]],
        "chart": _cluster_grid(run) if squares and most <= MOST_SQUARES else _cluster_columns(run),
        "terms": terms("cluster", *(["grouping"] if run.experiment.clusters.groupings > 1 else []), "poisoned")
        + terms("filtered out"),
    }


def _cluster_grid(run: Recorded) -> Markup:
    by_round = [{(c["grouping"], c["cell"], c["cluster"]): c for c in record["clusters"]} for record in run.rounds]
    rows, before = [], None
    keys = sorted({key for clusters in by_round for key in clusters})
    groupings, cells = (len({key[i] for key in keys}) for i in (0, 1))
    for key in keys:
        found = [(record["round"], clusters.get(key)) for record, clusters in zip(run.rounds, by_round, strict=True)]
        squares = [cluster and _square(number, cluster) for number, cluster in found]
        block = ", ".join(
            word
            for word, wanted in ((f"grouping {key[0] + 1}", groupings > 1), (f"cell {key[1] + 1}", cells > 1))
            if wanted
        )
        rows.append(Row(f"cluster {key[2] + 1}", squares, block if key[:2] != before else ""))
        before = key[:2]
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
    audit = "; ".join(found[-1][1]["sentences"]) if found else ""
    most = [(number, exposure["most_leverage"]) for number, exposure in found]
    share = [(number, len(exposure["exposed"]) / run.experiment.clients) for number, exposure in found]
    curves = [
        Line("leverage of the client with the most", most, "most"),
        Line("mean leverage (dashed)", [(number, exposure["leverage"]) for number, exposure in found], "most", True),
        Line("share of clients exposed in a round", share, "exposed"),
    ]
    return {
        "most_leverage": max((value for _, value in most), default=0.0),
        "rounds": min(measures.WINDOW, len(found)),
        "together": measures.leverage_if_unchanged(run) if len(found) > 1 else None,
        "chart": lines(curves, y_label="leverage", height=180),
        "legend": legend_of(curves),
        "terms": terms(
            *("leverage", "T", "exposed", "alone"),
            *(word for word in AUDIT_WORDS if re.search(rf"\b{word}\b", audit)),
        ),
        "audit": audit,
    }


def _costs(run: Recorded) -> dict[str, Any]:
    parts = [Part(phase_name(meaning, [run]), seconds_per_round(run, name), colour) for name, meaning, colour in PHASES]
    return {
        "legend": [(part.colour, f"{part.name}: {part.amount:.2g} s") for part in parts if part.amount > 0],
        "chart": bar(f"parts of a round that takes {seconds_per_round(run, 'total'):.2f} s", parts, unit="s"),
        "parts": terms(*(part.name for part in parts if part.amount > 0)),
        "stages": (stages := _stages(run)),
        "terms": terms("ms", "up, down", *(str(row[0]) for row in stages.rows if str(row[0]) in TERMS)),
    }


def phase_name(meaning: str, runs: Sequence[Recorded]) -> str:
    """The name of a part of a round: in runs without cryptography, nothing is called secure."""
    encrypted = any(measures.is_encrypted(run.experiment) for run in runs)
    return meaning if encrypted else meaning.replace("secure aggregation", "aggregation in the clear")


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
        [client, reasons[client], str(times[client]), "yes" if client in attackers else Cell("no", alert=True)]
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
    settings = [flat(to_tables(run.experiment)) for run in runs]
    keys = dict.fromkeys(key for each in settings for key in each if key not in ("name", "machine.modules"))
    found = [(key, [str(each.get(key, "-")) for each in settings]) for key in keys]
    rows = [(key, values) for key, values in found if len(set(values)) > 1]
    if len(runs) <= FEW or not rows:
        return Table(["key", *(run.name for run in runs)], [[key, *values] for key, values in rows])
    if not _named_by_settings(runs):
        names, values = [run.name for run in runs], [values for _, values in rows]
        return Table(["run", *(key for key, _ in rows)], [list(row) for row in zip(names, *values, strict=True)])
    return Table(["key", "values"], [[key, ", ".join(dict.fromkeys(values))] for key, values in rows])

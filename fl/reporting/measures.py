"""Numbers and short descriptions of a recorded run, as reports and terminals show them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fl.config.schema import Experiment
from fl.reporting import learned
from fl.reporting.progress import CUT, describe_most
from fl.reporting.records import Recorded
from fl.secure.figures import alone_probability, exposed_together

WINDOW = 10  # rounds whose sums are combined as if updates stayed the same
OUTCOMES = {  # the colour of a cluster, and what it means
    "used": "clean, used",
    "wasted": "clean, filtered out",
    "poisoned": "poisoned, used",
    "caught": "poisoned, filtered out",
    "closed": "kept closed by the audit",
    "lost": "lost",
}


def describe_method(e: Experiment) -> str:
    if e.method == "fedavg":
        return "FedAvg, no defence"
    rule = e.aggregation.rule + (" after " + ", ".join(e.aggregation.before) if e.aggregation.before else "")
    return f"{rule} on single updates" if e.method == "no-share" else f"SHARE, {rule}"


def describe_clusters(e: Experiment) -> str:
    if e.method == "fedavg":
        return "one of all"
    if e.method == "no-share":
        return "single clients"
    c = e.clusters
    left = f", {e.left_over} of {e.clients} clients in none" if e.left_over else ""
    return f"m = {c.size}, R = {c.groupings}, {c.schedule}{f' of {c.atom}' if c.atom else ''}, {c.groups}{left}"


def describe_attack(e: Experiment) -> str:
    if not e.byzantine:
        return "none"
    options = ", ".join(f"{name} {value:g}" for name, value in e.attack.options.items() if not isinstance(value, str))
    kinds = " and ".join(kind for kind in (e.attack.name, e.attack.protocol) if kind != "none")
    return f"{e.byzantine} of {e.clients}: {kinds}" + (f" ({options})" if options else "")


def describe_audit(e: Experiment) -> str:
    if e.method == "no-share":
        return "none: every update is seen"
    if not e.secure:
        return "none: simulated in the clear"
    return "enforced" if e.privacy.audit == "enforce" else "reported only"


def is_encrypted(e: Experiment) -> bool:
    """Whether the sums of a run go through cryptography."""
    return e.secure and e.method != "no-share"


def describe_bytes(count: float) -> str:
    for unit, amount in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= amount:
            return f"{count / amount:.3g} {unit}"
    return f"{count:.0f} B"


def describe_summary(e: Experiment, summary: Mapping[str, Any]) -> str:
    """A finished run in a few lines, for a terminal."""
    spent, rounds = summary["seconds"], max(summary["rounds"], 1)
    found: dict[str, float | None] = {**learned.values(summary)}
    if learned.ACCURACY in found:  # the first line is about what the task is for
        first = {name: found.pop(name) for name in (learned.ACCURACY, learned.BACKDOOR) if name in found}
    else:
        first, found = found or {learned.expected(e): None}, {}
    exposed = len(summary["exposed"])
    privacy = f"exposed clients: none; anonymity T = {summary['least_anonymity']}; audit {describe_audit(e)}"
    if e.method == "no-share":
        privacy = f"NO SECURE AGGREGATION: the server saw the updates of all {exposed} clients"
    elif exposed:
        privacy = f"EXPOSED: the server could compute the updates of {exposed} clients exactly"
    together = describe_exposed(summary["exposed_over_training"])
    over_time = (
        f"over the training, if updates stood still: {together} exposed; alone among colluders with probability "
        f"{summary['alone']:.2g}, if a fifth of the clients collude"
    )
    skipped = ", ".join(map(str, summary["skipped_rounds"]))
    blamed = ", ".join(f"client {client} ({why})" for client, why in summary["blamed"].items())
    left_out = ", ".join(f"client {client} ({rounds})" for client, rounds in summary["left_out"].items())
    up, down = (describe_bytes(summary[f"bytes_{way}_per_client"]) for way in ("up", "down"))
    how = "secure aggregation" if is_encrypted(e) else "aggregation"
    lines = [
        f"{e.name}: {describe_method(e)}; clusters: {describe_clusters(e)}; attackers: {describe_attack(e)}",
        f"{learned.show_all(first, 2)} after {summary['rounds']} round{'s' if summary['rounds'] != 1 else ''}"
        + (f" ({summary['stopped']})" if summary["stopped"] else ""),
        learned.show_all(found, 2),
        privacy,
        e.method != "no-share" and over_time,
        skipped and f"skipped rounds: {skipped}",
        blamed and f"caught cheating: {blamed}",
        left_out and f"left out because of earlier rounds (number of rounds): {left_out}",
        summary["closed"],
        summary["clipped"] and describe_clipped(summary["clipped"]),
        summary["attack_clipped"] and describe_cut(summary["attack_clipped"]),
        f"per round: {spent['total'] / rounds:.2f} s, {spent['secure'] / rounds:.2f} s of it {how}; "
        f"per client {up} up, {down} down",
    ]
    return "\n".join(line for line in lines if line)


def describe_clipped(share: float) -> str:
    """The largest fraction of coordinates that was clipped in a round, and what to do."""
    return f"clipped coordinates: {describe_most(share)} in a round; a larger privacy.clip keeps them"


def describe_cut(share: float) -> str:
    """How much of an attack was clipped in a round, and what that means."""
    return f"clipped coordinates of attackers: {describe_most(share)} in a round; {CUT}"


def describe_exposed(count: int | None) -> str:
    return "not computed" if count is None else str(count or "none")


def summarise(e: Experiment, rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A training in a few numbers, from the records of its rounds."""
    opened = (c["members"] for record in rounds for c in record["clusters"] if c["state"] == "opened")
    together = exposed_together(opened)
    accuracies = [record["accuracy"] for record in rounds if record["accuracy"] is not None]
    anonymity = [record["exposure"]["anonymity"] for record in rounds]
    costs = [record["cryptography"] for record in rounds]
    asked = sum(cost["clients"] for cost in costs) or 1
    spent: dict[str, float] = {}
    for record in rounds:
        for name, amount in record["seconds"].items():
            spent[name] = spent.get(name, 0.0) + amount
    return {
        "rounds": len(rounds),
        "accuracy": accuracies[-1] if accuracies else None,
        "loss": next((record["loss"] for record in reversed(rounds) if record.get("loss") is not None), None),
        "metrics": next((record["metrics"] for record in reversed(rounds) if record.get("metrics")), {}),
        "best_accuracy": max(accuracies, default=None),
        "last_10_accuracy": sum(accuracies[-10:]) / len(accuracies[-10:]) if accuracies else None,
        "exposed": sorted({client for record in rounds for client in record["exposure"]["exposed"]}),
        "exposed_over_training": None if together is None else len(together),
        "alone": alone_probability(e, len(rounds)),
        "least_anonymity": min((found for found in anonymity if found is not None), default=None),
        "blamed": {client: why for record in rounds for client, why in record["blamed"].items()},
        "left_out": dict(Counter(client for record in rounds for client in record.get("left_out", {}))),
        "dropouts": sum(len(record["dropouts"]) for record in rounds),
        "clipped": max((record["clipped"] for record in rounds if record.get("clipped")), default=0.0),
        "attack_clipped": max((record.get("attack_clipped") or 0.0 for record in rounds), default=0.0),
        "closed": next((record["closed"] for record in reversed(rounds) if record.get("closed")), ""),
        "skipped_rounds": [record["round"] for record in rounds if record["skipped"]],
        "seconds": spent,
        "bytes_up_per_client": sum(sum(cost["bytes_up"].values()) for cost in costs) / asked,
        "bytes_down_per_client": sum(sum(cost["bytes_down"].values()) for cost in costs) / asked,
    }


def accuracies(run: Recorded) -> list[tuple[float, float]]:
    """(round, accuracy) of every round that was tested."""
    return learned.points(run, learned.ACCURACY)


def outcome(cluster: Mapping[str, Any]) -> str:
    """What became of a cluster, as a key of OUTCOMES. Only a simulation knows which were poisoned."""
    if cluster["state"] in ("closed", "lost"):
        return str(cluster["state"])
    used = cluster["kept"] is None or cluster["kept"] >= 0.5
    if cluster["bad"]:
        return "poisoned" if used else "caught"
    return "used" if used else "wasted"


def outcomes(rounds: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How many clusters of these rounds had each outcome."""
    found = [outcome(cluster) for record in rounds for cluster in record["clusters"]]
    return {name: found.count(name) for name in OUTCOMES}


def seconds_per_round(run: Recorded, name: str) -> float:
    return float(sum(record["seconds"].get(name, 0.0) for record in run.rounds)) / max(len(run.rounds), 1)


def leverage_if_unchanged(run: Recorded) -> float | None:
    """Mean leverage of the last rounds' opened sums together, if no update had changed between them.

    The audit looks at one round. This number says how much slowly changing updates would reveal over several. None if
    nothing was opened, or if the matrix would be too large.
    """
    clusters = [cluster for record in run.rounds[-WINDOW:] for cluster in record["clusters"]]
    sums = [cluster["members"] for cluster in clusters if cluster["state"] == "opened"]
    clients = sorted({client for members in sums for client in members})
    if not sums or len(clients) * len(sums) > 2_000_000:
        return None
    matrix = np.array([np.isin(clients, members) for members in sums], dtype=np.float64)
    return float(np.linalg.matrix_rank(matrix)) / len(clients)

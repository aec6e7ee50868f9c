"""Recorded runs as plain values, for programs: what `--json` prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fl.reporting import learned
from fl.reporting.measures import seconds_per_round, summarise
from fl.reporting.records import Recorded, recorded


def with_folder(path: Path) -> dict[str, Any]:
    """The summary of a run that has ended, as in its summary.json, after its folder."""
    return {"folder": str(path), **recorded(path).summary}


def rows(runs: Sequence[Recorded]) -> list[dict[str, Any]]:
    """The rows of a report's table, in numbers that are not rounded: seconds, bytes and shares from 0 to 1."""
    return [_row(run) for run in runs]


def _row(run: Recorded) -> dict[str, Any]:
    facts = summarise(run.experiment, run.rounds)
    return {
        "run": run.name,
        "folder": str(run.folder),
        "measures": learned.values(facts),
        "last_10_accuracy": facts["last_10_accuracy"],
        "exposed_in_a_round": len(facts["exposed"]),
        "exposed_over_all_rounds": facts["exposed_over_training"],
        "alone": facts["alone"],
        "anonymity": facts["least_anonymity"],
        "seconds_per_round": seconds_per_round(run, "total"),
        "aggregation_seconds_per_round": seconds_per_round(run, "secure"),
        "bytes_per_client_and_round": facts["bytes_up_per_client"] + facts["bytes_down_per_client"],
        "rounds": len(run.rounds),
    }

"""Whether the files of a run agree: every reader of a run asks this before it trusts any of them.

`rounds.jsonl` only grows, `checkpoint.json` names rounds that are in it, and `summary.json` is that of all its rounds,
or of fewer if the run was continued. So a file that is cut, missing or from another run shows.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fl.errors import RecordError


class DisagreementError(RecordError):
    """The files of a run contradict each other. `problem` says how, without what to do."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}: put the recorded file back, or train in another folder")
        self.problem = problem


def agreed_summary(
    place: Path,
    rounds: Sequence[Mapping[str, Any]],
    size: int,
    checkpoint: Mapping[str, Any],
    summary: Mapping[str, Any],
) -> dict[str, Any]:
    """The summary of these rounds; empty if the run goes on. Raises if the files of the run contradict each other.

    `size` is that of rounds.jsonl in bytes. A file that is not there is an empty mapping.
    """
    records = place / "rounds.jsonl"
    for number, record in enumerate(rounds, 1):
        if record.get("round") != number:
            raise DisagreementError(f"line {number} of {records} should be round {number}, not {record.get('round')!r}")
    for name, found in (("checkpoint.json", checkpoint), ("summary.json", summary)):
        if (told := _count(found, "rounds", place / name)) > len(rounds):
            raise DisagreementError(f"{records} has {len(rounds)} of the {told} rounds that {name} counts")
    if size < (told := _count(checkpoint, "records", place / "checkpoint.json")):
        raise DisagreementError(f"{records} has {size} of the {told} bytes that checkpoint.json counts")
    if not summary or summary["rounds"] < len(rounds):
        return {}
    last = next((record["accuracy"] for record in reversed(rounds) if record.get("accuracy") is not None), None)
    if summary.get("accuracy", last) != last:
        raise DisagreementError(
            f"{records} and summary.json have different accuracies: {last} and {summary['accuracy']}"
        )
    return dict(summary)


def _count(found: Mapping[str, Any], key: str, path: Path) -> int:
    value = found.get(key, 0 if not found else None)
    if not isinstance(value, int):
        raise DisagreementError(f"{path} has no number of {key}")
    return value

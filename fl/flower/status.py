"""`share flower status`: what a training over Flower has done so far, from the server's folder, while it runs or after.

It reads `rounds.jsonl`, which the server appends to after each round: of a training (`out`), or of an app (`record`).
Nothing secret is in it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from fl.errors import RecordError
from fl.flower.training import AGREEMENT
from fl.reporting.table import left_aligned
from secagg import SecAggError
from secagg.agreement import read_agreement

ROUNDS: Final = "rounds.jsonl"
LAST: Final = 10  # rounds that are shown


@dataclass(slots=True)
class NodeStatus:
    """One member so far: in how many rounds it answered, and why it last did not."""

    client: int
    name: str
    answered: int = 0
    dropped: int = 0
    last_why: str = ""
    last_dropped: int = 0  # the round
    blamed: str = ""


@dataclass(frozen=True, slots=True)
class RoundStatus:
    """One round in a line."""

    round: int
    kind: str
    opened: int
    groups: int
    dropouts: Mapping[str, str] = field(default_factory=dict)
    skipped: str = ""
    accuracy: float | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """What `share flower status` shows."""

    folder: str
    ended: bool
    seconds_since_last: float | None
    nodes: tuple[NodeStatus, ...]
    rounds: tuple[RoundStatus, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> Iterable[str]:
        """Two tables: the members, and the last rounds."""
        names = ("client", "name", "answered", "dropped out", "last reason")
        rows = [
            (node.client, node.name, node.answered, node.dropped, node.blamed or _last(node)) for node in self.nodes
        ]
        yield from left_aligned([names, *rows])
        yield ""
        shown = [
            (
                one.round,
                one.kind,
                f"{one.opened} of {one.groups}",
                "" if one.accuracy is None else f"{one.accuracy:.1%}",
                one.skipped or "; ".join(f"{name}: {why}" for name, why in one.dropouts.items()),
            )
            for one in self.rounds[-LAST:]
        ]
        yield from left_aligned([("round", "kind", "sums", "accuracy", "dropouts"), *shown])
        yield ""
        if self.ended:
            yield "the training has ended"
        elif self.seconds_since_last is not None:
            yield f"the last round ended {self.seconds_since_last:.0f} s ago"
        else:
            yield "no round has ended yet"


def _last(node: NodeStatus) -> str:
    return f"round {node.last_dropped}: {node.last_why}" if node.last_why else ""


def read_status(folder: Path) -> Status:
    """The status of the training or app whose server writes to this folder. RecordError if there is none."""
    file = folder / ROUNDS
    if not folder.is_dir():
        raise RecordError(f"there is no folder {folder}; give the `out` of a training or the `record` of an app")
    records = _records(file)
    names = _names(folder, records)
    nodes = {client: NodeStatus(client, name) for client, name in sorted(names.items())}
    rounds = [_round(record, nodes) for record in records]
    since = max(0.0, time.time() - file.stat().st_mtime) if rounds else None
    ended = (folder / "summary.json").exists()
    return Status(str(folder), ended, since, tuple(nodes.values()), tuple(rounds))


def _records(file: Path) -> list[dict[str, Any]]:
    """The complete lines: the server may be writing the last one."""
    text = file.read_text("utf-8") if file.exists() else ""
    try:
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    except ValueError:
        raise RecordError(f"{file} is damaged: expected one JSON object per line") from None


def _names(folder: Path, records: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    """The members of the agreement in the folder or beside it; otherwise those that the rounds mention."""
    for place in (folder / AGREEMENT, folder.with_suffix(".toml")):
        if place.exists():
            try:
                members = read_agreement(place.read_text("utf-8")).terms.members
            except SecAggError as error:
                raise RecordError(f"{place}: {error}") from None
            return {member.id: member.name or f"client {member.id}" for member in members}
    return {client: f"client {client}" for record in records for client in _members(record)}


def _members(record: Mapping[str, Any]) -> set[int]:
    """Everybody who was drawn for a round."""
    if "answered" in record:
        return {*record["answered"], *(entry["client"] for entry in record["dropouts"])}
    drawn = {client for cluster in record.get("clusters", ()) for client in cluster["members"]}
    return drawn | {entry["client"] for entry in record["dropouts"]}


def _round(record: Mapping[str, Any], nodes: dict[int, NodeStatus]) -> RoundStatus:
    why = {entry["client"]: str(entry["why"]) for entry in record["dropouts"]}
    for client in _members(record):
        node = nodes.setdefault(client, NodeStatus(client, f"client {client}"))
        if client in why:
            node.dropped, node.last_why, node.last_dropped = node.dropped + 1, why[client], record["round"]
        else:
            node.answered += 1
    for client, reason in record.get("blamed", {}).items():
        nodes.setdefault(int(client), NodeStatus(int(client), f"client {client}")).blamed = f"cheated: {reason}"
    clusters = record.get("clusters", ())
    return RoundStatus(
        round=record["round"],
        kind=record.get("kind", "train"),
        opened=record.get("opened", sum(cluster["state"] == "opened" for cluster in clusters)),
        groups=record.get("groups", len(clusters)),
        dropouts={nodes[client].name: reason for client, reason in why.items()},
        skipped=record.get("skipped", ""),
        accuracy=record.get("accuracy"),
    )

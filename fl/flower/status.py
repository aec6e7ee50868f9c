"""`share flower status`: what a training over Flower has done so far, from the server's folder, while it runs or after.

It reads `rounds.jsonl`, which the server appends to after each round: of a training (`out`), or of an app (`record`);
and `now.json`, which says what the round that is under way waits for (`fl.flower.now`). Nothing secret is in them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from fl.errors import RecordError
from fl.flower.now import JOINING, Now, printable, read_now
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
    now: str = ""  # in the round that is under way


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
    now: Now | None = None  # the round that is under way
    damaged: int = 0  # lines of the record that cannot be read

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> Iterable[str]:
        """Two tables, the members and the last rounds, and what the server waits for now."""
        names = ["client", "name", "answered", "dropped out", *(["now"] if self.now else []), "last reason"]
        rows = [
            [node.client, node.name, node.answered, node.dropped]
            + ([node.now] if self.now else [])
            + [node.blamed or _last(node)]
            for node in self.nodes
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
        if self.damaged:
            yield f"{self.damaged} lines of {ROUNDS} cannot be read and are left out"
        if self.now is not None and not self.ended:
            yield from self._lines_now(self.now)
        if self.ended:
            yield "the training has ended"
        elif self.seconds_since_last is not None:
            yield f"the last round ended {self.seconds_since_last:.0f} s ago"
        else:
            yield "no round has ended yet"

    def _lines_now(self, now: Now) -> Iterable[str]:
        yield now.line({node.client: node.name for node in self.nodes})
        if now.stale:
            yield f"the server has written nothing for {now.written:.0f} s; look whether it still runs"
        else:
            yield f"{len(now.connected)} of {len(self.nodes)} members are connected; at most {now.left:.0f} s are left"
        for node, why in now.strangers.items():
            yield f"node {node} is not part of this training: {why}"


def _last(node: NodeStatus) -> str:
    return f"round {node.last_dropped}: {node.last_why}" if node.last_why else ""


def read_status(folder: Path) -> Status:
    """The status of the training or app whose server writes to this folder. RecordError if there is none."""
    file = folder / ROUNDS
    if not folder.is_dir():
        raise RecordError(f"there is no folder {folder}; give the `out` of a training or the `record` of an app")
    records, damaged = _records(file)
    names = _names(folder, records)
    nodes = {client: NodeStatus(client, name) for client, name in sorted(names.items())}
    rounds = [_round(record, nodes) for record in records]
    since = max(0.0, time.time() - file.stat().st_mtime) if rounds else None
    ended = (folder / "summary.json").exists()
    now = None if ended else _under_way(read_now(folder), records, nodes)
    return Status(str(folder), ended, since, tuple(nodes.values()), tuple(rounds), now, damaged)


def _records(file: Path) -> tuple[list[dict[str, Any]], int]:
    """The complete lines, and how many cannot be read: a power cut may leave some. The last may be under way."""
    found, damaged = [], 0
    for line in file.read_bytes().split(b"\n")[:-1] if file.exists() else ():
        try:
            record = json.loads(line)
            _round(record, {})
            found.append(record)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            damaged += 1
    return found, damaged


def _under_way(now: Now | None, records: Sequence[Mapping[str, Any]], nodes: Mapping[int, NodeStatus]) -> Now | None:
    """What the server waits for, unless the record has this round already; the members get what they do now."""
    last = records[-1] if records else {"round": 0}
    if now is None or now.index <= last.get("agreed_round", last["round"] - 1):
        return None
    doing = {one.client: str(one) for one in now.clients}
    for client, node in nodes.items():
        node.now = doing.get(client, "" if client in now.connected else "not connected")
        if now.stage == JOINING and node.now.startswith("answered"):
            node.now = "connected"
    return now


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
    why = {entry["client"]: printable(entry["why"]) for entry in record["dropouts"]}
    for client in _members(record):
        node = nodes.setdefault(client, NodeStatus(client, f"client {client}"))
        if client in why:
            node.dropped, node.last_why, node.last_dropped = node.dropped + 1, why[client], record["round"]
        else:
            node.answered += 1
    for client, reason in record.get("blamed", {}).items():
        nodes.setdefault(
            int(client), NodeStatus(int(client), f"client {client}")
        ).blamed = f"cheated: {printable(reason)}"
    clusters = record.get("clusters", ())
    return RoundStatus(
        round=record["round"],
        kind=record.get("kind", "train"),
        opened=record.get("opened", sum(cluster["state"] == "opened" for cluster in clusters)),
        groups=record.get("groups", len(clusters)),
        dropouts={nodes[client].name: reason for client, reason in why.items()},
        skipped=printable(record.get("skipped", "")),
        accuracy=record.get("accuracy"),
    )

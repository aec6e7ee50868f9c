"""What the server waits for now, in a small file beside the record of the rounds. Each write replaces the file.

`share flower status` and `share flower local` show it. No decision depends on it. If it cannot be written, the training
goes on; if it cannot be read, the status leaves it out. It has no secrets: only the clients of the training, when the
server asked them, and when they answered.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

NOW: Final = "now.json"
EVERY: Final = 0.5  # seconds between two writes, unless a stage begins
QUIET: Final = 30.0  # seconds without a write after which the server has probably stopped
MOST_BYTES: Final = 2**24
MOST_TEXT: Final = 300
MOST_STRANGERS: Final = 20  # anybody who reaches the SuperLink can add some
MOST_NAMES: Final = 8  # in a line
SLOW: Final = 5.0  # seconds in a stage after which a line is worth showing, and between two such lines
JOINING: Final = "joining"
WORDS: Final = {
    JOINING: "waiting for nodes",
    "round": "training on the nodes",
    "train": "training on the nodes",
    "evaluate": "evaluating on the nodes",
    "deal": "sharing keys",
    "mask": "training on the nodes",
    "sign": "auditing and signing",
    "unmask": "opening the sums",
}


@dataclass(slots=True)
class Watch:
    """Writes what a round waits for. Without a folder it writes nothing."""

    folder: Path | None = None
    shown: int | None = None  # the number of the round as Flower counts, if it is another one
    _stage: dict[str, Any] = field(default_factory=dict)
    _clients: dict[int, dict[str, Any]] = field(default_factory=dict)
    _written: float = -EVERY

    def begin(self, stage: str, index: int, clients: Collection[int], seconds: float) -> None:
        """These clients have so many seconds to answer. A stage that is under way goes on."""
        if (stage, index) == (self._stage.get("stage"), self._stage.get("index")) and stage == JOINING:
            return
        start, round = time.time(), index + 1 if self.shown is None else self.shown
        known = {name: self._stage[name] for name in ("connected", "strangers") if name in self._stage}
        begun = {"stage": stage, "index": index, "round": round, "since": start, "until": start + seconds}
        self._stage = known | begun
        self._clients = {client: {} for client in clients}
        self._write()

    def asked(self, client: int) -> None:
        """A client was asked, perhaps again."""
        self._clients[client] = {"asked": time.time()}
        self.look()

    def answered(self, client: int, problem: str = "") -> None:
        """A client has answered, or is not waited for any more because of a problem."""
        entry = self._clients.get(client)
        if entry is not None and "answered" not in entry:
            entry["answered"] = time.time()
            if problem:
                entry["problem"] = problem[:MOST_TEXT]
            self.look()

    def look(self, connected: Collection[int] | None = None, strangers: Mapping[int, str] | None = None) -> None:
        """The server is there, and has looked around."""
        if connected is not None:
            self._stage["connected"] = sorted(connected)
        if strangers is not None:
            few = list(strangers.items())[:MOST_STRANGERS]
            self._stage["strangers"] = {str(node): why[:MOST_TEXT] for node, why in few}
        if self._stage.get("stage") and time.monotonic() - self._written >= EVERY:
            self._write()

    def _write(self) -> None:
        self._written = time.monotonic()
        if self.folder is None:
            return
        state = {"time": time.time(), **self._stage, "clients": {str(c): entry for c, entry in self._clients.items()}}
        draft = self.folder / f".{NOW}.{os.getpid()}"
        with suppress(OSError):  # a full disk, say: this is a display
            draft.write_text(json.dumps(state), "utf-8")
            os.replace(draft, self.folder / NOW)


@dataclass(frozen=True, slots=True)
class ClientNow:
    """One client in the stage that is under way. Times are seconds ago, None if it has not happened."""

    client: int
    asked: float | None
    answered: float | None
    problem: str = ""

    @property
    def waiting(self) -> bool:
        return self.answered is None

    def __str__(self) -> str:
        if self.problem:
            return self.problem
        if self.answered is not None:
            return f"answered {self.answered:.0f} s ago"
        return "not connected" if self.asked is None else f"asked {self.asked:.0f} s ago"


@dataclass(frozen=True, slots=True)
class Now:
    """What the server waits for. Times are seconds before now, `left` after it."""

    stage: str
    index: int
    round: int
    since: float
    left: float
    written: float
    clients: tuple[ClientNow, ...]
    connected: tuple[int, ...] = ()
    strangers: Mapping[str, str] = field(default_factory=dict)

    @property
    def stale(self) -> bool:
        return self.written > QUIET

    def line(self, names: Mapping[int, str] | None = None) -> str:
        """One line: the round, the stage, and who is missing."""
        known, missing = names or {}, [one.client for one in self.clients if one.waiting]
        told = ", ".join(known.get(client, f"client {client}") for client in missing[:MOST_NAMES])
        more = f" and {len(missing) - MOST_NAMES} more" if len(missing) > MOST_NAMES else ""
        count = f"{len(self.clients) - len(missing)} of {len(self.clients)} after {self.since:.0f} s"
        rest = f"; missing: {told}{more}" if missing else ""
        return f"round {self.round}: {WORDS.get(self.stage, 'under way')}, {count}{rest}"


def read_now(folder: Path) -> Now | None:
    """What the server of this folder last wrote; None if there is nothing that can be read."""
    try:
        with (folder / NOW).open("rb") as file:
            return _parsed(json.loads(file.read(MOST_BYTES)), time.time())
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None  # half a file after a power cut, or none


def _parsed(found: Mapping[str, Any], at: float) -> Now:
    def ago(value: Any) -> float | None:
        return None if value is None else max(0.0, at - float(value))

    clients = tuple(
        ClientNow(int(client), ago(entry.get("asked")), ago(entry.get("answered")), printable(entry.get("problem", "")))
        for client, entry in found["clients"].items()
    )
    strangers = {printable(node): printable(why) for node, why in dict(found.get("strangers", {})).items()}
    return Now(
        stage=printable(found["stage"]),
        index=int(found["index"]),
        round=int(found["round"]),
        since=max(0.0, at - float(found["since"])),
        left=max(0.0, float(found["until"]) - at),
        written=max(0.0, at - float(found["time"])),
        clients=clients,
        connected=tuple(int(client) for client in found.get("connected", ())),
        strangers=strangers,
    )


def printable(value: Any) -> str:
    """A text for a terminal: printable, and not long."""
    return "".join(c if c.isprintable() else " " for c in str(value)[:MOST_TEXT])


class Follower:
    """Lines about a round that takes long, for a person who waits."""

    def __init__(self, folder: Path, names: Mapping[int, str] | None = None) -> None:
        self._folder, self._names, self._said = folder, names, 0.0

    def lines(self) -> Iterator[str]:
        """What is worth saying now: nothing as long as answers come quickly."""
        found = read_now(self._folder)
        if found is None or found.stale or found.since < SLOW or time.monotonic() - self._said < SLOW:
            return
        if all(not one.waiting for one in found.clients):
            return
        self._said = time.monotonic()
        yield found.line(self._names)

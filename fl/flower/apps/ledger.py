"""What the server of an app writes down: the round that is used next, and one line per round.

A round of an agreement is used once, in all runs together. So its number is on disk before anything is sent: a run that
is stopped and started again goes on with the round after it. One process at a time uses a folder: two would ask for the
same rounds, and cut each other's evidence.
"""

import atexit
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

from fl.errors import ConfigError, RecordError
from fl.reporting.records import locked
from secagg import Agreement
from secagg.whole import WholeResult

NEXT: Final = "next-round"
ROUNDS: Final = "rounds.jsonl"
AGREED: Final = "agreement"
_held: dict[Path, IO[bytes]] = {}  # the locks of this process, until it ends


class Ledger:
    """The folder of the server for one agreement."""

    def __init__(self, folder: Path, agreement: Agreement) -> None:
        self.folder, self._rounds = folder, agreement.terms.rounds
        folder.mkdir(parents=True, exist_ok=True)
        if folder.resolve() not in _held:
            _held[folder.resolve()] = locked(folder)  # audit: app-one-server
            atexit.register(_held[folder.resolve()].close)
        known, mine = folder / AGREED, agreement.fingerprint.hex()
        if not known.exists():
            _write(known, mine)
        elif known.read_text().strip() != mine:
            raise RecordError(f"{folder} has the rounds of another agreement; choose another `record`")
        try:
            self.next = int((folder / NEXT).read_text()) if (folder / NEXT).exists() else self._rounds.start
        except ValueError:
            raise RecordError(f"{folder / NEXT}: expected a number; restore it or make a new agreement") from None

    def check(self) -> None:
        """ConfigError if all rounds are used."""
        if self.next not in self._rounds:
            raise ConfigError(
                f"the agreement has {len(self._rounds)} rounds, and all are used; make a successor "
                "(`secagg agree --successor`) or an agreement for more rounds. A Flower round takes one, and one more "
                "if it evaluates on the nodes"
            )

    def claim(self) -> int:
        """Use the next round, whatever happens afterwards."""
        round = self.next
        _write(self.folder / NEXT, str(round + 1))
        self.next = round + 1
        return round

    def write(
        self, kind: str, server_round: int, result: WholeResult, reasons: Mapping[int, str], nodes: Mapping[int, int]
    ) -> None:
        """Append the outcome of a round."""
        names = {member.id: member.name for member in result.agreement.terms.members}
        line: dict[str, Any] = {
            "time": time.time(),
            "round": server_round,
            "kind": kind,
            "agreed_round": result.round,
            "connected": sorted(nodes),
            "answered": list(result.answered),
            "opened": len(result.groups),
            "groups": len(result.groups) + len(result.lost),
            "dropouts": [
                {"client": client, "name": names.get(client, ""), "why": reasons.get(client, why)}
                for client, why in result.dropouts.items()
            ],
            "blamed": {str(client): why for client, why in result.blamed.items()},
            "skipped": result.skipped,
        }
        path = self.folder / ROUNDS
        before = path.read_bytes() if path.exists() else b""
        if before and not before.endswith(b"\n"):  # a kill has cut the last line
            os.truncate(path, before.rfind(b"\n") + 1)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _write(path: Path, text: str) -> None:
    """On disk, whole, when this returns."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())  # audit: app-round-durable
    os.replace(draft, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # audit: app-round-name-durable
    finally:
        os.close(folder)

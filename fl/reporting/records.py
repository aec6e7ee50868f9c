"""The folder of a run: what is recorded, and how a run continues after a crash.

The folder holds

- `config.toml`: the whole configuration, defaults included;
- `run.json`: versions, machine, attackers (only a simulation knows them), the size of the model, and fingerprints of
  data, model and own functions, which a resumed run must have too;
- `rounds.jsonl`: one line of JSON per round;
- `checkpoint.json` and the `checkpoint-*.safetensors` that it names: where the run continues;
- `evidence-N`, after the run has ended or was stopped: what `secagg verify` checks (docs/evidence.md), from round N on.
  A run that is resumed has new clients, and evidence of its own;
- `model.safetensors` and `summary.json`, after the run has ended.

Every file but `rounds.jsonl` is written under another name, synced and renamed, so it is complete or absent.
`rounds.jsonl` only grows. `checkpoint.json` says how many of its bytes are valid, and the rest, which a killed process
left, is cut off when the run resumes. Nothing is ever unpickled. This module needs no torch.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import platform
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fl.config.checks import experiment, from_record
from fl.config.read import from_tables, read_tables, to_toml, with_settings
from fl.config.schema import RUN_ONLY, Experiment, to_tables
from fl.errors import ConfigError, RecordError
from fl.reporting.agreeing import agreed_summary
from fl.reporting.begun import difference

Vector = NDArray[np.float32]
FORMAT = 1
PACKAGE = "share-secagg"
EVIDENCE = re.compile(r"evidence-[1-9][0-9]*(\.intoto\.json)?")  # names of evidence and of statements about it
PATIENCE = 3.0  # seconds to wait for the lock of a folder
NOT_LONGER = "; here not rounds, because every round draws new clusters from the number of rounds that was agreed"
NOISE_FOR_ROUNDS = "; here not rounds, because the noise was computed for their number (privacy.epsilon)"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state after a number of rounds: everything that the next round depends on."""

    rounds: int
    x: Vector
    memory: dict[str, Vector]
    history: list[dict[str, Any]] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A run as it was recorded. `summary` is empty if the run has not ended, was killed, or went on after it."""

    folder: Path
    experiment: Experiment
    info: dict[str, Any]
    rounds: list[dict[str, Any]]
    summary: dict[str, Any]
    label: str = ""  # its name among others, if another one has the same

    @property
    def name(self) -> str:
        return self.label or self.experiment.name


@dataclass(frozen=True)
class Folder(AbstractContextManager["Folder"]):
    """The folder of a run, open for writing by one process at a time."""

    path: Path
    experiment: Experiment
    _lock: IO[bytes]

    @classmethod
    def create(cls, path: Path | str, e: Experiment, *, stale: Iterable[str] = ()) -> Folder:
        """Make a new folder. One with a recorded round is refused, because nothing is ever overwritten.

        What a start leaves that failed before its first round does not block the next one, and its evidence is removed,
        and so are the `stale` files.
        """
        place = Path(path)
        if holds_run(place):
            what_to_do = f"continue it with --resume {place} (resume=True), or choose another --out"
            raise RecordError(f"{place} holds a run already: {what_to_do}")
        for name in () if (place / "lock").exists() else ("config.toml", "run.json"):
            if (place / name).exists():
                raise RecordError(f"{place / name} is not from a training: move it away, or choose another --out")
        with _writing(place):
            place.mkdir(parents=True, exist_ok=True)
            folder = cls(place, e, locked(place))
        try:
            with _writing(place):
                for old in filter(Path.is_file, [*_left_over(place), *(place / name for name in stale)]):
                    old.unlink()
            write(place / "config.toml", to_toml(e).encode())
        except BaseException:
            folder.close()
            raise
        return folder

    @classmethod
    def resume(cls, path: Path | str, settings: Sequence[str] = (), e: Experiment | None = None) -> Folder:
        """Open an existing folder. `settings`, or the experiment, may only change how long and where it runs.

        They are recorded by `keep_settings`, when nothing can refuse the run any more.
        """
        place = Path(path)
        before = _experiment(place)
        after = experiment(with_settings(_config(place), settings)) if e is None else e
        if after.fingerprint != before.fingerprint:
            changed = ", ".join(changed_keys(before, after)) or "rounds"
            fixed = NOISE_FOR_ROUNDS if before.alike else NOT_LONGER
            allowed = "only rounds, secure, stop.*, machine.* and export.* may change" + (
                "" if before.open_ended else fixed
            )
            raise ConfigError(f"--resume continues the same training, but {changed} changed: {allowed}")
        if after.rounds < before.rounds and after.rounds < (done := checkpointed_rounds(place)):
            raise ConfigError(
                f"rounds: {done} rounds of the run in {place} are done, and a resumed run cannot have fewer; got "
                f"{after.rounds}. Leave rounds out to keep {before.rounds}"
            )
        return cls(place, after, locked(place))

    def keep_settings(self) -> None:
        """Write the settings of a resumed run, if they changed: after `check_same` and `load` have refused nothing."""
        if from_tables(_config(self.path)) != self.experiment:
            write(self.path / "config.toml", to_toml(self.experiment).encode())

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the folder for other processes."""
        self._lock.close()

    def describe(self, info: Mapping[str, Any]) -> None:
        """Write run.json: what is known before the first round. The end of an earlier training here is forgotten."""
        with _writing(self.path):
            (self.path / "summary.json").unlink(missing_ok=True)
        write_json(self.path / "run.json", {"format": FORMAT, **info})

    def check_same(self, fingerprints: Mapping[str, str], code: Mapping[str, str] | None = None) -> None:
        """Raise RecordError if run.json has another fingerprint of the data, the initial model or a function.

        `code` has the fingerprints of functions by what they are for.
        """
        place = self.path / "run.json"
        if not place.exists():
            if self._has_rounds():
                raise RecordError(
                    f"{place} is missing, so nobody can tell whether data, model and functions are those that the run "
                    "began with: put the recorded file back, or train in another folder"
                )
            return
        if problem := difference(_read_json(place), fingerprints, code or {}):
            raise RecordError(f"{self.path}: {problem}")

    def _has_rounds(self) -> bool:
        return (self.path / "checkpoint.json").exists() or bool(_lines(self.path / "rounds.jsonl"))

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a line to rounds.jsonl. It is on the disk when this returns."""
        path = self.path / "rounds.jsonl"
        with _writing(path), path.open("ab") as file:
            file.write(json.dumps(_plain(record), separators=(",", ":"), allow_nan=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def checkpoint(self, rounds: int, x: Vector, memory: Mapping[str, Vector]) -> None:
        """Write the vectors, then the small file that names them. A crash in between costs one round."""
        from safetensors.numpy import save

        content, name = save({"x": x, **memory}), f"checkpoint-{rounds:06d}.safetensors"
        write(self.path / name, content)
        records = self.path / "rounds.jsonl"
        pointer = {
            "format": FORMAT,
            "rounds": rounds,
            "file": name,
            "sha256": hashlib.sha256(content).hexdigest(),
            "records": records.stat().st_size if records.exists() else 0,
            "experiment": self.experiment.fingerprint.hex(),
        }
        write_json(self.path / "checkpoint.json", pointer)
        for old in self.path.glob("checkpoint-*.safetensors"):
            if old.name != name:
                old.unlink(missing_ok=True)

    def load(self) -> Checkpoint | None:
        """The last checkpoint with the records up to it, or None. Later records are cut off."""
        place, records = self.path / "checkpoint.json", self.path / "rounds.jsonl"
        if not place.exists():
            if len(_lines(records)) > self.experiment.machine.checkpoint_every:
                raise RecordError(
                    f"{place} is missing, but {records} has rounds: put it back, or delete {records.name} to train "
                    "from the first round"
                )
            self._cut(0)
            return None
        found = _read_json(place)
        try:
            name, rounds, size = str(found["file"]), int(found["rounds"]), int(found["records"])
            expected, fingerprint = str(found["sha256"]), str(found["experiment"])
            if found["format"] != FORMAT or Path(name).name != name:
                raise ValueError
        except (KeyError, TypeError, ValueError):
            raise RecordError(f"{place} is not a checkpoint of this version") from None
        if fingerprint != self.experiment.fingerprint.hex():
            why = _other_version(self.path) or (
                ": it was changed, or another version with other keys began the run; put the recorded file back, or "
                "train in another folder"
            )
            raise RecordError(f"{place} belongs to another configuration than the config.toml beside it{why}")
        arrays = read_tensors(self.path / name, expected)
        self._cut(size)
        history = _lines(records)
        if [record.get("round") for record in history] != list(range(1, rounds + 1)):
            raise RecordError(
                f"{records} does not have the {rounds} rounds of checkpoint.json: put the recorded file back, or train "
                "in another folder"
            )
        return Checkpoint(rounds, arrays.pop("x"), arrays, history)

    def _cut(self, size: int) -> None:
        records = self.path / "rounds.jsonl"
        found = records.stat().st_size if records.exists() else 0
        if found < size:
            raise RecordError(
                f"{records} is shorter than checkpoint.json says ({found} of {size} bytes): put the recorded file "
                "back, or train in another folder"
            )
        if found == size:
            return
        with _writing(records), records.open("r+b") as file:
            file.truncate(size)
            os.fsync(file.fileno())

    def keep_evidence(self, first: int, evidence: bytes) -> None:
        """Write the evidence of the rounds from round `first` on, counted from 0 as in the agreement."""
        write(self.path / f"evidence-{first + 1}", evidence)

    def finish(self, parameters: Mapping[str, NDArray[Any]], summary: Mapping[str, Any]) -> None:
        """Write the trained model, by the names of its parameters, and the summary."""
        from safetensors.numpy import save

        write(self.path / "model.safetensors", save(dict(parameters)))
        write_json(self.path / "summary.json", summary)


def recorded(path: Path | str) -> Recorded:
    """Read a run, finished or not. An incomplete last line is left out. Files that contradict each other are refused.

    The rounds are read last: a run that is under way adds to them before it writes the files that count them.
    """
    place = Path(path)
    e, files = _experiment(place), [place / f"{name}.json" for name in ("run", "checkpoint", "summary")]
    info, checkpoint, summary = (_read_json(file) if file.exists() else {} for file in files)
    records = place / "rounds.jsonl"
    rounds, size = _lines(records), records.stat().st_size if records.exists() else 0
    return Recorded(place, e, info, rounds, agreed_summary(place, rounds, size, checkpoint, summary))


def holds_run(path: Path | str) -> bool:
    """Whether a folder has a recorded round: a start that failed before it left nothing that is worth keeping."""
    return any((Path(path) / name).exists() for name in ("rounds.jsonl", "checkpoint.json", "summary.json"))


def _left_over(place: Path) -> list[Path]:
    """The files of a start that failed before its first round, but for its configuration."""
    if not (place / "config.toml").exists():
        return []  # what is here is not from a run
    return [place / "run.json", *(file for file in place.glob("evidence-*") if EVIDENCE.fullmatch(file.name))]


def planned_rounds(path: Path | str) -> int:
    """The number of rounds that the run in a folder is to have."""
    return _experiment(Path(path)).rounds


def checkpointed_rounds(place: Path) -> int:
    """The rounds of the last checkpoint, where a run continues."""
    found = _read_json(place / "checkpoint.json").get("rounds") if (place / "checkpoint.json").exists() else 0
    return found if isinstance(found, int) else 0  # `Folder.load` refuses anything else


def changed_keys(before: Experiment, after: Experiment) -> list[str]:
    """The dotted names of the keys that differ, without those that do not change a round's result."""
    return list(_changed(to_tables(before), to_tables(after)))


def _changed(before: Mapping[str, Any], after: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for name in dict.fromkeys((*before, *after)):
        old, new, full = before.get(name), after.get(name), f"{path}{name}"
        if full in RUN_ONLY or old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _changed(old, new, f"{full}.")
        else:
            yield full


def _config(place: Path) -> dict[str, Any]:
    if not (place / "config.toml").is_file():
        if holds_run(place):
            raise RecordError(f"{place} has records of a run, but no config.toml: put the recorded file back")
        raise RecordError(f"there is no run in {place}")
    return read_tables(place / "config.toml")


def _experiment(place: Path) -> Experiment:
    """The configuration that a folder has. If another version wrote it, an error says so."""
    tables = _config(place)
    try:
        return from_record(tables)
    except ConfigError as error:
        if why := _other_version(place):
            raise RecordError(f"{place / 'config.toml'}: {error}{why}") from None
        raise


def _other_version(place: Path) -> str:
    """What to do if another version of the package began the run in this folder; empty if this one did.

    A version may add keys to a configuration or change what a round does, so it continues only its own runs.
    """
    info = _read_json(place / "run.json") if (place / "run.json").exists() else {}
    began, here = info.get("versions", {}).get(PACKAGE), versions()[PACKAGE]
    if began is None or began == here:
        return ""
    return (
        f"; the run was begun with {PACKAGE} {began}, and this is {here}: continue it with that version (pip install "
        f"{PACKAGE}=={began}), or train in another folder"
    )


def read_tensors(path: Path, sha256: str | None = None) -> dict[str, NDArray[Any]]:
    """The arrays of a safetensors file. Any other file, such as a pickle, is refused and never run."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        content = path.read_bytes()
    except OSError as error:
        way = "" if sha256 is None else ": put the recorded file back, or train in another folder"
        raise RecordError(f"{path}: {error.strerror}{way}") from None
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise RecordError(
            f"{path} is damaged: checkpoint.json has another SHA-256; put the recorded file back, or train in another "
            "folder"
        )
    try:
        arrays: dict[str, NDArray[Any]] = load(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise RecordError(f"{path} is not a safetensors file: {error}") from None
    return arrays


def versions() -> dict[str, str]:
    """The versions of Python, the platform and the packages."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in (PACKAGE, "numpy", "numba", "torch", "cryptography", "pynacl", "safetensors"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed as a package"
    return found


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def write(path: Path, content: bytes) -> None:
    """Write a file so that it is complete or absent: write, sync, rename, sync the folder."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with _writing(path):
        try:
            with draft.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        if sys.platform != "win32":
            handle = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Make an error of the system a RecordError that says what to do."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "; free some space, then continue the run with --resume (resume=True)" if full else ""
        raise RecordError(f"cannot write {path}: {error.strerror or error}{hint}") from error


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    write(path, json.dumps(_plain(content), indent=1, allow_nan=False).encode() + b"\n")


def _plain(value: Any) -> Any:
    """The value in types that JSON has. NaN and infinity become null."""
    if isinstance(value, Mapping):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, np.ndarray | Sequence | set | frozenset) and not isinstance(value, str | bytes):
        return [_plain(entry) for entry in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise RecordError(f"{path}: expected a JSON object")
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    try:
        found = [json.loads(line) for line in whole.splitlines()]
    except ValueError as error:
        raise RecordError(f"{path} has a line that is not JSON: {error}") from None
    if not all(isinstance(record, dict) for record in found):
        raise RecordError(f"{path} has a line that is not a JSON object")
    return found


def locked(place: Path) -> IO[bytes]:
    """Lock a folder until the file is closed. The system releases the lock when the process ends.

    Forked simulation workers inherit the lock and end a moment after a killed parent. A user may resume in that moment,
    so this tries again for a while.
    """
    with _writing(place / "lock"):
        file = (place / "lock").open("ab")
    try:
        import fcntl
    except ImportError:  # Windows has no such locks
        return file
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except OSError:
            if time.monotonic() > deadline:
                file.close()
                raise RecordError(f"another process is training in {place}") from None
        time.sleep(0.05)

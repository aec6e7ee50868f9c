"""What all parties agree on before a training begins: one file, `training.toml`, the same for everybody.

It names the members with their public keys and numbers of examples, the seed that every schedule is drawn
from, and the experiment. Its hash is the training id, which every signature binds. So a server that changes
anything in it (swaps or invents a client, lowers a threshold, redraws the clusters) is talking about another
training, and no node answers. `Enrolment.cohort` and `Enrolment.plan_of` derive all else, without torch.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from fl.config.checks import experiment
from fl.config.read import write_tables
from fl.config.schema import Experiment, to_tables
from fl.errors import ConfigError
from fl.secure.layout import Cell
from fl.secure.population import Cohort
from secagg.crypto.keys import KEY_BYTES
from secagg.protocol.plan import Member, Plan

TRAINING: Final = "training.toml"
SEED_BYTES: Final = 32
IDLE: Final = 1  # the vector length of a plan that is only asked who is summed with whom


@dataclass(frozen=True, slots=True)
class Party:
    """One member: the name people know it by, its public key, and how many examples it trains on."""

    name: str
    identity: bytes
    examples: int


@dataclass(frozen=True)
class Enrolment:
    """The agreement. Client i is `members[i]`."""

    experiment: Experiment
    seed: bytes
    members: tuple[Party, ...]

    def __post_init__(self) -> None:
        e = self.experiment
        if len(self.seed) != SEED_BYTES:
            raise ConfigError(f"seed: {SEED_BYTES} bytes in hexadecimal, got {len(self.seed)}")
        if len(self.members) != e.clients:
            raise ConfigError(f"members: {len(self.members)}, but experiment.clients is {e.clients}")
        for field in ("name", "identity"):
            values = [getattr(member, field) for member in self.members]
            if len(set(values)) != len(values):
                raise ConfigError(f"members: two of them have the same {field}")
        if e.method == "no-share" or not e.secure:
            raise ConfigError("experiment: over a network every sum is secure; method no-share has none")

    @cached_property
    def training_id(self) -> bytes:
        """A hash of all that can change a result, of the seed, of who takes part, and for how long."""
        told = {
            "experiment": self.experiment.fingerprint.hex(),
            "rounds": self.experiment.rounds,
            "seed": self.seed.hex(),
            "members": [[m.name, m.identity.hex(), m.examples] for m in self.members],
        }
        text = json.dumps(told, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(b"fl/flower/training/v1:" + text.encode()).digest()

    @cached_property
    def cohort(self) -> Cohort:
        """Samples, cells and clusters of every round, as everybody derives them."""
        roster = tuple(Member(i, member.identity) for i, member in enumerate(self.members))
        sizes = [member.examples for member in self.members]
        return Cohort(self.experiment, sizes, roster, self.training_id, self.seed)

    def client_of(self, identity: bytes) -> int | None:
        """The client that has this public key."""
        return next((i for i, m in enumerate(self.members) if m.identity == identity), None)

    def cell_of(self, client: int, round: int, length: int = IDLE, context: bytes = b"") -> Cell | None:
        """The cell of a client in a round, with its plan; None if it was not drawn.

        There are no rounds but the enrolled ones: a server that could name any number as a round would look
        for one whose clusters suit it.
        """
        if not 0 <= round < self.experiment.rounds:
            return None
        for cell in self.cohort.cells(round, length, context):
            if client in cell.clients:
                return cell
        return None

    def plan_of(self, client: int, round: int, length: int = IDLE, context: bytes = b"") -> Plan | None:
        """The one plan that a client accepts in a round."""
        cell = self.cell_of(client, round, length, context)
        return cell.plan if cell else None


def agree(e: Experiment, seed: bytes, members: Sequence[Party]) -> Enrolment:
    """An enrolment of these members; experiment.clients becomes their number."""
    tables = {**to_tables(e), "clients": len(members)}
    return Enrolment(experiment(tables), seed, tuple(members))


def read_enrolment(path: Path | str) -> Enrolment:
    """An enrolment from its file; ConfigError says what is wrong with it."""
    try:
        tables = tomllib.loads(Path(path).read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no {path}; `share flower enrol` writes one") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    try:
        unknown = set(tables) - {"seed", "members", "experiment"}
        if unknown:
            raise ConfigError(f"there is no such key: {min(unknown)}")
        members = tuple(_party(entry, i) for i, entry in enumerate(tables["members"]))
        seed = read_hex(tables["seed"], "seed", SEED_BYTES)
        return Enrolment(experiment(tables["experiment"]), seed, members)
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path}: an enrolment has seed, [[members]] and [experiment] ({error!r})"
        ) from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def write_enrolment(enrolment: Enrolment) -> str:
    """The file, as `read_enrolment` reads it back."""
    tables: dict[str, Any] = {
        "seed": enrolment.seed.hex(),
        "members": [
            {"name": m.name, "identity": m.identity.hex(), "examples": m.examples} for m in enrolment.members
        ],
        "experiment": to_tables(enrolment.experiment),
    }
    return write_tables(tables)


def read_members(path: Path | str) -> list[Party]:
    """Members from a text file: one line each, with name, public key and number of examples."""
    found: list[Party] = []
    for number, line in enumerate(Path(path).read_text("utf-8").splitlines(), start=1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if len(words) != 3 or not words[2].isdigit():
            raise ConfigError(f"{path}, line {number}: write NAME PUBLIC-KEY EXAMPLES")
        entry = {"name": words[0], "identity": words[1], "examples": int(words[2])}
        found.append(_party(entry, len(found)))
    return found


def _party(entry: Mapping[str, Any], place: int) -> Party:
    where = f"members[{place}]"
    name, examples = entry["name"], entry["examples"]
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{where}.name: text in quotes")
    if type(examples) is not int or examples < 1:
        raise ConfigError(f"{where}.examples: a whole number of at least 1")
    return Party(name, read_hex(entry["identity"], f"{where}.identity", KEY_BYTES), examples)


def read_hex(text: object, where: str, length: int) -> bytes:
    """So many bytes, written in hexadecimal."""
    try:
        found = bytes.fromhex(str(text))
    except ValueError:
        found = b""
    if len(found) != length:
        raise ConfigError(f"{where}: {length} bytes in hexadecimal")
    return found

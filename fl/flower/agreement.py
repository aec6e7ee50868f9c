"""What all participants agree on before a training begins: one file, `training.toml`, the same for all.

It lists the members with their public keys and numbers of examples, the seed of every random grouping, and the
experiment. Its hash is the training id, which every signature binds. A server that changes anything in it (replaces a
member, lowers a threshold, redraws the clusters) therefore names another training, and no node answers.
`Agreement.cohort` and `Agreement.plan_of` derive the rest, without torch.
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
from fl.secure.layout import policy
from fl.secure.population import Cell, Cohort, capped_weights
from secagg import Member, Plan, UsageError
from secagg.agreement import SURVIVORS
from secagg.crypto import KEY_BYTES
from secagg.exposure import Drawn

TRAINING: Final = "training.toml"
SEED_BYTES: Final = 32
ANY_LENGTH: Final = 1  # the vector length of a plan that is only asked for its groups


@dataclass(frozen=True, slots=True)
class AgreedMember:
    """One member: its name, its public key, and the number of examples that it trains on."""

    name: str
    identity: bytes
    examples: int


@dataclass(frozen=True)
class Agreement:
    """The content of training.toml. Client i is `members[i]`."""

    experiment: Experiment
    seed: bytes
    members: tuple[AgreedMember, ...]

    def __post_init__(self) -> None:
        e = self.experiment
        if len(self.seed) != SEED_BYTES:
            raise ConfigError(f"seed: expected {SEED_BYTES} bytes in hexadecimal, got {len(self.seed)}")
        if len(self.members) != e.clients:
            raise ConfigError(f"members: got {len(self.members)}, but experiment.clients is {e.clients}")
        for field in ("name", "identity"):
            values = [getattr(member, field) for member in self.members]
            if len(set(values)) != len(values):
                raise ConfigError(f"members: two of them have the same {field}")
        if e.method == "no-share" or not e.secure:
            use = "use secure = true and another method than no-share"
            raise ConfigError(f"experiment: over a network every sum is secure; {use}")
        if e.groups != SURVIVORS:
            raise ConfigError(
                'clusters.groups: over Flower dropouts are recovered; set clusters.groups = "survivors" and '
                'privacy.memory = "round"'
            )

    @cached_property
    def training_id(self) -> bytes:
        """A hash of everything that can change a result: experiment, seed, members, number of rounds."""
        content = {
            "experiment": self.experiment.fingerprint.hex(),
            "rounds": self.experiment.rounds,
            "seed": self.seed.hex(),
            "members": [[m.name, m.identity.hex(), m.examples] for m in self.members],
        }
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(b"fl/flower/training/v1:" + text.encode()).digest()

    @cached_property
    def cohort(self) -> NodeCohort:
        """Samples, cells and clusters of every round, as every participant derives them."""
        return NodeCohort(self)

    def client_of(self, identity: bytes) -> int | None:
        """The client that has this public key."""
        return next((i for i, m in enumerate(self.members) if m.identity == identity), None)

    def plan_of(self, client: int, round: int, length: int = ANY_LENGTH, context: bytes = b"") -> Plan | None:
        """The one plan that a client accepts in a round; None if it was not drawn for it.

        Only the agreed rounds exist. If a server could name any number, it would search for one whose clusters suit it.
        """
        if 0 <= round < self.experiment.rounds:
            for cell in self.cohort.cells_of(round, length, context):
                if client in cell.clients:
                    return cell.plan
        return None


class NodeCohort(Cohort):
    """Who is summed with whom, from the seed that the members gave."""

    def __init__(self, agreement: Agreement) -> None:
        e = agreement.experiment
        sizes = [member.examples for member in agreement.members]
        super().__init__(e, capped_weights(sizes, e.privacy.weight_ratio), None)
        self._training_id, self._seed = agreement.training_id, agreement.seed
        self._roster = tuple(Member(i, member.identity) for i, member in enumerate(agreement.members))

    def drawn(self, round: int) -> list[int]:
        """The clients drawn for a round."""
        return sorted(client for cell in self._cells(round) for client in cell.clients)

    def _cells(self, round: int) -> tuple[Drawn, ...]:
        assert self.layout.schedule is not None
        e, draw = self.experiment, self.layout.schedule.draw_cells
        sample = None if e.per_round == e.clients else e.per_round
        return draw(range(e.clients), self._seed, round, self.layout.cells, sample)

    def cells_of(self, round: int, length: int, context: bytes) -> list[Cell]:
        """The clients of a round, divided into cells, each with its plan."""
        cells = []
        for index, drawn in enumerate(self._cells(round)):
            plan = self._plan(drawn, round, length, context)
            groupings = enumerate(plan.groupings)
            clusters = {(r, g): group for r, grouping in groupings for g, group in enumerate(grouping)}
            cells.append(Cell(index, round, plan.ids, clusters, context, plan))
        return cells

    def _plan(self, drawn: Drawn, round: int, length: int, context: bytes) -> Plan:
        assert self.layout.schedule is not None
        privacy, clients = self.experiment.privacy, drawn.clients
        weights = tuple(self.weights[c] for c in clients)
        try:
            return Plan(
                training_id=self._training_id,
                round=round,
                roster=tuple(self._roster[c] for c in clients),
                length=length,
                schedule=self.layout.schedule,
                training_seed=self._seed,
                clip=privacy.clip,
                threshold=privacy.threshold,
                colluders=privacy.colluders,
                weights=weights if len(set(weights)) > 1 else (),
                policy=policy(self.experiment),
                drawn=drawn,
                members=len(self.weights),
                total_weight=sum(self.weights),
                context=context,
            )
        except UsageError as error:
            raise ConfigError(f"privacy: {error}") from None


def agree(e: Experiment, seed: bytes, members: Sequence[AgreedMember]) -> Agreement:
    """The agreement of these members; experiment.clients becomes their number."""
    tables = {**to_tables(e), "clients": len(members)}
    return Agreement(experiment(tables), seed, tuple(members))


def read_agreement(path: Path | str) -> Agreement:
    """An agreement from its file; ConfigError says what is wrong with it."""
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
        members = tuple(_member(entry, i) for i, entry in enumerate(tables["members"]))
        seed = read_hex(tables["seed"], "seed", SEED_BYTES)
        return Agreement(experiment(tables["experiment"]), seed, members)
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: expected seed, [[members]] and [experiment] ({error!r})") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def write_agreement(agreement: Agreement) -> str:
    """The text of the file."""
    members = [{"name": m.name, "identity": m.identity.hex(), "examples": m.examples} for m in agreement.members]
    experiment = to_tables(agreement.experiment)
    return write_tables({"seed": agreement.seed.hex(), "members": members, "experiment": experiment})


def read_members(path: Path | str) -> list[AgreedMember]:
    """Members from a text file: one line each, with name, public key and number of examples."""
    found: list[AgreedMember] = []
    for number, line in enumerate(Path(path).read_text("utf-8").splitlines(), start=1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if len(words) != 3 or not words[2].isdigit():
            raise ConfigError(f"{path}, line {number}: write NAME PUBLIC-KEY EXAMPLES")
        found.append(_member({"name": words[0], "identity": words[1], "examples": int(words[2])}, len(found)))
    return found


def _member(entry: Mapping[str, Any], index: int) -> AgreedMember:
    where = f"members[{index}]"
    name, examples = entry["name"], entry["examples"]
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{where}.name: expected text in quotes, got {name!r}")
    if type(examples) is not int or examples < 1:
        raise ConfigError(f"{where}.examples: expected a whole number of at least 1, got {examples!r}")
    return AgreedMember(name, read_hex(entry["identity"], f"{where}.identity", KEY_BYTES), examples)


def read_hex(text: object, where: str, length: int, error: type[ConfigError] = ConfigError) -> bytes:
    """`length` bytes, written in hexadecimal."""
    try:
        found = bytes.fromhex(str(text))
    except ValueError:
        found = b""
    if len(found) != length:
        raise error(f"{where}: expected {length} bytes in hexadecimal")
    return found

"""A training over Flower: the agreement that all members signed, and what they learn. Two files, the same for all.

    agreement.toml   who is summed with whom, in which rounds, and what may be opened (docs/agreement.md)
    training.toml    the experiment, and the number of examples of each member

The agreement is made and signed with `secagg agree`. Its name has the fingerprint of the experiment, so whoever signs
it signs what is learned too. Its groups, rounds, policy and weights are those of the experiment; others are refused.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from fl.config.checks import experiment, from_record
from fl.config.read import write_tables
from fl.config.schema import Experiment, to_tables
from fl.errors import ConfigError
from fl.secure.cohort import Cohort
from fl.secure.layout import SIMULATED, terms_of
from fl.secure.population import capped_weights
from secagg import Member, PeerError, Plan, UsageError, WireError
from secagg.agreement import Agreement, Proposal, Signature, Terms, read_agreement, write_agreement
from secagg.crypto import KEY_BYTES

AGREEMENT: Final = "agreement.toml"
TRAINING: Final = "training.toml"
FROM_EXPERIMENT: Final = {  # field of the agreement's terms -> the keys of the experiment that it follows from
    "schedule": "clusters",
    "groups": "clusters.groups",
    "first_round": "rounds",
    "last_round": "rounds",
    "sample": "participation",
    "segments": "privacy.clip",
    "policy": "privacy",
    "least_groups": "clusters",
    "colluders": "privacy.colluders",
    "threshold": "privacy.threshold",
    "cell": "clusters.cell",
    "degree": "clusters",
    "roll_call": "clusters",
}


@dataclass(frozen=True, slots=True)
class Enrolled:
    """One member before there is an agreement: its name, its public key, and the number of its examples."""

    name: str
    identity: bytes
    examples: int


@dataclass(frozen=True)
class Training:
    """An agreement and what its members learn. Client i is the member with id i; `examples` are in their order."""

    agreement: Agreement
    experiment: Experiment
    examples: tuple[int, ...]
    signatures: Mapping[int, bytes] = field(repr=False)
    _plans: dict[tuple[int, int], Plan] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        e, terms = self.experiment, self.agreement.terms
        check_experiment(e)
        numbered = terms.predecessors or terms.ids == tuple(range(e.clients))  # in a successor, ids of leavers are free
        if not len(self.examples) == len(terms.ids) == e.clients or not numbered:
            raise ConfigError(
                f"expected members 0 to {e.clients - 1} as experiment.clients says, got {len(terms.ids)} members in "
                f"the agreement and {len(self.examples)} numbers of examples"
            )
        if terms.name not in (training_name(e), SIMULATED):
            raise ConfigError(
                f"the agreement is named {terms.name!r}, but this experiment needs {training_name(e)!r}: the members "
                "agreed on another experiment"
            )
        if not self._weights_follow():
            raise ConfigError("the agreement's weights do not follow from the numbers of examples")
        expected = terms_of(e, terms.members, self.parameters)
        for name, keys in FROM_EXPERIMENT.items():
            if getattr(expected, name) != getattr(terms, name):
                raise ConfigError(f"the agreement has another {name} than the experiment's {keys} gives")
        try:
            self.agreement.check_signatures(self.signatures)
        except (PeerError, UsageError) as error:
            raise ConfigError(f"{error}; `secagg agree {AGREEMENT} --check` lists what is missing") from None

    @property
    def fingerprint(self) -> bytes:
        """What every signature and every journal of this training binds."""
        return self.agreement.fingerprint

    @property
    def simulated(self) -> bool:
        """Whether anybody can compute the members' keys: those of a simulation follow from its public seed."""
        return self.agreement.terms.name == SIMULATED

    @property
    def parameters(self) -> int:
        """The length of an update."""
        return self.agreement.terms.segments[0].length

    @property
    def weights(self) -> Mapping[int, int]:
        """The weight of each client."""
        return self.agreement.terms.weights

    def examples_of(self, client: int) -> int:
        """The number of examples that a client has said it has."""
        return self.examples[self.agreement.terms.ids.index(client)]

    def _weights_follow(self) -> bool:
        weights, ratio = tuple(self.weights.values()), self.experiment.privacy.weight_ratio
        if self.agreement.terms.predecessors:  # weights stay, and so do the earlier caps
            return follow_earlier_caps(self.examples, weights, ratio)
        return weights == capped_weights(self.examples, ratio)

    @cached_property
    def cohort(self) -> Cohort:
        """Samples, cells and clusters of every round, as every participant derives them."""
        return Cohort(self.experiment, self.weights, self.agreement)

    def client_of(self, identity: bytes) -> int | None:
        """The client that has this public key."""
        return next((m.id for m in self.agreement.terms.members if m.identity == identity), None)

    def plan_of(self, client: int, round: int) -> Plan | None:
        """The plan of a client's cell in a round, without a context; None if it was not drawn for this round.

        Only the agreed rounds exist. If a server could name any number, it would search for one whose clusters suit it.
        """
        if round not in self.agreement.terms.rounds or not 0 <= round < self.experiment.rounds:
            return None
        try:
            where = round, self.agreement.cell_of(client, round)
        except UsageError:
            return None
        if where not in self._plans:
            if len(self._plans) > len(self.agreement.cells(round)):
                self._plans.clear()
            self._plans[where] = self.agreement.plan(*where, b"")
        return self._plans[where]


def follow_earlier_caps(examples: Sequence[int], weights: Sequence[int], ratio: float) -> bool:
    """Whether weights are the numbers of examples between some caps, none more than `ratio` times another.

    In a successor weights stay as they were. So the caps are those of the earlier members, not those that follow from
    the present members.

    >>> follow_earlier_caps([10, 50, 200], [20, 50, 60], 3.0), follow_earlier_caps([10, 50, 200], [20, 55, 60], 3.0)
    (True, False)
    """
    low, high = min(weights), max(weights)
    capped = all(weight == min(max(count, low), high) for count, weight in zip(examples, weights, strict=True))
    return capped and high <= ratio * low


def check_experiment(e: Experiment) -> None:
    """ConfigError for an experiment that cannot be trained over Flower."""
    if e.method == "no-share" or not e.secure:
        use = "use secure = true and another method than no-share"
        raise ConfigError(f"experiment: over a network every sum is secure; {use}")


def training_name(e: Experiment) -> str:
    """The name of the agreement: it says which experiment its members agree on."""
    return f"{e.name[:100]}, experiment {e.fingerprint.hex()[:32]}"


def enrolled(e: Experiment, members: Sized) -> Experiment:
    """The experiment with these members as its clients, as training.toml has it: for every machine the same."""
    tables = {**to_tables(e), "clients": len(members)}
    tables.get("machine", {}).pop("modules", None)  # folders of one machine
    return experiment(tables)


def proposed_terms(e: Experiment, members: Sequence[Enrolled], length: int, name: str = "") -> Terms:
    """The terms that these members have to agree on, for a model with this many parameters."""
    check_experiment(e)
    weights = capped_weights([member.examples for member in members], e.privacy.weight_ratio)
    found = enumerate(zip(members, weights, strict=True))
    roster = [Member(i, member.identity, member.name, weight) for i, (member, weight) in found]
    return terms_of(e, roster, length, name=name or training_name(e))


def read_training(path: Path | str) -> Training:
    """The training of this file and of the signed agreement beside it; ConfigError says what is wrong."""
    path = Path(path)
    tables = _read(path, "`share flower enrol` writes one")
    try:
        unknown = set(tables) - {"examples", "experiment"}
        if unknown:
            raise ConfigError(f"there is no such key: {min(unknown)}")
        examples, e = _examples(tables["examples"]), from_record(tables["experiment"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: expected examples and [experiment] ({error!r})") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    agreed = path.with_name(AGREEMENT)
    text = _text(agreed, "`share flower enrol` proposes one, `secagg agree` makes it")
    try:
        proposal = read_agreement(text)
        signatures = {member: part.signature for member, part in proposal.signatures.items()}
        return Training(proposal.agreement, e, examples, signatures)
    except (UsageError, WireError, PeerError, ConfigError) as error:
        raise ConfigError(f"{agreed}: {error}") from None


def write_training(training: Training, folder: Path) -> None:
    """Write both files to a folder."""
    signatures = (Signature(member, signature) for member, signature in training.signatures.items())
    agreed = write_agreement(Proposal.of(training.agreement).add(signatures))
    (folder / AGREEMENT).write_text(agreed, "utf-8")
    (folder / TRAINING).write_text(training_text(training.experiment, training.examples), "utf-8")


def training_text(e: Experiment, examples: Sequence[int]) -> str:
    """The text of training.toml."""
    return write_tables({"examples": list(examples), "experiment": to_tables(e)})


def read_members(path: Path | str) -> list[Enrolled]:
    """Members from a text file: one line each, with name, public key and number of examples."""
    found: list[Enrolled] = []
    for number, line in enumerate(_text(Path(path), "write NAME PUBLIC-KEY EXAMPLES for each").splitlines(), start=1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if len(words) != 3 or not words[2].isdigit() or int(words[2]) < 1:
            raise ConfigError(f"{path}, line {number}: write NAME PUBLIC-KEY EXAMPLES")
        found.append(Enrolled(words[0], read_hex(words[1], f"{path}, line {number}", KEY_BYTES), int(words[2])))
    return found


def _examples(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(type(value) is int and value > 0 for value in values):
        raise ConfigError(f"examples: expected a list of whole numbers of at least 1, got {values!r}")
    return tuple(values)


def _text(path: Path, hint: str) -> str:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"there is no {path}; {hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None


def _read(path: Path, hint: str) -> dict[str, Any]:
    try:
        return tomllib.loads(_text(path, hint))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from None


def read_hex(text: object, where: str, length: int, error: type[ConfigError] = ConfigError) -> bytes:
    """`length` bytes, written in hexadecimal."""
    try:
        found = bytes.fromhex(str(text))
    except ValueError:
        found = b""
    if len(found) != length:
        raise error(f"{where}: expected {length} bytes in hexadecimal")
    return found

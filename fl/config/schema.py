"""Every key of an experiment: its type, default, limits and meaning.

`share config --describe` and docs/configuration.md are generated from these classes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from types import UnionType
from typing import Annotated, Any, Final, NamedTuple, Self, Union, get_args, get_origin

import msgspec
from msgspec import Meta, field

from secagg import Stage
from secagg.exposure import ENFORCE, REPORT_EVEN_IF_EXPOSED, SCHEDULES

METHODS: Final = ("share", "fedavg", "no-share")
DATA_SETS: Final = ("digits", "mnist", "cifar10", "shakespeare")
PARTITIONS: Final = ("iid", "shards", "dirichlet", "role")
MODELS: Final = ("cnn", "lstm", "small-cnn", "linear")
AUDITS: Final = (ENFORCE, REPORT_EVEN_IF_EXPOSED)
STAGES: Final = tuple(stage.name.lower() for stage in Stage if stage < Stage.DONE)
MISBEHAVIOURS: Final = ("none", "silence", "garbage", "wrong-shares", "broken-boxes")
WEIGHTED_MEAN: Final = "weighted-mean"
LABEL_FLIP: Final = "label-flip"
NO_ATTACK: Final = "none"

Option = bool | int | float | str
Choices = tuple[str, ...] | Callable[[], tuple[str, ...]]


def _rules() -> tuple[str, ...]:
    from robust import AGGREGATORS

    return (*AGGREGATORS, WEIGHTED_MEAN)


def _attacks() -> tuple[str, ...]:
    from robust import ATTACKS

    return (NO_ATTACK, LABEL_FLIP, *ATTACKS)


def _pre_aggregators() -> tuple[str, ...]:
    from robust import PRE_AGGREGATORS

    return tuple(PRE_AGGREGATORS)


def _one_of(choices: Choices, *, or_path: bool = False) -> Meta:
    """Allow only these texts. `or_path` also allows `module:function`."""
    return Meta(extra={"choices": choices, "or_path": or_path})


Positive = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
AtLeastTwo = Annotated[int, Meta(ge=2)]
PositiveFloat = Annotated[float, Meta(gt=0)]
Fraction = Annotated[float, Meta(gt=0, le=1)]
UpToHalf = Annotated[float, Meta(ge=0, le=0.5)]
Options = Mapping[str, Option]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the configuration file.

    The docstring of each section has a line `key: meaning` for each of its keys.
    """

    def replace(self, **changes: Any) -> Self:
        """A copy with other values for some keys. The values are not checked."""
        return msgspec.structs.replace(self, **changes)


class Data(Section, frozen=True):
    """The data set, and how it is divided among the clients.

    name: data set partition: how examples are divided among clients shards_per_client: for `shards`, the largest number
    of labels that a client holds alpha: for `dirichlet`, a small value gives each client few labels validation:
    fraction of the training set that the server keeps for validation roles: for shakespeare, number of roles to read;
    by default the number of clients examples: number of training examples to use, drawn at random; by default all
    test_examples: number of test examples to use, drawn at random; by default all
    """

    name: Annotated[str, _one_of(DATA_SETS, or_path=True)] = "digits"
    partition: Annotated[str, _one_of(PARTITIONS)] = "iid"
    shards_per_client: Positive = 2
    alpha: PositiveFloat = 0.5
    validation: UpToHalf = 0.0
    roles: Positive | None = None
    examples: Positive | None = None
    test_examples: Positive | None = None


class Local(Section, frozen=True):
    """Local training: what each client does in a round (ClientOptimize in Algorithm 1).

    epochs: K, passes over the client's examples batch_size: examples in a minibatch lr: learning rate of the client
    momentum: momentum of SGD; starts at zero in each round weight_decay: weight decay of SGD drop_last: skip the last
    minibatch of an epoch if it is not full
    """

    epochs: Positive = 2
    batch_size: Positive = 64
    lr: PositiveFloat = 0.01
    momentum: Annotated[float, Meta(ge=0, le=0.999)] = 0.9
    weight_decay: Annotated[float, Meta(ge=0)] = 1e-4
    drop_last: bool = False


class Clusters(Section, frozen=True):
    """Clusters: the groups of clients whose updates are summed.

    size: m, clients in a cluster; for 1, set `method = "no-share"` groupings: R, reclusterings of the same updates in
    each round schedule: how clusters are drawn (docs/exposure.md) atom: for `atoms`, clients that always stay together
    cell: largest number of clients in one secure aggregation; more clients are split into cells
    """

    size: Positive = 3
    groupings: Positive = 1
    schedule: Annotated[str, _one_of(SCHEDULES)] = "random"
    atom: Natural = 0
    cell: AtLeastTwo = 300


class Privacy(Section, frozen=True):
    """What the server may learn.

    audit: `enforce` opens only sums that expose no client; the other value reproduces published experiments
        and protects no client
    anonymity: T, each combination of opened sums involves at least T clients
    max_leverage: largest fraction of a client's update that the opened sums may explain
    min_survivors: smallest number of clients in an opened sum
    threshold: t, clients per cell that must take part to open a sum; by default the smallest safe value
    colluders: clients per cell that may collude with a malicious server; by default a third of the cell
    clip: each coordinate is clipped to [-clip, clip] before encoding
    weight_ratio: largest ratio between the weights n_i of two clients
    expose_every_client: accept that `no-share` shows the update of each client to the server
    """

    audit: Annotated[str, _one_of(AUDITS)] = ENFORCE
    anonymity: AtLeastTwo = 3
    max_leverage: Fraction = 0.8
    min_survivors: AtLeastTwo = 2
    threshold: AtLeastTwo | None = None
    colluders: Natural | None = None
    clip: PositiveFloat = 8.0
    weight_ratio: Annotated[float, Meta(ge=1)] = 10.0
    expose_every_client: bool = False


class Aggregation(Section, frozen=True):
    """How the server combines the cluster means into one update.

    rule: aggregator of `robust`, or `weighted-mean`: weighted by examples, which equals FedAvg for any
        clusters (Lemma 1)
    f: Byzantine clusters to tolerate in each grouping; by default as many as the rule tolerates
    fraction: `f` as a fraction of the opened clusters, rounded down
    options: other parameters of the rule, by their names in `robust`
    before: pre-aggregators to apply first, in this order
    before_options: parameters of the pre-aggregators, by their names in `robust`
    validation_batch: n_s, validation examples, drawn again for each grouping (Zeno, Zeno++)
    """

    rule: Annotated[str, _one_of(_rules)] = "median"
    f: Natural | None = None
    fraction: UpToHalf | None = None
    options: Options = field(default_factory=dict)
    before: Annotated[tuple[str, ...], _one_of(_pre_aggregators)] = ()
    before_options: Options = field(default_factory=dict)
    validation_batch: Positive = 128


class Attack(Section, frozen=True):
    """What the Byzantine clients do. The seed determines which clients are Byzantine.

    name: attack of `robust` on the updates, or `label-flip` in the data options: parameters of the attack, by their
    names in `robust` start: first round in which updates are attacked protocol: additional misbehaviour in the
    cryptographic protocol
    """

    name: Annotated[str, _one_of(_attacks)] = NO_ATTACK
    options: Options = field(default_factory=dict)
    start: Positive = 1
    protocol: Annotated[str, _one_of(MISBEHAVIOURS)] = "none"


class Absence(Section, frozen=True):
    """One entry of `dropout.schedule`.

    round: the round clients: clients that drop out stage: first message that they do not send
    """

    round: Positive = 1
    clients: tuple[int, ...] = ()
    stage: Annotated[str, _one_of(STAGES)] = "inputs"


class Dropout(Section, frozen=True):
    """Clients that stop answering.

    rate: probability per client and round stage: first message that a dropout does not send; `any` draws a stage at
    random schedule: given clients in given rounds, as [[dropout.schedule]] tables
    """

    rate: Annotated[float, Meta(ge=0, le=0.99)] = 0.0
    stage: Annotated[str, _one_of((*STAGES, "any"))] = "inputs"
    schedule: tuple[Absence, ...] = ()


class Stop(Section, frozen=True):
    """When to stop before the last round. By default never.

    accuracy: stop when the test accuracy reaches this value
    patience: stop after this many rounds without a lower test loss
    """

    accuracy: Fraction | None = None
    patience: Positive | None = None


class Machine(Section, frozen=True):
    """Where the training runs. On a CPU, these keys do not change the result.

    device: torch device workers: training processes; 0 trains in the main process; by default the number of cores
    checkpoint_every: rounds between two checkpoints evaluate_every: rounds between two evaluations of the model
    """

    device: Annotated[str, _one_of(("cpu", "cuda", "auto"))] = "cpu"
    workers: Natural | None = None
    checkpoint_every: Positive = 1
    evaluate_every: Positive = 1


class Experiment(Section, frozen=True):
    """One training run.

    name: name of this run in reports
    seed: seed of the data, the model, clusters, attackers and dropouts
    method: `share` aggregates cluster sums; `fedavg` opens one sum of all clients and has no defence;
        `no-share` applies the rule to the update of each client
    secure: use cryptography; `false` computes the same model, bit for bit, without it
    rounds: T, rounds of training
    clients: n, number of clients
    byzantine: q, number of Byzantine clients
    participation: fraction of the clients that is drawn for each round
    model: network
    server_lr: eta, learning rate of the server

    >>> Experiment(clients=40, participation=0.5).per_round
    20
    """

    name: str = "share"
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    method: Annotated[str, _one_of(METHODS)] = "share"
    secure: bool = True
    rounds: Positive = 20
    clients: Annotated[int, Meta(ge=2, le=65535)] = 30
    byzantine: Natural = 0
    participation: Fraction = 1.0
    model: Annotated[str, _one_of(MODELS, or_path=True)] = "small-cnn"
    server_lr: PositiveFloat = 1.0
    data: Data = field(default_factory=Data)
    local: Local = field(default_factory=Local)
    clusters: Clusters = field(default_factory=Clusters)
    privacy: Privacy = field(default_factory=Privacy)
    aggregation: Aggregation = field(default_factory=Aggregation)
    attack: Attack = field(default_factory=Attack)
    dropout: Dropout = field(default_factory=Dropout)
    stop: Stop = field(default_factory=Stop)
    machine: Machine = field(default_factory=Machine)

    @property
    def per_round(self) -> int:
        """The number of clients drawn for one round."""
        return max(2, round(self.participation * self.clients))

    @property
    def defended(self) -> bool:
        """Whether the server applies a robust rule."""
        return self.method != "fedavg" and self.aggregation.rule not in (WEIGHTED_MEAN, "mean")

    @property
    def fingerprint(self) -> bytes:
        """A hash of every key that can change the result."""
        tables = to_tables(self)
        for irrelevant in ("name", "secure", "rounds", "stop", "machine"):
            tables.pop(irrelevant, None)
        text = json.dumps(tables, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(b"fl/experiment/v1:" + text.encode()).digest()


def to_tables(section: Section) -> dict[str, Any]:
    """A section as plain tables and lists, without the keys that are not set."""
    tables: dict[str, Any] = _without_none(msgspec.to_builtins(section))
    return tables


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_none(inner) for name, inner in value.items() if inner is not None}
    return [_without_none(inner) for inner in value] if isinstance(value, list | tuple) else value


class Key(NamedTuple):
    """One key of a section. `kind` is its type without None."""

    name: str
    kind: Any
    limits: Meta
    default: Any
    about: str

    @property
    def choices(self) -> tuple[str, ...]:
        """The texts that this key can have. They are looked up late, because `robust` can be extended."""
        choices: Choices = (self.limits.extra or {}).get("choices", ())
        return choices() if callable(choices) else choices

    @property
    def or_path(self) -> bool:
        return bool((self.limits.extra or {}).get("or_path"))


@cache
def keys(section: type[Section]) -> dict[str, Key]:
    """The keys of a section by name."""
    about = dict(re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section.__doc__ or "", re.MULTILINE))
    found = {}
    for info in msgspec.structs.fields(section):
        kind, limits = info.type, Meta()
        if get_origin(kind) in (Union, UnionType):
            kind = next(inner for inner in get_args(kind) if inner is not type(None))
        if get_origin(kind) is Annotated:
            kind, limits = get_args(kind)
        default = {} if info.default is msgspec.NODEFAULT else info.default
        meaning = " ".join(about.get(info.name, "").split())
        found[info.name] = Key(info.name, kind, limits, default, meaning)
    return found


def is_section(kind: Any) -> bool:
    """Whether a type is a table with keys of its own."""
    return isinstance(kind, type) and issubclass(kind, Section)

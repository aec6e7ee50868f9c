"""Every key of an experiment: its type, default, limits and meaning.

`share config --describe` and docs/configuration.md are generated from these classes.
"""

from __future__ import annotations

import hashlib
import json
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


def about(text: str, *, choices: Choices = (), or_path: bool = False, unset: str = "", **limits: Any) -> Meta:
    """The meaning of a key, its limits (`ge`, `gt`, `le`), and for text the values that it can take.

    `or_path` also allows `module:function`. `unset` says what happens when the key is left out.
    """
    extra = {"choices": choices, "or_path": or_path, "unset": unset}
    meta: Meta = Meta(description=text, extra=extra, **limits)
    return meta


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the configuration file."""

    def replace(self, **changes: Any) -> Self:
        """A copy with other values for some keys. The values are not checked."""
        return msgspec.structs.replace(self, **changes)


class Data(Section, frozen=True):
    """The data set, and how it is divided among the clients."""

    name: Annotated[str, about("data set", choices=DATA_SETS, or_path=True)] = "digits"
    partition: Annotated[str, about("how examples are divided among clients", choices=PARTITIONS)] = "iid"
    shards_per_client: Annotated[
        int, about("for `shards`: the largest number of labels that a client holds", ge=1)
    ] = 2
    alpha: Annotated[float, about("for `dirichlet`: a small value gives each client few labels", gt=0)] = 0.5
    validation: Annotated[
        float, about("fraction of the training set that the server keeps for validation", ge=0, le=0.5)
    ] = 0.0
    roles: (
        Annotated[int, about("for shakespeare: number of roles to read", ge=1, unset="number of clients")]
        | None
    ) = None
    examples: (
        Annotated[
            int, about("number of training examples to use, drawn at random", ge=1, unset="all of them")
        ]
        | None
    ) = None
    test_examples: (
        Annotated[int, about("number of test examples to use, drawn at random", ge=1, unset="all of them")]
        | None
    ) = None


class Local(Section, frozen=True):
    """Local training: what each client does in a round (ClientOptimize in Algorithm 1)."""

    epochs: Annotated[int, about("K: passes over the client's examples", ge=1)] = 2
    batch_size: Annotated[int, about("examples in a minibatch", ge=1)] = 64
    lr: Annotated[float, about("learning rate of the client", gt=0)] = 0.01
    momentum: Annotated[float, about("momentum of SGD; starts at zero in each round", ge=0, le=0.999)] = 0.9
    weight_decay: Annotated[float, about("weight decay of SGD", ge=0)] = 1e-4
    drop_last: Annotated[bool, about("skip the last minibatch of an epoch if it is not full")] = False


class Clusters(Section, frozen=True):
    """Clusters: the groups of clients whose updates are summed."""

    size: Annotated[int, about('m: clients in a cluster; for 1, set `method = "no-share"`', ge=1)] = 3
    groupings: Annotated[int, about("R: reclusterings of the same updates in each round", ge=1)] = 1
    schedule: Annotated[str, about("how clusters are drawn (docs/exposure.md)", choices=SCHEDULES)] = "random"
    atom: Annotated[int, about("for `atoms`: clients that always stay together", ge=0)] = 0
    cell: Annotated[
        int, about("largest number of clients in one secure aggregation; more are split into cells", ge=2)
    ] = 300


class Privacy(Section, frozen=True):
    """What the server may learn."""

    audit: Annotated[
        str,
        about(
            "`enforce` opens only sums that expose no client; `report-even-if-exposed` reproduces published "
            "experiments and protects no one",
            choices=AUDITS,
        ),
    ] = "enforce"
    anonymity: Annotated[
        int, about("T: each combination of opened sums involves at least T clients", ge=2)
    ] = 3
    max_leverage: Annotated[
        float, about("largest fraction of a client's update that the opened sums may explain", gt=0, le=1)
    ] = 0.8
    min_survivors: Annotated[int, about("smallest number of clients in an opened sum", ge=2)] = 2
    threshold: (
        Annotated[
            int,
            about(
                "t: clients that must take part to open a sum, per cell", ge=2, unset="smallest safe value"
            ),
        ]
        | None
    ) = None
    colluders: (
        Annotated[
            int,
            about(
                "clients per cell that may collude with a malicious server", ge=0, unset="a third of the cell"
            ),
        ]
        | None
    ) = None
    clip: Annotated[float, about("each coordinate is clipped to [-clip, clip] before encoding", gt=0)] = 8.0
    weight_ratio: Annotated[float, about("largest ratio between the weights n_i of two clients", ge=1)] = 10.0
    expose_every_client: Annotated[
        bool, about("accept that `no-share` shows the update of each client to the server")
    ] = False


class Aggregation(Section, frozen=True):
    """How the server combines the cluster means into one update."""

    rule: Annotated[
        str,
        about(
            "aggregator of `robust`, or `weighted-mean`: weighted by examples, which equals FedAvg for any "
            "clusters (Lemma 1)",
            choices=_rules,
        ),
    ] = "median"
    f: (
        Annotated[
            int,
            about(
                "Byzantine clusters to tolerate in each grouping", ge=0, unset="as many as the rule tolerates"
            ),
        ]
        | None
    ) = None
    fraction: (
        Annotated[
            float,
            about("`f` as a fraction of the opened clusters, rounded down", ge=0, le=0.5, unset="use `f`"),
        ]
        | None
    ) = None
    options: Annotated[
        Mapping[str, Option], about("other parameters of the rule, by their names in `robust`")
    ] = field(default_factory=dict)
    before: Annotated[
        tuple[str, ...], about("pre-aggregators to apply first, in this order", choices=_pre_aggregators)
    ] = ()
    before_options: Annotated[
        Mapping[str, Option], about("parameters of the pre-aggregators, by their names in `robust`")
    ] = field(default_factory=dict)
    validation_batch: Annotated[
        int, about("n_s: validation examples, drawn again for each grouping (Zeno, Zeno++)", ge=1)
    ] = 128


class Attack(Section, frozen=True):
    """What the Byzantine clients do. The seed determines which clients are Byzantine."""

    name: Annotated[
        str, about("attack of `robust` on the updates, or `label-flip` in the data", choices=_attacks)
    ] = NO_ATTACK
    options: Annotated[
        Mapping[str, Option], about("parameters of the attack, by their names in `robust`")
    ] = field(default_factory=dict)
    start: Annotated[int, about("first round in which updates are attacked", ge=1)] = 1
    protocol: Annotated[
        str, about("additional misbehaviour in the cryptographic protocol", choices=MISBEHAVIOURS)
    ] = "none"


class Absence(Section, frozen=True):
    """One entry of `dropout.schedule`."""

    round: Annotated[int, about("the round", ge=1)] = 1
    clients: Annotated[tuple[int, ...], about("clients that drop out")] = ()
    stage: Annotated[str, about("first message that they do not send", choices=STAGES)] = "inputs"


class Dropout(Section, frozen=True):
    """Clients that stop answering."""

    rate: Annotated[float, about("probability per client and round", ge=0, le=0.99)] = 0.0
    stage: Annotated[
        str,
        about(
            "first message that a dropout does not send; `any` draws a stage at random",
            choices=(*STAGES, "any"),
        ),
    ] = "inputs"
    schedule: Annotated[
        tuple[Absence, ...], about("given clients in given rounds, as [[dropout.schedule]] tables")
    ] = ()


class Stop(Section, frozen=True):
    """When to stop before the last round."""

    accuracy: (
        Annotated[float, about("stop when the test accuracy reaches this value", gt=0, le=1, unset="never")]
        | None
    ) = None
    patience: (
        Annotated[int, about("stop after this many rounds without a lower test loss", ge=1, unset="never")]
        | None
    ) = None


class Machine(Section, frozen=True):
    """Where the training runs. On a CPU, these keys do not change the result."""

    device: Annotated[str, about("torch device", choices=("cpu", "cuda", "auto"))] = "cpu"
    workers: (
        Annotated[
            int, about("training processes; 0 trains in the main process", ge=0, unset="number of cores")
        ]
        | None
    ) = None
    checkpoint_every: Annotated[int, about("rounds between two checkpoints", ge=1)] = 1
    evaluate_every: Annotated[int, about("rounds between two evaluations of the model", ge=1)] = 1


class Experiment(Section, frozen=True):
    """One training run."""

    name: Annotated[str, about("name of this run in reports")] = "share"
    seed: Annotated[
        int, about("seed of the data, the model, clusters, attackers and dropouts", ge=0, le=2**63 - 1)
    ] = 0
    method: Annotated[
        str,
        about(
            "`share` aggregates cluster sums; `fedavg` opens one sum of all clients and has no defence; "
            "`no-share` applies the rule to the update of each client",
            choices=METHODS,
        ),
    ] = "share"
    secure: Annotated[
        bool, about("use cryptography; `false` computes the same model, bit for bit, without it")
    ] = True
    rounds: Annotated[int, about("T: rounds of training", ge=1)] = 20
    clients: Annotated[int, about("n: number of clients", ge=2, le=65535)] = 30
    byzantine: Annotated[int, about("q: number of Byzantine clients", ge=0)] = 0
    participation: Annotated[
        float, about("fraction of the clients that is drawn for each round", gt=0, le=1)
    ] = 1.0
    model: Annotated[str, about("network", choices=MODELS, or_path=True)] = "small-cnn"
    server_lr: Annotated[float, about("eta: learning rate of the server", gt=0)] = 1.0
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
    """One key of a section, as `read` and `describe` need it. `kind` is its type without None."""

    name: str
    kind: Any
    meta: Meta
    default: Any

    @property
    def choices(self) -> tuple[str, ...]:
        choices: Choices = (self.meta.extra or {}).get("choices", ())
        return choices() if callable(choices) else choices

    @property
    def or_path(self) -> bool:
        return bool((self.meta.extra or {}).get("or_path"))

    @property
    def unset(self) -> str:
        return str((self.meta.extra or {}).get("unset", ""))


@cache
def keys(section: type[Section]) -> dict[str, Key]:
    """The keys of a section by name. The kind of a key is a `Section` if it is a table of its own."""
    found = {}
    for info in msgspec.structs.fields(section):
        kind, meta = info.type, Meta()
        if get_origin(kind) in (Union, UnionType):
            kind = next(inner for inner in get_args(kind) if inner is not type(None))
        if get_origin(kind) is Annotated:
            kind, meta = get_args(kind)
        default = info.default if info.default is not msgspec.NODEFAULT else {}
        found[info.name] = Key(info.name, kind, meta, default)
    return found


def is_section(kind: Any) -> bool:
    """Whether a type is a table with keys of its own."""
    return isinstance(kind, type) and issubclass(kind, Section)

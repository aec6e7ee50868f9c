"""Every key of an experiment: its type, default, limits and meaning.

`share config --describe` and docs/configuration.md are generated from these classes.
"""

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from functools import cache
from itertools import chain
from types import UnionType
from typing import Annotated, Any, Final, NamedTuple, Self, Union, get_args, get_origin

import msgspec
from msgspec import Meta, field

from robust import AGGREGATORS, ATTACKS, PRE_AGGREGATORS, Parameter
from secagg import Stage
from secagg.agreement import SURVIVORS, WHOLE, Groups
from secagg.exposure import ENFORCE, MEMORIES, REPORT_EVEN_IF_EXPOSED, SCHEDULES

METHODS: Final = ("share", "fedavg", "no-share")
DATA_SETS: Final = ("digits", "mnist", "cifar10", "shakespeare")
PARTITIONS: Final = ("iid", "shards", "dirichlet", "role")
LOSSES: Final = ("cross-entropy", "squared-error", "binary-cross-entropy")
METRICS: Final = ("accuracy", "f1", "mean-absolute-error", "r2")
OPTIMIZERS: Final = ("none", "momentum", "adam", "yogi")
PRECISIONS: Final = ("float32", "bfloat16")
RATES: Final = ("constant", "step", "exponential", "cosine")
MODELS: Final = ("cnn", "lstm", "small-cnn", "linear")
AUDITS: Final = (ENFORCE, REPORT_EVEN_IF_EXPOSED)
GROUPS: Final = (WHOLE, SURVIVORS)
DEVICES: Final = re.compile(r"cpu|auto|mps|cuda(:[0-9]+)?")
MOST_ROUNDS: Final = 100_000  # where they are alike, an agreement has so many, so that a run can be resumed with more
CELL: Final = 300  # most clients in one run with recovery of dropouts: its cost grows with their square
RUN_ONLY: Final = ("name", "secure", "stop", "machine", "export", "rounds")  # keys that do not change a round's result
LATER: Final = (("local", "scaffold"),)  # keys that a fingerprint leaves out at their default: older runs can go on
LASTING: Final = ("fixed", "atoms")  # schedules whose clusters or atoms stay the same in all rounds
STAGES: Final = tuple(stage.name.lower() for stage in Stage if stage < Stage.DONE)
RECOVERY_MISBEHAVIOURS: Final = ("wrong-shares", "broken-boxes")  # possible only where dropouts are recovered
MISBEHAVIOURS: Final = ("none", "silence", "garbage", *RECOVERY_MISBEHAVIOURS)
WEIGHTED_MEAN: Final = "weighted-mean"
LABEL_FLIP: Final = "label-flip"
NO_ATTACK: Final = "none"
BACKDOOR: Final = "backdoor"
BACKDOOR_OPTIONS: Final = {
    name: Parameter(name, type(default), required=False, default=default)
    for name, default in {"target": 0, "size": 2, "share": 0.5}.items()
}
DATA_ATTACKS: Final = (NO_ATTACK, LABEL_FLIP, BACKDOOR)  # attacks that leave updates as they are trained

Option = bool | int | float | str


def _one_of(*choices: Collection[str], or_path: bool = False) -> Meta:
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
    """A table of the configuration file. The text in the annotation of a key is its meaning."""

    def replace(self, **changes: Any) -> Self:
        """A copy with other values for some keys. The values are not checked."""
        return msgspec.structs.replace(self, **changes)


class Data(Section, frozen=True):
    """The data set, and how it is divided among the clients."""

    name: Annotated[str, _one_of(DATA_SETS, or_path=True), "data set"] = "digits"
    partition: Annotated[str, _one_of(PARTITIONS), "how examples are divided among clients"] = "iid"
    shards_per_client: Annotated[Positive, "for `shards`, the largest number of labels that a client holds"] = 2
    alpha: Annotated[PositiveFloat, "for `dirichlet`, a small value gives each client few labels"] = 0.5
    validation: Annotated[UpToHalf, "fraction of the training set that the server keeps for validation"] = 0.0
    roles: Annotated[Positive | None, "for shakespeare, number of roles to read; by default one per client"] = None
    examples: Annotated[Positive | None, "number of training examples to use, drawn at random; by default all"] = None
    test_examples: Annotated[Positive | None, "number of test examples to use, drawn at random; by default all"] = None


class Objective(Section, frozen=True):
    """What is learned: the loss of training and the metrics of testing (docs/add-data-or-model.md)."""

    loss: Annotated[
        str,
        _one_of(LOSSES, or_path=True),
        "`squared-error` for regression, `binary-cross-entropy` for one logit or several labels per example",
    ] = "cross-entropy"
    metrics: Annotated[
        tuple[str, ...], _one_of(METRICS, or_path=True), "what is measured on the test examples, beside the loss"
    ] = ("accuracy",)
    per_class: Annotated[bool, "also record the accuracy on the test examples of each class"] = False
    per_client: Annotated[
        bool, "also record the accuracy on each client's own examples; only a simulation has them all"
    ] = False


class Local(Section, frozen=True):
    """Local training: what each client does in a round (ClientOptimize in Algorithm 1)."""

    epochs: Annotated[Positive, "K, passes over the client's examples"] = 2
    batch_size: Annotated[Positive, "examples in a minibatch"] = 64
    lr: Annotated[PositiveFloat, "learning rate of the client"] = 0.01
    momentum: Annotated[float, Meta(ge=0, le=0.999), "momentum of SGD; starts at zero in each round"] = 0.9
    weight_decay: Annotated[float, Meta(ge=0), "weight decay of SGD"] = 1e-4
    drop_last: Annotated[bool, "skip the last minibatch of an epoch if it is not full"] = False
    schedule: Annotated[str, _one_of(RATES), "how the learning rate falls over the rounds"] = "constant"
    period: Annotated[Positive, "rounds in which the rate falls by the factor `decay`; `cosine` stays there"] = 100
    decay: Annotated[Fraction, "factor of the learning rate after `period` rounds"] = 0.1
    proximal: Annotated[float, Meta(ge=0), "mu of FedProx: pulls a client towards the model of the round"] = 0.0
    scaffold: Annotated[
        bool, "SCAFFOLD: control variates against drifting clients; needs `momentum = 0` and clients of equal size"
    ] = False
    precision: Annotated[
        str,
        _one_of(PRECISIONS),
        "`bfloat16` trains in mixed precision on a GPU: torch.autocast chooses the operations; updates stay float32",
    ] = "float32"


class Server(Section, frozen=True):
    """What the server does with an aggregated update before it adds it, times `server_lr`, to the model."""

    optimizer: Annotated[
        str, _one_of(OPTIMIZERS), "`momentum` is FedAvgM; `adam` and `yogi` are FedAdam and FedYogi"
    ] = "none"
    beta1: Annotated[float, Meta(ge=0, le=0.999), "momentum of the server"] = 0.9
    beta2: Annotated[float, Meta(ge=0, le=0.9999), "for `adam` and `yogi`, memory of squared updates"] = 0.99
    tau: Annotated[PositiveFloat, "for `adam` and `yogi`, a larger value adapts less"] = 1e-3


class Clusters(Section, frozen=True):
    """Clusters: the groups of clients whose updates are summed."""

    size: Annotated[Positive, 'm, clients in a cluster; for 1, set `method = "no-share"`'] = 3
    groupings: Annotated[Positive, "R, reclusterings of the same updates in each round"] = 1
    schedule: Annotated[str, _one_of(SCHEDULES), "how clusters are drawn (docs/exposure.md)"] = "fixed"
    atom: Annotated[Natural, "for `atoms`, clients that always stay together"] = 0
    groups: Annotated[
        str,
        _one_of(GROUPS),
        "`whole` opens a cluster with all its clients or not at all; `survivors` recovers dropouts from shares and "
        "opens what is left of a cluster",
    ] = WHOLE
    cell: Annotated[
        AtLeastTwo | None,
        "for `survivors`, most clients in one secure aggregation, 300 by default; more are split into cells",
    ] = None


class Privacy(Section, frozen=True):
    """What the server may learn."""

    audit: Annotated[
        str,
        _one_of(AUDITS),
        "`enforce` opens only sums that expose no client; the other value reproduces published experiments "
        "and protects no client",
    ] = ENFORCE
    anonymity: Annotated[AtLeastTwo, "T, each combination of opened sums involves at least T clients"] = 3
    memory: Annotated[
        str,
        _one_of(MEMORIES),
        "whether these limits hold for all rounds together, even if no update changes, or for each round alone",
    ] = "training"
    max_leverage: Annotated[Fraction, "largest fraction of a client's update that the opened sums may explain"] = 0.5
    min_survivors: Annotated[AtLeastTwo, "smallest number of clients in an opened sum"] = 2
    threshold: Annotated[
        AtLeastTwo | None,
        "for `survivors`, t, clients per cell that must take part to open a sum; by default the smallest safe value",
    ] = None
    colluders: Annotated[
        Natural | None,
        "for `survivors`, clients among all that may collude with a malicious server; by default a third",
    ] = None
    clip: Annotated[PositiveFloat, "each coordinate is clipped to [-clip, clip] before encoding"] = 8.0
    norm_clip: Annotated[PositiveFloat | None, "with `noise` or `epsilon`, each update is clipped to this L2 norm"] = (
        None
    )
    noise: Annotated[
        PositiveFloat | None,
        "standard deviation of the noise that each client adds to every coordinate, in units of `norm_clip`",
    ] = None
    epsilon: Annotated[
        PositiveFloat | None,
        "instead of `noise`: computes the least noise that keeps all `rounds` together within this epsilon",
    ] = None
    noise_colluders: Annotated[Natural, "clients that may add no noise; epsilon is counted without theirs"] = 0
    delta: Annotated[float, Meta(gt=0, le=0.5), "with noise, the delta for which epsilon is kept and recorded"] = 1e-6
    weight_ratio: Annotated[float, Meta(ge=1), "largest ratio between the weights n_i of two clients"] = 10.0
    expose_every_client: Annotated[bool, "accept that `no-share` shows the update of each client to the server"] = False


class Aggregation(Section, frozen=True):
    """How the server combines the cluster means into one update."""

    rule: Annotated[
        str,
        _one_of(AGGREGATORS, (WEIGHTED_MEAN,), or_path=True),
        "aggregator of `robust`, or `weighted-mean`: weighted by examples, which equals FedAvg "
        "for any clusters (Lemma 1)",
    ] = "median"
    f: Annotated[
        Natural | None,
        "Byzantine clusters to tolerate in each grouping; by default `byzantine` if it is set, otherwise the most "
        "that the rule withstands",
    ] = None
    fraction: Annotated[UpToHalf | None, "`f` as a fraction of the opened clusters, rounded down"] = None
    options: Annotated[Options, "other parameters of the rule, by their names in `robust`"] = {}
    before: Annotated[
        tuple[str, ...], _one_of(PRE_AGGREGATORS, or_path=True), "pre-aggregators to apply first, in this order"
    ] = ()
    before_options: Annotated[Options, "parameters of the pre-aggregators, by their names in `robust`"] = {}
    validation_batch: Annotated[Positive, "n_s, validation examples, drawn for each grouping (Zeno, Zeno++)"] = 128


class Attack(Section, frozen=True):
    """What the Byzantine clients do. The seed determines which clients are Byzantine."""

    name: Annotated[
        str,
        _one_of(DATA_ATTACKS, ATTACKS, or_path=True),
        "attack of `robust` on updates, or in the data: `label-flip`, or `backdoor`, which teaches a `target` class "
        "for inputs with a mark of `size` pixels in a `share` of the attackers' examples",
    ] = NO_ATTACK
    adaptive: Annotated[
        bool, "the attackers know the rule and the clusters, and choose the strength that moves the result furthest"
    ] = False
    options: Annotated[Options, "parameters of the attack, by their names in `robust`"] = {}
    start: Annotated[Positive, "first round in which updates are attacked"] = 1
    protocol: Annotated[str, _one_of(MISBEHAVIOURS), "additional misbehaviour in the cryptographic protocol"] = "none"


class Absence(Section, frozen=True):
    """One entry of `dropout.schedule`."""

    round: Annotated[Positive, "the round"] = 1
    clients: Annotated[tuple[int, ...], "clients that drop out"] = ()
    stage: Annotated[str, _one_of(STAGES), "for `survivors`, first message that they do not send"] = "inputs"


class Dropout(Section, frozen=True):
    """Clients that stop answering. With whole groups, their clusters are lost for the round."""

    rate: Annotated[float, Meta(ge=0, le=0.99), "probability per client and round"] = 0.0
    stage: Annotated[
        str,
        _one_of(STAGES, ("any",)),
        "for `survivors`, first message that a dropout does not send; `any` draws a stage at random",
    ] = "inputs"
    schedule: Annotated[tuple[Absence, ...], "given clients in given rounds, as [[dropout.schedule]] tables"] = ()


class Stop(Section, frozen=True):
    """When to stop before the last round. By default never."""

    accuracy: Annotated[Fraction | None, "stop when the test accuracy reaches this value"] = None
    patience: Annotated[Positive | None, "stop after this many rounds without a lower test loss"] = None


class Machine(Section, frozen=True):
    """Where the training runs. On a CPU, no key changes the result; `[stop]` looks at the rounds that are evaluated."""

    device: Annotated[
        str,
        "torch device: `cpu`, `cuda`, `cuda:1`, `mps`, or `auto` for the first GPU that torch finds (docs/devices.md)",
    ] = "cpu"
    workers: Annotated[
        Natural | None,
        "training processes; 0: the main process alone; by default one per core, or 0 if the work is small",
    ] = None
    checkpoint_every: Annotated[Positive, "rounds between two checkpoints"] = 1
    evaluate_every: Annotated[Positive, "rounds between two evaluations of the model"] = 1
    modules: Annotated[
        tuple[str, ...], "folders with your own modules (`module:function`); by default the folder of the file"
    ] = ()


class Export(Section, frozen=True):
    """Where the numbers of every round go beside the record (docs/research.md). Needs the extra `export`."""

    tensorboard: Annotated[str | None, "folder of event files; each run has a folder of its name in it"] = None
    mlflow: Annotated[
        str | None, "tracking URI of MLflow, such as `http://127.0.0.1:5000`; each run is one of the experiment `share`"
    ] = None


class Experiment(Section, frozen=True):
    """One training run.

    >>> Experiment(clients=40, participation=0.5).per_round
    20
    """

    name: Annotated[str, "name of this run in reports"] = "share"
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1), "seed of the data, the model, clusters, attackers and dropouts"] = 0
    method: Annotated[
        str,
        _one_of(METHODS),
        "`share` aggregates cluster sums; `fedavg` opens one sum of all survivors and has no defence; "
        "`no-share` applies the rule to the update of each client",
    ] = "share"
    secure: Annotated[bool, "use cryptography; `false` computes the same model, bit for bit, without it"] = True
    rounds: Annotated[int, Meta(ge=1, le=MOST_ROUNDS), "rounds of training"] = 20
    clients: Annotated[int, Meta(ge=2, le=65535), "n, number of clients"] = 30
    byzantine: Annotated[Natural, "q, number of Byzantine clients"] = 0
    participation: Annotated[Fraction, "fraction of the clients that is drawn for each round"] = 1.0
    model: Annotated[str, _one_of(MODELS, or_path=True), "network"] = "small-cnn"
    server_lr: Annotated[PositiveFloat, "eta, learning rate of the server"] = 1.0
    data: Data = field(default_factory=Data)
    task: Objective = field(default_factory=Objective)
    local: Local = field(default_factory=Local)
    server: Server = field(default_factory=Server)
    clusters: Clusters = field(default_factory=Clusters)
    privacy: Privacy = field(default_factory=Privacy)
    aggregation: Aggregation = field(default_factory=Aggregation)
    attack: Attack = field(default_factory=Attack)
    dropout: Dropout = field(default_factory=Dropout)
    stop: Stop = field(default_factory=Stop)
    machine: Machine = field(default_factory=Machine)
    export: Export = field(default_factory=Export)

    @property
    def per_round(self) -> int:
        """The number of clients drawn for one round."""
        return max(2, round(self.participation * self.clients))

    @property
    def groups(self) -> Groups:
        """How sums are opened: whole clusters, or what is left of them. One sum of all is always of survivors."""
        return WHOLE if self.method == "share" and self.clusters.groups == WHOLE else SURVIVORS

    @property
    def cells(self) -> int:
        """The number of sums of `fedavg`: one, or one per cell."""
        return -(-self.per_round // (self.clusters.cell or CELL))

    @property
    def open_ended(self) -> bool:
        """Whether more rounds can be added: all are alike, and no noise was computed for their number."""
        return self.alike and self.privacy.epsilon is None

    @property
    def alike(self) -> bool:
        """Whether all rounds draw the same groups."""
        if self.method == "fedavg":
            return self.per_round == self.clients and self.per_round % self.cells == 0
        return self.method == "no-share" or self.clusters.schedule in LASTING

    @property
    def left_over(self) -> int:
        """How many clients are in no cluster of any round: clusters that last all have one size, and no place for them.

        Whole atoms move between clusters, so clusters of atoms leave over only the clients that are in no atom.
        """
        c = self.clusters
        if self.method != "share" or c.schedule not in LASTING:
            return 0
        celled = self.groups == SURVIVORS and self.per_round // c.size > (c.cell or CELL) // c.size
        in_lasting_cells = celled and self.per_round == self.clients
        return self.clients % (c.size if in_lasting_cells or not c.atom else c.atom)

    @property
    def defended(self) -> bool:
        """Whether the server applies a robust rule."""
        return self.method != "fedavg" and self.aggregation.rule not in (WEIGHTED_MEAN, "mean")

    @property
    def fingerprint(self) -> bytes:
        """A hash of every key that can change the result."""
        tables = to_tables(self)
        for name in RUN_ONLY:
            if name != "rounds" or self.open_ended:
                tables.pop(name, None)
        for section, name in LATER:
            if not tables[section][name]:
                del tables[section][name]
        text = json.dumps(tables, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(b"fl/experiment/v2:" + text.encode()).digest()


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
        return tuple(chain(*(self.limits.extra or {}).get("choices", ())))

    @property
    def or_path(self) -> bool:
        return bool((self.limits.extra or {}).get("or_path"))


@cache
def keys(section: type[Section]) -> dict[str, Key]:
    """The keys of a section by name."""
    found = {}
    for info in msgspec.structs.fields(section):
        kind, notes = info.type, []
        while get_origin(kind) in (Annotated, Union, UnionType):
            kind, *more = get_args(kind)
            notes += more
        limits = next((note for note in notes if isinstance(note, Meta)), Meta())
        about = next((note for note in notes if isinstance(note, str)), "")
        default = {} if info.default is msgspec.NODEFAULT else info.default
        found[info.name] = Key(info.name, kind, limits, default, about)
    return found


def is_section(kind: Any) -> bool:
    """Whether a type is a table with keys of its own."""
    return isinstance(kind, type) and issubclass(kind, Section)

"""An experiment as data: frozen, typed, read from TOML, and checked before anything runs.

Every key is a field below, with its meaning beside it; `share config --describe` and docs/configuration.md
are made from these. A key that does not exist, a value of the wrong type and a combination that cannot work
or would expose a client are a `ConfigError` that names the key and what would be right.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Union

METHODS: Final = ("share", "fedavg", "no-share")
DATA_SETS: Final = ("digits", "mnist", "cifar10", "shakespeare")
PARTITIONS: Final = ("iid", "shards", "dirichlet", "role")
MODELS: Final = ("cnn", "lstm", "small-cnn", "linear")
SCHEDULES: Final = ("random", "fixed", "transversal", "atoms")
AUDITS: Final = ("enforce", "report-even-if-exposed")
STAGES: Final = ("keys", "shares", "inputs", "consistency", "unmasking")
MISBEHAVIOURS: Final = ("none", "silence", "garbage", "wrong-shares", "broken-boxes")
WEIGHTED_MEAN: Final = "weighted-mean"
LABEL_FLIP: Final = "label-flip"
NO_ATTACK: Final = "none"

Option = bool | int | float | str
Tables = Mapping[str, Any]


class ConfigError(ValueError):
    """The user's mistake in one line: which key, what is wrong with it, what would be right."""


@dataclass(frozen=True, slots=True)
class Key:
    """What is said about a key beside its type and default."""

    about: str
    among: tuple[str, ...] | Callable[[], tuple[str, ...]] = ()
    or_path: bool = False
    least: float | None = None
    above: float | None = None
    most: float | None = None
    unset: str = ""

    def choices(self) -> tuple[str, ...]:
        return self.among() if callable(self.among) else self.among


def key(default: Any, about: str, **rules: Any) -> Any:
    """A field with its meaning."""
    metadata = {"key": Key(about, **rules)}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def _rules() -> tuple[str, ...]:
    from robust import AGGREGATORS

    return (*AGGREGATORS, WEIGHTED_MEAN)


def _attacks() -> tuple[str, ...]:
    from robust import ATTACKS

    return (NO_ATTACK, LABEL_FLIP, *ATTACKS)


def _mixers() -> tuple[str, ...]:
    from robust import PRE_AGGREGATORS

    return tuple(PRE_AGGREGATORS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """What is learned, and who holds which part of it."""

    name: str = key("digits", "the data set, or module:function of your own", among=DATA_SETS, or_path=True)
    partition: str = key("iid", "how examples are dealt to clients", among=PARTITIONS)
    shards_per_client: int = key(2, "for `shards`: labels per client, at most", least=1)
    alpha: float = key(0.5, "for `dirichlet`: small means few labels per client", above=0)
    validation: float = key(
        0.0, "part of the training set that the server keeps, for rules that validate", least=0, most=0.5
    )
    roles: int | None = key(
        None, "for shakespeare: how many roles to read", least=1, unset="as many as clients"
    )
    examples: int | None = key(
        None, "use only so many training examples, chosen by lot", least=1, unset="all of them"
    )
    test_examples: int | None = key(
        None, "use only so many test examples, chosen by lot", least=1, unset="all of them"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """What every client does in a round (ClientOptimize of Algorithm 1)."""

    epochs: int = key(2, "K: passes over the client's examples", least=1)
    batch_size: int = key(64, "examples in a minibatch", least=1)
    lr: float = key(0.01, "the client's learning rate", above=0)
    momentum: float = key(0.9, "of SGD, starting from zero every round", least=0, most=0.999)
    weight_decay: float = key(1e-4, "of SGD", least=0)
    drop_last: bool = key(False, "leave out an epoch's last, short minibatch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Clusters:
    """Who is summed with whom."""

    size: int = key(3, 'm: clients in a cluster; 1 is `method = "no-share"`', least=1)
    groupings: int = key(1, "R: reclusterings of the same updates in every round", least=1)
    schedule: str = key("random", "how clusters are drawn (docs/exposure.md)", among=SCHEDULES)
    atom: int = key(0, "for `atoms`: clients that always stay together", least=0)
    cell: int = key(
        300, "at most so many clients in one run of secure aggregation; more are cut into cells", least=2
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Privacy:
    """What the server may learn."""

    audit: str = key(
        "enforce",
        "`enforce`: clients open only sums that expose nobody; the other repeats published experiments "
        "and protects nobody",
        among=AUDITS,
    )
    anonymity: int = key(3, "T: no combination of opened sums involves fewer clients", least=2)
    max_leverage: float = key(
        0.8, "most of a client's update that the opened sums may explain", above=0, most=1
    )
    min_survivors: int = key(2, "no sum over fewer clients", least=2)
    threshold: int | None = key(
        None, "t: clients needed to open anything, in each cell", least=2, unset="the least safe one"
    )
    colluders: int | None = key(
        None, "clients assumed to help a lying server, in each cell", least=0, unset="a third"
    )
    clip: float = key(8.0, "coordinates are clipped to plus or minus this before encoding", above=0)
    weight_ratio: float = key(10.0, "most that two clients' weights n_i may differ by", least=1)
    expose_every_client: bool = key(
        False, "set to true to accept that `no-share` shows every single update to the server"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """How the server makes one update of the cluster means."""

    rule: str = key(
        "median",
        "a rule of `robust`, or `weighted-mean`: by examples, FedAvg whatever the clusters (Lemma 1)",
        among=_rules,
    )
    f: int | None = key(
        None, "bad clusters to withstand in every grouping", least=0, unset="as many as the rule withstands"
    )
    fraction: float | None = key(
        None, "the same as a part of the opened clusters, rounded down", least=0, most=0.5, unset="use `f`"
    )
    options: Mapping[str, Option] = key(dict, "further parameters of the rule, by their name in `robust`")
    before: tuple[str, ...] = key((), "pre-aggregation, in this order", among=_mixers)
    before_options: Mapping[str, Option] = key(dict, "their parameters, by their name in `robust`")
    validation_batch: int = key(
        128, "n_s: validation examples, drawn anew for every grouping, for rules that validate", least=1
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """What the Byzantine clients do; they are drawn once, from the seed."""

    name: str = key(
        NO_ATTACK, "an attack of `robust` on the updates, or `label-flip` in the data", among=_attacks
    )
    options: Mapping[str, Option] = key(dict, "its parameters, by their name in `robust`")
    start: int = key(1, "the first round in which updates are attacked", least=1)
    protocol: str = key("none", "what they do inside the cryptographic protocol, on top", among=MISBEHAVIOURS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """One entry of `dropout.schedule`."""

    round: int = key(1, "the round", least=1)
    clients: tuple[int, ...] = key((), "who drops out")
    stage: str = key("inputs", "when", among=STAGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropout:
    """Clients that stop answering."""

    rate: float = key(0.0, "chance of each client in each round", least=0, most=0.99)
    stage: str = key(
        "inputs", "the first message that does not come; `any` draws one", among=(*STAGES, "any")
    )
    schedule: tuple[Absence, ...] = key((), "named clients in named rounds, as [[dropout.schedule]] tables")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """When to stop before the last round."""

    accuracy: float | None = key(None, "once the test accuracy reaches this", above=0, most=1, unset="never")
    patience: int | None = key(None, "after so many rounds without a lower test loss", least=1, unset="never")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where it runs. On a CPU none of this changes a bit of the result."""

    device: str = key("cpu", "`cpu`, `cuda` or `auto`", among=("cpu", "cuda", "auto"))
    workers: int | None = key(
        None, "training processes; 0 trains in this one", least=0, unset="as many as cores"
    )
    checkpoint_every: int = key(1, "rounds between two checkpoints", least=1)
    evaluate_every: int = key(1, "rounds between two tests of the model", least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One training run."""

    name: str = key("share", "how reports call this run")
    seed: int = key(0, "of everything: data, model, clusters, attackers, dropouts", least=0, most=2**63 - 1)
    method: str = key(
        "share",
        "`fedavg`: one sum of everybody, no defence; `no-share`: the rule sees single updates",
        among=METHODS,
    )
    secure: bool = key(True, "real cryptography; false gives the same model, bit for bit, without it")
    rounds: int = key(20, "T: rounds of training", least=1)
    clients: int = key(30, "n: clients in all", least=2, most=65535)
    byzantine: int = key(0, "q: how many of them attack", least=0)
    participation: float = key(1.0, "part of the clients that is drawn for each round", above=0, most=1)
    model: str = key("small-cnn", "the network, or module:function of your own", among=MODELS, or_path=True)
    server_lr: float = key(1.0, "eta: the server's learning rate", above=0)
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
        """Clients drawn for one round."""
        return max(2, round(self.participation * self.clients))

    @property
    def defended(self) -> bool:
        return self.method != "fedavg" and self.aggregation.rule not in (WEIGHTED_MEAN, "mean")

    @property
    def fingerprint(self) -> bytes:
        """A hash of everything that can change the result."""
        tables = to_tables(self)
        for irrelevant in ("name", "secure", "rounds", "stop", "machine"):
            tables.pop(irrelevant, None)
        text = json.dumps(tables, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(b"fl/experiment/v1:" + text.encode()).digest()


# --- reading ------------------------------------------------------------------------------------------------


def experiment(tables: Tables | None = None, **more: Any) -> Experiment:
    """An experiment from tables as TOML has them: `experiment(rounds=5, clusters={"size": 3})`."""
    merged: dict[str, Any] = {**(tables or {}), **more}
    found: Experiment = _section(Experiment, merged, "")
    check(found)
    return found


def load(path: Path | str, settings: Sequence[str] = (), curve: str | None = None) -> Experiment:
    """An experiment from a TOML file, or by name from those in the package.

    `settings` are `key=value` of the command line. `curve` is one of the file's `[curves]`: a table of keys
    to change, for the other curves of the same figure.
    """
    tables = read(path)
    curves = tables.pop("curves", {})
    if not isinstance(curves, dict) or not all(isinstance(changes, dict) for changes in curves.values()):
        raise ConfigError('curves: a table of tables, such as m5 = { "clusters.size" = 5 }')
    if curve is not None:
        if curve not in curves:
            raise ConfigError(f"{path} has no curve {curve!r}{_offer(curve, curves)}")
        tables.setdefault("name", Path(path).stem)
        tables["name"] = f"{tables['name']}-{curve}"
        for name, value in curves[curve].items():
            _put(tables, name, value)
    tables.setdefault("name", Path(path).stem)
    return experiment(changed(tables, settings))


def changed(tables: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """The tables with the `key=value` of the command line put in."""
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--set {setting}: write key=value, such as clusters.size=5")
        _put(tables, name.strip(), _value(text.strip()))
    return tables


def read(path: Path | str) -> dict[str, Any]:
    """The tables of a TOML file, or of a packaged experiment by that name."""
    file = Path(path)
    if not file.exists() and file.parent == Path():
        packaged = files("fl") / "experiments" / (file.name.removesuffix(".toml") + ".toml")
        if packaged.is_file():
            return tomllib.loads(packaged.read_text("utf-8"))
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"there is no {path}, and no experiment of that name{_offer(file.stem, names())}"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def names() -> list[str]:
    """The experiments in the package."""
    folder = files("fl") / "experiments"
    return sorted(
        entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")
    )


def _value(text: str) -> Any:
    """A value of the command line: TOML where it is TOML, else a string as it stands."""
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


def _put(tables: dict[str, Any], name: str, value: Any) -> None:
    *sections, last = name.split(".")
    for section in sections:
        inner = tables.setdefault(section, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{name}: {section} is not a table")
        tables = inner
    tables[last] = value


def _section(kind: type, tables: Any, path: str) -> Any:
    if is_dataclass(tables) and isinstance(tables, kind):
        return tables
    if not isinstance(tables, Mapping):
        raise ConfigError(f"{path}: a table of keys, not {_shown(tables)}")
    hints = typing.get_type_hints(kind)
    known = {f.name: f for f in fields(kind)}
    values = {}
    for name, value in tables.items():
        full = f"{path}.{name}" if path else str(name)
        if name not in known:
            raise ConfigError(f"{full}: there is no such key{_offer(str(name), known, path)}")
        if is_dataclass(hints[name]):
            values[name] = _section(hints[name], value, full)
        else:
            values[name] = _typed(hints[name], value, full, known[name].metadata["key"])
    return kind(**values)


def _typed(hint: Any, value: Any, path: str, rules: Key) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        (hint,) = (a for a in arguments if a is not type(None))
        return _typed(hint, value, path, rules)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{path}: a list, not {_shown(value)}")
        if is_dataclass(arguments[0]):
            inner = typing.cast(type, arguments[0])
            return tuple(_section(inner, entry, f"{path}[{i}]") for i, entry in enumerate(value))
        return tuple(_typed(arguments[0], entry, f"{path}[{i}]", rules) for i, entry in enumerate(value))
    if origin is Mapping:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{path}: a table of parameters, not {_shown(value)}")
        for name, entry in value.items():
            if not isinstance(entry, bool | int | float | str):
                raise ConfigError(f"{path}.{name}: a number, text or true/false, not {_shown(entry)}")
        return dict(value)
    if hint is float and type(value) is int:
        value = float(value)
    if type(value) is not hint:
        raise ConfigError(f"{path}: {_KINDS[hint]}, not {_shown(value)}")
    _check_range(value, path, rules)
    return value


_KINDS: Final = {bool: "true or false", int: "a whole number", float: "a number", str: "text in quotes"}


def _check_range(value: Any, path: str, rules: Key) -> None:
    if isinstance(value, str):
        choices = rules.choices()
        if choices and value not in choices and not (rules.or_path and ":" in value):
            extra = ", or module:function" if rules.or_path else ""
            raise ConfigError(
                f"{path}: one of {', '.join(choices)}{extra}, not {value!r}{_meant(value, choices)}"
            )
    elif not isinstance(value, bool):
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{path}: a finite number, not {value}")
        for holds, wanted in (
            (rules.least is None or value >= rules.least, f"at least {rules.least}"),
            (rules.above is None or value > rules.above, f"more than {rules.above}"),
            (rules.most is None or value <= rules.most, f"at most {rules.most}"),
        ):
            if not holds:
                raise ConfigError(f"{path}: {wanted}, not {value}")


def _shown(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else json.dumps(value, default=str)


def _offer(name: str, known: Iterable[str], path: str = "") -> str:
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"; did you mean {path + '.' if path else ''}{close[0]}?"
    return f"; there are {', '.join(known)}" if known else ""


def _meant(value: str, choices: Sequence[str]) -> str:
    close = difflib.get_close_matches(value, choices, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


# --- combinations -------------------------------------------------------------------------------------------


def check(e: Experiment) -> None:
    """Refuse what cannot work, or what would expose somebody. Needs no data."""
    _check_clients(e)
    _check_parameters(e)
    if e.method == "no-share" or e.clusters.size == 1:
        _check_no_share(e)
    from fl.secure import layout as secure

    layout = secure.layout(e)
    _check_rule(e, layout.clusters)
    secure.check_exposure(e, layout)


def _check_clients(e: Experiment) -> None:
    if e.byzantine > e.clients:
        raise ConfigError(f"byzantine: {e.byzantine} of only {e.clients} clients")
    attacking = e.attack.name != NO_ATTACK or e.attack.protocol != "none"
    if e.byzantine and not attacking:
        raise ConfigError(
            f"byzantine: {e.byzantine} clients attack, but attack.name says {NO_ATTACK!r}; name an attack, "
            "or set byzantine = 0"
        )
    if attacking and not e.byzantine:
        raise ConfigError(f"attack.name: {e.attack.name!r} by nobody; set byzantine to how many attack")
    for i, absence in enumerate(e.dropout.schedule):
        strange = [client for client in absence.clients if not 0 <= client < e.clients]
        if strange:
            raise ConfigError(f"dropout.schedule[{i}].clients: {strange[0]} is none of 0 to {e.clients - 1}")
    if e.participation < 1 and e.method == "share" and e.clusters.schedule in ("fixed", "atoms"):
        raise ConfigError(
            f"participation: {e.clusters.schedule} clusters stay the same for the whole training, so all "
            "clients take part; use the schedule random or transversal"
        )
    if e.data.roles is not None and e.data.name != "shakespeare":
        raise ConfigError(f"data.roles: {e.data.name} has none; only shakespeare has")
    if e.data.partition == "role" and e.data.name in ("digits", "mnist", "cifar10"):
        raise ConfigError(f"data.partition: {e.data.name} does not say who wrote its examples; not role")


def _check_parameters(e: Experiment) -> None:
    import robust
    from fl.training.aggregation import options_of

    if e.aggregation.rule != WEIGHTED_MEAN:
        _check_options(
            "aggregation.options",
            e.aggregation.options,
            options_of(robust.AGGREGATORS[e.aggregation.rule]),
        )
    elif e.aggregation.options:
        raise ConfigError(f"aggregation.options: {WEIGHTED_MEAN} has no parameters")
    allowed = {p for name in e.aggregation.before for p in options_of(robust.PRE_AGGREGATORS[name])}
    _check_options("aggregation.before_options", e.aggregation.before_options, allowed)
    attack = robust.ATTACKS.get(e.attack.name)
    _check_options("attack.options", e.attack.options, options_of(attack) if attack else ())
    if e.aggregation.f is not None and e.aggregation.fraction is not None:
        raise ConfigError("aggregation.fraction: give f or fraction, not both")


def _check_options(path: str, options: Mapping[str, Option], allowed: Iterable[str]) -> None:
    allowed = sorted(allowed)
    for name in options:
        if name not in allowed:
            offer = _offer(name, allowed) if allowed else "; it takes none"
            raise ConfigError(f"{path}.{name}: there is no such parameter{offer}")


def _check_no_share(e: Experiment) -> None:
    if e.method == "share":
        raise ConfigError(
            'clusters.size: a cluster of 1 is the client\'s own update; if you mean that, method = "no-share"'
        )
    if not e.privacy.expose_every_client:
        raise ConfigError(
            'method: "no-share" shows every single update to the server; set '
            "privacy.expose_every_client = true to accept that"
        )


def _check_rule(e: Experiment, clusters: int) -> None:
    from fl.training import aggregation

    if e.method == "fedavg":
        return
    if aggregation.needs_validation(e.aggregation.rule) and e.data.validation == 0:
        raise ConfigError(
            f"data.validation: {e.aggregation.rule} compares updates on examples that the server keeps; "
            "set it to 0.05, say"
        )
    problem = aggregation.why_not(e, clusters)
    if problem:
        raise ConfigError(problem)


# --- writing ------------------------------------------------------------------------------------------------


def to_tables(section: Any) -> dict[str, Any]:
    """An experiment as plain tables; keys that are not set are left out."""
    tables: dict[str, Any] = {}
    for f in fields(section):
        value = getattr(section, f.name)
        if is_dataclass(value):
            tables[f.name] = to_tables(value)
        elif isinstance(value, tuple):
            tables[f.name] = [to_tables(entry) if is_dataclass(entry) else entry for entry in value]
        elif value is not None:
            tables[f.name] = dict(value) if isinstance(value, dict) else value
    return tables


def to_toml(e: Experiment) -> str:
    """The whole experiment, defaults included, as `load` reads it back."""
    return "\n".join(toml_lines(to_tables(e))).strip() + "\n"


def toml_lines(tables: Mapping[str, Any]) -> list[str]:
    """Tables as the lines of a TOML file."""
    lines: list[str] = []
    _write(tables, "", lines)
    return lines


def _write(tables: Mapping[str, Any], path: str, lines: list[str]) -> None:
    plain = {name: value for name, value in tables.items() if not _is_table(value)}
    if path and (plain or not tables):
        lines += ["", f"[{path}]"]
    lines += [f"{name} = {_toml(value)}" for name, value in plain.items()]
    for name, value in tables.items():
        full = f"{path}.{name}" if path else name
        if isinstance(value, Mapping):
            _write(value, full, lines)
        elif _is_table(value):
            for entry in value:
                lines += ["", f"[[{full}]]", *(f"{k} = {_toml(v)}" for k, v in entry.items())]


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) or (
        isinstance(value, list) and bool(value) and all(isinstance(entry, Mapping) for entry in value)
    )


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(entry) for entry in value) + "]"
    return repr(value)


# --- describing ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """One key as the reference lists it."""

    name: str
    kind: str
    default: str
    about: str


def entries(kind: type = Experiment, path: str = "") -> list[tuple[str, str, list[Entry]]]:
    """(section, what it is about, its keys), in the order of the file."""
    hints = typing.get_type_hints(kind)
    here: list[Entry] = []
    deeper: list[tuple[str, str, list[Entry]]] = []
    for f in fields(kind):
        full = f"{path}.{f.name}" if path else f.name
        if is_dataclass(hints[f.name]):
            deeper += entries(hints[f.name], full)
            continue
        rules: Key = f.metadata["key"]
        about = rules.about
        choices = rules.choices()
        if choices:
            about += ": " if not about.endswith(":") else " "
            about += ", ".join(f"`{choice}`" for choice in choices)
        here.append(Entry(full, _kind(hints[f.name]), _default(f, rules), about))
        inner = typing.get_args(hints[f.name])
        if inner and is_dataclass(inner[0]):
            deeper += entries(typing.cast(type, inner[0]), f"{full}[]")
    return [(path, (kind.__doc__ or "").strip(), here), *deeper]


def _kind(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return _kind(next(a for a in arguments if a is not type(None)))
    if origin is tuple:
        return "tables" if is_dataclass(arguments[0]) else f"list of {_kind(arguments[0])}s"
    if origin is Mapping:
        return "table"
    return {bool: "true/false", int: "integer", float: "number", str: "text"}[hint]


def _default(f: dataclasses.Field[Any], rules: Key) -> str:
    if rules.unset:
        return rules.unset
    if f.default_factory is not dataclasses.MISSING:
        return "{}"
    return _toml(f.default)


def describe() -> str:
    """The reference as plain text, for a terminal."""
    lines = []
    for section, about, keys in entries():
        lines += ["", f"[{section}]  {about}" if section else about]
        for entry in keys:
            lines.append(f"  {entry.name} ({entry.kind}; {entry.default})")
            lines.append(f"      {entry.about.replace('`', '')}")
    return "\n".join(lines).strip() + "\n"


def describe_markdown() -> str:
    """docs/configuration.md."""
    lines = [
        "# Configuration",
        "",
        "Generated from `fl/config/schema.py` by `share config --describe --markdown`; a test compares.",
        "A file may leave out any key. `share train FILE.toml --set key=value` changes one on the command",
        "line, by the dotted name below.",
    ]
    for section, about, keys in entries():
        title = f"`[{section.removesuffix('[]')}]`" if section else "Top level"
        if section.endswith("[]"):
            title = f"`[[{section.removesuffix('[]')}]]`"
        lines += ["", f"## {title}", "", about, "", "| key | type | default | meaning |", "|---|---|---|---|"]
        for entry in keys:
            default = (
                entry.default
                if " " in entry.default and not entry.default.startswith('"')
                else f"`{entry.default}`"
            )
            lines.append(f"| `{entry.name}` | {entry.kind} | {default} | {entry.about} |".replace("\\|", "|"))
    return "\n".join(lines) + "\n"

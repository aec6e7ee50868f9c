"""Experiments that can run: rules between keys, on top of what `fl.config.read` checks key by key.

A combination that cannot work, or that would expose a client, is a `ConfigError` that names a key to change.
"""

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import robust
from fl.config import rules
from fl.config.own import find_modules
from fl.config.read import from_place, from_tables, read_tables, suggestion, with_curve, with_modules, with_settings
from fl.config.schema import (
    BACKDOOR,
    BACKDOOR_OPTIONS,
    DATA_ATTACKS,
    DEVICES,
    NO_ATTACK,
    RECOVERY_MISBEHAVIOURS,
    WEIGHTED_MEAN,
    Experiment,
    Option,
)
from fl.errors import ConfigError
from fl.secure.layout import Layout, check_exposure, check_size
from fl.secure.noise import check_noise
from secagg.agreement import SURVIVORS, WHOLE


def experiment(tables: Mapping[str, Any] | None = None, **more: Any) -> Experiment:
    """A checked experiment from tables as in a TOML file.

    >>> experiment(rounds=5, clusters={"size": 5}).clusters.size
    5
    """
    if tables is not None and not isinstance(tables, Mapping):
        raise ConfigError(
            f"tables: expected a dictionary, got {reprlib.repr(tables)}; fl.load(name) reads a file or a packaged "
            "experiment"
        )
    found = from_tables({**(tables or {}), **more})
    check(found, starting=True)
    if modules := tuple(str(Path(folder).resolve()) for folder in found.machine.modules):
        found = found.replace(machine=found.machine.replace(modules=modules))  # resumed in any folder
    return found


def from_record(tables: Mapping[str, Any]) -> Experiment:
    """The experiment of a run that has begun."""
    found = from_tables(tables)
    check(found)
    return found


def load(path: Path | str, settings: Sequence[str] = (), curve: str | None = None) -> Experiment:
    """A checked experiment from a TOML file, or from the packaged experiment with that name.

    `settings` are `key=value` arguments of the command line. `curve` names one of the file's `[curves]`: a
    table of keys to change.

    >>> load("digits", ["rounds=3"]).rounds
    3
    """
    tables = with_settings(from_place(with_curve(read_tables(path), path, curve), path), settings)
    return experiment(with_modules(tables, path))


def check(experiment: Experiment, *, starting: bool = False) -> None:
    """Raise `ConfigError` if the experiment cannot work or would expose a client. Needs no data.

    What only a start needs is not judged again later, so that records stay readable.
    """
    find_modules(experiment.machine.modules)
    _check_clients(experiment)
    _check_data(experiment)
    _check_parameters(experiment)
    if starting:
        _check_values(experiment)
        _check_measures(experiment)
    _check_no_share(experiment)
    _check_groups(experiment)
    check_noise(experiment)
    _check_device(experiment)
    _check_export(experiment)
    check_size(experiment)
    layout = Layout.of(experiment)
    _check_rule(experiment, layout.clusters)
    check_exposure(experiment, layout)


def _check_device(experiment: Experiment) -> None:
    if not DEVICES.fullmatch(experiment.machine.device):
        expected = "cpu, auto, mps, cuda, or cuda: with the number of a GPU, such as cuda:1"
        raise ConfigError(f"machine.device: expected {expected}, got {experiment.machine.device!r}")


def _check_export(experiment: Experiment) -> None:
    """Refuse a password in an address: records, reports and, over Flower, training.toml show it to others."""
    if ":" in _user(experiment.export.mlflow or ""):  # audit: no-password-in-settings
        raise ConfigError(
            "export.mlflow: the address has a password, and settings are shown in records and reports; leave it out, "
            "and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD (or the password file of the database)"
        )


def _user(address: str) -> str:
    """The part of an address before the host: a user, perhaps with a password."""
    try:
        return urlsplit(address).netloc.rpartition("@")[0]
    except ValueError:  # no address at all, which MLflow says itself
        return ""


def _check_clients(experiment: Experiment) -> None:
    clients, byzantine, attack = experiment.clients, experiment.byzantine, experiment.attack
    if byzantine > clients:
        raise ConfigError(f"byzantine: expected at most the {clients} clients, got {byzantine}")
    attacking = attack.name != NO_ATTACK or attack.protocol != "none"
    if byzantine and not attacking:
        raise ConfigError(
            f"byzantine: {byzantine} clients are Byzantine but attack.name is {NO_ATTACK!r}; choose an "
            "attack or set byzantine = 0"
        )
    if attacking and not byzantine:
        key, value = ("name", attack.name) if attack.name != NO_ATTACK else ("protocol", attack.protocol)
        raise ConfigError(f"attack.{key}: {value!r} is set but byzantine = 0; set byzantine to the number of attackers")
    for i, absence in enumerate(experiment.dropout.schedule):
        if strange := [client for client in absence.clients if not 0 <= client < clients]:
            key = f"dropout.schedule[{i}].clients"
            raise ConfigError(f"{key}: expected clients from 0 to {clients - 1}, got {strange[0]}")


def _check_data(experiment: Experiment) -> None:
    data = experiment.data
    if data.roles is not None and data.name != "shakespeare":
        raise ConfigError(f"data.roles: only shakespeare has roles, {data.name} has none; remove this key")
    if data.partition == "role" and data.name in ("digits", "mnist", "cifar10"):
        raise ConfigError(f'data.partition: "role" needs data with roles; {data.name} has none')


def _check_parameters(experiment: Experiment) -> None:
    chosen, attack = experiment.aggregation, experiment.attack
    if chosen.rule != WEIGHTED_MEAN:
        allowed = rules.configurable(rules.aggregator(chosen.rule))
        _check_options("aggregation.options", chosen.options, allowed)
    elif chosen.options:
        raise ConfigError(f"aggregation.options: {WEIGHTED_MEAN} has no parameters; remove this key")
    steps = [rules.pre_aggregator(name) for name in chosen.before]
    allowed = {p for step in steps for p in rules.configurable(step)}
    _check_options("aggregation.before_options", chosen.before_options, allowed)
    kind = None if attack.name in DATA_ATTACKS else rules.attack(attack.name)
    in_data = BACKDOOR_OPTIONS if attack.name == BACKDOOR else ()
    _check_options("attack.options", attack.options, rules.configurable(kind) if kind else in_data)
    if attack.adaptive:
        if kind is None or "against" not in kind.parameters:
            able = ", ".join(name for name, found in robust.ATTACKS.items() if "against" in found.parameters)
            raise ConfigError(f"attack.adaptive: {attack.name} cannot be optimised against a rule; use one of {able}")
        if experiment.method != "fedavg" and rules.needs_validation(chosen.rule):
            raise ConfigError(
                f"attack.adaptive: {chosen.rule} judges by examples of the server, which attackers do not have; use "
                "another rule, or adaptive = false"
            )
    if experiment.local.scaffold and experiment.local.momentum:
        raise ConfigError(
            "local.scaffold: momentum makes steps longer than their gradients, which control variates are computed "
            "from; set local.momentum = 0"
        )
    if chosen.f is not None and chosen.fraction is not None:
        raise ConfigError("aggregation.fraction: set f or fraction, not both")


def _check_measures(experiment: Experiment) -> None:
    """Refuse keys that need an accuracy which the task does not measure."""
    if "accuracy" in experiment.task.metrics:
        return
    if experiment.stop.accuracy is not None:
        raise ConfigError(
            'stop.accuracy: the task measures no accuracy, so it would never stop; add "accuracy" to task.metrics, or '
            "use stop.patience"
        )
    if experiment.attack.name == BACKDOOR:
        raise ConfigError(
            'attack.name: the success of a backdoor is an accuracy, which the task does not measure; add "accuracy" to '
            "task.metrics"
        )


def _check_options(path: str, options: Mapping[str, Option], allowed: Iterable[str]) -> None:
    allowed = sorted(allowed)
    for name in options:
        if name not in allowed:
            hint = suggestion(name, allowed) if allowed else "; there are none"
            raise ConfigError(f"{path}.{name}: there is no such parameter{hint}")


def _check_values(experiment: Experiment) -> None:
    """Refuse options of a wrong type, and a missing one that only a configuration could give."""
    chosen, attack, unused = experiment.aggregation, experiment.attack, experiment.method == "fedavg"
    if chosen.rule != WEIGHTED_MEAN:
        _check_types("aggregation.options", rules.aggregator(chosen.rule), chosen.options, unused)
    for step in map(rules.pre_aggregator, chosen.before):
        _check_types("aggregation.before_options", step, rules.filled(step, chosen.before_options, {}), unused)
    if attack.name == BACKDOOR:
        _fit("attack.options", BACKDOOR, BACKDOOR_OPTIONS, attack.options)
    elif attack.name not in DATA_ATTACKS:
        _check_types("attack.options", rules.attack(attack.name), attack.options)


def _check_types(path: str, kind: rules.Kind, options: Mapping[str, Option], unused: bool = False) -> None:
    """Refuse a wrong type. Nothing is missing where the rule is not used."""
    known = {name: kind.parameters[name] for name in rules.configurable(kind) if not unused or name in options}
    _fit(path, kind.name, known, options)


def _fit(path: str, name: str, known: Mapping[str, robust.Parameter], options: Mapping[str, Option]) -> None:
    try:
        robust.check_parameters(name, known, options)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None


def _check_no_share(experiment: Experiment) -> None:
    if experiment.method == "share" and experiment.clusters.size == 1:
        raise ConfigError(
            "clusters.size: the sum of a cluster of 1 is the update of that client; use larger clusters, or "
            'set method = "no-share" to accept this'
        )
    if experiment.method == "no-share" and not experiment.privacy.expose_every_client:
        raise ConfigError(
            'method: "no-share" shows the update of each client to the server; set '
            "privacy.expose_every_client = true to accept this"
        )


def _check_groups(experiment: Experiment) -> None:
    """Refuse keys that only the other kind of groups has."""
    privacy, attack, dropout = experiment.privacy, experiment.attack, experiment.dropout
    if experiment.method == "share" and experiment.groups == WHOLE:
        later = [("dropout.stage", dropout.stage)]
        later += [(f"dropout.schedule[{i}].stage", absence.stage) for i, absence in enumerate(dropout.schedule)]
        for key, value in (
            ("clusters.cell", experiment.clusters.cell),
            ("privacy.threshold", privacy.threshold),
            ("privacy.colluders", privacy.colluders),
            ("attack.protocol", attack.protocol if attack.protocol in RECOVERY_MISBEHAVIOURS else None),
            *((key, stage if stage not in ("inputs", "any") else None) for key, stage in later),
        ):
            if value is not None:
                raise ConfigError(
                    f"{key}: {value!r} is for groups of survivors, and whole groups have no shares and one exchange; "
                    'remove this key, or set clusters.groups = "survivors"'
                )
    clusters = experiment.clusters
    if experiment.method == "share" and experiment.participation < 1 and clusters.schedule in ("fixed", "atoms"):
        if experiment.groups == SURVIVORS:
            raise ConfigError(
                "participation: fixed clusters and atoms of survivors stay the same during the training, so all "
                'clients must take part; use clusters.groups = "whole", or the schedule random or transversal'
            )
        if clusters.schedule == "fixed" and clusters.groupings > 1:
            raise ConfigError(
                f"participation: {clusters.groupings} fixed groupings connect the clients, so only all of them can "
                "take part together; use clusters.groupings = 1 or the schedule atoms"
            )


def _check_rule(experiment: Experiment, clusters: int) -> None:
    if experiment.method == "fedavg":
        return
    rule = experiment.aggregation.rule
    if rules.needs_validation(rule) and experiment.data.validation == 0:
        need = f"{rule} needs examples that the server keeps for validation"
        raise ConfigError(f"data.validation: {need}; set it to 0.05, for example")
    if problem := rules.rule_problem(experiment, clusters):
        raise ConfigError(problem)

"""A sweep file: one experiment, the axes along which it varies, and the runs that follow.

    base = "digits"                       # a packaged experiment or a file; without it, the defaults

    [experiment]                          # keys of the experiment, as in `share train`
    rounds = 12

    [grid]                                # a key, and the values that it takes
    seed = [0, 1, 2]
    "aggregation.rule" = ["median", "krum"]

    [variants.attack]                     # an axis of several keys: each value has a name
    none = { byzantine = 0, "attack.name" = "none" }
    flip = { byzantine = 4, "attack.name" = "sign_flip" }

Every combination of one value per axis is a run. Nothing here is checked against the rest of a configuration.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from fl.config.read import from_place, put, read_tables, suggestion, with_curve, with_modules, with_settings
from fl.errors import ConfigError

KEYS: Final = ("name", "base", "curve", "measure", "better", "skip_impossible", "experiment", "grid", "variants")
PACKAGED: Final = "experiments/sweeps"
SEED: Final = "seed"
LONGEST_ID: Final = 120  # characters of the name of a folder


class Value(NamedTuple):
    """One value of an axis: what it is called, and the keys that it sets."""

    label: str
    changes: Mapping[str, Any]


class Axis(NamedTuple):
    """One direction of the grid."""

    name: str
    values: tuple[Value, ...]

    @property
    def keys(self) -> set[str]:
        return {key for value in self.values for key in value.changes}

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(value.label for value in self.values)

    @property
    def is_seed(self) -> bool:
        """Whether results are averaged over this axis."""
        return self.keys == {SEED}

    @property
    def is_attack(self) -> bool:
        """Whether the worst case is taken over this axis."""
        return any(key.startswith("attack.") for key in self.keys)


class Planned(NamedTuple):
    """One run: the name of its folder, its value on each axis by the axis' name, and its tables."""

    id: str
    labels: Mapping[str, str]
    tables: dict[str, Any]

    @property
    def name(self) -> str:
        """The run in words."""
        return ", ".join(f"{axis} {label}" for axis, label in self.labels.items())


@dataclass(frozen=True)
class Sweep:
    """What a sweep file says.

    >>> sweep = from_mapping({"grid": {"seed": [0, 1], "clusters.size": [3, 5]}})
    >>> [planned.id for planned in sweep.runs()]
    ['size=3,seed=0', 'size=5,seed=0', 'size=3,seed=1', 'size=5,seed=1']
    """

    name: str
    axes: tuple[Axis, ...]
    base: Mapping[str, Any]
    measure: str | None = None  # by default the first metric of the task
    better: str | None = None  # whether a lower or a higher value of the measure is better, where that is not known
    skip_impossible: bool = False
    place: Path | None = field(default=None, compare=False)  # the file, beside which functions of one's own are

    def runs(self) -> list[Planned]:
        """Every combination. All runs of the first seed come before those of the second."""
        order = sorted(range(len(self.axes)), key=lambda i: not self.axes[i].is_seed)
        grid = [self.axes[i].values for i in order]
        found: list[Planned] = []
        for chosen in itertools.product(*grid):
            values = dict(zip(order, chosen, strict=True))
            found.append(self._planned([values[i] for i in range(len(self.axes))]))
        return found

    def _planned(self, values: Sequence[Value]) -> Planned:
        labels = {axis.name: value.label for axis, value in zip(self.axes, values, strict=True)}
        labels = {**{n: v for n, v in labels.items() if n != SEED}, **{n: v for n, v in labels.items() if n == SEED}}
        tables = copy.deepcopy(dict(self.base))
        for value in values:
            for key, setting in value.changes.items():
                put(tables, key, copy.deepcopy(setting))
        planned = Planned(_folder_name(labels), labels, tables)
        tables["name"] = planned.name or self.name
        if self.place is not None:
            with_modules(tables, self.place)
        return planned


def read_sweep(path: Path | str, settings: Sequence[str] = ()) -> Sweep:
    """The sweep of a file, or of the packaged sweep with that name. `settings` are `key=value` of its experiment."""
    tables = read_tables(path, folder=PACKAGED, kind="sweep")
    tables.setdefault("name", Path(path).stem)
    if isinstance(given := tables.get("experiment"), dict):
        from_place(given, path)
    return from_mapping(tables, settings, place=Path(path))


def from_mapping(tables: Mapping[str, Any], settings: Sequence[str] = (), place: Path | None = None) -> Sweep:
    """A sweep from tables as in a file."""
    for key in tables:
        if key not in KEYS:
            hint = suggestion(key, KEYS)
            if hint.startswith("; choose"):
                hint = "; keys of the experiment belong in its table [experiment]"
            raise ConfigError(f"{key}: a sweep has no such key{hint}")
    for key, kind, words in (
        ("name", str, "text"),
        ("measure", str, "text"),
        ("better", str, "text"),
        ("skip_impossible", bool, "true or false"),
        ("experiment", Mapping, "a table"),
        ("grid", Mapping, "a table"),
        ("variants", Mapping, "a table of tables"),
    ):
        if key in tables and not isinstance(tables[key], kind):
            raise ConfigError(f"{key}: expected {words}, got {tables[key]!r}")
    if tables.get("better", "lower") not in ("lower", "higher"):
        raise ConfigError(f"better: expected lower or higher, got {tables['better']!r}")
    axes = (*_grid_axes(tables.get("grid", {})), *_variant_axes(tables.get("variants", {})))
    if not axes:
        raise ConfigError('grid: a sweep needs at least one axis, such as seed = [0, 1, 2] in its table "grid"')
    _check_axes(axes)
    base = _base(tables, place)
    for key, value in _leaves(tables.get("experiment", {})):
        put(base, key, copy.deepcopy(value))
    return Sweep(
        name=tables.get("name", "sweep"),
        axes=axes,
        base=with_settings(base, settings),
        measure=tables.get("measure"),
        better=tables.get("better"),
        skip_impossible=tables.get("skip_impossible", False),
        place=place,
    )


def _base(tables: Mapping[str, Any], place: Path | None) -> dict[str, Any]:
    named, curve = tables.get("base"), tables.get("curve")
    if named is None:
        if curve is not None:
            raise ConfigError("curve: names one of the curves of `base`, and there is no base")
        return {}
    if not isinstance(named, str):
        raise ConfigError(f"base: expected the name of an experiment or a file, got {named!r}")
    beside = place.parent / named if place is not None else Path(named)
    path = beside if beside.is_file() else Path(named)
    return with_modules(from_place(with_curve(read_tables(path), path, curve), path), path)


def _leaves(table: Mapping[str, Any], path: str = "", *, whole: str = "options") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of everything in the table. Tables of options are one value."""
    for name, value in table.items():
        full = f"{path}{name}"
        if isinstance(value, Mapping) and not (whole and full.endswith(whole)):
            yield from _leaves(value, f"{full}.", whole=whole)
        else:
            yield full, value


def _grid_axes(grid: Mapping[str, Any]) -> Iterator[Axis]:
    """The axes of `[grid]`: both "clusters.size" = [...] and clusters.size = [...] name a key."""
    found = list(_leaves(grid, whole=""))
    for key, given in found:
        values = list(given) if isinstance(given, range) else given.tolist() if hasattr(given, "tolist") else given
        if not isinstance(values, list | tuple) or not values:
            raise ConfigError(f"grid.{key}: expected a list of values, got {values!r}")
        yield Axis(_short(key, [other for other, _ in found]), tuple(Value(_label(v), {key: v}) for v in values))


def _variant_axes(variants: Mapping[str, Any]) -> Iterator[Axis]:
    for name, values in variants.items():
        if not isinstance(values, Mapping) or not all(isinstance(changes, Mapping) for changes in values.values()):
            wanted = 'a table of tables, such as flip = { "attack.name" = "sign_flip" }'
            raise ConfigError(f"variants.{name}: expected {wanted}")
        yield Axis(name, tuple(Value(label, dict(_leaves(changes))) for label, changes in values.items()))


def _check_axes(axes: Sequence[Axis]) -> None:
    owners: dict[str, str] = {}
    for axis in axes:
        if not axis.values:
            raise ConfigError(f"{axis.name}: this axis has no values")
        if "name" in axis.keys:
            raise ConfigError("name: a sweep names its runs by the values of its axes; leave this key out")
        for label in axis.labels:
            if axis.labels.count(label) > 1:
                raise ConfigError(f"{axis.name}: {label} is there twice; a repetition needs another seed")
        for key in axis.keys:
            if key in owners:
                raise ConfigError(f"{key} is changed by the axes {owners[key]} and {axis.name}; leave one of them out")
            owners[key] = axis.name
    names = [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two axes are called {name}; give the variants another name")


def _short(key: str, others: Sequence[str]) -> str:
    """What an axis of this key is called: its last part if that is clear, or else the whole key."""
    table, _, last = key.rpartition(".")
    short = table if last == "name" else last
    return key if sum(other.rpartition(".")[2] == last for other in others) > 1 else short


def _label(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _folder_name(labels: Mapping[str, str]) -> str:
    """The folder of a run: readable, and different for every combination."""
    plain = ",".join(f"{axis}={label}" for axis, label in labels.items())
    safe = re.sub(r"[^A-Za-z0-9._=,+-]+", "-", plain)
    if safe == plain and len(safe) <= LONGEST_ID:
        return safe
    return f"{safe[:LONGEST_ID]}-{hashlib.sha256(plain.encode()).hexdigest()[:8]}"

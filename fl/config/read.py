"""From TOML files and `--set key=value` to an `Experiment`, and back to TOML.

Reading checks each key by itself. `fl.config.checks` also checks the keys against each other.
"""

import difflib
import json
import math
import re
import reprlib
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, get_args, get_origin

import msgspec

from fl.config.own import is_own
from fl.config.schema import Experiment, Key, Section, is_section, keys, to_tables
from fl.errors import ConfigError

_KINDS: Final = {bool: "true or false", int: "a whole number", float: "a number", str: "text in quotes"}
_PLACE: Final = re.compile(r" - at `(?:key` in `)?\$(?P<path>[^`]*)`$")
_STEP: Final = re.compile(r"\.([^.\[]+)|\[([0-9]+|\.\.\.)\]")


def from_tables(tables: Mapping[str, Any]) -> Experiment:
    """An experiment from the tables of a TOML file."""
    try:
        found = msgspec.convert(_plain(tables), Experiment)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error), tables)) from None
    for path, key, value in _values(found, ""):
        _check_value(path, key, value)
    return found


def with_modules(tables: dict[str, Any], path: Path | str) -> dict[str, Any]:
    """The tables with the folder of their file in `machine.modules`, if they name a function of somebody's own."""
    found = from_tables(tables)
    named = any(key.or_path and isinstance(value, str) and is_own(value) for _, key, value in _values(found, ""))
    if named and not found.machine.modules and Path(path).is_file():
        put(tables, "machine.modules", [str(Path(path).resolve().parent)])
    return tables


def from_place(tables: dict[str, Any], path: Path | str) -> dict[str, Any]:
    """The tables of a file, whose folders in `machine.modules` are beside it and not where the process runs."""
    machine = tables.get("machine")
    if isinstance(machine, dict) and isinstance(modules := machine.get("modules"), list) and Path(path).is_file():
        beside = Path(path).resolve().parent
        machine["modules"] = [str((beside / each).resolve()) if isinstance(each, str) else each for each in modules]
    return tables


def _plain(value: Any) -> Any:
    """Tables and lists in their own types, and numbers of numpy as numbers of Python."""
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () else value


def to_toml(experiment: Experiment) -> str:
    """The whole experiment with all defaults, as a TOML file that reads back equal."""
    return write_tables(to_tables(experiment))


def write_tables(tables: Mapping[str, Any]) -> str:
    """Tables as the text of a TOML file."""
    import tomli_w

    return tomli_w.dumps(tables)


def read_tables(path: Path | str, *, folder: str = "experiments", kind: str = "experiment") -> dict[str, Any]:
    """The tables of a TOML file, or of the packaged experiment (or sweep, in its folder) with that name."""
    file = Path(path)
    packaged = files("fl") / folder / f"{file.name.removesuffix('.toml')}.toml"
    use_packaged = not file.exists() and file.parent == Path() and packaged.is_file()
    try:
        return tomllib.loads((packaged if use_packaged else file).read_text("utf-8"))
    except FileNotFoundError:
        similar = suggestion(file.stem, packaged_experiments(folder))
        raise ConfigError(f"there is no file {path} and no packaged {kind} with that name{similar}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def packaged_experiments(folder: str = "experiments") -> list[str]:
    """The names of the experiments (or sweeps) in the package."""
    place = files("fl") / folder
    return sorted(entry.name.removesuffix(".toml") for entry in place.iterdir() if entry.name.endswith(".toml"))


def with_curve(tables: dict[str, Any], path: Path | str, curve: str | None) -> dict[str, Any]:
    """The tables of a file with the changes of one of its `[curves]`, and with a name."""
    curves = tables.pop("curves", {})
    if not isinstance(curves, dict) or not all(isinstance(changes, dict) for changes in curves.values()):
        raise ConfigError('curves: expected a table of tables, such as m5 = { "clusters.size" = 5 }')
    tables.setdefault("name", Path(path).stem)
    if curve is not None:
        if curve not in curves:
            raise ConfigError(f"{path} has no curve {curve!r}{suggestion(curve, curves)}")
        tables["name"] = f"{tables['name']}-{curve}"
        for name, value in curves[curve].items():
            put(tables, name, value)
    return tables


def with_settings(tables: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """The tables with the changes of `key=value` arguments from the command line."""
    if not isinstance(settings, list | tuple) or not all(isinstance(setting, str) for setting in settings):
        raise ConfigError(
            f'settings: expected a list of "key=value" texts, such as ["rounds=3"], got {reprlib.repr(settings)}'
        )
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--set {setting}: expected key=value, such as clusters.size=5")
        put(tables, name.strip(), _parsed(text.strip()))
    return tables


def suggestion(name: str, known: Iterable[str], path: str = "") -> str:
    """The end of an error about an unknown name: the most similar known name, or all of them."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"; did you mean {path + '.' if path else ''}{close[0]}?"
    return f"; choose from {', '.join(known)}" if known else ""


def _parsed(text: str) -> Any:
    """A value from the command line: a TOML value, or else plain text."""
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


def put(tables: dict[str, Any], name: str, value: Any) -> None:
    """Set the key with this dotted name."""
    *sections, last = name.split(".")
    for section in sections:
        inner = tables.setdefault(section, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{name}: {section} is not a table")
        tables = inner
    tables[last] = value


def _explain(message: str, tables: Mapping[str, Any]) -> str:
    """An error of msgspec in our words: the dotted key, what was expected, what was given."""
    place = _PLACE.search(message)
    kind: Any = Experiment
    value: Any = tables
    key: Key | None = None
    path = ""
    for name, index in _STEP.findall(place["path"] if place else ""):
        if name:
            key = keys(kind)[name]
            kind, value = key.kind, value[name]
        elif index == "...":  # a table of options, where msgspec does not say which of them
            name, value = next((n, v) for n, v in value.items() if type(v) not in _KINDS)
            kind = None
        else:
            kind, value = get_args(kind)[0], value[int(index)]
        path += f".{name}" if name else f"[{index}]"
    path = path.removeprefix(".")
    if "unknown field" in message:
        name = next(name for name in value if name not in keys(kind))
        full = f"{path}.{name}" if path else name
        return f"{full}: there is no such key{suggestion(name, keys(kind), path)}"
    return _wrong(path or "configuration", kind, key, value)


def _wrong(path: str, kind: Any, key: Key | None, value: Any) -> str:
    shown = f'"{value}"' if isinstance(value, str) else json.dumps(value, default=str)
    hint = ""
    if kind is str and key and key.or_path and callable(value):
        hint = '; give its name: "module:function", or that under which robust has registered it'
    return f"{path}: expected {_expected(kind, key, value)}, got {shown}{hint}"


def _expected(kind: Any, key: Key | None, value: Any) -> str:
    if kind is None:
        return "a number, text in quotes, or true or false"
    if is_section(kind) and isinstance(value, str) and (first := next(iter(keys(kind)))) in ("name", "rule"):
        return f'a table, such as {{ {first} = "{value}" }}'
    if is_section(kind) or get_origin(kind) is Mapping:
        return "a table"
    if get_origin(kind) is tuple:
        return "a list"
    words = _KINDS[kind]
    if kind is float and isinstance(value, float) and not math.isfinite(value):
        words = "a finite number"
    meta = key.limits if key else msgspec.Meta()
    bounds = (("at least", meta.ge), ("more than", meta.gt), ("at most", meta.le))
    limits = [f"{limit} {bound}" for limit, bound in bounds if bound is not None]
    return f"{words}, {' and '.join(limits)}" if limits else words


def _values(section: Section, path: str) -> Iterator[tuple[str, Key, Any]]:
    """(dotted name, key, value) of each value in a section and in the sections inside it."""
    for key in keys(type(section)).values():
        value, name = getattr(section, key.name), f"{path}{key.name}"
        several = isinstance(value, tuple)
        for full, inner in [(f"{name}[{i}]", v) for i, v in enumerate(value)] if several else [(name, value)]:
            if isinstance(inner, Section):
                yield from _values(inner, f"{full}.")
            else:
                yield full, key, inner


def _check_value(path: str, key: Key, value: Any) -> None:
    """Check what types and limits cannot express: choices, and that numbers are finite."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(_wrong(path, float, key, value))
    choices = key.choices
    if isinstance(value, str) and choices and value not in choices and not (key.or_path and is_own(value)):
        expected = ", ".join(choices) + (", or module:function" if key.or_path else "")
        close = difflib.get_close_matches(value, choices, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ConfigError(f"{path}: expected one of {expected}, got {value!r}{hint}")

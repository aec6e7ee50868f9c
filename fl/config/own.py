"""Functions of your own, named in a configuration as `module:function`.

A module is looked for where Python finds modules, and in the folders of `machine.modules`: by default the folder of the
configuration file. Python loads a module of one name once in a process. It is an error if that is another one than in
the folders: the module that is named, and in a training every module of a user. The other would run in its place.
"""

import importlib
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable
from importlib.machinery import PathFinder
from itertools import accumulate
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from fl.errors import ConfigError


def is_own(name: str) -> bool:
    """Whether a name of a configuration is `module:function`."""
    return ":" in name


def short_name(name: str) -> str:
    """The name under which records have what a configuration names: a function of your own without its module.

    >>> short_name("mine:rmse"), short_name("r2")
    ('rmse', 'r2')
    """
    return name.rpartition(":")[2]


_OURS: Final = tuple(Path(__file__).resolve().parents[2] / name for name in ("fl", "robust", "secagg"))
_PYTHON: Final = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))


def is_of_user(file: Path) -> bool:
    """Whether code is in none of this package, Python, and installed packages.

    >>> is_of_user(Path(os.__file__)), is_of_user(Path(__file__))
    (False, False)
    """
    place = file.resolve()
    installed = {"site-packages", "dist-packages"} & {*file.parts, *place.parts}
    return file.exists() and not installed and not any(map(place.is_relative_to, (*_OURS, *_PYTHON)))


_FOLDERS: list[Path] = []  # of the experiment that was checked or trained last, in the order in which Python looks
_KNOWN: set[str] = set()  # those of all experiments


def find_modules(folders: Iterable[str]) -> None:
    """Let Python find modules in these folders first, the last of them before the others."""
    _FOLDERS[:] = dict.fromkeys(reversed([Path(folder).resolve() for folder in folders]))
    first = [str(folder) for folder in _FOLDERS]
    _KNOWN.update(first)
    if sys.path[: len(first)] != first:
        sys.path[:] = [*first, *(entry for entry in sys.path if entry not in first)]


def known_folders() -> list[str]:
    """The folders that `find_modules` has put where Python looks, in this order."""
    return [entry for entry in sys.path if entry in _KNOWN]


def imported(path: str, key: str) -> Callable[..., Any]:
    """The function that `module:function` names. An error inside the module is not caught.

    >>> imported("math:hypot", "model")(3, 4)
    5.0
    """
    module, _, name = path.partition(":")
    if not module or not name:
        raise ConfigError(f"{key}: expected module:function, got {path!r}")
    parts = list(accumulate(module.split("."), "{}.{}".format))
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        _check_places(parts, f"{key}: {path!r}")
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and one that it imports is not
        where = "put it beside the configuration file, or name its folder in machine.modules"
        raise ConfigError(f"{key}: {path!r}: there is no module {error.name}; {where}") from None
    _check_places(parts, f"{key}: {path!r}")
    try:
        function = attrgetter(name)(found)
    except AttributeError:
        raise ConfigError(f"{key}: {path!r}: module {module} has no {name}") from None
    if not callable(function):
        raise ConfigError(f"{key}: {path!r} is not a function")
    return function  # type: ignore[no-any-return]


def check_modules() -> None:
    """Raise ConfigError if this process has a module of a user that an experiment in its folders would not get.

    It may be of another experiment, and a module of this one may have imported it. Modules of Python and of libraries
    are left out: a folder of any name may stand beside a configuration.
    """
    here = {entry.partition(".")[0] for folder in _FOLDERS for entry in _entries(folder)} - {"__main__"}
    names = [name for name in list(sys.modules) if name.partition(".")[0] in here]
    _check_places((name for name in names if is_of_user(Path(_origin(name)))), "machine.modules")


def _check_places(names: Iterable[str], where: str) -> None:
    """Raise ConfigError if Python has other modules of these names than the folders of the experiment."""
    for name in names:
        if name not in sys.modules or (mine := _place(name)) is None or _is_loaded(name, mine):
            continue
        folder = mine.parents[name.count(".") + (mine.stem == "__init__")]
        if folder not in _FOLDERS:
            continue
        raise ConfigError(
            f"{where}: expected the module {name} of {folder}, but this process has loaded another module {name}, from "
            f"{_origin(name)}; rename {folder / mine.relative_to(folder).parts[0]}, or train in a process of its own "
            "if both are yours"
        )


def _entries(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # Python passes over a folder that it cannot read
        return []


def _place(name: str) -> Path | None:
    """The file in which Python would find a module now; None if there is none, as for a folder without __init__.py."""
    found, path = None, None
    for part in accumulate(name.split("."), "{}.{}".format):
        if (found := PathFinder.find_spec(part, path)) is None:
            return None
        path = list(found.submodule_search_locations or ())
    return Path(found.origin) if found and found.origin else None


def _origin(name: str) -> str:
    """Where a loaded module is from."""
    facts = getattr(sys.modules.get(name), "__dict__", {})  # other attributes of a lazy module may raise
    return facts.get("__file__") or next(iter(facts.get("__path__") or ()), "Python itself")


def _is_loaded(name: str, file: Path) -> bool:
    return Path(_origin(name)).resolve() == file.resolve()

"""Functions of your own, named in a configuration as `module:function`.

A module is looked for where Python finds modules, and in the folders of `machine.modules`: by default the folder of the
configuration file. Python loads a module of one name once in a process. It is an error if that is another one than in
the folders: the module that is named, or one of a user's that it may import. The other would run in its place.
"""

import importlib
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
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
_LEFT: set[Path] = set()  # of the experiments before it


def find_modules(folders: Iterable[str]) -> None:
    """Let Python find modules in these folders first, and no longer in those of the experiment before."""
    for place in _FOLDERS:
        with suppress(ValueError):  # somebody else has removed it
            sys.path.remove(str(place))
    _LEFT.update(_FOLDERS)
    _FOLDERS[:] = dict.fromkeys(reversed([Path(folder).resolve() for folder in folders]))
    _LEFT.difference_update(_FOLDERS)
    sys.path[:0] = map(str, _FOLDERS)


def folders() -> list[str]:
    """The folders of the last `find_modules`, for a process that is to have the same ones."""
    return [str(folder) for folder in reversed(_FOLDERS)]


def imported(path: str, key: str) -> Callable[..., Any]:
    """The function that `module:function` names. An error inside the module is not caught.

    >>> imported("math:hypot", "model")(3, 4)
    5.0
    """
    module, _, name = path.partition(":")
    if not module or not name:
        raise ConfigError(f"{key}: expected module:function, got {path!r}")
    _check_places(path, key)  # before a module of yours runs with the wrong one
    try:
        with _without_left():
            found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        _check_places(path, key)
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and one that it imports is not
        where = "put it beside the configuration file, or name its folder in machine.modules"
        raise ConfigError(f"{key}: {path!r}: there is no module {error.name}; {where}") from None
    _check_places(path, key)
    try:
        function = attrgetter(name)(found)
    except AttributeError:
        raise ConfigError(f"{key}: {path!r}: module {module} has no {name}") from None
    if not callable(function):
        raise ConfigError(f"{key}: {path!r} is not a function")
    return function  # type: ignore[no-any-return]


def _check_places(path: str, key: str) -> None:
    """Raise ConfigError if Python has another module than one in the folders of the experiment."""
    here = {entry.partition(".")[0] for folder in _FOLDERS for entry in _entries(folder)} - {"__main__"}
    named = path.partition(":")[0].partition(".")[0]
    for name in list(sys.modules):
        if (top := name.partition(".")[0]) not in here or not (top == named or is_of_user(Path(_origin(name)))):
            continue  # a folder may well have the name of a library
        if (mine := _place(name)) is None or _is_loaded(name, mine):
            continue
        folder = mine.parents[name.count(".") + (mine.stem == "__init__")]
        if folder not in _FOLDERS:
            continue
        raise ConfigError(
            f"{key}: {path!r}: expected the module {name} of {folder}, but this process has loaded another module "
            f"{name}, from {_origin(name)}; rename {folder / mine.relative_to(folder).parts[0]}, or train in a process "
            "of its own if both are yours"
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
        try:
            found = PathFinder.find_spec(part, path)
        except (KeyError, AttributeError):  # a folder in something that is no package now
            return None
        if found is None:
            return None
        path = list(found.submodule_search_locations or ())
    return Path(found.origin) if found and found.origin else None


def _origin(name: str) -> str:
    """Where a loaded module is from."""
    module = sys.modules.get(name)
    return getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "Python itself")


def _is_loaded(name: str, file: Path) -> bool:
    return Path(_origin(name)).resolve() == file.resolve()


@contextmanager
def _without_left() -> Iterator[None]:
    """Hide modules of the experiments before that Python would not find now, so that a missing one is missed."""
    left = {name: sys.modules[name] for name in _left()}
    for name in left:
        del sys.modules[name]
    try:
        yield
    finally:
        for name, module in left.items():
            sys.modules.setdefault(name, module)  # what is pickled by its name needs it


def _left() -> list[str]:
    """The names of modules that are in a folder in which Python no longer looks."""
    folders = _LEFT - {Path(entry).resolve() for entry in sys.path} if _LEFT else ()
    names = [name for name in list(sys.modules) if _is_in(name, folders)] if folders else []
    return [name for name in names if (mine := _place(name)) is None or not _is_loaded(name, mine)]


def _is_in(name: str, folders: Iterable[Path]) -> bool:
    """Whether a module was loaded from one of the folders, and not from a library in a folder inside it."""
    file, top = str(getattr(sys.modules.get(name), "__file__", "")), name.partition(".")[0]
    return any(file.startswith((f"{folder}{os.sep}{top}.", f"{folder}{os.sep}{top}{os.sep}")) for folder in folders)

"""Functions of your own, named in a configuration as `module:function`.

A module is looked for where Python finds modules, and in the folders of `machine.modules`: by default the folder of the
configuration file. Python loads only one module of a name in a process, so one of another experiment could run in the
place of the one that is meant. This is an error. `imported` compares the module that is named, and a training compares
all modules of a user, because others may be imported by that one.
"""

import importlib
import os
import random
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib.machinery import PathFinder
from itertools import accumulate
from operator import attrgetter
from pathlib import Path
from traceback import walk_tb
from typing import Any, Final

import numpy as np

from fl.errors import OwnError


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


def own_place(error: Exception) -> str:
    """Where in code of the user an error arose, for the end of a message; empty if it did not."""
    frames = ((Path(frame.f_code.co_filename), line) for frame, line in walk_tb(error.__traceback__))
    found = [f" ({file}, line {line})" for file, line in frames if is_of_user(file)]
    return found[-1] if found else ""


_FOLDERS: list[Path] = []  # of the experiment that was checked or trained last, in the order in which Python looks
_EVER: dict[str, None] = {}  # those of all experiments


def find_modules(folders: Iterable[str]) -> None:
    """Let Python find modules in these folders first, the last of them before the others.

    It no longer looks in the folders of the experiment before.
    """
    others = _other_paths()
    _FOLDERS[:] = dict.fromkeys(reversed([Path(folder).resolve() for folder in folders]))
    first = list(map(str, _FOLDERS))
    sys.path[:] = [*first, *others]
    _EVER.update(dict.fromkeys(first))


def paths_of_a_worker() -> tuple[list[str], list[str]]:
    """The folders for `find_modules` in a worker process, and where else it looks for modules.

    A function that the caller passes may be of a module of an earlier experiment.
    """
    return list(map(str, reversed(_FOLDERS))), [*map(os.path.abspath, _other_paths()), *_EVER]


def _other_paths() -> list[str]:
    """What Python's search path has besides the folders that `find_modules` put in front."""
    found = list(sys.path)
    for folder in map(str, _FOLDERS):
        with suppress(ValueError):  # somebody else has removed it
            found.remove(folder)
    return found


def imported(path: str, key: str) -> Callable[..., Any]:
    """The function that `module:function` names. An error inside the module is not caught.

    >>> imported("math:hypot", "model")(3, 4)
    5.0
    """
    module, _, name = path.partition(":")
    parts = list(accumulate(module.split("."), "{}.{}".format))
    if not name or not all(part.isidentifier() for part in module.split(".")):
        raise OwnError(f"{key}: expected module:function, got {path!r}")
    try:
        with nullcontext() if module in sys.modules else same_numbers():
            found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        _check_places(parts, f"{key}: {path!r}")
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and one that it imports is not
        where = _gone() or "put it beside the configuration file, or name its folder in machine.modules"
        raise OwnError(f"{key}: {path!r}: there is no module {error.name}; {where}") from None
    _check_places(parts, f"{key}: {path!r}")
    _check_experiment(parts[0], f"{key}: {path!r}")
    try:
        function = attrgetter(name)(found)
    except AttributeError:
        raise OwnError(f"{key}: {path!r}: module {module} has no {name}") from None
    if not callable(function):
        raise OwnError(f"{key}: {path!r} is not a function")
    return function  # type: ignore[no-any-return]


@contextmanager
def same_numbers() -> Iterator[None]:
    """Seed the global random generators, and put them back as they were."""
    torch = importlib.import_module("torch")  # here, because reading a configuration needs no torch
    before = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


def check_modules() -> None:
    """Raise OwnError if this process has another module of a user than the folders of the experiment have.

    It may be of another experiment, and a module of this one may have imported it. Modules of Python and of libraries
    are left out: a folder of any name may stand beside a configuration.
    """
    here = {entry.partition(".")[0] for folder in _FOLDERS for entry in _entries(folder)} - {"__main__"}
    names = [name for name in list(sys.modules) if name.partition(".")[0] in here]
    _check_places((name for name in names if is_of_user(Path(_origin(name)))), "machine.modules")


def _check_places(names: Iterable[str], where: str) -> None:
    """Raise OwnError if Python has other modules of these names than the folders of the experiment."""
    for name in names:
        if name not in sys.modules or (mine := _place(name)) is None or _is_loaded(name, mine):
            continue
        folder = mine.parents[name.count(".") + (mine.stem == "__init__")]
        if folder not in _FOLDERS:
            continue
        raise OwnError(
            f"{where}: expected the module {name} of {folder}, but this process has loaded another module {name}, from "
            f"{_origin(name)}; rename {folder / mine.relative_to(folder).parts[0]}, or train in a process of its own "
            "if both are yours"
        )


def _check_experiment(name: str, where: str) -> None:
    """Raise OwnError if a module is there only because an experiment of another folder was in this process."""
    file = _origin(name)
    known = any(file in (f"{at}/{name}.py", f"{at}/{name}", f"{at}/{name}/__init__.py") for at in _EVER)
    if known and not _is_found(name):
        what_to_do = _gone() or "name its folder in machine.modules, or train in a process of its own"
        raise OwnError(
            f"{where}: this process has loaded the module {name} of another experiment, from {file}; {what_to_do}"
        )


def _gone() -> str:
    """What to do about the first folder of the experiment that is not there, such as one that was moved."""
    missing = next((str(folder) for folder in _FOLDERS if not folder.is_dir()), None)
    return f"its machine.modules name {missing}, which is not there: put this folder back" if missing else ""


def _is_found(name: str) -> bool:
    """Whether Python would find a module again where it is from, also by a hook, as for a package under development."""
    specs = (finder.find_spec(name, None) for finder in sys.meta_path if hasattr(finder, "find_spec"))
    spec = next(filter(None, specs), None)
    places = [spec.origin, *(spec.submodule_search_locations or ())] if spec else []
    return any(_is_loaded(name, Path(place)) for place in places if place)


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
        except (KeyError, AttributeError):  # a folder in something that has made itself a package
            return None
        if found is None:
            return None
        path = list(found.submodule_search_locations or ())
    return Path(found.origin) if found and found.origin else None


def _origin(name: str) -> str:
    """Where a loaded module is from."""
    facts = getattr(sys.modules.get(name), "__dict__", {})  # other attributes of a lazy module may raise
    return facts.get("__file__") or next(iter(facts.get("__path__") or ()), "Python itself")


def _is_loaded(name: str, file: Path) -> bool:
    return Path(_origin(name)).resolve() == file.resolve()

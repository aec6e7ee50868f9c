"""Functions of your own, named in a configuration as `module:function`.

A module is looked for where Python finds modules, and in the folders of `machine.modules`: by default the folder of the
configuration file. Python loads a module of one name once in a process, so a name that is taken is an error: another
module would run in the place of the one in the folder.
"""

import importlib
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any

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


_FOLDERS: list[Path] = []  # of the experiment that was checked or trained last, in the order in which Python looks


def find_modules(folders: Iterable[str]) -> None:
    """Let Python find modules in these folders first. Worker processes inherit them."""
    _FOLDERS.clear()
    for folder in folders:
        place = Path(folder).resolve()
        _FOLDERS.insert(0, place)
        if sys.path[:1] != [str(place)]:
            with suppress(ValueError):  # an experiment of another folder came in between
                sys.path.remove(str(place))
            sys.path.insert(0, str(place))


def imported(path: str, key: str) -> Callable[..., Any]:
    """The function that `module:function` names. An error inside the module is not caught.

    >>> imported("math:hypot", "model")(3, 4)
    5.0
    """
    module, _, name = path.partition(":")
    if not module or not name:
        raise ConfigError(f"{key}: expected module:function, got {path!r}")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        _check_place(path, key)
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and one that it imports is not
        where = "put it beside the configuration file, or name its folder in machine.modules"
        raise ConfigError(f"{key}: {path!r}: there is no module {error.name}; {where}") from None
    _check_place(path, key)
    try:
        function = attrgetter(name)(found)
    except AttributeError:
        raise ConfigError(f"{key}: {path!r}: module {module} has no {name}") from None
    if not callable(function):
        raise ConfigError(f"{key}: {path!r} is not a function")
    return function  # type: ignore[no-any-return]


def _check_place(path: str, key: str) -> None:
    """Raise ConfigError if Python has another module than the one in the folders of the experiment."""
    top = path.partition(":")[0].partition(".")[0]
    other = getattr(sys.modules.get(top), "__file__", None)
    for folder in _FOLDERS if top in sys.modules else ():
        places = {folder / f"{top}.py": folder / f"{top}.py", folder / top / "__init__.py": folder / top}
        found = {file.resolve(): renamed for file, renamed in places.items() if file.is_file()}
        if not found:
            continue
        loaded = None if other is None else Path(other).resolve()
        if loaded not in found and (loaded is None or loaded.parent not in (folder, folder / top)):
            mine = next(iter(found.values()))
            raise ConfigError(
                f"{key}: {path!r}: expected the module {top} of {folder}, but this process has loaded another module "
                f"{top}, from {other or 'Python itself'}; rename {mine}, or train in a process of its own if both are "
                "yours"
            )
        return

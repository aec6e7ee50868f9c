"""Functions of your own, named in a configuration as `module:function`.

A module is looked for where Python finds modules, and in the folders of `machine.modules`: by default the folder of the
configuration file.
"""

import importlib
import sys
from collections.abc import Callable, Iterable
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


def find_modules(folders: Iterable[str]) -> None:
    """Let Python find modules in these folders too. Worker processes inherit them."""
    for folder in folders:
        place = str(Path(folder).resolve())
        if place not in sys.path:
            sys.path.insert(0, place)


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
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and one that it imports is not
        where = "put it beside the configuration file, or name its folder in machine.modules"
        raise ConfigError(f"{key}: {path!r}: there is no module {error.name}; {where}") from None
    try:
        function = attrgetter(name)(found)
    except AttributeError:
        raise ConfigError(f"{key}: {path!r}: module {module} has no {name}") from None
    if not callable(function):
        raise ConfigError(f"{key}: {path!r} is not a function")
    return function  # type: ignore[no-any-return]

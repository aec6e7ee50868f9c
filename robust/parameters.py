"""Typed parameters, read from a function's signature, and registries that name what they know.

Experiments name rules in text files. A name or parameter that does not exist, or has the wrong type, is an
error that lists the right ones, and it is found before anything is computed.
"""

from __future__ import annotations

import inspect
import math
import numbers
import operator
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import numpy as np

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One keyword that a rule or attack takes."""

    name: str
    hint: Any
    required: bool
    default: Any = None

    def __str__(self) -> str:
        tail = "" if self.required else f" = {self.default!r}"
        return f"{self.name}: {_describe(self.hint)}{tail}"


def read_parameters(function: Callable[..., Any], *, skip: tuple[str, ...] = ()) -> dict[str, Parameter]:
    """The keyword-only parameters of a function, except those that belong to the common call shape."""
    hints = typing.get_type_hints(function)
    return {
        name: Parameter(name, hints[name], found.default is found.empty, found.default)
        for name, found in inspect.signature(function).parameters.items()
        if found.kind is found.KEYWORD_ONLY and name not in skip
    }


def check_parameters(
    owner: str, known: Mapping[str, Parameter], given: Mapping[str, object]
) -> dict[str, Any]:
    """The given values, with whole floats of the right kind made exact; or an error that lists the known."""
    listing = ", ".join(map(str, known.values())) or "no parameters"
    unknown = sorted(set(given) - set(known))
    missing = sorted(name for name, one in known.items() if one.required and name not in given)
    if unknown or missing:
        what = f"does not take {', '.join(unknown)}" if unknown else f"needs {', '.join(missing)}"
        raise ValueError(f"{owner} {what}; it takes {listing}")
    checked = {}
    for name, value in given.items():
        hint = known[name].hint
        fits, converted = _fit(value, hint)
        if not fits:
            raise ValueError(f"{owner}: {name}={value!r} is not {_describe(hint)}; it takes {listing}")
        checked[name] = converted
    return checked


class UnknownNameError(KeyError, ValueError):
    """A name that is in no registry; the message lists the names that are."""

    __str__ = Exception.__str__  # KeyError would show the message in quotes


class Registry(Mapping[str, T], Generic[T]):
    """Names to rules or attacks. A wrong name is an error that lists the right ones."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._entries: dict[str, T] = {}

    def add(self, name: str, entry: T) -> None:
        """Make an entry known by its name, once."""
        if name in self._entries:
            raise ValueError(f"there is already {self._kind} {name!r}")
        self._entries[name] = entry

    def __getitem__(self, name: str) -> T:
        try:
            return self._entries[name]
        except KeyError:
            raise UnknownNameError(f"no {self._kind} {name!r}; there are {', '.join(sorted(self))}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def _fit(value: object, hint: Any) -> tuple[bool, Any]:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        for option in typing.get_args(hint):
            fits, converted = _fit(value, option)
            if fits:
                return True, converted
        return False, value
    if origin is Literal:
        return value in typing.get_args(hint), value
    if hint is int:
        whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        return whole, operator.index(value) if whole else value  # type: ignore[arg-type]
    if hint is float:
        real = isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
        return real, float(value) if real else value  # type: ignore[arg-type]
    if origin is Callable:
        return callable(value), value
    if origin is np.ndarray:
        return not isinstance(value, str | bytes) and not np.isscalar(value) and value is not None, value
    if hint is type(None):
        return value is None, value
    return isinstance(value, origin or hint), value


def _describe(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_describe(option) for option in typing.get_args(hint))
    if origin is Literal:
        return " or ".join(map(repr, typing.get_args(hint)))
    if origin is Callable:
        return "a callable"
    if origin is np.ndarray:
        return "a vector"
    return "None" if hint is type(None) else str(getattr(hint, "__name__", hint))

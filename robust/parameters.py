"""Typed parameters that are read from a function's signature, and registries of rules and attacks.

Experiments name rules in text files. A name or parameter that does not exist, or has the wrong type, raises
an error that lists the valid ones before anything is computed.
"""

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
    """One keyword that a rule or attack takes.

    >>> import robust
    >>> str(robust.multi_krum.parameters["m"])
    'm: int or None = None'
    """

    name: str
    hint: Any
    required: bool
    default: Any = None

    def __str__(self) -> str:
        tail = "" if self.required else f" = {self.default!r}"
        return f"{self.name}: {_describe(self.hint)}{tail}"


def read_parameters(function: Callable[..., Any], *, skip: tuple[str, ...] = ()) -> dict[str, Parameter]:
    """The keyword-only parameters of a function, except those in `skip`."""
    hints = typing.get_type_hints(function)
    signature = inspect.signature(function).parameters
    own = {n: found for n, found in signature.items() if found.kind is found.KEYWORD_ONLY and n not in skip}
    if untyped := [name for name in own if name not in hints]:
        raise TypeError(f"{function.__name__}: the parameter {untyped[0]} has no type; write {untyped[0]}: float, say")
    return {
        name: Parameter(name, hints[name], found.default is found.empty, found.default) for name, found in own.items()
    }


def call_signature(kind: Any, core: Callable[..., Any]) -> inspect.Signature:
    """The signature of a rule or attack, for `help`: that of its class, with the keywords of its function."""
    call = inspect.signature(kind.__call__)
    common = [one for one in call.parameters.values() if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)][1:]
    own = [one for one in inspect.signature(core).parameters.values() if one.kind is one.KEYWORD_ONLY]
    return call.replace(parameters=common + own)


def check_parameters(owner: str, known: Mapping[str, Parameter], given: Mapping[str, object]) -> dict[str, Any]:
    """Return the given values, converted to plain int and float; raise ValueError if one does not fit.

    >>> import robust
    >>> check_parameters("sign_flip", robust.ATTACKS["sign_flip"].parameters, {"scale": np.float32(2)})
    {'scale': 2.0}
    """
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
    """A name is not in the registry; the message lists the names that are.

    >>> import robust
    >>> robust.PRE_AGGREGATORS["mixing"]
    Traceback (most recent call last):
    robust.parameters.UnknownNameError: no pre-aggregator 'mixing'; there are arc, bucketing, clipping, nnm
    """

    __str__ = Exception.__str__  # KeyError would put the message in quotes


class Registry(Mapping[str, T], Generic[T]):
    """A mapping from names to rules or attacks. A wrong name raises an error that lists the valid ones.

    >>> import robust
    >>> list(robust.PRE_AGGREGATORS)
    ['clipping', 'arc', 'nnm', 'bucketing']
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._entries: dict[str, T] = {}

    def add(self, name: str, entry: T) -> None:
        """Register an entry; a name can be registered once."""
        if name in self._entries:
            raise ValueError(f"there is already an entry for {self._kind} {name!r}")
        self._entries[name] = entry

    def remove(self, name: str) -> None:
        """Forget an entry, for example to define it again in a notebook."""
        del self._entries[name]

    def __getitem__(self, name: str) -> T:
        try:
            return self._entries[name]
        except KeyError:
            raise UnknownNameError(f"no {self._kind} {name!r}; there are {', '.join(sorted(self))}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def must_not_be_negative(limit: float | None) -> None:
    """Refuse a radius or bound below 0; None means that the rows determine it."""
    if limit is not None and limit < 0:
        raise ValueError(f"a radius or bound cannot be negative, got {limit}")


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

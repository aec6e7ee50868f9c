"""Checks of arguments when they are given: an error says what was expected and what came. No error shows bytes."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from numbers import Real
from operator import index
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from secagg.errors import UsageError

BUFFERS = (bytes, bytearray, memoryview)
MOST_ID = 2**32 - 1
MOST_ROUND = 2**63 - 1
Item = TypeVar("Item")


def whole(name: str, value: object, least: int | None = None, most: int | None = None) -> int:
    """An integer in this range, numpy's included; a bool is none.

    >>> whole("threads", 0, least=1)
    Traceback (most recent call last):
    secagg.errors.UsageError: threads: expected a whole number of at least 1, got 0
    """
    try:
        number = None if isinstance(value, bool) else index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or not (least is None or least <= number) or not (most is None or number <= most):
        limits = "" if least is None else f" of at least {least}" if most is None else f" from {least} to {most}"
        raise UsageError(f"{name}: expected a whole number{limits}, got {_shown(value)}")
    return number


def real(name: str, value: object) -> float:
    """A finite number as a float; a bool is none.

    >>> real("clip", float("nan"))
    Traceback (most recent call last):
    secagg.errors.UsageError: clip: expected a finite number, got nan
    """
    try:
        if isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    except OverflowError:
        pass
    raise UsageError(f"{name}: expected a finite number, got {_shown(value)}")


def flag(name: str, value: object) -> bool:
    """True or False; a number is neither.

    >>> flag("roll_call", 1)
    Traceback (most recent call last):
    secagg.errors.UsageError: roll_call: expected True or False, got 1
    """
    if not isinstance(value, bool):
        raise UsageError(f"{name}: expected True or False, got {_shown(value)}")
    return value


def raw(name: str, value: object, size: int | None = None) -> bytes:
    """Bytes, or another buffer as bytes, of this size if it is given.

    >>> raw("context", "text")
    Traceback (most recent call last):
    secagg.errors.UsageError: context: expected bytes, got str
    """
    if not isinstance(value, BUFFERS):
        raise UsageError(f"{name}: expected {'' if size is None else f'{size} '}bytes, got {type(value).__name__}")
    if size is not None and len(value) != size:
        raise UsageError(f"{name}: expected {size} bytes, got {len(value)}")
    return value if type(value) is bytes else bytes(value)


def instance(name: str, value: Any, kind: type[Item]) -> Item:
    """An object of this class.

    >>> instance("policy", None, dict)
    Traceback (most recent call last):
    secagg.errors.UsageError: policy: expected dict, got NoneType
    """
    if not isinstance(value, kind):
        raise UsageError(f"{name}: expected {kind.__name__}, got {type(value).__name__}")
    return value


def each(name: str, values: Any, kind: type[Item]) -> tuple[Item, ...]:
    """A tuple of objects of this class, from any collection or iterator of them."""
    if not isinstance(values, Iterable) or isinstance(values, (str, *BUFFERS, Mapping)):
        raise UsageError(f"{name}: expected a collection of {kind.__name__}, got {type(values).__name__}")
    found = tuple(values)
    for value in found:
        instance(f"{name}, each", value, kind)
    return found


def ids(name: str, values: Any, known: Collection[int] | None = None) -> tuple[int, ...]:
    """Client ids from any collection or iterator; all of them known, if `known` is given.

    >>> ids("exclude", [1, 9], known={1, 2, 3})
    Traceback (most recent call last):
    secagg.errors.UsageError: exclude: client 9 is not on the roster
    """
    if not isinstance(values, Iterable) or isinstance(values, (str, *BUFFERS)):
        raise UsageError(f"{name}: expected a collection of client ids, got {type(values).__name__}")
    found = tuple(
        value if type(value) is int and 0 <= value <= MOST_ID else whole(f"{name}, each id", value, 0, MOST_ID)
        for value in values
    )
    unknown = [] if known is None else [value for value in found if value not in known]
    if unknown:
        raise UsageError(f"{name}: client {min(unknown)} is not on the roster")
    return found


def keyed(name: str, values: Any, kind: type[Item], known: Collection[int] | None = None) -> dict[int, Item]:
    """A dict of objects of this class by client id."""
    if not isinstance(values, Mapping):
        raise UsageError(f"{name}: expected a dict by client id, got {type(values).__name__}")
    found = dict(zip(ids(name, values, known), values.values(), strict=True))
    for client, value in found.items():
        instance(f"{name}[{client}]", value, kind)
    return found


def settle(target: object, check: Callable[..., Any], *names: str, optional: bool = False, **limits: Any) -> None:
    """Replace fields of a frozen dataclass by what the check makes of them; optional ones may be None."""
    for name in names:
        value = getattr(target, name)
        if not (optional and value is None):
            object.__setattr__(target, name, check(name, value, **limits))


def function(name: str, value: Any) -> None:
    """Something that can be called.

    >>> function("entropy", b"seed")
    Traceback (most recent call last):
    secagg.errors.UsageError: entropy: expected a function, got bytes
    """
    if not callable(value):
        raise UsageError(f"{name}: expected a function, got {type(value).__name__}")


def has(name: str, value: Any, what: str, *attributes: str) -> None:
    """Something with these attributes: `what` says in words what it is.

    >>> has("journal", 5, "a journal", "create", "read")
    Traceback (most recent call last):
    secagg.errors.UsageError: journal: expected a journal, got int
    """
    if isinstance(value, type) or not all(hasattr(value, attribute) for attribute in attributes):
        raise UsageError(f"{name}: expected {what}, got {type(value).__name__}")


def path_of(name: str, value: Any) -> Path:
    """A path, from text or another path.

    >>> path_of("folder", None)
    Traceback (most recent call last):
    secagg.errors.UsageError: folder: expected a path, got NoneType
    """
    if not isinstance(value, (str, PathLike)) or not str(value):
        raise UsageError(f"{name}: expected a path, got {_shown(value)}")
    return Path(value)


def drawn(entropy: Callable[[int], bytes], count: int) -> bytes:
    """This many bytes from a source of randomness; a source that gives anything else is refused."""
    function("entropy", entropy)
    stream = entropy(count)
    if not isinstance(stream, BUFFERS) or len(stream) != count:  # audit: entropy-gives-what-was-asked
        got = f"{len(stream)} bytes" if isinstance(stream, BUFFERS) else type(stream).__name__
        raise UsageError(f"entropy: expected {count} bytes, got {got}")
    return bytes(stream)


def _shown(value: object) -> str:
    """A number or a text as it is, if it is short; of anything else only the type."""
    text = repr(value) if isinstance(value, (Real, complex, str, type(None))) else ""
    return text if 0 < len(text) <= 60 else type(value).__name__

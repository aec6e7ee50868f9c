"""Fingerprints of functions that a user wrote, to see whether a resumed run still has the same ones.

A function is its source text without comments, layout and docstrings, together with what it refers to by name: default
values, closed-over values, constants, tuples, arrays, and functions, classes and objects that can be called of the same
package. Where there is no source that compiles to the function that runs, such as two lambdas in one line, its bytecode
stands for it, which also depends on the version of Python. What libraries define is known by its name. Lists,
dictionaries and other objects that may change while a training runs, and arrays of objects, are known by their type
alone. A variable of a module that the function itself sets is left out, and so is what is reached through a module.
"""

import ast
import contextlib
import dis
import functools
import hashlib
import inspect
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum
from types import CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from fl.config import rules
from fl.config.own import imported, is_own
from fl.config.schema import DATA_ATTACKS, WEIGHTED_MEAN, Experiment
from fl.reporting.begun import ATTRIBUTES
from fl.training.models import resolve
from fl.training.task import Task

LIBRARIES: Final = frozenset({"torch", "numpy", "math", "builtins", "functools", "robust", "secagg", "fl"})
VERSION: Final = ".".join(platform.python_version_tuple()[:2])
PLAIN: Final = (type(None), bool, int, float, complex, str, bytes, range, torch.dtype, torch.device, np.dtype)
LOADS: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
STORES: Final = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})
HOOKS: Final = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
Seen = dict[int, tuple[int, Any]]


def fingerprints(experiment: Experiment, task: Task) -> dict[str, str]:
    """A fingerprint of each function that is neither of this package nor of torch, by the key that it stands for."""
    chosen, found = experiment.aggregation, dict[str, Any]()
    if experiment.method != "fedavg" and chosen.rule != WEIGHTED_MEAN:
        found["aggregation.rule"] = rules.aggregator(chosen.rule)
    found |= {f"aggregation.before {name}": rules.pre_aggregator(name) for name in chosen.before}
    if experiment.attack.name not in DATA_ATTACKS:
        found["attack.name"] = rules.attack(experiment.attack.name)
    model = task.build()
    found["model"] = (resolve(task.model), *dict.fromkeys(type(part) for part in model.modules()))
    found = {key: each for key, each in found.items() if any(map(_own, _each(each)))}
    for key, each in [("task.loss", task.loss), *((f"task.metrics {name}", m) for name, m in task.metrics.items())]:
        if not isinstance(each, str) or is_own(each):
            found[key] = imported(each, key) if isinstance(each, str) else each
    prints = {key: fingerprint(each) for key, each in found.items()}
    if not isinstance(task.model, str) or is_own(task.model):
        prints[ATTRIBUTES] = attributes(model)
    return prints


def fingerprint(thing: Any) -> str:
    """The hash of a function, or of several, and the version of Python, on which the hash may depend."""
    seen = Seen()
    return _hashed(part for each in _each(thing) for part in _parts(each, seen, _package(each)))


def attributes(module: nn.Module) -> str:
    """The hash of what the parts of a model hold besides parameters, and the versions on which it may depend.

    It has no address in memory in it: the same program finds the same hash in another process.
    """
    return f"{_hashed(_of_attributes(module))}, torch {torch.__version__.partition('+')[0]}"


def _hashed(parts: Iterable[str]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(part.encode("utf-8", "backslashreplace") + b"\0")
    return f"{found.hexdigest()} Python {VERSION}"


def _each(thing: Any) -> tuple[Any, ...]:
    return thing if isinstance(thing, tuple) else (thing,)


def _inner(thing: Any) -> Any:
    """What a function was made from by a decorator of `robust`, functools or another library; None if it was not."""
    if isinstance(thing, functools.partial):
        return thing.func
    if isinstance(thing, MethodType):
        return thing.__func__
    values = getattr(thing, "__dict__", None) or {}
    if _home(thing) == "robust":
        return values.get("_core") or values.get("_function")
    return values.get("__wrapped__")


def _home(thing: Any) -> str:
    """The package that defines a function or class, or the class of an object; a decorator copies `__module__`."""
    if isinstance(thing, FunctionType):
        return str(thing.__globals__.get("__name__", "")).partition(".")[0]
    return str((thing if isinstance(thing, type) else type(thing)).__module__).partition(".")[0]


def _package(thing: Any) -> str:
    """The package of the function that a user wrote, below or above functions of libraries."""
    found, homes = thing, list[str]()
    while found is not None and len(homes) < 100:
        homes.append(_home(found))
        found = _inner(found)
    return next((home for home in reversed(homes) if home not in LIBRARIES), homes[-1])


def _own(thing: Any) -> bool:
    return _package(thing) not in LIBRARIES


def _parts(thing: Any, seen: Seen, package: str) -> Iterator[str]:
    """What makes a value, as texts. `seen` keeps what was visited, so that no other object gets its id."""
    if isinstance(thing, np.ndarray | np.generic | Tensor):
        yield from _of_array(thing)
    elif isinstance(thing, PLAIN):
        kind: Any = next(kind for kind in PLAIN if isinstance(thing, kind))
        yield f"{kind.__name__} {kind.__repr__(thing)}"
    elif isinstance(thing, tuple):
        yield f"tuple {len(thing)}"
        for entry in thing:
            yield from _parts(entry, seen, package)
    elif isinstance(thing, frozenset):
        yield from (f"frozenset {len(thing)}", *sorted("\0".join(_parts(each, dict(seen), package)) for each in thing))
    elif id(thing) in seen:
        yield f"seen {seen[id(thing)][0]}"
    else:
        seen[id(thing)] = len(seen), thing
        yield from _of_object(thing, seen, package)


def _of_object(thing: Any, seen: Seen, package: str) -> Iterator[str]:
    if isinstance(thing, functools.partial):
        yield from _parts(("partial", thing.func, thing.args, tuple(sorted(thing.keywords.items()))), seen, package)
    elif isinstance(thing, MethodType):
        yield from _parts(("method", thing.__func__, thing.__self__), seen, package)
    elif isinstance(thing, nn.Module):
        yield from _of_module(thing, seen, package)
    elif _home(thing) != package or package in LIBRARIES:
        yield f"{_told(thing, '__module__')} {_told(thing, '__qualname__', '__name__') or type(thing).__qualname__}"
        yield from _parts(_inner(thing), seen, package)
    elif isinstance(thing, FunctionType):
        yield from _of_function(thing, seen, package)
    elif isinstance(thing, type):
        yield f"class {thing.__qualname__}"
        yield from _parts(thing.__bases__, seen, package)
        yield from _of_values({name: _held(member) for name, member in vars(thing).items()}, seen, package)
    else:
        yield from _parts(type(thing), seen, package)
        frozen = getattr(getattr(type(thing), "__dataclass_params__", None), "frozen", False)
        fixed = frozen or callable(thing) or isinstance(thing, Enum)
        yield from _of_values(_attributes(thing) if fixed else {}, seen, package)


def _told(thing: Any, *names: str) -> str:
    """The first of these attributes that is a text; an object may do anything if it is asked for one."""
    for name in names:
        with contextlib.suppress(Exception):
            found = getattr(thing, name, None)
            if isinstance(found, str):
                return found
    return ""


def _held(member: Any) -> Any:
    """The function, or the two functions, of a class's member."""
    if isinstance(member, property):
        return member.fget, member.fset
    if isinstance(member, functools.cached_property):
        return member.func
    return member.__func__ if isinstance(member, staticmethod | classmethod) else member


def _attributes(thing: Any) -> dict[str, Any]:
    """The attributes of an object, those in slots too."""
    states = _each(object.__getstate__(thing))
    return {name: value for state in states if isinstance(state, dict) for name, value in state.items()}


def _of_values(values: Mapping[str, Any], seen: Seen, package: str) -> Iterator[str]:
    """Values by name. Of the names that Python itself gives, such as `__doc__`, only functions count."""
    named = {name: each for name, each in values.items() if not name.startswith("__") or callable(each)}
    yield f"values {len(named)}"
    for name, value in sorted(named.items(), key=lambda pair: pair[0]):
        yield name
        yield from _parts(value, seen, package)


def _of_array(array: Any) -> Iterator[str]:
    """Type, shape and content, as far as the content can be read."""
    yield f"array {array.dtype}"
    if not isinstance(array, Tensor):
        yield f"{array.shape}"
        yield "objects" if array.dtype.hasobject else hashlib.sha256(np.asarray(array).tobytes()).hexdigest()
        return
    try:
        yield f"{tuple(array.shape)}"
        if array.layout is not torch.strided:
            sparse = array.detach().to_sparse().coalesce()
            yield from (*_of_array(sparse.indices()), *_of_array(sparse.values()))
            return
        flat = array.detach().cpu().resolve_conj().resolve_neg().reshape(-1).contiguous()
        yield hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest()
    except (RuntimeError, TypeError):  # it has no content yet, or is of a kind that torch cannot convert
        yield "unread"


def _of_module(module: nn.Module, seen: Seen, package: str) -> Iterator[str]:
    bare = vars(nn.Module())
    for name, part in module.named_modules():
        yield f"module {name}"
        yield from _parts(type(part), seen, package)
        tensors = {**dict(part.named_parameters(recurse=False)), **dict(part.named_buffers(recurse=False))}
        yield from _of_values({**{k: v for k, v in vars(part).items() if k not in bare}, **tensors}, seen, package)


def _of_attributes(module: nn.Module) -> Iterator[str]:
    """What each part of a model holds besides its parameters, buffers and parts, which are compared by their values."""
    bare, seen, opened = vars(nn.Module()), Seen(), Seen()
    for name, part in module.named_modules():
        yield f"module {name}"
        held = {key: value for key, value in vars(part).items() if key not in bare and (_own(part) or key[:1] != "_")}
        hooks = {key: tuple(getattr(part, key, {}).values()) for key in HOOKS}  # torch numbers them by process
        for key, value in sorted((held | hooks).items()):
            package = _package(value if callable(value) and not _own(part) else part)
            yield key
            yield from _parts(_opened(value, opened, package), seen, package)


def _opened(value: Any, opened: Seen, package: str) -> Any:
    """The value, with lists, dictionaries and objects of the user as tuples of what they hold.

    `opened` keeps what was visited: an object that holds itself ends, and no other object gets its id.
    """
    kind, held = type(value), list[Any]()
    if isinstance(value, tuple):
        held += (_opened(each, opened, package) for each in value)
        return tuple(held) if kind is tuple else (kind, *held)
    plain = isinstance(value, list | dict | set)
    known = callable(value) or isinstance(value, Enum | nn.Module)
    own = not known and package not in LIBRARIES and _home(value) == package
    if not (plain or own or isinstance(value, SimpleNamespace) or (is_dataclass(value) and not known)):
        return value
    if id(value) in opened:
        return "opened", opened[id(value)][0]
    opened[id(value)] = len(opened), value
    if isinstance(value, set):
        held.append(frozenset(value))
    elif isinstance(value, list):
        held += (_opened(each, opened, package) for each in value)
    elif isinstance(value, dict):
        held += ((_opened(key, opened, package), _opened(each, opened, package)) for key, each in value.items())
    if own or not plain:
        with contextlib.suppress(TypeError):  # an object that cannot be pickled does not tell what it holds
            named = sorted(_attributes(value).items())
            held += ((name, _opened(each, opened, package)) for name, each in named)
    return kind, *held


def _of_function(function: FunctionType, seen: Seen, package: str) -> Iterator[str]:
    source = _source(function)
    yield from _of_code(function.__code__) if source is None else (source,)
    yield from _parts(function.__defaults__ or (), seen, package)
    yield from _of_values(function.__kwdefaults__ or {}, seen, package)
    closed = dict[str, Any]()
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a cell that is still empty
            closed[name] = cell.cell_contents
    yield from _of_values(closed, seen, package)
    names = _names(function.__code__, LOADS) - _names(function.__code__, STORES)
    known = function.__globals__
    yield from _of_values({name: known[name] for name in names & known.keys()}, seen, package)


def _names(code: CodeType, operations: frozenset[str]) -> set[str]:
    """What a function and those inside it load or store by name; the names of attributes are not among them."""
    return {
        str(step.argval) for each in _codes(code) for step in dis.get_instructions(each) if step.opname in operations
    }


def _of_code(code: CodeType) -> Iterator[str]:
    yield repr((VERSION, code.co_code, code.co_names, code.co_varnames, code.co_freevars, len(code.co_consts)))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _of_code(constant)
        else:
            yield repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)


def _source(function: FunctionType) -> str | None:
    """The function's source in one layout; None if it cannot be found, or if it is not what runs."""
    try:
        text = "".join(inspect.findsource(function)[0])
        tree = ast.parse(text)
        same = function.__code__ in _codes(compile(text, "source", "exec", dont_inherit=True))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    nodes = [
        node for node in ast.walk(tree) if isinstance(node, kinds) and _line(node) == function.__code__.co_firstlineno
    ]
    if not same or len(nodes) != 1:
        return None
    for node in ast.walk(nodes[0]):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            del node.body[: ast.get_docstring(node) is not None and len(node.body) > 1]
    return _text(nodes[0])


def _text(node: Any) -> str:
    """A syntax tree as a text. That of `ast.unparse` and `ast.dump` depends on the version of Python."""
    if isinstance(node, list):
        return f"[{', '.join(map(_text, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = [f"{name}={_text(each)}" for name, each in ast.iter_fields(node) if each is not None and each != []]
    return f"{type(node).__name__}({', '.join(fields)})"


def _line(node: Any) -> int:
    lines: list[int] = [node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))]
    return min(lines)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)

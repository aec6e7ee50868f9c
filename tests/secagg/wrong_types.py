"""Calls every public function, constructor and method of secagg with wrong types in each argument, one at a time.

Good values are found by the parameter's name in `GOOD`; `SPECIAL` has those of a single callable. `calls` yields what
to call; `outcome` says whether a call with one wrong argument ended as it may: with a result or an error of secagg.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import EnumMeta
from importlib import import_module
from typing import Any

import numpy as np

from secagg import MemoryJournal, SecAggError, Server, Stage, whole
from secagg.agreement import Proposal, summarise
from secagg.crypto import FixedPoint, Integers, Segment, Segments
from secagg.exposure import Policy, Schedule, SeedCeremony
from secagg.protocol import Client, NoCache, Suspects
from secagg.simulation import Cost, WholeRun, make_agreement, run

PACKAGES = ("secagg", "secagg.agreement", "secagg.crypto", "secagg.exposure", "secagg.protocol", "secagg.simulation")
PACKAGES += ("secagg.whole",)
AGREED, IDENTITIES = make_agreement(members=4, size=4, length=2, bound=9, groups="survivors")
WHOLE, MEMBERS = make_agreement(members=6, size=3, length=2, bound=9, rounds=3)
SIGNATURES = {v: WHOLE.sign(v, MEMBERS[v]) for v in MEMBERS}
PLAN = AGREED.plan(0, 0, b"")
UPDATES = {v: [v, 1] for v in range(6)}
WRONG: tuple[Any, ...] = (
    None, True, 5, -1, 2.5, float("nan"), 2j, "text", b"bytes", [1], [[1]], {}, {0: 1}, {"a": []}, (0,), {0}, object(),
    np.array([1, 2]), np.array([]), np.array(["a"]), Stage.KEYS,
)  # fmt: skip


def hello() -> Any:
    return Client(0, IDENTITIES[0], AGREED, 0, MemoryJournal()).hello()


GOOD: dict[str, Any] = {
    "agreement": WHOLE, "terms": WHOLE.terms, "plan": PLAN, "identities": MEMBERS, "identity": MEMBERS[0], "round": 0,
    "cell": 0, "context": b"model", "me": 0, "client": 0, "member": 0, "signatures": SIGNATURES, "inputs": UPDATES,
    "members": 6, "size": 3, "length": 2, "bound": 9, "clients": [0, 1, 2], "n": 12, "data": b"data", "group": (0, 0),
    "survivors": [0, 1, 2, 3], "vectors": [[1, 2]] * 4, "name": "fixed", "seed": bytes(32), "training_seed": bytes(32),
    "training_id": bytes(32), "roster": AGREED.terms.members, "schedule": Schedule(name="fixed", size=3), "text": "x",
    "last_round": 3, "segments": WHOLE.terms.segments, "shape": (2,), "sender": 0, "stage": Stage.KEYS,
    "reason": "late", "dropouts": 1, "groupings": (((0, 1, 2),),), "rows": [(0, 1), (1, 2)], "secret": bytes(32),
    "threshold": 2, "count": 3, "key": bytes(16), "private": bytes(32), "public": MEMBERS[0].public, "most": 2,
    "disputes": [(0, 1)], "public_weights": None, "items": "abc", "purpose": b"x", "colluders": 1, "draws": 1,
    "schedule_name": "fixed", "training": WHOLE, "earlier": (), "parts": (), "signature": bytes(64),
    "weight": 1, "id": 0, "path": "/nonexistent/secagg", "folder": "/nonexistent/secagg", "message": b"message",
}  # fmt: skip
SPECIAL: dict[str, dict[str, Any]] = {
    "Member": {"identity": bytes(32)},
    "Plan": {"schedule": Schedule(name="fixed", size=4), "segments": (), "round": 0},
    "Terms": {"members": WHOLE.terms.members, "name": "a", "schedule": WHOLE.terms.schedule},
    "Client": {"agreement": AGREED, "identity": IDENTITIES[0], "journal": MemoryJournal()},
    "secagg.whole.Client": {},
    "run": {"agreement": AGREED, "identities": IDENTITIES},
    "clear": {"agreement": AGREED},
    "FixedPoint": {"clients": 3, "clip": 1.0},
    "Integers": {"clients": 3},
    "Segments": {"clients": 3, "segments": (Segment(shape=(2,), bound=9),)},
    "Schedule": {"name": "random"},
}


@dataclass(frozen=True)
class Call:
    """A callable with good arguments; `make` gives it anew, because some objects are spent by a call."""

    title: str
    make: Callable[[], Callable[..., Any]]
    good: dict[str, Any]
    names: tuple[str, ...]


def objects() -> dict[str, Callable[[], Any]]:
    """Objects whose public methods are called, each made anew."""
    return {
        "Agreement": lambda: WHOLE,
        "Terms": lambda: WHOLE.terms,
        "Plan": lambda: PLAN,
        "Proposal": lambda: Proposal.of(WHOLE),
        "Summary": lambda: summarise(WHOLE),
        "protocol.Client": lambda: Client(0, IDENTITIES[0], AGREED, 0, MemoryJournal()),
        "protocol.Server": lambda: Server(PLAN),
        "Result": lambda: RESULT,
        "NoCache": NoCache,
        "Suspects": lambda: Suspects(most=2),
        "MemoryJournal": MemoryJournal,
        "whole.Client": lambda: whole.Client(WHOLE, SIGNATURES, 0, MEMBERS[0]),
        "whole.Server": lambda: whole.Server(WHOLE),
        "WholeRun": lambda: WholeRun(WHOLE, MEMBERS),
        "MemoryStore": whole.MemoryStore,
        "Identity": lambda: MEMBERS[0],
        "Schedule": lambda: Schedule(name="random", size=3),
        "Policy": Policy,
        "SeedCeremony": lambda: SeedCeremony(training_id=b"x", roster=(1, 2)),
        "FixedPoint": lambda: FixedPoint(clients=3, clip=1.0),
        "Integers": lambda: Integers(clients=3, bound=5),
        "Segment": lambda: Segment(shape=(2,), bound=9),
        "Segments": lambda: Segments(clients=3, segments=(Segment(shape=(2,), bound=9),)),
        "Cost": Cost,
    }


RESULT = run(AGREED, UPDATES, IDENTITIES)


def calls() -> Iterator[Call]:
    """Every public function, constructor, class method, and method of the objects above."""
    seen: set[int] = set()
    for package in PACKAGES:
        module = import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            if id(value) in seen or not callable(value) or isinstance(value, EnumMeta):
                continue
            seen.add(id(value))
            if inspect.isclass(value) and issubclass(value, BaseException):
                continue
            if getattr(value, "_is_protocol", False) or (not inspect.isroutine(value) and not inspect.isclass(value)):
                continue
            yield from _call(f"{package}.{name}", name, lambda value=value: value, value)
    for title, make in objects().items():
        kind = type(make())
        for name, member in inspect.getmembers(kind):
            if name.startswith("_") or not (inspect.isfunction(member) or inspect.ismethod(member)):
                continue
            yield from _call(f"{title}().{name}", name, lambda make=make, name=name: getattr(make(), name), member, 1)


def _call(title: str, name: str, make: Callable[[], Any], value: Any, bound: int = 0) -> Iterator[Call]:
    try:
        parameters = list(inspect.signature(make() if bound else value).parameters.values())
    except ValueError:
        return
    special = SPECIAL.get(title, SPECIAL.get(name, {}))
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    good = {p.name: special.get(p.name, GOOD.get(p.name)) for p in named if p.default is p.empty or p.name in special}
    if named:
        yield Call(title, make, good, tuple(p.name for p in named))


def outcome(call: Call, name: str, wrong: Any) -> BaseException | None:
    """The error that a call with this wrong argument must not raise; None if it ended well."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call.make()(**{**call.good, name: wrong})
        except SecAggError:
            pass
        except Exception as error:  # the point of the test
            return error
    return None

"""Makes test vectors: runs operations with this implementation and records their outputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from secagg import Identity, Member, Plan, Policy, Schedule
from tests.secagg.drbg import Drbg
from tests.vectors.check import FORMAT, perform, session_of

IDENTITY = "vectors/identity/{}"


class RecordedDrbg:
    """A `Drbg` that records every draw."""

    def __init__(self, name: str, draws: list[str]) -> None:
        self._source = Drbg(name.encode())
        self._draws = draws

    def __call__(self, count: int) -> bytes:
        drawn = self._source(count)
        self._draws.append(drawn.hex())
        return drawn


class Case:
    """One vector file. `do` runs an operation, records it, and asserts the expected outcome."""

    def __init__(
        self,
        name: str,
        about: str,
        *,
        given: Mapping[str, Any] | None = None,
        base: Case | None = None,
        first: str = "",
    ) -> None:
        self.name = name
        self.about = about
        self.given: dict[str, Any] = {**(given or {}), "entropy": {}}
        self.operations: list[dict[str, Any]] = []
        self.marks: dict[str, int] = {}
        self.base = base
        self._spliced: dict[str, dict[str, Any]] = {}
        self.hashed: tuple[str, ...] = ()  # prefixes of names whose bytes are too long to print
        self._first = base.marks[first] if base else 0
        under = base.content() if base else {}
        own = {"given": self.given, "bytes": {}}
        self.session = session_of(own, under, self._draw)
        self._inherited = set(self.session.known)
        self.before: list[dict[str, Any]] = under.get("operations", [])[: self._first]
        for step in self.before:
            perform(self.session, step)

    def _draw(self, name: str) -> RecordedDrbg:
        return RecordedDrbg(f"vectors/{self.name}/{name}", self.given["entropy"].setdefault(name, []))

    def give(self, name: str, data: bytes) -> str:
        """Name bytes that no operation makes. The file has them as a change of others if that is short."""
        known = self.session.known
        assert known.get(name, data) == data, name
        if name not in known:
            best = min((_splice(of, like, data) for of, like in known.items()), key=_size, default={})
            if best and _size(best) + 60 < 2 * len(data):
                self._spliced[name] = best
            known[name] = data
        return name

    def do(self, op: str, values: Mapping[str, Any], ok: bool | str = True) -> Any:
        step = {"op": op, "in": dict(values)}
        done = perform(self.session, step)
        assert done["ok"] == ok, f"{self.name}: {step} gave {done}"
        self.operations.append({**step, **done})
        return done.get("out")

    def mark(self, name: str) -> None:
        """Name this point, so that other cases can start here."""
        self.marks[name] = len(self.operations)

    def content(self) -> dict[str, Any]:
        new = [name for name in self.session.known if name not in self._inherited]
        known = {name: self._written(name) for name in new}
        base = {"base": {"file": f"{self.base.name}.json", "first": self._first}} if self.base else {}
        return {
            "format": FORMAT,
            "about": self.about,
            **base,
            "given": self.given,
            "bytes": known,
            "operations": self.operations,
        }

    def _written(self, name: str) -> str | dict[str, Any]:
        data = self.session.known[name]
        if name in self._spliced:
            return self._spliced[name]
        return {"sha256": sha256(data).hexdigest()} if name.startswith(self.hashed) else data.hex()

    def text(self) -> str:
        """JSON with one line per input, byte string and operation."""
        parts = []
        for name, value in self.content().items():
            if name in ("given", "bytes"):
                lines = [f"{_dump(key)}: {_dump(item)}" for key, item in value.items()]
                shown = "{\n" + ",\n".join(lines) + "\n}"
            elif name == "operations":
                shown = "[\n" + ",\n".join(map(_dump, value)) + "\n]"
            else:
                shown = _dump(value)
            parts.append(f"{_dump(name)}: {shown}")
        return "{\n" + ",\n".join(parts) + "\n}\n"


@dataclass(frozen=True)
class Recipe:
    """How to make a case: a function runs its operations, the function's docstring is its text `about`."""

    name: str
    fill: Callable[[Case], None]
    after: str  # the point of the base where the case starts; empty: it has no base
    base: str
    given: Mapping[str, Any] | None

    def make(self, bases: Mapping[str, Case]) -> Case:
        about = " ".join((self.fill.__doc__ or "").split())
        base = bases[self.base] if self.after else None
        case = Case(self.name, about, given=self.given, base=base, first=self.after)
        self.fill(case)
        return case


def vector(
    name: str, *, after: str = "", base: str = "n5_flat", given: Mapping[str, Any] | None = None
) -> Callable[[Callable[[Case], None]], Recipe]:
    return lambda fill: Recipe(name, fill, after, base, given)


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True)


def _splice(name: str, like: bytes, data: bytes) -> dict[str, Any]:
    """`data` as a change of `like`."""
    most = min(len(like), len(data))
    at = next((i for i in range(most) if like[i] != data[i]), most)
    tail = next((i for i in range(most - at) if like[-1 - i] != data[-1 - i]), most - at)
    return {"of": name, "at": at, "drop": len(like) - at - tail, "put": data[at : len(data) - tail].hex()}


def _size(change: dict[str, Any]) -> int:
    return len(change["put"])


def identity(client: int) -> Identity:
    return Identity.generate(Drbg(IDENTITY.format(client).encode()))


def make_plan(ids: tuple[int, ...], schedule: Schedule, **changes: Any) -> Plan:
    """A plan over these ids; values that are otherwise random are fixed."""
    settings: dict[str, Any] = {
        "training_id": Drbg(b"vectors/training id")(32),
        "training_seed": Drbg(b"vectors/training seed")(32),
        "round": 7,
        "roster": tuple(Member(v, identity(v).public) for v in ids),
        "length": 6,
        "schedule": schedule,
        "clip": 1.0,
        "context": b"model 1",
    }
    return Plan(**{**settings, **changes})


def policy_json(policy: Policy) -> dict[str, Any]:
    return {
        "min_survivors": policy.min_survivors,
        "anonymity": policy.anonymity,
        "max_leverage": policy.max_leverage,
        "mode": policy.mode,
    }

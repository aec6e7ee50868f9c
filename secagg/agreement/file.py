"""An agreement as a TOML file that people read and edit, and the small files that carry one member's step.

`read` and `write` are for the whole file. The layout is fixed, and what is unknown is refused: a misspelt key must not
silently mean the default. Everything in these files is public.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Collection, Iterator
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Final

from secagg.agreement.beacon import NamedPulse
from secagg.agreement.floors import Floors
from secagg.agreement.origin import Approval, Commitment, Reveal
from secagg.agreement.plan import MODES, Member
from secagg.agreement.proposal import Part, Proposal, Signature
from secagg.agreement.terms import Terms
from secagg.arguments import MOST_ROUND
from secagg.crypto.keys import HASH_BYTES, KEY_BYTES, SIGNATURE_BYTES
from secagg.crypto.pulse import MOST_KEY, MOST_MESSAGE, MOST_SIGNATURE, Pulse
from secagg.crypto.segments import Segment
from secagg.errors import UsageError
from secagg.exposure.audit import MEMORIES, Policy
from secagg.exposure.schedules import SCHEDULES, Schedule
from secagg.exposure.seed import CONTRIBUTION_BYTES
from secagg.types import ClientId

VERSION: Final = 2
MOST_BYTES: Final = 2**27  # of a file: more than 65,535 members need
_GROUPS: Final = ("size", "groupings", "atom", "sample", "least_groups", "colluders", "threshold", "cell", "degree")
_PARTS: Final[dict[str, tuple[type[Any], dict[str, int]]]] = {  # kind of part -> its class and its byte strings
    "commitment": (Commitment, {"commitment": HASH_BYTES, "signature": SIGNATURE_BYTES}),
    "reveal": (Reveal, {"contribution": CONTRIBUTION_BYTES, "signature": SIGNATURE_BYTES}),
    "approval": (Approval, {"signature": SIGNATURE_BYTES}),
    "signature": (Signature, {"signature": SIGNATURE_BYTES}),
}


class Table:
    """A table of a file. Each key is taken once, with its type; what is left over at the end is refused."""

    def __init__(self, values: object, where: str, keys: Collection[str]) -> None:
        if not isinstance(values, dict):
            raise UsageError(f"{where}: expected a table [{where}], got {_show(values)}")
        self.where, self._values = where, values
        for key in values:
            if key not in keys:
                close = difflib.get_close_matches(key, keys, 1)
                hint = f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(sorted(keys))}"
                raise UsageError(f"{self.path(key)}: unknown key; {hint}")

    def path(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where else key

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def raw(self, key: str, default: Any = None) -> Any:
        return self._values.get(key, default)

    def text(self, key: str, default: str | None = None) -> str:
        return str(self._typed(key, str, "text", default))

    def whole(self, key: str, default: int | None = None, *, most: int = MOST_ROUND) -> int:
        value: int = self._typed(key, int, "a whole number", default)
        if not 0 <= value <= most:
            raise UsageError(f"{self.path(key)}: expected 0 to {most}, got {value}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        return float(self._typed(key, int | float, "a number", default))

    def choice(self, key: str, choices: Collection[str], default: str | None = None) -> Any:
        value = self._typed(key, str, f"one of {', '.join(choices)}", default)
        if value not in choices:
            close = difflib.get_close_matches(value, choices, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise UsageError(f"{self.path(key)}: expected one of {', '.join(choices)}, got {value!r}{hint}")
        return value

    def hex(self, key: str, size: int, *, most: int | None = None) -> bytes:
        text = self._typed(key, str, _digits(size, most), None)
        try:
            data = bytes.fromhex(text)
        except ValueError:
            data = b""
        if text != data.hex() or not (len(data) == size if most is None else 0 < len(data) <= most):
            raise UsageError(f"{self.path(key)}: expected {_digits(size, most)}, got {_show(text)}")
        return data

    def _typed(self, key: str, kind: Any, expected: str, default: Any) -> Any:
        value = self._values.get(key, default)
        if value is None:
            raise UsageError(f"{self.path(key)}: expected {expected}, but the key is missing")
        if isinstance(value, bool) or not isinstance(value, kind):
            raise UsageError(f"{self.path(key)}: expected {expected}, got {_show(value)}")
        return value


def parse(text: str) -> dict[str, Any]:
    """The TOML of an agreement or a part of this version; anything else is refused in one line."""
    if len(text) > MOST_BYTES:
        raise UsageError(f"expected a file of at most {MOST_BYTES} characters, got {len(text)}")
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as bad:  # TOMLDecodeError, or a number with too many digits
        raise UsageError(f"expected an agreement in TOML: {bad}") from None
    version = document.get("version")
    if type(version) is not int or version != VERSION:
        came = "no version" if version is None else f"version {_show(version)}"
        raise UsageError(f"expected a file of version {VERSION}, got {came}; agree anew (docs/agreement.md)")
    return document


def read(text: str) -> Proposal:
    """The proposal or agreement in a file. The form is checked here; `Proposal.problems` checks signatures.

    >>> from secagg.simulation import make_agreement
    >>> agreement, _ = make_agreement(members=3, size=3, length=4, clip=1.0)
    >>> read(write(Proposal.of(agreement))).agreement == agreement
    True
    """
    return _proposal(parse(text))


def _proposal(document: dict[str, Any]) -> Proposal:
    keys = ("version", "name", "predecessors", "rounds", "groups", "policy", "vector", "segments", "members")
    top = Table(document, "", (*keys, "seed", "signatures"))
    seed = Table(top.raw("seed", {}), "seed", ("from", "chain", "time", "key", "pulse", *_STEPS))
    terms = _terms(top, seed)
    parts: dict[str, Any] = {name: _steps(seed.raw(name), f"seed.{name}", kind) for name, kind in _STEPS.items()}
    signatures = top.raw("signatures", {})
    if isinstance(signatures, dict):
        signatures = {member: {"signature": value} for member, value in signatures.items()}
    parts["signatures"] = _steps(signatures, "signatures", "signature")
    return Proposal(terms=terms, pulse=_pulse(seed.raw("pulse"), "seed.pulse"), **parts)


_STEPS: Final = {"commitments": "commitment", "reveals": "reveal", "approvals": "approval"}


def _terms(top: Table, seed: Table) -> Terms:
    rounds = Table(top.raw("rounds", {}), "rounds", ("first", "last"))
    groups = Table(top.raw("groups", {}), "groups", ("kind", "schedule", *_GROUPS))
    drawn = {name: groups.whole(name) for name in _GROUPS if name in groups}
    shape = {name: drawn.pop(name) for name in ("size", "groupings", "atom") if name in drawn}
    if "size" not in shape:
        raise UsageError("groups.size: expected the number of members in a group, but the key is missing")
    return Terms(
        name=top.text("name"),
        members=_members(top.raw("members")),
        segments=tuple(_segments(top)),
        schedule=Schedule(name=groups.choice("schedule", SCHEDULES, "fixed"), **shape),
        first_round=rounds.whole("first", 0),
        last_round=rounds.whole("last"),
        groups=groups.choice("kind", ("whole", "survivors"), "whole"),
        policy=_policy(top.raw("policy", {})),
        beacon=_beacon(seed),
        predecessors=_predecessors(top.raw("predecessors", [])),
        **drawn,
    )


def _members(values: object) -> tuple[Member, ...]:
    if not isinstance(values, list) or not values:
        raise UsageError(f"members: expected one table [[members]] for each, got {_show(values)}")
    keys = ("id", "name", "identity", "weight")
    tables = [Table(value, f"members[{place}]", keys) for place, value in enumerate(values)]
    with_id = sum("id" in table for table in tables)
    if with_id not in (0, len(tables)):
        raise UsageError(f"members: expected an id for every member or for none, got {with_id} of {len(tables)}")
    members = [
        Member(
            id=table.whole("id", place, most=2**32 - 1),
            identity=table.hex("identity", KEY_BYTES),
            name=table.text("name", ""),
            weight=table.whole("weight", 1, most=2**32 - 1),
        )
        for place, table in enumerate(tables)
    ]
    return tuple(sorted(members, key=lambda member: member.id))


def _segments(top: Table) -> Iterator[Segment]:
    if ("vector" in top) == ("segments" in top):
        raise UsageError("vector: expected either one table [vector] or a table [[segments]] for each part")
    values = [top.raw("vector")] if "vector" in top else top.raw("segments")
    if not isinstance(values, list) or not values:
        raise UsageError(f"segments: expected a table [[segments]] for each part, got {_show(values)}")
    for place, value in enumerate(values):
        whole = "vector" in top
        table = Table(
            value,
            "vector" if whole else f"segments[{place}]",
            ("length", "shape", "clip", "bound", *(() if whole else ("name",))),
        )
        if ("length" in table) == ("shape" in table):
            raise UsageError(f"{table.where}: expected either length or shape")
        shape = table.raw("shape", [table.raw("length")])
        if not isinstance(shape, list) or len(shape) > 32 or any(type(side) is not int for side in shape):
            raise UsageError(f"{table.path('shape')}: expected a list of at most 32 whole numbers, got {_show(shape)}")
        yield Segment(
            name="" if whole else table.text("name"),
            shape=tuple(shape),
            clip=table.number("clip") if "clip" in table else None,
            bound=table.whole("bound", most=2**32 - 1) if "bound" in table else None,
        )


def _policy(values: object) -> Policy:
    default = Policy()
    table = Table(values, "policy", ("anonymity", "min_survivors", "max_leverage", "memory", "mode"))
    return Policy(
        anonymity=table.whole("anonymity", default.anonymity),
        min_survivors=table.whole("min_survivors", default.min_survivors),
        max_leverage=table.number("max_leverage", default.max_leverage),
        memory=table.choice("memory", MEMORIES, default.memory),
        mode=table.choice("mode", MODES, default.mode),
    )


def _beacon(seed: Table) -> NamedPulse | None:
    if seed.choice("from", ("ceremony", "beacon"), "ceremony") == "ceremony":
        for key in ("chain", "time", "key", "pulse", "approvals"):
            if key in seed:
                raise UsageError(f"seed.{key}: only for from = 'beacon'")
        return None
    for key in ("commitments", "reveals"):
        if key in seed:
            raise UsageError(f"seed.{key}: only for from = 'ceremony'")
    when = seed.raw("time")
    if not isinstance(when, datetime) or when.tzinfo is None:
        raise UsageError(f"seed.time: expected a time with its zone, such as 2027-01-31T12:00:00Z, got {_show(when)}")
    milliseconds = when.timestamp() * 1000
    if milliseconds != int(milliseconds):
        raise UsageError(f"seed.time: expected a whole minute, got {when}")
    return NamedPulse(chain=seed.whole("chain"), time=int(milliseconds), key=seed.hex("key", HASH_BYTES))


def _pulse(values: object, where: str) -> Pulse | None:
    if values is None:
        return None
    sizes = {"message": MOST_MESSAGE, "signature": MOST_SIGNATURE, "key": MOST_KEY}
    table = Table(values, where, tuple(sizes))
    return Pulse(**{name: table.hex(name, 0, most=most) for name, most in sizes.items()})


def _predecessors(values: object) -> tuple[bytes, ...]:
    if not isinstance(values, list):
        raise UsageError(f"predecessors: expected a list of fingerprints, got {_show(values)}")
    named = {f"predecessors[{place}]": value for place, value in enumerate(values)}
    table = Table(named, "", tuple(named))
    return tuple(table.hex(key, HASH_BYTES) for key in named)


def _steps(values: object, where: str, kind: str) -> dict[ClientId, Any]:
    """One table per member: `3 = { commitment = "...", signature = "..." }`."""
    cls, sizes = _PARTS[kind]
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UsageError(f"{where}: expected a table [{where}] with a line for each member, got {_show(values)}")
    found = {}
    for key, value in values.items():
        if not key.isascii() or not key.isdigit() or str(int(key[:10])) != key:
            raise UsageError(f"{where}.{_show(key)}: expected the id of a member, got {_show(key)}")
        table = Table(value, f"{where}.{key}", tuple(sizes))
        found[int(key)] = cls(int(key), *(table.hex(name, size) for name, size in sizes.items()))
    return found


def read_floors(text: str) -> Floors:
    """An operator's floors: the fields of `Floors` as keys; each that is absent has its default.

    >>> read_floors("size = 5").size
    5
    """
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as bad:  # TOMLDecodeError, or a number with too many digits
        raise UsageError(f"expected floors in TOML: {bad}") from None
    keys = tuple(field.name for field in fields(Floors))
    Table(document, "", keys)
    return Floors(**document)


# --- writing -----------------------------------------------------------------------------------------------


def write(proposal: Proposal) -> str:
    """The file of a proposal or agreement. Only what differs from a default is written, and what people look for.

    >>> from secagg.simulation import make_agreement
    >>> agreement, _ = make_agreement(members=3, size=3, length=4, clip=1.0)
    >>> write(Proposal.of(agreement)).splitlines()[1:3]
    ['version = 2', 'name = "simulation"']
    """
    return "\n".join(_lines(proposal)) + "\n"


def _lines(proposal: Proposal) -> Iterator[str]:
    terms = proposal.terms
    yield "# An agreement of secagg (docs/agreement.md). Everything in this file is public."
    yield f"version = {VERSION}"
    yield f"name = {_quoted(terms.name)}"
    if terms.predecessors:
        yield "predecessors = ["
        yield from (f'    "{earlier.hex()}",' for earlier in terms.predecessors)
        yield "]"
    yield from ("", "[rounds]", f"first = {terms.first_round}", f"last = {terms.last_round}")
    yield from ("", "[groups]", f'kind = "{terms.groups}"', f'schedule = "{terms.schedule.name}"')
    values = {
        name: getattr(terms.schedule if name in ("size", "groupings", "atom") else terms, name) for name in _GROUPS
    }
    defaults = {"groupings": 1, "atom": 0, "sample": 0, "least_groups": 1, "cell": 0, "degree": 0}
    yield from (f"{key} = {value}" for key, value in values.items() if value is not None and value != defaults.get(key))
    policy = terms.policy
    yield from ("", "[policy]", f"anonymity = {policy.anonymity}", f"min_survivors = {policy.min_survivors}")
    yield f"max_leverage = {float(policy.max_leverage)!r}"
    yield from (f'memory = "{policy.memory}"', f'mode = "{policy.mode}"')
    for segment in terms.segments:
        yield from ("", "[[segments]]" if segment.name else "[vector]")
        if segment.name:
            yield f"name = {_quoted(segment.name)}"
        yield f"length = {segment.shape[0]}" if len(segment.shape) == 1 else f"shape = {list(segment.shape)}"
        yield f"bound = {segment.bound}" if segment.clip is None else f"clip = {float(segment.clip)!r}"
    for member in terms.members:
        yield from ("", "[[members]]", f"id = {member.id}")
        if member.name:
            yield f"name = {_quoted(member.name)}"
        yield f'identity = "{member.identity.hex()}"'
        if member.weight != 1:
            yield f"weight = {member.weight}"
    yield from _seed_lines(proposal)
    if proposal.signatures:
        yield from ("", "[signatures]")
        yield from (f'{one.member} = "{one.signature.hex()}"' for one in proposal.in_order("signatures"))


def _seed_lines(proposal: Proposal) -> Iterator[str]:
    beacon = proposal.terms.beacon
    yield from ("", "[seed]", f'from = "{"ceremony" if beacon is None else "beacon"}"')
    if beacon is not None:
        when = datetime.fromtimestamp(beacon.time // 1000, UTC)
        yield from (f"chain = {beacon.chain}", f"time = {when:%Y-%m-%dT%H:%M:%SZ}", f'key = "{beacon.key.hex()}"')
    for name, kind in _STEPS.items():
        if parts := proposal.in_order(name):
            yield from ("", f"[seed.{name}]")
            yield from (f"{part.member} = {{ {_inline(part, kind)} }}" for part in parts)
    if proposal.pulse is not None:
        yield from ("", "[seed.pulse]")
        yield from (f'{name} = "{getattr(proposal.pulse, name).hex()}"' for name in ("message", "signature", "key"))


def _inline(part: Any, kind: str) -> str:
    return ", ".join(f'{name} = "{getattr(part, name).hex()}"' for name in _PARTS[kind][1])


# --- parts -------------------------------------------------------------------------------------------------


def write_part(proposal: Proposal, part: Commitment | Reveal | Approval | Signature) -> str:
    """The small file that carries one step of one member to the others."""
    kind = next(name for name, (cls, _) in _PARTS.items() if isinstance(part, cls))
    lines = [f"version = {VERSION}", f'part = "{kind}"', f"agreement = {_quoted(proposal.terms.name)}"]
    lines += [f'terms = "{proposal.terms.hash.hex()}"', f"member = {part.member}"]
    return "\n".join([*lines, *_inline(part, kind).split(", ")]) + "\n"


def read_parts(text: str, proposal: Proposal) -> tuple[Part, ...]:
    """The parts in a small file, or in another copy of the agreement; UsageError if they are for other terms."""
    document = parse(text)
    if "part" not in document:
        other = _proposal(document)
        _check_same(other.terms.hash, proposal)
        pulse = () if other.pulse is None else (other.pulse,)
        return (*(part for name in _STEPS for part in other.in_order(name)), *pulse, *other.in_order("signatures"))
    kind = Table(document, "", tuple(document)).choice("part", tuple(_PARTS))
    cls, sizes = _PARTS[kind]
    table = Table(document, "", ("version", "part", "agreement", "terms", "member", *sizes))
    _check_same(table.hex("terms", HASH_BYTES), proposal, table.text("agreement"))
    member = table.whole("member", most=2**32 - 1)
    return (cls(member, *(table.hex(name, size) for name, size in sizes.items())),)


def _check_same(terms: bytes, proposal: Proposal, name: str | None = None) -> None:
    if terms != proposal.terms.hash:  # audit: part-for-these-terms
        about = "" if name in (None, proposal.terms.name) else f" (of {name!r})"
        raise UsageError(
            f"terms: expected {proposal.terms.hash.hex()[:16]}..., got {terms.hex()[:16]}...{about}: this was made for "
            "other terms; compare the two files"
        )


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _digits(size: int, most: int | None) -> str:
    return f"{2 * size} lower-case hexadecimal digits" if most is None else "lower-case hexadecimal digits"


def _show(value: object) -> str:
    """What came, short enough for one line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

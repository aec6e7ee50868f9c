"""An agreement as a TOML file that people read and edit, and the small files that carry one member's step.

`read` and `write` are for the whole file. The layout is fixed, and what is unknown is refused: a misspelt key must not
silently mean the default. Everything in these files is public.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Final

from secagg.agreement.beacon import NamedPulse
from secagg.agreement.floors import Floors
from secagg.agreement.keeping import Kept
from secagg.agreement.origin import Approval, Commitment, Reveal
from secagg.agreement.plan import MODES, Member
from secagg.agreement.proposal import Part, Proposal, Signature
from secagg.agreement.sections import SECTIONS
from secagg.agreement.statistics.noise import read_noise
from secagg.agreement.table import Table, quoted, show
from secagg.agreement.terms import Terms
from secagg.arguments import instance
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


def parse(text: str) -> dict[str, Any]:
    """The TOML of an agreement or a part of this version; anything else is refused in one line."""
    if len(instance("text", text, str)) > MOST_BYTES:
        raise UsageError(f"expected a file of at most {MOST_BYTES} characters, got {len(text)}")
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as bad:  # TOMLDecodeError, or a number with too many digits
        raise UsageError(f"expected an agreement in TOML: {bad}") from None
    version = document.get("version")
    if type(version) is not int or version != VERSION:
        came = "no version" if version is None else f"version {show(version)}"
        raise UsageError(f"expected a file of version {VERSION}, got {came}; agree anew (docs/agreement.md)")
    return document


def read(text: str) -> Proposal:
    """The proposal or agreement in a file. The form is checked here; `Proposal.problems` checks signatures.

    >>> from secagg.simulation import make_agreement
    >>> agreement, _ = make_agreement(members=3, size=3, length=4, clip=1.0)
    >>> read(write(Proposal.of(agreement))).agreement == agreement
    True
    """
    return read_document(parse(text))


def read_document(document: dict[str, Any]) -> Proposal:
    """The proposal in a file that `parse` has read."""
    keys = ("version", "name", "predecessors", "rounds", "groups", "policy", "vector", "segments", "members")
    sections = tuple(section.name for section in SECTIONS)
    top = Table(document, "", (*keys, *sections, "seed", "signatures"))
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
    groups = Table(top.raw("groups", {}), "groups", ("kind", "schedule", "roll_call", "keep", *_GROUPS))
    drawn: dict[str, Any] = {name: groups.whole(name) for name in _GROUPS if name in groups}
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
        roll_call=groups.flag("roll_call", False),
        predecessors=_predecessors(top.raw("predecessors", [])),
        keep=_keep(groups.raw("keep")),
        **drawn,
        **_sections(top, shape["size"]),
    )


def _sections(top: Table, clients: int) -> dict[str, Any]:
    """The sections of the file. Noise of statistics is written as a multiplier, from which the rest follows."""
    short = "statistics" in top and "multiplier" in (top.raw("noise") or ())
    direct = (section for section in SECTIONS if section.name in top and not (short and section.name == "noise"))
    found = {section.name: section.read(top.raw(section.name)) for section in direct}
    return {**found, "noise": read_noise(top.raw("noise"), found["statistics"], clients)} if short else found


def _members(values: object) -> tuple[Member, ...]:
    if not isinstance(values, list) or not values:
        raise UsageError(f"members: expected one table [[members]] for each, got {show(values)}")
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
    if "statistics" in top and not ("vector" in top or "segments" in top):
        return  # they follow from what is declared
    if ("vector" in top) == ("segments" in top):
        raise UsageError("vector: expected either one table [vector] or a table [[segments]] for each part")
    values = [top.raw("vector")] if "vector" in top else top.raw("segments")
    if not isinstance(values, list) or not values:
        raise UsageError(f"segments: expected a table [[segments]] for each part, got {show(values)}")
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
            raise UsageError(f"{table.path('shape')}: expected a list of at most 32 whole numbers, got {show(shape)}")
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
        raise UsageError(f"seed.time: expected a time with its zone, such as 2027-01-31T12:00:00Z, got {show(when)}")
    milliseconds = when.timestamp() * 1000
    if milliseconds != int(milliseconds):
        raise UsageError(f"seed.time: expected a whole minute, got {when}")
    return NamedPulse(chain=seed.whole("chain"), time=int(milliseconds), key=seed.hex("key", HASH_BYTES))


def _pulse(values: object, where: str) -> Pulse | None:
    if values is None:
        return None
    sizes = {"message": MOST_MESSAGE, "signature": MOST_SIGNATURE, "key": MOST_KEY}
    table = Table(values, where, tuple(sizes))
    return Pulse(**{name: table.hex(name, most=most) for name, most in sizes.items()})


def _predecessors(values: object) -> tuple[bytes, ...]:
    if not isinstance(values, list):
        raise UsageError(f"predecessors: expected a list of fingerprints, got {show(values)}")
    named = {f"predecessors[{place}]": value for place, value in enumerate(values)}
    table = Table(named, "", tuple(named))
    return tuple(table.hex(key, HASH_BYTES) for key in named)


def _keep(values: object) -> Kept | None:
    if values is None:
        return None
    table = Table(values, "groups.keep", ("seed", "dropped"))
    dropped = table.raw("dropped")
    if not isinstance(dropped, list) or any(type(one) is not int for one in dropped):
        raise UsageError(f"groups.keep.dropped: expected a list of the members that left, by id, got {show(dropped)}")
    return Kept(table.hex("seed", HASH_BYTES), tuple(sorted(dropped)))


def _steps(values: object, where: str, kind: str) -> dict[ClientId, Any]:
    """One table per member: `3 = { commitment = "...", signature = "..." }`."""
    cls, sizes = _PARTS[kind]
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UsageError(f"{where}: expected a table [{where}] with a line for each member, got {show(values)}")
    found = {}
    for key, value in values.items():
        if not key.isascii() or not key.isdigit() or str(int(key[:10])) != key:
            raise UsageError(f"{where}.{show(key)}: expected the id of a member, got {show(key)}")
        table = Table(value, f"{where}.{key}", tuple(sizes))
        found[int(key)] = cls(int(key), *(table.hex(name, size) for name, size in sizes.items()))
    return found


def read_floors(text: str) -> Floors:
    """An operator's floors: the fields of `Floors` as keys; each that is absent has its default.

    >>> read_floors("size = 5").size
    5
    """
    try:
        document = tomllib.loads(instance("text", text, str))
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
    return "\n".join(_lines(instance("proposal", proposal, Proposal))) + "\n"


def _lines(proposal: Proposal) -> Iterator[str]:
    terms = proposal.terms
    yield "# An agreement of secagg (docs/agreement.md). Everything in this file is public."
    yield f"version = {VERSION}"
    yield f"name = {quoted(terms.name)}"
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
    if terms.roll_call:
        yield "roll_call = true"
    if terms.keep is not None:
        yield from ("", "[groups.keep]", f'seed = "{terms.keep.seed.hex()}"', f"dropped = {list(terms.keep.dropped)}")
    policy = terms.policy
    yield from ("", "[policy]", f"anonymity = {policy.anonymity}", f"min_survivors = {policy.min_survivors}")
    yield f"max_leverage = {float(policy.max_leverage)!r}"
    yield from (f'memory = "{policy.memory}"', f'mode = "{policy.mode}"')
    for segment in () if terms.statistics else terms.segments:
        yield from ("", "[[segments]]" if segment.name else "[vector]")
        if segment.name:
            yield f"name = {quoted(segment.name)}"
        yield f"length = {segment.shape[0]}" if len(segment.shape) == 1 else f"shape = {list(segment.shape)}"
        yield f"bound = {segment.bound}" if segment.clip is None else f"clip = {float(segment.clip)!r}"
    for member in terms.members:
        yield from ("", "[[members]]", f"id = {member.id}")
        if member.name:
            yield f"name = {quoted(member.name)}"
        yield f'identity = "{member.identity.hex()}"'
        if member.weight != 1:
            yield f"weight = {member.weight}"
    for section in SECTIONS:
        if (value := getattr(terms, section.name)) is not None:
            yield from ("", *section.lines(value))
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
    lines = [f"version = {VERSION}", f'part = "{kind}"', f"agreement = {quoted(proposal.terms.name)}"]
    lines += [f'terms = "{proposal.terms.hash.hex()}"', f"member = {part.member}"]
    return "\n".join([*lines, *_inline(part, kind).split(", ")]) + "\n"


def read_parts(text: str, proposal: Proposal) -> tuple[Part, ...]:
    """The parts in a small file, or in another copy of the agreement; UsageError if they are for other terms."""
    document = parse(text)
    if "part" not in document:
        other = read_document(document)
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

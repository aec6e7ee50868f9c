"""An agreement while it grows: terms, then commitments and contributions (or a pulse), then signatures.

Each step of a member is a small signed part. Parts are merged in any order that the ceremony allows, and every part is
checked when it is merged; whatever is wrong names the member. No server is needed: members send each other files.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from secagg.agreement.agreement import Agreement
from secagg.agreement.origin import (
    Approval,
    BeaconPulse,
    Ceremony,
    Commitment,
    Origin,
    Reveal,
    check_approval,
    check_commitment,
    check_reveal,
    commitments_hash,
)
from secagg.agreement.terms import Terms
from secagg.arguments import each, ids, instance
from secagg.crypto.keys import verify
from secagg.crypto.pulse import Pulse
from secagg.errors import PeerError, UsageError
from secagg.exposure.seed import SeedCeremony
from secagg.types import ClientId


@dataclass(frozen=True, slots=True)
class Signature:
    """One member's signature on an agreement's fingerprint.

    >>> Signature(3, bytes(64)).member
    3
    """

    member: ClientId
    signature: bytes


Part = Commitment | Reveal | Approval | Pulse | Signature
_FIELDS: dict[type[Any], str] = {
    Commitment: "commitments",
    Reveal: "reveals",
    Approval: "approvals",
    Signature: "signatures",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that an agreement lacks, or that is wrong in it. `member` is whose step it is, if it is anybody's.

    >>> print(Problem(3, "member 3 has not signed"))
    member 3 has not signed
    """

    member: ClientId | None
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Terms with the parts that are there so far, by member. `secagg.agreement.file` reads and writes it.

    >>> from secagg.simulation import make_agreement
    >>> agreement, identities = make_agreement(members=3, size=3, length=4, clip=1.0)
    >>> proposal = Proposal.of(agreement)
    >>> [str(problem) for problem in proposal.problems()]
    ['member 0 has not signed', 'member 1 has not signed', 'member 2 has not signed']
    >>> signed = proposal.add(Signature(v, agreement.sign(v, identities[v])) for v in identities)
    >>> list(signed.problems()), signed.agreement == agreement
    ([], True)
    """

    terms: Terms
    commitments: Mapping[ClientId, Commitment] = field(default_factory=dict)
    reveals: Mapping[ClientId, Reveal] = field(default_factory=dict)
    approvals: Mapping[ClientId, Approval] = field(default_factory=dict)
    pulse: Pulse | None = None
    signatures: Mapping[ClientId, Signature] = field(default_factory=dict)

    @classmethod
    def of(cls, agreement: Agreement) -> Proposal:
        """An agreement that nobody has signed yet."""
        origin, terms = instance("agreement", agreement, Agreement).origin, agreement.terms
        if isinstance(origin, BeaconPulse):
            return cls(terms=terms, approvals={a.member: a for a in origin.approvals}, pulse=origin.pulse)
        commitments = {c.member: c for c in origin.commitments}
        return cls(terms=terms, commitments=commitments, reveals={r.member: r for r in origin.reveals})

    def add(self, parts: Iterable[Part]) -> Proposal:
        """This proposal with more parts. PeerError, with the member as culprit, if one is wrong or contradicts."""
        waiting = each("parts", parts, object)
        for part in waiting:
            if not isinstance(part, Part):
                raise UsageError(f"parts, each: expected a step of a member or a pulse, got {type(part).__name__}")
        proposal = self
        for kind in (Commitment, Approval, Reveal, Pulse, Signature):
            proposal = proposal._with([part for part in waiting if isinstance(part, kind)])
        return proposal

    def _with(self, parts: Sequence[Any]) -> Proposal:
        """This proposal with more parts of one kind."""
        if not parts:
            return self
        if isinstance(parts[0], Pulse):
            self.check(parts[0])
            return replace(self, pulse=parts[0])
        name = _FIELDS[type(parts[0])]
        known = dict(getattr(self, name))
        for part in parts:
            if known.get(part.member) == part:
                continue
            self.check(part)
            if part.member in known:  # audit: one-step-per-member
                raise PeerError(
                    f"{self.who(part.member)} signed two different {name}; ask which one is right, and why",
                    culprit=part.member,
                )
            known[part.member] = part
        more: dict[str, Any] = {name: known}
        return replace(self, **more)

    def check(self, part: Part) -> None:
        """PeerError unless this part is right for these terms and what is already here."""
        terms = self.terms
        if not isinstance(part, Part):
            raise UsageError(f"part: expected a step of a member or a pulse, got {type(part).__name__}")
        if not isinstance(part, Pulse) and part.member not in terms.identities:
            raise PeerError(f"client {part.member} is not a member; expected one of {len(terms.ids)} members")
        if isinstance(part, Commitment | Reveal) == (terms.beacon is not None) and not isinstance(part, Signature):
            raise PeerError(
                f"a {type(part).__name__.lower()} does not belong to terms whose seed comes from "
                f"{'a beacon' if terms.beacon else 'a ceremony'}"
            )
        match part:
            case Commitment():
                check_commitment(terms, part)
            case Approval():
                check_approval(terms, part)
            case Reveal():
                check_reveal(terms, self._shown, part)
                promised = self._ceremony.commitment(part.member, part.contribution)
                # audit: reveal-as-committed
                if not hmac.compare_digest(promised, self.commitments[part.member].commitment):
                    raise PeerError(
                        f"the contribution of {self.who(part.member)} does not match its commitment; try again "
                        "without this member",
                        culprit=part.member,
                    )
            case Pulse():
                assert terms.beacon is not None
                terms.beacon.seed(terms.hash, part)
            case Signature():
                verify(  # audit: signature-part-checked
                    terms.identities[part.member],
                    part.signature,
                    self.agreement.statement(part.member),
                    signer=part.member,
                )

    @cached_property
    def _ceremony(self) -> SeedCeremony:
        return SeedCeremony(training_id=self.terms.hash, roster=self.terms.ids)

    @cached_property
    def _shown(self) -> bytes:
        missing = self.waiting_for("commitments")
        if missing:
            raise UsageError(f"no commitment yet from {self.who(missing[0])}; nobody can reveal before all committed")
        return commitments_hash(self.terms, self.in_order("commitments"))

    def _steps(self, name: str) -> Mapping[ClientId, Any]:
        if not isinstance(name, str) or name not in _FIELDS.values():
            raise UsageError(f"name: expected one of {', '.join(_FIELDS.values())}, got {name!r}")
        steps: Mapping[ClientId, Any] = getattr(self, name)
        return steps

    def in_order(self, name: str) -> tuple[Any, ...]:
        """The commitments, reveals, approvals or signatures, in the order of ids."""
        parts = self._steps(name)
        return tuple(parts[member] for member in sorted(parts))

    @property
    def signature_bytes(self) -> dict[ClientId, bytes]:
        """The members' signatures as clients and servers take them."""
        return {member: part.signature for member, part in self.signatures.items()}

    def waiting_for(self, name: str) -> list[ClientId]:
        """The members without a commitment, reveal, approval or signature."""
        return [member for member in self.terms.ids if member not in self._steps(name)]

    @property
    def steps(self) -> tuple[str, ...]:
        """What members still contribute before they sign: "commitments" and "reveals", or "approvals"."""
        return ("commitments", "reveals") if self.terms.beacon is None else ("approvals",)

    @property
    def has_seed(self) -> bool:
        """Whether the seed's origin is complete, so that there is an agreement to sign."""
        pulse = self.terms.beacon is None or self.pulse is not None
        return pulse and not any(self.waiting_for(step) for step in self.steps)

    @cached_property
    def agreement(self) -> Agreement:
        """The agreement, its seed recomputed; UsageError while parts of the seed are missing."""
        if not self.has_seed:
            raise UsageError(f"there is no seed yet: {next(iter(self.problems())).text}")
        origin: Origin
        if self.terms.beacon is None:
            origin = Ceremony(self.in_order("commitments"), self.in_order("reveals"))
        else:
            assert self.pulse is not None
            origin = BeaconPulse(self.in_order("approvals"), self.pulse)
        return Agreement(terms=self.terms, origin=origin)

    def problems(self) -> Iterator[Problem]:
        """Everything that is missing or wrong, each with its member; nothing for a complete agreement."""
        words = {
            "commitments": "has not committed to a contribution",
            "reveals": "has not revealed its contribution",
            "approvals": "has not signed the terms that name the pulse",
            "signatures": "has not signed",
        }
        for step in (*self.steps, "signatures"):
            if step == "signatures" and (wrong_pulse := list(self._wrong_pulse())):
                yield from wrong_pulse
                return
            wrong = list(self._wrong(step))
            missing = self.waiting_for(step)
            yield from wrong
            yield from (Problem(member, f"{self.who(member)} {words[step]}") for member in missing)
            if wrong or missing:
                return

    def _wrong(self, step: str) -> Iterator[Problem]:
        """The parts of one step that are wrong."""
        for part in self.in_order(step):
            try:
                self.check(part)
            except PeerError as bad:
                yield Problem(part.member, f"{self.who(part.member)}: {step.removesuffix('s')}: {bad}")

    def _wrong_pulse(self) -> Iterator[Problem]:
        if self.terms.beacon is None:
            return
        if self.pulse is None:
            yield Problem(None, f"the pulse of {self.terms.beacon.when} is missing")
            return
        try:
            self.check(self.pulse)
        except PeerError as bad:
            yield Problem(None, str(bad))

    def who(self, member: ClientId) -> str:
        """A member for people: its id and name."""
        (member,) = ids("member", [member])
        names = {one.id: one.name for one in self.terms.members}
        return f"member {member} ({names[member]})" if names.get(member) else f"member {member}"

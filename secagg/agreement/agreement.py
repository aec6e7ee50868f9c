"""The agreement: terms, and a seed whose origin everybody can check. Everything that is ever opened follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import ClassVar

from secagg import labels
from secagg.agreement.audit import check_policy
from secagg.agreement.cost import check_noise
from secagg.agreement.keeping import lasting_groupings
from secagg.agreement.origin import BeaconPulse, Ceremony, Origin, origin_to_bytes, read_origin
from secagg.agreement.plan import Plan
from secagg.agreement.successors import check_earlier, drawn_cells
from secagg.agreement.terms import SURVIVORS, Terms
from secagg.arguments import each, ids, instance, keyed, whole
from secagg.codec import Blob, Buffer, Reader, to_bytes
from secagg.crypto.keys import Identity, digest, verify
from secagg.errors import UsageError, WireError
from secagg.exposure.schedules import Drawn, components
from secagg.types import ClientId, Group, GroupId, Grouping, u32


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """What all members sign. `fingerprint` is what people compare and what every message binds.

    >>> from secagg.simulation import make_agreement
    >>> agreement, identities = make_agreement(members=6, size=3, length=4, clip=1.0, rounds=10)
    >>> len(agreement.groups(0)), agreement.fingerprint == agreement.fingerprint
    (2, True)
    """

    sparse_risk: ClassVar[float] = 2.0**-40  # the most that a sparse graph may risk to expose somebody

    terms: Terms
    origin: Origin
    _drawn: dict[int, tuple[Drawn, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _judged: set[tuple[bytes, ...]] = field(default_factory=set, init=False, repr=False, compare=False)
    _checked: list[Mapping[ClientId, bytes]] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        instance("terms", self.terms, Terms)
        if not isinstance(self.origin, Ceremony | BeaconPulse):
            raise UsageError(f"origin: expected the origin of a seed, got {type(self.origin).__name__}")
        _ = self.seed  # audit: seed-origin-checked
        self._check_sample()
        check_policy(self)
        check_noise(self)

    def _check_sample(self) -> None:
        """Refuse a sample in which nobody fits: fixed groups that are connected are drawn together."""
        terms = self.terms
        if terms.sample and terms.schedule.name == "fixed":
            least = min(map(len, components(lasting_groupings(terms.keep, terms.schedule, terms.ids, self.seed))))
            if least > terms.sample:
                raise UsageError(
                    f"sample: {terms.schedule.groupings} fixed groupings connect at least {least} members, who are "
                    f"drawn together, so a sample of {terms.sample} is always empty; use groupings = 1, the schedule "
                    "'atoms' or no sample"
                )

    def check(self, earlier: Iterable[Agreement] = ()) -> None:
        """AgreementRefused unless `earlier` are all that it names, and it keeps its policy together with them.

        Alone it was checked when it was made. One that names earlier agreements on the same data is checked with them
        before it is signed and before a client takes part.
        """
        earlier = each("earlier", earlier, Agreement)
        fingerprints = tuple(one.fingerprint for one in earlier)
        if fingerprints not in self._judged:  # a simulation has many clients
            check_earlier(self, earlier)
            check_policy(self, earlier)
            self._judged.add(fingerprints)

    @cached_property
    def seed(self) -> bytes:
        """The training seed, recomputed from its origin and checked against the terms."""
        return self.origin.seed(self.terms)

    def to_bytes(self) -> bytes:
        """The only encoding of this agreement."""
        return to_bytes(Blob(), self.terms.to_bytes()) + origin_to_bytes(self.origin)

    @classmethod
    def from_bytes(cls, data: Buffer) -> Agreement:
        """The agreement that these bytes encode: WireError for other bytes, PeerError for a wrong origin."""
        reader = Reader(data)
        terms = Terms.from_bytes(Blob().get(reader))
        origin = read_origin(reader)
        reader.end()
        try:
            return cls(terms=terms, origin=origin)
        except UsageError as bad:
            raise WireError(f"an agreement that cannot be kept: {bad}") from None

    @cached_property
    def fingerprint(self) -> bytes:
        """The hash of all of it. People compare it (`secagg agree` prints it), and every message binds it."""
        return digest(labels.AGREEMENT, self.to_bytes())

    def cells(self, round: int) -> tuple[Drawn, ...]:
        """What is drawn for a round from the seed, the same for everybody: the groupings of each cell."""
        terms, round = self.terms, whole("round", round)
        if round not in terms.rounds:
            raise UsageError(
                f"round {round} is not in the agreement: it has rounds {terms.first_round} to {terms.last_round}"
            )
        fixed = terms.schedule.name == "fixed" and not terms.sample
        key = terms.first_round if fixed else round
        drawn = self._drawn.get(key)
        if drawn is None:
            drawn = drawn_cells(terms, self.seed, round)
            self._drawn.clear()  # several threads may draw; all get the same
            self._drawn[key] = drawn
        return drawn

    def groupings(self, round: int) -> tuple[Grouping, ...]:
        """The groupings of a round, over all cells."""
        return tuple(
            tuple(chain.from_iterable(parts)) for parts in zip(*(c.groupings for c in self.cells(round)), strict=True)
        )

    def plan(self, round: int, cell: int, context: bytes) -> Plan:
        """The plan of one cell's run, for groups = "survivors". `context` is the application's: a hash of the model.

        >>> from secagg.simulation import make_agreement
        >>> agreement, _ = make_agreement(members=12, size=3, length=4, clip=1.0, groups="survivors", cell=6)
        >>> plan = agreement.plan(0, 1, b"model")
        >>> len(plan.roster), plan.t, plan.training_id == agreement.fingerprint
        (6, 6, True)
        """
        terms = self.terms
        if terms.groups != SURVIVORS:
            raise UsageError("a plan is for groups = 'survivors'; whole groups follow from `Agreement.groups`")
        drawn = self.cells(round)
        cell = whole("cell", cell, 0, len(drawn) - 1)
        clients, members = drawn[cell].clients, {member.id: member for member in terms.members}
        floats = any(segment.clip is not None for segment in terms.segments)
        weighted = floats and len(set(terms.weights.values())) > 1
        return Plan(
            training_id=self.fingerprint,
            round=round,
            roster=tuple(members[client] for client in clients),
            length=terms.length,
            schedule=terms.schedule,
            training_seed=self.seed,
            segments=terms.segments,
            threshold=terms.threshold,
            colluders=terms.colluders_of(len(clients)),
            weights=tuple(terms.weights[client] for client in clients) if weighted else (),
            policy=terms.policy,
            context=context,
            degree=terms.degree,
            drawn=drawn[cell],
            members=len(members),
            total_weight=sum(terms.weights.values()),
            noise=terms.encoding.noise,
        )

    def cell_of(self, client: ClientId, round: int) -> int:
        """The cell in which a member takes part in a round; UsageError if it was not drawn.

        >>> from secagg.simulation import make_agreement
        >>> agreement, _ = make_agreement(members=12, size=3, length=4, clip=1.0, groups="survivors", cell=6)
        >>> {agreement.cell_of(client, 0) for client in agreement.plan(0, 1, b"").ids}
        {1}
        """
        (client,) = ids("client", [client], self.terms.identities)
        for cell, drawn in enumerate(self.cells(round)):
            if client in drawn.clients:
                return cell
        raise UsageError(f"client {client} was not drawn for round {round}")

    def groups(self, round: int) -> Mapping[GroupId, Group]:
        """The members of every permitted group of a round."""
        groupings = enumerate(self.groupings(round))
        return {(r, g): group for r, grouping in groupings for g, group in enumerate(grouping)}

    def groups_of(self, client: ClientId, round: int) -> tuple[GroupId, ...]:
        """The groups of one member in a round; none if it was not drawn."""
        (client,) = ids("client", [client], self.terms.identities)
        return tuple(group for group, members in self.groups(round).items() if client in members)

    def sign(self, client: ClientId, identity: Identity) -> bytes:
        """This member's signature on the fingerprint. A member signs one agreement per training."""
        (client,) = ids("client", [client], self.terms.identities)
        if self.terms.identities[client] != instance("identity", identity, Identity).public:
            raise UsageError(f"member {client} of this agreement has another identity key")
        return identity.sign(self.statement(client))

    def statement(self, client: ClientId) -> bytes:
        """What a member signs."""
        return labels.SIGN_AGREEMENT + self.fingerprint + u32(*ids("client", [client], self.terms.identities))

    def check_signatures(self, signatures: Mapping[ClientId, bytes]) -> None:
        """PeerError, naming the member, unless every member has signed this agreement.

        The signatures that this object has checked last are not checked again: a simulation has many clients.
        """
        if isinstance(signatures, Mapping) and signatures in self._checked:
            return
        signatures = keyed("signatures", signatures, bytes)
        for member in self.terms.members:
            signature = signatures.get(member.id, b"")
            verify(member.identity, signature, self.statement(member.id), signer=member.id)  # audit: all-members-signed
        self._checked[:] = [signatures]

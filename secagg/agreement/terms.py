"""What members agree on before there is a seed: who takes part, what is summed, and what may be opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Final, Literal, get_args

from secagg import labels
from secagg.agreement import canonical, graph
from secagg.agreement.beacon import NamedPulse
from secagg.agreement.cells import FAILURE_BITS, cell_sizes, check_cells, colluders_in_cell, threshold_in_cell
from secagg.agreement.keeping import Kept, check_kept
from secagg.agreement.layout import MOST_SEGMENTS
from secagg.agreement.noise import Noise
from secagg.agreement.plan import MOST_CLIENTS, MOST_GROUPINGS, MOST_PLACES, Member
from secagg.agreement.statistics.kinds import Statistics
from secagg.agreement.thresholds import default_colluders
from secagg.agreement.transport import Transport
from secagg.arguments import MOST_ROUND, each, flag, ids, instance, settle, whole
from secagg.codec import Buffer
from secagg.crypto.keys import HASH_BYTES, digest
from secagg.crypto.segments import Segment, Segments
from secagg.errors import AgreementRefused, UsageError, WireError
from secagg.exposure.audit import Policy
from secagg.exposure.schedules import Schedule
from secagg.types import ClientId

Groups = Literal["whole", "survivors"]
WHOLE: Final = "whole"
SURVIVORS: Final = "survivors"
MOST_NAME: Final = 200


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Everything in an agreement except its seed. Build it with keywords; what cannot be kept is refused.

    `segments` describes the vector. Rounds run from `first_round` to `last_round`, both included. `groups` is
    "whole" (a group is opened with all its members or not at all) or "survivors" (dropouts are recovered from shares).
    `sample` clients are drawn per round (0: all).

    Whole groups: a round with fewer than `least_groups` complete groups is skipped. With `roll_call`, a flat sum (one
    group) is opened for the members that are present when its round begins (docs/whole-groups.md).
    Survivors: `colluders` bounds the members that may work together with the server (None: a third); `cell` is the
    largest number of clients in one run (0: all in one); `threshold` None follows from both (`secagg.agreement.cells`).
    `degree` > 0 selects the sparse mode.

    The seed comes from a ceremony of all members, or from the pulse that `beacon` names. `predecessors` are the
    fingerprints of earlier agreements on the same data: what all of them open together is audited. `keep` has the
    groups of one of them, without whole groups or atoms that left. `transport` is for the network service
    (`secagg.net`). `statistics` declares what may be asked; `segments` then follows from it, and is left empty or must
    agree with it.

    >>> from secagg import Identity, Member, Schedule
    >>> from secagg.crypto import Segment
    >>> members = tuple(Member(i, Identity.generate().public, name=f"site {i}") for i in range(6))
    >>> terms = Terms(name="example", members=members, last_round=9, segments=(Segment(shape=(4,), clip=1.0),),
    ...               schedule=Schedule(name="fixed", size=3))
    >>> terms.groups, terms.length, len(terms.hash)
    ('whole', 4, 32)
    """

    name: str
    members: tuple[Member, ...]
    schedule: Schedule
    last_round: int
    segments: tuple[Segment, ...] = ()
    first_round: int = 0
    groups: Groups = "whole"
    sample: int = 0
    policy: Policy = field(default_factory=Policy)
    least_groups: int = 1
    colluders: int | None = None
    threshold: int | None = None
    cell: int = 0
    degree: int = 0
    roll_call: bool = False
    beacon: NamedPulse | None = None
    predecessors: tuple[bytes, ...] = ()
    statistics: Statistics | None = None
    keep: Kept | None = None
    transport: Transport | None = None
    noise: Noise | None = None

    def __post_init__(self) -> None:
        self._check_types()
        self._check_statistics()
        self._check_members()
        self._check_rounds()
        self._check_vector()
        self._check_groups()
        self._check_policy()
        self._check_origin()
        self._check_sections()

    def _check_types(self) -> None:
        if not isinstance(self.name, str) or not 1 <= len(self.name) <= MOST_NAME or not self.name.isprintable():
            raise UsageError(f"name: expected 1 to {MOST_NAME} printable characters, got {self.name!r}")
        settle(self, instance, "schedule", kind=Schedule)
        settle(self, instance, "policy", kind=Policy)
        settle(self, each, "members", kind=Member)
        settle(self, each, "segments", kind=Segment)
        numbers = ("first_round", "last_round", "sample", "least_groups", "cell", "degree")
        settle(self, whole, *numbers, least=0, most=MOST_ROUND)
        settle(self, whole, "colluders", "threshold", optional=True, least=0, most=MOST_ROUND)
        settle(self, flag, "roll_call")
        if not isinstance(self.groups, str) or self.groups not in get_args(Groups):
            raise UsageError(f"groups: expected 'whole' or 'survivors', got {self.groups!r}")

    def _check_statistics(self) -> None:
        """The vector follows from what is declared, and the policy opens nothing of fewer sites than it asks for."""
        if self.statistics is None:
            return
        asked = instance("statistics", self.statistics, Statistics)
        object.__setattr__(self, "segments", asked.vector(self.schedule.size, self.segments))
        least = max(self.policy.anonymity, self.policy.min_survivors) if self.policy.enforced else 1
        if asked.least_sites > least:  # audit: statistics-least-sites
            raise AgreementRefused(
                f"statistics: results are asked for from {asked.least_sites} sites on (min_sites), but the policy "
                f"opens sums of {least}; set policy.min_survivors = {asked.least_sites}"
            )

    def _check_members(self) -> None:
        n = len(self.members)
        if not 2 <= n <= MOST_CLIENTS:
            raise UsageError(f"members: expected 2 to {MOST_CLIENTS}, got {n}")
        for a, b in pairwise(self.members):
            if a.id >= b.id:
                raise UsageError(f"members: ids must be strictly ascending, but {b.id} follows {a.id}; sort them by id")
        for name in self._names:
            if len(name) > MOST_NAME or not name.isprintable():
                raise UsageError(f"member name: expected at most {MOST_NAME} printable characters, got {name!r}")
        for what, values in (("identity key", [m.identity for m in self.members]), ("name", self._names)):
            if len(set(values)) < len(values):
                raise UsageError(f"members: two of them have one {what}")

    @property
    def _names(self) -> list[str]:
        return [member.name for member in self.members if member.name]

    def _check_rounds(self) -> None:
        if self.first_round > self.last_round:
            raise UsageError(
                f"rounds: expected 0 <= first_round <= last_round <= 2^63 - 1, got {self.first_round} "
                f"and {self.last_round}"
            )

    def _check_vector(self) -> None:
        if len(self.segments) > MOST_SEGMENTS:
            raise UsageError(f"segments: expected at most {MOST_SEGMENTS}, got {len(self.segments)}")
        _ = self.encoding  # raises if a sum could wrap

    def _check_groups(self) -> None:
        n, schedule = len(self.members), self.schedule
        if schedule.groupings > MOST_GROUPINGS or n * schedule.groupings > MOST_PLACES:
            raise UsageError(
                f"schedule: {n} members in {schedule.groupings} groupings; at most {MOST_GROUPINGS} groupings and "
                f"{MOST_PLACES} places are allowed"
            )
        if self.sample > n:
            raise UsageError(f"sample: expected 0 (all) to {n} members, got {self.sample}")
        most = schedule.groups(self.drawn) * schedule.groupings
        if not 1 <= self.least_groups <= most:
            raise UsageError(f"least_groups: expected 1 to {most} (all groups of a round), got {self.least_groups}")
        if self.groups == WHOLE and (self.colluders, self.threshold, self.cell, self.degree) != (None, None, 0, 0):
            raise UsageError(
                "colluders, threshold, cell and degree are for groups = 'survivors'; whole groups need none of them"
            )
        for name, bound in (("colluders", self.colluders), ("threshold", self.threshold), ("degree", self.degree)):
            if bound is not None and bound > n:
                raise UsageError(f"{name}: expected at most {n}, the number of members, got {bound}")
        if self.groups == SURVIVORS and self.least_groups != 1:
            raise UsageError("least_groups is for groups = 'whole'")
        if 0 < self.cell < schedule.size or self.cell > n:
            raise UsageError(f"cell: expected 0 (one cell) or the group size {schedule.size} to {n}, got {self.cell}")
        if self.groups == SURVIVORS:
            self._check_survivors()
        if self.roll_call:
            self._check_roll_call()

    def _check_roll_call(self) -> None:
        """A roll call lets the set of members differ from round to round, so it needs a promise of each round alone."""
        schedule = self.schedule
        if self.groups != WHOLE:
            raise UsageError("roll_call: only for groups = 'whole'; with survivors, dropouts are recovered")
        if not self.flat:  # audit: roll-call-one-group
            groups = schedule.groups(self.drawn) * schedule.groupings
            raise UsageError(
                f"roll_call: only for a flat sum, but a round has {groups} groups of {schedule.size}; use one group of "
                f"all members (size = {self.drawn}), or roll_call = false"
            )
        if self.policy.memory != "round":  # audit: roll-call-one-round
            raise UsageError(
                "roll_call: the members of a sum differ from round to round, so the difference of two sums can be one "
                "member's update; set memory = 'round', which promises each round alone, or roll_call = false"
            )

    def _check_keep(self) -> None:
        """Earlier groups are kept whole, and of an agreement that is named."""
        if self.keep is None:
            return
        instance("keep", self.keep, Kept)
        if self.groups != WHOLE:
            raise UsageError("keep: only for groups = 'whole'")
        if not self.predecessors:  # audit: keep-names-predecessor
            raise UsageError("keep: expected the agreement whose groups are kept in predecessors, got none")
        check_kept(self.keep, self.schedule, self.ids)

    def _check_policy(self) -> None:
        """Refuse, before there is a seed, what no seed can make good."""
        policy, schedule = self.policy, self.schedule
        least = max(policy.anonymity, policy.min_survivors)
        if not policy.enforced:
            return
        for name, size in (("groups", schedule.size), ("atoms", schedule.atom or least)):
            if size < least:  # audit: terms-group-size
                raise AgreementRefused(
                    f"policy: {name} of {size} cannot hide anybody among {least} (anonymity {policy.anonymity}, "
                    f"min_survivors {policy.min_survivors}); use {name} of at least {least}"
                )
        several = self.last_round > self.first_round
        # audit: survivors-memory
        if self.groups == SURVIVORS and policy.memory == "training" and several and schedule.name != "atoms":
            raise AgreementRefused(
                "policy: with survivors, groups shrink differently in every round, so nothing is promised over rounds "
                "except with whole atoms. Set memory = 'round': each round alone keeps the policy, and a server that "
                "sees similar updates in several rounds can combine them. Or use the schedule 'atoms', groups = "
                "'whole', or a single round"
            )

    def _check_survivors(self) -> None:
        n, schedule = len(self.members), self.schedule
        if self.colluders is not None and self.colluders >= n:
            raise UsageError(f"colluders: expected 0 to {n - 1} of {n} members, got {self.colluders}")
        if self.sample and schedule.name == "fixed" and schedule.groupings > 1:
            raise UsageError(
                f"sample: {schedule.groupings} fixed groupings connect the members, so no smaller sample can be drawn; "
                "use the schedule 'atoms', groupings=1 or sample=0"
            )
        if self.degree and self.threshold is None:
            raise UsageError("threshold: the sparse mode needs one; secagg.agreement.graph.search finds it")
        if not self.degree:
            check_cells(n, self.assumed_colluders, self.cells, self.draws, self.threshold)
        elif set(self.cells) != {schedule.size}:  # one group in each cell, so also one grouping
            raise UsageError(
                f"degree: the sparse mode sums one group of all clients in a cell, but groups have {schedule.size} "
                f"clients in {schedule.groupings} grouping(s), and cells have {max(self.cells)}"
            )
        else:
            self._check_sparse(schedule.size)

    def _check_sparse(self, cell: int) -> None:
        """Refuse neighbourhoods that are too small for the colluders, before anybody drops out."""
        k, limit = self.colluders_of(cell), 2.0**-FAILURE_BITS
        found = graph.assess(cell, degree=self.degree, threshold=self.threshold or 0, colluders=k / cell, dropouts=0)
        if self.policy.enforced and 2.0**found.privacy > limit:  # audit: sparse-neighbourhoods
            try:
                fit = graph.search(cell, colluders=k / cell, dropouts=0.05)
                offer = f"degree = {fit.degree} with threshold = {fit.threshold} would do, for 5% dropouts"
            except UsageError:
                offer = "use degree = 0, where every client shares with all others"
            raise AgreementRefused(
                f"degree: with {k} colluders among {cell} clients, {self.degree} neighbours expose somebody with "
                f"probability 2^{found.privacy:.1f}, more than 2^-{FAILURE_BITS}; {offer}"
            )

    @property
    def assumed_colluders(self) -> int:
        """The bound on colluders among all members, with its default filled in (survivors)."""
        return default_colluders(len(self.members)) if self.colluders is None else self.colluders

    @cached_property
    def cells(self) -> tuple[int, ...]:
        """The number of clients in each cell of a round. Whole groups need no cells: they have one."""
        return cell_sizes(self.drawn, self.cell, self.schedule)

    @property
    def draws(self) -> int:
        """How many random cells the training draws, times the seeds that could have been refused for another.

        Cells of `fixed` and `atoms` without a sample are drawn once, others in every round. Whoever relays a ceremony
        chooses among at most n - 1 seeds (`secagg.exposure.seed`). A named pulse leaves no choice.
        """
        seeds = 1 if self.beacon else len(self.members) - 1  # audit: refusable-seeds-counted
        lasting = self.schedule.lasting(self.sample or None) and (self.schedule.name == "fixed" or len(self.cells) > 1)
        rounds = 1 if lasting else self.round_count  # audit: redrawn-cells-counted
        return len(self.cells) * rounds * seeds

    def colluders_of(self, cell: int) -> int:
        """How many colluders a cell of this many clients must withstand (survivors)."""
        return colluders_in_cell(len(self.members), self.assumed_colluders, cell, self.draws)

    def threshold_of(self, cell: int) -> int:
        """The threshold of a cell of this many clients (survivors)."""
        return self.threshold or threshold_in_cell(cell, self.colluders_of(cell))

    def _check_origin(self) -> None:
        if self.beacon is not None and not isinstance(self.beacon, NamedPulse):
            raise UsageError(f"beacon: expected a NamedPulse, got {type(self.beacon).__name__}")
        earlier = self.predecessors
        right = isinstance(earlier, tuple | list) and all(
            isinstance(one, bytes) and len(one) == HASH_BYTES for one in earlier
        )
        if not right or len(set(earlier)) < len(earlier) or len(earlier) > canonical.MOST_PREDECESSORS:
            raise UsageError(
                f"predecessors: expected at most {canonical.MOST_PREDECESSORS} different fingerprints of "
                f"{HASH_BYTES} bytes, got {earlier!r}"
            )
        object.__setattr__(self, "predecessors", tuple(earlier))
        self._check_keep()

    def _check_sections(self) -> None:
        if self.transport is not None:
            instance("transport", self.transport, Transport).check_members(self.ids)
        if self.noise is not None:
            if self.statistics is not None:
                self.statistics.check_noise(self.schedule.size)
            weights = tuple(map(self.relative_weight, self.ids))
            sums = self.schedule.groups(self.drawn) * self.schedule.groupings * self.round_count
            self.noise.check(self.encoding, weights, len(self.members), sums)

    @property
    def drawn(self) -> int:
        """The most clients that are drawn for one round."""
        return self.sample or len(self.members)

    @property
    def least_summed(self) -> int:
        """The fewest members for which a flat sum may be opened."""
        return max(self.policy.anonymity, self.policy.min_survivors)

    @property
    def flat(self) -> bool:
        """Whether a round has one group."""
        return self.schedule.groups(self.drawn) * self.schedule.groupings == 1

    @property
    def varying(self) -> bool:
        """Whether a flat sum may be opened without some members: after a roll call, or after releases."""
        smaller = self.least_summed < self.schedule.size
        return self.groups == WHOLE and self.flat and self.policy.memory == "round" and smaller

    @property
    def rounds(self) -> range:
        return range(self.first_round, self.last_round + 1)

    @property
    def round_count(self) -> int:
        """The number of rounds. The length of `rounds` would have to fit in 63 bits."""
        return self.last_round - self.first_round + 1

    @cached_property
    def ids(self) -> tuple[ClientId, ...]:
        return tuple(member.id for member in self.members)

    @cached_property
    def identities(self) -> Mapping[ClientId, bytes]:
        return {member.id: member.identity for member in self.members}

    @property
    def length(self) -> int:
        """The number of values in one update."""
        return self.encoding.length

    @cached_property
    def encoding(self) -> Segments:
        """Each segment's own scale, for the group size, so that an honest sum cannot wrap."""
        noise = instance("noise", self.noise, Noise).segments if self.noise is not None else ()
        return Segments(clients=self.schedule.size, segments=self.segments, noise=noise)

    @cached_property
    def weights(self) -> Mapping[ClientId, int]:
        return {member.id: member.weight for member in self.members}

    def relative_weight(self, client: ClientId) -> float:
        """The member's weight over the mean weight of all members: it scales its floats by this before encoding."""
        ids("client", [client], self.identities)
        return self.weights[client] * len(self.members) / sum(self.weights.values())

    @classmethod
    def from_bytes(cls, data: Buffer) -> Terms:
        """WireError for bytes that are not terms, or terms that cannot be kept."""
        try:
            terms = cls(**canonical.fields_from_bytes(data))
        except UsageError as bad:
            raise WireError(f"terms that cannot be kept: {bad}") from None
        if terms.to_bytes() != bytes(data):  # audit: terms-canonical
            raise WireError("the bytes of these terms are not canonical")
        return terms

    def to_bytes(self) -> bytes:
        """The only encoding of these terms."""
        return canonical.terms_to_bytes(self)

    @cached_property
    def hash(self) -> bytes:
        """What the seed ceremony binds: every field above."""
        return digest(labels.TERMS, self.to_bytes())

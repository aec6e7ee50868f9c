"""The plan of one run: what everybody must agree on. It is checked when built, and its hash binds the run.

Clients and server derive it from their agreement (`Agreement.plan`); it is never sent. Groupings are not part of the
plan's bytes: everybody draws them from the training seed and the round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from secagg import codec, labels
from secagg.agreement import graph
from secagg.agreement.layout import MOST_SEGMENTS, SEGMENTS, flat_segments, segments_from
from secagg.agreement.thresholds import default_colluders, default_threshold
from secagg.arguments import each, ids, instance, raw, real, settle, whole
from secagg.codec import U8, U16, U32, U64, Blob, Codec, Fixed, Float, Many, Reader, Struct
from secagg.crypto.clipping import SegmentNoise
from secagg.crypto.keys import HASH_BYTES, KEY_BYTES, digest
from secagg.crypto.segments import Segment, Segments
from secagg.errors import UsageError, WireError
from secagg.exposure.audit import ENFORCE, REPORT_EVEN_IF_EXPOSED, Policy, Verdict, audit
from secagg.exposure.schedules import SCHEDULES, Drawn, Schedule, check_roster, keep_whole_atoms
from secagg.types import ClientId, Group, GroupId, Grouping

MOST_CLIENTS: Final = 65535  # a Shamir index has 16 bits
MOST_GROUPINGS: Final = 1024
MOST_PLACES: Final = 2**20  # clients times groupings, so that all groups and all shares fit in one message
MOST_LENGTH: Final = 2**31 - 1
MOST_CONTEXT: Final = 4096
MODES: Final = (ENFORCE, REPORT_EVEN_IF_EXPOSED)


@dataclass(frozen=True, slots=True)
class Member:
    """One client of the roster: its id and its Ed25519 public key; in an agreement also a name and a weight.

    >>> from secagg import Identity, Member
    >>> Member(3, Identity.generate().public, name="Ward 3").weight
    1
    """

    id: ClientId
    identity: bytes
    name: str = ""
    weight: int = 1

    def __post_init__(self) -> None:
        settle(self, whole, "id", "weight")
        settle(self, raw, "identity")
        settle(self, instance, "name", kind=str)
        if not 0 < self.weight < 2**32:
            raise UsageError(f"client {self.id}: expected a weight from 1 to 2^32 - 1, got {self.weight}")
        if not 0 <= self.id < 2**32:
            raise UsageError(f"client id {self.id} does not fit in 32 bits")
        if len(self.identity) != KEY_BYTES:
            raise UsageError(f"client {self.id}: expected an Ed25519 public key, got {len(self.identity)} bytes")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One run of secure aggregation. Build it with keywords; unsafe combinations raise UsageError.

    `threshold` and `colluders` default to `default_threshold` and `default_colluders`. Give exactly one of `clip`
    (floats, fixed point), `bound` (exact integers) and `segments` (named parts with a clip or bound each). `weights` is
    empty (all equal) or holds one positive integer per roster member, in roster order. `degree` = 0 is the complete
    graph; an even number selects sparse mode (`graph.py`): a flat sum that protects from a semi-honest server only,
    with `threshold` counted inside each neighbourhood.

    `Agreement.plan` also gives what was drawn for this cell (`drawn`; without it, the plan draws for its roster), and
    the number and total weight of all members, over which weights are normalised (0 and 0: the roster), and the noise.

    >>> from secagg import Identity, Member, Plan, Schedule
    >>> roster = tuple(Member(i, Identity.generate().public) for i in range(9))
    >>> plan = Plan(training_id=bytes(32), round=0, roster=roster, length=4, clip=8.0,
    ...             schedule=Schedule(name="random", size=3), training_seed=bytes(32))
    >>> plan.t, plan.assumed_colluders, len(plan.groupings[0])
    (7, 3, 3)
    """

    training_id: bytes
    round: int
    roster: tuple[Member, ...]
    length: int
    schedule: Schedule
    training_seed: bytes
    clip: float | None = None
    bound: int | None = None
    segments: tuple[Segment, ...] = ()
    threshold: int | None = None
    colluders: int | None = None
    weights: tuple[int, ...] = ()
    policy: Policy = field(default_factory=Policy)
    context: bytes = b""
    degree: int = 0
    drawn: Drawn | None = None
    members: int = 0
    total_weight: int = 0
    noise: tuple[SegmentNoise, ...] = ()

    def __post_init__(self) -> None:
        settle(self, whole, "round", "length", "degree", "members", "total_weight")
        settle(self, whole, "bound", "threshold", "colluders", optional=True)
        settle(self, real, "clip", optional=True)
        settle(self, raw, "training_id", "training_seed", "context")
        settle(self, each, "roster", kind=Member)
        settle(self, each, "segments", kind=Segment)
        settle(self, instance, "schedule", kind=Schedule)
        settle(self, instance, "policy", kind=Policy)
        settle(self, instance, "drawn", kind=Drawn, optional=True)
        weights = each("weights", self.weights, object)
        object.__setattr__(self, "weights", tuple(whole("weights, each", weight) for weight in weights))
        n = len(self.roster)
        ids = [member.id for member in self.roster]
        if not 2 <= n <= MOST_CLIENTS:
            raise UsageError(f"a run needs 2 to {MOST_CLIENTS} clients, got {n}")
        check_roster(ids)
        if len({member.identity for member in self.roster}) < n:
            raise UsageError("two roster members share one identity key")
        for name in ("training_id", "training_seed"):
            if (size := len(getattr(self, name))) != HASH_BYTES:
                raise UsageError(f"{name} must have {HASH_BYTES} bytes, got {size}")
        if not 0 <= self.round < 2**63:
            raise UsageError(f"round {self.round} does not fit in 63 bits")
        if not 1 <= self.length <= MOST_LENGTH:
            raise UsageError(f"length {self.length} is not between 1 and {MOST_LENGTH}")
        if len(self.context) > MOST_CONTEXT:
            raise UsageError(f"context has {len(self.context)} bytes, at most {MOST_CONTEXT} are allowed; pass a hash")
        self.schedule.check(n)
        if self.schedule.groupings > MOST_GROUPINGS:
            raise UsageError(f"at most {MOST_GROUPINGS} groupings, got {self.schedule.groupings}")
        if n * self.schedule.groupings > MOST_PLACES:
            raise UsageError(f"{n} clients times {self.schedule.groupings} groupings exceeds the limit {MOST_PLACES}")
        self._check_policy(n)
        self._check_numbers(n)
        self._check_thresholds(n)

    def _check_policy(self, n: int) -> None:
        wanted, size = max(self.policy.anonymity, self.policy.min_survivors), self.schedule.size
        if wanted > (size if self.policy.enforced else n):
            raise UsageError(
                f"the policy asks for {wanted} clients behind every sum, but groups have {size} of {n} "
                "clients: no group could be opened"
            )
        if self.policy.enforced and 0 < self.schedule.atom < self.policy.anonymity:
            raise UsageError(
                f"atoms of {self.schedule.atom} can never hide {self.policy.anonymity} clients; "
                f"raise atom to at least {self.policy.anonymity}"
            )

    def _check_numbers(self, n: int) -> None:
        if sum((self.clip is not None, self.bound is not None, bool(self.segments))) != 1:
            raise UsageError("give either clip (for floats) or bound (for integers), or segments with their own")
        if len(self.segments) > MOST_SEGMENTS:
            raise UsageError(f"at most {MOST_SEGMENTS} segments, got {len(self.segments)}")
        if self.encoding.length != self.length:  # the encoding raises if a sum could wrap
            raise UsageError(f"length {self.length}, but the segments have {self.encoding.length} values")
        if self.weights:
            if len(self.weights) != n:
                raise UsageError(f"{len(self.weights)} weights for {n} clients")
            if not all(0 < weight < 2**32 for weight in self.weights):
                raise UsageError("weights must be positive integers below 2^32")
            if not self.clips and len(set(self.weights)) > 1:
                raise UsageError("exact integers cannot be weighted; scale them first, or use clip")

    def _check_thresholds(self, n: int) -> None:
        if self.colluders is None:
            object.__setattr__(self, "colluders", default_colluders(n))
        colluders = self.assumed_colluders
        if not 0 <= colluders < n:
            raise UsageError(f"colluders must be between 0 and {n - 1}, got {colluders}")
        if self.threshold is None:
            if self.degree:
                raise UsageError("sparse mode needs an explicit threshold; secagg.agreement.graph.search finds one")
            object.__setattr__(self, "threshold", default_threshold(n, colluders))
        t = self.t
        if self.degree:
            if (self.schedule.size, self.schedule.groupings) != (n, 1):
                raise UsageError("sparse mode sums one group of all clients; use cells for several groups")
            if not 2 <= t <= self.degree:
                raise UsageError(f"sparse threshold {t} must be between 2 and the degree {self.degree}")
            graph.check_degree(n, self.degree)
        elif not 2 <= t <= n:  # audit: threshold-range
            raise UsageError(f"threshold {t} must be between 2 and n={n} (with {colluders} colluders)")
        elif 2 * t <= n + colluders:  # audit: threshold-sets-overlap
            raise UsageError(
                f"threshold {t} lets a malicious server open two sets of survivors: 2t > n + colluders needs "
                f"t >= {default_threshold(n, colluders)} for n={n}, colluders={colluders}"
            )

    @property
    def t(self) -> int:
        """The threshold, with its default filled in."""
        assert self.threshold is not None
        return self.threshold

    @property
    def assumed_colluders(self) -> int:
        """The number of clients that may share what they know with the server, with its default filled in."""
        assert self.colluders is not None
        return self.colluders

    @property
    def semi_honest_only(self) -> bool:
        """Whether this plan protects only from a server that follows the protocol."""
        return bool(self.degree)

    @cached_property
    def encoding(self) -> Segments:
        """Each segment's own scale, for the group size, so that an honest sum can never wrap."""
        one = () if self.segments else (Segment(shape=(self.length,), clip=self.clip, bound=self.bound),)
        return Segments(clients=self.schedule.size, segments=self.segments or one, noise=self.noise)

    @property
    def clips(self) -> list[float]:
        """The clip of every segment of floats."""
        return [segment.clip for segment in self.encoding.segments if segment.clip is not None]

    @property
    def bounds(self) -> list[int]:
        """The bound of every segment of integers."""
        return [segment.bound for segment in self.encoding.segments if segment.bound is not None]

    @cached_property
    def ids(self) -> tuple[ClientId, ...]:
        return tuple(member.id for member in self.roster)

    @cached_property
    def index(self) -> Mapping[ClientId, int]:
        """Shamir indices: the place in the roster, counted from 1, so that no client chooses its own."""
        return {client: place for place, client in enumerate(self.ids, start=1)}

    @cached_property
    def identities(self) -> Mapping[ClientId, bytes]:
        return {member.id: member.identity for member in self.roster}

    @cached_property
    def groupings(self) -> tuple[Grouping, ...]:
        return self._drawn.groupings

    @cached_property
    def _drawn(self) -> Drawn:
        if self.drawn is not None:
            return self.drawn
        where = self.ids, self.training_seed, self.round
        return Drawn(self.schedule.draw(*where), self.schedule.atoms(*where), self.schedule.columns(*where))

    @cached_property
    def atoms(self) -> tuple[Group, ...]:
        """Clients that always move together (empty unless the schedule has atoms)."""
        return self._drawn.atoms

    @cached_property
    def groups_of(self) -> Mapping[ClientId, tuple[GroupId, ...]]:
        """The groups of each client, one per grouping; none for clients that were left out at random."""
        groups: dict[ClientId, list[GroupId]] = {client: [] for client in self.ids}
        for r, grouping in enumerate(self.groupings):
            for g, group in enumerate(grouping):
                for client in group:
                    groups[client].append((r, g))
        return {client: tuple(ids) for client, ids in groups.items()}

    @cached_property
    def _neighbours(self) -> Mapping[ClientId, tuple[ClientId, ...]]:
        return graph.neighbours(self.ids, self.degree, self.training_seed + self.round.to_bytes(8, "little"))

    def peers(self, client: ClientId) -> tuple[ClientId, ...]:
        """The clients that hold a client's shares, itself included: everybody, or its neighbourhood."""
        ids("client", [client], self.identities)
        if not self.degree:
            return self.ids
        return tuple(sorted((client, *self._neighbours[client])))

    @property
    def holders(self) -> int:
        """The number of clients that hold shares of one client's secrets, if nobody drops out."""
        return self.degree + 1 if self.degree else len(self.roster)

    def sparse_risk(self, dropouts: int) -> float:
        """The probability that the sparse graph exposes a client after this many dropouts (`graph.py`)."""
        n, dropouts = len(self.roster), whole("dropouts", dropouts, 0)
        try:
            found = graph.assess(
                n, degree=self.degree, threshold=self.t, colluders=self.assumed_colluders / n, dropouts=dropouts / n
            )
        except UsageError:  # colluders and dropouts leave fewer than two clients
            return 1.0
        return float(2.0**found.privacy)

    def group(self, group: GroupId) -> Group:
        try:
            r, g = (whole("group", number, 0) for number in group)
            return self.groupings[r][g]
        except (TypeError, IndexError, ValueError):
            raise UsageError(f"group: expected (grouping, group) of this plan, got {group!r}") from None

    @cached_property
    def weight_of(self) -> Mapping[ClientId, int]:
        return dict(zip(self.ids, self.weights or (1,) * len(self.ids), strict=True))

    def relative_weight(self, client: ClientId) -> float:
        """n_i over the mean n_i of all members: a client scales its update by this before encoding."""
        ids("client", [client], self.identities)
        if not self.weights:
            return 1.0
        # audit: weights-over-all-members
        return self.weight_of[client] * (self.members or len(self.ids)) / (self.total_weight or sum(self.weights))

    def in_broken_atoms(self, survivors: Collection[ClientId]) -> tuple[ClientId, ...]:
        """Survivors whose atom has lost a client. They are not summed: only whole atoms are, in every round."""
        survivors = ids("survivors", survivors, self.identities)
        if not self.policy.enforced:
            return ()
        kept = keep_whole_atoms(self.atoms, survivors, self.schedule.atom)
        return tuple(sorted(set(survivors) - set(kept)))

    def summed(self, survivors: Collection[ClientId]) -> tuple[ClientId, ...]:
        """U3: the survivors whose vectors are summed, ascending. Without atoms these are all survivors."""
        survivors = ids("survivors", survivors, self.identities)
        return tuple(sorted(set(survivors).difference(self.in_broken_atoms(survivors))))

    def audit(self, survivors: Collection[ClientId]) -> Verdict:
        """What the sums of these survivors would reveal, and which groups the policy allows to open."""
        return audit(
            self.groupings,
            survivors,
            self.policy,
            weights=self.weight_of if self.weights else None,
            plan_hash=self.hash,
            atoms=self.atoms,
            columns=self._drawn.columns,
        )

    @cached_property
    def roster_hash(self) -> bytes:
        return roster_hash(self.roster)

    def to_bytes(self) -> bytes:
        segments = codec.to_bytes(SEGMENTS, flat_segments(self.segments)) if self.segments else b""
        return codec.to_bytes(LAYOUT, flat(self)) + segments

    @cached_property
    def parts(self) -> Mapping[str, bytes]:
        """A hash for each part of the plan, so that two who differ can say in what (`PARTS`)."""
        values = flat(self)
        found = {}
        for part, names in PARTS.items():
            layout = Struct(dict, tuple((name, layout) for name, layout in LAYOUT.fields if name in names))
            more = codec.to_bytes(SEGMENTS, flat_segments(self.segments)) if part == "vector" and self.segments else b""
            found[part] = digest(labels.PLAN_PART, part.encode() + b"\n", codec.to_bytes(layout, values), more)
        return found

    def difference(self, parts: Sequence[bytes]) -> str:
        """The name of the first part that differs from these hashes, in the order of `PARTS`."""
        pairs = zip(self.parts.items(), each("parts", parts, object), strict=False)
        return next((name for (name, mine), other in pairs if mine != other), "plan")

    @classmethod
    def from_bytes(cls, data: bytes) -> Plan:
        """WireError for bytes that are not a plan, UsageError for a plan that may not be built."""
        reader = Reader(data)
        values = LAYOUT.get(reader)
        segments = segments_from(SEGMENTS.get(reader)) if reader.left else ()
        reader.end()
        plan = _plan_from(values, segments)
        if plan.to_bytes() != data:  # audit: plan-canonical
            raise WireError("plan bytes are not canonical")
        return plan

    @cached_property
    def hash(self) -> bytes:
        return digest(labels.PLAN, self.to_bytes())


def roster_hash(roster: tuple[Member, ...]) -> bytes:
    """The hash of a roster, which stage 0 signs before there is a plan."""
    return digest(labels.ROSTER, codec.to_bytes(Many(_MEMBER, MOST_CLIENTS), roster))


def flat(plan: Plan) -> dict[str, Any]:
    """The fields of the plan's bytes (docs/protocol.md, "Plan")."""
    return {name: get(plan) for name, _, get in _FIELDS}


def _plan_from(values: dict[str, Any], segments: tuple[Segment, ...]) -> Plan:
    """The plan with these fields; `values` is used up."""
    take = values.pop
    if (version := take("version")) != labels.VERSION:  # audit: plan-version
        raise WireError(f"plan version {version}, this is version {labels.VERSION}")
    schedule, mode, floats = take("schedule"), take("mode"), take("floats")
    if schedule >= len(SCHEDULES) or mode >= len(MODES) or floats > 1:
        raise WireError(f"unknown schedule ({schedule}), mode ({mode}) or encoding ({floats}) in a plan")
    values["segments"] = segments
    values |= {"clip": None, "bound": None} if segments else {"bound" if floats else "clip": None}
    values["schedule"] = Schedule(
        name=SCHEDULES[schedule], size=take("size"), groupings=take("groupings"), atom=take("atom")
    )
    values["policy"] = Policy(
        min_survivors=take("min_survivors"),
        anonymity=take("anonymity"),
        max_leverage=take("max_leverage"),
        mode=MODES[mode],
    )
    return Plan(**values)


_MEMBER: Final = Struct(Member, (("id", U32), ("identity", Fixed(KEY_BYTES))))
_FIELDS: Final[tuple[tuple[str, Codec, Callable[[Plan], Any]], ...]] = (
    ("version", U8, lambda plan: labels.VERSION),
    ("training_id", Fixed(HASH_BYTES), lambda plan: plan.training_id),
    ("round", U64, lambda plan: plan.round),
    ("roster", Many(_MEMBER, MOST_CLIENTS), lambda plan: plan.roster),
    ("threshold", U32, lambda plan: plan.t),
    ("colluders", U32, lambda plan: plan.assumed_colluders),
    ("length", U32, lambda plan: plan.length),
    ("floats", U8, lambda plan: int(plan.clip is not None)),
    ("clip", Float(), lambda plan: plan.clip or 0.0),
    ("bound", U32, lambda plan: plan.bound or 0),
    ("weights", Many(U32, MOST_CLIENTS), lambda plan: plan.weights),
    ("schedule", U8, lambda plan: SCHEDULES.index(plan.schedule.name)),
    ("size", U32, lambda plan: plan.schedule.size),
    ("groupings", U16, lambda plan: plan.schedule.groupings),
    ("atom", U32, lambda plan: plan.schedule.atom),
    ("training_seed", Fixed(HASH_BYTES), lambda plan: plan.training_seed),
    ("min_survivors", U32, lambda plan: plan.policy.min_survivors),
    ("anonymity", U32, lambda plan: plan.policy.anonymity),
    ("max_leverage", Float(), lambda plan: plan.policy.max_leverage),
    ("mode", U8, lambda plan: MODES.index(plan.policy.mode)),
    ("degree", U32, lambda plan: plan.degree),
    ("context", Blob(MOST_CONTEXT), lambda plan: plan.context),
)
LAYOUT: Final = Struct(dict, tuple((name, codec) for name, codec, _ in _FIELDS))
PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "version": ("version",),
    "agreement": ("training_id",),
    "round": ("round",),
    "roster": ("roster",),
    "thresholds": ("threshold", "colluders"),
    "vector": ("length", "floats", "clip", "bound"),
    "weights": ("weights",),
    "schedule": ("schedule", "size", "groupings", "atom"),
    "seed": ("training_seed",),
    "policy": ("min_survivors", "anonymity", "max_leverage", "mode"),
    "graph": ("degree",),
    "context": ("context",),
}

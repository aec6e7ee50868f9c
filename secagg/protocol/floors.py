"""What one client accepts of a plan that the server wrote."""

from __future__ import annotations

from dataclasses import dataclass, field

from secagg.agreement.plan import Member, Plan, default_colluders
from secagg.arguments import each, ids, instance, raw, real, settle, whole
from secagg.crypto.keys import HASH_BYTES
from secagg.errors import PlanRefused, UsageError
from secagg.exposure.audit import Policy
from secagg.exposure.schedules import Schedule
from secagg.types import ClientId


@dataclass(frozen=True, kw_only=True)
class Floors:
    """What a client pinned at enrolment, and the least that it accepts of a plan.

    `roster`, `training_id` and `training_seed` must match exactly. `colluders` None means a third of the
    roster. `schedule` None means any; pin it, or the server chooses group sizes in every round. `bound` is
    how large the client's integers may be, None if it sums none: a smaller bound would reveal to the server
    which clients exceed it. `weight` is the client's own n_i, None for any. `sparse_risk` limits the
    probability that a sparse plan's neighbourhoods expose a client (`graph.py`). `check` also compares the
    context, which the application may know (the model's hash) only when the plan arrives.

    >>> from secagg import Floors, Identity, Member, Plan, Schedule
    >>> roster = tuple(Member(i, Identity.generate().public) for i in range(4))
    >>> plan = Plan(training_id=bytes(32), round=7, roster=roster, length=4, clip=8.0,
    ...             schedule=Schedule(name="random", size=4), training_seed=bytes(32))
    >>> floors = Floors(roster=roster, training_id=bytes(32), training_seed=bytes(32), clip=(0.1, 1.0))
    >>> floors.check(plan, me=0, round=7, context=b"")
    Traceback (most recent call last):
    secagg.errors.PlanRefused: plan refused: clip 8.0 is outside my range 0.1 to 1.0
    """

    roster: tuple[Member, ...]
    training_id: bytes
    training_seed: bytes
    colluders: int | None = None
    policy: Policy = field(default_factory=Policy)
    schedule: Schedule | None = None
    clip: tuple[float, float] = (2.0**-10, 2.0**20)
    bound: int | None = None
    weight: int | None = None
    weight_ratio: float = 10.0
    groupings: int = 16
    accept_semi_honest_server_only: bool = False
    sparse_risk: float = 2.0**-40

    def __post_init__(self) -> None:
        settle(self, each, "roster", kind=Member)
        settle(self, raw, "training_id", "training_seed", size=HASH_BYTES)
        settle(self, instance, "policy", kind=Policy)
        settle(self, instance, "schedule", kind=Schedule, optional=True)
        settle(self, instance, "accept_semi_honest_server_only", kind=bool)
        settle(self, whole, "colluders", "bound", "weight", optional=True, least=0)
        settle(self, whole, "groupings", least=0)
        settle(self, real, "weight_ratio", "sparse_risk")
        limits = tuple(real("clip, each end", end) for end in each("clip", self.clip, object))
        if len(limits) != 2 or not 0 < limits[0] <= limits[1]:
            raise UsageError(f"clip: expected a range (least, most) of positive numbers, got {self.clip!r}")
        object.__setattr__(self, "clip", limits)

    @classmethod
    def for_plan(cls, plan: Plan, *, me: ClientId | None = None, sparse_risk: float = 2.0**-40) -> Floors:
        """The floors that accept this plan and nothing below it.

        For a client that built the plan itself, from a configuration that it trusts, and for simulations. `me`
        pins the client's own weight too. A sparse plan is accepted only up to `sparse_risk`.
        """
        weights = instance("plan", plan, Plan).weights or (1,)
        if me is not None:
            ids("me", [me], plan.identities)
        return cls(
            roster=plan.roster,
            training_id=plan.training_id,
            training_seed=plan.training_seed,
            colluders=plan.assumed_colluders,
            policy=plan.policy,
            schedule=plan.schedule,
            weight=None if me is None else plan.weight_of.get(me),
            clip=(min(plan.clips), max(plan.clips)) if plan.clips else (1.0, 1.0),
            bound=min(plan.bounds, default=None),
            weight_ratio=max(weights) / min(weights),
            groupings=plan.schedule.groupings,
            accept_semi_honest_server_only=plan.semi_honest_only,
            sparse_risk=sparse_risk,
        )

    def check(self, plan: Plan, me: ClientId, round: int, context: bytes) -> None:
        """Raise PlanRefused, with the floor that was crossed, unless the plan meets them all."""
        instance("plan", plan, Plan)
        me, round, context = whole("me", me), whole("round", round), raw("context", context)
        least_colluders = default_colluders(len(self.roster)) if self.colluders is None else self.colluders
        weights = plan.weights or (1,)
        least_clip, most_clip = self.clip

        def refuse_if(crossed: bool, why: str) -> None:
            if crossed:
                raise PlanRefused(f"plan refused: {why}")

        refuse_if(plan.training_id != self.training_id, "it is for another training")  # audit: floor-training
        # audit: floor-round
        refuse_if(plan.round != round, f"it is for round {plan.round}, my keys are for round {round}")
        refuse_if(plan.roster != self.roster, "its roster is not the one I pinned")  # audit: floor-roster
        # audit: floor-training-seed
        refuse_if(plan.training_seed != self.training_seed, "its training seed is not the one I pinned")
        # audit: floor-context
        refuse_if(plan.context != context, "its context (model, configuration) is not mine")
        # audit: floor-colluders
        refuse_if(
            plan.assumed_colluders < least_colluders,
            f"it assumes {plan.assumed_colluders} colluders, my floor is {least_colluders}",
        )
        # audit: floor-clip
        refuse_if(
            not all(least_clip <= clip <= most_clip for clip in plan.clips),
            f"clip {plan.clip or plan.clips} is outside my range {least_clip} to {most_clip}",
        )
        # audit: floor-integer-bound
        refuse_if(
            bool(plan.bounds) and (self.bound is None or min(plan.bounds) < self.bound),
            f"bound {min(plan.bounds, default=0)} would reveal which clients exceed it; mine is {self.bound}",
        )
        # audit: floor-weight
        refuse_if(
            bool(plan.weights) and self.weight not in (None, plan.weight_of.get(me)), "its weight for me is not my own"
        )
        # audit: floor-weight-ratio
        refuse_if(
            max(weights) > self.weight_ratio * min(weights), f"weights differ by more than {self.weight_ratio:g} times"
        )
        # audit: floor-groupings
        refuse_if(
            plan.schedule.groupings > self.groupings,
            f"it has {plan.schedule.groupings} groupings, my maximum is {self.groupings}",
        )
        # audit: floor-schedule
        refuse_if(self.schedule not in (None, plan.schedule), "its schedule is not the one I pinned")
        # audit: floor-policy
        refuse_if(not plan.policy.at_least(self.policy), "its exposure policy is weaker than mine")
        if plan.semi_honest_only:
            # audit: floor-sparse-mode
            refuse_if(not self.accept_semi_honest_server_only, "sparse mode protects only from a semi-honest server")
            # audit: floor-sparse-risk
            refuse_if(
                plan.sparse_risk(dropouts=0) > self.sparse_risk,
                "its neighbourhoods are too small for the colluders that it assumes",
            )

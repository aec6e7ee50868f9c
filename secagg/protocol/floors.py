"""What one client accepts of a plan that the server wrote."""

from __future__ import annotations

from dataclasses import dataclass, field

from secagg.errors import PlanRefused
from secagg.exposure.audit import Policy
from secagg.exposure.schedules import Schedule
from secagg.protocol.plan import Member, Plan, default_colluders
from secagg.types import ClientId


@dataclass(frozen=True, kw_only=True)
class Floors:
    """What a client pinned at enrolment, and the least that it accepts of a plan.

    `roster`, `training_id` and `training_seed` must be met exactly. `colluders` None means a third of the
    roster, `schedule` None any (pin it: otherwise the server chooses cluster sizes round by round). `bound`
    is how large the client's integers may be, None if it sums none: a smaller bound would tell the server
    who is above it. `weight` is the client's own n_i, None if it does not care. `sparse_risk` limits the
    probability that a sparse plan's neighbourhoods give someone away (`sparse.py`). `context` is compared
    when the plan arrives, because the application may learn it (the model's hash) only then.
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
        object.__setattr__(self, "roster", tuple(self.roster))

    @classmethod
    def for_plan(cls, plan: Plan) -> Floors:
        """The floors that accept this plan and nothing below it.

        For a client that built the plan itself, from a configuration that it trusts, and for simulations.
        """
        weights = plan.weights or (1,)
        return cls(
            roster=plan.roster,
            training_id=plan.training_id,
            training_seed=plan.training_seed,
            colluders=plan.assumed_colluders,
            policy=plan.policy,
            clip=(plan.clip, plan.clip) if plan.clip is not None else (1.0, 1.0),
            bound=plan.bound,
            weight_ratio=max(weights) / min(weights),
            groupings=plan.schedule.groupings,
            accept_semi_honest_server_only=plan.semi_honest_only,
            sparse_risk=1.0,
        )

    def check(self, plan: Plan, me: ClientId, round: int, context: bytes) -> None:
        """Raise PlanRefused, with the floor that was crossed, unless the plan is good enough."""
        n = len(self.roster)
        least_colluders = default_colluders(n) if self.colluders is None else self.colluders
        weights = plan.weights or (1,)
        least_clip, most_clip = self.clip
        for refused, why in (
            (plan.training_id != self.training_id, "it is for another training"),  # audit: floor-training
            # audit: floor-round
            (plan.round != round, f"it is for round {plan.round}, my keys are for round {round}"),
            (plan.roster != self.roster, "its roster is not the one I pinned"),  # audit: floor-roster
            # audit: floor-training-seed
            (plan.training_seed != self.training_seed, "its training seed is not the one I pinned"),
            # audit: floor-context
            (plan.context != context, "its context (model, configuration) is not mine"),
            (
                plan.assumed_colluders < least_colluders,  # audit: floor-colluders
                f"it assumes {plan.assumed_colluders} colluders, my floor is {least_colluders}",
            ),
            (
                plan.clip is not None and not least_clip <= plan.clip <= most_clip,  # audit: floor-clip
                f"clip {plan.clip} is outside my range {least_clip} to {most_clip}",
            ),
            (
                # audit: floor-integer-bound
                plan.bound is not None and (self.bound is None or plan.bound < self.bound),
                f"bound {plan.bound} would tell who is above it; mine is {self.bound}",
            ),
            (
                # audit: floor-weight
                bool(plan.weights) and self.weight not in (None, plan.weight_of.get(me)),
                "it does not give me my own weight",
            ),
            (
                max(weights) > self.weight_ratio * min(weights),  # audit: floor-weight-ratio
                f"weights differ by more than {self.weight_ratio:g} times",
            ),
            (
                plan.schedule.groupings > self.groupings,  # audit: floor-groupings
                f"{plan.schedule.groupings} groupings, my most is {self.groupings}",
            ),
            (
                self.schedule not in (None, plan.schedule),  # audit: floor-schedule
                "its schedule is not the one I pinned",
            ),
            # audit: floor-policy
            (not plan.policy.at_least(self.policy), "its exposure policy is weaker than mine"),
            (
                plan.semi_honest_only and not self.accept_semi_honest_server_only,  # audit: floor-sparse-mode
                "the sparse mode protects only from a semi-honest server",
            ),
            (
                # audit: floor-sparse-risk
                plan.semi_honest_only and plan.sparse_risk(gone=0) > self.sparse_risk,
                "its neighbourhoods are too small for the colluders that it assumes",
            ),
        ):
            if refused:
                raise PlanRefused(f"plan refused: {why}")

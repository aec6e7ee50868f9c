"""An agreement of simulated members, made in one process: everybody commits, reveals and signs at once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from secagg.agreement.agreement import Agreement
from secagg.agreement.origin import Ceremony, commit, commitments_hash, sign_reveal
from secagg.agreement.plan import MOST_CLIENTS, Member
from secagg.agreement.terms import Terms
from secagg.arguments import MOST_ROUND, drawn, each, instance, keyed, whole
from secagg.crypto.keys import Identity
from secagg.crypto.segments import Segment
from secagg.errors import UsageError
from secagg.exposure.schedules import Schedule
from secagg.exposure.seed import CONTRIBUTION_BYTES
from secagg.simulation.run import make_identities
from secagg.types import ClientId, Entropy


def agree_on(terms: Terms, identities: Mapping[ClientId, Identity], entropy: Entropy = os.urandom) -> Agreement:
    """The agreement of these terms, after a seed ceremony of all members in this process.

    >>> agreement, identities = make_agreement(members=6, size=3, length=4, clip=1.0)
    >>> agree_on(agreement.terms, identities).seed == agreement.seed  # every ceremony gives another seed
    False
    """
    identities = keyed("identities", identities, Identity)
    missing = set(instance("terms", terms, Terms).ids).difference(identities)
    if missing:
        raise UsageError(f"expected the identity of every member, got none for member {min(missing)}")
    secrets = {member: drawn(entropy, CONTRIBUTION_BYTES) for member in terms.ids}
    commitments = tuple(commit(terms, v, identities[v], secrets[v]) for v in terms.ids)
    shown = commitments_hash(terms, commitments)  # checked once, when the agreement is made, and not by each member
    reveals = tuple(sign_reveal(terms, v, identities[v], secrets[v], shown) for v in terms.ids)
    return Agreement(terms=terms, origin=Ceremony(commitments, reveals))


def make_agreement(
    *,
    members: int,
    size: int,
    length: int = 0,
    clip: float | None = None,
    bound: int | None = None,
    rounds: int = 1,
    schedule: str = "fixed",
    groupings: int = 1,
    atom: int = 0,
    weights: Sequence[int] = (),
    entropy: Entropy = os.urandom,
    **more: Any,
) -> tuple[Agreement, dict[ClientId, Identity]]:
    """An agreement of `members` new members, for simulations and examples, and their identities.

    The vector has one segment of this length, or what `statistics` declares.

    >>> agreement, identities = make_agreement(members=6, size=3, length=4, clip=1.0)
    >>> agreement.terms.rounds, sorted(identities)
    (range(0, 1), [0, 1, 2, 3, 4, 5])
    """
    members, rounds = whole("members", members, 2, MOST_CLIENTS), whole("rounds", rounds, 1, MOST_ROUND)
    weights = [whole("weights, each", one) for one in each("weights", weights, object)] or [1] * members
    if len(weights) != members:
        raise UsageError(f"weights: expected one of each of {members} members, or none, got {len(weights)}")
    identities = make_identities(range(members), entropy)
    terms = Terms(
        name=more.pop("name", "simulation"),
        members=tuple(Member(v, identities[v].public, weight=weights[v]) for v in range(members)),
        segments=() if more.get("statistics") else (Segment(shape=(length,), clip=clip, bound=bound),),
        schedule=Schedule(name=schedule, size=size, groupings=groupings, atom=atom),
        last_round=rounds - 1,
        **more,
    )
    return agree_on(terms, identities, entropy), identities

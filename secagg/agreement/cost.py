"""What the openings of an agreement with noise cost a member: a charge for each round, and three figures for all.

With whole groups, everything that a round can open is known beforehand, and lost groups only take away: the charge of a
round is a constant of the agreement. With survivors, a client reserves what the policy allows to be opened, and settles
downwards when it knows for whom the sums are opened.

The three figures always stand together: `everybody` (all others add their noise), `assumed` (the agreement's number of
colluders adds none; the one that is charged), and `local` (nobody else's noise counts).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import chain
from typing import Any, Final, Protocol

from secagg.agreement.keeping import lasting_atoms, lasting_groupings
from secagg.agreement.noise import Noise
from secagg.agreement.terms import WHOLE, Terms
from secagg.arguments import has, ids, instance
from secagg.crypto.noise import MOST_SIGMA
from secagg.errors import AgreementRefused, UsageError
from secagg.privacy.budget import Budget, Charge
from secagg.privacy.leverage import alone, leverage
from secagg.privacy.smoothing import Kernel, excess, kernel
from secagg.types import ClientId, Grouping

_MOST_JUDGED: Final = 3000  # members times rounds of groups that are new in every round
LOCAL: Final = -1  # in place of a number of colluders


class Training(Protocol):
    """What is needed of an agreement."""

    @property
    def terms(self) -> Terms: ...
    @property
    def seed(self) -> bytes: ...
    @property
    def fingerprint(self) -> bytes: ...
    def groupings(self, round: int) -> tuple[Grouping, ...]: ...


@dataclass(frozen=True, slots=True)
class Figures:
    """The cost of openings, three times: with everybody's noise, without that of the assumed colluders, with one's own.

    >>> from secagg.crypto import SegmentNoise
    >>> from secagg.simulation import make_agreement
    >>> noise = Noise(segments=(SegmentNoise(clip=1.0, sigma=2**24),), colluders=1)
    >>> agreement, _ = make_agreement(members=6, size=6, length=4, clip=8.0, noise=noise)
    >>> [round(figure, 2) for figure in round_figures(agreement, 0, 0).epsilons(1e-5)]
    [3.75, 4.16, 10.72]
    """

    everybody: Charge
    assumed: Charge
    local: Charge

    def epsilons(self, delta: float) -> tuple[float, float, float]:
        return self.everybody.epsilon(delta), self.assumed.epsilon(delta), self.local.epsilon(delta)

    def times(self, rounds: int) -> Figures:
        return Figures(*(one.times(rounds) for one in (self.everybody, self.assumed, self.local)))

    def __add__(self, other: Figures) -> Figures:
        return Figures(self.everybody + other.everybody, self.assumed + other.assumed, self.local + other.local)


def charge(terms: Terms, client: ClientId, share: Fraction, lattice: Kernel | None) -> Charge:
    """The cost of an opening for a member with this leverage; `lattice` is what the sums do not see around it.

    Without a lattice, the member's own noise is all that counts, and the leverage is 1.
    """
    noise, encoding = _noise(terms), terms.encoding
    rho, eta = Fraction(0), 0.0
    for segment, one, norm in zip(
        encoding.segments, noise.segments, encoding.norms(terms.relative_weight(client)), strict=True
    ):
        rho += share * Fraction(norm**2, 2 * one.sigma**2)
        if lattice is not None and share < 1:  # with its own noise alone, nothing is lost on the grid
            added = excess(lattice, one.sigma, segment.length)
            if added == float("inf"):  # audit: noise-above-grid
                least = _least_sigma(lattice)
                raise AgreementRefused(
                    f"noise: sigma {one.sigma} is too small for the grid: sums of such noise are not close enough to "
                    f"what is charged for them; use "
                    + (f"at least {least}" if least <= MOST_SIGMA else "fewer groupings or fewer colluders")
                )
            eta += added
    return Charge.of(rho, eta)


def _least_sigma(lattice: Kernel) -> int:
    """The least sigma that is large enough for the grid; one more than the largest that is allowed if none is."""
    return 1 + bisect_left(range(1, MOST_SIGMA + 1), True, key=lambda sigma: excess(lattice, sigma, 1) < float("inf"))


def _noise(terms: Terms) -> Noise:
    if terms.noise is None:
        raise UsageError("an agreement without noise has no cost")
    return terms.noise


def own_charge(terms: Terms, client: ClientId) -> Charge:
    """The cost of any opening for a member if its own noise is all that counts."""
    return charge(terms, client, Fraction(1), None)


def flat_charge(terms: Terms, client: ClientId, members: int, colluders: int) -> Charge:
    """The cost of the sum of one group of this many members; `LOCAL` colluders: one's own noise alone."""
    if colluders == LOCAL:
        return own_charge(terms, client)
    return charge(terms, client, alone(members, colluders), Kernel(members - 1, 2))


def round_charge(training: Training, round: int, client: ClientId, colluders: int | None = None) -> Charge:
    """What a round costs a member with whole groups, for the assumed colluders or this number of them."""
    terms = training.terms
    k = _noise(terms).colluders if colluders is None else colluders
    if k == LOCAL:
        return own_charge(terms, client)
    return _charged(_Rows(charged_groupings(training, round)), client, k, terms)


def charged_groupings(training: Training, round: int) -> tuple[Grouping, ...]:
    """Groupings whose sums say at least as much as what a round can open: its atoms, or its groups."""
    terms, schedule = training.terms, training.terms.schedule
    if schedule.name == "atoms" and (schedule.groupings > 1 or terms.groups != WHOLE):
        return (lasting_atoms(terms.keep, schedule, terms.ids, training.seed),)
    return training.groupings(round)


class _Rows:
    """Groupings that are compared by their content once."""

    def __init__(self, groupings: tuple[Grouping, ...]) -> None:
        self.groupings = groupings
        self._hash = hash(groupings)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Rows) and self.groupings == other.groupings


@lru_cache(maxsize=4096)
def _shape(rows: _Rows, client: ClientId, colluders: int) -> tuple[Fraction, Kernel | None]:
    share = leverage(rows.groupings, client, colluders)
    lattice = kernel(rows.groupings, client, colluders) if share < 1 else None
    if lattice is None:  # its own noise alone, or too large to find: nothing is known about the others' noise
        return Fraction(1), None
    return share, lattice


def _charged(rows: _Rows, client: ClientId, colluders: int, terms: Terms) -> Charge:
    groups = [group for group in chain.from_iterable(rows.groupings) if client in group]
    if not groups:  # not drawn in this round
        return own_charge(terms, client)
    if len(rows.groupings) == 1:
        return flat_charge(terms, client, len(groups[0]), colluders)
    return charge(terms, client, *_shape(rows, client, colluders))


def round_figures(training: Training, round: int, client: ClientId) -> Figures:
    """The three figures of one round for one member.

    >>> from secagg.crypto import SegmentNoise
    >>> from secagg.simulation import make_agreement
    >>> noise = Noise(segments=(SegmentNoise(clip=10, sigma=40),), colluders=1)
    >>> agreement, _ = make_agreement(members=6, size=6, length=4, bound=100, noise=noise)
    >>> [round(figure, 2) for figure in round_figures(agreement, 0, 3).epsilons(1e-6)]
    [0.44, 0.48, 1.14]
    """
    has("training", training, "an agreement", "terms", "seed", "cells")
    (client,) = ids("client", [client], training.terms.identities)
    return Figures(*(round_charge(training, round, client, k) for k in (0, None, LOCAL)))


def worst_round(training: Training, members: Collection[ClientId] = ()) -> Figures:
    """The most that one round costs one of these members (all), for each figure.

    >>> from secagg.crypto import SegmentNoise
    >>> from secagg.simulation import make_agreement
    >>> noise = Noise(segments=(SegmentNoise(clip=10, sigma=40),), colluders=1)
    >>> agreement, _ = make_agreement(members=6, size=6, length=4, bound=100, noise=noise, rounds=5)
    >>> worst_round(agreement).times(5) == all_rounds(agreement)
    True
    """
    has("training", training, "an agreement", "terms", "seed", "cells")
    terms = training.terms
    members = ids("members", members, terms.identities)
    if terms.groups != WHOLE:
        heaviest = max(members or terms.ids, key=lambda client: terms.weights[client])
        everybody, assumed = (survivors_reserve(terms, heaviest, k) for k in (0, None))
        return Figures(everybody, assumed, _locally(terms, (heaviest,)).local)
    if _judged_once(terms):
        places = terms.schedule.name == "transversal" and terms.schedule.groupings > 1 and terms.round_count > 1
        anybody = places or not members  # everybody's place on the grid changes from round to round
        return _worst(training, terms.first_round, terms.ids if anybody else members)
    if len(terms.ids) * terms.round_count > _MOST_JUDGED:
        return _locally(terms, members or terms.ids)
    found = [_worst(training, round, members or terms.ids) for round in terms.rounds]
    return Figures(*(max((getattr(one, name) for one in found), key=_size) for name in _NAMES))


def all_rounds(training: Training, members: Collection[ClientId] = ()) -> Figures:
    """The most that all rounds together cost one of these members (all), for each figure.

    >>> from secagg.crypto import SegmentNoise
    >>> from secagg.simulation import make_agreement
    >>> noise = Noise(segments=(SegmentNoise(clip=10, sigma=40),), colluders=1)
    >>> agreement, _ = make_agreement(members=6, size=6, length=4, bound=100, noise=noise, rounds=5)
    >>> [round(figure, 2) for figure in all_rounds(agreement).epsilons(1e-6)]
    [1.04, 1.14, 2.73]
    """
    has("training", training, "an agreement", "terms", "seed", "cells")
    members = ids("members", members, training.terms.identities)
    return worst_round(training, members).times(training.terms.round_count)


_NAMES: Final = ("everybody", "assumed", "local")


def _size(charge: Charge) -> tuple[int, int]:
    return charge.rho, charge.eta


def _judged_once(terms: Terms) -> bool:
    """Whether all rounds cost a member the same, or no more than the first."""
    equal = len(set(terms.weights.values())) == 1
    alike = ("fixed", "atoms", *(("transversal",) if equal else ()))  # transversal: up to the members' names
    return terms.schedule.name in alike or terms.schedule.groupings == 1 or terms.round_count == 1


def _worst(training: Training, round: int, members: Collection[ClientId]) -> Figures:
    terms, drawn = training.terms, charged_groupings(training, round)
    if terms.schedule.name == "fixed" and terms.sample:
        drawn = lasting_groupings(terms.keep, terms.schedule, terms.ids, training.seed)
    if terms.varying:  # by a roll call or releases
        heaviest = max(members, key=lambda client: terms.weights[client])
        everybody, assumed = (flat_charge(terms, heaviest, terms.least_summed, k) for k in (0, _noise(terms).colluders))
        flat_charge(terms, heaviest, len(terms.ids), 0)  # audit: all-above-grid
        return Figures(everybody, assumed, _locally(terms, members).local)
    if len(drawn) == 1:
        (grouping,) = drawn
        return _worst_disjoint(terms, grouping, members, _ever_drawn(training, grouping))
    rows, present = _Rows(drawn), set(chain.from_iterable(chain.from_iterable(drawn)))
    found = []
    for k in (0, _noise(terms).colluders):
        found.append(max((_charged(rows, v, k, terms) for v in members if v in present), key=_size, default=Charge()))
    return Figures(found[0], found[1], _locally(terms, members).local)


def _ever_drawn(training: Training, grouping: Grouping) -> set[ClientId]:
    """Everybody who is in a group in at least one round. `grouping` is that of the first."""
    terms = training.terms
    if terms.schedule.name == "atoms":
        return set(chain.from_iterable(lasting_atoms(terms.keep, terms.schedule, terms.ids, training.seed)))
    once = terms.schedule.name == "fixed" or terms.round_count == 1
    return set(chain.from_iterable(grouping) if once else terms.ids)


def _worst_disjoint(
    terms: Terms, grouping: Grouping, members: Collection[ClientId], drawn: Collection[ClientId]
) -> Figures:
    """Groups of one size that share nobody: whoever weighs most pays most."""
    there, local = set(drawn).intersection(members), _locally(terms, members).local
    if not there:
        return Figures(Charge(), Charge(), local)
    heaviest, size = max(there, key=lambda client: terms.weights[client]), min(map(len, grouping))
    everybody, assumed = (flat_charge(terms, heaviest, size, k) for k in (0, _noise(terms).colluders))
    return Figures(everybody, assumed, local)


def _locally(terms: Terms, members: Collection[ClientId]) -> Figures:
    local = own_charge(terms, max(members, key=lambda client: terms.weights[client]))
    return Figures(local, local, local)


def check_noise(training: Training) -> None:
    """AgreementRefused if the noise is too small for the grid, whoever of the assumed number colludes."""
    if training.terms.noise is not None:
        worst_round(training)


def survivors_reserve(terms: Terms, client: ClientId, colluders: int | None = None) -> Charge:
    """The most that a run with survivors can cost: what the policy lets the others sign without this client.

    One grouping: its group keeps at least the policy's least number of survivors. Atoms are summed whole. Otherwise the
    client's own noise is all that counts.
    """
    k, policy, schedule = _noise(terms).colluders if colluders is None else colluders, terms.policy, terms.schedule
    if not policy.enforced:
        return own_charge(terms, client)
    if schedule.name == "atoms":
        return flat_charge(terms, client, schedule.atom, k)
    if schedule.groupings == 1:
        return flat_charge(terms, client, max(policy.anonymity, policy.min_survivors), k)
    return own_charge(terms, client)


def survivors_settled(terms: Terms, client: ClientId, groups: Sequence[Collection[ClientId]]) -> Charge:
    """What a run costs that opened the sums of these members; groups of several groupings may overlap.

    If sigma is too small for the grid with these members, the run costs what was reserved. The reserve counts the noise
    of fewer members; the noise of the others can only hide more.
    """
    rows = _Rows(tuple((tuple(sorted(group)),) for group in groups if group))
    if not rows.groupings or all(client not in group for (group,) in rows.groupings):
        return Charge()
    share, lattice = _shape(rows, client, _noise(terms).colluders)
    if lattice is not None and not _above_grid(terms, lattice):  # audit: settled-above-grid
        return survivors_reserve(terms, client)
    return charge(terms, client, share, lattice)


def _above_grid(terms: Terms, lattice: Kernel) -> bool:
    """Whether eta is finite for every segment."""
    pairs = zip(terms.encoding.segments, _noise(terms).segments, strict=True)
    return all(excess(lattice, one.sigma, segment.length) < float("inf") for segment, one in pairs)


def check_budget(terms: Terms, budget: object) -> None:
    """UsageError for a budget without noise that it could be spent on, or something that is no budget."""
    if budget is None:
        return
    instance("budget", budget, Budget)
    if terms.noise is None:  # audit: budget-needs-noise
        raise UsageError("budget: the agreement has no noise, so nothing bounds what its sums say; it cannot be kept")


def known_before_seed(terms: Terms) -> Figures | None:
    """The most that a round costs a member, where it does not depend on the seed; None for several groupings."""
    schedule, k = terms.schedule, _noise(terms).colluders
    size = schedule.size
    if schedule.groupings > 1:
        size = schedule.atom
    heaviest = max(terms.ids, key=lambda client: terms.weights[client])
    if terms.groups != WHOLE:
        everybody, assumed = (survivors_reserve(terms, heaviest, n) for n in (0, k))
        return Figures(everybody, assumed, own_charge(terms, heaviest))
    if not size:
        return None
    size = terms.least_summed if terms.varying else size
    return Figures(*(flat_charge(terms, heaviest, size, n) for n in (0, k, LOCAL)))


def most_per_round(terms: Terms) -> Figures:
    """The most that a round can cost a member, whatever the seed will be.

    With several groupings that are no atoms, it is what the member's own noise alone gives.

    >>> from secagg.crypto import SegmentNoise
    >>> from secagg.simulation import make_agreement
    >>> noise = Noise(segments=(SegmentNoise(clip=10, sigma=40),), colluders=1)
    >>> agreement, _ = make_agreement(members=6, size=6, length=4, bound=100, noise=noise, rounds=5)
    >>> most_per_round(agreement.terms) == worst_round(agreement)
    True
    """
    instance("terms", terms, Terms)
    return known_before_seed(terms) or _locally(terms, terms.ids)


def over_budget(terms: Terms, each: Charge, budget: Budget, spent: Charge) -> str:
    """Why rounds that cost `each` do not fit what is left of a budget, and what would; empty if they fit."""
    noise, rounds = _noise(terms), terms.round_count
    total = spent + each.times(rounds)
    if budget.allows(total):
        return ""
    left = max(0, budget.limit.rho - spent.rho)
    fit = left // each.rho if each.rho else rounds
    parts = [f"{fit} round{'s' * (fit != 1)}"] if fit > 0 else []
    if left:
        factor = (each.rho * rounds / left) ** 0.5
        wanted = ", ".join(str(int(one.sigma * factor) + 1) for one in noise.segments[:8])
        parts.append(f"sigma = {wanted} with {rounds} round{'s' * (rounds != 1)}")
    gone = f" ({spent.epsilon(budget.delta):.3g} is spent)" if spent.rho else ""
    return (
        f"its {rounds} round{'s' * (rounds != 1)} cost epsilon {total.epsilon(budget.delta):.3g} at delta "
        f"{budget.delta:g}, my budget is {budget.epsilon:g}{gone}; "
        f"{' or '.join(parts) + ' would fit' if parts else 'nothing is left'}"
    )


def describe(figures: Figures, noise: Noise, delta: float) -> str:
    """The three figures in words."""
    everybody, assumed, local = figures.epsilons(delta)
    k = noise.colluders
    return (
        f"epsilon {assumed:.3g} if {k} client{'s' * (k != 1)} collude{'s' * (k == 1)} or add{'s' * (k == 1)} no noise; "
        f"{everybody:.3g} if everybody adds noise; {local:.3g} by the own noise alone (delta {delta:g})"
    )


def to_json(figures: Figures, delta: float) -> Mapping[str, Any]:
    """The three figures for programs."""
    return {**dict(zip(_NAMES, figures.epsilons(delta), strict=True)), "delta": delta}

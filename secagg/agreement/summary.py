"""What an agreement allows, in plain words: printed before anybody signs it, and kept with its results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from secagg.agreement.agreement import Agreement
from secagg.agreement.audit import Permitted, audit_round, audit_training
from secagg.agreement.collusion import Risk, alone, certain_colluders, correlation, least_left
from secagg.agreement.cost import Figures, describe, known_before_seed, to_json, worst_round
from secagg.agreement.statistics.describe import described
from secagg.agreement.terms import SURVIVORS, Terms
from secagg.arguments import each, has, real

DELTA: Final = 1e-6  # for which epsilon is given if nobody says another
NOT_PROMISED: Final = (
    "what a sum says of its members: a server that chooses models can make the others' updates nearly zero; only "
    "noise bounds that",
    "anything for a member that is alone in its group among colluders",
    "anything about other agreements on the same data that this one does not name",
    "that a round succeeds, or that the server computes what it says",
)


@dataclass(frozen=True, slots=True)
class Summary:
    """What an agreement allows. `lines` is for people, `to_json` for programs.

    `round` and `training` are what the permitted groups reveal in the worst round and over all rounds if updates stood
    still; None where there is no seed yet. `alone` has, for some numbers of colluders, the probability that an honest
    member is alone among them: in one round and over all.

    >>> from secagg.simulation import make_agreement
    >>> agreement, _ = make_agreement(members=60, size=6, length=100, clip=1.0, rounds=200)
    >>> print(summarise(agreement).lines()[3])
    over all 200 rounds, if updates stood still: nobody is exposed; T = 6 (exact); highest leverage 0.167
    """

    terms: Terms
    fingerprint: bytes | None
    round: Permitted | None
    training: Permitted | None
    alone: dict[int, tuple[Risk, Risk]]
    cost: Figures | None = None  # of one round, for the member that pays most
    delta: float = DELTA

    def lines(self) -> list[str]:
        """One line per statement."""
        return [
            *self._what(),
            *self._exposure(),
            *self._collusion(),
            *self._worth(),
            *self._noise(),
            *self._not_promised(),
        ]

    def _what(self) -> Iterator[str]:
        terms = self.terms
        parts = [
            f"{segment.length} {f'numbers up to {segment.clip:g}' if segment.bound is None else 'whole numbers'}"
            f"{f' ({segment.name})' if segment.name else ''}"
            for segment in terms.segments[:8]
        ]
        more = [f"{len(terms.segments) - 8} more segments"] if len(terms.segments) > 8 else []
        if terms.statistics is not None:
            parts, more = [f"{terms.length} whole numbers for the statistics below"], []
        weights = sorted(terms.weights.values())
        equal = "equal weights" if weights[0] == weights[-1] else f"weights from {weights[0]} to {weights[-1]}"
        yield f"{terms.name}: {len(terms.members)} members, {equal}, each with {', '.join(parts + more)}"
        yield f"rounds {terms.first_round} to {terms.last_round}{self._sampled()}; {self._groups()}"
        if terms.statistics is not None:
            yield from (f"may be asked: {line}" for line in described(terms.statistics))

    def _sampled(self) -> str:
        return f", at most {self.terms.sample} members drawn for each" if self.terms.sample else ""

    def _groups(self) -> str:
        terms, schedule = self.terms, self.terms.schedule
        when = {"fixed": "the same in every round", "atoms": f"of atoms of {schedule.atom} that stay together"}
        size = f"groups of {schedule.size}, {when.get(schedule.name, 'new in every round')} ({schedule.name})"
        times = f"{schedule.groupings} groupings into " if schedule.groupings > 1 else ""
        if terms.roll_call:
            return (
                f"{size}, opened for the members that the server finds present in a roll call, at least "
                f"{terms.least_summed} of them"
            )
        if terms.groups != SURVIVORS:
            return f"{times}{size}, opened whole or not at all"
        cells = ", ".join(f"{size} clients, t = {terms.threshold_of(size)}" for size in sorted(set(terms.cells)))
        mode = "; SPARSE MODE: it protects from a semi-honest server only" if terms.degree else ""
        return f"{times}{size}, opened for the survivors; {len(terms.cells)} cell(s) of {cells}{mode}"

    def _exposure(self) -> Iterator[str]:
        terms = self.terms
        if not terms.policy.enforced:
            yield "REPORT ONLY: every group sum is opened, whatever it exposes"
        if self.round is None or self.training is None:
            yield "what the groups reveal depends on the seed and is judged when there is one"
            return
        together = "if nobody drops out: " if terms.groups == SURVIVORS else ""
        yield f"in one round: {together}{_revealed(self.round)}"
        if terms.round_count > 1:
            rounds = f"{self.training.rounds} round{'s' * (self.training.rounds > 1)}"
            which = f"{'the first' if self.training.partial else 'all'} {rounds}"
            yield f"over {which}, if updates stood still: {_revealed(self.training)}"
        if terms.policy.memory == "round" and terms.round_count > 1:
            yield (
                "memory = 'round': each round alone keeps the policy; a server that sees similar updates in several "
                "rounds can combine them"
            )

    def _collusion(self) -> Iterator[str]:
        if self.terms.roll_call:
            least = self.terms.least_summed
            yield f"roll call: the server and {least - 1} colluders can choose to be summed with one honest member"
        for colluders, (once, over_all) in self.alone.items():
            later = f", over all rounds {over_all}" if str(over_all) != str(once) else ""
            overlap = self.terms.schedule.groupings > 1 and not self.terms.schedule.atom
            more = "; sums of groups that overlap can isolate more" if overlap else ""
            yield (
                f"with {colluders} colluder{'s' * (colluders > 1)} fixed before the seed: some honest member is alone "
                f"among them in its group with probability {once} in a round{later}{more}"
            )

    def _worth(self) -> Iterator[str]:
        terms, policy = self.terms, self.terms.policy
        found = self.training if policy.memory == "training" else self.round
        if policy.enforced:
            least = policy.anonymity
            if terms.groups != SURVIVORS:
                least = max(least, found.anonymity.lower) if found else least
            elif terms.schedule.groupings == 1 and terms.schedule.name != "atoms":
                least = least_left(terms)  # the groups may shrink to this size
            sure, bound = certain_colluders(least), ""
            if terms.groups == SURVIVORS and terms.assumed_colluders > sure:
                bound = f"; it promises nothing against the {terms.assumed_colluders} that the threshold withstands"
            yield f"T = {least} protects for certain from {sure} colluder{'s' * (sure != 1)}, whoever they are{bound}"
        limit = policy.max_leverage if policy.enforced else 1.0
        yield (
            f"leverage up to {limit:g} is allowed: if updates are independent and of equal size, the best estimate of "
            f"an update has correlation up to {correlation(limit):.2f} with it"
            + (f" ({correlation(found.leverage):.2f} for the groups above)" if found else "")
        )

    def _noise(self) -> Iterator[str]:
        noise, rounds = self.terms.noise, self.terms.round_count
        if noise is None:
            return
        sigmas = ", ".join(str(one.sigma) for one in noise.segments[:8])
        yield f"every client clips its update and adds noise of sigma {sigmas} steps of the grid"
        if self.cost is None:
            yield "what a round costs depends on the seed and is judged when there is one"
            return
        yield f"a round costs a member at most {describe(self.cost, noise, self.delta)}"
        if rounds > 1:
            yield f"all {rounds} rounds together: {describe(self.cost.times(rounds), noise, self.delta)}"

    def _not_promised(self) -> Iterator[str]:
        for what in NOT_PROMISED[self.terms.noise is not None :]:
            yield f"not promised: {what}"

    def to_json(self) -> dict[str, Any]:
        """The same for programs, in plain types."""
        terms, policy = self.terms, self.terms.policy
        return {
            "name": terms.name,
            "fingerprint": self.fingerprint.hex() if self.fingerprint else None,
            "members": len(terms.members),
            "rounds": [terms.first_round, terms.last_round],
            "groups": terms.groups,
            "schedule": terms.schedule.name,
            "size": terms.schedule.size,
            "groupings": terms.schedule.groupings,
            "sample": terms.sample,
            "roll_call": terms.roll_call,
            "cells": list(terms.cells) if terms.groups == SURVIVORS else [],
            "policy": {
                "anonymity": policy.anonymity,
                "min_survivors": policy.min_survivors,
                "max_leverage": policy.max_leverage,
                "mode": policy.mode,
                "memory": policy.memory,
            },
            "round": _plain(self.round),
            "training": _plain(self.training),
            "alone": [
                {"colluders": k, **{name: _risk(risk) for name, risk in zip(("round", "training"), risks, strict=True)}}
                for k, risks in self.alone.items()
            ],
            "correlation": correlation(policy.max_leverage if policy.enforced else 1.0),
            "cost": self._cost(),
            "not_promised": list(NOT_PROMISED[terms.noise is not None :]),
            "lines": self.lines(),
        }

    def _cost(self) -> dict[str, Any] | None:
        """The three figures of a round and of all rounds."""
        if self.cost is None:
            return None
        rounds = self.terms.round_count
        return {name: to_json(self.cost.times(n), self.delta) for name, n in (("round", 1), ("training", rounds))}


def summarise(what: Agreement | Terms, earlier: Iterable[Agreement] = (), delta: float = DELTA) -> Summary:
    """What an agreement allows, together with earlier ones on the same data; of terms alone, what needs no seed.

    What noise costs is given as an epsilon at this delta.

    >>> from secagg.simulation import make_agreement
    >>> agreement, _ = make_agreement(members=6, size=3, length=4, clip=1.0)
    >>> summarise(agreement.terms).round is None, summarise(agreement).round.exposed
    (True, frozenset())
    """
    if not isinstance(what, Terms):
        has("what", what, "terms or an agreement", "terms", "seed", "fingerprint")
    before, delta = each("earlier", earlier, Agreement), real("delta", delta)
    terms = what if isinstance(what, Terms) else what.terms
    risks = {k: (alone(terms, k), alone(terms, k, rounds=terms.round_count)) for k in _numbers_of_colluders(terms)}
    noisy = terms.noise is not None
    if isinstance(what, Terms):
        return Summary(terms, None, None, None, risks, known_before_seed(terms) if noisy else None, delta)
    cost = worst_round(what) if noisy else None
    return Summary(terms, what.fingerprint, audit_round(what), audit_training(what, before), risks, cost, delta)


def _numbers_of_colluders(terms: Terms) -> list[int]:
    """One more than T protects from for certain, a tenth, a fifth and a third of the members."""
    n = len(terms.members)
    wanted = {certain_colluders(terms.policy.anonymity) + 1, n // 10, n // 5, n // 3}
    if terms.groups == SURVIVORS:
        wanted.add(terms.assumed_colluders)
    return sorted(k for k in wanted if 0 < k < n)


def _revealed(found: Permitted) -> str:
    from secagg.exposure.selection import names  # imports numba

    exposed = f"EXPOSED: {names(found.exposed)}" if found.exposed else "nobody is exposed"
    bound = "at most " if found.bound else ""
    anonymity = f"T >= {found.anonymity.lower}" if found.bound else str(found.anonymity)
    return f"{exposed}; {anonymity}; highest leverage {bound}{found.leverage:.3f}"


def _plain(found: Permitted | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "rounds": found.rounds,
        "exposed": sorted(found.exposed),
        "anonymity": {"lower": found.anonymity.lower, "upper": found.anonymity.upper},
        "leverage": found.leverage,
        "bound": found.bound,
        "partial": found.partial,
        "objections": list(found.objections[:10]),
    }


def _risk(risk: Risk) -> dict[str, Any]:
    return {"probability": risk.probability, "exact": risk.exact}

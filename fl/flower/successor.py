"""`share flower enrol --earlier`: a training after others on the same data, with members that left or joined.

What several trainings open on the same data can be combined. So the new agreement names the earlier ones, everybody in
it keeps id and weight, and what all of them open together is judged: here before anybody commits, then by every member
before it signs, and by every node before it answers (docs/agreement.md, "When something goes wrong").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from fl.config.schema import Experiment
from fl.errors import ConfigError
from fl.flower.training import (
    TRAINING,
    Enrolled,
    Training,
    check_experiment,
    enrolled,
    read_training,
    training_name,
)
from fl.secure.layout import terms_of
from secagg import AgreementRefused, Member, Terms, UsageError
from secagg.agreement import WHOLE, Prospect, prospect, successor_terms

DRAWS: Final = 20  # trial draws where groups are new
LASTING: Final = ("fixed", "atoms")  # schedules whose groups or atoms a successor can keep


@dataclass(frozen=True, slots=True)
class Successor:
    """A proposal after earlier trainings: terms, numbers of examples in their order, who leaves, and the outlook."""

    terms: Terms
    experiment: Experiment
    examples: tuple[int, ...]
    leavers: tuple[str, ...]
    newcomers: tuple[str, ...]
    outlook: Prospect

    @property
    def kept(self) -> bool:
        return self.terms.keep is not None


def read_earlier(folders: Sequence[Path]) -> tuple[Training, ...]:
    """The trainings of these folders, the latest first. ConfigError unless it names all the others."""
    found = [read_training(folder / TRAINING) for folder in folders]
    named = {one for training in found for one in training.agreement.terms.predecessors}
    latest = [training for training in found if training.fingerprint not in named]
    if len(latest) != 1:
        raise ConfigError(f"--earlier: expected one latest training that names all others, got {len(latest)}")
    others = tuple(training for training in found if training is not latest[0])
    missing = set(latest[0].agreement.terms.predecessors) - {one.fingerprint for one in others}
    if missing:
        raise ConfigError(
            f"--earlier: {len(missing)} trainings that the latest one names are missing, {min(missing).hex()[:16]}...; "
            "give the folders of all trainings on the same data"
        )
    return (*latest, *others)


def succeed(
    e: Experiment, earlier: Sequence[Training], without: Sequence[str], newcomers: Sequence[Enrolled], length: int
) -> Successor:
    """Propose a training after these, the latest first. ConfigError if no draw of its groups passes the audit."""
    latest = earlier[0]
    before = latest.agreement.terms
    gone = _ids(before, without)
    _check_new(earlier, newcomers)
    try:
        if not newcomers and _same_groups(e, before):  # whole groups leave
            shrunk = successor_terms(latest.agreement, gone, name="successor")
            stay, keep = shrunk.members, shrunk.keep
        else:
            stay, keep = tuple(member for member in before.members if member.id not in gone), None
        examples = [latest.examples_of(member.id) for member in stay] + [one.examples for one in newcomers]
        members = (*stay, *_numbered(e, earlier, stay, newcomers))
        e = enrolled(e, members)
        check_experiment(e)
        wanted = terms_of(e, members, length, name=training_name(e))
        if wanted.name == before.name:
            raise ConfigError("name: members sign one agreement per name; choose another with --set name=...")
        named = (*before.predecessors, latest.fingerprint)
        terms = replace(wanted, predecessors=named, keep=keep)
        outlook = prospect(terms, [one.agreement for one in earlier], DRAWS)
    except (UsageError, AgreementRefused) as error:
        raise ConfigError(str(error)) from None
    if not outlook.passed:
        raise ConfigError(f"{outlook.why}; {_instead(bool(newcomers))}")
    left = {member.id for member in before.members} - {member.id for member in stay}
    names = tuple(member.name for member in before.members if member.id in left)
    return Successor(terms, e, tuple(examples), names, tuple(one.name for one in newcomers), outlook)


def _same_groups(e: Experiment, before: Terms) -> bool:
    """Whether the earlier groups can be kept. Otherwise groups are drawn anew, and seldom pass the audit."""
    whole, old, new = e.groups == before.groups == WHOLE, before.schedule, e.clusters
    if e.method != "share":
        return whole and old.name in LASTING
    same = (old.name, old.size, old.groupings, old.atom) == (new.schedule, new.size, new.groupings, new.atom)
    return whole and same and old.name in LASTING


def _ids(terms: Terms, names: Sequence[str]) -> set[int]:
    known = {member.name: member.id for member in terms.members}
    for name in names:
        if name not in known:
            raise ConfigError(f"--without: there is no member {name!r} in the latest training")
    return {known[name] for name in names}


def _check_new(earlier: Sequence[Training], newcomers: Sequence[Enrolled]) -> None:
    """Whoever took part before already has an id and a weight."""
    known = {member.identity: member.name for one in earlier for member in one.agreement.terms.members}
    for one in newcomers:
        if one.identity in known:
            raise ConfigError(
                f"{one.name}: its public key belonged to {known[one.identity]!r} in an earlier training. List only "
                "newcomers; a member that left and returns needs new keys, and the others have to accept it as new"
            )


def _numbered(
    e: Experiment, earlier: Sequence[Training], stay: Sequence[Member], newcomers: Sequence[Enrolled]
) -> list[Member]:
    """Newcomers as members, with ids that nobody had, and weights within the caps of those who stay."""
    if not newcomers:
        return []
    if not stay:
        raise ConfigError("--without: nobody of the earlier training would stay; enrol without --earlier")
    used = {member.id for one in earlier for member in one.agreement.terms.members}
    used |= {gone for one in earlier if one.agreement.terms.keep for gone in one.agreement.terms.keep.dropped}
    low, high = _caps(earlier[0], stay, min(one.examples for one in newcomers), e.privacy.weight_ratio)
    first = max(used) + 1
    return [
        Member(first + i, one.identity, one.name, min(max(one.examples, low), high)) for i, one in enumerate(newcomers)
    ]


def _caps(latest: Training, stay: Sequence[Member], smallest: int, ratio: float) -> tuple[int, int]:
    """The range of newcomers' weights, so that all weights follow from the numbers of examples (`training`)."""
    weights = {member.id: member.weight for member in stay}
    least, most = min(weights.values()), max(weights.values())
    raised = any(latest.examples_of(client) < weight for client, weight in weights.items())
    lowered = any(latest.examples_of(client) > weight for client, weight in weights.items())
    low = least if raised else min(least, -int(-most // ratio))
    return low, most if lowered else max(most, int(ratio * min(least, max(low, smallest))))


def _instead(newcomers: bool) -> str:
    if newcomers:
        return (
            f"none of {DRAWS} trial draws of new groups passes together with the earlier trainings. Use larger groups "
            "(--set clusters.size=...), let at least clusters.size newcomers train under an agreement of their own, "
            'or promise each round alone (--set privacy.memory="round")'
        )
    return "what the earlier trainings opened and what this one would open break the policy together"

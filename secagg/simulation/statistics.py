"""Declared statistics of several data sets through the real protocol, on this machine: a dry run before signing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from secagg.agreement.terms import WHOLE, Terms
from secagg.arguments import instance, keyed
from secagg.errors import TooFewSurvivors, UsageError
from secagg.protocol.result import GroupSum, Stage
from secagg.simulation.agree import agree_on
from secagg.simulation.run import make_identities, run
from secagg.simulation.whole import run_whole
from secagg.statistics import CsvFormat, Report, evaluate, site_update
from secagg.types import ClientId


def simulate_statistics(terms: Terms, data: Mapping[ClientId, Any], *, csv: CsvFormat | None = None) -> Report:
    """The report of the first round in which these members take part with these data; the others are missing.

    The members get new identities and a new seed, because theirs are secret or do not exist yet; everything else is as
    in the terms. `data` has a CSV file, a dict of arrays or a data frame for each member.

    >>> from secagg.simulation import make_agreement
    >>> from secagg.statistics import Histogram, Categories, Statistics
    >>> sex = Histogram(name="sex", of=Categories("sex", ("f", "m")))
    >>> agreement, _ = make_agreement(members=3, size=3, statistics=Statistics(most_rows=100, asked=(sex,)))
    >>> data = {0: {"sex": ["f", "m"]}, 1: {"sex": ["f", "d"]}, 2: {"sex": ["m", ""]}}
    >>> print(simulate_statistics(agreement.terms, data).text())
    simulation, round 0: 3 of 3 sites (site 0, site 1, site 2)
    <BLANKLINE>
    sex (histogram of sex)
      f        2
      m        2
      other    1
      missing  1
    """
    members = instance("terms", terms, Terms).ids
    data = keyed("data", data, object, members)
    updates = {site: site_update(terms, one, csv=csv).update for site, one in data.items()}
    absent = [member for member in members if member not in updates]
    groups, why = _opened(terms, updates, absent)
    if not groups:
        raise TooFewSurvivors(f"no sum was opened: {why}")
    return evaluate(terms, groups, round=terms.first_round)


def _opened(terms: Terms, updates: Mapping[ClientId, Any], absent: list[ClientId]) -> tuple[list[GroupSum], str]:
    identities = make_identities(terms.ids)
    members = tuple(replace(member, identity=identities[member.id].public) for member in terms.members)
    agreement = agree_on(
        replace(terms, members=members, beacon=None, predecessors=(), keep=None, transport=None), identities
    )
    first = terms.first_round
    if terms.groups == WHOLE:
        result = run_whole(agreement, first, updates, identities, drop=absent)
        found = [total for (grouping, _), total in sorted(result.groups.items()) if grouping == 0]
        return found, result.skipped or "; ".join(result.lost.values())
    found, why = [], []
    for cell in range(len(agreement.cells(first))):
        inside = set(agreement.plan(first, cell, b"").ids)
        drop = {member: Stage.KEYS for member in absent if member in inside}
        try:
            opened = run(agreement, updates, identities, round=first, cell=cell, drop=drop)
        except TooFewSurvivors as bad:
            why.append(str(bad))
            continue
        found += [total for (grouping, _), total in sorted(opened.groups.items()) if grouping == 0]
        why += [*opened.closed.values(), *opened.lost.values()]
    return found, "; ".join(why)


def by_member(terms: Terms, files: list[str | None]) -> dict[ClientId, str]:
    """Files in the order of the members; None for a member that is missing."""
    if len(files) != len(terms.members):
        names = ", ".join(member.name or f"site {member.id}" for member in terms.members)
        raise UsageError(
            f"expected {len(terms.members)} files, one for each member in this order ({names}; - for a missing one), "
            f"got {len(files)}"
        )
    return {member.id: path for member, path in zip(terms.members, files, strict=True) if path is not None}

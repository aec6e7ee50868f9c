"""What a round of the network service ends with, for both kinds of groups, in files that survive the hub."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from secagg.agreement.terms import Terms
from secagg.errors import TooFewSurvivors
from secagg.net.files import replace_file
from secagg.protocol.result import Result
from secagg.statistics import Report, evaluate
from secagg.types import ClientId, Group, GroupId
from secagg.whole import WholeResult


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """One round at the hub: the opened sums, who is in them, and why others are not.

    `sums` and `members` are by group; a flat sum is group (0, 0). With survivors and several cells, groups are numbered
    one cell after the other. `lost` has the groups that stayed closed, `dropouts` the members without an answer,
    `blamed` those that their own signatures convict. `groups` says who was meant to be in each group, and `results`
    are the results of the protocol, one per cell. `records` are what the round leaves for the evidence.

    >>> from secagg.simulation import make_agreement
    >>> terms = make_agreement(members=3, size=3, length=2, bound=9)[0].terms
    >>> lost = {(0, 0): "client 2: it did not answer in time"}
    >>> outcome = Outcome(round=4, sums={}, members={}, lost=lost, dropouts={}, blamed={}, terms=terms)
    >>> outcome.opened, outcome.to_json()["lost"]
    (False, [{'group': [0, 0], 'members': [], 'reason': 'client 2: it did not answer in time'}])
    """

    round: int
    sums: Mapping[GroupId, Any] = field(repr=False)
    members: Mapping[GroupId, Group]
    lost: Mapping[GroupId, str]
    dropouts: Mapping[ClientId, str]
    blamed: Mapping[ClientId, str]
    groups: Mapping[GroupId, Group] = field(default_factory=dict, repr=False)
    results: tuple[WholeResult | Result, ...] = field(default=(), repr=False)
    terms: Terms = field(repr=False)
    seconds: float = 0.0
    records: tuple[bytes, ...] = field(default=(), repr=False)

    @property
    def opened(self) -> bool:
        """Whether any sum was opened."""
        return bool(self.sums)

    def sum(self, group: GroupId = (0, 0)) -> Any:
        """The sum of a group: an array, or a dict of arrays for named segments."""
        return self.sums[group]

    def report(self) -> Report | None:
        """The agreement's statistics from the opened sums of the first grouping; None if it declares none.

        TooFewSurvivors if fewer sites took part than the agreement asks for.
        """
        if self.terms.statistics is None:
            return None
        found = [one for result in self.results for (r, _), one in result.groups.items() if r == 0]
        return evaluate(self.terms, found, round=self.round)

    def to_json(self) -> dict[str, Any]:
        """Everything except the vectors."""
        names = {member.id: member.name or str(member.id) for member in self.terms.members}
        return {
            "round": self.round,
            "opened": self.opened,
            "seconds": round(self.seconds, 3),
            "groups": [
                {"group": list(group), "sites": len(members), "members": [names[v] for v in members]}
                for group, members in sorted(self.members.items())
            ],
            "lost": [
                {"group": list(group), "members": [names[v] for v in self.groups.get(group, ())], "reason": why}
                for group, why in sorted(self.lost.items())
            ],
            "dropouts": {names[v]: why for v, why in sorted(self.dropouts.items())},
            "blamed": {names[v]: why for v, why in sorted(self.blamed.items())},
        }

    def store(self, folder: Path) -> Path:
        """Write round-N.npz, the statistics as round-N.csv, then round-N.json, which is there only with the others."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        arrays: dict[str, Any] = {}
        for (grouping, group), found in self.sums.items():
            parts = found.items() if isinstance(found, Mapping) else [("sum", found)]
            arrays |= {f"{grouping}/{group}/{name}": np.asarray(part) for name, part in parts}
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        replace_file(folder / f"round-{self.round}.npz", [buffer.getvalue()])
        values = self.to_json()
        if self.opened and self.terms.statistics is not None:
            try:
                report = self.report()
                assert report is not None
                values["statistics"] = report.to_json()
                replace_file(folder / f"round-{self.round}.csv", [report.to_csv().encode()])
            except TooFewSurvivors as few:
                values["statistics"] = str(few)
        path = folder / f"round-{self.round}.json"
        replace_file(path, [json.dumps(values, indent=2).encode()])
        return path


def told(values: Mapping[str, Any], name: str) -> tuple[int, str] | None:
    """What a member hears of a round, from its JSON: how many sites are in its sum, or 0 and why; None: it had no part.

    >>> lost = [{"group": [0, 0], "members": ["north", "west"], "reason": "west: it did not answer in time"}]
    >>> told({"groups": [], "lost": lost, "dropouts": {"west": "it did not answer in time"}}, "north")
    (0, 'west: it did not answer in time')
    """
    for row in values["groups"]:
        if name in row["members"]:
            return int(row["sites"]), ""
    if name in values["dropouts"]:
        return 0, str(values["dropouts"][name])
    reasons = dict.fromkeys(str(row["reason"]) for row in values["lost"] if name in row["members"])
    return (0, "; ".join(reasons)) if reasons else None

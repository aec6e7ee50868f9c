"""The `secagg exposure` command: what a schedule would reveal, before anyone uses it."""

from __future__ import annotations

import hashlib
import json
from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from secagg.agreement.plan import MOST_CLIENTS
from secagg.arguments import whole
from secagg.compilation import announce_compilation, notice_once
from secagg.errors import UsageError
from secagg.exposure.audit import REPORT_EVEN_IF_EXPOSED, Policy, Verdict, audit
from secagg.exposure.schedules import SCHEDULES, Schedule, keep_whole_atoms, shuffled
from secagg.types import ClientId


def add_parser(commands: _SubParsersAction[ArgumentParser]) -> None:
    """Add `exposure` to the commands of `secagg`."""
    parser = commands.add_parser(
        "exposure", help="show what the sums of a schedule would tell the server about single clients"
    )
    policy, add = Policy(), parser.add_argument
    help_t = "least number of clients in anything that the server learns (%(default)s)"
    help_s = "least number of survivors in an opened group (%(default)s)"
    add("--clients", type=int, required=True, metavar="N", help="number of clients")
    add("--size", type=int, required=True, metavar="M", help="clients per group")
    add("--groupings", type=int, default=1, metavar="R", help="groupings of the same updates (1)")
    add("--schedule", default="random", help=f"{', '.join(SCHEDULES)} (random)")
    add("--atom", type=int, default=0, metavar="K", help="clients per atom, for --schedule atoms")
    add("--drop", type=float, default=0.0, metavar="SHARE", help="share of the clients that drop out (0)")
    add("--colluders", type=int, default=0, metavar="COUNT", help="clients that collude with the server (0)")
    add("--anonymity", type=int, default=policy.anonymity, metavar="T", help=help_t)
    add("--max-leverage", type=float, default=policy.max_leverage, metavar="L", help="limit (%(default)s)")
    add("--min-survivors", type=int, default=policy.min_survivors, metavar="S", help=help_s)
    add("--seed", default="exposure", help="any text; draws groupings, dropouts and colluders")
    add("--round", type=int, default=0, help="round to draw (0)")
    add("--json", action="store_true", help="print the verdict as JSON")
    add("--plot", type=Path, metavar="FILE.png", help="instead, plot exposure and leverage against R")
    parser.set_defaults(command=run)


def run(options: Namespace) -> int:
    """Print or plot the verdict."""
    schedule = Schedule(name=options.schedule, size=options.size, groupings=options.groupings, atom=options.atom)
    policy = Policy(anonymity=options.anonymity, max_leverage=options.max_leverage, min_survivors=options.min_survivors)
    case = Case(
        options.clients, hashlib.sha256(options.seed.encode()).digest(), options.round, options.drop,
        options.colluders, policy,
    )  # fmt: skip
    with announce_compilation(notice_once("compiling for this machine (only once) ...")):
        if options.plot is not None:
            _plot(case, schedule, options.plot)
            return 0
        everything, allowed = case.audit(schedule, enforce=False), case.audit(schedule)
        print((_as_json if options.json else _text)(case, schedule, everything, allowed))
    return 0


@dataclass(frozen=True, slots=True)
class Case:
    """Who takes part: dropouts and colluders are drawn at random from the seed."""

    clients: int
    seed: bytes
    round: int
    drop: float
    colluders: int
    policy: Policy

    def __post_init__(self) -> None:
        whole("--clients", self.clients, 2, MOST_CLIENTS)
        if not 0 <= self.drop < 1:
            raise UsageError(f"--drop must be at least 0 and below 1, not {self.drop:g}")
        if not 0 <= self.colluders <= self.clients:
            raise UsageError(f"--colluders must be from 0 to {self.clients}, not {self.colluders}")

    @property
    def order(self) -> list[ClientId]:
        return shuffled(range(self.clients), self.seed, self.round, b"exposure-command")

    @property
    def dropped(self) -> int:
        return round(self.drop * self.clients)

    def audit(self, schedule: Schedule, *, enforce: bool = True) -> Verdict:
        roster = range(self.clients)
        atoms = schedule.atoms(roster, self.seed, self.round)
        dropouts, colluders = self.order[: self.dropped], self.order[self.dropped :][: self.colluders]
        survivors = frozenset(roster).difference(dropouts)
        if enforce and atoms:
            survivors = keep_whole_atoms(atoms, survivors, schedule.atom)
        return audit(
            schedule.draw(roster, self.seed, self.round),
            survivors,
            self.policy if enforce else Policy(mode=REPORT_EVEN_IF_EXPOSED),
            colluders=colluders,
            plan_hash=b"exposure command",
            atoms=atoms,
            columns=schedule.columns(roster, self.seed, self.round),
        )

    def groupings_opened_whole(self, schedule: Schedule) -> int:
        """How many groupings, counted from the first, the policy opens without closing a group."""
        for groupings in range(1, schedule.groupings + 1):
            if self.audit(replace(schedule, groupings=groupings)).closed:
                return groupings - 1
        return schedule.groupings


def _text(case: Case, schedule: Schedule, everything: Verdict, allowed: Verdict) -> str:
    seated = schedule.groups(case.clients) * schedule.size
    kind = f"{schedule.name} grouping{'s' if schedule.groupings > 1 else ''}"
    lines = [
        f"{case.clients} clients, {schedule.groupings} {kind} into groups of {schedule.size}"
        + (f", atoms of {schedule.atom}" if schedule.atom else "")
        + (f", {case.clients - seated} left out at random" if seated < case.clients else "")
        + (f", {case.dropped} drop out" if case.dropped else "")
        + (f", {case.colluders} collude with the server" if case.colluders else ""),
        "",
        f"If all {len(everything.opened)} group sums were opened: " + _headline(everything),
        *(f"  {line} (counted from 0)" for line in everything.sentences if line.startswith("opening")),
        f"  rank {everything.rank} of {everything.clients}, mean leverage {everything.mean_leverage:.2f}: "
        f"the same protection as one group of {1 / max(everything.mean_leverage, 1e-9):.1f}",
        "",
        f"Under the policy (anonymity {case.policy.anonymity}, leverage up to {case.policy.max_leverage:g}): "
        + allowed.sentences[0],
        f"  mean leverage {allowed.mean_leverage:.2f}, highest {max(allowed.leverage.values(), default=0.0):.2f}",
    ]
    reasons = Counter(_kind(why) for why in allowed.closed.values())
    lines += [f"  {count} group{'s' if count > 1 else ''} closed: {why}" for why, count in reasons.items()]
    if allowed.closed:
        whole = case.groupings_opened_whole(schedule)
        which = f"The first {whole}" if whole else "None"
        lines += ["", f"{which} of these groupings could be opened completely."]
    return "\n".join(lines)


def _headline(verdict: Verdict) -> str:
    if not verdict.exposed:
        return f"nobody is exposed; {verdict.anonymity}"
    share = len(verdict.exposed)
    who = "every client" if share == verdict.clients else f"{share} of {verdict.clients} clients"
    return f"the server learns the update of {who}"


def _kind(reason: str) -> str:
    """A reason without its details, for counting."""
    if "survivor" in reason:
        return "too few survivors"
    if "leverage" in reason:
        return "a client's leverage would exceed the limit"
    if "expose" in reason or "combination" in reason:
        return "with the other sums, it would reveal a combination of too few clients"
    return "the required anonymity is not proven and too expensive to compute"


def _as_json(case: Case, schedule: Schedule, everything: Verdict, allowed: Verdict) -> str:
    def described(verdict: Verdict) -> dict[str, object]:
        return {
            "rows": sorted(verdict.opened),
            "closed": [{"row": row, "why": why} for row, why in verdict.closed.items()],
            "exposed": sorted(verdict.exposed),
            "rank": verdict.rank,
            "anonymity": {key: getattr(verdict.anonymity, key) for key in ("lower", "upper", "exact")},
            "mean_leverage": verdict.mean_leverage,
            "leverage": {str(client): value for client, value in verdict.leverage.items()},
        }

    return json.dumps(
        {
            "clients": case.clients,
            "schedule": schedule.name,
            **{key: getattr(schedule, key) for key in ("size", "groupings", "atom")},
            "dropped": case.dropped,
            "colluders": case.colluders,
            "policy": {key: getattr(case.policy, key) for key in ("anonymity", "max_leverage", "min_survivors")},
            "all_rows": described(everything),
            "allowed": described(allowed),
        }
    )


def _schedules(case: Case, asked: Schedule) -> Iterator[tuple[str, list[Schedule]]]:
    """Every schedule that can be drawn for these clients and this group size, up to the requested R."""
    atom = asked.atom or next(
        (k for k in range(asked.size // 2, 1, -1) if asked.size % k == 0 and k >= case.policy.anonymity), 0
    )
    for name in ("random", "transversal", *(["atoms"] if atom else [])):
        fitting = []
        for groupings in range(1, max(asked.groupings, 2) + 1):
            try:
                schedule = replace(asked, name=name, groupings=groupings, atom=atom if name == "atoms" else 0)
                schedule.check(case.clients)
            except UsageError:
                break
            fitting.append(schedule)
        if fitting:
            yield (f"atoms of {atom}" if name == "atoms" else name), fitting


def _plot(case: Case, asked: Schedule, file: Path) -> None:
    asked.check(case.clients)
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("--plot needs matplotlib: pip install 'share-secagg[plot]'") from None
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, 3)
    for label, schedules in _schedules(case, asked):
        opened = [case.audit(schedule, enforce=False) for schedule in schedules]
        allowed = [case.audit(schedule) for schedule in schedules]
        curves: Sequence[list[float]] = (
            [len(v.exposed) / max(1, v.clients) for v in opened],
            [v.mean_leverage for v in opened],
            [len(v.opened) / (len(v.opened) + len(v.closed)) for v in allowed],
        )
        for panel, curve in zip(panels, curves, strict=True):
            panel.plot([s.groupings for s in schedules], curve, marker="o", markersize=3, label=label)
    titles = ("clients exposed, all sums opened", "mean leverage, all sums opened", "sums that the policy opens")
    for panel, title in zip(panels, titles, strict=True):
        panel.set(title=title, xlabel="groupings R", ylim=(-0.03, 1.03))
        panel.grid(alpha=0.3)
        panel.xaxis.get_major_locator().set_params(integer=True)
    panels[0].legend()
    figure.suptitle(f"{case.clients} clients in groups of {asked.size}, {case.drop:.0%} dropouts")
    figure.savefig(file, dpi=110)

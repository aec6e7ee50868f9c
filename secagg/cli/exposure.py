"""The `secagg exposure` command: what a schedule would reveal, before anyone uses it.

secagg exposure --clients 60 --size 3 --groupings 10 --schedule random
"""

from __future__ import annotations

import hashlib
import json
import sys
from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from secagg.errors import UsageError
from secagg.exposure.audit import REPORT_EVEN_IF_EXPOSED, Policy, Verdict, audit
from secagg.exposure.schedules import SCHEDULES, Schedule, keep_whole_atoms, shuffled
from secagg.types import ClientId


def add_parser(commands: _SubParsersAction[ArgumentParser]) -> None:
    """Add `exposure` to the commands of `secagg`."""
    parser = commands.add_parser(
        "exposure", help="what the sums of a schedule would tell the server about single clients"
    )
    parser.add_argument("--clients", type=int, required=True, metavar="N")
    parser.add_argument("--size", type=int, required=True, metavar="M", help="clients in a group")
    parser.add_argument(
        "--groupings", type=int, default=1, metavar="R", help="partitions of the same updates"
    )
    parser.add_argument("--schedule", default="random", help=", ".join(SCHEDULES))
    parser.add_argument("--atom", type=int, default=0, metavar="K", help="clients that always move together")
    parser.add_argument(
        "--drop", type=float, default=0.0, metavar="SHARE", help="share of clients that drop out"
    )
    parser.add_argument(
        "--colluders", type=int, default=0, metavar="COUNT", help="clients that help the server"
    )
    defaults = Policy()
    parser.add_argument("--anonymity", type=int, default=defaults.anonymity, metavar="T")
    parser.add_argument("--max-leverage", type=float, default=defaults.max_leverage, metavar="L")
    parser.add_argument("--min-survivors", type=int, default=defaults.min_survivors, metavar="S")
    parser.add_argument(
        "--seed", default="exposure", help="any text; draws groupings, dropouts and colluders"
    )
    parser.add_argument("--round", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="draw exposure and leverage against R instead"
    )
    parser.set_defaults(command=run)


def run(options: Namespace) -> int:
    """Print, or draw, the verdict."""
    schedule = Schedule(
        name=options.schedule, size=options.size, groupings=options.groupings, atom=options.atom
    )
    policy = Policy(
        anonymity=options.anonymity, max_leverage=options.max_leverage, min_survivors=options.min_survivors
    )
    case = Case(
        options.clients, hashlib.sha256(options.seed.encode()).digest(), options.round, options.drop,
        options.colluders, policy,
    )  # fmt: skip
    from secagg.kernels.jit import announce

    with announce(_Patience()):
        if options.plot is not None:
            _plot(case, schedule, options.plot)
            return 0
        everything, allowed = case.audit(schedule, enforce=False), case.audit(schedule)
        answer = _as_json if options.json else _text
        print(answer(case, schedule, everything, allowed))
    return 0


class _Patience:
    """Says once, on standard error, why the first audit on a machine takes its time."""

    said = False

    def __call__(self, name: str) -> None:
        if not self.said:
            print("compiling for this machine, once ...", file=sys.stderr)
            self.said = True


@dataclass(frozen=True, slots=True)
class Case:
    """Who takes part: dropouts and colluders are drawn by lot from the seed."""

    clients: int
    seed: bytes
    round: int
    drop: float
    colluders: int
    policy: Policy

    def __post_init__(self) -> None:
        if not 0 <= self.drop < 1:
            raise UsageError(f"--drop is a share from 0 to below 1, not {self.drop:g}")
        if not 0 <= self.colluders <= self.clients:
            raise UsageError(f"--colluders {self.colluders} of {self.clients} clients makes no sense")

    @property
    def lot(self) -> list[ClientId]:
        return shuffled(range(self.clients), self.seed, self.round, b"exposure-command")

    @property
    def dropped(self) -> int:
        return round(self.drop * self.clients)

    def audit(self, schedule: Schedule, *, enforce: bool = True) -> Verdict:
        roster = range(self.clients)
        atoms = schedule.atoms(roster, self.seed, self.round)
        gone, helpers = self.lot[: self.dropped], self.lot[self.dropped :][: self.colluders]
        survivors = frozenset(roster).difference(gone)
        if enforce and atoms:
            survivors = keep_whole_atoms(atoms, survivors, self.policy.anonymity)
        return audit(
            schedule.draw(roster, self.seed, self.round),
            survivors,
            self.policy if enforce else Policy(mode=REPORT_EVEN_IF_EXPOSED),
            colluders=helpers,
            plan_hash=b"exposure command",
            atoms=atoms,
            columns=schedule.columns(roster, self.seed, self.round),
        )

    def groupings_opened_whole(self, schedule: Schedule) -> int:
        """How many groupings, counted from the first, may be opened without closing a row."""
        for groupings in range(1, schedule.groupings + 1):
            shorter = Schedule(
                name=schedule.name, size=schedule.size, groupings=groupings, atom=schedule.atom
            )
            if self.audit(shorter).closed:
                return groupings - 1
        return schedule.groupings


def _text(case: Case, schedule: Schedule, everything: Verdict, allowed: Verdict) -> str:
    seated = schedule.groups(case.clients) * schedule.size
    kind = f"{schedule.name} grouping{'s' if schedule.groupings > 1 else ''}"
    lines = [
        f"{case.clients} clients, {schedule.groupings} {kind} into groups of {schedule.size}"
        + (f", atoms of {schedule.atom}" if schedule.atom else "")
        + (f", {case.clients - seated} left out by lot" if seated < case.clients else "")
        + (f", {case.dropped} drop out" if case.dropped else "")
        + (f", {case.colluders} collude with the server" if case.colluders else ""),
        "",
        f"If all {len(everything.rows)} rows were opened: " + _headline(everything),
        *(f"  {line} (counted from 0)" for line in everything.sentences if line.startswith("opening")),
        f"  rank {everything.rank} of {everything.clients}, mean leverage {everything.mean_leverage:.2f}: "
        f"a client hides as in one group of {1 / max(everything.mean_leverage, 1e-9):.1f}",
        "",
        f"Under the policy (anonymity {case.policy.anonymity}, leverage up to {case.policy.max_leverage:g}): "
        + allowed.sentences[0],
        f"  mean leverage {allowed.mean_leverage:.2f}, "
        f"highest {max(allowed.leverage.values(), default=0.0):.2f}",
    ]
    reasons = Counter(_kind(why) for why in allowed.closed.values())
    lines += [f"  {count} row{'s' if count > 1 else ''} closed: {why}" for why, count in reasons.items()]
    if allowed.closed:
        whole = case.groupings_opened_whole(schedule)
        lines += ["", f"The first {whole} of these groupings could be opened whole." if whole else
                  "Not even one of these groupings could be opened whole."]  # fmt: skip
    return "\n".join(lines)


def _headline(verdict: Verdict) -> str:
    if not verdict.exposed:
        return f"nobody is exposed; {verdict.anonymity}"
    share = len(verdict.exposed)
    who = "every client" if share == verdict.clients else f"{share} of {verdict.clients} clients"
    return f"the server learns the update of {who}"


def _kind(reason: str) -> str:
    """A reason without its particulars, so that rows can be counted by it."""
    if "survive" in reason or "survivor" in reason:
        return "too few survivors"
    if "leverage" in reason:
        return "a client's leverage would pass the limit"
    if "expose" in reason or "combination" in reason:
        return "with the others, it would reveal too few clients together"
    return "the anonymity asked for is neither proven nor within reach"


def _as_json(case: Case, schedule: Schedule, everything: Verdict, allowed: Verdict) -> str:
    def described(verdict: Verdict) -> dict[str, object]:
        return {
            "rows": sorted(verdict.opened),
            "closed": [{"row": row, "why": why} for row, why in verdict.closed.items()],
            "exposed": sorted(verdict.exposed),
            "rank": verdict.rank,
            "anonymity": {
                "lower": verdict.anonymity.lower,
                "upper": verdict.anonymity.upper,
                "exact": verdict.anonymity.exact,
            },
            "mean_leverage": verdict.mean_leverage,
            "leverage": {str(client): value for client, value in verdict.leverage.items()},
        }

    return json.dumps(
        {
            "clients": case.clients,
            "schedule": schedule.name,
            "size": schedule.size,
            "groupings": schedule.groupings,
            "atom": schedule.atom,
            "dropped": case.dropped,
            "colluders": case.colluders,
            "policy": {
                "anonymity": case.policy.anonymity,
                "max_leverage": case.policy.max_leverage,
                "min_survivors": case.policy.min_survivors,
            },
            "all_rows": described(everything),
            "allowed": described(allowed),
        }
    )


def _schedules(case: Case, asked: Schedule) -> Iterator[tuple[str, list[Schedule]]]:
    """Every schedule that can be drawn for these clients and this group size, for R up to what was asked."""
    atom = asked.atom or next(
        (k for k in range(asked.size // 2, 1, -1) if asked.size % k == 0 and k >= case.policy.anonymity), 0
    )
    for name in ("random", "transversal", *(["atoms"] if atom else [])):
        fitting = []
        for groupings in range(1, max(asked.groupings, 2) + 1):
            try:
                schedule = Schedule(
                    name=name, size=asked.size, groupings=groupings, atom=atom if name == "atoms" else 0
                )
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
        raise UsageError("--plot needs matplotlib; install share-secagg[plot]") from None
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, 3)
    for label, schedules in _schedules(case, asked):
        opened = [case.audit(schedule, enforce=False) for schedule in schedules]
        allowed = [case.audit(schedule) for schedule in schedules]
        curves: Sequence[list[float]] = (
            [len(v.exposed) / max(1, v.clients) for v in opened],
            [v.mean_leverage for v in opened],
            [len(v.rows) / (len(v.rows) + len(v.closed)) for v in allowed],
        )
        for panel, curve in zip(panels, curves, strict=True):
            panel.plot([s.groupings for s in schedules], curve, marker="o", markersize=3, label=label)
    titles = ("clients exposed, all rows opened", "mean leverage, all rows opened", "rows the policy opens")
    for panel, title in zip(panels, titles, strict=True):
        panel.set(title=title, xlabel="groupings R", ylim=(-0.03, 1.03))
        panel.grid(alpha=0.3)
        panel.xaxis.get_major_locator().set_params(integer=True)
    panels[0].legend()
    figure.suptitle(f"{case.clients} clients in groups of {asked.size}, {case.drop:.0%} dropouts")
    figure.savefig(file, dpi=110)

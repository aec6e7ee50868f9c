"""`secagg serve` at the hub, `secagg join` at a site, and `secagg status` for both (docs/network.md)."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from secagg.agreement import file
from secagg.agreement.proposal import Proposal
from secagg.cli.reading import named
from secagg.cli.source import check_file, file_source
from secagg.cli.statistics import add_format, format_of
from secagg.cli.steps import grouped
from secagg.errors import AgreementRefused, BudgetExceeded, TooFewSurvivors, UsageError

if TYPE_CHECKING:
    from secagg.net import Outcome, Settings

_SHOWN: Final = 12  # values of a vector that are printed
_SAID: Final = 1000  # reasons that are not printed again
_SHOWN_EVENTS: Final = {"listening": "Key of this hub {key}", "statement": "Signed statement {path}"}


def add_parsers(commands: _SubParsersAction[ArgumentParser]) -> None:
    """Add `serve`, `join` and `status` to the commands of `secagg`."""
    serve = commands.add_parser("serve", help="run the hub of an agreement over the network")
    _common(serve, "the hub's folder, with its certificate and its state")
    serve.add_argument(
        "--rounds", metavar="N", type=int, default=1, help="how many rounds to run, restarts included (1)"
    )
    help_every = "from the end of a round to the next (0)"
    serve.add_argument("--every", metavar="SECONDS", type=float, default=0.0, help=help_every)
    help_lost = "stop after so many rounds in a row that opened nothing (3)"
    serve.add_argument("--most-lost", metavar="N", type=int, default=3, help=help_lost)
    serve.add_argument("--listen", metavar="HOST:PORT", help="where to listen, if not at the agreement's address")
    serve.add_argument("--ops", metavar="HOST:PORT", help="where to answer /healthz and /metrics, in plain HTTP")
    serve.set_defaults(command=run_serve)
    join = commands.add_parser("join", help="take part in the sums of an agreement, as one of its sites")
    _common(join, "the member's folder, with its identity, its certificate and its state")
    join.add_argument(
        "--data", metavar="FILE", type=Path, required=True, help="a table (.csv) for statistics, or a vector (.npy)"
    )
    join.add_argument("--hub", metavar="ADDRESS", action="append", default=[], help="another address of the same hub")
    join.add_argument("--stay", action="store_true", help="wait for more rounds when the hub has none")
    help_journal = "the journal of this data, if one member folder serves several kinds of data (DIR/journal)"
    join.add_argument("--journal", metavar="DIR", type=Path, help=help_journal)
    add_format(join)
    join.set_defaults(command=run_join)
    status = commands.add_parser("status", help="what a hub or a site does now")
    status.add_argument("folder", metavar="DIR", type=Path, help="the folder of a hub or a member")
    status.add_argument("--json", action="store_true", help="print JSON")
    status.set_defaults(command=run_status)


def _common(parser: ArgumentParser, about: str) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="the signed agreement")
    parser.add_argument("folder", metavar="DIR", type=Path, help=about)
    parser.add_argument("--config", metavar="FILE", type=Path, help="settings (TOML; docs/network.md)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _net() -> Any:
    try:
        import secagg.net
    except ModuleNotFoundError as missing:
        raise UsageError(f"this needs {missing.name}: pip install 'share-secagg[net]'") from None
    return secagg.net


def _read(options: Namespace) -> Proposal:
    return named(options.file, file.read)


def _settings(options: Namespace, **given: Any) -> Settings:
    from dataclasses import replace

    read = _net().read_settings
    found: Settings = named(options.config, read) if options.config else read("")
    return replace(found, **{name: value for name, value in given.items() if value})


def run_serve(options: Namespace) -> int:
    """Run some rounds; 1 if one of them opened nothing, or could not begin."""
    net = _net()
    from secagg.net.progress import Progress

    proposal = _read(options)
    for name, least in (("rounds", 1), ("most_lost", 1), ("every", 0)):
        if getattr(options, name) < least:
            raise UsageError(f"--{name.replace('_', '-')}: expected at least {least}, got {getattr(options, name)}")
    settings = _settings(options, listen=options.listen, ops=options.ops)
    if not options.json:
        print(f"Agreement {grouped(proposal.agreement.fingerprint.hex())}", flush=True)
    with Progress() as progress:
        said: set[tuple[str, str]] = set()

        def tell(outcome: Outcome) -> None:
            progress.close()
            print(json.dumps(_json(outcome)) if options.json else "\n".join(_lines(outcome)), flush=True)

        def listen(event: str, values: dict[str, Any]) -> None:
            progress(event, values)
            if event == "refused" and (key := (values["member"], values["reason"])) not in said:
                progress.say(f"{key[0]} refused: {key[1]}")
                if len(said) < _SAID:
                    said.add(key)
            elif event == "finished":
                progress.say(values["text"])
            elif event == "no statement":
                progress.say(f"the evidence gets no statement: {values['reason']}")
            elif event in _SHOWN_EVENTS and not options.json:
                progress.close()
                print(_SHOWN_EVENTS[event].format(**values), flush=True)

        asked = {"rounds": options.rounds, "every": options.every, "most_lost": options.most_lost}
        try:
            outcomes = net.serve(proposal, options.folder, settings=settings, on_outcome=tell, on_event=listen, **asked)
        except TooFewSurvivors as few:
            progress.close()
            print(f"secagg: {few}", file=sys.stderr)
            return 1
    return 0 if all(one.opened for one in outcomes) else 1


def run_join(options: Namespace) -> int:
    """Answer the hub until it says that it is over; 1 if this site refused something or an answer did not count."""
    net = _net()
    from secagg.net.progress import Progress

    proposal, settings = _read(options), _settings(options)
    form = format_of(options) if proposal.terms.statistics else None
    with Progress() as progress:
        source = file_source(proposal, options.data, form, progress.warn)
        ready = check_file(proposal, options.folder, source)
        ready()  # a mistake in the file shows now, not in the first round
        told: list[str] = []

        def listen(event: str, values: dict[str, Any]) -> None:
            progress(event, values)
            if event in ("refused", "not counted"):
                told.append(values["reason"])
                progress.say(f"{event}: {values['reason']}")
            elif event == "not ready":
                progress.say(f"waiting until {options.data} can be used")
            elif event == "round over":
                progress.close()
                print(json.dumps(values) if options.json else _over(values), flush=True)

        known = {"stay": options.stay, "hubs": options.hub, "journal": options.journal, "settings": settings}
        try:
            text = net.join(proposal, options.folder, source, ready=ready, on_event=listen, **known)
        except (AgreementRefused, BudgetExceeded) as refused:
            if str(refused) not in told:
                raise
            return 1  # it was shown when the hub was told
    if options.json:
        print(json.dumps({"end": text, "refused": len(told)}), flush=True)
    else:
        print("Stopped by a signal." if text is None else f"The hub says: {text}", flush=True)
    return 1 if told else 0


def _over(values: Mapping[str, Any]) -> str:
    if values["opened"]:
        return f"Round {values['round']}: the hub opened a sum of {values['sites']} sites"
    return f"Round {values['round']}: this site is in no opened sum. The hub says: {values['reason']}"


# --- what people see ---------------------------------------------------------------------------------------


def _lines(outcome: Outcome) -> Iterator[str]:
    names = {member.id: member.name or str(member.id) for member in outcome.terms.members}
    seated = len({v for members in outcome.members.values() for v in members})
    yield f"Round {outcome.round}: {seated} of {len(names)} sites, {outcome.seconds:.2f} s"
    if outcome.opened and outcome.terms.statistics is not None:
        yield from _statistics(outcome)
        shown: Mapping[Any, Any] = {}
    else:
        shown = outcome.members
    for group, members in sorted(shown.items()):
        about = f"  group {group[0]}.{group[1]} ({len(members)} sites)" if len(outcome.members) > 1 else "  sum"
        found = outcome.sum(group)
        parts: Mapping[str, Any] = found if isinstance(found, Mapping) else {"": found}
        yield from (f"{about}{f' of {name}' if name else ''}: {_shown(part)}" for name, part in parts.items())
    for group, why in sorted(outcome.lost.items()):
        yield f"  group {group[0]}.{group[1]} stayed closed: {why}"
    for member, why in sorted(outcome.dropouts.items()):
        yield f"  {names[member]} dropped out: {why}"
    for member, why in sorted(outcome.blamed.items()):
        yield f"  {names[member]} is to blame: {why}"


def _statistics(outcome: Outcome) -> Iterator[str]:
    """The declared statistics as tables, or why there are none."""
    try:
        report = outcome.report()
    except TooFewSurvivors as few:
        yield f"  no statistics: {few}"
        return
    assert report is not None
    yield report.text()


def _shown(values: Any) -> str:
    flat = np.asarray(values).reshape(-1)
    shown = " ".join(f"{value:.6g}" for value in flat[:_SHOWN])
    return shown if flat.size <= _SHOWN else f"{shown} ... ({flat.size} values)"


def _json(outcome: Outcome) -> dict[str, Any]:
    values = outcome.to_json()
    if outcome.opened and outcome.terms.statistics is not None:
        try:
            report = outcome.report()
            assert report is not None
            values["statistics"] = report.to_json()
        except TooFewSurvivors as few:
            values["statistics"] = str(few)
        return values
    for row in values["groups"]:
        found = outcome.sum(tuple(row["group"]))
        if isinstance(found, Mapping):
            row["sum"] = {name: np.asarray(part).tolist() for name, part in found.items()}
        else:
            row["sum"] = np.asarray(found).tolist()
    return values


def run_status(options: Namespace) -> int:
    """Print the status files in a folder; 1 if there are none."""
    found = [_status(path) for role in ("hub", "site") for path in sorted(options.folder.glob(f"{role}/*/status.json"))]
    if options.json:
        print(json.dumps(found))
    elif not found:
        print(f"secagg: {options.folder} has no hub and no site that ran", file=sys.stderr)
    for one in [] if options.json else found:
        state = "running" if one["alive"] else "not running"
        print(
            f"{one['role']} of {one.get('agreement', '?')[:16]}...: {state}, {time.time() - one['updated']:.0f} s ago"
        )
        for key in ("key", "round", "stage", "waiting_for", "left_out", "refused", "trouble", "statement"):
            if one.get(key) not in (None, "", [], {}):
                print(f"  {key.replace('_', ' ')}: {one[key]}")
        if "last" in one:
            print(f"  last round: {_ended(one['last'])}")
    return 0 if found else 1


def _ended(values: Mapping[str, Any]) -> str:
    """How the last round ended, from the status of a hub or a site."""
    if values["opened"]:
        sites = values["sites"] if "sites" in values else sum(row["sites"] for row in values["groups"][:1])
        return f"{values['round']}, opened with {sites} sites"
    reasons = [values["reason"]] if "reason" in values else [row["reason"] for row in values["lost"]]
    return f"{values['round']}, lost: {'; '.join(dict.fromkeys(reasons))}"


def _status(path: Path) -> dict[str, Any]:
    """What a status file says, and whether its process still holds the folder."""
    try:
        values: dict[str, Any] = json.loads(path.read_text())
        handle = os.open(path.parent / "lock", os.O_RDWR)
    except (ValueError, OSError) as bad:
        raise UsageError(f"{path}: expected the status of a hub or a site: {bad}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        alive = False
    except BlockingIOError:
        alive = True
    finally:
        os.close(handle)
    return {**values, "alive": alive}

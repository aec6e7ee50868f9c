"""The `secagg agree` command: read, agree on, sign and check an agreement, by files alone."""

from __future__ import annotations

import json
import os
import re
from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from secagg.agreement import file
from secagg.agreement.agreement import Agreement
from secagg.agreement.draft import draft_terms, is_draft
from secagg.agreement.floors import Floors
from secagg.agreement.folder import MemberFolder
from secagg.agreement.proposal import Part, Proposal
from secagg.agreement.prospects import prospect
from secagg.agreement.successors import successor_terms
from secagg.agreement.summary import DELTA, summarise
from secagg.agreement.terms import Terms
from secagg.cli.reading import named
from secagg.cli.steps import Step, commit_step, grouped, reveal_step, sign_step
from secagg.crypto.pulse import Pulse
from secagg.errors import PeerError, UsageError
from secagg.types import ClientId


def add_parser(commands: _SubParsersAction[ArgumentParser]) -> None:
    """Add `agree` to the commands of `secagg`."""
    parser = commands.add_parser("agree", help="show what an agreement allows; make its seed; sign and check it")
    parser.add_argument("file", metavar="FILE", type=Path, help="the agreement (TOML; docs/agreement.md)")
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--commit", metavar="DIR", type=Path, help="commit to the terms and to a share of the seed")
    one.add_argument("--reveal", metavar="DIR", type=Path, help="reveal this share, once all have committed")
    one.add_argument("--sign", metavar="DIR", type=Path, help="sign the agreement, once it has its seed")
    help_add = "take in other members' commitments, reveals and signatures, or a beacon's pulse with its certificate"
    one.add_argument("--add", metavar="FILES", type=Path, nargs="+", help=help_add)
    help_collect = (
        "hub: collect members' keys and certificates, relay their steps, write the agreement (docs/network.md)"
    )
    one.add_argument("--collect", metavar="DIR", type=Path, help=help_collect)
    one.add_argument(
        "--check", action="store_true", help="check every signature; exit code 1 if one is missing or wrong"
    )
    help_earlier = "the agreements that FILE names as predecessors; what all of them open together is judged"
    parser.add_argument("--earlier", metavar="FILES", type=Path, nargs="+", default=[], help=help_earlier)
    help_successor = (
        "write the proposal of a successor to FILE that keeps the groups; --without says who leaves, if any"
    )
    one.add_argument("--successor", metavar="FILE", type=Path, help=help_successor)
    parser.add_argument("--without", metavar="ID", type=int, nargs="+", default=[], help="members that leave")
    help_floors = "my floors (TOML; docs/agreement.md); otherwise DIR/floors.toml, otherwise the defaults"
    parser.add_argument("--floors", metavar="FILE", type=Path, help=help_floors)
    help_hub = "with --sign: take all steps over the hub that sent this invitation (docs/network.md)"
    parser.add_argument("--hub", metavar="INVITATION", help=help_hub)
    help_same = "with --hub: the fingerprint that the other members read to you; otherwise you are asked for it"
    parser.add_argument("--fingerprint", metavar="HEX", help=help_same)
    parser.add_argument("--listen", metavar="HOST:PORT", help="with --collect: where to listen, if not at the address")
    help_delta = "give what noise costs as an epsilon at this delta (default: my budget's, otherwise 1e-6)"
    parser.add_argument("--delta", metavar="NUMBER", type=float, help=help_delta)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=run)


def run(options: Namespace) -> int:
    """Read the file, do one thing, say what is in the agreement and what is still missing."""
    if options.collect or options.hub:
        return _over_network(options)
    if not any((options.commit, options.reveal, options.sign, options.add, options.successor)) and _is_draft(options):
        return _show_draft(options)
    proposal = _read(options.file)
    if options.successor or options.without:
        return _successor(proposal, options)
    place: Path | None = options.commit or options.reveal or options.sign
    earlier = _earlier(proposal.terms, options, place)
    floors = _floors(options.floors, place)
    written: Path | None = None
    if place:
        floors.check(_judged(proposal))  # audit: floors-before-signing
        part = _step(proposal, place, options, earlier)
        proposal = proposal.add([part])
        written = _write_part(options.file, proposal, part)
    if options.add:
        proposal = proposal.add(_parts(options.add, proposal))
    if written or options.add:
        _replace(options.file, file.write(proposal))
    problems = [str(problem) for problem in proposal.problems()]
    report = _report(proposal, earlier, problems, _delta(options, floors))
    report["below_floors"] = [why for _, why in floors.crossed(_judged(proposal))]
    if written and place:
        report["wrote"] = str(written)
        report["also_signed"] = _also_signed(report, place)
    print(json.dumps(report, indent=2) if options.json else "\n".join(_lines(proposal, report, options)))
    below = report["below_floors"] and not options.add
    return int(bool(below or (options.check and problems)))


def _is_draft(options: Namespace) -> bool:
    return is_draft(named(options.file, file.parse))


def _show_draft(options: Namespace) -> int:
    """Say what a draft allows, whose members have names only. Nothing is complete in it; exit code 1 for --check."""
    terms = named(options.file, lambda text: draft_terms(file.parse(text)))
    floors = _floors(options.floors, None)
    summary = summarise(terms, delta=_delta(options, floors)).to_json()
    below = [why for _, why in floors.crossed(terms)]
    next_step = f"the members have no identities yet: collect them (secagg agree {options.file} --collect DIR)"
    if options.json:
        print(json.dumps({**summary, "below_floors": below, "complete": False, "problems": [next_step]}, indent=2))
    else:
        first, *rest = summary["lines"]
        print("\n".join([first, *(f"- {line}" for line in rest), *_below(below), f"A draft: {next_step}."]))
    return int(bool(below or options.check))


def _below(floors: Sequence[str]) -> Iterable[str]:
    return ["BELOW MY FLOORS; do not sign it:", *(f"  {why}" for why in floors)] if floors else []


def _also_signed(report: dict[str, Any], place: Path) -> dict[str, str]:
    """Agreements that this member signed and that this one does not name: fingerprints, with their names."""
    known = {report["fingerprint"], *report["predecessors"]}
    return {one: name for one, name in MemberFolder(place).signed().items() if one not in known}


def _over_network(options: Namespace) -> int:
    """All steps over a hub, at the hub or at a member."""
    try:
        from secagg.cli import agree_network
    except ModuleNotFoundError as missing:
        raise UsageError(f"this needs {missing.name}: pip install 'share-secagg[net]'") from None
    if options.collect:
        earlier = [_read(path).agreement for path in options.earlier]
        return agree_network.collect(options.file, options.collect, options.listen, earlier, as_json=options.json)
    if not options.sign:
        raise UsageError("--hub: expected --sign DIR beside it")
    earlier = [_read(path).agreement for path in options.earlier]
    floors = _floors(options.floors, options.sign)

    def show(proposal: Proposal) -> None:
        report = _report(proposal, earlier, [str(problem) for problem in proposal.problems()], _delta(options, floors))
        report["below_floors"] = [why for _, why in floors.crossed(_judged(proposal))]
        report["also_signed"] = _also_signed(report, options.sign)
        print(json.dumps(report) if options.json else "\n".join(_lines(proposal, report, options)), flush=True)

    invitation = agree_network.Invitation.parse(options.hub)
    return agree_network.sign(options.file, options.sign, invitation, options.fingerprint, floors, earlier, show)


def _earlier(terms: Terms, options: Namespace, place: Path | None) -> list[Agreement]:
    """The predecessors: from the files that were given, otherwise those that the member's folder keeps."""
    found = [_read(path).agreement for path in options.earlier]
    if place and not found:
        found = list(MemberFolder(place).earlier(terms))
        if len(found) < len(terms.predecessors):
            count = f"{len(terms.predecessors)} earlier agreements on the same data"
            raise UsageError(
                f"predecessors: {options.file} names {count}, and {place} has {len(found)} of them; give their files "
                "with --earlier, to see what all of them open together"
            )
    return found


def _step(proposal: Proposal, place: Path, options: Namespace, earlier: Sequence[Agreement]) -> Step:
    folder = MemberFolder(place)
    with folder.locked():
        if options.commit:
            return commit_step(proposal, folder)
        return reveal_step(proposal, folder) if options.reveal else sign_step(proposal, folder, earlier)


def _floors(path: Path | None, place: Path | None) -> Floors:
    """The operator's own floors: the file given, or the one in the member's folder, or the defaults."""
    path = path or (place / "floors.toml" if place and (place / "floors.toml").exists() else None)
    return Floors() if path is None else named(path, file.read_floors)


def _successor(proposal: Proposal, options: Namespace) -> int:
    """Write the proposal of a successor, and say who leaves."""
    place: Path | None = options.successor
    if place is None:
        raise UsageError("--without: expected --successor FILE beside it")
    if place.exists():
        raise UsageError(f"{place} exists; choose another name: it becomes the name of the successor")
    terms = successor_terms(proposal.agreement, options.without, name=place.stem)
    assert terms.keep is not None
    _replace(place, file.write(Proposal(terms=terms)))
    left = sorted(set(proposal.terms.ids) - set(terms.ids))
    if options.json:
        print(json.dumps({"wrote": str(place), "leave": left, "members": len(terms.members)}, indent=2))
    else:
        if left:
            print(f"{len(left)} members leave together: {', '.join(map(proposal.who, left))}")
        print(f"Written: {place}, with {len(terms.members)} members in the groups of before.")
        print(f"Commit, reveal and sign it as a new agreement, with --earlier {options.file}")
    return 0


def _parts(paths: Iterable[Path], proposal: Proposal) -> list[Part]:
    """The parts in these files. A pulse (JSON) comes with the beacon's certificate (PEM)."""
    found: list[Part] = []
    pulses: list[bytes] = []
    certificates: list[bytes] = []
    most = 2**20 + 4096 * len(proposal.terms.members) + len(file.write(proposal))  # others wrote these files
    for path in paths:
        if path.stat().st_size > most:
            raise UsageError(f"{path}: expected at most {most} bytes for this agreement, got {path.stat().st_size}")
        data = path.read_bytes()
        if data.lstrip().startswith(b"-----BEGIN"):
            certificates.append(data)
        elif data.lstrip().startswith(b"{"):
            pulses.append(data)
        else:
            found += named(path, lambda text: file.read_parts(text, proposal))
    if pulses or certificates:
        if len(pulses) != 1 or len(certificates) != 1:
            raise UsageError(
                f"expected one pulse (JSON) and the beacon's certificate (PEM) together, got {len(pulses)} and "
                f"{len(certificates)}"
            )
        found.append(Pulse.from_json(pulses[0], certificates[0]))
    return found


def _delta(options: Namespace, floors: Floors) -> float:
    if options.delta is not None:
        if not 0 < options.delta < 1:
            raise UsageError(f"--delta: expected a number between 0 and 1, got {options.delta:g}")
        return float(options.delta)
    return floors.budget.delta if floors.budget else DELTA


def _report(proposal: Proposal, earlier: Sequence[Agreement], problems: list[str], delta: float) -> dict[str, Any]:
    terms, fingerprint = proposal.terms, _fingerprint(proposal)
    outlook = prospect(terms, earlier) if earlier and not fingerprint else None
    return {
        **summarise(proposal.agreement if fingerprint else terms, earlier, delta).to_json(),
        "terms": terms.hash.hex(),
        "fingerprint": fingerprint,
        "predecessors": [one.hex() for one in terms.predecessors],
        "prospect": outlook and {**asdict(outlook), "text": str(outlook)},
        "signed": len(proposal.signatures),
        "complete": not problems,
        "problems": problems,
    }


def _judged(proposal: Proposal) -> Agreement | Terms:
    """The agreement, or its terms as long as it has no seed."""
    return proposal.agreement if _fingerprint(proposal) else proposal.terms


def _fingerprint(proposal: Proposal) -> str | None:
    """None while the seed is missing, or while something in its origin is wrong."""
    try:
        return proposal.agreement.fingerprint.hex() if proposal.has_seed else None
    except PeerError:
        return None


def _lines(proposal: Proposal, report: dict[str, Any], options: Namespace) -> Iterable[str]:
    terms = proposal.terms
    first, *rest = report["lines"]
    yield from (first, *(f"- {line}" for line in rest))
    yield from _below(report["below_floors"])
    if report["fingerprint"]:
        yield "Fingerprint. Compare it with the other members by voice before you sign:"
        yield f"  {grouped(report['fingerprint'])}"
    else:
        if report["prospect"]:
            yield f"With the earlier agreements together, the audit: {report['prospect']['text']}."
        yield "There is no seed yet. These are the terms that members commit to; compare by voice:"
        yield f"  {grouped(report['terms'])}"
    if "wrote" in report:
        yield f"Written: {report['wrote']} (send it to the other members) and {options.file}"
    for fingerprint, name in report.get("also_signed", {}).items():
        yield f"You also signed {name!r} ({fingerprint[:16]}...). On the same data? Then list it in predecessors."
    problems = report["problems"]
    if not problems:
        yield f"Complete: all {len(terms.members)} members have signed."
        return
    shown = problems if options.check else problems[:5]
    yield "Missing or wrong:"
    yield from (f"  {problem}" for problem in shown)
    if len(shown) < len(problems):
        yield f"  and {len(problems) - len(shown)} more (--check lists all)"


def _write_part(path: Path, proposal: Proposal, part: Step) -> Path:
    member: ClientId = part.member
    kind = type(part).__name__.lower()
    safe = re.sub(r"[^A-Za-z0-9_.-]", "_", path.stem)
    place = path.with_name(f"{safe}.{member}.{kind}.toml")
    _replace(place, file.write_part(proposal, part))
    return place


def _replace(path: Path, text: str) -> None:
    """Write a public file so that a reader sees the old or the new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _read(path: Path) -> Proposal:
    return named(path, file.read)

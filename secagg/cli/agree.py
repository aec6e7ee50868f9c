"""The `secagg agree` command: read, agree on, sign and check an agreement, by files alone."""

from __future__ import annotations

import json
import os
import re
import time
from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from secagg.agreement import file
from secagg.agreement.agreement import Agreement
from secagg.agreement.floors import Floors
from secagg.agreement.folder import MemberFolder
from secagg.agreement.origin import Approval, Commitment, Reveal, approve, commit, reveal
from secagg.agreement.proposal import Part, Proposal, Signature
from secagg.agreement.summary import summarise
from secagg.crypto.pulse import Pulse
from secagg.errors import PeerError, UsageError
from secagg.types import ClientId

Step = Commitment | Reveal | Approval | Signature


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
    one.add_argument(
        "--check", action="store_true", help="check every signature; exit code 1 if one is missing or wrong"
    )
    help_earlier = "the agreements that FILE names as predecessors; what all of them open together is judged"
    parser.add_argument("--earlier", metavar="FILES", type=Path, nargs="+", default=[], help=help_earlier)
    help_floors = "my floors (TOML; docs/agreement.md); otherwise DIR/floors.toml, otherwise the defaults"
    parser.add_argument("--floors", metavar="FILE", type=Path, help=help_floors)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=run)


def run(options: Namespace) -> int:
    """Read the file, do one thing, say what is in the agreement and what is still missing."""
    proposal = _read(options.file)
    earlier = [_read(path).agreement for path in options.earlier]
    place: Path | None = options.commit or options.reveal or options.sign
    floors = _floors(options.floors, place)
    written: Path | None = None
    if place:
        floors.check(proposal.terms)  # audit: floors-before-signing
        part = _step(proposal, place, options, earlier)
        proposal = proposal.add([part])
        written = _write_part(options.file, proposal, part)
    if options.add:
        proposal = proposal.add(_parts(options.add, proposal))
    if written or options.add:
        _replace(options.file, file.write(proposal))
    problems = [str(problem) for problem in proposal.problems()]
    report = _report(proposal, earlier, problems)
    report["below_floors"] = [why for _, why in floors.crossed(proposal.terms)]
    if written and place:
        report["wrote"] = str(written)
        known = {report["fingerprint"], *report["predecessors"]}
        report["also_signed"] = {one: name for one, name in MemberFolder(place).signed().items() if one not in known}
    print(json.dumps(report, indent=2) if options.json else "\n".join(_lines(proposal, report, options)))
    below = report["below_floors"] and not options.add
    return int(bool(below or (options.check and problems)))


def _step(proposal: Proposal, place: Path, options: Namespace, earlier: Sequence[Agreement]) -> Step:
    folder = MemberFolder(place)
    with folder.locked():
        if options.commit:
            return _commit(proposal, folder)
        return _reveal(proposal, folder) if options.reveal else _sign(proposal, folder, earlier)


def _floors(path: Path | None, place: Path | None) -> Floors:
    """The operator's own floors: the file given, or the one in the member's folder, or the defaults."""
    path = path or (place / "floors.toml" if place and (place / "floors.toml").exists() else None)
    return Floors() if path is None else _named(path, lambda: file.read_floors(_text(path)))


def _commit(proposal: Proposal, folder: MemberFolder) -> Step:
    terms = proposal.terms
    member = folder.member_of(terms)
    if terms.beacon is None:
        return commit(terms, member, folder.identity, folder.contribution(terms))
    if time.time() * 1000 >= terms.beacon.time:  # audit: pulse-in-the-future
        raise UsageError(
            f"seed.time: expected a pulse that does not exist yet, got {terms.beacon.when}; name a later one, so that "
            "nobody could fit the terms to it"
        )
    folder.record_seed_seen(terms)
    return approve(terms, member, folder.identity)


def _reveal(proposal: Proposal, folder: MemberFolder) -> Step:
    terms = proposal.terms
    if terms.beacon is not None:
        raise UsageError("seed.from: these terms name a beacon; there is nothing to reveal")
    member, contribution = folder.member_of(terms), folder.stored_contribution(terms)
    made = reveal(terms, member, folder.identity, contribution, proposal.in_order("commitments"))
    folder.record_seed_seen(terms)
    return made


def _sign(proposal: Proposal, folder: MemberFolder, earlier: Sequence[Agreement]) -> Step:
    agreement = proposal.agreement
    agreement.check(earlier)  # audit: successor-checked-before-signing
    member = folder.member_of(proposal.terms)
    folder.record_signed(proposal.terms, agreement.fingerprint)
    return Signature(member, agreement.sign(member, folder.identity))


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
            found += _named(path, lambda path=path: file.read_parts(_text(path), proposal))  # type: ignore[misc]
    if pulses or certificates:
        if len(pulses) != 1 or len(certificates) != 1:
            raise UsageError(
                f"expected one pulse (JSON) and the beacon's certificate (PEM) together, got {len(pulses)} and "
                f"{len(certificates)}"
            )
        found.append(Pulse.from_json(pulses[0], certificates[0]))
    return found


def _report(proposal: Proposal, earlier: Sequence[Agreement], problems: list[str]) -> dict[str, Any]:
    terms, fingerprint = proposal.terms, _fingerprint(proposal)
    return {
        **summarise(proposal.agreement if fingerprint else terms, earlier).to_json(),
        "terms": terms.hash.hex(),
        "fingerprint": fingerprint,
        "predecessors": [one.hex() for one in terms.predecessors],
        "signed": len(proposal.signatures),
        "complete": not problems,
        "problems": problems,
    }


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
    if report["below_floors"]:
        yield "BELOW MY FLOORS; do not sign it:"
        yield from (f"  {why}" for why in report["below_floors"])
    if report["fingerprint"]:
        yield "Fingerprint. Compare it with the other members by voice before you sign:"
        yield f"  {grouped(report['fingerprint'])}"
    else:
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


def grouped(digits: str) -> str:
    """A fingerprint in groups of 4 characters, as people read it to each other."""
    return " ".join(digits[start : start + 4] for start in range(0, len(digits), 4))


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
    return _named(path, lambda: file.read(_text(path)))  # type: ignore[no-any-return]


def _text(path: Path) -> str:
    if path.stat().st_size > file.MOST_BYTES:
        raise UsageError(f"expected a file of at most {file.MOST_BYTES} bytes, got {path.stat().st_size}")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError("expected an agreement in TOML, in UTF-8") from None


def _named(path: Path, read: Callable[[], Any]) -> Any:
    """Read, and put the file's name before an error."""
    try:
        return read()
    except UsageError as bad:
        raise UsageError(f"{path}: {bad}") from None

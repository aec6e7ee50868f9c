"""The `secagg verify` command: check the evidence of a training offline."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Iterator
from pathlib import Path

from secagg.agreement import file
from secagg.agreement.agreement import Agreement
from secagg.agreement.folder import MemberFolder
from secagg.agreement.terms import SURVIVORS
from secagg.cli.reading import named
from secagg.cli.steps import grouped
from secagg.errors import UsageError
from secagg.evidence.beside import sign_evidence
from secagg.evidence.statement import check_envelope
from secagg.evidence.verify import Report, verify

SHOWN = 20  # problems and notes that are printed; --json has all
LONGEST = 400  # characters of one of them: a hub's reason could fill the screen


def add_parser(commands: _SubParsersAction[ArgumentParser]) -> None:
    """Add `verify` to the commands of `secagg`."""
    parser = commands.add_parser("verify", help="check the evidence of a training, offline and without the hub")
    parser.add_argument("file", metavar="EVIDENCE", type=Path, help="the evidence (docs/evidence.md)")
    help_journal = "a client's journal: finds answers that the evidence leaves out, also at its end"
    parser.add_argument("--journal", metavar="DIR", type=Path, help=help_journal)
    help_earlier = "the agreements (TOML) that this one names as predecessors; all are judged together"
    parser.add_argument("--earlier", metavar="FILES", type=Path, nargs="+", default=[], help=help_earlier)
    help_statement = "check this in-toto statement about the evidence, with --hub"
    parser.add_argument("--statement", metavar="FILE", type=Path, help=help_statement)
    parser.add_argument("--hub", metavar="KEY", help="the hub's Ed25519 public key, 64 hexadecimal digits")
    help_sign = "if the evidence holds, write EVIDENCE.intoto.json, signed with the identity in DIR"
    parser.add_argument("--sign", metavar="DIR", type=Path, help=help_sign)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=run)


def run(options: Namespace) -> int:
    """Print the verdict. The exit code is 0 if the evidence holds and 1 if it does not."""
    if (options.statement is None) != (options.hub is None):
        raise UsageError("expected both --statement FILE and --hub KEY")
    data = options.file.read_bytes()
    report = verify(data, journal=options.journal, earlier=[_agreement(path) for path in options.earlier])
    found = report.to_json()
    if options.statement:
        problems = check_envelope(options.statement.read_text("utf-8", "replace"), data, _key(options.hub))
        found["problems"] += problems
        found["statement"] = "holds" if not problems else "does not hold"
        found["holds"] = not found["problems"]
    if options.sign and found["holds"]:
        found["wrote"] = str(sign_evidence(options.file, MemberFolder(options.sign).identity))
    print(json.dumps(found, indent=2) if options.json else "\n".join(_lines(report, found)))
    return int(not found["holds"])


def _lines(report: Report, found: dict[str, object]) -> Iterator[str]:
    problems, notes = found["problems"], found["notes"]
    assert isinstance(problems, list)
    assert isinstance(notes, list)
    if report.fingerprint:
        yield f"{report.name}: {report.members} members. Compare the fingerprint of the agreement:"
        yield f"  {grouped(report.fingerprint)}"
        span = f", {report.first_round} to {report.last_round}" if report.rounds else ""
        yield f"- {report.rounds} rounds{span}; {report.answers} signed answers"
        yield f"- {report.opened} group sums opened, {report.lost} lost"
        yield f"- what {_judged(report)}: {report.anonymity}" + _leverage(report)
    for client, why in report.blamed.items():
        yield f"- client {client} is convicted by its own signatures: {why}"
    for note in notes[:SHOWN]:
        yield f"note: {_short(note)}"
    if len(notes) > SHOWN:
        yield f"note: {len(notes) - SHOWN} more notes on single rounds (--json lists all)"
    if "statement" in found:
        yield f"The in-toto statement {found['statement']}."
    if "wrote" in found:
        yield f"Written: {found['wrote']}"
    if problems:
        yield "THIS EVIDENCE DOES NOT HOLD:"
        yield from (f"  {_short(problem)}" for problem in problems[:SHOWN])
        if len(problems) > SHOWN:
            yield f"  and {len(problems) - SHOWN} more (--json lists all)"
    else:
        yield "The evidence holds."


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... (--json has all of it)"


def _judged(report: Report) -> str:
    """Which sums the verdict about exposure is of."""
    if report.memory == "training":
        return "the permitted sums reveal, over all rounds together"
    if report.kind == SURVIVORS:
        return "the opened sums reveal, in the worst run"
    return "the permitted sums reveal, in each round alone"


def _leverage(report: Report) -> str:
    return "" if report.leverage is None else f"; highest leverage {report.leverage:.3f}"


def _agreement(path: Path) -> Agreement:
    return named(path, file.read).agreement


def _key(text: str) -> bytes:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != 32:
        raise UsageError("--hub: expected an Ed25519 public key, 64 hexadecimal digits")
    return key

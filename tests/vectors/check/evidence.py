"""Operations of evidence (docs/evidence.md)."""

from collections.abc import Mapping
from typing import Final

from secagg.agreement import Agreement
from secagg.evidence import verify
from tests.vectors.check.session import Operation, Session, Values
from tests.vectors.check.whole import signatures_of


def _server_evidence(s: Session, v: Values) -> Values:
    """The evidence of all rounds that the server of whole groups has closed."""
    signatures = signatures_of(s, v, Agreement.from_bytes(s.get(v["agreement"])))
    return {"evidence": s.put(v["as"], s.whole_server.evidence(signatures))}


def _evidence_verify(s: Session, v: Values) -> Values:
    """The verdict; if it holds, also what it says. The texts of problems are this implementation's own."""
    report = verify(s.get(v["evidence"]), threads=1)
    if not report.holds:
        return {"holds": False}
    return {
        "holds": True,
        "fingerprint": report.fingerprint,
        "rounds": [report.rounds, report.first_round, report.last_round],
        "answers": report.answers,
        "opened": report.opened,
        "lost": report.lost,
        "blamed": sorted(report.blamed),
    }


OPERATIONS: Final[Mapping[str, Operation]] = {
    "whole.server.evidence": _server_evidence,
    "evidence.verify": _evidence_verify,
}

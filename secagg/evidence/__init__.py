"""Evidence that outlives a training, and a verifier that believes nobody (docs/evidence.md).

`Server.evidence` gives the bytes, `verify` judges them offline, and `envelope` makes an in-toto statement about them
that a hub signs (`sign_evidence` for a file). `secagg verify` does the same on the command line.
"""

from secagg.evidence.beside import sign_evidence
from secagg.evidence.file import Evidence, assemble, interrupted
from secagg.evidence.log import EvidenceLog
from secagg.evidence.record import (
    Absence,
    AnswerRecord,
    LostGroup,
    OpenedSum,
    RoundRecord,
    SignedKey,
    SignedRelease,
)
from secagg.evidence.runs import RunRecord
from secagg.evidence.statement import PREDICATE_TYPE, check_envelope, envelope
from secagg.evidence.verify import Report, verify

__all__ = ["PREDICATE_TYPE", "Absence", "AnswerRecord", "Evidence", "EvidenceLog", "LostGroup", "OpenedSum", "Report"]
__all__ += ["RoundRecord", "RunRecord", "SignedKey", "SignedRelease", "assemble", "check_envelope", "envelope"]
__all__ += ["interrupted", "sign_evidence", "verify"]

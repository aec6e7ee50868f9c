"""Evidence that outlives a training, and a verifier that believes nobody (docs/evidence.md).

`Server.evidence` gives the bytes, `verify` judges them offline, and `envelope` makes an in-toto statement about them
that a hub signs. `secagg verify` does the same on the command line.
"""

from secagg.evidence.record import (
    Absence,
    AnswerRecord,
    Evidence,
    LostGroup,
    OpenedSum,
    RoundRecord,
    SignedKey,
    SignedRelease,
    assemble,
)
from secagg.evidence.statement import PREDICATE_TYPE, check_envelope, envelope
from secagg.evidence.verify import Report, verify

__all__ = ["PREDICATE_TYPE", "Absence", "AnswerRecord", "Evidence", "LostGroup", "OpenedSum", "Report"]
__all__ += ["RoundRecord", "SignedKey", "SignedRelease", "assemble", "check_envelope", "envelope", "verify"]

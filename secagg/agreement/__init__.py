"""What all members sign before anything is summed, and what follows from it for each round."""

from secagg.agreement.agreement import Agreement
from secagg.agreement.beacon import NamedPulse
from secagg.agreement.origin import Approval, BeaconPulse, Ceremony, Commitment, Reveal, approve, commit, reveal
from secagg.agreement.plan import Member, Plan, default_colluders, default_threshold
from secagg.agreement.terms import Terms

__all__ = ["Agreement", "Approval", "BeaconPulse", "Ceremony", "Commitment", "Member", "NamedPulse", "Plan", "Reveal"]
__all__ += ["Terms", "approve", "commit", "default_colluders", "default_threshold", "reveal"]

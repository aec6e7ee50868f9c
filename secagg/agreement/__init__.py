"""What all members sign before anything is summed, and what follows from it for each round."""

from secagg.agreement.agreement import Agreement
from secagg.agreement.origin import Ceremony, Commitment, Reveal, commit, reveal
from secagg.agreement.plan import Member, Plan, default_colluders, default_threshold
from secagg.agreement.terms import Terms

__all__ = ["Agreement", "Ceremony", "Commitment", "Member", "Plan", "Reveal", "Terms"]
__all__ += ["commit", "default_colluders", "default_threshold", "reveal"]

"""What all members sign before anything is summed, and what follows from it for each round.

An `Agreement` is `Terms` and a seed that nobody chose. Members make it with files (docs/agreement.md): a `Proposal`
grows by commitments, contributions and signatures, `read_agreement` and `write_agreement` are its TOML, and a
`MemberFolder` remembers what a member has signed. `summarise` says what an agreement allows, in plain words.
"""

from secagg.agreement.agreement import Agreement
from secagg.agreement.audit import Permitted, audit_round, audit_training
from secagg.agreement.beacon import NamedPulse
from secagg.agreement.cells import cell_sizes, colluders_in_cell, even_sizes, threshold_in_cell
from secagg.agreement.collusion import Risk, alone, alone_in_grouping, correlation
from secagg.agreement.cost import Figures, all_rounds, most_per_round, round_figures, worst_round
from secagg.agreement.draft import read_draft
from secagg.agreement.file import read as read_agreement
from secagg.agreement.file import read_floors
from secagg.agreement.file import write as write_agreement
from secagg.agreement.floors import Floors
from secagg.agreement.folder import AlreadySigned, MemberFolder
from secagg.agreement.keeping import Kept
from secagg.agreement.noise import Noise
from secagg.agreement.origin import Approval, BeaconPulse, Ceremony, Commitment, Reveal, approve, commit, reveal
from secagg.agreement.plan import Member, Plan
from secagg.agreement.proposal import Problem, Proposal, Signature
from secagg.agreement.prospects import Prospect, prospect
from secagg.agreement.successors import successor_terms
from secagg.agreement.summary import Summary, summarise
from secagg.agreement.terms import SURVIVORS, WHOLE, Groups, Terms
from secagg.agreement.thresholds import default_colluders, default_threshold
from secagg.agreement.transport import Transport

__all__ = ["Agreement", "Approval", "BeaconPulse", "Ceremony", "Commitment", "Member", "NamedPulse", "Plan", "Reveal"]
__all__ += ["Terms", "Transport", "approve", "commit", "default_colluders", "default_threshold", "reveal"]
__all__ += ["Floors", "Permitted", "Risk", "Summary", "alone", "alone_in_grouping", "audit_round", "audit_training"]
__all__ += ["SURVIVORS", "WHOLE", "Groups", "correlation", "summarise"]
__all__ += ["AlreadySigned", "MemberFolder", "Problem", "Proposal", "Signature", "read_agreement", "write_agreement"]
__all__ += ["Figures", "Kept", "Noise", "all_rounds", "most_per_round", "round_figures", "successor_terms"]
__all__ += ["Prospect", "prospect", "worst_round"]
__all__ += ["cell_sizes", "colluders_in_cell", "even_sizes", "read_draft", "read_floors", "threshold_in_cell"]

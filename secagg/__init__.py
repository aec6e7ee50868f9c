"""Secure aggregation that stands alone: the server learns the sums that its clients agree to open.

`secure_sum` is the whole thing in one call. `Plan`, `Client` and `Server` are for a protocol of your own:
messages in, messages out, no I/O. `secagg.reference` is the protocol on a page.
"""

from __future__ import annotations

from secagg.client import Client
from secagg.errors import (
    AlreadyUsed,
    PeerError,
    PlanRefused,
    SecAggError,
    TooFewSurvivors,
    UsageError,
    WireError,
)
from secagg.exposure import Policy, Verdict, audit
from secagg.groupings import Schedule
from secagg.journal import FileJournal, Journal, MemoryJournal
from secagg.keys import Identity
from secagg.plan import Floors, Member, Plan
from secagg.result import Dropout, Result, Stage
from secagg.server import Server
from secagg.simple import secure_mean, secure_sum
from secagg.wire import decode, encode

__all__ = [
    "AlreadyUsed",
    "Client",
    "Dropout",
    "FileJournal",
    "Floors",
    "Identity",
    "Journal",
    "Member",
    "MemoryJournal",
    "PeerError",
    "Plan",
    "PlanRefused",
    "Policy",
    "Result",
    "Schedule",
    "SecAggError",
    "Server",
    "Stage",
    "TooFewSurvivors",
    "UsageError",
    "Verdict",
    "WireError",
    "audit",
    "decode",
    "encode",
    "secure_mean",
    "secure_sum",
]

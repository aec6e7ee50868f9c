"""Secure aggregation that stands alone: the server learns the sums that its clients agree to open.

`secure_sum` is the whole thing in one call. `Plan`, `Client` and `Server` are for a protocol of your own:
messages in, messages out, no I/O. `secagg.reference` is the protocol on a page.
"""

from __future__ import annotations

from secagg.crypto.keys import Identity
from secagg.errors import (
    AlreadyUsed,
    PeerError,
    PlanRefused,
    SecAggError,
    TooFewSurvivors,
    UsageError,
    WireError,
)
from secagg.exposure.audit import Policy, Verdict, audit
from secagg.exposure.schedules import Schedule
from secagg.protocol.client import Client
from secagg.protocol.floors import Floors
from secagg.protocol.journal import FileJournal, Journal, MemoryJournal
from secagg.protocol.plan import Member, Plan
from secagg.protocol.result import Dropout, Result, Stage
from secagg.protocol.server import Server
from secagg.protocol.wire import decode, encode
from secagg.simulation.secure_sum import secure_mean, secure_sum

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

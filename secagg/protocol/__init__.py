"""The protocol: a `Client` and a `Server` that take messages and return messages, without I/O.

A `Plan` describes one run; client and server derive it from their agreement. docs/protocol.md is the specification,
docs/embedding.md shows how an application moves the messages.
"""

from secagg.agreement.plan import Member, Plan
from secagg.agreement.thresholds import default_colluders, default_threshold
from secagg.protocol.cache import Agreed, Cache, NoCache
from secagg.protocol.client import Client
from secagg.protocol.client_state import State
from secagg.protocol.dealing import check_advert
from secagg.protocol.journal import FileJournal, Journal, MemoryJournal
from secagg.protocol.ledger import pay, spent
from secagg.protocol.messages import (
    Bundle,
    Consistency,
    Dealing,
    KeyAdvert,
    KeyList,
    MaskedInput,
    Message,
    Outbox,
    Signatures,
    Survivors,
    ToClient,
    ToServer,
    Unmasking,
)
from secagg.protocol.result import Dropout, GroupSum, Result, Stage
from secagg.protocol.server import Server
from secagg.protocol.suspects import Suspects
from secagg.protocol.transcript import unmasking_statement
from secagg.protocol.wire import decode, encode
from secagg.types import GroupId

__all__ = [
    "Agreed",
    "Bundle",
    "Cache",
    "Client",
    "Consistency",
    "Dealing",
    "Dropout",
    "FileJournal",
    "GroupId",
    "GroupSum",
    "Journal",
    "KeyAdvert",
    "KeyList",
    "MaskedInput",
    "Member",
    "MemoryJournal",
    "Message",
    "NoCache",
    "Outbox",
    "Plan",
    "Result",
    "Server",
    "Signatures",
    "Stage",
    "State",
    "Survivors",
    "Suspects",
    "ToClient",
    "ToServer",
    "Unmasking",
    "check_advert",
    "decode",
    "default_colluders",
    "default_threshold",
    "encode",
    "pay",
    "spent",
    "unmasking_statement",
]

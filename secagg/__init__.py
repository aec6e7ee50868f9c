"""Secure aggregation: the server learns only the sums that its clients agree to open.

    >>> import secagg
    >>> secagg.secure_sum([[1, 2], [3, 4], [5, 6], [7, 8]], drop=[3])
    array([ 9, 12])

`secure_sum` runs everything in one call. An application with clients and a server of its own uses `Plan`,
`Client` and `Server`: messages in, messages out, no I/O. `secagg.reference` is the protocol on one page.
More names are public in `secagg.agreement`, `secagg.crypto`, `secagg.exposure`, `secagg.protocol`, `secagg.whole` and
`secagg.simulation`.

A name is imported when it is first used. A program that needs one room, for example `secagg.crypto`, does not load
the others.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from secagg.agreement.agreement import Agreement
    from secagg.agreement.floors import Floors
    from secagg.agreement.plan import Member, Plan
    from secagg.agreement.terms import Terms
    from secagg.compilation import announce_compilation, load_compiler, warm_up
    from secagg.crypto.keys import Identity
    from secagg.errors import (
        AgreementRefused,
        AlreadyUsed,
        BudgetExceeded,
        EntryVanished,
        JournalError,
        LossWarning,
        NoCacheWarning,
        PeerError,
        PlanRefused,
        SecAggError,
        TooFewSurvivors,
        UsageError,
        WireError,
    )
    from secagg.exposure.audit import Policy, Verdict, audit
    from secagg.exposure.schedules import Schedule
    from secagg.privacy.budget import Budget
    from secagg.protocol.client import Client
    from secagg.protocol.journal import FileJournal, Journal, MemoryJournal
    from secagg.protocol.result import Dropout, Result, Stage
    from secagg.protocol.server import Server
    from secagg.protocol.wire import decode, encode
    from secagg.simulation.secure_sum import secure_mean, secure_sum

__version__ = "0.2.0.dev0"

__all__ = ["Agreement", "Client", "FileJournal", "Floors", "Identity", "Journal", "Member", "MemoryJournal", "Plan"]
__all__ += ["Dropout", "Policy", "Result", "Schedule", "Server", "Stage", "Terms", "Verdict", "audit", "decode"]
__all__ += [
    "AgreementRefused",
    "AlreadyUsed",
    "Budget",
    "BudgetExceeded",
    "EntryVanished",
    "JournalError",
    "LossWarning",
    "NoCacheWarning",
]
__all__ += ["PeerError", "PlanRefused", "SecAggError", "TooFewSurvivors", "UsageError", "WireError"]
__all__ += ["encode", "secure_mean", "secure_sum"]
__all__ += ["__version__", "announce_compilation", "load_compiler", "warm_up"]

_HOMES = {
    "secagg.agreement.agreement": ("Agreement",),
    "secagg.agreement.floors": ("Floors",),
    "secagg.agreement.plan": ("Member", "Plan"),
    "secagg.agreement.terms": ("Terms",),
    "secagg.compilation": ("announce_compilation", "load_compiler", "warm_up"),
    "secagg.crypto.keys": ("Identity",),
    "secagg.exposure": ("Policy", "Schedule", "Verdict", "audit"),
    "secagg.privacy.budget": ("Budget",),
    "secagg.protocol.client": ("Client",),
    "secagg.protocol.journal": ("FileJournal", "Journal", "MemoryJournal"),
    "secagg.protocol.result": ("Dropout", "Result", "Stage"),
    "secagg.protocol.server": ("Server",),
    "secagg.protocol.wire": ("decode", "encode"),
    "secagg.simulation": ("secure_mean", "secure_sum"),
    "secagg.errors": (
        "AgreementRefused",
        "AlreadyUsed",
        "BudgetExceeded",
        "EntryVanished",
        "JournalError",
        "LossWarning",
        "NoCacheWarning",
        "PeerError",
        "PlanRefused",
        "SecAggError",
        "TooFewSurvivors",
        "UsageError",
        "WireError",
    ),
}
# `import secagg` is enough to write `secagg.crypto.split(...)`.
_ROOMS = frozenset({"agreement", "compilation", "crypto", "errors", "evidence", "exposure", "net", "privacy"})
_ROOMS |= {"protocol", "reference", "simulation", "statistics", "whole"}


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"secagg.{name}")
    for home, names in _HOMES.items():
        if name in names:
            found = globals()[name] = getattr(import_module(home), name)
            return found
    raise AttributeError(f"module 'secagg' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_ROOMS})

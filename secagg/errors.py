"""Errors by whose fault they are: the caller's, a peer's, or nobody's. No error carries a secret."""


class SecAggError(Exception):
    """Base of every error that secagg raises on purpose.

    >>> from secagg import SecAggError, UsageError
    >>> issubclass(UsageError, SecAggError)
    True
    """


class UsageError(SecAggError, ValueError):
    """The caller made a mistake; nothing was sent.

    >>> from secagg import Member
    >>> Member(-1, bytes(32))
    Traceback (most recent call last):
    secagg.errors.UsageError: client id -1 does not fit in 32 bits
    """


class EntryVanished(UsageError):  # noqa: N818 - the name says what happened
    """All nonzero values of an entry are too small for its clip and would become zero; nothing was sent.

    >>> from secagg import secure_sum
    >>> secure_sum([{"dose": [1e-12]}] * 4, clip=1.0)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    secagg.errors.EntryVanished: ...
    """


class PeerError(SecAggError):
    """A peer (usually the server) broke the protocol; this run is over.

    `culprit` is the client id that the evidence points to, or None if it is the server or unknown.

    >>> from secagg import PeerError
    >>> PeerError("client 3: wrong signature", culprit=3).culprit
    3
    """

    def __init__(self, message: str, *, culprit: int | None = None) -> None:
        super().__init__(message)
        self.culprit = culprit


class WireError(PeerError):
    """The bytes are not exactly one well-formed message.

    >>> from secagg import decode
    >>> decode(bytes([9, 1]))
    Traceback (most recent call last):
    secagg.errors.WireError: wire version 9, this is version 2
    """


class PlanRefused(PeerError):  # noqa: N818 - the name says what happened
    """The server's plan is not the one that follows from this client's agreement; nothing was sent.

    >>> from secagg import PeerError, PlanRefused
    >>> issubclass(PlanRefused, PeerError)
    True
    """


class AgreementRefused(UsageError):  # noqa: N818 - the name says what happened
    """An agreement breaks its own policy or crosses an operator's floor, which `floor` names; nothing was sent.

    >>> from secagg.simulation import make_agreement
    >>> make_agreement(members=6, size=2, length=1, clip=1.0)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    secagg.errors.AgreementRefused: policy: ...
    """

    def __init__(self, message: str, *, floor: str = "") -> None:
        super().__init__(message)
        self.floor = floor


class TooFewSurvivors(PeerError):  # noqa: N818 - the name says what happened
    """Fewer clients than the threshold are left, so the sums stay hidden.

    >>> from secagg import secure_sum
    >>> secure_sum([[1], [2], [3], [4]], drop=[2, 3])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    secagg.errors.TooFewSurvivors: 2 clients ...
    """


class AlreadyUsed(SecAggError):  # noqa: N818 - the name says what happened
    """The journal has a record that this step, or another opening of this update, was already taken.

    >>> from secagg import AlreadyUsed, PeerError
    >>> issubclass(AlreadyUsed, PeerError)  # no peer is at fault
    False
    """


class JournalError(SecAggError):
    """The journal could not store or read a record, so nothing was sent. Repair the storage and try again.

    >>> from secagg import JournalError, PeerError
    >>> issubclass(JournalError, PeerError)  # no peer is at fault
    False
    """


class BudgetExceeded(SecAggError):  # noqa: N818 - the name says what happened
    """An answer would cost more than is left of this data holder's budget, so nothing was sent.

    >>> from secagg import BudgetExceeded, PeerError
    >>> issubclass(BudgetExceeded, PeerError)  # no peer is at fault
    False
    """


class NoCacheWarning(UserWarning):
    """numba has no cache that only this user can write to, so every process compiles again: set NUMBA_CACHE_DIR."""


class LossWarning(UserWarning):
    """Values of an update were clipped, or became zero; the text names the entry. It is given before anything is sent.

    To refuse such updates, turn it into an error: `warnings.simplefilter("error", LossWarning)`.
    """

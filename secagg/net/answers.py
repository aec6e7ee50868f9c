"""What a site does with each message of the hub, for both kinds of groups, with everything stored before it is sent.

`open` takes a message and gives the bytes to send, or says that a vector is wanted; `answer` takes the vector. A
message that was answered before, also by an earlier process, gets the same bytes again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from secagg import codec, labels
from secagg.agreement.agreement import Agreement
from secagg.codec import U32, U64, Blob, Buffer, Fixed, Struct
from secagg.crypto.keys import HASH_BYTES, Identity, digest
from secagg.errors import AlreadyUsed, JournalError, PeerError, SecAggError, UsageError
from secagg.net.files import read_file, replace_file
from secagg.net.messages import WHOLE_TYPES, Begin, run_context, type_of
from secagg.privacy.budget import Budget
from secagg.protocol import Client as SurvivorClient
from secagg.protocol import FileJournal, State
from secagg.protocol import encode as encode_step
from secagg.protocol import wire as survivor_wire
from secagg.protocol.messages import Bundle
from secagg.types import ClientId
from secagg.whole import Advert, FileStore, Resend, Task, recall, respond
from secagg.whole import Client as WholeClient
from secagg.whole import encode as encode_whole

_BUNDLE: Final = survivor_wire.TYPES[Bundle]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A message that is answered with a vector: the round, and the hub's data for it."""

    round: int
    data: bytes = field(repr=False)
    token: Any = field(repr=False)


Reply = list[Buffer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """Who answers, and where it keeps what: `journal` for all agreements on the same data, `folder` for this one."""

    agreement: Agreement
    signatures: Mapping[ClientId, bytes]
    me: ClientId
    identity: Identity
    folder: Path
    journal: Path
    earlier: tuple[Agreement, ...] = ()
    budget: Budget | None = None


class WholeAnswers:
    """A site with whole groups: one client for all rounds."""

    def __init__(self, member: Membership) -> None:
        self._store = FileStore(member.folder / "store", FileJournal(member.journal))
        self._path = member.folder / "client.state"
        who = (member.agreement, member.signatures, member.me, member.identity)
        saved = read_file(self._path)
        if saved is None:  # the first start, or a lost file: the store still knows the last answer
            saved = recall(member.agreement, member.me, member.identity, self._store)
        self._client = WholeClient.restore(saved, *who, earlier=member.earlier, budget=member.budget)

    def open(self, message: bytes) -> Reply | Wanted:
        if type_of(message) not in WHOLE_TYPES:
            raise PeerError("expected a message of whole groups, as the agreement says")
        found = self._client.receive(message)
        match found:
            case Advert():
                self._save()  # audit: round-key-stored-before-sent
                return [encode_whole(found)]
            case Resend():
                return [self._store.load(found.name)]
            case Task():
                if self._store.look(found.slot):
                    return self.answer(Wanted(found.round, found.data, found), None)
                return Wanted(found.round, found.data, found)

    def answer(self, wanted: Wanted, update: Any) -> Reply:
        parts = respond(self._client, self._store, wanted.token, update)
        self._save()
        return parts

    def idle(self) -> None:
        """What to do while the hub does not wait: draw the noise of the next answer."""
        self._client.prepare()

    def _save(self) -> None:
        replace_file(self._path, [self._client.save()])


_RUN: Final = Struct(
    dict,
    (
        ("round", U64),
        ("attempt", U32),
        ("data", Blob()),
        ("mark", Fixed(HASH_BYTES)),  # of the message that was answered last
        ("answer", Blob()),
        ("client", Blob()),  # empty: this run is over
    ),
)


class SurvivorAnswers:
    """A site with survivors: one client for each run."""

    def __init__(self, member: Membership) -> None:
        agreement = member.agreement
        agreement.check_signatures(member.signatures)  # audit: survivor-site-checks-signatures
        agreement.check(member.earlier)  # audit: survivor-site-checks-earlier
        self._agreement, self._me, self._identity = agreement, member.me, member.identity
        self._journal, self._budget = FileJournal(member.journal), member.budget
        self._path = member.folder / "run.state"
        self._state: dict[str, Any] | None = None
        self._client: SurvivorClient | None = None
        saved = read_file(self._path)
        if saved is not None:
            self._restore(saved)

    def _restore(self, saved: bytes) -> None:
        try:
            state: dict[str, Any] = codec.from_bytes(_RUN, saved)
        except SecAggError as damaged:
            raise UsageError(f"{self._path} is damaged: {damaged}") from None
        self._state = state
        if state["client"]:
            self._client = SurvivorClient.restore(
                state["client"], self._identity, self._agreement, self._journal, budget=self._budget
            )

    def idle(self) -> None:
        """What to do while the hub does not wait: draw the noise of a run's vector."""
        if self._client is not None and self._client.state < State.MASKED:
            self._client.prepare()

    def begin(self, message: Begin) -> Reply:
        """Begin a run, or send the keys of a run that has begun again."""
        if message.fingerprint != self._agreement.fingerprint:  # audit: run-of-this-agreement
            raise PeerError("the message belongs to another agreement")
        if message.round not in self._agreement.terms.rounds:
            raise PeerError(f"round {message.round} is not in the agreement")
        mark, state = _mark(encode_begin(message)), self._state
        if state is not None and state["mark"] == mark:
            return [state["answer"]]
        if state is not None and (message.round, message.attempt) <= (state["round"], state["attempt"]):
            raise PeerError(f"the hub begins run {message.attempt} of round {message.round}, which is over here")
        client = SurvivorClient(
            self._me, self._identity, self._agreement, message.round, self._journal, budget=self._budget
        )
        advert = client.hello()
        self._client = client
        self._state = {"round": message.round, "attempt": message.attempt, "data": message.data}
        return self._keep(mark, [encode_step(advert)])

    def open(self, message: bytes) -> Reply | Wanted:
        state, kind = self._state, type_of(message)
        if state is not None and state["mark"] == _mark(message):  # audit: same-message-same-answer
            return [state["answer"]]
        if self._client is None or state is None:
            raise PeerError("no run has begun here, or it is over")
        if kind == _BUNDLE:
            return Wanted(state["round"], state["data"], message)
        return self._step(message, None)

    def answer(self, wanted: Wanted, update: Any) -> Reply:
        return self._step(wanted.token, update)

    def _step(self, message: bytes, update: Any) -> Reply:
        assert self._client is not None
        assert self._state is not None
        context = run_context(self._state["data"])
        try:
            reply = self._client.receive(message, update=update, context=context)
        except (PeerError, AlreadyUsed):
            self._client = None  # this run is over, also after a restart
            self._state["client"] = b""
            replace_file(self._path, [codec.to_bytes(_RUN, self._state)])  # audit: refused-run-stays-over
            raise
        return self._keep(_mark(message), [encode_step(reply)])

    def _keep(self, mark: bytes, reply: Reply) -> Reply:
        """Store the client and its answer before the answer is sent."""
        assert self._client is not None
        assert self._state is not None
        try:
            saved = self._client.checkpoint()
        except UsageError:  # done: there is nothing left to save
            saved, self._client = b"", None
        self._state |= {"mark": mark, "answer": b"".join(reply), "client": saved}
        try:
            replace_file(self._path, [codec.to_bytes(_RUN, self._state)])
        except JournalError:
            self._client = None  # the step is taken and its answer is not stored: this run is over here
            raise
        return reply


def _mark(message: bytes) -> bytes:
    return digest(labels.ANSWERED, message)


def encode_begin(message: Begin) -> bytes:
    """The bytes of a Begin again; the encoding is canonical."""
    from secagg.net.messages import encode

    return encode(message)

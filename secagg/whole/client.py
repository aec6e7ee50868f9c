"""One client of an agreement with whole groups, over all its rounds.

A round is one exchange: the server sends the adverts of the client's groups, the client sends one masked vector per
group. `STEPS` is the whole state machine. The client does no I/O: it hands out what must be stored before anything is
sent (`Pending`), and goes on when `stored` tells it the outcome. A message that is refused changes nothing: nothing was
derived from it, and nothing was sent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from secagg.agreement.agreement import Agreement
from secagg.arguments import raw, whole
from secagg.codec import BUFFERS, Buffer
from secagg.crypto.keys import KEY_BYTES, AgreementKey, Identity
from secagg.crypto.segments import Losses
from secagg.errors import AlreadyUsed, PeerError, UsageError
from secagg.evidence.record import AHEAD
from secagg.privacy.budget import Budget, Charge
from secagg.protocol.noise import NoiseSource
from secagg.types import ClientId, Entropy, GroupId, Ring32
from secagg.whole import client_state, cost, encoding, flat, transcript
from secagg.whole.client_checks import (
    Accepted,
    check_adverts,
    check_agreement,
    check_given,
    check_groups,
    check_present,
    check_releases,
    check_round,
)
from secagg.whole.client_state import (
    ANSWER_RECORD,
    MISPLACED,
    RELEASE_RECORD,
    ClientMemory,
    Giving,
    Pending,
    PrivateKey,
    Repeated,
    Resend,
    State,
    Stored,
    Task,
    Update,
)
from secagg.whole.layout import layout
from secagg.whole.masking import mask_keys, masked
from secagg.whole.messages import Advert, Answer, Hello, Release, Round, ToClient, decode


class Client:
    """One member of an agreement. `receive` takes messages, `answer` the update, `stored` the word that it is stored.

    `signatures` are all members' signatures on the agreement. `earlier` are the agreements on the same data that it
    names: AgreementRefused unless it keeps its policy together with them. `budget` bounds what all answers that share a
    store may cost, for an agreement with noise. `entropy` is for tests; `threads` limits the cores that masking uses.
    `secagg.whole.respond` does `answer`, storing and `stored` in one call.

    >>> from secagg.simulation import make_agreement
    >>> from secagg.whole import Client, Hello
    >>> agreement, identities = make_agreement(members=3, size=3, length=4, clip=1.0)
    >>> signatures = {v: agreement.sign(v, identity) for v, identity in identities.items()}
    >>> client = Client(agreement, signatures, 0, identities[0])
    >>> client.receive(Hello(agreement.fingerprint, 0)).sender, client
    (0, <whole.Client 0, IDLE>)
    """

    def __init__(
        self,
        agreement: Agreement,
        signatures: Mapping[ClientId, bytes],
        me: ClientId,
        identity: Identity,
        *,
        earlier: Iterable[Agreement] = (),
        budget: Budget | None = None,
        entropy: Entropy = os.urandom,
        threads: int | None = None,
    ) -> None:
        check_given(agreement, me, identity, entropy, threads, budget)
        memory = ClientMemory(me=me, fingerprint=agreement.fingerprint)
        self._bind(agreement, signatures, memory, identity, earlier, entropy, threads, budget)

    def _bind(
        self,
        agreement: Agreement,
        signatures: Mapping[ClientId, bytes],
        memory: ClientMemory,
        identity: Identity,
        earlier: Iterable[Agreement],
        entropy: Entropy,
        threads: int | None,
        budget: Budget | None,
    ) -> None:
        check_agreement(agreement, signatures, memory.me, identity, earlier)
        self._agreement, self._memory, self._identity = agreement, memory, identity
        self._entropy, self._threads, self._budget = entropy, threads, budget
        self._noise = NoiseSource(entropy, threads)
        self._lock = threading.RLock()
        self._state = State.IDLE
        self._accepted: Accepted | None = None
        self._pending: Pending | None = None
        self._next_keys: tuple[PrivateKey, ...] = ()
        self._pairs: dict[PrivateKey, AgreementKey] = {}
        self.losses: Losses | None = None  # what the last update lost when it was encoded; private to the application
        self.left_out: Mapping[GroupId, str] = {}  # groups that the last answer left out, and why

    def __repr__(self) -> str:
        return f"<whole.Client {self._memory.me}, {self.state.name}>"

    def __reduce_ex__(self, protocol: object) -> str:
        raise UsageError("a client cannot be copied or pickled; use save()")  # audit: whole-client-not-copied

    @property
    def me(self) -> ClientId:
        return self._memory.me

    @property
    def agreement(self) -> Agreement:
        return self._agreement

    @property
    def state(self) -> State:
        return self._state

    @property
    def task(self) -> Task | None:
        """The round that waits for its update, if any."""
        accepted = self._accepted
        if accepted is None:
            return None
        message = accepted.message
        return Task(message.round, message.data, self._slot(message.round), accepted.present)

    @property
    def pending(self) -> Pending | None:
        """What is to be stored before anything is sent, if anything: to try again after an error of the storage."""
        return self._pending

    @property
    def spent(self) -> Charge:
        """What its answers under this agreement have cost, for nobody else's eyes; `Store.spent` has all trainings."""
        return Charge(self._memory.rho, self._memory.eta)

    @property
    def answered(self) -> int | None:
        """The last round that this client answered or released; None before the first."""
        return self._memory.answered[0] if self._memory.answered else None

    def prepare(self) -> None:
        """Draw the noise of the next answer now, if the agreement has noise; otherwise `answer` draws it.

        Drawing takes a time that depends on the noise. Call this while nobody waits for this client.
        """
        with self._lock:
            self._noise.prepare(self._agreement.terms.encoding)

    def abandon(self) -> None:
        """Forget an answer that cannot be stored or paid for. It must not have been sent."""
        with self._lock:
            if self._state is State.MASKED:
                self._pending, self._next_keys, self._state = None, (), State.IDLE

    # --- the state machine ---------------------------------------------------------------------------

    def receive(self, message: ToClient | Buffer) -> Advert | Task | Resend:
        """Take one message: Hello gives an Advert to send, Round a Task, or a Resend if the round is answered.

        PeerError: the message is refused, and nothing has changed.
        """
        if isinstance(message, BUFFERS):
            message = decode(message)  # type: ignore[assignment]
        if not isinstance(message, (Hello, Round)):
            raise PeerError(f"expected a Hello or a Round, got {type(message).__name__}")
        with self._lock:
            repeated = isinstance(message, Round) and message.round == self.answered
            return self._step(Repeated(message) if repeated else message)  # type: ignore

    def answer(self, task: Task, update: Any, *, context: bytes = b"", out: Ring32 | None = None) -> Pending:
        """Mask the update for the task's round; the result is to be stored before it is sent.

        `task` is what `receive` gave and the update was computed for: UsageError if another task has taken its place.
        `context` is what else the update was computed from and the Round did not carry: all members of a group must
        give the same. `out` may be memory for the masked vectors: uint32, one row per grouping.
        """
        return self._step(Update(task, update, raw("context", context), out))  # type: ignore[no-any-return]

    def release(self, round: int) -> Pending:
        """A signed promise that this client has not answered a round and never will. It fills the answer's slot."""
        return self._step(Giving(whole("round", round)))  # type: ignore[no-any-return]

    def stored(self, found: bytes | None = None) -> str:
        """Go on after the spool and the slot's record are stored; `found` is a record that was already in the slot.

        Returns the name of the spool to send: the new one, or an earlier answer of the same round. AlreadyUsed if the
        slot holds a release instead of an answer, or the other way round: then nothing is sent. If the slot of a task
        is found to be filled before `answer`, call this instead of `answer`.
        """
        return self._step(Stored(found))  # type: ignore[no-any-return]

    def _step(self, event: Any) -> Any:
        with self._lock:  # audit: whole-client-lock
            step = STEPS.get((self._state, type(event)))
            if step is None:
                raise UsageError(MISPLACED[self._state].format(type(event).__name__))
            handler, after = step
            result = handler(self, event)
            self._state = after
            return result

    # --- adverts -------------------------------------------------------------------------------------

    def _advertise(self, message: Hello) -> Advert:
        """A signed key for a round. Keys of rounds outside the window from this round on are forgotten."""
        check_round(self._agreement, self.me, message.fingerprint, message.round)
        if self.answered is not None and message.round <= self.answered:  # audit: no-advert-for-answered-round
            raise PeerError(f"the server asks for an advert of round {message.round}, but {self.answered} is answered")
        self._accepted = None
        memory, window = self._memory, range(message.round, message.round + AHEAD + 1)
        memory.keys = tuple(key for key in memory.keys if key.round in window)
        if all(key.round != message.round for key in memory.keys):
            memory.keys = (*memory.keys, self._new_key(message.round))
        return self._advert(self._private(message.round), message.round)

    def _new_key(self, round: int) -> PrivateKey:
        return PrivateKey(round, self._entropy(KEY_BYTES))

    def _private(self, round: int) -> AgreementKey:
        for key in self._memory.keys:
            if key.round == round:
                return self._derived(key)
        raise PeerError(f"I have no key for round {round}: ask for an advert first")

    def _derived(self, key: PrivateKey) -> AgreementKey:
        """The key pair, derived once. Only pairs of keys that are remembered are kept."""
        pair = self._pairs.get(key) or AgreementKey.from_private(key.private)
        self._pairs = {k: kept for k, kept in self._pairs.items() if k in self._memory.keys} | {key: pair}
        return pair

    def _advert(self, key: AgreementKey, round: int) -> Advert:
        unsigned = Advert(self.me, round, key.public, b"")
        statement = transcript.advert_statement(self._memory.fingerprint, unsigned)
        return replace(unsigned, signature=self._identity.sign(statement))

    # --- a round -------------------------------------------------------------------------------------

    def _accept(self, message: Round) -> Task:
        """Checks 1 to 3: the agreement's round, a free slot, my own key."""
        round = message.round
        check_round(self._agreement, self.me, message.fingerprint, round)
        if self.answered is not None and round <= self.answered:  # audit: no-earlier-round
            raise PeerError(f"the server asks for round {round}, but round {self.answered} is answered")
        private = self._private(round)
        mine = check_adverts(message, self.me, private.public)
        present = check_present(self._agreement, message)
        released = check_releases(self._agreement, self.me, message)
        self._accepted = Accepted(message, mine, private, released, present)
        task = self.task
        assert task is not None
        return task

    def _resend(self, repeated: Repeated) -> Resend:
        """The spool again, byte for byte: nothing is derived a second time from a key and another update."""
        check_round(self._agreement, self.me, repeated.message.fingerprint, repeated.message.round)
        if self._memory.released:  # audit: released-round-not-answered
            raise PeerError(f"round {repeated.message.round} is released: I will not answer it")
        return Resend(repeated.message.round, self._memory.last.hex())

    def _slot(self, round: int) -> str:
        return transcript.slot_name(self._identity.public, self._memory.fingerprint, round)

    def _mask(self, given: Update) -> Pending:
        """Checks 4 and 5, then mask every group that passed with every mate, and sign."""
        assert self._accepted is not None
        if given.task != self.task:  # audit: update-of-this-task
            raise UsageError(
                "this update is not for the task that waits: the server has sent another round, other data or other "
                "members"
            )
        message, mine = self._accepted.message, self._accepted.mine
        memory, round = self._memory, message.round
        context = transcript.context_hash(message.data, given.context)
        encoded, losses = encoding.encode(self._agreement.terms, self.me, given.values)
        self._noise.add_to(self._agreement.terms.encoding, encoded)
        groups, agreed, left_out = check_groups(self._agreement, self.me, self._accepted)
        if not groups:  # audit: nothing-sent-without-group
            raise PeerError(
                f"no group of round {round} can be answered: {next(iter(left_out.values()), 'none listed')}"
            )
        adverts = {advert.sender: advert for advert in message.adverts}
        mates = [(group[0], adverts[v]) for group, members in groups for v in members if v != self.me]
        present = self._accepted.present
        called = transcript.present_hash(memory.fingerprint, round, present) if present else b""
        keys = mask_keys(memory.fingerprint, round, context, mine, mates, agreed, called)
        vectors = masked(encoded, self.me, groups, keys, out=given.out, threads=self._threads)
        self._next_keys = self._keys_ahead(round)
        unsigned = Answer(
            sender=self.me,
            round=round,
            context=context,
            groups=tuple(group for group, _ in groups),
            seen=tuple(
                transcript.adverts_hash(memory.fingerprint, round, group, [adverts[v] for v in members])
                for group, members in groups
            ),
            previous=memory.last,
            adverts=tuple(self._advert(AgreementKey.from_private(k.private), k.round) for k in self._next_keys),
            signature=transcript.NO_SIGNATURE,
            vectors=vectors,
        )
        hash = transcript.answer_hash(memory.fingerprint, unsigned, transcript.row_hashes(vectors, self._threads))
        answer = replace(unsigned, signature=self._identity.sign(transcript.answer_statement(hash)))
        self.losses, self.left_out = losses, left_out
        charge = cost.answer_charge(self._agreement, self.me, round, groups)
        record = ANSWER_RECORD + hash
        pending = Pending(round, hash.hex(), answer, self._slot(round), record, self._obsolete, charge, self._budget)
        return self._hold(pending)

    @property
    def _obsolete(self) -> str:
        return self._memory.last.hex() if self._memory.last != transcript.FIRST else ""

    def _keys_ahead(self, round: int) -> tuple[PrivateKey, ...]:
        """A key for each of the next rounds that this client is drawn for and has none for.

        None with a roll call: there an advert says that the client is present when it is asked.
        """
        if self._agreement.terms.roll_call:
            return ()
        have = {key.round for key in self._memory.keys}
        last = min(round + AHEAD, self._agreement.terms.last_round)
        wanted = [t for t in range(round + 1, last + 1) if t not in have]
        return tuple(self._new_key(t) for t in wanted if self.me in layout(self._agreement, t).seats)

    def _release(self, given: Giving) -> Pending:
        """The release takes the slot of the answer, so that only one of them can ever be sent.

        A round before the last answered one may be released if its slot is free.
        """
        memory, round = self._memory, given.round
        if round not in self._agreement.terms.rounds:
            raise UsageError(f"round {round} is not in the agreement")
        if refused := flat.releases_refused(self._agreement, round):  # audit: own-release-allowed
            raise UsageError(refused)
        unsigned = Release(self.me, round, b"")
        statement = transcript.release_statement(memory.fingerprint, unsigned)
        release = replace(unsigned, signature=self._identity.sign(statement))
        self._next_keys = ()
        name = f"{self._slot(round)}.release"
        return self._hold(Pending(round, name, release, self._slot(round), RELEASE_RECORD, ""))

    def _hold(self, pending: Pending) -> Pending:
        self._pending, self._accepted = pending, None
        return pending

    def _send(self, given: Stored) -> str:
        """The slot is filled with what was pending, or was filled before."""
        pending, self._pending = self._pending, None
        assert pending is not None
        record = pending.record if given.found is None else bytes(given.found)
        self._settle(pending.round, record)
        if record == pending.record:
            client_state.add_charge(self._memory, pending.charge)
            return pending.name
        return self._earlier(pending.round, record if isinstance(pending.message, Answer) else b"")

    def _found(self, given: Stored) -> str:
        """The slot of the task was filled before: by another process, or before this client was restored."""
        if given.found is None:
            raise UsageError("nothing is pending: call answer() first, or give the record that was found in the slot")
        assert self._accepted is not None
        round, self._accepted = self._accepted.message.round, None
        self._settle(round, bytes(given.found))
        return self._earlier(round, bytes(given.found))

    def _settle(self, round: int, record: bytes) -> None:
        """A filled slot ends its round: forget all keys up to it."""
        memory, added, self._next_keys = self._memory, self._next_keys, ()
        if self.answered is not None and round <= self.answered:
            return  # a release of an earlier round
        keys = (*memory.keys, *added)
        # audit: keys-erased-after-claim
        memory.keys = tuple(sorted((key for key in keys if key.round > round), key=lambda key: key.round))
        self._pairs = {key: pair for key, pair in self._pairs.items() if key in memory.keys}
        memory.answered, memory.released = (round,), int(not record.startswith(ANSWER_RECORD))
        memory.last = memory.last if memory.released else record[len(ANSWER_RECORD) :]

    def _earlier(self, round: int, record: bytes) -> str:
        """The spool of an earlier answer, which is sent again. A release and an answer exclude each other."""
        self._state = State.IDLE  # also if this raises: the round is over
        if not record.startswith(ANSWER_RECORD):  # audit: slot-answer-or-release
            raise AlreadyUsed(f"round {round} has been answered or released before; nothing is sent")
        return record[len(ANSWER_RECORD) :].hex()

    # --- state in bytes ------------------------------------------------------------------------------

    def save(self) -> bytes:
        """This client as bytes, between two rounds. They hold the private keys of its adverts: encrypt them.

        Save after each answer and overwrite the earlier bytes, so that erased keys are gone. An older copy cannot
        answer a round again, because its slot is filled.
        """
        with self._lock:
            if self._state is State.MASKED:
                raise UsageError("an answer is being stored: call stored() first")
            return client_state.save(self._memory)

    @classmethod
    def restore(
        cls,
        data: bytes,
        agreement: Agreement,
        signatures: Mapping[ClientId, bytes],
        me: ClientId,
        identity: Identity,
        *,
        earlier: Iterable[Agreement] = (),
        budget: Budget | None = None,
        entropy: Entropy = os.urandom,
        threads: int | None = None,
    ) -> Client:
        """The client that `save` wrote, for the same agreement."""
        check_given(agreement, me, identity, entropy, threads, budget)
        client = cls.__new__(cls)
        memory = client_state.restore(raw("data", data), me, agreement.fingerprint)
        client._bind(agreement, signatures, memory, identity, earlier, entropy, threads, budget)
        return client


Handler = Callable[[Client, Any], Any]
STEPS: Final[Mapping[tuple[State, type], tuple[Handler, State]]] = {
    # (state, event) -> (handler, next state). A handler that raises leaves the state as it was.
    (State.IDLE, Hello): (Client._advertise, State.IDLE),
    (State.ASKED, Hello): (Client._advertise, State.IDLE),
    (State.IDLE, Round): (Client._accept, State.ASKED),
    (State.ASKED, Round): (Client._accept, State.ASKED),  # takes the place of the first: nothing was derived yet
    (State.IDLE, Repeated): (Client._resend, State.IDLE),
    (State.ASKED, Repeated): (Client._resend, State.ASKED),
    (State.ASKED, Update): (Client._mask, State.MASKED),
    (State.IDLE, Giving): (Client._release, State.MASKED),
    (State.ASKED, Giving): (Client._release, State.MASKED),
    (State.MASKED, Stored): (Client._send, State.IDLE),
    (State.ASKED, Stored): (Client._found, State.IDLE),
}

"""One client in one run: five answers, each given once.

The stages are those of Bonawitz et al. 2017, Fig. 4, over R groupings at once, with two additions: the view of U2 is
signed with the masked vectors, and every client audits what the opened sums would reveal before it signs. `STEPS` is
the whole state machine; `client_checks.py` holds what a client demands of each message. The state is FAILED while a
message is being handled, and only success leaves it, so the server cannot retry a refused request with other content.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from threading import RLock
from typing import Final

from secagg import labels
from secagg.agreement.plan import Plan
from secagg.arguments import MOST_ID, MOST_ROUND, drawn, raw, whole
from secagg.codec import BUFFERS, Buffer
from secagg.crypto import box, shamir
from secagg.crypto.keys import KEY_BYTES, AgreementKey, Identity, digest
from secagg.crypto.segments import Update
from secagg.errors import AlreadyUsed, JournalError, PeerError, PlanRefused, SecAggError, UsageError
from secagg.kernels.threads import thread_count
from secagg.privacy.budget import Budget, Charge
from secagg.protocol import charging, client_checks, client_state, enrolment, ledger, messages, transcript, wire
from secagg.protocol.cache import Agreed, Cache, NoCache
from secagg.protocol.client_state import ClientMemory, FromApplication, Opening, State
from secagg.protocol.dealing import deal, open_boxes
from secagg.protocol.giving import own_seeds_and_shares
from secagg.protocol.journal import Journal, record_name, store
from secagg.protocol.masking import encoded_update, masked_vectors
from secagg.protocol.noise import NoiseSource
from secagg.protocol.rounds import record_opening
from secagg.protocol.wire import decode
from secagg.types import ClientId, Entropy, Ring32, u32


class Client:
    """A client of one run. Call `hello()` first, then `receive()` for each message from the server.

    The plan follows from `agreement` and the round; the server cannot change it. `journal` stores the exclusive
    records (`journal.py`); nothing is sent before a record is stored. `budget` bounds what all runs that share the
    journal may cost, for agreements with noise. `entropy` is for tests, `cache` for processes that simulate many
    clients; `threads` limits the cores that masking uses.

    >>> from secagg import Client, MemoryJournal
    >>> from secagg.simulation import make_agreement
    >>> agreement, identities = make_agreement(members=6, size=3, length=4, clip=1.0, groups="survivors")
    >>> client = Client(0, identities[0], agreement, 0, MemoryJournal())
    >>> client.hello().sender, client
    (0, <Client 0, ADVERTISED>)
    """

    def __init__(
        self,
        me: ClientId,
        identity: Identity,
        agreement: Agreed,
        round: int,
        journal: Journal,
        *,
        budget: Budget | None = None,
        entropy: Entropy = os.urandom,
        cache: Cache | None = None,
        threads: int | None = None,
    ) -> None:
        client_checks.check_application(identity, agreement, journal, entropy, cache, budget)
        me, round, _ = whole("me", me, 0, MOST_ID), whole("round", round, 0, MOST_ROUND), thread_count(threads)
        instance, channel, mask = (drawn(entropy, size) for size in (16, KEY_BYTES, KEY_BYTES))
        mine = agreement.fingerprint
        memory = ClientMemory(me=me, round=round, agreement=mine, instance=instance, channel=channel, mask=mask)
        self._bind(memory, identity, agreement, journal, entropy, cache, threads, budget)

    def _bind(
        self,
        memory: ClientMemory,
        identity: Identity,
        agreement: Agreed,
        journal: Journal,
        entropy: Entropy,
        cache: Cache | None,
        threads: int | None,
        budget: Budget | None,
    ) -> None:
        self._memory, self._identity, self._agreement, self._journal = memory, identity, agreement, journal
        self._entropy, self._cache, self._threads = entropy, cache or NoCache(), threads
        self._budget, self._noise = budget, NoiseSource(entropy, threads)
        self._lock = RLock()
        self._plan: Plan | None = None
        derived = self._derive(b"")
        # audit: client-on-pinned-roster
        if identity.public != derived.identities.get(memory.me):
            raise UsageError(f"client {memory.me} with this identity is not in this agreement")
        self._roster_hash = derived.roster_hash
        self._answer: messages.ToServer | None = None
        self._agreed: dict[ClientId, bytes] = {}  # channel secrets, so that each is computed once

    def __repr__(self) -> str:
        return f"<Client {self._memory.me}, {self.state.name}>"

    def __reduce_ex__(self, protocol: object) -> str:
        # audit: client-not-copied
        raise UsageError("a client cannot be copied or pickled; use save(), once")

    @property
    def me(self) -> ClientId:
        return self._memory.me

    @property
    def state(self) -> State:
        return self._memory.state

    @property
    def plan(self) -> Plan:
        """The accepted plan; UsageError before there is one."""
        if self._plan is None:
            raise UsageError("no plan was accepted yet")
        return self._plan

    @property
    def clipped(self) -> int:
        """How many coordinates of the update were clipped. Do not send it: it reveals the update's size."""
        return self._memory.clipped

    @property
    def spent(self) -> Charge:
        """What all trainings that share the journal have cost, for nobody else's eyes."""
        return ledger.spent(self._journal)

    def prepare(self) -> None:
        """Draw the noise of the update now, while nobody waits for it: its time depends on the noise."""
        with self._lock:
            self._noise.prepare(self._agreement.terms.encoding)

    def _derive(self, context: bytes) -> Plan:
        """The plan that follows from the agreement, this round and this context: nobody else has a say in it."""
        round = self._memory.round
        return self._cache.plan(self._agreement, round, self._agreement.cell_of(self.me, round), context)

    # --- the state machine ---------------------------------------------------------------------------

    def hello(self) -> messages.KeyAdvert:
        """Stage 0: advertise two fresh, signed keys. They serve only the first plan that is accepted."""
        with self._lock, self._ends_forgotten():
            return self._hello()

    def _hello(self) -> messages.KeyAdvert:
        before, self._memory.state = self.state, State.FAILED
        if before is not State.NEW:  # audit: hello-once
            raise UsageError(f"hello() begins a run and is called once; this client is {before.name}")
        memory = self._memory
        unsigned = messages.KeyAdvert(memory.me, self._channel_key.public, self._mask_key.public, b"")
        statement = transcript.key_statement(memory.agreement, memory.round, self._roster_hash, unsigned)
        advert = replace(unsigned, signature=self._identity.sign(statement))
        try:
            self._take_step()  # audit: hello-claims-step
        except JournalError:
            memory.state = before
            raise
        memory.state = State.ADVERTISED
        return advert

    def receive(
        self,
        message: messages.ToClient | Buffer,
        *,
        update: Update | None = None,
        context: bytes = b"",
        out: Ring32 | None = None,
    ) -> messages.ToServer:
        """Answer one server message. Any violation ends this run permanently.

        Pass `context` (which the application computed itself) with the KeyList, and `update` with the
        Bundle; `out` may then be memory for the masked vectors: uint32, one row per grouping.
        A duplicate of the message answered last gets the same answer again. Masked vectors are kept for that in this
        object, unless they are in `out`; they are not saved.
        """
        if not isinstance(message, (*_FROM_SERVER, *BUFFERS)):
            raise UsageError(f"expected bytes or a message class, got {type(message).__name__}")
        context = raw("context", context)
        data = bytes(message) if isinstance(message, BUFFERS) else wire.encode(message)
        mark = digest(labels.ANSWERED, data)
        with self._lock:  # audit: client-one-thread-at-a-time
            if (mark,) == self._memory.answered and self.state is not State.FAILED:  # audit: duplicate-same-answer
                return self._answer_again()
            with self._ends_forgotten():
                reply = self._receive(message, update, context, out)
                self._remember(mark, reply, kept=out is None)
            return reply

    @contextmanager
    def _ends_forgotten(self) -> Iterator[None]:
        """Drop the secrets as soon as the run is over."""
        try:
            yield
        finally:
            if self.state in (State.FAILED, State.DONE):
                self._forget_secrets()  # audit: secrets-dropped-at-end

    def _forget_secrets(self) -> None:
        client_state.forget_secrets(self._memory)
        self._agreed.clear()
        for cached in ("_channel_key", "_mask_key"):
            self.__dict__.pop(cached, None)

    def _remember(self, mark: bytes, reply: messages.ToServer, *, kept: bool) -> None:
        self._memory.answered = (mark,)
        self._answer = reply if kept or not isinstance(reply, messages.MaskedInput) else None

    def _answer_again(self) -> messages.ToServer:
        if self._answer is None:
            raise UsageError("this message was answered; send that answer again, its masked vectors are not kept here")
        return self._answer

    def _receive(
        self, message: messages.ToClient | Buffer, update: Update | None, context: bytes, out: Ring32 | None
    ) -> messages.ToServer:
        before, self._memory.state = self.state, State.FAILED  # audit: violation-ends-run
        if isinstance(message, BUFFERS):
            message = decode(message)  # type: ignore[assignment]
        encoded = None
        if (before, type(message)) == (State.DEALT, messages.Bundle):
            self._memory.state = before  # a mistake of the application does not end the run
            encoded = encoded_update(self.plan, self.me, update, out, self._noise)
            self._memory.state = State.FAILED
        given = FromApplication(context, encoded, out)
        step = STEPS.get((before, type(message)))
        if step is None:
            raise PeerError(f"{type(message).__name__} not expected in state {before.name}")
        handler, after = step
        try:
            reply = handler(self, message, given)
            self._take_step()  # audit: step-claimed-first
        except JournalError:
            self._memory.state = before  # nothing was sent: the application may repair the journal and try again
            raise
        self._memory.state = after
        return reply

    def _take_step(self) -> None:
        """Record this transition, so that a copy of this client cannot take it as well."""
        memory = self._memory
        name = record_name(labels.STEP_RECORD, memory.instance, u32(memory.step + 1))
        if store(self._journal, name, b"") is not None:  # audit: step-taken-once
            raise AlreadyUsed(f"client {memory.me}: step {memory.step + 1} of this run was already taken")
        memory.step += 1

    def _deal(self, message: messages.KeyList, given: FromApplication) -> messages.Dealing:
        """Check plan and keys; share the mask key and one fresh seed per grouping with every peer.

        Bonawitz et al. 2017, Fig. 4, Round 1. Deviation: the hash of every share is public and signed.
        """
        plan = self._accept(message, given.context)
        my_keys = (self._channel_key.public, self._mask_key.public)
        adverts = client_checks.check_adverts(plan, self.me, my_keys, message.adverts)
        memory, me = self._memory, self.me
        memory.adverts = message.adverts
        # audit: seed-per-grouping
        memory.seeds = tuple(self._entropy(shamir.SECRET_BYTES) for _ in plan.groupings)
        others = [advert for v, advert in sorted(adverts.items()) if v != me]

        def keys() -> list[bytes]:
            return self._box_keys(others, [(me, advert.sender) for advert in others])

        own, unsigned = deal(plan, me, (memory.mask, *memory.seeds), sorted(adverts), keys, self._entropy)
        memory.held = (own,)
        memory.mine = (messages.Dealer(me, unsigned.commitments, unsigned.root),)
        signature = self._identity.sign(transcript.dealing_statement(plan.hash, adverts[me], unsigned))
        return replace(unsigned, signature=signature)

    def _accept(self, message: messages.KeyList, context: bytes) -> Plan:
        """Derive the plan, and go on if the server has the same one and no other was accepted for this update.

        The record binds the update (agreement, round) to this plan: a repeated run must have the same plan.
        """
        plan = self._derive(context)
        if message.plan != plan.hash:  # audit: plan-as-derived
            what = plan.difference(message.parts)
            raise PlanRefused(f"plan refused: the server's {what} differs from mine; compare the fingerprints")
        if plan.semi_honest_only and plan.sparse_risk(0) > self._agreement.sparse_risk:  # audit: sparse-risk
            raise PlanRefused("plan refused: its neighbourhoods are too small for the colluders that it assumes")
        enrolment.enrol_survivors(self._journal, self._agreement, self._identity.public)  # audit: survivors-enrol
        earlier = store(self._journal, self._record_name(labels.UPDATE_RECORD), plan.hash)
        if earlier not in (None, plan.hash):  # audit: one-plan-per-update
            raise AlreadyUsed("another plan was accepted for this update; repeat the round with that plan, or lose it")
        self._plan, self._memory.plan, self._memory.context = plan, (plan.hash,), plan.context
        return plan

    def _box_keys(self, peers: Sequence[messages.KeyAdvert], ends: Sequence[tuple[ClientId, ClientId]]) -> list[bytes]:
        for advert in peers:
            if advert.sender not in self._agreed:
                self._agreed[advert.sender] = self._channel_key.agree(advert.channel)
        return box.box_keys([self._agreed[advert.sender] for advert in peers], self.plan.hash, ends)

    @cached_property
    def _channel_key(self) -> AgreementKey:
        return AgreementKey.from_private(self._memory.channel)

    @cached_property
    def _mask_key(self) -> AgreementKey:
        return AgreementKey.from_private(self._memory.mask)

    def _mask(self, message: messages.Bundle, given: FromApplication) -> messages.MaskedInput:
        """Open the boxes, encode the update and mask it once per grouping; sign the view of U2 and the vectors.

        Bonawitz et al. 2017, Fig. 4, Round 2. If a box does not open, or a share does not match its
        dealer's hash, this client disputes it: the dealer stays, but this client holds no share from it.
        """
        plan, memory = self.plan, self._memory
        assert given.encoded is not None
        encoded, memory.clipped = given.encoded
        adverts = {advert.sender: advert for advert in memory.adverts}
        members = client_checks.check_dealers(plan, memory.mine[0], adverts, message)
        memory.dealers = message.dealers
        others = [dealer for dealer in message.dealers if dealer.id != self.me]

        def keys() -> list[bytes]:
            return self._box_keys([members[dealer.id] for dealer in others], [(v.id, self.me) for v in others])

        opened, disputes = open_boxes(plan, self.me, others, keys, message)
        own = [held for held in memory.held if held.dealer == self.me]
        memory.held = tuple(sorted((*own, *opened), key=lambda held: held.dealer))
        vectors = masked_vectors(plan, memory, members, encoded, out=given.out, threads=self._threads)
        charging.reserve(self._agreement, self._journal, self._record_name(labels.UPDATE_RECORD), self.me, self._budget)
        hashed = transcript.vectors_hash(vectors, self._threads)
        statement = transcript.view_statement(plan.hash, memory.me, self._view, disputes, hashed)
        return messages.MaskedInput(memory.me, disputes, self._identity.sign(statement), vectors)

    @cached_property
    def _view(self) -> bytes:
        """The hash of U2 as stage 2 showed it; it never changes afterwards."""
        adverts = {advert.sender: advert for advert in self._memory.adverts}
        return transcript.view(self.plan.hash, [(adverts[dealer.id], dealer) for dealer in self._memory.dealers])

    def _sign(self, message: messages.Survivors, _: FromApplication) -> messages.Consistency:
        """Sign U3 and the groups, if all of U3 saw the same U2 and the audit allows the groups.

        Bonawitz et al. 2017, Fig. 4, Round 3. The record comes first: after it, this update is opened for
        these survivors and these groups (or fewer of the groups), or never.
        """
        plan, memory, risk = self.plan, self._memory, self._agreement.sparse_risk
        survivors = client_checks.check_survivors(plan, self.me, memory.dealers, self._view, risk, message)
        verdict = self._cache.verdict(plan, plan.summed(survivors))  # audit: only-whole-atoms
        refused = sorted(set(message.groups) - verdict.opened)
        if refused:  # audit: only-audited-sums
            why = verdict.closed.get(refused[0], "the plan has no such group")
            raise PeerError(f"the server wants to open group {refused[0]}, which my audit closes: {why}")
        # audit: opening-belongs-to-run
        wanted = Opening(plan.hash, self._view, survivors, transcript.inputs_hash(message.members), message.groups)
        self._record(wanted)  # audit: opening-recorded
        memory.survivors, memory.inputs, memory.groups = wanted.survivors, wanted.inputs, wanted.groups
        return messages.Consistency(memory.me, self._identity.sign(self._statement()))

    def _record(self, wanted: Opening) -> None:
        rounds = partial(self._record_name, labels.ROUND_RECORD)
        record_opening(self._journal, self._record_name(labels.OPENING_RECORD), rounds, self._memory.round, wanted)

    def _statement(self) -> bytes:
        m = self._memory
        return transcript.opening(self.plan, self._view, m.survivors, m.inputs, m.groups)

    def _record_name(self, label: bytes, number: int | None = None) -> str:
        """The name of a record about one update (of this client, this training and this round), or of that number."""
        of = self._memory.round if number is None else number
        return record_name(label, self._identity.public, self._memory.agreement, of.to_bytes(8, "little"))

    def _unmask(self, message: messages.Signatures, _: FromApplication) -> messages.Unmasking:
        """Give its own seeds, and one kind of share per peer (`own_seeds_and_shares`).

        Bonawitz et al. 2017, Fig. 4, Round 4. U3 is the one that at least t clients signed.
        """
        plan, memory = self.plan, self._memory
        client_checks.check_endorsements(plan, self.me, memory.survivors, self._statement(), message)
        # audit: settled-when-signed
        charging.settle_opened(self._agreement, self._journal, self._record_name(labels.UPDATE_RECORD), plan, memory)
        unsigned = own_seeds_and_shares(plan, memory)
        signature = self._identity.sign(transcript.unmasking_statement(plan.hash, unsigned))
        return replace(unsigned, signature=signature)

    # --- state in bytes ------------------------------------------------------------------------------

    def save(self) -> bytes:
        """This client as bytes, between two messages. This object is then spent; `restore` goes on.

        The bytes hold secrets: encrypt them where they are stored. An older copy of them cannot act again,
        because the journal has a record of each step.
        """
        with self._lock, self._ends_forgotten():
            data = self.checkpoint()
            self._memory.state = State.FAILED  # audit: save-consumes-client
            return data

    def checkpoint(self) -> bytes:
        """The bytes that `save` returns, but this object goes on.

        Store them before you send an answer. After a crash `restore` goes on from them; while this object lives, only
        one of the two can take the next step, because the journal has a record of each step.
        """
        with self._lock:
            if self.state in (State.FAILED, State.DONE):  # audit: finished-not-saved
                raise UsageError(f"nothing to save: this run is {self.state.name}")
            small = self._answer is not None and not isinstance(self._answer, messages.MaskedInput)
            self._memory.answer = wire.encode(self._answer) if small and self._answer is not None else b""
            return client_state.save(self._memory)

    @classmethod
    def restore(
        cls,
        data: bytes,
        identity: Identity,
        agreement: Agreed,
        journal: Journal,
        *,
        budget: Budget | None = None,
        entropy: Entropy = os.urandom,
        cache: Cache | None = None,
        threads: int | None = None,
    ) -> Client:
        """The client that `save` wrote, with the same identity, agreement and journal."""
        client_checks.check_application(identity, agreement, journal, entropy, cache, budget)
        thread_count(threads)
        client, memory = cls.__new__(cls), client_state.restore(raw("data", data))
        if memory.agreement != agreement.fingerprint:  # audit: saved-client-bound-to-agreement
            raise UsageError("this saved client belongs to another agreement")
        client._bind(memory, identity, agreement, journal, entropy, cache, threads, budget)
        if memory.plan:
            client._plan = client._derive(memory.context)
            if (client._plan.hash,) != memory.plan:  # audit: restore-checks-plan
                raise UsageError("this saved client has another plan than the one that follows from this agreement")
        try:
            client._answer = decode(memory.answer) if memory.answer else None  # type: ignore[assignment]
        except SecAggError as damaged:
            raise UsageError(f"this saved client is damaged: {damaged}") from None
        return client


_FROM_SERVER: Final = (messages.KeyList, messages.Bundle, messages.Survivors, messages.Signatures)
Handler = Callable[..., messages.ToServer]
STEPS: Final[Mapping[tuple[State, type], tuple[Handler, State]]] = {
    # (state, message) -> (handler, next state). Rounds of Bonawitz et al. 2017, Fig. 4.
    (State.ADVERTISED, messages.KeyList): (Client._deal, State.DEALT),  # Round 1
    (State.DEALT, messages.Bundle): (Client._mask, State.MASKED),  # Round 2
    (State.MASKED, messages.Survivors): (Client._sign, State.SIGNED),  # Round 3
    # audit: unmask-once
    (State.SIGNED, messages.Signatures): (Client._unmask, State.DONE),  # Round 4
}

"""The server of one run: it collects answers, closes stages, and learns the opened sums.

The application calls `receive` for every message that arrives and `advance` when a stage is over (everybody
answered, or its deadline passed); `advance` returns what to send. A client that misbehaves becomes a dropout
with a reason and never stops the others. `STEPS` says which message belongs to which stage, `CLOSE` what
closing a stage does. A masked vector is added to the sum of its group on arrival and not kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from threading import RLock
from typing import Final

import numpy as np

from secagg import labels
from secagg.agreement.agreement import Agreement
from secagg.agreement.plan import Plan
from secagg.arguments import drawn, each, ids, instance, raw
from secagg.codec import BUFFERS, Buffer
from secagg.crypto.keys import HASH_BYTES, verify
from secagg.errors import AlreadyUsed, PeerError, TooFewSurvivors, UsageError
from secagg.evidence.file import assemble
from secagg.exposure.audit import Verdict
from secagg.kernels.threads import thread_count
from secagg.protocol import inputs, messages, outcome, records, server_state, transcript
from secagg.protocol.dealing import box_bytes, check_advert
from secagg.protocol.journal import Journal, MemoryJournal, check_journal, record_name, store
from secagg.protocol.result import NO_ANSWER, Dropout, Result, Stage
from secagg.protocol.server_state import ServerMemory
from secagg.protocol.unmask import ENTRY
from secagg.protocol.views import Views, views_of
from secagg.protocol.wire import TYPES, decode
from secagg.types import ClientId, Entropy, GroupId, Ring32, u32


class Server:
    """The server's side of one run of its plan.

    `receive(sender, message)` takes one message; the application's channel has authenticated `sender`. It returns None,
    or the Dropout that the message caused. `advance()` closes the stage and returns the messages to send; `outbox()`
    returns them again for clients that have not answered. After stage 3 has begun a run is resumed, never repeated: if
    `advance` raises TooFewSurvivors in CONSISTENCY or UNMASKING, the run stays open for late answers. `exclude` leaves
    clients out from the start: those that dealt bad shares in an earlier run of the same plan (`doomed_groups`).
    `threads` limits how many cores hashing and the last stage use.

    >>> from secagg import Server
    >>> from secagg.simulation import make_agreement
    >>> agreement, _ = make_agreement(members=3, size=3, length=2, clip=1.0, groups="survivors")
    >>> server = Server(agreement.plan(0, 0, b"model"))
    >>> server.stage.name, server.waiting_for()
    ('KEYS', (0, 1, 2))
    >>> server.receive(0, b"not a message").reason
    'wire version 110, this is version 2'
    """

    def __init__(
        self,
        plan: Plan,
        journal: Journal | None = None,
        *,
        exclude: Collection[ClientId] = (),
        entropy: Entropy = os.urandom,
        threads: int | None = None,
    ) -> None:
        left_out = ids("exclude", exclude, instance("plan", plan, Plan).identities)
        _check_application(journal, threads)
        memory = ServerMemory(plan=plan, instance=drawn(entropy, 16))
        memory.dropouts = {v: Dropout(Stage.KEYS, "left out by the application") for v in left_out}
        self._bind(memory, journal, threads)

    def _bind(self, memory: ServerMemory, journal: Journal | None, threads: int | None) -> None:
        self._memory, self._lock = memory, RLock()
        self._journal = journal if journal is not None else MemoryJournal()
        self._threads = threads
        self._views: Views = views_of(memory)
        self._result: Result | None = None

    def __repr__(self) -> str:
        return f"<Server of {len(self.plan.roster)} clients, {self.stage.name}>"

    @property
    def plan(self) -> Plan:
        return self._memory.plan

    @property
    def stage(self) -> Stage:
        return self._memory.stage

    @property
    def dropouts(self) -> Mapping[ClientId, Dropout]:
        """The clients that have dropped out so far, and why."""
        with self._lock:
            return dict(self._memory.dropouts)

    # --- one message ---------------------------------------------------------------------------------

    def receive(self, sender: ClientId, message: messages.ToServer | Buffer) -> Dropout | None:
        """Take one message. It does not raise when a client misbehaves: that client becomes a dropout.

        A second message for the same stage, or one for a stage that is over, changes nothing.
        """
        (sender,) = ids("sender", [sender], self.plan.identities)
        if not isinstance(message, (*TYPES, *BUFFERS)):
            raise UsageError(f"expected bytes or a message class, got {type(message).__name__}")
        hashed = inputs.hash_of(self.plan, sender, message, self._threads) if self._awaits_input(sender) else b""
        with self._lock:  # audit: server-one-thread-at-a-time
            return self._receive(sender, message, hashed)

    def _awaits_input(self, sender: ClientId) -> bool:
        """Whether vectors are hashed before the lock is taken, so that those of several clients are hashed at once."""
        with self._lock:
            memory = self._memory
            return self.stage is Stage.INPUTS and sender not in memory.dropouts and sender not in memory.survivors

    def _receive(self, sender: ClientId, message: messages.ToServer | Buffer, hashed: bytes) -> Dropout | None:
        if sender in self._memory.dropouts or self.stage >= Stage.DONE:  # audit: dropout-stays-out
            return self._memory.dropouts.get(sender)
        if sender in self._memory.unmaskings:  # audit: last-answer-stays
            return None  # it has answered to the end, and nothing that it sends changes that
        try:
            if isinstance(message, BUFFERS):
                message = decode(message)  # type: ignore[assignment]
            if type(message) not in _STAGE_OF:  # audit: message-type-for-server
                raise PeerError(f"{type(message).__name__} is not a message to the server")
            # audit: sender-matches-channel
            if message.sender != sender:  # type: ignore[union-attr]
                raise PeerError(f"its message names client {message.sender}")  # type: ignore[union-attr]
            belongs = _STAGE_OF[type(message)]
            if belongs > self.stage:  # audit: early-message-refused
                raise PeerError(f"{type(message).__name__} came too early")
            # audit: second-answer-ignored late-answer-ignored
            if belongs < self.stage or sender in self._answers():
                return None
            STEPS[self.stage, type(message)](self, message, hashed)
        except PeerError as bad:
            return self._drop(sender, str(bad))  # audit: bad-message-drops-sender
        return None

    def give_up(self, client: ClientId, reason: str) -> Dropout | None:
        """Make a client a dropout before its input counts, for a reason that the application knows.

        Once its input is in the sums (stage 3 and later) it stays, and nothing happens.
        """
        (client,), reason = ids("client", [client], self.plan.identities), instance("reason", reason, str)
        with self._lock:
            if self.stage > Stage.INPUTS or client in self._memory.survivors:
                return self._memory.dropouts.get(client)
            return self._drop(client, reason)

    def waiting_for(self) -> tuple[ClientId, ...]:
        """The clients that have not answered in this stage."""
        with self._lock:
            answers, dropouts = self._answers(), self._memory.dropouts
            return tuple(v for v in self._expected() if v not in answers and v not in dropouts)

    def _answers(self) -> Mapping[ClientId, object]:
        return self._by_stage[self.stage + 1] if self.stage < Stage.DONE else {}

    def _expected(self) -> Mapping[ClientId, object]:
        return self._by_stage[self.stage] if self.stage < Stage.DONE else {}

    @property
    def _by_stage(self) -> tuple[Mapping[ClientId, object], ...]:
        """The clients that may answer each stage: those that answered the stage before."""
        m = self._memory
        return self.plan.identities, m.adverts, m.dealings, m.survivors, m.endorsements, m.unmaskings

    def _drop(self, client: ClientId, reason: str) -> Dropout:
        return self._memory.dropouts.setdefault(client, Dropout(self.stage, reason))

    def _take_advert(self, message: messages.KeyAdvert, _: bytes) -> None:
        check_advert(self.plan, message)  # audit: server-checks-adverts
        self._memory.adverts[message.sender] = message

    def _take_dealing(self, message: messages.Dealing, _: bytes) -> None:
        plan, memory, sender = self.plan, self._memory, message.sender
        holders, secrets = len(self._views.places(sender)), len(plan.groupings) + 1
        if (
            len(message.commitments) != len(plan.groupings)
            or len(message.hashes) != holders * secrets * HASH_BYTES
            or len(message.boxes) != (holders - 1) * box_bytes(plan)
        ):
            # audit: dealing-size
            raise PeerError(f"wrong dealing size: expected {holders - 1} boxes and {holders * secrets} hashes")
        statement = transcript.dealing_statement(plan.hash, memory.adverts[sender], message)
        verify(plan.identities[sender], message.signature, statement, signer=sender)  # audit: dealing-signed
        tree = self._views.tree(message)
        if tree[-1] != message.root:  # audit: dealing-hashes-match-root
            raise PeerError("the root that it signed is not that of its share hashes")
        memory.dealings[sender], self._views.trees[sender] = message, tree

    def _take_input(self, message: messages.MaskedInput, hashed: bytes) -> None:
        plan, memory, sender = self.plan, self._memory, message.sender
        expected = inputs.shape_of(plan, sender)
        if message.vectors.shape != expected:  # audit: masked-input-shape
            raise PeerError(f"its masked input has shape {message.vectors.shape}, expected {expected}")
        if not set(message.disputes) <= set(memory.dealings) - {sender}:  # audit: only-dealers-disputed
            raise PeerError("it disputes the shares of a client that dealt none")
        hashed = hashed or transcript.vectors_hash(message.vectors, self._threads)  # the stage may just have begun
        statement = transcript.view_statement(plan.hash, sender, self._views.digest(sender), message.disputes, hashed)
        # audit: masked-input-signed
        verify(plan.identities[sender], message.signature, statement, signer=sender)
        try:
            places = ((r, self._atom_of.get(sender, g)) for r, g in plan.groups_of[sender])
            inputs.add(memory.sums, places, message.vectors)
            memory.survivors[sender] = messages.Survivor(sender, message.disputes, hashed, message.signature)
        # audit: half-added-vectors-discarded
        except BaseException:  # out of memory, or interrupted
            self._fail()
            raise

    @cached_property
    def _atom_of(self) -> Mapping[ClientId, int]:
        """With atoms, sums are kept per atom, so that an atom with too few survivors can leave whole."""
        return {client: a for a, atom in enumerate(self.plan.atoms) for client in atom}

    def _take_consistency(self, message: messages.Consistency, _: bytes) -> None:
        sender = message.sender
        statement = self._views.statement(sender)
        # audit: endorsement-signed
        verify(self.plan.identities[sender], message.signature, statement, signer=sender)
        self._memory.endorsements[sender] = message

    def _take_unmasking(self, message: messages.Unmasking, _: bytes) -> None:
        most = ENTRY * len(self._memory.dealings) * (len(self.plan.groupings) + 1)
        if len(message.own) + len(message.seeds) + len(message.keys) > most:  # audit: unmasking-size
            raise PeerError(f"wrong unmasking size: at most {most} bytes of shares exist")
        statement = transcript.unmasking_statement(self.plan.hash, message)
        # audit: unmasking-signed
        verify(self.plan.identities[message.sender], message.signature, statement, signer=message.sender)
        self._memory.unmaskings[message.sender] = message

    # --- the end of a stage --------------------------------------------------------------------------

    def advance(self) -> messages.Outbox:
        """Close this stage and return what to send next (nothing after the last).

        TooFewSurvivors: in the first three stages the run has failed, and may be repeated with the same
        plan; in the last two it stays open, and `advance` may be called again after late answers. Any other
        exception while sums change (out of memory, an interruption) ends the run as FAILED.
        """
        with self._lock:
            return self._advance()

    def _advance(self) -> messages.Outbox:
        stage = self.stage
        if stage not in CLOSE:
            raise UsageError(f"this run is {stage.name}")
        try:
            CLOSE[stage](self)
            self._claim(Stage(stage + 1))
        except TooFewSurvivors:
            if stage < Stage.CONSISTENCY:  # audit: stage-three-stays-open
                self._memory.stage = Stage.FAILED
            raise
        except BaseException as failure:
            # audit: half-unmasked-sums-discarded
            if stage in _SUMS_CHANGE or isinstance(failure, AlreadyUsed):
                self._fail()
            raise
        self._memory.stage = Stage(stage + 1)
        return self.outbox()

    def _fail(self) -> None:
        """Discard the sums: they may be incomplete and must not be taken for complete."""
        self._memory.stage, self._memory.sums, self._result = Stage.FAILED, {}, None

    def _claim(self, stage: Stage) -> None:
        """Record that this process begins a stage. A second one, restored from the same bytes, must not."""
        name = record_name(labels.STEP_RECORD, self._memory.instance, u32(stage))
        if store(self._journal, name, b"") is not None:  # audit: stage-closed-once
            raise AlreadyUsed(f"another process has begun stage {stage.name} of this run")

    def outbox(self) -> messages.Outbox:
        """What to send to every client that has not answered in this stage."""
        with self._lock:
            return self._outbox()

    def _outbox(self) -> messages.Outbox:
        make = _MAKE.get(self.stage)
        receivers = self.waiting_for() if make else ()
        if make is None or not receivers:
            return messages.Outbox((), self._key_list)
        if self._views.common and self.stage is not Stage.INPUTS:  # every bundle differs
            everyone = make(self, receivers[0])
            return messages.Outbox(receivers, lambda _: everyone)
        return messages.Outbox(receivers, lambda client: make(self, client))

    def _close(self) -> None:
        """Go on if enough clients answered; those that did not are dropouts."""
        plan, n, count = self.plan, len(self.plan.roster), len(self._answers())
        if count < plan.t:  # audit: server-threshold
            limit = (
                f"; {n - plan.t} of {n} clients may drop out while {plan.assumed_colluders} may collude "
                "(fewer colluders allow more dropouts)"
            )
            raise TooFewSurvivors(
                f"{count} clients {_DID[self.stage]}, the threshold is {plan.t}: the sums stay hidden"
                + ("" if plan.semi_honest_only else limit)
            )
        for client in self.waiting_for():
            self._drop(client, NO_ANSWER)

    def _key_list(self, client: ClientId) -> messages.KeyList:
        peers, adverts = self.plan.peers(client), self._memory.adverts
        parts = tuple(self.plan.parts.values())
        return messages.KeyList(self.plan.hash, parts, tuple(adverts[v] for v in peers if v in adverts))

    def _close_inputs(self) -> None:
        """Fix the survivors and the groups to open. Clients of broken atoms help, but are not summed."""
        memory = self._memory
        self._close()
        memory.groups = tuple(sorted(self._verdict.opened))
        memory.sums = {group: total for group in memory.groups if (total := self._group_total(group)) is not None}

    @cached_property
    def _verdict(self) -> Verdict:
        """The audit of U3, once stage 2 is closed."""
        return self.plan.audit(self._summed)

    @cached_property
    def _summed(self) -> tuple[ClientId, ...]:
        """U3, once stage 2 is closed."""
        return self.plan.summed(self._memory.survivors)

    def _group_total(self, group: GroupId) -> Ring32 | None:
        sums, summed = self._memory.sums, frozenset(self._summed)
        if not self.plan.atoms:
            return sums.get(group)
        total: Ring32 | None = None
        for atom in sorted({self._atom_of[v] for v in self.plan.group(group) if v in summed}):
            part = sums[group[0], atom]
            total = part if total is None else np.add(total, part, out=total)
        return total

    def doomed_groups(self) -> Mapping[GroupId, tuple[ClientId, ...]]:
        """In stage INPUTS: groups that cannot be unmasked, and the dealers that dealt unusable shares and vanished.

        It looks at who has answered and at what the survivors dispute so far. Before the stage is closed the run may
        still be given up and repeated with the same plan and `exclude=` those dealers; after it, these groups are lost.
        """
        with self._lock:
            return outcome.doomed_groups(self._memory, self._views)

    def _survivors_message(self, _: ClientId) -> messages.Survivors:
        survivors = self._memory.survivors
        return messages.Survivors(tuple(survivors[v] for v in sorted(survivors)), self._memory.groups)

    def _signatures(self, client: ClientId) -> messages.Signatures:
        """t signatures are enough, and each costs the client a verification."""
        endorsements = self._memory.endorsements
        signers = [v for v in self.plan.peers(client) if v in endorsements][: self.plan.t]
        return messages.Signatures(tuple(messages.Endorsement(v, endorsements[v].signature) for v in signers))

    def _close_unmasking(self) -> None:
        self._close()
        self._result = outcome.finish(self._memory, self._views, self._summed, self._verdict, threads=self._threads)
        self._memory.sums, self._memory.unmaskings = {}, {}  # audit: shares-dropped-at-end

    def result(self) -> Result:
        """The outcome, once the last stage is closed."""
        if self._result is None:
            raise UsageError(f"this run has no result: it is {self.stage.name}")
        return self._result

    def record(self, why: str) -> bytes:
        """What a run that ended without a result leaves behind for the evidence, and why it ended."""
        with self._lock:
            return records.failed_record(self._memory, instance("why", why, str)).to_bytes()

    def evidence(
        self, agreement: Agreement, signatures: Mapping[ClientId, bytes], *, earlier: Sequence[bytes] = ()
    ) -> bytes:
        """What an auditor can check without believing anybody (docs/evidence.md): this run, after `earlier` ones.

        `signatures` are those of all members on the agreement, `earlier` the records of the runs before this one
        (`Result.record`), in the order of rounds and cells.
        """
        return assemble(agreement, signatures, [*each("earlier", earlier, bytes), self.result().record])

    # --- state in bytes ------------------------------------------------------------------------------

    def save(self) -> bytes:
        """This server as bytes, between two messages. This object is then spent; `restore` goes on."""
        with self._lock:
            data = self.checkpoint()
            self._memory.stage = Stage.FAILED  # audit: save-consumes-server
            return data

    def checkpoint(self) -> bytes:
        """The bytes that `save` returns, but this object goes on; only one of the two can close a stage."""
        with self._lock:
            if self.stage >= Stage.DONE:
                raise UsageError(f"nothing to save: this run is {self.stage.name}")
            return server_state.save(self._memory)

    @classmethod
    def restore(
        cls, data: bytes, journal: Journal | None = None, *, plan: Plan | None = None, threads: int | None = None
    ) -> Server:
        """The server that `save` wrote, with the same journal. A `plan` from an agreement must be given again."""
        _check_application(journal, threads)
        if plan is not None:
            instance("plan", plan, Plan)
        server = cls.__new__(cls)
        server._bind(server_state.restore(raw("data", data), plan), journal, threads)
        return server


def _check_application(journal: Journal | None, threads: int | None) -> None:
    if journal is not None:
        check_journal(journal)
    thread_count(threads)


STEPS: Final[Mapping[tuple[Stage, type], Callable[..., None]]] = {
    # (stage, message) -> handler. Rounds of Bonawitz et al. 2017, Fig. 4.
    (Stage.KEYS, messages.KeyAdvert): Server._take_advert,  # Round 0
    (Stage.SHARES, messages.Dealing): Server._take_dealing,  # Round 1
    (Stage.INPUTS, messages.MaskedInput): Server._take_input,  # Round 2
    (Stage.CONSISTENCY, messages.Consistency): Server._take_consistency,  # Round 3
    (Stage.UNMASKING, messages.Unmasking): Server._take_unmasking,  # Round 4
}
_STAGE_OF: Final = {message: stage for stage, message in STEPS}
_SUMS_CHANGE: Final = frozenset({Stage.INPUTS, Stage.UNMASKING})  # closing these changes sums in place
CLOSE: Final[Mapping[Stage, Callable[[Server], None]]] = {
    Stage.KEYS: Server._close,
    Stage.SHARES: Server._close,
    Stage.INPUTS: Server._close_inputs,
    Stage.CONSISTENCY: Server._close,
    Stage.UNMASKING: Server._close_unmasking,
}
_DID: Final = {
    Stage.KEYS: "sent keys",
    Stage.SHARES: "shared keys",
    Stage.INPUTS: "sent masked inputs",
    Stage.CONSISTENCY: "signed the survivors",
    Stage.UNMASKING: "sent shares",
}
_MAKE: Final[Mapping[Stage, Callable[[Server, ClientId], messages.ToClient]]] = {
    Stage.SHARES: Server._key_list,
    Stage.INPUTS: lambda server, client: server._views.bundle(client),
    Stage.CONSISTENCY: Server._survivors_message,
    Stage.UNMASKING: Server._signatures,
}

"""The server of an agreement with whole groups, over all its rounds.

The application calls `receive` for every message that arrives, `begin` to begin a round and `close` to end it. A masked
vector is added to the sum of its group on arrival and not kept. A client that misbehaves becomes a dropout with a
reason and never stops the others; it is blamed only if its own signatures convict it. `STEPS` is the state machine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Final

import numpy as np

from secagg.agreement.agreement import Agreement
from secagg.agreement.terms import WHOLE
from secagg.arguments import each, ids, instance, raw, whole
from secagg.codec import BUFFERS, Buffer
from secagg.crypto.keys import check_public_key, verify
from secagg.errors import PeerError, UsageError
from secagg.evidence.file import assemble
from secagg.evidence.record import AHEAD
from secagg.kernels.threads import thread_count
from secagg.types import ClientId, Group, GroupId
from secagg.whole import flat, records, relations, server_state, transcript
from secagg.whole.layout import RoundLayout, layout
from secagg.whole.messages import MOST_DATA, TYPES, Advert, Answer, Hello, Release, Round, ToServer, decode
from secagg.whole.result import NO_ADVERT, NO_ANSWER, NOT_ASKED, NOT_CALLED, RELEASED, GroupSum, WholeResult
from secagg.whole.server_state import MOST_REASON, ServerMemory, Stage

Hashes = tuple[bytes, bytes]  # of an answer, and of its vectors one after the other
NO_HASHES: Final[Hashes] = (b"", b"")


class Server:
    """The server's side of an agreement with whole groups.

    `receive(sender, message)` takes one message; the application's channel has authenticated `sender`. It returns None,
    or why the message does not count. `hello(round)` asks for missing adverts, `begin(round)` gives the messages of a
    round by client, `close()` its result. `present(round)` are the members that have answered `hello`, for a roll call.
    `threads` limits the cores that hashing uses.

    >>> from secagg.simulation import make_agreement
    >>> from secagg.whole import Server
    >>> agreement, _ = make_agreement(members=3, size=3, length=4, clip=1.0)
    >>> server = Server(agreement)
    >>> sorted(server.hello(0)), server.stage.name
    ([0, 1, 2], 'IDLE')
    >>> server.receive(0, b"not a message")
    'wire version 110, this is version 2'
    """

    def __init__(self, agreement: Agreement, *, threads: int | None = None) -> None:
        instance("agreement", agreement, Agreement)
        thread_count(threads)
        memory = ServerMemory(fingerprint=agreement.fingerprint, next=agreement.terms.first_round)
        self._bind(agreement, memory, threads)

    def _bind(self, agreement: Agreement, memory: ServerMemory, threads: int | None) -> None:
        if agreement.terms.groups != WHOLE:
            raise UsageError("this agreement has groups = 'survivors': use secagg.protocol.Server")
        self._agreement, self._memory, self._threads = agreement, memory, threads
        self._lock = threading.RLock()
        self._records: list[bytes] = []  # of the rounds that this object has closed
        self._hashes: dict[GroupId, bytes] = {}  # of the adverts of this round's groups, once they are needed

    def __repr__(self) -> str:
        return f"<whole.Server of {len(self._agreement.terms.members)} members, {self.stage.name}>"

    @property
    def agreement(self) -> Agreement:
        return self._agreement

    @property
    def stage(self) -> Stage:
        return self._memory.stage

    @property
    def round(self) -> int | None:
        """The round that was begun last; None before the first."""
        return self._memory.rounds[0] if self._memory.rounds else None

    @property
    def dropouts(self) -> Mapping[ClientId, str]:
        """Why clients have no accepted answer in this round, so far."""
        return dict(self._memory.dropouts)

    @property
    def blamed(self) -> Mapping[ClientId, str]:
        """The clients that their own signatures convict, in this round or before."""
        return dict(sorted(self._memory.blamed.items()))

    def present(self, round: int) -> tuple[ClientId, ...]:
        """The members whose adverts of a round that has not begun are there: who has answered `hello`."""
        with self._lock:
            self._next(whole("round", round))
            return tuple(sorted(self._memory.adverts.get(round, {})))

    # --- messages ------------------------------------------------------------------------------------

    def receive(self, sender: ClientId, message: ToServer | Buffer) -> str | None:
        """Take one message. It does not raise when a client misbehaves; it returns why the message does not count."""
        (sender,) = ids("sender", [sender], self._agreement.terms.identities)
        if not isinstance(message, (*TYPES, *BUFFERS)):
            raise UsageError(f"expected bytes or a message class, got {type(message).__name__}")
        try:
            if isinstance(message, BUFFERS):
                message = decode(message)  # type: ignore[assignment]
            if not isinstance(message, (Advert, Answer, Release)):
                raise PeerError(f"{type(message).__name__} is not a message to the server")
            if message.sender != sender:  # audit: whole-sender-matches-channel
                raise PeerError(f"its message names client {message.sender}")
            hashes = self._checked_hashes(message) if isinstance(message, Answer) else NO_HASHES
            with self._lock:  # audit: whole-server-lock
                STEPS[self.stage, type(message)](self, message, hashes)
        except PeerError as bad:
            return self._drop(sender, str(bad))
        return None

    def give_up(self, client: ClientId, reason: str) -> None:
        """Say why no answer of a client will come in this round: for a reason that the application knows.

        >>> from secagg.simulation import make_agreement
        >>> server = Server(make_agreement(members=3, size=3, length=4, clip=1.0)[0])
        >>> server.give_up(0, "it could not compute its vector")  # counts while a round is open
        """
        (client,) = ids("client", [client], self._agreement.terms.identities)
        self._drop(client, instance("reason", reason, str))

    def _drop(self, client: ClientId, reason: str) -> str:
        with self._lock:
            if self.stage is Stage.OPEN and client not in self._memory.answers:
                self._memory.dropouts.setdefault(client, reason[:MOST_REASON])  # audit: reason-bounded
        return reason

    def _take_advert(self, advert: Advert, _: Hashes = NO_HASHES) -> None:
        """Keep a signed advert of this round or one ahead. After a round has begun, its adverts are fixed."""
        if self.round is not None and advert.round <= self.round:
            return  # late
        if advert.round > self._memory.next + AHEAD:  # audit: adverts-not-far-ahead
            raise PeerError(f"its advert is for round {advert.round}, more than {AHEAD} rounds ahead")
        self._check_advert(advert)
        self._memory.adverts.setdefault(advert.round, {})[advert.sender] = advert

    def _check_advert(self, advert: Advert) -> None:
        terms = self._agreement.terms
        if advert.round not in terms.rounds or advert.sender not in layout(self._agreement, advert.round).seats:
            raise PeerError(f"it is not drawn for round {advert.round}")
        check_public_key(advert.key)  # audit: whole-server-checks-keys
        statement = transcript.advert_statement(self._memory.fingerprint, advert)
        # audit: whole-server-checks-adverts
        verify(terms.identities[advert.sender], advert.signature, statement, signer=advert.sender)

    def _take_release(self, release: Release, _: Hashes) -> None:
        """Keep a signed release. With an answer of the same round, it convicts its sender."""
        terms, memory, sender = self._agreement.terms, self._memory, release.sender
        if release.round not in terms.rounds:
            raise PeerError(f"round {release.round} is not in the agreement")
        if release.round > memory.next + AHEAD:  # audit: releases-not-far-ahead
            raise PeerError(f"its release is for round {release.round}, more than {AHEAD} rounds ahead")
        if refused := flat.releases_refused(self._agreement, release.round):  # audit: server-release-allowed
            raise PeerError(refused)
        statement = transcript.release_statement(memory.fingerprint, release)
        verify(terms.identities[sender], release.signature, statement, signer=sender)  # audit: release-signed
        if self.round is None or release.round > self.round:
            memory.releases.setdefault(release.round, {})[sender] = release
        elif release.round == self.round and sender in memory.answers:
            memory.blamed[sender] = f"it signed an answer and a release of round {release.round}"
            memory.after[sender] = records.release_record(release)

    def _checked_hashes(self, answer: Answer) -> Hashes:
        """The hashes of an answer to this round and of its vectors, after every check. Empty if no round is open.

        Hashing is done without the lock, so that answers of several clients are hashed at once.
        """
        with self._lock:
            if self.stage is not Stage.OPEN:
                return NO_HASHES
            self._check_answer(answer)
        rows = transcript.row_hashes(answer.vectors, self._threads)
        hash = transcript.answer_hash(self._memory.fingerprint, answer, rows)
        identity = self._agreement.terms.identities[answer.sender]
        # audit: answer-signed
        verify(identity, answer.signature, transcript.answer_statement(hash), signer=answer.sender)
        return hash, rows

    def _take_answer(self, answer: Answer, hashes: Hashes) -> None:
        """Add each vector to the sum of its group."""
        memory, sender, (hash, rows) = self._memory, answer.sender, hashes
        if not hash:  # audit: answer-checked-in-round
            raise PeerError("its answer came before the round began")
        groups = self._check_answer(answer)  # again: another round may have begun since the hash was computed
        self._take_next(answer)
        if sender in memory.releases.get(answer.round, {}):  # audit: released-client-not-added
            memory.blamed[sender] = f"it signed an answer and a release of round {answer.round}"
            memory.second.setdefault(sender, records.answer_record(answer, rows))
            raise PeerError("it answered a round that it had released")
        if sender in memory.answers:
            if memory.answers[sender][0] != hash:
                memory.blamed[sender] = f"it signed two different answers for round {answer.round}"
                memory.second.setdefault(sender, records.answer_record(answer, rows))
            return
        follows = answer.previous == memory.last.get(sender, transcript.FIRST)
        if not follows and sender not in memory.unsure:  # audit: answer-follows-the-last
            raise PeerError("its answer does not name its last accepted answer as the one before")
        try:
            for group, vector in zip(groups, answer.vectors, strict=True):
                if group in memory.sums:
                    np.add(memory.sums[group], vector, out=memory.sums[group])
                else:
                    memory.sums[group] = np.array(vector, dtype=np.uint32)
        except BaseException:  # out of memory, or interrupted
            for group in groups:  # audit: half-added-groups-lost
                memory.spoiled[group] = f"the answer of client {sender} was not added completely"
                memory.sums.pop(group, None)
            raise
        memory.answers[sender] = (hash, answer.signature)
        memory.kept[sender] = records.answer_record(answer, rows)
        memory.dropouts.pop(sender, None)

    def _check_answer(self, answer: Answer) -> tuple[GroupId, ...]:
        """The groups that an answer must have: all of its sender's groups that were complete."""
        memory, sender, round = self._memory, answer.sender, answer.round
        if round != self.round:  # audit: answer-of-this-round
            raise PeerError(f"its answer is of round {round}, expected {self.round}")
        if answer.context != memory.context:  # audit: answer-of-this-context
            raise PeerError("it answered with another context: it computed its update from other data")
        complete, mine = frozenset(memory.complete), self._layout.seats.get(sender, ())
        groups = tuple(group for group in mine if group in complete)
        if sender in memory.releases.get(round, {}):  # audit: released-client-in-no-sum
            groups = tuple(group for group in groups if sender in self._members(group))
        if self._agreement.terms.roll_call and sender not in memory.present:  # audit: answer-of-the-present
            raise PeerError("it was not present when the round began")
        if not groups:
            raise PeerError(f"it is in no sum of round {round}")
        if answer.groups != groups:  # audit: answer-omits-no-group
            raise PeerError(f"its answer has groups {list(answer.groups)}, expected {list(groups)}")
        expected = (len(groups), self._agreement.terms.length)
        if answer.vectors.shape != expected:  # audit: answer-shape
            raise PeerError(f"its answer has vectors of shape {answer.vectors.shape}, expected {expected}")
        if answer.seen != tuple(self._seen(group) for group in groups):  # audit: answer-saw-these-adverts
            raise PeerError("it saw other adverts than those of this round")
        return groups

    def _seen(self, group: GroupId) -> bytes:
        found = self._hashes.get(group)
        if found is None:
            adverts = self._memory.adverts[self._current]
            members = [adverts[v] for v in self._members(group)]
            found = transcript.adverts_hash(self._memory.fingerprint, self._current, group, members)
            self._hashes[group] = found
        return found

    def _take_next(self, answer: Answer, _: Hashes = NO_HASHES) -> None:
        """An answer brings adverts of later rounds; each is signed and checked by itself."""
        for advert in answer.adverts:
            if advert.sender != answer.sender:
                raise PeerError(f"its answer brings an advert of client {advert.sender}")
            if advert.round <= answer.round:  # audit: answer-brings-later-adverts
                raise PeerError(f"its answer of round {answer.round} brings an advert of round {advert.round}")
            self._take_advert(advert)

    # --- rounds --------------------------------------------------------------------------------------

    def hello(self, round: int) -> Mapping[ClientId, Hello]:
        """What to send to the clients of a later round whose adverts are missing."""
        round = whole("round", round)
        with self._lock:
            places, self._memory.next = self._next(round), round
            have = self._memory.adverts.get(round, {})
            missing = [v for v in sorted(places.seats) if v not in have]
            released = self._memory.releases.get(round, {})
            message = Hello(self._memory.fingerprint, round)
            return {v: message for v in missing if v not in released}

    def begin(
        self, round: int, *, data: bytes = b"", context: bytes = b"", present: Collection[ClientId] | None = None
    ) -> Mapping[ClientId, Round]:
        """Begin a round with the adverts that are there, and return the message of each client with a complete group.

        `data` is the application's, for every client. `context` is what else the updates are computed from; clients
        must give the same. If fewer groups are complete than the agreement's least, nothing is sent.

        After a roll call, `present` are the members that are summed (None: all whose adverts are there); the others
        are left out. If they are too few for the policy, nothing is sent.
        """
        round, data, context = whole("round", round), raw("data", data), raw("context", context)
        with self._lock:
            if self.stage is not Stage.IDLE:
                raise UsageError(f"round {self.round} is not closed")
            if len(data) > MOST_DATA:
                raise UsageError(f"data has {len(data)} bytes, at most {MOST_DATA} are allowed")
            places, memory = self._next(round), self._memory
            have = memory.adverts.get(round, {})
            called = self._called(present, have)
            if self.round is None and round > self._agreement.terms.first_round:  # earlier rounds had another server
                memory.unsure = set(self._agreement.terms.ids)
            for kept in (memory.adverts, memory.releases):
                for old in [t for t in kept if t < round]:
                    del kept[old]
            memory.stage, memory.rounds, memory.data = Stage.OPEN, (round,), bytes(data)
            memory.next = round + 1
            memory.context = transcript.context_hash(data, context)
            memory.answers, memory.sums, memory.spoiled = {}, {}, {}
            memory.kept, memory.second, memory.after = {}, {}, {}
            self._hashes = {}
            memory.present = called
            memory.complete = tuple(
                group for group in sorted(places.groups) if all(v in have for v in self._members(group))
            )
            if self._too_few:  # audit: server-present-keep-policy
                memory.complete = ()
            released = memory.releases.get(round, {})
            memory.dropouts = {v: NO_ADVERT for v in sorted(places.seats) if v not in have and v not in released}
            if self._agreement.terms.roll_call:
                memory.dropouts |= {v: NOT_CALLED for v in sorted(have) if v not in called}
            return self.outbox()

    def _called(self, present: Collection[ClientId] | None, have: Mapping[ClientId, Advert]) -> Group:
        """The members that are summed after a roll call; () without one."""
        if not self._agreement.terms.roll_call:
            if present is not None:
                raise UsageError("present: only for an agreement with roll_call; otherwise a group is summed whole")
            return ()
        chosen = ids("present", have if present is None else present)
        absent = [client for client in chosen if client not in have]
        if absent:
            raise UsageError(f"present: client {min(absent)} has sent no advert of this round")
        return tuple(sorted(set(chosen)))

    def _next(self, round: int) -> RoundLayout:
        if round not in self._agreement.terms.rounds:
            raise UsageError(f"round {round} is not in the agreement")
        if self.round is not None and round <= self.round:
            raise UsageError(f"round {round} is over: round {self.round} was begun")
        return layout(self._agreement, round)

    def outbox(self) -> Mapping[ClientId, Round]:
        """The messages of this round for clients that have not answered."""
        with self._lock:
            memory = self._memory
            if self.stage is not Stage.OPEN or len(memory.complete) < self._agreement.terms.least_groups:
                return {}
            complete, adverts = frozenset(memory.complete), memory.adverts[self._current]
            releases = tuple(memory.releases.get(self._current, {}).values())
            releases = tuple(sorted(releases, key=lambda r: r.sender)) if flat.is_flat(self._layout) else ()
            box: dict[ClientId, Round] = {}
            for client, mine in sorted(self._layout.seats.items()):
                groups = tuple(group for group in mine if group in complete and client in self._members(group))
                if groups and client in adverts and client not in memory.answers:
                    mates = sorted({v for group in groups for v in self._members(group)})
                    shown = tuple(adverts[v] for v in mates)
                    box[client] = Round(memory.fingerprint, self._current, memory.data, groups, shown, releases)
            return box

    def waiting_for(self) -> tuple[ClientId, ...]:
        """The clients that were sent this round and have not answered."""
        return tuple(self.outbox())

    def close(self) -> WholeResult:
        """End the round: open the groups whose members all answered, unless there are too few of them."""
        with self._lock:
            if self.stage is not Stage.OPEN:
                raise UsageError("no round is open: call begin() first")
            memory = self._memory
            for client in self.waiting_for():
                memory.dropouts.setdefault(client, NO_ANSWER)
            lost = {group: why for group in self._layout.groups if (why := self._why_lost(group))}
            complete = sorted(group for group in self._layout.groups if group not in lost)
            sums = {group: GroupSum(memory.sums[group], self._members(group)) for group in complete}
            opening = relations.open_sums(self._agreement.terms, sums, lost)
            result = WholeResult(
                agreement=self._agreement,
                round=self._current,
                context=memory.context,
                groups=opening.groups,
                lost=opening.lost,
                answers={v: hash for v, (hash, _) in sorted(memory.answers.items())},
                dropouts=dict(sorted(memory.dropouts.items())),
                blamed=self.blamed,
                inconsistent=opening.inconsistent,
                skipped=opening.skipped,
            )
            asked = {group: self._members(group) for group in memory.complete}
            record = records.round_record(memory, result, asked).to_bytes()
            self._records.append(record)
            self._remember(asked)
            memory.stage, memory.sums, memory.data, memory.complete, memory.present = Stage.IDLE, {}, b"", (), ()
            return replace(result, record=record)

    def _remember(self, asked: Mapping[GroupId, Group]) -> None:
        """Note the last answer of each client, and who may have answered this round without being heard."""
        memory = self._memory
        memory.last |= {client: hash for client, (hash, _) in memory.answers.items()}
        missed = {*memory.dropouts, *chain.from_iterable(asked.values())}.intersection(self._layout.seats)
        memory.unsure = (memory.unsure | missed).difference(memory.answers)

    def evidence(self, signatures: Mapping[ClientId, bytes], *, earlier: Sequence[bytes] = ()) -> bytes:
        """What an auditor can check without believing anybody (docs/evidence.md), of all rounds that are closed.

        `signatures` are those of all members on the agreement. This object has the records of the rounds that it
        closed itself; after `restore`, `earlier` are the records of the rounds before (`WholeResult.record`).
        """
        earlier = each("earlier", earlier, bytes)
        with self._lock:
            return assemble(self._agreement, signatures, [*earlier, *self._records])

    def _why_lost(self, group: GroupId) -> str:
        memory = self._memory
        if group in memory.spoiled:
            return memory.spoiled[group]
        if self._too_few:
            return f"too few members were present: {self._too_few}"
        missing = [v for v in self._members(group) if v not in memory.answers]
        reasons = dict.fromkeys(memory.releases.get(self._current, {}), RELEASED) | memory.dropouts
        return "; ".join(f"client {v}: {reasons[v]}" for v in missing if v in reasons) or (NOT_ASKED if missing else "")

    # --- what follows from the agreement and the releases ---------------------------------------------

    @property
    def _current(self) -> int:
        return self._memory.rounds[0]

    @property
    def _layout(self) -> RoundLayout:
        return layout(self._agreement, self._current)

    @property
    def _too_few(self) -> str:
        """Why those present are too few, if there was a roll call and they are."""
        terms = self._agreement.terms
        return flat.objection(terms, self._memory.present) if terms.roll_call else ""

    def _members(self, group: GroupId) -> Group:
        """The members that are summed: all of the group, or those of a flat sum that are present or not released."""
        released = self._memory.releases.get(self._current, {})
        return flat.summed(self._agreement, self._layout, group, released, self._memory.present)

    # --- state in bytes ------------------------------------------------------------------------------

    def save(self) -> bytes:
        """This server as bytes, also in the middle of a round. `restore` goes on."""
        with self._lock:
            return server_state.save(self._memory)

    @classmethod
    def restore(cls, data: bytes, agreement: Agreement, *, threads: int | None = None) -> Server:
        """The server that `save` wrote, for the same agreement."""
        instance("agreement", agreement, Agreement)
        thread_count(threads)
        server = cls.__new__(cls)
        server._bind(agreement, server_state.restore(raw("data", data), agreement), threads)
        return server


STEPS: Final[Mapping[tuple[Stage, type], Callable[[Server, Any, Hashes], None]]] = {
    # (stage, message) -> handler; begin() and close() change the stage
    (Stage.IDLE, Advert): Server._take_advert,
    (Stage.OPEN, Advert): Server._take_advert,
    (Stage.OPEN, Answer): Server._take_answer,
    (Stage.IDLE, Answer): Server._take_next,
    (Stage.IDLE, Release): Server._take_release,
    (Stage.OPEN, Release): Server._take_release,
}

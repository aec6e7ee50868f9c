"""The server of one run: collects answers, closes stages, and learns the opened sums.

The application calls `receive` for every message that arrives and `advance` when a stage is over (everybody
answered, or its deadline passed); `advance` returns what to send. A client that misbehaves becomes a dropout
with a reason and never stops the others. `STEPS` says which message belongs to which stage, `CLOSE` what
ends a stage. Masked vectors are added to their row as they come and not kept.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from typing import Final

import numpy as np

from secagg import labels
from secagg.crypto import hashtree
from secagg.crypto.keys import HASH_BYTES, digest, verify
from secagg.errors import AlreadyUsed, PeerError, TooFewSurvivors, UsageError
from secagg.protocol import server_state, transcript
from secagg.protocol.codec import BUFFERS, Buffer
from secagg.protocol.dealing import box_bytes, check_advert, write_proof, write_proofs
from secagg.protocol.journal import Journal, MemoryJournal
from secagg.protocol.messages import (
    Bundle,
    Consistency,
    Dealer,
    Dealing,
    Endorsement,
    KeyAdvert,
    KeyList,
    MaskedInput,
    Signatures,
    Survivor,
    Survivors,
    ToClient,
    ToServer,
    Unmasking,
)
from secagg.protocol.plan import Plan
from secagg.protocol.result import Dropout, Result, RowSum, Stage
from secagg.protocol.server_state import Departure, Ledger
from secagg.protocol.unmask import Opened, Shares, rebuild, remove_masks
from secagg.protocol.wire import TYPES, decode
from secagg.types import ClientId, Entropy, GroupId, Ring32, u32


class Outbox(Mapping[ClientId, ToClient]):
    """The messages of one stage by receiver, each made when it is looked up: all at once could be large."""

    def __init__(self, receivers: tuple[ClientId, ...], make: Callable[[ClientId], ToClient]) -> None:
        self._receivers = dict.fromkeys(receivers)
        self._make = make

    def __getitem__(self, client: ClientId) -> ToClient:
        if client not in self._receivers:
            raise KeyError(client)
        return self._make(client)

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._receivers)

    def __len__(self) -> int:
        return len(self._receivers)


class Server:
    """The server's side of one run, over a plan that it wrote.

    `receive(sender, message)` takes one message; `sender` is whom the application's channel authenticated.
    It returns None, or the Dropout that the message earned. `advance()` closes the stage and returns the
    messages to send; `outbox()` is the same again for those who have not answered yet. After stage 3 has
    begun a run is resumed, never repeated: if `advance` raises TooFewSurvivors in CONSISTENCY or UNMASKING,
    the run stays open for late answers. `exclude` leaves clients out from the start: those whom an earlier
    run of the same plan showed to deal bad shares (`doomed_rows`). `threads` limits how many cores the last
    stage uses.
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
        self._journal = journal if journal is not None else MemoryJournal()
        self.plan = plan
        self._threads = threads
        self.stage = Stage.KEYS
        self._instance = entropy(16)  # names the records of this run of this server
        self._adverts: dict[ClientId, KeyAdvert] = {}
        self._dealings: dict[ClientId, Dealing] = {}
        self._trees: dict[ClientId, list[bytes]] = {}
        self._inputs: dict[ClientId, Survivor] = {}
        self._sums: dict[GroupId, Ring32] = {}
        self._rows: tuple[GroupId, ...] = ()
        self._endorsements: dict[ClientId, Consistency] = {}
        self._unmaskings: dict[ClientId, Unmasking] = {}
        self._dropouts = {v: Dropout(Stage.KEYS, "left out by the application") for v in exclude}
        self._result: Result | None = None

    def __repr__(self) -> str:
        return f"<Server of {len(self.plan.roster)} clients, {self.stage.name}>"

    # --- one message ---------------------------------------------------------------------------------

    def receive(self, sender: ClientId, message: ToServer | Buffer) -> Dropout | None:
        """Take one message. A bad one makes its sender a dropout, with the reason returned.

        A second message for the same stage, or one for a stage that is over, changes nothing.
        """
        if sender not in self.plan.identities:
            raise UsageError(f"client {sender} is not on the roster")
        if not isinstance(message, (*TYPES, *BUFFERS)):
            raise UsageError(f"a message is bytes or a message class, not {type(message).__name__}")
        if sender in self._dropouts or self.stage >= Stage.DONE:  # audit: dropout-stays-out
            return self._dropouts.get(sender)
        try:
            if isinstance(message, BUFFERS):
                message = decode(message)  # type: ignore[assignment]
            if type(message) not in _STAGE_OF:  # audit: message-type-for-server
                raise PeerError(f"{type(message).__name__} is not a message to the server")
            # audit: sender-matches-channel
            if message.sender != sender:  # type: ignore[union-attr]
                raise PeerError(f"it says it is from client {message.sender}")  # type: ignore[union-attr]
            belongs = _STAGE_OF[type(message)]
            if belongs > self.stage:  # audit: early-message-refused
                raise PeerError(f"{type(message).__name__} came too early")
            # audit: second-answer-ignored late-answer-ignored
            if belongs < self.stage or sender in self._answers():
                return None
            STEPS[self.stage, type(message)](self, message)
        except PeerError as bad:
            return self._drop(sender, str(bad))  # audit: bad-message-drops-sender
        return None

    def give_up(self, client: ClientId, reason: str) -> Dropout | None:
        """Count a client out before its input counts, for a reason that the application knows.

        Once its input is in the sums (stage 3 and later) it cannot be taken out, and nothing happens.
        """
        if client not in self.plan.identities:
            raise UsageError(f"client {client} is not on the roster")
        if self.stage > Stage.INPUTS or client in self._inputs:
            return self._dropouts.get(client)
        return self._drop(client, reason)

    def waiting_for(self) -> tuple[ClientId, ...]:
        """Who has not answered in this stage."""
        answers = self._answers()
        return tuple(v for v in self._expected() if v not in answers and v not in self._dropouts)

    def _answers(self) -> Mapping[ClientId, object]:
        answers: dict[Stage, Mapping[ClientId, object]] = {
            Stage.KEYS: self._adverts,
            Stage.SHARES: self._dealings,
            Stage.INPUTS: self._inputs,
            Stage.CONSISTENCY: self._endorsements,
            Stage.UNMASKING: self._unmaskings,
        }
        return answers.get(self.stage, {})

    def _expected(self) -> Mapping[ClientId, object]:
        expected: dict[Stage, Mapping[ClientId, object]] = {
            Stage.KEYS: self.plan.identities,
            Stage.SHARES: self._adverts,
            Stage.INPUTS: self._dealings,
            Stage.CONSISTENCY: self._inputs,
            Stage.UNMASKING: self._endorsements,
        }
        return expected.get(self.stage, {})

    def _drop(self, client: ClientId, reason: str) -> Dropout:
        return self._dropouts.setdefault(client, Dropout(self.stage, reason))

    def _take_advert(self, message: KeyAdvert) -> None:
        check_advert(self.plan, message)  # audit: server-checks-adverts
        self._adverts[message.sender] = message

    def _take_dealing(self, message: Dealing) -> None:
        plan, sender = self.plan, message.sender
        holders = self._places(sender)
        secrets = len(plan.groupings) + 1
        if (
            len(message.commitments) != len(plan.groupings)
            or len(message.hashes) != len(holders) * secrets * HASH_BYTES
            or len(message.boxes) != (len(holders) - 1) * box_bytes(plan)
        ):
            # audit: dealing-size
            raise PeerError("its dealing has not one box per peer and one hash per share")
        statement = transcript.dealing_statement(plan.hash, self._adverts[sender], message)
        verify(plan.identities[sender], message.signature, statement, signer=sender)  # audit: dealing-signed
        tree = self._tree(message)
        if tree[-1] != message.root:  # audit: dealing-hashes-match-root
            raise PeerError("its share hashes do not lead to the root that it signed")
        self._dealings[sender], self._trees[sender] = message, tree

    def _places(self, dealer: ClientId) -> Mapping[ClientId, int]:
        """Whom a dealer shared with (its peers in U1, itself included, ascending), and where each stands."""
        return self._places_of(dealer) if self.plan.semi_honest_only else self._common_places

    @cached_property
    def _common_places(self) -> Mapping[ClientId, int]:
        return self._places_of(self.plan.ids[0])

    def _places_of(self, dealer: ClientId) -> Mapping[ClientId, int]:
        peers = (v for v in self.plan.peers(dealer) if v in self._adverts)
        return {holder: place for place, holder in enumerate(peers)}

    def _tree(self, dealing: Dealing) -> list[bytes]:
        width = (len(self.plan.groupings) + 1) * HASH_BYTES
        return hashtree.levels(hashtree.leaves(np.frombuffer(dealing.hashes, np.uint8).reshape(-1, width)))

    def _take_input(self, message: MaskedInput) -> None:
        plan, sender = self.plan, message.sender
        rows = plan.rows_of[sender]
        if message.vectors.shape != (len(rows), plan.length if rows else 0):  # audit: masked-input-shape
            raise PeerError(f"its masked input has shape {message.vectors.shape}")
        if not set(message.disputes) <= set(self._dealings) - {sender}:  # audit: only-dealers-disputed
            raise PeerError("it disputes the shares of someone who dealt none")
        statement = transcript.view_statement(plan.hash, sender, self._view(sender), message.disputes)
        # audit: masked-input-signed
        verify(plan.identities[sender], message.signature, statement, signer=sender)
        try:
            for (r, g), vector in zip(rows, message.vectors, strict=True):
                unit = (r, self._unit_of.get(sender, g))
                if unit in self._sums:
                    np.add(self._sums[unit], vector, out=self._sums[unit])
                else:
                    self._sums[unit] = np.array(vector, dtype=np.uint32)
            self._inputs[sender] = Survivor(sender, message.disputes, message.signature)
        # audit: half-added-vectors-discarded
        except BaseException:  # no memory, or interrupted
            self._fail()
            raise

    @cached_property
    def _unit_of(self) -> Mapping[ClientId, int]:
        """With atoms, sums are kept per atom, so that an atom that falls too low can leave whole."""
        return {client: a for a, atom in enumerate(self.plan.atoms) for client in atom}

    def _view(self, client: ClientId) -> bytes:
        """The view of U2 that this client must have signed: the same for all, but in the sparse mode."""
        return self._view_of(client) if self.plan.semi_honest_only else self._common_view

    @cached_property
    def _common_view(self) -> bytes:
        return self._view_of(self.plan.ids[0])

    def _view_of(self, client: ClientId) -> bytes:
        seen = [v for v in self.plan.peers(client) if v in self._dealings]
        return transcript.view(self.plan.hash, [(self._adverts[v], self._dealer(v)) for v in seen])

    def _dealer(self, client: ClientId) -> Dealer:
        dealing = self._dealings[client]
        return Dealer(client, dealing.commitments, dealing.root)

    def _take_consistency(self, message: Consistency) -> None:
        verify(  # audit: endorsement-signed
            self.plan.identities[message.sender],
            message.signature,
            self._statement(message.sender),
            signer=message.sender,
        )
        self._endorsements[message.sender] = message

    def _statement(self, client: ClientId) -> bytes:
        """What this client must sign in stage 3: the same for all, but in the sparse mode."""
        return self._statement_of(client) if self.plan.semi_honest_only else self._common_statement

    @cached_property
    def _common_statement(self) -> bytes:
        return self._statement_of(self.plan.ids[0])

    def _statement_of(self, client: ClientId) -> bytes:
        return transcript.opening(self.plan, self._view(client), sorted(self._inputs), self._rows)

    def _take_unmasking(self, message: Unmasking) -> None:
        statement = transcript.unmasking_statement(self.plan.hash, message)
        # audit: unmasking-signed
        verify(self.plan.identities[message.sender], message.signature, statement, signer=message.sender)
        self._unmaskings[message.sender] = message

    # --- the end of a stage --------------------------------------------------------------------------

    def advance(self) -> Outbox:
        """Close this stage and return what to send next (nothing after the last).

        TooFewSurvivors: in the first three stages the run has failed, and may be repeated with the same
        plan; in the last two it stays open, and `advance` may be called again after late answers. Anything
        else that is raised while sums are changed (no memory, an interruption) ends the run as FAILED.
        """
        stage = self.stage
        if stage not in CLOSE:
            raise UsageError(f"this run is {stage.name}")
        try:
            CLOSE[stage](self)
            self._claim(Stage(stage + 1))
        except TooFewSurvivors:
            if stage < Stage.CONSISTENCY:  # audit: stage-three-stays-open
                self.stage = Stage.FAILED
            raise
        except BaseException as failure:
            # audit: half-unmasked-sums-discarded
            if stage in _SUMS_CHANGE or isinstance(failure, AlreadyUsed):
                self._fail()
            raise
        self.stage = Stage(stage + 1)
        return self.outbox()

    def _fail(self) -> None:
        """The sums may be half done: they must never be taken for whole."""
        self.stage, self._result, self._sums = Stage.FAILED, None, {}

    def _claim(self, stage: Stage) -> None:
        """One process begins a stage: a second one, restored from the same bytes, must not."""
        name = digest(labels.STEP_RECORD, self._instance, u32(stage)).hex()
        if self._journal.create(name, b"") is not None:  # audit: stage-closed-once
            raise AlreadyUsed(f"another process has begun stage {stage.name} of this run")

    def doomed_rows(self) -> Mapping[GroupId, tuple[ClientId, ...]]:
        """In stage INPUTS: rows that could not be rebuilt, and the dealers whose shares too few can use.

        It looks at what survivors dispute so far. Before the stage is closed the run may still be given up
        and repeated with the same plan and `exclude=` those dealers; after it, these rows are lost.
        """
        disputes = Counter(v for survivor in self._inputs.values() for v in survivor.disputes)
        bad = {
            v
            for v, count in disputes.items()
            if sum(h in self._inputs for h in self._places(v)) - count < self.plan.t
        }
        doomed: dict[GroupId, tuple[ClientId, ...]] = {}
        for v in sorted(bad):
            for row in self.plan.rows_of[v]:
                doomed[row] = (*doomed.get(row, ()), v)
        return doomed

    def outbox(self) -> Outbox:
        """What to send to everyone who has not answered in this stage."""
        makers: dict[Stage, Callable[[ClientId], ToClient]] = {
            Stage.SHARES: self._key_list,
            Stage.INPUTS: self._bundle,
            Stage.CONSISTENCY: self._survivors_message,
            Stage.UNMASKING: self._signatures,
        }
        make = makers.get(self.stage, self._key_list)
        receivers = self.waiting_for() if self.stage in makers else ()
        if receivers and self.stage is not Stage.INPUTS and not self.plan.semi_honest_only:
            everyone = make(receivers[0])  # the same for all; a bundle is for one, and so are neighbourhoods
            return Outbox(receivers, lambda _: everyone)
        return Outbox(receivers, make)

    def _go_on_with(self, count: int, did: str) -> None:
        """Go on without those who have not answered, if enough have."""
        plan = self.plan
        if count < plan.t:  # audit: server-threshold
            limit = (
                ""
                if plan.semi_honest_only
                else (
                    f"; of {len(plan.roster)} clients {len(plan.roster) - plan.t} may drop out while "
                    f"{plan.assumed_colluders} may collude (fewer colluders allow more dropouts)"
                )
            )
            raise TooFewSurvivors(
                f"{count} clients {did}, the threshold is {plan.t}: the sums stay hidden{limit}"
            )
        for client in self.waiting_for():
            self._drop(client, "it did not answer in time")

    def _close_keys(self) -> None:
        self._go_on_with(len(self._adverts), "sent keys")

    def _key_list(self, client: ClientId) -> KeyList:
        peers = self.plan.peers(client)
        return KeyList(self.plan.to_bytes(), tuple(self._adverts[v] for v in peers if v in self._adverts))

    def _close_shares(self) -> None:
        self._go_on_with(len(self._dealings), "shared keys")

    def _bundle(self, client: ClientId) -> Bundle:
        """The public part of U2, and from each dealer this client's box and the proof of its hashes."""
        if self.plan.semi_honest_only:
            return self._sparse_bundle(client)
        place, size = self._common_places[client], box_bytes(self.plan)
        mine = bisect_left(self._common_ids, client)
        start = place * size  # of the box, but where its dealer, who makes none for itself, comes before
        boxes = [sealed[start - size : start] for sealed in self._common_boxes[:mine]]
        boxes += [sealed[start : start + size] for sealed in self._common_boxes[mine + 1 :]]
        proofs = np.delete(write_proofs(place, self._forest), mine, axis=0)
        return Bundle(self._common_dealers, b"".join(boxes), proofs.tobytes())

    def _sparse_bundle(self, client: ClientId) -> Bundle:
        """The same where every dealer has holders of its own."""
        dealers, size = self._dealers_of(client), box_bytes(self.plan)
        boxes, proofs = [], []
        for dealer in (dealer.id for dealer in dealers if dealer.id != client):
            place = self._places_of(dealer)[client]
            start = (place - (dealer < client)) * size
            boxes.append(self._dealings[dealer].boxes[start : start + size])
            proofs.append(write_proof(place, hashtree.proof(self._trees[dealer], place)))
        return Bundle(dealers, b"".join(boxes), b"".join(proofs))

    @cached_property
    def _common_ids(self) -> list[ClientId]:
        return [dealer.id for dealer in self._common_dealers]

    @cached_property
    def _common_boxes(self) -> list[bytes]:
        return [self._dealings[dealer].boxes for dealer in self._common_ids]

    @cached_property
    def _common_dealers(self) -> tuple[Dealer, ...]:
        return self._dealers_of(self.plan.ids[0])

    def _dealers_of(self, client: ClientId) -> tuple[Dealer, ...]:
        return tuple(self._dealer(v) for v in self.plan.peers(client) if v in self._dealings)

    @cached_property
    def _forest(self) -> hashtree.Forest:
        return hashtree.forest([self._trees[dealer.id] for dealer in self._common_dealers])

    def _close_inputs(self) -> None:
        """Fix U3 and the rows to open. With atoms, one that fell below the policy leaves whole."""
        for client in self.plan.too_few_in_atom(self._inputs):
            self._drop(client, "too few of its atom survive to hide it")
            del self._inputs[client]
        self._go_on_with(len(self._inputs), "sent masked inputs")
        self._rows = tuple(sorted(self.plan.audit(sorted(self._inputs)).opened))
        self._sums = {row: total for row in self._rows if (total := self._row_total(row)) is not None}

    def _row_total(self, row: GroupId) -> Ring32 | None:
        if not self.plan.atoms:
            return self._sums.get(row)
        units = sorted({self._unit_of[v] for v in self.plan.group(row) if v in self._inputs})
        total: Ring32 | None = None
        for unit in units:
            part = self._sums[row[0], unit]
            total = part if total is None else np.add(total, part, out=total)
        return total

    def _survivors_message(self, client: ClientId) -> Survivors:
        return Survivors(tuple(self._inputs[v] for v in sorted(self._inputs)), self._rows)

    def _close_consistency(self) -> None:
        self._go_on_with(len(self._endorsements), "signed the survivors")

    def _signatures(self, client: ClientId) -> Signatures:
        """t signatures are enough, and each costs the client a verification."""
        signers = [v for v in self.plan.peers(client) if v in self._endorsements][: self.plan.t]
        return Signatures(tuple(Endorsement(v, self._endorsements[v].signature) for v in signers))

    def _close_unmasking(self) -> None:
        self._go_on_with(len(self._unmaskings), "sent shares")
        opened = Opened(
            plan=self.plan,
            adverts=self._adverts,
            dealings=self._dealings,
            holders={v: self._places(v) for v in self._dealings},
            survivors=frozenset(self._inputs),
            rows=self._rows,
        )
        shares, blamed = Shares(opened), self._disputed()
        blamed.update(shares.add_all(self._unmaskings.values()))
        rebuilt = rebuild(shares)
        blamed.update(rebuilt.cheating_dealers)
        lost = remove_masks(opened, rebuilt, self._sums, threads=self._threads)
        self._result = self._finish(lost, blamed)

    def _disputed(self) -> dict[ClientId, str]:
        """Dealers whom more peers dispute than may cheat: at least one of these is honest."""
        accusers: dict[ClientId, set[ClientId]] = {}
        for survivor in self._inputs.values():
            for dealer in survivor.disputes:
                accusers.setdefault(dealer, set()).add(survivor.id)
        plan = self.plan
        holders = plan.degree + 1 if plan.semi_honest_only else len(plan.roster)
        enough = (
            max(plan.assumed_colluders, holders - plan.t) + 1
        )  # n - t cheaters are withstood, so count them too
        return {
            dealer: f"{len(peers)} peers hold no good share from it"
            for dealer, peers in accusers.items()
            if len(peers) >= enough  # audit: blame-needs-enough-accusers
        }

    def _finish(self, lost: Mapping[GroupId, str], blamed: Mapping[ClientId, str]) -> Result:
        plan, survivors = self.plan, tuple(sorted(self._inputs))
        verdict = plan.audit(survivors)
        rows = {}
        for row in self._rows:
            if row not in lost:
                members = tuple(v for v in plan.group(row) if v in self._inputs)
                rows[row] = RowSum(self._sums[row], members)
        self._sums = {}
        return Result(
            plan=plan,
            survivors=survivors,
            rows=rows,
            closed=verdict.closed,
            lost=lost,
            dropouts=dict(self._dropouts),
            blamed=dict(sorted(blamed.items())),
            verdict=verdict,
        )

    def result(self) -> Result:
        """The outcome, once the last stage is closed."""
        if self._result is None:
            raise UsageError(f"this run has no result: it is {self.stage.name}")
        return self._result

    # --- state in bytes ------------------------------------------------------------------------------

    def save(self) -> bytes:
        """This server as bytes, between two messages. The object is spent: only the bytes go on."""
        if self.stage >= Stage.DONE:
            raise UsageError(f"nothing to save: this run is {self.stage.name}")
        units = sorted(self._sums)
        ledger = Ledger(
            stage=self.stage,
            instance=self._instance,
            plan=self.plan.to_bytes(),
            adverts=tuple(self._adverts.values()),
            dealings=tuple(self._dealings.values()),
            survivors=tuple(self._inputs.values()),
            units=tuple(units),
            sums=np.stack([self._sums[unit] for unit in units]) if units else np.empty((0, 0), np.uint32),
            rows=self._rows,
            endorsements=tuple(self._endorsements.values()),
            unmaskings=tuple(self._unmaskings.values()),
            dropouts=tuple(Departure(v, out.stage, out.reason.encode()) for v, out in self._dropouts.items()),
        )
        data = server_state.save(ledger)
        self.stage = Stage.FAILED  # audit: save-consumes-server
        return data

    @classmethod
    def restore(cls, data: bytes, journal: Journal | None = None, *, threads: int | None = None) -> Server:
        """The server that `save` wrote, with the same journal."""
        ledger = server_state.restore(data)
        server = cls(ledger.checked_plan, journal, threads=threads)
        server.stage = ledger.stage
        server._dropouts = {left.id: left.dropout for left in ledger.dropouts}
        server._instance = ledger.instance
        server._adverts = {advert.sender: advert for advert in ledger.adverts}
        server._dealings = {dealing.sender: dealing for dealing in ledger.dealings}
        server._trees = {v: server._tree(dealing) for v, dealing in server._dealings.items()}
        server._inputs = {survivor.id: survivor for survivor in ledger.survivors}
        server._sums = {unit: vector.copy() for unit, vector in zip(ledger.units, ledger.sums, strict=True)}
        server._rows = ledger.rows
        server._endorsements = {message.sender: message for message in ledger.endorsements}
        server._unmaskings = {message.sender: message for message in ledger.unmaskings}
        return server


STEPS: Final[Mapping[tuple[Stage, type], Callable[..., None]]] = {
    # (stage, message) -> what takes it. Rounds of Bonawitz et al. 2017, Fig. 4.
    (Stage.KEYS, KeyAdvert): Server._take_advert,  # Round 0
    (Stage.SHARES, Dealing): Server._take_dealing,  # Round 1
    (Stage.INPUTS, MaskedInput): Server._take_input,  # Round 2
    (Stage.CONSISTENCY, Consistency): Server._take_consistency,  # Round 3
    (Stage.UNMASKING, Unmasking): Server._take_unmasking,  # Round 4
}
_STAGE_OF: Final = {message: stage for stage, message in STEPS}
_SUMS_CHANGE: Final = frozenset({Stage.INPUTS, Stage.UNMASKING})  # when these are closed, in place
CLOSE: Final[Mapping[Stage, Callable[[Server], None]]] = {
    Stage.KEYS: Server._close_keys,
    Stage.SHARES: Server._close_shares,
    Stage.INPUTS: Server._close_inputs,
    Stage.CONSISTENCY: Server._close_consistency,
    Stage.UNMASKING: Server._close_unmasking,
}

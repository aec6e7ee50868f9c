"""One client in one run: five answers, each given once.

The stages are those of Bonawitz et al. 2017, Fig. 4, over R groupings at once, with two additions: the view
of U2 is signed with the masked input, and every client audits what the opened rows would reveal before it
signs. `STEPS` is the whole state machine. Doubt comes first: the state is FAILED while a message is being
handled, and only success leaves it, so a refused request cannot be tried again with a better lie.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg import labels
from secagg.crypto import box, hashtree, shamir
from secagg.crypto.keys import HASH_BYTES, KEY_BYTES, AgreementKey, Identity, digest, verify
from secagg.crypto.masks import pairwise_keys, pairwise_sign, self_key
from secagg.crypto.prg import add_masks
from secagg.errors import AlreadyUsed, PeerError, PlanRefused, SecAggError, TooFewSurvivors, UsageError
from secagg.protocol import client_state, codec, transcript
from secagg.protocol.cache import Cache, NoCache
from secagg.protocol.client_state import OPENING, HeldShares, Memory, Opening, State, share_nonces
from secagg.protocol.codec import BUFFERS, Buffer
from secagg.protocol.dealing import box_bytes, check_advert, read_proofs
from secagg.protocol.floors import Floors
from secagg.protocol.journal import Journal
from secagg.protocol.messages import (
    Bundle,
    Consistency,
    Dealer,
    Dealing,
    KeyAdvert,
    KeyList,
    MaskedInput,
    Signatures,
    Survivors,
    ToClient,
    ToServer,
    Unmasking,
)
from secagg.protocol.plan import Plan, roster_hash
from secagg.protocol.wire import decode
from secagg.types import Bytes, ClientId, Entropy, Ring32, u32

Update = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Given:
    """What the application gives along with a message."""

    context: bytes
    encoded: tuple[Ring32, int] | None = field(repr=False)  # and how many coordinates were clipped
    out: Ring32 | None


class Client:
    """A client of one run. `hello()` first, then `receive()` for each message of the server.

    `journal` stores the exclusive records (`journal.py`); nothing leaves before a record is stored.
    `floors` is what the client pinned and the least it accepts. `entropy` is for tests, `cache` for
    processes that simulate many clients, `threads` limits the cores that masking uses.
    """

    def __init__(
        self,
        me: ClientId,
        identity: Identity,
        floors: Floors,
        round: int,
        journal: Journal,
        *,
        entropy: Entropy = os.urandom,
        cache: Cache | None = None,
        threads: int | None = None,
    ) -> None:
        if not 0 <= round < 2**63:
            raise UsageError(f"round {round} does not fit in 63 bits")
        self._bind(identity, floors, journal, entropy, cache)
        self._threads = threads
        # audit: client-on-pinned-roster
        if identity.public != {m.id: m.identity for m in floors.roster}.get(me):
            raise UsageError(f"client {me} with this identity is not on the pinned roster")
        self._memory = Memory(
            me=me,
            round=round,
            instance=entropy(16),
            channel=entropy(KEY_BYTES),
            mask=entropy(KEY_BYTES),
        )
        self._plan: Plan | None = None

    def _bind(
        self,
        identity: Identity,
        floors: Floors,
        journal: Journal,
        entropy: Entropy,
        cache: Cache | None,
    ) -> None:
        self._identity = identity
        self._floors = floors
        self._journal = journal
        self._entropy = entropy
        self._cache = cache or NoCache()
        self._agreed: dict[ClientId, bytes] = {}  # channel secrets, so that each is computed once

    def __repr__(self) -> str:
        return f"<Client {self._memory.me}, {self.state.name}>"

    def __reduce_ex__(self, protocol: object) -> str:
        # audit: client-not-copied
        raise UsageError("a client is not copied or pickled; save() writes it, once")

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
        """How many coordinates of the update were clipped. It stays with the client: it would leak."""
        return self._memory.clipped

    # --- the state machine ---------------------------------------------------------------------------

    def hello(self) -> KeyAdvert:
        """Stage 0: advertise two fresh keys, signed. They serve the first plan accepted, and no other."""
        if self.state is not State.NEW:  # audit: hello-once
            self._memory.state = State.FAILED
            raise UsageError("hello() opens a run, once")
        self._memory.state = State.FAILED
        memory = self._memory
        unsigned = KeyAdvert(memory.me, self._channel_key.public, self._mask_key.public, b"")
        statement = transcript.key_statement(
            self._floors.training_id, memory.round, roster_hash(self._floors.roster), unsigned
        )
        advert = replace(unsigned, signature=self._identity.sign(statement))
        self._take_step()  # audit: hello-claims-step
        memory.state = State.ADVERTISED
        return advert

    def receive(
        self,
        message: ToClient | Buffer,
        *,
        update: Update | None = None,
        context: bytes = b"",
        out: Ring32 | None = None,
    ) -> ToServer:
        """Answer one server message. Any violation ends this run for good.

        `context` goes with the KeyList (what the application computed itself), `update` with the Bundle, and
        perhaps `out`: memory for the masked vectors, uint32, one row per grouping.
        """
        if not isinstance(message, (*_FROM_SERVER, *BUFFERS)):
            raise UsageError(f"a message is bytes or a message class, not {type(message).__name__}")
        before, self._memory.state = self.state, State.FAILED  # audit: violation-ends-run
        if isinstance(message, BUFFERS):
            message = decode(message)  # type: ignore[assignment]
        encoded = None
        if (before, type(message)) == (State.DEALT, Bundle):
            self._memory.state = before  # the application's own mistakes are told before the run is at stake
            encoded = self._encode(update, out)
            self._memory.state = State.FAILED
        given = Given(context, encoded, out)
        step = STEPS.get((before, type(message)))
        if step is None:
            raise PeerError(f"{type(message).__name__} not expected in state {before.name}")
        handler, after = step
        reply = handler(self, message, given)
        self._take_step()  # audit: step-claimed-first
        self._memory.state = after
        return reply

    def _encode(self, update: Update | None, out: Ring32 | None) -> tuple[Ring32, int]:
        if update is None:
            raise UsageError("the update goes with the Bundle: receive(bundle, update=...)")
        vector = np.asarray(update)
        if vector.shape != (self.plan.length,):
            raise UsageError(f"the update has shape {vector.shape}, the plan wants ({self.plan.length},)")
        shape = (len(self.plan.groupings), self.plan.length)
        if out is not None and (out.shape != shape or out.dtype != np.uint32 or not out.flags.carray):
            raise UsageError(f"the masked vectors need writable, contiguous uint32 of shape {shape}")
        return self.plan.encoding.encode(vector, weight=self.plan.relative_weight(self.me))

    def _take_step(self) -> None:
        """Claim this transition, so that a copy of this client cannot take it too."""
        memory = self._memory
        memory.step += 1
        name = digest(labels.STEP_RECORD, memory.instance, u32(memory.step)).hex()
        if self._journal.create(name, b"") is not None:  # audit: step-taken-once
            raise AlreadyUsed(f"client {memory.me}: step {memory.step} of this run was already taken")

    # --- stage 1 -------------------------------------------------------------------------------------

    def _deal(self, message: KeyList, given: Given) -> Dealing:
        """Check plan and keys; share the mask key and one fresh seed per grouping with every peer.

        Bonawitz et al. 2017, Fig. 4, Round 1. Deviation: every share's hash is public and signed.
        """
        plan = self._accept(message, given.context)
        adverts = self._check_adverts(message.adverts, plan)
        memory, groupings = self._memory, len(plan.groupings)
        holders = sorted(adverts)
        memory.plan, memory.adverts = message.plan, message.adverts
        # audit: seed-per-grouping
        memory.seeds = tuple(self._entropy(shamir.SECRET_BYTES) for _ in range(groupings))
        shares = shamir.split_each(
            [memory.mask, *memory.seeds], plan.t, [plan.index[v] for v in holders], self._entropy
        )
        others = [adverts[v] for v in holders if v != memory.me]
        keys = iter(self._box_keys(others, [(memory.me, advert.sender) for advert in others]))
        dealt, boxes = [], []
        for place, holder in enumerate(holders):
            held = HeldShares(memory.me, self._entropy(HASH_BYTES), shares[:, place].tobytes())
            dealt.append(held)
            if holder == memory.me:
                memory.held = (held,)
            else:
                boxes.append(self._seal(next(keys), holder, held))
        hashes = self._share_hashes(dealt, holders)
        leaves = hashtree.leaves(hashes)
        commitments = tuple(
            transcript.seed_commitment(plan.hash, memory.me, r, seed) for r, seed in enumerate(memory.seeds)
        )
        dealer = Dealer(memory.me, commitments, hashtree.levels(leaves)[-1])
        memory.mine = (dealer,)
        signature = self._identity.sign(transcript.dealing_statement(plan.hash, adverts[memory.me], dealer))
        return Dealing(memory.me, commitments, dealer.root, signature, hashes.tobytes(), b"".join(boxes))

    def _accept(self, message: KeyList, context: bytes) -> Plan:
        """Take the plan if it is above the floors, and the only one ever for this update.

        The record binds the update (training, round) to this plan: a repeated run must have the same one.
        """
        try:
            plan = self._cache.plan(message.plan)
        except UsageError as unsafe:
            raise PlanRefused(f"plan refused: {unsafe}") from None
        self._floors.check(plan, self.me, self._memory.round, context)  # audit: plan-meets-floors
        earlier = self._journal.create(self._record_name(labels.UPDATE_RECORD), plan.hash)
        if earlier not in (None, plan.hash):  # audit: one-plan-per-update
            raise AlreadyUsed(
                "another plan was accepted for this update; the round cannot be repeated with this one"
            )
        self._plan = plan
        return plan

    def _check_adverts(self, adverts: Sequence[KeyAdvert], plan: Plan) -> Mapping[ClientId, KeyAdvert]:
        """U1: at least t peers, each key signed by its owner, mine as I sent it."""
        peers = frozenset(plan.peers(self.me))
        ids = [advert.sender for advert in adverts]
        # audit: key-list-order key-list-peers-only
        if sorted(set(ids)) != ids or not {self.me} <= set(ids) <= peers:
            raise PeerError("the key list must name me and my peers, once each, in order")
        if len(ids) < plan.t:  # audit: key-list-threshold
            raise TooFewSurvivors(f"{len(ids)} clients sent keys, the threshold is {plan.t}")
        for advert in adverts:
            if advert.sender == self.me:
                # audit: own-keys-unchanged
                if (advert.channel, advert.mask) != (self._channel_key.public, self._mask_key.public):
                    raise PeerError("the key list gives me keys that are not mine")
                continue
            check_advert(plan, advert)  # audit: client-checks-adverts
        return {advert.sender: advert for advert in adverts}

    def _share_hashes(self, dealt: Sequence[HeldShares], holders: Sequence[ClientId]) -> Bytes:
        """The content of the leaf of each dealer and holder: the hashes of all shares between them."""
        secrets = len(self.plan.groupings) + 1
        nonces = self._share_nonces(dealt).reshape(-1, HASH_BYTES)
        shares = np.frombuffer(b"".join(held.shares for held in dealt), np.uint8)
        entries = np.concatenate([shares.reshape(-1, shamir.SHARE_BYTES), nonces], axis=1)
        ids = np.empty((len(dealt), secrets, 3), np.uint32)
        ids[:, :, 0] = np.array([held.dealer for held in dealt], np.uint32)[:, None]
        ids[:, :, 1] = np.array(holders, np.uint32)[:, None]
        ids[:, :, 2] = np.arange(secrets)
        hashes = transcript.share_hashes(self.plan.hash, ids.reshape(-1, 3), entries)
        return hashes.reshape(-1, secrets * HASH_BYTES)

    def _share_nonces(self, dealt: Sequence[HeldShares]) -> Bytes:
        """One nonce per dealing and secret: (dealings, secrets, 32)."""
        pairs = np.frombuffer(b"".join(held.nonce for held in dealt), np.uint8).reshape(-1, HASH_BYTES)
        secrets = len(self.plan.groupings) + 1
        return share_nonces(pairs, secrets).reshape(-1, secrets, HASH_BYTES)

    def _seal(self, key: bytes, receiver: ClientId, held: HeldShares) -> bytes:
        content = held.nonce + held.shares
        return box.seal(key, self.plan.hash, self.me, receiver, content, self._entropy)

    def _box_keys(self, peers: Sequence[KeyAdvert], ends: Sequence[tuple[ClientId, ClientId]]) -> list[bytes]:
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

    # --- stage 2 -------------------------------------------------------------------------------------

    def _mask(self, message: Bundle, given: Given) -> MaskedInput:
        """Open the boxes, encode the update and mask it once per grouping; sign the view of U2.

        Bonawitz et al. 2017, Fig. 4, Round 2. A box that does not open, or a share that does not match its
        dealer's hash, is a disputed pair: the dealer stays, this client just holds no share of it.
        """
        plan, memory = self.plan, self._memory
        assert given.encoded is not None
        encoded, memory.clipped = given.encoded
        members = self._check_dealers(message)
        memory.dealers = message.dealers
        memory.held, disputes = self._open_boxes(message, members)
        vectors = self._masked(encoded, members, given.out)
        statement = transcript.view_statement(plan.hash, memory.me, self._view, disputes)
        return MaskedInput(memory.me, disputes, self._identity.sign(statement), vectors)

    def _check_dealers(self, message: Bundle) -> Mapping[ClientId, KeyAdvert]:
        """U2: a subset of U1 with at least t members, me among them with my own dealing."""
        plan = self.plan
        adverts = {advert.sender: advert for advert in self._memory.adverts}
        ids = [dealer.id for dealer in message.dealers]
        if sorted(set(ids)) != ids or not {self.me} <= set(ids) <= set(adverts):  # audit: u2-inside-u1
            raise PeerError("U2 must be inside U1, with me, once each, in order")
        if len(ids) < plan.t:  # audit: dealers-threshold
            raise TooFewSurvivors(f"{len(ids)} clients shared keys, the threshold is {plan.t}")
        # audit: one-commitment-per-grouping
        if any(len(dealer.commitments) != len(plan.groupings) for dealer in message.dealers):
            raise PeerError("a dealer has not one commitment per grouping")
        if self._memory.mine[0] not in message.dealers:  # audit: own-dealing-unchanged
            raise PeerError("U2 shows a dealing of mine that is not mine")
        return {v: adverts[v] for v in ids}

    def _open_boxes(
        self, message: Bundle, members: Mapping[ClientId, KeyAdvert]
    ) -> tuple[tuple[HeldShares, ...], tuple[ClientId, ...]]:
        plan = self.plan
        others = [dealer for dealer in message.dealers if dealer.id != self.me]
        box_size = box_bytes(plan)
        proofs = read_proofs(message.proofs)
        # audit: one-box-and-proof-per-dealer
        if len(message.boxes) != len(others) * box_size or len(proofs) != len(others):
            raise PeerError("the bundle has not one box and one proof per dealer")
        opened: list[tuple[HeldShares, Dealer, int, tuple[bytes, ...]]] = []
        held, disputes = list(self._memory.held), []
        keys = self._box_keys([members[dealer.id] for dealer in others], [(v.id, self.me) for v in others])
        for place, (dealer, key, (index, path)) in enumerate(zip(others, keys, proofs, strict=True)):
            sealed = message.boxes[place * box_size : (place + 1) * box_size]
            try:
                content = box.unseal(key, plan.hash, dealer.id, self.me, sealed)
            except PeerError:
                disputes.append(dealer.id)  # audit: unopened-box-disputed
                continue
            opened.append(
                (HeldShares(dealer.id, content[:HASH_BYTES], content[HASH_BYTES:]), dealer, index, path)
            )
        contents = self._share_hashes([shares for shares, *_ in opened], [self.me] * len(opened))
        leaves = np.frombuffer(hashtree.leaves(contents), np.uint8).reshape(-1, HASH_BYTES)
        roots = hashtree.roots(leaves, [index for *_, index, _ in opened], [path for *_, path in opened])
        for (shares, dealer, _, _), root in zip(opened, roots, strict=True):
            # audit: share-matches-signed-root share-in-field-or-disputed
            if shares.canonical and root == dealer.root:
                held.append(shares)
            else:
                disputes.append(dealer.id)
        return tuple(sorted(held, key=lambda shares: shares.dealer)), tuple(sorted(disputes))

    def _masked(self, encoded: Ring32, members: Mapping[ClientId, KeyAdvert], out: Ring32 | None) -> Ring32:
        plan, memory = self.plan, self._memory
        rows = plan.rows_of[memory.me]
        shape = (len(rows), plan.length if rows else 0)
        vectors = np.empty(shape, np.uint32) if out is None else out[: shape[0], : shape[1]]
        # audit: pairwise-masks-added
        peers = [[v for v in plan.groupings[r][g] if v != memory.me and v in members] for r, g in rows]
        agreed = {v: self._mask_key.agree(members[v].mask) for v in set().union(*peers)}
        pairs = [(memory.me, v, r) for (r, _), others in zip(rows, peers, strict=True) for v in others]
        secrets = np.frombuffer(b"".join([agreed[v] for _, v, _ in pairs]), np.uint8).reshape(-1, KEY_BYTES)
        keys = iter(pairwise_keys(secrets, plan.hash, np.array(pairs, np.uint32).reshape(-1, 3)))
        for vector, (r, _), others in zip(vectors, rows, peers, strict=True):
            own = self_key(memory.seeds[r], plan.hash, memory.me, r)
            signs = [1, *(pairwise_sign(memory.me, v) for v in others)]
            vector[:] = encoded
            # audit: self-mask-added
            add_masks(vector, [own, *(next(keys).tobytes() for _ in others)], signs, threads=self._threads)
        return vectors

    @cached_property
    def _view(self) -> bytes:
        """U2 as stage 2 showed it; it never changes after."""
        adverts = {advert.sender: advert for advert in self._memory.adverts}
        dealers = self._memory.dealers
        return transcript.view(self.plan.hash, [(adverts[dealer.id], dealer) for dealer in dealers])

    # --- stage 3 -------------------------------------------------------------------------------------

    def _sign(self, message: Survivors, _: Given) -> Consistency:
        """Sign U3 and the rows, if all of U3 saw the same U2 and the audit allows the rows.

        Bonawitz et al. 2017, Fig. 4, Round 3. The record comes first: after it, this update is opened for
        these survivors and these rows (or fewer), or never.
        """
        plan, memory = self.plan, self._memory
        survivors = self._check_survivors(message)
        verdict = self._cache.verdict(plan, survivors)
        refused = sorted(set(message.rows) - verdict.opened)
        if refused:  # audit: only-audited-sums
            why = verdict.closed.get(refused[0], "there is no such row")
            raise PeerError(f"the server wants to open row {refused[0]}, which my audit closes: {why}")
        memory.survivors, memory.rows = survivors, message.rows
        self._record_opening()  # audit: opening-recorded
        return Consistency(memory.me, self._identity.sign(self._statement()))

    def _check_survivors(self, message: Survivors) -> tuple[ClientId, ...]:
        plan, view = self.plan, self._view
        ids = tuple(member.id for member in message.members)
        mine = {dealer.id for dealer in self._memory.dealers}
        if list(ids) != sorted(set(ids)) or self.me not in ids:  # audit: u3-order
            raise PeerError("U3 must name me, and everyone once, in order")
        if not set(ids) <= (set(plan.ids) if plan.semi_honest_only else mine):  # audit: u3-inside-u2
            raise PeerError("U3 must be inside U2")
        if len(set(ids) & mine) < plan.t:  # audit: survivors-threshold
            raise TooFewSurvivors(f"{len(set(ids) & mine)} clients survive, the threshold is {plan.t}")
        if plan.semi_honest_only:  # views differ from neighbourhood to neighbourhood
            # audit: sparse-dropouts-limited
            if plan.sparse_risk(gone=len(plan.ids) - len(ids)) > self._floors.sparse_risk:
                raise PeerError("so many are gone that the survivors' graph may fall apart")
            return ids
        for member in message.members:
            statement = transcript.view_statement(plan.hash, member.id, view, member.disputes)
            # audit: u3-signed-my-view
            verify(plan.identities[member.id], member.signature, statement, signer=member.id)
        return ids

    def _record_opening(self) -> None:
        memory = self._memory
        # audit: opening-belongs-to-run
        wanted = Opening(self.plan.hash, self._view, memory.survivors, memory.rows)
        stored = self._journal.create(
            self._record_name(labels.OPENING_RECORD), codec.to_bytes(OPENING, wanted)
        )
        if stored is None:
            return
        earlier: Opening = codec.from_bytes(OPENING, stored)
        # audit: one-opening-per-update opening-never-grows
        if replace(earlier, rows=wanted.rows) != wanted or not set(wanted.rows) <= set(earlier.rows):
            raise AlreadyUsed("this update was opened before, in another run or for other survivors or rows")

    def _sign_again(self, message: Survivors, _: Given) -> Consistency:
        """The same statement again, when the first answer was lost. Another one ends the run."""
        if (tuple(member.id for member in message.members), message.rows) != (
            self._memory.survivors,
            self._memory.rows,
        ):
            # audit: same-answer-again
            raise PeerError("the server named other survivors or rows than I signed")
        return Consistency(self.me, self._identity.sign(self._statement()))

    def _statement(self) -> bytes:
        return transcript.opening(self.plan, self._view, self._memory.survivors, self._memory.rows)

    def _record_name(self, label: bytes) -> str:
        """Names a record of one update: of this client, this training and this round."""
        round = self._memory.round.to_bytes(8, "little")
        return digest(label, self._identity.public, self._floors.training_id, round).hex()

    # --- stage 4 -------------------------------------------------------------------------------------

    def _unmask(self, message: Signatures, _: Given) -> Unmasking:
        """Give one kind of share per peer: of its seeds if it survived, of its mask key if it is gone.

        Bonawitz et al. 2017, Fig. 4, Round 4: b_{v,u} for v in U3, s^SK_{v,u} for v in U2 minus U3.
        Deviation: only the seeds of opened rows, and the key only of clients with an opened row. The two
        sets come from the one U3 that at least t clients signed, so they cannot overlap.
        """
        plan, memory = self.plan, self._memory
        self._check_endorsements(message)
        alive, opened = frozenset(memory.survivors), frozenset(memory.rows)
        seed_owners, key_owners = [], []
        seeds: list[bytes] = []
        keys: list[bytes] = []
        for held, nonces in zip(memory.held, self._share_nonces(memory.held), strict=True):
            # audit: closed-sums-stay-closed
            groupings = [r for r, g in plan.rows_of[held.dealer] if (r, g) in opened]
            if not groupings:
                continue
            if held.dealer in alive:  # audit: client-one-kind-of-share
                seed_owners.append(held.dealer)
                seeds.extend(held.share(r + 1) + nonces[r + 1].tobytes() for r in groupings)
            else:
                key_owners.append(held.dealer)
                secret = transcript.KEY_SECRET
                keys.append(held.share(secret) + nonces[secret].tobytes())
        unsigned = Unmasking(
            memory.me, tuple(seed_owners), b"".join(seeds), tuple(key_owners), b"".join(keys), b""
        )
        signature = self._identity.sign(transcript.unmasking_statement(plan.hash, unsigned))
        return replace(unsigned, signature=signature)

    def _check_endorsements(self, message: Signatures) -> None:
        """At least t of my peers in U3 signed exactly what I signed."""
        plan, statement = self.plan, self._statement()
        electorate = frozenset(self._memory.survivors) & frozenset(plan.peers(self.me))
        signers = [endorsement.id for endorsement in message.endorsements]
        if signers != sorted(set(signers)):  # audit: endorser-counts-once
            raise PeerError("each signer counts once, in order")
        valid = 0
        for endorsement in message.endorsements:
            if endorsement.id not in electorate:  # audit: endorsers-in-u3
                raise PeerError(f"client {endorsement.id} may not sign for this opening")
            # audit: endorsements-verified
            verify(plan.identities[endorsement.id], endorsement.signature, statement, signer=endorsement.id)
            valid += 1
            if valid == plan.t:  # audit: t-endorsements
                return
        raise TooFewSurvivors(f"{valid} clients signed the opening, the threshold is {plan.t}")

    # --- state in bytes ------------------------------------------------------------------------------

    def save(self) -> bytes:
        """This client as bytes, between two messages. The object is spent: only the bytes go on.

        The bytes hold secrets: encrypt them where they are stored. An older copy of them cannot act again,
        because the journal has the record of what it did.
        """
        if self.state in (State.FAILED, State.DONE):  # audit: finished-not-saved
            raise UsageError(f"nothing to save: this run is {self.state.name}")
        data = client_state.save(self._memory)
        self._memory.state = State.FAILED  # audit: save-consumes-client
        return data

    @classmethod
    def restore(
        cls,
        data: bytes,
        identity: Identity,
        floors: Floors,
        journal: Journal,
        *,
        entropy: Entropy = os.urandom,
        cache: Cache | None = None,
        threads: int | None = None,
    ) -> Client:
        """The client that `save` wrote, with the same identity, floors and journal."""
        client = cls.__new__(cls)
        client._bind(identity, floors, journal, entropy, cache)
        client._threads = threads
        client._memory = client_state.restore(data)
        data = client._memory.plan
        try:
            client._plan = client._cache.plan(data) if data else None
        except SecAggError as damaged:
            raise UsageError(f"this saved client is damaged: {damaged}") from None
        # audit: saved-client-bound-to-identity
        if identity.public != {m.id: m.identity for m in floors.roster}.get(client.me):
            raise UsageError("this saved client belongs to another identity")
        return client


_FROM_SERVER: Final = (KeyList, Bundle, Survivors, Signatures)
Handler = Callable[..., ToServer]
STEPS: Final[Mapping[tuple[State, type], tuple[Handler, State]]] = {
    # (state, message) -> (handler, next state). Rounds of Bonawitz et al. 2017, Fig. 4.
    (State.ADVERTISED, KeyList): (Client._deal, State.DEALT),  # Round 1
    (State.DEALT, Bundle): (Client._mask, State.MASKED),  # Round 2
    (State.MASKED, Survivors): (Client._sign, State.SIGNED),  # Round 3
    (State.SIGNED, Survivors): (Client._sign_again, State.SIGNED),  # its answer was lost
    # audit: unmask-once
    (State.SIGNED, Signatures): (Client._unmask, State.DONE),  # Round 4
}

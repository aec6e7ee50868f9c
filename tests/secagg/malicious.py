"""A malicious server's world, and an attacker that computes everything it can.

`Puppet` wraps one honest Client: the test writes every message that it gets. In a `World` colluders'
secrets and signatures are the server's. `Attacker` works out everything that can be computed from what the
honest clients sent: which secrets reach t shares, which masks come off, which sums of inputs follow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from secagg import Agreement, MemoryJournal, Plan, SecAggError, Stage, reference
from secagg.crypto import hashtree, shamir
from secagg.crypto.keys import HASH_BYTES, AgreementKey
from secagg.crypto.prg import add_masks, pairwise_sign
from secagg.protocol import transcript
from secagg.protocol.client import Client
from secagg.protocol.client_state import State
from secagg.protocol.dealing import box_bytes, write_proof
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
from secagg.protocol.unmask import ENTRY
from secagg.protocol.wire import decode, encode
from tests.secagg.cluster import Vector, WideCache, agreement_of, copied, identity, make_inputs, signed
from tests.secagg.drbg import Drbg


class Puppet:
    """One honest Client whose every message the test writes. It keeps what was said, and only that."""

    def __init__(self, world: World, me: int, name: bytes) -> None:
        self.world, self.me, self.name = world, me, name
        self.client = Client(
            me,
            identity(me),
            world.agreed,
            world.plan.round,
            world.journals[me],
            entropy=Drbg(name + b" client %d" % me),
            cache=world.cache,
        )
        self.channel_key, self.mask_key = self.client._channel_key, self.client._mask_key  # a colluder keeps them
        self.view: bytes | None = None
        self.heard_all: list[ToClient] = []  # what it accepted
        self.said: list[ToServer] = []

    def hello(self) -> KeyAdvert:
        advert = self.client.hello()
        self.said.append(advert)
        return advert

    def tell(self, message: ToClient, *, context: bytes | None = None, in_bytes: bool = True) -> Any:
        """Give a message, as bytes by default; the reply is recorded, a refusal is raised."""
        reply = self.client.receive(
            encode(message) if in_bytes else message,
            update=self.world.inputs[self.me] if self.client.state is State.DEALT else None,
            context=self.world.plan.context if context is None else context,
        )
        self.heard_all.append(message)
        self.said.append(reply)
        return reply

    def offer(self, message: ToClient, *, in_bytes: bool = True) -> ToServer | None:
        """As `tell`, but a refusal is None."""
        try:
            reply: ToServer = self.tell(message, in_bytes=in_bytes)
        except SecAggError:
            return None
        return reply

    def fork(self) -> Puppet:
        """The same client with the same past on a copy of its disk: another future."""
        twin = copy(self)
        twin.heard_all, twin.said = list(self.heard_all), list(self.said)
        twin.client = Client.__new__(Client)
        twin.client.__dict__.update(self.client.__dict__)
        twin.client._memory = replace(self.client._memory)
        assert isinstance(self.client._journal, MemoryJournal)
        twin.client._journal = copied(self.client._journal)
        return twin

    def find(self, kind: type) -> Any:
        """The last message of a kind that it sent."""
        return next(message for message in reversed(self.said) if isinstance(message, kind))

    def heard(self, kind: type) -> Any:
        return next(message for message in reversed(self.heard_all) if isinstance(message, kind))


class World:
    """A plan, its honest clients as puppets, and colluders whose secrets and signatures are the server's."""

    def __init__(
        self,
        plan: Plan,
        *,
        colluders: Collection[int] = (),
        agreed: Agreement | None = None,
        inputs: Mapping[int, Vector] | None = None,
        name: bytes = b"world",
    ) -> None:
        self.plan, self.name = plan, name
        self.agreed = agreed or agreement_of(plan)
        self.colluders = frozenset(colluders)
        self.honest = tuple(v for v in plan.ids if v not in self.colluders)
        self.inputs = dict(inputs) if inputs is not None else make_inputs(plan)
        self.journals = {v: MemoryJournal() for v in plan.ids}
        self.puppets: list[Puppet] = []
        self.cache = WideCache()
        # What an attacker worked out, kept between attackers: agreements by keys, colluders' boxes.
        self.secrets: dict[frozenset[bytes], bytes] = {}
        self.opened: dict[tuple[bytes, int, bytes], bytes | None] = {}

    def puppet(self, me: int, attempt: int = 0) -> Puppet:
        made = Puppet(self, me, self.name + b" attempt %d" % attempt)
        self.puppets.append(made)
        return made

    def attempt(self, number: int = 0) -> dict[int, Puppet]:
        """A fresh client object for everybody, colluders too (they follow the protocol by default)."""
        return {v: self.puppet(v, number) for v in self.plan.ids}

    # what an honest server would send, from any mixture of parts

    def key_list(self, adverts: Iterable[KeyAdvert]) -> KeyList:
        return KeyList(
            self.plan.hash, tuple(self.plan.parts.values()), tuple(sorted(adverts, key=lambda advert: advert.sender))
        )

    def bundle(self, me: int, dealings: Mapping[int, Dealing], dealt_to: Mapping[int, Sequence[int]]) -> Bundle:
        """The bundle of U2 = `dealings` for one client; `dealt_to` is whom each dealer dealt to.

        A dealer that did not deal to this client gives it a box and a proof of zeros.
        """
        size, boxes, proofs = box_bytes(self.plan), [], []
        for dealer in sorted(dealings):
            if dealer == me:
                continue
            holders, made = sorted(dealt_to[dealer]), dealings[dealer]
            if me not in holders:
                boxes.append(bytes(size))
                proofs.append(write_proof(0, ()))
                continue
            place = holders.index(me)
            start = (place - (holders.index(dealer) < place)) * size
            boxes.append(made.boxes[start : start + size])
            width = (len(self.plan.groupings) + 1) * HASH_BYTES
            leaves = b"".join(
                reference.tree_leaf(made.hashes[i : i + width]) for i in range(0, len(made.hashes), width)
            )
            proofs.append(write_proof(place, hashtree.proof(hashtree.levels(leaves), place)))
        dealers = tuple(public_part(dealings[v]) for v in sorted(dealings))
        return Bundle(dealers, b"".join(boxes), b"".join(proofs))

    def survivors(self, inputs: Iterable[MaskedInput | Survivor], rows: Sequence[Any] | None = None) -> Survivors:
        members = tuple(
            sorted(
                (survivor(made) if isinstance(made, MaskedInput) else made for made in inputs),
                key=lambda member: member.id,
            )
        )
        if rows is None:
            summed = self.plan.summed([member.id for member in members])
            rows = sorted(self.cache.verdict(self.plan, summed).opened)
        return Survivors(members, tuple(rows))

    def signatures(self, endorsements: Iterable[Consistency]) -> Signatures:
        ordered = sorted(endorsements, key=lambda message: message.sender)
        return Signatures(tuple(Endorsement(made.sender, made.signature) for made in ordered))

    # what colluders sign for the server

    def view_of(self, puppet: Puppet) -> bytes:
        """The digest of the view of U2 that a client was shown."""
        if puppet.view is None:
            adverts = {advert.sender: advert for advert in puppet.heard(KeyList).adverts}
            dealers = puppet.heard(Bundle).dealers
            seen = [(adverts[dealer.id], dealer) for dealer in dealers]
            puppet.view = transcript.view(self.plan.hash, seen)
        return puppet.view

    def collude_on_view(self, colluder: int, view: bytes, hashed: bytes = bytes(32)) -> Survivor:
        assert colluder in self.colluders
        statement = transcript.view_statement(self.plan.hash, colluder, view, (), hashed)
        return Survivor(colluder, (), hashed, signed(colluder, statement))

    def collude_on_opening(self, colluder: int, view: bytes, asked: Survivors) -> Consistency:
        assert colluder in self.colluders
        ids = [member.id for member in asked.members]
        statement = transcript.opening(self.plan, view, ids, transcript.inputs_hash(asked.members), asked.groups)
        return Consistency(colluder, signed(colluder, statement))

    # a whole run by the book

    def run_to(self, stage: Stage, *, number: int = 0, absent: Mapping[int, Stage] | None = None) -> dict[int, Puppet]:
        """An honest run in which everybody answers up to and including `stage`, but for the absent."""
        absent, puppets = absent or {}, self.attempt(number)

        def present(at: Stage) -> list[Puppet]:
            return [p for v, p in puppets.items() if absent.get(v, Stage.DONE) > at]

        adverts = [p.hello() for p in present(Stage.KEYS)]
        if stage >= Stage.SHARES:
            for p in present(Stage.SHARES):
                p.tell(self.key_list(adverts))
        if stage >= Stage.INPUTS:
            dealings = {p.me: p.find(Dealing) for p in present(Stage.SHARES)}
            dealt_to = {v: [advert.sender for advert in adverts] for v in dealings}
            for p in present(Stage.INPUTS):
                p.tell(self.bundle(p.me, dealings, dealt_to))
        if stage >= Stage.CONSISTENCY:
            asked = self.survivors(p.find(MaskedInput) for p in present(Stage.INPUTS))
            for p in present(Stage.CONSISTENCY):
                p.tell(asked)
        if stage >= Stage.UNMASKING:
            signed = self.signatures([p.find(Consistency) for p in present(Stage.CONSISTENCY)][: self.plan.t])
            for p in present(Stage.UNMASKING):
                p.tell(signed)
        return puppets

    def attacker(self) -> Attacker:
        return Attacker(self, [p for p in self.puppets if p.me not in self.colluders], self.puppets)


def survivor(made: MaskedInput) -> Survivor:
    """What the server passes on of a masked input."""
    return Survivor(made.sender, made.disputes, transcript.vectors_hash(made.vectors), made.signature)


def public_part(made: Dealing) -> Dealer:
    return Dealer(made.sender, made.commitments, made.root)


@dataclass(frozen=True)
class Learned:
    """One sum that the attacker holds: of these clients' inputs, in this grouping."""

    grouping: int
    clients: frozenset[int]
    value: tuple[int, ...]


@dataclass
class Attacker:
    """Server and colluders together: everything computable from what honest clients sent, and no more.

    Each masked vector is x + self mask + signed pairwise masks. Shares from unmasking messages, and those
    that colluders hold, rebuild seeds and keys; what they give is subtracted. A pairwise mask that stays
    occurs in at most two vectors, with opposite signs, and a self mask in one, so the matrix of what is left
    is totally unimodular: over the ring, as over the integers, the combinations free of unknown masks are
    spanned by the sums over connected components without a loose end. `learned` returns those sums.
    """

    world: World
    honest: Sequence[Puppet]
    everybody: Sequence[Puppet]

    @cached_property
    def shares(self) -> dict[tuple[bytes, int], dict[int, bytes]]:
        """By (root of the dealing, secret): index of the holder -> share. From messages and colluders."""
        plan, found = self.world.plan, {}
        for puppet in self.honest:
            for message in puppet.said:
                if isinstance(message, Unmasking):
                    for root, secret, share in given_shares(plan, puppet, message):
                        found.setdefault((root, secret), {})[plan.index[puppet.me]] = share
        for puppet in self.honest:
            if not any(isinstance(message, Dealing) for message in puppet.said):
                continue
            made, keys = puppet.find(Dealing), puppet.heard(KeyList)
            for advert in keys.adverts:
                opened = self._colluders_box(puppet, made, advert, keys)
                if opened is not None:
                    for secret in range(len(plan.groupings) + 1):
                        start = HASH_BYTES + secret * shamir.SHARE_BYTES
                        share = opened[start : start + shamir.SHARE_BYTES]
                        found.setdefault((made.root, secret), {})[plan.index[advert.sender]] = share
        return found

    def _colluders_box(self, dealer: Puppet, made: Dealing, advert: KeyAdvert, keys: KeyList) -> bytes | None:
        if advert.sender not in self.world.colluders:
            return None
        key = (made.root, advert.sender, advert.channel)
        if key not in self.world.opened:
            self.world.opened[key] = self._unseal(dealer, made, advert, keys)
        return self.world.opened[key]

    def _unseal(self, dealer: Puppet, made: Dealing, advert: KeyAdvert, keys: KeyList) -> bytes | None:
        plan, size = self.world.plan, box_bytes(self.world.plan)
        others = [a.sender for a in keys.adverts if a.sender != dealer.me]
        place = others.index(advert.sender)
        for puppet in self.everybody:
            if puppet.me == advert.sender and puppet.channel_key.public == advert.channel:
                agreed = puppet.channel_key.agree(dealer.find(KeyAdvert).channel)
                sealed = made.boxes[place * size : (place + 1) * size]
                return reference.unseal(agreed, reference.box_address(plan.hash, dealer.me, advert.sender), sealed)
        return None

    @cached_property
    def rebuilt(self) -> dict[tuple[bytes, int], bytes]:
        """The seeds that their owners gave, and the secrets of which t shares are known, all checked."""
        plan, secrets = self.world.plan, dict(self._own)
        dealt = {p.find(Dealing).root: p for p in self.honest if any(isinstance(m, Dealing) for m in p.said)}
        for (root, secret), points in self.shares.items():
            if len(points) < plan.t or root not in dealt:
                continue
            holders = sorted(points)[: plan.t]
            (value,) = shamir.combine_each(
                shamir.coefficients(holders),
                np.frombuffer(b"".join(points[i] for i in holders), np.uint8).reshape(1, plan.t, shamir.SHARE_BYTES),
            )
            assert value is not None
            owner = dealt[root]
            if secret == transcript.KEY_SECRET:
                assert AgreementKey.from_private(value).public == owner.find(KeyAdvert).mask
            else:
                assert (
                    transcript.seed_commitment(plan.hash, owner.me, secret - 1, value)
                    == owner.find(Dealing).commitments[secret - 1]
                )
            secrets[root, secret] = value
        return secrets

    @property
    def _own(self) -> Iterator[tuple[tuple[bytes, int], bytes]]:
        for puppet in self.honest:
            for message in puppet.said:
                if isinstance(message, Unmasking) and message.own:
                    made, opened = puppet.find(Dealing), set(puppet.heard(Survivors).groups)
                    groupings = [r for r, g in self.world.plan.groups_of[puppet.me] if (r, g) in opened]
                    seeds = [message.own[i : i + HASH_BYTES] for i in range(0, len(message.own), HASH_BYTES)]
                    for r, seed in zip(groupings, seeds, strict=True):
                        commitment = transcript.seed_commitment(self.world.plan.hash, puppet.me, r, seed)
                        assert commitment == made.commitments[r]
                        yield (made.root, r + 1), seed

    @cached_property
    def mask_keys(self) -> dict[bytes, AgreementKey]:
        """Private mask keys by public key: rebuilt ones, and the colluders' own."""
        keys = [
            AgreementKey.from_private(value)
            for (_, secret), value in self.rebuilt.items()
            if secret == transcript.KEY_SECRET
        ]
        keys += [p.mask_key for p in self.everybody if p.me in self.world.colluders]
        return {key.public: key for key in keys}

    @cached_property
    def learned(self) -> list[Learned]:
        """Every sum of inputs that can be computed, one per component (all others are sums of these)."""
        plan = self.world.plan
        if all(secret == transcript.KEY_SECRET for _, secret in self.rebuilt):
            return []  # without a seed every vector keeps its own mask, and that is in no other
        nodes: list[tuple[int, int, npt.NDArray[np.uint32]]] = []  # client, grouping, what is left of it
        ends: dict[tuple[Any, ...], list[int]] = {}  # unknown pairwise mask -> the vectors that hold it
        dead: set[int] = set()
        for puppet in self.honest:
            if not any(isinstance(message, MaskedInput) for message in puppet.said):
                continue
            sent, root = puppet.find(MaskedInput), puppet.find(Dealing).root
            adverts = {advert.sender: advert for advert in puppet.heard(KeyList).adverts}
            members = {dealer.id for dealer in puppet.heard(Bundle).dealers}
            for (r, g), vector in zip(plan.groups_of[puppet.me], sent.vectors, strict=True):
                place, left = len(nodes), np.array(vector, np.uint32)
                seed = self.rebuilt.get((root, r + 1))
                if seed is None:
                    dead.add(place)
                else:
                    add_masks(left, [reference.self_key(seed, plan.hash, puppet.me, r)], [-1])
                for peer in plan.group((r, g)):
                    if peer == puppet.me or peer not in members:
                        continue
                    mine, theirs = adverts[puppet.me].mask, adverts[peer].mask
                    agreed = self._agreed(mine, theirs)
                    if agreed is None:
                        symbol = (frozenset((mine, theirs)), *sorted((puppet.me, peer)), r)
                        ends.setdefault(symbol, []).append(place)
                    else:
                        key = reference.pairwise_key(agreed, plan.hash, puppet.me, peer, r)
                        add_masks(left, [key], [-pairwise_sign(puppet.me, peer)])
                nodes.append((puppet.me, r, left))
        return self._components(nodes, ends, dead)

    def _agreed(self, mine: bytes, theirs: bytes) -> bytes | None:
        for known, other in ((mine, theirs), (theirs, mine)):
            if known in self.mask_keys:
                pair = frozenset((mine, theirs))
                if pair not in self.world.secrets:
                    self.world.secrets[pair] = self.mask_keys[known].agree(other)
                return self.world.secrets[pair]
        return None

    def _components(
        self,
        nodes: Sequence[tuple[int, int, npt.NDArray[np.uint32]]],
        ends: Mapping[tuple[Any, ...], Sequence[int]],
        dead: Collection[int],
    ) -> list[Learned]:
        component = list(range(len(nodes)))

        def root(place: int) -> int:
            while component[place] != place:
                place = component[place]
            return place

        for places in ends.values():
            component[root(places[0])] = root(places[-1])
        hidden = {root(place) for place in dead}
        hidden |= {root(places[0]) for places in ends.values() if len(places) < 2}
        sums: dict[int, list[int]] = {}
        for place in range(len(nodes)):
            if root(place) not in hidden:
                sums.setdefault(root(place), []).append(place)
        learned = []
        for places in sums.values():
            total = np.sum([nodes[place][2] for place in places], axis=0, dtype=np.uint32)
            value = tuple(total.view(np.int32).tolist())
            learned.append(Learned(nodes[places[0]][1], frozenset(nodes[p][0] for p in places), value))
        return learned

    def both_kinds(self) -> set[bytes]:
        """Dealings of honest clients whose mask key and one of whose seeds are both rebuilt."""
        keys = {root for root, secret in self.rebuilt if secret == transcript.KEY_SECRET}
        return keys & {root for root, secret in self.rebuilt if secret != transcript.KEY_SECRET}

    def agreed_openings(self) -> set[tuple[frozenset[int], tuple[Any, ...]]]:
        """(U3, groups) of every opening that an honest client signed."""
        openings = set()
        for puppet in self.honest:
            if any(isinstance(message, Consistency) for message in puppet.said):
                asked = puppet.heard(Survivors)
                openings.add((frozenset(m.id for m in asked.members), asked.groups))
        return openings

    def more_than_agreed(self) -> list[Learned]:
        """What was learned beyond the sums over U3 of the groups that honest clients signed."""
        plan, allowed = self.world.plan, set()
        for survivors, rows in self.agreed_openings():
            for r, g in rows:
                members = frozenset(plan.group((r, g))).intersection(plan.summed(survivors), self.world.honest)
                allowed.add((r, members))
        return [found for found in self.learned if (found.grouping, found.clients) not in allowed]

    def is_right(self, found: Learned) -> bool:
        """Whether a learned sum is the sum of these inputs: the attacker's arithmetic, checked."""
        total = np.sum([self.world.inputs[v] for v in found.clients], axis=0)
        return found.value == tuple(int(x) for x in total)


def given_shares(plan: Plan, puppet: Puppet, message: Unmasking) -> Iterator[tuple[bytes, int, bytes]]:
    """(root of the dealing, secret, share) of everything one unmasking message gives away."""
    roots = {dealer.id: dealer.root for dealer in puppet.heard(Bundle).dealers}
    opened = set(puppet.heard(Survivors).groups)
    wanted = [(owner, r + 1) for owner in message.seed_owners for r, g in plan.groups_of[owner] if (r, g) in opened]
    for places, data in (
        (wanted, message.seeds),
        ([(owner, transcript.KEY_SECRET) for owner in message.key_owners], message.keys),
    ):
        assert len(data) == len(places) * ENTRY
        for i, (owner, secret) in enumerate(places):
            yield roots[owner], secret, data[i * ENTRY : i * ENTRY + shamir.SHARE_BYTES]


def roundtrip(message: Any) -> Any:
    """A message as its receiver sees it."""
    return decode(encode(message))

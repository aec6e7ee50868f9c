"""The server's last step: rebuild the secrets that stage 4 gave shares of, and take the masks off.

Bonawitz et al. 2017, Fig. 4, Round 4, server side. Every share is checked against its dealer's hash before
it counts, every rebuilt seed against its commitment and every rebuilt key against the advertised one. So a
row's sum is exact or not returned, and whoever is named is named by evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from secagg.crypto import shamir
from secagg.crypto.keys import HASH_BYTES, AgreementKey
from secagg.crypto.masks import pairwise_keys, pairwise_sign, self_key
from secagg.crypto.prg import MASK_KEY_BYTES, add_masks
from secagg.crypto.shamir import SHARE_BYTES
from secagg.errors import PeerError
from secagg.kernels.threads import spread, thread_count
from secagg.protocol import transcript
from secagg.protocol.messages import Dealing, KeyAdvert, Unmasking
from secagg.protocol.plan import Plan
from secagg.types import Bytes, ClientId, GroupId, Ring32

Secret = tuple[ClientId, int]  # its owner, and which: KEY_SECRET or r + 1
Pair = tuple[ClientId, ClientId, GroupId]  # one that is gone, one that is alive, and a row of both
ENTRY = SHARE_BYTES + HASH_BYTES
SOME = 256  # the fewest pairs that a thread takes at a time: enough to be worth hashing at once


@dataclass(frozen=True, eq=False)
class Opened:
    """What the survivors agreed to open."""

    plan: Plan
    adverts: Mapping[ClientId, KeyAdvert]
    dealings: Mapping[ClientId, Dealing]  # of U2
    holders: Mapping[ClientId, Mapping[ClientId, int]]  # of each dealer: who holds its shares, and where
    survivors: frozenset[ClientId]
    rows: tuple[GroupId, ...]

    @cached_property
    def groupings_of(self) -> Mapping[ClientId, tuple[int, ...]]:
        """The groupings in which a client's row is opened."""
        opened = frozenset(self.rows)
        return {
            client: tuple(r for r, g in rows if (r, g) in opened)
            for client, rows in self.plan.rows_of.items()
        }

    @cached_property
    def hashes(self) -> Bytes:
        """The hash of every share that was dealt, dealer by dealer; then one of none, which is zeros.

        A copy of what was published: 32 bytes for each dealer, holder and secret.
        """
        published = [dealing.hashes for dealing in self.dealings.values()]
        return np.frombuffer(b"".join([*published, bytes(HASH_BYTES)]), np.uint8).reshape(-1, HASH_BYTES)

    @cached_property
    def first_hash(self) -> Mapping[ClientId, int]:
        """Where each dealer's begin."""
        counts = [len(dealing.hashes) // HASH_BYTES for dealing in self.dealings.values()]
        return dict(zip(self.dealings, accumulate(counts, initial=0), strict=False))


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """The secrets that a message gives shares of, in its order. Honest messages all have the same."""

    owners: tuple[Sequence[ClientId], Sequence[ClientId]]  # of seeds, of keys
    seeds: int  # how many of the secrets
    secrets: Sequence[Secret]
    ids: npt.NDArray[np.uint32]  # the same, one row each: owner, room for a holder, secret
    holders: Sequence[Mapping[ClientId, int]]  # the different sets of holders, and where each holder stands
    held_by: npt.NDArray[np.intp]  # the number of the set that holds each secret
    first: npt.NDArray[np.int64]  # where the hash of each secret's first share is

    @classmethod
    def of(
        cls,
        opened: Opened,
        owners: tuple[Sequence[ClientId], Sequence[ClientId]],
        seeds: Sequence[Secret],
        keys: Sequence[Secret],
    ) -> Wanted:
        secrets = [*seeds, *keys]
        held_by = [opened.holders[owner] for owner, _ in secrets]
        different = {id(holders): holders for holders in held_by}  # most often one and the same
        number = {key: k for k, key in enumerate(different)}
        return cls(
            owners,
            len(seeds),
            secrets,
            np.array([(owner, 0, secret) for owner, secret in secrets], np.uint32).reshape(-1, 3),
            list(different.values()),
            np.array([number[id(holders)] for holders in held_by], np.intp),
            np.array([opened.first_hash[owner] + secret for owner, secret in secrets], np.int64),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """The shares of one message, and which of them are their dealer's."""

    wanted: Wanted
    shares: Bytes = field(repr=False)  # (secrets, 33)
    good: npt.NDArray[np.bool_]


@dataclass(slots=True, eq=False)
class Shares:
    """The shares received so far, by holder, each checked against its dealer's hash."""

    opened: Opened
    by_holder: dict[ClientId, Given] = field(default_factory=dict, repr=False)
    _last: Wanted | None = None

    def add(self, message: Unmasking) -> None:
        """Take what matches. PeerError, naming the sender, for a wrong share; the right ones still count."""
        for sender, wrong in self.add_all([message]).items():
            raise PeerError(wrong, culprit=sender)

    def add_all(self, messages: Iterable[Unmasking]) -> dict[ClientId, str]:
        """Take every share that matches; who sent others, and what they are, comes back."""
        wrong: dict[ClientId, str] = {}
        for message in messages:
            sender = message.sender
            try:
                wanted = self._wanted(message)
            except PeerError as bad:
                wrong[sender] = str(bad)
                continue
            entries = np.frombuffer(message.seeds + message.keys, np.uint8).reshape(-1, ENTRY)
            good = self._matches(sender, wanted, entries)
            self.by_holder[sender] = Given(wanted, entries[:, :SHARE_BYTES].copy(), good)
            if not good.all():
                owner, _ = wanted.secrets[int(np.argmin(good))]
                # audit: wrong-share-names-sender
                wrong[sender] = f"client {sender} gave a wrong share of client {owner}"
        return wrong

    def _matches(self, sender: ClientId, wanted: Wanted, entries: Bytes) -> npt.NDArray[np.bool_]:
        """Whether each share is a field element, and the one that its dealer published the hash of."""
        opened = self.opened
        per_holder = len(opened.plan.groupings) + 1
        places = np.array([holders.get(sender, -1) for holders in wanted.holders], np.int64)[wanted.held_by]
        # In the sparse mode not everybody holds a share; none is hashed to zeros, which come last.
        expected = opened.hashes[np.where(places < 0, -1, wanted.first + places * per_holder)]
        ids = wanted.ids.copy()
        ids[:, 1] = sender
        found = transcript.share_hashes(opened.plan.hash, ids, entries)
        # audit: share-matches-published-hash
        matches: npt.NDArray[np.bool_] = (found.view(np.uint64) == expected.view(np.uint64)).all(axis=1)
        matches &= shamir.canonical(entries[:, :SHARE_BYTES])  # audit: share-in-field
        return matches

    def _wanted(self, message: Unmasking) -> Wanted:
        """What a message must hold shares of, if it holds as many. The owners are checked once for all."""
        opened, sender, owners = self.opened, message.sender, (message.seed_owners, message.key_owners)
        wanted = self._last
        if wanted is None or wanted.owners != owners:
            alive = frozenset(message.seed_owners)
            # audit: server-one-kind-of-share
            if not alive <= opened.survivors or opened.survivors & set(message.key_owners):
                raise PeerError(f"client {sender} gave shares of the wrong kind", culprit=sender)
            if not (alive | set(message.key_owners)) <= set(opened.dealings):  # audit: shares-of-dealers-only
                raise PeerError(f"client {sender} gave shares of someone who dealt none", culprit=sender)
            seeds = [(owner, r + 1) for owner in message.seed_owners for r in opened.groupings_of[owner]]
            keys = [(owner, transcript.KEY_SECRET) for owner in message.key_owners]
            wanted = self._last = Wanted.of(opened, owners, seeds, keys)
        # audit: share-count
        if len(message.seeds) != wanted.seeds * ENTRY or len(message.keys) != len(message.key_owners) * ENTRY:
            raise PeerError(f"client {sender} gave the wrong number of shares", culprit=sender)
        return wanted

    def places(self, secrets: Sequence[Secret]) -> npt.NDArray[np.int32]:
        """Which row of each holder's shares (ascending) is the good one of each secret; -1 if none is."""
        number = {secret: k for k, secret in enumerate(secrets)}
        found = np.full((len(secrets), len(self.by_holder)), -1, np.int32)
        order: dict[Wanted, npt.NDArray[np.int64]] = {}
        for column, holder in enumerate(sorted(self.by_holder)):
            given = self.by_holder[holder]
            if given.wanted not in order:
                numbers = [number.get(secret, -1) for secret in given.wanted.secrets]
                order[given.wanted] = np.array(numbers, np.int64)
            rows = np.flatnonzero(given.good & (order[given.wanted] >= 0))
            found[order[given.wanted][rows], column] = rows
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Rebuilt:
    """The secrets that came back, those that did not and why, and the dealers whom their shares convict."""

    secrets: Mapping[Secret, bytes] = field(repr=False)  # audit: repr-hides-rebuilt-secrets
    missing: Mapping[Secret, str]
    cheating_dealers: Mapping[ClientId, str]


def rebuild(shares: Shares) -> Rebuilt:
    """Rebuild every secret the opened rows need, with one set of coefficients per set of holders."""
    opened = shares.opened
    plan, t = opened.plan, opened.plan.t
    needed, senders = list(_needed(opened)), sorted(shares.by_holder)
    places = shares.places(needed)
    missing: dict[Secret, str] = {}
    batches: dict[tuple[int, ...], list[int]] = {}
    for number, secret in enumerate(needed):
        holders = np.flatnonzero(places[number] >= 0)[:t]
        if len(holders) < t:  # audit: secret-needs-t-shares
            missing[secret] = f"{len(holders)} good shares of client {secret[0]}, the threshold is {t}"
        else:
            batches.setdefault(tuple(holders.tolist()), []).append(number)
    secrets: dict[Secret, bytes] = {}
    cheating: dict[ClientId, str] = {}
    for chosen, numbers in batches.items():
        coefficients = shamir.coefficients([plan.index[senders[h]] for h in chosen])
        table = np.empty((len(numbers), t, SHARE_BYTES), np.uint8)
        for k, h in enumerate(chosen):
            table[:, k] = shares.by_holder[senders[h]].shares[places[numbers, h]]
        values = shamir.combine_each(coefficients, table)
        wanted = [needed[number] for number in numbers]
        for secret, value in zip(wanted, values, strict=True):
            if value is not None and _is_right(opened, secret, value):  # audit: rebuilt-secret-matches
                secrets[secret] = value
            else:
                what = (
                    "mask key" if secret[1] == transcript.KEY_SECRET else f"seed of grouping {secret[1] - 1}"
                )
                cheating[secret[0]] = f"its own shares do not rebuild its {what}"
                missing[secret] = f"client {secret[0]}: {cheating[secret[0]]}"
    return Rebuilt(secrets, missing, cheating)


def _needed(opened: Opened) -> Iterable[Secret]:
    for owner in sorted(opened.dealings):
        groupings = opened.groupings_of[owner]
        if owner in opened.survivors:
            yield from ((owner, r + 1) for r in groupings)
        elif groupings:
            yield owner, transcript.KEY_SECRET


def _is_right(opened: Opened, secret: Secret, value: bytes) -> bool:
    owner, which = secret
    if which == transcript.KEY_SECRET:
        # audit: rebuilt-key-matches-advert
        return AgreementKey.from_private(value).public == opened.adverts[owner].mask
    commitment = opened.dealings[owner].commitments[which - 1]
    return transcript.seed_commitment(opened.plan.hash, owner, which - 1, value) == commitment


def remove_masks(
    opened: Opened, rebuilt: Rebuilt, totals: Mapping[GroupId, Ring32], *, threads: int | None = None
) -> dict[GroupId, str]:
    """Take the masks off each opened row, in place. Rows that stay masked come back with the reason.

    The keys of dropped clients' pairs are derived first; then each row is gone over once for all its keys.
    Both on all cores, or on so many threads.
    """
    lost: dict[GroupId, str] = {}
    for row in opened.rows:
        gaps = [rebuilt.missing[secret] for secret in _secrets_of(opened, row) if secret in rebuilt.missing]
        if gaps:  # audit: missing-secret-loses-sum
            lost[row] = gaps[0]
    pairs = sorted(pair for row in opened.rows if row not in lost for pair in _pairs_of(opened, row))
    pair_keys = _pair_keys(opened, rebuilt, pairs, thread_count(threads))
    of_row: dict[GroupId, list[int]] = {row: [] for row in opened.rows if row not in lost}
    for number, (_, _, row) in enumerate(pairs):
        of_row[row].append(number)
    for row, numbers in of_row.items():
        own = _self_keys(opened, rebuilt, row)
        signs = [-1] * len(own) + [-pairwise_sign(pairs[number][1], pairs[number][0]) for number in numbers]
        keys = np.frombuffer(b"".join(own), np.uint8).reshape(-1, MASK_KEY_BYTES)
        add_masks(totals[row], np.concatenate([keys, pair_keys[numbers]]), signs, threads=threads)
    return lost


def _secrets_of(opened: Opened, row: GroupId) -> Iterable[Secret]:
    for client in opened.plan.group(row):
        if client in opened.survivors:
            yield client, row[0] + 1
        elif client in opened.dealings:
            yield client, transcript.KEY_SECRET


def _self_keys(opened: Opened, rebuilt: Rebuilt, row: GroupId) -> list[bytes]:
    """The keys of the survivors' own masks."""
    plan, (r, _) = opened.plan, row
    alive = (client for client in plan.group(row) if client in opened.survivors)
    return [self_key(rebuilt.secrets[client, r + 1], plan.hash, client, r) for client in alive]


def _pairs_of(opened: Opened, row: GroupId) -> Iterable[Pair]:
    """Whose pairwise mask is still in a row's sum, because only one of the two sent its vector."""
    plan = opened.plan
    alive = [client for client in plan.group(row) if client in opened.survivors]
    for gone in plan.group(row):
        if gone in opened.dealings and gone not in opened.survivors:
            partners = frozenset(plan.peers(gone))
            yield from ((gone, client, row) for client in alive if client in partners)


def _pair_keys(opened: Opened, rebuilt: Rebuilt, pairs: Sequence[Pair], threads: int) -> Bytes:
    """One key per pair. They are sorted, so that two clients agree once for all their groupings."""
    plan, adverts = opened.plan, opened.adverts
    private = {
        gone: AgreementKey.from_private(rebuilt.secrets[gone, transcript.KEY_SECRET])
        for gone in {gone for gone, _, _ in pairs}
    }

    keys = np.empty((len(pairs), MASK_KEY_BYTES), np.uint8)

    def derive(start: int, stop: int) -> None:
        some, agreed, before, secret = pairs[start:stop], [], None, b""
        for gone, alive, _ in some:
            if (gone, alive) != before:
                secret, before = private[gone].agree(adverts[alive].mask), (gone, alive)
            agreed.append(secret)
        secrets = np.frombuffer(b"".join(agreed), np.uint8).reshape(len(some), -1)
        numbers = np.array([(gone, alive, r) for gone, alive, (r, _) in some], np.uint32)
        keys[start:stop] = pairwise_keys(secrets, plan.hash, numbers)

    spread(derive, 0, len(pairs), step=SOME, threads=threads)
    return keys

"""The server's last step: rebuild the secrets that stage 4 gave shares of, and take the masks off.

Bonawitz et al. 2017, Fig. 4, Round 4, server side. Every share is checked against its dealer's hash before
it counts, every rebuilt seed against its commitment and every rebuilt key against the advertised one. So a
row's sum is exact or not returned, and whoever is named is named by evidence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from secagg import forks, shamir, transcript
from secagg.client_state import is_canonical
from secagg.codec import Ring32
from secagg.errors import PeerError
from secagg.groupings import ClientId, Row
from secagg.keys import HASH_BYTES, AgreementKey
from secagg.masks import pairwise_key, pairwise_sign, self_key
from secagg.messages import Dealing, KeyAdvert, Unmasking
from secagg.plan import Plan
from secagg.prg import KEY_BYTES, add_masks
from secagg.shamir import SHARE_BYTES

Secret = tuple[ClientId, int]  # its owner, and which: KEY_SECRET or r + 1
Pair = tuple[ClientId, ClientId, Row]  # one that is gone, one that is alive, and a row of both
ENTRY = SHARE_BYTES + HASH_BYTES


@dataclass(frozen=True, eq=False)
class Opened:
    """What the survivors agreed to open."""

    plan: Plan
    adverts: Mapping[ClientId, KeyAdvert]
    dealings: Mapping[ClientId, Dealing]  # of U2
    holders: Mapping[ClientId, Mapping[ClientId, int]]  # of each dealer: who holds its shares, and where
    survivors: frozenset[ClientId]
    rows: tuple[Row, ...]

    @cached_property
    def groupings_of(self) -> Mapping[ClientId, tuple[int, ...]]:
        """The groupings in which a client's row is opened."""
        opened = frozenset(self.rows)
        return {
            client: tuple(r for r, g in rows if (r, g) in opened)
            for client, rows in self.plan.rows_of.items()
        }


@dataclass(slots=True, eq=False)
class Shares:
    """The shares received so far that match their dealer's hash, by secret and holder."""

    opened: Opened
    by_secret: defaultdict[Secret, dict[ClientId, bytes]] = field(
        default_factory=lambda: defaultdict(dict), repr=False
    )

    def add(self, message: Unmasking) -> None:
        """Take what matches. PeerError, naming the sender, for a wrong share; the right ones still count."""
        for sender, wrong in self.add_all([message]).items():
            raise PeerError(wrong, culprit=sender)

    def add_all(self, messages: Sequence[Unmasking], *, processes: int = 1) -> dict[ClientId, str]:
        """Take every share that matches; who sent others, and what they are, comes back.

        Hashing short things holds Python's global lock, so the messages are checked in so many processes.
        """
        wanted: dict[ClientId, Sequence[Secret]] = {}
        wrong: dict[ClientId, str] = {}
        for message in messages:
            try:
                wanted[message.sender] = self._wanted(message)
            except PeerError as bad:
                wrong[message.sender] = str(bad)
        sound = [message for message in messages if message.sender in wanted]
        most = max((1, *map(len, wanted.values())))

        def check(start: int, stop: int) -> bytes:
            matches = (self._matches(message, wanted[message.sender]) for message in sound[start:stop])
            return b"".join(flags.ljust(most, b"\0") for flags in matches)

        checked = forks.spread(check, len(sound), width=most, processes=processes, least=-(-8192 // most))
        for message, flags in zip(sound, checked, strict=True):
            sender, entries = message.sender, message.seeds + message.keys
            for place, (secret, good) in enumerate(zip(wanted[sender], flags.tobytes(), strict=False)):
                if good:
                    at = place * ENTRY
                    self.by_secret[secret][sender] = entries[at : at + SHARE_BYTES]
                else:
                    wrong.setdefault(sender, f"client {sender} gave a wrong share of client {secret[0]}")
        return wrong

    def _matches(self, message: Unmasking, wanted: Sequence[Secret]) -> bytes:
        """For each share, one byte: whether it is the one that its dealer published the hash of."""
        opened, sender, entries = self.opened, message.sender, message.seeds + message.keys
        plan_hash, per_holder = opened.plan.hash, (len(opened.plan.groupings) + 1) * HASH_BYTES
        flags = bytearray(len(wanted))
        for place, (owner, secret) in enumerate(wanted):
            entry = entries[place * ENTRY : (place + 1) * ENTRY]
            share, nonce = entry[:SHARE_BYTES], entry[SHARE_BYTES:]
            where = opened.holders[owner].get(sender)
            if where is not None and is_canonical(share):
                start = where * per_holder + secret * HASH_BYTES
                found = transcript.share_hash(plan_hash, owner, sender, secret, share, nonce)
                flags[place] = opened.dealings[owner].hashes[start : start + HASH_BYTES] == found
        return bytes(flags)

    def _wanted(self, message: Unmasking) -> Sequence[Secret]:
        """The secrets whose shares a message must hold, in its order."""
        opened, sender = self.opened, message.sender
        alive = frozenset(message.seed_owners)
        if not alive <= opened.survivors or opened.survivors & set(message.key_owners):
            raise PeerError(f"client {sender} gave shares of the wrong kind", culprit=sender)
        if not (alive | set(message.key_owners)) <= set(opened.dealings):
            raise PeerError(f"client {sender} gave shares of someone who dealt none", culprit=sender)
        wanted = [(owner, r + 1) for owner in message.seed_owners for r in opened.groupings_of[owner]]
        if len(message.seeds) != len(wanted) * ENTRY or len(message.keys) != len(message.key_owners) * ENTRY:
            raise PeerError(f"client {sender} gave the wrong number of shares", culprit=sender)
        return wanted + [(owner, transcript.KEY_SECRET) for owner in message.key_owners]


@dataclass(frozen=True, slots=True, eq=False)
class Rebuilt:
    """The secrets that came back, those that did not and why, and the dealers whom their shares convict."""

    secrets: Mapping[Secret, bytes] = field(repr=False)
    missing: Mapping[Secret, str]
    cheating_dealers: Mapping[ClientId, str]


def rebuild(shares: Shares) -> Rebuilt:
    """Rebuild every secret the opened rows need, with one set of coefficients per set of holders."""
    opened = shares.opened
    plan, t = opened.plan, opened.plan.t
    missing: dict[Secret, str] = {}
    batches: dict[tuple[ClientId, ...], list[Secret]] = {}
    for secret in _needed(opened):
        holders = tuple(sorted(shares.by_secret.get(secret, ()))[:t])
        if len(holders) < t:
            missing[secret] = f"{len(holders)} good shares of client {secret[0]}, the threshold is {t}"
        else:
            batches.setdefault(holders, []).append(secret)
    secrets: dict[Secret, bytes] = {}
    cheating: dict[ClientId, str] = {}
    for holders, wanted in batches.items():
        coefficients = shamir.coefficients([plan.index[v] for v in holders])
        rows = [b"".join(shares.by_secret[secret][v] for v in holders) for secret in wanted]
        table = np.frombuffer(b"".join(rows), dtype=np.uint8)
        shape = (len(wanted), len(holders), SHARE_BYTES)
        values = shamir.combine(coefficients, table.reshape(shape))
        for secret, value in zip(wanted, values, strict=True):
            if value is not None and _is_right(opened, secret, value):
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
        return AgreementKey.from_private(value).public == opened.adverts[owner].mask
    commitment = opened.dealings[owner].commitments[which - 1]
    return transcript.seed_commitment(opened.plan.hash, owner, which - 1, value) == commitment


def remove_masks(
    opened: Opened, rebuilt: Rebuilt, totals: Mapping[Row, Ring32], *, processes: int = 1
) -> dict[Row, str]:
    """Take the masks off each opened row, in place. Rows that stay masked come back with the reason.

    The keys of dropped clients' pairs are derived first, in so many processes, because X25519 holds Python's
    global lock; then each row is gone over once for all its keys, on all cores.
    """
    lost: dict[Row, str] = {}
    for row in opened.rows:
        gaps = [rebuilt.missing[secret] for secret in _secrets_of(opened, row) if secret in rebuilt.missing]
        if gaps:
            lost[row] = gaps[0]
    pairs = sorted(pair for row in opened.rows if row not in lost for pair in _pairs_of(opened, row))
    pair_keys = _pair_keys(opened, rebuilt, pairs, processes)
    left: dict[Row, tuple[list[bytes], list[int]]] = {}
    for row in opened.rows:
        if row not in lost:
            keys = _self_keys(opened, rebuilt, row)
            left[row] = keys, [-1] * len(keys)
    for (gone, alive, row), key in zip(pairs, pair_keys, strict=True):
        keys, signs = left[row]
        keys.append(key.tobytes())
        signs.append(-pairwise_sign(alive, gone))
    for row, (keys, signs) in left.items():
        add_masks(totals[row], keys, signs)
    return lost


def _secrets_of(opened: Opened, row: Row) -> Iterable[Secret]:
    for client in opened.plan.group(row):
        if client in opened.survivors:
            yield client, row[0] + 1
        elif client in opened.dealings:
            yield client, transcript.KEY_SECRET


def _self_keys(opened: Opened, rebuilt: Rebuilt, row: Row) -> list[bytes]:
    """The keys of the survivors' own masks."""
    plan, (r, _) = opened.plan, row
    alive = (client for client in plan.group(row) if client in opened.survivors)
    return [self_key(rebuilt.secrets[client, r + 1], plan.hash, client, r) for client in alive]


def _pairs_of(opened: Opened, row: Row) -> Iterable[Pair]:
    """Whose pairwise mask is still in a row's sum, because only one of the two sent its vector."""
    plan = opened.plan
    alive = [client for client in plan.group(row) if client in opened.survivors]
    for gone in plan.group(row):
        if gone in opened.dealings and gone not in opened.survivors:
            partners = frozenset(plan.peers(gone))
            yield from ((gone, client, row) for client in alive if client in partners)


def _pair_keys(
    opened: Opened, rebuilt: Rebuilt, pairs: Sequence[Pair], processes: int
) -> npt.NDArray[np.uint8]:
    """One key per pair. They are sorted, so that two clients agree once for all their groupings."""
    plan, adverts = opened.plan, opened.adverts
    private = {
        gone: AgreementKey.from_private(rebuilt.secrets[gone, transcript.KEY_SECRET])
        for gone in {gone for gone, _, _ in pairs}
    }

    def derive(start: int, stop: int) -> bytes:
        keys, before, agreed = [], None, b""
        for gone, alive, (r, _) in pairs[start:stop]:
            if (gone, alive) != before:
                agreed, before = private[gone].agree(adverts[alive].mask), (gone, alive)
            keys.append(pairwise_key(agreed, plan.hash, alive, gone, r))
        return b"".join(keys)

    return forks.spread(derive, len(pairs), width=KEY_BYTES, processes=processes, least=256)

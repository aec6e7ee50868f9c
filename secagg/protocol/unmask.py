"""The server's last step: take or rebuild the secrets of stage 4, and remove the masks.

Bonawitz et al. 2017, Fig. 4, Round 4, server side. A survivor gives its own seeds; shares serve for the seeds of those
who vanished, and for the mask keys of those who are not summed. Every share is checked against its dealer's hash before
it counts, every seed against its commitment and every rebuilt key against the advertised one. So the sum of a group is
exact or not returned. Evidence convicts a blamed client, unless it is blamed for disputes, the trees of its dealers
have the hashes of all its wrong shares at other leaves, or the record already has as many proofs as it may have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from secagg.agreement.plan import Plan
from secagg.crypto import shamir
from secagg.crypto.keys import HASH_BYTES, AgreementKey
from secagg.crypto.prg import MASK_KEY_BYTES, add_masks, pairwise_keys, pairwise_sign, self_key
from secagg.crypto.shamir import SECRET_BYTES, SHARE_BYTES
from secagg.errors import PeerError
from secagg.kernels.threads import spread, thread_count
from secagg.protocol import transcript
from secagg.protocol.messages import Dealing, KeyAdvert, Unmasking
from secagg.types import Bytes, ClientId, GroupId, Ring32

Secret = tuple[ClientId, int]  # its owner and its number: KEY_SECRET or r + 1
Pair = tuple[ClientId, ClientId, GroupId]  # a dropout, a survivor, and a group of both
ENTRY = SHARE_BYTES + HASH_BYTES
SUBSETS_PER_SECRET = 16  # how many sets of shares are tried for a secret whose dealer has dealt a bad one,
SUBSETS = 256  # and for all such secrets together
PAIRS_PER_TASK = 256  # the fewest pairs that one thread takes: enough to hash them in one call


@dataclass(frozen=True, eq=False)
class AgreedOpening:
    """What the survivors agreed to open, and the messages to do it with."""

    plan: Plan
    adverts: Mapping[ClientId, KeyAdvert]
    dealings: Mapping[ClientId, Dealing]  # of U2
    holders: Mapping[ClientId, Mapping[ClientId, int]]  # of each dealer: its share holders, and their places
    survivors: frozenset[ClientId]
    groups: tuple[GroupId, ...]

    @cached_property
    def groupings_of(self) -> Mapping[ClientId, tuple[int, ...]]:
        """The groupings in which a client's group is opened."""
        opened = frozenset(self.groups)
        return {
            client: tuple(r for r, g in groups if (r, g) in opened) for client, groups in self.plan.groups_of.items()
        }

    @cached_property
    def hashes(self) -> Bytes:
        """The published hash of every share, dealer by dealer, and at the end zeros, which no share has."""
        published = [dealing.hashes for dealing in self.dealings.values()]
        return np.frombuffer(b"".join([*published, bytes(HASH_BYTES)]), np.uint8).reshape(-1, HASH_BYTES)

    @cached_property
    def first_hash(self) -> Mapping[ClientId, int]:
        """Where the hashes of each dealer begin."""
        counts = [len(dealing.hashes) // HASH_BYTES for dealing in self.dealings.values()]
        return dict(zip(self.dealings, accumulate(counts, initial=0), strict=False))


@dataclass(frozen=True, slots=True, eq=False)
class ExpectedShares:
    """The secrets that a message must give shares of, in its order; the same for all honest messages."""

    owners: tuple[Sequence[ClientId], Sequence[ClientId]]  # of seeds, of keys
    seeds: int  # how many of the secrets are seeds
    secrets: Sequence[Secret]
    ids: npt.NDArray[np.uint32]  # the same as rows: owner, room for a holder, secret
    holders: Sequence[Mapping[ClientId, int]]  # the different sets of holders, with their places
    held_by: npt.NDArray[np.intp]  # which of these sets holds each secret
    first: npt.NDArray[np.int64]  # the place of the hash of each secret's first share

    @classmethod
    def of(
        cls,
        opening: AgreedOpening,
        owners: tuple[Sequence[ClientId], Sequence[ClientId]],
        seeds: Sequence[Secret],
        keys: Sequence[Secret],
    ) -> ExpectedShares:
        secrets = [*seeds, *keys]
        held_by = [opening.holders[owner] for owner, _ in secrets]
        different = {id(holders): holders for holders in held_by}  # usually one
        number = {key: k for k, key in enumerate(different)}
        return cls(
            owners,
            len(seeds),
            secrets,
            np.array([(owner, 0, secret) for owner, secret in secrets], np.uint32).reshape(-1, 3),
            list(different.values()),
            np.array([number[id(holders)] for holders in held_by], np.intp),
            np.array([opening.first_hash[owner] + secret for owner, secret in secrets], np.int64),
        )


@dataclass(frozen=True, slots=True, eq=False)
class ReceivedShares:
    """The shares of one message, and which of them match their dealer's hash."""

    wanted: ExpectedShares
    shares: Bytes = field(repr=False)  # (secrets, 33)
    good: npt.NDArray[np.bool_]


@dataclass(slots=True, eq=False)
class Shares:
    """The shares received so far, by holder, each checked against its dealer's hash."""

    opening: AgreedOpening
    by_holder: dict[ClientId, ReceivedShares] = field(default_factory=dict, repr=False)
    own: dict[Secret, bytes] = field(default_factory=dict, repr=False)  # seeds that their owners gave
    _last: ExpectedShares | None = None

    def add(self, message: Unmasking) -> None:
        """Take the shares that match. PeerError, naming the sender, if one does not; the others count."""
        for sender, wrong in self.add_all([message]).items():
            raise PeerError(wrong, culprit=sender)

    def add_all(self, messages: Iterable[Unmasking]) -> dict[ClientId, str]:
        """Take every share that matches. Returns the senders of other shares, and what is wrong."""
        wrong: dict[ClientId, str] = {}
        for message in messages:
            sender = message.sender
            try:
                self._take_own(message)
                wanted = self._expected(message)
            except PeerError as bad:
                wrong[sender] = str(bad)
                continue
            entries = np.frombuffer(message.seeds + message.keys, np.uint8).reshape(-1, ENTRY)
            good = self._matches(sender, wanted, entries)
            self.by_holder[sender] = ReceivedShares(wanted, entries[:, :SHARE_BYTES].copy(), good)
            if not good.all():
                owner, _ = wanted.secrets[int(np.argmin(good))]
                # audit: wrong-share-names-sender
                wrong[sender] = f"client {sender} gave a wrong share of client {owner}"
        return wrong

    def _take_own(self, message: Unmasking) -> None:
        """Take the sender's own seeds of opened groups, each checked against its commitment."""
        opening, sender = self.opening, message.sender
        groupings = opening.groupings_of[sender] if sender in opening.survivors else ()
        if len(message.own) != len(groupings) * SECRET_BYTES:  # audit: own-seed-count
            raise PeerError(f"client {sender} gave the wrong number of its own seeds", culprit=sender)
        for place, r in enumerate(groupings):
            seed = message.own[place * SECRET_BYTES : (place + 1) * SECRET_BYTES]
            if not _is_right(opening, (sender, r + 1), seed):  # audit: own-seed-matches
                raise PeerError(f"client {sender} gave a wrong seed of its own", culprit=sender)
            self.own[sender, r + 1] = seed

    def _matches(self, sender: ClientId, wanted: ExpectedShares, entries: Bytes) -> npt.NDArray[np.bool_]:
        """Whether each share is a field element and has the hash that its dealer published."""
        opening = self.opening
        per_holder = len(opening.plan.groupings) + 1
        places = np.array([holders.get(sender, -1) for holders in wanted.holders], np.int64)[wanted.held_by]
        # In sparse mode some clients hold no share: they get the zeros at the end, which match nothing.
        expected = opening.hashes[np.where(places < 0, -1, wanted.first + places * per_holder)]
        ids = wanted.ids.copy()
        ids[:, 1] = sender
        found = transcript.share_hashes(opening.plan.hash, ids, entries)
        # audit: share-matches-published-hash
        matches: npt.NDArray[np.bool_] = (found.view(np.uint64) == expected.view(np.uint64)).all(axis=1)
        matches &= shamir.canonical(entries[:, :SHARE_BYTES])  # audit: share-in-field
        return matches

    def _expected(self, message: Unmasking) -> ExpectedShares:
        """What a message must hold shares of. Messages with the same owners are checked once."""
        opening, sender, owners = self.opening, message.sender, (message.seed_owners, message.key_owners)
        wanted = self._last
        if wanted is None or wanted.owners != owners:
            alive = frozenset(message.seed_owners)
            # audit: server-one-kind-of-share
            if not alive <= opening.survivors or opening.survivors & set(message.key_owners):
                raise PeerError(f"client {sender} gave shares of the wrong kind", culprit=sender)
            # audit: shares-of-dealers-only
            if not (alive | set(message.key_owners)) <= set(opening.dealings):
                raise PeerError(f"client {sender} gave shares of a client that dealt none", culprit=sender)
            seeds = [(owner, r + 1) for owner in message.seed_owners for r in opening.groupings_of[owner]]
            keys = [(owner, transcript.KEY_SECRET) for owner in message.key_owners]
            wanted = self._last = ExpectedShares.of(opening, owners, seeds, keys)
        # audit: share-count
        if len(message.seeds) != wanted.seeds * ENTRY or len(message.keys) != len(message.key_owners) * ENTRY:
            raise PeerError(f"client {sender} gave the wrong number of shares", culprit=sender)
        return wanted

    def places(self, secrets: Sequence[Secret]) -> npt.NDArray[np.int32]:
        """For each secret and holder (ascending), the row of the good share among the holder's, or -1."""
        number = {secret: k for k, secret in enumerate(secrets)}
        found = np.full((len(secrets), len(self.by_holder)), -1, np.int32)
        order: dict[ExpectedShares, npt.NDArray[np.int64]] = {}
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
    """The rebuilt secrets, the missing ones and why, and the dealers that their own shares convict.

    `unfit` says of each such dealer which secret (0 or r + 1) the shares of which t holders do not give.
    """

    secrets: Mapping[Secret, bytes] = field(repr=False)  # audit: repr-hides-rebuilt-secrets
    missing: Mapping[Secret, str]
    cheating_dealers: Mapping[ClientId, str]
    unfit: Mapping[ClientId, tuple[int, tuple[ClientId, ...]]]


def rebuild(shares: Shares) -> Rebuilt:
    """Rebuild every secret that the opened groups need and that its owner did not give.

    There is one set of coefficients per set of holders. If shares that match their hashes miss a secret, their dealer
    is convicted, and other sets of holders are tried, up to a limit.
    """
    opening, t = shares.opening, shares.opening.plan.t
    needed = [secret for secret in _needed(opening) if secret not in shares.own]
    places = shares.places(needed)
    missing: dict[Secret, str] = {}
    batches: dict[tuple[int, ...], list[int]] = {}
    for number, secret in enumerate(needed):
        holders = np.flatnonzero(places[number] >= 0)[:t]
        if len(holders) < t:  # audit: secret-needs-t-shares
            missing[secret] = f"{len(holders)} good shares of client {secret[0]}, the threshold is {t}"
        else:
            batches.setdefault(tuple(holders.tolist()), []).append(number)
    secrets = dict(shares.own)
    wrong: list[int] = []
    for chosen, numbers in batches.items():
        values = _combine(shares, places[numbers], chosen)
        for number, value in zip(numbers, values, strict=True):
            if value is not None and _is_right(opening, needed[number], value):  # audit: rebuilt-secret-matches
                secrets[needed[number]] = value
            else:
                wrong.append(number)
    cheating: dict[ClientId, str] = {}
    unfit: dict[ClientId, tuple[int, tuple[ClientId, ...]]] = {}
    senders = sorted(shares.by_holder)
    tries = SUBSETS
    for number in sorted(wrong):
        owner, which = secret = needed[number]
        what = "mask key" if which == transcript.KEY_SECRET else f"seed of grouping {which - 1}"
        cheating[owner] = f"its own shares do not rebuild its {what}"  # audit: bad-shares-convict
        holders = np.flatnonzero(places[number] >= 0)[:t].tolist()
        unfit.setdefault(owner, (which, tuple(senders[h] for h in holders)))
        found, tried = _try_others(shares, secret, places[number], min(tries, SUBSETS_PER_SECRET))
        tries -= tried
        if found is None:
            missing[secret] = f"client {owner}: {cheating[owner]}"
        else:
            secrets[secret] = found
    return Rebuilt(secrets, missing, cheating, unfit)


def _combine(shares: Shares, places: npt.NDArray[np.int32], chosen: Sequence[int]) -> list[bytes | None]:
    """The values that the chosen holders' shares give, one for each row of `places`."""
    senders, index = sorted(shares.by_holder), shares.opening.plan.index
    coefficients = shamir.coefficients([index[senders[h]] for h in chosen])
    table = np.empty((len(places), len(chosen), SHARE_BYTES), np.uint8)
    for k, h in enumerate(chosen):
        table[:, k] = shares.by_holder[senders[h]].shares[places[:, h]]
    return shamir.combine_each(coefficients, table)


def _try_others(shares: Shares, secret: Secret, places: npt.NDArray[np.int32], most: int) -> tuple[bytes | None, int]:
    """The secret from another set of holders, if one of the next `most` sets gives it, and the sets tried."""
    holders = np.flatnonzero(places >= 0).tolist()
    t, tried = shares.opening.plan.t, 0
    for first in range(1, len(holders) if len(holders) > t else 1):
        if tried == most:  # audit: bounded-subsets
            break
        tried += 1
        chosen = sorted((holders[first:] + holders[:first])[:t])
        (value,) = _combine(shares, places[None], chosen)
        if value is not None and _is_right(shares.opening, secret, value):  # audit: other-subset-matches
            return value, tried
    return None, tried


def _needed(opening: AgreedOpening) -> Iterable[Secret]:
    for owner in sorted(opening.dealings):
        groupings = opening.groupings_of[owner]
        if owner in opening.survivors:
            yield from ((owner, r + 1) for r in groupings)
        elif groupings:
            yield owner, transcript.KEY_SECRET


def _is_right(opening: AgreedOpening, secret: Secret, value: bytes) -> bool:
    owner, which = secret
    if which == transcript.KEY_SECRET:
        # audit: rebuilt-key-matches-advert
        return AgreementKey.from_private(value).public == opening.adverts[owner].mask
    commitment = opening.dealings[owner].commitments[which - 1]
    return transcript.seed_commitment(opening.plan.hash, owner, which - 1, value) == commitment


def remove_masks(
    opening: AgreedOpening, rebuilt: Rebuilt, totals: Mapping[GroupId, Ring32], *, threads: int | None = None
) -> dict[GroupId, str]:
    """Remove the masks from each opened sum, in place. Returns the groups that stay masked, and why.

    The keys of the dropouts' pairs are derived first; then each sum is passed once for all its keys. Both
    steps use all cores, or this many threads.
    """
    lost: dict[GroupId, str] = {}
    for group in opening.groups:
        gaps = [rebuilt.missing[secret] for secret in _secrets_of(opening, group) if secret in rebuilt.missing]
        if gaps:  # audit: missing-secret-loses-sum
            lost[group] = gaps[0]
    pairs = sorted(pair for group in opening.groups if group not in lost for pair in _pairs_of(opening, group))
    pair_keys = _pair_keys(opening, rebuilt, pairs, thread_count(threads))
    of_group: dict[GroupId, list[int]] = {group: [] for group in opening.groups if group not in lost}
    for number, (_, _, group) in enumerate(pairs):
        of_group[group].append(number)
    for group, numbers in of_group.items():
        own = _self_keys(opening, rebuilt, group)
        signs = [-1] * len(own) + [-pairwise_sign(pairs[number][1], pairs[number][0]) for number in numbers]
        keys = np.frombuffer(b"".join(own), np.uint8).reshape(-1, MASK_KEY_BYTES)
        add_masks(totals[group], np.concatenate([keys, pair_keys[numbers]]), signs, threads=threads)
    return lost


def _secrets_of(opening: AgreedOpening, group: GroupId) -> Iterable[Secret]:
    for client in opening.plan.group(group):
        if client in opening.survivors:
            yield client, group[0] + 1
        elif client in opening.dealings:
            yield client, transcript.KEY_SECRET


def _self_keys(opening: AgreedOpening, rebuilt: Rebuilt, group: GroupId) -> list[bytes]:
    """The keys of the survivors' self-masks."""
    plan, (r, _) = opening.plan, group
    survivors = (client for client in plan.group(group) if client in opening.survivors)
    return [self_key(rebuilt.secrets[client, r + 1], plan.hash, client, r) for client in survivors]


def _pairs_of(opening: AgreedOpening, group: GroupId) -> Iterable[Pair]:
    """The pairs whose mask is still in a group's sum, because only one of the two sent its vector."""
    plan = opening.plan
    survivors = [client for client in plan.group(group) if client in opening.survivors]
    for dropout in plan.group(group):
        if dropout in opening.dealings and dropout not in opening.survivors:
            partners = frozenset(plan.peers(dropout))
            yield from ((dropout, client, group) for client in survivors if client in partners)


def _pair_keys(opening: AgreedOpening, rebuilt: Rebuilt, pairs: Sequence[Pair], threads: int) -> Bytes:
    """One key per pair. Pairs are sorted, so that two clients agree once for all their groupings."""
    plan, adverts = opening.plan, opening.adverts
    private = {
        dropout: AgreementKey.from_private(rebuilt.secrets[dropout, transcript.KEY_SECRET])
        for dropout in {dropout for dropout, _, _ in pairs}
    }

    keys = np.empty((len(pairs), MASK_KEY_BYTES), np.uint8)

    def derive(start: int, stop: int) -> None:
        part, agreed, before, secret = pairs[start:stop], [], None, b""
        for dropout, survivor, _ in part:
            if (dropout, survivor) != before:
                secret, before = private[dropout].agree(adverts[survivor].mask), (dropout, survivor)
            agreed.append(secret)
        secrets = np.frombuffer(b"".join(agreed), np.uint8).reshape(len(part), -1)
        numbers = np.array([(dropout, survivor, r) for dropout, survivor, (r, _) in part], np.uint32)
        keys[start:stop] = pairwise_keys(secrets, plan.hash, numbers)

    spread(derive, 0, len(pairs), step=PAIRS_PER_TASK, threads=threads)
    return keys

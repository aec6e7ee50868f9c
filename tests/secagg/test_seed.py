"""The training seed: nobody can choose it, and a client that prevents it is named."""

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import labels
from secagg.errors import PeerError, UsageError
from secagg.exposure.seed import Beacon, NotCommitted, NotRevealed, SeedCeremony, WronglyRevealed

ROSTER = (2, 3, 5, 7)
CEREMONY = SeedCeremony(training_id=b"t" * 32, roster=ROSTER)
SECRETS = {client: bytes([client]) * 32 for client in ROSTER}
COMMITMENTS = {client: CEREMONY.commitment(client, SECRETS[client]) for client in ROSTER}


def test_everyone_computes_the_same_seed():
    revealed = {client: CEREMONY.reveal(client, SECRETS[client], COMMITMENTS) for client in ROSTER}
    seed = CEREMONY.seed(COMMITMENTS, revealed)
    assert seed == CEREMONY.seed(dict(reversed(COMMITMENTS.items())), dict(reversed(revealed.items())))
    assert len(seed) == 32


@settings(deadline=None)
@given(st.sampled_from(ROSTER), st.binary(min_size=32, max_size=32))
def test_any_one_contribution_changes_the_seed(client, other):
    secrets = SECRETS | {client: other}
    commitments = {c: CEREMONY.commitment(c, secrets[c]) for c in ROSTER}
    same = other == SECRETS[client]
    assert (CEREMONY.seed(commitments, secrets) == CEREMONY.seed(COMMITMENTS, SECRETS)) == same


@settings(deadline=None)
@given(st.sampled_from(ROSTER), st.binary(max_size=40))
def test_a_client_that_reveals_a_wrong_contribution_is_named(client, other):
    if other == SECRETS[client]:
        return
    with pytest.raises(WronglyRevealed) as refused:
        CEREMONY.seed(COMMITMENTS, SECRETS | {client: other})
    assert refused.value.clients == {client}
    assert refused.value.culprit == client


def test_a_client_that_withholds_is_named_and_can_be_left_out():
    with pytest.raises(NotRevealed, match="clients 3, 7") as refused:
        CEREMONY.seed(COMMITMENTS, {client: SECRETS[client] for client in (2, 5)})
    assert refused.value.clients == {3, 7}
    again = CEREMONY.without(refused.value.clients)
    assert again.roster == (2, 5)
    with pytest.raises(UsageError):
        again.without({3})


def test_a_relay_refuses_at_most_n_minus_2_seeds_and_need_not_lose_a_colluder():
    """Whoever carries the contributions sees every seed first, and can hide anybody's contribution."""
    ceremony, seen = SeedCeremony(training_id=b"t" * 32, roster=tuple(range(9))), []
    while True:
        secrets = {client: bytes([client, len(seen)]) * 16 for client in ceremony.roster}
        commitments = {client: ceremony.commitment(client, secrets[client]) for client in ceremony.roster}
        seen.append(ceremony.seed(commitments, secrets))
        hidden = max(ceremony.roster)  # the relay's friends are 0 and 1; they never have to leave
        with pytest.raises(NotRevealed) as refused:
            ceremony.seed(commitments, {c: s for c, s in secrets.items() if c != hidden})
        try:
            ceremony = ceremony.without(refused.value.clients)
        except UsageError:
            break
    assert len(set(seen)) == len(seen) == 9 - 1  # one of 8 seeds; 7 = n - 2 of them were refused
    assert ceremony.roster == (0, 1)


def test_commitments_of_one_attempt_are_invalid_in_the_next():
    again = CEREMONY.without({7})
    with pytest.raises(WronglyRevealed) as refused:
        again.seed(COMMITMENTS, SECRETS)
    assert refused.value.clients == {2, 3, 5}
    elsewhere = SeedCeremony(training_id=b"u" * 32, roster=ROSTER)
    with pytest.raises(WronglyRevealed):
        elsewhere.seed(COMMITMENTS, SECRETS)


def test_nothing_is_revealed_before_everyone_committed():
    some = {client: COMMITMENTS[client] for client in (2, 3)}
    with pytest.raises(NotCommitted) as refused:
        CEREMONY.reveal(2, SECRETS[2], some)
    assert refused.value.clients == {5, 7}
    with pytest.raises(NotCommitted):
        CEREMONY.seed(some, SECRETS)


def test_a_client_whose_commitment_was_swapped_does_not_reveal():
    with pytest.raises(PeerError, match="differs from the one that it sent"):
        CEREMONY.reveal(2, SECRETS[2], COMMITMENTS | {2: COMMITMENTS[3]})


def test_a_copied_commitment_cannot_be_opened():
    copied = COMMITMENTS | {7: COMMITMENTS[2]}
    with pytest.raises(WronglyRevealed) as refused:
        CEREMONY.seed(copied, SECRETS | {7: SECRETS[2]})
    assert refused.value.clients == {7}


def test_invalid_ceremonies_are_refused():
    with pytest.raises(UsageError):
        SeedCeremony(training_id=b"t" * 32, roster=(1,))
    with pytest.raises(UsageError):
        SeedCeremony(training_id=b"t" * 32, roster=(2, 1))
    with pytest.raises(UsageError, match="32 bytes"):
        CEREMONY.commitment(2, b"short")
    with pytest.raises(UsageError, match="not on the roster"):
        CEREMONY.commitment(4, SECRETS[2])


def test_a_beacon_gives_a_seed_that_depends_on_everything_named():
    value = bytes(64)
    seeds = {
        Beacon(name=name, pulse=pulse).seed(training, output)
        for name in ("a", "b")
        for pulse in (1, 2)
        for training in (b"t", b"u")
        for output in (value, value[:-1] + b"\1")
    }
    assert len(seeds) == 16
    with pytest.raises(UsageError):
        Beacon(name="a", pulse=1).seed(b"t", b"short")
    for fields in ({"name": "", "pulse": 1}, {"name": "a", "pulse": -1}):
        with pytest.raises(UsageError):
            Beacon(**fields)


def test_the_seed_has_not_changed():
    assert CEREMONY.seed(COMMITMENTS, SECRETS).hex() == PINNED


PINNED = "3c2d9a5001e3055d22e03de2c1e599e00c5217de8fa54b52c77331e845bacca3"


PAIR = SeedCeremony(training_id=b"study", roster=(1, 2))


def packed(*parts: bytes) -> bytes:
    """SHA-256 of the parts, each with its length before it."""
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()


def test_the_bytes_of_commitments_and_seeds():
    ceremony = SeedCeremony(training_id=b"study", roster=(1, 2**32 - 1))
    roster = bytes.fromhex("00000001 ffffffff")
    secrets = {1: b"a" * 32, 2**32 - 1: b"b" * 32}
    commitments = {client: ceremony.commitment(client, secret) for client, secret in secrets.items()}
    assert commitments == {
        1: packed(labels.SEED_CONTRIBUTION, b"study", roster, bytes.fromhex("00000001"), b"a" * 32),
        2**32 - 1: packed(labels.SEED_CONTRIBUTION, b"study", roster, bytes.fromhex("ffffffff"), b"b" * 32),
    }
    seed = packed(labels.TRAINING_SEED, b"study", roster, b"a" * 32, b"b" * 32)
    assert ceremony.seed(commitments, secrets) == seed
    assert SeedCeremony(training_id=bytearray(b"study"), roster=[1, 2**32 - 1]) == ceremony
    beacon = Beacon(name="nist", pulse=0)
    assert beacon.seed(b"study", b"v" * 32) == packed(labels.BEACON_SEED, b"study", b"nist", b"0", b"v" * 32)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: SeedCeremony(training_id="study", roster=(1, 2)), "^training_id: expected bytes, got str$"),
        (lambda: SeedCeremony(training_id=b"", roster=(1,)), "^a seed ceremony needs at least 2 clients"),
        (lambda: SeedCeremony(training_id=b"", roster=(2, 1)), "^roster ids must be strictly ascending"),
        (lambda: PAIR.check_committed({1: "text", 2: bytes(32)}), r"^commitments\[1\]: expected bytes, got str$"),
        (lambda: PAIR.check_committed([1, 2]), "^commitments: expected a dict by client id, got list$"),
        (lambda: PAIR.commitment(1, bytes(31)), "^contribution: expected 32 bytes, got 31$"),
        (lambda: PAIR.commitment(3, bytes(32)), "^client: client 3 is not on the roster$"),
        (lambda: PAIR.without([7]), "^none of these clients is on the roster; name at least one that is$"),
        (lambda: Beacon(name="", pulse=1), "^name of a beacon: expected text, got ''$"),
        (lambda: Beacon(name=7, pulse=1), "^name of a beacon: expected text, got 7$"),
        (lambda: Beacon(name="nist", pulse=-1), "^pulse: expected a whole number of at least 0, got -1$"),
        (lambda: Beacon(name="nist", pulse=1).seed(b"", bytes(31)), "^a pulse must have at least 32 bytes, not 31$"),
    ],
)
def test_a_ceremony_or_beacon_says_what_is_wrong(call, says):
    with pytest.raises(UsageError, match=says):
        call()


def test_who_is_missing_or_wrong_is_named_and_to_be_left_out():
    ceremony = SeedCeremony(training_id=b"study", roster=(1, 2, 3))
    secrets = {client: bytes([client]) * 32 for client in (1, 2, 3)}
    commitments = {client: ceremony.commitment(client, secret) for client, secret in secrets.items()}
    for kind, messages, says in (
        (NotCommitted, ({3: commitments[3]}, secrets), "^no commitment from clients 1, 2; do not reveal yet$"),
        (NotRevealed, (commitments, {1: secrets[1], 2: secrets[2]}), "^no contribution from client 3; try again"),
        (WronglyRevealed, (commitments, {**secrets, 2: bytes(32)}), "^the contribution of client 2 does not match"),
        (WronglyRevealed, (commitments, {**secrets, 2: bytes(31)}), "^the contribution of client 2 does not match"),
    ):
        with pytest.raises(kind, match=says) as refused:
            ceremony.seed(*messages)
        assert refused.value.culprit == min(refused.value.clients)
    with pytest.raises(PeerError, match=r"^the commitment relayed for client 2 differs from the one that it sent$"):
        ceremony.reveal(2, secrets[2], {**commitments, 2: commitments[1]})
    assert ceremony.reveal(2, secrets[2], commitments) == secrets[2]
    assert ceremony.without([3, 9]).roster == (1, 2)

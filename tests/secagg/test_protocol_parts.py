"""The small parts of the protocol: numbered records, relations between sums, suspects, proofs, stored numbers."""

import hashlib
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from secagg import MemoryJournal, Server, Stage, UsageError, labels
from secagg.crypto import Segment, Segments, hashtree
from secagg.errors import AlreadyUsed, PeerError
from secagg.privacy.budget import Charge
from secagg.protocol import dealing, relations
from secagg.protocol.client_state import Opening
from secagg.protocol.dealing import HeldShares, read_proofs, write_proof, write_proofs
from secagg.protocol.ledger import Entry
from secagg.protocol.messages import Dealing
from secagg.protocol.result import TOO_LARGE, GroupSum
from secagg.protocol.rounds import claim_round, count_records, record_opening
from secagg.protocol.suspects import Suspects
from tests.secagg.cluster import make_plan
from tests.secagg.malicious import World


class Counting(MemoryJournal):
    """Notes which records are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def read(self, name: str) -> bytes | None:
        self.asked.append(name)
        return super().read(name)


@pytest.mark.parametrize("records", range(70))
def test_records_are_counted_with_few_questions(records: int) -> None:
    journal = Counting()
    for number in range(records):
        journal.create(str(number), b"")
    assert count_records(journal, str) == records
    assert len(journal.asked) == len(set(journal.asked)) <= 2 * records.bit_length() + 1


def test_a_round_is_stored_once_as_eight_bytes() -> None:
    journal = MemoryJournal()
    for round in (5, 5, 2**40 + 3):
        claim_round(journal, str, round)
    assert journal._records == {"0": ((5).to_bytes(8, "little"),), "1": ((2**40 + 3).to_bytes(8, "little"),)}
    with pytest.raises(AlreadyUsed, match=f"^round {2**40 + 3} was signed before: round 6 is too early"):
        claim_round(journal, str, 6)


def test_an_opening_is_repeated_for_the_same_or_fewer_groups_only() -> None:
    def wanted(**changes: Any) -> Opening:
        fields = {"plan_hash": bytes(32), "view": bytes(32), "survivors": (1, 2), "inputs": bytes(32)}
        return Opening(**{**fields, "groups": ((0, 0), (0, 1)), **changes})

    journal = MemoryJournal()

    def record(round: int, opening: Opening) -> None:
        record_opening(journal, "opening", lambda number: f"round {number}", round, opening)

    record(4, wanted())
    before = dict(journal._records)
    record(4, wanted())
    record(4, wanted(groups=((0, 1),)))
    record(3, wanted(groups=()))  # no new opening: the order of rounds does not matter
    for other in ({"plan_hash": b"1" * 32}, {"view": b"1" * 32}, {"survivors": (1,)}, {"inputs": b"1" * 32},
                  {"groups": ((0, 0), (0, 2))}):  # fmt: skip
        with pytest.raises(AlreadyUsed, match="this update was opened before"):
            record(4, wanted(**other))
    assert journal._records == before
    assert before.keys() == {"opening", "round 0"}


# --- relations ---------------------------------------------------------------------------------------------------

SQUARE = {(0, 0): (0, 1), (0, 1): (2, 3), (1, 0): (0, 2), (1, 1): (1, 3)}
APART = {(0, 2): (4, 5), (1, 2): (4, 6)}  # has no relation to the others


@pytest.mark.parametrize("wrong", sorted(SQUARE))
def test_the_groups_of_a_broken_relation_are_named_and_no_others(wrong: tuple[int, int]) -> None:
    members = {**SQUARE, **APART}
    numbers = {group: sum(10**v for v in clients) for group, clients in members.items()}
    assert relations.contradictions(members, numbers) == ()
    numbers[wrong] += 1
    assert relations.contradictions(members, numbers) == (tuple(sorted(SQUARE)),)
    apart = {group: clients for group, clients in members.items() if group != (0, 1)}
    assert relations.contradictions(apart, numbers) == ()


def test_two_broken_relations_are_both_named() -> None:
    members = {(0, 0): (0, 1), (0, 1): (2, 3), (1, 0): (0, 1), (1, 1): (2, 3)}
    numbers = {(0, 0): 1, (0, 1): 5, (1, 0): 2, (1, 1): 6}
    assert set(relations.contradictions(members, numbers)) == {((0, 0), (1, 0)), ((0, 1), (1, 1))}


def test_of_two_relations_only_the_broken_one_is_named() -> None:
    members = {(0, 0): (0, 1), (0, 1): (2, 3), (1, 0): (0, 1), (1, 1): (2, 3)}
    numbers = {(0, 0): 1, (0, 1): 5, (1, 0): 1, (1, 1): 6}
    assert relations.contradictions(members, numbers) == (((0, 1), (1, 1)),)


def test_one_grouping_has_no_relations() -> None:
    assert relations.contradictions({(3, 0): (0, 1), (3, 1): (0, 1)}, {(3, 0): 1, (3, 1): 2}) == ()


def test_relations_hold_modulo_two_to_the_31_less_one() -> None:
    members, prime = {(0, 0): (0, 1), (1, 0): (0, 1)}, 2**31 - 1
    for difference in (0, prime, -3 * prime):
        assert relations.contradictions(members, {(0, 0): 7, (1, 0): 7 + difference}) == ()
    for difference in (1, prime - 1, prime + 1, 2**31, 2**30):
        assert relations.contradictions(members, {(0, 0): 7, (1, 0): 7 + difference}) == (((0, 0), (1, 0)),)


def test_a_sum_is_projected_to_its_values_times_the_weights() -> None:
    """Two segments, each longer than a chunk, and values at the limits of what two members reach."""
    parts = (Segment(name="a", shape=(40_000,), bound=2**20), Segment(name="b", shape=(3,), bound=5))
    encoding = Segments(clients=4, segments=parts)
    values = np.resize(np.array([2**21, -(2**21), 12_345, 0, -1], np.int64), 40_003)
    values[-3:] = (10, -10, 3)
    weights = np.resize(np.array([65_535, 1, 40_000], np.uint16), 40_003)
    exact = sum(int(v) * int(w) for v, w in zip(values, weights, strict=True)) % (2**31 - 1)

    def projected(at: int, value: int) -> int | None:
        changed = values.copy()
        changed[at] = value
        return relations._projection(encoding, GroupSum(changed.astype(np.uint32), (0, 1)), weights)

    assert projected(0, int(values[0])) == exact
    for at, reach in ((0, 2**21), (39_999, 2**21), (40_000, 10), (40_002, 10)):
        for sign in (1, -1):
            assert projected(at, sign * reach) is not None
            assert projected(at, sign * (reach + 1)) is None


def test_a_long_sum_of_the_largest_values_is_projected_exactly() -> None:
    """All products together would not fit in 64 bits."""
    length, most = 140_000, 2**31 - 1
    encoding = Segments(clients=1, segments=(Segment(shape=(length,), bound=most),))
    total, weights = np.full(length, most, np.uint32), np.full(length, 65_535, np.uint16)
    found = relations._projection(encoding, GroupSum(total, (0,)), weights)
    assert found == 0  # the values are the modulus
    total[:] = most - 1
    assert relations._projection(encoding, GroupSum(total, (0,)), weights) == -length * 65_535 % most


def test_sums_that_honest_members_cannot_reach_are_lost_and_the_others_compared() -> None:
    encoding = Segments(clients=4, segments=(Segment(shape=(2,), bound=100),))
    totals = {(0, 0): [201, 0], (0, 1): [150, -150], (1, 0): [7, 7], (1, 1): [8, 7]}
    members = {(0, 0): (0, 1), (0, 1): (2, 3), (1, 0): (0, 1), (1, 1): (0, 1)}
    sums = {g: GroupSum(np.array(total, np.int64).astype(np.uint32), members[g]) for g, total in totals.items()}
    groups, lost, inconsistent = relations.possible_sums(encoding, sums)
    assert list(groups) == [(0, 1), (1, 0), (1, 1)]
    assert all(groups[g] is sums[g] for g in groups)
    assert lost == {(0, 0): TOO_LARGE}
    assert inconsistent == (((1, 0), (1, 1)),)


# --- suspects ----------------------------------------------------------------------------------------------------


def test_a_suspect_sits_out_one_round_then_two_then_four() -> None:
    suspects, round = Suspects(most=2), 10
    for times, away in enumerate((1, 2, 4, 8), start=1):
        suspects.suspend(round, [(3, 4)])
        assert (suspects.until, suspects.times) == (dict.fromkeys((3, 4), round + away), dict.fromkeys((3, 4), times))
        assert suspects.excluded(round + away) == (3, 4)
        assert suspects.excluded(round + away + 1) == ()
        round += away


def test_who_is_back_makes_room_for_others() -> None:
    suspects = Suspects(most=2)
    suspects.suspend(0, [(1, 2)])
    suspects.suspend(0, [(3, 4)])  # 1 and 2 are away in round 1
    assert suspects.excluded(1) == (1, 2)
    suspects.suspend(1, [(3, 4)])  # 1 and 2 are back after round 1
    assert suspects.excluded(2) == (3, 4)


def test_disputes_are_matched_in_order_and_one_with_the_blamed_is_explained() -> None:
    suspects = Suspects(most=4, blamed={0: "evidence"})
    suspects.suspend(0, [(7, 8), (0, 5), (2, 3), (2, 9), (3, 6)])
    assert suspects.excluded(1) == (0, 2, 3, 7, 8)


def test_nobody_is_suspended_if_nobody_may_be() -> None:
    suspects = Suspects(most=0)
    suspects.suspend(0, [(1, 2)])
    assert suspects.excluded(0) == suspects.excluded(1) == ()
    for call in (suspects.excluded, lambda round: suspects.suspend(round, [])):
        with pytest.raises(UsageError, match=r"^round: expected a whole number of at least 0, got -1$"):
            call(-1)


# --- shares and proofs -------------------------------------------------------------------------------------------


def test_a_proof_is_its_place_the_number_of_siblings_and_the_siblings() -> None:
    one, other = b"a" * 32, b"b" * 32
    assert write_proof(0x0102, (one, other)) == b"\x02\x01\x02" + one + other
    assert write_proof(7, ()) == b"\x07\x00\x00"
    data = write_proof(0x0102, (one, other)) + write_proof(7, ()) + write_proof(65535, (other,))
    assert read_proofs(data) == [(0x0102, (one, other)), (7, ()), (65535, (other,))]
    assert read_proofs(b"") == []
    assert read_proofs(b"\x00\x00\xff" + bytes(255 * 32)) == [(0, (bytes(32),) * 255)]


@pytest.mark.parametrize("missing", [1, 2, 31, 32, 33])
def test_proofs_that_are_cut_are_refused(missing: int) -> None:
    data = write_proof(3, (b"a" * 32,)) + write_proof(4, (b"b" * 32, b"c" * 32))
    with pytest.raises(PeerError, match=f"^the proofs end {missing} bytes too early$"):
        read_proofs(data[:-missing])


@pytest.mark.parametrize("leaves", [2, 3, 5, 8])
def test_proofs_of_a_forest_are_those_of_its_trees(leaves: int) -> None:
    trees = []
    for tree in range(3):
        contents = np.arange(tree, tree + leaves, dtype=np.uint8)[:, None]
        trees.append(hashtree.levels(hashtree.leaves(contents)))
    for place in range(leaves):
        rows = write_proofs(place, hashtree.forest(trees))
        assert [row.tobytes() for row in rows] == [write_proof(place, hashtree.proof(one, place)) for one in trees]


def test_the_shares_of_a_dealer_lie_one_after_the_other() -> None:
    values = [bytes([secret]) * 32 + b"\x01" for secret in range(4)]
    held = HeldShares(2, bytes(32), b"".join(values))
    assert [held.share(secret) for secret in range(4)] == values
    assert held.canonical is True
    assert HeldShares(2, bytes(32), values[0] + b"\xff" * 33).canonical is False


def test_every_share_has_a_nonce_of_its_own_from_the_nonce_of_its_pair() -> None:
    pairs = np.arange(64, dtype=np.uint8).reshape(2, 32)
    found = dealing.share_nonces(pairs, 3)
    expected = [
        hashlib.sha256(labels.SHARE_NONCE + pair.tobytes() + secret.to_bytes(4, "little")).digest()
        for pair, secret in product(pairs, range(3))
    ]
    assert [row.tobytes() for row in found] == expected


def test_after_a_box_that_does_not_open_the_others_are_still_opened() -> None:
    world = World(make_plan(5))
    puppets = world.run_to(Stage.SHARES)
    dealings = {v: p.find(Dealing) for v, p in puppets.items()}
    bundle = world.bundle(2, dealings, dict.fromkeys(dealings, range(5)))
    size = dealing.box_bytes(world.plan)
    assert size == 28 + 32 + 2 * 33
    broken = replace(bundle, boxes=bytes(size) + bundle.boxes[size:-1] + bytes([bundle.boxes[-1] ^ 1]))
    reply = puppets[2].tell(broken)
    assert reply.disputes == (0, 4)
    assert [held.dealer for held in puppets[2].client._memory.held] == [1, 2, 3]


def test_an_entry_of_the_ledger_has_a_charge_and_a_total() -> None:
    entry = Entry(bytes(32), 5, 1, 9, 3)
    assert (entry.charge, entry.total) == (Charge(5, 1), Charge(9, 3))


# --- what is stored ----------------------------------------------------------------------------------------------


def test_stages_have_the_numbers_that_saved_bytes_hold() -> None:
    plan = make_plan(6)
    assert Server.restore(Server(plan).save(), plan=plan).stage is Stage.KEYS
    assert {one.name: one.value for one in Stage} == {
        "KEYS": 0, "SHARES": 1, "INPUTS": 2, "CONSISTENCY": 3, "UNMASKING": 4, "DONE": 5, "FAILED": 6,
    }  # fmt: skip


@pytest.mark.parametrize(("reason", "kept"), [("gone\naway", "gone\naway"), ("é" * 40_000, "é" * 2**15)])
def test_a_server_is_saved_whatever_the_reasons_of_its_dropouts(reason: str, kept: str) -> None:
    plan = make_plan(6)
    server = Server(plan)
    server.give_up(3, reason)
    restored = Server.restore(server.save(), plan=plan)
    assert restored.dropouts[3].reason == kept
    assert restored.dropouts[3].stage is Stage.KEYS

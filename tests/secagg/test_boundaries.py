"""Limits at their last permitted value, and defaults that change what somebody sees."""

import hashlib
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509

import secagg.whole
from secagg import Policy, Schedule, Stage, UsageError
from secagg.crypto import certificates, fixedpoint
from secagg.crypto.certificates import CertificatePair
from secagg.crypto.clipping import SegmentNoise
from secagg.crypto.fixedpoint import FixedPoint, Integers
from secagg.crypto.hashtree import forest, levels
from secagg.crypto.keys import hkdf_each
from secagg.crypto.segments import Segment, Segments
from secagg.errors import LossWarning
from secagg.exposure import anonymity, seed
from secagg.exposure.leverage import remainder
from secagg.exposure.rowspace import _WITNESSES, Field, RowSpace
from secagg.protocol import ledger
from secagg.simulation import WholeRun, make_agreement
from secagg.whole import messages, transcript
from tests.secagg.cluster import Cluster, make_inputs, make_plan
from tests.secagg.test_anonymity import span

DOCS = Path(__file__).parents[2] / "docs"


def test_a_decision_beyond_four_is_made_within_a_hundred_million_products() -> None:
    assert anonymity.decidable(10**6, 4)
    assert anonymity.decidable(368, 5)  # 99.4 million
    assert not anonymity.decidable(369, 5)


@pytest.mark.parametrize(("size", "groups", "lower"), [(8, 17, 5), (11, 13, 4)])
def test_a_report_computes_a_bound_within_five_million_products(size: int, groups: int, lower: int) -> None:
    """4.99 million for 136 clients and T >= 5, and 5.8 million for 143."""
    draw = Schedule(name="transversal", size=size, groupings=3).draw(range(size * groups), bytes(range(32)), 0)
    rows = {(g, k): group for g, grouping in enumerate(draw) for k, group in enumerate(grouping)}
    assert anonymity.bounds(span(size * groups, rows.values()), rows) == (lower, size)


def test_a_report_computes_bounds_up_to_seven() -> None:
    rows = {(g, 0): tuple(range(20)) for g in range(3)}
    assert anonymity.bounds(span(20, rows.values()), rows) == (7, 20)


def test_the_witnesses_are_the_first_twelve_primes() -> None:
    """No composite number below 3.1e23 passes Miller and Rabin's test for these (Sorenson and Webster 2015)."""
    assert list(_WITNESSES) == [p for p in range(2, 38) if all(p % d for d in range(2, p))]


def test_a_row_that_is_in_the_space_already_is_told_as_false() -> None:
    space = RowSpace(4, Field.drawn_from(b"a test"))
    assert space.add((0, 1)) is True
    assert space.add((0, 1)) is False


def test_a_row_is_accepted_once() -> None:
    space = RowSpace(4, Field.drawn_from(b"a test"))
    assert space.add((0, 1))
    with pytest.raises(AssertionError):
        space.accept()


def test_the_most_clients_of_a_fixed_point_number_leave_it_one_step() -> None:
    assert FixedPoint(clients=2**31 - 1, clip=1.0).scale == 1.0
    with pytest.raises(UsageError, match="leave no bit for a value"):
        FixedPoint(clients=2**31, clip=1.0)


def test_the_reach_of_noise_is_that_of_a_sub_gaussian_sum() -> None:
    """P(|X| > r) <= 2 exp(-r^2 / (2 m sigma^2)) <= 2^-72 for r = sigma sqrt(m) sqrt(2 ln 2 * 73)."""
    reach = SegmentNoise(clip=1.0, sigma=1000).reach(Integers(clients=9, bound=5), 4)
    assert reach == 4 * 5 + 20120
    assert 2 * math.exp(-((reach - 20) ** 2) / (2 * 4 * 1000**2)) <= 2.0**-72


def test_a_segment_has_at_most_two_to_the_31_less_one_values() -> None:
    assert Segment(shape=(2**31 - 1,), clip=1.0).length == 2**31 - 1
    with pytest.raises(UsageError, match="expected 1 to 2147483647 values"):
        Segment(shape=(2**31,), clip=1.0)


def test_one_vanished_value_of_101_is_not_told() -> None:
    encoding = Segments(clients=3, segments=(Segment(shape=(200,), clip=1.0),))
    with pytest.warns(LossWarning, match="1 of 200 values became zero"):
        encoding.encode(np.r_[1e-12, np.full(99, 0.5), np.zeros(100)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoding.encode(np.r_[1e-12, np.full(100, 0.5), np.zeros(99)])


def test_a_loss_is_told_at_the_line_that_encodes() -> None:
    encoding = Segments(clients=3, segments=(Segment(shape=(2,), clip=1.0),))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        encoding.encode([0.5, 3.0])
    assert [one.filename for one in found] == [__file__]


def test_the_data_of_a_round_may_have_as_many_bytes_as_the_document_says() -> None:
    assert f"| data | u32 length, bytes | {messages.MOST_DATA} |" in (DOCS / "protocol-whole.md").read_text()


def test_a_certificate_says_critically_that_it_signs_no_others() -> None:
    found = x509.load_der_x509_certificate(CertificatePair.generate().certificate)
    constraints = found.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert not constraints.value.ca


def test_every_version_draws_the_same_prime_from_a_key() -> None:
    assert Field.drawn_from(b"a test").prime == 1520603999221870261
    last_digits = [int(Field.drawn_from(b"%d" % number).prime) % 10**6 for number in range(8)]
    assert last_digits == [956921, 964787, 248563, 318919, 538203, 736129, 19961, 889343]


def test_a_later_version_finds_what_was_paid() -> None:
    """The name of the record in a journal; under another name an answer would be paid for twice."""
    name = ledger._paid_key(bytes(range(32)), ledger.Charge(1, 2))
    assert name.hex() == "12a4850f51b5881b716fcd496deb246330ca8ff9e97d180f8bcaebb44a374f86"


def test_one_client_and_several_are_named() -> None:
    assert seed._list((3,)) == "client 3"
    assert seed._list((2, 1)) == "clients 1, 2"


def test_the_stores_of_whole_groups_are_public() -> None:
    assert {"FileStore", "MemoryStore", "SlotStore", "Store", "enrol", "respond"} <= set(secagg.whole.__all__)


def test_a_server_that_is_done_waits_for_nobody() -> None:
    plan = make_plan(3, colluders=0, threshold=2)
    cluster = Cluster(plan, make_inputs(plan)).start()
    while cluster.server.stage < Stage.DONE:
        while cluster.flying:
            cluster.deliver()
        cluster.advance()
    assert cluster.server.waiting_for() == ()


@pytest.mark.parametrize("threads", [None, 1, 2, 5])
@pytest.mark.parametrize("length", [3, 2**17 - 1, 2**17, 2**17 + 1])  # from 2^17 values on, several threads hash
def test_every_row_of_an_answer_has_its_own_hash(length: int, threads: int | None) -> None:
    rows = np.arange(7 * length, dtype=np.uint32).reshape(7, length)
    expected = b"".join(hashlib.sha256(row.astype("<u4").tobytes()).digest() for row in rows)
    assert transcript.row_hashes(rows, threads) == expected


def test_a_forest_may_be_a_single_tree() -> None:
    leaves = [bytes([i]) * 32 for i in range(5)]
    tree = levels(b"".join(leaves))
    found = forest([tree])
    assert [level.shape for level in found] == [(6, 1, 32), (4, 1, 32), (2, 1, 32)]
    assert found[0][:5, 0].tobytes() == b"".join(leaves)


def test_many_keys_are_derived_from_as_many_infos() -> None:
    for secrets, infos in (((2, 31), (2, 4)), ((2, 32), (3, 4))):
        with pytest.raises(UsageError, match="expected one secret of 32 bytes per info"):
            hkdf_each(np.zeros(secrets, np.uint8), np.zeros(infos, np.uint8))


def test_a_certificate_has_at_most_so_many_bytes() -> None:
    with pytest.raises(UsageError, match="got other bytes"):
        certificates.to_pem(bytes(certificates.MOST_BYTES))
    for wrong in (0, certificates.MOST_BYTES + 1):
        with pytest.raises(UsageError, match=f"expected 1 to {certificates.MOST_BYTES} bytes"):
            certificates.to_pem(bytes(wrong))


def test_a_bound_of_integers_is_not_negative() -> None:
    assert Integers(clients=3, bound=0).bound == 0
    with pytest.raises(UsageError, match="bound"):
        Integers(clients=3, bound=-1)


@pytest.mark.parametrize("beyond", [0, 1, 5, 20, 40, 45, 46, 1000])
def test_what_is_clipped_to_a_norm_keeps_it_exactly(beyond: int) -> None:
    """In whole numbers, also where it is beyond the norm by less than rounding could tell: noise is for this norm."""
    norm = 2**20
    noise = (SegmentNoise(clip=norm, sigma=500),)
    encoding = Segments(clients=3, segments=(Segment(shape=(2,), bound=norm),), noise=noise)
    encoded, _ = encoding.encode(np.array([norm, beyond]))
    assert sum(int(code) ** 2 for code in encoded.view(np.int32)) <= norm**2
    assert encoded[0] > norm - 3


def test_a_floor_is_kept_in_every_number() -> None:
    floor = Policy(min_survivors=3, anonymity=3, max_leverage=0.5)
    for weaker in ({"min_survivors": 2}, {"anonymity": 2}, {"max_leverage": 0.6}):
        better = {"min_survivors": 9, "anonymity": 9, "max_leverage": 0.1} | weaker
        assert not Policy(**better).at_least(floor)  # type: ignore[arg-type]
    assert Policy(min_survivors=3, anonymity=3, max_leverage=0.5).at_least(floor)


def test_a_restored_server_is_given_a_number_of_threads_that_can_be() -> None:
    agreement, identities = make_agreement(members=3, size=3, length=1, bound=1)
    data = WholeRun(agreement, identities).server.save()
    assert secagg.whole.Server.restore(data, agreement, threads=1).save() == data
    with pytest.raises(UsageError, match="threads"):
        secagg.whole.Server.restore(data, agreement, threads=0)


@pytest.mark.parametrize("halves", range(1, 7))
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_vectors_of_about_a_piece_are_encoded_and_decoded(halves: int, more: int) -> None:
    """Where one thread ends and another begins to be worthwhile."""
    values = np.linspace(-1.0, 1.0, halves * fixedpoint._PIECE // 2 + more)
    encoding = FixedPoint(clients=3, clip=1.0)
    np.testing.assert_allclose(encoding.decode(encoding.encode(values)[0]), values, atol=1 / encoding.scale)
    whole, numbers = Integers(clients=3, bound=9), np.arange(len(values)) % 10
    assert np.array_equal(whole.decode(whole.encode(numbers)[0]), numbers)


def test_a_bound_by_atoms_is_for_rows_of_whole_atoms() -> None:
    atoms = ((0, 1), (2, 3, 4))
    assert anonymity.atom_bound((0, 1, 2, 3, 4), atoms, ()) == 2
    assert anonymity.atom_bound((2, 3, 4), atoms, ()) == 3
    assert anonymity.atom_bound((2, 4), atoms, (3,)) == 2
    for row in ((0, 1, 2), (0, 2, 3, 4), (5, 6), ()):
        assert anonymity.atom_bound(row, atoms, ()) == 0


def test_columns_that_are_no_grid_prove_nothing() -> None:
    for columns in (((0, 1), (2,)), ((0, 1), (1, 2))):
        assert anonymity.transversal_bound([((0, 1), (2,))], columns, 0) == 0


def test_atoms_may_be_as_small_as_the_anonymity_that_is_asked_for() -> None:
    atoms = Schedule(name="atoms", size=6, atom=3, groupings=1)
    assert make_plan(12, schedule=atoms, policy=Policy(anonymity=3)).schedule.atom == 3
    with pytest.raises(UsageError, match="atoms of 3 can"):
        make_plan(12, schedule=atoms, policy=Policy(anonymity=4))


def test_an_update_that_cannot_be_encoded_leaves_nothing_behind() -> None:
    entries = (Segment(name="a", shape=(2,), clip=1.0), Segment(name="b", shape=(2,), clip=1.0))
    encoding, out = Segments(clients=3, segments=entries), np.full(4, 7, np.uint32)
    with pytest.raises(UsageError, match="NaN"):
        encoding.encode({"a": [0.5, 0.25], "b": [0.5, math.nan]}, out=out)
    assert not out.any()
    with pytest.raises(UsageError, match="a different name for each"):
        Segments(clients=3, segments=(entries[0], entries[0]))


@pytest.mark.parametrize("weight", [1.0, 3.0, 1e-6, 1e6])
def test_what_is_left_of_a_row_is_relative_to_its_length(weight: float) -> None:
    weights, out, row = np.full(4, weight), np.empty(4), np.array([0, 1])
    basis = np.zeros((2, 4))
    assert remainder(basis, 0, row, weights, out) == pytest.approx(1.0)
    basis[0] = [0.0, 0.5**0.5, 0.5**0.5, 0.0]  # the unit vector of a row that shares client 1
    assert remainder(basis, 1, row, weights, out) == pytest.approx(0.75)
    assert np.linalg.norm(out) == pytest.approx(1.0)

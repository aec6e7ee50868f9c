"""Malformed bytes give typed errors in bounded memory; every value has one encoding."""

import random
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from secagg import Client, MemoryJournal, Plan, SecAggError, Server, Stage, UsageError, WireError
from secagg.codec import U32, Many, from_bytes
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
    Unmasking,
)
from secagg.protocol.wire import LAYOUTS, decode, encode, parts, size
from secagg.types import u32
from tests.secagg.cluster import Cluster, identity, make_inputs, make_plan, remembered_signatures
from tests.secagg.fuzz import Mutator, corpus, decoders, fuzz, saved_under
from tests.secagg.malicious import World

MESSAGES = [layout.cls.__name__ for layout in LAYOUTS.values()]
EVERYTHING = [*MESSAGES, "Plan", "saved client", "saved server"]
MILLION = 1_000_000
FAST = {"Plan": 5000, "saved client": 5000, "saved server": 2000}  # slower to decode


@pytest.mark.parametrize("name", EVERYTHING)
def test_mutated_bytes_give_a_value_with_that_encoding_or_a_typed_error(name: str) -> None:
    report = fuzz(name, FAST.get(name, 10_000), seed=0)
    assert 0 < report.decoded < report.inputs  # otherwise the mutations test only one of the two


@pytest.mark.long
@pytest.mark.parametrize("name", EVERYTHING)
def test_a_million_mutated_inputs_give_values_or_typed_errors_in_bounded_memory(name: str) -> None:
    report = fuzz(name, MILLION, seed=1)
    print(report)
    assert report.grown_kb < 64 * 1024


def test_the_corpus_has_real_bytes_of_every_kind() -> None:
    assert set(decoders()) == set(EVERYTHING)
    assert all(len(found) >= 2 for found in corpus().messages.values())
    assert len(corpus().clients) >= 10
    assert len(corpus().servers) >= 10


def fuzz_clients(count: int, seed: int) -> tuple[int, int]:
    """Send mutated messages to clients that expect the original; count answers and refusals."""
    plan = make_plan(3, colluders=0, threshold=2, length=2)
    waiting, due = [], []
    for stage in list(Stage)[1:5]:
        waiting.append(World(plan).run_to(Stage(stage - 1))[0])
        due.append(encode(World(plan).run_to(stage)[0].heard_all[-1]))
    rng, mutators = random.Random(seed), [Mutator([data], seed, 2) for data in due]
    answered = refused = 0
    for _ in range(count):
        which = rng.randrange(4)
        twin, data = waiting[which].fork(), mutators[which]()
        update = twin.world.inputs[0] if which == 1 else None
        try:
            twin.client.receive(data, update=update)
            answered += 1
        except SecAggError:
            refused += 1
            assert twin.client.state.name == "FAILED"
        except BaseException as failure:
            failure.add_note(data.hex())
            raise
    return answered, refused


def fuzz_servers(count: int, seed: int) -> tuple[int, int]:
    """Send mutated messages to servers that expect the original, then advance them; count both outcomes."""
    plan = make_plan(3, colluders=0, threshold=2, length=2)
    cluster = Cluster(plan, make_inputs(plan)).start()
    saved, due = [], []
    while cluster.server.stage < Stage.DONE:
        for _ in range(len(cluster.flying)):
            if not cluster.flying[0].up:
                cluster.deliver()
        due.append(next(letter.data for letter in cluster.flying if letter.client == 0))
        rest = [letter for letter in cluster.flying if letter.client != 0]
        for letter in rest:
            cluster.server.receive(letter.client, letter.data)
        saved.append(cluster.server.save())
        cluster.server = Server.restore(saved[-1], cluster.server_journal, plan=plan)
        cluster.server.receive(0, due[-1])
        cluster.flying.clear()
        cluster.advance()
    rng, mutators = random.Random(seed), [Mutator([data], seed, 2) for data in due]
    taken = dropped = 0
    for _ in range(count):
        which = rng.randrange(5)
        server, data = Server.restore(saved[which], plan=plan), mutators[which]()
        try:
            out = server.receive(0, data)
            taken, dropped = taken + (out is None), dropped + (out is not None)
            outbox = server.advance()
            for v in outbox:
                encode(outbox[v])
            if server.stage is Stage.DONE:
                assert server.result().sum().tolist() == sum(make_inputs(plan).values()).tolist()
        except BaseException as failure:
            failure.add_note(data.hex())
            raise
    return taken, dropped


@pytest.fixture
def _fast_signatures() -> Iterator[None]:
    with remembered_signatures():
        yield


@pytest.mark.usefixtures("_fast_signatures")
def test_mutated_messages_end_a_clients_run_with_a_typed_error_or_are_answered() -> None:
    answered, refused = fuzz_clients(1000, seed=0)
    assert answered > 0
    assert refused > 500


@pytest.mark.usefixtures("_fast_signatures")
def test_mutated_messages_never_stop_the_server_nor_change_the_sum_at_the_end() -> None:
    taken, dropped = fuzz_servers(600, seed=0)
    assert taken > 0
    assert dropped > 300


@pytest.mark.long
def test_a_hundred_thousand_mutated_messages_to_live_clients_and_servers() -> None:
    print("clients: answered, refused =", fuzz_clients(100_000, seed=1))
    print("servers: taken, dropped =", fuzz_servers(100_000, seed=1))


# --- one encoding per value --------------------------------------------------------------------------------

ids = st.integers(0, 2**32 - 1)
id_sets = st.lists(ids, unique=True, max_size=5).map(sorted).map(tuple)
hashes, keys, signatures = (st.binary(min_size=k, max_size=k) for k in (32, 32, 64))
blobs = st.binary(max_size=200)
rows = st.lists(st.tuples(st.integers(0, 65535), ids), unique=True, max_size=5).map(sorted).map(tuple)
commitments = st.lists(hashes, max_size=3).map(tuple)
adverts = st.builds(KeyAdvert, ids, keys, keys, signatures)
matrices = hnp.arrays(np.uint32, st.tuples(st.integers(1, 3), st.integers(1, 5))) | st.just(np.empty((0, 0), np.uint32))
STRATEGIES: dict[str, st.SearchStrategy[Any]] = {
    "KeyAdvert": adverts,
    "KeyList": st.builds(
        KeyList, hashes, st.lists(hashes, max_size=3).map(tuple), st.lists(adverts, max_size=3).map(tuple)
    ),
    "Dealing": st.builds(Dealing, ids, commitments, hashes, signatures, blobs, blobs),
    "Bundle": st.builds(
        Bundle, st.lists(st.builds(Dealer, ids, commitments, hashes), max_size=3).map(tuple), blobs, blobs
    ),
    "MaskedInput": st.builds(MaskedInput, ids, id_sets, signatures, matrices),
    "Survivors": st.builds(
        Survivors, st.lists(st.builds(Survivor, ids, id_sets, hashes, signatures), max_size=3).map(tuple), rows
    ),
    "Consistency": st.builds(Consistency, ids, signatures),
    "Signatures": st.builds(Signatures, st.lists(st.builds(Endorsement, ids, signatures), max_size=3).map(tuple)),
    "Unmasking": st.builds(Unmasking, ids, blobs, id_sets, blobs, id_sets, blobs, signatures),
}


@pytest.mark.parametrize("name", MESSAGES)
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_decode_is_the_inverse_of_encode(name: str, data: st.DataObject) -> None:
    message = data.draw(STRATEGIES[name])
    raw = encode(message)
    again = decode(raw)
    assert type(again) is type(message)
    if isinstance(message, MaskedInput):
        assert (again.sender, again.disputes, again.signature) == (message.sender, message.disputes, message.signature)
        assert np.array_equal(again.vectors, message.vectors)
        assert again.vectors.shape == message.vectors.shape
    else:
        assert again == message
    assert encode(again) == raw
    assert size(message) == len(raw) == sum(len(part) for part in parts(message))


@pytest.mark.parametrize("name", MESSAGES)
def test_decode_refuses_one_trailing_byte_every_truncation_and_other_versions(name: str) -> None:
    for raw in corpus().messages[name][:3]:
        assert encode(decode(raw)) == raw
        for end in range(len(raw)):
            with pytest.raises(WireError):
                decode(raw[:end])
        for more in (b"\0", b"\xff", raw):
            with pytest.raises(WireError, match="extra bytes"):
                decode(raw + more)
        for version in (0, 1, 255):
            with pytest.raises(WireError, match="version"):
                decode(bytes([version]) + raw[1:])


def test_unknown_types_are_refused() -> None:
    for tag in set(range(256)) - set(LAYOUTS):
        with pytest.raises(WireError, match="unknown message type"):
            decode(bytes([2, tag]) + bytes(100))


def test_a_plan_has_one_encoding_and_one_version_and_no_trailing_bytes() -> None:
    for raw in corpus().plans:
        assert Plan.from_bytes(raw).to_bytes() == raw
        for bad in (raw + b"\0", raw[:-1], b""):
            with pytest.raises(WireError):
                Plan.from_bytes(bad)
        with pytest.raises(WireError, match="plan version 1, this is version 2"):
            Plan.from_bytes(b"\x01" + raw[1:])


@pytest.mark.parametrize(("field", "bad"), [(-0.0, "negative zero"), (float("nan"), "nan"), (float("inf"), "infinity")])
def test_a_float_that_is_not_finite_or_has_two_encodings_is_refused(field: float, bad: str) -> None:
    raw = make_plan(4, bound=None, clip=1.5, colluders=0).to_bytes()
    spelled = np.array([1.5], "<f8").tobytes()
    assert raw.count(spelled) == 1
    with pytest.raises(WireError, match="finite"):
        Plan.from_bytes(raw.replace(spelled, np.array([field], "<f8").tobytes()))


@pytest.mark.parametrize("values", [(3, 3), (4, 3)])
def test_ids_and_rows_that_are_not_strictly_ascending_are_refused(values: tuple[int, int]) -> None:
    first, second = values
    unmasking = Unmasking(0, b"", (1, 2), b"", (), b"", bytes(64))
    raw = encode(unmasking)
    two = b"".join(v.to_bytes(4, "little") for v in (1, 2))
    swapped = b"".join(v.to_bytes(4, "little") for v in values)
    with pytest.raises(WireError, match="ascending"):
        decode(raw.replace(two, swapped, 1))
    survivors = encode(Survivors((), ((0, 1), (0, 2))))
    changed = survivors[:-12] + b"".join(bytes(2) + v.to_bytes(4, "little") for v in (first, second))
    with pytest.raises(WireError, match="ascending"):
        decode(changed)


def peak_of(act: Any) -> int:
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("tag", sorted(LAYOUTS))
def test_a_short_message_that_claims_four_gigabytes_allocates_little(tag: int) -> None:
    for filler in (b"\xff", b"\xff\xff\xff\x7f", b"\x00\x00\x00\x80", b"\xff\xff\x00\x00"):
        for length in (20, 6, 10, 40, 104, 140):
            data = (bytes([2, tag]) + bytes(max(0, length - 22)) + filler * 20)[:length]

            def act(data: bytes = data) -> None:
                with pytest.raises(WireError):
                    decode(data)

            act()
            assert peak_of(act) < 100_000


def test_a_real_message_with_a_count_of_four_billion_allocates_little() -> None:
    """Overwrites every four bytes of every real message, and so every count."""
    for bases in corpus().messages.values():
        raw = bases[0]

        def act(raw: bytes = raw) -> None:
            for at in range(2, len(raw) - 3):
                data = raw[:at] + b"\xff\xff\xff\xff" + raw[at + 4 :]
                with suppress(WireError):
                    decode(data)

        act()
        assert peak_of(act) < 200_000


@pytest.mark.parametrize("kind", ["plan", "client", "server"])
def test_a_plan_or_saved_state_with_a_count_of_four_billion_allocates_little(kind: str) -> None:
    raw = {"plan": corpus().plans, "client": corpus().clients, "server": corpus().servers}[kind][1]
    floors = Cluster(make_plan(3), make_inputs(make_plan(3))).agreed

    def read(data: bytes) -> None:
        if kind == "plan":
            Plan.from_bytes(data)
        elif kind == "client":
            Client.restore(data, identity(0), floors, MemoryJournal())
        else:
            Server.restore(data, plan=saved_under(data))

    def act() -> None:
        for at in range(0, len(raw) - 3):
            with suppress(WireError, UsageError):
                read(raw[:at] + b"\xff\xff\xff\xff" + raw[at + 4 :])

    act()
    assert peak_of(act) < 2_000_000


def test_vectors_are_read_only_views_of_the_message_and_not_copies() -> None:
    vectors = np.arange(300_000, dtype=np.uint32).reshape(3, 100_000)
    raw = encode(MaskedInput(1, (), bytes(64), vectors))
    peak = peak_of(lambda: decode(raw))
    assert peak < 100_000
    seen = decode(raw).vectors  # type: ignore[union-attr]
    assert np.shares_memory(seen, np.frombuffer(raw, np.uint8))
    assert not seen.flags.writeable
    pieces = parts(MaskedInput(1, (), bytes(64), vectors))
    assert sum(np.shares_memory(np.frombuffer(part, np.uint8), vectors) for part in pieces if part) == 3


def test_a_declared_count_is_held_against_the_bytes_before_anything_is_read() -> None:
    with pytest.raises(WireError, match="60000 values declared, but only 4 bytes follow"):
        from_bytes(Many(U32), u32(60000) + b"1234")

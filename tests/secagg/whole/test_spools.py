"""Which spools a store keeps, who may read them, and what it says if one is missing."""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg.errors import AgreementRefused, AlreadyUsed, JournalError, UsageError
from secagg.privacy.budget import Charge
from secagg.protocol.journal import MemoryJournal
from secagg.whole import (
    Answer,
    FileStore,
    MemoryStore,
    Pending,
    SlotStore,
    State,
    Store,
    encode,
    enrol,
    recall,
    respond,
)
from tests.secagg.whole.cast import Cast


@pytest.fixture(autouse=True)
def common_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture(params=["memory", "files"])
def store(request: Any, tmp_path: Path) -> FileStore | MemoryStore:
    return MemoryStore() if request.param == "memory" else FileStore(tmp_path / "store")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def pending_of(cast: Cast, member: int = 0, round: int = 0, value: int = 1) -> Pending:
    client = cast.clients[member]
    task = client.receive(cast.server.outbox()[member])
    return client.answer(task, np.full(5, value))  # type: ignore[arg-type]


def test_a_store_of_files_is_for_its_owner(tmp_path: Path) -> None:
    for number, journal in enumerate((None, MemoryJournal())):
        place = tmp_path / str(number) / "store"
        FileStore(place, journal)
        store = FileStore(place, journal)  # it may be there
        cast = Cast()
        cast.begin()
        pending = pending_of(cast)
        assert store.keep(pending) is None
        spool = place / f"{pending.name}.spool"
        assert (mode(place), mode(spool)) == (0o700, 0o600)
        assert spool.read_bytes() == b"".join(pending.parts) == encode(pending.message)
        assert [path.name for path in place.iterdir() if path.name.startswith(pending.name)] == [spool.name]


def test_the_spool_of_the_answer_before_goes_with_the_next(store: FileStore | MemoryStore) -> None:
    cast, names = Cast(), list[str]()
    for round in range(3):
        cast.begin(round)
        pending = pending_of(cast, round=round)
        assert store.look(pending.slot) is None
        assert pending.obsolete == (names[-1] if names else "")
        assert store.keep(pending) is None
        assert store.look(pending.slot) == pending.record == b"answer " + bytes.fromhex(pending.name)
        assert cast.clients[0].stored(None) == pending.name
        names.append(pending.name)
        assert store.spools() == [pending.name]
        cast.server.close()
    assert len(set(names)) == 3


def test_an_answer_that_was_too_late_leaves_the_first_spool(store: FileStore | MemoryStore) -> None:
    """Another process with the same keys has claimed the slot before."""
    cast = Cast()
    cast.begin()
    store.keep(pending_of(cast))
    cast.clients[0].stored(None)
    cast.server.close()
    cast.begin(1)
    saved = cast.clients[0].save()
    first = pending_of(cast, value=1)
    store.keep(first)
    cast.clients[0] = cast.restore(0, saved)
    second = pending_of(cast, value=2)
    assert store.keep(second) == first.record
    assert first.name in store.spools()
    if isinstance(store, FileStore):
        assert store.spools() == [first.name]
    assert store.keep(first) == first.record  # the same again: its spool stays
    assert bytes(store.load(first.name)) == b"".join(first.parts)
    assert cast.clients[0].stored(first.record) == first.name


def test_a_spool_that_cannot_be_removed_does_no_harm(tmp_path: Path) -> None:
    cast, store = Cast(), FileStore(tmp_path)
    cast.begin()
    first = pending_of(cast)
    store.keep(first)
    cast.clients[0].stored(None)
    cast.server.close()
    (tmp_path / f"{first.name}.spool").unlink()
    cast.begin(1)
    assert store.keep(pending_of(cast, round=1)) is None


def test_a_spool_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cast, store, synced, real = Cast(), FileStore(tmp_path, MemoryJournal()), list[int](), os.fsync
    cast.begin()
    pending = pending_of(cast)

    def fsync(handle: int) -> None:
        if stat.S_ISREG(os.fstat(handle).st_mode):
            synced.append(os.fstat(handle).st_size)
        real(handle)

    def broken(*_: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, "fsync", fsync)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", broken)
        with pytest.raises(JournalError, match="no space"):
            store.keep(pending)
    assert list(tmp_path.iterdir()) == []
    store.keep(pending)
    assert synced == [len(encode(pending.message))] * 2


@pytest.mark.parametrize("kind", ["memory", "files", "slots"])
def test_an_answer_is_paid_for_once(kind: str, tmp_path: Path) -> None:
    stores: dict[str, Store] = {"memory": MemoryStore(), "files": FileStore(tmp_path), "slots": SlotStore()}
    store = stores[kind]
    cast = Cast()
    cast.begin()
    pending = replace(pending_of(cast), charge=Charge(rho=5, eta=7))
    assert store.spent() == Charge()
    assert store.keep(pending) is None
    assert store.spent() == Charge(rho=5, eta=7)
    dearer = replace(pending, charge=Charge(rho=50, eta=70))  # its slot is filled: it is not sent
    assert store.keep(dearer) == pending.record
    assert store.spent() == Charge(rho=5, eta=7)


def test_what_is_not_there_is_told(store: FileStore | MemoryStore, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^no spool 00 is stored here$"):
        store.load("00")
    if isinstance(store, FileStore):
        (tmp_path / "store" / "01.spool").mkdir()
        with pytest.raises(JournalError, match=r"^the store could not read the spool 01: .*\(IsADirectoryError\)"):
            store.load("01")
    else:
        with pytest.raises(UsageError, match=r"^name: expected str, got bytes$"):
            store.load(b"00")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"^pending: expected Pending, got int$"):
            store.keep(3)  # type: ignore[arg-type]


def test_a_store_that_cannot_be_opened_or_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match=rf"^the store could not open {re.escape(str(tmp_path))}/file: "):
        FileStore(tmp_path / "file", MemoryJournal())
    cast = Cast()
    cast.begin()
    pending = pending_of(cast)
    store = FileStore(tmp_path / "gone", MemoryJournal())
    (tmp_path / "gone").rmdir()
    with pytest.raises(JournalError, match=f"^the store could not store the spool {pending.name}: "):
        store.keep(pending)
    assert store.look(pending.slot) is None
    assert store.spools() == []


def test_slots_without_spools() -> None:
    cast, store = Cast(), SlotStore()
    cast.begin()
    pending = pending_of(cast)
    assert (store.keep(pending), store.keep(pending), store.spools()) == (None, pending.record, [])
    assert store.claim("x", b"1") is None
    assert store.claim("x", b"2") == b"1"


@pytest.mark.parametrize("call", [enrol, lambda client, store: respond(client, store, None, None)])  # type: ignore[arg-type]
def test_a_client_and_a_store_are_needed(call: Any) -> None:
    cast = Cast()
    with pytest.raises(UsageError, match=r"^client: expected Client, got int$"):
        call(3, MemoryStore())
    with pytest.raises(UsageError, match=r"^store: expected a Store"):
        call(cast.clients[0], 3)
    with pytest.raises(UsageError, match=r"^store: expected a store with spools"):
        recall(cast.agreement, 0, cast.identities[0], 3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^identity: expected Identity, got int$"):
        recall(cast.agreement, 0, 3, MemoryStore())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^agreement: expected Agreement, got int$"):
        recall(3, 0, cast.identities[0], MemoryStore())  # type: ignore[arg-type]


class Refusing(MemoryJournal):
    """A store with answers under another agreement."""

    def create(self, name: str, content: bytes) -> bytes | None:
        raise AgreementRefused("not this one")


def test_under_a_refused_agreement_the_masked_update_is_forgotten() -> None:
    cast = Cast()
    cast.begin()
    client = cast.clients[0]
    task = client.receive(cast.server.outbox()[0])
    with pytest.raises(AgreementRefused, match="not this one"):
        respond(client, MemoryStore(Refusing()), task, np.full(5, 1))  # type: ignore[arg-type]
    assert (client.pending, client.state) == (None, State.IDLE)


class Ordered(MemoryStore):
    """A store that names its spools in an order of the test's choice."""

    order: tuple[str, ...] = ()

    def spools(self) -> list[str]:
        return list(self.order)


@pytest.mark.parametrize("step", [1, -1])
def test_the_last_answer_is_recalled_in_whatever_order_spools_are_found(step: int) -> None:
    """Also beside the spool of an answer before it, of one that lost its slot, and of a release."""
    cast, store = Cast(), Ordered()
    client, made = cast.clients[0], list[Pending]()
    for round in (0, 1):
        cast.begin(round)
        lost = cast.restore(0, client.save())
        pending = pending_of(cast)
        store.keep(pending)
        client.stored(None)
        task = lost.receive(cast.server.outbox()[0])
        made += [pending, lost.answer(task, np.full(5, 7))]  # type: ignore[arg-type]
        cast.server.close()
    made.insert(1, client.release(2))
    store.keep(made[1])
    store._spools = {one.name: b"".join(one.parts) for one in made}
    store.order = tuple(one.name for one in made)[::step]
    found = cast.restore(0, recall(cast.agreement, 0, cast.identities[0], store))
    assert (found.answered, found._memory.last.hex()) == (1, made[3].name)


def test_memory_for_too_few_vectors_is_refused() -> None:
    cast = Cast(members=9, size=3, schedule="transversal", groupings=2)
    cast.begin()
    client = cast.clients[0]
    task = client.receive(cast.server.outbox()[0])
    with pytest.raises(ValueError, match="zip"):
        client.answer(task, np.full(5, 1), out=np.empty((1, 5), np.uint32))  # type: ignore[arg-type]
    memory = np.empty((3, 9), np.uint32)
    pending = client.answer(task, np.full(5, 1), out=memory)  # type: ignore[arg-type]
    assert isinstance(pending.message, Answer)
    assert pending.message.vectors.shape == (2, 5)
    assert np.shares_memory(pending.message.vectors, memory)


# --- releases ------------------------------------------------------------------------------------------------------


def test_a_release_is_of_a_round_of_the_agreement() -> None:
    cast = Cast()
    for wrong in (8, 77):
        with pytest.raises(UsageError, match=f"^round {wrong} is not in the agreement$"):
            cast.clients[0].release(wrong)


def test_a_release_after_an_interrupted_answer_keeps_no_key_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has the adverts of these keys."""
    cast = Cast()
    cast.begin()
    client = cast.clients[0]
    task = client.receive(cast.server.outbox()[0])

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("secagg.whole.transcript.answer_hash", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.answer(task, np.full(5, 1))  # type: ignore[arg-type]
    pending = client.release(0)
    assert pending.name == f"{pending.slot}.release"
    assert (pending.record, pending.obsolete) == (b"release ", "")
    client.stored(None)
    assert client._memory.keys == ()
    assert (client.answered, client._memory.released) == (0, 1)
    client.release(0)
    with pytest.raises(AlreadyUsed, match="round 0 has been answered or released before; nothing is sent"):
        client.stored(b"answer " + bytes(32))

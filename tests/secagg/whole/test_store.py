"""Spools and slots: durable, exclusive between processes, and sent again byte for byte."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg.errors import AlreadyUsed, JournalError, PeerError, UsageError
from secagg.protocol.journal import MemoryJournal
from secagg.whole import (
    Answer,
    FileStore,
    Hello,
    MemoryStore,
    Resend,
    Server,
    SlotStore,
    State,
    Store,
    encode,
    recall,
    respond,
)
from tests.secagg.whole.cast import Cast


@pytest.fixture(params=["memory", "files"])
def store(request: Any, tmp_path: Path) -> FileStore | MemoryStore:
    return MemoryStore() if request.param == "memory" else FileStore(tmp_path / "store")


def test_an_answer_is_sent_again_byte_for_byte_until_the_next_one(store: Store) -> None:
    cast = Cast()
    client, sent, earlier = cast.clients[0], {}, ""
    for round in range(3):
        box = cast.begin(round)
        client.receive(box[0])
        sent[round] = b"".join(respond(client, store, client.task, np.full(5, round)))
        resend = client.receive(box[0])
        assert isinstance(resend, Resend)
        assert bytes(store.load(resend.name)) == sent[round]
        assert resend.name == client._memory.last.hex()
        cast.server.receive(0, sent[round])
        cast.server.close()
        with pytest.raises(UsageError, match="no spool"):
            store.load(earlier)
        earlier = resend.name


def test_one_slot_one_answer_across_processes(tmp_path: Path) -> None:
    """A child process with a copy of the state answers first; this one finds its slot filled."""
    cast = Cast()
    message = cast.begin()[0]
    saved = cast.clients[0].save()
    child = os.fork()
    if child == 0:
        try:
            client = cast.restore(0, saved)
            client.receive(message)
            respond(client, FileStore(tmp_path), client.task, np.full(5, 1))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    client = cast.restore(0, saved)
    client.receive(message)
    pending = client.answer(client.task, np.full(5, 2))
    store = FileStore(tmp_path)
    name = client.stored(store.keep(pending))
    assert name != pending.name
    assert len(list(tmp_path.glob("*.spool"))) == 1
    assert cast.server.receive(0, store.load(name)) is None


def test_nothing_is_sent_if_nothing_can_be_stored_and_the_same_answer_later(tmp_path: Path) -> None:
    cast = Cast()
    message = cast.begin()[0]
    client, folder = cast.clients[0], tmp_path / "store"
    store = FileStore(folder)
    client.receive(message)
    folder.rename(tmp_path / "away")
    with pytest.raises(JournalError, match=r"nothing was sent: repair it and retry"):
        respond(client, store, client.task, np.full(5, 1))
    (tmp_path / "away").rename(folder)
    assert client.state in (State.ASKED, State.MASKED)
    first = b"".join(respond(client, store, client.task, np.full(5, 1)))
    assert cast.server.receive(0, first) is None


def test_after_an_error_of_the_slot_the_masked_bytes_stay_the_same(tmp_path: Path) -> None:
    class Failing(MemoryJournal):
        broken = True

        def create(self, name: str, content: bytes) -> bytes | None:
            if self.broken:
                raise OSError(28, "No space left on device")
            return super().create(name, content)

    cast, journal = Cast(), Failing()
    client, message, store = cast.clients[0], cast.begin()[0], FileStore(tmp_path, journal)
    client.receive(message)
    with pytest.raises(JournalError, match="No space left"):
        respond(client, store, client.task, np.full(5, 1))
    assert client.pending is not None
    masked = encode(client.pending.message)
    assert [key.round for key in client._memory.keys] == [0]
    journal.broken = False
    assert b"".join(respond(client, store, client.task, np.full(5, 2))) == masked


def test_spool_and_folder_are_synced_before_the_slot_is_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        seen.append("folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "file")
        real(handle)

    class Watching(MemoryJournal):
        def create(self, name: str, content: bytes) -> bytes | None:
            seen.append("slot")
            return super().create(name, content)

    cast = Cast()
    client, store = cast.clients[0], FileStore(tmp_path, Watching())
    client.receive(cast.begin()[0])
    monkeypatch.setattr(os, "fsync", fsync)
    respond(client, store, client.task, np.full(5, 1))
    assert seen == ["slot", "file", "folder", "slot"]  # first that of the agreement


def test_a_store_of_slots_keeps_no_vectors() -> None:
    cast, store = Cast(), SlotStore()
    client, message = cast.clients[0], cast.begin()[0]
    saved = client.save()
    client.receive(message)
    respond(client, store, client.task, np.full(5, 1))
    with pytest.raises(UsageError, match="no spool"):
        store.load(client._memory.last.hex())
    late = cast.restore(0, saved)
    late.receive(message)
    pending = late.answer(late.task, np.full(5, 2))
    assert late.stored(store.keep(pending)) == client._memory.last.hex()


def test_a_released_slot_stays_released_across_processes(tmp_path: Path) -> None:
    cast = Cast()
    message = cast.begin()[0]
    client = cast.clients[0]
    saved = client.save()
    client.stored(FileStore(tmp_path).keep(client.release(0)))
    late = cast.restore(0, saved)
    late.receive(message)
    pending = late.answer(late.task, np.full(5, 1))
    assert isinstance(pending.message, Answer)
    with pytest.raises(AlreadyUsed):
        late.stored(FileStore(tmp_path).keep(pending))


def test_importing_the_room_does_not_load_the_compiler() -> None:
    check = "import sys, secagg.whole; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True, cwd=Path(__file__).parents[3])


def test_a_client_whose_saved_bytes_are_lost_goes_on_from_its_store(store: FileStore | MemoryStore) -> None:
    """It answers no round before the last one, sends the last answer again, and names it in the next."""
    cast, identity = Cast(), Cast().identities[0]
    assert cast.restore(0, recall(cast.agreement, 0, identity, store)).answered is None
    client, sent = cast.clients[0], b""
    for round in (1, 3):
        box = cast.begin(round)
        client.receive(box[0])
        sent = b"".join(respond(client, store, client.task, np.full(5, round)))
        cast.server.close()
    again = cast.restore(0, recall(cast.agreement, 0, identity, store))
    assert (again.answered, again._memory.last, again._memory.keys) == (3, client._memory.last, ())
    resend = again.receive(box[0])
    assert isinstance(resend, Resend)
    assert bytes(store.load(resend.name)) == sent
    for round in (2, 3):
        with pytest.raises(PeerError, match="but 3 is answered"):
            again.receive(Hello(cast.agreement.fingerprint, round))
    cast.clients[0] = again
    cast.server = Server(cast.agreement)  # it has no advert of before
    assert cast.answer(0, cast.begin(4)[0]).previous == client._memory.last


def test_only_what_is_in_a_slot_is_recalled(store: FileStore | MemoryStore) -> None:
    """Not a spool that was never claimed, nor a release, nor another client's answer."""
    cast, identity = Cast(), Cast().identities[0]
    client = cast.clients[0]
    client.receive(cast.begin(1)[0])
    pending = client.answer(client.task, np.full(5, 1))
    if isinstance(store, FileStore):
        store._write(store._path(pending.name), pending.parts)
        store._write(store._path("00"), [b"half a spool"])
    else:
        assert isinstance(store, MemoryStore)
        store._spools = {pending.name: b"".join(pending.parts), "00": b"half a spool"}
    assert cast.restore(0, recall(cast.agreement, 0, identity, store)).answered is None
    client.stored(store.keep(pending))
    client.stored(store.keep(client.release(2)))
    again = cast.restore(0, recall(cast.agreement, 0, identity, store))
    assert (again.answered, again._memory.last) == (1, client._memory.last)
    others = recall(cast.agreement, 1, cast.identities[1], store)
    assert cast.restore(1, others).answered is None

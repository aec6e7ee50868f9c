"""Where a client's answers are kept: a spool of masked bytes, and the exclusive slot of each round.

The spool is written and synced first, then the slot is claimed with the hash that names the spool. So a filled slot
always has its spool, and an answer that was sent once can be sent again, byte for byte.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from secagg.arguments import has, instance
from secagg.codec import Buffer
from secagg.errors import AgreementRefused, BudgetExceeded, JournalError, UsageError
from secagg.privacy.budget import Charge
from secagg.protocol import ledger
from secagg.protocol.enrolment import record_agreement
from secagg.protocol.journal import FileJournal, Journal, MemoryJournal, storage_errors, sync
from secagg.protocol.journal import load as read_record
from secagg.protocol.journal import store as create_record
from secagg.types import Ring32
from secagg.whole.client import Client
from secagg.whole.client_state import Pending, Task


class Store(Protocol):
    """What `respond` needs. `MemoryStore` shows the contract.

    >>> from secagg.whole import MemoryStore, Store
    >>> store: Store = MemoryStore()
    """

    def look(self, slot: str) -> bytes | None:
        """The record in a slot, or None."""
        ...

    def keep(self, pending: Pending) -> bytes | None:
        """Pay the charge, store the spool durably, then claim the slot. None, or the record that the slot already had.

        It must be atomic between processes. Raise JournalError to refuse; then nothing is sent. `pay` raises
        BudgetExceeded.
        """
        ...

    def spent(self) -> Charge:
        """What all answers kept here have cost."""
        ...

    def load(self, name: str) -> Buffer:
        """The spool of this name; UsageError if it is not there."""
        ...

    def claim(self, slot: str, record: bytes) -> bytes | None:
        """Claim a slot without a spool. None, or the record that the slot already had. As durable as `keep`."""
        ...


class MemoryStore:
    """For simulations and tests, where all clients live in one process.

    >>> MemoryStore().load("00")
    Traceback (most recent call last):
    secagg.errors.UsageError: no spool 00 is stored here
    """

    def __init__(self, journal: Journal | None = None) -> None:
        self._journal = journal if journal is not None else MemoryJournal()
        self._spools: dict[str, bytes] = {}

    def look(self, slot: str) -> bytes | None:
        return read_record(self._journal, slot)

    def spent(self) -> Charge:
        return ledger.spent(self._journal)

    def claim(self, slot: str, record: bytes) -> bytes | None:
        return create_record(self._journal, slot, record)

    def keep(self, pending: Pending) -> bytes | None:
        _pay(self._journal, instance("pending", pending, Pending))
        self._spools[pending.name] = b"".join(pending.parts)
        found = create_record(self._journal, pending.slot, pending.record)
        self._spools.pop(pending.obsolete if found is None else "", None)
        return found

    def load(self, name: str) -> Buffer:
        if instance("name", name, str) not in self._spools:
            raise UsageError(f"no spool {name} is stored here")
        return self._spools[name]

    def spools(self) -> list[str]:
        """The names of all spools."""
        return sorted(self._spools)


class SlotStore(MemoryStore):
    """Keeps the slots and no spools: for simulations, where no answer gets lost and vectors would fill the memory.

    >>> SlotStore().load("00")
    Traceback (most recent call last):
    secagg.errors.UsageError: no spool 00 is stored here
    """

    def keep(self, pending: Pending) -> bytes | None:
        _pay(self._journal, pending)
        return create_record(self._journal, pending.slot, pending.record)


class FileStore:
    """Spools and slots in a folder; one spool per client is kept, that of its last answer.

    >>> from tempfile import mkdtemp
    >>> FileStore(mkdtemp()).load("00")
    Traceback (most recent call last):
    secagg.errors.UsageError: no spool 00 is stored here
    """

    def __init__(self, folder: Path | str, journal: Journal | None = None) -> None:
        self._journal = journal if journal is not None else FileJournal(folder)
        self._folder = Path(folder)
        with storage_errors("store", f"open {folder}"):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def look(self, slot: str) -> bytes | None:
        return read_record(self._journal, slot)

    def spent(self) -> Charge:
        return ledger.spent(self._journal)

    def claim(self, slot: str, record: bytes) -> bytes | None:
        return create_record(self._journal, slot, record)

    def keep(self, pending: Pending) -> bytes | None:
        _pay(self._journal, pending)
        with storage_errors("store", f"store the spool {pending.name}"):
            self._write(self._path(pending.name), pending.parts)
        found = create_record(self._journal, pending.slot, pending.record)
        with suppress(OSError):  # a spool that stays behind does no harm
            if found is None and pending.obsolete:
                self._path(pending.obsolete).unlink()
            elif found not in (None, pending.record):
                self._path(pending.name).unlink()
        return found

    def _write(self, final: Path, parts: list[Buffer]) -> None:
        """Written beside its name, synced, then renamed: nobody reads half a spool."""
        draft = final.with_suffix(f".{os.getpid()}.{os.urandom(8).hex()}")
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.writelines(parts)
                file.flush()
                os.fsync(file.fileno())  # audit: spool-synced
            os.replace(draft, final)
        finally:
            draft.unlink(missing_ok=True)
        sync(self._folder)  # audit: spool-folder-synced

    def load(self, name: str) -> Buffer:
        try:
            with storage_errors("store", f"read the spool {name}"):
                return self._path(name).read_bytes()
        except JournalError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise UsageError(f"no spool {name} is stored here") from None
            raise

    def spools(self) -> list[str]:
        """The names of all spools: of the last answer, and perhaps of some that were never claimed."""
        with storage_errors("store", f"list {self._folder}"):
            return sorted(path.name.removesuffix(".spool") for path in self._folder.glob("*.spool"))

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.spool"


def _pay(journal: Journal, pending: Pending) -> None:
    """Charge an answer with noise before it is stored. A slot that is filled was paid for when it was filled.

    The charge depends on the members that the server called. If an earlier answer for this slot was paid for and never
    stored, this one is paid for all the same, unless it costs exactly as much.
    """
    if pending.charge is not None and read_record(journal, pending.slot) is None:
        ledger.pay(journal, pending.slot.encode(), pending.charge, pending.budget)  # audit: answer-paid-first


def enrol(client: Client, store: Store) -> None:
    """Record that a client answers under its agreement. AgreementRefused, and nothing recorded, if it must not.

    A store is for one kind of data. If its client has answered under other agreements, this one must name them as its
    predecessors: then the client was made with them, and what all of them open together keeps the policy. `respond`
    calls this.

    >>> from secagg.simulation import make_agreement
    >>> from secagg.whole import Client, MemoryStore, enrol
    >>> agreement, identities = make_agreement(members=3, size=3, length=3, bound=9)
    >>> signatures = {v: agreement.sign(v, identity) for v, identity in identities.items()}
    >>> enrol(Client(agreement, signatures, 0, identities[0]), MemoryStore())
    """
    instance("client", client, Client)
    has("store", store, "a Store", "look", "claim", "keep", "load")
    mine, terms = client.agreement.fingerprint, client.agreement.terms

    def claim(slot: str, record: bytes) -> bytes | None:
        return store.look(slot) or store.claim(slot, record)

    record_agreement(mine, terms, terms.identities[client.me], claim, all_named=True)


def respond(
    client: Client, store: Store, task: Task, update: Any, *, context: bytes = b"", out: Ring32 | None = None
) -> list[Buffer]:
    """Answer a task that `Client.receive` gave: mask, store, and give the bytes to send, in pieces.

    If the slot of the round is filled, the spool of that answer is sent again and the update is not used. After a
    JournalError nothing was sent: repair the storage and call it again; the update is not masked a second time. After a
    BudgetExceeded nothing was sent, and the masked update is forgotten.

    >>> from secagg.simulation import make_agreement
    >>> from secagg.whole import Client, Hello, MemoryStore, Server, respond
    >>> agreement, identities = make_agreement(members=3, size=3, length=3, bound=9)
    >>> signatures = {v: agreement.sign(v, identity) for v, identity in identities.items()}
    >>> clients = {v: Client(agreement, signatures, v, identities[v]) for v in identities}
    >>> server, store = Server(agreement), MemoryStore()
    >>> for v, client in clients.items():
    ...     _ = server.receive(v, client.receive(Hello(agreement.fingerprint, 0)))
    >>> for v, message in server.begin(0).items():
    ...     task = clients[v].receive(message)
    ...     _ = server.receive(v, b"".join(respond(clients[v], store, task, [v, 1, 2])))
    >>> server.close().sum((0, 0))
    array([3, 3, 6])
    """
    instance("client", client, Client)
    has("store", store, "a Store", "look", "claim", "keep", "load")
    if client.pending is None:
        waiting = client.task
        found = waiting and store.look(waiting.slot)
        if found:  # audit: filled-slot-found-first
            return [store.load(client.stored(found))]
        client.answer(task, update, context=context, out=out)
    pending = client.pending
    assert pending is not None
    try:
        enrol(client, store)
        found = store.keep(pending)
    except (AgreementRefused, BudgetExceeded):
        client.abandon()
        raise
    name = client.stored(found)
    return pending.parts if name == pending.name else [store.load(name)]

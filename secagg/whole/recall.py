"""A client whose saved bytes are lost, from its store: what it has answered, and no keys."""

from __future__ import annotations

from secagg.agreement.agreement import Agreement
from secagg.arguments import has, instance
from secagg.crypto.keys import Identity
from secagg.errors import PeerError
from secagg.types import ClientId
from secagg.whole import client_state, transcript
from secagg.whole.client_state import ANSWER_RECORD, ClientMemory
from secagg.whole.messages import Answer, decode
from secagg.whole.store import FileStore, MemoryStore


def recall(agreement: Agreement, me: ClientId, identity: Identity, store: FileStore | MemoryStore) -> bytes:
    """What `Client.restore` reads, from a store alone, for a client whose saved bytes are lost.

    The client has no keys, so the server has to ask for adverts. The last answer is stored to be sent again, so it
    knows the last round that it answered: it answers none before it, and its next answer names the last one, as
    evidence demands. `Client.spent` begins again from nothing; `Store.spent` has everything.

    >>> from secagg.simulation import make_agreement
    >>> from secagg.whole import Client, MemoryStore, recall
    >>> agreement, identities = make_agreement(members=3, size=3, length=3, bound=9)
    >>> signatures = {v: agreement.sign(v, identity) for v, identity in identities.items()}
    >>> lost = recall(agreement, 0, identities[0], MemoryStore())
    >>> Client.restore(lost, agreement, signatures, 0, identities[0]).answered is None  # it had answered nothing
    True
    """
    instance("agreement", agreement, Agreement)
    instance("identity", identity, Identity)
    has("store", store, "a store with spools", "look", "load", "spools")
    memory = ClientMemory(me=me, fingerprint=agreement.fingerprint)
    for name in store.spools():
        try:
            answer = decode(store.load(name))
        except PeerError:
            continue
        if not isinstance(answer, Answer) or (memory.answered and answer.round < memory.answered[0]):
            continue
        record = store.look(transcript.slot_name(identity.public, agreement.fingerprint, answer.round))
        if record is not None and record == ANSWER_RECORD + bytes.fromhex(name):  # audit: recalled-answer-in-slot
            memory.answered, memory.last = (answer.round,), bytes.fromhex(name)
    return client_state.save(memory)

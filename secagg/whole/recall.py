"""A client whose saved bytes are lost, from its store: what it has answered, and no keys."""

from __future__ import annotations

from itertools import count

from secagg import labels
from secagg.agreement.agreement import Agreement
from secagg.arguments import has, instance
from secagg.crypto.keys import Identity
from secagg.protocol.journal import record_name
from secagg.types import ClientId
from secagg.whole import client_state, transcript
from secagg.whole.client_state import ANSWER_RECORD, ClientMemory
from secagg.whole.store import Store


def recall(agreement: Agreement, me: ClientId, identity: Identity, store: Store) -> bytes:
    """What `Client.restore` reads, from the slots of a store alone, for a client whose saved bytes are lost.

    The client has no keys, so the server has to ask for adverts. It knows the last round that it answered: it answers
    none before it, and its next answer names the last one, as evidence demands. `Client.spent` begins again from
    nothing; `Store.spent` has everything.

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
    has("store", store, "a Store", "look", "claim", "keep", "load")
    memory = ClientMemory(me=me, fingerprint=agreement.fingerprint)
    for round in reversed(agreement.terms.rounds) if _enrolled(agreement, identity, store) else ():
        found = store.look(transcript.slot_name(identity.public, agreement.fingerprint, round))
        if found is None:
            continue
        answer = bytes(found).startswith(ANSWER_RECORD)
        if not memory.answered:  # audit: recalled-round-stays-answered
            memory.answered, memory.released = (round,), int(not answer)
        if answer:  # audit: recalled-answers-chained
            memory.last = bytes(found)[len(ANSWER_RECORD) :]
            break
    return client_state.save(memory)


def _enrolled(agreement: Agreement, identity: Identity, store: Store) -> bool:
    """Whether the client has answered under this agreement. Without this look, a new client would try every slot."""
    for number in count():
        name = record_name(labels.AGREEMENT_RECORD, identity.public, number.to_bytes(8, "little"))
        found = store.look(name)
        if found is None or bytes(found) == agreement.fingerprint:
            return found is not None
    raise AssertionError("there is no last record")

"""What the server shows to each client, and what that client must sign.

With the complete graph all clients are shown the same dealers and sign the same statement (`CommonViews`).
In sparse mode each client is shown its own neighbourhood (`Views`). `views_of` chooses, once, by the plan.
"""

from bisect import bisect_left
from collections.abc import Mapping
from functools import cached_property

import numpy as np

from secagg.crypto import hashtree
from secagg.crypto.keys import HASH_BYTES
from secagg.protocol import transcript
from secagg.protocol.dealing import box_bytes, write_proof, write_proofs
from secagg.protocol.messages import Bundle, Dealer, Dealing
from secagg.protocol.server_state import ServerMemory
from secagg.types import ClientId


class Views:
    """One view per client: of its neighbourhood, itself included."""

    common = False  # whether all clients have the same view

    def __init__(self, memory: ServerMemory) -> None:
        self._memory = memory
        self._plan = memory.plan
        self.trees = {dealer: self.tree(dealing) for dealer, dealing in memory.dealings.items()}

    def tree(self, dealing: Dealing) -> list[bytes]:
        """The hash tree over the hashes of a dealing, one leaf per share holder."""
        width = (len(self._plan.groupings) + 1) * HASH_BYTES
        return hashtree.levels(hashtree.leaves(np.frombuffer(dealing.hashes, np.uint8).reshape(-1, width)))

    def places(self, dealer: ClientId) -> Mapping[ClientId, int]:
        """The share holders of a dealer (its peers in U1, itself included), and the place of each."""
        peers = (v for v in self._plan.peers(dealer) if v in self._memory.adverts)
        return {holder: place for place, holder in enumerate(peers)}

    def dealers(self, client: ClientId) -> tuple[Dealer, ...]:
        """U2 as this client is shown it."""
        dealings = self._memory.dealings
        seen = (dealings[v] for v in self._plan.peers(client) if v in dealings)
        return tuple(Dealer(dealing.sender, dealing.commitments, dealing.root) for dealing in seen)

    def digest(self, client: ClientId) -> bytes:
        """The hash of U2 that this client must sign in stage 2."""
        adverts = self._memory.adverts
        members = [(adverts[dealer.id], dealer) for dealer in self.dealers(client)]
        return transcript.view(self._plan.hash, members)

    def statement(self, client: ClientId) -> bytes:
        """What this client must sign in stage 3."""
        survivors, groups = sorted(self._memory.survivors), self._memory.groups
        return transcript.opening(self._plan, self.digest(client), survivors, self._inputs, groups)

    @cached_property
    def _inputs(self) -> bytes:
        """The hash of all masked inputs, once stage 2 is closed."""
        return transcript.inputs_hash(member for _, member in sorted(self._memory.survivors.items()))

    def bundle(self, client: ClientId) -> Bundle:
        """U2, and from each dealer this client's box and the proof of its share hashes."""
        dealers, size = self.dealers(client), box_bytes(self._plan)
        boxes, proofs = [], []
        for dealer in (dealer.id for dealer in dealers if dealer.id != client):
            place = self.places(dealer)[client]
            start = (place - (dealer < client)) * size
            boxes.append(self._memory.dealings[dealer].boxes[start : start + size])
            proofs.append(write_proof(place, hashtree.proof(self.trees[dealer], place)))
        return Bundle(dealers, b"".join(boxes), b"".join(proofs))


class CommonViews(Views):
    """The same view for all clients, computed once."""

    common = True

    def places(self, dealer: ClientId) -> Mapping[ClientId, int]:
        return self._places

    @cached_property
    def _places(self) -> Mapping[ClientId, int]:
        return super().places(self._plan.ids[0])

    def dealers(self, client: ClientId) -> tuple[Dealer, ...]:
        return self._dealers

    @cached_property
    def _dealers(self) -> tuple[Dealer, ...]:
        return super().dealers(self._plan.ids[0])

    def digest(self, client: ClientId) -> bytes:
        return self._digest

    @cached_property
    def _digest(self) -> bytes:
        return super().digest(self._plan.ids[0])

    def statement(self, client: ClientId) -> bytes:
        return self._statement

    @cached_property
    def _statement(self) -> bytes:
        return super().statement(self._plan.ids[0])

    def bundle(self, client: ClientId) -> Bundle:
        place, size = self._places[client], box_bytes(self._plan)
        mine = bisect_left(self._ids, client)
        start = place * size  # one box less for dealers before this client: they make none for themselves
        boxes = [sealed[start - size : start] for sealed in self._boxes[:mine]]
        boxes += [sealed[start : start + size] for sealed in self._boxes[mine + 1 :]]
        proofs = np.delete(write_proofs(place, self._forest), mine, axis=0)
        return Bundle(self._dealers, b"".join(boxes), proofs.tobytes())

    @cached_property
    def _ids(self) -> list[ClientId]:
        return [dealer.id for dealer in self._dealers]

    @cached_property
    def _boxes(self) -> list[bytes]:
        return [self._memory.dealings[dealer].boxes for dealer in self._ids]

    @cached_property
    def _forest(self) -> hashtree.Forest:
        return hashtree.forest([self.trees[dealer] for dealer in self._ids])


def views_of(memory: ServerMemory) -> Views:
    """The views of a run: one per client in sparse mode, otherwise one for all."""
    return Views(memory) if memory.plan.semi_honest_only else CommonViews(memory)

"""Real clients and a real server of small agreements, with messages that the test may change on the way."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from secagg.agreement.agreement import Agreement
from secagg.crypto.keys import AgreementKey, Identity
from secagg.exposure.audit import REPORT_EVEN_IF_EXPOSED, Policy
from secagg.simulation.agree import make_agreement
from secagg.whole import Advert, Answer, Client, Hello, MemoryStore, Round, Server, Task, WholeResult, transcript
from secagg.whole.layout import layout
from tests.secagg.drbg import Drbg

LOOSE = Policy(min_survivors=2, anonymity=2, max_leverage=1.0, memory="round", mode=REPORT_EVEN_IF_EXPOSED)


@cache
def agreed(**settings: Any) -> tuple[Agreement, dict[int, Identity]]:
    """An agreement and its identities, the same for the same settings: six members in fixed pairs by default."""
    chosen = {"members": 6, "size": 2, "length": 5, "bound": 1000, "rounds": 8, "policy": LOOSE} | settings
    return make_agreement(entropy=Drbg(repr(sorted(settings.items())).encode()), **chosen)


class Cast:
    """The members of one agreement, each with a client and a store of its own, and a server."""

    def __init__(self, **settings: Any) -> None:
        self.agreement, self.identities = agreed(**settings)
        self.signatures = {v: self.agreement.sign(v, identity) for v, identity in self.identities.items()}
        self.server = Server(self.agreement)
        self.clients = {v: self.new_client(v) for v in self.agreement.terms.ids}
        self.stores = {v: MemoryStore() for v in self.clients}

    def new_client(self, member: int) -> Client:
        return Client(self.agreement, self.signatures, member, self.identities[member])

    def restore(self, member: int, data: bytes) -> Client:
        return Client.restore(data, self.agreement, self.signatures, member, self.identities[member])

    def groups(self, round: int = 0) -> Mapping[tuple[int, int], tuple[int, ...]]:
        return layout(self.agreement, round).groups

    def mates(self, member: int, round: int = 0) -> list[int]:
        places = layout(self.agreement, round)
        return sorted({v for group in places.seats[member] for v in places.groups[group]} - {member})

    def hello(self, member: int, round: int = 0) -> Advert:
        advert = self.clients[member].receive(Hello(self.agreement.fingerprint, round))
        assert isinstance(advert, Advert)
        return advert

    def begin(self, round: int = 0, *, absent: Collection[int] = (), **given: Any) -> Mapping[int, Round]:
        """Collect the adverts that are missing and begin the round."""
        for member in self.server.hello(round):
            if member not in absent:
                assert self.server.receive(member, self.hello(member, round)) is None
        return self.server.begin(round, **given)

    def answer(self, member: int, message: Round, update: Any = None, context: bytes = b"") -> Answer:
        """The member's answer, stored."""
        client = self.clients[member]
        task = client.receive(message)
        values = update_of(self.agreement, member, message.round) if update is None else update
        assert isinstance(task, Task)
        pending = client.answer(task, values, context=context)
        client.stored(self.stores[member].keep(pending))
        assert isinstance(pending.message, Answer)
        return pending.message

    def round(
        self,
        round: int = 0,
        *,
        absent: Collection[int] = (),
        change: Callable[[Answer], Any] = lambda answer: answer,
        only: Collection[int] | None = None,
    ) -> WholeResult:
        """A whole round; `change` may alter the answers (of `only` these members) on their way to the server."""
        for member, message in self.begin(round, absent=absent).items():
            if member not in absent:
                answer = self.answer(member, message)
                self.server.receive(member, change(answer) if only is None or member in only else answer)
        return self.server.close()

    def signed(self, answer: Answer, **changes: Any) -> Answer:
        """The answer with other fields, signed again by its sender."""
        changed = replace(answer, **changes)
        rows = transcript.row_hashes(changed.vectors)
        hash = transcript.answer_hash(self.agreement.fingerprint, changed, rows)
        return replace(changed, signature=self.identities[changed.sender].sign(transcript.answer_statement(hash)))

    def advert(self, member: int, round: int, key: bytes | None = None) -> Advert:
        """A signed advert that the member's client knows nothing of."""
        unsigned = Advert(member, round, key or AgreementKey.generate().public, b"")
        statement = transcript.advert_statement(self.agreement.fingerprint, unsigned)
        return replace(unsigned, signature=self.identities[member].sign(statement))


def with_advert(message: Round, advert: Advert) -> Round:
    """The round message with another advert of the same member."""
    return replace(message, adverts=tuple(advert if a.sender == advert.sender else a for a in message.adverts))


def update_of(agreement: Agreement, member: int, round: int) -> np.ndarray[Any, Any]:
    """A vector that shows whose it is and of which round."""
    return np.arange(agreement.terms.length) + 10 * member + round

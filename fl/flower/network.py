"""Who sits where, and one exchange: questions out, answers in as they come, until a deadline.

An exchange costs seconds on Flower, mostly in fixed waits. So nothing here waits for a node that is known to
be gone, and nodes that turn up meanwhile (started late, or restarted) are greeted on the side: their keys for
the next round arrive while others work, without an exchange of their own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import httpx
from flwr.app import Message

from fl.flower import envelope
from fl.flower.client import seat_statement
from fl.flower.enrolment import Enrolment
from fl.flower.envelope import Envelope, MalformedError
from secagg.crypto.keys import verify
from secagg.errors import PeerError
from secagg.protocol.dealing import check_advert
from secagg.protocol.messages import KeyAdvert
from secagg.protocol.wire import decode

POLL: Final = 0.25  # seconds between two looks for answers
LOOK_AROUND: Final = 2.0  # seconds between two looks at who is connected


class Grid(Protocol):
    """What is used of Flower's Grid."""

    def push_messages(self, messages: list[Message]) -> list[str | None]: ...

    def pull_messages(self, message_ids: list[str]) -> list[Message]: ...

    def get_node_ids(self) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of one client. The parts are made when they are sent: all at once could be large."""

    action: str
    round: int
    parts: Callable[[], Mapping[str, bytes]]


@dataclass(frozen=True, slots=True)
class Answer:
    """What one client said, or why there is nothing."""

    client: int
    envelope: Envelope | None
    problem: str = ""


@dataclass(slots=True)
class Network:
    """The members of a training as Flower reaches them."""

    grid: Grid
    enrolment: Enrolment
    run_id: int
    seats: dict[int, int] = field(default_factory=dict)  # client -> Flower node
    adverts: dict[tuple[int, int], bytes] = field(default_factory=dict)  # (round, client) -> keys
    declined: set[tuple[int, int]] = field(default_factory=set)
    strangers: dict[int, str] = field(default_factory=dict)  # node -> why it is none of ours
    exchanges: int = 0
    _hellos: dict[str, tuple[int, int]] = field(default_factory=dict)  # message -> (round, node)
    _greeted: set[tuple[int, int]] = field(default_factory=set)  # (round, node)

    def exchange(
        self, questions: Mapping[int, Question], seconds: float, next_round: int | None
    ) -> Iterator[Answer]:
        """Ask, and give each answer as it comes; at the deadline give up on the rest.

        `next_round` is the round for which keys may come along, and for which newcomers are greeted.
        """
        self.exchanges += 1
        waiting: dict[str, int] = {}
        asked_at: dict[int, int] = {}
        for client, question in questions.items():
            node = self.seats.get(client)
            sent = None
            if node is not None:
                sent = self._push(node, question.action, question.round, question.parts(), seconds)
            if node is None or not sent:
                yield Answer(client, None, "its node is not connected")
            else:
                waiting[sent], asked_at[client] = client, node
        end = time.monotonic() + seconds  # sending is not the nodes' fault
        looked, last_look = 0.0, False
        while waiting and not last_look:
            last_look = time.monotonic() >= end
            for number, reply in self._pull(list(waiting)):
                client = waiting.pop(number)
                answer = self._opened(client, questions[client].round, reply)
                self._take_next_keys(client, asked_at[client], next_round, answer)
                yield answer
            if time.monotonic() - looked > LOOK_AROUND:
                looked = time.monotonic()
                connected = self._connected()
                if next_round is not None:
                    self._greet(next_round, connected - set(self.seats.values()), seconds)
                for number, client in list(waiting.items()):
                    if asked_at[client] not in connected or self.seats.get(client) != asked_at[client]:
                        del waiting[number]
                        self._unseat(client, asked_at[client])
                        yield Answer(client, None, "its node is gone")
            if waiting:
                time.sleep(POLL)
        for client in waiting.values():
            yield Answer(client, None, "it did not answer in time")

    def assemble(
        self,
        round: int,
        groups: Sequence[tuple[Collection[int], int]],
        *,
        seconds: float,
        patience: float,
        unseen: float = 0.0,
    ) -> None:
        """Ask for keys until all of the groups' clients have sent them, or nobody else is there to ask.

        A group is some clients, and how many of them are enough. Waits at most `seconds` for that, and after
        it at most `patience` for nodes that were asked, and `unseen` for nodes that are not connected. This
        is the exchange that opens a training; later there is nobody to ask but nodes that came back, whose
        earlier keys are worth nothing.
        """
        wanted = {client for clients, _ in groups for client in clients}
        begun = time.monotonic()
        ready = math.inf
        asked = False
        while time.monotonic() - begun < seconds:
            elsewhere = {node for client, node in self.seats.items() if client not in wanted}
            settled = self._settled(round, wanted)
            if settled:  # nobody is missing, so whoever was no member before is none now
                elsewhere |= set(self.strangers)
            asked |= self._greet(round, self._connected() - elsewhere, seconds)
            for _ in self._pull(()):
                raise AssertionError("nothing but hellos is out")
            pending = any(hello[0] == round for hello in self._hellos.values())
            if self._settled(round, wanted) and not pending:
                break
            if all(sum(self.has_keys(round, c) for c in clients) >= enough for clients, enough in groups):
                ready = min(ready, time.monotonic())
            if time.monotonic() - ready >= (patience if pending else unseen):
                break
            time.sleep(POLL)
        self.exchanges += asked

    def _settled(self, round: int, wanted: Collection[int]) -> bool:
        return all(self.has_keys(round, c) or (round, c) in self.declined for c in wanted)

    def _pull(self, waiting: Collection[str]) -> Iterator[tuple[str, Message | None]]:
        """Answers that have come, None for one that cannot be read. Hellos are taken here.

        One at a time: Flower decodes what nodes sent while it pulls, and a reply that does not decode must
        cost its sender alone.
        """
        for number in (*waiting, *self._hellos):
            try:
                replies: list[Message | None] = [*self.grid.pull_messages([number])]
            except (OSError, httpx.HTTPError):
                raise  # the SuperLink is gone, which is nobody's answer
            except Exception:
                replies = [None]
            for reply in replies:
                if number in self._hellos:
                    round, node = self._hellos.pop(number)
                    self._seat(node, round, reply)
                else:
                    yield number, reply

    def _unseat(self, client: int, node: int) -> None:
        if self.seats.get(client) == node:
            del self.seats[client]

    def _connected(self) -> set[int]:
        connected = set(self.grid.get_node_ids())
        self._hellos = {number: hello for number, hello in self._hellos.items() if hello[1] in connected}
        return connected

    def has_keys(self, round: int, client: int) -> bool:
        return (round, client) in self.adverts

    def forget(self, round: int) -> None:
        """Keys serve one run: a repeated run of the same round needs fresh ones."""
        for store in (self.adverts, self.declined):
            for entry in [entry for entry in store if entry[0] == round]:
                store.pop(entry) if isinstance(store, dict) else store.discard(entry)
        self._greeted = {entry for entry in self._greeted if entry[0] != round}

    def _greet(self, round: int, nodes: Collection[int], seconds: float) -> bool:
        """Ask these nodes for keys, unless they were asked or their keys are here; whether any was asked."""
        seated = {node: client for client, node in self.seats.items()}
        asked = False
        for node in sorted(nodes):
            client = seated.get(node)
            if (round, node) in self._greeted:
                continue
            if client is not None and (self.has_keys(round, client) or (round, client) in self.declined):
                continue
            sent = self._push(node, envelope.HELLO, round, {}, seconds)
            if sent:
                self._greeted.add((round, node))
                self._hellos[sent] = (round, node)
                asked = True
        return asked

    def _push(self, node: int, action: str, round: int, parts: Mapping[str, bytes], ttl: float) -> str | None:
        content = envelope.pack(Envelope(round, parts))
        message = Message(content, node, f"query.{action}", ttl=ttl, group_id=str(round + 1))
        (sent,) = self.grid.push_messages([message]) or (None,)
        return sent

    def _opened(self, client: int, round: int, reply: Message | None) -> Answer:
        if reply is None:
            return Answer(client, None, "Flower cannot decode its answer")
        if reply.has_error():
            return Answer(client, None, f"Flower reports error {reply.error.code}")
        try:
            found = envelope.unpack(reply.content)
        except MalformedError as error:
            return Answer(client, None, str(error))
        if found.refused:
            return Answer(client, found, f"it refused: {found.refused}")
        if found.round != round:
            return Answer(client, None, f"it answered for round {found.round + 1}")
        return Answer(client, found)

    def _seat(self, node: int, round: int, reply: Message | None) -> None:
        """Learn who sits at a node, if it proves it, and take its keys."""
        if reply is None or reply.has_error():
            return
        try:
            found = envelope.unpack(reply.content)
            if found.refused:
                raise PeerError(found.refused)
            self._take_keys(node, round, found)
        except (MalformedError, PeerError) as error:
            if node not in self.seats.values():
                self.strangers[node] = str(error)

    def _take_next_keys(self, client: int, node: int, round: int | None, answer: Answer) -> None:
        if round is None or answer.envelope is None or "seat" not in answer.envelope.parts:
            return
        try:
            self._take_keys(node, round, answer.envelope, client)
        except PeerError:
            self.declined.add((round, client))

    def _take_keys(self, node: int, round: int, found: Envelope, expected: int | None = None) -> None:
        """Seat whoever proves to be a member at this node; its keys are checked like any peer's."""
        client = int.from_bytes(found.parts.get("member", b""), "little")
        if not 0 <= client < len(self.enrolment.members) or expected not in (None, client):
            raise PeerError("it does not say which member it is")
        data, signature = found.parts.get("advert", b""), found.parts.get("seat", b"")
        statement = seat_statement(self.enrolment.training_id, self.run_id, node, client, data)
        verify(self.enrolment.members[client].identity, signature, statement, signer=client)
        self.seats[client] = node
        self.strangers.pop(node, None)
        if not data:
            self.declined.add((round, client))
            return
        advert, plan = decode(data), self.enrolment.plan_of(client, round)
        if not isinstance(advert, KeyAdvert) or advert.sender != client or plan is None:
            raise PeerError(f"client {client} sent no keys of its own for round {round + 1}")
        check_advert(plan, advert)
        self.adverts[round, client] = data

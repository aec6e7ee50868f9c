"""Where each client is, and one exchange: requests out, responses in as they arrive, until a deadline.

An exchange costs seconds on Flower, mostly fixed waits. So nothing here waits for a node that is known to be
disconnected. Nodes that appear meanwhile (started late, or restarted) are asked for their keys at the same time: these
arrive while others work, without an exchange of their own. With whole groups a node that returns has kept its state: it
is sent the request again.
"""

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import httpx
from flwr.app import Message

from fl.flower import envelope
from fl.flower.client import location_statement
from fl.flower.envelope import Envelope, MalformedError
from fl.flower.now import JOINING, Watch
from fl.flower.training import Training
from secagg import PeerError
from secagg.crypto import verify

POLL: Final = 0.25  # seconds between two looks for responses
LOOK_AROUND: Final = 2.0  # seconds between two looks at which nodes are connected


class Grid(Protocol):
    """The part of Flower's Grid that is used here."""

    def push_messages(self, messages: list[Message]) -> list[str | None]: ...
    def pull_messages(self, message_ids: list[str]) -> list[Message]: ...
    def get_node_ids(self) -> list[int]: ...


class Keys(Protocol):
    """The keys that clients have sent for rounds to come, checked when they arrive."""

    def has(self, round: int, client: int) -> bool: ...
    def take(self, round: int, client: int, data: bytes) -> None:
        """Keep the keys of a client; PeerError if they are not its own, or not for this round."""

    def forget(self, round: int) -> None:
        """Drop the keys of a round. They serve one run: a repeated run needs fresh ones."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of one client. The parts are made when they are sent: all together could be large."""

    action: str
    round: int
    parts: Callable[[], Mapping[str, bytes]]


@dataclass(frozen=True, slots=True)
class Response:
    """What one client sent, or the reason why there is nothing."""

    client: int
    envelope: Envelope | None
    problem: str = ""


@dataclass(slots=True)
class Network:
    """The clients of a training as Flower reaches them."""

    grid: Grid
    training: Training
    run_id: int
    keys: Keys
    nodes: dict[int, int] = field(default_factory=dict)  # client -> Flower node
    declined: set[tuple[int, int]] = field(default_factory=set)  # (round, client) without keys
    strangers: dict[int, str] = field(default_factory=dict)  # node -> why it is not a client
    mistaken: set[int] = field(default_factory=set)  # strangers that would refuse every round
    refused: dict[int, str] = field(default_factory=dict)  # clients that would, and why
    exchanges: int = 0
    watch: Watch = field(default_factory=Watch)
    _hellos: dict[str, tuple[int, int]] = field(default_factory=dict)  # message -> (round, node)
    _greeted: set[tuple[int, int]] = field(default_factory=set)  # (round, node)
    _last_seen: set[int] = field(default_factory=set)  # the nodes that were connected at the last look
    _told: dict[int, str] = field(default_factory=dict)  # strangers that the user knows of

    def exchange(
        self, requests: Mapping[int, Request], seconds: float, greeting: int | None, *, follow: bool = False
    ) -> Iterator[Response]:
        """Send, and yield each response as it arrives; after the deadline, give up on the rest.

        `greeting` is the round whose keys may come along, and for which new nodes are asked. With `follow`, a client
        that appears at another node is sent its request again.
        """
        self.exchanges += 1
        for request in sorted(requests.values(), key=lambda one: one.action == envelope.HELLO)[:1]:
            self._show(self._last_seen)
            self.watch.begin(request.action, request.round, requests, seconds)
        flight = Flight(self, requests, seconds)
        flight.send(requests)
        end = time.monotonic() + seconds  # the time that sending takes does not count
        looked, last_look = 0.0, False
        while (flight.waiting or (follow and flight.away and self._hellos)) and not last_look:
            last_look = time.monotonic() >= end
            for number, reply in self._pull(list(flight.waiting)):
                client = flight.waiting.pop(number)
                response = self._read(client, requests[client].round, reply)
                self._take_next_keys(client, flight.asked[client], greeting, response)
                self.watch.answered(client, response.problem)
                yield response
            if time.monotonic() - looked > LOOK_AROUND:
                looked = time.monotonic()
                connected = self._connected()
                if greeting is not None:
                    self._greet(greeting, connected - set(self.nodes.values()), seconds)
                flight.notice_gone(connected)
                self._show(connected)
            if follow:
                flight.send([client for client in flight.away if client in self.nodes])
            time.sleep(POLL if flight.waiting else 0)
        for client, why in flight.away.items():
            yield Response(client, None, why)
        for client in flight.waiting.values():
            yield Response(client, None, "it did not answer in time")

    def assemble(
        self,
        round: int,
        wanted: Collection[int],
        enough: Callable[[], bool],
        *,
        seconds: float,
        patience: float,
        unseen: float = 0.0,
    ) -> None:
        """Ask for keys until all wanted clients have sent them, or no other node can be asked.

        This waits at most `seconds` for enough, and after that at most `patience` for nodes that were asked and
        `unseen` for nodes that are not connected. It is the exchange that begins a training. Later it asks only nodes
        that are new or have returned, and those whose keys are missing.
        """
        begun, ready, asked = time.monotonic(), math.inf, False
        while time.monotonic() - begun < seconds:
            elsewhere = {node for client, node in self.nodes.items() if client not in wanted}
            if self._settled(round, wanted):  # no client is missing, so the strangers remain strangers
                elsewhere |= set(self.strangers)
            connected = self._connected()
            asked |= self._greet(round, connected - elsewhere, seconds)
            for _ in self._pull(()):
                raise AssertionError("only hellos are under way")
            pending = any(hello[0] == round for hello in self._hellos.values())
            if self._settled(round, wanted) and not pending:
                break
            if enough():
                ready = min(ready, time.monotonic())
            if time.monotonic() - ready >= (patience if pending else unseen):
                break
            self.watch.begin(JOINING, round, wanted, seconds)
            for client in wanted:
                if self._settled(round, [client]):
                    self.watch.answered(client)
            self._show(connected)
            time.sleep(POLL)
        self.exchanges += asked

    def _show(self, connected: Collection[int]) -> None:
        self.watch.look([client for client, node in self.nodes.items() if node in connected], self.strangers)

    def hello_parts(self) -> Mapping[str, bytes]:
        """The first message names the agreement, so that a node with another one can say so."""
        return {"fingerprint": self.training.fingerprint}

    def tell_strangers(self, note: Callable[[str], None]) -> None:
        """Tell once of every node that is not a client of this training, and why."""
        for node, why in self.strangers.items():
            if self._told.get(node) != why:
                note(f"node {node} is not part of this training: {why}")
                self._told[node] = why

    def lose(self, client: int) -> None:
        """The node of a client has disconnected. If it returns, it is greeted again."""
        node = self.nodes.pop(client)
        self._greeted = {entry for entry in self._greeted if entry[1] != node}

    def forget(self, round: int) -> None:
        """Drop the keys of a round, so that it is asked for fresh ones."""
        self.keys.forget(round)
        self.declined = {entry for entry in self.declined if entry[0] != round}
        self._greeted = {entry for entry in self._greeted if entry[0] != round}

    def _settled(self, round: int, wanted: Collection[int]) -> bool:
        """Whether each of these clients is at a known node and has sent its keys, or has declined."""
        have = (client in self.nodes and self.keys.has(round, client) for client in wanted)
        return all(found or (round, client) in self.declined for found, client in zip(have, wanted, strict=True))

    def _pull(self, waiting: Collection[str]) -> Iterator[tuple[str, Message | None]]:
        """The responses that have arrived, None for one that cannot be read. Hellos are taken here."""
        for number in (*waiting, *self._hellos):
            for reply in pull_one(self.grid, number):
                if number in self._hellos:
                    round, node = self._hellos.pop(number)
                    self._take_hello(node, round, reply)
                else:
                    yield number, reply

    def _connected(self) -> set[int]:
        self._last_seen = connected = set(self.grid.get_node_ids())
        self._hellos = {number: hello for number, hello in self._hellos.items() if hello[1] in connected}
        return connected

    def _greet(self, round: int, nodes: Collection[int], seconds: float) -> bool:
        """Ask these nodes for keys unless they were asked or have sent them. True if any was asked."""
        client_at = {node: client for client, node in self.nodes.items()}
        asked = False
        for node in sorted(nodes):
            client = client_at.get(node)
            if (round, node) in self._greeted or (client is not None and self._settled(round, [client])):
                continue
            sent = self.push(node, envelope.HELLO, round, self.hello_parts(), seconds)
            if sent:
                self._greeted.add((round, node))
                self._hellos[sent] = (round, node)
                asked = True
        return asked

    def push(self, node: int, action: str, round: int, parts: Mapping[str, bytes], ttl: float) -> str | None:
        content = envelope.pack(Envelope(round, parts), inside=True)
        message = Message(content, node, f"query.{action}", ttl=ttl, group_id=str(round + 1))
        (sent,) = self.grid.push_messages([message]) or (None,)
        return sent

    def _read(self, client: int, round: int, reply: Message | None) -> Response:
        if reply is None:
            return Response(client, None, "Flower cannot decode its answer")
        if reply.has_error():
            return Response(client, None, f"Flower reports error {reply.error.code}")
        try:
            found = envelope.unpack(reply.content)
        except MalformedError as error:
            return Response(client, None, str(error))
        self.refused.pop(client, None)
        if found.refused:
            if found.permanent:
                self.refused[client] = found.refused
            return Response(client, found, f"it refused: {found.refused}")
        if found.round != round:
            return Response(client, None, f"it answered for round {found.round + 1}")
        return Response(client, found)

    def _take_hello(self, node: int, round: int, reply: Message | None) -> None:
        """Learn which client is at a node, if it proves it, and take its keys."""
        if reply is None or reply.has_error():
            return
        try:
            found = envelope.unpack(reply.content)
            if found.refused:
                self.mistaken |= {node} if found.permanent else set()
                raise PeerError(found.refused)
            self._take_keys(node, round, found)
        except (MalformedError, PeerError) as error:
            if node not in self.nodes.values():
                self.strangers[node] = str(error)

    def _take_next_keys(self, client: int, node: int, round: int | None, response: Response) -> None:
        if round is None or response.envelope is None or "seat" not in response.envelope.parts:
            return
        try:
            self._take_keys(node, round, response.envelope, client)
        except PeerError:
            self.declined.add((round, client))

    def _take_keys(self, node: int, round: int, found: Envelope, expected: int | None = None) -> None:
        """Place a client at this node if it proves who it is. Its keys are checked like any peer's."""
        client = int.from_bytes(found.parts.get("member", b""), "little")
        if client not in self.training.weights or expected not in (None, client):
            raise PeerError("it does not say which member it is")
        data, signature = found.parts.get("advert", b""), found.parts.get("seat", b"")
        statement = location_statement(self.training.fingerprint, self.run_id, node, client, data)
        verify(self.training.agreement.terms.identities[client], signature, statement, signer=client)
        self.nodes[client] = node
        self.strangers.pop(node, None)
        self.mistaken.discard(node)
        if data:
            self.keys.take(round, client, data)
        else:
            self.declined.add((round, client))


def pull_one(grid: Grid, number: str) -> list[Message | None]:
    """The reply to a message if it has arrived, None in its place if it cannot be read.

    One at a time: Flower decodes what nodes sent while it pulls, and a reply that does not decode must affect its
    sender only.
    """
    try:
        return [*grid.pull_messages([number])]
    except (OSError, httpx.HTTPError):
        raise  # the SuperLink does not answer; no client is at fault
    except Exception:  # whatever Flower raises for bytes that a node chose
        return [None]


@dataclass(slots=True)
class Flight:
    """The requests of one exchange that are under way."""

    network: Network
    requests: Mapping[int, Request]
    seconds: float
    waiting: dict[str, int] = field(default_factory=dict)  # message -> client
    asked: dict[int, int] = field(default_factory=dict)  # client -> the node that was asked

    away: dict[int, str] = field(default_factory=dict)  # client -> why it is not waited for

    def send(self, clients: Collection[int]) -> None:
        """Send these clients their requests, each as soon as it is made."""
        for client in clients:
            request, node, sent = self.requests[client], self.network.nodes.get(client), None
            if node is not None:
                sent = self.network.push(node, request.action, request.round, request.parts(), self.seconds)
            if node is None or not sent:
                self.away.setdefault(client, "its node is not connected")
            else:
                self.waiting[sent], self.asked[client] = client, node
                self.away.pop(client, None)
                self.network.watch.asked(client)

    def notice_gone(self, connected: Collection[int]) -> None:
        """Stop waiting for clients whose node has disconnected, or that are at another node now."""
        for number, client in list(self.waiting.items()):
            node = self.asked[client]
            if node in connected and self.network.nodes.get(client) == node:
                continue
            del self.waiting[number]
            self.away[client] = "its node has disconnected"
            if self.network.nodes.get(client) == node:
                self.network.lose(client)

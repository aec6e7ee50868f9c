"""Where each client is, and one exchange: requests out, responses in as they arrive, until a deadline.

An exchange costs seconds on Flower, mostly fixed waits. So nothing here waits for a node that is known to be
disconnected. Nodes that appear meanwhile (started late, or restarted) are asked for their keys at the same time: these
arrive while others work, without an exchange of their own.
"""

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import httpx
from flwr.app import Message

from fl.flower import envelope
from fl.flower.client import location_statement
from fl.flower.envelope import Envelope, MalformedError
from fl.flower.training import Training
from secagg import PeerError, decode
from secagg.crypto import verify
from secagg.protocol import KeyAdvert, check_advert

POLL: Final = 0.25  # seconds between two looks for responses
LOOK_AROUND: Final = 2.0  # seconds between two looks at which nodes are connected
Quorum = tuple[Collection[int], int]  # clients, and how many of them are enough


class Grid(Protocol):
    """The part of Flower's Grid that is used here."""

    def push_messages(self, messages: list[Message]) -> list[str | None]: ...
    def pull_messages(self, message_ids: list[str]) -> list[Message]: ...
    def get_node_ids(self) -> list[int]: ...


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
    nodes: dict[int, int] = field(default_factory=dict)  # client -> Flower node
    adverts: dict[tuple[int, int], bytes] = field(default_factory=dict)  # (round, client) -> keys
    declined: set[tuple[int, int]] = field(default_factory=set)  # (round, client) without keys
    strangers: dict[int, str] = field(default_factory=dict)  # node -> why it is not a client
    exchanges: int = 0
    _hellos: dict[str, tuple[int, int]] = field(default_factory=dict)  # message -> (round, node)
    _greeted: set[tuple[int, int]] = field(default_factory=set)  # (round, node)

    def exchange(self, requests: Mapping[int, Request], seconds: float, next_round: int | None) -> Iterator[Response]:
        """Send, and yield each response as it arrives; after the deadline, give up on the rest.

        `next_round` is the round for which keys may come along, and for which new nodes are asked.
        """
        self.exchanges += 1
        waiting: dict[str, int] = {}
        asked: dict[int, int] = {}  # client -> the node that was asked
        for client, request in requests.items():
            node, sent = self.nodes.get(client), None
            if node is not None:
                sent = self._push(node, request.action, request.round, request.parts(), seconds)
            if node is None or not sent:
                yield Response(client, None, "its node is not connected")
            else:
                waiting[sent], asked[client] = client, node
        end = time.monotonic() + seconds  # the time that sending takes does not count
        looked, last_look = 0.0, False
        while waiting and not last_look:
            last_look = time.monotonic() >= end
            for number, reply in self._pull(list(waiting)):
                client = waiting.pop(number)
                response = self._read(client, requests[client].round, reply)
                self._take_next_keys(client, asked[client], next_round, response)
                yield response
            if time.monotonic() - looked > LOOK_AROUND:
                looked = time.monotonic()
                connected = self._connected()
                if next_round is not None:
                    self._greet(next_round, connected - set(self.nodes.values()), seconds)
                for number, client in list(waiting.items()):
                    if asked[client] not in connected or self.nodes.get(client) != asked[client]:
                        del waiting[number]
                        if self.nodes.get(client) == asked[client]:
                            del self.nodes[client]
                        yield Response(client, None, "its node has disconnected")
            if waiting:
                time.sleep(POLL)
        for client in waiting.values():
            yield Response(client, None, "it did not answer in time")

    def assemble(
        self, round: int, groups: Sequence[Quorum], *, seconds: float, patience: float, unseen: float = 0.0
    ) -> None:
        """Ask for keys until all of the groups' clients have sent them, or no other node can be asked.

        A group is some clients and how many of them are enough. This waits at most `seconds` for enough, and after that
        at most `patience` for nodes that were asked and `unseen` for nodes that are not connected. It is the exchange
        that begins a training. Later it asks only nodes that returned, because they have lost their earlier keys.
        """
        wanted = {client for clients, _ in groups for client in clients}
        begun, ready, asked = time.monotonic(), math.inf, False
        while time.monotonic() - begun < seconds:
            elsewhere = {node for client, node in self.nodes.items() if client not in wanted}
            if self._settled(round, wanted):  # no client is missing, so the strangers remain strangers
                elsewhere |= set(self.strangers)
            asked |= self._greet(round, self._connected() - elsewhere, seconds)
            for _ in self._pull(()):
                raise AssertionError("only hellos are under way")
            pending = any(hello[0] == round for hello in self._hellos.values())
            if self._settled(round, wanted) and not pending:
                break
            if all(sum(self.has_keys(round, c) for c in clients) >= enough for clients, enough in groups):
                ready = min(ready, time.monotonic())
            if time.monotonic() - ready >= (patience if pending else unseen):
                break
            time.sleep(POLL)
        self.exchanges += asked

    def has_keys(self, round: int, client: int) -> bool:
        return (round, client) in self.adverts

    def forget(self, round: int) -> None:
        """Drop the keys of a round. They serve one run: a repeated run needs fresh ones."""
        self.adverts = {entry: keys for entry, keys in self.adverts.items() if entry[0] != round}
        self.declined = {entry for entry in self.declined if entry[0] != round}
        self._greeted = {entry for entry in self._greeted if entry[0] != round}

    def _settled(self, round: int, wanted: Collection[int]) -> bool:
        return all(self.has_keys(round, c) or (round, c) in self.declined for c in wanted)

    def _pull(self, waiting: Collection[str]) -> Iterator[tuple[str, Message | None]]:
        """The responses that have arrived, None for one that cannot be read. Hellos are taken here.

        One at a time: Flower decodes what nodes sent while it pulls, and a reply that does not decode must
        affect its sender only.
        """
        for number in (*waiting, *self._hellos):
            try:
                replies: list[Message | None] = [*self.grid.pull_messages([number])]
            except (OSError, httpx.HTTPError):
                raise  # the SuperLink does not answer; no client is at fault
            except Exception:  # whatever Flower raises for bytes that a node chose
                replies = [None]
            for reply in replies:
                if number in self._hellos:
                    round, node = self._hellos.pop(number)
                    self._take_hello(node, round, reply)
                else:
                    yield number, reply

    def _connected(self) -> set[int]:
        connected = set(self.grid.get_node_ids())
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

    def _read(self, client: int, round: int, reply: Message | None) -> Response:
        if reply is None:
            return Response(client, None, "Flower cannot decode its answer")
        if reply.has_error():
            return Response(client, None, f"Flower reports error {reply.error.code}")
        try:
            found = envelope.unpack(reply.content)
        except MalformedError as error:
            return Response(client, None, str(error))
        if found.refused:
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
        if not 0 <= client < len(self.training.examples) or expected not in (None, client):
            raise PeerError("it does not say which member it is")
        data, signature = found.parts.get("advert", b""), found.parts.get("seat", b"")
        statement = location_statement(self.training.fingerprint, self.run_id, node, client, data)
        verify(self.training.agreement.terms.identities[client], signature, statement, signer=client)
        self.nodes[client] = node
        self.strangers.pop(node, None)
        if not data:
            self.declined.add((round, client))
            return
        advert, plan = decode(data), self.training.plan_of(client, round)
        if not isinstance(advert, KeyAdvert) or advert.sender != client or plan is None:
            raise PeerError(f"client {client} sent no keys of its own for round {round + 1}")
        check_advert(plan, advert)
        self.adverts[round, client] = data

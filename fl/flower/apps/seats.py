"""Which member is at which Flower node, and the messages of one round of secure aggregation."""

import time
from collections.abc import Collection, Iterable, Mapping
from logging import INFO, WARNING
from typing import Final

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from fl.flower import envelope
from fl.flower.apps.digest import content_hash
from fl.flower.apps.messages import (
    FINGERPRINT,
    HELLO,
    MEMBER,
    MESSAGE,
    SEAT,
    SKIP,
    seat_statement,
    with_envelope,
)
from fl.flower.apps.vectors import TRAIN
from fl.flower.envelope import Envelope, MalformedError
from fl.flower.now import JOINING, Watch
from secagg import PeerError
from secagg.crypto import verify
from secagg.whole import Server, Stage, WholeResult, encode

LOOK: Final = 1.0  # seconds between two looks for nodes


class Seats:
    """The nodes that have proven which member they are, and why others have not."""

    def __init__(self, server: Server, join_seconds: float, hello_seconds: float, watch: Watch) -> None:
        self._server, self._join, self._hello, self._watch = server, join_seconds, hello_seconds, watch
        self._node_of: dict[int, int] = {}  # client -> Flower node
        self._again: set[int] = set()  # clients that must be asked again: they failed in the last round
        self._reasons: dict[int, str] = {}  # client -> why it has no answer
        self._waited = False
        self.strangers: dict[int, str] = {}  # node -> why it is no member
        self._strange: set[int] = set()  # strangers for which waiting does not help
        self.mistakes: dict[int, str] = {}  # client -> a mistake that waiting does not mend

    @property
    def open(self) -> bool:
        return self._server.stage is Stage.OPEN

    @property
    def connected(self) -> dict[int, int]:
        """The node of each member that has one."""
        return dict(sorted(self._node_of.items()))

    @property
    def strange_mistakes(self) -> str:
        """What keeps nodes from joining until somebody changes something, if members are missing."""
        if len(self._node_of) >= len(self._server.agreement.terms.members):
            return ""
        return "; ".join(f"node {node}: {why}" for node, why in self.strangers.items() if node in self._strange)

    def gather(self, round: int, grid: Grid) -> None:
        """Ask nodes who they are and for their keys of a round, where the server does not have them.

        The first time it waits until as many nodes are there as there are members; later it takes those that are.
        """
        members = len(self._server.agreement.terms.members)
        end = time.monotonic() + (0.0 if self._waited else self._join)
        asked: set[int] = set()
        said = -1
        while True:
            nodes = set(grid.get_node_ids())
            self._node_of = {client: node for client, node in self._node_of.items() if node in nodes}
            if len(self._node_of) < members and not self._waited:
                self._watch.begin(JOINING, round, self._server.agreement.terms.ids, self._join)
            self._ask(round, grid, nodes - asked)
            asked |= nodes
            self.told(None)
            if len(self._node_of) >= members or time.monotonic() >= end:
                break
            if len(self._node_of) != said:
                said = len(self._node_of)
                log(INFO, "share: %d of %d members are connected; waiting for the others", said, members)
            time.sleep(LOOK)
        self._waited = True
        for node, why in self.strangers.items():
            log(WARNING, "share: node %d is not part of this training: %s", node, why)

    def _ask(self, round: int, grid: Grid, nodes: Collection[int]) -> None:
        missing = {*self._server.hello(round), *self._again}
        known = {node: client for client, node in self._node_of.items()}
        wanted = [node for node in sorted(nodes) if known.get(node) is None or known[node] in missing]
        request = envelope.pack(Envelope(round, {HELLO: b"", FINGERPRINT: self._server.agreement.fingerprint}))
        if not wanted:
            return
        for reply in grid.send_and_receive(
            [Message(request, node, TRAIN, ttl=max(self._hello, 1.0)) for node in wanted], timeout=self._hello
        ):
            self._take_hello(round, reply)

    def _take_hello(self, round: int, reply: Message) -> None:
        node = reply.metadata.src_node_id
        try:
            found = _opened(reply)
            client = int.from_bytes(found.parts.get(MEMBER, b""), "little")
            agreement = self._server.agreement
            if client not in agreement.terms.identities:
                raise PeerError("it does not say which member it is")
            advert, seat = found.parts.get(MESSAGE, b""), found.parts.get(SEAT, b"")
            statement = seat_statement(agreement.fingerprint, reply.metadata.run_id, node, client, advert)
            verify(agreement.terms.identities[client], seat, statement, signer=client)  # audit: app-seat-signed
            if advert and (refused := self._server.receive(client, advert)):  # none if it is not drawn for the round
                raise PeerError(refused)
        except PeerError as error:
            if node not in self._node_of.values():
                self.strangers[node] = str(error)
                if isinstance(error, _MistakeError):
                    self._strange.add(node)
            return
        self._node_of[client] = node
        self._again.discard(client)
        self.strangers.pop(node, None)
        self._watch.answered(client)

    def told(self, node: int | None) -> None:
        """A node has answered, or None if the server has only looked."""
        client = next((client for client, place in self._node_of.items() if place == node), None)
        if client is not None:
            self._watch.answered(client)
        self._watch.look(self._node_of, self.strangers)

    def begin(
        self,
        round: int,
        message_type: str,
        content: RecordDict,
        run_config: Mapping[str, object],
        weighted_by: str,
        seconds: float,
    ) -> list[Message]:
        """The messages of a round, for the members whose groups are complete."""
        self._reasons, self.mistakes = {}, {}
        rounds = self._server.begin(round, context=content_hash(message_type, content, run_config))
        messages = []
        for client, message in rounds.items():
            node = self._node_of.get(client)
            if node is None:
                self._fail(client, "its node is not connected")
                continue
            parts = {
                FINGERPRINT: self._server.agreement.fingerprint,
                MESSAGE: encode(message),
                SKIP: weighted_by.encode(),
            }
            messages.append(Message(with_envelope(content, Envelope(round, parts)), node, message_type))
        self._watch.begin(message_type.partition(".")[0], round, rounds, seconds)
        for client in rounds:
            if client in self._reasons:
                self._watch.answered(client, self._reasons[client])
            else:
                self._watch.asked(client)
        return messages

    def close(self, replies: Iterable[Message]) -> WholeResult:
        """Take the answers and end the round."""
        client_at = {node: client for client, node in self._node_of.items()}
        for reply in replies:
            client = client_at.get(reply.metadata.src_node_id)
            if client is None:
                continue
            try:
                found = _opened(reply)
                refused = self._server.receive(client, found.parts.get(MESSAGE, b""))
                if refused:
                    self._fail(client, refused)
            except _MistakeError as error:
                self.mistakes[client] = str(error)
                self._fail(client, str(error))
            except PeerError as error:
                self._fail(client, str(error))
        for client in self._server.waiting_for():
            self._fail(client, "it did not answer in time")
        return self._server.close()

    def _fail(self, client: int, why: str) -> None:
        self._again.add(client)  # it may have lost its keys
        self._reasons.setdefault(client, why)

    @property
    def reasons(self) -> dict[int, str]:
        """Why members have no answer in this round, as far as the network knows more than the protocol."""
        return dict(self._reasons)


class _MistakeError(PeerError):
    """The node cannot take part until somebody changes something."""


def _opened(reply: Message) -> Envelope:
    if reply.has_error():
        raise PeerError(f"Flower reports error {reply.error.code}")
    try:
        found = envelope.unpack(reply.content)
    except MalformedError as error:
        raise PeerError(f"{error}; has the app `mods=[secure_mod]`?") from None
    if found.refused:
        raise (_MistakeError if found.permanent else PeerError)(f"it refused: {found.refused}")
    return found

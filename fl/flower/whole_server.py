"""The server's side of whole groups over Flower: one exchange a round.

Keys for the next rounds come with the answers, so only new and returning nodes are asked for theirs (`hello`). What the
server needs to go on is stored before a round is sent. A server that is restarted asks for the same round again, and
nodes that have answered send the same bytes: no round is begun a second time, with another model or other clients. A
client that is late, disconnected, refusing or malformed is a dropout with a reason, and loses its own clusters.
"""

import hashlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fl.flower import envelope
from fl.flower.deadlines import Deadlines
from fl.flower.network import Network, Request, Response
from fl.reporting.progress import Progress
from fl.reporting.records import write
from fl.secure.cohort import Cell, CellResult
from fl.training.randomness import context
from secagg import PeerError, Stage
from secagg.agreement import Agreement
from secagg.protocol import GroupId
from secagg.simulation import Cost
from secagg.whole import Advert, Server, WholeResult, decode, encode
from secagg.whole import Round as RoundMessage
from secagg.whole import Stage as ServerStage

Vector = NDArray[np.float32]
STATE: Final = "server.state"


class WholeKeys:
    """The adverts that the server has, checked by it. A client whose node refused a round is asked again."""

    def __init__(self, agreement: Agreement) -> None:
        self.server = Server(agreement)
        self.doubted: set[int] = set()

    def has(self, round: int, client: int) -> bool:
        server = self.server
        over = server.round is not None and round <= server.round
        return over or (client not in self.doubted and client in server.present(round))

    def take(self, round: int, client: int, data: bytes) -> None:
        advert = decode(data)
        if not isinstance(advert, Advert) or (advert.sender, advert.round) != (client, round):
            raise PeerError(f"client {client} sent no advert of its own for round {round + 1}")
        refused = self.server.receive(client, advert)
        if refused:
            raise PeerError(refused)
        self.doubted.discard(client)

    def forget(self, round: int) -> None:
        """Nothing: a round that is begun never needs other keys."""


class WholeRounds:
    """Secure aggregation with whole groups over Flower, one round at a time."""

    def __init__(self, network: Network, deadlines: Deadlines, place: Path, show: Progress) -> None:
        assert isinstance(network.keys, WholeKeys)
        self.network, self.training, self.deadlines, self.show = network, network.training, deadlines, show
        self.exchanges = 0  # of the last round
        self.records: list[bytes] = []  # for the evidence
        self._keys, self._place = network.keys, place
        self._has_met_nodes = False
        place.mkdir(parents=True, exist_ok=True)
        if (place / STATE).exists():
            self._keys.server = Server.restore((place / STATE).read_bytes(), self.training.agreement)

    def sums(self, index: int, x: Vector) -> list[CellResult]:
        """The cluster sums of a round."""
        model = np.ascontiguousarray(x, dtype="<f4").tobytes()
        bound = context(self.training.experiment, hashlib.sha256(model).digest())
        (cell,) = self.training.cohort.cells(index, bound)
        server, before = self._keys.server, self.network.exchanges
        cost, problems = Cost(clients=len(cell.clients)), dict[int, str]()
        self._assemble(cell)
        if server.stage is ServerStage.OPEN and server.round == index:
            self.show.note(f"round {index + 1}: resumed; nodes that have answered send the same bytes again")
        else:
            if server.stage is ServerStage.OPEN:
                server.close()  # recorded before the restart
            server.begin(index, data=model, context=bound)
            write(self._place / STATE, server.save())  # audit: flower-round-stored-before-sent
        outbox = server.outbox()
        if any(message.data != model for message in outbox.values()):
            problems = dict.fromkeys(outbox, "the round was begun with another model, and is not begun again")
        else:
            self._collect(cell, outbox, cost, problems)
        result = server.close()
        self.records = [result.record]
        self.exchanges = self.network.exchanges - before
        return [self._outcome(result, cell, cost, problems)]

    def settled(self, index: int) -> None:
        """The round is recorded. Keep what the server knows of its answers for the next start."""
        server = self._keys.server
        if server.stage is ServerStage.IDLE and server.round == index:
            write(self._place / STATE, server.save())  # audit: flower-answers-remembered

    def _assemble(self, cell: Cell) -> None:
        """Find the nodes, and collect adverts that are missing. The first round of this process waits for all."""
        index, keys, network, limits = cell.round, self._keys, self.network, self.deadlines
        least, groups = self.training.agreement.terms.least_groups, cell.clusters.values()
        if not (keys.server.round is not None and index <= keys.server.round):
            keys.server.hello(index)  # this is the round that is prepared

        def there(client: int) -> bool:
            return client in network.nodes and keys.has(index, client)

        def enough() -> bool:
            return sum(all(map(there, group)) for group in groups) >= least

        unseen = 0.0 if self._has_met_nodes else limits.join / 2
        network.assemble(index, cell.clients, enough, seconds=limits.join, patience=limits.stage, unseen=unseen)
        self._has_met_nodes = True
        network.tell_strangers(self.show.note)

    def _collect(self, cell: Cell, outbox: Mapping[int, RoundMessage], cost: Cost, problems: dict[int, str]) -> None:
        """Send the round and take the answers as they arrive."""

        def parts(message: RoundMessage) -> dict[str, bytes]:
            found = {"message": encode(message)}
            cost.count("bytes_down", Stage.INPUTS, len(found["message"]))
            return found

        requests = {c: Request(envelope.ROUND, cell.round, partial(parts, m)) for c, m in outbox.items()}
        responses = self.network.exchange(requests, self.deadlines.training, cell.round, follow=True)
        for count, response in enumerate(responses, start=1):
            self.show.phase("secure aggregation: inputs", count, len(requests))
            if problem := self._take(response, cost):
                problems[response.client] = problem
            else:
                problems.pop(response.client, None)

    def _take(self, response: Response, cost: Cost) -> str | None:
        """Add an answer to the sums of its groups; why it does not count, if it does not."""
        found = response.envelope
        if found is not None:
            cost.count("bytes_up", Stage.INPUTS, found.size)
            cost.count("client_seconds", Stage.INPUTS, found.seconds)
            cost.count("client_clock", Stage.INPUTS, found.clock)
            if found.refused:
                self._keys.doubted.add(response.client)
        if response.problem or found is None:
            return response.problem
        if "message" not in found.parts:
            return "its answer has no message"
        return self._keys.server.receive(response.client, found.parts["message"])

    def _outcome(self, result: WholeResult, cell: Cell, cost: Cost, problems: dict[int, str]) -> CellResult:
        dropouts = {client: problems.get(client, why) for client, why in result.dropouts.items()}

        def why_lost(group: GroupId, why: str) -> str:
            told = [f"client {client}: {dropouts[client]}" for client in cell.clusters[group] if client in dropouts]
            return "; ".join(told) or why

        lost = {group: why_lost(group, why) for group, why in result.lost.items()}
        return CellResult.of_whole(result, cell, self.training.cohort, cost, dropouts, lost)

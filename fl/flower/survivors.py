"""The server's side of groups of survivors: the rounds of a simulation, with clients on other machines.

A round has four exchanges: share keys, train and mask, sign, unmask. Keys for the next round come with the unmasking of
this one. A client that is late, disconnected, refusing or malformed is a dropout with a reason. If too few remain, the
stage decides. Before a client signed, the run is repeated with the same plan. Afterwards it is only resumed, because a
second opening with other survivors would reveal their difference. If neither helps, the round is skipped and the record
says so. Nothing waits longer than its deadline.
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fl.flower import envelope
from fl.flower.deadlines import Deadlines
from fl.flower.network import Network, Request, Response
from fl.flower.training import Training
from fl.reporting.progress import Progress
from fl.reporting.records import write
from fl.secure.cohort import Cell, CellResult
from fl.training.randomness import context
from secagg import Dropout, PeerError, Server, Stage, TooFewSurvivors, UsageError, decode, encode
from secagg.protocol import KeyAdvert, Outbox, check_advert
from secagg.simulation import Cost

Vector = NDArray[np.float32]
ACTION_OF: Final = {stage: action for action, stage in envelope.STAGE_OF.items()}


class SurvivorKeys:
    """The keys that clients have sent, by round and client."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._adverts: dict[tuple[int, int], bytes] = {}

    def has(self, round: int, client: int) -> bool:
        return (round, client) in self._adverts

    def take(self, round: int, client: int, data: bytes) -> None:
        advert, plan = decode(data), self._training.plan_of(client, round)
        if not isinstance(advert, KeyAdvert) or advert.sender != client or plan is None:
            raise PeerError(f"client {client} sent no keys of its own for round {round + 1}")
        check_advert(plan, advert)
        self._adverts[round, client] = data

    def get(self, round: int, client: int) -> bytes | None:
        return self._adverts.get((round, client))

    def forget(self, round: int) -> None:
        self._adverts = {entry: keys for entry, keys in self._adverts.items() if entry[0] != round}


@dataclass(frozen=True, slots=True)
class RoundInput:
    """What is the same for all clients of a round."""

    index: int
    model: bytes = field(repr=False)
    model_hash: bytes
    following: int | None  # the next round, for which keys are collected


@dataclass(slots=True)
class CellRun:
    """One cell's run of secure aggregation, with all its tries."""

    cell: Cell
    server: Server
    file: Path
    tries: int = 1
    late: int = 0  # how often a stage after the signatures was repeated
    resumed: bool = False
    failed: str = ""
    dropouts: dict[int, Dropout] = field(default_factory=dict)  # the last failure of each client, with reason
    cost: Cost = field(default_factory=Cost)

    @property
    def open(self) -> bool:
        return not self.failed and self.server.stage < Stage.DONE


class SurvivorRounds:
    """Secure aggregation with survivors over Flower, one round at a time."""

    def __init__(self, network: Network, deadlines: Deadlines, place: Path, show: Progress) -> None:
        self.network = network
        assert isinstance(network.keys, SurvivorKeys)
        self._keys = network.keys
        self.training = network.training
        self.deadlines = deadlines
        self.show = show
        self.exchanges = 0  # of the last round
        self.records: list[bytes] = []  # for the evidence, by cell
        self._place = place
        self._has_met_nodes = False
        place.mkdir(parents=True, exist_ok=True)

    def sums(self, index: int, x: Vector) -> list[CellResult]:
        """The cluster sums of a round."""
        model = np.ascontiguousarray(x, dtype="<f4").tobytes()
        e, model_hash = self.training.experiment, hashlib.sha256(model).digest()
        round = RoundInput(index, model, model_hash, index + 1 if index + 1 < e.rounds else None)
        cells = self.training.cohort.cells(index, context(e, model_hash))
        runs = [self._begin(index, cell) for cell in cells]
        before = self.network.exchanges
        self._assemble(index, runs)
        while any(run.open for run in runs):
            self._exchange(round, runs)
            for run in runs:
                if run.open:
                    self._close_stage(index, run)
        self.exchanges = self.network.exchanges - before
        self.records = [run.server.record(run.failed) if run.failed else run.server.result().record for run in runs]
        return [self._outcome(run) for run in runs]

    def settled(self, index: int) -> None:
        """The round is recorded: delete what was kept to resume it."""
        for old in self._place.glob("*.run"):
            if int(old.name.split("-")[0]) <= index:
                old.unlink(missing_ok=True)
        self.network.forget(index)

    def _begin(self, index: int, cell: Cell) -> CellRun:
        """A new run, or the one that an earlier server process left unfinished."""
        assert cell.plan is not None
        file = self._place / f"{index:06d}-{cell.index:04d}.run"
        if not file.exists():
            away = self._left_out(index, cell.clients)
            return CellRun(cell, Server(cell.plan, exclude=away), file, dropouts=away)
        try:
            server = Server.restore(file.read_bytes(), plan=cell.plan)
        except UsageError as error:
            return CellRun(cell, Server(cell.plan), file, failed=f"it cannot be resumed: {error}")
        if server.plan.hash != cell.plan.hash:
            return CellRun(cell, server, file, failed="it was left with another plan or model")
        self.show.note(f"round {index + 1}: resuming the run that had reached {server.stage.name}")
        return CellRun(cell, server, file, resumed=True)

    def _left_out(self, index: int, clients: Collection[int]) -> dict[int, Dropout]:
        """Clients that cheated before, or one of two of whom one did; the record says so."""
        found = self.training.cohort.suspects.in_round(index)
        return {client: Dropout(Stage.KEYS, why) for client, why in found.items() if client in clients}

    def _assemble(self, index: int, runs: list[CellRun]) -> None:
        """Collect keys. The first round waits for all clients, a later one only for enough of them."""
        unseen = 0.0 if self._has_met_nodes else self.deadlines.join / 2
        for fresh in (False, True):
            some = [run for run in runs if (run.server.stage is Stage.KEYS) is fresh and run.open]
            if some:  # a resumed run: keys for this round would replace what a client needs to resume it
                self._ask_for_keys(index if fresh else index + 1, some, unseen)
        self._has_met_nodes = True
        self.network.tell_strangers(self.show.note)
        for run in runs:
            if run.open and run.server.stage is Stage.KEYS:
                self._take_keys(index, run)

    def _ask_for_keys(self, index: int, runs: list[CellRun], unseen: float = 0.0) -> None:
        groups = [([c for c in run.cell.clients if c not in run.server.dropouts], run.server.plan.t) for run in runs]

        def enough() -> bool:
            return all(sum(self._keys.has(index, c) for c in clients) >= least for clients, least in groups)

        wanted = {client for clients, _ in groups for client in clients}
        limits = self.deadlines
        self.network.assemble(index, wanted, enough, seconds=limits.join, patience=limits.stage, unseen=unseen)

    def _take_keys(self, index: int, run: CellRun) -> None:
        for client in run.cell.clients:
            advert = self._keys.get(index, client)
            if advert is not None and client not in run.server.dropouts:
                run.cost.count("bytes_up", Stage.KEYS, len(advert))
                run.server.receive(client, advert)
        self._close_stage(index, run)

    def _exchange(self, round: RoundInput, runs: list[CellRun]) -> None:
        """Ask every client of every open run for its next message, and take the responses."""
        requests: dict[int, Request] = {}
        run_of: dict[int, CellRun] = {}
        seconds = self.deadlines.stage
        for run in runs:
            if not run.open:
                continue
            stage = run.server.stage
            if stage is Stage.INPUTS:
                seconds = max(seconds, self.deadlines.training)
            outbox = run.server.outbox()
            for client in outbox:
                parts = partial(self._parts, round, run, stage, outbox, client)
                requests[client] = Request(ACTION_OF[stage], round.index, parts)
                run_of[client] = run
        following = round.following
        unmasking = all(run.server.stage >= Stage.UNMASKING for run in runs if not run.failed)
        if following is not None and unmasking:
            for client in self._without_keys(following) - set(requests):
                requests[client] = Request(envelope.HELLO, following, self.network.hello_parts)
        names = ", ".join(sorted({run.server.stage.name.lower() for run in runs if run.open}))
        responses = self.network.exchange(requests, seconds, following)
        for count, response in enumerate(responses, start=1):
            self.show.phase(f"secure aggregation: {names}", count, len(requests))
            if response.client in run_of:
                self._take(run_of[response.client], response)

    def _parts(self, round: RoundInput, run: CellRun, stage: Stage, outbox: Outbox, client: int) -> Mapping[str, bytes]:
        parts = {"message": encode(outbox[client])}
        if stage is Stage.SHARES:
            parts["model-hash"] = round.model_hash
        elif stage is Stage.INPUTS:
            parts["model"] = round.model
        elif stage is Stage.UNMASKING and round.following is not None:
            parts["next"] = round.following.to_bytes(8, "little")
        run.cost.count("bytes_down", stage, sum(map(len, parts.values())))
        return parts

    def _without_keys(self, following: int) -> set[int]:
        """Connected clients that were drawn for the next round and have sent no keys for it."""
        away = self.training.cohort.suspects.in_round(following)
        connected = set(self.training.cohort.drawn(following)) & self.network.nodes.keys()
        return {client for client in connected.difference(away) if not self._keys.has(following, client)}

    def _take(self, run: CellRun, response: Response) -> None:
        stage, found = run.server.stage, response.envelope
        if found is not None:
            run.cost.count("bytes_up", stage, found.size)
            run.cost.count("client_seconds", stage, found.seconds)
            run.cost.count("client_clock", stage, found.clock)
        if response.problem or found is None or "message" not in found.parts:
            reason = response.problem or "its answer has no message"
            run.dropouts[response.client] = Dropout(stage, reason)
            run.server.give_up(response.client, reason)
        else:
            run.server.receive(response.client, found.parts["message"])

    def _close_stage(self, index: int, run: CellRun) -> None:
        """Advance to the next stage. If too few clients are left, repeat the run or ask again."""
        stage = run.server.stage
        try:
            run.server.advance()
        except TooFewSurvivors as error:
            if stage < Stage.CONSISTENCY:
                self._repeat(index, run, str(error))
                return
            run.late += 1  # a client may have signed, so only this run can still be opened, by late responses
            self.show.note(f"resumed: {error}")
            if run.late >= self.deadlines.tries:
                run.failed = str(error)
            return
        if Stage.CONSISTENCY <= run.server.stage < Stage.DONE:
            run.late = 0
            data = run.server.save()
            write(run.file, data)  # before a client is asked to sign, so that a restarted server resumes the run
            run.server = Server.restore(data, plan=run.cell.plan)

    def _repeat(self, index: int, run: CellRun, why: str) -> None:
        """No client has signed, so the same plan may run again with fresh keys."""
        if run.tries >= self.deadlines.tries:
            run.failed = why
            return
        run.tries += 1
        self.show.note(f"round {index + 1}: repeated with the same plan: {why}")
        run.server = Server(run.server.plan, exclude=self._left_out(index, run.cell.clients))
        self.network.forget(index)
        self._ask_for_keys(index, [run])
        self._take_keys(index, run)

    def _outcome(self, run: CellRun) -> CellResult:
        run.cost.clients = len(run.cell.clients)
        cohort = self.training.cohort
        if run.failed:
            why = run.failed + (" (a resumed run)" if run.resumed else "")
            return CellResult.failure(why, run.cell, cohort, run.cost, dict(run.dropouts))
        found = CellResult.of_survivors(run.server.result(), run.cell, cohort, run.cost)
        # A client in both has the same stage in both, and run.dropouts has the reason.
        found.dropouts = {client: run.dropouts.get(client, dropout) for client, dropout in found.dropouts.items()}
        return found

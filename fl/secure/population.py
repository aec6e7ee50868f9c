"""The clients of a simulated training: their identities, and the runs of their cells, secure or in the clear."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import secagg
from fl.config.schema import Experiment
from fl.secure.cohort import NO_ANSWER, Cell, CellResult, Cohort, Ring32, Vector, floats_of, why_lost
from fl.secure.layout import (
    CLIPPED,
    UPDATE,
    policy,
    segments_of,
    simulated_agreement,
)
from fl.secure.noise import noise_source
from secagg import Dropout, Identity, LossWarning, Server, Stage, TooFewSurvivors, Verdict
from secagg.agreement import Agreement
from secagg.crypto import Segments
from secagg.evidence import assemble
from secagg.exposure import Anonymity
from secagg.protocol import GroupSum
from secagg.simulation import Cost, Misbehaviour, WholeRun, clear, clear_whole, cores, run

WORTH_FORKING = 24  # fewer clients with short vectors are done before processes could be started
LONG = 10**7  # values of all clients together


class Population(Cohort):
    """A cohort whose clients are all simulated in this process, so it holds every key."""

    def __init__(self, experiment: Experiment, sizes: Sequence[int], length: int) -> None:
        workers = experiment.machine.workers
        self.secure = experiment.secure and experiment.method != "no-share"
        self.processes = 1 if workers == 0 else workers or cores()
        if self.secure and self.processes > 1:
            secagg.warm_up()
        weights = capped_weights(sizes, experiment.privacy.weight_ratio)
        agreement: Agreement | None = None
        self._identities: dict[int, Identity] = {}
        if experiment.method != "no-share":
            agreement, self._identities = simulated_agreement(experiment, weights, length)
        super().__init__(experiment, dict(enumerate(weights)), agreement)
        self._noise = noise_source(experiment.seed)
        self._run: WholeRun | None = None  # keeps the clients from round to round
        self._first: int | None = None  # the first round that it has played
        self._records: dict[int, list[bytes]] = {}  # of runs with survivors, by round

    def evidence(self) -> tuple[int, bytes] | None:
        """The first round that was played here and the evidence from there on; None without secure sums."""
        if self._first is None or self.agreement is None:
            return None
        if self._run is not None:
            return self._first, self._run.evidence()
        cells = len(self.agreement.terms.cells)
        whole = [record for records in self._records.values() if len(records) == cells for record in records]
        signatures = {v: self.agreement.sign(v, identity) for v, identity in self._identities.items()}
        return self._first, assemble(self.agreement, signatures, whole)

    def _keep(self, cell: Cell, record: bytes) -> None:
        """Keep what a secure run with survivors leaves behind."""
        self._first = cell.round if self._first is None else self._first
        self._records.setdefault(cell.round, []).append(record)

    def aggregate(
        self,
        cell: Cell,
        inputs: Mapping[int, Vector],
        *,
        drop: Mapping[int, Stage],
        misbehave: Mapping[int, Misbehaviour],
        left_out: Mapping[int, str] | None = None,
        on_answer: Callable[[Stage, int], None] | None = None,
    ) -> CellResult:
        """The cluster sums of one cell, from the updates of its clients.

        A client in `drop` stops answering at that stage; one in `misbehave` breaks the protocol in that way; those in
        `left_out` are not asked.
        `on_answer` is called with the stage and the client each time a client answered.
        """
        inside = frozenset(cell.clients)
        drop = {client: stage for client, stage in drop.items() if client in inside}
        misbehave = {client: kind for client, kind in misbehave.items() if client in inside}
        cost = Cost(clients=0 if self.secure else len(inside))  # a secure run counts its clients itself
        if self.agreement is None:
            return self._without_share(cell, inputs, drop, misbehave, cost)
        encoding = self.agreement.terms.encoding
        entries = {
            client: as_entry(encoding, update, self.weights[client] / self.mean_weight)
            for client, update in inputs.items()
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LossWarning)  # the experiment sets the clip; attacks exceed it
            if cell.plan is None:
                return self._whole(self.agreement, cell, entries, drop, misbehave, cost, on_answer)
            gone = {client: why for client, why in (left_out or {}).items() if client in inside}
            result = self._survivors(self.agreement, cell, entries, drop, misbehave, frozenset(gone), cost, on_answer)
            result.left_out = gone
            result.dropouts |= {client: Dropout(Stage.KEYS, why) for client, why in gone.items()}
            return result

    def _whole(
        self,
        agreement: Agreement,
        cell: Cell,
        inputs: Mapping[int, Any],
        drop: Mapping[int, Stage],
        misbehave: Mapping[int, Misbehaviour],
        cost: Cost,
        on_answer: Callable[[Stage, int], None] | None,
    ) -> CellResult:
        if self.secure:
            self._run = self._run or WholeRun(agreement, self._identities, noise=self._noise)
            result = self._run.round(
                cell.round,
                inputs,
                context=cell.context,
                drop=drop,
                misbehave=misbehave,
                cost=cost,
                on_answer=on_answer,
            )
            self._first = cell.round if self._first is None else self._first
        else:
            absent, noise = {*drop, *misbehave}, self._noise
            result = clear_whole(agreement, cell.round, inputs, absent, context=cell.context, noise=noise)
        silent = dict.fromkeys(drop, NO_ANSWER)
        dropouts = {client: silent.get(client, why) for client, why in result.dropouts.items()}
        lost = {group: why_lost(cell.clusters[group], silent) or why for group, why in result.lost.items()}
        return CellResult.of_whole(result, cell, self, cost, dropouts, lost)

    def _survivors(
        self,
        agreement: Agreement,
        cell: Cell,
        inputs: Mapping[int, Any],
        drop: Mapping[int, Stage],
        misbehave: Mapping[int, Misbehaviour],
        gone: frozenset[int],
        cost: Cost,
        on_answer: Callable[[Stage, int], None] | None,
    ) -> CellResult:
        where: dict[str, Any] = {"round": cell.round, "cell": cell.index, "context": cell.context, "noise": self._noise}
        try:
            if self.secure:
                result = run(
                    agreement,
                    inputs,
                    self._identities,
                    **where,
                    drop=drop,
                    misbehave=misbehave,
                    exclude=gone,
                    processes=self._processes_for(cell),
                    cost=cost,
                    on_answer=on_answer,
                )
            else:
                result = clear(agreement, inputs, **where, drop=drop, misbehave=misbehave, exclude=gone)
        except TooFewSurvivors as error:
            silent = (c for c, kind in misbehave.items() if kind is Misbehaviour.SILENCE)
            stopped = {**dict.fromkeys(silent, Stage.INPUTS), **drop}
            dropouts = {client: Dropout(stage, NO_ANSWER) for client, stage in stopped.items()}
            if self.secure and cell.plan is not None:
                self._keep(cell, Server(cell.plan).record(str(error)))
            return CellResult.failure(str(error), cell, self, cost, dropouts)
        if self.secure:
            self._keep(cell, result.record)
        return CellResult.of_survivors(result, cell, self, cost)

    def _processes_for(self, cell: Cell) -> int:
        assert self.agreement is not None
        terms = self.agreement.terms
        n, values = len(cell.clients), terms.length * terms.schedule.groupings
        return self.processes if n >= WORTH_FORKING or n * values >= LONG else 1

    def _without_share(
        self,
        cell: Cell,
        inputs: Mapping[int, Vector],
        drop: Mapping[int, Stage],
        misbehave: Mapping[int, Misbehaviour],
        cost: Cost,
    ) -> CellResult:
        """The baseline without SHARE: the server sees every encoded update, and nothing is protected."""
        segments = segments_of(len(next(iter(inputs.values()), ())) or 1, self.experiment.privacy.clip, 1)
        encoding = Segments(clients=1, segments=segments)
        dropouts = {client: Dropout(stage, NO_ANSWER) for client, stage in drop.items()}
        dropouts |= {c: Dropout(Stage.INPUTS, f"it misbehaved: {kind.value}") for c, kind in misbehave.items()}
        survivors = tuple(client for client in cell.clients if client not in dropouts)
        verdict = Verdict(
            policy=policy(self.experiment),
            opened=frozenset((0, client) for client in survivors),
            closed={},
            objections={},
            exposed=frozenset(survivors),
            would_expose=frozenset(survivors),
            clients=len(survivors),
            rank=len(survivors),
            leverage=dict.fromkeys(survivors, 1.0),
            anonymity=Anonymity(1, 1, "every update is visible"),
            sentences=("NO SECURE AGGREGATION: the server learns every client's update exactly",),
        )
        return CellResult(
            cell=cell,
            weights=self.weights,
            mean_weight=self.mean_weight,
            encoding=encoding,
            dropouts=dropouts,
            cost=cost,
            clusters={(0, client): (client,) for client in survivors},
            groups={
                (0, c): GroupSum(_encoded(encoding, inputs[c], self.weights[c] / self.mean_weight), (c,))
                for c in survivors
            },
            verdict=verdict,
        )


def as_entry(encoding: Segments, update: Vector, weight: float) -> dict[str, Any]:
    """What a client gives to the secure sum: its update, and how many coordinates the encoding will clip.

    An update all of which is below half a step becomes zeros, because its encoding would refuse it.
    """
    if encoding.noise:  # nobody counts what it clipped: that would cost privacy
        return {UPDATE: update, CLIPPED: 0}
    floats = floats_of(encoding)
    largest = max(float(update.max()), -float(update.min())) * weight
    if largest * floats.scale <= 0.5:
        return {UPDATE: np.zeros_like(update), CLIPPED: 0}
    count = np.count_nonzero(np.abs(update) > floats.clip / weight) if largest > floats.clip else 0
    return {UPDATE: update, CLIPPED: min(count, encoding.segments[1].bound or 0)}


def _encoded(encoding: Segments, update: Vector, weight: float) -> Ring32:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LossWarning)
        return encoding.encode(as_entry(encoding, update, weight), weight=weight)[0]


def capped_weights(sizes: Sequence[int], ratio: float) -> tuple[int, ...]:
    """The numbers of examples n_i as weights, none more than `ratio` times another.

    Where they differ by more, those too far from the median are moved to median / sqrt(ratio) or median * sqrt(ratio):
    a client that claims a million examples, or one, changes nobody else's weight.
    """
    counts = np.asarray(sizes, dtype=np.int64)
    if counts.max() <= ratio * counts.min():
        return tuple(counts.tolist())
    median, spread = float(np.median(counts)), math.sqrt(ratio)
    low = max(1, math.ceil(median / spread))
    high = max(low, math.floor(min(median * spread, low * ratio)))
    return tuple(np.clip(counts, low, high).tolist())

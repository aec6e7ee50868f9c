"""The server's side of SHARE over Flower: the rounds of the local engine, with clients that are far away.

A round is four exchanges: share keys, train and mask, sign, unmask. Keys for the next round come along with
the unmasking of this one. Whoever is late, dead, refusing or malformed is a dropout with a reason. If too few
remain, design decides: before anybody signed, the run is repeated with the same plan; after, it is resumed,
never repeated, because a second opening with other survivors would reveal their difference; if neither helps,
the round is skipped and the record says so. Nothing waits longer than its deadline.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from flwr.app import Context
from flwr.serverapp import ServerApp
from numpy.typing import NDArray

from fl.config.schema import Experiment
from fl.errors import ConfigError
from fl.flower import envelope
from fl.flower.enrolment import TRAINING, Enrolment, read_enrolment, write_enrolment
from fl.flower.network import Answer, Network, Question
from fl.reporting.progress import LineProgress, Progress
from fl.reporting.records import Folder, write
from fl.secure.layout import Cell
from fl.secure.results import CellResult
from fl.training.randomness import attackers, context
from secagg.errors import TooFewSurvivors, UsageError
from secagg.protocol.result import Dropout, Stage
from secagg.protocol.server import Server
from secagg.protocol.wire import encode
from secagg.simulation import Cost

Vector = NDArray[np.float32]
ACTION_OF: Final = {
    Stage.SHARES: envelope.DEAL,
    Stage.INPUTS: envelope.MASK,
    Stage.CONSISTENCY: envelope.SIGN,
    Stage.UNMASKING: envelope.UNMASK,
}


@dataclass(frozen=True)
class Deadlines:
    """Seconds. The user's patience: keys `join`, `stage` and `training` of the app's run configuration."""

    join: float = 120.0
    stage: float = 60.0
    training: float = 600.0
    tries: int = 2  # of a run that failed before anybody signed, and of each stage after that

    def __post_init__(self) -> None:
        if min(self.join, self.stage, self.training) <= 0 or self.tries < 1:
            raise ConfigError("deadlines are positive, and there is at least one try")


@dataclass(slots=True)
class Run:
    """One cell's run of secure aggregation, through all its tries."""

    cell: Cell
    server: Server
    file: Path
    tries: int = 1
    late: int = 0  # how often a stage after the signatures was asked again
    resumed: bool = False
    failed: str = ""
    unheard: dict[int, Dropout] = field(default_factory=dict)  # the last that was not heard of each
    cost: Cost = field(default_factory=Cost)

    @property
    def open(self) -> bool:
        return not self.failed and self.server.stage < Stage.DONE


class Engine:
    """Sums over Flower, a round at a time."""

    def __init__(
        self, network: Network, enrolment: Enrolment, deadlines: Deadlines, place: Path, show: Progress
    ) -> None:
        self.network = network
        self.enrolment = enrolment
        self.deadlines = deadlines
        self.show = show
        self._place = place
        self._met = False
        self._told: set[int] = set()
        self.exchanges = 0  # of the round before
        place.mkdir(parents=True, exist_ok=True)

    def sums(self, t: int, x: Vector) -> list[CellResult]:
        """The cluster sums of a round, from whoever takes part in it."""
        model = np.ascontiguousarray(x, dtype="<f4").tobytes()
        model_hash = hashlib.sha256(model).digest()
        cohort = self.enrolment.cohort
        cells = cohort.cells(t, len(x), context(self.enrolment.experiment, model_hash))
        runs = [self._begin(t, cell) for cell in cells]
        following = t + 1 if t + 1 < self.enrolment.experiment.rounds else None
        before = self.network.exchanges
        self._assemble(t, runs)
        while any(run.open for run in runs):
            self._exchange(t, runs, model, model_hash, following)
            for run in runs:
                if run.open:
                    self._close_stage(t, run)
        self.exchanges = self.network.exchanges - before
        return [self._outcome(run) for run in runs]

    def settled(self, t: int) -> None:
        """The round is recorded: what was kept to resume it may go."""
        for old in self._place.glob("*.run"):
            if int(old.name.split("-")[0]) <= t:
                old.unlink(missing_ok=True)
        self.network.forget(t)

    # --- one stage ---------------------------------------------------------------------------------------

    def _begin(self, t: int, cell: Cell) -> Run:
        """A new run, or the one that a server before this one had to leave."""
        assert cell.plan is not None
        file = self._place / f"{t:06d}-{cell.index:04d}.run"
        if file.exists():
            try:
                server = Server.restore(file.read_bytes())
            except UsageError as error:
                return Run(cell, Server(cell.plan), file, failed=f"it cannot be resumed: {error}")
            if server.plan.hash != cell.plan.hash:
                return Run(cell, server, file, failed="it was left with another plan or model")
            self.show.note(f"round {t + 1}: resuming the run that had reached {server.stage.name}")
            return Run(cell, server, file, resumed=True)
        return Run(cell, Server(cell.plan), file)

    def _assemble(self, t: int, runs: list[Run]) -> None:
        """Have keys from everybody who is there; a first round waits for all, a later one only for enough."""
        unseen = 0.0 if self._met else self.deadlines.join / 2
        for fresh in (False, True):
            some = [run for run in runs if (run.server.stage is Stage.KEYS) is fresh and run.open]
            if some:  # keys for this round would replace what a client needs to resume; so: for the next
                self._ask_for_keys(t if fresh else t + 1, some, unseen)
        self._met = True
        for node, why in self.network.strangers.items():
            if node not in self._told:
                self.show.note(f"node {node} is not of this training: {why}")
            self._told.add(node)
        for run in runs:
            if run.open and run.server.stage is Stage.KEYS:
                self._take_keys(t, run)

    def _ask_for_keys(self, round: int, runs: list[Run], unseen: float = 0.0) -> None:
        limits = self.deadlines
        groups = [(run.cell.clients, run.server.plan.t) for run in runs]
        self.network.assemble(round, groups, seconds=limits.join, patience=limits.stage, unseen=unseen)

    def _take_keys(self, t: int, run: Run) -> None:
        for client in run.cell.clients:
            advert = self.network.adverts.get((t, client))
            if advert is not None:
                run.cost.count("bytes_up", Stage.KEYS, len(advert))
                run.server.receive(client, advert)
        self._close_stage(t, run)

    def _exchange(
        self, t: int, runs: list[Run], model: bytes, model_hash: bytes, following: int | None
    ) -> None:
        """Ask every client of every open run for its next message, and take what comes."""
        questions: dict[int, Question] = {}
        run_of: dict[int, Run] = {}
        seconds = self.deadlines.stage
        for run in runs:
            if not run.open:
                continue
            stage = run.server.stage
            if stage is Stage.INPUTS:
                seconds = max(seconds, self.deadlines.training)
            outbox = run.server.outbox()
            for client in outbox:
                questions[client] = Question(
                    ACTION_OF[stage],
                    t,
                    lambda c=client, box=outbox, at=stage, r=run: self._parts(  # type: ignore[misc]
                        r, at, box[c], model, model_hash, following
                    ),
                )
                run_of[client] = run
        if following is not None and all(
            run.server.stage >= Stage.UNMASKING for run in runs if not run.failed
        ):
            for client in self._keyless(following) - set(questions):
                questions[client] = Question(envelope.HELLO, following, dict)
        names = {run.server.stage.name.lower() for run in runs if run.open}
        answers = self.network.exchange(questions, seconds, following)
        for heard, answer in enumerate(answers, start=1):
            self.show.phase("secure aggregation: " + ", ".join(sorted(names)), heard, len(questions))
            if answer.client in run_of:
                self._take(run_of[answer.client], answer)

    def _parts(
        self, run: Run, stage: Stage, message: Any, model: bytes, model_hash: bytes, following: int | None
    ) -> Mapping[str, bytes]:
        parts = {"message": encode(message)}
        if stage is Stage.SHARES:
            parts["model-hash"] = model_hash
        elif stage is Stage.INPUTS:
            parts["model"] = model
        elif stage is Stage.UNMASKING and following is not None:
            parts["next"] = following.to_bytes(8, "little")
        run.cost.count("bytes_down", stage, sum(map(len, parts.values())))
        return parts

    def _keyless(self, following: int) -> set[int]:
        """Members drawn for the next round who are seated, and have no part in what is left of this one."""
        return {
            client
            for client in self.enrolment.cohort.drawn(following)
            if client in self.network.seats and not self.network.has_keys(following, client)
        }

    def _take(self, run: Run, answer: Answer) -> None:
        stage, server = run.server.stage, run.server
        if answer.envelope is not None:
            run.cost.count("bytes_up", stage, answer.envelope.size)
            run.cost.count("client_seconds", stage, answer.envelope.seconds)
            run.cost.count("client_clock", stage, answer.envelope.clock)
        if answer.problem or answer.envelope is None or "message" not in answer.envelope.parts:
            reason = answer.problem or "its answer has no message"
            run.unheard[answer.client] = Dropout(stage, reason)
            server.give_up(answer.client, reason)
            return
        server.receive(answer.client, answer.envelope.parts["message"])

    def _close_stage(self, t: int, run: Run) -> None:
        """Go on to the next stage; if too few are left: repeat, ask again, or give up, by the rule."""
        stage = run.server.stage
        try:
            run.server.advance()
        except TooFewSurvivors as error:
            if stage < Stage.CONSISTENCY:
                self._repeat(t, run, str(error))
            else:
                self._ask_again(run, str(error))
            return
        if Stage.CONSISTENCY <= run.server.stage < Stage.DONE:
            run.late = 0
            self._keep(run)

    def _repeat(self, t: int, run: Run, why: str) -> None:
        """Nobody signed anything, so the same plan may be run again, with fresh keys."""
        if run.tries >= self.deadlines.tries:
            run.failed = why
            return
        run.tries += 1
        self.show.note(f"round {t + 1}: repeated with the same plan: {why}")
        run.server = Server(run.server.plan)
        self.network.forget(t)
        self._ask_for_keys(t, [run])
        self._take_keys(t, run)

    def _ask_again(self, run: Run, why: str) -> None:
        """Somebody may have signed: only this very run can still be opened, by late answers."""
        run.late += 1
        self.show.note(f"resumed: {why}")
        if run.late >= self.deadlines.tries:
            run.failed = why

    def _keep(self, run: Run) -> None:
        """On disk before anybody is asked to sign: a restarted server resumes instead of repeating."""
        data = run.server.save()
        write(run.file, data)
        run.server = Server.restore(data)

    def _outcome(self, run: Run) -> CellResult:
        cohort, cost = self.enrolment.cohort, run.cost
        cost.clients = len(run.cell.clients)
        if run.failed:
            why = run.failed + (" (a resumed run)" if run.resumed else "")
            return cohort.failed(run.cell, run.unheard, why, cost)
        outcome = cohort.succeeded(run.cell, run.server.result(), cost)
        for client in outcome.dropouts.keys() & run.unheard.keys():
            outcome.dropouts[client] = run.unheard[client]  # the same stage, with the reason
        return outcome


# --- the app ------------------------------------------------------------------------------------------------


def server_app(
    test: str | None = None, *, validation: str | None = None, classes: int | None = None
) -> ServerApp:
    """A Flower ServerApp that trains with SHARE.

    `test` and `validation` name functions, as "module:function", that return the server's (inputs, labels) to
    test on, and to validate on where the rule needs that. Without `test` the data set of the experiment is
    used. The run configuration says `training` (the enrolment's file), `out` (the folder of the record; if a
    run is there, it goes on) and the deadlines `join-seconds`, `stage-seconds`, `training-seconds`, `tries`.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Context) -> None:
        settings = context.run_config
        enrolment = read_enrolment(str(settings.get("training", "training.toml")))
        out = Path(str(settings.get("out", f"runs/{enrolment.experiment.name}")))
        deadlines = Deadlines(
            join=float(settings.get("join-seconds", Deadlines.join)),
            stage=float(settings.get("stage-seconds", Deadlines.stage)),
            training=float(settings.get("training-seconds", Deadlines.training)),
            tries=int(settings.get("tries", Deadlines.tries)),
        )
        network = Network(grid, enrolment, context.run_id)
        serve(network, deadlines, out, test=test, validation=validation, classes=classes)

    return app


def serve(
    network: Network,
    deadlines: Deadlines,
    out: Path,
    *,
    test: str | None = None,
    validation: str | None = None,
    classes: int | None = None,
) -> None:
    """Train as the enrolment says, from the last checkpoint in `out` if there is one."""
    from fl.flower.task import server_data, task_of
    from fl.training.learner import Learner
    from fl.training.loop import show_warnings, train_rounds
    from fl.training.round import Clock, Played, Setting, conclude

    enrolment = network.enrolment
    e = enrolment.experiment
    e = e.replace(machine=e.machine.replace(checkpoint_every=1))  # an opened round cannot be played again
    with opened_folder(out, enrolment, e) as folder:
        task = task_of(e, server_data(e, test, validation, classes))
        show = LineProgress(prefix="share: ")  # marked: Flower mixes it with its own lines
        show_warnings(e, enrolment.cohort.layout, show)
        engine = Engine(network, enrolment, deadlines, out / "secure", show)
        with Learner(task) as learner:
            setting = Setting(e, learner, enrolment.cohort, attackers(e), show)

            def play(t: int, x: Vector, last: Vector) -> Played:
                if t:
                    engine.settled(t - 1)
                clock = Clock()
                with clock("secure"):
                    opened = engine.sums(t, x)
                played = conclude(setting, t, x, last, opened, clock)
                played.record["exchanges"] = engine.exchanges
                return played

            train_rounds(setting, task, folder, play)
            engine.settled(e.rounds - 1)


def opened_folder(out: Path, enrolment: Enrolment, e: Experiment) -> Folder:
    """The folder of the record: a new one, or the one to go on in, if it is of the same training."""
    if not (out / "config.toml").exists():
        folder = Folder.create(out, e)
        write(out / TRAINING, write_enrolment(enrolment).encode())
        return folder
    if read_enrolment(out / TRAINING).training_id != enrolment.training_id:
        raise ConfigError(f"{out} holds another training; choose another `out`")
    return Folder.resume(out)

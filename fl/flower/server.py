"""The server's side of SHARE over Flower: an app that trains from its last checkpoint, with clients elsewhere.

`fl.flower.whole_server` and `fl.flower.survivors` run the rounds.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from flwr.app import Context
from flwr.serverapp import ServerApp
from numpy.typing import NDArray

from fl.config.schema import Experiment
from fl.errors import ConfigError
from fl.flower.deadlines import Deadlines
from fl.flower.network import Grid, Keys, Network
from fl.flower.simulated import refuse_simulation
from fl.flower.survivors import SurvivorKeys, SurvivorRounds
from fl.flower.training import TRAINING, Training, read_training, write_training
from fl.flower.whole_server import WholeKeys, WholeRounds
from fl.reporting.progress import LineProgress
from fl.reporting.records import Folder
from fl.secure.cohort import CellResult
from fl.training.randomness import attackers
from secagg.agreement import WHOLE
from secagg.evidence import EvidenceLog

Vector = NDArray[np.float32]
SECONDS: Final = ("join", "stage", "training")


class Rounds(Protocol):
    """The secure sums of a training, round by round."""

    exchanges: int
    records: list[bytes]  # what the last round leaves for the evidence

    def sums(self, index: int, x: Vector) -> list[CellResult]: ...
    def settled(self, index: int) -> None: ...


def server_app(test: str | None = None, *, validation: str | None = None, classes: int | None = None) -> ServerApp:
    """A Flower ServerApp that trains with SHARE.

    `test` and `validation` name functions as "module:function". They return the server's (inputs, labels) to test on,
    and to validate on where the rule needs it. Without `test` the data set of the experiment is used. The run
    configuration has `training` (training.toml, with agreement.toml beside it), `out` (the folder of the record; a run
    in it is continued), the deadlines `join-seconds`, `stage-seconds` and `training-seconds`, `tries`, and
    `skipped-rounds`: after so many rounds in a row without a sum, the training stops.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Context) -> None:
        refuse_simulation(grid)
        settings = context.run_config
        training = read_training(str(settings.get("training", TRAINING)))
        out = Path(str(settings.get("out", f"runs/{training.experiment.name}")))
        deadlines = deadlines_of(settings)
        serve(connect(grid, training, context.run_id), deadlines, out, test, validation, classes)

    return app


def deadlines_of(settings: Mapping[str, Any]) -> Deadlines:
    """The deadlines of a run configuration."""
    usual = Deadlines()
    seconds = {name: float(settings.get(f"{name}-seconds", getattr(usual, name))) for name in SECONDS}
    tries, skipped = int(settings.get("tries", usual.tries)), int(settings.get("skipped-rounds", usual.skipped))
    return Deadlines(**seconds, tries=tries, skipped=skipped)


def connect(grid: Grid, training: Training, run_id: int) -> Network:
    """The clients of a training, before any of them was found."""
    agreement = training.agreement
    keys: Keys = WholeKeys(agreement) if agreement.terms.groups == WHOLE else SurvivorKeys(training)
    return Network(grid, training, run_id, keys)


def serve(
    network: Network,
    deadlines: Deadlines,
    out: Path,
    test: str | None = None,
    validation: str | None = None,
    classes: int | None = None,
) -> None:
    """Train as the agreement says, from the last checkpoint in `out` if there is one."""
    from fl import exports
    from fl.flower.task import server_data, task_of
    from fl.training.learner import Learner
    from fl.training.loop import show_warnings, train_rounds
    from fl.training.round import Clock, Played, Setting, conclude
    from fl.training.server import Memory

    training = network.training
    e = training.experiment
    e = e.replace(machine=e.machine.replace(checkpoint_every=1))  # an opened round cannot be repeated
    with open_folder(out, training, e) as folder:
        network.watch.folder = out
        task = task_of(e, server_data(e, test, validation, classes))
        show = LineProgress(prefix="share: ")  # Flower mixes these lines with its own
        show_warnings(e, training.cohort.layout, show)
        whole = training.agreement.terms.groups == WHOLE
        engine: Rounds = (WholeRounds if whole else SurvivorRounds)(network, deadlines, out / "secure", show)
        evidence = EvidenceLog(out / "evidence-1", training.agreement, training.signatures)
        stop = Hopeless(network, deadlines.skipped)
        with Learner(task) as learner:
            setting = Setting(
                e, learner, training.cohort, attackers(e), show, callbacks=[*exports.wanted(e, out), stop]
            )

            def play(t: int, x: Vector, memory: Memory) -> Played:
                if t:
                    engine.settled(t - 1)
                clock = Clock()
                with clock("secure"):
                    opened = engine.sums(t, x)
                    evidence.append(engine.records)
                played = conclude(setting, t, x, memory, opened, clock)
                played.record["exchanges"] = engine.exchanges
                return played

            train_rounds(setting, task, folder, play)
            engine.settled(e.rounds - 1)


def open_folder(out: Path, training: Training, e: Experiment) -> Folder:
    """The folder of the record: a new one, or an existing one of the same training."""
    if not (out / "config.toml").exists():
        folder = Folder.create(out, e)
        write_training(training, out)
        return folder
    if read_training(out / TRAINING).fingerprint != training.fingerprint:
        raise ConfigError(f"{out} holds another training; choose another `out`")
    return Folder.resume(out)


class Hopeless:
    """Stops a training in which round after round is skipped, with the reason that the nodes give if no sum opens.

    A node that says that it would refuse every round stops it at once if the round opened no sum.
    """

    def __init__(self, network: Network, most: int) -> None:
        self._network, self._most, self._skipped = network, most, 0

    def __call__(self, record: Mapping[str, Any], _: Vector) -> str:
        self._skipped = self._skipped + 1 if record["skipped"] else 0
        if not self._skipped:
            return ""
        if any(grouping["opened"] for grouping in record["groupings"]):  # the rule or the server's step is the reason
            return f"{self._skipped} rounds in a row: {record['skipped']}" if self._skipped >= self._most else ""
        mistakes = sorted({self._network.strangers[node] for node in self._network.mistaken})
        mistakes += [f"client {client}: {why}" for client, why in sorted(self._network.refused.items())]
        if mistakes:
            return f"no sum was opened, and nodes refuse every round: {shown(mistakes)}"
        if self._skipped >= self._most:
            reasons = [f"client {entry['client']}: {entry['why']}" for entry in record["dropouts"]]
            return f"{self._skipped} rounds in a row opened no sum: {shown(reasons) or record['skipped']}"
        return ""


def shown(reasons: Sequence[str], most: int = 3) -> str:
    """The first reasons, and how many more there are."""
    rest = f"; and {len(reasons) - most} more" if len(reasons) > most else ""
    return "; ".join(reasons[:most]) + rest

"""Rounds for other people's dashboards: TensorBoard and MLflow (`pip install 'share-secagg[export]'`).

`share train` and `share sweep` export with `--tensorboard FOLDER` and `--mlflow URI`, or with the table `[export]` of a
configuration. From Python, each function here makes a callback for `fl.run` and `fl.train`. `replay` gives it the
rounds of a run that is recorded.

    trained = fl.train(model, clients, test, callbacks=[to_tensorboard("boards/first")])

What is exported are numbers of a record and, to MLflow, the settings. No update, no model and no id of a client leaves
the run this way.
"""

from __future__ import annotations

import hashlib
import re
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from fl.config.schema import Experiment, Export, to_tables
from fl.errors import ConfigError
from fl.reporting.page import flat
from fl.reporting.records import checkpointed_rounds, recorded

Callback = Callable[[Mapping[str, Any], Any], None]
STUDY: Final = "share"  # the experiment of MLflow that runs belong to
RUN: Final = "share.run"  # the tag by which a resumed training finds its run again
MOST_TEXT: Final = 500  # characters of a parameter that every version of MLflow takes


def check(experiment: Experiment) -> None:
    """Refuse an export whose package is missing. To read a run that exported, nobody needs it."""
    for key, place in (("tensorboard", experiment.export.tensorboard), ("mlflow", experiment.export.mlflow)):
        if place is not None and find_spec(key) is None:
            raise ConfigError(f"export.{key}: needs the package {key}; install it: pip install 'share-secagg[export]'")


def wanted(experiment: Experiment, folder: Path | None = None) -> list[Callback]:
    """The exports that a configuration asks for, of a run that is recorded in this folder.

    They are opened here, so that an address without a server is an error before the first round.
    """
    export, found = experiment.export, list[Callback]()
    check(experiment)
    done = 0 if folder is None else checkpointed_rounds(folder)
    if export.tensorboard is not None:
        name = re.sub(r"[^A-Za-z0-9._=,+ -]+", "-", experiment.name)  # TensorBoard shows the name of the folder
        found.append(to_tensorboard(Path(export.tensorboard) / name, first=done + 1))
    if export.mlflow is not None:
        found.append(_to_run(experiment, folder, resumed=done > 0))
    return found


class _Run:
    """A callback that logs into a run of its own. If a round cannot be logged, the training goes on without."""

    def __init__(self, client: Any, number: str) -> None:
        self._client, self._number, self._warned = client, number, False

    def __call__(self, record: Mapping[str, Any], x: Any = None) -> None:
        from mlflow.entities import Metric

        step, at = record["round"], int(1000 * time.time())
        metrics = [Metric(name, value, at, step) for name, value in scalars(record).items()]
        self._try(lambda: self._client.log_batch(self._number, metrics=metrics), f"round {step} was not logged")

    def end(self) -> None:
        self._try(lambda: self._client.set_terminated(self._number), "the end was not logged")

    def _try(self, log: Callable[[], Any], otherwise: str) -> None:
        from mlflow.exceptions import MlflowException

        try:
            log()
        except (MlflowException, OSError) as error:
            if not self._warned:
                warnings.warn(f"export.mlflow: {otherwise}: {error}", RuntimeWarning, 2)
            self._warned = True


def end(callbacks: Iterable[Callable[..., Any]]) -> None:
    """The training is over: its run in MLflow has finished. One that is interrupted goes on when it is resumed."""
    for callback in callbacks:
        if isinstance(callback, _Run):
            callback.end()


def _to_run(experiment: Experiment, folder: Path | None, *, resumed: bool) -> _Run:
    """A callback that logs into a run of its own. A training that is resumed continues the run that it began."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    begun = f"{experiment.fingerprint.hex()} in {folder.resolve()}" if folder else "not recorded"
    mark = hashlib.sha256(begun.encode()).hexdigest()[:32]  # a folder's name is nobody else's business
    try:
        client = MlflowClient(tracking_uri=experiment.export.mlflow)
        known = client.get_experiment_by_name(STUDY)
        study = client.create_experiment(STUDY) if known is None else known.experiment_id
        before = client.search_runs([study], f"tags.`{RUN}` = '{mark}'", max_results=1) if resumed else []
        if before:
            number = before[0].info.run_id
            client.update_run(number, status="RUNNING")
        else:
            number = client.create_run(study, run_name=experiment.name, tags={RUN: mark}).info.run_id
            for name, value in flat(to_tables(experiment.replace(export=Export()))).items():
                client.log_param(number, name, str(value)[:MOST_TEXT])
    except (MlflowException, OSError) as error:
        raise ConfigError(f"export.mlflow: {experiment.export.mlflow}: {error}") from None
    return _Run(client, number)


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a round by name, without what was not measured.

    >>> found = scalars({"accuracy": 0.5, "loss": None, "metrics": {"f1": 0.25}, "seconds": {"total": 2.0}})
    >>> found
    {'accuracy': 0.5, 'metrics/f1': 0.25, 'seconds/total': 2.0}
    """
    exposure: Mapping[str, Any] = record.get("exposure", {})
    found: dict[str, Any] = {name: record.get(name) for name in ("accuracy", "loss", "clipped", "update_norm")}
    found |= {f"metrics/{name}": value for name, value in record.get("metrics", {}).items()}
    found |= {f"seconds/{name}": value for name, value in record.get("seconds", {}).items()}
    found |= {f"epsilon/{name}": value for name, value in record.get("epsilon", {}).items() if name != "delta"}
    found |= {f"exposure/{name}": exposure.get(name) for name in ("anonymity", "leverage", "most_leverage")}
    if "exposed" in exposure:
        found["exposure/exposed clients"] = len(exposure["exposed"])
    if "dropouts" in record:
        found["dropouts"] = len(record["dropouts"])
    return {name: float(value) for name, value in found.items() if value is not None}


def to_tensorboard(folder: Path | str, *, first: int = 1) -> Callback:
    """A callback that writes event files for TensorBoard into a folder, one step per round.

    Steps from `first` on that the folder already has are hidden, because a run that was killed repeats them. If a round
    cannot be written, the training goes on without, and a warning says so once.
    """
    from torch.utils.tensorboard import SummaryWriter

    try:
        writer: Any = SummaryWriter(log_dir=str(folder), purge_step=first if first > 1 else None)
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(
            f"export.tensorboard: expected a folder to write in, and {folder} cannot be written: {why}; name another"
        ) from None
    warned = False

    def write(record: Mapping[str, Any], x: Any = None) -> None:
        nonlocal warned
        try:
            for name, value in scalars(record).items():
                writer.add_scalar(name.replace(" ", "_"), value, global_step=record["round"])
            writer.flush()  # a run may be killed
        except OSError as error:
            if not warned:
                text = f"export.tensorboard: round {record['round']} was not written: {error}; the training goes on"
                warnings.warn(text, RuntimeWarning, 2)
            warned = True

    return write


def to_mlflow(**tags: str) -> Callback:
    """A callback that logs into the active MLflow run; MLflow begins one if there is none. `tags` are set once."""
    import mlflow

    if tags:
        mlflow.set_tags(tags)

    def write(record: Mapping[str, Any], x: Any = None) -> None:
        mlflow.log_metrics(scalars(record), step=record["round"])

    return write


def replay(folder: Path | str, callback: Callback) -> int:
    """Give the recorded rounds of a run to a callback, in order. Returns their number."""
    rounds = recorded(folder).rounds
    for record in rounds:
        callback(record, None)
    return len(rounds)

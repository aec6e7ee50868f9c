"""Rounds for other people's dashboards: TensorBoard and MLflow (`pip install 'share-secagg[export]'`).

Each function makes a callback for `fl.run` and `fl.train`. `replay` gives it the rounds of a run that is recorded.

    trained = fl.train(model, clients, test, callbacks=[to_tensorboard("boards/first")])

What is exported are numbers of a record. No update, no model and no id of a client leaves the run this way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fl.reporting.records import recorded

Callback = Callable[[Mapping[str, Any], Any], None]


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


def to_tensorboard(folder: Path | str) -> Callback:
    """A callback that writes event files for TensorBoard into a folder, one step per round."""
    from torch.utils.tensorboard import SummaryWriter

    writer: Any = SummaryWriter(log_dir=str(folder))

    def write(record: Mapping[str, Any], x: Any = None) -> None:
        for name, value in scalars(record).items():
            writer.add_scalar(name.replace(" ", "_"), value, global_step=record["round"])
        writer.flush()  # a run may be killed

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

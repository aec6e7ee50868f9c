"""Federated training with SHARE on torch: data, local training, secure and robust rounds, records, reports.

    import fl
    trained = fl.train(model, clients, test, rounds=20, aggregation={"rule": "krum"})
    trained.model, trained.accuracy, trained.history

The public names are imported when they are first used, because importing torch takes seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl.config.checks import experiment, load
    from fl.config.schema import Experiment
    from fl.data.examples import DataSet, Examples, Federated
    from fl.errors import ConfigError
    from fl.sweeps.sweep import Swept, sweep
    from fl.training.given import train
    from fl.training.loop import Trained, run

__all__ = ["ConfigError", "DataSet", "Examples", "Experiment", "Federated", "Swept", "Trained"]
__all__ += ["experiment", "load", "run", "sweep", "train"]

_HOMES = {
    "fl.config.checks": ("experiment", "load"),
    "fl.config.schema": ("Experiment",),
    "fl.errors": ("ConfigError",),
    "fl.data.examples": ("DataSet", "Examples", "Federated"),
    "fl.sweeps.sweep": ("Swept", "sweep"),
    "fl.training.given": ("train",),
    "fl.training.loop": ("Trained", "run"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'fl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

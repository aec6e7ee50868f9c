"""Small trainings for tests: digits, a linear model, a few clients; a round takes milliseconds."""

from typing import Any

from fl.config.checks import experiment
from fl.config.schema import Experiment


def tiny(**changes: Any) -> Experiment:
    """12 clients in 4 clusters of 3; `changes` are keys of the configuration, merged into its tables."""
    tables: dict[str, Any] = {
        "rounds": 2,
        "clients": 12,
        "model": "linear",
        "secure": False,
        "data": {"examples": 240, "test_examples": 100},
        "local": {"epochs": 1, "batch_size": 10, "lr": 0.1},
        "machine": {"workers": 0},
    }
    for name, value in changes.items():
        if isinstance(value, dict) and isinstance(tables.get(name), dict):
            tables[name] = {**tables[name], **value}
        else:
            tables[name] = value
    return experiment(tables)

"""What a caller passes to a training in Python, checked before anything is done."""

import os
import reprlib
from typing import Any, Final

from fl.config.schema import Experiment
from fl.errors import ConfigError
from fl.reporting.progress import Progress
from fl.reporting.records import Folder

MAKES_EXPERIMENTS: Final = "an Experiment, which fl.experiment(...) or fl.load(...) makes"
MAKES_FOLDERS: Final = "a Folder, which Folder.create(path, experiment) of fl.reporting.records makes"
MAKES_PROGRESS: Final = "a Progress, such as LineProgress() of fl.reporting.progress"


def check_run(experiment: Any, folder: Any, show: Any, callbacks: Any) -> None:
    """Raise ConfigError for an argument of `run` that is of another kind."""
    _check("experiment", experiment, isinstance(experiment, Experiment), MAKES_EXPERIMENTS)
    _check("folder", folder, folder is None or isinstance(folder, Folder), MAKES_FOLDERS)
    check_shown(show, callbacks)


def check_shown(show: Any, callbacks: Any) -> None:
    """Raise ConfigError for a display or callbacks of another kind."""
    _check("show", show, show is None or isinstance(show, Progress), MAKES_PROGRESS)
    functions = isinstance(callbacks, list | tuple) and all(map(callable, callbacks))
    _check("callbacks", callbacks, functions, "a list of functions of (record, vector)")


def check_out(out: Any, *, resume: bool, folder: Any = None) -> None:
    """Raise ConfigError for what cannot be the name of a folder, or goes with no name or with an open folder."""
    named = isinstance(out, str | os.PathLike) and str(out) != ""
    _check("out", out, out is None or named, "the name of a folder")
    if out is not None and folder is not None:
        raise ConfigError("folder: it is open already; leave out=... away")
    if resume and out is None:
        raise ConfigError("resume: a run continues in its folder; name it with out=..., or leave resume out")


def check_model(model: Any) -> None:
    """Raise ConfigError for what cannot be a model."""
    _check("model", model, isinstance(model, str) or callable(model), "a torch module, a function or a name")


def _check(name: str, value: Any, right: bool, wanted: str) -> None:
    if not right:
        raise ConfigError(f"{name}: expected {wanted}, got {reprlib.repr(value)} ({type(value).__name__})")

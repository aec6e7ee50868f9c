"""Errors that the `share` command reports in one line, each with its exit code."""


class ShareError(Exception):
    """Base of the errors below. The message says what is wrong and what to do."""

    exit_code = 2


class ConfigError(ShareError, ValueError):
    """A key or an option is wrong. The message names it, what was expected and what was given."""


class OwnError(ConfigError):
    """A function of your own that a configuration names is not there, or is not the one that is meant."""


class DataError(ShareError):
    """A data set is missing or damaged, or could not be downloaded."""


class RecordError(ShareError):
    """The folder of a run is not as expected."""


class TrainingError(ShareError):
    """The training of a client failed. The message names the client."""

    exit_code = 1


class TrainingWarning(UserWarning):
    """A training goes on, but not as its user may expect."""


class WorkerError(ShareError):
    """A worker process ended unexpectedly: out of memory, killed, or a crash in native code."""

    exit_code = 1


class FlowerError(ShareError):
    """Flower failed. The message names the log file to read."""

    exit_code = 1

"""How long the server waits."""

from dataclasses import dataclass

from fl.errors import ConfigError


@dataclass(frozen=True)
class Deadlines:
    """Seconds to wait, and tries. The app's run configuration has them as `join-seconds` and so on."""

    join: float = 120.0
    stage: float = 60.0
    training: float = 600.0
    tries: int = 2  # of a run of survivors that failed before a client signed, and of each stage after that
    skipped: int = 3  # rounds in a row that open no sum, after which the training stops

    def __post_init__(self) -> None:
        if min(self.join, self.stage, self.training) <= 0 or min(self.tries, self.skipped) < 1:
            raise ConfigError(f"deadlines must be positive, tries and skipped rounds at least 1, got {self}")

"""A plugin of pytest: writes the outcome of each test as a line of JSON, and leaves out what an earlier run passed.

`python -m tests.evidence` loads it. With pytest-xdist every process loads it; only the main one writes.
"""

import os
from pathlib import Path

import pytest

from tests import json_lines

FOLDER = "EVIDENCE_SUITE"  # environment variable: the folder of the files below
DONE, OUTCOMES, TOTAL = "passed.txt", "suite.jsonl", "total.txt"


class Writer:
    """Writes `suite.jsonl` as tests end."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / OUTCOMES
        self._seconds: dict[str, float] = {}
        self._outcome: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = report.nodeid
        self._seconds[test] = self._seconds.get(test, 0.0) + report.duration
        counts = report.outcome != "passed" or report.when == "call"
        if counts and self._outcome.get(test) != "failed":  # of setup, call and teardown, a failure decides
            self._outcome[test] = report.outcome
        if report.when == "teardown":
            found = {
                "test": test,
                "outcome": self._outcome.pop(test, "failed"),
                "seconds": round(self._seconds.pop(test), 3),
            }
            json_lines.append(self._path, found)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:  # the file cannot be imported: none of its tests ran
            json_lines.append(self._path, {"test": report.nodeid, "outcome": "failed", "seconds": 0.0})


def pytest_configure(config: pytest.Config) -> None:
    if (folder := os.environ.get(FOLDER)) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Writer(Path(folder)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    folder = Path(os.environ[FOLDER])
    passed = set((folder / DONE).read_text().splitlines())
    items[:] = [item for item in items if item.nodeid not in passed]
    (folder / TOTAL).write_text(str(len(items)))

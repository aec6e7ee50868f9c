"""A plugin of pytest that records which test runs which line, and what each test costs.

    python -m pytest -p tests.sampled.tracer -n 2      # in a copy of the tree; writes into its folder `reached`

Each process of pytest writes files of its own: the lines in the format of coverage.py, with the name of the test as the
context, and the processor time of each test. Parameters of a test count together.
"""

import json
import os
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from coverage import Coverage

from tests.sampled.draw import SCOPE

FOLDER = "reached"


class Tracer:
    """The lines and the costs of one process."""

    def __init__(self, root: Path, process: str) -> None:
        folder = root / FOLDER
        folder.mkdir(exist_ok=True)
        patterns = [str(root / name) + ("" if name.endswith(".py") else "/*") for name in SCOPE]
        self._coverage = Coverage(data_file=str(folder / f"lines.{process}"), include=patterns, config_file=False)
        self._costs, self._costs_file = Counter[str](), folder / f"costs.{process}.json"
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        test, before = item.nodeid.partition("[")[0], sum(os.times()[:4])
        self._coverage.switch_context(test)
        try:
            return (yield)
        finally:
            self._coverage.switch_context("")
            self._costs[test] += sum(os.times()[:4]) - before  # type: ignore[assignment]

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        with warnings.catch_warnings(action="ignore"):  # of tests that run no line in scope
            self._coverage.save()
        self._costs_file.write_text(json.dumps(self._costs))


def pytest_configure(config: pytest.Config) -> None:
    """Trace here, unless this process only hands out tests to others."""
    worker = getattr(config, "workerinput", None)
    if worker is not None or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Tracer(config.rootpath, worker["workerid"] if worker else "only"))

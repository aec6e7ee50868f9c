"""The notebook in the docs: its cells run, in order, and say what its text says."""

import json
import re
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"


def cells(kind: str) -> list[str]:
    found = json.loads(NOTEBOOK.read_text("utf-8"))
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 4)
    return ["".join(cell["source"]) for cell in found["cells"] if cell["cell_type"] == kind]


def test_every_cell_runs_and_the_text_is_true() -> None:
    space: dict[str, Any] = {}
    for number, source in enumerate(cells("code")):
        exec(compile(source, f"notebook.ipynb, cell {number}", "exec"), space)
    assert space["trained"].summary["exposed"] == []
    assert space["trained"].summary["least_anonymity"] == 3
    assert space["trained"].accuracy > space["plain"].accuracy + 0.2
    assert space["own"].summary["stopped"] == "good enough"
    assert set(space["last"]["metrics"]) == {"worst class", "worst client"}


def test_a_notebook_is_kept_without_outputs_and_its_links_exist() -> None:
    found = json.loads(NOTEBOOK.read_text("utf-8"))
    for cell in found["cells"]:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None
    for link in re.findall(r"\]\(([^)]+)\)", "\n".join(cells("markdown"))):
        assert (NOTEBOOK.parent / link).is_file(), link

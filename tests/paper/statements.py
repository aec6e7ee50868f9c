"""The statements of the SHARE paper, traced: what it says, what this project finds, and the tests that show it.

python -m tests.paper.statements --write   # write docs/paper.md from statements.toml
"""

import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "paper.md"
FINDINGS = ("holds", "holds with a condition", "does not hold", "not checked")


def statements() -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = tomllib.loads((ROOT / "tests/paper/statements.toml").read_text())["statement"]
    return found


def lines() -> Iterator[str]:
    """The page."""
    yield "# The statements of the SHARE paper"
    yield ""
    yield "Each statement of the paper (arXiv 2110.02940) that can be checked, and what this project finds."
    yield "[exposure.md](exposure.md), section 8, has numbers; `tests/paper/formulas.py` has the formulas of the paper"
    yield "beside the exact ones. This page is written from `tests/paper/statements.toml` by"
    yield "`python -m tests.paper.statements --write`. Accuracies are those of the authors' published curves;"
    yield "`tests/paper/test_published_claims.py` computes them."
    for one in statements():
        yield ""
        yield f"**{one['section']}.** {one['says']}"
        yield ""
        yield f"- *{one['finding'].capitalize()}.* {one['detail']}"
        if "formula" in one:
            yield f"- Exact: `{one['formula']}`"
        if one["tests"]:
            yield f"- Tests: {', '.join(f'`{test}`' for test in one['tests'])}"


def page() -> str:
    return "\n".join(lines()) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    PAGE.write_text(page())

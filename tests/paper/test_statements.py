"""The statements of the paper name tests that exist, and docs/paper.md is written from them."""

import pytest

from tests.paper.statements import FINDINGS, PAGE, ROOT, page, statements


def test_the_page_is_written_from_the_list() -> None:
    assert PAGE.read_text() == page(), "run `python -m tests.paper.statements --write`"


@pytest.mark.parametrize("number", range(len(statements())))
def test_a_finding_has_tests_that_exist(number: int) -> None:
    one = statements()[number]
    assert one["finding"] in FINDINGS
    assert one["tests"]
    assert one["finding"] != "does not hold" or "formula" in one
    for test in one["tests"]:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text() if name else (ROOT / file).is_file()

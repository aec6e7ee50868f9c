"""For every security check there is a test that fails when the check is removed (`mutations.py`)."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.secagg.mutations import PAGE, ROOT, TABLE, run_all, with_table


def test_every_check_of_the_table_is_where_the_table_says() -> None:
    """A table that has fallen out of step with the source would mutate nothing."""
    for mutation in TABLE:
        assert mutation.source.read_text().count(mutation.before) == 1, mutation.claim
        assert mutation.before != mutation.after
    assert Counter(mutation.claim for mutation in TABLE).most_common(1)[0][1] == 1


def test_every_test_of_the_table_exists() -> None:
    for mutation in TABLE:
        file, _, name = mutation.test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / "tests" / "secagg" / file).read_text(), (
            mutation.test
        )


def test_the_audit_page_prints_the_table_and_names_tests_that_exist() -> None:
    """`python -m tests.secagg.mutations --write` brings the page up to date."""
    page = PAGE.read_text()
    assert with_table(page) == page
    for file, name in re.findall(r"(test_\w+\.py)(?:::(\w+))?", page):
        text = (ROOT / "tests" / "secagg" / file).read_text()
        assert not name or f"def {name}(" in text, name


@pytest.mark.long
def test_every_check_has_a_test_that_fails_without_it() -> None:
    survived = {m.claim: verdict for m, verdict in run_all(TABLE).items() if verdict != "killed"}
    assert survived == {}

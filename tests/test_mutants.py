"""The list of mutants (`mutants.toml`) fits the sources and the tests; `python -m tests.mutants` runs it."""

import pytest

from tests.mutants import ROOT, Mutant, main, mutants


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.item)
def test_every_mutant_can_be_applied_and_names_a_test_or_a_reason(mutant: Mutant) -> None:
    assert bool(mutant.killed_by) != bool(mutant.reason)
    if mutant.file:
        source = (ROOT / mutant.file).read_text()
        changed = mutant.applied(source)
        assert changed != source
        compile(changed, mutant.file, "exec")
    if mutant.killed_by:
        file, _, name = mutant.killed_by.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(), f"{mutant.killed_by} does not exist; was it renamed?"


def test_a_change_that_does_not_fit_the_source_is_refused() -> None:
    with pytest.raises(ValueError, match="occurs 2 times"):
        Mutant(item="x", file="y.py", old="a", new="b").applied("a = a")


@pytest.mark.long
def test_every_mutant_is_killed_by_its_test() -> None:
    assert main([]) == 0

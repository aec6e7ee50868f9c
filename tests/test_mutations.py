"""The register of claims (`claims.toml`) agrees with the marks in the sources, the tests and the docs."""

import ast
import re
from collections import Counter

import pytest

from tests.mutations import PAGE, ROOT, RegisterError, claims, marks, marks_of, mutated, register, run_all, with_claims


def test_ids_and_statements_are_unique() -> None:
    for names in ([claim.id for claim in claims()], [claim.statement for claim in claims()]):
        assert [name for name, count in Counter(names).items() if count > 1] == []


def test_every_mark_has_a_claim() -> None:
    known = {claim.id for claim in claims()}
    strange = {id: places for id, places in marks().items() if id not in known}
    assert not strange, f"add these ids to tests/claims.toml, or correct the marks: {strange}"


def test_every_claim_has_a_mark() -> None:
    unmarked = [claim.id for claim in claims() if not claim.marks]
    assert not unmarked, f"mark the checks of these claims in the sources with `# audit: id`: {unmarked}"


def test_every_mutation_changes_the_marked_check_and_keeps_line_numbers() -> None:
    wrong = []
    for claim in claims():
        for mark in claim.marks:
            source = (ROOT / mark.file).read_text()
            try:
                assert mutated(source, mark.line, claim.steps).count("\n") == source.count("\n")
            except RegisterError as bad:
                wrong.append(f"tests/claims.toml, {claim.id}, marked at {mark.file}:{mark.line}: {bad}")
    assert not wrong, "\n\n".join(wrong)


def test_every_assumption_is_explained_and_used() -> None:
    used = {name for claim in claims() for name in claim.assumptions}
    assert used == set(register()["assumptions"])


def test_every_claim_has_tests_that_exist() -> None:
    for claim in claims():
        assert claim.tests, f"{claim.id} has no test"
        for test in claim.tests:
            file, _, name = test.partition("::")
            defined = f"def {name.partition('[')[0]}(" in (ROOT / file).read_text()
            assert defined, f"tests/claims.toml, {claim.id}: {test} does not exist; was it renamed?"


def test_every_topic_names_a_section_what_remains_and_vectors_that_exist() -> None:
    for topic in register()["topic"]:
        page, _, section = topic["section"].partition(": ")
        assert f"\n## {section}\n" in (ROOT / page).read_text(), f"{topic['name']}: {page} has no section {section!r}"
        assert topic["residual"].endswith(".")
        assert bool(topic["vectors"]) != bool(topic.get("no_vectors")), (
            f"{topic['name']}: vectors, or why there are none"
        )
        for name in topic["vectors"]:
            assert (ROOT / "tests" / "vectors" / f"{name}.json").is_file(), f"{topic['name']}: no vectors {name}.json"


def test_the_audit_page_is_written_from_the_register_and_names_tests_that_exist() -> None:
    page = PAGE.read_text()
    assert with_claims(page) == page, "run `python -m tests.mutations --write`"
    for file, name in re.findall(r"(test_\w+\.py)(?:::(\w+))?", page):
        assert any(not name or f"def {name}(" in path.read_text() for path in (ROOT / "tests").rglob(file)), (
            f"docs/audit.md names {file}::{name}, which does not exist"
        )


@pytest.mark.parametrize(
    ("source", "mutation", "expected"),
    [
        ("if a:  # audit: x\n    raise B", [], "if a and False:\n    raise B"),
        ("# audit: x\nif (\n    a\n    or b\n):\n    c()", [], "if (a or b) and False:\n    c()"),
        ("check(  # audit: x\n    a,\n)", [], "pass"),
        ("if a:\n    raise B  # audit: x", [], "if a:\n    pass"),
        ("return (\n    a\n    and b  # audit: x\n)", [], "return a and True"),
        ("f(\n    a,  # audit: x\n    *b,\n)", [], "f(*(), *b)"),
        ("t = [\n    (a > b, 'text'),  # audit: x\n    c,\n]", [], "t = [*(), c]"),
        ("t = (\n    a > b,  # audit: x\n    c,\n)", [], "t = (False, c)"),
        ("x = [\n    a\n    for a in b\n    if a > 1  # audit: x\n]", [], "x = [a for a in b if True]"),
        ("x = f(a, repr=False)  # audit: x", [{"remove": "repr = False"}], "x = f(a, **{})"),
        ("x = a + b + c + d  # audit: x", [{"remove": ["a", "c"]}], "x = b + d"),
        ("x = f(\n    'é',  # audit: x\n    b)", [{"replace": '"é"', "with": "c"}], "x = f(c, b)"),
        ("x = {\n    a: (b, c),  # audit: x\n}", [{"replace": "c", "with": "b"}], "x = {a: (b, b)}"),
        ("try:\n    a()\n# audit: x\nexcept B:\n    c()", [{"remove": "c()"}], "try:\n    a()\nexcept B:\n    pass"),
        ("raise A(\n    b)  # note\n# audit: x\nreturn c", [{"with": "return d"}], "raise A(b)\nreturn d"),
    ],
)
def test_a_mutation_changes_only_the_marked_part(source: str, mutation: list, expected: str) -> None:
    [(_, line)] = marks_of(source)
    changed = mutated(source, line, mutation or [{}])
    assert ast.unparse(ast.parse(changed)) == ast.unparse(ast.parse(expected))
    assert changed.count("\n") == source.count("\n")


@pytest.mark.parametrize(
    ("source", "mutation", "message"),
    [
        ("return a  # audit: x", [], "cannot be disabled"),
        ("else_ = (\n    a\n)  # audit: x", [], "nothing begins on the marked line"),
        ("x = a + b  # audit: x", [{"remove": "c"}], "`c` occurs 0 times"),
        ("x = a + a  # audit: x", [{"remove": "a"}], "`a` occurs 2 times"),
        ("x = a[b]  # audit: x", [{"remove": "b"}], "cannot be removed"),
        ("x = a  # audit: x", [{"replace": "a", "with": "(a)"}], "changes nothing"),
        ("x = a  # audit: x", [{"replace": "a"}], "does not fit"),
    ],
)
def test_a_mutation_that_does_not_fit_says_why(source: str, mutation: list, message: str) -> None:
    [(_, line)] = marks_of(source)
    with pytest.raises(RegisterError, match=re.escape(message)):
        mutated(source, line, mutation or [{}])


@pytest.mark.long
def test_every_check_has_a_test_that_fails_without_it() -> None:
    assert {name: verdict for name, verdict in run_all(claims()).items() if verdict != "killed"} == {}

"""Disable one security check at a time and see a test fail.

    python -m tests.mutations              # all claims, two at a time
    python -m tests.mutations opening u3   # the claims whose id, statement, file or tests contain both words
    python -m tests.mutations id other-id  # the claims of these ids
    python -m tests.mutations --write      # write the register into docs/audit.md

`tests/claims.toml` is the register of claims. A comment `# audit: id [id ...]` marks the check that makes a
claim true: at the end of a line, or alone on the line above. The marked part is every outermost node of the
syntax tree that begins on that line: mostly one statement, otherwise elements of a call, a table or a boolean
expression. The claim's `mutation` says what to do with the marked part:

- `"disable"`: an `if` never takes its branch; a `raise`, an assignment or a call as a statement becomes
  `pass`; a row or an element of a table or call is removed, and a condition in a table becomes False; an
  operand of `and`/`or` and a condition of a comprehension no longer decide.
- `{ remove = "expr" }`: removes an expression (or each of a list) from a call, table, sum, `and` or `or`.
- `{ replace = "expr", with = "expr" }`: replaces an expression.
- `{ with = "statement" }`: replaces the whole marked statement.

Expressions are compared as syntax trees: line breaks, quotes and brackets do not matter. A list of mutations
is applied at once. The runner edits only the marked part, in a copy of the tree, and keeps all line numbers.
"""

import ast
import io
import os
import shutil
import subprocess
import sys
import tempfile
import tokenize
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from queue import Queue
from typing import Any

ROOT = Path(__file__).parents[1]
REGISTER = ROOT / "tests" / "claims.toml"
PAGE, BEGIN, END = ROOT / "docs" / "audit.md", "<!-- claims -->\n", "<!-- end of claims -->"
PACKAGES = ("secagg", "robust", "fl")
MARK = "audit:"
WORKERS = 2

Edit = tuple[int, int, str]  # replace these bytes of a source by this text


class RegisterError(Exception):
    """The register and the sources do not agree; the message says what to change."""


@dataclass(frozen=True)
class Mark:
    """A place where a check stands."""

    file: str  # from the root of the repository
    line: int  # of the marked part

    @property
    def scope(self) -> str:
        """The function, method or class around the mark, or the table at the top of the module."""
        tree = tree_of((ROOT / self.file).read_text())
        nodes: list[ast.AST] = [tree]
        names, tables = [], []
        while nodes:
            inside = [node for node in ast.iter_child_nodes(nodes.pop()) if on_line(node, self.line)]
            names += [node.name for node in inside if isinstance(node, ast.FunctionDef | ast.ClassDef)]
            tables += [node for node in inside if isinstance(node, ast.Assign | ast.AnnAssign)]
            nodes += inside
        return ".".join(names) or ast.unparse(tables[0]).partition(":")[0].partition(" =")[0]


@dataclass(frozen=True)
class Claim:
    """One entry of the register."""

    topic: str
    id: str
    statement: str
    assumptions: list[str]
    tests: list[str]
    mutation: Any

    @property
    def marks(self) -> Sequence[Mark]:
        return marks().get(self.id, ())

    @property
    def steps(self) -> list[Mapping[str, Any]]:
        """The mutations to apply; an empty one disables the marked part."""
        if self.mutation == "disable":
            return [{}]
        return self.mutation if isinstance(self.mutation, list) else [self.mutation]

    def matches(self, words: Sequence[str]) -> bool:
        text = " ".join([self.id, self.statement, *self.tests, *(mark.file for mark in self.marks)])
        return all(word in text for word in words)


@cache
def register() -> Mapping[str, Any]:
    return tomllib.loads(REGISTER.read_text())


@cache
def claims() -> Sequence[Claim]:
    """All claims, in the order of the register."""
    return [Claim(topic["name"], **entry) for topic in register()["topic"] for entry in topic["claim"]]


def marks_of(source: str) -> Iterator[tuple[str, int]]:
    """(id, line of the marked part) of every mark in a source text."""
    waiting: list[str] = []
    code_on_line = False
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and token.string.lstrip("# ").startswith(MARK):
            ids = token.string.partition(MARK)[2].split()
            if code_on_line:
                yield from ((id, token.start[0]) for id in ids)
            else:
                waiting += ids
        elif token.type in (tokenize.NEWLINE, tokenize.NL):
            code_on_line = False
        elif token.type not in (tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT):
            code_on_line = True
            yield from ((id, token.start[0]) for id in waiting)
            waiting = []


@cache
def marks() -> Mapping[str, tuple[Mark, ...]]:
    """Every mark in the sources, by id."""
    found: dict[str, tuple[Mark, ...]] = {}
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        if f"# {MARK}" in (source := path.read_text()):
            for id, line in marks_of(source):
                found[id] = (*found.get(id, ()), Mark(str(path.relative_to(ROOT)), line))
    return found


def on_line(node: ast.AST, line: int) -> bool:
    """Whether a line is inside a node. Nodes without a place, such as arguments, may have it inside."""
    first, last = getattr(node, "lineno", line), getattr(node, "end_lineno", line)
    decorators = getattr(node, "decorator_list", ())  # they are before the line of their function
    return min([first, *(one.lineno for one in decorators)]) <= line <= last


def marked_part(tree: ast.Module, line: int) -> list[tuple[ast.AST, ast.AST]]:
    """(parent, node) of the outermost nodes that begin on a line."""
    found: list[tuple[ast.AST, ast.AST]] = []

    def visit(parent: ast.AST) -> None:
        for child in ast.iter_child_nodes(parent):
            if getattr(child, "lineno", None) == line:
                found.append((parent, child))
            elif on_line(child, line):
                visit(child)

    visit(tree)
    return found


def mutated(source: str, line: int, steps: Sequence[Mapping[str, Any]]) -> str:
    """The source with the part marked on this line changed; raises RegisterError if that is impossible."""
    part = marked_part(tree_of(source), line)
    if not part:
        raise RegisterError("nothing begins on the marked line: move the mark to the first line of the check")
    starts = [0]
    for text in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(text))

    def span(node: Any) -> tuple[int, int]:
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    def find(wanted: str) -> tuple[ast.AST, ast.AST]:
        pattern = parsed(wanted)
        inside = [(parent, node) for parent, top in part for parent, node in [(parent, top), *pairs(top)]]
        hits = [(parent, node) for parent, node in inside if ast.dump(node) == pattern]
        if len(hits) != 1:
            text = "\n".join(ast.unparse(node) for _, node in part)
            raise RegisterError(
                f"`{wanted}` occurs {len(hits)} times in the marked part and must occur once; write the"
                f" expression as it stands now. The marked part is:\n{text}"
            )
        return hits[0]

    edits: list[Edit] = []
    for step in steps:
        match step:
            case {"remove": str() | list() as wanted, **rest} if not rest:
                for one in [wanted] if isinstance(wanted, str) else wanted:
                    edits += removal(*find(one), span)
            case {"replace": str(wanted), "with": str(new), **rest} if not rest:
                edits.append((*span(find(wanted)[1]), f"({ast.unparse(ast.parse(new, mode='eval'))})"))
            case {"with": str(new), **rest} if not rest and len(part) == 1 and isinstance(part[0][1], ast.stmt):
                ast.parse(f"def f():\n    {new}")
                edits.append((*span(part[0][1]), new))
            case {**rest} if not rest and len(part) == 1:
                edits += disabled(*part[0], span)
            case _:
                raise RegisterError(f"this mutation does not fit the {len(part)} marked nodes: {step}")
    return apply(source, edits)


def parsed(expression: str) -> str:
    """The dumped syntax tree of an expression, a starred expression or a keyword argument."""
    match ast.parse(f"f({expression}\n)", mode="eval").body:
        case ast.Call(args=[node], keywords=[]) | ast.Call(args=[], keywords=[node]):
            return ast.dump(node)
    raise RegisterError(f"`{expression}` must be one expression; put a tuple in brackets")


def pairs(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """(parent, child) of everything below a node."""
    for parent in ast.walk(node):
        yield from ((parent, child) for child in ast.iter_child_nodes(parent))


def removal(parent: ast.AST, node: ast.AST, span: Any) -> list[Edit]:
    """Edits that take a node out of its parent, so that the parent stays valid."""
    match parent:
        case ast.BoolOp():
            return [(*span(node), "True" if isinstance(parent.op, ast.And) else "False")]
        case ast.comprehension() if node in parent.ifs:
            return [(*span(node), "True")]
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            if node is right:
                return [(span(left)[1], span(right)[1], "")]
            return [(span(left)[0], span(right)[0], "")]
        case ast.Expr():
            return [(*span(node), "pass")]
        case ast.Call() | ast.Tuple() | ast.List() | ast.Set() if node is not getattr(parent, "func", None):
            return [(*span(node), "**{}" if isinstance(node, ast.keyword) else "*()")]
    raise RegisterError(f"`{ast.unparse(node)}` cannot be removed from `{ast.unparse(parent)}`")


def disabled(parent: ast.AST, node: ast.AST, span: Any) -> list[Edit]:
    """Edits that disable one marked node."""
    match node:
        case ast.If():
            start, end = span(node.test)
            return [(start, start, "("), (end, end, ") and False")]  # the condition keeps its side effects
        case ast.Raise() | ast.Expr() | ast.Assign() | ast.AugAssign() | ast.Assert():
            return [(*span(node), "pass")]
        case ast.stmt() | ast.excepthandler():
            raise RegisterError("this statement cannot be disabled: write remove, replace or with")
        case ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
            if isinstance(parent, ast.Tuple | ast.List | ast.Call | ast.keyword):
                return [(*span(node), "False")]
    return removal(parent, node, span)


@cache
def tree_of(source: str) -> ast.Module:
    return ast.parse(source)


def is_same(source: str, text: str) -> bool:
    """Whether two texts with the same number of lines mean the same: statements without a changed line are equal."""
    old, new = tree_of(source).body, ast.parse(text).body
    lines = enumerate(zip(source.split("\n"), text.split("\n"), strict=True), 1)
    changed = [number for number, (before, after) in lines if before != after]

    def touched(node: ast.stmt) -> bool:
        return any(node.lineno <= number <= (node.end_lineno or node.lineno) for number in changed)

    pairs = [(a, b) for a, b in zip(old, new, strict=False) if touched(a)]
    return len(old) == len(new) and all(ast.dump(a) == ast.dump(b) for a, b in pairs)


def apply(source: str, edits: Sequence[Edit]) -> str:
    """The edited source, with as many lines as before."""
    data = source.encode()
    for start, end, new in sorted(edits, reverse=True):
        lines = data[start:end].count(b"\n")
        padded = f"{new[:-1]}{chr(10) * lines})" if new.endswith(")") else new + "\n" * lines
        data = data[:start] + padded.encode() + data[end:]
    text = data.decode()
    try:
        if is_same(source, text):
            raise RegisterError("the mutation changes nothing")
    except SyntaxError as bad:
        raise RegisterError(f"the mutated source is not valid Python: {bad}") from None
    return text


def copy_tree(folder: Path) -> None:
    """The packages and the tests, with the numba caches, which depend on the files' times."""
    ignored = shutil.ignore_patterns("vectors", "fl")
    for name in ("secagg", "robust", "fl", "tests"):  # fl: pytest's filters name a warning of it
        shutil.copytree(ROOT / name, folder / name, ignore=ignored if name == "tests" else None)
    shutil.copy2(ROOT / "pyproject.toml", folder)


@contextmanager
def applied(claim: Claim, mark: Mark, folder: Path) -> Iterator[None]:
    """The copy with one check disabled; afterwards the file is as before."""
    path = folder / mark.file
    original, times = path.read_text(), (path.stat().st_atime, path.stat().st_mtime)
    path.write_text(mutated(original, mark.line, claim.steps))
    try:
        yield
    finally:
        path.write_text(original)
        os.utime(path, times)


def run_tests(tests: Sequence[str], folder: Path, *, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run tests in a process of their own, on the copy."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )


def verdict_of(claim: Claim, mark: Mark, folder: Path) -> str:
    """'killed' if every test of the claim fails, otherwise what happened instead."""
    for test in claim.tests:
        with applied(claim, mark, folder):
            done = run_tests([test], folder, timeout=300)
        if done.returncode == 0:
            return f"SURVIVED: {test} passes"
        broken = " error" in done.stdout.splitlines()[-1] or "\nE   NameError" in done.stdout  # not by the check
        if done.returncode != 1 or broken:
            return f"NO VERDICT (exit {done.returncode}): {test}\n{done.stdout[-600:]}{done.stderr[-300:]}"
    return "killed"


def run_all(chosen: Sequence[Claim], *, workers: int = WORKERS) -> dict[str, str]:
    """The verdict on every claim at each of its marks. All tests must pass on the untouched copy first."""
    todo = [(claim, mark) for claim in chosen for mark in claim.marks]
    with tempfile.TemporaryDirectory() as place:
        folders: Queue[Path] = Queue()
        for number in range(workers):
            copy_tree(Path(place) / str(number))
            folders.put(Path(place) / str(number))
        tests = sorted({test for claim in chosen for test in claim.tests})
        before = run_tests(tests, Path(place) / "0", timeout=3600)
        if before.returncode != 0:
            return {"the tests without any mutation": f"NO VERDICT\n{before.stdout[-3000:]}"}

        def judge(item: tuple[Claim, Mark]) -> str:
            claim, mark = item
            folder = folders.get()
            try:
                verdict = verdict_of(claim, mark, folder)
            except (RegisterError, subprocess.TimeoutExpired) as bad:
                verdict = f"NO VERDICT: {bad}"
            finally:
                folders.put(folder)
            print(f"{verdict.splitlines()[0]:10} {claim.id}  [{mark.file}:{mark.line}]", flush=True)
            return verdict

        with ThreadPoolExecutor(workers) as pool:
            names = [f"{claim.id} ({mark.file}:{mark.line})" for claim, mark in todo]
            return dict(zip(names, pool.map(judge, todo), strict=True))


def about(topic: str) -> list[str]:
    """Where a topic is defined, what remains, and its vectors."""
    (entry,) = (one for one in register()["topic"] if one["name"] == topic)
    page, _, section = entry["section"].partition(": ")
    lines = [f'- Defined in [{Path(page).name}]({Path(page).name}), "{section}".', f"- Remains: {entry['residual']}"]
    vectors = ", ".join(f"`{name}.json`" for name in entry["vectors"])
    return [*lines, f"- Vectors: {vectors or 'none: ' + entry['no_vectors']}"]


def markdown() -> str:
    """The register as docs/audit.md prints it."""
    lines = ["Assumptions, as the tables below name them:", ""]
    lines += [f"- **{name}**: {text}" for name, text in register()["assumptions"].items()]
    topic = ""
    for claim in claims():
        if claim.topic != topic:
            topic = claim.topic
            lines += [
                "",
                f"### {topic}",
                "",
                *about(topic),
                "",
                "| claim | assumes | check | tests |",
                "|---|---|---|---|",
            ]
        where = "<br>".join(f"`{mark.file}: {mark.scope}`" for mark in claim.marks)
        tests = "<br>".join(f"`{test}`" for test in claim.tests)
        lines.append(
            f"| {claim.statement} (`{claim.id}`) | {', '.join(claim.assumptions) or 'nothing'} | {where} | {tests} |"
        )
    return "\n".join(lines) + "\n"


def with_claims(page: str) -> str:
    """docs/audit.md with the register as it is now."""
    head, _, rest = page.partition(BEGIN)
    return head + BEGIN + markdown() + END + rest.partition(END)[2]


def main(words: Sequence[str]) -> int:
    if words == ["--write"]:
        PAGE.write_text(with_claims(PAGE.read_text()))
        return 0
    named = [claim for claim in claims() if claim.id in words]
    chosen = named if named and len(named) == len(words) else [claim for claim in claims() if claim.matches(words)]
    if not chosen:
        print(__doc__ if set(words) & {"-h", "--help"} else f"no claim contains all of: {' '.join(words)}")
        return 2
    verdicts = run_all(chosen)
    bad = {name: verdict for name, verdict in verdicts.items() if verdict != "killed"}
    for name, verdict in bad.items():
        print(f"\n{name}: {verdict}")
    print(f"\n{len(verdicts) - len(bad)} of {len(verdicts)} checks have a test that fails without them")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

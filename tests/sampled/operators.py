"""Ordinary mutants of a source: one small change each, as mutation tools make them.

Operators: comparison, boolean, arithmetic, constant (a number one up or down, True for False), statement (a call, a
`raise`, an assignment to a part of something becomes `pass`), return (the value becomes None), loop (`break` for
`continue` and the reverse), exception (`except` that catches nothing), default (a constant that stands as a default
value).

Left alone, because a change there changes no behaviour: annotations, docstrings, names for the type checker, the text
of f-strings, and what happens only when a file is run as a program.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Lt: ("<=", ">="),
    ast.LtE: ("<", ">"),
    ast.Gt: (">=", "<="),
    ast.GtE: (">", "<"),
    ast.Eq: ("!=",),
    ast.NotEq: ("==",),
    ast.In: ("not in",),
    ast.NotIn: ("in",),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
}
ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "*",
    ast.Pow: "*",
    ast.LShift: ">>",
    ast.RShift: "<<",
    ast.BitAnd: "|",
    ast.BitOr: "&",
    ast.BitXor: "&",
    ast.MatMult: "*",
}


@dataclass(frozen=True)
class Mutant:
    """One change of one source."""

    file: str
    operator: str
    start: int  # the bytes to replace
    end: int
    new: str
    lines: range  # of the smallest statement or expression around the change
    scope: range  # of the function, class or module around it
    name: str  # of that function or class; empty for a module
    which: int  # distinguishes equal changes of equal lines in one scope
    old_line: str
    new_line: str

    @property
    def id(self) -> str:
        """Stays the same when other lines of the file change."""
        number = f" ({self.which})" if self.which else ""
        return f"{self.file}: {self.name or 'module'}: {self.old_line} -> {self.new_line}{number}"

    def applied(self, source: str) -> str:
        data = source.encode()
        return (data[: self.start] + self.new.encode() + data[self.end :]).decode()


class Finder(ast.NodeVisitor):
    """Collects (operator, start, end, new text, node, scope)."""

    def __init__(self, source: str) -> None:
        self._data = source.encode()
        self._starts = [0]
        for text in self._data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(text))
        self.found: list[tuple[str, int, int, str, ast.AST, tuple[ast.AST, ...]]] = []
        self._scope: tuple[ast.AST, ...] = ()
        self._default = False

    def span(self, node: ast.AST) -> tuple[int, int]:
        start = self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def add(self, operator: str, start: int, end: int, new: str, node: ast.AST) -> None:
        self.found.append((operator, start, end, new, node, self._scope))

    def between(self, left: ast.AST, right: ast.AST) -> tuple[int, int]:
        """The place of an operator: what stands between its operands without brackets, spaces and comments."""
        start, end = self.span(left)[1], self.span(right)[0]
        kept, at = [], start
        while at < end:
            byte = self._data[at : at + 1]
            if byte == b"#":
                at = self._data.index(b"\n", at)
            elif byte not in b"() \n\\":
                kept.append(at)
            at += 1
        return kept[0], kept[-1] + 1

    # --- scopes and what is left alone ---------------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)
        outer, self._scope = self._scope, (*self._scope, node)
        self._default = True
        for default in [*node.args.defaults, *(one for one in node.args.kw_defaults if one)]:
            self.visit(default)
        self._default = False
        self.body(node.body)
        self._scope = outer

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)
        outer, self._scope = self._scope, (*self._scope, node)
        self.body(node.body)
        self._scope = outer

    def visit_Module(self, node: ast.Module) -> None:
        self.body(node.body)

    def body(self, statements: list[ast.stmt]) -> None:
        for one in statements:
            if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)):  # a docstring, or `...`
                self.visit(one)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            outer, self._default = self._default, bool(self._scope) and isinstance(self._scope[-1], ast.ClassDef)
            self.visit(node.value)
            self._default = outer

    def visit_Assign(self, node: ast.Assign) -> None:
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets):
            return
        if any(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self.add("statement", *self.span(node), "pass", node)
        self.visit(node.value)
        for target in node.targets:
            self.visit(target)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Python 3.11 gives no places inside an f-string, and nearly all are texts for people."""

    def visit_arg(self, node: ast.arg) -> None:
        """Has only an annotation."""

    def visit_If(self, node: ast.If) -> None:
        test = ast.unparse(node.test)
        if test == "TYPE_CHECKING" or test.startswith("__name__ =="):
            return
        self.generic_visit(node)

    # --- operators -----------------------------------------------------------------------------------------------

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for left, op, right in zip(operands, node.ops, operands[1:], strict=False):
            for new in COMPARISONS[type(op)]:
                self.add("comparison", *self.between(left, right), new, node)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        new = "or" if isinstance(node.op, ast.And) else "and"
        for left, right in zip(node.values, node.values[1:], strict=False):
            self.add("boolean", *self.between(left, right), new, node)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        start, _ = self.span(node)
        if isinstance(node.op, ast.Not):
            self.add("boolean", start, self.span(node.operand)[0], "", node)
        elif isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
            self.add("arithmetic", start, start + 1, "+", node)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        text = isinstance(node.left, ast.JoinedStr) or isinstance(node.right, ast.JoinedStr)
        types = isinstance(node.op, ast.BitOr) and not self._numbers(node)
        if not text and not types:
            self.add("arithmetic", *self.between(node.left, node.right), ARITHMETIC[type(node.op)], node)
        self.generic_visit(node)

    def _numbers(self, node: ast.BinOp) -> bool:
        """Whether `a | b` is no union of types: at the top of a module nearly all are."""
        return any(isinstance(scope, ast.FunctionDef) for scope in self._scope)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        start, end = self.between(node.target, node.value)
        self.add("arithmetic", start, end, ARITHMETIC[type(node.op)] + "=", node)
        self.add("statement", *self.span(node), "pass", node)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        operator = "default" if self._default else "constant"
        if isinstance(node.value, bool):
            self.add(operator, *self.span(node), str(not node.value), node)
        elif isinstance(node.value, int):
            self.add(operator, *self.span(node), f"({node.value + 1})", node)
            self.add(operator, *self.span(node), f"({node.value - 1})", node)
        elif isinstance(node.value, float):
            self.add(operator, *self.span(node), f"({node.value!r} * 2 + 1)", node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Yield | ast.YieldFrom | ast.Await):
            self.add("statement", *self.span(node), "pass", node)
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self.add("statement", *self.span(node), "pass", node)
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self.add("return", *self.span(node), "return None", node)
        self.generic_visit(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.type is not None:
            self.add("exception", *self.span(node.type), "()", node.type)
        self.generic_visit(node)

    def visit_Break(self, node: ast.Break) -> None:
        self.add("loop", *self.span(node), "continue", node)

    def visit_Continue(self, node: ast.Continue) -> None:
        self.add("loop", *self.span(node), "break", node)


def mutants_of(file: str, source: str) -> Iterator[Mutant]:
    """Every mutant of a source. A few are not valid: ask `is_valid` about those that are used."""
    finder, seen = Finder(source), dict[str, int]()
    finder.visit(ast.parse(source))
    total = source.count("\n") + 1
    for operator, start, end, new, node, scopes in finder.found:
        inner = scopes[-1] if scopes else None
        lines = range(node.lineno, node.end_lineno + 1)  # type: ignore[attr-defined]
        scope = range(inner.lineno, inner.end_lineno + 1) if inner else range(1, total + 1)  # type: ignore[attr-defined]
        name = ".".join(one.name for one in scopes)  # type: ignore[attr-defined]
        old_line, new_line = around(source, start, end, new)
        key = f"{name}: {old_line} -> {new_line}"
        seen[key] = seen.get(key, -1) + 1
        yield Mutant(file, operator, start, end, new, lines, scope, name, seen[key], old_line, new_line)


def is_valid(mutant: Mutant, source: str) -> bool:
    """Whether the mutant is Python, and not the same program as the source."""
    try:
        return ast.dump(ast.parse(mutant.applied(source))) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False


def around(source: str, start: int, end: int, new: str) -> tuple[str, str]:
    """The changed lines before and after, on one line each."""
    data = source.encode()
    first = data.rfind(b"\n", 0, start) + 1
    last = data.find(b"\n", end)
    last = len(data) if last < 0 else last
    before, after = data[first:last], data[first:start] + new.encode() + data[end:last]
    return " ".join(before.decode().split()), " ".join(after.decode().split())

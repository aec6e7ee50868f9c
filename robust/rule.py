"""The common part of all rules: the call, the checks, and rows that are not finite.

A rule is a function of `Rows` that returns an `Outcome`, with the decorator `@aggregator(...)`. The decorator
makes it callable on any matrix, registers its name, and handles bad input: k rows with NaN or infinity count
as k of the f bad rows, so the rule runs on the other n - k rows with max(f - k, 0).
"""

from __future__ import annotations

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robust.kernels import Indices, Matrix, Vector
from robust.parameters import Registry, call_signature, check_parameters, read_parameters
from robust.rows import NotFiniteError, Outcome, Rows, RowsError, Weights, as_array, as_matrix

P = ParamSpec("P")
Refusal = Callable[..., None] | None  # of n and the parameters; raises ValueError

AGGREGATORS: Registry[Aggregator[...]] = Registry("aggregator")
PRE_AGGREGATORS: Registry[PreAggregator[...]] = Registry("pre-aggregator")


@dataclass(frozen=True, slots=True, eq=False)
class Aggregate:
    """The result of a rule: a vector, and how the rule treated each row, by row number.

    >>> import robust
    >>> found = robust.krum.detail([[1], [2], [3], [90]], f=0)
    >>> found.vector, found.accepted, found.rejected
    (array([2.], dtype=float32), (1,), (0, 2, 3))
    """

    vector: Vector
    rows: int  # number of rows in the input
    ignored: tuple[int, ...]  # rows with NaN or infinity
    accepted: tuple[int, ...] | None  # rows that the rule chose; None if it does not choose rows
    weights: Weights | None  # one per input row; None if the vector is not a weighted sum of rows
    converged: bool = True  # False if an iteration ended before it was within its tolerance

    @property
    def rejected(self) -> tuple[int, ...] | None:
        """The rows that were not chosen, including ignored rows; None if the rule does not choose rows."""
        if self.accepted is None:
            return None
        return tuple(sorted(set(range(self.rows)) - set(self.accepted)))


@dataclass(frozen=True, slots=True, eq=False)
class Mixed:
    """What a pre-aggregator returns: new rows and, if they are not one per input row, what each is made of.

    >>> import numpy as np, robust
    >>> robust.Mixed(np.zeros((1, 2), dtype="float32"), members=(np.array([0, 1]),)).matrix.shape
    (1, 2)
    """

    matrix: Matrix
    members: tuple[Indices, ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """The result of a pre-aggregation step: rows for a rule, and the input rows that each one stands for.

    Ignored rows were among the f bad rows of the input, so the rule gets max(f - len(ignored), 0).

    >>> import robust
    >>> ready = robust.nnm.detail([[1], [2], [3], [float("nan")]], f=1)
    >>> ready.ignored, ready.members
    ((3,), ((0,), (1,), (2,)))
    """

    matrix: Matrix
    rows: int  # number of rows in the input
    ignored: tuple[int, ...]  # input rows with NaN or infinity; they are not in the matrix
    members: tuple[tuple[int, ...], ...]  # for each row of the matrix, the input rows that it stands for


class _Named(ABC, Generic[P]):
    """A function of `Rows` and keywords, with a name and checks."""

    def __init__(
        self, core: Callable[Concatenate[Rows, P], Any], name: str, paper: str, needs: str, refuse: Refusal
    ) -> None:
        self._core: Callable[..., Any] = core
        self._refuse = refuse
        self.name = name
        self.paper = paper
        self.needs = needs  # the condition on n and f, for messages and tables
        self.parameters = read_parameters(core)
        self.__name__ = core.__name__
        self.__doc__ = core.__doc__
        self.__signature__ = call_signature(type(self), core)

    def __repr__(self) -> str:
        return f"<{self.name}({', '.join(map(str, self.parameters.values()))})>"

    @abstractmethod
    def largest_f(self, n: int) -> int:
        """The largest f that is accepted for n rows."""

    def check(self, n: int, /, **params: object) -> dict[str, Any]:
        """Raise ValueError now for parameters that a call on n finite rows would refuse.

        A check that needs the rows themselves, such as the length of a vector, happens in the call.
        """
        checked = check_parameters(self.name, self.parameters, params)
        self._for_rows(n, 0, n, checked)
        return checked

    def _for_rows(self, n: int, ignored: int, given: int, params: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters for the n remaining rows: every ignored row was one of the f bad rows."""
        if n < 1:
            raise RowsError(f"{self.name} needs at least one row, got n={n}", rule=self.name)
        f = params.get("f")
        bad = 0 if f is None else f if f < 0 else max(f - ignored, 0)
        if not 0 <= bad <= self.largest_f(n):
            left = f" ({ignored} of {given} rows are not finite)" if ignored else ""
            raise RowsError(f"{self.name} needs {self.needs}: got n={n}, f={bad}{left}", rule=self.name)
        if self._refuse is not None:
            self._refuse(given, **params)
        return dict(params) if f is None else {**params, "f": bad}

    def _run(self, rows: Rows, params: Mapping[str, Any]) -> tuple[Rows, Any]:
        """The result, and the finite rows that it was computed from."""
        try:
            return rows, self._called(rows, params)
        except NotFiniteError:
            rows = rows.finite()
        if not len(rows):
            problem = f"all {rows.given} rows contain NaN or infinity; at least one finite row is needed"
            raise RowsError(problem, rule=self.name)
        return rows, self._called(rows, params)

    def _called(self, rows: Rows, params: Mapping[str, Any]) -> Any:
        options = self._for_rows(len(rows), rows.ignored, rows.given, params)
        try:
            return self._core(rows, **options)
        except RowsError as error:  # its own, or that of another rule that it called
            error.rule = self.name if error.rule is None else f"{self.name}: {error.rule}"
            raise

    def _checked(self, positional: tuple[object, ...], params: Mapping[str, object]) -> dict[str, Any]:
        if positional:
            raise TypeError(f"{self.name} takes its parameters by keyword")
        return check_parameters(self.name, self.parameters, params)


class Aggregator(_Named[P]):
    """A rule. Call it on a matrix for the vector; call `detail` for how it treated each row as well.

    >>> import robust
    >>> rule = robust.AGGREGATORS["trimmed_mean"]
    >>> rule.needs, rule.withstands(20), rule.check(20, f=9)
    ('n > 2f', 9, {'f': 9})
    """

    def __init__(
        self, withstands: Callable[[int], int], kappa: Callable[[int, int], float] | None, **common: Any
    ) -> None:
        super().__init__(**common)
        self.withstands = withstands  # the largest number of bad rows among n
        self.kappa = kappa  # kappa(n, f) of (f, kappa)-robustness, if there is a proof

    def __call__(self, updates: ArrayLike, *args: P.args, **kwargs: P.kwargs) -> Vector:
        return self.detail(updates, *args, **kwargs).vector

    def detail(self, updates: ArrayLike, *args: P.args, **kwargs: P.kwargs) -> Aggregate:
        """Apply the rule, and report which rows it ignored or accepted and the weight of each."""
        return _apply(self, self._checked(args, kwargs), (), as_matrix(updates))

    def largest_f(self, n: int) -> int:
        """The largest f that is accepted for n rows: the number of bad rows that the rule withstands."""
        return self.withstands(n)


class PreAggregator(_Named[P]):
    """A step before a rule. Call it on a matrix for a matrix of finite rows; call `detail` for a report.

    Rows that are not finite are not in the result. They were among the f bad rows, so f is smaller for the
    rule that follows. `detail` reports these rows; `aggregate` adjusts f itself.

    >>> import robust
    >>> robust.PRE_AGGREGATORS["clipping"]([[3, 4], [0, 1]], radius=2.5).tolist()
    [[1.5, 2.0], [0.0, 1.0]]
    """

    def __call__(self, updates: ArrayLike, *args: P.args, **kwargs: P.kwargs) -> Matrix:
        return self.detail(updates, *args, **kwargs).matrix

    def detail(self, updates: ArrayLike, *args: P.args, **kwargs: P.kwargs) -> Prepared:
        """Apply the step, and report which rows it ignored and which input rows each new row stands for."""
        params = self._checked(args, kwargs)
        given = Rows(as_matrix(updates))
        rows, mixed = self._mixed(given, params)
        members = [[i] for i in range(len(rows))] if mixed.members is None else mixed.members
        return Prepared(
            matrix=mixed.matrix,
            rows=len(given),
            ignored=_missing(len(given), rows.labels),
            members=tuple(tuple(sorted(rows.labels[inside].tolist())) for inside in members),
        )

    def largest_f(self, n: int) -> int:
        """The largest f that is accepted for n rows. The rule that follows limits it further."""
        return n - 1

    def _mixed(self, rows: Rows, params: Mapping[str, Any]) -> tuple[Rows, Mixed]:
        """As `_run`, with a checked result: a matrix of float32, and positions of rows as members."""
        rows, made = self._run(rows, params)
        if not isinstance(made, Mixed):
            raise TypeError(f"{self.name} must return robust.Mixed(matrix), got {type(made).__name__}")
        matrix = as_array(made.matrix, f"the matrix of {self.name}")
        members = None if made.members is None else self._members(made.members, len(rows))
        wanted = (len(rows) if members is None else len(members), rows.width)
        if matrix.shape != wanted or not len(matrix) or matrix.dtype.kind not in "fiu":
            each = "input row" if members is None else "entry of members"
            raise TypeError(
                f"{self.name} must return a Mixed with a matrix of {wanted[0]} x {wanted[1]} real numbers, one row per "
                f"{each}; got shape {matrix.shape} of {matrix.dtype}"
            )
        return rows, Mixed(_single(matrix), members)

    def _members(self, made: object, rows: int) -> tuple[Indices, ...]:
        """Which rows are in each bucket, as the step says."""
        entries = made if isinstance(made, Iterable) else [made]
        members = tuple(as_array(one, f"members of {self.name}") for one in entries)
        if not all(_are_positions(one, rows) for one in members):
            raise TypeError(f"{self.name}: each entry of members must be an array of row numbers, 0 to {rows - 1}")
        return members


def aggregator(
    *,
    paper: str,
    needs: str,
    withstands: Callable[[int], int],
    kappa: Callable[[int, int], float] | None = None,
    refuse: Refusal = None,
    name: str | None = None,
) -> Callable[[Callable[Concatenate[Rows, P], Outcome]], Aggregator[P]]:
    """Make a function of `Rows` a rule, and register it under its own name or under `name`.

    `withstands(n)` is the largest number of bad rows among n; a larger f is refused. If other parameters can
    make no sense for n rows, `refuse(n, **parameters)` raises ValueError for them. It gets the parameters
    that the caller gave, both in `check` and in a call. docs/add-an-aggregator.md is the guide.

    >>> import robust
    >>> @robust.aggregator(paper="nobody 2025", needs="f = 0", withstands=lambda n: 0)
    ... def first_row(rows: robust.Rows) -> robust.Outcome:
    ...     return rows.pick(0)
    >>> first_row([[1, 2], [3, 4]])
    array([1., 2.], dtype=float32)
    >>> robust.AGGREGATORS.remove("first_row")
    """

    def make(core: Callable[Concatenate[Rows, P], Outcome]) -> Aggregator[P]:
        rule: Aggregator[P] = Aggregator(
            withstands, kappa, core=core, name=name or core.__name__, paper=paper, needs=needs, refuse=refuse
        )
        AGGREGATORS.add(rule.name, rule)
        return rule

    return make


def pre_aggregator(
    *, paper: str, needs: str, refuse: Refusal = None
) -> Callable[[Callable[Concatenate[Rows, P], Mixed]], PreAggregator[P]]:
    """Make a function of `Rows` a step before a rule, and register it under its own name.

    >>> import robust
    >>> @robust.pre_aggregator(paper="nobody 2025", needs="nothing of n and f")
    ... def unchanged(rows: robust.Rows) -> robust.Mixed:
    ...     return robust.Mixed(rows.array())
    >>> unchanged([[1, 2]])
    array([[1., 2.]], dtype=float32)
    >>> robust.PRE_AGGREGATORS.remove("unchanged")
    """

    def make(core: Callable[Concatenate[Rows, P], Mixed]) -> PreAggregator[P]:
        step = PreAggregator(core, core.__name__, paper, needs, refuse)
        PRE_AGGREGATORS.add(step.name, step)
        return step

    return make


def aggregate(
    name: str, updates: ArrayLike, *, before: Sequence[tuple[str, Mapping[str, Any]]] = (), **params: Any
) -> Aggregate:
    """Apply a rule by name, after any pre-aggregation steps, and report how it treated each row.

    Rows with NaN or infinity are ignored from the first step on, and count as bad rows in every step.

    >>> import robust
    >>> updates = [[1, 2], [1, 3], [2, 2], [2, 3], [900, 900]]
    >>> robust.aggregate("krum", updates, f=1, before=[("nnm", {"f": 1})]).vector
    array([1.5, 2.5], dtype=float32)
    """
    rule = AGGREGATORS[name]
    checked = rule._checked((), params)
    steps = [(PRE_AGGREGATORS[step], PRE_AGGREGATORS[step]._checked((), options)) for step, options in before]
    if steps and params.get("losses") is not None:
        raise ValueError("losses are of the given rows, and a step before the rule makes other rows; leave them out")
    return _apply(rule, checked, steps, as_matrix(updates))


def _apply(
    rule: Aggregator[...],
    params: Mapping[str, Any],
    steps: Sequence[tuple[PreAggregator[...], Mapping[str, Any]]],
    matrix: Matrix,
) -> Aggregate:
    rows = Rows(matrix)
    finite: Indices | None = None  # labels of the finite rows, known after the first step
    buckets: list[Indices] | None = None  # labels of the input rows in each bucket, once there are buckets
    for step, options in steps:
        rows, mixed = step._mixed(rows, options)
        finite = rows.labels if finite is None else finite
        labels = rows.labels
        if mixed.members is not None:
            inputs = [np.array([label]) if buckets is None else buckets[label] for label in labels]
            buckets = [np.concatenate([inputs[i] for i in members]) for members in mixed.members]
            labels = np.arange(len(buckets))
        # Rows that were ignored earlier still count as bad rows in every later step.
        rows = Rows(mixed.matrix, labels=labels, given=len(labels) + rows.ignored, ignored=rows.ignored)
    rows, outcome = rule._run(rows, params)
    wanted = f"{rule.name} must return an Outcome with a vector of length {rows.width}"
    if not isinstance(outcome, Outcome):
        raise TypeError(f"{wanted}, got {type(outcome).__name__}")
    vector = as_array(outcome.vector, f"the vector of {rule.name}")
    if vector.shape != (rows.width,) or vector.dtype.kind not in "fiu":
        raise TypeError(f"{wanted}, got shape {vector.shape} of {vector.dtype}")
    finite = rows.labels if finite is None else finite
    accepted, weights = None, None
    if outcome.accepted is not None:
        chosen = rows.labels[_accepted(outcome.accepted, len(rows), rule.name)]
        accepted = chosen if buckets is None else np.concatenate([chosen[:0], *(buckets[label] for label in chosen)])
    if outcome.weights is not None:
        each = _weights(outcome.weights, len(rows), rule.name)
        if not steps:
            weights = np.zeros(len(matrix))
            weights[finite] = each
    return Aggregate(
        vector=_single(vector),
        rows=len(matrix),
        ignored=_missing(len(matrix), finite),
        accepted=None if accepted is None else tuple(sorted(accepted.tolist())),
        weights=weights,
        converged=outcome.converged,
    )


def _accepted(given: object, rows: int, name: str) -> Indices:
    """The rows that a rule says it has chosen."""
    array = as_array(given, f"accepted of {name}")
    if array.shape == (0,):
        return array.astype(np.int64)
    if not _are_positions(array, rows) or len(np.unique(array)) < len(array):
        raise TypeError(
            f"{name}: accepted of its Outcome must be an array of different row numbers, 0 to {rows - 1}; got "
            f"{reprlib.repr(array.tolist())}"
        )
    return array


def _weights(given: object, rows: int, name: str) -> Weights:
    """The weights that a rule says it has used."""
    array = as_array(given, f"weights of {name}")
    if array.shape != (rows,) or array.dtype.kind not in "fiu" or not np.isfinite(array).all():
        got = f"shape {array.shape} of {array.dtype}" if array.shape != (rows,) else reprlib.repr(array.tolist())
        raise TypeError(f"{name}: weights of its Outcome must be {rows} finite numbers, one per row; got {got}")
    return array


def _single(array: NDArray[Any]) -> NDArray[np.float32]:
    """Real numbers as float32 without gaps; a value that does not fit becomes infinite."""
    with np.errstate(over="ignore"):
        return np.require(array, dtype=np.float32, requirements=["C", "A"])


def _are_positions(array: NDArray[Any], rows: int) -> bool:
    """Whether these are numbers of some of so many rows."""
    return bool(array.ndim == 1 and len(array) and array.dtype.kind in "iu" and 0 <= array.min() <= array.max() < rows)


def _missing(given: int, finite: Indices) -> tuple[int, ...]:
    return tuple(sorted(set(range(given)) - set(finite.tolist())))

"""What all rules have in common: the call, the checks, and rows that are not finite.

A rule is written as a function of `Rows` that returns an `Outcome`, under `@aggregator(...)`. That makes it
callable on any matrix, known by name, and safe: k rows with NaN or infinity count as k of the f bad rows,
so the rule is run on the other n - k with max(f - k, 0).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec

import numpy as np
from numpy.typing import ArrayLike

from robust.parameters import Registry, check_parameters, read_parameters
from robust.rows import Indices, Matrix, NotFiniteError, Outcome, Rows, Vector, Weights, as_matrix

P = ParamSpec("P")

AGGREGATORS: Registry[Aggregator[...]] = Registry("aggregator")
PRE_AGGREGATORS: Registry[PreAggregator[...]] = Registry("pre-aggregator")


@dataclass(frozen=True, slots=True, eq=False)
class Aggregate:
    """A vector, and what became of each of the rows that it was made from, by their numbers."""

    vector: Vector
    rows: int  # how many were given
    ignored: tuple[int, ...]  # those that held NaN or infinity
    accepted: tuple[int, ...] | None  # those that the rule chose; None if it does not choose
    weights: Weights | None  # of each given row; None if the vector is not a weighted sum of them
    converged: bool = True  # False if the rule used up its steps before it was within its tolerance

    @property
    def rejected(self) -> tuple[int, ...] | None:
        """The rows that were not chosen, ignored ones with them; None if the rule does not choose."""
        if self.accepted is None:
            return None
        return tuple(sorted(set(range(self.rows)) - set(self.accepted)))


@dataclass(frozen=True, slots=True, eq=False)
class Mixed:
    """What a pre-aggregator made of the rows. Unless `members` says otherwise, new row i stands for row i."""

    matrix: Matrix
    members: tuple[Indices, ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """Rows that a step made for a rule, and what became of each of the rows that it was given.

    Of f bad rows among those given, max(f - len(ignored), 0) are left for the rule.
    """

    matrix: Matrix
    rows: int  # how many were given
    ignored: tuple[int, ...]  # those that held NaN or infinity; they are not in the matrix
    members: tuple[tuple[int, ...], ...]  # for each row of the matrix, the given rows that it stands for


class _Named(Generic[P]):
    """A function of `Rows` and keywords, with a name and checks."""

    def __init__(
        self,
        core: Callable[Concatenate[Rows, P], Any],
        name: str,
        paper: str,
        needs: str,
        refuse: Callable[..., None] | None,
    ) -> None:
        self._core: Callable[..., Any] = core
        self._refuse = refuse
        self.name = name
        self.paper = paper
        self.needs = needs  # of n and f, in words, for messages and tables
        self.parameters = read_parameters(core)
        self.__name__ = core.__name__
        self.__doc__ = core.__doc__

    def __repr__(self) -> str:
        return f"<{self.name}({', '.join(map(str, self.parameters.values()))})>"

    def largest_f(self, n: int) -> int:
        """The largest f that this accepts for n rows."""
        raise NotImplementedError

    def check(self, n: int, /, **params: object) -> dict[str, Any]:
        """Refuse what would be refused on any n finite rows, before there are any.

        What depends on more than n and the parameters, such as the length of a vector, shows only then.
        """
        checked = check_parameters(self.name, self.parameters, params)
        self._for_rows(n, 0, n, checked)
        return checked

    def _for_rows(self, n: int, ignored: int, given: int, params: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters for n rows: every ignored row was one of the f bad ones."""
        if n < 1:
            raise ValueError(f"{self.name} needs at least one row, got n={n}")
        f = params.get("f")
        bad = 0 if f is None else f if f < 0 else max(f - ignored, 0)
        if not 0 <= bad <= self.largest_f(n):
            left = f" ({ignored} of {given} rows are not finite)" if ignored else ""
            raise ValueError(f"{self.name} needs {self.needs}: got n={n}, f={bad}{left}")
        if self._refuse is not None:
            self._refuse(given, **params)
        return dict(params) if f is None else {**params, "f": bad}

    def _run(self, rows: Rows, params: Mapping[str, Any]) -> tuple[Rows, Any]:
        """The result, and the rows that it was made from: the finite ones."""
        try:
            return rows, self._core(rows, **self._for_rows(len(rows), rows.ignored, rows.given, params))
        except NotFiniteError:
            rows = rows.finite()
        if not len(rows):
            raise ValueError(f"all {rows.given} rows hold NaN or infinity")
        return rows, self._core(rows, **self._for_rows(len(rows), rows.ignored, rows.given, params))

    def _checked(self, positional: tuple[object, ...], params: Mapping[str, object]) -> dict[str, Any]:
        if positional:
            raise TypeError(f"{self.name} takes its parameters by keyword")
        return check_parameters(self.name, self.parameters, params)


class Aggregator(_Named[P]):
    """A rule: call it on a matrix for the vector alone, or `detail` for what became of each row."""

    def __init__(
        self,
        core: Callable[Concatenate[Rows, P], Outcome],
        name: str,
        paper: str,
        needs: str,
        withstands: Callable[[int], int],
        kappa: Callable[[int, int], float] | None,
        refuse: Callable[..., None] | None,
    ) -> None:
        super().__init__(core, name, paper, needs, refuse)
        self.withstands = withstands  # how many bad rows among n, at most
        self.kappa = kappa  # of (f, kappa)-robustness for n rows, as kappa(n, f), where there is a proof

    def __call__(self, updates: ArrayLike, *args: P.args, **kwargs: P.kwargs) -> Vector:
        return self.detail(updates, *args, **kwargs).vector

    def detail(self, updates: ArrayLike, *args: P.args, **kwargs: P.kwargs) -> Aggregate:
        """Apply the rule, and say which rows it ignored, accepted, or weighed how much."""
        params = self._checked(args, kwargs)
        matrix = as_matrix(updates)
        rows, outcome = self._run(Rows(matrix), params)
        accepted = None if outcome.accepted is None else rows.labels[outcome.accepted]
        return _report(outcome, len(matrix), rows.labels, accepted, outcome.weights)

    def largest_f(self, n: int) -> int:
        """The number of bad rows that it withstands is the largest f that it accepts."""
        return self.withstands(n)


class PreAggregator(_Named[P]):
    """A step before a rule: call it on a matrix for a matrix of finite rows, or `detail` for which they are.

    Rows that are not finite are not in the result. They were among the f bad ones, so a rule that is called
    on it takes f less their number: `detail` reports them, and `aggregate` does all of this.
    """

    def __call__(self, updates: ArrayLike, *args: P.args, **kwargs: P.kwargs) -> Matrix:
        return self.detail(updates, *args, **kwargs).matrix

    def detail(self, updates: ArrayLike, *args: P.args, **kwargs: P.kwargs) -> Prepared:
        """Apply the step, and say which rows it ignored, and which ones each new row stands for."""
        params = self._checked(args, kwargs)
        given = Rows(as_matrix(updates))
        rows, mixed = self._run(given, params)
        members = [[i] for i in range(len(rows))] if mixed.members is None else mixed.members
        return Prepared(
            matrix=mixed.matrix,
            rows=len(given),
            ignored=_missing(len(given), rows.labels),
            members=tuple(tuple(sorted(rows.labels[inside].tolist())) for inside in members),
        )

    def largest_f(self, n: int) -> int:
        """One row has to be left; how many bad rows are withstood is up to the rule that follows."""
        return n - 1


def aggregator(
    *,
    paper: str,
    needs: str,
    withstands: Callable[[int], int],
    kappa: Callable[[int, int], float] | None = None,
    refuse: Callable[..., None] | None = None,
    name: str | None = None,
) -> Callable[[Callable[Concatenate[Rows, P], Outcome]], Aggregator[P]]:
    """Make a function of `Rows` a rule, and register it under its own name or under `name`.

    `refuse(n, **parameters)` raises ValueError for parameters that make no sense for n rows, other than an f
    above `withstands(n)`; it gets those that the caller gave, and is asked before there are rows and again
    with them.
    """

    def make(core: Callable[Concatenate[Rows, P], Outcome]) -> Aggregator[P]:
        rule = Aggregator(core, name or core.__name__, paper, needs, withstands, kappa, refuse)
        AGGREGATORS.add(rule.name, rule)
        return rule

    return make


def pre_aggregator(
    *, paper: str, needs: str, refuse: Callable[..., None] | None = None
) -> Callable[[Callable[Concatenate[Rows, P], Mixed]], PreAggregator[P]]:
    """Make a function of `Rows` a step before a rule, and register it under its own name."""

    def make(core: Callable[Concatenate[Rows, P], Mixed]) -> PreAggregator[P]:
        step = PreAggregator(core, core.__name__, paper, needs, refuse)
        PRE_AGGREGATORS.add(step.name, step)
        return step

    return make


def aggregate(
    name: str, updates: ArrayLike, *, before: Sequence[tuple[str, Mapping[str, Any]]] = (), **params: Any
) -> Aggregate:
    """Apply a rule by name, after any pre-aggregation steps, and say what became of each row.

    >>> aggregate("krum", updates, f=2, before=[("nnm", {"f": 2})])  # doctest: +SKIP

    Rows that hold NaN or infinity are ignored from the first step on, and count as bad rows in all of them.
    """
    rule = AGGREGATORS[name]
    checked = check_parameters(name, rule.parameters, params)
    steps = [
        (PRE_AGGREGATORS[step], check_parameters(step, PRE_AGGREGATORS[step].parameters, options))
        for step, options in before
    ]
    matrix = as_matrix(updates)
    rows = Rows(matrix)
    finite: Indices | None = None  # labels of the finite rows: known after the first step
    buckets: list[Indices] | None = None  # labels of the rows in each bucket, once there are buckets
    for step, options in steps:
        rows, mixed = step._run(rows, options)
        finite = rows.labels if finite is None else finite
        labels = rows.labels
        if mixed.members is not None:
            behind = [np.array([label]) if buckets is None else buckets[label] for label in labels]
            buckets = [np.concatenate([behind[i] for i in members]) for members in mixed.members]
            labels = np.arange(len(buckets))
        # Rows ignored earlier are still among the f bad ones of every later step.
        rows = Rows(mixed.matrix, labels=labels, given=len(labels) + rows.ignored, ignored=rows.ignored)
    rows, outcome = rule._run(rows, checked)
    finite = rows.labels if finite is None else finite
    accepted = None
    if outcome.accepted is not None:
        chosen = rows.labels[outcome.accepted]
        accepted = chosen if buckets is None else np.concatenate([buckets[label] for label in chosen])
    return _report(outcome, len(matrix), finite, accepted, None if steps else outcome.weights)


def _report(
    outcome: Outcome, given: int, finite: Indices, accepted: Indices | None, weights: Weights | None
) -> Aggregate:
    spread = None
    if weights is not None:
        spread = np.zeros(given)
        spread[finite] = weights
    return Aggregate(
        vector=outcome.vector,
        rows=given,
        ignored=_missing(given, finite),
        accepted=None if accepted is None else tuple(sorted(accepted.tolist())),
        weights=spread,
        converged=outcome.converged,
    )


def _missing(given: int, finite: Indices) -> tuple[int, ...]:
    return tuple(sorted(set(range(given)) - set(finite.tolist())))

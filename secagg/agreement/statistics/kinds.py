"""The statistics that an agreement may declare, and which numbers of an update each of them takes.

Everything follows from the declarations, the most rows of a site and the number of clients in a group: which numbers a
site sends, their bounds, and so the segments of the vector. What is not declared has no place in the vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final

from secagg.agreement.statistics.columns import (
    MOST_CELLS,
    Bins,
    Categories,
    Cells,
    Column,
    Grid,
    Numbers,
    Present,
    text,
)
from secagg.agreement.statistics.limbs import MOST_LIMBS, Entry, limb_bits
from secagg.arguments import MOST_ID, each, instance, real, whole
from secagg.crypto.fixedpoint import HALF_RING
from secagg.crypto.segments import Segment
from secagg.errors import UsageError

MOST_ASKED: Final = 1000
MOST_FEATURES: Final = 50
MOST_NAME: Final = 100
SUM_BITS: Final = 32  # of a code, if no step is declared
PRODUCT_BITS: Final = 26  # of a code that is multiplied by another one
COUNTS: Final = ("used", "missing", "clipped", "rounded")
RESERVED: Final = ("most_rows", "min_sites")


@dataclass(frozen=True, slots=True)
class Frame:
    """What the sizes of all numbers follow from: the most rows of a site, and the clients in a group.

    >>> Frame(rows=100_000, clients=10).grid(Numbers("income", 0, 1e6), degree=1, limbs=4).steps == 2**32
    True
    """

    rows: int
    clients: int

    def entry(self, name: str, shape: tuple[int, ...], largest: int = 1) -> Entry:
        """Numbers that each row adds at most `largest` to."""
        return Entry(name, shape, self.rows * largest, self.clients)

    def grid(self, numbers: Numbers, *, degree: int, limbs: int) -> Grid:
        """The finest codes of which the sums of products of `degree` codes fit into this many limbs."""
        one = (HALF_RING - 1) // self.clients
        capacity = one if limbs == 1 else 2 ** (limb_bits(self.clients) * limbs) - 1
        most_bits = SUM_BITS if degree == 1 else PRODUCT_BITS
        steps = numbers.steps
        if steps is None:
            bits = min(most_bits, (max(capacity // self.rows, 1).bit_length() - 1) // degree)
            steps = 2**bits
        elif degree == 2 and steps > 2**PRODUCT_BITS:
            raise UsageError(
                f"column {numbers.column!r}: expected at most {2**PRODUCT_BITS} steps from low to high where values "
                f"are multiplied, got {steps}; use a larger step"
            )
        if (steps < 2 and numbers.steps is None) or self.rows * steps**degree > capacity:
            raise UsageError(
                f"column {numbers.column!r}: sums over {self.rows} rows in each of {self.clients} sites do not fit "
                f"into {limbs} limb(s); use a smaller most_rows, a larger step or more limbs"
            )
        return Grid(numbers, steps)


@dataclass(frozen=True, kw_only=True)
class Statistic:
    """What all declarations have: a name, and the least number of sites in a result (0: what the policy asks for).

    >>> Count(name="patients", min_sites=5).min_sites
    5
    """

    kind: ClassVar[str] = ""
    name: str
    min_sites: int = 0

    def __post_init__(self) -> None:
        text("name of a statistic", self.name)
        if len(self.name) > MOST_NAME or self.name in RESERVED:
            raise UsageError(f"name of a statistic: expected at most {MOST_NAME} characters, and not {RESERVED}")
        object.__setattr__(self, "min_sites", whole(self._where("min_sites"), self.min_sites, 0, MOST_ID))

    def _where(self, field: str) -> str:
        return f"statistics.{self.name}.{field}"

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that a site reads for it."""
        raise NotImplementedError

    def entries(self, frame: Frame) -> tuple[Entry, ...]:
        """The numbers of an update that it takes."""
        raise NotImplementedError

    def _settle_number(self, field: str, least: int, most: int) -> None:
        object.__setattr__(self, field, whole(self._where(field), getattr(self, field), least, most))


@dataclass(frozen=True, kw_only=True)
class Count(Statistic):
    """The number of rows; with a column, of rows that have a value in it and of rows that have none.

    >>> Count(name="patients").entries(Frame(rows=1000, clients=5))[0].segment
    Segment(shape=(1,), name='patients.counts', clip=None, bound=1000)
    """

    kind: ClassVar[str] = "count"
    of: Present | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.of is not None:
            instance(self._where("column"), self.of, Present)

    @property
    def columns(self) -> tuple[Column, ...]:
        return () if self.of is None else (self.of,)

    def entries(self, frame: Frame) -> tuple[Entry, ...]:
        return (frame.entry(f"{self.name}.counts", (1 if self.of is None else 2,)),)


@dataclass(frozen=True, kw_only=True)
class _OfNumbers(Statistic):
    """A statistic of one column of numbers. `limbs` is the most places of the vector that one sum may take."""

    degree: ClassVar[int] = 1
    of: Numbers
    limbs: int = MOST_LIMBS

    def __post_init__(self) -> None:
        super().__post_init__()
        instance(self._where("column"), self.of, Numbers)
        self._settle_number("limbs", 1, MOST_LIMBS)

    @property
    def columns(self) -> tuple[Column, ...]:
        return (self.of,)

    def grid(self, frame: Frame) -> Grid:
        """The codes of its column."""
        return frame.grid(self.of, degree=self.degree, limbs=self.limbs)

    def entries(self, frame: Frame) -> tuple[Entry, ...]:
        steps = self.grid(frame).steps
        sums = {"sums": steps, "squares": steps**2}
        named = list(sums.items())[: self.degree]
        counts = frame.entry(f"{self.name}.counts", (len(COUNTS),))
        return (counts, *(frame.entry(f"{self.name}.{what}", (1,), largest) for what, largest in named))


@dataclass(frozen=True)
class Sum(_OfNumbers):
    """The sum of a column.

    >>> Sum(name="cost", of=Numbers("cost", 0, 10_000, step=0.01)).grid(Frame(rows=10_000, clients=5)).steps
    1000000
    """

    kind: ClassVar[str] = "sum"


@dataclass(frozen=True)
class Mean(_OfNumbers):
    """The mean of a column over all rows of all sites.

    >>> Mean(name="age", of=Numbers("age", 0, 120, step=1)).columns[0].column
    'age'
    """

    kind: ClassVar[str] = "mean"


@dataclass(frozen=True)
class Variance(_OfNumbers):
    """Mean, variance (with N - 1) and standard deviation of a column over all rows of all sites.

    >>> Variance(name="age", of=Numbers("age", 0, 120, step=1)).degree
    2
    """

    kind: ClassVar[str] = "variance"
    degree: ClassVar[int] = 2


@dataclass(frozen=True, kw_only=True)
class Histogram(Statistic):
    """How many rows fall into each bin or category of a column. Counts from 1 to `suppress` - 1 are not shown.

    >>> Histogram(name="sex", of=Categories("sex", ("f", "m"))).of.labels
    ('f', 'm', 'other', 'missing')
    """

    kind: ClassVar[str] = "histogram"
    of: Cells
    suppress: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_cells(self._where("column"), self.of)
        self._settle_number("suppress", 0, MOST_ID)

    @property
    def columns(self) -> tuple[Column, ...]:
        return (self.of,)

    def entries(self, frame: Frame) -> tuple[Entry, ...]:
        return (frame.entry(f"{self.name}.counts", (len(self.of.labels),)),)


@dataclass(frozen=True, kw_only=True)
class Quantiles(Statistic):
    """Quantiles of a column from its histogram: for each, the bin in which it lies, and an estimate inside.

    >>> Quantiles(name="age", of=Bins.even("age", 0, 120, 24), probabilities=(0.25, 0.5, 0.75)).probabilities
    (0.25, 0.5, 0.75)
    """

    kind: ClassVar[str] = "quantiles"
    of: Bins
    probabilities: tuple[float, ...] = (0.25, 0.5, 0.75)

    def __post_init__(self) -> None:
        super().__post_init__()
        instance(self._where("column"), self.of, Bins)
        where = self._where("probabilities")
        found = tuple(real(where, value) for value in each(where, self.probabilities, object))
        object.__setattr__(self, "probabilities", found)
        if not 1 <= len(found) <= MOST_CELLS or not all(0 < value < 1 for value in found):
            raise UsageError(f"{where}: expected at least one number, each between 0 and 1")

    @property
    def columns(self) -> tuple[Column, ...]:
        return (self.of,)

    def entries(self, frame: Frame) -> tuple[Entry, ...]:
        return (frame.entry(f"{self.name}.counts", (len(self.of.labels),)),)


@dataclass(frozen=True, kw_only=True)
class Contingency(Statistic):
    """How many rows fall into each pair of cells of two columns. Counts from 1 to `suppress` - 1 are not shown.

    >>> table = Contingency(name="sex by age", rows=Categories("sex", ("f", "m")), by=Bins("age", (0, 18, 65)))
    >>> table.entries(Frame(rows=1000, clients=5))[0].shape
    (4, 5)
    """

    kind: ClassVar[str] = "contingency"
    rows: Cells
    by: Cells
    suppress: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for field, cells in (("rows", self.rows), ("columns", self.by)):
            _check_cells(self._where(field), cells)
        self._settle_number("suppress", 0, MOST_ID)
        if len(self.rows.labels) * len(self.by.labels) > 2**20:
            raise UsageError(f"statistics.{self.name}: expected at most {2**20} cells")

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.rows, self.by

    def entries(self, frame: Frame) -> tuple[Entry, ...]:
        return (frame.entry(f"{self.name}.counts", (len(self.rows.labels), len(self.by.labels))),)


@dataclass(frozen=True, kw_only=True)
class LeastSquares(Statistic):
    """Linear regression of a column on others, by least squares. Rows in which one of them is missing are left out.

    >>> asked = LeastSquares(name="fit", target=Numbers("weight", 0, 300), features=(Numbers("height", 0, 250),))
    >>> [entry.name for entry in asked.entries(Frame(rows=1000, clients=5))]
    ['fit.counts', 'fit.sums', 'fit.products']
    """

    kind: ClassVar[str] = "least_squares"
    target: Numbers
    features: tuple[Numbers, ...]
    intercept: bool = True
    limbs: int = MOST_LIMBS

    def __post_init__(self) -> None:
        super().__post_init__()
        instance(self._where("target"), self.target, Numbers)
        instance(self._where("intercept"), self.intercept, bool)
        object.__setattr__(self, "features", each(self._where("features"), self.features, Numbers))
        if not 1 <= len(self.features) <= MOST_FEATURES:
            raise UsageError(f"{self._where('features')}: expected 1 to {MOST_FEATURES}, got {len(self.features)}")
        names = [column.column for column in (*self.features, self.target)]
        if len(set(names)) < len(names):
            raise UsageError(f"{self._where('features')}: expected every column once, the target's included")
        self._settle_number("limbs", 1, MOST_LIMBS)

    @property
    def columns(self) -> tuple[Column, ...]:
        return (*self.features, self.target)

    def grids(self, frame: Frame) -> tuple[Grid, ...]:
        """The codes of the features, then of the target."""
        return tuple(frame.grid(column, degree=2, limbs=self.limbs) for column in (*self.features, self.target))

    def entries(self, frame: Frame) -> tuple[Entry, ...]:
        largest, count = max(grid.steps for grid in self.grids(frame)), len(self.features) + 1
        return (
            frame.entry(f"{self.name}.counts", (len(COUNTS),)),
            frame.entry(f"{self.name}.sums", (count,), largest),
            frame.entry(f"{self.name}.products", (count * (count + 1) // 2,), largest**2),
        )


KINDS: Final[tuple[type[Any], ...]] = (Count, Sum, Mean, Variance, Histogram, Quantiles, Contingency, LeastSquares)


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """The section `statistics` of an agreement: what may be asked, of at most `most_rows` rows per site.

    A result exists from `min_sites` sites on, or from what a statistic asks for in addition.

    >>> asked = Statistics(most_rows=1000, asked=(Count(name="n"), Mean(name="age", of=Numbers("age", 0, 120, 1))))
    >>> [(segment.name, segment.shape, segment.bound) for segment in asked.segments(clients=5)]
    [('n.counts', (1,), 1000), ('age.counts', (4,), 1000), ('age.sums', (1,), 120000)]
    """

    most_rows: int
    asked: tuple[Statistic, ...]
    min_sites: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "most_rows", whole("statistics.most_rows", self.most_rows, 1, HALF_RING - 1))
        object.__setattr__(self, "min_sites", whole("statistics.min_sites", self.min_sites, 0, MOST_ID))
        object.__setattr__(self, "asked", each("statistics", self.asked, Statistic))
        names = [one.name for one in self.asked]
        if not 1 <= len(names) <= MOST_ASKED or len(set(names)) < len(names):
            raise UsageError(f"statistics: expected 1 to {MOST_ASKED} of them with different names, got {len(names)}")

    @cached_property
    def least_sites(self) -> int:
        """With fewer sites, some statistic has no result."""
        return max(self.min_sites, *(one.min_sites for one in self.asked))

    def least_sites_of(self, statistic: Statistic) -> int:
        return max(self.min_sites, statistic.min_sites)

    def frame(self, clients: int) -> Frame:
        return Frame(rows=self.most_rows, clients=clients)

    def segments(self, clients: int) -> tuple[Segment, ...]:
        """The vector, for groups of this many clients; UsageError if a sum could wrap."""
        frame = self.frame(clients)
        if clients * self.most_rows >= HALF_RING:
            raise UsageError(
                f"statistics.most_rows: {clients} sites with {self.most_rows} rows each cannot be counted modulo 2^32; "
                f"expected at most {(HALF_RING - 1) // clients} rows"
            )
        return tuple(entry.segment for one in self.asked for entry in one.entries(frame))

    def check_noise(self, clients: int) -> None:
        """UsageError if a sum has several limbs: noise on the high ones would be as large as the sum."""
        for one in self.asked:
            for entry in one.entries(self.frame(clients)):
                if entry.limbs > 1:  # audit: noise-needs-one-limb
                    raise UsageError(
                        f"statistics.{one.name}: with noise, a sum must fit into one place of the vector, because "
                        "noise on high digits would be as large as the sum; set limbs = 1, and a step that is not "
                        "finer than needed"
                    )

    def vector(self, clients: int, given: tuple[Segment, ...]) -> tuple[Segment, ...]:
        """The segments of an agreement: those that follow from the declarations, and no others."""
        found = self.segments(clients)
        if given and given != found:  # audit: statistics-fix-the-vector
            names = [segment.name for segment in found]
            raise UsageError(
                f"segments: with statistics, leave out [vector] and [[segments]]: the vector has exactly what is "
                f"declared ({', '.join(names[:6])}{', ...' * (len(names) > 6)})"
            )
        return found


def _check_cells(where: str, cells: Any) -> None:
    if not isinstance(cells, Bins | Categories):
        raise UsageError(f"{where}: expected Bins or Categories, got {type(cells).__name__}")

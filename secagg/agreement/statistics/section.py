"""The section `statistics` in the bytes of the terms and in the file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from secagg.agreement.layout import TEXT
from secagg.agreement.layout import text as utf8
from secagg.agreement.section import Section
from secagg.agreement.statistics.columns import MOST_CELLS, Bins, Categories, Cells, Column, Numbers, Present
from secagg.agreement.statistics.kinds import (
    KINDS,
    MOST_ASKED,
    RESERVED,
    Contingency,
    Count,
    Histogram,
    LeastSquares,
    Quantiles,
    Statistic,
    Statistics,
)
from secagg.agreement.statistics.limbs import MOST_LIMBS
from secagg.agreement.table import Table, quoted, show
from secagg.codec import U8, U32, Codec, Float, Many, Struct
from secagg.errors import UsageError, WireError

NUMBER: Final = 2
VERSION: Final = 1
_FORMS: Final[tuple[type[Any], ...]] = (Present, Numbers, Bins, Categories)
_COLUMN: Final = Struct(
    dict,
    (
        ("form", U8),
        ("column", TEXT),
        ("numbers", Many(Float(), MOST_CELLS)),
        ("categories", Many(TEXT, MOST_CELLS)),
    ),
)
_ASKED: Final = Struct(
    dict,
    (
        ("name", TEXT),
        ("kind", U8),
        ("min_sites", U32),
        ("suppress", U32),
        ("limbs", U8),
        ("intercept", U8),
        ("probabilities", Many(Float(), MOST_CELLS)),
        ("columns", Many(_COLUMN, MOST_CELLS)),
    ),
)
LAYOUT: Final[Codec] = Struct(dict, (("most_rows", U32), ("min_sites", U32), ("asked", Many(_ASKED, MOST_ASKED))))
_OPTIONS: Final[dict[str, Any]] = {
    "suppress": 0,
    "limbs": 0,
    "intercept": False,
    "probabilities": (),
}  # where a kind has no such field


# --- bytes -------------------------------------------------------------------------------------------------


def _flat(statistics: Statistics) -> dict[str, Any]:
    return {
        "most_rows": statistics.most_rows,
        "min_sites": statistics.min_sites,
        "asked": tuple(map(_flat_statistic, statistics.asked)),
    }


def _flat_statistic(one: Statistic) -> dict[str, Any]:
    options = {field: getattr(one, field, default) for field, default in _OPTIONS.items()}
    return {
        **options,
        "name": one.name.encode(),
        "kind": KINDS.index(type(one)),
        "min_sites": one.min_sites,
        "intercept": int(options["intercept"]),
        "columns": tuple(map(_flat_column, one.columns)),
    }


def _flat_column(column: Column) -> dict[str, Any]:
    numbers: tuple[float, ...] = ()
    if isinstance(column, Numbers):
        numbers = (column.low, column.high, *(() if column.step is None else (column.step,)))
    elif isinstance(column, Bins):
        numbers = column.edges
    categories = column.categories if isinstance(column, Categories) else ()
    return {
        "form": _FORMS.index(type(column)),
        "column": column.column.encode(),
        "numbers": numbers,
        "categories": tuple(category.encode() for category in categories),
    }


def _build(values: dict[str, Any]) -> Statistics:
    try:
        asked = tuple(map(_built_statistic, values["asked"]))
        return Statistics(most_rows=values["most_rows"], min_sites=values["min_sites"], asked=asked)
    except (UsageError, TypeError, IndexError) as bad:
        raise WireError(f"section statistics cannot be kept: {bad}") from None


def _built_statistic(values: dict[str, Any]) -> Statistic:
    if values["kind"] >= len(KINDS) or values["intercept"] > 1:
        raise WireError(f"unknown kind ({values['kind']}) of a statistic")
    cls, columns = KINDS[values["kind"]], tuple(map(_built_column, values["columns"]))
    given = {"intercept": bool(values["intercept"]), **{key: values[key] for key in _OPTIONS if key != "intercept"}}
    fields = {key: value for key, value in given.items() if key in cls.__dataclass_fields__}
    common = {"name": utf8(values["name"]), "min_sites": values["min_sites"]}
    if cls is Contingency:
        rows, by = _exactly(columns, 2)
        fields |= {"rows": rows, "by": by}
    elif cls is LeastSquares:
        fields |= {"features": columns[:-1], "target": columns[-1]}
    elif cls is not Count or columns:
        (fields["of"],) = _exactly(columns, 1)
    return cls(**common, **fields)  # type: ignore[no-any-return]


def _exactly(columns: Sequence[Column], count: int) -> Sequence[Column]:
    if len(columns) != count:
        raise WireError(f"expected {count} column(s) of a statistic, got {len(columns)}")
    return columns


def _built_column(values: dict[str, Any]) -> Column:
    if values["form"] >= len(_FORMS):
        raise WireError(f"unknown form ({values['form']}) of a column")
    cls, name = _FORMS[values["form"]], utf8(values["column"])
    if cls is Numbers and len(values["numbers"]) not in (2, 3):
        raise WireError(f"expected low, high and perhaps step of a column, got {len(values['numbers'])} numbers")
    if cls is Numbers:
        return Numbers(name, *values["numbers"])
    if cls is Bins:
        return Bins(name, values["numbers"])
    return Categories(name, tuple(map(utf8, values["categories"]))) if cls is Categories else Present(name)


# --- file --------------------------------------------------------------------------------------------------

_NUMBERS: Final = ("column", "low", "high", "step")
_CELLS: Final = ("column", "edges", "low", "high", "bins", "categories")
_KEYS: Final[dict[str, tuple[str, ...]]] = {  # beside kind and min_sites
    "count": ("column",),
    "sum": (*_NUMBERS, "limbs"),
    "mean": (*_NUMBERS, "limbs"),
    "variance": (*_NUMBERS, "limbs"),
    "histogram": (*_CELLS, "suppress"),
    "quantiles": (*(key for key in _CELLS if key != "categories"), "probabilities"),
    "contingency": ("rows", "columns", "suppress"),
    "least_squares": ("features", "target", "intercept", "limbs"),
}


def _read(values: object) -> Statistics:
    if not isinstance(values, dict):
        raise UsageError(f"statistics: expected a table [statistics.NAME] for each, got {show(values)}")
    names = [name for name in values if name not in RESERVED]
    top = Table(values, "statistics", (*RESERVED, *names))
    return Statistics(
        most_rows=top.whole("most_rows"),
        min_sites=top.whole("min_sites", 0),
        asked=tuple(_read_statistic(name, values[name]) for name in names),
    )


def _read_statistic(name: str, values: object) -> Statistic:
    where = f"statistics.{name}"
    if not isinstance(values, dict):
        raise UsageError(f"{where}: expected a table [{where}], got {show(values)}")
    kind = Table(values, where, tuple(values)).choice("kind", tuple(_KEYS))
    table = Table(values, where, ("kind", "min_sites", *_KEYS[kind]))
    (cls,) = (cls for cls in KINDS if cls.kind == kind)
    fields: dict[str, Any] = {"name": name, "min_sites": table.whole("min_sites", 0)}
    if "suppress" in table:
        fields["suppress"] = table.whole("suppress")
    if "limbs" in table:
        fields["limbs"] = table.whole("limbs", most=MOST_LIMBS)
    if cls is Count:
        fields["of"] = Present(table.text("column")) if "column" in table else None
    elif cls is Contingency:
        fields |= {"rows": _sub(table, "rows", _CELLS, _cells), "by": _sub(table, "columns", _CELLS, _cells)}
    elif cls is LeastSquares:
        fields |= _read_least_squares(table)
    else:
        fields["of"] = _cells(table) if cls in (Histogram, Quantiles) else _numbers(table)
    if cls is Quantiles and "probabilities" in table:
        fields["probabilities"] = _floats(table, "probabilities")
    return cls(**fields)  # type: ignore[no-any-return]


def _read_least_squares(table: Table) -> dict[str, Any]:
    features = table.raw("features")
    if not isinstance(features, list):
        raise UsageError(
            f"{table.path('features')}: expected a list of tables, one for each column, got {show(features)}"
        )
    found = tuple(
        _numbers(Table(value, f"{table.path('features')}[{place}]", _NUMBERS)) for place, value in enumerate(features)
    )
    intercept = table.raw("intercept", True)
    if not isinstance(intercept, bool):
        raise UsageError(f"{table.path('intercept')}: expected true or false, got {show(intercept)}")
    return {"features": found, "target": _sub(table, "target", _NUMBERS, _numbers), "intercept": intercept}


def _sub(table: Table, key: str, keys: tuple[str, ...], read: Callable[[Table], Any]) -> Any:
    if key not in table:
        raise UsageError(f"{table.path(key)}: expected a table with column, but the key is missing")
    return read(Table(table.raw(key), table.path(key), keys))


def _numbers(table: Table) -> Numbers:
    step = table.number("step") if "step" in table else None
    return Numbers(table.text("column"), table.number("low"), table.number("high"), step)


def _cells(table: Table) -> Cells:
    given = [key for key in ("edges", "bins", "categories") if key in table]
    if len(given) != 1 or (given != ["bins"] and ("low" in table or "high" in table)):
        raise UsageError(f"{table.where}: expected one of edges, categories, or bins with low and high")
    column = table.text("column")
    if given == ["edges"]:
        return Bins(column, _floats(table, "edges"))
    if given == ["bins"]:
        return Bins.even(column, table.number("low"), table.number("high"), table.whole("bins"))
    return Categories(column, _list(table, "categories", str, "texts"))


def _floats(table: Table, key: str) -> tuple[float, ...]:
    return tuple(map(float, _list(table, key, int | float, "numbers")))


def _list(table: Table, key: str, kind: Any, expected: str) -> tuple[Any, ...]:
    values = table.raw(key)
    if not isinstance(values, list) or any(isinstance(value, bool) or not isinstance(value, kind) for value in values):
        raise UsageError(f"{table.path(key)}: expected a list of {expected}, got {show(values)}")
    return tuple(values)


def _lines(statistics: Statistics) -> Iterator[str]:
    yield "[statistics]"
    yield f"most_rows = {statistics.most_rows}"
    if statistics.min_sites:
        yield f"min_sites = {statistics.min_sites}"
    for one in statistics.asked:
        bare = re.fullmatch("[A-Za-z0-9_-]+", one.name)
        yield from ("", f"[statistics.{one.name if bare else quoted(one.name)}]", f'kind = "{one.kind}"')
        yield from _column_lines(one)
        if one.min_sites:
            yield f"min_sites = {one.min_sites}"
        if getattr(one, "suppress", 0):
            yield f"suppress = {getattr(one, 'suppress')}"  # noqa: B009 - not all kinds have it
        if getattr(one, "limbs", MOST_LIMBS) != MOST_LIMBS:
            yield f"limbs = {getattr(one, 'limbs')}"  # noqa: B009


def _column_lines(one: Statistic) -> Iterator[str]:
    if isinstance(one, Contingency):
        yield f"rows = {{ {', '.join(_keys(one.rows))} }}"
        yield f"columns = {{ {', '.join(_keys(one.by))} }}"
    elif isinstance(one, LeastSquares):
        yield "features = ["
        yield from (f"    {{ {', '.join(_keys(column))} }}," for column in one.features)
        yield "]"
        yield f"target = {{ {', '.join(_keys(one.target))} }}"
        if not one.intercept:
            yield "intercept = false"
    else:
        for column in one.columns:
            yield from _keys(column)
    if isinstance(one, Quantiles):
        yield f"probabilities = {list(one.probabilities)}"


def _keys(column: Column) -> Iterator[str]:
    yield f"column = {quoted(column.column)}"
    if isinstance(column, Numbers):
        yield from (f"low = {column.low!r}", f"high = {column.high!r}")
        if column.step is not None:
            yield f"step = {column.step!r}"
    elif isinstance(column, Bins):
        yield f"edges = {list(column.edges)}"
    elif isinstance(column, Categories):
        yield f"categories = [{', '.join(map(quoted, column.categories))}]"


STATISTICS: Final = Section(
    number=NUMBER,
    version=VERSION,
    name="statistics",
    layout=LAYOUT,
    flat=_flat,
    build=_build,
    read=_read,
    lines=_lines,
)

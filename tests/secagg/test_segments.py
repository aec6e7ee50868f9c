"""Segments: exact against fractions, no sum wraps, entries of any magnitude survive, and every loss is told."""

import math
import warnings
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import EntryVanished, LossWarning, Plan, Policy, Schedule, Stage, UsageError, secure_mean, secure_sum
from secagg.crypto import FixedPoint, Integers, Losses, Segment, Segments
from secagg.crypto.fixedpoint import HALF_RING
from secagg.simulation import make_identities, make_roster
from tests.secagg.cluster import clear_plan, make_plan, run_plan

shapes = st.sampled_from([(), (1,), (3,), (2, 2), (1, 2, 3)])
clips = st.one_of(st.floats(1e-9, 1e9), st.integers(-40, 40).map(lambda e: 2.0**e))
names = st.text("abcdef.", min_size=1, max_size=5)


@st.composite
def layouts(draw: st.DrawFn, clients: int) -> tuple[Segment, ...]:
    def segment(name: str) -> Segment:
        shape = draw(shapes)
        if draw(st.booleans()):
            return Segment(name=name, shape=shape, clip=draw(clips))
        return Segment(name=name, shape=shape, bound=draw(st.integers(0, (HALF_RING - 1) // clients)))

    return tuple(map(segment, draw(st.lists(names, min_size=1, max_size=4, unique=True))))


def updates(segments: tuple[Segment, ...]) -> st.SearchStrategy[dict[str, Any]]:
    """Updates that fit, and at the limits."""

    def values(segment: Segment) -> st.SearchStrategy[Any]:
        if segment.bound is not None:
            number: st.SearchStrategy[Any] = st.integers(-segment.bound, segment.bound)
        else:
            assert segment.clip is not None
            number = st.one_of(st.sampled_from([segment.clip, -segment.clip, 0.0]), st.floats(-1.0, 1.0)).map(
                lambda x, clip=segment.clip: x if abs(x) == clip else x * clip
            )
        kind = np.int64 if segment.bound is not None else np.float64
        flat = st.lists(number, min_size=segment.length, max_size=segment.length)
        return flat.map(lambda found: np.array(found, kind).reshape(segment.shape))

    return st.fixed_dictionaries({segment.name: values(segment) for segment in segments})


def steps(encoding: Segments, name: str) -> Fraction:
    """The step of an entry: 1 for integers."""
    [own] = [e for s, e in zip(encoding.segments, encoding.encodings, strict=True) if s.name == name]
    return Fraction(1) if isinstance(own, Integers) else Fraction(2) ** -own.frac_bits


def quietly(encoding: Segments, update: Any, **more: Any) -> tuple[Any, Losses]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LossWarning)
        return encoding.encode(update, **more)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_sums_and_means_agree_with_exact_fractions(data: st.DataObject) -> None:
    """Every entry by its definition: clip, scale and round the weighted value, add, and divide once."""
    n = data.draw(st.integers(1, 6))
    segments = data.draw(layouts(n))
    encoding = Segments(clients=n, segments=segments)
    weights = data.draw(st.lists(st.sampled_from([1.0, 0.5, 1.25, 3.0]), min_size=n, max_size=n))
    inputs = [data.draw(updates(segments)) for _ in range(n)]
    expected: dict[str, list[int]] = {s.name: [0] * s.length for s in segments}
    total = np.zeros(encoding.length, np.uint32)
    for update, weight in zip(inputs, weights, strict=True):
        codes = {}
        for segment in segments:
            flat = update[segment.name].ravel().tolist()
            if segment.clip is not None:
                limit, step = Fraction(segment.clip), steps(encoding, segment.name)
                flat = [round(min(max(Fraction(x * weight), -limit), limit) / step) for x in flat]
            codes[segment.name] = flat
        if any(any(update[s.name].ravel()) and not any(codes[s.name]) for s in segments):
            with pytest.raises(EntryVanished):
                encoding.encode(update, weight=weight)
            return
        total += quietly(encoding, update, weight=weight)[0]
        for name, flat in codes.items():
            expected[name] = [a + b for a, b in zip(expected[name], flat, strict=True)]
    sums, means = encoding.decode(total), encoding.decode(total, divisor=sum(weights), count=n)
    assert list(sums) == list(means) == [segment.name for segment in segments]
    for segment in segments:
        name, exact, step = segment.name, expected[segment.name], steps(encoding, segment.name)
        assert all(abs(code) < HALF_RING for code in exact)  # nothing has wrapped
        assert sums[name].shape == means[name].shape == segment.shape
        assert sums[name].dtype == (np.int64 if segment.bound is not None else np.float64)
        assert [Fraction(x) for x in sums[name].ravel().tolist()] == [code * step for code in exact]
        divisor = n if segment.bound is not None else sum(weights)
        assert np.allclose(means[name].ravel(), [float(code * step / Fraction(divisor)) for code in exact], rtol=1e-15)
        assert means[name].dtype == np.float64


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 5000), st.data())
def test_no_entry_wraps_when_all_clients_send_the_largest_values(clients: int, data: st.DataObject) -> None:
    encoding = Segments(clients=clients, segments=data.draw(layouts(clients)))
    for sign in (1, -1):
        largest = {
            s.name: np.full(s.shape, sign * (s.clip if s.clip is not None else s.bound)) for s in encoding.segments
        }
        encoded, losses = encoding.encode(largest)
        assert (losses.clipped, losses.vanished) == (0, 0)
        total = (encoded.view(np.int32).astype(np.int64) * clients).astype(np.uint32)
        for name, found in encoding.decode(total).items():
            assert np.allclose(found, largest[name] * clients, atol=float(steps(encoding, name)) * clients)


def test_a_million_beside_a_thousandth_survives_one_sum() -> None:
    vectors = [{"large": [1e6 + i], "small": [1e-3 * (i + 1)], "votes": [i % 2 == 0, True]} for i in range(5)]
    total = secure_sum(vectors)
    assert [found.dtype.kind for found in total.values()] == ["f", "f", "i"]
    assert total["large"].dtype == total["small"].dtype == np.float64
    assert total["large"] == pytest.approx(5e6 + 10, abs=0.01)
    assert total["small"] == pytest.approx(15e-3, rel=1e-6)
    assert total["votes"].tolist() == [3, 5]
    mean = secure_mean(vectors, drop={4: Stage.INPUTS})
    assert mean["small"] == pytest.approx(2.5e-3, rel=1e-6)
    assert mean["votes"].tolist() == [0.5, 1.0]


@settings(deadline=None, max_examples=8)
@given(st.data())
def test_secure_equals_clear_with_segments_weights_and_dropouts(data: st.DataObject) -> None:
    n = data.draw(st.integers(4, 6))
    segments = data.draw(layouts(n).filter(lambda found: any(s.clip is not None for s in found)))
    weights = tuple(data.draw(st.lists(st.integers(1, 5), min_size=n, max_size=n)))
    plan = make_plan(n, segments=segments, weights=weights, policy=Policy(max_leverage=1.0))
    assert Plan.from_bytes(plan.to_bytes()).to_bytes() == plan.to_bytes()
    inputs = {v: data.draw(updates(segments)) for v in plan.ids}
    drop = {n - 1: data.draw(st.sampled_from([Stage.INPUTS, Stage.UNMASKING, Stage.DONE]))} if n > 4 else {}
    try:
        expected = clear_plan(plan, inputs, drop=drop)
    except EntryVanished:
        return
    found = run_plan(plan, inputs, drop=drop)
    assert found.groups[0, 0].total.tolist() == expected.groups[0, 0].total.tolist()
    for mine, theirs in ((found.sum(), expected.sum()), (found.mean(), expected.mean())):
        assert {k: v.tolist() for k, v in mine.items()} == {k: v.tolist() for k, v in theirs.items()}


def test_one_segment_without_a_name_encodes_as_fixed_point_or_integers_alone() -> None:
    numbers = np.random.default_rng(1).normal(size=(40, 10))
    for kind in (np.float32, np.float64):
        encoding, alone = (
            Segments(clients=7, segments=(Segment(shape=(40, 10), clip=2.0),)),
            FixedPoint(clients=7, clip=2.0),
        )
        encoded, losses = quietly(encoding, numbers.astype(kind), weight=1.5)
        expected, clipped = alone.encode(numbers.astype(kind).ravel(), weight=1.5)
        assert encoded.tolist() == expected.tolist()
        assert losses.clipped == clipped > 0
        assert encoding.decode(encoded, divisor=3.0).ravel().tolist() == alone.decode(encoded, divisor=3.0).tolist()
    votes = Segments(clients=3, segments=(Segment(shape=(2,), bound=5),))
    assert votes.encode([5, -5])[0].tolist() == Integers(clients=3, bound=5).encode([5, -5])[0].tolist()


def test_out_is_flat_and_of_either_width() -> None:
    segments = (Segment(name="a", shape=(2, 2), clip=1.0), Segment(name="b", shape=(1,), bound=9))
    encoding = Segments(clients=3, segments=segments)
    out = np.empty(5, np.uint32)
    encoded, _ = encoding.encode({"a": np.full((2, 2), 0.3), "b": [7]}, out=out)
    assert encoded is out
    for kind in (np.float32, np.float64):
        values = np.empty(5, kind)
        assert encoding.decode(encoded, out=values) is values
        assert np.allclose(values, [0.3] * 4 + [7], atol=1e-6)
    assert encoding.decode(encoded, divisor=2.0, count=2, out=np.empty(5)).tolist()[4] == 3.5
    for wrong in (np.empty(4), np.empty(5, np.int64), np.empty(10)[::2]):
        with pytest.raises(UsageError, match="out must be"):
            encoding.decode(encoded, out=wrong)


# --- losses ----------------------------------------------------------------------------------------


def pair() -> Segments:
    return Segments(
        clients=4, segments=(Segment(name="a", shape=(200,), clip=1.0), Segment(name="b", shape=(2,), clip=1.0))
    )


def test_clipped_values_are_told_with_entry_and_counts() -> None:
    with pytest.warns(LossWarning, match=r"^entry 'b': 1 of 2 values were clipped to ±1 ") as told:
        _, losses = pair().encode({"a": np.full(200, 0.5), "b": [0.5, -3.0]})
    assert len(told) == 1
    assert [(entry.name, entry.values, entry.clipped) for entry in losses.entries] == [("a", 200, 0), ("b", 2, 1)]


def test_an_entry_that_is_clipped_as_a_whole_still_counts() -> None:
    encoding = pair()
    with pytest.warns(LossWarning, match="entry 'b': 2 of 2 values were clipped"):
        encoded, _ = encoding.encode({"a": np.full(200, 0.5), "b": [7.0, -3.0]})
    assert encoding.decode(encoded)["b"].tolist() == [1.0, -1.0]


@pytest.mark.parametrize(("small", "told"), [(1, False), (2, True), (150, True)])
def test_values_below_the_resolution_are_told_from_one_in_a_hundred_on(small: int, told: bool) -> None:
    update = {"a": np.r_[np.full(small, 1e-12), np.full(200 - small, 0.5)], "b": [0.5, 0.5]}
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        _, losses = pair().encode(update)
    assert losses.entries[0].vanished == losses.vanished == small
    assert [str(one.message) for one in found] == [
        f"entry 'a': {small} of 200 values became zero (a smaller clip would keep them)"
    ] * told


def test_zeros_that_were_zero_are_no_loss_but_make_the_rest_weigh_more() -> None:
    update = {"a": np.r_[1e-12, np.full(50, 0.5), np.zeros(149)], "b": [0.0, 0.0]}
    with pytest.warns(LossWarning, match="entry 'a': 1 of 200 values became zero"):
        _, losses = pair().encode(update)
    assert losses.vanished == 1


@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_an_entry_that_vanishes_as_a_whole_is_refused(weight: float) -> None:
    encoding = pair()
    half = 0.5 / encoding.encodings[1].scale / weight  # type: ignore[union-attr]
    out = np.full(202, 7, np.uint32)
    with pytest.raises(EntryVanished, match="entry 'b': all values are smaller than half a step"):
        encoding.encode({"a": np.full(200, 0.5), "b": [half, 0.0]}, weight=weight, out=out)  # a tie, to zero
    assert not out.any(), "a refused update must not leave a code behind"
    _, losses = encoding.encode({"a": np.full(200, 0.5), "b": [math.nextafter(half, 1), 0.0]}, weight=weight)
    assert losses.vanished == 0
    with pytest.raises(EntryVanished, match="'tiny'"):
        secure_sum([{"tiny": [1e-30], "w": [1.0]}] * 4, clip=1.0)


def test_the_client_is_told_before_anything_is_sent() -> None:
    with pytest.warns(LossWarning, match="'w': 1 of 2 values were clipped"):
        total = secure_sum([{"w": [1.0, 5.0]}] * 4, clip=2.0)
    assert total["w"].tolist() == [4.0, 8.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error", LossWarning)
        with pytest.raises(LossWarning):
            secure_sum([{"w": [1.0, 5.0]}] * 4, clip=2.0)


# --- bad arguments -----------------------------------------------------------------------------------


class Labelled:
    """Built like a pandas Series, or like a DataFrame if it has columns."""

    def __init__(self, values: Any, index: Any, columns: Any = None) -> None:
        self.values, self.index = np.asarray(values), np.asarray(index)
        if columns is not None:
            self.columns = np.asarray(columns)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.values


class Graph:
    """Like a tensor that needs its gradient."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")


BAD_NUMBERS = [
    (np.ma.array([1.0, 2.0], mask=[True, False]), "masked"),
    (np.ma.array([1.0, 2.0]), "masked"),
    ([np.ma.masked, 1.0], "masked"),
    ([1 + 2j, 0], "complex128; give the real and the imaginary parts"),
    ([None, 1.0], "object"),
    ([2**70, 1], "object"),
    ([Fraction(1, 3), 1], "object"),
    (["1.0", "2.0"], "text"),
    ([b"1", b"2"], "bytes"),
    (np.array(["2026-01-01", "2026-01-02"], "M8[D]"), "times"),
    (np.array([(1, 2.0)] * 2, [("a", int), ("b", float)]), "one array per field"),
    ([[1.0], [2.0, 3.0]], "equal lengths"),
    (Graph(), "detached"),
    ([1.0, math.nan], "NaN"),
    ([1.0, math.inf], "infinity"),
]


@pytest.mark.parametrize(("value", "says"), BAD_NUMBERS)
def test_what_is_no_array_of_numbers_is_refused_with_advice(value: Any, says: str) -> None:
    encoding = Segments(clients=4, segments=(Segment(name="w", shape=(2,), clip=1.0),))
    with pytest.raises(UsageError, match=f"'w'.*{says}"):
        encoding.encode({"w": value})
    with pytest.raises(UsageError, match=says):
        secure_sum([{"w": value}] + [{"w": [1.0, 2.0]}] * 3)
    with pytest.raises(UsageError, match=says):
        secure_sum([[1.0, 2.0]] * 3 + [value])


@pytest.mark.parametrize("block", [FixedPoint(clients=3, clip=1.0), Integers(clients=3, bound=5)])
def test_the_blocks_refuse_masked_arrays_and_labels_too(block: FixedPoint | Integers) -> None:
    kind = float if isinstance(block, FixedPoint) else int
    with pytest.raises(UsageError, match="masked"):
        block.encode(np.ma.array([1, 2], kind, mask=[True, False]))
    with pytest.raises(UsageError, match="labels"):
        block.encode(Labelled(np.array([1, 2], kind), ["x", "y"]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other",
    [
        Labelled([1.0, 2.0], ["y", "x"]),
        Labelled([1.0, 2.0], ["x", "z"]),
        Labelled([1.0, 2.0], ["x", "y"], columns=["a"]),
        [1.0, 2.0],
    ],
)
def test_labels_that_differ_are_refused_and_not_added_by_position(other: Any) -> None:
    vectors = [Labelled([1.0, 2.0], ["x", "y"]) for _ in range(3)]
    assert secure_sum(vectors).tolist() == [3.0, 6.0]
    for place in (0, 3):
        with pytest.raises(UsageError, match="labels"):
            secure_sum([*vectors[:place], other, *vectors[place:]])
        with pytest.raises(UsageError, match="labels"):
            secure_sum([{"w": vector} for vector in [*vectors[:place], other, *vectors[place:]]])


def test_one_client_gives_positions_or_no_labels_at_all() -> None:
    """A client alone cannot compare its labels with those of others."""
    encoding = Segments(clients=4, segments=(Segment(shape=(2,), clip=4.0),))
    assert encoding.encode(Labelled([1.0, 2.0], [0, 1]))[0].tolist() == encoding.encode([1.0, 2.0])[0].tolist()
    for labels in (["x", "y"], [1, 0], [5, 6]):
        with pytest.raises(UsageError, match="to_numpy"):
            encoding.encode(Labelled([1.0, 2.0], labels))


@pytest.mark.parametrize(
    ("update", "says"),
    [
        ([1.0, 2.0], "expected a dict with the entries"),
        ({"a": [0.5, 0.5]}, r"missing entries \['b'\]"),
        ({"a": [0.5, 0.5], "b": 1, "c": 1}, r"unknown entries \['c'\]"),
        ({"a": [0.5, 0.5], "b": 1, 7: 1}, r"unknown entries \['7'\]"),
        ({"a": [0.5], "b": 1}, r"entry 'a': .*shape \(1,\).*\(2,\)"),
        ({"a": [[0.5, 0.5]], "b": 1}, r"entry 'a': .*shape \(1, 2\)"),
        ({"a": [0.5, 0.5], "b": []}, r"entry 'b': .*shape \(0,\)"),
        ({"a": [0.5, 0.5], "b": 0.5}, "entry 'b': integers are expected"),
        ({"a": [0.5, 0.5], "b": 6}, "entry 'b': an integer is outside ±5"),
    ],
)
def test_names_shapes_and_types_are_held_to_the_segments(update: Any, says: str) -> None:
    segments = (Segment(name="a", shape=(2,), clip=1.0), Segment(name="b", shape=(), bound=5))
    out = np.full(3, 7, np.uint32)
    with pytest.raises(UsageError, match=says):
        Segments(clients=3, segments=segments).encode(update, out=out)
    assert set(out.tolist()) in ({0}, {7}), "a refused update must not leave a code behind"


def test_whole_numbers_and_booleans_are_good_floats() -> None:
    encoding = Segments(clients=3, segments=(Segment(shape=(2,), clip=4.0),))
    for whole in ([1, -2], np.array([1, -2], np.int8), np.array([1.0, -2.0], ">f4"), np.array([1, -2], np.float16)):
        assert encoding.encode(whole)[0].tolist() == encoding.encode([1.0, -2.0])[0].tolist()
    assert encoding.encode([True, False])[0].tolist() == encoding.encode([1.0, 0.0])[0].tolist()


def test_an_array_is_for_a_segment_without_a_name() -> None:
    with pytest.raises(UsageError, match="got a dict"):
        Segments(clients=3, segments=(Segment(shape=(1,), clip=1.0),)).encode({"": [1.0]})


@pytest.mark.parametrize(
    ("segments", "says"),
    [
        ((), "at least one Segment"),
        (7, "Segment, got"),
        (({"shape": (1,)},), "Segment, got"),
        ((Segment(name="a", shape=(1,), clip=1.0),) * 2, "different name"),
        ((Segment(shape=(1,), clip=1.0), Segment(name="a", shape=(1,), clip=1.0)), "different name"),
        ((Segment(name="a", shape=(2**31 - 1,), clip=1.0), Segment(name="b", shape=(1,), clip=1.0)), "together"),
        ((Segment(name="a", shape=(1,), bound=2**30),), "entry 'a': the sum of 4 integers .* could wrap"),
        ((Segment(name="a", shape=(1,), clip=0.0),), "entry 'a': .*do not fit"),
    ],
)
def test_segments_that_cannot_work_cannot_be_built(segments: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Segments(clients=4, segments=segments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"shape": (1,)},
        {"shape": (1,), "clip": 1.0, "bound": 1},
        {"shape": 3, "clip": 1.0},
        {"shape": (0,), "clip": 1.0},
        {"shape": (1.5,), "clip": 1.0},
        {"shape": (1,), "clip": math.nan},
        {"shape": (1,), "clip": "1"},
        {"shape": (1,), "bound": 1.5},
        {"shape": (1,), "bound": 1, "name": b"a"},
        {"shape": (1,), "bound": 1, "name": "a\n"},
        {"shape": (1,), "bound": 1, "name": "a" * 201},
    ],
)
def test_a_segment_that_cannot_work_cannot_be_built(arguments: Mapping[str, Any]) -> None:
    with pytest.raises(UsageError):
        Segment(**arguments)


def test_decode_checks_lengths_and_divisors() -> None:
    encoding = Segments(
        clients=3, segments=(Segment(name="a", shape=(2,), clip=1.0), Segment(name="b", shape=(1,), bound=5))
    )
    total = np.zeros(3, np.uint32)
    with pytest.raises(UsageError, match="3 values is expected, not 2"):
        encoding.decode(total[:2])
    with pytest.raises(UsageError, match="give count"):
        encoding.decode(total, divisor=2.0)
    for bad in (0, -1, math.nan, math.inf):
        with pytest.raises(UsageError, match="count"):
            encoding.decode(total, count=bad)
        with pytest.raises(UsageError, match="divisor"):
            encoding.decode(total, divisor=bad, count=3)


@pytest.mark.parametrize(
    ("vectors", "says"),
    [
        ([{"w": [1]}, [1], [1]], "all vectors to be dicts"),
        ([{"": [1]}] * 3, "text as names"),
        ([{3: [1]}] * 3, "text as names"),
        ([{}] * 3, "text as names"),
        ([{"w": []}] * 3, "empty in entry 'w'"),
        ([{"w": [2**30]}] * 3, "entry 'w': .*could wrap.*give floats"),
        ([{"w": [1]}, {"w": [1]}, {"v": [1]}], "vector 2 has shape"),
    ],
)
def test_secure_sum_refuses_what_does_not_fit_together(vectors: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        secure_sum(vectors)


def test_a_plan_holds_its_length_and_the_segments_together() -> None:
    identities = make_identities(range(3))
    options: dict[str, Any] = {
        "training_id": bytes(32),
        "round": 0,
        "roster": make_roster(identities),
        "schedule": Schedule(name="random", size=3),
        "training_seed": bytes(32),
    }
    segments = (Segment(name="a", shape=(2,), clip=1.0), Segment(name="b", shape=(), bound=5))
    plan = Plan(**options, length=3, segments=segments)
    assert (plan.clips, plan.bounds) == ([1.0], [5])
    assert Plan.from_bytes(plan.to_bytes()) == plan
    with pytest.raises(UsageError, match="the segments have 3 values"):
        Plan(**options, length=4, segments=segments)
    with pytest.raises(UsageError, match="give either clip"):
        Plan(**options, length=3, segments=segments, clip=1.0)

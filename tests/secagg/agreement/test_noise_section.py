"""The section `noise`: its limits, its bytes and its lines in a file."""

import re
from typing import Any

import pytest

from secagg import UsageError, WireError
from secagg.agreement import Noise
from secagg.agreement.layout import MOST_SEGMENTS
from secagg.agreement.noise import NOISE
from secagg.codec import from_bytes, to_bytes
from secagg.crypto import MOST_SIGMA, Segment, SegmentNoise
from secagg.crypto.segments import Segments

ONE = SegmentNoise(clip=1.5, sigma=7)
TWO = SegmentNoise(clip=3.0, sigma=9)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"segments": ()}, "noise: expected a clip and a sigma for each segment, got 0"),
        ({"segments": (ONE,) * (MOST_SEGMENTS + 1)}, "noise: expected a clip and a sigma for each segment, got 65536"),
        ({"segments": 5}, "segments: expected a collection of SegmentNoise, got int"),
        ({"segments": (5,)}, "segments, each: expected SegmentNoise, got int"),
        ({"segments": (ONE,), "colluders": -1}, "colluders: expected a whole number from 0 to 4294967295, got -1"),
        ({"segments": (ONE,), "colluders": 2**32}, "colluders: expected a whole number from 0 to 4294967295, got 429"),
    ],
)
def test_noise_beyond_its_limits_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(says)}"):
        Noise(**fields)


def test_noise_at_its_limits_is_accepted() -> None:
    assert Noise(segments=(ONE,)).colluders == 0
    assert Noise(segments=[ONE], colluders=2**32 - 1) == Noise(segments=(ONE,), colluders=2**32 - 1)  # type: ignore[arg-type]
    assert len(Noise(segments=(ONE,) * MOST_SEGMENTS).segments) == MOST_SEGMENTS


def test_noise_has_one_encoding() -> None:
    noise = Noise(segments=(ONE, TWO), colluders=5)
    data = to_bytes(NOISE.layout, NOISE.flat(noise))
    assert NOISE.build(from_bytes(NOISE.layout, data)) == noise
    assert data[:4] == (5).to_bytes(4, "little")
    assert (NOISE.number, NOISE.version, NOISE.name) == (5, 1, "noise")
    flat = NOISE.flat(noise)
    assert flat == {"colluders": 5, "segments": ({"clip": 1.5, "sigma": 7}, {"clip": 3.0, "sigma": 9})}
    with pytest.raises(WireError, match=r"^noise that cannot be kept: noise: sigma: expected a whole number from 1"):
        NOISE.build({"colluders": 0, "segments": ({"clip": 1.0, "sigma": 0},)})


@pytest.mark.parametrize(
    ("noise", "lines"),
    [
        (Noise(segments=(ONE,)), ["[noise]", "clip = 1.5", "sigma = 7", "colluders = 0"]),
        (
            Noise(segments=(ONE, TWO), colluders=2),
            ["[noise]", "clip = [1.5, 3.0]", "sigma = [7, 9]", "colluders = 2"],
        ),
    ],
)
def test_noise_is_written_and_read(noise: Noise, lines: list[str]) -> None:
    assert list(NOISE.lines(noise)) == lines
    several = len(noise.segments) > 1
    clips, sigmas = ([getattr(one, name) for one in noise.segments] for name in ("clip", "sigma"))
    table = {"clip": clips if several else clips[0], "sigma": sigmas if several else sigmas[0]}
    assert NOISE.read(table | {"colluders": noise.colluders}) == noise
    assert NOISE.read({"clip": clips, "sigma": sigmas, "colluders": noise.colluders}) == noise


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"clip": None}, "noise.clip: expected a number, or a list with one for each segment, but the key is missing"),
        ({"sigma": {}}, "noise.sigma: expected a number, or a list with one for each segment, got {}"),
        ({"sigma": [1, 2]}, "noise: expected as many clips as sigmas, got 1 and 2"),
        ({"sigma": MOST_SIGMA + 1}, f"noise[0].sigma: expected 0 to {MOST_SIGMA}, got {MOST_SIGMA + 1}"),
        ({"clip": [1, "2"], "sigma": [1, 2]}, "noise[1].clip: expected a number, got '2'"),
        ({"colluders": 2**32}, f"noise.colluders: expected 0 to {2**32 - 1}, got {2**32}"),
        ({"colluders": None}, "noise.colluders: expected a whole number, but the key is missing"),
        ({"sigmas": 1}, "noise.sigmas: unknown key; did you mean 'sigma'?"),
    ],
)
def test_a_wrong_table_is_refused_in_words(changes: dict[str, Any], says: str) -> None:
    table = {"clip": 1.0, "sigma": 1, "colluders": 0} | changes
    with pytest.raises(UsageError, match=f"^{re.escape(says)}$"):
        NOISE.read({key: value for key, value in table.items() if value is not None})


def test_noise_at_the_limits_of_a_file_is_read() -> None:
    found = NOISE.read({"clip": 1, "sigma": MOST_SIGMA, "colluders": 2**32 - 1})
    assert found == Noise(segments=(SegmentNoise(clip=1.0, sigma=MOST_SIGMA),), colluders=2**32 - 1)


# --- held against the vector and the members -----------------------------------------------------------------------


def encoding(noise: Noise, *segments: Segment) -> Segments:
    return Segments(clients=4, segments=segments, noise=noise.segments)


COUNTS = Segment(name="counts", shape=(2,), bound=9)
PLAIN = Segment(shape=(2,), bound=9)


def test_all_members_but_one_may_collude() -> None:
    Noise(segments=(ONE,), colluders=3).check(encoding(Noise(segments=(ONE,)), PLAIN), (1.0,), 4, 1)
    with pytest.raises(UsageError, match=r"^noise.colluders: expected at most 3, all members but one, got 4$"):
        Noise(segments=(ONE,), colluders=4).check(encoding(Noise(segments=(ONE,)), PLAIN), (1.0,), 4, 1)


@pytest.mark.parametrize(("segment", "name"), [(PLAIN, ""), (COUNTS, "segment 'counts': ")])
def test_a_clip_is_at_least_a_step_of_the_grid(segment: Segment, name: str) -> None:
    step = Noise(segments=(SegmentNoise(clip=1.0, sigma=7),))
    step.check(encoding(step, segment), (1.0, 9.0), 4, 1)
    less = Noise(segments=(SegmentNoise(clip=0.75, sigma=7),))
    says = (
        f"noise: {name}the clip 0.75 is smaller than a step of the grid for some member; use a larger one, or a "
        "smaller clip of the segment (its grid is then finer)"
    )
    with pytest.raises(UsageError, match=f"^{re.escape(says)}$"):
        less.check(encoding(less, segment), (1.0,), 4, 1)


def test_the_lightest_member_decides_about_the_step() -> None:
    floats = Segment(shape=(1,), clip=2.0**20)
    scale = encoding(Noise(segments=(ONE,)), floats).encodings[0].scale  # type: ignore[union-attr]
    noise = Noise(segments=(SegmentNoise(clip=2.0 / scale, sigma=7),))
    noise.check(encoding(noise, floats), (0.5, 1.5), 4, 1)
    with pytest.raises(UsageError, match="smaller than a step of the grid"):
        noise.check(encoding(noise, floats), (1.5, 0.49), 4, 1)


@pytest.mark.parametrize(("segment", "name"), [(PLAIN, ""), (COUNTS, "segment 'counts': ")])
def test_all_sums_have_room_for_the_noise(segment: Segment, name: str) -> None:
    def most(sums: int, length: int = 2) -> int:
        noise = Noise(segments=(SegmentNoise(clip=9.0, sigma=MOST_SIGMA),))
        one = Segment(name=segment.name, shape=(length,), bound=9)
        with pytest.raises(UsageError, match=rf"^{name}noise: sigma {MOST_SIGMA} is too large: .*") as told:
            noise.check(Segments(clients=1000, segments=(one,), noise=noise.segments), (1.0,), 4, sums)
        return int(re.findall(r"use at most (\d+)", str(told.value))[0])

    assert most(50, 4) == most(100, 2) < most(99, 2)


def test_the_heaviest_member_decides_about_the_room() -> None:
    floats = Segment(shape=(1,), clip=2.0**20)
    noise = Noise(segments=(SegmentNoise(clip=2.0**18, sigma=2**26),))
    noise.check(encoding(noise, floats), (1.0, 0.5), 4, 10**6)
    with pytest.raises(UsageError, match="is too large"):
        noise.check(encoding(noise, floats), (0.5, 4.0), 4, 10**6)

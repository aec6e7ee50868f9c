"""Segments, noise and pulses at their limits: names, lengths, fields, key sizes, and bytes that are cut."""

import dataclasses
import struct
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicNumbers
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from secagg.crypto import FixedPoint, Integers, Loss, Segment, SegmentNoise, Segments, discrete_gaussian, pulse
from secagg.crypto.prg import add_masks
from secagg.errors import PeerError, UsageError
from secagg.kernels import gaussian

# --- segments ----------------------------------------------------------------------------------------------------


def test_a_name_has_200_printable_characters_at_most() -> None:
    assert len(Segment(name="n" * 200, shape=(1,), bound=1).name) == 200
    for name in ("n" * 201, "a\nb", 7):
        with pytest.raises(UsageError, match=r"^name of a segment: expected at most 200 printable characters, got"):
            Segment(name=name, shape=(1,), bound=1)  # type: ignore[arg-type]


def test_segments_have_2_to_the_31_values_less_one_together() -> None:
    most = 2**31 - 1
    assert Segment(shape=(most,), bound=0).length == most
    parts = (Segment(name="a", shape=(most - 1,), bound=0), Segment(name="b", shape=(1,), bound=0))
    assert Segments(clients=1, segments=parts).length == most
    with pytest.raises(UsageError, match=f"^segments: at most {most} values together, got {2**31}$"):
        Segments(clients=1, segments=(*parts, Segment(name="c", shape=(), bound=0)))
    for shape in ((most + 1,), (2, 0), (-1,), (2**16, 2**15)):
        with pytest.raises(UsageError, match=f"^segment '': expected 1 to {most} values, got shape"):
            Segment(shape=shape, bound=0)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"segments": ()}, "^segments: expected at least one Segment, got none$"),
        ({"segments": (Segment(shape=(1,), bound=1),) * 2}, r"^segments: expected a different name for each, got"),
        ({"segments": (Segment(shape=(), bound=1), Segment(name="b", shape=(), bound=1))}, "^segments: expected a"),
        ({"noise": (SegmentNoise(clip=1.0, sigma=1),)},
         "^noise: expected one clip and sigma for each of 2 segments, got 1$"),
        ({"noise": (SegmentNoise(clip=1.0, sigma=1),) * 3}, "^noise: expected one clip and sigma for each of 2"),
        ({"clients": 2**31}, "^entry 'a': "),
    ],
)  # fmt: skip
def test_segments_that_do_not_fit_together_are_refused(fields: Any, says: str) -> None:
    parts = (Segment(name="a", shape=(2,), clip=1.0), Segment(name="b", shape=(3,), bound=5))
    with pytest.raises(UsageError, match=says):
        Segments(**{"clients": 3, "segments": parts, **fields})


def test_what_segments_are_made_of() -> None:
    parts = [Segment(name="a", shape=[2], clip=1), Segment(name="b", shape=(3, 1), bound=np.int64(5))]  # type: ignore[arg-type]
    noise = [SegmentNoise(clip=1.0, sigma=1), SegmentNoise(clip=2.0, sigma=2)]
    made = Segments(clients=3, segments=parts, noise=noise)  # type: ignore[arg-type]
    assert (made.segments, made.noise, made.length) == (tuple(parts), tuple(noise), 5)
    assert made.encodings == (FixedPoint(clients=3, clip=1.0), Integers(clients=3, bound=5))
    assert (parts[0].shape, type(parts[0].clip), type(parts[1].bound)) == ((2,), float, int)
    fields = {field.name: (field.init, field.repr, field.compare) for field in dataclasses.fields(Segments)}
    seen, derived = (True, True, True), (False, False, False)
    assert fields == {"clients": seen, "segments": seen, "noise": seen, "encodings": derived, "length": derived}
    assert made.norms(1.0) == (2**29, 2)
    assert made.draw_noise(lambda count: bytes(count)).shape == (5,)


def test_the_reach_of_sums_without_noise() -> None:
    made = Segments(clients=4, segments=(Segment(name="a", shape=(2,), clip=1.0), Segment(name="b", shape=(), bound=5)))
    assert (made.reach(0), made.reach(3)) == ((0, 0), (3 * 2**28, 15))
    with pytest.raises(UsageError, match=r"^members: expected a whole number of at least 0, got -1$"):
        made.reach(-1)
    for call in (lambda: made.norms(1.0), lambda: made.draw_noise(bytes)):
        with pytest.raises(UsageError, match=r"^these segments have no noise$"):
            call()


def test_means_of_segments() -> None:
    made = Segments(clients=4, segments=(Segment(name="a", shape=(2,), clip=1.0), Segment(name="b", shape=(), bound=5)))
    total = np.array([2**28, 2**27, 12], np.uint32)
    means = made.decode(total, divisor=2.0, count=4)
    assert (means["a"].tolist(), means["b"].tolist()) == ([0.5, 0.25], 3.0)
    assert made.decode(total, count=0.5)["b"].tolist() == 24.0  # any positive number
    sums = made.decode(total)
    assert (sums["a"].tolist(), sums["b"].tolist(), sums["b"].dtype) == ([1.0, 0.5], 12, np.dtype(np.int64))
    out: Any
    for out in (np.zeros(3, np.float32), np.zeros(3, np.float64)):
        assert made.decode(total, divisor=2.0, count=4, out=out) is out
        assert out.tolist() == [0.5, 0.25, 3.0]
    for changes, says in (
        ({"divisor": 2.0}, "^for a mean of integers give count, the number of clients: they are not weighted$"),
        ({"count": 0}, "^count is a positive number of clients, not 0$"),
        ({"count": -1}, "^count is a positive number of clients, not -1$"),
        ({"total": total[:2]}, "^a total of 3 values is expected, not 2$"),
        ({"out": np.zeros(2)}, "^out must be a contiguous, writable vector of 3 float64$"),
    ):
        with pytest.raises(UsageError, match=says):
            made.decode(**dict[str, Any]({"total": total, **changes}))


def test_updates_of_segments_with_noise() -> None:
    parts = (Segment(name="a", shape=(2,), clip=1.0), Segment(name="b", shape=(3,), bound=5))
    noise = (SegmentNoise(clip=8.0, sigma=3), SegmentNoise(clip=100.0, sigma=4))
    made = Segments(clients=4, segments=parts, noise=noise)
    assert made.reach(3) == tuple(one.reach(part, 3) for one, part in zip(noise, made.encodings, strict=True))
    encoded, losses = made.encode({"a": [0.5, 3.0], "b": [1, -9, 0]})
    assert encoded.view(np.int32).tolist() == [2**27, 2**28, 1, -5, 0]
    assert losses.entries == (
        Loss(name="a", values=2, clipped=1, vanished=0),
        Loss(name="b", values=3, clipped=1, vanished=0),
    )
    assert (losses.clipped, losses.vanished) == (2, 0)
    with pytest.raises(UsageError, match=r"^entry 'b': integers are expected, not float64$"):
        made.encode({"a": [0.5, 3.0], "b": [1.0, 2.0, 3.0]})


def test_updates_of_segments_are_dicts_with_their_entries() -> None:
    parts = (Segment(name="a", shape=(2,), clip=1.0), Segment(name="b", shape=(), bound=5))
    made = Segments(clients=4, segments=parts)
    assert made.named
    assert made.encode({"a": [1, 0], "b": 2})[0].tolist() == [2**28, 0, 2]  # whole numbers are floats too
    for update, says in (
        ([1.0, 2.0, 3.0], r"^update: expected a dict with the entries \['a', 'b'\], got list$"),
        ({"a": [1.0, 2.0]}, r"^update: missing entries \['b'\], unknown entries \[\]$"),
        ({"a": [1.0, 2.0], "b": 1, "c": 2}, r"^update: missing entries \[\], unknown entries \['c'\]$"),
        ({"a": [1.0], "b": 1}, r"^entry 'a': the update has shape \(1,\), the agreed shape is \(2,\)$"),
        ({"a": [1.0, 2.0], "b": 6}, r"^entry 'b': an integer is outside ±5$"),
    ):
        with pytest.raises(UsageError, match=says):
            made.encode(update)  # type: ignore[arg-type]
    single = Segments(clients=4, segments=(Segment(shape=(2,), clip=1.0),))
    assert not single.named
    with pytest.raises(UsageError, match=r"^update: expected one array of shape \(2,\), got a dict$"):
        single.encode({"": [1.0, 2.0]})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((-1, 1), "^length: expected a whole number from 0 to 2147483647, got -1$"),
        ((2**31, 1), "^length: expected a whole number from 0 to 2147483647, got 2147483648$"),
        ((1, 0), "^sigma: expected a whole number from 1 to 67108864, got 0$"),
        ((1, 2**26 + 1), "^sigma: expected a whole number from 1 to 67108864, got 67108865$"),
    ],
)
def test_noise_has_limits(arguments: tuple[int, int], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        discrete_gaussian(*arguments)
    assert discrete_gaussian(0, 1).tolist() == []


def test_every_16384_samples_begin_at_a_part_of_the_stream_of_their_own() -> None:
    """The second piece is made from the words at 2^40, whatever the first one took."""
    key, sigma, more = bytes(range(16)), 50, 20
    words = np.zeros(2**12, np.uint32)
    add_masks(words, [key], [1], offset=2**40)
    expected = np.zeros(more, np.int32)
    gaussian.fill(expected, 0, words, sigma, gaussian.THRESHOLDS)
    found = discrete_gaussian(2**14 + more, sigma, entropy=lambda _: key)
    assert found[2**14 :].tolist() == expected.tolist()


# --- pulses ------------------------------------------------------------------------------------------------------


def rsa_key(bits: int) -> bytes:
    """A public key of this size; nobody knows its factors, and nobody signs with it."""
    numbers = RSAPublicNumbers(65537, 2 ** (bits - 1) + 2**30 + 1)
    return numbers.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def test_the_key_of_a_beacon_has_2048_to_8192_bits() -> None:
    for bits in (2048, 4096, 8192):
        assert pulse._rsa(rsa_key(bits)).key_size == bits
    other = Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    for key in (rsa_key(2047), rsa_key(8193), other):
        with pytest.raises(PeerError, match=r"^pulse: expected an RSA key of 2048 to 8192 bits$"):
            pulse._rsa(key)
    with pytest.raises(PeerError, match=r"^pulse: the beacon's key is not a public key in DER$"):
        pulse._rsa(b"no key")


def message(suite: int = 0, value: bytes = bytes(64)) -> bytes:
    """All fields of a pulse in their order: texts and values with their length, numbers without."""
    kinds = {"text": lambda: struct.pack(">I", 3) + b"abc", "value": lambda: struct.pack(">I", len(value)) + value,
             ">I": lambda: struct.pack(">I", suite), ">Q": lambda: struct.pack(">Q", 7)}  # fmt: skip
    return b"".join(kinds[kind]() for _, kind in pulse._FIELDS)


def test_the_fields_of_a_pulse_are_read_and_nothing_else() -> None:
    found = pulse._parsed(message(5))
    assert list(found) == [path for path, _ in pulse._FIELDS]
    assert (found["uri"], found["cipherSuite"], found["chainIndex"]) == ("abc", 5, 7)
    assert found["precommitmentValue"] == bytes(64)
    with pytest.raises(PeerError, match=r"^pulse: 1 extra bytes after the message$"):
        pulse._parsed(message() + b"x")
    with pytest.raises(PeerError, match=r"^pulse: the message ends before statusCode$"):
        pulse._parsed(message()[:-1])
    with pytest.raises(PeerError, match=r"^pulse: the message ends before uri$"):
        pulse._parsed(b"")
    for value in (bytes(63), bytes(65)):
        with pytest.raises(PeerError, match=r"^pulse: certificateId: expected 64 bytes$"):
            pulse._parsed(message(value=value))
    with pytest.raises(PeerError, match=r"^pulse: uri: expected 9 bytes$"):
        pulse._parsed(struct.pack(">I", 9) + b"abc")
    with pytest.raises(PeerError, match=r"^pulse: the message ends before version$"):
        pulse._parsed(struct.pack(">I", 3) + b"abc")  # the text is whole


def test_another_cipher_suite_is_refused() -> None:
    with pytest.raises(PeerError, match=r"^pulse: expected cipher suite 0 \(SHA-512, RSA\), got 1$"):
        pulse.Pulse(message(1), bytes(256), rsa_key(2048)).verify()
    with pytest.raises(PeerError, match=r"^pulse: the beacon's signature is wrong$"):
        pulse.Pulse(message(0), bytes(256), rsa_key(2048)).verify()


def test_a_time_stamp_in_milliseconds() -> None:
    assert pulse.milliseconds("1970-01-01T00:00:01.234Z") == 1234
    assert pulse.milliseconds("2026-08-31T19:04:00.000Z") == 1_788_203_040_000
    for stamp in ("2026-08-31", "", "x" * 50):
        with pytest.raises(PeerError, match=f"^pulse: expected a time such as .*, got '{stamp[:40]}'$"):
            pulse.milliseconds(stamp)

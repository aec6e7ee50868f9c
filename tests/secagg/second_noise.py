"""A second implementation of noise, written only from docs/protocol-whole.md, section 10; without secagg."""

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache
from itertools import count

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from tests.secagg.second import Client, H, add, u64

PIECE, APART = 2**14, 2**40
RHO, ETA, MOST = Fraction(1, 2**40), Fraction(1, 2**60), 2**63 - 1


@dataclass(frozen=True)
class SegmentNoise:
    clip: float
    sigma: int


@dataclass(frozen=True)
class Noise:
    colluders: int
    segments: Sequence[SegmentNoise]


# --- the noise -------------------------------------------------------------------------------------------


@cache
def thresholds() -> list[int]:
    with localcontext() as context:
        context.prec = 150
        weights = [(-Decimal(i * i) / 2).exp() for i in range(60)]
        return [int((sum(weights[: k + 1]) / sum(weights) * 2**256).to_integral_value()) for k in range(18)]


def words(key: bytes, first: int) -> Iterator[int]:
    cipher = Cipher(algorithms.AES(key), modes.CTR((first // 4).to_bytes(16, "big"))).encryptor()
    while True:
        yield from struct.unpack("<256I", cipher.update(bytes(1024)))


@dataclass
class Sampler:
    source: Iterator[int]
    sigma: int

    def below(self, n: int) -> int:
        while True:
            product = next(self.source) * n
            if product % 2**32 >= 2**32 % n:
                return product // 2**32

    def pick(self) -> int:
        word = next(self.source)
        number = word * 2**224
        if any(word == t // 2**224 for t in thresholds()):
            number += sum(next(self.source) * 2 ** (32 * (6 - i)) for i in range(7))
        return sum(t <= number for t in thresholds())

    def trial(self, k: int, j: int) -> bool:
        i = 1
        while self.below(self.sigma) < j:
            c = self.below((2 * k + 2) * i)
            if c > 2 * k or (c == 2 * k and self.below(self.sigma) >= j):
                break
            i += 1
        return i % 2 == 1

    def sample(self) -> int:
        while True:
            k = self.pick()
            j, negative = divmod(self.below(2 * self.sigma), 2)
            if not (k == j == 0 and negative) and all(self.trial(k, j) for _ in range(k + 1)):
                size = k * self.sigma + j
                return -size if negative else size


def gaussian(key: bytes, length: int, sigma: int) -> list[int]:
    found: list[int] = []
    for piece in range(-(-length // PIECE)):
        sampler = Sampler(words(key, piece * APART), sigma)
        found += [sampler.sample() for _ in range(min(PIECE, length - piece * PIECE))]
    return found


# --- the update ------------------------------------------------------------------------------------------


def norm(clip: float, weight: float, frac_bits: int | None) -> int:
    """D in steps of the grid; integers have no frac_bits."""
    return math.floor(
        Fraction(clip) if frac_bits is None else Fraction(clip) * Fraction(weight) * Fraction(2) ** frac_bits
    )


def clipped(values: Sequence[float], factor: float, most: Fraction, limit: float) -> list[int]:
    """Whole numbers with a norm of at most `most` (1 - 2^-30) and none beyond the limit, modulo 2^32."""
    exact, target = [Fraction(float(x) * factor) for x in values], most * (1 - Fraction(1, 2**30))
    squares = sum(x * x for x in exact)
    if squares > target * target:
        length = Fraction(math.isqrt(math.floor(squares * 2**200)), 2**100)
        exact = [x * target / length for x in exact]
    return [math.trunc(min(max(x, -Fraction(limit)), Fraction(limit))) % 2**32 for x in exact]


def room(noise: SegmentNoise, clients: int, largest: int, most: int, sums: int) -> bool:
    deviations = math.sqrt(2 * math.log(2) * (41 + math.log2(sums)))
    return noise.sigma <= (2**31 - 1 - clients * min(largest, most)) / (deviations * math.sqrt(clients))


def spread(sigma: int, members: int) -> int:
    """What noise adds to what honest members reach."""
    return math.ceil(sigma * math.sqrt(members) * math.sqrt(2 * math.log(2) * 73))


@dataclass
class Survivor(Client):
    """A client of a run with survivors, under an agreement with noise."""

    noise: Noise = Noise(0, ())

    def encoded(self, update: Sequence[Sequence[float]]) -> list[int]:
        plan, weight, made = self.plan, self.plan.weight(self.id), list[int]()
        parts = list(zip(plan.segments, self.noise.segments, strict=True))
        for (segment, one), values in zip(parts, update, strict=True):
            bits = segment.frac_bits(plan.size) if segment.floats else None
            scale = 1.0 if bits is None else 2.0**bits
            factor, limit = (weight * scale, segment.clip * scale) if segment.floats else (1.0, float(segment.bound))
            made += clipped(values, factor, Fraction(norm(one.clip, weight, bits)), limit)
        drawn = [gaussian(self.draw(16), segment.length, one.sigma) for segment, one in parts]
        return add(made, [x for part in drawn for x in part])


# --- charges ---------------------------------------------------------------------------------------------


def charge(noise: Noise, members: int, norms: Sequence[int], lengths: Sequence[int]) -> tuple[int, int] | None:
    """Whole units of rho and eta, for one grouping; None if the noise is too small for the grid."""
    share, rank = Fraction(1, max(1, members - noise.colluders)), members - 1
    rho, eta = Fraction(0), 0.0
    for one, D, length in zip(noise.segments, norms, lengths, strict=True):
        rho += share * Fraction(D * D, 2 * one.sigma**2)
        if share < 1:
            grown = math.exp(min(math.pi**2 * one.sigma**2, 700)) - 2 * rank
            if grown <= 2 * rank:
                return None
            e = 2 * rank / grown
            eta += length * (math.log1p(e) - math.log1p(-e))
    return min(MOST, math.ceil(rho / RHO)), min(MOST, math.ceil(Fraction(eta) / ETA))


def epsilon(rho: int, delta: float) -> float:
    """From zCDP, by trying many orders."""
    amount = float(rho * RHO)
    orders = (1 + 1.01**i / 100 for i in range(2500))
    return min(a * amount + math.log1p(-1 / a) - (math.log(delta) + math.log(a)) / (a - 1) for a in orders)


def pay(records: dict[str, bytes], subject: bytes, cost: tuple[int, int], budget: tuple[float, float] | None) -> bool:
    """Whether the charge is paid; not if it would exceed the budget."""
    units = u64(cost[0]) + u64(cost[1])
    key = H("charge-record", b"\x00", units, subject)
    marked = "v2-" + H("charge-record", key).hex()
    if marked in records:
        return True
    entries = list(ledger(records))
    if not entries or entries[-1][:32] != key:
        before = spent(records)
        total = min(MOST, before[0] + cost[0]), min(MOST, before[1] + cost[1])
        if budget and epsilon(total[0], budget[1]) + 2 * float(total[1] * ETA) > budget[0]:
            return False
        records[ledger_name(len(entries))] = key + units + u64(total[0]) + u64(total[1])
    records[marked] = key + units + bytes(16)
    return True


def ledger(records: Mapping[str, bytes]) -> Iterator[bytes]:
    """The entries, from the first to the last."""
    for number in count():
        if (entry := records.get(ledger_name(number))) is None:
            return
        yield entry


def spent(records: Mapping[str, bytes]) -> tuple[int, int]:
    """The total after the last entry."""
    rho = eta = 0
    for entry in ledger(records):
        rho, eta = struct.unpack("<QQ", entry[48:])
    return rho, eta


def ledger_name(number: int) -> str:
    return "v2-" + H("ledger-record", u64(number)).hex()

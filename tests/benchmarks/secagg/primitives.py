"""Speed of masks, fixed point and sharing, each with a comparison in the same run.

Every figure is the best of several rounds. Compared tasks alternate, so that other load slows down both. One
core is measured by processor time, several cores by the clock. A GB is 10^9 bytes: of keystream for
masks, of memory read and written for fixed point.
"""

import importlib
import importlib.metadata
import os
import platform
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from cryptography.hazmat.backends.openssl import backend as openssl
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from secagg.crypto import prg, shamir
from secagg.crypto.fixedpoint import FixedPoint
from secagg.kernels.threads import cores

MASK_SIZES = ((2_156_490, 10), (100_000, 100))  # words and keys: the paper's CNN; one client among a hundred
UPDATE_SIZES = (2_156_490, 25_000_000)  # smaller and larger than a server's last-level cache
SHARING = ((100, 67), (1000, 667))  # holders and threshold
RAW_CHUNK = 2**17  # bytes per call: the fastest size for OpenSSL through cryptography

Task = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A ratio and its lower bound."""

    name: str
    value: float
    least: float

    @property
    def met(self) -> bool:
        return self.value >= self.least


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskRate:
    words: int
    keys: int
    maker: str  # a backend, or "raw openssl": keystream only, not added to a vector
    threads: int
    gb_per_s: float  # by the clock
    gb_per_core_s: float  # by the calling thread's processor time; by the clock for several threads


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRate:
    values: int
    what: str  # "copy", "encode" or "decode"
    gb_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingTime:
    holders: int
    threshold: int
    maker: str
    split_ms: float
    coefficients_ms: float  # 0 if `combine` computes them for each secret
    combine_ms: float

    @property
    def total_ms(self) -> float:
        return self.split_ms + self.coefficients_ms + self.combine_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    machine: dict[str, Any]
    masks: tuple[MaskRate, ...]
    passes: tuple[PassRate, ...]
    sharing: tuple[SharingTime, ...]
    flower: dict[str, float]  # empty unless flwr is installed
    bars: tuple[Bar, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        plain = asdict(self)
        plain["bars"] = [asdict(bar) | {"met": bar.met} for bar in self.bars]
        return plain


def measure(*, rounds: int = 15, progress: Callable[[str], None] = lambda step: None) -> Report:
    """Measure everything; `progress` is called with the name of each step."""
    progress("compiling")
    prg.available_backends()
    masks: list[MaskRate] = []
    for words, keys in MASK_SIZES:
        progress(f"masks: {keys} keys, {words:,} words")
        masks += measure_masks(words, keys, 8 * rounds)  # a few milliseconds each, so many rounds
    passes: list[PassRate] = []
    for values in UPDATE_SIZES:
        progress(f"fixed point: {values:,} values")
        passes += measure_passes(values, rounds)
    sharing: list[SharingTime] = []
    for holders, threshold in SHARING:
        progress(f"sharing: {threshold} of {holders}")
        sharing.append(measure_sharing(holders, threshold, rounds))
    if _installed("Crypto.Protocol.SecretSharing"):
        progress("sharing: pycryptodome")
        sharing.append(measure_pycryptodome(*SHARING[0]))
    flower: dict[str, float] = {}
    if _installed("flwr.common.secure_aggregation.secaggplus_utils"):
        progress("Flower")
        flower = measure_flower(MASK_SIZES[1][0], *SHARING[0])
    return Report(
        machine=machine(),
        masks=tuple(masks),
        passes=tuple(passes),
        sharing=tuple(sharing),
        flower=flower,
        bars=tuple(bars(masks, sharing)),
    )


def measure_masks_again(report: Report, *, rounds: int = 15) -> Report:
    """Measure every mask again, minutes later, and keep the better figure.

    A virtual machine may run both its processors on one core of the host for a while.
    """
    again = [rate for words, keys in MASK_SIZES for rate in measure_masks(words, keys, 8 * rounds)]
    masks = [
        replace(
            one, gb_per_s=max(one.gb_per_s, other.gb_per_s), gb_per_core_s=max(one.gb_per_core_s, other.gb_per_core_s)
        )
        for one, other in zip(report.masks, again, strict=True)
    ]
    return replace(report, masks=tuple(masks), bars=tuple(bars(masks, report.sharing)))


@dataclass(frozen=True, slots=True)
class Seconds:
    """The shortest time of a task: by the clock, and of this thread's processor time."""

    clock: float = float("inf")
    core: float = float("inf")


def best_of(rounds: int, tasks: dict[str, Task]) -> dict[str, Seconds]:
    """The shortest times of every task. A round runs each task once; one more round warms up."""
    best = dict.fromkeys(tasks, Seconds())
    for task in tasks.values():
        task()
    for _ in range(rounds):
        for name, task in tasks.items():
            clock, core = time.perf_counter(), time.thread_time()
            task()
            core, clock = time.thread_time() - core, time.perf_counter() - clock
            best[name] = Seconds(min(best[name].clock, clock), min(best[name].core, core))
    return best


def measure_masks(words: int, count: int, rounds: int) -> list[MaskRate]:
    """Measure every backend and OpenSSL's keystream, on one core and on all."""
    keys = [os.urandom(prg.MASK_KEY_BYTES) for _ in range(count)]
    signs = [1 if i % 2 else -1 for i in range(count)]
    vector = np.zeros(words, np.uint32)

    def fused(backend: str, threads: int) -> Task:
        def task() -> None:
            prg.add_masks(vector, keys, signs, threads=threads)

        def forced() -> None:
            with prg.use_backend(backend):
                task()

        return task if backend == prg.backend() else forced

    def raw(threads: int) -> Task:
        return lambda: _raw_openssl(keys, 4 * words, threads)

    makers = {}
    for threads in sorted({1, cores()}):  # one core, then all cores
        makers[f"raw openssl/{threads}"] = raw(threads)
    for backend in prg.available_backends():
        makers |= {f"{backend}/{threads}": fused(backend, threads) for threads in sorted({1, cores()})}
    rates = []
    for name, seconds in best_of(rounds, makers).items():
        maker, used = name.split("/")
        core = seconds.core if used == "1" else seconds.clock
        gigabytes = 4e-9 * words * count
        rates.append(
            MaskRate(
                words=words,
                keys=count,
                maker=maker,
                threads=int(used),
                gb_per_s=gigabytes / seconds.clock,
                gb_per_core_s=gigabytes / core,
            )
        )
    return rates


def _raw_openssl(keys: Sequence[bytes], length: int, threads: int) -> None:
    """Make a keystream in chunks, into one small buffer: the fastest way through cryptography."""
    if threads > 1:
        parts = [threading.Thread(target=_raw_openssl, args=(keys[i::threads], length, 1)) for i in range(threads)]
        for part in parts:
            part.start()
        for part in parts:
            part.join()
        return
    zeros, buffer = memoryview(bytes(RAW_CHUNK)), memoryview(bytearray(RAW_CHUNK))
    for key in keys:
        encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        for start in range(0, length, RAW_CHUNK):
            size = min(RAW_CHUNK, length - start)
            encryptor.update_into(zeros[:size], buffer[:size])


def measure_passes(count: int, rounds: int) -> list[PassRate]:
    """Encoding and decoding beside numpy's copy of the same number of bytes."""
    encoding = FixedPoint(clients=60, clip=1.0)
    update = (prg.mask(bytes(16), count).view(np.int32) * np.float32(2.0**-30)).astype(np.float32)
    encoded, decoded = np.zeros(count, np.uint32), np.zeros(count, np.float32)
    best = best_of(
        rounds,
        {
            "copy": lambda: np.copyto(decoded, update),
            "encode": lambda: encoding.encode(update, weight=0.9, out=encoded),
            "decode": lambda: encoding.decode(encoded, divisor=60.0, out=decoded),
        },
    )
    return [PassRate(values=count, what=what, gb_per_s=8e-9 * count / t.clock) for what, t in best.items()]


def measure_sharing(holders: int, threshold: int, rounds: int) -> SharingTime:
    """One 32-byte secret: split, coefficients for one set of holders, rebuild."""
    secret, indices = os.urandom(shamir.SECRET_BYTES), list(range(1, holders + 1))
    shares = shamir.split_each([secret], threshold, indices)[:, :threshold].copy()
    weights = shamir.coefficients(indices[:threshold])
    if shamir.combine_each(weights, shares) != [secret]:
        raise AssertionError("a secret was not rebuilt")
    best = best_of(
        3 * rounds,
        {
            "split": lambda: shamir.split_each([secret], threshold, indices),
            "coefficients": lambda: shamir.coefficients(indices[:threshold]),
            "combine": lambda: shamir.combine_each(weights, shares),
        },
    )
    return SharingTime(
        holders=holders,
        threshold=threshold,
        maker="secagg",
        split_ms=1e3 * best["split"].core,
        coefficients_ms=1e3 * best["coefficients"].core,
        combine_ms=1e3 * best["combine"].core,
    )


def measure_pycryptodome(holders: int, threshold: int) -> SharingTime:
    """One secret of 32 bytes as two halves: its field holds 16 bytes."""
    theirs: Any = importlib.import_module("Crypto.Protocol.SecretSharing").Shamir
    halves = os.urandom(16), os.urandom(16)
    shares = [theirs.split(threshold, holders, half) for half in halves]
    best = best_of(
        2,
        {
            "split": lambda: [theirs.split(threshold, holders, half) for half in halves],
            "combine": lambda: [theirs.combine(of_half[:threshold]) for of_half in shares],
        },
    )
    return SharingTime(
        holders=holders,
        threshold=threshold,
        maker="pycryptodome",
        split_ms=1e3 * best["split"].core,
        coefficients_ms=0.0,
        combine_ms=1e3 * best["combine"].core,
    )


def measure_flower(words: int, holders: int, threshold: int) -> dict[str, float]:
    """The primitives of Flower's SecAgg and SecAgg+, in milliseconds."""
    package = "flwr.common.secure_aggregation"
    expand: Any = importlib.import_module(f"{package}.secaggplus_utils").pseudo_rand_gen
    sharing: Any = importlib.import_module(f"{package}.crypto.shamir")
    key, secret = os.urandom(32), os.urandom(32)
    vector = np.zeros(words, np.int64)
    shares = sharing.create_shares(secret, threshold, holders)

    def mask() -> None:
        np.add(vector, expand(key, 2**32, [(words,)])[0], out=vector)

    best = best_of(3, {"mask": mask})
    best |= best_of(
        1,
        {
            "split": lambda: sharing.create_shares(secret, threshold, holders),
            "combine": lambda: sharing.combine_shares(shares[:threshold]),
        },
    )
    return {
        "words": float(words),
        "mask_ms": 1e3 * best["mask"].core,
        "holders": float(holders),
        "threshold": float(threshold),
        "split_ms": 1e3 * best["split"].clock,
        "combine_ms": 1e3 * best["combine"].clock,
    }


def bars(masks: Sequence[MaskRate], sharing: Sequence[SharingTime]) -> list[Bar]:
    """Bounds on primitives: for the worst size, or for each size."""
    alone = {(m.words, m.maker): m.gb_per_core_s for m in masks if m.threads == 1}
    clock = {(m.words, m.maker, m.threads): m.gb_per_s for m in masks}
    sizes = sorted({m.words for m in masks})
    backends = [name for name in prg.BACKENDS if (sizes[0], name) in alone]

    def to_raw(maker: str) -> float:
        return min(alone[words, maker] / alone[words, "raw openssl"] for words in sizes)

    found = []
    if "vaes" in backends:
        found.append(Bar(name="one core: VAES to raw OpenSSL", value=to_raw("vaes"), least=1.3))
    found.append(Bar(name="one core: OpenSSL fallback to raw OpenSSL", value=to_raw("openssl"), least=0.85))
    for words in sizes:
        if (words, backends[0], 2) in clock:
            ratio = clock[words, backends[0], 2] / clock[words, backends[0], 1]
            found.append(Bar(name=f"{backends[0]}, {words:,} words: two cores to one", value=ratio, least=1.8))
    times = {(s.maker, s.holders): s.total_ms for s in sharing}
    for (maker, holders), total in times.items():
        if maker == "pycryptodome":
            ratio = total / times["secagg", holders]
            found.append(Bar(name=f"sharing among {holders}: to pycryptodome", value=ratio, least=50.0))
    return found


def machine() -> dict[str, Any]:
    """The machine and the versions."""
    versions = {}
    for package in ("numpy", "numba", "llvmlite", "cryptography", "pynacl", "pycryptodome", "flwr"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "processor": _processor(),
        "cores": cores(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "openssl": openssl.openssl_version_text(),
        "backends": list(prg.available_backends()),
        **versions,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _installed(module: str) -> bool:
    try:
        importlib.import_module(module)
    except Exception:  # an optional package may fail to import in any way
        return False
    return True


def as_text(report: Report) -> str:
    """The tables, for people."""
    lines = [", ".join(f"{name} {value}" for name, value in report.machine.items()), ""]
    lines.append(f"{'masks':<14}{'words':>12}{'keys':>6}{'threads':>9}{'GB/s':>8}{'per core-second':>17}")
    for m in report.masks:
        own = f"{m.gb_per_core_s:.2f}" if m.threads == 1 else ""
        lines.append(f"{m.maker:<14}{m.words:>12,}{m.keys:>6}{m.threads:>9}{m.gb_per_s:>8.2f}{own:>17}")
    lines += ["", f"{'fixed point':<14}{'values':>12}{'GB/s':>8}"]
    for p in report.passes:
        lines.append(f"{p.what:<14}{p.values:>12,}{p.gb_per_s:>8.2f}")
    lines += ["", f"{'sharing':<14}{'holders':>8}{'t':>5}{'split':>12}{'coefficients':>14}{'combine':>12}  ms"]
    for s in report.sharing:
        lines.append(
            f"{s.maker:<14}{s.holders:>8}{s.threshold:>5}{s.split_ms:>12.3f}{s.coefficients_ms:>14.3f}"
            f"{s.combine_ms:>12.3f}"
        )
    if report.flower:
        f = report.flower
        lines.append(
            f"{'flower':<14}{f['holders']:>8.0f}{f['threshold']:>5.0f}{f['split_ms']:>12.3f}"
            f"{0.0:>14.3f}{f['combine_ms']:>12.3f}"
        )
        lines.append(f"flower: one mask of {f['words']:,.0f} words, expanded and added, {f['mask_ms']:.3f} ms")
    lines += ["", "bars"]
    for bar in report.bars:
        verdict = "pass" if bar.met else "MISS"
        lines.append(f"{verdict}  {bar.name}: {bar.value:.2f} (at least {bar.least:g})")
    return "\n".join(lines)

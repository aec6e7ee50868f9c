"""What Byzantine clients send. One call shape for all:

    attack(honest, byzantine, *, own=None, rng=None, ...) -> the Byzantine rows, a matrix

`honest` holds the rows of the honest clients, `byzantine` is how many rows to make, `own` what those clients
would have sent had they been honest (in a simulation they train like everybody else), and `rng` the
generator that random attacks need. Attacks differ in what they know of others:

- Attacks that estimate (`fall_of_empires`, `a_little_is_enough`, `min_max`, `min_sum`, `mimic`) look at the
  honest rows by default, the omniscient attacker of most papers; with knows="own" they see nothing but the
  attackers' own updates, as the SHARE paper ran them.
- Attacks on one's own update (`sign_flip`) use `own`; without it, the mean of the honest rows stands in.

No attack changes its inputs. `label_flip` is the odd one out: it attacks the data, so it works on labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Generic, Literal, ParamSpec

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robust.geometry import centred_gram
from robust.parameters import Registry, check_parameters, read_parameters
from robust.rows import Matrix, Rows, Vector, as_matrix

P = ParamSpec("P")
Knows = Literal["honest", "own"]

ATTACKS: Registry[Attack[...]] = Registry("attack")
COMMON = ("own", "rng")


class Attack(Generic[P]):
    """An attack by name, with its parameters listed."""

    def __init__(self, function: Callable[P, Matrix]) -> None:
        self._function = function
        self.name = function.__name__
        self.parameters = read_parameters(function, skip=COMMON)
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__

    def __repr__(self) -> str:
        return f"<attack {self.name}({', '.join(map(str, self.parameters.values()))})>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Matrix:
        options = {name: value for name, value in kwargs.items() if name not in COMMON}
        check_parameters(self.name, self.parameters, options)
        return self._function(*args, **kwargs)


def attack(function: Callable[P, Matrix]) -> Attack[P]:
    """Make a function of the common call shape an attack, and register it under its name."""
    made = Attack(function)
    ATTACKS.add(made.name, made)
    return made


@dataclass(frozen=True, slots=True, eq=False)
class _Scene:
    """The inputs of an attack, checked."""

    honest: Matrix
    byzantine: int
    own: Matrix | None

    @classmethod
    def of(cls, honest: ArrayLike, byzantine: int, own: ArrayLike | None) -> _Scene:
        if byzantine < 0:
            raise ValueError(f"the number of Byzantine rows cannot be negative, got {byzantine}")
        seen = as_matrix(honest)
        if own is None or not byzantine:
            return cls(seen, byzantine, None)
        theirs = as_matrix(own)
        if theirs.shape != (byzantine, seen.shape[1]):
            raise ValueError(f"own must have shape {(byzantine, seen.shape[1])}, got {theirs.shape}")
        return cls(seen, byzantine, theirs)

    def known(self, knows: Knows) -> Rows:
        """The rows that the attackers look at; those that are not finite tell them nothing."""
        if knows == "own" and self.own is None and self.byzantine:
            raise ValueError("knows='own' needs the attackers' own updates: pass own=")
        rows = Rows(self.own if knows == "own" and self.own is not None else self.honest).finite()
        if not len(rows):
            raise ValueError("every row that the attackers see holds NaN or infinity")
        return rows

    def rehearsal(self, knows: Knows) -> Matrix:
        """Rows to try an attack on: the honest ones, where they are known.

        Attackers who know only themselves do know how many rows there will be, and repeat their own to make
        up the number: a rule set up for f bad rows among n may refuse fewer than n.
        """
        rows = self.known(knows).array()
        return np.resize(rows, self.honest.shape) if knows == "own" else rows

    def all_send(self, row: NDArray[Any]) -> Matrix:
        """The same row from every Byzantine client."""
        return np.repeat(row.astype(np.float32)[None], self.byzantine, axis=0)


@attack
def sign_flip(
    honest: ArrayLike,
    byzantine: int,
    *,
    own: ArrayLike | None = None,
    rng: np.random.Generator | None = None,
    scale: float = 1.0,
) -> Matrix:
    """-scale x_i, where x_i is one's own honest update; without `own`, the mean of the honest rows.

    Allen-Zhu et al. 2020 for scale 1; the SHARE paper also runs 10 and 100.
    """
    scene = _Scene.of(honest, byzantine, own)
    if scene.own is None:
        return scene.all_send(-scale * _mean(scene.known("honest")))
    return np.multiply(scene.own, np.float32(-scale))


@attack
def fall_of_empires(
    honest: ArrayLike,
    byzantine: int,
    *,
    own: ArrayLike | None = None,
    rng: np.random.Generator | None = None,
    factor: float = -1.0,
    knows: Knows = "honest",
    against: Callable[[Matrix], Vector] | None = None,
    largest: float = 100.0,
) -> Matrix:
    """Inner-product manipulation: all send factor times the mean of the rows that they know.

    factor (1/h) sum_i x_i, over the h rows known.
    Xie, Koyejo and Gupta 2020, with factor = -epsilon. The SHARE paper ran beta = -1 and -10 times the mean
    of the attackers' own updates: knows="own". With `against`, a function from rows to a vector, the factor
    is the one between 0 and -largest that moves that function furthest from the mean of the rows that they
    know; with knows="own" they repeat those to stand in for the honest ones.
    """
    scene = _Scene.of(honest, byzantine, own)
    known = scene.known(knows)
    mean = _mean(known)
    if against is not None:
        factor = -_strongest(lambda t: -t * mean, scene.rehearsal(knows), mean, byzantine, against, largest)
    return scene.all_send(factor * mean)


@attack
def a_little_is_enough(
    honest: ArrayLike,
    byzantine: int,
    *,
    own: ArrayLike | None = None,
    rng: np.random.Generator | None = None,
    z: float | None = None,
    knows: Knows = "honest",
    against: Callable[[Matrix], Vector] | None = None,
    largest: float = 100.0,
) -> Matrix:
    """ALIE: x = mean - z * standard deviation of every coordinate, from all attackers.

    Baruch, Baruch and Goldberg 2019, Algorithm 3. Unless given, z is their z_max: with n clients, the most
    that leaves s = floor(n/2 + 1) - q honest rows further out on a normal distribution. With `against`, z is
    the one between 0 and `largest` that moves that function furthest from the mean of the rows that they
    know; with knows="own" they repeat those to stand in for the honest ones.
    """
    scene = _Scene.of(honest, byzantine, own)
    known = scene.known(knows)
    mean = _mean(known)
    deviation = _deviation(known, mean)
    if against is not None:
        z = _strongest(
            lambda t: mean - t * deviation, scene.rehearsal(knows), mean, byzantine, against, largest
        )
    elif z is None:
        z = largest_hidden_z(len(scene.honest) + byzantine, byzantine)
    return scene.all_send(mean - z * deviation)


def largest_hidden_z(n: int, q: int) -> float:
    """z_max of Baruch et al. 2019: how many deviations q of n clients can shift and look ordinary."""
    supporters = max(n // 2 + 1 - q, 1)
    honest = n - q
    share = (honest - supporters) / honest
    return max(NormalDist().inv_cdf(share), 0.0) if 0 < share < 1 else 0.0


@attack
def gaussian(
    honest: ArrayLike,
    byzantine: int,
    *,
    own: ArrayLike | None = None,
    rng: np.random.Generator | None = None,
    mean: float = 0.0,
    std: float = 200.0,
) -> Matrix:
    """Independent normal noise in every coordinate, from rng: x = mean + std N(0, 1).

    Blanchard et al. 2017, with std 200.
    """
    scene = _Scene.of(honest, byzantine, own)
    if rng is None:
        raise ValueError("gaussian draws random rows: pass rng=, a numpy Generator")
    if std < 0:
        raise ValueError(f"a standard deviation cannot be negative, got {std}")
    noise = rng.standard_normal((byzantine, scene.honest.shape[1]), dtype=np.float32)
    return noise * np.float32(std) + np.float32(mean)


@attack
def mimic(
    honest: ArrayLike,
    byzantine: int,
    *,
    own: ArrayLike | None = None,
    rng: np.random.Generator | None = None,
    target: int | None = None,
    knows: Knows = "honest",
) -> Matrix:
    """All attackers copy one row: plain to see, within the honest spread, and counted too often.

    x_k with k = argmax_i |<x_i - mean, v>|, v the direction of largest variance.
    Karimireddy, He and Jaggi 2022. Unless a target is given, the row that stands out most along the
    direction of largest variance (their choice, for one round; of equal ones, the first).
    """
    scene = _Scene.of(honest, byzantine, own)
    known = scene.known(knows)
    if target is None:
        gram = centred_gram(known.squared_distances(), np.full(len(known), 1 / len(known)))
        position = int(np.argmax(np.abs(gram @ np.linalg.eigh(gram)[1][:, -1])))
    else:
        position = known.position(target)
    return scene.all_send(known.row(position))


@attack
def min_max(
    honest: ArrayLike,
    byzantine: int,
    *,
    own: ArrayLike | None = None,
    rng: np.random.Generator | None = None,
    direction: Literal["std", "unit", "sign"] = "std",
    knows: Knows = "honest",
) -> Matrix:
    """mean + gamma p, with the largest gamma that keeps it within the largest distance between honest rows.

    max_i |mean + gamma p - x_i| = max_{i, j} |x_i - x_j|.
    Shejwalkar and Houmansadr 2021; p is minus the standard deviation, the unit mean, or its sign. The
    squared distance to a row is a parabola in gamma, so the largest gamma is the least of the roots: exact,
    where a search by halving steps may stop short.
    """
    scene = _Scene.of(honest, byzantine, own)
    known = scene.known(knows)
    mean = _mean(known)
    push = _push(known, mean, direction)
    limit = float(known.squared_distances().max())
    steepness, slopes, starts = _parabolas(known, mean, push)
    if not steepness:
        return scene.all_send(mean)
    reach = np.sqrt(np.maximum(slopes**2 + steepness * np.maximum(limit - starts, 0), 0))
    return scene.all_send(mean + float(((reach - slopes) / steepness).min()) * push)


@attack
def min_sum(
    honest: ArrayLike,
    byzantine: int,
    *,
    own: ArrayLike | None = None,
    rng: np.random.Generator | None = None,
    direction: Literal["std", "unit", "sign"] = "std",
    knows: Knows = "honest",
) -> Matrix:
    """mean + gamma p, with the largest gamma whose sum of squared distances no honest row falls short of.

    sum_i |mean + gamma p - x_i|^2 = max_j sum_i |x_j - x_i|^2.
    Shejwalkar and Houmansadr 2021: the sum to all honest rows is at most the largest such sum of an
    honest row. p as in `min_max`; the sum is one parabola in gamma, solved exactly.
    """
    scene = _Scene.of(honest, byzantine, own)
    known = scene.known(knows)
    mean = _mean(known)
    push = _push(known, mean, direction)
    limit = float(known.squared_distances().sum(axis=1).max())
    steepness, slopes, starts = _parabolas(known, mean, push)
    if not steepness:
        return scene.all_send(mean)
    a, b, room = len(known) * steepness, float(slopes.sum()), max(limit - float(starts.sum()), 0.0)
    return scene.all_send(mean + (math.sqrt(b * b + a * room) - b) / a * push)


@attack
def zero(
    honest: ArrayLike,
    byzantine: int,
    *,
    own: ArrayLike | None = None,
    rng: np.random.Generator | None = None,
) -> Matrix:
    """x = 0: free riders, who send back the model as they got it, and the least that an attacker can do.

    Fraboni, Vidal and Lorenzi 2021, plain free-riding.
    """
    scene = _Scene.of(honest, byzantine, own)
    return np.zeros((byzantine, scene.honest.shape[1]), dtype=np.float32)


@attack
def non_finite(
    honest: ArrayLike,
    byzantine: int,
    *,
    own: ArrayLike | None = None,
    rng: np.random.Generator | None = None,
    value: Literal["nan", "inf", "-inf"] = "nan",
) -> Matrix:
    """x = NaN or infinity in every coordinate: one such row turns a plain mean into nothing.

    The extreme case of Blanchard et al. 2017, Lemma 1: no linear rule withstands one Byzantine row.
    """
    scene = _Scene.of(honest, byzantine, own)
    return np.full((byzantine, scene.honest.shape[1]), float(value), dtype=np.float32)


def label_flip(labels: ArrayLike, classes: int) -> NDArray[Any]:
    """y -> classes - 1 - y, on the attacker's training data (Fang et al. 2020; the SHARE paper's 9 - y)."""
    array = np.asarray(labels)
    if array.dtype.kind not in "iu":
        raise ValueError(f"labels must be integers, not {array.dtype}")
    if array.size and not (array.min() >= 0 and array.max() < classes):
        raise ValueError(f"labels must be 0 to {classes - 1}, got {array.min()} to {array.max()}")
    return (classes - 1 - array.astype(np.int64)).astype(array.dtype)


def _mean(rows: Rows) -> NDArray[np.float64]:
    return rows.combined(np.full(len(rows), 1 / len(rows))).astype(np.float64)


def _deviation(rows: Rows, mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standard deviation of every coordinate, with division by the number of rows."""
    total = np.zeros_like(mean)
    for i in range(len(rows)):
        total += (rows.row(i) - mean) ** 2
    return np.sqrt(total / len(rows))


def _push(rows: Rows, mean: NDArray[np.float64], direction: str) -> NDArray[np.float64]:
    if direction == "std":
        return -_deviation(rows, mean)
    if direction == "sign":
        return -np.sign(mean)
    length = float(np.linalg.norm(mean))
    return -mean / length if length else -mean


def _parabolas(
    rows: Rows, mean: NDArray[np.float64], push: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
    """|mean + gamma push - x_i|^2 = steepness gamma^2 + 2 slope_i gamma + start_i."""
    start, end = mean.astype(np.float32), push.astype(np.float32)
    slopes = float(np.dot(mean, push)) - rows.products(end)
    return float(np.dot(push, push)), slopes, rows.squared_distances_to(start)


def _strongest(
    ray: Callable[[float], NDArray[np.float64]],
    others: Matrix,
    mean: NDArray[np.float64],
    byzantine: int,
    against: Callable[[Matrix], Vector],
    largest: float,
) -> float:
    """The t in (0, largest] for which rows ray(t), beside the others, move `against` furthest from the mean.

    A geometric grid finds the neighbourhood and golden sections refine it, so the answer is never weaker
    than the best of the grid, whatever shape the damage has.
    """
    if not byzantine:
        return largest
    rows = np.concatenate([others, np.empty((byzantine, others.shape[1]), dtype=np.float32)])

    def damage(t: float) -> float:
        rows[len(others) :] = ray(t)
        return float(np.linalg.norm(against(rows) - mean))

    grid = [float(t) for t in np.geomspace(largest / 1000, largest, 16)]
    scored = [(damage(t), t) for t in grid]
    at = max(range(len(grid)), key=lambda i: scored[i][0])
    low, high = grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)]
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(8):
        left, right = high - golden * (high - low), low + golden * (high - low)
        tried = [(damage(left), left), (damage(right), right)]
        scored += tried
        low, high = (low, right) if tried[0][0] > tried[1][0] else (left, high)
    return max(scored)[1]

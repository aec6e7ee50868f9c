"""What Byzantine clients send. All attacks have one call shape:

    attack(honest, byzantine, *, own=None, rng=None, ...) -> the Byzantine rows, a matrix

`honest` holds the rows of the honest clients, and `byzantine` is the number of rows to make. `own` holds the
rows that the attackers would send if they were honest (in a simulation they train like the others). `rng` is
the generator that random attacks need. Attacks that take `knows` see the honest rows by default, like the
omniscient attacker of most papers; with knows="own" they see only the attackers' own updates, as in the SHARE
paper's runs. No attack changes its inputs. `label_flip` attacks training data: it is a function on labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robust.geometry import centred_gram
from robust.kernels import Doubles, Matrix, Vector
from robust.parameters import Registry, call_signature, check_parameters, read_parameters
from robust.rows import Rows, as_array, as_matrix

Knows = Literal["honest", "own"]
Direction = Literal["std", "unit", "sign"]
Target = Callable[[Matrix], Vector]  # the rule that an attack is optimised against

ATTACKS: Registry[Attack] = Registry("attack")


@dataclass(frozen=True, slots=True, eq=False)
class AttackInput:
    """What an attack works on, checked: the arguments that all attacks have in common.

    >>> import numpy as np, robust
    >>> honest = np.ones((3, 2), dtype="float32")
    >>> robust.AttackInput(honest, byzantine=1, own=None, rng=None).all_send(honest[0] * -1)
    array([[-1., -1.]], dtype=float32)
    """

    honest: Matrix
    byzantine: int
    own: Matrix | None
    rng: np.random.Generator | None

    def known(self, knows: Knows) -> Rows:
        """The finite rows that the attackers see."""
        if knows == "own" and self.own is None and self.byzantine:
            raise ValueError("knows='own' needs the attackers' own updates: pass own=")
        rows = Rows(self.own if knows == "own" and self.own is not None else self.honest).finite()
        if not len(rows):
            raise ValueError("all rows that the attackers see contain NaN or infinity")
        return rows

    def rehearsal(self, knows: Knows) -> Matrix:
        """Rows to try an attack on: the honest rows, if the attackers know them.

        Otherwise they repeat their own rows up to the number of honest rows: a rule may refuse fewer than n.
        """
        rows = self.known(knows).array()
        return np.resize(rows, self.honest.shape) if knows == "own" else rows

    def all_send(self, row: NDArray[Any]) -> Matrix:
        """The same row from every Byzantine client."""
        return np.repeat(row.astype(np.float32)[None], self.byzantine, axis=0)


class Attack:
    """A registered attack with typed parameters.

    >>> import robust
    >>> robust.ATTACKS["sign_flip"]
    <attack sign_flip(scale: float = 1.0)>
    """

    def __init__(self, function: Callable[..., Matrix]) -> None:
        self._function = function
        self.name = function.__name__
        self.parameters = read_parameters(function)
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self.__signature__ = call_signature(type(self), function)

    def __repr__(self) -> str:
        return f"<attack {self.name}({', '.join(map(str, self.parameters.values()))})>"

    def __call__(
        self,
        honest: ArrayLike,
        byzantine: int,
        *,
        own: ArrayLike | None = None,
        rng: np.random.Generator | None = None,
        **options: Any,
    ) -> Matrix:
        check_parameters(self.name, self.parameters, options)
        if byzantine < 0:
            raise ValueError(f"the number of Byzantine rows cannot be negative, got {byzantine}")
        seen = as_matrix(honest)
        theirs = None if own is None or not byzantine else as_matrix(own)
        if theirs is not None and theirs.shape != (byzantine, seen.shape[1]):
            raise ValueError(f"own must have shape {(byzantine, seen.shape[1])}, got {theirs.shape}")
        made = as_array(self._function(AttackInput(seen, byzantine, theirs, rng), **options), f"rows of {self.name}")
        if made.shape != (byzantine, seen.shape[1]) or made.dtype.kind not in "fiu":
            wanted = f"a matrix of {byzantine} x {seen.shape[1]} real numbers, one row per Byzantine client"
            raise TypeError(f"attack {self.name} must return {wanted}; got shape {made.shape} of {made.dtype}")
        return made.astype(np.float32, copy=False)


def attack(function: Callable[..., Matrix]) -> Attack:
    """Make a function of an `AttackInput` and keywords an attack, and register it under its name.

    >>> import robust
    >>> @robust.attack
    ... def copy_first(given: robust.AttackInput) -> robust.Matrix:
    ...     return given.all_send(given.honest[0])
    >>> copy_first([[1, 2], [3, 4]], 1)
    array([[1., 2.]], dtype=float32)
    >>> robust.ATTACKS.remove("copy_first")
    """
    made = Attack(function)
    ATTACKS.add(made.name, made)
    return made


@attack
def sign_flip(given: AttackInput, *, scale: float = 1.0) -> Matrix:
    """-scale x_i, where x_i is the attacker's own honest update; without `own`, the mean of the honest rows.

    Allen-Zhu et al. 2020 for scale 1; the SHARE paper also runs 10 and 100.

    >>> import robust
    >>> robust.sign_flip([[1, 2], [3, 4]], 1, scale=10.0)
    array([[-20., -30.]], dtype=float32)
    """
    if given.own is None:
        return given.all_send(-scale * _mean(given.known("honest")))
    return np.multiply(given.own, np.float32(-scale))


@attack
def fall_of_empires(
    given: AttackInput,
    *,
    factor: float = -1.0,
    knows: Knows = "honest",
    against: Target | None = None,
    largest: float = 100.0,
) -> Matrix:
    """Inner-product manipulation: every attacker sends factor times the mean of the rows that they know.

    factor (1/h) sum_i x_i, over the h known rows. Xie, Koyejo and Gupta 2020, with factor = -epsilon. The SHARE paper
    ran beta = -1 and -10 times the mean of the attackers' own updates: knows="own". `against` is a function from rows
    to a vector. If it is given, the factor is the one between 0 and -largest that moves this function furthest from the
    mean of the known rows; with knows="own" the attackers repeat their own rows in place of the honest ones.

    >>> import robust
    >>> robust.fall_of_empires([[1, 2], [3, 4]], 1, factor=-0.5)
    array([[-1. , -1.5]], dtype=float32)
    """
    mean = _mean(given.known(knows))
    if against is not None:
        factor = -_strongest(lambda t: -t * mean, given, knows, mean, against, largest)
    return given.all_send(factor * mean)


@attack
def a_little_is_enough(
    given: AttackInput,
    *,
    z: float | None = None,
    knows: Knows = "honest",
    against: Target | None = None,
    largest: float = 100.0,
) -> Matrix:
    """ALIE: every attacker sends x = mean - z * standard deviation, in every coordinate.

    Baruch, Baruch and Goldberg 2019, Algorithm 3. The default z is their z_max: the largest shift at which
    s = floor(n/2 + 1) - q of n clients' honest rows lie further out, on a normal distribution. If `against`
    is given, z is the one between 0 and `largest` that moves this function furthest from the mean of the
    known rows; with knows="own" the attackers repeat their own rows in place of the honest ones.

    >>> import robust
    >>> robust.a_little_is_enough([[1, 2], [3, 2]], 1, z=2.0)
    array([[0., 2.]], dtype=float32)
    """
    known = given.known(knows)
    mean = _mean(known)
    deviation = _deviation(known, mean)
    if against is not None:
        z = _strongest(lambda t: mean - t * deviation, given, knows, mean, against, largest)
    elif z is None:
        z = largest_hidden_z(len(given.honest) + given.byzantine, given.byzantine)
    return given.all_send(mean - z * deviation)


def largest_hidden_z(n: int, q: int) -> float:
    """z_max of Baruch et al. 2019: the shift, in deviations, at which q of n clients still look ordinary."""
    supporters = max(n // 2 + 1 - q, 1)
    honest = n - q
    share = (honest - supporters) / honest
    return max(NormalDist().inv_cdf(share), 0.0) if share > 0 else 0.0


@attack
def gaussian(given: AttackInput, *, mean: float = 0.0, std: float = 200.0) -> Matrix:
    """Independent normal noise in every coordinate, from rng: x = mean + std N(0, 1).

    Blanchard et al. 2017, with std 200.

    >>> import numpy as np, robust
    >>> robust.gaussian([[1, 2], [3, 4]], 3, rng=np.random.default_rng(0)).shape
    (3, 2)
    """
    if given.rng is None:
        raise ValueError("gaussian draws random rows: pass rng=, a numpy Generator")
    if std < 0:
        raise ValueError(f"a standard deviation cannot be negative, got {std}")
    noise = given.rng.standard_normal((given.byzantine, given.honest.shape[1]), dtype=np.float32)
    return noise * np.float32(std) + np.float32(mean)


@attack
def mimic(given: AttackInput, *, target: int | None = None, knows: Knows = "honest") -> Matrix:
    """All attackers copy one honest row, so that it counts too often.

    x_k with k = argmax_i |<x_i - mean, v>|, v the direction of largest variance.
    Karimireddy, He and Jaggi 2022. The default target is the row that stands out most along the direction of
    largest variance (their choice, for one round); of equal ones, the first.

    >>> import robust
    >>> robust.mimic([[1, 2], [1, 2], [5, 6]], 1)
    array([[5., 6.]], dtype=float32)
    """
    known = given.known(knows)
    if target is None:
        gram = centred_gram(known.squared_distances(), np.full(len(known), 1 / len(known)))
        position = int(np.argmax(np.abs(gram @ np.linalg.eigh(gram)[1][:, -1])))
    else:
        position = known.position(target)
    return given.all_send(known.row(position))


@attack
def min_max(given: AttackInput, *, direction: Direction = "std", knows: Knows = "honest") -> Matrix:
    """mean + gamma p, with the largest gamma that keeps it within the largest distance between honest rows.

    max_i |mean + gamma p - x_i| = max_{i, j} |x_i - x_j|.
    Shejwalkar and Houmansadr 2021; -p is the standard deviation, the unit mean, or the sign of the mean (where the mean
    is 0 but for rounding, it counts as 0). The squared distance to a row is a parabola in gamma, so the largest gamma
    is the least of the roots.

    >>> import robust
    >>> robust.min_max([[0, 0], [2, 0]], 1)
    array([[0., 0.]], dtype=float32)
    """
    known = given.known(knows)
    mean = _mean(known)
    push = _push(known, mean, direction)
    limit = float(known.squared_distances().max())
    steepness, slopes, starts = _parabolas(known, mean, push)
    if not steepness:
        return given.all_send(mean)
    reach = np.sqrt(np.maximum(slopes**2 + steepness * np.maximum(limit - starts, 0), 0))
    return given.all_send(mean + float(((reach - slopes) / steepness).min()) * push)


@attack
def min_sum(given: AttackInput, *, direction: Direction = "std", knows: Knows = "honest") -> Matrix:
    """mean + gamma p, with the largest gamma that keeps the sum of squared distances within the honest range.

    sum_i |mean + gamma p - x_i|^2 = max_j sum_i |x_j - x_i|^2.
    Shejwalkar and Houmansadr 2021: the sum of squared distances to all honest rows is at most the largest
    such sum of an honest row. p as in `min_max`; the sum is one parabola in gamma, solved exactly.

    >>> import robust
    >>> robust.min_sum([[0, 0], [2, 0]], 1)
    array([[0., 0.]], dtype=float32)
    """
    known = given.known(knows)
    mean = _mean(known)
    push = _push(known, mean, direction)
    limit = float(known.squared_distances().sum(axis=1).max())
    steepness, slopes, starts = _parabolas(known, mean, push)
    if not steepness:
        return given.all_send(mean)
    a, b, room = len(known) * steepness, float(slopes.sum()), max(limit - float(starts.sum()), 0.0)
    return given.all_send(mean + (math.sqrt(b * b + a * room) - b) / a * push)


@attack
def zero(given: AttackInput) -> Matrix:
    """x = 0: free riders, who return the model unchanged.

    Fraboni, Vidal and Lorenzi 2021, plain free-riding.

    >>> import robust
    >>> robust.zero([[1, 2], [3, 4]], 1)
    array([[0., 0.]], dtype=float32)
    """
    return np.zeros((given.byzantine, given.honest.shape[1]), dtype=np.float32)


@attack
def non_finite(given: AttackInput, *, value: Literal["nan", "inf", "-inf"] = "nan") -> Matrix:
    """x = NaN or infinity in every coordinate: one such row makes a plain mean useless.

    The extreme case of Blanchard et al. 2017, Lemma 1: no linear rule withstands one Byzantine row.

    >>> import robust
    >>> robust.non_finite([[1, 2], [3, 4]], 1, value="inf")
    array([[inf, inf]], dtype=float32)
    """
    return np.full((given.byzantine, given.honest.shape[1]), float(value), dtype=np.float32)


def label_flip(labels: ArrayLike, classes: int) -> NDArray[Any]:
    """y -> classes - 1 - y, on the attacker's training data (Fang et al. 2020; the SHARE paper's 9 - y).

    >>> import robust
    >>> robust.label_flip([0, 1, 9], classes=10)
    array([9, 8, 0])
    """
    array = as_array(labels, "labels")
    if array.dtype.kind not in "iu":
        raise ValueError(f"labels must be integers, not {array.dtype}")
    if array.size and not (array.min() >= 0 and array.max() < classes):
        raise ValueError(f"labels must be 0 to {classes - 1}, got {array.min()} to {array.max()}")
    return (classes - 1 - array.astype(np.int64)).astype(array.dtype)


def _mean(rows: Rows) -> Doubles:
    return rows.combined(np.full(len(rows), 1 / len(rows))).astype(np.float64)


def _deviation(rows: Rows, mean: Doubles) -> Doubles:
    """Standard deviation of every coordinate, divided by the number of rows."""
    total = np.zeros_like(mean)
    for i in range(len(rows)):
        total += (rows.row(i) - mean) ** 2
    return np.sqrt(total / len(rows))


def _push(rows: Rows, mean: Doubles, direction: str) -> Doubles:
    if direction == "std":
        return -_deviation(rows, mean)
    certain = np.where(np.abs(mean) > _rounding(rows), mean, 0.0)
    if direction == "sign":
        return -np.sign(certain)
    length = float(np.linalg.norm(certain))
    return -certain / length if length else -certain


def _rounding(rows: Rows) -> Doubles:
    """How far from zero rounding to float32 alone can move the mean of every coordinate: its sign then says nothing."""
    total = np.zeros(rows.width)
    for i in range(len(rows)):
        total += np.abs(rows.row(i))
    return total / len(rows) * float(np.finfo(np.float32).eps)


def _parabolas(rows: Rows, mean: Doubles, push: Doubles) -> tuple[float, Doubles, Doubles]:
    """|mean + gamma push - x_i|^2 = steepness gamma^2 + 2 slope_i gamma + start_i."""
    start, end = mean.astype(np.float32), push.astype(np.float32)
    slopes = float(np.dot(mean, push)) - rows.products(end)
    return float(np.dot(push, push)), slopes, rows.squared_distances_to(start)


def _result(found: object, mean: Doubles) -> NDArray[Any]:
    """What the function that an attack is optimised against returned: a vector as long as a row."""
    array = as_array(found, "what against returns")
    if array.shape != mean.shape or array.dtype.kind not in "fiu":
        wanted = f"a vector of {len(mean)} real numbers"
        raise TypeError(f"against must return {wanted}; got shape {array.shape} of {array.dtype}")
    return array


def _strongest(
    ray: Callable[[float], Doubles], given: AttackInput, knows: Knows, mean: Doubles, against: Target, largest: float
) -> float:
    """The t in (0, largest] for which the rows ray(t) move `against` furthest from the mean.

    A geometric grid finds the neighbourhood and golden sections refine it. The answer is at least as strong
    as the best point of the grid.
    """
    if not given.byzantine:
        return largest
    others = given.rehearsal(knows)
    rows = np.concatenate([others, np.empty((given.byzantine, others.shape[1]), dtype=np.float32)])

    def damage(t: float) -> float:
        rows[len(others) :] = ray(t)
        return float(np.linalg.norm(_result(against(rows), mean) - mean))

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

"""The formulas of the SHARE paper beside the exact ones.

n clients in c = n/m clusters of m, R clusterings of the same updates, q clients that are malicious. Names
that begin with `paper_` compute what the paper prints, literally; the others are exact. `docs/exposure.md`,
"The paper's formulas", says where and why they part; the tests check the exact ones by trying every
clustering of small cases and by sampling large ones.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import comb, exp, factorial, lgamma, log1p

from secagg.errors import UsageError
from secagg.exposure.audit import revealed
from secagg.exposure.schedules import Schedule


def clusters(n: int, m: int) -> int:
    """c = n/m. The paper's clusters are equal, so m must divide n."""
    if not 1 <= m <= n or n % m:
        raise UsageError(f"{n} clients do not form equal clusters of {m}")
    return n // m


# can the server decode an update? (section 5.3 and appendix C)


def paper_decodes(n: int, m: int, R: int) -> float:
    """Section 5.3: "the probability that server can decode a model update is O(1 - ((m!)^c / n!)^R)"."""
    log_share = clusters(n, m) * lgamma(m + 1) - lgamma(n + 1)
    return 1.0 - exp(R * log_share)


def paper_groupings_needed(n: int, m: int) -> int:
    """Appendix C: "the server requires at least R >= n/c to identify all the updates"."""
    return -(-n // clusters(n, m))


def groupings_needed(n: int, m: int) -> int | None:
    """The least R for which full rank is possible at all; None for a single cluster.

    All clusterings share the total, so R of them have rank at most R(c - 1) + 1.
    """
    c = clusters(n, m)
    return 1 if m == 1 else None if c == 1 else -(-(n - 1) // (c - 1))


@dataclass(frozen=True, slots=True)
class Decoded:
    """Over sampled rounds: how often anyone, everyone, and a given client was exposed."""

    anyone: float
    everyone: float
    client: float


def decodes(n: int, m: int, R: int, *, rounds: int = 100, seed: bytes = bytes(32)) -> Decoded:
    """How often random clusterings without dropouts expose clients: by exact elimination on samples."""
    clusters(n, m)
    schedule = Schedule(name="random", size=m, groupings=R)
    counts = []
    for round in range(rounds):
        draw = schedule.draw(range(n), seed, round)
        counts.append(len(revealed(group for grouping in draw for group in grouping).exposed))
    return Decoded(
        anyone=sum(count > 0 for count in counts) / rounds,
        everyone=sum(count == n for count in counts) / rounds,
        client=sum(counts) / rounds / n,
    )


# is a benign client always clustered with a malicious one? (appendix E)


def paper_always_spoiled(n: int, m: int, q: int, R: int) -> Fraction:
    """Appendix E: "(1 - C(n-q, n/m - 1) / C(n, n/m - 1))^R"."""
    mates = clusters(n, m) - 1
    return (1 - Fraction(comb(n - q, mates), comb(n, mates))) ** R


def always_spoiled(n: int, m: int, q: int, R: int) -> Fraction:
    """The probability that a given benign client has a malicious one among its m - 1 mates R times."""
    clusters(n, m)
    if not 0 <= q < n:
        raise UsageError(f"{q} malicious clients among {n} leave no benign one")
    return (1 - Fraction(comb(n - 1 - q, m - 1), comb(n - 1, m - 1))) ** R


# are all but one of a cluster colluding? (appendix C)


def paper_surrounded(n: int, m: int, q: int) -> float:
    """Appendix C: "upper bounded by O(m(n-m)! / (q-1-m)!)". Not defined for q <= m."""
    if q - 1 - m < 0:
        raise UsageError(f"(q-1-m)! does not exist for q={q}, m={m}")
    return exp(log1p(m - 1) + lgamma(n - m + 1) - lgamma(q - m))


def surrounded(n: int, m: int, q: int) -> Fraction:
    """The probability that all m - 1 mates of a given benign client collude, in one clustering."""
    clusters(n, m)
    return Fraction(comb(q, m - 1), comb(n - 1, m - 1))


def someone_surrounded(n: int, m: int, q: int) -> Fraction:
    """The probability that some cluster is one benign client among m - 1 colluders, in one clustering.

    Inclusion and exclusion over the clusters: j given ones are all such with probability
    q!/((m-1)!^j (q-j(m-1))!) · (n-q)!/(n-q-j)! · (n-jm)! · m!^j / n!.
    """
    c, total = clusters(n, m), Fraction(0)
    if not 0 <= q <= n:
        raise UsageError(f"{q} colluders among {n} clients make no sense")
    for j in range(1, c + 1):
        if j * (m - 1) > q or j > n - q:
            break
        colluding = Fraction(factorial(q), factorial(m - 1) ** j * factorial(q - j * (m - 1)))
        benign = Fraction(factorial(n - q), factorial(n - q - j))
        rest = Fraction(factorial(n - j * m) * factorial(m) ** j, factorial(n))
        total -= (-1) ** j * comb(c, j) * colluding * benign * rest
    return total


# what does it cost? (appendix C, and the remark in section 4)


@dataclass(frozen=True, slots=True)
class Cost:
    """Keys that are exchanged or relayed, and words of masked vectors that are sent, in one round."""

    keys: Fraction
    words: int


def paper_remark_client_keys(n: int, m: int, R: int) -> Fraction:
    """Section 4: "communication cost for each client changes from O(n) to O(Rn/m)"."""
    return Fraction(R * n, m)


def paper_client_cost(m: int, R: int, d: int) -> Cost:
    """Appendix C: client O(Rm + Rd)."""
    return Cost(Fraction(R * m), R * d)


def paper_server_cost(n: int, m: int, R: int, d: int) -> Cost:
    """Appendix C: server O(Rnm + Rdn)."""
    return Cost(Fraction(R * n * m), R * d * n)


def client_cost(n: int, m: int, R: int, d: int) -> Cost:
    """Keys a client needs and words it sends, if it agrees on one key with each *distinct* mate.

    A mate is met in one clustering with probability (m-1)/(n-1), so the expected number of distinct ones is (n-1)(1 -
    (1 - (m-1)/(n-1))^R): R(m-1) for few clusterings, never more than n-1. (Roster-wide secret sharing, which clusters
    of three need against two colluders, adds n-1 shares; the paper shares within clusters.)
    """
    clusters(n, m)
    return Cost((n - 1) * (1 - (1 - Fraction(m - 1, n - 1)) ** R), R * d)


def server_cost(n: int, m: int, R: int, d: int) -> Cost:
    """What the server relays and receives for all clients."""
    one = client_cost(n, m, R, d)
    return Cost(n * one.keys, n * one.words)


# how far is the mean of R resamples from the mean of all benign updates? (theorems 1 and 2 and their proofs)


def paper_resampling_variance(benign: int, taken: int, R: int) -> Fraction:
    """Theorem 1: "sigma^2/(bm) (n-q-bm) / (R(n-q) - 1)", for sigma = 1, n-q = benign and bm = taken."""
    return Fraction(benign - taken, taken * (R * benign - 1))


def resampling_variance(benign: int, taken: int, R: int) -> Fraction:
    """The variance of the mean of R independent draws of `taken` among `benign` values, each without replacement.

    The proof takes the draws for a single one of R * taken among R * benign values. But in one clustering no update
    occurs twice, and clusterings are independent of each other: variances of means are added and divided by R^2.
    """
    return Fraction(benign - taken, taken * (benign - 1) * R)


# how fast does it converge? (theorems 1 and 2; `O` is left out, so every value is up to a constant)


def paper_theorem_1(
    *, L: float, sigma: float, F: float, G: float, B: float, V2: float, T: int, K: int, n: int, eta: float, rest: float
) -> float:
    """The bound of theorem 1 on |grad F(x^T)|^2; `rest` is its last term, the variance of resampling."""
    M = (sigma**2 * (1 + n / eta**2)) ** 0.5
    steps = L * M * F**0.5 / (T * K * n) ** 0.5
    drift = F ** (2 / 3) * (L * G**2) ** (1 / 3) / (T + 1) ** (2 / 3)
    return steps + drift + B**2 * L * F / T + 2 * L**2 * V2 + rest


def paper_theorem_2(*, D: float, alpha: float, eta: float, T: int, floor: float) -> float:
    """The bound of theorem 2 on the mean of |grad F|^2; `floor` is what is inside its O."""
    return D / (alpha * eta**0.5 * T) + eta**0.5 / alpha * floor


def paper_least_rho(*, alpha: float, eta: float, K: int, eta_l: float, B: float) -> float:
    """Theorem 2 asks for rho >= alpha sqrt(eta) / (6 K^2 eta_l^2 B^2) + eta."""
    return alpha * eta**0.5 / (6 * K**2 * eta_l**2 * B**2) + eta

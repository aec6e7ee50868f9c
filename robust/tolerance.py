"""How many bad clients a rule withstands: in the worst case, and by chance under random clustering.

A rule sees c = floor(n / m) cluster means, not n clients, and one bad client spoils its whole cluster. In the
worst case every bad client is in a cluster of its own. So a rule that withstands f bad rows among c also
withstands f bad clients, and no more (`bad_clients_worst_case`). Bad clients do not choose their clusters, so
usually some share one; `clean_clusters` is the exact distribution, as fractions. docs/robust.md derives it
and shows where Lemma 2 and Appendix E of the SHARE paper (Velicheti, Xia and Koyejo 2021) count differently.
"""

from fractions import Fraction
from functools import lru_cache
from math import comb

from robust.aggregators import rows_in_fraction
from robust.rule import AGGREGATORS

__all__ = [
    "bad_clients_worst_case", "clean_clusters", "clusters", "probability_all", "probability_any",
    "probability_rule_holds", "signal_lost", "withstands",
]  # fmt: skip


def withstands(rule: str, n: int, *, f: int | None = None, fraction: float | None = None) -> int:
    """How many bad rows among n a rule withstands: the most that it can, or the number that it is set up for.

    A rule that takes f withstands exactly f bad rows. Trimmed mean may take a fraction per side instead.

    >>> from robust import tolerance
    >>> tolerance.withstands("krum", 20), tolerance.withstands("trimmed_mean", 20, fraction=0.4)
    (8, 8)
    """
    found = AGGREGATORS[rule]
    if n < 1:
        raise ValueError(f"at least one row is needed, got n={n}")
    most = max(found.withstands(n), 0)
    if fraction is not None:
        if "fraction" not in found.parameters or f is not None:
            raise ValueError(f"{rule} takes no fraction, or not beside f: got f={f}, fraction={fraction}")
        f = rows_in_fraction(n, fraction)
    if f is None:
        return most
    if "f" not in found.parameters:
        raise ValueError(f"{rule} does not take f; it withstands {most} of {n} rows")
    if not 0 <= f <= most:
        raise ValueError(f"{rule} needs {found.needs}: got n={n}, f={f}")
    return f


def bad_clients_worst_case(
    rule: str, n_clients: int, cluster_size: int, *, f: int | None = None, fraction: float | None = None
) -> int:
    """How many bad clients a rule withstands, however they fall into clusters: one per bad row.

    >>> from robust import tolerance
    >>> tolerance.bad_clients_worst_case("median", n_clients=60, cluster_size=3)
    9
    """
    return withstands(rule, clusters(n_clients, cluster_size), f=f, fraction=fraction)


def clusters(n_clients: int, cluster_size: int) -> int:
    """Number of whole clusters; the remaining clients, chosen at random, do not take part in the round.

    >>> from robust import tolerance
    >>> tolerance.clusters(n_clients=20, cluster_size=3)
    6
    """
    if not 1 <= cluster_size <= n_clients:
        raise ValueError(
            f"{n_clients} clients cannot form clusters of {cluster_size}: the size must be 1 to {n_clients}"
        )
    return n_clients // cluster_size


@lru_cache(maxsize=1024)
def clean_clusters(n_clients: int, bad: int, cluster_size: int) -> tuple[Fraction, ...]:
    """P(exactly k clusters have no bad client), for k = 0..c, when clusters are drawn uniformly.

    By inclusion and exclusion: j given clusters are all clean with probability C(n - jm, q) / C(n, q).

    >>> from robust import tolerance
    >>> [str(p) for p in tolerance.clean_clusters(n_clients=6, bad=2, cluster_size=2)]
    ['0', '4/5', '1/5', '0']
    """
    c = clusters(n_clients, cluster_size)
    if not 0 <= bad <= n_clients:
        raise ValueError(f"the number of bad clients must be 0 to {n_clients}, got {bad}")
    sets = [comb(c, j) * comb(n_clients - j * cluster_size, bad) for j in range(c + 1)]
    total = comb(n_clients, bad)
    return tuple(
        Fraction(sum((-1) ** (j - k) * comb(j, k) * sets[j] for j in range(k, c + 1)), total) for k in range(c + 1)
    )


def probability_rule_holds(
    rule: str, n_clients: int, bad: int, cluster_size: int, *, f: int | None = None, fraction: float | None = None
) -> Fraction:
    """P(one random clustering spoils no more clusters than the rule withstands).

    >>> from robust import tolerance
    >>> round(float(tolerance.probability_rule_holds("median", 60, bad=12, cluster_size=3)), 3)
    0.341
    """
    distribution = clean_clusters(n_clients, bad, cluster_size)
    c = len(distribution) - 1
    fewest = c - withstands(rule, c, f=f, fraction=fraction)
    return sum(distribution[fewest:], Fraction(0))


def probability_all(once: Fraction, rounds: int) -> Fraction:
    """P(it holds in every one of R independent reclusterings): required if their results are averaged.

    >>> from robust import tolerance
    >>> tolerance.probability_all(tolerance.signal_lost(6, 2, 2), 2)
    Fraction(4, 25)
    """
    return once ** _positive(rounds)


def probability_any(once: Fraction, rounds: int) -> Fraction:
    """P(it holds in at least one of R independent reclusterings).

    >>> from robust import tolerance
    >>> tolerance.probability_any(tolerance.signal_lost(6, 2, 2), 2)
    Fraction(16, 25)
    """
    return 1 - (1 - once) ** _positive(rounds)


def signal_lost(n_clients: int, bad: int, cluster_size: int, rounds: int = 1) -> Fraction:
    """P(an honest client shares its cluster with a bad one in every one of R reclusterings).

    Given that the client is in a cluster: its m - 1 companions are drawn from the n - 1 others, q of whom are
    bad, so all are honest with probability C(n - 1 - q, m - 1) / C(n - 1, m - 1).

    >>> from robust import tolerance
    >>> tolerance.signal_lost(n_clients=6, bad=2, cluster_size=2)
    Fraction(2, 5)
    """
    clusters(n_clients, cluster_size)
    if not 0 <= bad < n_clients:
        raise ValueError(f"the number of bad clients must be 0 to {n_clients - 1}, so that one is honest; got {bad}")
    companions = comb(n_clients - 1, cluster_size - 1)
    alone = Fraction(comb(n_clients - 1 - bad, cluster_size - 1), companions)
    return (1 - alone) ** _positive(rounds)


def _positive(rounds: int) -> int:
    if rounds < 1:
        raise ValueError(f"at least one reclustering is needed, got {rounds}")
    return rounds

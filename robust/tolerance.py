"""How many bad clients are withstood: in the worst case, and with what probability under random clustering.

A rule sees c = floor(n / m) cluster means, not n clients, and one bad client is enough to spoil a cluster.
In the worst case every bad client spoils a cluster of its own, so a rule that withstands f bad rows among c
withstands exactly f bad clients: `bad_clients_worst_case`. The bad clients do not choose their clusters, so
usually some share one; the exact distribution is below, in whole numbers and fractions. docs/robust.md
derives it, and says where Lemma 2 and Appendix E of the SHARE paper (Velicheti, Xia and Koyejo 2021) count
differently; `paper_*` compute what the paper states, for comparison.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import comb

from robust.aggregators import rows_in_fraction
from robust.rule import AGGREGATORS


def withstands(rule: str, n: int, *, f: int | None = None, fraction: float | None = None) -> int:
    """How many bad rows among n a rule withstands: as many as it can, or as it was set up for.

    A rule that takes f withstands f bad rows if it is given f, and no more; trimmed mean may have been
    given a fraction per side instead.
    """
    found = AGGREGATORS[rule]
    if n < 1:
        raise ValueError(f"at least one row is needed, got n={n}")
    most = max(found.withstands(n), 0)
    if fraction is not None:
        if "fraction" not in found.parameters or f is not None:
            raise ValueError(f"{rule} was not set up by a fraction: got f={f}, fraction={fraction}")
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
    """How many bad clients a rule withstands however they fall into clusters: one per bad row."""
    return withstands(rule, clusters(n_clients, cluster_size), f=f, fraction=fraction)


def clusters(n_clients: int, cluster_size: int) -> int:
    """Number of whole clusters; clients that do not fill one sit the round out, drawn by lot."""
    if not 1 <= cluster_size <= n_clients:
        raise ValueError(f"clusters of {cluster_size} among {n_clients} clients: there are none")
    return n_clients // cluster_size


@lru_cache(maxsize=1024)
def clean_clusters(n_clients: int, bad: int, cluster_size: int) -> tuple[Fraction, ...]:
    """P(exactly k clusters have no bad client), for k = 0..c, when clusters are drawn uniformly.

    By inclusion and exclusion: j given clusters are all clean with probability C(n - jm, q) / C(n, q).
    """
    c = clusters(n_clients, cluster_size)
    if not 0 <= bad <= n_clients:
        raise ValueError(f"{bad} bad clients among {n_clients}")
    sets = [comb(c, j) * comb(n_clients - j * cluster_size, bad) for j in range(c + 1)]
    total = comb(n_clients, bad)
    return tuple(
        Fraction(sum((-1) ** (j - k) * comb(j, k) * sets[j] for j in range(k, c + 1)), total)
        for k in range(c + 1)
    )


def probability_rule_holds(
    rule: str,
    n_clients: int,
    bad: int,
    cluster_size: int,
    *,
    f: int | None = None,
    fraction: float | None = None,
) -> Fraction:
    """P(one random clustering spoils no more clusters than the rule withstands)."""
    distribution = clean_clusters(n_clients, bad, cluster_size)
    c = len(distribution) - 1
    fewest = c - withstands(rule, c, f=f, fraction=fraction)
    return sum(distribution[fewest:], Fraction(0))


def probability_all(once: Fraction, rounds: int) -> Fraction:
    """P(it holds in every one of R independent reclusterings): what averaging their results asks for."""
    return once ** _positive(rounds)


def probability_any(once: Fraction, rounds: int) -> Fraction:
    """P(it holds in at least one of R independent reclusterings)."""
    return 1 - (1 - once) ** _positive(rounds)


def signal_lost(n_clients: int, bad: int, cluster_size: int, rounds: int = 1) -> Fraction:
    """P(an honest client shares its cluster with a bad one in every one of R reclusterings).

    Given that it is in a cluster at all: its m - 1 companions are drawn from the n - 1 others, of whom q are
    bad, so they are all honest with probability C(n - 1 - q, m - 1) / C(n - 1, m - 1).
    """
    clusters(n_clients, cluster_size)
    if not 0 <= bad < n_clients:
        raise ValueError(f"{bad} bad clients among {n_clients} leave no honest one")
    companions = comb(n_clients - 1, cluster_size - 1)
    alone = Fraction(comb(n_clients - 1 - bad, cluster_size - 1), companions)
    return (1 - alone) ** _positive(rounds)


def paper_bad_clients(q_0: int, cluster_size: int) -> Fraction:
    """Lemma 2 as stated: q = q_0 / m, where q_0 is "the tolerance limit of the robust aggregation oracle"."""
    return Fraction(q_0, cluster_size)


def paper_signal_lost(n_clients: int, bad: int, cluster_size: int, rounds: int = 1) -> Fraction:
    """Appendix E as stated: (1 - C(n - q, n/m - 1) / C(n, n/m - 1))^R."""
    drawn = clusters(n_clients, cluster_size) - 1
    return (1 - Fraction(comb(n_clients - bad, drawn), comb(n_clients, drawn))) ** _positive(rounds)


def _positive(rounds: int) -> int:
    if rounds < 1:
        raise ValueError(f"at least one reclustering is needed, got {rounds}")
    return rounds

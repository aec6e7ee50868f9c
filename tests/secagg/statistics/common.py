"""Terms with declared statistics, and the report of some sites without cryptography."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from secagg.agreement import Terms
from secagg.protocol.result import GroupSum
from secagg.simulation import make_agreement
from secagg.statistics import Report, Statistic, Statistics, evaluate, site_update


@cache
def plain_terms(sites: int) -> Terms:
    return make_agreement(members=sites, size=sites, length=1, bound=1)[0].terms


def terms_for(*asked: Statistic, sites: int = 3, most_rows: int = 1000, min_sites: int = 0, **more: Any) -> Terms:
    statistics = Statistics(most_rows=most_rows, asked=asked, min_sites=min_sites)
    return replace(plain_terms(sites), segments=(), statistics=statistics, **more)


def report_of(terms: Terms, data: Sequence[Any], **options: Any) -> Report:
    """What the hub computes from the sum of the encoded updates of all sites."""
    total = sum(terms.encoding.encode(site_update(terms, one, **options).update)[0] for one in data)
    return evaluate(terms, [GroupSum(total, tuple(range(len(data))))])

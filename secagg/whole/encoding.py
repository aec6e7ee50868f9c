"""Updates as numbers modulo 2^32 and back, by the terms of an agreement."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from secagg.agreement.terms import Terms
from secagg.crypto.segments import Losses
from secagg.types import ClientId, Group, Ring32


def encode(terms: Terms, client: ClientId, update: Any) -> tuple[Ring32, Losses]:
    """The code of a member's weighted update, before noise, and what it lost."""
    return terms.encoding.encode(update, weight=terms.relative_weight(client))


def mean(
    terms: Terms,
    total: Ring32,
    members: Group,
    divisor: float | None = None,
    out: npt.NDArray[np.floating[Any]] | None = None,
) -> Any:
    """Floats divided by the sum of the members' relative weights (or `divisor`), integers by the number of members."""
    if divisor is None:
        divisor = sum(terms.relative_weight(client) for client in members)
    return terms.encoding.decode(total, divisor=divisor, count=len(members), out=out)

"""Who is left out of a round because of what earlier rounds showed (groups = "survivors").

Who was caught is left out permanently. In a dispute one of two clients cheats; both are suspended for a while that
doubles each time (`secagg.protocol.Suspects`). With whole groups nobody is left out: whoever cheats loses its own
clusters, and there are no disputes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fl.config.schema import Experiment
from secagg.agreement import SURVIVORS, Agreement
from secagg.protocol import Suspects


class LeftOut:
    """Learns from the records of rounds, so that a training that is resumed goes on as it would have."""

    def __init__(self, experiment: Experiment, agreement: Agreement | None) -> None:
        self._known: Suspects | None = None
        if agreement is not None and agreement.terms.groups == SURVIVORS:
            self._known = Suspects(most=most_suspects(experiment, agreement))

    def remember(self, record: Mapping[str, Any]) -> None:
        """Take who was caught and who was in a dispute in a round."""
        if self._known is not None:
            self._known.blamed.update({int(client): why for client, why in record["blamed"].items()})
            self._known.suspend(record["round"] - 1, [(a, b) for a, b in record.get("disputes", ())])

    def in_round(self, round: int) -> dict[int, str]:
        """The clients that are not asked in a round, and why."""
        if self._known is None:
            return {}
        blamed, until = self._known.blamed, self._known.until
        return {
            client: f"it was caught: {blamed[client]}"
            if client in blamed
            else f"it was in a dispute: suspended up to round {until[client] + 1}"
            for client in self._known.excluded(round)
        }


def most_suspects(experiment: Experiment, agreement: Agreement) -> int:
    """How many may be suspended at a time, so that rounds still finish: n - t minus the expected dropouts of a cell."""
    terms = agreement.terms
    return max(0, min(n - terms.threshold_of(n) - math.ceil(experiment.dropout.rate * n) for n in terms.cells))

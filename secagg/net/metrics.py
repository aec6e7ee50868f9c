"""Counters of a hub in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_HELP: Final = {
    "secagg_rounds_total": ("counter", "Rounds that ended, by outcome (opened, lost)."),
    "secagg_bytes_total": ("counter", "Bytes of bodies, by direction (in: from sites, out: to sites)."),
    "secagg_stage_seconds_total": ("counter", "Seconds spent in each stage."),
    "secagg_stages_total": ("counter", "Stages that ended."),
    "secagg_dropouts_total": ("counter", "Members that dropped out of a round, by reason."),
    "secagg_refused_total": ("counter", "Connections and requests that were turned away, by reason."),
    "secagg_members": ("gauge", "Members of the agreement."),
    "secagg_present": ("gauge", "Members that are connected."),
    "secagg_round": ("gauge", "The round that is in progress or was last."),
}
MOST_REASONS: Final = 50  # different label values of one metric; what a client's message says is not a label


class Metrics:
    """Numbers by name and label. One instance per hub.

    >>> metrics = Metrics()
    >>> metrics.add("secagg_rounds_total", outcome="opened")
    >>> metrics.text().splitlines()[2]
    'secagg_rounds_total{outcome="opened"} 1'
    """

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], float] = {}

    def add(self, name: str, value: float = 1, **labels: str) -> None:
        key = self._key(name, labels)
        self._values[key] = self._values.get(key, 0) + value

    def set(self, name: str, value: float) -> None:
        self._values[self._key(name, {})] = value

    def get(self, name: str, **labels: str) -> float:
        return self._values.get((name, _labels(labels)), 0)

    def total(self, name: str) -> float:
        """The sum over all labels."""
        return sum(value for (known, _), value in self._values.items() if known == name)

    def _key(self, name: str, labels: dict[str, str]) -> tuple[str, str]:
        assert name in _HELP, name
        key = (name, _labels(labels))
        if key not in self._values and sum(known == name for known, _ in self._values) >= MOST_REASONS:
            key = (name, _labels(dict.fromkeys(labels, "other")))
        return key

    def text(self) -> str:
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        for name, (kind, about) in _HELP.items():
            rows = sorted((labels, value) for (known, labels), value in self._values.items() if known == name)
            if rows:
                yield from (f"# HELP {name} {about}", f"# TYPE {name} {kind}")
                yield from (f"{name}{labels} {value:.10g}" for labels, value in rows)


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(labels.items())) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

"""What `secagg join` computes its vector from: a CSV file for statistics, or a vector in a .npy file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from secagg.agreement.folder import MemberFolder
from secagg.agreement.proposal import Proposal
from secagg.errors import UsageError

if TYPE_CHECKING:
    from secagg.statistics import CsvFormat


def check_file(proposal: Proposal, folder: Path, vector: Callable[[int, bytes], Any]) -> Callable[[], None]:
    """A function that raises unless the file gives a vector that the agreement accepts, such as one without NaN."""
    terms = proposal.terms
    weight = terms.relative_weight(MemberFolder(folder).member_of(terms))

    def ready() -> None:
        terms.encoding.encode(vector(terms.first_round, b""), weight=weight)

    return ready


def file_source(
    proposal: Proposal, path: Path, form: CsvFormat | None = None, warn: Callable[[str], None] = print
) -> Callable[[int, bytes], Any]:
    """Reads the vector anew for each round. What a hub sends with a round has no meaning here and is refused."""
    terms = proposal.terms

    said: set[str] = set()

    def vector(_round: int, data: bytes) -> Any:
        if data:  # audit: command-refuses-data
            raise UsageError("the hub sent data with the round, which this command does not know; write a program")
        if terms.statistics is None:
            return _vector(path, terms)
        from secagg.statistics import site_update

        made = site_update(terms, path, csv=form)
        for warning in made.warnings:
            if warning not in said:
                warn(f"{path}: {warning}")
        said.update(made.warnings)
        return made.update

    return vector


def _vector(path: Path, terms: Any) -> Any:
    if path.suffix != ".npy":
        raise UsageError(f"{path}: expected a vector in a .npy file, as numpy.save writes it")
    try:
        values = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as bad:
        raise UsageError(f"{path}: expected an array as numpy.save writes it: {bad}") from None
    if values.size != terms.length or values.dtype.kind not in "fiub":
        raise UsageError(f"{path}: expected {terms.length} numbers, got {values.size} of type {values.dtype}")
    return _named(values.reshape(-1), terms.segments)


def _named(values: Any, segments: Any) -> Any:
    """One vector as it is, or cut into the agreement's named segments."""
    if len(segments) == 1 and not segments[0].name:
        return values.reshape(segments[0].shape)
    found: dict[str, Any] = {}
    start = 0
    for segment in segments:
        size = int(np.prod(segment.shape))
        found[segment.name] = values[start : start + size].reshape(segment.shape)
        start += size
    return found

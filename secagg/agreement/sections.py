"""Optional sections of the terms, each with a number and a version of its own.

A section stands in a field of `Terms`, which is None if it is absent. In the bytes of the terms, sections follow all
other fields, in the order of their numbers; one that is absent encodes to nothing, and one that is unknown is refused.
In the file a section is a table of its name.
"""

from __future__ import annotations

from typing import Any, Final

from secagg import codec
from secagg.agreement.noise import NOISE
from secagg.agreement.section import Section
from secagg.agreement.statistics.section import STATISTICS
from secagg.agreement.transport import TRANSPORT
from secagg.codec import U8, Blob, Buffer, Reader
from secagg.errors import WireError

MOST_BYTES: Final = 2**26  # of one section
_BODY: Final = Blob(MOST_BYTES)


SECTIONS: Final[tuple[Section, ...]] = (STATISTICS, TRANSPORT, NOISE)  # in the order of their numbers


def to_bytes(terms: Any) -> bytes:
    """The sections that these terms have."""
    parts: list[Buffer] = []
    for section in SECTIONS:
        if (value := getattr(terms, section.name)) is not None:
            U8.put(parts, section.number)
            U8.put(parts, section.version)
            _BODY.put(parts, codec.to_bytes(section.layout, section.flat(value)))
    return b"".join(parts)


def read(reader: Reader) -> dict[str, Any]:
    """The fields of `Terms` for the sections in the rest of the bytes; WireError for anything else."""
    known = {section.number: section for section in SECTIONS}
    values: dict[str, Any] = {}
    last = -1
    while reader.left:
        number, version = reader.take(2)
        section = known.get(number)
        if section is None:  # audit: unknown-section
            raise WireError(f"unknown section {number} in the terms; this version knows {sorted(known) or 'none'}")
        if number <= last:  # audit: sections-ascend
            raise WireError(f"section {number} of the terms stands after section {last}")
        if version != section.version:  # audit: section-version
            raise WireError(f"section {section.name} has version {version}; this is version {section.version}")
        values[section.name] = section.build(codec.from_bytes(section.layout, _BODY.get(reader)))
        last = number
    return values

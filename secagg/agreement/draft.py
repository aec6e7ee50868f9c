"""A draft: the file of an agreement before its members have identities. It can be read and judged, but not signed."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final

from secagg.agreement import file
from secagg.agreement.table import Table
from secagg.agreement.terms import Terms
from secagg.agreement.transport import check_hubs

_STAND_IN: Final = b"a member of a draft"


def read_draft(text: str) -> Terms:
    """The terms in a file whose members may have only names. Each of these then has a stand-in for its identity.

    >>> terms = read_draft('''
    ... version = 2
    ... name = "study"
    ... rounds = { last = 0 }
    ... groups = { size = 3 }
    ... vector = { length = 2, clip = 1.0 }
    ... members = [{ name = "north" }, { name = "south" }, { name = "west" }]
    ... ''')
    >>> [member.name for member in terms.members]
    ['north', 'south', 'west']
    """
    return draft_terms(file.parse(text))


def draft_terms(document: dict[str, Any]) -> Terms:
    """The terms in a document that `file.parse` has read."""
    if not is_draft(document):
        return file.read_document(document).terms
    rows = [{**row, "identity": sha256(_STAND_IN + bytes([i >> 8, i & 255])).hexdigest()}
            for i, row in enumerate(document["members"])]  # fmt: skip
    whole = {**document, "members": rows}
    transport = whole.pop("transport", None)
    if transport is not None:
        check_hubs(Table(transport, "transport", ("hubs",)).raw("hubs"))  # certificates are collected later
    return file.read_document(whole).terms


def is_draft(document: dict[str, Any]) -> bool:
    """Whether no member has an identity yet."""
    rows = document.get("members")
    if not isinstance(rows, list) or not rows:
        return False
    return all(isinstance(row, dict) and "identity" not in row for row in rows)

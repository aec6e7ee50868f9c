"""The statement about evidence in a file: it is kept beside the evidence, under the same name and `.intoto.json`."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

from secagg.arguments import instance, path_of
from secagg.crypto.keys import Identity
from secagg.evidence.log import sync_folder
from secagg.evidence.statement import envelope, is_stated

SUFFIX = ".intoto.json"


def keep_statement(path: Path, text: str) -> None:
    """Put a text in the place of a file, and wait until it is on disk."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with draft.open("w", encoding="utf-8") as file:  # audit: statement-whole-or-absent
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)


def sign_evidence(path: Path | str, identity: Identity, *, keep: Callable[[Path, str], None] | None = None) -> Path:
    """Write the signed statement about the evidence in a file, beside it; UsageError if the evidence does not hold.

    A statement that this identity has signed about these bytes stays as it is, and the evidence is not verified again.
    Whoever reads the statement sees the old one or the new one, also after a kill. `keep` can write it in
    place of this function: verification may have taken long, and the statement may no longer be wanted.

    >>> from tempfile import mkdtemp
    >>> from secagg import Identity
    >>> from secagg.evidence import check_envelope
    >>> from secagg.simulation import WholeRun, make_agreement
    >>> run, hub = WholeRun(*make_agreement(members=6, size=3, length=2, bound=9)), Identity.generate()
    >>> result = run.round(0, {v: [v, 1] for v in range(6)})
    >>> place = Path(mkdtemp()) / "evidence"
    >>> size = place.write_bytes(run.evidence())
    >>> statement = sign_evidence(place, hub)
    >>> statement.name, check_envelope(statement.read_text(), run.evidence(), hub.public)
    ('evidence.intoto.json', [])
    """
    place = path_of("path", path)
    instance("identity", identity, Identity)
    data, statement = place.read_bytes(), place.with_name(place.name + SUFFIX)
    if not (statement.exists() and is_stated(_text(statement), data, identity.public)):
        (keep or keep_statement)(statement, envelope(data, identity, name=place.name) + "\n")
    return statement


def _text(path: Path) -> str:
    return path.read_bytes().decode(errors="replace")

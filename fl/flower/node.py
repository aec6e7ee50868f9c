"""A node's own folder: its keys, the training that it agreed to, and the records of what it has done.

    NODE/identity.key    the Ed25519 key that the roster lists; made once, never sent
    NODE/state.key       encrypts what is kept between two messages
    NODE/training.toml   the pinned enrolment
    NODE/journal/        exclusive records: what was done is never done again

A key that others may read is refused, because it may have been read. Losing the journal, or putting an older
copy of the disk back, lets an update be opened twice: keep it as long as the training may go on.
"""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fl.errors import ConfigError
from fl.flower.enrolment import TRAINING, Enrolment, read_enrolment
from secagg.crypto.keys import Identity
from secagg.protocol.journal import FileJournal

IDENTITY: Final = "identity.key"
STATE_KEY: Final = "state.key"
NONCE_BYTES: Final = 12


class Refused(Exception):  # noqa: N818 - it reads as the sentence it is
    """This node does not do what it was asked; the words go to the server."""


class KeyFileError(ConfigError):
    """A key file is missing, damaged, or open to others."""


@dataclass(frozen=True, slots=True)
class Node:
    """One member at work, with everything that it trusts."""

    client: int
    name: str
    identity: Identity
    enrolment: Enrolment
    journal: FileJournal
    _state_key: bytes = field(repr=False)

    @classmethod
    def open(cls, folder: Path | str) -> Node:
        """The node of this folder; ConfigError if it is not ready to take part."""
        place = Path(folder)
        identity = Identity.from_private(_read_key(place / IDENTITY))
        enrolment = read_enrolment(place / TRAINING)
        client = enrolment.client_of(identity.public)
        if client is None:
            raise ConfigError(f"{place / TRAINING} does not list the key of this node")
        journal = FileJournal(place / "journal" / enrolment.training_id.hex()[:32])
        name = enrolment.members[client].name
        return cls(client, name, identity, enrolment, journal, _read_key(place / STATE_KEY))

    def seal(self, round: int, content: bytes) -> bytes:
        """What is kept between messages, readable by this node alone and for this round alone."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + AESGCM(self._state_key).encrypt(nonce, content, self._address(round))

    def unseal(self, round: int, sealed: bytes) -> bytes | None:
        """The content, or None for what this node did not seal for this round."""
        try:
            nonce, rest = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:]
            return AESGCM(self._state_key).decrypt(nonce, rest, self._address(round))
        except (InvalidTag, ValueError):
            return None

    def _address(self, round: int) -> bytes:
        return b"fl/flower/state/v1:" + self.enrolment.training_id + round.to_bytes(8, "little")


def make_node(folder: Path | str) -> bytes:
    """Make the keys of a new node and return its public key. Keys that are there are kept."""
    place = Path(folder)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in (IDENTITY, STATE_KEY):
        if not (place / name).exists():
            handle = os.open(place / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w") as file:
                file.write(os.urandom(32).hex() + "\n")
                file.flush()
                os.fsync(file.fileno())
    return Identity.from_private(_read_key(place / IDENTITY)).public


def _read_key(path: Path) -> bytes:
    try:
        with path.open("r", encoding="ascii") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(200)
    except FileNotFoundError:
        raise KeyFileError(f"there is no {path}; `share flower identity {path.parent}` makes it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise KeyFileError(f"{path}: {error}") from None
    if sys.platform != "win32" and stat.S_IMODE(mode) & 0o077:
        raise KeyFileError(f"{path} may be read by others, so it is no secret; make a new node")
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != 32:
        raise KeyFileError(f"{path} is not a key")
    return key

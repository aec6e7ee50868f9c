"""A node's own folder: its keys, the training that it agreed to, and the record of what it has done.

    NODE/identity.key, NODE/trainings/   as `secagg agree` keeps them (docs/agreement.md)
    NODE/state.key       encrypts what is kept between two messages
    NODE/agreement.toml  the agreement that all members signed
    NODE/training.toml   what they learn
    NODE/floors.toml     the operator's own limits, if there are any
    NODE/journal/        exclusive records that prevent a step from happening twice
    NODE/whole/          with whole groups: the client between two messages, and its last answer

A key that other users may read is refused, because it may have been read. If the journal is lost, or an older copy of
the disk is restored, an update can be opened twice: keep the journal as long as the training may continue.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fl.errors import ConfigError
from fl.flower.training import AGREEMENT, TRAINING, Training, read_hex, read_training
from secagg import Agreement, Budget, FileJournal, Identity, UsageError
from secagg.agreement import MemberFolder, read_floors

STATE_KEY: Final = "state.key"
WHOLE_FOLDER: Final = "whole"
WHOLE_STATE: Final = "client.state"
FLOORS: Final = "floors.toml"
PRIVATE_BYTES: Final = 32
NONCE_BYTES: Final = 12


class RefusedError(Exception):
    """This node does not do what the server asked; the text is sent to the server."""


class MistakeError(RefusedError):
    """This node can take part in no round before its operator changes something. `detail` is for the operator alone."""

    def __init__(self, text: str, detail: str = "") -> None:
        super().__init__(text)
        self.detail = detail


class KeyFileError(ConfigError):
    """A key file is missing, damaged, or readable by other users."""


@dataclass(frozen=True, slots=True)
class Node:
    """One client on its own machine, with everything that it trusts."""

    place: Path
    client: int
    name: str
    identity: Identity
    training: Training
    journal: FileJournal
    budget: Budget | None  # what all answers of this node may cost, for an agreement with noise

    @classmethod
    def open(cls, folder: Path | str) -> Node:
        """The node of this folder; ConfigError if it is not ready to take part."""
        place = Path(folder)
        identity = identity_of(place)
        training = read_training(place / TRAINING)
        client = training.client_of(identity.public)
        if client is None:
            raise ConfigError(f"{place / AGREEMENT} does not list the key of this node")
        journal = FileJournal(place / "journal")  # one for all trainings: their sums can be subtracted
        name = next(member.name for member in training.agreement.terms.members if member.id == client)
        budget = budget_of(place / FLOORS)
        read_key(place / STATE_KEY)
        return cls(place, client, name or f"node-{client}", identity, training, journal, budget)

    @property
    def agreement(self) -> Agreement:
        return self.training.agreement

    @property
    def signatures(self) -> Mapping[int, bytes]:
        return self.training.signatures

    def seal(self, round: int, content: bytes) -> bytes:
        """Encrypt what is kept between messages, for this node and this round alone."""
        return seal(self.place, self._address(round), content)

    def unseal(self, round: int, sealed: bytes) -> bytes | None:
        """The content; None if this node did not seal it for this round."""
        return open_sealed(self.place, self._address(round), sealed)

    def _address(self, round: int) -> bytes:
        return b"fl/flower/state/v1:" + self.training.fingerprint + round.to_bytes(8, "little")


def seal(folder: Path, address: bytes, content: bytes) -> bytes:
    """Encrypt what is kept between messages, for one address.

    The key is read each time: one that was replaced while a node trains must encrypt nothing more.
    """
    nonce, key = os.urandom(NONCE_BYTES), read_key(folder / STATE_KEY)  # audit: old-state-key-seals-nothing
    return nonce + AESGCM(key).encrypt(nonce, content, address)


def open_sealed(folder: Path, address: bytes, sealed: bytes) -> bytes | None:
    """The content; None if it was not sealed with this folder's key for this address."""
    try:
        return AESGCM(read_key(folder / STATE_KEY)).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], address)
    except (InvalidTag, ValueError):
        return None


def make_node(folder: Path | str, identity: Identity | None = None) -> Identity:
    """Make the keys of a new node and return its identity, or this one of a simulation. Existing keys are kept."""
    place = Path(folder)
    try:
        MemberFolder.create(place, (lambda _: identity.private) if identity else os.urandom)
    except UsageError as error:
        raise KeyFileError(str(error)) from None
    if not (place / STATE_KEY).exists():
        _write_key(place / STATE_KEY)
        _sync(place)  # audit: new-state-key-name-durable
    return identity_of(place)


def renew_state_key(folder: Path | str) -> None:
    """Make a new `state.key` and delete the keys of coming rounds: whoever has read the old file may know them.

    The journal and the last answer stay, so no round is answered twice, and the next answer names the last one
    (`secagg.whole.recall`). Nothing is encrypted again: that would not make known keys secret. The server asks for
    fresh ones.
    """
    place = Path(folder)
    identity_of(place)
    with ExitStack() as stack:
        for lock in sorted(place.glob(f"{WHOLE_FOLDER}/*/lock")):  # no message is answered meanwhile
            file = stack.enter_context(lock.open("r+"))
            fcntl.flock(file, fcntl.LOCK_EX)
            for name in (WHOLE_STATE, f".{WHOLE_STATE}.new"):  # the second after a crash
                (lock.parent / name).unlink(missing_ok=True)
        draft = place / f".{STATE_KEY}.new"
        draft.unlink(missing_ok=True)
        _write_key(draft)
        os.replace(draft, place / STATE_KEY)
        _sync(place)  # audit: state-key-name-durable


def _sync(folder: Path) -> None:
    """Write the names in a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_key(path: Path) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(os.urandom(PRIVATE_BYTES).hex() + "\n")
        file.flush()
        os.fsync(file.fileno())  # audit: state-key-durable


def budget_of(path: Path) -> Budget | None:
    """The budget among the operator's floors, if it has any."""
    try:
        return read_floors(path.read_text("utf-8")).budget if path.exists() else None
    except UsageError as error:
        raise ConfigError(f"{path}: {error}") from None


def identity_of(place: Path) -> Identity:
    """The identity of a node; KeyFileError if it is missing or not secret."""
    try:
        return MemberFolder(place).identity
    except UsageError as error:
        raise KeyFileError(str(error)) from None


def read_key(path: Path) -> bytes:
    """A secret key in hexadecimal; KeyFileError if it is missing or not secret."""
    try:
        with path.open("r", encoding="ascii") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(200)
    except FileNotFoundError:
        raise KeyFileError(f"there is no {path}; `share flower identity {path.parent}` makes it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise KeyFileError(f"{path}: {error}") from None
    if sys.platform != "win32" and stat.S_IMODE(mode) & 0o077:
        raise KeyFileError(f"{path} may be read by others and is no longer secret; make a new node")
    return read_hex(text, f"{path} is not a key", PRIVATE_BYTES, KeyFileError)

"""What a member keeps on its own disk: its identity key, secret contributions, and what it has committed to and signed.

    DIR/identity.key                       the Ed25519 key; made once, mode 0600, never sent
    DIR/trainings/NAME/name                the training's name as text (NAME is a hash of it)
    DIR/trainings/NAME/TERMS.contribution  32 secret bytes, stored before the commitment leaves
    DIR/trainings/NAME/TERMS.seen          the members of terms whose seed may be known because of this member
    DIR/trainings/NAME/signed              the fingerprint that this member signed under this name
    DIR/agreements/FINGERPRINT             an agreement that this member signed, or was shown as an earlier one

A record is written once and never replaced, so a member cannot sign two agreements under one name, not even after a
crash. Nobody must restore an older copy of this folder (docs/agreement.md).
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final

from secagg.agreement.agreement import Agreement
from secagg.agreement.terms import Terms
from secagg.arguments import path_of
from secagg.crypto.keys import KEY_BYTES, Identity
from secagg.errors import SecAggError, UsageError
from secagg.exposure.seed import CONTRIBUTION_BYTES
from secagg.types import ClientId, Entropy

IDENTITY: Final = "identity.key"


class AlreadySigned(SecAggError):  # noqa: N818 - the name says what happened
    """This member already signed, or took part in a seed, under this training's name.

    >>> issubclass(AlreadySigned, SecAggError)
    True
    """


class MemberFolder:
    """The folder of one member. `MemberFolder.create` makes it, with a new identity.

    >>> from tempfile import mkdtemp
    >>> folder = MemberFolder.create(mkdtemp())
    >>> MemberFolder(folder.path).identity.public == folder.identity.public
    True
    """

    def __init__(self, path: Path | str) -> None:
        self.path = path_of("path", path)
        key = self.path / IDENTITY
        try:
            mode = key.stat().st_mode
        except FileNotFoundError:
            raise UsageError(f"there is no {key}; `secagg identity {self.path}` makes it") from None
        if stat.S_IMODE(mode) & 0o077:  # audit: identity-file-private
            raise UsageError(
                f"{key}: others can read it (mode {stat.S_IMODE(mode):04o}), so it may not be secret any more; make a "
                "new identity in another folder and tell the others"
            )
        self.identity = Identity.from_private(_secret(key, KEY_BYTES))

    @classmethod
    def create(cls, path: Path | str, entropy: Entropy = os.urandom) -> MemberFolder:
        """The folder with a new identity, or the existing one: keys are never replaced."""
        place = path_of("path", path)
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        create_record(place / IDENTITY, f"{entropy(KEY_BYTES).hex()}\n")
        return cls(place)

    def member_of(self, terms: Terms) -> ClientId:
        """This member's id in these terms; UsageError if its identity is not in them."""
        found = [member.id for member in terms.members if member.identity == self.identity.public]
        if not found:
            raise UsageError(f"the identity {self.identity.public.hex()} of {self.path} is not a member's")
        return found[0]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time."""
        handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def contribution(self, terms: Terms, entropy: Entropy = os.urandom) -> bytes:
        """The secret contribution to the seed of these terms, on disk and readable by nobody else when this returns.

        The same terms always give the same contribution; other terms, which are another ceremony, another one.
        """
        self.check_unsigned(terms)
        self.check_seed_unseen(terms)
        path = self._record(terms, f"{terms.hash.hex()}.contribution")
        create_record(path, f"{entropy(CONTRIBUTION_BYTES).hex()}\n")
        return _secret(path, CONTRIBUTION_BYTES)

    def stored_contribution(self, terms: Terms) -> bytes:
        """The contribution that this member committed to."""
        path = self._record(terms, f"{terms.hash.hex()}.contribution")
        if not path.exists():
            raise UsageError(f"{self.path} has no contribution to these terms: commit first")
        return _secret(path, CONTRIBUTION_BYTES)

    def record_seed_seen(self, terms: Terms) -> None:
        """Record that the seed of these terms may become known, before the contribution or approval leaves.

        Under one name this happens again only for fewer members. So whoever prevents seeds until one suits pays with a
        member for each (`secagg.exposure.seed` has the bound).
        """
        self.check_unsigned(terms)
        self.check_seed_unseen(terms)  # audit: attempts-shrink
        identities = sorted(member.identity.hex() for member in terms.members)
        create_record(self._record(terms, f"{terms.hash.hex()}.seen"), "\n".join(identities) + "\n")

    def check_seed_unseen(self, terms: Terms) -> None:
        """AlreadySigned if other terms of this name may have a known seed, unless these have fewer members."""
        now = {member.identity.hex() for member in terms.members}
        for record in self._training(terms).glob("*.seen"):
            earlier = set(record.read_text().split())
            if record.stem != terms.hash.hex() and not now < earlier:
                raise AlreadySigned(
                    f"you already took part in the seed of other terms named {terms.name!r} ({record.stem[:16]}...). "
                    "If a member did not reveal, leave it out: a new attempt has fewer members, all of them from "
                    "before. Otherwise choose another name"
                )

    def record_signed(self, terms: Terms, fingerprint: bytes) -> None:
        """Record the one agreement that this member signs under this name, before the signature leaves."""
        existing = create_record(self._record(terms, "signed"), f"{fingerprint.hex()}\n").strip()
        if existing != fingerprint.hex():  # audit: one-agreement-per-name
            raise AlreadySigned(_signed_before(terms.name, existing))

    def check_unsigned(self, terms: Terms) -> None:
        """AlreadySigned if this member has signed an agreement under this name: there is nothing to commit to."""
        path = self._training(terms) / "signed"
        if path.exists():
            raise AlreadySigned(_signed_before(terms.name, path.read_text().strip()))

    def signed(self) -> dict[str, str]:
        """The fingerprints that this member has signed, with the names of their trainings."""
        found = sorted((self.path / "trainings").glob("*/signed"))
        return {path.read_text().strip(): (path.parent / "name").read_text().rstrip("\n") for path in found}

    def keep_agreements(self, agreements: Iterable[Agreement]) -> None:
        """Keep agreements, so that clients of their successors can be checked with them."""
        place = self.path / "agreements"
        place.mkdir(mode=0o700, exist_ok=True)
        for agreement in agreements:
            create_record(place / agreement.fingerprint.hex(), f"{agreement.to_bytes().hex()}\n")

    def earlier(self, terms: Terms) -> tuple[Agreement, ...]:
        """The earlier agreements that terms name, as far as they are kept here."""
        found = []
        for fingerprint in terms.predecessors:
            path = self.path / "agreements" / fingerprint.hex()
            if path.exists():
                try:
                    agreement = Agreement.from_bytes(bytes.fromhex(path.read_text().strip()))
                except (ValueError, SecAggError) as damaged:
                    raise UsageError(f"{path}: the agreement is damaged: {damaged}") from None
                if agreement.fingerprint != fingerprint:  # audit: kept-agreement-unchanged
                    raise UsageError(f"{path}: expected the agreement of this fingerprint, got another one")
                found.append(agreement)
        return tuple(found)

    def _training(self, terms: Terms) -> Path:
        return self.path / "trainings" / sha256(terms.name.encode()).hexdigest()[:32]

    def _record(self, terms: Terms, name: str) -> Path:
        folder = self._training(terms)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        create_record(folder / "name", f"{terms.name}\n")
        return folder / name


def _signed_before(name: str, fingerprint: str) -> str:
    return (
        f"you already signed an agreement named {name!r}, {fingerprint[:16]}..., and a member signs one agreement per "
        "name. For a new one on the same data (a leaver, a new seed) choose another name and list the earlier "
        "fingerprint in predecessors"
    )


def create_record(path: Path, text: str) -> str:
    """Store a text exclusively and durably, readable by its owner only, or return what is already there."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(8).hex()}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # audit: member-record-durable
        os.link(draft, path)  # audit: member-record-exclusive
    except FileExistsError:
        text = path.read_text()
    finally:
        draft.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # audit: member-record-name-durable
    finally:
        os.close(folder)
    return text


def _secret(path: Path, size: int) -> bytes:
    """The secret bytes in a file; an error never shows them."""
    try:
        data = bytes.fromhex(path.read_text().strip())
    except ValueError:
        data = b""
    if len(data) != size:
        raise UsageError(f"{path}: expected {2 * size} hexadecimal digits; the file is damaged")
    return data

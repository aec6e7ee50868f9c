"""The certificate with which a member or a hub connects: DIR/tls.pem, its private key and the certificate together."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final

from secagg.agreement.folder import create_record
from secagg.crypto.certificates import CertificatePair, from_pem, to_pem
from secagg.errors import UsageError

TLS: Final = "tls.pem"


class Credentials:
    """The key and the certificate in a folder. `Credentials.create` makes them; they are never replaced.

    A site with an authority puts its own `tls.pem` there: the private key, the certificate, then any intermediate ones.

    >>> from tempfile import mkdtemp
    >>> made = Credentials.create(mkdtemp())
    >>> Credentials(made.path.parent).certificate == made.certificate
    True
    """

    def __init__(self, folder: Path | str) -> None:
        self.path = Path(folder) / TLS
        try:
            mode = stat.S_IMODE(self.path.stat().st_mode)
        except FileNotFoundError:
            raise UsageError(f"there is no {self.path}; `secagg identity {folder}` makes it") from None
        if mode & 0o077:  # audit: tls-file-private
            raise UsageError(
                f"{self.path}: others can read it (mode {mode:04o}), so its key may not be secret any more; make a new "
                "one in another folder and tell the others"
            )
        text = self.path.read_bytes()
        begin = text.find(b"-----BEGIN CERTIFICATE-----")
        if begin < 0:
            raise UsageError(f"{self.path}: expected a private key and a certificate in PEM; the file is damaged")
        self.certificate = from_pem(text[begin:])

    @classmethod
    def create(cls, folder: Path | str) -> Credentials:
        """The credentials in a folder, new ones if there are none."""
        place = Path(folder)
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (place / TLS).exists():
            pair = CertificatePair.generate()
            create_record(place / TLS, pair.key.decode() + to_pem(pair.certificate))
        return cls(place)

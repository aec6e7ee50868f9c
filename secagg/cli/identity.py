"""The `secagg identity` command: a member's Ed25519 identity and its certificate, made once and shown again."""

import json
from argparse import ArgumentParser, Namespace, _SubParsersAction
from pathlib import Path

from secagg.agreement.credentials import TLS, Credentials
from secagg.agreement.folder import IDENTITY, MemberFolder


def add_parser(commands: "_SubParsersAction[ArgumentParser]") -> None:
    """Add `identity` to the commands of `secagg`."""
    parser = commands.add_parser("identity", help="make a member's identity, or show it")
    parser.add_argument("folder", metavar="DIR", type=Path, help="where the key and the member's records are kept")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=run)


def run(options: Namespace) -> int:
    """Print the line that an agreement file needs."""
    new = not (options.folder / IDENTITY).exists()
    folder = MemberFolder.create(options.folder)
    certificate = Credentials.create(options.folder).certificate
    if options.json:
        print(json.dumps({"identity": folder.identity.public.hex(), "certificate": certificate.hex(), "new": new}))
        return 0
    print(f'identity = "{folder.identity.public.hex()}"')
    if new:
        print(f"# made in {folder.path / IDENTITY}, with {TLS} for connections: keep both secret, back them up,")
        print("# never restore an older copy of DIR")
    return 0

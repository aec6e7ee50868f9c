"""`share flower check`: whether a node is ready, said before a training depends on it.

It reads the node's folder, writes and syncs a file beside the journal, compiles the numeric loops (the first round
would otherwise do so in silence), and looks at the SuperLink: with a wrong certificate a SuperNode waits in silence.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import secagg
from fl.errors import ConfigError
from fl.flower.apps.member import AppNode
from fl.flower.node import Node
from fl.flower.training import TRAINING
from secagg import AgreementRefused
from secagg.agreement import MemberFolder

SECONDS: Final = 10.0  # for an answer of the SuperLink
CONTROL: Final = "/v1/control/list-runs"  # what only whoever starts runs should reach
TELEMETRY: Final = "FLWR_TELEMETRY_ENABLED"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `wrong` says what to mend; with a `warning` a node can still take part."""

    what: str
    wrong: str = ""
    warning: str = ""

    def __str__(self) -> str:
        if self.wrong:
            return f"WRONG   {self.what}: {self.wrong}"
        return f"WARNING {self.what}: {self.warning}" if self.warning else f"ok      {self.what}"


def check_node(folder: Path, link: str = "", root: Path | None = None) -> Iterator[Finding]:
    """Everything that can be looked at from this machine, one after the other."""
    yield _check_folder(folder)
    yield _check_storage(folder)
    secagg.warm_up()
    yield Finding("numeric loops are compiled for this machine")
    if os.environ.get(TELEMETRY, "1") != "0":
        yield Finding("telemetry", warning=f"Flower reports to its makers; set {TELEMETRY}=0 to switch it off")
    if link:
        yield from _check_link(link, root)


def _check_folder(folder: Path) -> Finding:
    what = f"folder {folder}"
    try:
        if (folder / TRAINING).exists():
            node = Node.open(folder)
            agreement, client = node.training.agreement, node.client
        else:
            app = AppNode.open(folder)
            agreement, client = app.agreement, app.client
        if agreement.terms.predecessors:
            agreement.check(MemberFolder(folder).earlier(agreement.terms))
    except AgreementRefused as error:
        return Finding(what, f"{error}; sign it with --earlier, which stores the earlier agreements here")
    except ConfigError as error:
        return Finding(what, str(error))
    name = agreement.terms.members[list(agreement.terms.ids).index(client)].name
    return Finding(
        f"{what}: member {client} ({name}) of {agreement.terms.name!r}, {agreement.fingerprint.hex()[:16]}..."
    )


def _check_storage(folder: Path) -> Finding:
    """The journal must be writable, and by this user: SuperNode and check run as the same one."""
    probe = folder / "journal" / f".check.{os.getpid()}"
    try:
        probe.parent.mkdir(mode=0o700, exist_ok=True)
        with probe.open("w") as file:
            file.write("check")
            os.fsync(file.fileno())
        probe.unlink()
    except OSError as error:
        return Finding("journal", f"cannot be written: {error}")
    return Finding("journal can be written")


def _check_link(link: str, root: Path | None) -> Iterator[Finding]:
    host, _, port = link.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"--superlink: expected HOST:PORT, got {link!r}")
    what = f"SuperLink {link}"
    try:
        context = ssl.create_default_context(cafile=None if root is None else str(root))
        with socket.create_connection((host, int(port)), SECONDS) as plain, _wrapped(plain, context, host) as secure:
            yield Finding(f"{what}: the certificate is right")
            status = _ask(secure, host)
    except ssl.SSLCertVerificationError as error:
        name = f"; its subjectAltName must have {host!r}" if "mismatch" in str(error) else ""
        yield Finding(what, f"its certificate is not right: {error.verify_message}{name}")
        return
    except ssl.SSLError as error:
        yield Finding(what, f"no TLS ({error.reason}); is it started with --insecure?")
        return
    except OSError as error:
        yield Finding(what, f"no connection: {error}; is it running, with --host, and is the port open?")
        return
    if status in (403, 404):
        yield Finding(f"{what}: only nodes get in")
    else:
        yield Finding(
            what,
            warning="whoever reaches this port can start runs, that is run code on your node; ask the operator of the "
            "server to put `share flower gate` before it (docs/flower.md)",
        )


def _wrapped(plain: socket.socket, context: ssl.SSLContext, host: str) -> ssl.SSLSocket:
    return context.wrap_socket(plain, server_hostname=host)


def _ask(connection: ssl.SSLSocket, host: str) -> int:
    """The HTTP status of an empty request for what only whoever starts runs should reach."""
    request = f"POST {CONTROL} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    connection.sendall(request.encode())
    line = connection.makefile("rb").readline(200).split()
    return int(line[1]) if len(line) > 1 and line[1].isdigit() else 0

"""Requests that no honest site makes: from strangers, and from a member that attacks with its own certificate."""

from __future__ import annotations

import asyncio
import datetime
import random
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from secagg.agreement.credentials import Credentials


def forged(place: Path, signer: Path) -> Path:
    """A certificate that a member's key has signed, with the member as issuer."""
    text = (signer / "tls.pem").read_bytes()
    key = load_pem_private_key(text, None)
    issuer = x509.load_pem_x509_certificate(text[text.index(b"-----BEGIN CERT") :])
    mine, now = Ed25519PrivateKey.generate(), datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder().subject_name(issuer.subject).issuer_name(issuer.subject).public_key(mine.public_key())
        .serial_number(7).not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1)).sign(key, None)  # type: ignore[arg-type]
    )  # fmt: skip
    secret = mine.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path = place / "forged.pem"
    path.write_bytes(secret + certificate.public_bytes(Encoding.PEM) + issuer.public_bytes(Encoding.PEM))
    return path


def context(certificate: Path | None, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.maximum_version = version
    if certificate is not None:
        made.load_cert_chain(certificate)
    return made


class Attacker:
    """Plays attacks against the hub on a port; `member` is the folder of the member that attacks."""

    def __init__(self, place: Path, member: Path, other: Path, port: int, fingerprint: str, seed: int) -> None:
        self.port, self.random, self.fingerprint = port, random.Random(seed), fingerprint
        stranger = Credentials.create(place / "stranger")
        self.contexts = {
            "nobody": context(None),
            "stranger": context(stranger.path),
            "forged": context(forged(place, other)),
            "old": context(member / "tls.pem", ssl.TLSVersion.TLSv1_2),
            "member": context(member / "tls.pem"),
        }
        self.captured: list[bytes] = [b"\x02\x23" + bytes(100)]
        self.statuses: dict[str, int] = {}
        self.kinds: tuple[Callable[[], object], ...] = (
            self.no_tls, self.half_open, self.without_certificate, self.garbage, self.no_tag, self.oversized,
            self.chunked, self.compressed, self.other_agreement, self.other_path, self.half_headers, self.half_body,
            self.replayed, self.long_headers, self.refusal_of_nothing, self.flood,
        )  # fmt: skip

    async def attack(self) -> None:
        """One attack, chosen at random."""
        kind = self.random.choice(self.kinds)
        with suppress(OSError, ssl.SSLError, asyncio.IncompleteReadError, TimeoutError, RuntimeError):
            async with asyncio.timeout(10):
                await kind()  # type: ignore[misc]

    # --- strangers -----------------------------------------------------------------------------------

    async def no_tls(self) -> None:
        await self.send(None, b"GET /v1/next HTTP/1.1\r\nHost: x\r\n\r\n" + self.random.randbytes(50))

    async def half_open(self) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        await asyncio.sleep(self.random.random() / 5)
        writer.close()

    async def without_certificate(self) -> None:
        who = self.random.choice(["nobody", "stranger", "forged", "old"])
        answer = await self.send(who, self.request("GET", "/v1/next?after=x"))
        assert answer == b"", (who, answer)

    # --- a member ------------------------------------------------------------------------------------

    async def garbage(self) -> None:
        tag = await self.tag()
        body = self.random.choice([b"", b"\x02", b"\x02\x23", self.random.randbytes(200), b"\x02\x21" + bytes(300)])
        await self.status("garbage", self.request("POST", "/v1/messages", body, {"Secagg-Tag": tag}))

    async def no_tag(self) -> None:
        await self.status("no tag", self.request("POST", "/v1/messages", b"\x02\x23" + bytes(90)), 410)

    async def oversized(self) -> None:
        head = self.request("POST", "/v1/messages", b"", {"Content-Length": str(10**12), "Secagg-Tag": "x"})
        await self.status("oversized", head, 413)

    async def chunked(self) -> None:
        head = self.request("POST", "/v1/messages", None, {"Transfer-Encoding": "chunked"})
        await self.status("chunked", head + b"5\r\nhello\r\n0\r\n\r\n", 411)

    async def compressed(self) -> None:
        await self.status("compressed", self.request("POST", "/v1/messages", b"xx", {"Content-Encoding": "gzip"}), 411)

    async def other_agreement(self) -> None:
        await self.status("agreement", self.request("GET", "/v1/next", None, {"Secagg-Agreement": "00" * 32}), 409)

    async def other_path(self) -> None:
        method, path = self.random.choice(
            [("GET", "/"), ("PUT", "/v1/messages"), ("POST", "/v1/next"), ("GET", "/%2e")]
        )
        await self.status("path", self.request(method, path))

    async def half_headers(self) -> None:
        await self.send("member", b"GET /v1/next HTTP/1.1\r\nHost: x\r\nX-Slow: ", wait=self.random.random() / 5)

    async def half_body(self) -> None:
        head = self.request("POST", "/v1/messages", b"x", {"Content-Length": "1000"})
        await self.send("member", head, wait=self.random.random() / 5)

    async def replayed(self) -> None:
        body, tag = self.random.choice(self.captured), await self.tag()
        await self.status("replayed", self.request("POST", "/v1/messages", body, {"Secagg-Tag": tag}))

    async def long_headers(self) -> None:
        await self.status("headers", self.request("GET", "/v1/next", None, {"X-Long": "y" * 20000}))

    async def refusal_of_nothing(self) -> None:
        await self.status("refusal", self.request("POST", "/v1/refusals", b"\xff no"), 410)

    async def flood(self) -> None:
        await self.send("member", self.request("POST", "/v1/refusals", b"no") * 30, wait=0.05)

    # --- bytes ---------------------------------------------------------------------------------------

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> bytes:
        lines = {"Host": "hub", "Secagg-Agreement": self.fingerprint}
        if body is not None:
            lines["Content-Length"] = str(len(body))
        lines |= headers or {}
        text = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return text.encode() + b"\r\n" + (body or b"")

    async def tag(self, wait: float = 1.0) -> str:
        """The tag of the message that waits for the attacking member, if one comes soon."""
        answer = await self.send("member", self.request("GET", "/v1/next"), wait=wait)
        head = answer.partition(b"\r\n\r\n")[0].decode(errors="replace").lower()
        found = [line.partition(": ")[2] for line in head.split("\r\n") if line.startswith("secagg-tag")]
        return found[0] if found else "none"

    async def status(self, name: str, data: bytes, expected: int | None = None) -> None:
        answer = await self.send("member", data, wait=2.0)
        found = int(answer.split()[1]) if answer.startswith(b"HTTP/1.1 ") else 0
        self.statuses[f"{name} {found}"] = self.statuses.get(f"{name} {found}", 0) + 1
        assert found >= 400 or found in (0, 204), (name, answer[:200])
        assert expected is None or found in (expected, 429, 0), (name, answer[:200])

    async def send(self, who: str | None, data: bytes, wait: float = 2.0) -> bytes:
        """Send bytes and read the beginning of the answer."""
        more = {"ssl": self.contexts[who], "server_hostname": "hub"} if who else {}
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, **more)  # type: ignore[arg-type]
        try:
            writer.write(data)
            await writer.drain()
            async with asyncio.timeout(wait):
                return await reader.read(4096)
        except (TimeoutError, ConnectionError, ssl.SSLError):
            return b""
        finally:
            writer.transport.abort()

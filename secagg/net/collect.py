"""The hub while an agreement is made: it collects identities and certificates, and relays what members sign.

    POST /v1/enrolment   identity and certificate of the member with this token
    GET  /v1/proposal    the agreement so far; held until it differs from what the member has (204: ask again)
    POST /v1/part        one step of a member: a commitment, a reveal or a signature

Members have no certificates yet that anybody knows, so a token says who asks. It authenticates nothing that matters
later: every step is signed, members check all steps of the others, and people compare the fingerprint before they sign.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
from collections.abc import Awaitable, Callable, Iterable
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from aiohttp import web

from secagg.agreement import file
from secagg.agreement.agreement import Agreement
from secagg.agreement.credentials import Credentials
from secagg.agreement.origin import Approval, Commitment, Reveal
from secagg.agreement.proposal import Proposal, Signature
from secagg.crypto.certificates import check_pinned
from secagg.crypto.keys import KEY_BYTES, SIGNATURE_BYTES, verify
from secagg.errors import PeerError, SecAggError, UsageError
from secagg.net import tls
from secagg.net.door import PATIENCE, Door
from secagg.net.files import FolderLock, read_file, replace_file
from secagg.net.invitation import TOKEN_BYTES, Invitation, enrolment_statement
from secagg.net.limits import Bucket
from secagg.net.rehearsal import rehearse
from secagg.net.settings import host_and_port

SEEN: Final = "Secagg-Seen"
_MOST: Final = 2**16
_HOLD: Final = 20.0
_REQUESTS: Final = 50.0  # per second, of each member and of all strangers together
_CONNECTIONS: Final = 8  # of a member


class Collection:
    """The steps towards one agreement, kept in a folder: a hub that was stopped goes on with the same invitations."""

    patience = PATIENCE  # seconds in which a connection must show a token

    def __init__(
        self,
        document: dict[str, Any],
        folder: Path | str,
        tell: Callable[[str], None],
        earlier: Iterable[Agreement] = (),
    ) -> None:
        self._document, self._tell = document, tell
        self._names = _names(document)
        transport = document.get("transport")
        if not isinstance(transport, dict) or not transport.get("hubs"):
            raise UsageError("transport.hubs: expected the address of this hub, such as https://hub.example:8443")
        self.objections = rehearse(document, earlier)  # audit: terms-judged-before-inviting
        self.credentials = Credentials.create(folder)
        self.addresses = [str(one) for one in transport["hubs"]]
        name = sha256(str(document.get("name")).encode()).hexdigest()[:32]
        self._path = Path(folder) / "collect" / name / "state.json"
        self._lock = FolderLock(self._path.parent)
        try:
            self._state = self._restored()
        except BaseException:
            self._lock.release()
            raise
        self.proposal: Proposal | None = file.read(self._state["agreement"]) if self._state["agreement"] else None
        self._save()
        self._changed = asyncio.Event()  # each change sets it and puts a new one in its place
        self._closed = False
        self._fetched: set[str] = set()
        self._buckets = {name: Bucket(_REQUESTS) for name in self._names}
        self._strangers = Bucket(_REQUESTS)
        self._held: dict[int, tuple[str, asyncio.Transport]] = {}  # connections that showed a token, by their id
        self._runner: web.AppRunner | None = None
        self._door: Door | None = None

    def _restored(self) -> dict[str, Any]:
        """What an earlier process has collected for this draft, with an invitation for everybody."""
        saved = read_file(self._path)
        state: dict[str, Any] = json.loads(saved) if saved else {"tokens": {}, "enrolled": {}, "agreement": ""}
        draft = sha256(json.dumps(self._document, sort_keys=True, default=str).encode()).hexdigest()
        if state["agreement"] and state.get("draft", draft) != draft:  # audit: one-draft-one-name
            raise UsageError(
                f"name: the members have the terms of another draft named {self._document.get('name')!r} already; give "
                "this one another name, and invite them again"
            )
        state["draft"] = draft
        for one in self._names:
            state["tokens"].setdefault(one, secrets.token_bytes(TOKEN_BYTES).hex())
        return state

    @property
    def invitations(self) -> dict[str, Invitation]:
        """One for each member, by name."""
        tokens = self._state["tokens"]
        return {
            name: Invitation.to(self.addresses[0], self.credentials.certificate, bytes.fromhex(tokens[name]))
            for name in self._names
        }

    # --- listening -----------------------------------------------------------------------------------

    async def start(self, listen: str) -> int:
        """Listen; the port."""
        app = web.Application(client_max_size=_MOST, middlewares=[self._known])
        app.router.add_post("/v1/enrolment", self._enrol)
        app.router.add_get("/v1/proposal", self._show)
        app.router.add_post("/v1/part", self._part)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            auto_decompress=False,
            shutdown_timeout=1.0,
            keepalive_timeout=30.0,
            lingering_time=1.0,
        )
        await self._runner.setup()
        factory = self._runner.server
        assert factory is not None
        context = tls.open_context(self.credentials.path)
        self._door = Door(factory, lambda reason, who: None, until_named=True, patience=self.patience)
        return await self._door.open(*host_and_port("listen", listen), context)

    async def __aenter__(self) -> Collection:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._door is not None:
            self._door.close()
        self._closed = True
        self._announce()
        if self._runner is not None:
            await self._runner.cleanup()
        self._lock.release()

    @property
    def _signed(self) -> bool:
        return self.proposal is not None and not any(True for _ in self.proposal.problems())

    async def complete(self) -> Proposal:
        """Wait until all have signed and fetched the agreement."""
        while True:
            changed = self._changed
            if self._signed and self._fetched >= set(self._names):
                assert self.proposal is not None
                return self.proposal
            await changed.wait()

    # --- requests ------------------------------------------------------------------------------------

    @web.middleware
    async def _known(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Only requests with a token are looked at. Strangers share one allowance, and each member has its own."""
        transport = request.transport
        if transport is None:
            raise web.HTTPForbidden
        assert self._door is not None
        self._door.named(transport.get_extra_info("peername"))
        try:
            name = self._who(request)
            bucket = self._strangers if name is None else self._buckets[name]
            if not bucket.take():  # audit: collect-requests-limited
                raise web.HTTPTooManyRequests
            if name is None:  # audit: enrolment-needs-token
                raise web.HTTPForbidden(text="this is no invitation of this hub")
            self._hold(name, transport)
        except web.HTTPException as refused:
            response = web.Response(status=refused.status, text=refused.text)
            response.force_close()
            return response
        return await handler(request)

    def _who(self, request: web.Request) -> str | None:
        """The name of the member whose token this is; None for a stranger."""
        given = request.headers.get("Authorization", "").removeprefix("Bearer ").encode(errors="replace")
        found = [name for name, token in self._state["tokens"].items() if hmac.compare_digest(token.encode(), given)]
        return str(found[0]) if found and found[0] in self._buckets else None

    def _hold(self, name: str, transport: asyncio.Transport) -> None:
        """Count the connections of a member."""
        self._held = {one: held for one, held in self._held.items() if not held[1].is_closing()}
        same = sum(held[0] == name for one, held in self._held.items() if one != id(transport))
        if same >= _CONNECTIONS:  # audit: collect-connections-limited
            raise web.HTTPTooManyRequests
        self._held[id(transport)] = name, transport

    def _name(self, request: web.Request) -> str:
        """The member on the connection of a request that was let in."""
        return self._held[id(request.transport)][0]

    async def _enrol(self, request: web.Request) -> web.StreamResponse:
        name = self._name(request)
        token = bytes.fromhex(self._state["tokens"][name])
        try:
            given = json.loads(await self._text(request))
            identity, certificate, signature = (bytes.fromhex(given[key]) for key in _ENROLMENT)
            if len(identity) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
                raise UsageError("an identity has 32 bytes and a signature 64")
            check_pinned(certificate)
            verify(identity, signature, enrolment_statement(token, certificate), signer=0)  # audit: enrolment-signed
        except (ValueError, KeyError, TypeError, SecAggError) as bad:
            return web.Response(status=422, text=f"expected an enrolment: {bad}"[:500])
        record = {"identity": identity.hex(), "certificate": certificate.hex()}
        others = [one for other, one in self._state["enrolled"].items() if other != name]
        if any(set(record.values()) & set(one.values()) for one in others):  # audit: one-identity-one-member
            return web.Response(status=409, text="another member has this identity; each needs a folder of its own")
        known = self._state["enrolled"].get(name)
        if self._state["enrolled"].setdefault(name, record) != record:  # audit: invitation-used-once
            return web.Response(status=409, text="this invitation was used with another identity; tell the hub")
        if known is None:
            self._tell(f"{name} is here with identity {identity.hex()}")
        if self.proposal is None and self._state["enrolled"].keys() >= set(self._names):
            self.proposal = self._made()
        self._store()
        return web.Response(status=204)

    def _made(self) -> Proposal:
        """The proposal with everybody's identity and certificate."""
        enrolled, document = self._state["enrolled"], dict(self._document)
        rows = document["members"]
        document["members"] = [{**row, "identity": enrolled[row["name"]]["identity"]} for row in rows]
        document["transport"] = {
            "hubs": self.addresses,
            "hub": self.credentials.certificate.hex(),
            "members": [enrolled[row["name"]]["certificate"] for row in sorted(rows, key=lambda row: row.get("id", 0))],
        }
        proposal = file.read_document(document)
        self._tell("all members are here; they commit, reveal and sign now")
        return proposal

    async def _show(self, request: web.Request) -> web.StreamResponse:
        name, seen = self._name(request), request.headers.get(SEEN, "")
        try:
            async with asyncio.timeout(_HOLD):
                while (self.proposal is None or self._hash() == seen) and not self._signed and not self._closed:
                    await self._changed.wait()
        except TimeoutError:
            pass
        if self.proposal is None or self._hash() == seen:
            if self._signed:
                self._fetched.add(name)
                self._announce()
            return web.Response(status=204)
        return web.Response(text=file.write(self.proposal), headers={SEEN: self._hash()})

    async def _part(self, request: web.Request) -> web.StreamResponse:
        name = self._name(request)
        if self.proposal is None:
            return web.Response(status=422, text="not all members are here yet")
        member = next(one.id for one in self.proposal.terms.members if one.name == name)
        try:
            parts = file.read_parts(await self._text(request), self.proposal)
            steps = [one for one in parts if isinstance(one, Commitment | Reveal | Approval | Signature)]
            if len(steps) != len(parts) or any(one.member != member for one in steps):  # audit: own-steps-only
                raise PeerError(f"expected a step of {name}, got one of another member")
            proposal = self.proposal.add(parts)
        except SecAggError as bad:
            return web.Response(status=422, text=str(bad)[:500])
        if proposal != self.proposal:
            self.proposal = proposal
            self._tell(f"{name}: {', '.join(type(one).__name__.lower() for one in parts)}")
            self._store()
        return web.Response(status=204)

    async def _text(self, request: web.Request) -> str:
        if request.content_length is None or request.content_length > _MOST:
            raise web.HTTPRequestEntityTooLarge(max_size=_MOST, actual_size=request.content_length or 0)
        async with asyncio.timeout(20):
            return (await request.read()).decode(errors="replace")

    # --- state ---------------------------------------------------------------------------------------

    def _hash(self) -> str:
        assert self.proposal is not None
        return sha256(file.write(self.proposal).encode()).hexdigest()

    def _store(self) -> None:
        if self.proposal is not None:
            self._state["agreement"] = file.write(self.proposal)
        self._save()
        self._announce()

    def _announce(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _save(self) -> None:
        replace_file(self._path, [json.dumps(self._state).encode()])


_ENROLMENT: Final = ("identity", "certificate", "signature")


def _names(document: dict[str, Any]) -> tuple[str, ...]:
    """The names of the invited members: the draft lists them, without identities."""
    rows = document.get("members")
    if not isinstance(rows, list) or not rows or any(not isinstance(row, dict) or not row.get("name") for row in rows):
        raise UsageError('members: expected a table [[members]] with a name for each, such as name = "north"')
    if any("identity" in row for row in rows):
        raise UsageError("members: expected names only; their identities are what --collect collects")
    names = tuple(str(row["name"]) for row in rows)
    if len(set(names)) < len(names):
        raise UsageError("members: two of them have one name")
    return names

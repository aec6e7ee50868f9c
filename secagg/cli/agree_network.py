"""`secagg agree --collect` at the hub, and `secagg agree --sign DIR --hub INVITATION` at a member."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from secagg.agreement import file
from secagg.agreement.agreement import Agreement
from secagg.agreement.credentials import Credentials
from secagg.agreement.floors import Floors
from secagg.agreement.folder import MemberFolder
from secagg.agreement.proposal import Proposal
from secagg.cli.reading import named
from secagg.cli.steps import Step, commit_step, grouped, reveal_step, sign_step
from secagg.errors import PeerError, UsageError
from secagg.net.collect import Collection
from secagg.net.enrol import Enrolment
from secagg.net.invitation import Invitation

__all__ = ["Invitation", "collect", "sign"]

BLOCKS: Final = 10  # of 4 characters of the fingerprint: two agreements that share 160 bits cannot be searched for


def collect(
    path: Path, folder: Path, listen: str | None, earlier: Sequence[Agreement] = (), *, as_json: bool = False
) -> int:
    """Invite the members that the draft names, and write the agreement that they sign."""
    document = named(path, file.parse)
    if any("identity" in row for row in document.get("members", []) if isinstance(row, dict)):
        raise UsageError(f"{path} already has its members; `secagg agree {path} --check` says what is missing")

    def tell(line: str) -> None:
        print(json.dumps({"event": line}) if as_json else line, flush=True)

    try:
        collection = Collection(document, folder, tell, earlier)
    except UsageError as bad:
        raise UsageError(f"{path}: {bad}") from None
    return asyncio.run(_collect(path, collection, folder, listen, as_json))


async def _collect(path: Path, made: Collection, folder: Path, listen: str | None, as_json: bool) -> int:
    async with made as collection:
        port = urlsplit(collection.addresses[0]).port
        await collection.start(listen or f":{port}")
        invitations = collection.invitations
        if as_json:
            shown = {name: str(one) for name, one in invitations.items()}
            print(json.dumps({"invitations": shown, "below_floors": collection.objections}), flush=True)
        else:
            if collection.objections:
                print("Sites refuse these terms unless their floors.toml allows them (docs/agreement.md):", flush=True)
                print("\n".join(f"  {why}" for why in collection.objections), flush=True)
            print(
                "Send each member its own invitation, in a private way. It runs (DIR: see secagg identity):", flush=True
            )
            for name, one in invitations.items():
                print(f"  {name}: secagg agree {path.name} --sign DIR --hub '{one}'", flush=True)
        proposal = await collection.complete()
        _write(path, file.write(proposal))
    fingerprint = proposal.agreement.fingerprint.hex()
    if as_json:
        print(json.dumps({"fingerprint": fingerprint, "file": str(path)}), flush=True)
    else:
        print(f"All {len(proposal.terms.members)} members have signed. Fingerprint:\n  {grouped(fingerprint)}")
        print(f"Written: {path}. Next: secagg serve {path} {folder}")
    return 0


def sign(
    path: Path,
    place: Path,
    invitation: Invitation,
    fingerprint: str | None,
    floors: Floors,
    earlier: Sequence[Agreement],
    show: Callable[[Proposal], None],
) -> int:
    """Take all steps of one member: enrol, commit, reveal, compare, sign."""
    member = Joining(path, MemberFolder(place), Credentials.create(place), floors, earlier, show)
    return asyncio.run(member.run(invitation, fingerprint))


class Joining:
    """One member on its way to an agreement. It keeps the terms that it saw first, and checks every step of others."""

    def __init__(
        self,
        path: Path,
        folder: MemberFolder,
        credentials: Credentials,
        floors: Floors,
        earlier: Sequence[Agreement],
        show: Callable[[Proposal], None],
    ) -> None:
        self._path, self._folder, self._credentials = path, folder, credentials
        self._floors, self._earlier, self._show = floors, earlier, show
        self._proposal: Proposal | None = None
        self._asked = False

    async def run(self, invitation: Invitation, fingerprint: str | None) -> int:
        async with Enrolment(invitation, _trouble) as hub:
            await hub.enrol(self._folder, self._credentials.certificate)
            print("Waiting for the other members...", file=sys.stderr, flush=True)
            seen = ""
            while True:
                found = await hub.proposal(seen)
                if found is None:
                    if self._complete:
                        break
                    continue
                seen, text = found
                self._take(text, invitation)
                while (step := self._next_step()) is not None:
                    if step is sign_step and not self._compared(fingerprint):
                        return 1
                    await hub.send(self._do(step))
                _write(self._path, file.write(self.proposal))
        print(f"Complete: all {len(self.proposal.terms.members)} members have signed. Written: {self._path}")
        return 0

    @property
    def proposal(self) -> Proposal:
        assert self._proposal is not None
        return self._proposal

    @property
    def _complete(self) -> bool:
        return self._proposal is not None and not any(True for _ in self._proposal.problems())

    def _take(self, text: str, invitation: Invitation) -> None:
        """Take in what the hub has: at first the terms, after that only steps for the same terms."""
        if self._proposal is None:
            if self._path.exists():
                self._proposal = Proposal(terms=named(self._path, file.read).terms)
            else:
                self._proposal = Proposal(terms=file.read(text).terms)
            self._check_terms(invitation)
            self._show(self._proposal)
        # audit: hub-cannot-change-terms
        self._proposal = self._proposal.add(file.read_parts(text, self._proposal))

    def _check_terms(self, invitation: Invitation) -> None:
        terms = self.proposal.terms
        member, transport = self._folder.member_of(terms), terms.transport
        if transport is None or not invitation.matches(transport):  # audit: terms-name-this-hub
            raise PeerError("the terms name another hub than the one that sent the invitation")
        known = transport.member_with(terms.ids, self._credentials.certificate)
        if known != member:  # audit: terms-have-my-certificate
            raise PeerError("the terms have another certificate under my name; somebody else used the invitation")
        self._floors.check(terms)  # audit: floors-before-network-steps

    def _next_step(self) -> Callable[..., Step] | None:
        """What this member can do now: commit, then reveal, then sign."""
        proposal, me = self.proposal, self._folder.member_of(self.proposal.terms)
        if me not in proposal.commitments and proposal.terms.beacon is None:
            return commit_step
        if me not in proposal.approvals and proposal.terms.beacon is not None:
            return commit_step
        if proposal.terms.beacon is None and me not in proposal.reveals and not proposal.waiting_for("commitments"):
            return reveal_step
        return sign_step if proposal.has_seed and me not in proposal.signatures else None

    def _do(self, step: Callable[..., Step]) -> str:
        """Take one step: recorded in the folder first. The bytes to send."""
        more = (self._earlier,) if step is sign_step else ()
        if step is sign_step:
            self._floors.check(self.proposal.agreement)  # audit: floors-before-network-signing
        with self._folder.locked():
            part = step(self.proposal, self._folder, *more)
        self._proposal = self.proposal.add([part])
        return file.write_part(self.proposal, part)

    def _compared(self, given: str | None) -> bool:
        """Whether the person has the same fingerprint from the other members."""
        fingerprint = self.proposal.agreement.fingerprint.hex()
        if given is None:
            self._show(self.proposal)
            print("Get the fingerprint from the other members, by a call or a message that does not pass the hub.")
            print(f"Type or paste it here, at least its first {BLOCKS} blocks of 4 characters: ", end="", flush=True)
            given = sys.stdin.readline()
            if not given:
                print()
                again = "run the command again with --fingerprint, once you have compared"
                print(f"secagg: nothing is signed: {again}", file=sys.stderr)
                return False
        typed = "".join(given.split()).lower()
        if len(typed) < 4 * BLOCKS:  # audit: compared-enough
            raise UsageError(
                f"--fingerprint: expected at least {BLOCKS} blocks of 4 characters, which are {4 * BLOCKS} without the "
                f"blanks between them, got {len(typed)}: with fewer, somebody can search for two agreements that look "
                "the same. Nothing is signed"
            )
        if not fingerprint.startswith(typed):  # audit: signed-only-if-compared
            raise UsageError(
                "this is not the fingerprint of the agreement here, so nothing is signed. Somebody has another "
                "agreement: compare the files, and do not sign"
            )
        return True


def _trouble(why: str) -> None:
    print(f"secagg: {why}; trying again for two minutes", file=sys.stderr, flush=True)


def _write(path: Path, text: str) -> None:
    """Write a public file so that a reader sees the old or the new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)

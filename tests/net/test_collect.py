"""An agreement made over a hub, with a hub or a member that lies in each step."""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg import Budget, Policy
from secagg.agreement import Floors, MemberFolder, Noise, Proposal, file
from secagg.agreement.credentials import Credentials
from secagg.cli.agree_network import Joining
from secagg.cli.main import main
from secagg.cli.steps import grouped
from secagg.crypto import SegmentNoise
from secagg.crypto.certificates import CertificatePair
from secagg.errors import AgreementRefused, PeerError, UsageError
from secagg.net.collect import Collection
from secagg.net.enrol import Enrolment
from secagg.net.invitation import Invitation, enrolment_statement
from tests.net.common import make_world
from tests.net.processes import DRAFT, NAMES, free_port

ROLL_CALL = DRAFT.replace("size = 3", 'size = 3\nroll_call = true\n[policy]\nmemory = "round"')


class Member:
    """One member that takes the steps of the command, with what it was shown."""

    def __init__(self, place: Path, name: str) -> None:
        self.folder, self.credentials = MemberFolder.create(place / name), Credentials.create(place / name)
        self.shown: list[Proposal] = []
        self.joining = Joining(place / f"{name}.toml", self.folder, self.credentials, Floors(), (), self.shown.append)

    def agree(self) -> None:
        """A person that types what it is shown."""
        self.joining._compared = lambda given: True  # type: ignore[method-assign]


async def scene(place: Path, play: Callable[[Collection, dict[str, Member]], Any]) -> Any:
    document = file.parse(DRAFT.format(port=free_port()))
    async with Collection(document, place / "hub", lambda line: None) as collection:
        port = int(collection.addresses[0].rpartition(":")[2])
        await collection.start(f"127.0.0.1:{port}")
        return await play(collection, {name: Member(place, name) for name in NAMES})


def test_three_members_agree_over_a_hub_that_is_stopped_and_started_again(tmp_path: Path) -> None:
    document = file.parse(DRAFT.format(port=free_port()))
    port = int(document["transport"]["hubs"][0].rpartition(":")[2])

    async def play() -> None:
        members = {name: Member(tmp_path, name) for name in NAMES}
        for member in members.values():
            member.agree()
        first = Collection(document, tmp_path / "hub", lambda line: None)
        invitations = first.invitations
        async with first:
            await first.start(f"127.0.0.1:{port}")
            async with Enrolment(invitations["north"]) as hub:
                await hub.enrol(members["north"].folder, members["north"].credentials.certificate)
        async with Collection(document, tmp_path / "hub", lambda line: None) as second:
            assert second.invitations == invitations
            await second.start(f"127.0.0.1:{port}")
            runs = [members[name].joining.run(invitations[name], None) for name in NAMES]
            proposal, *codes = await asyncio.gather(second.complete(), *runs)
        assert codes == [0, 0, 0]
        assert list(proposal.problems()) == []
        for name in NAMES:
            assert file.read((tmp_path / f"{name}.toml").read_text()) == proposal

    asyncio.run(play())


def test_tokens_identities_and_steps_of_others_are_refused(tmp_path: Path) -> None:
    async def play(collection: Collection, members: dict[str, Member]) -> None:
        invitations, north = collection.invitations, members["north"]
        async with Enrolment(replace(invitations["north"], token=bytes(16))) as hub:
            with pytest.raises(PeerError, match="no invitation of this hub"):
                await hub.enrol(north.folder, north.credentials.certificate)
        async with Enrolment(replace(invitations["north"], pin=bytes(32))) as hub:
            with pytest.raises(PeerError, match="not the hub that sent the invitation"):
                await hub.enrol(north.folder, north.credentials.certificate)
        async with Enrolment(invitations["north"]) as hub:
            with pytest.raises(PeerError, match="not all members are here"):
                await hub.send("version = 2")
            certificate = north.credentials.certificate
            forged = {"identity": members["west"].folder.identity.public.hex(), "certificate": certificate.hex()}
            statement = enrolment_statement(invitations["north"].token, certificate)
            forged["signature"] = north.folder.identity.sign(statement).hex()
            with pytest.raises(PeerError, match="wrong signature"):
                await hub._ask("POST", "/v1/enrolment", json.dumps(forged))
            for bad in ("", "[]", "{}", json.dumps({**forged, "identity": "00"})):
                with pytest.raises(PeerError, match="expected an enrolment"):
                    await hub._ask("POST", "/v1/enrolment", bad)
            await hub.enrol(north.folder, certificate)
            await hub.enrol(north.folder, certificate)
            with pytest.raises(PeerError, match="used with another identity"):
                await hub.enrol(members["west"].folder, members["west"].credentials.certificate)
        async with Enrolment(invitations["south"]) as hub:
            with pytest.raises(PeerError, match="another member has this identity"):
                await hub.enrol(north.folder, certificate)
        for name in ("south", "west"):
            async with Enrolment(invitations[name]) as hub:
                await hub.enrol(members[name].folder, members[name].credentials.certificate)
        assert collection.proposal is not None
        south = members["south"].joining
        south._proposal = collection.proposal
        part = south._do(south._next_step())  # type: ignore[arg-type]
        async with Enrolment(invitations["north"]) as hub:
            with pytest.raises(PeerError, match="got one of another member"):
                await hub.send(part)
        async with Enrolment(invitations["south"]) as hub:
            await hub.send(part)

    asyncio.run(scene(tmp_path, play))


def seen(tmp_path: Path) -> tuple[Proposal, Invitation, dict[str, Member]]:
    """The proposal that a hub shows to its members, before anybody has committed."""

    async def play(collection: Collection, members: dict[str, Member]) -> Any:
        for name, member in members.items():
            async with Enrolment(collection.invitations[name]) as hub:
                await hub.enrol(member.folder, member.credentials.certificate)
        return collection.proposal, collection.invitations["north"], members

    return asyncio.run(scene(tmp_path, play))  # type: ignore[no-any-return]


def test_a_hub_that_changes_the_terms_is_found_out(tmp_path: Path) -> None:
    proposal, invitation, members = seen(tmp_path)
    north, terms = members["north"].joining, proposal.terms
    assert terms.transport is not None
    other = CertificatePair.generate().certificate
    certificates = terms.transport.members
    stolen = replace(terms, transport=replace(terms.transport, members=(other, *certificates[1:])))
    with pytest.raises(PeerError, match="another certificate under my name"):
        north._take(file.write(Proposal(terms=stolen)), invitation)
    north._proposal = None
    elsewhere = replace(terms, transport=replace(terms.transport, hub=other))
    with pytest.raises(PeerError, match="another hub"):
        north._take(file.write(Proposal(terms=elsewhere)), invitation)
    north._proposal = None
    weak = replace(terms, policy=replace(terms.policy, memory="round"))
    with pytest.raises(AgreementRefused):
        north._take(file.write(Proposal(terms=weak)), invitation)
    north._proposal = None
    north._take(file.write(proposal), invitation)
    longer = replace(terms, last_round=1000)
    with pytest.raises(UsageError, match="made for other terms"):
        north._take(file.write(Proposal(terms=longer)), invitation)


def test_nothing_is_signed_unless_the_fingerprint_was_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    proposal, invitation, members = seen(tmp_path)
    joinings = {name: member.joining for name, member in members.items()}
    for _ in range(2):  # commit, reveal
        for joining in joinings.values():
            joining._take(file.write(proposal), Invitation(invitation.address, invitation.pin, bytes(16)))
            joining._do(joining._next_step())  # type: ignore[arg-type]
            proposal = proposal.add(file.read_parts(file.write(joining.proposal), proposal))
    north = joinings["north"]
    north._take(file.write(proposal), invitation)
    fingerprint = proposal.agreement.fingerprint.hex()
    wrong = fingerprint[:39] + ("0" if fingerprint[39] != "0" else "1")
    shown = grouped(fingerprint)  # as people see it: blocks of 4 with blanks between them
    for typed in (wrong, fingerprint[:39], fingerprint[:8], " ", shown[:48]):
        with pytest.raises(UsageError, match="othing is signed"):
            north._compared(typed)
    with pytest.raises(UsageError, match=r"at least 10 blocks of 4 characters.* 40 without the blanks.* got 32"):
        north._compared(shown[:40])
    assert north._compared(shown[:49])
    assert north._compared(f"{fingerprint[:4]} {fingerprint[4:40].upper()}")
    assert north._compared(fingerprint)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert not north._compared(None)
    told = capsys.readouterr()
    assert "nothing is signed" in told.err
    assert "its first 10 blocks of 4 characters" in told.out


def test_floors_are_held_against_the_agreement_before_it_is_signed(tmp_path: Path) -> None:
    """What two groupings cost is known only with the seed."""
    policy = Policy(memory="round", anonymity=3, max_leverage=0.5)
    noise = Noise(segments=(SegmentNoise(clip=1.0, sigma=2**22),))
    two = {"size": 4, "schedule": "transversal", "groupings": 2, "policy": policy, "length": 2}
    unsigned = Proposal.of(make_world(tmp_path, 16, change={"noise": noise}, **two).agreement)
    floors = Floors(budget=Budget(0.1, 1e-5), memory="round")
    floors.check(unsigned.terms)
    folder, credentials = MemberFolder(tmp_path / "3"), Credentials(tmp_path / "3")
    for mine in (floors, replace(floors, budget=None)):
        joining = Joining(tmp_path / "study.toml", folder, credentials, mine, (), print)
        joining._proposal = unsigned
        step = joining._next_step()
        assert step is not None
        if mine is floors:
            with pytest.raises(AgreementRefused, match="budget"):
                joining._do(step)
            assert folder.signed() == {}
        else:
            joining._do(step)
            assert list(folder.signed()) == [unsigned.agreement.fingerprint.hex()]


def test_a_member_is_told_over_a_hub_what_else_it_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, invitation = make_world(tmp_path, 3), str(Invitation("https://hub.example:8443", bytes(32), bytes(16)))
    folder = MemberFolder(tmp_path / "0")
    folder.record_signed(first.terms, first.agreement.fingerprint)
    second = Proposal(terms=replace(first.terms, name="second"))

    def sign(path: Path, place: Path, given: Invitation, same: None, floors: Any, earlier: Any, show: Any) -> int:
        show(second)
        return 0

    monkeypatch.setattr("secagg.cli.agree_network.sign", sign)
    assert main(["agree", str(tmp_path / "second.toml"), "--sign", str(folder.path), "--hub", invitation]) == 0
    assert f"You also signed {first.terms.name!r} ({first.agreement.fingerprint.hex()[:16]}" in capsys.readouterr().out


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=16, max_size=16), st.data())
def test_an_invitation_has_one_spelling(pin: bytes, token: bytes, data: st.DataObject) -> None:
    invitation = Invitation("https://hub.example:8443", pin, token)
    text = str(invitation)
    assert Invitation.parse(text) == invitation
    assert token.hex() not in repr(invitation)
    place = data.draw(st.integers(text.index("#"), len(text) - 1))
    with pytest.raises(UsageError, match="copy all of it"):
        Invitation.parse(text[:place] + text[place + 1 :])
    assert sha256(token).digest() in enrolment_statement(token, b"certificate")


def test_terms_are_judged_before_anybody_is_invited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Terms that no agreement can have, and those that only a seed shows to break their policy."""
    good = DRAFT.format(port=free_port())
    small = "[policy]\nanonymity = 3\n[transport]"
    for change, problem in (
        (("size = 3", "size = 3\nroll_call = true"), "set memory = 'round'"),
        (("size = 3", 'size = 3\nkind = "survivors"'), "set memory = 'round'"),
        (("size = 3", "size = 2\ngroupings = 2"), "size"),
        (("[transport]", small.replace("3", "4")), "cannot hide anybody among 4"),
        (("https://", "http://"), "such as https"),
        (("hubs =", 'authority = "00"\nhubs ='), "transport.authority: unknown key"),
        (("length = 4", "lenght = 4"), "did you mean 'length'"),
    ):
        (tmp_path / "study.toml").write_text(good.replace(*change))
        assert main(["agree", str(tmp_path / "study.toml"), "--collect", str(tmp_path / "keys")]) == 2
        told = capsys.readouterr()
        assert problem.lower() in told.err.lower(), told.err
        assert "study.toml: " in told.err
        assert told.out == ""
        assert not (tmp_path / "keys").exists(), "nobody was invited"


def test_the_hub_says_which_floors_its_terms_cross(tmp_path: Path) -> None:
    made = Collection(file.parse(ROLL_CALL.format(port=1)), tmp_path / "hub", print)
    assert [why.partition(":")[0] for why in made.objections] == ["memory", "roll_call"]
    assert Collection(file.parse(DRAFT.format(port=1)), tmp_path / "other", print).objections == ()


def test_a_draft_that_changed_under_its_members_is_refused(tmp_path: Path) -> None:
    seen(tmp_path)
    [saved] = (tmp_path / "hub" / "collect").glob("*/state.json")
    port = re.findall(r"127\.0\.0\.1:(\d+)", saved.read_text())[0]
    same = DRAFT.format(port=port)
    for text in (same.replace("last = 9", "last = 8"), same.replace("length = 4", "length = 5")):
        with pytest.raises(UsageError, match="give this one another name"):
            Collection(file.parse(text), tmp_path / "hub", print)
    assert Collection(file.parse(same), tmp_path / "hub", print).proposal is not None


def test_a_draft_is_shown_before_its_members_have_identities(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "study.toml"
    path.write_text(DRAFT.format(port=8443))
    assert main(["agree", str(path)]) == 0
    told = capsys.readouterr().out
    assert "no identities yet" in told
    assert "ompare" not in told, "there is nothing to compare"
    assert main(["agree", str(path), "--check", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["complete"] is False
    path.write_text(
        DRAFT.format(port=8443).replace("size = 3", 'size = 3\nroll_call = true\n[policy]\nmemory = "round"')
    )
    assert main(["agree", str(path)]) == 1
    assert "BELOW MY FLOORS" in capsys.readouterr().out
    assert main(["agree", str(path), "--commit", str(tmp_path / "north")]) == 2


def test_a_draft_needs_names_and_an_address(tmp_path: Path) -> None:
    whole = file.parse(DRAFT.format(port=1))
    for change, problem in (
        ({"members": []}, "with a name for each"),
        ({"members": [{"name": "a"}, {"name": "a"}]}, "one name"),
        ({"members": [{"name": "a", "identity": "00"}]}, "names only"),
        ({"transport": {}}, "address of this hub"),
    ):
        with pytest.raises(UsageError, match=problem):
            Collection({**whole, **change}, tmp_path / "hub", print)

"""A member's folder: its key is private, and what it did once it does not do differently a second time."""

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from secagg.agreement import Member, Terms
from secagg.agreement.folder import AlreadySigned, MemberFolder
from secagg.errors import UsageError
from tests.secagg.agreement.common import made

TERMS = made()[0].terms


def fewer(terms: Terms, *gone: int) -> Terms:
    return replace(terms, members=tuple(member for member in terms.members if member.id not in gone))


@pytest.fixture
def folder(tmp_path: Path) -> MemberFolder:
    return MemberFolder.create(tmp_path / "me")


def test_an_identity_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    first = MemberFolder.create(tmp_path / "me")
    assert MemberFolder.create(tmp_path / "me").identity.public == first.identity.public
    key = tmp_path / "me" / "identity.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "me").stat().st_mode) & 0o077 == 0
    assert first.identity.private.hex() not in repr(first)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_an_identity_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    MemberFolder.create(tmp_path)
    (tmp_path / "identity.key").chmod(mode)
    with pytest.raises(UsageError, match=f"others can read it .mode {mode:04o}.*make a new identity"):
        MemberFolder(tmp_path)


def test_a_missing_or_damaged_identity_says_what_to_do_and_shows_no_secret(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="`secagg identity"):
        MemberFolder(tmp_path)
    secret = MemberFolder.create(tmp_path).identity.private.hex()
    (tmp_path / "identity.key").write_text(secret[:-2])
    with pytest.raises(UsageError, match="expected 64 hexadecimal digits") as refused:
        MemberFolder(tmp_path)
    assert secret[:16] not in str(refused.value)


def test_a_folder_finds_its_member(folder: MemberFolder) -> None:
    with pytest.raises(UsageError, match="is not a member's"):
        folder.member_of(TERMS)
    mine = replace(TERMS.members[2], identity=folder.identity.public)
    assert folder.member_of(replace(TERMS, members=(*TERMS.members[:2], mine, TERMS.members[3]))) == 2


def test_a_contribution_is_stored_privately_once_per_terms_and_never_reused(folder: MemberFolder) -> None:
    other = replace(TERMS, last_round=9)
    secrets = [folder.contribution(terms) for terms in (TERMS, TERMS, other)]
    assert secrets[0] == secrets[1] == folder.stored_contribution(TERMS)
    assert secrets[0] != secrets[2]
    stored = list(folder.path.rglob("*.contribution"))
    assert len(stored) == 2
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in stored)
    with pytest.raises(UsageError, match="commit first"):
        folder.stored_contribution(replace(TERMS, last_round=8))


def test_a_contribution_of_another_process_is_not_overwritten(folder: MemberFolder) -> None:
    """Two processes commit at once: both get the contribution that was stored first."""
    asked = []

    def slow(count: int) -> bytes:
        if not asked:
            asked.append(1)
            asked.append(MemberFolder(folder.path).contribution(TERMS))
        return os.urandom(count)

    assert folder.contribution(TERMS, slow) == asked[1]


def test_a_member_signs_one_agreement_per_name(folder: MemberFolder) -> None:
    folder.record_signed(TERMS, bytes(32))
    folder.record_signed(TERMS, bytes(32))
    for terms in (TERMS, replace(TERMS, last_round=9)):
        with pytest.raises(AlreadySigned, match=r"'simulation', 0000.*choose another name and list .* predecessors"):
            folder.record_signed(terms, bytes([1]) * 32)
    folder.record_signed(replace(TERMS, name="another"), bytes([1]) * 32)
    assert folder.signed() == {"00" * 32: "simulation", "01" * 32: "another"}


def test_after_signing_there_is_no_other_seed_under_this_name(folder: MemberFolder) -> None:
    folder.record_signed(TERMS, bytes(32))
    with pytest.raises(AlreadySigned, match="already signed"):
        folder.contribution(fewer(TERMS, 3))
    with pytest.raises(AlreadySigned, match="already signed"):
        folder.record_seed_seen(fewer(TERMS, 3))


def test_a_new_attempt_at_a_seed_has_fewer_members(folder: MemberFolder) -> None:
    """Otherwise whoever relays the contributions could refuse seeds until one suits."""
    stranger = Member(4, bytes(range(32)))
    folder.record_seed_seen(TERMS)
    folder.record_seed_seen(TERMS)  # the same ceremony
    for again in (
        replace(TERMS, last_round=9),
        replace(TERMS, members=(*TERMS.members, stranger)),
        replace(TERMS, members=(*TERMS.members[:2], stranger)),
    ):
        with pytest.raises(AlreadySigned, match="a new attempt has fewer members"):
            folder.record_seed_seen(again)
        with pytest.raises(AlreadySigned, match="a new attempt has fewer members"):
            folder.contribution(again)
    folder.record_seed_seen(fewer(TERMS, 3))
    with pytest.raises(AlreadySigned):
        folder.record_seed_seen(fewer(TERMS, 2))
    folder.record_seed_seen(fewer(TERMS, 2, 3))
    folder.record_seed_seen(replace(TERMS, name="another"))


def test_terms_may_change_while_no_seed_can_be_known(folder: MemberFolder) -> None:
    for last in (5, 6, 7):
        folder.contribution(replace(TERMS, last_round=last))
    folder.record_seed_seen(replace(TERMS, last_round=7))


def test_a_record_reaches_the_disk_before_it_counts(folder: MemberFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda handle: (synced.append(os.readlink(f"/proc/self/fd/{handle}")), real(handle))[1]
    )
    folder.record_signed(TERMS, bytes(32))
    training = next((folder.path / "trainings").iterdir())
    assert any(".signed." in name for name in synced)
    assert str(training) in synced

"""The files of a member: their names, who may read them, what is durable, and what is left behind."""

import fcntl
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from secagg.agreement.credentials import Credentials
from secagg.agreement.folder import MemberFolder, create_record
from secagg.crypto.certificates import CertificatePair, to_pem
from secagg.errors import UsageError
from secagg.simulation import make_agreement
from tests.secagg.agreement.common import made

TERMS = made()[0].terms


@pytest.fixture(autouse=True)
def common_umask() -> Iterator[None]:
    """The mask of most systems, so that a mode that is too wide shows."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def refused(problem: str) -> Any:
    return pytest.raises(UsageError, match=f"^{re.escape(problem)}$")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- records -------------------------------------------------------------------------------------------------------


def test_a_record_is_written_once_for_its_owner_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "record"
    open_files = len(os.listdir("/proc/self/fd"))
    assert create_record(path, "first\n") == "first\n"
    assert create_record(path, "second\n") == "first\n"
    assert (path.read_text(), mode(path)) == ("first\n", 0o600)
    assert os.listdir(tmp_path) == ["record"]
    assert len(os.listdir("/proc/self/fd")) == open_files


def test_the_whole_record_is_synced_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[int, bool]] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        if stat.S_ISREG(os.fstat(handle).st_mode):
            synced.append((os.fstat(handle).st_size, (tmp_path / "record").exists()))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    create_record(tmp_path / "record", "five\n")
    assert synced == [(5, False)]


def test_the_folders_of_a_member_are_for_nobody_else(tmp_path: Path) -> None:
    folder = MemberFolder.create(tmp_path / "a" / "me")
    folder.contribution(TERMS)
    folder.keep_agreements([made()[0]])
    folder.keep_agreements([made()[0]])
    training = folder.path / "trainings" / sha256(TERMS.name.encode()).hexdigest()[:32]
    agreements = folder.path / "agreements"
    assert [mode(place) for place in (folder.path, training, agreements)] == [0o700] * 3
    assert (training / "name").read_text() == f"{TERMS.name}\n"
    assert sorted(path.name for path in training.iterdir()) == [f"{TERMS.hash.hex()}.contribution", "name"]
    assert [path.name for path in agreements.iterdir()] == [made()[0].fingerprint.hex()]
    assert folder.earlier(replace(TERMS, name="next", predecessors=(made()[0].fingerprint,))) == (made()[0],)


@pytest.mark.parametrize("bit", [0o001, 0o002, 0o004, 0o010, 0o020, 0o040])
def test_any_right_of_others_on_a_key_is_refused(tmp_path: Path, bit: int) -> None:
    MemberFolder.create(tmp_path)
    Credentials.create(tmp_path)
    for name, of in (("identity.key", MemberFolder), ("tls.pem", Credentials)):
        (tmp_path / name).chmod(0o600 | bit)
        with pytest.raises(UsageError, match=rf"{name}: others can read it \(mode {0o600 | bit:04o}\)"):
            of(tmp_path)
        (tmp_path / name).chmod(0o700)
        of(tmp_path)


def test_a_key_that_is_no_hexadecimal_number_is_damaged(tmp_path: Path) -> None:
    MemberFolder.create(tmp_path)
    for wrong in ("zz" * 32, "00" * 31, "00" * 33, ""):
        (tmp_path / "identity.key").write_text(wrong)
        with refused(f"{tmp_path}/identity.key: expected 64 hexadecimal digits; the file is damaged"):
            MemberFolder(tmp_path)


def test_one_process_at_a_time_has_the_lock(tmp_path: Path) -> None:
    folder = MemberFolder.create(tmp_path)
    with folder.locked():
        assert mode(tmp_path / "lock") == 0o600
        with (tmp_path / "lock").open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with (tmp_path / "lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with pytest.raises(ValueError, match="inside"), folder.locked():
        raise ValueError("inside")
    with (tmp_path / "lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_an_agreement_that_was_kept_is_found_if_it_is_named(tmp_path: Path) -> None:
    folder = MemberFolder.create(tmp_path)
    first, second = made()[0], make_agreement(members=3, size=3, length=1, clip=1.0)[0]
    folder.keep_agreements([first, second])
    names = (second.fingerprint, bytes(32), first.fingerprint)
    assert folder.earlier(replace(TERMS, name="next", predecessors=names)) == (second, first)
    (tmp_path / "agreements" / first.fingerprint.hex()).write_text(second.to_bytes().hex())
    with pytest.raises(UsageError, match="expected the agreement of this fingerprint, got another one"):
        folder.earlier(replace(TERMS, name="next", predecessors=names))
    for wrong in ("no hexadecimal digits", "00"):
        (tmp_path / "agreements" / first.fingerprint.hex()).write_text(wrong)
        with pytest.raises(UsageError, match="the agreement is damaged: "):
            folder.earlier(replace(TERMS, name="next", predecessors=names))


# --- the certificate -----------------------------------------------------------------------------------------------


def test_credentials_are_made_once(tmp_path: Path) -> None:
    place = tmp_path / "a" / "b"
    first = Credentials.create(place)
    assert first.path == place / "tls.pem"
    assert (mode(place), mode(first.path)) == (0o700, 0o600)
    assert Credentials.create(place).certificate == first.certificate == Credentials(str(place)).certificate
    text = first.path.read_text()
    assert text.startswith("-----BEGIN PRIVATE KEY-----")
    assert text.endswith(to_pem(first.certificate))


def test_key_and_certificate_stand_in_any_order(tmp_path: Path) -> None:
    pair = CertificatePair.generate()
    path = tmp_path / "tls.pem"
    path.touch(0o600)
    path.write_text(to_pem(pair.certificate) + pair.key.decode())
    assert Credentials(tmp_path).certificate == pair.certificate


def test_missing_or_damaged_credentials_say_what_to_do(tmp_path: Path) -> None:
    with refused(f"there is no {tmp_path}/tls.pem; `secagg identity {tmp_path}` makes it"):
        Credentials(tmp_path)
    (tmp_path / "tls.pem").touch(0o600)
    (tmp_path / "tls.pem").write_bytes(CertificatePair.generate().key)
    with refused(f"{tmp_path}/tls.pem: expected a private key and a certificate in PEM; the file is damaged"):
        Credentials(tmp_path)

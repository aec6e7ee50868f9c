"""`secagg identity` and `secagg agree`, each step as a process of its own, as members run them on their machines."""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from secagg.agreement import file
from secagg.agreement.folder import MemberFolder
from secagg.agreement.proposal import Proposal
from secagg.cli import agree, steps
from secagg.cli.main import main
from secagg.crypto.keys import Identity
from tests.net.zygote import COMMAND, Process
from tests.secagg.agreement.common import NIST, PULSES, beacon_terms, beaconed, made, named, pulse, signed

TERMS = """
version = 2
name = "study"
[rounds]
last = 9
[groups]
size = 3
[vector]
length = 4
clip = 1.0
"""


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    process = Process(COMMAND, tuple(map(str, arguments)), Path.cwd())
    out, err = process.communicate(60)
    return subprocess.CompletedProcess(arguments, process.returncode or 0, out, err)


def proposal(folder: Path, members: Sequence[int], extra: str = "", head: str = "", size: int = 3) -> Path:
    """A proposal for members whose folders are folder/0, folder/1, ..."""
    terms = TERMS.replace("size = 3", f"size = {size}")
    text = head + (terms.replace("study", "second study") if head else terms) + extra
    for member in members:
        assert main(["identity", str(folder / str(member))]) == 0
        public = (folder / str(member) / "identity.key").read_text().strip()
        key = Identity.from_private(bytes.fromhex(public)).public.hex()
        text += f'[[members]]\nid = {member}\nname = "site {member}"\nidentity = "{key}"\n'
    path = folder / "study.toml"
    path.write_text(text)
    return path


def test_three_members_agree_by_files_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each member has its own copy of the file and sends small files; every step is a process."""
    original = proposal(tmp_path, range(3))
    copies = {member: tmp_path / f"home{member}" / "study.toml" for member in range(3)}
    for copy in copies.values():
        copy.parent.mkdir()
        copy.write_text(original.read_text())
    for step, kind in (("--commit", "commitment"), ("--reveal", "reveal"), ("--sign", "signature")):
        for member, copy in copies.items():
            done = run("agree", copy, step, tmp_path / str(member))
            assert done.returncode == 0, done.stderr
            assert f"study.{member}.{kind}.toml" in done.stdout
        sent = [copy.with_name(f"study.{member}.{kind}.toml") for member, copy in copies.items()]
        for copy in copies.values():
            assert main(["agree", str(copy), "--add", *map(str, sent)]) == 0
    checked = run("agree", copies[0], "--check")
    assert checked.returncode == 0, checked.stderr
    fingerprint = re.search(r"(?:[0-9a-f]{4} ){15}[0-9a-f]{4}", checked.stdout).group()  # type: ignore[union-attr]
    agreement = file.read(copies[0].read_text()).agreement
    assert fingerprint.replace(" ", "") == agreement.fingerprint.hex()
    assert len({copy.read_text() for copy in copies.values()}) == 1
    capsys.readouterr()
    assert main(["agree", str(copies[1]), "--check", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["complete"], report["signed"], report["problems"]) == (True, 3, [])


def tampered(text: str, section: str, member: int) -> str:
    before, _, after = text.partition(section)
    line = next(line for line in after.splitlines() if line.startswith(f"{member} = "))
    return before + section + after.replace(line, re.sub(r"[0-9a-f](?=\"[ }]*$)", lambda m: "10"[m[0] == "1"], line), 1)


@pytest.mark.parametrize("section", ["[seed.commitments]", "[seed.reveals]", "[signatures]"])
def test_check_finds_a_tampered_file_and_names_the_member(
    tmp_path: Path, section: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.toml"
    path.write_text(tampered(file.write(signed(made()[0])), section, 2))
    assert main(["agree", str(path), "--check"]) == 1
    out = capsys.readouterr().out
    assert "  member 2: " in out
    assert "wrong signature" in out
    assert "member 1" not in out


def test_check_names_every_member_that_has_not_signed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.toml"
    whole = signed(made()[0])
    path.write_text(file.write(Proposal.of(made()[0]).add([whole.signatures[1]])))
    assert main(["agree", str(path), "--check", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["problems"] == [f"member {member} has not signed" for member in (0, 2, 3)]
    floors = tmp_path / "floors.toml"
    floors.write_text("size = 2\nanonymity = 2\n")
    assert main(["agree", str(path), "--floors", str(floors)]) == 0  # showing is not checking


def test_a_second_agreement_of_the_same_name_is_not_signed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first = agreed(tmp_path, range(3))
    assert main(["agree", str(first), "--sign", str(tmp_path / "0")]) == 0
    assert main(["agree", str(first), "--sign", str(tmp_path / "0")]) == 0  # the same one again
    other = tmp_path / "other"  # the same identities, without their records
    for member in range(3):
        (other / str(member)).mkdir(parents=True)
        shutil.copy2(tmp_path / str(member) / "identity.key", other / str(member))
    second = agreed(other, range(3), "[policy]\nmin_survivors = 3\n")
    capfd.readouterr()
    assert main(["agree", str(second), "--sign", str(tmp_path / "0")]) == 2
    assert "already signed an agreement named 'study'" in capfd.readouterr().err
    assert not (other / "study.0.signature.toml").exists()


def test_an_earlier_agreement_that_is_not_named_is_pointed_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = agreed(tmp_path, range(3))
    assert main(["agree", str(first), "--sign", str(tmp_path / "0")]) == 0
    assert "You also signed" not in capsys.readouterr().out
    fingerprint = file.read(first.read_text()).agreement.fingerprint.hex()
    for head, pointed_out in (
        (f"predecessors = []{chr(10)}", True),
        (f'predecessors = ["{fingerprint}"]{chr(10)}', False),
    ):
        second = proposal(tmp_path, range(3), head=head)
        assert main(["agree", str(second), "--commit", str(tmp_path / "0")]) == 0
        said = f"You also signed 'study' ({fingerprint[:16]}...)" in capsys.readouterr().out
        assert said == pointed_out


def agreed(folder: Path, members: Sequence[int], extra: str = "", head: str = "", size: int = 3) -> Path:
    path = proposal(folder, members, extra, head, size)
    current = file.read(path.read_text())
    folders = {member: MemberFolder(folder / str(member)) for member in members}
    for step in (steps.commit_step, steps.reveal_step):
        current = current.add(step(current, folders[member]) for member in list(folders))
    path.write_text(file.write(current))
    return path


def test_nobody_reveals_before_all_have_committed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = proposal(tmp_path, range(3))
    assert main(["agree", str(path), "--commit", str(tmp_path / "0")]) == 0
    assert main(["agree", str(path), "--reveal", str(tmp_path / "0")]) == 2
    assert "no commitment from clients 1, 2" in capfd.readouterr().err
    assert list(tmp_path.glob("*.reveal.toml")) == []
    assert list(tmp_path.rglob("*.seen")) == []  # nothing was revealed, so nothing is recorded


def test_a_relay_that_swaps_my_commitment_gets_no_contribution(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = proposal(tmp_path, range(3))
    before = path.read_text()
    for member in range(3):
        assert main(["agree", str(path), "--commit", str(tmp_path / str(member))]) == 0
    (contribution,) = (tmp_path / "0").rglob("*.contribution")
    contribution.unlink()
    path.write_text(before)
    for member in range(3):  # member 0 commits anew, and the others' steps are the same
        assert main(["agree", str(path), "--commit", str(tmp_path / str(member))]) == 0
    contribution_now = contribution.read_text()
    contribution.write_text(contribution_now[::-1].strip() + "\n")
    assert main(["agree", str(path), "--reveal", str(tmp_path / "0")]) == 2
    assert "differs from the one that it sent" in capfd.readouterr().err


def test_a_new_attempt_leaves_out_whoever_withheld(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = proposal(tmp_path, range(4))
    for step, members in (("--commit", range(4)), ("--reveal", range(3))):
        for member in members:
            assert main(["agree", str(path), step, str(tmp_path / str(member))]) == 0
    again = proposal(tmp_path, range(4), "[policy]\nmin_survivors = 3\n")
    assert main(["agree", str(again), "--commit", str(tmp_path / "0")]) == 2
    assert "a new attempt has fewer members" in capfd.readouterr().err
    assert agreed(tmp_path, range(3)).exists()


def test_a_huge_file_of_another_member_is_not_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = proposal(tmp_path, range(3))
    (tmp_path / "huge.toml").write_text("#" * 3_000_000)
    assert main(["agree", str(path), "--add", str(tmp_path / "huge.toml")]) == 2
    assert "bytes for this agreement, got 3000000" in capfd.readouterr().err


# --- floors and predecessors -------------------------------------------------------------------------------


def test_what_is_below_my_floors_is_shown_and_not_signed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = agreed(tmp_path, range(3))
    (tmp_path / "0" / "floors.toml").write_text("size = 5\n")
    floors = ["--floors", str(tmp_path / "0" / "floors.toml")]
    capfd.readouterr()
    assert main(["agree", str(path), *floors]) == 1
    assert "BELOW MY FLOORS; do not sign it:\n  groups have 3 members, my floor is 5" in capfd.readouterr().out
    for step in ("--commit", "--reveal", "--sign"):
        assert main(["agree", str(path), step, str(tmp_path / "0")]) == 2  # the floors in its folder
        assert "groups have 3 members, my floor is 5 (size)" in capfd.readouterr().err
    assert list((tmp_path / "0").rglob("signed")) == []
    assert main(["agree", str(path), "--sign", str(tmp_path / "1"), "--floors", floors[1]]) == 2
    (tmp_path / "0" / "floors.toml").write_text("sise = 5\n")
    assert main(["agree", str(path), "--sign", str(tmp_path / "0")]) == 2
    assert "sise: unknown key; did you mean 'size'?" in capfd.readouterr().err


def test_a_successor_is_judged_together_with_its_predecessors(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Other groups of the same members: together with the earlier ones they would expose somebody."""
    first = agreed(tmp_path, range(9))
    earlier = file.read(first.read_text()).agreement
    shutil.move(first, tmp_path / "first.toml")
    head = f'predecessors = ["{earlier.fingerprint.hex()}"]\n'
    while True:  # a new seed gives other groups in all but 1 of 280 cases
        second = agreed(tmp_path, range(9), head=head)
        if file.read(second.read_text()).agreement.groups(0) != earlier.groups(0):
            break
        for member in range(9):
            shutil.rmtree(tmp_path / str(member) / "trainings")
    capfd.readouterr()
    sign = ["agree", str(second), "--sign", str(tmp_path / "0")]
    assert main(sign) == 2
    assert "predecessor" in capfd.readouterr().err
    assert main([*sign, "--earlier", str(tmp_path / "first.toml")]) == 2
    assert "policy" in capfd.readouterr().err
    assert list((tmp_path / "0").rglob("signed")) == []
    for member in range(9):
        shutil.rmtree(tmp_path / str(member) / "trainings")
    union = agreed(tmp_path, range(9), head=head, size=9)  # one group, which consists of whole groups of before
    assert main(["agree", str(union), "--sign", str(tmp_path / "0"), "--earlier", str(tmp_path / "first.toml")]) == 0


# --- the beacon --------------------------------------------------------------------------------------------


def test_a_pulse_completes_the_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.toml"
    path.write_text(file.write(Proposal(terms=beacon_terms(), approvals=Proposal.of(beaconed()).approvals)))
    assert main(["agree", str(path), "--add", *(str(NIST / name) for name in PULSES["2026"])]) == 0
    assert agree.grouped(beaconed().fingerprint.hex()) in capsys.readouterr().out
    assert file.read(path.read_text()).agreement == beaconed()


def test_terms_are_approved_only_before_the_pulse_exists(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    beacon = named(pulse())
    extra = f'[seed]\nfrom = "beacon"\nchain = 2\ntime = 2026-08-31T19:04:00Z\nkey = "{beacon.key.hex()}"\n'
    path = proposal(tmp_path, range(3), extra)
    monkeypatch.setattr(time, "time", lambda: beacon.time / 1000)
    assert main(["agree", str(path), "--commit", str(tmp_path / "0")]) == 2
    assert "expected a pulse that does not exist yet, got 2026-08-31 19:04 UTC" in capfd.readouterr().err
    assert list(tmp_path.rglob("*.seen")) == []
    monkeypatch.setattr(time, "time", lambda: beacon.time / 1000 - 1)
    for member in range(3):
        assert main(["agree", str(path), "--commit", str(tmp_path / str(member))]) == 0
    assert main(["agree", str(path), "--add", *(str(NIST / name) for name in PULSES["2026"])]) == 0
    for member in range(3):
        assert main(["agree", str(path), "--sign", str(tmp_path / str(member))]) == 0
    assert main(["agree", str(path), "--check"]) == 0
    assert main(["agree", str(path), "--reveal", str(tmp_path / "0")]) == 2
    assert "there is nothing to reveal" in capfd.readouterr().err
    assert main(["agree", str(path), "--add", str(NIST / PULSES["2026"][0])]) == 2
    assert "got 1 and 0" in capfd.readouterr().err


# --- what a user sees --------------------------------------------------------------------------------------


def test_an_identity_is_made_once_and_shown_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for _ in range(2):
        assert main(["identity", str(tmp_path / "me"), "--json"]) == 0
        shown.append(json.loads(capsys.readouterr().out))
    assert [one["new"] for one in shown] == [True, False]
    assert shown[0]["identity"] == shown[1]["identity"] == MemberFolder(tmp_path / "me").identity.public.hex()
    assert main(["identity", str(tmp_path / "me")]) == 0
    assert capsys.readouterr().out == f'identity = "{shown[0]["identity"]}"\n'


def test_a_key_that_others_can_read_stops_every_step(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = proposal(tmp_path, range(3))
    (tmp_path / "0" / "identity.key").chmod(0o644)
    for step in (["identity", str(tmp_path / "0")], ["agree", str(path), "--commit", str(tmp_path / "0")]):
        assert main(step) == 2
        assert "others can read it" in capfd.readouterr().err
    assert list(tmp_path.glob("*.commitment.toml")) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("version = 1\n", "expected a file of version 2, got version 1"),
        ('{"training": 1}', "expected an agreement in TOML"),
        ("\udcff", "expected an agreement or settings in TOML, in UTF-8"),
    ],
)
def test_another_file_is_refused_in_one_line(
    tmp_path: Path, text: str, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "old.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    assert main(["agree", str(path)]) == 2
    err = capfd.readouterr().err
    assert says in err
    assert str(path) in err
    assert err.count("\n") == 1
    assert main(["agree", str(tmp_path / "none.toml")]) == 2


def test_an_agreement_of_1000_members_and_200_rounds_is_checked_in_seconds(tmp_path: Path) -> None:
    from secagg.agreement.proposal import Signature
    from secagg.simulation.agree import make_agreement

    agreement, identities = make_agreement(members=1000, size=5, length=10, clip=1.0, rounds=200)
    whole = Proposal.of(agreement).add(Signature(v, agreement.sign(v, identities[v])) for v in identities)
    path = tmp_path / "large.toml"
    path.write_text(file.write(whole))
    start = os.times()
    assert main(["agree", str(path), "--check"]) == 0
    used = os.times()
    assert used.user + used.system - start.user - start.system < 5

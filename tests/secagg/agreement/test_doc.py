"""docs/agreement.md: its commands make an agreement of three sites, and its tables name every key."""

import re
import shutil
from pathlib import Path

import pytest

from secagg.agreement import canonical, file
from secagg.agreement.folder import MemberFolder
from secagg.cli.main import main

PAGE = (Path(__file__).parents[3] / "docs" / "agreement.md").read_text()
SITES = ("north", "south", "west")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.M | re.S)


def test_the_commands_of_the_page_make_an_agreement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each site has a machine of its own; after each step, the small files are sent to all."""
    homes = {site: tmp_path / f"{site}'s machine" for site in SITES}
    for home in homes.values():
        home.mkdir()
    [proposal] = blocks("toml")
    commands = [line.removeprefix("$ secagg ") for block in blocks("console") for line in block.splitlines()]
    assert len(commands) == 9
    for command in commands:
        for site, home in homes.items():
            monkeypatch.chdir(home)
            words = [word if word != "north" else site for word in command.split()]
            arguments = [str(p) for word in words for p in (sorted(Path().glob(word)) if "*" in word else [word])]
            assert main(arguments) == 0, command
        if command.startswith("identity"):
            for site, home in homes.items():
                proposal = proposal.replace(site.upper(), MemberFolder(home / site).identity.public.hex())
            for home in homes.values():
                (home / "study.toml").write_text(proposal)
        for sent in [path for home in homes.values() for path in home.glob("study.*.*.toml")]:
            for home in homes.values():
                if home != sent.parent:
                    shutil.copy(sent, home)
    texts = {(home / "study.toml").read_text() for home in homes.values()}
    assert len(texts) == 1
    assert list(file.read(texts.pop()).problems()) == []
    monkeypatch.chdir(homes["north"])
    [program] = blocks("python")
    exec(program, {})


def test_the_page_has_the_layout_of_terms_and_origin() -> None:
    for name, layout in canonical.LAYOUT.fields:
        assert f"| {name} | {layout.layout} |" in PAGE


def test_the_page_names_every_key_of_the_file() -> None:
    for key in (*file._GROUPS, *file._STEPS, "predecessors", "weight", "identity", "shape", "clip", "bound", "memory"):
        assert f"`{key}`" in PAGE or f"[seed.{key}]" in PAGE, key


def test_the_floors_of_the_page_are_floors() -> None:
    [floors] = [block for block in blocks("text") if block.startswith("size = ")]
    assert file.read_floors(floors).size == 5

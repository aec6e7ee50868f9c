"""docs/statistics.md: its commands and its program run, and print what the page shows."""

import re
from pathlib import Path

import pytest

from secagg.agreement.statistics.kinds import KINDS
from secagg.agreement.statistics.section import _KEYS, LAYOUT
from secagg.cli.main import main

PAGE = (Path(__file__).parents[3] / "docs" / "statistics.md").read_text()
SITES = ("north", "south", "west")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.M | re.S)


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for site, text in zip(SITES, blocks("csv"), strict=True):
        Path(f"{site}.csv").write_text(text)
    [proposal] = blocks("toml")
    Path("clinics.toml").write_text(proposal)
    commands = [line.removeprefix("$ secagg ") for block in blocks("console") for line in block.splitlines()]
    *outputs, noise = blocks("text")
    for command, shown in zip(commands, outputs, strict=True):
        assert main(command.split()) == 0
        assert capsys.readouterr().out.startswith(shown), command
    assert main(["agree", "clinics.toml"]) == 0
    capsys.readouterr()
    Path("clinics.toml").write_text(proposal.replace("10000 ", "200 ").replace("step = 0.1", "step = 10") + noise)
    assert main(["agree", "clinics.toml"]) == 0
    assert "epsilon" in capsys.readouterr().out
    assert main([*commands[-1].split(), "--json"]) == 0
    assert '"noise": ' in capsys.readouterr().out
    [program] = blocks("python")
    exec(program, {})
    assert "south age: 1 of 3 values" in capsys.readouterr().out


def test_the_page_has_every_kind_every_key_and_the_layout() -> None:
    for kind in KINDS:
        assert f'`"{kind.kind}"`' in PAGE
    for key in {key for keys in _KEYS.values() for key in keys} | {"most_rows", "min_sites"}:
        assert f"`{key}`" in PAGE, key
    for name, layout in LAYOUT.fields:  # type: ignore[attr-defined]
        assert f"| {name} | {layout.layout} |" in PAGE

"""docs/network.md: its commands, run as separate processes, go from nothing to a sum; its programs run."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from secagg.net import Settings, read_settings
from secagg.net.metrics import _HELP
from tests.net.processes import NAMES, finish, free_port, line_with, start

PAGE = (Path(__file__).parents[2] / "docs" / "network.md").read_text()
AGES = {"north": (34, 51), "south": (29, 45, 72), "west": (54,)}


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.M | re.S)


def words_of(line: str, invitation: str = "") -> list[str]:
    return shlex.split(line.partition("$ secagg ")[2].replace("INVITATION", invitation))


def test_the_commands_of_the_page_go_from_nothing_to_a_sum(tmp_path: Path) -> None:
    """Two commands at the hub, three at each site, as on machines of their own."""
    draft = blocks("toml")[0].replace("8443", str(free_port()))
    lines = [line for block in blocks("console") for line in block.splitlines()]
    assert [line.partition("$")[0] for line in lines] == ["hub", "site", "site", "hub", "site"]
    collect, identity, sign, serve, join = lines
    machines = {name: tmp_path / name for name in ("hub", *NAMES)}
    for one in machines.values():
        one.mkdir()
    (machines["hub"] / "study.toml").write_text(draft)
    hub = start(machines["hub"], *words_of(collect))
    for made in [start(machines[name], *words_of(identity)) for name in NAMES]:
        finish(made)
    line_with(hub, "private way")
    shown = [re.search(r"(\w+): .*'(https.*)'", hub.stdout.readline()) for _ in NAMES]
    invitations = {found[1]: found[2] for found in shown if found}
    assert set(invitations) == set(NAMES)
    sites = {name: start(machines[name], *words_of(sign, invitations[name])) for name in NAMES}
    fingerprints = set()
    for site in sites.values():
        line_with(site, "by voice before you sign")
        fingerprints.add(site.stdout.readline().strip())
    [fingerprint] = fingerprints
    for site in sites.values():
        site.stdin.write(fingerprint + "\n")
        site.stdin.flush()
    for site in sites.values():
        finish(site)
    assert fingerprint in finish(hub)[0]
    assert len({(place / "study.toml").read_text() for place in machines.values()}) == 1

    for name, ages in AGES.items():
        (machines[name] / "patients.csv").write_text("\n".join(map(str, ("age", *ages))) + "\n")
    hub = start(machines["hub"], *words_of(serve))
    joined = [start(machines[name], *words_of(join)) for name in NAMES]
    assert all("all rounds are done" in finish(site)[0] for site in joined)
    printed = finish(hub)[0]
    assert blocks("text")[0].strip() in printed
    [stored] = machines["hub"].rglob("round-0.json")
    assert json.loads(stored.read_text())["groups"][0]["members"] == list(NAMES)
    assert stored.with_suffix(".csv").exists()
    command = [sys.executable, "-m", "secagg", "status", "keys", "--json"]  # one with an interpreter of its own
    [status] = json.loads(subprocess.run(command, cwd=machines["hub"], capture_output=True, check=True).stdout)
    assert (status["role"], status["state"], status["alive"]) == ("hub", "stopped", False)


def test_the_programs_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec("\n".join(blocks("python")), {})


def test_the_page_has_all_settings_with_their_defaults() -> None:
    text = blocks("toml")[1]
    assert read_settings(text) == Settings()
    document = tomllib.loads(text)
    assert set(document) == {one.name for one in fields(Settings)}
    for name in ("deadlines", "limits"):
        assert set(document[name]) == {one.name for one in fields(getattr(Settings(), name))}


def test_the_page_names_every_metric() -> None:
    for name in _HELP:
        assert f"`{name}" in PAGE, name

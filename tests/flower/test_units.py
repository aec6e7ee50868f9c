"""The systemd units and the compose file of docs/flower-operating.md, as they stand there."""

import configparser
import os
import re
import shlex
import shutil
import tomllib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from fl.cli import parser
from fl.flower.example import write_example
from fl.flower.supernode import start_node

PAGE = (Path(__file__).parents[2] / "docs" / "flower-operating.md").read_text()
UNITS = ("share-node.service", "share-link.service", "share-gate.service")
KNOWN = {
    "Unit": {"Description", "After", "Wants"},
    "Service": {
        *("User", "WorkingDirectory", "Environment", "ExecStartPre", "ExecStart", "Restart", "RestartSec"),
        *("TimeoutStartSec", "UMask", "NoNewPrivileges", "ProtectSystem", "ReadWritePaths", "PrivateTmp"),
    },
    "Install": {"WantedBy"},
}
"""What systemd 252 takes: `systemd-analyze verify` had no complaint."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def unit(name: str) -> dict[str, dict[str, list[str]]]:
    """Section -> key -> values: a key may be there several times."""
    (text,) = [block for block in blocks("ini") if block.startswith(f"# {name}\n")]
    text = text.replace("\\\n", " ")
    check = configparser.ConfigParser(strict=False, interpolation=None)
    check.read_string(text)  # it is INI
    found: dict[str, dict[str, list[str]]] = {}
    section = ""
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("["):
            section = line.strip("[]")
        elif not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(section, {}).setdefault(key, []).append(value)
    assert check.sections() == list(found)
    return found


def flowers(module: str, parser: str) -> Any:
    """A parser of Flower's own, which has no public name."""
    return getattr(import_module(module), parser)()


def check_command(words: Sequence[str]) -> Any:
    """The command of this package or of Flower takes these arguments; SystemExit if not."""
    program, *rest = Path(words[0]).name, *words[1:]
    if program == "flower-superlink":
        options = flowers("flwr.superlink.cli.flower_superlink", "_parse_args_run_superlink").parse_args(rest)
        assert options.host == "127.0.0.1"  # only the gate lets anybody in
        assert options.enable_supernode_auth
        assert options.database
        assert "--disable-runtime-dependency-installation" in rest
        return options
    assert program == "share", program
    options = parser().parse_args(rest)
    if rest[1] == "node":
        flowers("flwr.supernode.cli.flower_supernode", "_parse_args_run_supernode").parse_args(options.options)
    return options


@pytest.mark.parametrize("name", UNITS)
def test_the_units_are_complete_and_their_commands_exist(name: str) -> None:
    found = unit(name)
    assert {section: set(keys) - KNOWN[section] for section, keys in found.items()} == {
        section: set() for section in KNOWN
    }
    service = found["Service"]
    for line in (*service.get("ExecStartPre", ()), *service["ExecStart"]):
        words = shlex.split(line)
        assert words[0].startswith("/opt/share/bin/")
        check_command(words)
    assert service["NoNewPrivileges"] == ["yes"]
    assert service["ProtectSystem"] == ["strict"]
    for key in ("After", "Wants"):
        for other in found["Unit"][key]:
            assert other in (*UNITS, "network-online.target")


def test_the_unit_of_a_node_runs_its_own_code_and_waits_before_it_starts_again() -> None:
    service = unit("share-node.service")["Service"]
    options = check_command(shlex.split(service["ExecStart"][0]))
    assert options.app == "share_app.client:app"
    (seconds,) = service["RestartSec"]
    assert int(seconds) > 60  # a SuperNode that is back within a minute is turned away (305)
    environment = dict(pair.split("=", 1) for line in service["Environment"] for pair in line.split())
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
    assert environment["PYTHONPATH"] == service["WorkingDirectory"][0]
    for path in (environment["FLWR_HOME"], environment["NUMBA_CACHE_DIR"], str(options.folder)):
        assert path.startswith(service["ReadWritePaths"][0])


def test_the_unit_of_the_superlink_finds_flowers_commands() -> None:
    service = unit("share-link.service")["Service"]
    environment = dict(pair.split("=", 1) for line in service["Environment"] for pair in line.split())
    assert environment["PATH"].startswith(f"{Path(shlex.split(service['ExecStart'][0])[0]).parent}:")


def test_the_compose_file_publishes_only_the_gate() -> None:
    yaml = pytest.importorskip("yaml")
    (text,) = blocks("yaml")
    services = yaml.safe_load(text)["services"]
    assert set(services) == {"link", "gate"}
    link, gate = (check_command(shlex.split(services[name]["command"])) for name in ("link", "gate"))
    (published,) = services["link"]["ports"]
    assert published.split(":")[1] == gate.listen.rpartition(":")[2]
    assert gate.link == f"{link.host}:{link.port}"
    assert "ports" not in services["gate"]
    assert services["gate"]["network_mode"] == "service:link"
    assert all(volume.endswith(":ro") for volume in services["gate"]["volumes"])


def test_the_key_of_the_server_is_named_alike_everywhere() -> None:
    link = check_command(shlex.split(unit("share-link.service")["Service"]["ExecStart"][0]))
    gate = check_command(shlex.split(unit("share-gate.service")["Service"]["ExecStart"][0]))
    assert link.ssl_certfile == str(gate.certificate)
    assert link.ssl_keyfile == str(gate.key)
    assert link.ssl_ca_certfile == str(gate.root_certificates)
    assert gate.link == f"{link.host}:{link.port}"


def test_a_node_finds_flowers_commands_with_the_path_of_a_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service has a PATH without the folder of a virtual environment. The warm executor's folder stays first."""
    monkeypatch.setattr(os, "environ", {**os.environ, "PATH": "/usr/bin:/bin"})
    monkeypatch.setattr(os, "execv", lambda *_: None)
    start_node(tmp_path, [], executor=tmp_path / "warm")
    path = os.environ["PATH"]
    assert path.startswith(f"{tmp_path / 'warm'}{os.pathsep}")
    assert shutil.which("flower-superexec", path=path)


def test_the_app_to_start_from_installs_nothing(tmp_path: Path) -> None:
    """Anybody could own the name of a package on an index."""
    write_example(tmp_path / "app")
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == []
    assert "share flower node --app share_app.client:app" in (tmp_path / "app" / "README.md").read_text()

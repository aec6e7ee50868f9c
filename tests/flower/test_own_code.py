"""A node that runs only the app that its operator installed."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from flwr.clientapp import ClientApp
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND
from flwr.supernode.runtime import run_clientapp

from fl.errors import ConfigError, FlowerError
from fl.flower import own_code
from fl.flower.federation import Federation, free_port

installed = ClientApp()
MINE = f"{__name__}:installed"


@pytest.fixture(autouse=True)
def unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test replaces in Flower is put back."""
    for name in own_code.REPLACED:
        monkeypatch.setattr(run_clientapp, name, getattr(run_clientapp, name))


def test_flower_loads_the_installed_app_and_unpacks_nothing(tmp_path: Path) -> None:
    runtime: Any = run_clientapp
    run = own_code.own_command(MINE)
    assert callable(run)
    load = runtime.get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
    assert load("you/other-app", "1.0.0", "hash") is installed
    assert runtime.install_from_fab(b"a bundle", skip_prompt=True) is None
    assert runtime.install_app_dependencies(tmp_path, launch_id="x") is None


@pytest.mark.parametrize("name", own_code.REPLACED)
def test_another_version_of_flower_runs_nothing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delattr(run_clientapp, name)
    with pytest.raises(FlowerError, match=f"{name} is missing"):
        own_code.own_command(MINE)


def test_what_is_no_app_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected a ClientApp"):
        own_code.own_command("math:hypot")


def test_other_commands_of_flower_refuse(tmp_path: Path) -> None:
    """A SuperLink may also ask for an agent or a model, which would run its bundle."""
    own_code.write_commands(tmp_path, MINE)
    assert {file.name for file in tmp_path.iterdir()} == set(TASK_TYPE_TO_COMMAND.values())
    for name in set(TASK_TYPE_TO_COMMAND.values()) - {own_code.COMMAND}:
        done = subprocess.run([tmp_path / name, "--token", "x"], capture_output=True, check=False)
        assert (done.returncode, b"is refused" in done.stderr) == (1, True)
    assert f"-m fl.flower.own_code {MINE}" in (tmp_path / own_code.COMMAND).read_text()


OTHER = """
from pathlib import Path
Path({mark!r}).write_text("imported")
from flwr.app import Message
from flwr.clientapp import ClientApp
app = ClientApp()
@app.query()
def query(message, context):
    return Message(message.content, reply_to=message)
"""
SERVER = """
import time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()
@app.main()
def main(grid, context):
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.5)
    content = RecordDict({"c": ConfigRecord({"who": "the server"})})
    for reply in grid.send_and_receive([Message(content, node, "query") for node in nodes], timeout=300):
        print("REPLY", reply.content["c"]["who"], flush=True)
"""
INSTALLED = """
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
app = ClientApp()
@app.query()
def query(message, context):
    return Message(RecordDict({"c": ConfigRecord({"who": "the installed app"})}), reply_to=message)
"""
PROJECT = """
[project]
name = "other-app"
version = "1.0.0"
description = "x"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "you"
[tool.flwr.app.components]
serverapp = "other_app.server:app"
clientapp = "other_app.client:app"
[tool.flwr.app.config]
x = 1
"""


@pytest.mark.long
@pytest.mark.parametrize("pinned", [True, False])
def test_real_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pinned: bool) -> None:
    """A SuperLink sends an app that leaves a mark: on a plain node, and not on one that runs its own code."""
    app, commands, modules, mark = (tmp_path / name for name in ("app", "commands", "modules", "mark"))
    for folder in (app / "other_app", commands, modules):
        folder.mkdir(parents=True)
    (app / "pyproject.toml").write_text(PROJECT)
    for name, text in (("__init__", ""), ("client", OTHER.format(mark=str(mark))), ("server", SERVER)):
        (app / "other_app" / f"{name}.py").write_text(text)
    (modules / "installed_app.py").write_text(INSTALLED)
    own_code.write_commands(commands, "installed_app:app")
    with Federation(tmp_path, slow=True) as federation:  # no warm executor: its commands would be first on PATH
        federation.start_link()
        node = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{federation.port}"]
        node += ["--port", str(free_port())]
        if pinned:
            monkeypatch.setenv("PYTHONPATH", str(modules))
            node = ["env", f"PATH={commands}:{federation.environment['PATH']}", *node]
        federation._start(node, "node")
        assert federation.run(app).wait(600) == 0
        text = federation.log("run")
    assert ("REPLY the installed app" in text, "REPLY the server" in text) == (pinned, not pinned)
    assert mark.exists() is not pinned

"""`share flower node`: a SuperNode and a warm executor together.

The executor (`fl.flower.warm`) is a process beside the SuperNode and ends with it. This process becomes the SuperNode,
so that signals and exit codes are Flower's. Flower's SuperNode sleeps 3 seconds when there is no message, and half a
second between two looks for an answer. Both sleeps are shortened for the versions of Flower that the tests have seen;
with another version the SuperNode runs as it comes, and says so.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any, Final, Self

from fl.errors import ConfigError, FlowerError
from fl.flower import warm

SUPERNODE: Final = "flower-supernode"
SEEN: Final = ("1.41",)  # versions of Flower that the tests have run with
POLL: Final = 0.4  # seconds between two questions to the SuperLink
TASK_SHARE: Final = 4  # Flower's executor asks the SuperNode so many times as often
ANSWER_POLL: Final = 0.05  # seconds between two looks for the answer of the app, in the same process
TASK_POLL: Final = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"  # Flower's own setting, of its executor
QUIET: Final = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
WARM: Final = "warm"
FOLDER, SIMULATE = "share-node", "share-simulate"


def start_node(
    folder: Path,
    options: Sequence[str],
    *,
    simulate: bool = False,
    poll: float = POLL,
    executor: Path | None = None,
    app: str = "",
) -> None:
    """Start the node of this folder; this process becomes its SuperNode.

    With `app` (`module:app`) it runs only this app of this machine, whatever the SuperLink sends (fl.flower.own_code).
    `options` are those of `flower-supernode`. `executor` is the folder of a warm executor that runs already, for
    several nodes on one machine.
    """
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}; `share flower identity {folder}` makes it")
    for name, value in {**QUIET, TASK_POLL: str(poll / TASK_SHARE)}.items():
        os.environ.setdefault(name, value)
    if app and executor is not None:
        raise ConfigError("--app: a warm executor that runs already may run other code; leave out --executor")
    executor = executor or Executor.start(folder.resolve() / WARM, app=app).wait()
    beside = Path(sys.executable).parent  # Flower starts its commands by name, and a service has a PATH without them
    os.environ["PATH"] = os.pathsep.join([str(executor), str(beside), os.environ.get("PATH", os.defpath)])
    command = [sys.executable, "-m", "fl.flower.supernode", str(poll), *with_config(folder, options, simulate)]
    os.execv(sys.executable, command)


def with_config(folder: Path, options: Sequence[str], simulate: bool) -> list[str]:
    """The options of `flower-supernode`, with this node's folder in the node configuration."""
    config = f"{FOLDER}={json.dumps(str(folder.resolve()))}" + (f" {SIMULATE}=true" if simulate else "")
    found, given = list(options), "--node-config"
    if given in found[:-1]:
        place = found.index(given) + 1
        found[place] = f"{config} {found[place]}"
        return found
    return [*found, given, config]


@dataclass(frozen=True)
class Executor:
    """A warm executor that was started. It ends with the process that started it, however that ends."""

    folder: Path
    process: subprocess.Popen[bytes]

    @classmethod
    def start(
        cls,
        folders: Path,
        *,
        environment: Mapping[str, str] | None = None,
        clean: Path | None = None,
        app: str = "",
    ) -> Self:
        """Start one in a folder of its own below `folders`. At the end it removes that folder, and `clean`."""
        folders.mkdir(mode=0o700, parents=True, exist_ok=True)
        warm.remove_stale(folders)
        folder = warm.prepare(folders / str(os.getpid()), app)
        end, owner = os.pipe()
        os.set_inheritable(owner, True)  # the SuperNode inherits it when it takes the place of this process
        process = subprocess.Popen(
            [sys.executable, "-m", "fl.flower.warm", str(folder), str(end), app, *([str(clean)] if clean else [])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            pass_fds=[end],
            env=environment,
        )
        os.close(end)
        return cls(folder, process)

    def stop(self) -> None:
        """End it before the process that started it ends."""
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def wait(self) -> Path:
        """Its folder, when it is ready."""
        said = self.process.stdout
        if said is not None and not said.closed:
            line = said.readline()
            said.close()
            if line.strip() != b"ready":
                raise FlowerError("the warm executor did not start; the lines above say why")
        return self.folder


class Clock:
    """The module `time`, with shorter sleeps."""

    def __init__(self, poll: float) -> None:
        self._poll = poll

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, self._poll if seconds >= 1 else ANSWER_POLL))


def shorten_sleeps(poll: float) -> str:
    """Shorten the sleeps of Flower's SuperNode; why not, if that is not possible with this version of Flower."""
    found = version("flwr")
    if ".".join(found.split(".")[:2]) not in SEEN:
        return f"Flower {found} was not tried with SHARE ({', '.join(SEEN)} was)"
    loop: Any = import_module("flwr.supernode.start_client_internal")
    if getattr(loop, "time", None) is not time:
        return "the SuperNode of this Flower does not sleep as expected"
    loop.time = Clock(poll)
    return ""


def main() -> None:
    """`python -m fl.flower.supernode POLL OPTIONS`: Flower's own command, with shorter sleeps."""
    poll, options = float(sys.argv[1]), sys.argv[2:]
    if why := shorten_sleeps(poll):
        print(f"share: {why}: this node waits up to 3 seconds for each message", file=sys.stderr)
    (command,) = entry_points(group="console_scripts", name=SUPERNODE)
    sys.argv = [SUPERNODE, *options]
    command.load()()


if __name__ == "__main__":
    main()

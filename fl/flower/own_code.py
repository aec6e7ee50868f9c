"""A node that runs the app that its operator installed, and never what a SuperLink sends.

Flower sends an app to the nodes as a bundle. A SuperNode starts the command `flwr-clientapp` for each message, which
unpacks the bundle and imports it. A SuperNode looks for its commands on PATH, so a folder that is first on PATH decides
what runs. In that folder, `flwr-clientapp` is Flower's own with three functions replaced: the bundle is not unpacked,
none of its dependencies is installed, and the app is one of this machine (`module:app`). Flower's other commands, which
a SuperLink may also ask for and which would run a bundle too, are there as well and refuse.

    python -m fl.flower.own_code MODULE:APP ARGUMENTS     # as `flwr-clientapp ARGUMENTS`
"""

import shlex
import stat
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any, Final

from fl.config.own import imported
from fl.errors import ConfigError, FlowerError

COMMAND: Final = "flwr-clientapp"
RUNTIME: Final = "flwr.supernode.runtime.run_clientapp"
UNPACK, INSTALL, LOAD = REPLACED = ("install_from_fab", "install_app_dependencies", "get_load_client_app_fn")
REFUSAL: Final = '#!/bin/sh\necho "share: this node runs only the app of its operator: {name} is refused" >&2\nexit 1\n'


def own_command(reference: str) -> Callable[[], object]:
    """Flower's `flwr-clientapp` as a function that runs this app, whatever the SuperLink sends."""
    from flwr.clientapp import ClientApp

    app = imported(reference, "--app")
    if not isinstance(app, ClientApp):
        raise ConfigError(f"--app: expected a ClientApp at {reference!r}, got {type(app).__name__}")
    runtime: Any = import_module(RUNTIME)
    missing = [name for name in REPLACED if not callable(getattr(runtime, name, None))]
    if missing:  # audit: own-code-or-none
        raise FlowerError(
            f"Flower {version('flwr')} runs apps in another way ({missing[0]} is missing), so this node cannot promise "
            "to run only its own code; use a version that docs/flower.md names"
        )

    def load(**_: Any) -> Callable[..., ClientApp]:
        return lambda *_: app

    setattr(runtime, UNPACK, _nothing)  # audit: own-code-bundle-not-unpacked
    setattr(runtime, INSTALL, _nothing)  # audit: own-code-no-dependencies
    setattr(runtime, LOAD, load)  # audit: own-code-runs
    (command,) = entry_points(group="console_scripts", name=COMMAND)
    run: Callable[[], object] = command.load()
    return run


def _nothing(*_: Any, **__: Any) -> None:
    """In place of what would put code of a SuperLink on this machine."""


def write_commands(folder: Path, reference: str) -> None:
    """Write Flower's commands to a folder that will be first on the PATH of a SuperNode."""
    from flwr.supercore import constant

    commands: Mapping[Any, str] = constant.TASK_TYPE_TO_COMMAND
    own = shlex.join([sys.executable, "-m", "fl.flower.own_code", reference])
    for name in sorted({*commands.values(), COMMAND}):
        text = f'#!/bin/sh\nexec {own} "$@"\n' if name == COMMAND else REFUSAL.format(name=name)
        (folder / name).write_text(text, "utf-8")
        (folder / name).chmod(stat.S_IRWXU)


def main() -> None:
    """Run one message with the app that the first argument names."""
    reference, *arguments = sys.argv[1:]
    run = own_command(reference)
    sys.argv = [COMMAND, *arguments]
    run()


if __name__ == "__main__":
    main()

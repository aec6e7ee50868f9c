"""The `share` command. A user's mistake is one line on stderr and exit code 2, without a traceback.

Each command imports what it needs when it runs, so that `share --help` starts quickly and commands that need
no torch do not load it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from errno import ENOSPC
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl.errors import ConfigError, ShareError

if TYPE_CHECKING:
    from fl.reporting.records import Folder
    from fl.training.loop import Trained

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

MISTAKE, FAILED, STOPPED = 2, 1, 130
EXTRAS = {"flwr": "flower", "aiohttp": "flower"} | dict.fromkeys(
    ("torch", "safetensors", "msgspec", "tomli_w", "rich", "jinja2", "matplotlib"), "fl"
)
"""Packages that only an extra installs, and the name of that extra."""
SET: dict[str, Any] = {"action": "append", "default": [], "metavar": "KEY=VALUE", "help": "change one key"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. An error that comes out of a user's own code keeps its traceback."""
    if sys.stderr is None:  # its descriptor is closed; from here to the end of the process there is one
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    options = parser().parse_args(arguments)
    try:
        return int(options.run(options) or 0)
    except ShareError as error:
        return _complain(str(error), error.exit_code)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS or _in_own_code(error):
            raise
        command = f"pip install 'share-secagg[{EXTRAS[package]}]'"
        return _complain(f"this command needs {package}; install it with: {command}", MISTAKE)
    except KeyboardInterrupt:
        return _complain("stopped", STOPPED)
    except BrokenPipeError as error:
        # A training has errors of its own for its files. Any other is unexpected, but for an answer on a full disk.
        if (options.run is _train and error.errno != ENOSPC) or _in_own_code(error):
            raise
        return FAILED
    except OSError as error:
        if _in_own_code(error):
            raise
        return _complain(f"{error.filename or ''}: {error.strerror or error}".lstrip(": "), MISTAKE)


def _in_own_code(error: BaseException) -> bool:
    """Whether an error went through code that neither this package, Python nor an installed package has."""
    from traceback import walk_tb

    from fl.config.own import is_of_user

    return any(is_of_user(Path(frame.f_code.co_filename)) for frame, _ in walk_tb(error.__traceback__))


def _complain(text: str, code: int) -> int:
    print(f"share: {text}", file=sys.stderr)
    return code


def _need(package: str) -> None:
    """Fail before anything is written if a package that the command needs is not installed."""
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise ModuleNotFoundError(name=package)


class _Version(argparse.Action):
    """Print the version. It is looked up only on request, because the lookup takes time."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        print(f"share {version('share-secagg')}")
        parser.exit()


def parser() -> argparse.ArgumentParser:
    """All commands and options."""
    top = argparse.ArgumentParser(
        prog="share",
        description="Federated training with SHARE: secure sums over clusters of clients, then robust "
        "aggregation of the cluster means.",
    )
    top.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_training(commands)
    _add_sweep(commands)
    _add_plan(commands)
    _add_data(commands)
    _add_flower(commands)
    option = _command(commands, "config", _config, "check a configuration, or describe all keys")
    option("file", nargs="?", help="check this file and print it with all defaults")
    option("--set", **SET)
    option("--curve", help="one of the curves in the file")
    option("--describe", action="store_true", help="print each key with its type, default and meaning")
    option("--markdown", action="store_true", help="print the description as docs/configuration.md")
    return top


def _command(commands: Commands, name: str, run: Callable[..., int | None], about: str) -> Callable[..., Any]:
    """Add a command. Returns the function that adds an option to it."""
    command = commands.add_parser(name, help=about)
    command.set_defaults(run=run)
    return command.add_argument


def _add_training(commands: Commands) -> None:
    about = "a first run of about a minute: digits, attackers, real cryptography"
    option = _command(commands, "quickstart", _quickstart, about)
    option("--out", type=Path, default=Path("share-quickstart"), help="folder for the runs and the report")
    option("--seed", type=int, default=0, help="seed of the run (0)")
    option("--rounds", type=int, help="number of rounds (12)")
    option("--json", action="store_true", help="print the three summaries as JSON")

    option = _command(commands, "train", _train, "run the training that a configuration file describes")
    option("file", nargs="?", help="a TOML file, or the name of a packaged experiment (--list)")
    option("--set", **SET)
    option("--curve", help="one of the curves in the file")
    option("--out", type=Path, help="folder for the record (runs/NAME)")
    option("--resume", type=Path, metavar="DIR", help="continue the run in DIR")
    option("--device", help="torch device: cpu, cuda, cuda:1, mps, or auto")
    option("--workers", type=int, help="number of training processes")
    _add_exports(option)
    option("--list", action="store_true", help="list the packaged experiments")
    option("--json", action="store_true", help="print the summary, or the list, as JSON")

    option = _command(commands, "report", _report, "write runs as one HTML page and a picture")
    option("folders", nargs="+", type=Path, metavar="DIR", help="folder of a run")
    option("--out", type=Path, help="the page (DIR/report.html, or share-report.html)")
    option("--no-picture", action="store_true", help="write no PNG next to the page")
    option("--reference", type=Path, metavar="CSV", help="published curves, as curve_id,round,test_acc")
    option("--curve", action="append", default=[], help="a curve of the CSV to draw next to the runs")
    option("--json", action="store_true", help="also print the table of the runs as JSON")

    from fl.reproduction.options import add_options

    add_options(_command(commands, "reproduce", _reproduce, "run the paper's figures and compare"), SET)


def _add_sweep(commands: Commands) -> None:
    about = "train every combination of seeds, rules, attacks or other keys, and compare"
    option = _command(commands, "sweep", _sweep, about)
    option("file", nargs="?", help="a TOML file, or the name of a packaged sweep (--list)")
    option("--set", **SET)
    option("--out", type=Path, help="folder for the runs, tables and report (sweeps/NAME); one with runs is continued")
    option("--jobs", type=int, help="runs that train at once (one per core)")
    option("--dry-run", action="store_true", help="say how long it takes, from measured rounds, and train nothing")
    option("--json", action="store_true", help="print the results as JSON")
    _add_exports(option)
    option("--list", action="store_true", help="list the packaged sweeps")


def _add_exports(option: Callable[..., Any]) -> None:
    option("--tensorboard", metavar="FOLDER", help="also write every round for TensorBoard, in a folder per run")
    option("--mlflow", metavar="URI", help="also log every round to this MLflow server or store, as a run each")


def _settings(options: argparse.Namespace) -> list[str]:
    """What `--set` and the options for exports say, as `key=value`."""
    exports = {"tensorboard": options.tensorboard, "mlflow": options.mlflow}
    return [*options.set, *(f"export.{key}={json.dumps(value)}" for key, value in exports.items() if value is not None)]


def _add_plan(commands: Commands) -> None:
    option = _command(commands, "plan", _plan, "recommend cluster size, reclusterings and schedule")
    option("--clients", type=int, required=True, help="number of clients")
    option("--byzantine", type=int, required=True, help="number of attackers to tolerate")
    option("--dropout", type=float, default=0.0, help="fraction of clients that drop out (0)")
    option("--rule", default="median", help="robust rule (median)")
    option("--anonymity", type=int, default=3, help="smallest acceptable anonymity T (3)")
    option("--max-leverage", type=float, default=0.5, help="largest acceptable leverage of a client (0.5)")
    option("--holds", type=float, default=0.95, help="fraction of rounds in which the rule must hold (0.95)")
    option("--groups", default="whole", help="whole groups, or survivors, whose dropouts are recovered (whole)")
    option("--memory", default="training", help="protect all rounds together, or each round alone (training, round)")
    option("--rounds", type=int, default=20, help="rounds of the training (20)")
    option("--cell", type=int, default=300, help="for survivors, most clients in one secure aggregation (300)")
    option("--seed", type=int, default=0, help="seed of the simulated rounds (0)")
    option(
        "--epsilon",
        type=float,
        help="show the noise that this epsilon for all rounds costs (docs/differential-privacy.md)",
    )
    option("--delta", type=float, default=1e-6, help="delta of this epsilon (1e-6)")
    option("--noise-colluders", type=int, default=0, help="clients that may add no noise (0)")
    option("--json", action="store_true", help="print all candidates as JSON")
    option("--picture", type=Path, metavar="PNG", help="draw the trade-off")


def _add_data(commands: Commands) -> None:
    command = commands.add_parser("data", help="list, download or import data sets")
    actions = command.add_subparsers(title="actions", required=True, metavar="ACTION")
    option = _command(actions, "list", _data_list, "list the data sets and whether they are present")
    option("--json", action="store_true", help="print the list as JSON")
    option = _command(actions, "fetch", _data_fetch, "download a data set from its publisher and check it")
    option("name", help="data set")
    option("--url", help="a mirror of the publisher's files")
    option = _command(actions, "import", _data_import, "copy a data set from a folder or archive and check it")
    option("name", help="data set")
    option("path", type=Path, help="folder or archive")
    for action in actions.choices.values():
        action.add_argument("--folder", type=Path, help="the data folder (SHARE_DATA, or the user's data folder)")


def _add_flower(commands: Commands) -> None:
    command = commands.add_parser("flower", help="train on several machines with Flower")
    actions = command.add_subparsers(title="actions", required=True, metavar="ACTION")

    about = "run an experiment with SuperLink and SuperNodes on this machine"
    option = _command(actions, "local", _flower_local, about)
    option("file", help="a TOML file, or the name of a packaged experiment")
    option("--nodes", type=int, required=True, help="number of clients; each is a SuperNode")
    option("--set", **SET)
    option("--out", type=Path, help="folder for the record (runs/NAME-flower)")
    option("--stage-seconds", type=float, default=60.0, help="time limit for one answer of a client (60)")
    option("--training-seconds", type=float, default=600.0, help="time limit for local training (600)")

    from fl.flower.commands import add_commands

    add_commands(partial(_command, actions))


def _quickstart(options: argparse.Namespace) -> int:
    from fl.quickstart import quickstart

    return quickstart(options.out, seed=options.seed, rounds=options.rounds, as_json=options.json)


def _train(options: argparse.Namespace) -> int:
    from fl.config.read import packaged_experiments, read_tables

    if options.list:
        listed = {name: list(read_tables(name).get("curves", {})) for name in packaged_experiments()}
        lines = (name + (f"  (curves: {', '.join(curves)})" if curves else "") for name, curves in listed.items())
        print(json.dumps(listed, indent=1) if options.json else "\n".join(lines))
        return 0
    if (options.file is None) == (options.resume is None):
        raise ConfigError("train: expected either a configuration file or --resume DIR")
    if options.resume is not None and (options.out is not None or options.curve is not None):
        raise ConfigError("train: --resume continues in the same folder; leave out --out and --curve")
    _need("torch")
    settings = _settings(options)
    settings += [f'machine.device="{options.device}"'] if options.device else []
    settings += [f"machine.workers={options.workers}"] if options.workers is not None else []
    from fl.config.checks import load
    from fl.reporting.records import Folder
    from fl.reporting.stdout import kept_clean

    with kept_clean(options.json):
        if options.resume is not None:
            folder = Folder.resume(options.resume, settings)
        else:
            experiment = load(options.file, settings, options.curve)
            folder = Folder.create(options.out or Path("runs") / experiment.name, experiment)
        with folder:
            done = _trained(folder)
    if done is None:
        return _complain(f"stopped; continue with: share train --resume {folder.path}", STOPPED)
    if options.json:
        from fl.reporting.rows import with_folder

        print(json.dumps(with_folder(folder.path), indent=1))
        return 0
    from fl.reporting.measures import describe_summary

    print(describe_summary(done.experiment, done.summary))
    print(f"record: {folder.path}\nreport: share report {folder.path}")
    return 0


def _trained(folder: Folder) -> Trained | None:
    """The training in a folder, or None if it was stopped."""
    from fl.reporting.progress import display
    from fl.training.interrupt import Stopped
    from fl.training.loop import run

    try:
        return run(folder.experiment, folder=folder, show=display())
    except Stopped:
        return None


def _sweep(options: argparse.Namespace) -> int:
    from fl.config.grid import PACKAGED, read_sweep
    from fl.config.read import packaged_experiments

    if options.list:
        print("\n".join(packaged_experiments(PACKAGED)))
        return 0
    if options.file is None:
        raise ConfigError("sweep: expected a sweep file, or --list for those in the package")
    _need("torch")
    settings = _settings(options)
    from fl.reporting.stdout import kept_clean
    from fl.reporting.sweep_progress import sweep_display
    from fl.sweeps.folder import folder_of
    from fl.sweeps.sweep import forecast, sweep

    with kept_clean(options.json):
        asked = read_sweep(options.file, settings)
        out: Path = options.out or folder_of(Path(options.file)) or Path("sweeps") / asked.name
        if options.dry_run:
            answer = forecast(options.file, out=out, jobs=options.jobs, settings=settings)
        else:
            try:
                done = sweep(options.file, out=out, jobs=options.jobs, settings=settings, show=sweep_display())
            except KeyboardInterrupt:
                return _complain(f"stopped; the same command continues the sweep in {out}", STOPPED)
    if options.dry_run:
        print(json.dumps(answer.to_json(), indent=1) if options.json else answer)
        return 0
    print(json.dumps(done.results.to_json(), indent=1) if options.json else done)
    for run, error in done.failed.items():
        print(f"share: {run} failed: {error}", file=sys.stderr)
    return FAILED if done.failed else 0


def _report(options: argparse.Namespace) -> None:
    from fl.reporting.report import read_reference, report
    from fl.reporting.rows import rows
    from fl.reporting.stdout import kept_clean

    if bool(options.reference) != bool(options.curve):
        raise ConfigError("report: --reference and --curve need each other; give both or none")
    folders: list[Path] = options.folders
    out: Path = options.out or (folders[0] / "report.html" if len(folders) == 1 else Path("share-report.html"))
    references = [read_reference(options.reference, curve) for curve in options.curve]
    picture = None if options.no_picture else out.with_suffix(".png")
    with kept_clean(options.json):
        runs = report(folders, out, picture=picture, references=references)
    print(*filter(None, (out, picture)), sep="\n", file=sys.stderr if options.json else None)
    if options.json:
        print(json.dumps(rows(runs), indent=1))


def _reproduce(options: argparse.Namespace) -> int:
    from fl.reproduction.command import reproduce

    return reproduce(options)


def _plan(options: argparse.Namespace) -> int:
    from fl import plan_text, planner

    fields = planner.Question.__dataclass_fields__
    answer = planner.plan(planner.Question(**{name: getattr(options, name) for name in fields}))
    print(json.dumps(answer.to_json(), indent=1) if options.json else plan_text.as_text(answer))
    if options.picture:
        from fl.reporting.picture import draw_plan

        draw_plan(answer, options.picture)
        print(f"picture: {options.picture}", file=sys.stderr)
    return 0 if answer.recommended else FAILED


def _data_list(options: argparse.Namespace) -> None:
    from fl import data

    found = data.available(options.folder)
    if options.json:
        print(json.dumps([asdict(entry) | {"path": entry.path and str(entry.path)} for entry in found], indent=1))
        return
    for entry in found:
        print(f"{entry.name:<12} {'here' if entry.present else '-':<5} {entry.about}; {entry.terms}")
    print(f"folder: {data.data_folder(options.folder)}")


def _data_fetch(options: argparse.Namespace) -> None:
    from fl import data
    from fl.reporting.progress import download_display

    with download_display() as show:
        place = data.fetch(options.name, options.url, folder=options.folder, progress=show)
    print(place)


def _data_import(options: argparse.Namespace) -> None:
    from fl import data

    print(data.import_folder(options.name, options.path, folder=options.folder))


def _flower_local(options: argparse.Namespace) -> None:
    from fl.config.checks import load

    experiment = load(options.file, [*options.set, f"clients={options.nodes}"])
    _need("flwr")
    from fl.flower.federation import run_here
    from fl.reporting.measures import describe_summary
    from fl.reporting.progress import display
    from fl.reporting.records import recorded

    out = options.out or Path("runs") / f"{experiment.name}-flower"
    seconds = [f"stage-seconds={options.stage_seconds}", f"training-seconds={options.training_seconds}"]
    run_here(experiment, out, settings=seconds, show=display())
    print(describe_summary(experiment, recorded(out).summary))
    print(f"record: {out}\nreport: share report {out}")


def _config(options: argparse.Namespace) -> None:
    if options.file:
        from fl.config.checks import load
        from fl.config.read import to_toml

        text = to_toml(load(options.file, options.set, options.curve))
    elif options.describe or options.markdown:
        from fl.config.describe import describe, describe_markdown

        text = describe_markdown() if options.markdown else describe()
    else:
        raise ConfigError("config: expected a file to check, or --describe to list all keys")
    sys.stdout.write(text)

"""The `share` command. A user's mistake is one line on stderr and exit code 2, never a traceback."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fl.config.schema import ConfigError

MISTAKE, FAILED, STOPPED = 2, 1, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    options = parser().parse_args(arguments)
    from fl.reporting.records import RecordError

    try:
        code: int = options.run(options)
        return code
    except (ConfigError, RecordError) as error:
        return _complain(str(error), MISTAKE)
    except KeyboardInterrupt:
        return _complain("stopped", STOPPED)
    except BrokenPipeError:
        return FAILED
    except OSError as error:
        return _complain(f"{error.filename or ''}: {error.strerror or error}".lstrip(": "), MISTAKE)
    except Exception as error:
        if type(error).__name__ in ("DataError", "TrainingError", "WorkerError", "FlowerError"):
            return _complain(str(error), MISTAKE if type(error).__name__ == "DataError" else FAILED)
        raise


def _complain(text: str, code: int) -> int:
    print(f"share: {text}", file=sys.stderr)
    return code


def parser() -> argparse.ArgumentParser:
    """Every command and option."""
    top = argparse.ArgumentParser(
        prog="share", description="Train with SHARE: secure sums of clusters, robust aggregation on top."
    )
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")

    command = commands.add_parser(
        "quickstart", help="see it work: digits, attackers, real cryptography, a minute"
    )
    command.add_argument(
        "--out", type=Path, default=Path("share-quickstart"), help="folder for the runs and report"
    )
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--rounds", type=int, default=None, help="more or fewer rounds")
    command.set_defaults(run=_quickstart)

    command = commands.add_parser("train", help="train as a configuration file says")
    command.add_argument("file", nargs="?", help="a TOML file, or the name of an experiment (--list)")
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change one key")
    command.add_argument("--curve", help="one of the file's curves")
    command.add_argument("--out", type=Path, help="folder for the record (runs/NAME)")
    command.add_argument("--resume", type=Path, metavar="DIR", help="go on with the run in DIR")
    command.add_argument("--device", choices=("cpu", "cuda", "auto"))
    command.add_argument("--workers", type=int, help="training processes")
    command.add_argument(
        "--list", action="store_true", help="list the experiments that come with the package"
    )
    command.set_defaults(run=_train)

    command = commands.add_parser("report", help="runs as one HTML page and a picture")
    command.add_argument("folders", nargs="+", type=Path, metavar="DIR")
    command.add_argument(
        "--out", type=Path, help="where the page goes (DIR/report.html, or share-report.html)"
    )
    command.add_argument("--no-picture", action="store_true", help="write no PNG beside the page")
    command.add_argument(
        "--reference", type=Path, metavar="CSV", help="published curves: curve_id,round,test_acc"
    )
    command.add_argument(
        "--curve", action="append", default=[], help="a curve of the CSV to lay beside the runs"
    )
    command.set_defaults(run=_report)

    command = commands.add_parser("plan", help="which cluster size, reclusterings and schedule?")
    command.add_argument("--clients", type=int, required=True)
    command.add_argument("--byzantine", type=int, required=True, help="attackers to withstand")
    command.add_argument(
        "--dropout", type=float, default=0.0, help="part of the clients that stops answering"
    )
    command.add_argument("--rule", default="median", help="robust rule")
    command.add_argument("--anonymity", type=int, default=3, help="least T")
    command.add_argument("--max-leverage", type=float, default=0.8)
    command.add_argument(
        "--holds", type=float, default=0.95, help="in which part of the rounds the rule must hold"
    )
    command.add_argument("--cell", type=int, default=300, help="most clients in one secure aggregation")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--json", action="store_true", help="everything, for programs")
    command.add_argument("--picture", type=Path, metavar="PNG", help="draw the trade-off")
    command.set_defaults(run=_plan)

    command = commands.add_parser("data", help="data sets: list, fetch or import them")
    actions = command.add_subparsers(title="actions", required=True, metavar="ACTION")
    action = actions.add_parser("list", help="what there is, and whether it is here")
    action.set_defaults(run=_data_list)
    action = actions.add_parser("fetch", help="download from the publisher, and check")
    action.add_argument("name")
    action.add_argument("--url", help="a mirror of the publisher's files")
    action.set_defaults(run=_data_fetch)
    action = actions.add_parser("import", help="copy from a folder or archive, and check")
    action.add_argument("name")
    action.add_argument("path", type=Path)
    action.set_defaults(run=_data_import)
    for action in actions.choices.values():
        action.add_argument("--folder", type=Path, help="the data folder (SHARE_DATA, or your own)")

    _flower_commands(commands)

    command = commands.add_parser("config", help="what can be configured")
    command.add_argument("file", nargs="?", help="check this file and print it with every default")
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    command.add_argument("--curve")
    command.add_argument("--describe", action="store_true", help="every key, its type, default and meaning")
    command.add_argument("--markdown", action="store_true", help="the same as docs/configuration.md")
    command.set_defaults(run=_config)
    return top


def _flower_commands(commands: Any) -> None:
    command = commands.add_parser("flower", help="train over real machines, on Flower")
    actions = command.add_subparsers(title="actions", required=True, metavar="ACTION")

    action = actions.add_parser("local", help="a SuperLink and SuperNodes on this machine, one experiment")
    action.add_argument("file", help="a TOML file, or the name of an experiment")
    action.add_argument("--nodes", type=int, required=True, help="clients, each a SuperNode of its own")
    action.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change one key")
    action.add_argument("--out", type=Path, help="folder for the record (runs/NAME-flower)")
    action.add_argument("--stage-seconds", type=float, default=60.0, help="patience with one answer")
    action.add_argument("--training-seconds", type=float, default=600.0, help="patience with training")
    action.set_defaults(run=_flower_local)

    action = actions.add_parser("new", help="write a complete example app to start from")
    action.add_argument("folder", type=Path, metavar="DIR")
    action.set_defaults(run=_flower_new)

    action = actions.add_parser("identity", help="make the keys of a node, once; prints its public key")
    action.add_argument("folder", type=Path, metavar="NODE")
    action.set_defaults(run=_flower_identity)

    action = actions.add_parser("enrol", help="write the file that all parties agree on")
    action.add_argument("file", help="the experiment: a TOML file, or the name of one")
    action.add_argument("members", type=Path, help="a line per member: NAME PUBLIC-KEY EXAMPLES")
    action.add_argument(
        "--seed", required=True, metavar="HEX", help="32 bytes that nobody could choose alone"
    )
    action.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change one key")
    action.add_argument("--out", type=Path, default=Path("training.toml"))
    action.set_defaults(run=_flower_enrol)

    action = actions.add_parser("show", help="what a training.toml says, and its fingerprint to compare")
    action.add_argument("file", type=Path)
    action.set_defaults(run=_flower_show)


def _quickstart(options: argparse.Namespace) -> int:
    from fl.quickstart import quickstart

    return quickstart(options.out, seed=options.seed, rounds=options.rounds)


def _train(options: argparse.Namespace) -> int:
    from fl.config import schema

    if options.list:
        for name in schema.names():
            tables = schema.read(name)
            curves = ", ".join(tables.get("curves", {}))
            print(name + (f"  (curves: {curves})" if curves else ""))
        return 0
    if (options.file is None) == (options.resume is None):
        raise ConfigError("train: give a configuration file, or --resume DIR")
    settings = list(options.set)
    settings += [f'machine.device="{options.device}"'] if options.device else []
    settings += [f"machine.workers={options.workers}"] if options.workers is not None else []
    from fl.reporting.records import Folder

    if options.resume is not None:
        if options.out is not None or options.curve is not None:
            raise ConfigError("train: --resume goes on in its own folder; leave out --out and --curve")
        folder = Folder.resume(options.resume, settings)
    else:
        e = schema.load(options.file, settings, options.curve)
        folder = Folder.create(options.out or Path("runs") / e.name, e)
    try:
        return _train_in(folder)
    finally:
        folder.close()


def _train_in(folder: object) -> int:
    from fl.reporting.measures import describe_summary
    from fl.reporting.progress import display
    from fl.reporting.records import Folder
    from fl.training.interrupt import Stopped
    from fl.training.loop import run

    assert isinstance(folder, Folder)
    try:
        done = run(folder.experiment, folder=folder, show=display())
    except Stopped:
        return _complain(f"stopped; go on with: share train --resume {folder.path}", STOPPED)
    print(describe_summary(done.experiment, done.summary))
    print(f"record: {folder.path}\nreport: share report {folder.path}")
    return 0


def _report(options: argparse.Namespace) -> int:
    from fl.reporting.report import read_reference, report

    if bool(options.reference) != bool(options.curve):
        raise ConfigError("report: --reference and --curve belong together")
    folders: list[Path] = options.folders
    out = options.out or (folders[0] / "report.html" if len(folders) == 1 else Path("share-report.html"))
    references = [read_reference(options.reference, curve) for curve in options.curve]
    picture = None if options.no_picture else out.with_suffix(".png")
    report(folders, out, picture=picture, references=references)
    print(out)
    if picture:
        print(picture)
    return 0


def _plan(options: argparse.Namespace) -> int:
    from fl import planner

    question = planner.Question(
        clients=options.clients,
        byzantine=options.byzantine,
        dropout=options.dropout,
        rule=options.rule,
        anonymity=options.anonymity,
        max_leverage=options.max_leverage,
        holds=options.holds,
        cell=options.cell,
        seed=options.seed,
    )
    answer = planner.plan(question)
    print(json.dumps(answer.to_json(), indent=1) if options.json else planner.told(answer))
    if options.picture:
        planner.draw(answer, options.picture)
        print(f"picture: {options.picture}", file=sys.stderr)
    return 0 if answer.recommended else FAILED


def _data_list(options: argparse.Namespace) -> int:
    from fl import data

    for entry in data.available(options.folder):
        print(f"{entry.name:<12} {'here' if entry.present else '-':<5} {entry.about}; {entry.terms}")
    print(f"folder: {data.data_folder(options.folder)}")
    return 0


def _data_fetch(options: argparse.Namespace) -> int:
    from fl import data
    from fl.reporting.progress import download_display

    with download_display() as show:
        place = data.fetch(options.name, options.url, folder=options.folder, progress=show)
    print(place)
    return 0


def _data_import(options: argparse.Namespace) -> int:
    from fl import data

    print(data.import_folder(options.name, options.path, folder=options.folder))
    return 0


def _flower_local(options: argparse.Namespace) -> int:
    from fl.config import schema

    e = schema.load(options.file, [*options.set, f"clients={options.nodes}"])
    _need_flower()
    from fl.flower.local import run_here
    from fl.reporting.measures import describe_summary
    from fl.reporting.records import recorded

    out = options.out or Path("runs") / f"{e.name}-flower"
    seconds = [f"stage-seconds={options.stage_seconds}", f"training-seconds={options.training_seconds}"]
    run_here(e, out, settings=seconds, tell=lambda text: print(text, file=sys.stderr, flush=True))
    print(describe_summary(e, recorded(out).summary))
    print(f"record: {out}\nreport: share report {out}")
    return 0


def _flower_new(options: argparse.Namespace) -> int:
    from fl.flower.example import write_example

    for file in write_example(options.folder):
        print(file)
    print(f"read {options.folder / 'README.md'} next")
    return 0


def _flower_identity(options: argparse.Namespace) -> int:
    from fl.flower.node import make_node

    print(make_node(options.folder).hex())
    return 0


def _flower_enrol(options: argparse.Namespace) -> int:
    from fl.config import schema
    from fl.flower.enrolment import agree, read_hex, read_members, write_enrolment

    members = read_members(options.members)
    e = schema.load(options.file, [*options.set, f"clients={len(members)}"])
    enrolment = agree(e, read_hex(options.seed, "--seed", 32), members)
    if options.out.exists():
        raise ConfigError(f"{options.out} exists; a training is agreed on once")
    options.out.write_text(write_enrolment(enrolment), "utf-8")
    print(f"{options.out}: {len(members)} members, fingerprint {enrolment.training_id.hex()}")
    return 0


def _flower_show(options: argparse.Namespace) -> int:
    from fl.flower.enrolment import read_enrolment

    found = read_enrolment(options.file)
    for number, member in enumerate(found.members):
        print(f"client {number:<4} {member.name:<20} {member.identity.hex()}  {member.examples} examples")
    e, cohort = found.experiment, found.cohort
    plan = found.plan_of(cohort.drawn(0)[0], 0)
    assert plan is not None
    c, p = e.clusters, e.privacy
    print(f"rounds      {e.rounds}, {e.per_round} of {e.clients} members in each, model {e.model}")
    print(f"clusters    of {c.size}, {c.groupings} groupings, schedule {c.schedule}")
    colluders = f"while {plan.assumed_colluders} may help a lying server"
    print(f"threshold   {plan.t} of {len(plan.roster)}, {colluders}")
    print(f"audit       {p.audit}: T = {p.anonymity}, leverage at most {p.max_leverage}, clip {p.clip}")
    print(f"seed        {found.seed.hex()}\nfingerprint {found.training_id.hex()}")
    if p.audit != "enforce":
        print("WARNING: NOBODY IS PROTECTED: the exposure audit of this training only reports")
    return 0


def _need_flower() -> None:
    from importlib.util import find_spec

    if find_spec("flwr") is None:
        raise ConfigError("Flower is not installed; type: pip install 'share-secagg[flower]'")


def _config(options: argparse.Namespace) -> int:
    from fl.config import schema

    if options.file:
        sys.stdout.write(schema.to_toml(schema.load(options.file, options.set, options.curve)))
    elif options.markdown:
        sys.stdout.write(schema.describe_markdown())
    elif options.describe:
        sys.stdout.write(schema.describe())
    else:
        raise ConfigError("config: --describe lists every key; a file is checked and printed whole")
    return 0

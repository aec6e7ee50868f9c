"""The `share flower` commands, except `local`. Each imports what it needs when it runs."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fl.errors import ConfigError

Add = Callable[[str, Callable[[argparse.Namespace], int | None], str], Callable[..., Any]]
"""Adds a command by name, function and help; returns the function that adds an option to it."""


def add_commands(command: Add) -> None:
    """Add the commands of this module."""
    _add_nodes(command)
    option = command("propose", _propose, "write an agreement for an existing Flower app, for all members to sign")
    option("members", type=Path, help="file with one line per member: NAME PUBLIC-KEY EXAMPLES")
    option("--name", required=True, help="name of the training; members sign one agreement per name")
    option("--out", type=Path, default=Path("agreement.toml"), metavar="FILE", help="the proposal (agreement.toml)")
    _add_terms(option)

    option = command("try", _try, "run a Flower app that uses secure sums on this machine, one SuperNode per client")
    option("app", type=Path, metavar="APP", help="folder of the app, with its pyproject.toml")
    option("--nodes", type=int, required=True, help="number of clients; each is a SuperNode")
    option("--run-config", action="append", default=[], metavar="KEY=VALUE", help="as for `flwr run`")
    _add_terms(option)

    option = command("check", _check, "say whether a node is ready, and compile what its first round needs")
    option("folder", type=Path, metavar="NODE", help="folder of the node")
    option("--superlink", default="", metavar="HOST:PORT", help="also look at this SuperLink")
    option("--root-certificates", type=Path, metavar="FILE", help="the certificate that the SuperLink must have")

    option = command("status", _status, "show nodes, rounds and dropouts of a training, while it runs or after")
    option("folder", type=Path, metavar="DIR", help="the server's folder: `out` of a training, `record` of an app")
    option("--json", action="store_true", help="print JSON")
    option("--follow", type=float, metavar="SECONDS", help="show it again and again, so often")

    option = command("gate", _gate, "let nodes, and nobody else, reach a SuperLink from other machines")
    option("--link", default="127.0.0.1:8000", metavar="HOST:PORT", help="the SuperLink here (127.0.0.1:8000)")
    option("--listen", required=True, metavar="HOST:PORT", help="where nodes connect")
    option("--certificate", type=Path, required=True, metavar="FILE", help="the server's certificate (PEM)")
    option("--key", type=Path, required=True, metavar="FILE", help="its key (PEM)")
    about = "the certificate that the SuperLink must have; without it, the SuperLink has no TLS"
    option("--root-certificates", type=Path, metavar="FILE", help=about)


def _add_nodes(command: Add) -> None:
    option = command("new", _new, "write a complete example app to start from")
    option("folder", type=Path, metavar="DIR", help="folder for the app")

    option = command("node", _node, "start a node: a SuperNode and a warm executor")
    option("--simulate", action="store_true", help="allow keys and faults of simulations")
    option("--poll", type=float, default=0.4, metavar="SECONDS", help="between two questions to the SuperLink (0.4)")
    option("--executor", type=Path, metavar="DIR", help="use a warm executor that runs already")
    option("--app", default="", metavar="MODULE:APP", help="run only this app of this machine, not what is sent")
    option("folder", type=Path, metavar="NODE", help="folder of the node")
    option("options", nargs=argparse.REMAINDER, metavar="...", help="all options of flower-supernode")

    option = command("identity", _identity, "create the keys of a node and print its public key")
    option("folder", type=Path, metavar="NODE", help="folder of the node")
    about = "replace state.key, and delete what it encrypted: the keys of coming rounds"
    option("--new-state-key", action="store_true", help=about)

    option = command("enrol", _enrol, "write an agreement for all members to sign, and what they learn")
    option("file", help="the experiment: a TOML file, or the name of a packaged one")
    about = "file with one line per member: NAME PUBLIC-KEY EXAMPLES; with --earlier, of newcomers only"
    option("members", type=Path, nargs="?", help=about)
    option("--set", action="append", default=[], metavar="KEY=VALUE", help="change one key")
    about = "folders of all earlier trainings on the same data: the new one is their successor, audited with them"
    option("--earlier", type=Path, nargs="+", default=[], metavar="DIR", help=about)
    option("--without", nargs="+", default=[], metavar="NAME", help="with --earlier: members that leave")
    option("--test", metavar="MODULE:FUNCTION", help="as server_app has it; without, the data set of the experiment")
    option("--classes", type=int, help="as server_app has it")
    option("--out", type=Path, default=Path(), metavar="DIR", help="folder for agreement.toml and training.toml (.)")

    option = command("show", _show, "print a training and the fingerprint of its agreement")
    option("file", type=Path, help="training.toml, with the signed agreement.toml beside it")


def _add_terms(option: Callable[..., Any]) -> None:
    option("--model", metavar="MODULE:FUNCTION", help="returns the model without arguments; says how many parameters")
    option("--parameters", type=int, help="number of parameters, instead of --model")
    option("--modules", type=Path, default=Path(), metavar="DIR", help="where the app's modules are (.)")
    option("--rounds", type=int, required=True, help="rounds of Flower")
    option("--size", type=int, default=3, help="clients per group; the server sees only sums of groups (3)")
    option("--groupings", type=int, default=1, help="ways to divide the clients into groups (1)")
    option("--clip", type=float, default=8.0, help="largest change of a parameter in a round (8)")
    for kind in ("train", "evaluate"):
        about = f"a metric that the app returns for {kind}, with its largest absolute value (NAME[3] for a list of 3)"
        option(f"--{kind}", action="append", default=[], metavar="NAME=MOST", help=about)


def _terms(options: argparse.Namespace, members: Any, name: str) -> Any:
    from fl.flower.apps.propose import app_terms, count_parameters, parse_metrics

    if (options.model is None) == (options.parameters is None):
        raise ConfigError("expected either --model MODULE:FUNCTION or --parameters NUMBER")
    parameters = options.parameters or count_parameters(options.model, options.modules)
    return app_terms(
        members,
        parameters,
        name=name,
        rounds=options.rounds,
        size=options.size,
        groupings=options.groupings,
        clip=options.clip,
        train=parse_metrics(options.train),
        evaluate=parse_metrics(options.evaluate),
    )


def _new(options: argparse.Namespace) -> None:
    from fl.flower.example import write_example

    for file in write_example(options.folder):
        print(file)
    print(f"next, read {options.folder / 'README.md'}")


def _node(options: argparse.Namespace) -> None:
    from fl.flower.supernode import start_node

    if not 0.05 <= options.poll <= 60:
        raise ConfigError(f"--poll: expected 0.05 to 60 seconds, got {options.poll}")
    chosen = {name: getattr(options, name) for name in ("simulate", "poll", "executor", "app")}
    start_node(options.folder, options.options, **chosen)


def _identity(options: argparse.Namespace) -> None:
    from fl.flower.node import make_node, renew_state_key

    if options.new_state_key:
        renew_state_key(options.folder)
    print(make_node(options.folder).public.hex())


def _enrol(options: argparse.Namespace) -> None:
    from fl.config.checks import load
    from fl.flower.successor import read_earlier, succeed
    from fl.flower.task import model_length
    from fl.flower.training import enrolled, proposed_terms, read_members

    members = [] if options.members is None else read_members(options.members)
    if options.earlier:
        earlier = read_earlier(options.earlier)
        experiment = load(options.file, [*options.set, f"clients={len(earlier[0].examples)}"])
        length = model_length(experiment, options.test, options.classes)
        found = succeed(experiment, earlier, options.without, members, length)
        _write_training(
            options.out, found.terms, found.experiment, found.examples, f" --earlier {_agreements(options)}"
        )
        _tell_successor(found)
        return
    if not members or options.without:
        raise ConfigError("expected a file of members; only --earlier allows --without, or no file")
    experiment = load(options.file, [*options.set, f"clients={len(members)}"])
    length = model_length(experiment, options.test, options.classes)
    experiment = enrolled(experiment, members)
    terms = proposed_terms(experiment, members, length)
    _write_training(options.out, terms, experiment, [member.examples for member in members])


def _agreements(options: argparse.Namespace) -> str:
    from fl.flower.training import AGREEMENT

    return " ".join(str(folder / AGREEMENT) for folder in options.earlier)


def _write_training(out: Path, terms: Any, experiment: Any, examples: Sequence[int], more: str = "") -> None:
    from fl.flower.training import AGREEMENT, TRAINING, training_text
    from secagg.agreement import Proposal, write_agreement

    agreed, training = out / AGREEMENT, out / TRAINING
    for file in (agreed, training):
        if file.exists():
            raise ConfigError(f"{file} already exists; choose another --out for another training")
    out.mkdir(parents=True, exist_ok=True)
    agreed.write_text(write_agreement(Proposal(terms=terms)), "utf-8")
    training.write_text(training_text(experiment, examples), "utf-8")
    print(
        f"{agreed}, {training}: {len(examples)} members, {terms.segments[0].length:,} parameters\n"
        f"next, every member commits, reveals and signs: secagg agree {agreed} --commit NODE{more} (docs/flower.md)"
    )


def _tell_successor(found: Any) -> None:
    if found.leavers:
        print(f"{len(found.leavers)} members leave together: {', '.join(found.leavers)}")
    if found.newcomers:
        print(f"{len(found.newcomers)} members are new: {', '.join(found.newcomers)}")
    groups = "the groups of before are kept" if found.kept else "groups are drawn anew"
    print(f"{groups}; audited together with the earlier trainings: {found.outlook}")
    if found.outlook.passed < found.outlook.draws:
        print("if the seed draws groups that do not pass, nobody can sign: choose another name and commit again")


def _show(options: argparse.Namespace) -> None:
    from fl.flower.training import read_training
    from secagg import UsageError
    from secagg.agreement import MemberFolder, summarise

    found = read_training(options.file)
    folder, terms = options.file.parent, found.agreement.terms
    for member, examples in zip(found.agreement.terms.members, found.examples, strict=True):
        print(f"client {member.id:<4} {member.name:<20} {member.identity.hex()}  {examples} examples")
    experiment = found.experiment
    print(f"model       {experiment.model}, {found.parameters:,} parameters, {experiment.rounds} rounds")
    try:
        earlier = MemberFolder(folder).earlier(terms)
    except UsageError:  # the server's copy, say
        earlier = ()
    if len(earlier) == len(terms.predecessors):
        print("\n".join(summarise(found.agreement, earlier).lines()))
    else:
        print("\n".join(summarise(terms).lines()))
        print("it has predecessors; what all open together: secagg agree agreement.toml --earlier FILES")
    print(f"fingerprint {found.fingerprint.hex()}")
    if experiment.privacy.audit != "enforce":
        print("WARNING: NO CLIENT IS PROTECTED: the exposure audit of this training only reports")


def _propose(options: argparse.Namespace) -> None:
    from fl.flower.training import read_members
    from secagg.agreement import Proposal, write_agreement

    if options.out.exists():
        raise ConfigError(f"{options.out} exists; choose another --out")
    terms = _terms(options, read_members(options.members), options.name)
    options.out.write_text(write_agreement(Proposal(terms=terms)), "utf-8")
    print(
        f"wrote {options.out}: {len(terms.members)} members, {terms.segments[0].length:,} parameters, "
        f"{terms.round_count} rounds\nnext, every member commits, reveals and signs: secagg agree {options.out} "
        "--commit NODE (docs/flower-apps.md)"
    )


def _try(options: argparse.Namespace) -> None:
    from fl.flower.apps.trial import try_app
    from fl.flower.training import Enrolled

    members = [Enrolled(f"node-{i}", bytes([i % 256, i // 256]) * 16, 1) for i in range(options.nodes)]
    options.modules = options.app if options.modules == Path() else options.modules
    try_app(options.app, _terms(options, members, f"trial of {options.app.name}"), options.run_config)


def _check(options: argparse.Namespace) -> int:
    from fl.flower.check import check_node

    wrong = 0
    for finding in check_node(options.folder, options.superlink, options.root_certificates):
        print(finding, flush=True)
        wrong += bool(finding.wrong)
    return int(bool(wrong))


def _status(options: argparse.Namespace) -> None:
    from fl.flower.status import read_status

    while True:
        found = read_status(options.folder)
        print(json.dumps(found.to_json(), indent=1) if options.json else "\n".join(found.lines()), flush=True)
        if options.follow is None or found.ended:
            return
        time.sleep(max(options.follow, 0.1))
        print()


def _gate(options: argparse.Namespace) -> None:
    from fl.flower.gate import run_gate

    def ready(port: int) -> None:
        host = options.listen.rpartition(":")[0]
        print(f"share: nodes connect to {host}:{port}; everybody else is turned away", file=sys.stderr, flush=True)

    run_gate(options.link, options.listen, options.certificate, options.key, options.root_certificates, ready)

"""A training after others on the same data: who leaves, who joins, and what is refused."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl.cli import main as share
from fl.config.read import to_toml
from fl.config.schema import Experiment
from fl.errors import ConfigError
from fl.flower.check import check_node
from fl.flower.client import client_app
from fl.flower.node import MistakeError, Node, make_node
from fl.flower.server import connect, serve
from fl.flower.successor import read_earlier, succeed
from fl.flower.task import local_update, server_data, task_of
from fl.flower.training import (
    AGREEMENT,
    TRAINING,
    Enrolled,
    Training,
    enrolled,
    follow_earlier_caps,
    proposed_terms,
    read_training,
    training_text,
    write_training,
)
from fl.reporting.records import read_tensors
from fl.training.learner import Learner
from secagg import Identity, Terms
from secagg.agreement import MemberFolder, Proposal, read_agreement, write_agreement
from secagg.cli.main import main as secagg_command
from secagg.evidence import verify
from secagg.simulation import agree_on
from tests.flower import own_data
from tests.flower.grid import RUN_ID, InProcessGrid
from tests.flower.runs import FAST, whole

PARAMETERS = 650  # of the linear model
SOURCE = "tests.flower.own_data:data"


def nine(**more: Any) -> Experiment:
    """Three groups of three."""
    return whole(name="nine", clients=9, clusters={"size": 3}, **more)


def sites(place: Path, numbers: Sequence[int], examples: dict[int, int] | None = None) -> list[Enrolled]:
    counts = examples or {}
    return [
        Enrolled(f"site-{i}", make_node(place / f"site-{i}").public, counts.get(i, own_data.examples(i)))
        for i in numbers
    ]


def identities_of(place: Path, terms: Terms) -> dict[int, Identity]:
    return {member.id: MemberFolder(place / member.name).identity for member in terms.members}


def agreed_in(place: Path, name: str, terms: Terms, e: Experiment, examples: Sequence[int]) -> Training:
    """All members sign, and nodes and server have the files; the server's are in `place/name`."""
    identities = identities_of(place, terms)
    agreement = agree_on(terms, identities)
    signatures = {i: agreement.sign(i, one) for i, one in identities.items()}
    training = Training(agreement, e, tuple(examples), signatures)
    (place / name).mkdir()
    for folder in (place / name, *(place / member.name for member in terms.members)):
        write_training(training, folder)
    return training


def first_training(place: Path, e: Experiment, examples: dict[int, int] | None = None) -> Training:
    members = sites(place, range(e.clients), examples)
    e = enrolled(e, members)
    terms = proposed_terms(e, members, PARAMETERS)
    return agreed_in(place, "first", terms, e, [one.examples for one in members])


def keep_in_folders(place: Path, training: Training, earlier: Sequence[Training]) -> None:
    """As `secagg agree --sign --earlier` does."""
    for member in training.agreement.terms.members:
        MemberFolder(place / member.name).keep_agreements(one.agreement for one in earlier)


def train(place: Path, training: Training, out: str) -> Path:
    folders = [place / member.name for member in training.agreement.terms.members]
    grid = InProcessGrid(folders, simulate=False, app=client_app(SOURCE, classes=own_data.CLASSES))
    network = connect(grid, training, RUN_ID)  # type: ignore[arg-type]
    serve(network, FAST, place / out, "tests.flower.own_data:test", classes=own_data.CLASSES)
    assert verify((place / out / "evidence-1").read_bytes(), threads=1).holds
    return place / out


def stopped(out: Path) -> str:
    """Why a training has stopped, which opened nothing."""
    assert all(cluster["state"] == "lost" for record in rounds_in(out) for cluster in record["clusters"])
    return str(json.loads((out / "summary.json").read_text())["stopped"])


def rounds_in(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]


def test_a_training_goes_on_without_a_leaver_and_its_group(tmp_path: Path) -> None:
    first = first_training(tmp_path, nine())
    train(tmp_path, first, "run-1")
    found = succeed(nine(rounds=1), [first], ["site-4"], [], PARAMETERS)
    group = next(group for group in first.agreement.groups(0).values() if 4 in group)
    assert sorted(found.leavers) == sorted(f"site-{client}" for client in group)
    assert (found.kept, str(found.outlook)) == (True, "it passes")
    assert set(found.terms.ids) == set(range(9)) - set(group)
    second = agreed_in(tmp_path, "second", found.terms, found.experiment, found.examples)
    keep_in_folders(tmp_path, second, [first])
    assert read_training(tmp_path / "second" / TRAINING).fingerprint == second.fingerprint
    kept = set(first.agreement.groups(0).values()) - {group}
    assert set(second.agreement.groups(0).values()) == kept
    (record,) = rounds_in(train(tmp_path, second, "run-2"))
    assert [cluster["state"] for cluster in record["clusters"]] == ["opened"] * 2
    assert not record["dropouts"]


def test_the_successor_learns_what_its_members_computed(tmp_path: Path) -> None:
    """Ids have gaps, and every update has the weight of its own node."""
    first = first_training(tmp_path, nine(rounds=1))
    found = succeed(nine(rounds=1), [first], ["site-0"], [], PARAMETERS)
    second = agreed_in(tmp_path, "second", found.terms, found.experiment, found.examples)
    keep_in_folders(tmp_path, second, [first])
    out = train(tmp_path, second, "run")
    nodes = [Node.open(tmp_path / member.name) for member in second.agreement.terms.members]
    assert [node.client for node in nodes] != list(range(6))
    e = second.experiment
    with Learner(task_of(e, server_data(e, "tests.flower.own_data:test", None, own_data.CLASSES))) as learner:
        x = learner.initial()
    updates = {node.client: local_update(node, 0, x, source=SOURCE, classes=own_data.CLASSES) for node in nodes}
    means = [
        np.average([updates[v] for v in group], axis=0, weights=[second.weights[v] for v in group])
        for group in second.agreement.groups(0).values()
    ]
    expected = x + np.mean(means, axis=0)
    found_x = read_tensors(out / "checkpoint-000001.safetensors")["x"]
    assert np.allclose(found_x, expected, atol=1e-5)


def test_a_successor_needs_the_data_of_its_nodes(tmp_path: Path) -> None:
    """A packaged data set is dealt to as many clients as there are, so after a leaver nobody has what it had."""
    first = first_training(tmp_path, nine(rounds=1))
    found = succeed(nine(rounds=1), [first], ["site-0"], [], PARAMETERS)
    agreed_in(tmp_path, "second", found.terms, found.experiment, found.examples)
    last = Node.open(tmp_path / found.terms.members[-1].name)
    assert last.client >= 6
    with pytest.raises(MistakeError, match="the number of its examples"):
        local_update(last, 0, np.zeros(PARAMETERS, np.float32))


def test_all_members_may_go_on_in_their_groups(tmp_path: Path) -> None:
    first = first_training(tmp_path, nine())
    found = succeed(nine(local={"lr": 0.05}), [first], [], [], PARAMETERS)
    assert (found.leavers, found.kept, found.outlook.passed) == ((), True, 1)
    with pytest.raises(ConfigError, match="choose another with --set name"):
        succeed(nine(), [first], [], [], PARAMETERS)
    second = agreed_in(tmp_path, "second", found.terms, found.experiment, found.examples)
    third = succeed(nine(rounds=1), read_earlier([tmp_path / "first", tmp_path / "second"]), ["site-1"], [], PARAMETERS)
    assert third.terms.predecessors == (first.fingerprint, second.fingerprint)
    with pytest.raises(ConfigError, match="1 trainings that the latest one names are missing"):
        read_earlier([tmp_path / "second"])


def test_newcomers_are_refused_where_groups_are_small(tmp_path: Path) -> None:
    first = first_training(tmp_path, nine())
    with pytest.raises(ConfigError, match="none of 20 trial draws of new groups passes"):
        succeed(nine(rounds=3), [first], [], sites(tmp_path, range(9, 12)), PARAMETERS)
    alone = nine(rounds=3, privacy={"memory": "round"})
    found = succeed(alone, [first], ["site-2"], sites(tmp_path, [9]), PARAMETERS)  # each round alone
    assert 2 not in found.terms.ids
    assert found.terms.members[-1].id == 9


def test_newcomers_join_larger_groups(tmp_path: Path) -> None:
    """With 10 members in groups of 5 and 5 newcomers, most draws pass (docs/flower-operating.md)."""
    ten = whole(name="ten", clients=10, clusters={"size": 5})
    first = first_training(tmp_path, ten)
    found = succeed(ten, [first], [], sites(tmp_path, range(10, 15)), PARAMETERS)
    assert found.newcomers == tuple(f"site-{i}" for i in range(10, 15))
    assert not found.kept
    assert found.outlook.passed > 10
    assert found.terms.ids == tuple(range(15))
    assert found.terms.members[:10] == first.agreement.terms.members


def test_whoever_took_part_before_is_no_newcomer(tmp_path: Path) -> None:
    first = first_training(tmp_path, nine())
    (old,) = sites(tmp_path, [3])
    with pytest.raises(ConfigError, match="belonged to 'site-3' in an earlier training"):
        succeed(nine(rounds=1), [first], [], [replace(old, name="other")], PARAMETERS)
    with pytest.raises(ConfigError, match="there is no member 'site-33'"):
        succeed(nine(rounds=1), [first], ["site-33"], [], PARAMETERS)


def test_weights_stay_when_the_caps_would_move(tmp_path: Path) -> None:
    """Without the smallest sites, the caps that follow from the numbers of examples would be others."""
    counts = {i: 10 + i for i in range(3)} | {i: 100 + i for i in range(3, 9)}
    e = nine(privacy={"weight_ratio": 1.4})
    first = first_training(tmp_path, e, counts)
    found = succeed(e.replace(rounds=1), [first], ["site-0"], [], PARAMETERS)
    assert all(found.terms.weights[v] == first.weights[v] for v in found.terms.ids)
    second = agreed_in(tmp_path, "second", found.terms, found.experiment, found.examples)
    with pytest.raises(ConfigError, match="weights do not follow"):
        replace(second, examples=(second.examples[0] + 1, *(n + 7 for n in second.examples[1:])))
    assert not follow_earlier_caps([10, 20], [10, 20], 1.5)


def test_a_node_refuses_a_training_that_does_not_name_what_it_answered(tmp_path: Path) -> None:
    """As if somebody proposed new groups of the same members under another name, and all had signed."""
    first = first_training(tmp_path, nine(rounds=1))
    train(tmp_path, first, "run-1")
    members = sites(tmp_path, range(9))
    e = enrolled(nine(rounds=2), members)
    second = agreed_in(tmp_path, "second", proposed_terms(e, members, PARAMETERS), e, [one.examples for one in members])
    assert "may not answer under this agreement any more" in stopped(train(tmp_path, second, "run-2"))


def test_a_node_refuses_a_successor_whose_predecessor_it_does_not_have(tmp_path: Path) -> None:
    first = first_training(tmp_path, nine(rounds=1))
    train(tmp_path, first, "run-1")
    found = succeed(nine(rounds=2), [first], ["site-4"], [], PARAMETERS)
    second = agreed_in(tmp_path, "second", found.terms, found.experiment, found.examples)
    assert "may not answer under this agreement any more" in stopped(train(tmp_path, second, "run-2"))


def test_a_leaver_without_its_group_cannot_be_proposed(tmp_path: Path) -> None:
    first = first_training(tmp_path, nine())
    found = succeed(nine(rounds=1), [first], ["site-4"], [], PARAMETERS)
    assert found.terms.keep is not None
    group = set(found.terms.keep.dropped)
    members = tuple(member for member in first.agreement.terms.members if member.id != 4)
    with pytest.raises(Exception, match="drops whole groups"):
        replace(found.terms, members=members, keep=replace(found.terms.keep, dropped=(4,)))
    assert len(group) == 3


def test_members_sign_a_successor_with_the_commands_of_the_documents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = first_training(tmp_path, nine())
    keep_in_folders(tmp_path, first, [])
    file = tmp_path / "nine.toml"
    file.write_text(to_toml(nine(rounds=1)))
    old, out = str(tmp_path / "first"), str(tmp_path / "second")
    command = ["flower", "enrol", str(file), "--earlier", old, "--without", "site-4", "--out", out]
    command += ["--test", "tests.flower.own_data:test", "--classes", "10"]
    assert share(command) == 0
    told = capsys.readouterr().out
    assert "3 members leave together: " in told
    assert "the groups of before are kept; audited together with the earlier trainings: it passes" in told
    agreed, earlier = tmp_path / "second" / AGREEMENT, str(tmp_path / "first" / AGREEMENT)
    assert secagg_command(["agree", str(agreed), "--earlier", earlier]) == 0
    assert "With the earlier agreements together, the audit: it passes." in capsys.readouterr().out
    terms = read_agreement(agreed.read_text()).terms
    nodes = [str(tmp_path / member.name) for member in terms.members]
    assert secagg_command(["agree", str(agreed), "--commit", nodes[0]]) == 2  # the earlier agreement is not known
    for step in ("--commit", "--reveal", "--sign"):
        assert all(secagg_command(["agree", str(agreed), step, node, "--earlier", earlier]) == 0 for node in nodes)
    assert secagg_command(["agree", str(agreed), "--sign", nodes[0]]) == 0  # the folder has it now
    second = read_training(tmp_path / "second" / TRAINING)
    assert second.agreement.terms.predecessors == (first.fingerprint,)
    assert share(["flower", "show", str(tmp_path / "second" / TRAINING)]) == 0
    for name in (AGREEMENT, TRAINING):
        (Path(nodes[-1]) / name).write_bytes((tmp_path / "second" / name).read_bytes())
    assert Node.open(nodes[-1]).client == terms.ids[-1]
    assert next(iter(check_node(Path(nodes[-1])))).wrong == ""
    (Path(nodes[-1]) / "agreements" / first.fingerprint.hex()).unlink()
    assert "sign it with --earlier" in next(iter(check_node(Path(nodes[-1])))).wrong


def test_a_proposal_with_other_weights_is_refused_before_it_is_signed(tmp_path: Path) -> None:
    """Whoever writes the proposal changes the weight of one member, which would show its update."""
    first = first_training(tmp_path, nine(), {i: 30 + i for i in range(9)})
    found = succeed(nine(rounds=1), [first], ["site-4"], [], PARAMETERS)
    middle = sorted(found.terms.members, key=lambda member: member.weight)[2]  # no cap explains another weight
    changed = [replace(one, weight=one.weight + 1) if one == middle else one for one in found.terms.members]
    terms = replace(found.terms, members=tuple(changed))
    place = tmp_path / "second"
    place.mkdir()
    (place / AGREEMENT).write_text(write_agreement(Proposal(terms=terms)))
    (place / TRAINING).write_text(training_text(found.experiment, found.examples))
    nodes = [str(tmp_path / member.name) for member in terms.members]
    earlier, file = str(tmp_path / "first" / AGREEMENT), str(place / AGREEMENT)
    assert secagg_command(["agree", file, "--earlier", earlier]) == 2
    identities = identities_of(tmp_path, terms)
    agreement = agree_on(terms, identities)  # as if the others went on all the same
    (place / AGREEMENT).write_text(write_agreement(Proposal.of(agreement)))
    assert secagg_command(["agree", file, "--sign", nodes[0], "--earlier", earlier]) == 2
    signatures = {i: agreement.sign(i, one) for i, one in identities.items()}
    with pytest.raises(ConfigError, match="weights do not follow"):
        Training(agreement, found.experiment, found.examples, signatures)

"""What every node pins: the signed agreement and what is learned. And the folder of a node."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fl.cli import main as share
from fl.config.checks import experiment
from fl.config.read import to_toml
from fl.config.schema import to_tables
from fl.errors import ConfigError
from fl.flower.client import location_statement
from fl.flower.node import STATE_KEY, KeyFileError, Node, make_node
from fl.flower.training import (
    AGREEMENT,
    TRAINING,
    Enrolled,
    Training,
    enrolled,
    proposed_terms,
    read_members,
    read_training,
    training_name,
    write_training,
)
from secagg import Identity
from secagg.agreement import SURVIVORS
from secagg.agreement.folder import IDENTITY
from secagg.cli.main import main as secagg_command
from secagg.simulation import agree_on, make_identities
from tests.flower.runs import agreed, small, whole

EXAMPLES = tuple(10 + i for i in range(8))


def make_training() -> tuple[Training, dict[int, Identity]]:
    identities = make_identities(range(8))
    members = [Enrolled(f"m{i}", identities[i].public, EXAMPLES[i]) for i in range(8)]
    e = enrolled(small(), members)
    agreement = agree_on(proposed_terms(e, members, 10), identities)
    return Training(agreement, e, EXAMPLES, {i: agreement.sign(i, identities[i]) for i in identities}), identities


@pytest.fixture(scope="module")
def training() -> Training:
    return make_training()[0]


def test_a_training_is_read_back_as_it_was_written(training: Training, tmp_path: Path) -> None:
    write_training(training, tmp_path)
    again = read_training(tmp_path / TRAINING)
    assert again == training
    assert again.fingerprint == training.fingerprint
    assert again.agreement.terms.groups == SURVIVORS


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "other"}, "the members agreed on another experiment"),
        ({"seed": 7}, "the members agreed on another experiment"),
        ({"privacy": {"clip": 4.0}}, "another experiment"),
        ({"local": {"lr": 0.2}}, "another experiment"),
        ({"secure": False}, "every sum is secure"),
        ({"clusters": {"groups": "whole", "schedule": "fixed"}, "privacy": {"memory": "training"}}, "another exp"),
    ],
)
def test_another_experiment_than_the_one_that_was_signed_is_refused(
    training: Training, change: dict[str, object], message: str
) -> None:
    tables = to_tables(training.experiment)
    for key, value in change.items():
        tables[key] = {**tables[key], **value} if isinstance(value, dict) else value
    with pytest.raises(ConfigError, match=message):
        replace(training, experiment=experiment(tables))


@pytest.mark.parametrize("field", ["schedule", "policy", "colluders", "last_round", "segments"])
def test_an_agreement_that_does_not_follow_from_the_experiment_is_refused(field: str) -> None:
    """Even if all members signed it under the name of the experiment."""
    made, identities = make_training()
    terms = made.agreement.terms
    others = {
        "schedule": replace(terms.schedule, size=8),
        "policy": replace(terms.policy, max_leverage=0.9),
        "colluders": 1,
        "last_round": terms.last_round + 1,
        "segments": (replace(terms.segments[0], clip=4.0), *terms.segments[1:]),
    }
    agreement = agree_on(replace(terms, **{field: others[field]}), identities)
    signatures = {i: agreement.sign(i, identities[i]) for i in identities}
    with pytest.raises(ConfigError, match=f"another {field} than the experiment's"):
        Training(agreement, made.experiment, EXAMPLES, signatures)


def test_an_agreement_that_one_member_did_not_sign_is_refused(training: Training, tmp_path: Path) -> None:
    without = {member: signature for member, signature in training.signatures.items() if member != 5}
    for wrong in (without, {**without, 5: training.signatures[4]}):
        with pytest.raises(ConfigError, match=r"5.*--check"):
            replace(training, signatures=wrong)
    write_training(training, tmp_path)
    text = (tmp_path / AGREEMENT).read_text()
    (tmp_path / AGREEMENT).write_text(text.replace(training.signatures[5].hex(), training.signatures[4].hex()))
    with pytest.raises(ConfigError, match="--check"):
        read_training(tmp_path / TRAINING)


def test_weights_follow_from_the_numbers_of_examples(training: Training) -> None:
    with pytest.raises(ConfigError, match="weights do not follow"):
        replace(training, examples=(99, *EXAMPLES[1:]))
    with pytest.raises(ConfigError, match="numbers of examples"):
        replace(training, examples=EXAMPLES[:7])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda text: text.replace("examples = [", "examples = [0, "), "at least 1"),
        (lambda text: text + "\n[more]\n", "no such key: more"),
        (lambda text: text.replace("examples", "exemples", 1), "no such key: exemples"),
        (lambda text: "not toml at all", TRAINING),
        (lambda text: "", "expected examples"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(
    training: Training, tmp_path: Path, spoil: Callable[[str], str], message: str
) -> None:
    write_training(training, tmp_path)
    place = tmp_path / TRAINING
    place.write_text(spoil(place.read_text()))
    with pytest.raises(ConfigError, match=message) as refused:
        read_training(place)
    assert TRAINING in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_or_unfinished_agreement_is_refused_with_what_to_do(training: Training, tmp_path: Path) -> None:
    write_training(training, tmp_path)
    text = (tmp_path / AGREEMENT).read_text()
    (tmp_path / AGREEMENT).write_text(text[: text.index("[seed")])
    with pytest.raises(ConfigError, match=AGREEMENT):
        read_training(tmp_path / TRAINING)
    (tmp_path / AGREEMENT).unlink()
    with pytest.raises(ConfigError, match="secagg agree"):
        read_training(tmp_path / TRAINING)


def test_the_name_of_the_agreement_says_which_experiment_it_is() -> None:
    names = [training_name(small(**change)) for change in ({}, {"seed": 3}, {"name": "other"}, {"rounds": 3})]
    assert len(set(names)) == 4
    assert training_name(small(machine={"workers": 2})) == names[0]


def test_members_are_read_from_lines(tmp_path: Path) -> None:
    place = tmp_path / "members.txt"
    place.write_text(f"# who\na {'11' * 32} 5\nb {'22' * 32} 7  # second\n")
    assert [(m.name, m.examples) for m in read_members(place)] == [("a", 5), ("b", 7)]
    for line in ("a 11\n", f"a {'11' * 32} 0\n", f"a {'11' * 31} 5\n"):
        place.write_text(line)
        with pytest.raises(ConfigError, match="line 1"):
            read_members(place)
    with pytest.raises(ConfigError, match="there is no"):
        read_members(tmp_path / "nowhere")


def test_every_client_derives_the_same_plan(training: Training) -> None:
    plans = {training.plan_of(client, 1) for client in range(8)}
    assert len(plans) == 1
    (plan,) = plans
    assert plan is not None
    assert plan.training_seed == training.agreement.seed
    assert plan.training_id == training.fingerprint
    assert training.plan_of(8, 1) is None
    assert training.plan_of(0, 2) is None


def test_a_key_that_other_users_may_read_is_refused(tmp_path: Path) -> None:
    _, folders = agreed(small(), tmp_path)
    Node.open(folders[0])
    for name in (IDENTITY, STATE_KEY):
        for mode in (0o640, 0o604, 0o620):
            os.chmod(folders[0] / name, mode)
            with pytest.raises(KeyFileError, match=r"read by others|others can read"):
                Node.open(folders[0])
        os.chmod(folders[0] / name, 0o600)
    Node.open(folders[0])


def test_keys_are_made_once_and_only_their_owner_can_read_them(tmp_path: Path) -> None:
    public = make_node(tmp_path / "node").public
    assert make_node(tmp_path / "node").public == public
    for name in (IDENTITY, STATE_KEY):
        assert (tmp_path / "node" / name).stat().st_mode & 0o777 == 0o600
    (tmp_path / "node" / IDENTITY).write_text("nonsense")
    with pytest.raises(KeyFileError, match="damaged"):
        make_node(tmp_path / "node")


def test_a_node_that_the_agreement_does_not_list_does_not_start(tmp_path: Path) -> None:
    _, folders = agreed(small(), tmp_path)
    make_node(tmp_path / "stranger")
    for name in (AGREEMENT, TRAINING):
        (tmp_path / "stranger" / name).write_bytes((folders[0] / name).read_bytes())
    with pytest.raises(ConfigError, match="does not list"):
        Node.open(tmp_path / "stranger")


def test_only_the_node_that_sealed_a_state_can_open_it_and_only_for_that_round(tmp_path: Path) -> None:
    _, folders = agreed(small(), tmp_path)
    one, other = Node.open(folders[0]), Node.open(folders[1])
    sealed = one.seal(4, b"secret state")
    assert one.unseal(4, sealed) == b"secret state"
    assert b"secret" not in sealed
    assert one.unseal(5, sealed) is None
    assert other.unseal(4, sealed) is None
    assert one.unseal(4, sealed[:-1] + bytes([sealed[-1] ^ 1])) is None
    assert one.unseal(4, b"") is None


def test_members_enrol_agree_and_sign_with_the_commands_of_the_documents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = []
    for i in range(4):
        assert share(["flower", "identity", str(tmp_path / f"n{i}")]) == 0
        lines.append(f"site-{i} {capsys.readouterr().out.strip()} {20 + i}")
    (tmp_path / "members.txt").write_text("\n".join(lines))
    file = tmp_path / "small.toml"
    file.write_text(to_toml(small(name="four", clients=4)))
    command = ["flower", "enrol", str(file), str(tmp_path / "members.txt"), "--out", str(tmp_path / "t")]
    assert share(command) == 0
    assert share(command) == 2  # nothing is overwritten
    agreed = tmp_path / "t" / AGREEMENT
    assert secagg_command(["agree", str(agreed), "--commit", str(tmp_path / "n0")]) == 2  # below the default floors
    for i in range(4):
        (tmp_path / f"n{i}" / "floors.toml").write_text('memory = "round"\nsurvivors = true\n')
    for step, part in (("--commit", "commitment"), ("--reveal", "reveal"), ("--sign", "signature")):
        with pytest.raises(ConfigError, match=AGREEMENT):
            read_training(tmp_path / "t" / TRAINING)  # not signed by all yet
        for i in range(4):
            assert secagg_command(["agree", str(agreed), step, str(tmp_path / f"n{i}")]) == 0
        assert len(list(agreed.parent.glob(f"*.{part}.toml"))) == 4
    floors = str(tmp_path / "n0" / "floors.toml")
    assert secagg_command(["agree", str(agreed), "--check", "--floors", floors]) == 0
    capsys.readouterr()
    assert share(["flower", "show", str(tmp_path / "t" / TRAINING)]) == 0
    shown = capsys.readouterr().out
    assert "650 parameters" in shown
    assert read_training(tmp_path / "t" / TRAINING).fingerprint.hex() in shown
    for name in (AGREEMENT, TRAINING):
        (tmp_path / "n2" / name).write_bytes((tmp_path / "t" / name).read_bytes())
    node = Node.open(tmp_path / "n2")
    assert (node.client, node.name) == (2, "site-2")


def test_a_location_binds_training_run_node_client_and_advert() -> None:
    base = (bytes(32), 1, 2, 3, b"advert")
    others = [(b"x" * 32, 1, 2, 3, b"advert"), (bytes(32), 4, 2, 3, b"advert"), (bytes(32), 1, 4, 3, b"advert")]
    others += [(bytes(32), 1, 2, 4, b"advert"), (bytes(32), 1, 2, 3, b"another")]
    assert len({location_statement(*parts) for parts in (base, *others)}) == 6


def test_no_password_gets_into_the_training_that_all_members_have() -> None:
    assert whole(export={"mlflow": "https://me@example.org"}).export.mlflow
    with pytest.raises(ConfigError, match="has a password"):
        whole(export={"mlflow": "https://me:secret@example.org"})

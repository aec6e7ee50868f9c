"""The agreement that every node pins, and the folder of a node."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from fl.config.checks import experiment
from fl.config.schema import to_tables
from fl.errors import ConfigError
from fl.flower.agreement import AgreedMember, Agreement, agree, read_agreement, read_members, write_agreement
from fl.flower.node import IDENTITY, STATE_KEY, KeyFileError, Node, make_node
from tests.flower.runs import agreed, small

SEED = bytes(range(32))


def make_agreement(count: int = 8) -> Agreement:
    members = [AgreedMember(f"m{i}", bytes([i]) * 32, 10 + i) for i in range(count)]
    return agree(small(), SEED, members)


def test_an_agreement_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "training.toml").write_text(write_agreement(make_agreement()))
    again = read_agreement(tmp_path / "training.toml")
    assert again == make_agreement()
    assert again.training_id == make_agreement().training_id


@pytest.mark.parametrize("what", ["seed", "name", "identity", "examples", "order", "experiment"])
def test_any_change_is_another_training(what: str) -> None:
    before = make_agreement()
    first, second, *rest = before.members
    changed = {
        "seed": replace(before, seed=SEED[::-1]),
        "name": replace(before, members=(replace(first, name="other"), second, *rest)),
        "identity": replace(before, members=(replace(first, identity=b"x" * 32), second, *rest)),
        "examples": replace(before, members=(replace(first, examples=99), second, *rest)),
        "order": replace(before, members=(second, first, *rest)),
        "experiment": agree(small(privacy={"clip": 4.0}), SEED, before.members),
    }[what]
    assert changed.training_id != before.training_id


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda text: text.replace('seed = "', 'seed = "zz'), "seed: expected 32 bytes"),
        (lambda text: text.replace('"m1"', '"m0"'), "same name"),
        (lambda text: text.replace("01" * 32, "00" * 32), "same identity"),
        (lambda text: text.replace("examples = 11", "examples = 0"), "at least 1"),
        (lambda text: text + "\n[more]\n", "no such key: more"),
        (lambda text: text.replace("[[members]]", "[[membres]]", 1), "no such key: membres"),
        (lambda text: "not toml at all", "training.toml"),
    ],
)
def test_a_wrong_agreement_is_refused_in_one_line(tmp_path: Path, spoil: object, message: str) -> None:
    place = tmp_path / "training.toml"
    place.write_text(spoil(write_agreement(make_agreement())))  # type: ignore[operator]
    with pytest.raises(ConfigError, match=message) as refused:
        read_agreement(place)
    assert "training.toml" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_training_over_a_network_needs_secure_sums() -> None:
    tables = {**to_tables(small()), "secure": False}
    with pytest.raises(ConfigError, match="every sum is secure"):
        Agreement(experiment(tables), SEED, make_agreement().members)


def test_members_are_read_from_lines(tmp_path: Path) -> None:
    place = tmp_path / "members.txt"
    place.write_text(f"# who\na {'11' * 32} 5\nb {'22' * 32} 7  # second\n")
    assert [(m.name, m.examples) for m in read_members(place)] == [("a", 5), ("b", 7)]
    place.write_text("a 11\n")
    with pytest.raises(ConfigError, match="line 1"):
        read_members(place)


def test_every_client_derives_the_same_plan() -> None:
    agreement = make_agreement()
    plans = {agreement.plan_of(client, 1, 10, b"c" * 32) for client in range(8)}
    assert len(plans) == 1
    (plan,) = plans
    assert plan is not None
    assert plan.training_seed == SEED
    assert plan.training_id == agreement.training_id


def test_a_key_that_other_users_may_read_is_refused(tmp_path: Path) -> None:
    _, folders = agreed(small(), tmp_path)
    Node.open(folders[0])
    for name in (IDENTITY, STATE_KEY):
        for mode in (0o640, 0o604, 0o620):
            os.chmod(folders[0] / name, mode)
            with pytest.raises(KeyFileError, match="read by others"):
                Node.open(folders[0])
        os.chmod(folders[0] / name, 0o600)
    Node.open(folders[0])


def test_keys_are_made_once_and_only_their_owner_can_read_them(tmp_path: Path) -> None:
    public = make_node(tmp_path / "node")
    assert make_node(tmp_path / "node") == public
    for name in (IDENTITY, STATE_KEY):
        assert (tmp_path / "node" / name).stat().st_mode & 0o777 == 0o600
    (tmp_path / "node" / IDENTITY).write_text("nonsense")
    with pytest.raises(KeyFileError, match="not a key"):
        make_node(tmp_path / "node")


def test_a_node_that_the_agreement_does_not_list_does_not_start(tmp_path: Path) -> None:
    _, folders = agreed(small(), tmp_path)
    make_node(tmp_path / "stranger")
    (tmp_path / "stranger" / "training.toml").write_bytes((folders[0] / "training.toml").read_bytes())
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

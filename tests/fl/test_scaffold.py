"""Control variates: against the authors' own algorithm, whose clients send a second vector."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl.config.schema import LATER
from fl.errors import ConfigError
from fl.reporting.records import Folder
from fl.training.learner import Learner
from fl.training.loop import run
from fl.training.scaffold import Variates
from tests.fl.runs import tiny

CHANGES: dict[str, Any] = {
    "clients": 12,
    "rounds": 3,
    "data": {"partition": "shards", "shards_per_client": 2, "examples": 240},
    "local": {"scaffold": True, "momentum": 0.0, "epochs": 2, "batch_size": 10, "lr": 0.1},
    "aggregation": {"rule": "mean"},
}


@pytest.mark.parametrize("schedule", ["constant", "exponential"])
def test_it_is_the_algorithm_of_its_authors(schedule: str) -> None:
    """Karimireddy et al. 2020, Algorithm 1, Option II, with both vectors sent and averaged as floats."""
    local = {**CHANGES["local"], "schedule": schedule, "period": 2}
    trained = run(tiny(**{**CHANGES, "local": local}, privacy={"clip": 1.0}))
    learner = Learner(trained.task)
    x = learner.initial()
    c, own = np.zeros_like(x), np.zeros((12, len(x)), dtype=np.float32)
    for t in range(3):
        y = x + learner.train(x, range(12), round_index=t, shift=c - own)
        after = own - c + (x - y) / np.float32(4 * trained.task.local.rate(t))
        x, c, own = x + (y - x).mean(axis=0), c + (after - own).mean(axis=0), after
    np.testing.assert_allclose(trained.x, x, atol=2e-5)
    plain = run(tiny(**CHANGES | {"local": {**local, "scaffold": False}}))
    assert np.abs(trained.x - plain.x).max() > 1e-3


def test_a_shift_is_added_to_every_gradient_in_every_way_to_train() -> None:
    trained = run(tiny(**{**CHANGES, "rounds": 1}))
    x = Learner(trained.task).initial()
    shift = np.random.default_rng(0).normal(size=(3, len(x))).astype(np.float32)
    one, together = (Learner(trained.task, together=count) for count in (1, 3))
    found = one.train(x, [0, 5, 7], round_index=0, shift=shift)
    np.testing.assert_allclose(together.train(x, [0, 5, 7], round_index=0, shift=shift), found, atol=1e-4)
    assert not np.allclose(one.train(x, [0, 5, 7], round_index=0), found, atol=1e-2)


def test_bits_do_not_depend_on_cryptography_workers_or_interruptions(tmp_path: Path) -> None:
    changes = {**CHANGES, "participation": 0.5, "clients": 24, "data": {**CHANGES["data"], "examples": 480}}
    whole = run(tiny(**changes)).x.tobytes()
    assert run(tiny(**changes, secure=True)).x.tobytes() == whole
    assert run(tiny(**changes, machine={"workers": 1})).x.tobytes() == whole
    with Folder.create(tmp_path / "run", tiny(**{**changes, "rounds": 2})) as folder:
        run(folder.experiment, folder=folder)
    with Folder.resume(tmp_path / "run", ["rounds=3"]) as folder:
        assert run(folder.experiment, folder=folder).x.tobytes() == whole


def test_a_skipped_round_changes_no_control_variate() -> None:
    data = run(tiny(**{**CHANGES, "rounds": 1})).task
    memory = {
        "last": np.ones(3, np.float32),
        "control": np.ones(3, np.float32),
        "controls": np.ones((12, 3), np.float32),
    }
    variates = Variates(data, memory, 0)
    variates.remember([0, 1], np.ones((2, 3), dtype=np.float32))
    assert variates.after(memory, skipped=True) is memory
    moved = variates.after(memory, skipped=False)
    assert moved["control"] == pytest.approx(1 - 2 / 12 * (1 + 1 / 0.4))
    assert moved["controls"][:3, 0] == pytest.approx([1 - (1 + 1 / 0.4)] * 2 + [1])
    assert (memory["controls"] == 1).all(), "a round that is interrupted leaves the memory as it was"


def test_what_control_variates_need_is_said() -> None:
    with pytest.raises(ConfigError, match=r"set local\.momentum = 0"):
        tiny(local={"scaffold": True})
    unequal = {**CHANGES, "data": {"partition": "dirichlet", "alpha": 0.3}}
    with pytest.raises(ConfigError, match=r"clients take from \d+ to \d+ steps.*drop_last"):
        run(tiny(**unequal))


def test_keys_that_came_later_leave_the_fingerprints_of_older_runs_as_they_were() -> None:
    """A fingerprint as it was before `local.scaffold` came."""
    assert ("local", "scaffold") in LATER
    assert tiny().fingerprint.hex() == "b31ee1b769d5863b135a12ea953fada1be5a8b488011a39a4f31faa67501a0b6"
    assert tiny(local={"scaffold": True, "momentum": 0.0}).fingerprint != tiny(local={"momentum": 0.0}).fingerprint

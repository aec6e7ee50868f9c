"""The server's step after aggregation, its memory in a checkpoint, and callbacks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import robust
from fl.config.schema import Server
from fl.errors import ConfigError, TrainingWarning
from fl.reporting.records import Folder
from fl.training.loop import run
from fl.training.server import blank, step
from tests.fl.runs import tiny


def by_hand(kind: str, updates: list[float], beta1: float, beta2: float, tau: float) -> list[float]:
    m, v, steps = 0.0, tau**2, []
    for u in updates:
        if kind == "momentum":
            m = beta1 * m + u
            steps.append(m)
            continue
        m = beta1 * m + (1 - beta1) * u
        change = v - u * u
        v = beta2 * v + (1 - beta2) * u * u if kind == "adam" else v - (1 - beta2) * u * u * np.sign(change)
        steps.append(m / (v**0.5 + tau))
    return steps


@pytest.mark.parametrize("kind", ["momentum", "adam", "yogi"])
def test_steps_are_those_of_the_formulas(kind: str) -> None:
    server = Server(optimizer=kind, beta1=0.8, beta2=0.9, tau=0.01)
    updates = [0.5, -0.25, 0.125, 0.001, 0.0]
    memory = blank(np.zeros(1, dtype=np.float32), server)
    found = []
    for update in updates:
        moved, memory = step(server, np.array([update], dtype=np.float32), memory)
        found.append(float(moved[0]))
        assert moved.dtype == np.float32
    assert found == pytest.approx(by_hand(kind, updates, 0.8, 0.9, 0.01), rel=1e-5)


def test_without_an_optimiser_the_update_is_the_step() -> None:
    update = np.array([1.5, -2.0], dtype=np.float32)
    moved, memory = step(Server(), update, blank(update, Server()))
    assert moved is update
    assert set(memory) == {"last"}


@pytest.mark.parametrize("kind", ["momentum", "adam", "yogi"])
def test_a_resumed_run_remembers_the_steps_before(tmp_path: Path, kind: str) -> None:
    changes: dict[str, Any] = {"server": {"optimizer": kind, "tau": 0.01}, "server_lr": 0.1}
    whole = run(tiny(rounds=4, **changes))
    assert whole.x.tobytes() != run(tiny(rounds=4, server_lr=0.1)).x.tobytes()
    with Folder.create(tmp_path / "run", tiny(rounds=2, **changes)) as folder:
        run(folder.experiment, folder=folder)
    with Folder.resume(tmp_path / "run", ["rounds=4"]) as folder:
        assert run(folder.experiment, folder=folder).x.tobytes() == whole.x.tobytes()


def test_a_step_of_the_server_that_leads_to_what_is_not_finite_is_not_made() -> None:
    models: list[np.ndarray] = []
    wild = tiny(rounds=3, server={"optimizer": "momentum"}, server_lr=1e38)
    with pytest.warns(TrainingWarning, match="round 2: round skipped, .* the server's step leads to .*lower server_lr"):
        done = run(wild, callbacks=[lambda record, x: models.append(x)])
    assert [bool(record["skipped"]) for record in done.history] == [False, True, True]
    assert np.isfinite(models[0]).all()
    assert models[0].tobytes() == models[2].tobytes()


@pytest.mark.parametrize("kind", ["adam", "yogi"])
def test_an_update_whose_square_is_infinite_does_not_freeze_the_model(kind: str) -> None:
    """The step itself would be zero, in this round and in all later ones."""

    @robust.aggregator(paper="nobody 2026", needs="n > 2f", withstands=lambda n: (n - 1) // 2)
    def huge(rows: robust.Rows) -> robust.Outcome:
        return robust.Outcome(np.full(rows.width, 1e20))

    try:
        with pytest.warns(TrainingWarning, match="round 1: round skipped, .* the server's step leads to"):
            done = run(tiny(rounds=1, aggregation={"rule": "huge"}, server={"optimizer": kind}))
    finally:
        robust.AGGREGATORS.remove("huge")
    assert done.history[0]["skipped"]


def test_a_skipped_round_keeps_the_memory_and_the_model() -> None:
    absent = [{"round": 2, "clients": list(range(12))}]
    changes: dict[str, Any] = {"server": {"optimizer": "momentum"}, "dropout": {"schedule": absent}}
    models: list[np.ndarray] = []
    run(tiny(rounds=3, **changes), callbacks=[lambda record, x: models.append(x)])
    assert models[0].tobytes() == models[1].tobytes() != models[2].tobytes()


def test_callbacks_see_every_round_and_stop_a_training(tmp_path: Path) -> None:
    seen: list[tuple[int, bytes]] = []

    def watch(record: Mapping[str, Any], x: np.ndarray) -> str | None:
        seen.append((record["round"], x.tobytes()))
        x[:] = 0  # a copy: the training does not change
        return "enough" if record["round"] == 3 else None

    e = tiny(rounds=5, machine={"checkpoint_every": 2})
    with Folder.create(tmp_path / "run", e) as folder:
        stopped = run(e, folder=folder, callbacks=[watch])
    assert [number for number, _ in seen] == [1, 2, 3]
    assert stopped.summary["stopped"] == "enough"
    assert seen[-1][1] == stopped.x.tobytes() == run(tiny(rounds=3)).x.tobytes()
    with Folder.resume(tmp_path / "run") as folder:
        assert run(e, folder=folder).x.tobytes() == run(tiny(rounds=5)).x.tobytes()


def test_callbacks_cannot_change_the_record_and_all_of_them_are_called() -> None:
    seen: list[int] = []

    def spoil(record: Any, x: np.ndarray) -> str:
        record["groupings"].clear()
        record["accuracy"] = 2.0
        return "spoiled"

    def look(record: Mapping[str, Any], x: np.ndarray) -> str:
        seen.append(len(record["groupings"]))
        return "looked"

    trained = run(tiny(rounds=3), callbacks=[spoil, look])
    assert seen == [1]
    assert trained.summary["stopped"] == "spoiled"
    assert trained.history[0]["groupings"]
    assert trained.accuracy <= 1


@pytest.mark.parametrize("answer", [True, 0.5, [], b"enough"])
def test_a_callback_that_returns_neither_nothing_nor_a_reason_ends_the_training(answer: object, tmp_path: Path) -> None:
    def odd(record: Mapping[str, Any], x: np.ndarray) -> object:
        return answer

    e = tiny(rounds=3)
    with Folder.create(tmp_path / "run", e) as folder, pytest.raises(ConfigError) as refused:
        run(e, folder=folder, callbacks=[odd])
    assert str(refused.value) == (
        "callbacks: expected that odd returns None to go on, or a text with the reason to stop, got " + repr(answer)
    )
    with Folder.resume(tmp_path / "run") as folder:
        assert run(e, folder=folder).x.tobytes() == run(e).x.tobytes()


def test_an_error_in_a_callback_ends_the_training_after_the_round_is_recorded(tmp_path: Path) -> None:
    def broken(record: Mapping[str, Any], x: np.ndarray) -> None:
        raise ZeroDivisionError("mine")

    e = tiny(rounds=3)
    with Folder.create(tmp_path / "run", e) as folder, pytest.raises(ZeroDivisionError, match="mine"):
        run(e, folder=folder, callbacks=[broken])
    with Folder.resume(tmp_path / "run") as folder:
        assert run(e, folder=folder).x.tobytes() == run(e).x.tobytes()

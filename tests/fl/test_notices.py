"""What goes wrong in a round without ending the training is said once, also over a resume."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fl
from fl.errors import TrainingWarning
from fl.reporting.progress import Progress
from fl.training.loop import Trained, run
from fl.training.notices import Notices
from tests.fl.runs import tiny

SMALL: dict[str, Any] = {"rounds": 2, "secure": False, "machine": {"workers": 0}, "clusters": {"size": 3}}


class Heard(Progress):
    """Keeps the warnings of a training with the number of rounds that were over."""

    def __init__(self) -> None:
        self.said: list[tuple[int, str]] = []
        self._done = 0

    def round(self, record: Mapping[str, Any]) -> None:
        self._done = record["round"]

    def warn(self, text: str) -> None:
        self.said.append((self._done, text))


def test_a_client_whose_updates_are_not_finite_is_named_once_also_over_a_resume(tmp_path: Path) -> None:
    heard, again = Heard(), Heard()
    broken = spoiled(5)
    trained = train(broken, broken[0], out=tmp_path / "run", show=heard)
    assert [text for _, text in heard.said] == [
        "share: round 1: the updates of client 5 are not finite and were not summed; look for values that are not "
        "finite in their examples, or lower local.lr or server_lr"
    ]
    lost = [group for group in trained.history[0]["clusters"] if group["state"] == "lost"]
    assert [group["why"] for group in lost] == ["client 5: its update is not finite"]
    train(broken, broken[0], out=tmp_path / "run", show=again, rounds=4, resume=True)
    assert again.said == []
    with pytest.warns(TrainingWarning, match="round 1: the updates of client 5 are not finite and were not summed"):
        train(broken, broken[0])


def test_attackers_that_are_to_send_what_is_not_finite_are_not_told_about() -> None:
    heard = Heard()
    trained = run(tiny(rounds=1, byzantine=2, attack={"name": "non_finite"}), show=heard)
    assert len(trained.history[0]["dropouts"]) == 2
    assert not [text for _, text in heard.said if "finite" in text]


def test_a_loss_that_was_told_is_not_told_again_over_a_resume(tmp_path: Path) -> None:
    clients, heard = spoiled(), Heard()
    test = (torch.full((4, 2), torch.nan), torch.zeros(4, dtype=torch.int64))
    train(clients, test, out=tmp_path / "run", show=heard)
    assert len(heard.said) == 1
    train(clients, test, out=tmp_path / "run", show=heard, rounds=4, resume=True)
    assert len(heard.said) == 1


def test_a_client_that_only_did_not_answer_before_a_resume_is_named_later() -> None:
    notices = Notices(tiny(rounds=9))
    gone = {"client": 4, "why": "it did not answer in time"}
    notices.remember({"round": 1, "loss": 1.0, "accuracy": 0.5, "metrics": {}, "dropouts": [gone]})
    broken = {"client": 4, "why": "its update is not finite"}
    assert len(notices.of({"round": 2, "loss": 1.0, "dropouts": [broken]})) == 1


def test_clients_whose_updates_become_infinite_later_are_named_then() -> None:
    def entry(client: int) -> dict[str, Any]:
        return {"client": client, "why": "its update is not finite"}

    notices = Notices(tiny(rounds=9))
    silent = {"client": 4, "why": "it did not answer in time"}
    rounds = [[silent], [entry(4)], [entry(4), entry(7)], [entry(n) for n in range(12)]]
    found = [notices.of({"round": t + 1, "loss": 1.0, "dropouts": gone}) for t, gone in enumerate(rounds)]
    assert [len(told) for told in found] == [0, 1, 1, 1]
    assert "the updates of client 4 are" in found[1][0]
    assert "the updates of client 7 are" in found[2][0]
    assert "the updates of clients 0, 1, 2, 3, 5 and 5 more are" in found[3][0]


def spoiled(*numbers: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Data of nine clients; these have one infinite value each."""
    random = np.random.default_rng(0)
    clients = [(random.normal(size=(8, 2)).astype(np.float32), np.arange(8) % 2) for _ in range(9)]
    for number in numbers:
        clients[number][0][3, 1] = np.inf
    return clients


def train(clients: Any, test: Any, **settings: Any) -> Trained:
    return fl.train("linear", clients, test, **{**SMALL, **settings})


def test_a_loss_that_is_not_finite_is_said_in_the_first_tested_round(tmp_path: Path) -> None:
    clients, heard, again = spoiled(), Heard(), Heard()
    test = (torch.full((4, 2), torch.nan), torch.zeros(4, dtype=torch.int64))
    where: dict[str, Any] = {"out": tmp_path / "run", "machine": {"workers": 0, "evaluate_every": 9}}
    train(clients, test, **where, callbacks=[lambda record, x: "enough"], show=again)
    assert again.said == []  # this round was not tested
    train(clients, test, **where | {"machine": {"workers": 0, "evaluate_every": 2}}, resume=True, rounds=4, show=heard)
    assert heard.said == [
        (
            2,
            "share: round 2: the loss on the test examples is not finite; look for values that are not finite in "
            "the test examples, or lower local.lr or server_lr",
        )
    ]


def test_a_training_in_which_all_is_well_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(tiny(rounds=2, dropout={"schedule": [{"round": 1, "clients": [3]}]}))

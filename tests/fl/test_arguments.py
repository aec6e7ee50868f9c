"""What a caller passes to a training in Python is checked before anything is done, and said in one line."""

import reprlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl
from fl.errors import ConfigError, RecordError
from fl.reporting.records import Folder
from tests.fl.runs import tiny

CLIENTS = [(np.zeros((4, 2), np.float32), np.arange(4) % 2) for _ in range(9)]
SMALL: dict[str, Any] = {"rounds": 1, "secure": False, "machine": {"workers": 0}, "clusters": {"size": 3}}
CALLBACKS = "callbacks: expected a list of functions of (record, vector), got "
EXPERIMENT = "experiment: expected an Experiment, which fl.experiment(...) or fl.load(...) makes, got "
FOLDER = "folder: expected a Folder, which Folder.create(path, experiment) of fl.reporting.records makes, got "
OF_BOTH = [
    ({"show": True}, "show: expected a Progress, such as LineProgress() of fl.reporting.progress, got True (bool)"),
    ({"callbacks": print}, f"{CALLBACKS}<built-in function print> (builtin_function_or_method)"),
    ({"callbacks": ["x"]}, f"{CALLBACKS}['x'] (list)"),
    ({"callbacks": {print}}, f"{CALLBACKS}{{<built-in function print>}} (set)"),
    ({"callbacks": (print for _ in range(1))}, f"{CALLBACKS}<generator"),
]
OF_TRAIN = [
    ({"out": 5}, "out: expected the name of a folder, got 5 (int)"),
    ({"out": ""}, "out: expected the name of a folder, got '' (str)"),
    ({"model": 5}, "model: expected a torch module, a function or a name, got 5 (int)"),
]
OF_RUN = [
    ({"experiment": {"rounds": 1}}, f"{EXPERIMENT}{{'rounds': 1}} (dict)"),
    ({"experiment": "digits"}, f"{EXPERIMENT}'digits' (str)"),
    ({"folder": "runs/x"}, f"{FOLDER}'runs/x' (str)"),
    ({"out": 5}, "out: expected the name of a folder, got 5 (int)"),
    ({"out": "run", "model": 5}, "model: expected a torch module, a function or a name, got 5 (int)"),
]


@pytest.mark.parametrize(("arguments", "told"), [*OF_BOTH, *OF_TRAIN])
def test_train_names_the_argument_that_is_of_another_kind(
    arguments: dict[str, Any], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refused:
        fl.train(arguments.pop("model", "linear"), CLIENTS, CLIENTS[0], **SMALL, **arguments)
    assert str(refused.value).startswith(told)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(("arguments", "told"), [*OF_BOTH, *OF_RUN])
def test_run_names_the_argument_that_is_of_another_kind(
    arguments: dict[str, Any], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refused:
        fl.run(**{"experiment": tiny(rounds=1), **arguments})
    assert str(refused.value).startswith(told)
    assert not any(tmp_path.iterdir())


def test_a_run_is_recorded_and_resumed_by_the_name_of_its_folder(tmp_path: Path) -> None:
    whole = fl.run(tiny(rounds=3))
    fl.run(tiny(rounds=2), out=tmp_path / "run")
    with pytest.raises(RecordError, match="holds a run already"):
        fl.run(tiny(rounds=2), out=tmp_path / "run")
    resumed = fl.run(tiny(rounds=3), out=str(tmp_path / "run"), resume=True)
    assert (resumed.folder, resumed.x.tobytes()) == (tmp_path / "run", whole.x.tobytes())
    assert len(resumed.history) == 3
    with pytest.raises(ConfigError, match="resume: a run continues in its folder; name it with out="):
        fl.run(tiny(rounds=3), resume=True)
    with (
        Folder.create(tmp_path / "other", tiny()) as folder,
        pytest.raises(ConfigError, match="folder: it is open already; leave out="),
    ):
        fl.run(tiny(), folder=folder, out=tmp_path / "third")


def test_tables_and_settings_have_to_be_what_they_are_called() -> None:
    with pytest.raises(ConfigError) as refused:
        fl.experiment("digits")  # type: ignore[arg-type]
    assert str(refused.value) == (
        "tables: expected a dictionary, got 'digits'; fl.load(name) reads a file or a packaged experiment"
    )
    for settings in ("rounds=3", {"rounds": 3}, [3], None, 5, iter(["rounds=3"])):
        with pytest.raises(ConfigError) as refused:
            fl.load("digits", settings)  # type: ignore[arg-type]
        assert str(refused.value) == (
            f'settings: expected a list of "key=value" texts, such as ["rounds=3"], got {reprlib.repr(settings)}'
        )

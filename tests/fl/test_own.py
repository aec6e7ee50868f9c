"""Functions of the user's own: an error in them ends the training, and nothing is left out without a word."""

import importlib
import importlib.util
import random
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import fl
import robust
from fl.cli import main
from fl.config.grid import read_sweep
from fl.config.own import check_modules, find_modules, imported, paths_of_a_worker
from fl.config.read import to_toml
from fl.config.rules import assumed_bad
from fl.data import DataSet, Examples, load
from fl.errors import ConfigError, TrainingError, TrainingWarning
from fl.reporting.measures import describe_summary
from fl.reporting.progress import describe_round
from fl.reporting.records import Folder, recorded
from fl.reporting.report import html
from fl.secure.layout import segments_of
from fl.secure.population import as_entry
from fl.training.learner import Learner
from fl.training.loop import run
from fl.training.models import import_path
from secagg.crypto import Segment, Segments
from tests.fl.runs import tiny


@pytest.fixture
def own() -> Iterator[list[str]]:
    """Names that the test has registered, and that are removed after it."""
    names: list[str] = []
    yield names
    for name in names:
        for registry in (robust.AGGREGATORS, robust.ATTACKS):
            if name in registry:
                registry.remove(name)


def rule(own: list[str], error: Exception) -> None:
    @robust.aggregator(paper="nobody 2026", needs="n > 2f", withstands=lambda n: (n - 1) // 2)
    def failing(rows: robust.Rows) -> robust.Outcome:
        raise error

    own.append("failing")


@pytest.mark.parametrize("error", [ValueError("a mistake of mine"), OSError("no such table"), KeyError("x")])
def test_an_error_in_an_own_rule_ends_the_training_with_its_traceback(own: list[str], error: Exception) -> None:
    rule(own, error)
    with pytest.raises(type(error)) as caught:
        run(tiny(aggregation={"rule": "failing"}))
    assert caught.value is error
    assert any(entry.name == "failing" for entry in caught.traceback)


def test_the_command_line_shows_that_traceback_too(own: list[str], tmp_path: Path) -> None:
    rule(own, OSError("no such table"))
    (tmp_path / "mine.toml").write_text(to_toml(tiny(aggregation={"rule": "failing"})))
    with pytest.raises(OSError, match="no such table"):
        main(["train", str(tmp_path / "mine.toml"), "--out", str(tmp_path / "run")])


def test_a_rule_that_returns_what_is_not_finite_ends_the_training_and_is_named(own: list[str]) -> None:
    @robust.aggregator(paper="nobody 2026", needs="n > 2f", withstands=lambda n: (n - 1) // 2)
    def not_a_number(rows: robust.Rows) -> robust.Outcome:
        return robust.Outcome(rows.array().mean(axis=0) * np.nan)

    own.append("not_a_number")
    with pytest.raises(TrainingError, match=r"round 1: the rule not_a_number returned values that are not finite"):
        run(tiny(aggregation={"rule": "not_a_number"}))


def test_a_rule_or_an_attack_that_is_given_as_a_function_is_asked_for_by_name() -> None:
    for changes, key in (
        ({"aggregation": {"rule": robust.median}}, "aggregation.rule"),
        ({"attack": {"name": robust.sign_flip}}, "attack.name"),
    ):
        with pytest.raises(ConfigError, match=rf'{key}: .*; give its name: "module:function", or that under which'):
            tiny(**changes)


def test_an_error_or_a_wrong_shape_of_an_own_attack_ends_the_training(own: list[str]) -> None:
    @robust.attack
    def raising(given: robust.AttackInput) -> robust.Matrix:
        raise ValueError("a mistake of mine")

    @robust.attack
    def one_row(given: robust.AttackInput) -> robust.Matrix:
        return given.honest[0]  # numpy would copy it to every attacker

    own += ["raising", "one_row"]
    with pytest.raises(ValueError, match="a mistake of mine"):
        run(tiny(byzantine=2, attack={"name": "raising"}))
    with pytest.raises(TypeError, match="attack one_row must return a matrix of 2 x 650"):
        run(tiny(byzantine=2, attack={"name": "one_row"}))


def test_a_rule_that_is_left_with_too_few_rows_skips_the_round_and_warns() -> None:
    schedule = [{"round": 1, "clients": list(range(10))}]
    with pytest.warns(TrainingWarning, match="round 1: round skipped"):
        trained = run(tiny(aggregation={"rule": "krum"}, dropout={"schedule": schedule}))
    assert trained.summary["skipped_rounds"] == [1]


@pytest.mark.parametrize("before", [[], ["nnm"]])
def test_a_rule_of_ones_own_that_calls_another_on_too_few_rows_ends_the_training(
    own: list[str], before: list[str]
) -> None:
    """It is a mistake in the rule; a round is skipped only if there are too few clusters for the rule itself."""

    @robust.aggregator(paper="nobody 2026", needs="n > 2f", withstands=lambda n: (n - 1) // 2)
    def failing(rows: robust.Rows) -> robust.Outcome:
        robust.nnm(rows.array(), f=1)
        return robust.Outcome(robust.krum(rows.array(), f=5) if not before else robust.nnm(rows.array(), f=5)[0])

    own.append("failing")
    problem = "nnm needs n > f: got n=4, f=5" if before else r"krum needs n > 2f \+ 2: got n=4, f=5"
    with pytest.raises(robust.RowsError, match=problem) as caught:
        run(tiny(aggregation={"rule": "failing", "before": before}))
    assert any(entry.name == "failing" for entry in caught.traceback)


def test_a_rule_or_step_that_is_left_with_too_few_rows_skips_the_round(own: list[str]) -> None:
    """Also if the rule says so itself."""

    @robust.aggregator(paper="nobody 2026", needs="n > 2f", withstands=lambda n: (n - 1) // 2)
    def failing(rows: robust.Rows) -> robust.Outcome:
        raise robust.RowsError("too few for me")

    @robust.pre_aggregator(paper="nobody 2026", needs="nothing of n and f")
    def failing_step(rows: robust.Rows) -> robust.Mixed:
        raise robust.RowsError("too few for the step")

    own.append("failing")
    for aggregation in ({"rule": "failing"}, {"rule": "median", "before": ["failing_step"]}):
        try:
            with pytest.warns(TrainingWarning, match="round 1: round skipped.*too few for"):
                trained = run(tiny(rounds=1, aggregation=aggregation))
            assert trained.summary["skipped_rounds"] == [1]
        finally:
            if "before" in aggregation:
                robust.PRE_AGGREGATORS.remove("failing_step")


def test_a_rule_that_validates_needs_examples_before_the_first_round() -> None:
    part = (torch.randn(8, 2), torch.arange(8) % 2)
    with pytest.raises(ConfigError, match=r"data\.validation"):
        fl.train("linear", [part] * 12, part, rounds=1, aggregation={"rule": "zeno"}, data={"validation": 0.1})
    assert fl.train("linear", [part] * 12, part, rounds=1, aggregation={"rule": "zeno"}, validation=part).accuracy >= 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"byzantine": 3, "attack": {"name": "sign_flip"}}, "3 attackers can spoil up to 3 of 4 clusters"),
        (
            {"byzantine": 1, "attack": {"name": "sign_flip"}, "aggregation": {"f": 0}},
            "share: 1 attacker can spoil up to 1 of 4 clusters",
        ),
        ({"method": "no-share", "privacy": {"expose_every_client": True}}, "NO SECURE AGGREGATION"),
        ({"privacy": {"audit": "report-even-if-exposed"}}, "NOBODY IS PROTECTED"),
        ({"clients": 14}, "2 of 14 clients are in no cluster of any round: .* cannot be divided into clusters of 3"),
    ],
)
def test_a_training_without_a_display_warns_through_warnings(changes: dict[str, Any], words: str) -> None:
    with pytest.warns(TrainingWarning, match=words):
        run(tiny(rounds=1, **changes))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(tiny(rounds=1))


def test_a_display_shows_warnings_as_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.toml").write_text(to_toml(tiny(privacy={"audit": "report-even-if-exposed"})))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["train", str(tmp_path / "mine.toml"), "--out", str(tmp_path / "run")]) == 0
    assert "warning: share: NOBODY IS PROTECTED" in capsys.readouterr().err


def test_f_is_by_default_the_number_of_attackers_and_at_most_what_the_rule_withstands() -> None:
    attacked = {"clients": 30, "byzantine": 2, "attack": {"name": "sign_flip"}}
    trimmed = tiny(**attacked, aggregation={"rule": "trimmed_mean"})
    assert assumed_bad(trimmed, 10) == 2
    assert assumed_bad(trimmed, 3) == 1
    assert assumed_bad(trimmed.replace(byzantine=0), 10) == 4
    assert assumed_bad(tiny(**attacked, aggregation={"rule": "trimmed_mean", "f": 3}), 10) == 3
    record = run(trimmed.replace(rounds=1)).history[0]
    assert record["groupings"][0]["f"] == 2
    equal = tiny(**attacked, rounds=1, aggregation={"rule": "median"})
    assert run(equal).x.tobytes() != run(trimmed.replace(rounds=1)).x.tobytes()


def test_an_update_that_is_not_finite_is_said_to_be_so() -> None:
    trained = run(tiny(rounds=1, byzantine=1, attack={"name": "non_finite"}))
    assert [entry["why"] for entry in trained.history[0]["dropouts"]] == ["its update is not finite"]
    assert np.isfinite(trained.x).all()


@pytest.mark.parametrize("changes", [{}, {"method": "fedavg"}, {"method": "no-share"}, {"groups": "survivors"}])
def test_clipped_coordinates_are_counted_through_the_sum(changes: dict[str, Any], tmp_path: Path) -> None:
    """A coordinate beyond the clip is counted by its client; the server opens the sum of the counts alone."""
    groups = changes.pop("groups", "whole")
    more = {"clusters": {"groups": groups, "schedule": "fixed" if groups == "whole" else "random"}}
    privacy = {"clip": 0.02, "memory": "training" if groups == "whole" else "round", "expose_every_client": True}
    e = tiny(**changes, **more, privacy=privacy, rounds=1)
    shares = []
    for secure in (False, True):
        trained = run(e.replace(secure=secure))
        shares.append(trained.history[0]["clipped"])
    trainer = Learner(trained.task)
    updates = trainer.train(trainer.initial(), range(12), round_index=0)
    assert shares[0] == shares[1] == pytest.approx((np.abs(updates) > 0.02).mean(), abs=1e-9)
    assert 0 < shares[0] < 1
    assert "of coordinates clipped" in describe_round(trained.history[0])
    assert "a larger privacy.clip keeps them" in describe_summary(e, trained.summary)
    loose = run(e.replace(privacy=e.privacy.replace(clip=8.0)))
    assert loose.history[0]["clipped"] == 0
    assert "clipped" not in describe_round(loose.history[0])


def test_an_attack_that_the_simulation_clips_is_told_once() -> None:
    attack = {"name": "sign_flip", "options": {"scale": 1000.0}}
    e = tiny(byzantine=1, attack=attack, clients=30)
    with pytest.warns(TrainingWarning, match="the attack was clipped") as caught:
        trained = run(e)
    assert sum("the attack was clipped" in str(warning.message) for warning in caught) == 1
    first = trained.history[0]
    assert 0 < first["attack_clipped"] < 1
    assert "of the attack clipped" in describe_round(first)
    assert "a real attacker need not clip" in describe_summary(e, trained.summary)
    wide = run(e.replace(privacy=e.privacy.replace(clip=10000.0), rounds=1))
    assert wide.history[0]["attack_clipped"] == 0
    assert run(tiny(rounds=1, byzantine=1, attack={"name": "label-flip"})).history[0]["attack_clipped"] == 0


def test_a_count_of_clipped_coordinates_ends_at_its_bound() -> None:
    update, clipped = segments_of(2**24, 1.0, 1000)
    assert (update.length, clipped.bound) == (2**24, (2**31 - 1) // 1000)
    encoding = Segments(clients=1000, segments=segments_of(10, 1.0, 1000))
    assert as_entry(encoding, np.full(10, 2.0, dtype=np.float32), 1.0)["clipped"] == 10
    assert as_entry(encoding, np.full(10, 2.0, dtype=np.float32), 0.4)["clipped"] == 0
    small = Segments(clients=1, segments=(Segment(name="update", shape=(10,), clip=1.0),
                                          Segment(name="clipped", shape=(), bound=3)))  # fmt: skip
    assert as_entry(small, np.full(10, 2.0, dtype=np.float32), 1.0)["clipped"] == 3


def test_sums_that_stay_closed_because_clients_are_unequal_say_what_to_change(tmp_path: Path) -> None:
    e = tiny(
        clusters={"groups": "survivors", "schedule": "random"},
        privacy={"memory": "round"},
        data={"partition": "dirichlet", "alpha": 0.2},
    )
    with pytest.warns(TrainingWarning, match=r"4 of 4 sums stay closed.*privacy\.weight_ratio = 1\.41"):
        trained = run(e)
    told = trained.history[0]["closed"]
    assert told in describe_round(trained.history[0])
    assert told.partition(":")[0] in describe_summary(e, trained.summary)
    with Folder.create(tmp_path / "run", e) as folder:
        run(e, folder=folder)
    assert "set privacy.weight_ratio = 1.41" in html([recorded(tmp_path / "run")])
    fixed = run(e.replace(privacy=e.privacy.replace(weight_ratio=1.41)))
    assert fixed.history[0]["closed"] == ""
    assert not fixed.summary["skipped_rounds"]


OWN_MODULE = """
import numpy as np
import robust

@robust.aggregator(paper="nobody 2026", needs="n > 2f", withstands=lambda n: (n - 1) // 2)
def beside_rule(rows: robust.Rows, *, f: int, power: float = 1.0) -> robust.Outcome:
    return rows.average(np.arange(len(rows) - f))

@robust.attack
def beside_attack(given: robust.AttackInput, *, size: float = 1.0) -> robust.Matrix:
    return np.full((given.byzantine, given.honest.shape[1]), size, dtype=np.float32)

def plain(rows):
    return rows[0]
"""


def test_own_rules_and_attacks_are_named_in_toml(
    tmp_path: Path, own: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.path", list(sys.path))
    (tmp_path / "rules_beside.py").write_text(OWN_MODULE)
    own += ["beside_rule", "beside_attack"]
    text = to_toml(tiny(name="mine", byzantine=1, attack={"name": "zero"}))
    file = tmp_path / "mine.toml"
    text = text.replace('name = "zero"', 'name = "rules_beside:beside_attack"')
    file.write_text(text.replace('rule = "median"', 'rule = "rules_beside:beside_rule"'))
    more = ["--set", "aggregation.options.power=2.0", "--set", "attack.options.size=0.5"]
    assert main(["train", str(file), "--out", str(tmp_path / "run"), *more]) == 0, capsys.readouterr().err
    assert recorded(tmp_path / "run").rounds[0]["groupings"][0]["f"] == 1
    assert main(["train", str(file), "--out", str(tmp_path / "x"), "--set", "aggregation.options.strength=1"]) == 2
    assert "strength" in capsys.readouterr().err
    assert main(["train", str(file), "--out", str(tmp_path / "x"), "--set", "aggregation.rule=rules_beside:plain"]) == 2
    assert "@robust.aggregator" in capsys.readouterr().err


NETWORK = """
import math
from torch import nn

def net(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), {width}), nn.Linear({width}, classes))
"""


OWN_MODULES = ("same_net", "own_package", "lib_net", "net_a", "net_b", "helper", "nsp", "rule_one", "rule_two")


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules and folders that the test loads are gone after it."""
    monkeypatch.setattr("sys.path", list(sys.path))
    before = dict(sys.modules)
    yield
    for name in [name for name in sys.modules if name not in before]:
        if name.partition(".")[0] in OWN_MODULES:
            del sys.modules[name]
    tiny()  # whose folders, none, are looked in now


def configured(place: Path, model: str, width: int = 3, module: str = "same_net.py", **changes: Any) -> Path:
    """A configuration file with a module beside it."""
    (place / module).parent.mkdir(parents=True)
    (place / module).write_text(NETWORK.format(width=width))
    (place / "my.toml").write_text(to_toml(tiny(rounds=1, **changes)).replace('"linear"', f'"{model}"'))
    return place / "my.toml"


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize(
    ("model", "module"), [("same_net:net", "same_net.py"), ("own_package:net", "own_package/__init__.py")]
)
def test_a_second_file_does_not_get_the_module_of_the_first(tmp_path: Path, model: str, module: str) -> None:
    first, second = (fl.load(configured(tmp_path / n, model, w, module)) for n, w in (("a", 3), ("b", 5)))
    trained = run(first)  # its own, although the other file was read after it
    assert trained.x.size == 64 * 3 + 3 + 3 * 10 + 10
    with pytest.raises(ConfigError) as refused:
        run(second)
    top, mine = model.partition(":")[0], Path(module).parts[0]
    assert str(refused.value) == (
        f"model: {model!r}: expected the module {top} of {tmp_path / 'b'}, but this process has loaded another module "
        f"{top}, from {tmp_path / 'a' / module}; rename {tmp_path / 'b' / mine}, or train in a process of its own if "
        "both are yours"
    )
    assert run(first).x.tobytes() == trained.x.tobytes()
    (tmp_path / "b" / mine).rename(tmp_path / "b" / "other")
    (tmp_path / "b" / mine).symlink_to(tmp_path / "a" / mine)
    assert run(second).x.tobytes() == trained.x.tobytes()  # it is the same file


def written(folder: Path, files: dict[str, str]) -> str:
    """A folder with modules."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return str(folder)


HELPED = """
from helper import WIDTH
from torch import nn

def net(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), nn.Linear(WIDTH, 10))
"""


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("helper", ["helper.py", "helper/__init__.py"])
def test_a_training_does_not_get_what_a_module_of_another_experiment_imported(tmp_path: Path, helper: str) -> None:
    first = written(tmp_path / "a", {"net_a.py": HELPED, helper: "WIDTH = 3"})
    second = written(tmp_path / "b", {"net_b.py": HELPED, helper: "WIDTH = 5"})
    a, b = (
        tiny(rounds=1, model=f"{name}:net", machine={"modules": [folder]})
        for name, folder in (("net_a", first), ("net_b", second))
    )
    trained = run(a)
    with pytest.raises(ConfigError) as refused:
        run(b)
    assert str(refused.value) == (
        f"machine.modules: expected the module helper of {second}, but this process has loaded another module helper, "
        f"from {tmp_path / 'a' / helper}; rename {tmp_path / 'b' / Path(helper).parts[0]}, or train in a process of "
        "its own if both are yours"
    )
    assert run(a).x.tobytes() == trained.x.tobytes()


PLAIN_RULE = '''
import numpy as np
from robust import Outcome, Rows, aggregator

@aggregator(paper="Nobody 2000", needs="n > 2f", withstands=lambda n: (n - 1) // 2)
def {name}(rows: Rows) -> Outcome:
    """The mean. Nobody 2000."""
    return rows.average(np.arange(len(rows)))
'''


@pytest.mark.usefixtures("apart")
def test_runs_whose_modules_have_helpers_of_one_name_are_reported_together(tmp_path: Path) -> None:
    """A report reads records, and trains nothing."""
    rule = "import helper\n" + PLAIN_RULE
    for name in ("one", "two"):
        folder = written(tmp_path / name, {f"rule_{name}.py": rule.format(name=f"plain_{name}"), "helper.py": ""})
        e = tiny(rounds=1, aggregation={"rule": f"rule_{name}:plain_{name}"}, machine={"modules": [folder]})
        with Folder.create(tmp_path / f"run_{name}", e) as opened:
            run(e, folder=opened)
        sys.modules.pop("helper")
        robust.AGGREGATORS.remove(f"plain_{name}")
        sys.modules.pop(f"rule_{name}")
    runs, page = [str(tmp_path / "run_one"), str(tmp_path / "run_two")], str(tmp_path / "both.html")
    assert main(["report", *runs, "--out", page, "--no-picture"]) == 0
    for name in ("one", "two"):
        robust.AGGREGATORS.remove(f"plain_{name}")


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize(
    ("before", "after"),
    [("nsp/net.py", "nsp/net.py"), ("nsp/net.py", "nsp/net/__init__.py"), ("nsp/__init__.py", "nsp/__init__.py")],
)
def test_a_folder_without_init_is_not_exchanged_for_another_of_its_name(
    tmp_path: Path, before: str, after: str
) -> None:
    text = "def net():\n    return {}\n"
    find_modules([written(tmp_path / "a", {before: text.format(3), "nsp/net.py": text.format(3)})])
    assert imported("nsp.net:net", "model")() == 3
    find_modules([written(tmp_path / "b", {after: text.format(5), "nsp/other.py": text.format(7)})])
    with pytest.raises(
        ConfigError, match=rf"but this process has loaded another module nsp.*; rename {tmp_path}/b/nsp,"
    ):
        imported("nsp.net:net", "model")


@pytest.mark.usefixtures("apart")
def test_folders_of_one_name_with_other_modules_do_not_disturb_each_other(tmp_path: Path) -> None:
    text = "def net():\n    return {}\n"
    first = written(tmp_path / "a", {"nsp/net.py": text.format(3)})
    second = written(tmp_path / "b", {"nsp/other.py": text.format(7)})
    for folder, named, width in ((first, "nsp.net", 3), (second, "nsp.other", 7), (first, "nsp.net", 3)):
        find_modules([folder])
        assert imported(f"{named}:net", "model")() == width


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("folders", [[], ["empty"]])
def test_a_module_of_an_experiment_before_does_not_run_in_the_place_of_one_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folders: list[str]
) -> None:
    text = "def net():\n    return {}\n"
    (tmp_path / "empty").mkdir()
    monkeypatch.syspath_prepend(written(tmp_path / "here", {"helper.py": text.format(5)}))
    before = list(sys.path)
    find_modules([written(tmp_path / "a", {"helper.py": text.format(3), "net_a.py": text.format(7)})])
    assert imported("helper:net", "model")() == 3
    find_modules([str(tmp_path / folder) for folder in folders])
    with pytest.raises(ConfigError) as refused:
        imported("helper:net", "model")
    assert str(refused.value) == (
        f"model: 'helper:net': this process has loaded the module helper of another experiment, from "
        f"{tmp_path}/a/helper.py; name its folder in machine.modules, or train in a process of its own"
    )
    with pytest.raises(ConfigError, match="there is no module net_a"):
        imported("net_a:net", "model")  # it was not loaded
    find_modules([])
    assert sys.path == before


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("loaded", [False, True])
def test_a_part_of_a_package_does_not_run_in_the_place_of_that_of_another_folder(tmp_path: Path, loaded: bool) -> None:
    text = "def net():\n    return {}\n"
    find_modules([written(tmp_path / "a", {"nsp/__init__.py": "", "nsp/net.py": text.format(3)})])
    if loaded:
        assert imported("nsp.net:net", "model")() == 3
    find_modules([written(tmp_path / "b", {"nsp/net.py": text.format(5)})])
    if loaded:
        with pytest.raises(ConfigError, match="has loaded another module nsp"):
            imported("nsp.net:net", "model")
    else:
        assert imported("nsp.net:net", "model")() == 5


@pytest.mark.usefixtures("apart")
def test_a_function_of_a_module_of_an_experiment_before_can_be_passed_to_workers(tmp_path: Path) -> None:
    text = "from torch import nn\ndef net(shape, classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))"
    tiny(machine={"modules": [written(tmp_path / "a", {"net_a.py": text})]})
    net = importlib.import_module("net_a").net
    assert import_path(net) == "net_a:net"
    e = tiny(rounds=1, machine={"workers": 1})
    assert run(e, model=net).x.tobytes() == run(tiny(rounds=1), model=net).x.tobytes()


@pytest.mark.usefixtures("apart")
def test_what_python_runs_as_a_program_is_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(tmp_path / "a", {"__main__.py": ""})
    program = ModuleType("__main__")
    program.__file__ = written(tmp_path / "b", {"program.py": ""}) + "/program.py"
    find_modules([folder])
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "__main__", program)
        check_modules()


@pytest.mark.usefixtures("apart")
def test_a_module_that_makes_itself_a_package_does_not_disturb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As six does."""
    found = importlib.util.spec_from_file_location("helper", written(tmp_path / "a", {"helper.py": ""}) + "/helper.py")
    assert found is not None
    helper = importlib.util.module_from_spec(found)
    monkeypatch.setitem(sys.modules, "helper", helper)
    monkeypatch.setitem(sys.modules, "helper.moves", ModuleType("helper.moves"))
    find_modules([written(tmp_path / "b", {"helper/moves/x.py": ""})])
    check_modules()


@pytest.mark.parametrize("path", [".x:g", "x", "x:", ":g", "x..y:g", "x y:g"])
def test_what_is_no_path_of_a_function_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match=r"^model: expected module:function, got "):
        imported(path, "model")


@pytest.mark.usefixtures("apart")
def test_a_module_that_was_imported_before_is_the_one_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the folder is one in which Python looks anyway."""
    folder = written(tmp_path / "a", {"net_a.py": HELPED, "helper.py": "WIDTH = 3"})
    monkeypatch.syspath_prepend(folder)
    net = importlib.import_module("net_a").net
    for folders in ([folder], []):
        find_modules(folders)
        assert imported("net_a:net", "model") is net
        assert import_path(net) == "net_a:net"
        check_modules()
    assert sys.path.count(folder) == 1


@pytest.mark.usefixtures("apart")
def test_a_module_that_an_import_hook_finds_is_imported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of a package that is installed to be edited."""
    folder = written(tmp_path / "a", {"own_package/__init__.py": "def net():\n    return 3\n"})

    class Hook:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            there = Path(folder, name, "__init__.py")
            return importlib.util.spec_from_file_location(name, there) if name == "own_package" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Hook()])
    net = importlib.import_module("own_package").net
    for folders in ([folder], [written(tmp_path / "b", {"net_b.py": ""})]):
        find_modules(folders)
        assert imported("own_package:net", "model") is net
        check_modules()


@pytest.mark.usefixtures("apart")
def test_the_last_folder_of_modules_comes_first(tmp_path: Path) -> None:
    text = "def net():\n    return {}\n"
    folders = [written(tmp_path / str(n), {"net_a.py": text.format(n)}) for n in range(3)]
    find_modules(folders)
    assert imported("net_a:net", "model")() == 2
    assert sys.path[:3] == folders[::-1]
    assert paths_of_a_worker()[0] == folders


@pytest.mark.usefixtures("apart")
def test_a_module_whose_attributes_raise_does_not_disturb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise ImportError("optional backend is missing")

    monkeypatch.setitem(sys.modules, "helper", Lazy("helper"))
    find_modules([written(tmp_path / "a", {"helper.py": ""})])
    check_modules()
    with pytest.raises(ConfigError, match="has loaded another module helper, from Python itself"):
        imported("helper:net", "model")


@pytest.mark.usefixtures("apart")
def test_what_only_has_the_name_of_a_module_does_not_disturb(tmp_path: Path) -> None:
    """A folder of data, a copy of this package or of a library, and a folder that is not there."""
    others = {"torch/x.csv": "", "math/x": "", "fl/__init__.py": "", "numpy/__init__.py": "", "queue.py": ""}
    folder = written(tmp_path / "a", {"net_a.py": HELPED, "helper.py": "WIDTH = 3", **others})
    find_modules([str(tmp_path / "missing"), folder])
    imported("net_a:net", "model")
    check_modules()


@pytest.mark.usefixtures("apart")
def test_workers_have_the_modules_of_a_user_and_their_own_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the folder, which is the current one too, has something else of the name."""
    text = "from torch import nn\ndef net(shape, classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))"
    folder = written(tmp_path / "a", {"net_a.py": text, "fl/__init__.py": "raise RuntimeError('not this one')"})
    monkeypatch.chdir(folder)
    e = tiny(rounds=1, model="net_a:net", machine={"workers": 1, "modules": [folder]})
    assert run(e).x.tobytes() == run(tiny(rounds=1, model="net_a:net", machine={"modules": [folder]})).x.tobytes()


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("name", ["queue", "math"])
@pytest.mark.parametrize("function", ["{name}:net", "{name}.part:net"])
def test_a_module_with_the_name_of_one_of_python_is_told_to_be_renamed(
    tmp_path: Path, name: str, function: str
) -> None:
    named = function.format(name=name)
    with pytest.raises(ConfigError, match=rf"has loaded another module {name}, from .*; rename .*{name}\.py, or"):
        run(fl.load(configured(tmp_path / "a", named, module=f"{name}.py")))


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("way", ["file", "command line", "Python"])
def test_folders_of_modules_are_found_from_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those in a file are beside it; the others are where the process runs."""
    file = configured(tmp_path / "a", "lib_net:net", module="lib/lib_net.py")
    here, away = tmp_path / "a", tmp_path / "away"
    away.mkdir()
    monkeypatch.chdir(away if way == "file" else here)
    if way == "Python":
        with Folder.create(tmp_path / "run", e := tiny(model="lib_net:net", machine={"modules": ["lib"]})) as folder:
            run(e, folder=folder)
    else:
        if way == "file":
            file.write_text(file.read_text().replace("modules = []", 'modules = ["lib"]'))
        more = ["--set", 'machine.modules=["lib"]'] if way == "command line" else []
        assert main(["train", str(file), "--out", str(tmp_path / "run"), *more]) == 0, capsys.readouterr().err
    assert recorded(tmp_path / "run").experiment.machine.modules == (str(here / "lib"),)
    del sys.modules["lib_net"]
    sys.path[:] = [entry for entry in sys.path if not entry.startswith(str(tmp_path))]
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--resume", "run", "--set", "rounds=4"]) == 0, capsys.readouterr().err


def test_folders_of_modules_in_a_sweep_are_beside_its_file(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text('model = "x:y"\n[machine]\nmodules = ["of_base"]\n')
    grid = "[grid]\nseed = [0]\n"
    (tmp_path / "one.toml").write_text(f'base = "base.toml"\n{grid}')
    (tmp_path / "two.toml").write_text(f'{grid}[experiment]\nmodel = "x:y"\nmachine.modules = ["own"]\n')
    for name, found in (("one", "of_base"), ("two", "own")):
        tables = read_sweep(tmp_path / f"{name}.toml").runs()[0].tables
        assert tables["machine"]["modules"] == [str(tmp_path / found)]


def test_an_adaptive_attack_moves_the_result_further_than_a_fixed_one() -> None:
    def damage(adaptive: bool) -> float:
        attack = {"name": "a_little_is_enough", "adaptive": adaptive}
        attacked = run(tiny(clients=30, rounds=1, byzantine=3, attack=attack, aggregation={"rule": "trimmed_mean"}))
        return float(np.linalg.norm(attacked.x - clean.x))

    clean = run(tiny(clients=30, rounds=1, aggregation={"rule": "trimmed_mean"}))
    assert damage(True) > damage(False)
    with pytest.raises(ConfigError, match=r"attack\.adaptive: sign_flip"):
        tiny(byzantine=1, attack={"name": "sign_flip", "adaptive": True})
    validating = {"aggregation": {"rule": "zeno"}, "data": {"validation": 0.1}}
    with pytest.raises(ConfigError, match="examples of the server"):
        tiny(byzantine=1, attack={"name": "fall_of_empires", "adaptive": True}, **validating)


def test_fltrust_and_dnc_withstand_attackers_in_a_training() -> None:
    attacked = {"clients": 24, "rounds": 6, "byzantine": 2, "attack": {"name": "sign_flip", "options": {"scale": 30.0}}}
    attacked |= {"data": {"examples": 480, "validation": 0.1}, "local": {"epochs": 2}}
    for rule in ("fltrust", "dnc"):
        assert run(tiny(**attacked, aggregation={"rule": rule})).accuracy > 0.7, rule


def test_a_server_that_trains_has_the_same_bits_with_workers() -> None:
    changes = {"aggregation": {"rule": "fltrust"}, "data": {"validation": 0.2}, "rounds": 1}
    alone, several = (run(tiny(**changes, machine={"workers": count})) for count in (0, 1))
    assert alone.x.tobytes() == several.x.tobytes()


def test_a_backdoor_is_learned_and_its_success_is_recorded() -> None:
    attack = {"name": "backdoor", "options": {"target": 3, "size": 2, "share": 0.5}}
    changes: dict[str, Any] = {"rounds": 8, "method": "fedavg", "data": {"examples": 480}, "local": {"epochs": 2}}
    trained = run(tiny(**changes, byzantine=5, attack=attack))
    last = trained.history[-1]
    assert last["accuracy"] > 0.7
    assert last["metrics"]["backdoor success"] > 0.5
    assert "backdoor success" in describe_round(last)
    data = trained.task.data
    assert data.backdoor is not None
    assert set(data.backdoor.labels.tolist()) == {3}
    assert len(data.backdoor) == int((data.test.labels != 3).sum())
    with Learner(run(tiny(**changes)).task) as learner:
        honest = Learner(trained.task).evaluate(run(tiny(**changes)).x, "backdoor").accuracy
        assert learner.task.data.backdoor is None
    assert honest is not None
    assert honest < 0.3
    for wrong in ({"target": 10}, {"size": 0}, {"share": 0.0}, {"target": "cat"}, {"size": 8}, {"size": 20}):
        with pytest.raises(ConfigError, match="attack"):
            run(tiny(byzantine=1, attack={"name": "backdoor", "options": wrong}))
    with pytest.raises(ConfigError, match=r"attack: backdoor: expected a size below 8.*8 x 8.*got 20"):
        run(tiny(byzantine=1, attack={"name": "backdoor", "options": {"size": 20}}))
    with pytest.raises(ConfigError, match=r"attack\.options\.colour"):
        tiny(byzantine=1, attack={"name": "backdoor", "options": {"colour": 1}})


def plain_attack(given: robust.AttackInput) -> robust.Matrix:
    return given.honest


def test_a_plain_function_is_refused_with_the_page_that_shows_the_decorator() -> None:
    pages = {}
    for key, changes in (
        ("@robust.attack", {"byzantine": 1, "attack": {"name": f"{__name__}:plain_attack"}}),
        ("@robust.aggregator", {"aggregation": {"rule": f"{__name__}:plain_attack"}}),
    ):
        with pytest.raises(ConfigError, match=f"is a plain function; put {key}") as refused:
            tiny(**changes)
        pages[key] = str(refused.value).rpartition("(")[2].rstrip(")")
    for key, page in pages.items():
        text = (Path(__file__).parent.parent.parent / page).read_text()
        assert key in text.replace("@aggregator", "@robust.aggregator")


def test_clients_that_are_too_unequal_are_refused_in_one_sentence_that_helps() -> None:
    small, large = (torch.randn(6, 2), torch.arange(6) % 2), (torch.randn(120, 2), torch.arange(120) % 2)
    with pytest.raises(ConfigError) as refused:
        fl.train("linear", [large] + [small] * 11, small, rounds=1, secure=False)
    told = str(refused.value)
    assert told.startswith("privacy: 1 fixed grouping in groups of 3 breaks the policy over all rounds together: the ")
    assert "Instead: use larger groups; or make the members' weights more equal" in told


def random_data() -> DataSet:
    """Data from all three global generators, without a seed."""
    shift = random.random() + np.random.rand()
    examples = Examples(torch.randn(60, 4) + shift, torch.arange(60) % 2)
    return DataSet("random", examples, examples, 2)


def test_random_data_of_an_own_function_are_the_same_in_every_run_and_process() -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    def seed(value: int) -> None:
        random.seed(value)
        np.random.seed(value)
        torch.manual_seed(value)

    e = tiny(clients=6, rounds=1, data={"name": f"{__name__}:random_data", "examples": None, "test_examples": None})
    trained = []
    for value in (1, 2):
        seed(value)
        found = run(e)
        trained.append((found.task.data.fingerprint(), found.x.tobytes()))
    assert trained[0] == trained[1]
    seed(3)
    expected = draw()
    seed(3)
    load(f"{__name__}:random_data")
    assert draw() == expected  # the caller's generators go on as if nothing had been drawn


@pytest.mark.usefixtures("apart")
def test_random_data_do_not_depend_on_whether_their_module_was_imported_before(tmp_path: Path) -> None:
    text = """
import torch
from fl.data import DataSet, Examples
SHIFT = torch.randn(4)
def data():
    examples = Examples(torch.randn(60, 4) + SHIFT, torch.arange(60) % 2)
    return DataSet("random", examples, examples, 2)
"""
    find_modules([written(tmp_path / "a", {"helper.py": text})])
    torch.manual_seed(1)
    first, second = load("helper:data"), load("helper:data")
    assert first.train.inputs.equal(second.train.inputs)
    del sys.modules["helper"]
    torch.manual_seed(2)
    imported("helper:data", "attack.name")  # for another key
    assert first.train.inputs.equal(load("helper:data").train.inputs)

"""A resumed run has the functions that it began with: their code is compared, as far as that is possible."""

import copy
import functools
import importlib
import importlib.util
import itertools
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fl
import robust
from fl.cli import main
from fl.config.read import to_toml
from fl.errors import ConfigError, RecordError
from fl.reporting.begun import ATTRIBUTES, difference
from fl.reporting.records import Folder, recorded
from fl.training.code import VERSION, attributes, fingerprint, fingerprints
from fl.training.loop import run
from tests.fl.runs import tiny

LOSS = '''
import torch
DELTA = 0.5
WEIGHTS = torch.tensor([1.0, 2.0])

def helper(x):
    return x * 2

class Scale:
    factor = 3
    def apply(self, x):
        return x * self.factor

def loss(outputs, targets, power=2):
    """What is minimised."""
    def inner(x):
        return helper(x) + DELTA
    return Scale().apply(inner(outputs - targets)) ** power * WEIGHTS[0]
'''
CHANGES = {
    "a constant": ("power=2", "power=3"),
    "an operator": ("outputs - targets", "outputs + targets"),
    "a function that it calls": ("x * 2", "x * 4"),
    "a value of the module": ("DELTA = 0.5", "DELTA = 0.25"),
    "a method": ("x * self.factor", "x + self.factor"),
    "a value of a class": ("factor = 3", "factor = 4"),
    "a tensor": ("[1.0, 2.0]", "[1.0, 3.0]"),
}
CHANGED = {
    "a static method": "class C:\n    @staticmethod\n    def f(x): return {}*x\ndef loss(o, t): return C.f(o)",
    "a class method": "class C:\n    @classmethod\n    def f(c, x): return {}*x\ndef loss(o, t): return C.f(o)",
    "a cached property": "from functools import cached_property\nclass C:\n    @cached_property\n"
    "    def f(c): return {}\ndef loss(o, t): return o*C().f",
    "forward beside _core": "from torch import nn\nclass loss(nn.Module):\n"
    "    def _core(s, x): return x\n    def forward(s, x): return {}*s._core(x)",
    "an attribute beside _function": "class L:\n    def __init__(s, g, k): s._function, s.k = g, k\n"
    "    def __call__(s, o, t): return s.k*s._function(o, t)\ndef g(o, t): return o\nloss = L(g, {})",
    "a decorator": "import functools\ndef scaled(g):\n    @functools.wraps(g)\n"
    "    def inner(o, t): return {}*g(o, t)\n    return inner\n@scaled\ndef loss(o, t): return o-t",
    "a decorator around a function of torch": "import functools, torch\ndef scaled(g):\n    @functools.wraps(g)\n"
    "    def inner(o, t): return {}*g(o, t)\n    return inner\nloss = scaled(torch.nn.functional.mse_loss)",
    "below a decorator of torch": "import torch\n@torch.no_grad()\ndef loss(o, t): return {}*o",
    "below a cache": "import functools\n@functools.lru_cache\ndef f(k): return {}*k\ndef loss(o, t): return f(2)*o",
    "a slot": "from dataclasses import dataclass\n@dataclass(frozen=True, slots=True)\nclass L:\n    k: float\n"
    "    def __call__(s, o, t): return s.k*o\nloss = L({})",
    "a tuple of a class": "class C:\n    sizes = ({}, 3)\ndef loss(o, t): return o*C.sizes[0]",
    "where a tuple ends": "A = [((1, 2), 3), (1, (2, 3))][{}-1]\ndef loss(o, t): return A",
    "a function in C": "import torch\nact = [torch.sin, torch.cos][{}-1]\ndef loss(o, t): return act(o)",
    "a module": "import math, cmath\nm = [math, cmath][{}-1]\ndef loss(o, t): return m.sin(o)",
    "a type of torch": "import torch\nkind = [torch.float32, torch.float64][{}-1]\ndef loss(o, t): return o.to(kind)",
    "a frozen set": "A = frozenset(['a', '{}'])\ndef loss(o, t): return len(A)",
    "a member of an enumeration": "import enum\nclass E(enum.Enum):\n    a = 1\n    b = 2\n"
    "A = E({})\ndef loss(o, t): return o*A.value",
    "an object that can be called": "class L:\n    def __init__(s, k): s.k = k\n"
    "    def __call__(s, o): return s.k*o\nf = L({})\ndef loss(o, t): return f(o)",
    "numbers of 16 bits": "import torch\nA = torch.full((3,), {}, dtype=torch.bfloat16)\ndef loss(o, t): return A*o",
    "a sparse matrix": "import torch\nA = ({}*torch.eye(3)).to_sparse()\ndef loss(o, t): return A@o",
    "a number in a tensor": "import torch\nA = torch.tensor({}.0)\ndef loss(o, t): return A*o",
}
UNCHANGED = {
    "a variable with the name of a method": "mean = {}\ndef loss(o, t): return (o-t).mean(1)",
    "a variable that the function sets": "n = {}\ndef loss(o, t):\n    global n\n    n += 1\n    return o*n",
    "an array of objects": "import numpy as np\nA = np.array(['cat' + str({}), None], dtype=object)\n"
    "def loss(o, t): return len(A)",
    "a tensor without numbers": "import torch\nA = torch.full((2,), {}, device='meta')\ndef loss(o, t): return o",
    "a layer without numbers": "import torch\nA = torch.nn.LazyLinear(3)\nn = [{}]\ndef loss(o, t): return A(o)",
    "an object that refuses questions": "class C:\n    def __getattr__(s, name): raise RuntimeError(name)\n"
    "    def __call__(s, o): return o\nc = C()\nn = [{}]\ndef loss(o, t): return c(o)*n[0]",
    "a list": "A = [{}]\ndef loss(o, t): return o*A[0]",
    "the text about an object": "import functools\nclass L:\n    def __init__(s, g): functools.update_wrapper(s, g)\n"
    "    def __call__(s, o, t): return s.__wrapped__(o, t)\n@L\ndef loss(o, t):\n    'About {}'\n    return o",
}
Made = Callable[[str], Any]
NUMBERS = itertools.count()


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """The function `loss` of a module with this text."""

    def make(text: str) -> Any:
        place = tmp_path / f"{next(NUMBERS)}.py"
        place.write_text(text)
        spec = importlib.util.spec_from_file_location("own_module", place)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.loss

    return make


def test_layout_comments_and_docstrings_do_not_matter(made: Made) -> None:
    first = fingerprint(made(LOSS))
    text = LOSS.replace('"""What is minimised."""', '"""Other\n    words."""').replace(
        "import torch", "import torch  # x\n\n"
    )
    assert fingerprint(made(text.replace("x * 2", "(x  *  2)"))) == first


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_a_function_does_and_uses_matters(made: Made, change: tuple[str, str]) -> None:
    assert change[0] in LOSS
    assert fingerprint(made(LOSS.replace(*change))) != fingerprint(made(LOSS))


@pytest.mark.parametrize("text", CHANGED.values(), ids=CHANGED.keys())
def test_what_a_function_is_made_of_matters(made: Made, text: str) -> None:
    one, same, other = (fingerprint(made(text.replace("{}", value))) for value in "112")
    assert one == same
    assert one != other


@pytest.mark.parametrize("text", UNCHANGED.values(), ids=UNCHANGED.keys())
def test_what_cannot_be_compared_is_left_out(made: Made, text: str) -> None:
    assert fingerprint(made(text.replace("{}", "1"))) == fingerprint(made(text.replace("{}", "2")))


def test_the_text_of_a_syntax_tree_is_that_of_every_python(made: Made) -> None:
    """The same hash in Python 3.11, 3.12 and 3.13; `ast.unparse` has other quotes in 3.12."""
    found = fingerprint(made("def loss(o, t):\n    return f\"{o['x']} it's\", o[1, 2]"))
    assert found == f"8619a317be2bf08792fa2313e6f700dc05c63ee5b5915bb254b389180edcbcf3 Python {VERSION}"


def test_source_that_is_not_what_runs_is_not_trusted(made: Made, tmp_path: Path) -> None:
    running, edited = made(LOSS), LOSS.replace("x * 2", "x * 9")
    Path(running.__code__.co_filename).write_text(edited)
    assert fingerprint(running) not in (fingerprint(made(LOSS)), fingerprint(made(edited)))


def weighed(weight: Any) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="none") * weight

    return loss


class Clipped:
    def __init__(self, most: float) -> None:
        self.most = most

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).abs().clamp(max=self.most)


def test_values_that_a_function_carries_matter() -> None:
    same = [
        (weighed, (1.0, 2.0)),
        (lambda value: weighed(torch.full((2,), value)), (1.0, 2.0)),
        (lambda value: weighed(np.float32(value)), (1.0, 2.0)),
        (Clipped, (1.0, 2.0)),
        (lambda value: Clipped(value).__call__, (1.0, 2.0)),
        (lambda value: functools.partial(nn.functional.huber_loss, delta=value), (1.0, 2.0)),
        (lambda value: nn.HuberLoss(delta=value), (1.0, 2.0)),
        (lambda value: nn.CrossEntropyLoss(weight=torch.tensor([value, 1.0])), (1.0, 2.0)),
    ]
    for make, (one, other) in same:
        assert fingerprint(make(one)) == fingerprint(make(one))
        assert fingerprint(make(one)) != fingerprint(make(other))
    assert fingerprint(weighed([])) == fingerprint(weighed([1]))  # may change while a training runs


def test_lambdas_are_compared_whatever_stands_beside_them() -> None:
    one, other = (lambda a, b: a - b), (lambda a, b: a + b)
    assert fingerprint(one) != fingerprint(other)
    hard = [eval(text) for text in ("lambda a, b: a in {'x', 'y'}", "lambda a, b: a in {'x', 'z'}")]
    assert fingerprint(hard[0]) != fingerprint(hard[1])


def examples() -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return [(torch.randn(8, 2), torch.arange(8) % 2) for _ in range(12)]


def test_resume_refuses_another_loss_or_metric_of_the_same_name(tmp_path: Path) -> None:
    clients = examples()

    def train(**more: Any) -> fl.Trained:
        settings: dict[str, Any] = {"secure": False, "machine": {"workers": 0}, **more}
        return fl.train("linear", clients, clients[0], out=tmp_path / "run", **settings)

    loss, metrics = weighed(1.0), {"m": lambda outputs, targets: 1.0}
    train(rounds=1, loss=loss, metrics=metrics)
    assert set(recorded(tmp_path / "run").info["code"]) == {"task.loss", "task.metrics m"}
    with pytest.raises(
        RecordError, match=r"the code of task\.loss is not what the run began with; resume with the same"
    ):
        train(rounds=2, loss=weighed(0.0), metrics=metrics, resume=True)
    with pytest.raises(RecordError, match=r"the code of task\.metrics m is not"):
        train(rounds=2, loss=loss, metrics={"m": lambda outputs, targets: 2.0}, resume=True)
    assert train(rounds=2, loss=weighed(1.0), metrics=metrics, resume=True).summary["rounds"] == 2


def test_a_run_of_an_earlier_version_which_recorded_no_code_continues(tmp_path: Path) -> None:
    clients, out = examples(), tmp_path / "run"
    settings: dict[str, Any] = {"secure": False, "machine": {"workers": 0}, "loss": weighed(1.0), "out": out}
    fl.train("linear", clients, clients[0], rounds=1, **settings)
    run_json = json.loads((out / "run.json").read_text())
    del run_json["code"]
    (out / "run.json").write_text(json.dumps(run_json))
    assert fl.train("linear", clients, clients[0], rounds=2, resume=True, **settings).summary["rounds"] == 2


RULES = """
import numpy as np
import robust

def chosen(rows):
    return np.arange(len(rows))

@robust.aggregator(paper="none", needs="nothing", withstands=lambda n: 0, name="edited_rule")
def rule(rows):
    return rows.average(chosen(rows))

@robust.attack
def edited_attack(given, *, strength: float = 2.0):
    return given.all_send(-strength * given.honest.mean(axis=0))
"""


@pytest.mark.parametrize(
    ("change", "key"),
    [(("np.arange(len(rows))", "np.arange(2)"), "aggregation.rule"), (("-strength", "-2"), "attack.name")],
    ids=["a rule", "an attack"],
)
def test_an_own_rule_or_attack_that_was_edited_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    change: tuple[str, str],
    key: str,
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.chdir(tmp_path)
    place, file = tmp_path / "edited_rule.py", tmp_path / "mine.toml"

    def edit(text: str) -> None:
        """As in a new process."""
        place.write_text(text)
        if sys.modules.pop("edited_rule", None):
            robust.AGGREGATORS.remove("edited_rule")
            robust.ATTACKS.remove("edited_attack")
        importlib.invalidate_caches()

    text = to_toml(tiny(name="mine", rounds=1, byzantine=1, attack={"name": "sign_flip"}))
    text = text.replace('"median"', '"edited_rule:rule"').replace('"sign_flip"', '"edited_rule:edited_attack"')
    file.write_text(text)
    try:
        edit(RULES)
        assert main(["train", str(file), "--out", "run"]) == 0, capsys.readouterr().err
        assert list(recorded(tmp_path / "run").info["code"]) == ["aggregation.rule", "attack.name"]
        edit(f"# a comment\n{RULES}")
        assert main(["train", "--resume", "run", "--set", "rounds=2"]) == 0, capsys.readouterr().err
        edit(RULES.replace(*change))
        assert main(["train", "--resume", "run", "--set", "rounds=3"]) == 2
        assert f"the code of {key} is not what the run began with" in capsys.readouterr().err
    finally:
        edit("")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.layer(inputs)
        return found


def test_layers_of_your_own_have_their_code_compared_and_known_ones_have_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = examples()
    trained = fl.train(Net(), clients, clients[0], rounds=1, secure=False, machine={"workers": 0})
    first = fingerprints(trained.experiment, trained.task)
    assert list(first) == ["model", ATTRIBUTES]
    monkeypatch.setattr(Net, "forward", lambda self, inputs: self.layer(inputs) * 2)
    assert fingerprints(trained.experiment, trained.task) != first
    plain = run(tiny(rounds=1, byzantine=1, attack={"name": "sign_flip"}))
    assert fingerprints(plain.experiment, plain.task) == {}


class Scale(nn.Module):
    """A model with a value that is no parameter."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self._value = value

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.layer(inputs)
        return found * self._value if isinstance(self._value, float) else found


class Sizes:
    def __init__(self, sizes: list[Any]) -> None:
        self.sizes = sizes
        self.owner = self


@dataclass
class Options:
    sizes: list[int]


def doubled(inputs: Tensor) -> Tensor:
    return inputs * 2


def halved(inputs: Tensor) -> Tensor:
    return inputs / 2


def encoder(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(4, 2, 8, **options)


def hooked(hook: Callable[..., None]) -> nn.Module:
    layer = Net()
    layer.register_forward_hook(hook)
    return layer


def stated(value: float) -> nn.Module:
    part = nn.Linear(2, 2)
    part.weighted = value
    return nn.Sequential(part)


HELD: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    "a number": (lambda: Scale(1.0), lambda: Scale(100.0)),
    "a function of torch": (lambda: Scale(torch.tanh), lambda: Scale(torch.relu)),
    "a function": (lambda: Scale(doubled), lambda: Scale(halved)),
    "a list": (lambda: Scale([1, [2]]), lambda: Scale([1, [3]])),
    "a dictionary": (lambda: Scale({"a": 1}), lambda: Scale({"a": 2})),
    "a set": (lambda: Scale({"a", "b"}), lambda: Scale({"a", "c"})),
    "an object": (lambda: Scale(Sizes([1])), lambda: Scale(Sizes([2]))),
    "an object in a tuple": (lambda: Scale((Sizes([1]),)), lambda: Scale((Sizes([2]),))),
    "a dataclass": (lambda: Scale(Options([1])), lambda: Scale(Options([2]))),
    "a namespace": (lambda: Scale(SimpleNamespace(k=1)), lambda: Scale(SimpleNamespace(k=2))),
    "a tensor": (lambda: Scale(torch.ones(2)), lambda: Scale(torch.zeros(2))),
    "a part of a part": (lambda: nn.Sequential(Scale(1.0)), lambda: nn.Sequential(Scale(2.0))),
    "an activation of torch's layer": (lambda: encoder(activation="relu"), lambda: encoder(activation="gelu")),
    "a function in torch's layer": (lambda: encoder(activation=doubled), lambda: encoder(activation=halved)),
    "the order in torch's layer": (encoder, lambda: encoder(norm_first=True)),
    "an attribute of a layer of torch": (lambda: stated(1.0), lambda: stated(2.0)),
    "a hook": (lambda: hooked(lambda *_: None), lambda: hooked(lambda *_: print())),
}


@pytest.mark.parametrize(("one", "other"), HELD.values(), ids=HELD.keys())
def test_what_a_model_holds_besides_parameters_matters(
    one: Callable[[], nn.Module], other: Callable[[], nn.Module]
) -> None:
    assert attributes(one()) == attributes(copy.deepcopy(one())) != attributes(other())


def test_what_every_process_has_anew_does_not_matter() -> None:
    """Addresses, numbers of hooks, private attributes of torch's layers, and objects that say nothing of themselves."""
    held: list[Callable[[], Any]] = [object, threading.Lock, lambda: logging.getLogger(str(next(NUMBERS)))]
    for make in held:
        first, second = make(), make()
        assert first is not second
        assert attributes(Scale(first)) == attributes(Scale(second))
    assert attributes(hooked(Clipped(1.0).__call__)) == attributes(hooked(Clipped(1.0).__call__))
    recurrent = [nn.LSTM(2, 2), nn.LSTM(2, 2)]
    assert attributes(recurrent[0]) == attributes(recurrent[1])
    recurrent[1]._anything = 3
    assert attributes(recurrent[0]) == attributes(recurrent[1])


def test_the_attributes_of_a_model_are_the_same_in_another_process() -> None:
    code = (
        "import json, sys\nfrom fl.training.code import attributes\nfrom tests.fl.test_code import HELD\n"
        "print(json.dumps([attributes(one()) for one, _ in HELD.values()]))"
    )
    found = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
        ).stdout
        for seed in ("1", "2")
    ]
    assert found[0] == found[1]
    assert json.loads(found[0]) == [attributes(one()) for one, _ in HELD.values()]


def test_a_model_with_another_attribute_is_not_resumed_and_an_unchanged_one_is(tmp_path: Path) -> None:
    clients, out = examples(), tmp_path / "run"

    def train(value: Any, **more: Any) -> fl.Trained:
        torch.manual_seed(1)
        return fl.train(Scale(value), clients, clients[0], out=out, secure=False, machine={"workers": 0}, **more)

    train(1.0, rounds=1)
    with pytest.raises(RecordError, match="an attribute of the model, such as a number or a function") as caught:
        train(100.0, rounds=2, resume=True)
    assert str(caught.value).endswith("; resume with the same attributes, or train in another folder")
    assert train(1.0, rounds=2, resume=True).summary["rounds"] == 2
    info = json.loads((out / "run.json").read_text())
    info["code"][ATTRIBUTES] = info["code"][ATTRIBUTES].replace("torch ", "torch 1.")
    (out / "run.json").write_text(json.dumps(info))
    assert train(1.0, rounds=3, resume=True).summary["rounds"] == 3  # another torch that stores the same
    info["code"][ATTRIBUTES] = "0" + info["code"][ATTRIBUTES]
    (out / "run.json").write_text(json.dumps(info))
    with pytest.raises(
        RecordError, match=r"or it reads differently because Python .*, torch 1\..* is now Python"
    ) as caught:
        train(1.0, rounds=4, resume=True)
    assert str(caught.value).endswith(
        "resume with the same attributes and the same Python and torch, or train in another folder"
    )
    del info["code"][ATTRIBUTES]
    (out / "run.json").write_text(json.dumps(info))
    assert train(1.0, rounds=4, resume=True).summary["rounds"] == 4  # an earlier version did not record them


def test_a_run_without_its_description_is_refused(tmp_path: Path) -> None:
    e = tiny()
    with Folder.create(tmp_path / "run", e) as folder:
        run(e, folder=folder)
    (tmp_path / "run" / "run.json").unlink()
    with (
        Folder.resume(tmp_path / "run", ["rounds=3"]) as folder,
        pytest.raises(
            RecordError, match=r"run\.json is missing.*put the recorded file back, or train in another folder"
        ),
    ):
        run(folder.experiment, folder=folder)


def test_a_resumed_run_cannot_have_fewer_rounds_than_are_done(tmp_path: Path) -> None:
    clients = examples()
    settings: dict[str, Any] = {"secure": False, "machine": {"workers": 0}}
    fl.train("linear", clients, clients[0], out=tmp_path / "run", rounds=2, **settings)
    with pytest.raises(ConfigError, match=r"rounds: 2 rounds of the run in .* are done"):
        Folder.resume(tmp_path / "run", ["rounds=1"])
    with pytest.raises(ConfigError, match=r"rounds: 2 rounds of the run in .* are done"):
        fl.train("linear", clients, clients[0], out=tmp_path / "run", rounds=1, resume=True, **settings)
    assert recorded(tmp_path / "run").experiment.rounds == 2
    with pytest.raises(ConfigError, match="resume: a run continues in its folder"):
        fl.train("linear", clients, clients[0], rounds=1, resume=True, **settings)


def test_another_python_is_named() -> None:
    def told(before: str, now: str) -> str:
        return difference({"code": {"task.loss": before}}, {}, {"task.loss": now})

    assert told("1 Python 3.13", "1 Python 3.11") == ""
    found = told("1 Python 3.13", "2 Python 3.11")
    assert "the code of task.loss is not what the run began with" in found
    assert "because Python 3.13 is now Python 3.11; resume with the same functions and the same Python" in found
    assert "Python" not in told("1 Python 3.11", "2 Python 3.11")
    assert "task.metrics m" in difference({"code": {}}, {}, {"task.metrics m": "1 Python 3.11"})

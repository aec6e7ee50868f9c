"""The commands of the tutorial parse, its files load, its Python runs."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

import fl
from fl.cli import main, parser
from fl.config.checks import experiment, load
from fl.config.describe import describe
from fl.config.grid import from_mapping
from fl.config.read import packaged_experiments
from fl.errors import ConfigError
from fl.reporting.progress import Progress
from fl.sweeps.folder import checked
from fl.training.loop import run
from tests.paper import explain

DOCS = Path(__file__).parents[2] / "docs"
TUTORIAL = (DOCS / "tutorial.md").read_text("utf-8")
EXPERIMENTS = (DOCS / "experiments.md").read_text("utf-8")
SWEEPS = (DOCS / "sweeps.md").read_text("utf-8")
RESEARCH = (DOCS / "research.md").read_text("utf-8")


def blocks(text: str, kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL)


COMMANDS = [
    line.split("=", 1)[1].split(" ", 1)[1] if line.startswith("SHARE_DATA=") else line
    for text in (TUTORIAL, EXPERIMENTS, SWEEPS)
    for block in blocks(text, "sh")
    for line in block.splitlines()
    if line and not line.startswith("#")
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_one_that_exists(command: str) -> None:
    program, *arguments = shlex.split(command)
    if arguments[:2] == ["-m", "tests.paper.explain"]:
        assert explain.asked(arguments[2:]).changes
        return
    assert program == "share"
    options = parser().parse_args(arguments)
    if arguments[0] == "train" and options.file:
        load(options.file.removeprefix("fl/experiments/").removesuffix(".toml"), options.set, options.curve)


def test_the_error_in_the_tutorial_is_the_one_that_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    (shown,) = blocks(TUTORIAL, "console")
    command, answer = shown.strip().split("\n", 1)
    assert main(shlex.split(command.removeprefix("$ share "))) == 2
    assert capsys.readouterr().err.strip() == answer


def test_every_toml_block_is_a_configuration() -> None:
    for block in blocks(TUTORIAL, "toml"):
        experiment(tomllib.loads(block))


def test_the_python_of_the_tutorial_runs(capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks(TUTORIAL, "python"):
        space: dict[str, object] = {}
        exec(compile(block, "tutorial.md", "exec"), space)
        trained = space["trained"]
        assert trained.accuracy > 0.8  # type: ignore[attr-defined]
        assert trained.summary["exposed"] == []  # type: ignore[attr-defined]


def test_every_packaged_experiment_is_in_the_docs() -> None:
    for name in packaged_experiments():
        assert f"`{name}`" in EXPERIMENTS + TUTORIAL or f"train {name}" in EXPERIMENTS + TUTORIAL, name


def test_the_rejected_configuration_in_the_docs_is_rejected() -> None:
    with pytest.raises(ConfigError):
        load("digits", ["clients=60", "clusters.schedule=random", "clusters.groupings=10"])


@pytest.mark.parametrize("block", blocks(SWEEPS, "toml"))
def test_the_sweep_files_of_the_page_can_run(block: str) -> None:
    runs = checked(from_mapping(tomllib.loads(block)))
    left_out = {(found.planned.labels.get("size"), found.planned.labels.get("rule")) for found in runs.impossible}
    assert left_out <= {("30", "krum")}
    assert len(runs.possible) >= 18


class Begun(Exception):  # noqa: N818 - nothing is wrong
    """A run would now play its first round."""


class UntilItBegins(Progress):
    """Ends a run just before its first round."""

    def begin(self, name: str, rounds: int, done: int) -> None:
        raise Begun

    def warn(self, text: str) -> None:
        pass


@pytest.mark.parametrize("block", blocks(SWEEPS, "toml"))
def test_every_run_of_the_sweeps_page_can_begin(block: str) -> None:
    """Of one seed: with its data, weights and noise, which `checked` alone does not see. Attacks change none."""
    wanted = {}
    for found in checked(from_mapping(tomllib.loads(block))).possible:
        labels = found.planned.labels
        if labels["seed"] == "0":
            wanted.setdefault(str([label for axis, label in labels.items() if axis != "attack"]), found)
    assert len(wanted) in (2, 30)
    for found in wanted.values():
        with pytest.raises(Begun):
            run(experiment({**found.planned.tables, "machine": {"workers": 0}}), show=UntilItBegins())


def test_the_python_of_the_sweeps_page_is_that_of_the_docstring() -> None:
    """It is not run again: the example of fl.sweep is the same sweep."""
    (text,) = blocks(SWEEPS, "python")
    for words in ('"grid": {"seed": [0, 1], "aggregation.rule": ["median", "mean"]}', '"data": {"examples": 240}'):
        assert words in text
        assert words in (fl.sweep.__doc__ or "")
    compile(text, "sweeps.md", "exec")


def test_the_research_page_has_files_that_can_run_and_keys_that_exist() -> None:
    first, exports = blocks(RESEARCH, "toml")
    assert experiment(tomllib.loads(first)).attack.adaptive
    assert experiment(tomllib.loads(exports)).export.tensorboard == "boards"
    described = describe()
    for key in re.findall(r"`((?:local|server|task|attack|aggregation|privacy|machine|data)\.[a-z_]+)", RESEARCH):
        assert f"  {key} (" in described, key

"""What can be tried to explain a curve: the settings of each try, their partition of the data, and the table."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import robust
from fl.errors import ConfigError
from fl.reporting.records import recorded
from fl.reproduction.compare import compare
from fl.reproduction.measured import measured
from fl.reproduction.panels import every_curve
from tests.paper import explain
from tests.paper.their_data import at_random, shards

DIGITS = ["data.name=digits", "data.examples=600", "data.test_examples=60", "model=linear", "local.epochs=1"]
SMALL = [part for setting in DIGITS for part in ("--set", setting)]


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    """Their Krum registers itself when it is imported; other tests look at all rules that are registered."""
    yield
    if module := sys.modules.pop("tests.paper.their_krum", None):
        robust.AGGREGATORS.remove(module.their_krum.name)


def test_their_shards_are_consecutive_rows_of_one_label_and_deal_every_row_once() -> None:
    labels = np.repeat(np.arange(10), 50)
    np.random.default_rng(0).shuffle(labels)
    dealt = shards(labels.tolist(), 25, 2)
    assert sorted(np.concatenate(dealt).tolist()) == list(range(500))
    assert all(len(rows) == 20 and len(set(labels[rows])) <= 2 for rows in dealt)
    of_label_0 = np.flatnonzero(labels == 0)
    holders = [set(rows.tolist()) for rows in dealt]
    assert any(set(of_label_0[:10].tolist()) <= rows for rows in holders), "the first shard is the start of the file"


def test_their_clients_have_equally_many_examples_at_random() -> None:
    dealt = at_random(np.zeros(500).tolist(), 60)
    assert [len(rows) for rows in dealt] == [8] * 60
    assert len(set(np.concatenate(dealt).tolist())) == 480


def test_every_try_is_a_configuration_that_fits_its_curve() -> None:
    for name in explain.TRIES:
        curve = every_curve()["foe-krum-m3"]
        changed = curve.experiment(explain.settings(name, curve.experiment()))
        assert (changed.fingerprint == curve.experiment().fingerprint) == (name == "as-here")
    shards_5 = every_curve()["label-flip-5-labels-zeno-SHARE"].experiment()
    assert "shards_5" in explain.settings("their-data", shards_5)[0]
    with pytest.raises(ConfigError, match="their-krum: this curve has the rule zeno"):
        explain.settings("their-krum", shards_5)
    with pytest.raises(ConfigError, match="its roles"):
        explain.settings("their-data", every_curve()["shakespeare-zeno-m3"].experiment())
    with pytest.raises(ConfigError, match="same-size: this curve has no 60 clients"):
        explain.settings("same-size", shards_5)


def test_tries_are_run_and_stand_in_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["foe-krum-m3", "as-here", "seed-1", "--rounds", "1", "--out", str(tmp_path), *SMALL]
    assert explain.main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[-2:]] == ["as-here", "seed-1"]
    assert explain.main(["foe-krum-m3", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == lines[-3:]
    assert explain.main([]) == 0
    for wrong in (["foe-krum-m3", "their-luck"], ["no-such-curve"]):
        with pytest.raises(SystemExit):
            explain.main(wrong)


def test_another_seed_and_their_deal_are_compared_with_the_published_curve(tmp_path: Path) -> None:
    curve = every_curve()["foe-krum-m3"]
    assert explain.main(["foe-krum-m3", "as-here", "--rounds", "1", "--out", str(tmp_path), *SMALL]) == 0
    run = recorded(tmp_path / "as-here" / curve.name)
    for changes, comparable in (
        (["seed=1"], True),
        (explain.settings("their-data", curve.experiment()), True),
        (["data.name=digits"], False),
        (["data.examples=600"], False),
    ):
        changed = type(run)(run.folder, curve.experiment(["secure=false", *changes]), run.info, run.rounds, {})
        assert (compare("p", curve, measured(curve, changed)).theirs is not None) == comparable, changes

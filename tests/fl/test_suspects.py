"""Who cheats is left out of later rounds; who is in a dispute, for a while. Records and resumed trainings agree."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl.config.checks import experiment
from fl.reporting.measures import describe_summary
from fl.reporting.progress import LineProgress
from fl.reporting.records import Folder
from fl.secure import population
from fl.secure.layout import simulated_agreement
from fl.secure.suspects import LeftOut, most_suspects
from fl.training.loop import Trained, run
from fl.training.randomness import attackers
from secagg import Stage, UsageError
from secagg.errors import TooFewSurvivors
from secagg.simulation import Misbehaviour, clear, make_agreement
from secagg.simulation import run as run_secure
from tests.fl.runs import tiny

SURVIVORS: dict[str, Any] = {"clusters": {"groups": "survivors", "schedule": "random", "size": 5}}
SURVIVORS |= {"privacy": {"memory": "round", "min_survivors": 2, "anonymity": 2}, "clients": 20}
CHEATS: dict[str, Any] = {"byzantine": 2, "attack": {"name": "none", "protocol": "wrong-shares"}}


def left_out(trained: Trained) -> list[set[int]]:
    return [set(map(int, record["left_out"])) for record in trained.history]


@pytest.mark.parametrize("kind", ["wrong-shares", "broken-boxes"])
def test_who_was_caught_is_left_out_permanently_with_and_without_cryptography(kind: str) -> None:
    chosen = {**SURVIVORS, **CHEATS, "attack": {"name": "none", "protocol": kind}, "rounds": 3}
    cheaters = set(attackers(tiny(**chosen)))
    said = io.StringIO()
    trained = {secure: run(tiny(secure=secure, **chosen), show=LineProgress(said)) for secure in (True, False)}
    assert trained[True].x.tobytes() == trained[False].x.tobytes()
    for one in trained.values():
        assert [set(map(int, record["blamed"])) for record in one.history] == [cheaters, set(), set()]
        assert left_out(one) == [set(), cheaters, cheaters]
        assert one.summary["left_out"] == {str(v): 2 for v in cheaters}
        for record in one.history[1:]:
            members = {v for cluster in record["clusters"] for v in cluster["members"]}
            assert members.isdisjoint(cheaters)
            whys = {entry["client"]: entry["why"] for entry in record["dropouts"]}
            assert all(whys[v].startswith("it was caught: ") for v in cheaters)
    assert f"left out: {', '.join(map(str, sorted(cheaters)))}" in said.getvalue()
    assert "dropped out, left out" not in said.getvalue()
    told = describe_summary(trained[True].experiment, trained[True].summary)
    assert f"left out because of earlier rounds (number of rounds): client {min(cheaters)} (2)" in told


def disputed(monkeypatch: pytest.MonkeyPatch, when: dict[int, tuple[tuple[int, int], ...]]) -> None:
    """Runs report these disputes, of clients that took part, in these rounds."""
    real = population.clear

    def clear_and_dispute(*given: Any, **more: Any) -> Any:
        result = real(*given, **more)
        pairs = tuple(p for p in when.get(more["round"], ()) if set(p) <= set(result.survivors))
        return replace(result, disputes=pairs)

    monkeypatch.setattr(population, "clear", clear_and_dispute)


def test_both_ends_of_a_dispute_sit_out_for_a_while_that_doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    disputed(monkeypatch, {0: ((3, 7),), 2: ((3, 7),), 5: ((3, 9),)})
    trained = run(tiny(secure=False, rounds=8, **SURVIVORS))
    both = {3, 7}
    assert left_out(trained) == [set(), both, set(), both, both, set(), {3, 9}, {3}]
    whys = trained.history[3]["left_out"]
    assert whys == dict.fromkeys(("3", "7"), "it was in a dispute: suspended up to round 5")
    assert [record["disputes"] for record in trained.history[:3]] == [[[3, 7]], [], [[3, 7]]]
    assert trained.summary["blamed"] == {}


def test_a_resumed_training_leaves_out_the_same_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disputed(monkeypatch, {1: ((3, 7),), 3: ((3, 8),)})
    chosen = {**SURVIVORS, **CHEATS, "secure": False, "machine": {"checkpoint_every": 1, "workers": 0}}
    whole = run(tiny(rounds=6, **chosen))
    with Folder.create(tmp_path / "run", tiny(rounds=6, **chosen)) as folder, pytest.raises(KeyboardInterrupt):
        run(tiny(rounds=6, **chosen), folder=folder, show=Stopping(after=4))
    with Folder.resume(tmp_path / "run", e=tiny(rounds=6, **chosen)) as folder:
        again = run(tiny(rounds=6, **chosen), folder=folder)
    assert left_out(again) == left_out(whole)
    assert again.x.tobytes() == whole.x.tobytes()
    cheaters = set(attackers(tiny(rounds=6, **chosen)))
    assert left_out(whole)[1] == cheaters
    assert {3, 7} <= left_out(whole)[2] | cheaters


class Stopping(LineProgress):
    """Stops the training after some rounds, as a user would."""

    def __init__(self, after: int) -> None:
        super().__init__(io.StringIO())
        self._left = after

    def round(self, record: Any) -> None:
        super().round(record)
        self._left -= 1
        if not self._left:
            raise KeyboardInterrupt


def test_as_many_are_suspended_as_the_threshold_can_miss() -> None:
    chosen = experiment({**SURVIVORS, "dropout": {"rate": 0.1}})
    agreement = simulated_agreement(chosen, [1] * 20, 3)[0]
    slack = 20 - agreement.terms.threshold_of(20)
    assert most_suspects(chosen, agreement) == max(0, slack - 2)
    known = LeftOut(chosen, agreement)
    known.remember({"round": 1, "blamed": {}, "disputes": [[v, v + 10] for v in range(10)]})
    assert len(known.in_round(1)) == max(0, slack - 2) // 2 * 2


def test_whole_clusters_leave_nobody_out() -> None:
    chosen = experiment({"clients": 20, "clusters": {"size": 5}})
    known = LeftOut(chosen, simulated_agreement(chosen, [1] * 20, 3)[0])
    known.remember({"round": 1, "blamed": {"3": "two answers"}, "disputes": [[1, 2]]})
    assert known.in_round(1) == {}


# --- the simulation leaves clients out, and clear sums know who is blamed -------------------------------------


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_clear_runs_blame_and_dispute_as_secure_runs_do(data: st.DataObject) -> None:
    n = data.draw(st.integers(8, 12))
    agreement, identities = make_agreement(
        members=n, size=n, length=2, bound=99, groups="survivors", colluders=data.draw(st.integers(0, 2))
    )
    kinds = st.sampled_from([Misbehaviour.WRONG_SHARES, Misbehaviour.BROKEN_BOXES, Misbehaviour.SILENCE])
    misbehave = data.draw(st.dictionaries(st.integers(0, n - 1), kinds, max_size=2))
    exclude = data.draw(st.sets(st.integers(0, n - 1), max_size=2))
    stages = st.sampled_from([Stage.SHARES, Stage.INPUTS, Stage.CONSISTENCY, Stage.UNMASKING])
    drop = data.draw(st.dictionaries(st.integers(0, n - 1), stages, max_size=1))
    inputs = {v: [v, 1] for v in range(n) if v not in exclude}
    more: dict[str, Any] = {"drop": drop, "misbehave": misbehave, "exclude": exclude}
    try:
        secured = run_secure(agreement, inputs, identities, **more)
    except TooFewSurvivors:
        with pytest.raises(TooFewSurvivors):
            clear(agreement, inputs, **more)
        return
    cleared = clear(agreement, inputs, **more)
    assert set(secured.blamed) == set(cleared.blamed)
    assert secured.disputes == cleared.disputes
    assert exclude <= set(secured.dropouts)
    assert {secured.dropouts[v] for v in exclude} <= {cleared.dropouts[v] for v in exclude}
    assert {g: s.members for g, s in secured.groups.items()} == {g: s.members for g, s in cleared.groups.items()}


def test_only_members_can_be_left_out() -> None:
    agreement, identities = make_agreement(members=4, size=4, length=2, bound=9, groups="survivors")
    for how in (
        lambda **more: run_secure(agreement, {}, identities, **more),
        lambda **more: clear(agreement, {}, **more),
    ):
        with pytest.raises(UsageError, match="exclude: client 9"):
            how(exclude=[9])

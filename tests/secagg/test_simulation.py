"""A whole run on one machine: the same result as in the clear, whatever happens on the way."""

import dataclasses
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import FileJournal, MemoryJournal, Plan, Policy, Result, Schedule, Stage, TooFewSurvivors, UsageError
from secagg.exposure.audit import REPORT_EVEN_IF_EXPOSED
from secagg.protocol import wire
from secagg.protocol.messages import MaskedInput, ToServer, Unmasking
from secagg.simulation import Cost, Misbehaviour, Tamper
from tests.benchmarks.secagg.memory import Watch, held
from tests.secagg.cluster import LOOSE, clear_plan, make_inputs, make_plan, run_plan, sends_other_vectors
from tests.secagg.drbg import Drbg

STAGES = list(Stage)[:5]
REPORT = Policy(mode=REPORT_EVEN_IF_EXPOSED)
ROOT = Path(__file__).parents[2]
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


def fixed(client: int) -> Drbg:
    return Drbg(b"client %d" % client)


def inputs_of(plan: Plan, seed: int = 0) -> dict[int, Any]:
    """Updates that fit the plan: integers, or floats where it clips."""
    kind = np.float32 if plan.clips else np.int64
    return {v: vector.astype(kind) for v, vector in make_inputs(plan, seed).items()}


def play(plan: Plan, inputs: Any = None, **options: Any) -> Result:
    return run_plan(plan, inputs_of(plan) if inputs is None else inputs, **options)


def same(one: Result, other: Result) -> None:
    """Every figure of two results is equal, to the bit."""
    assert one.survivors == other.survivors
    assert set(one.groups) == set(other.groups)
    for row, opened in one.groups.items():
        assert opened.members == other.groups[row].members
        assert opened.total.tolist() == other.groups[row].total.tolist()
    assert (one.closed, one.lost, one.blamed) == (other.closed, other.lost, other.blamed)
    assert {v: out.stage for v, out in one.dropouts.items()} == {v: out.stage for v, out in other.dropouts.items()}


def no_child_is_left() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return True
    return False


# --- dropouts -----------------------------------------------------------------------------------------------

PLANS: dict[str, Callable[[], Plan]] = {
    "flat": lambda: make_plan(7),
    "weights": lambda: make_plan(7, bound=None, clip=4e4, weights=(3, 1, 4, 1, 5, 9, 2)),
    "groups": lambda: make_plan(9, schedule=Schedule(name="random", size=3, groupings=3), policy=REPORT),
    "transversal": lambda: make_plan(12, schedule=Schedule(name="transversal", size=4, groupings=2)),
    "atoms": lambda: make_plan(12, schedule=Schedule(name="atoms", size=6, groupings=2, atom=3)),
    "left out": lambda: make_plan(8, schedule=Schedule(name="random", size=3, groupings=2), policy=REPORT),
    "sparse": lambda: make_plan(12, degree=6, threshold=3, colluders=1),
}


@pytest.mark.parametrize("kind", PLANS)
@settings(deadline=None, max_examples=6)
@given(data=st.data())
def test_run_and_clear_give_the_same_result_for_any_dropouts(kind: str, data: st.DataObject) -> None:
    plan = PLANS[kind]()
    most = 1 if kind == "sparse" else len(plan.ids) - plan.t
    drop = data.draw(st.dictionaries(st.sampled_from(plan.ids), st.sampled_from(STAGES), max_size=most))
    inputs = inputs_of(plan, data.draw(st.integers(0, 99)))
    try:
        expected = clear_plan(plan, inputs, drop=drop)
    except TooFewSurvivors:  # of atoms more leave than drop
        with pytest.raises(TooFewSurvivors):
            play(plan, inputs, drop=drop)
        return
    same(play(plan, inputs, drop=drop), expected)


@pytest.mark.parametrize("stage", STAGES)
def test_one_dropout_too_many_at_any_stage_hides_every_sum(stage: Stage) -> None:
    plan = make_plan(6)
    with pytest.raises(TooFewSurvivors):
        play(plan, drop=dict.fromkeys(plan.ids[: 7 - plan.t], stage))


def test_a_dropout_after_its_vector_still_counts_and_is_named() -> None:
    plan = make_plan(8)
    inputs = make_inputs(plan)
    result = play(plan, inputs, drop={2: Stage.CONSISTENCY, 7: Stage.INPUTS})
    assert result.sum().tolist() == sum(inputs[v] for v in range(7)).tolist()
    assert {v: out.stage for v, out in result.dropouts.items()} == {2: Stage.CONSISTENCY, 7: Stage.INPUTS}


def test_an_atom_below_the_anonymity_leaves_completely() -> None:
    plan = PLANS["atoms"]()
    atom = plan.atoms[1]
    dropouts = atom[: len(atom) - 1]
    result = play(plan, drop=dict.fromkeys(dropouts, Stage.INPUTS))
    assert set(result.survivors) == set(plan.ids) - set(atom)
    assert "atom" in result.dropouts[atom[-1]].reason


def test_a_sparse_run_is_marked_as_semi_honest_only() -> None:
    assert play(PLANS["sparse"]()).semi_honest_only
    assert not play(PLANS["flat"]()).semi_honest_only


@pytest.mark.parametrize("option", ["drop", "tamper"])
def test_a_client_that_is_not_on_the_roster_is_a_mistake(option: str) -> None:
    with pytest.raises(UsageError, match="client 99 is not on the roster"):
        play(make_plan(4), **{option: {99: Stage.KEYS}})


def at(stage: Stage, spoil: Callable[[Any], ToServer | bytes | None]) -> Tamper:
    return lambda now, message: spoil(message) if now is stage else message


SPOILERS: dict[str, Callable[[Any], ToServer | bytes | None]] = {
    "nothing": lambda message: None,
    "noise": lambda message: b"\x02\x09noise",
    "somebody else's name": lambda message: dataclasses.replace(message, sender=message.sender ^ 1),
    "a bent signature": lambda message: dataclasses.replace(message, signature=bytes(64)),
    "a byte too much": lambda message: wire.encode(message) + b"\0",
}


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=needs_fork)])
@pytest.mark.parametrize("spoiler", SPOILERS)
@pytest.mark.parametrize("stage", STAGES)
def test_a_client_that_spoils_a_message_drops_out_at_that_stage_alone(
    stage: Stage, spoiler: str, processes: int
) -> None:
    plan = make_plan(5)
    inputs = make_inputs(plan)
    tamper = {3: at(stage, SPOILERS[spoiler])}
    result = play(plan, inputs, tamper=tamper, processes=processes)
    assert {v: out.stage for v, out in result.dropouts.items()} == {3: stage}
    staying = [v for v in plan.ids if v != 3 or stage > Stage.INPUTS]
    assert result.sum().tolist() == sum(inputs[v] for v in staying).tolist()


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=needs_fork)])
def test_a_wrong_vector_spoils_only_the_sums_of_its_own_groups(monkeypatch: pytest.MonkeyPatch, processes: int) -> None:
    plan = PLANS["groups"]()
    honest = play(plan)
    sends_other_vectors(monkeypatch, 4, lambda vectors: vectors[::-1] + np.uint32(1))
    spoiled = play(plan, processes=processes)
    differ = {row for row in honest.groups if row in spoiled.lost or (honest.sum(row) != spoiled.sum(row)).any()}
    assert differ == {row for row in honest.groups if 4 in honest.groups[row].members}


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=needs_fork)])
def test_vectors_that_are_changed_after_their_sender_signed_them_do_not_count(processes: int) -> None:
    plan = PLANS["groups"]()

    def reverse(message: MaskedInput) -> MaskedInput:
        return dataclasses.replace(message, vectors=message.vectors[::-1])

    result = play(plan, tamper={4: at(Stage.INPUTS, reverse)}, processes=processes)
    assert {v: out.stage for v, out in result.dropouts.items()} == {4: Stage.INPUTS}
    assert "wrong signature" in result.dropouts[4].reason
    without = play(plan, drop={4: Stage.INPUTS})
    assert {row: result.sum(row).tolist() for row in result.groups} == {
        row: without.sum(row).tolist() for row in without.groups
    }


def test_a_client_with_wrong_shares_is_named_and_the_sum_stays_exact() -> None:
    def bend(message: Unmasking) -> Unmasking:
        return dataclasses.replace(message, seeds=bytes(len(message.seeds)))

    plan = make_plan(5)
    result = play(plan, tamper={1: at(Stage.UNMASKING, bend)})
    assert set(result.dropouts) == {1}  # the signature does not fit the bent shares
    same_sum = play(plan)
    assert result.sum().tolist() == same_sum.sum().tolist()


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=needs_fork)])
@pytest.mark.parametrize("kind", Misbehaviour)
def test_run_and_clear_give_the_same_sums_when_clients_misbehave(kind: Misbehaviour, processes: int) -> None:
    plan = make_plan(12, schedule=Schedule(name="transversal", size=4, groupings=2))
    options = {"drop": {1: Stage.CONSISTENCY}, "misbehave": {5: kind}}
    expected = clear_plan(plan, make_inputs(plan), **options)
    result = play(plan, make_inputs(plan), processes=processes, **options)
    assert set(result.lost) == set(expected.lost)
    assert not expected.lost
    assert {*result.dropouts, *result.blamed} >= set(expected.dropouts)
    reported = {name: getattr(result, name) for name in ("lost", "blamed", "dropouts")}
    same(result, dataclasses.replace(expected, **reported))


@needs_fork
@pytest.mark.parametrize("kind", PLANS)
def test_the_number_of_processes_changes_no_byte_of_any_message(kind: str, tmp_path: Path) -> None:
    plan = PLANS[kind]()
    drop = {plan.ids[1]: Stage.INPUTS}

    def spy(folder: Path, client: int) -> Tamper:
        def note(stage: Stage, message: ToServer) -> ToServer:
            (folder / f"{client}-{stage.name}").write_bytes(sha256(wire.encode(message)).digest())
            return message

        return note

    results, costs, transcripts = [], [], []
    for processes in (1, 2, 3):
        folder = tmp_path / str(processes)
        folder.mkdir()
        costs.append(Cost())
        results.append(
            play(
                plan,
                drop=drop,
                processes=processes,
                entropy=fixed,
                cost=costs[-1],
                tamper={v: spy(folder, v) for v in plan.ids},
            )
        )
        transcripts.append({path.name: path.read_bytes() for path in folder.iterdir()})
    same(results[0], results[1])
    same(results[0], results[2])
    assert transcripts[0] == transcripts[1] == transcripts[2]
    assert len(transcripts[0]) == 5 * len(plan.ids) - 3
    assert [cost.bytes_up for cost in costs] == [costs[0].bytes_up] * 3
    assert [cost.bytes_down for cost in costs] == [costs[0].bytes_down] * 3


@needs_fork
@pytest.mark.parametrize(
    ("mistake", "words"), [(lambda vector: vector[:-1], "shape"), (lambda vector: vector * 10**6, "outside")]
)
def test_a_usage_error_crosses_processes_and_leaves_no_process_behind(
    mistake: Callable[[Any], Any], words: str
) -> None:
    plan = make_plan(6)
    inputs = make_inputs(plan)
    inputs[4] = mistake(inputs[4])
    reported = []
    for processes in (1, 2):
        with pytest.raises(UsageError, match=words) as raised:
            play(plan, inputs, processes=processes)
        reported.append(str(raised.value))
    assert reported[0] == reported[1]
    assert no_child_is_left()


@needs_fork
def test_an_exception_of_the_callers_code_arrives_with_its_trace() -> None:
    plan = make_plan(5)

    class Inputs(dict[int, Any]):
        def __getitem__(self, client: int) -> Any:
            if client == 3:
                raise LookupError("no update of client three")
            return super().__getitem__(client)

    inputs = Inputs(make_inputs(plan))
    with pytest.raises(LookupError, match="client three"):
        play(plan, inputs)
    with pytest.raises(RuntimeError, match=r"(?s)client 3 failed.*LookupError: no update of client three"):
        play(plan, inputs, processes=2)
    assert no_child_is_left()


@needs_fork
def test_a_worker_that_dies_is_noticed() -> None:
    plan = make_plan(5)

    class Inputs(dict[int, Any]):
        def __getitem__(self, client: int) -> Any:
            os._exit(7)

    with pytest.raises(RuntimeError, match="a worker process died"):
        play(plan, Inputs(make_inputs(plan)), processes=2)
    assert no_child_is_left()


@needs_fork
@pytest.mark.parametrize("stage", STAGES)
def test_no_process_outlives_an_interrupted_run(stage: Stage) -> None:
    class EnoughError(Exception):
        pass

    def stop(now: Stage, client: int) -> None:
        if now is stage:
            raise EnoughError

    with pytest.raises(EnoughError):
        play(make_plan(6), processes=3, on_answer=stop)
    assert no_child_is_left()


@needs_fork
def test_too_few_survivors_leave_no_process_behind() -> None:
    plan = make_plan(6)
    with pytest.raises(TooFewSurvivors):
        play(plan, processes=2, drop=dict.fromkeys(plan.ids, Stage.UNMASKING))
    assert no_child_is_left()


@needs_fork
def test_more_processes_than_clients_do_no_harm() -> None:
    plan = make_plan(3, colluders=0)
    same(play(plan, processes=5), clear_plan(plan, make_inputs(plan)))


def test_a_memory_journal_is_refused_with_several_processes(tmp_path: Path) -> None:
    plan = make_plan(5)
    with pytest.raises(UsageError, match="FileJournal"):
        play(plan, processes=2, journal=MemoryJournal())
    same(play(plan, processes=2, journal=FileJournal(tmp_path)), clear_plan(plan, make_inputs(plan)))


def test_an_update_is_opened_once_even_by_two_runs_with_one_journal(tmp_path: Path) -> None:
    plan = make_plan(5)
    play(plan, processes=2, journal=FileJournal(tmp_path))
    with pytest.raises(TooFewSurvivors):  # every client refuses to open the same update again
        play(plan, processes=2, journal=FileJournal(tmp_path))


def test_the_cost_counts_every_byte_and_every_stage() -> None:
    plan = make_plan(5, length=40)
    sent: dict[Stage, int] = {}

    def weigh(stage: Stage, message: ToServer) -> ToServer:
        sent[stage] = sent.get(stage, 0) + len(wire.encode(message))
        return message

    cost = Cost()
    play(plan, make_inputs(plan), cost=cost, tamper=dict.fromkeys(plan.ids, weigh))
    assert cost.bytes_up == sent
    assert set(cost.client_seconds) == set(cost.server_seconds) == set(STAGES)
    assert cost.bytes_down[Stage.KEYS] == 0
    assert all(cost.bytes_down[stage] > 0 for stage in STAGES[1:])


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=needs_fork)])
def test_every_stage_and_every_answer_is_reported(processes: int) -> None:
    plan, reported = make_plan(5), []
    play(
        plan,
        processes=processes,
        drop={2: Stage.INPUTS},
        on_stage=lambda stage: reported.append((stage, None)),
        on_answer=lambda stage, client: reported.append((stage, client)),
    )
    assert [stage for stage, client in reported if client is None] == STAGES
    for stage in STAGES:
        answered = {client for now, client in reported if now is stage and client is not None}
        assert answered == set(plan.ids) - ({2} if stage >= Stage.INPUTS else set())


LENGTH = 150_000


def peak(n: int, group: int, groupings: int) -> float:
    """Peak memory of a run in this process, in vectors."""
    schedule = Schedule(name="random", size=group, groupings=groupings)
    plan = make_plan(n, length=LENGTH, schedule=schedule, policy=REPORT)
    update = np.ones(LENGTH, np.int64)
    play(make_plan(4))  # load what is loaded once
    tracemalloc.start()
    try:
        play(plan, dict.fromkeys(plan.ids, update))
        return tracemalloc.get_traced_memory()[1] / (4 * LENGTH)
    finally:
        tracemalloc.stop()


def test_memory_grows_with_the_group_sums_and_not_with_all_masked_vectors() -> None:
    few, many, twice = peak(12, 6, 3), peak(12, 2, 3), peak(24, 4, 3)
    rows_of_few, rows_of_many, one_client = 6, 18, 3 + 3  # its vectors, and what makes them
    assert few < rows_of_few + one_client  # where all vectors would be 36
    assert many < rows_of_many + one_client
    assert twice < rows_of_many + one_client  # as many rows, twice the clients


def memory_of_processes(length: int, groupings: int, processes: int) -> int:
    """Bytes that 12 clients in groups of 6 need at most, above what this process has after it has run them once."""
    schedule = Schedule(name="random", size=6, groupings=groupings)
    plan = make_plan(12, length=length, schedule=schedule, policy=REPORT)
    update = np.ones(length, np.int64)
    play(plan, dict.fromkeys(plan.ids, update), processes=processes)
    with Watch(0.005) as watch:
        play(plan, dict.fromkeys(plan.ids, update), processes=processes)
    assert watch.above is not None
    return watch.above


@needs_fork
@pytest.mark.skipif(held() is None, reason="this system does not tell how much memory processes share")
def test_memory_of_processes_is_the_group_sums_and_two_clients_each() -> None:
    groupings, processes, small, large = 4, 2, 500_000, 1_500_000
    # In a process of its own, and the growth with the length: a fork copies pages of everything that is in memory.
    program = (
        "from tests.secagg.test_simulation import memory_of_processes as measured\n"
        f"print(measured({large}, {groupings}, {processes}) - measured({small}, {groupings}, {processes}))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    slots, sums, all_vectors = 2 * processes * groupings, 2 * groupings, 12 * groupings
    vectors = int(said.stdout) / (4 * (large - small))
    assert vectors < slots + sums + 12 < all_vectors  # the rest: encoded updates


def test_clear_and_run_audit_alike() -> None:
    plan = make_plan(9, schedule=Schedule(name="random", size=3, groupings=4), policy=LOOSE)
    expected = clear_plan(plan, make_inputs(plan), drop={0: Stage.INPUTS})
    assert expected.closed  # the policy leaves something shut, or this tests nothing
    same(play(plan, drop={0: Stage.INPUTS}), expected)

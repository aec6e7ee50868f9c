"""Two implementations agree: `secagg.reference` and the real one, for the same randomness."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import Plan, Policy, Schedule, Stage, TooFewSurvivors, reference
from secagg.crypto.shamir import SHARE_BYTES
from secagg.protocol.client_state import Memory
from secagg.protocol.messages import MaskedInput, ToServer
from secagg.simulation.run import make_identities, make_roster, run
from tests.secagg.drbg import Drbg

SCHEDULES = [
    (7, Schedule(name="random", size=7)),
    (8, Schedule(name="random", size=4, groupings=2)),
    (9, Schedule(name="transversal", size=3, groupings=2)),
    (12, Schedule(name="atoms", size=6, groupings=3, atom=3)),
    (11, Schedule(name="random", size=5)),  # one is left out by lot
]


def make_plan(n: int, schedule: Schedule, length: int = 5, **changes: object) -> Plan:
    identities = identities_of(n)
    settings: dict[str, object] = {
        "training_id": bytes(32),
        "round": 3,
        "roster": make_roster(identities),
        "length": length,
        "schedule": schedule,
        "training_seed": bytes(range(32)),
        "bound": 1000,
        "policy": Policy(min_survivors=2, anonymity=2, max_leverage=1.0),
        "colluders": 1,
    }
    return Plan(**{**settings, **changes})  # type: ignore[arg-type]


def identities_of(n: int) -> dict:
    return make_identities(range(n), Drbg(b"identities"))


@pytest.mark.parametrize("case", range(len(SCHEDULES)))
@settings(deadline=None, max_examples=8)
@given(data=st.data())
def test_real_and_reference_agree_on_shares_masked_vectors_and_totals(case: int, data: st.DataObject) -> None:
    n, schedule = SCHEDULES[case]
    plan = make_plan(n, schedule)
    drop = data.draw(st.dictionaries(st.integers(0, n - 1), st.sampled_from(list(Stage)[:5]), max_size=4))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    inputs = {v: rng.integers(-1000, 1001, plan.length) for v in plan.ids}
    encoded = {v: [int(x) % 2**32 for x in inputs[v]] for v in plan.ids}

    def entropy(v: int) -> Drbg:
        return Drbg(f"client {v}".encode())

    sent: dict[int, MaskedInput] = {}

    def watch(_: Stage, message: ToServer) -> ToServer:
        if isinstance(message, MaskedInput):
            sent[message.sender] = message
        return message

    def real() -> object:
        tamper = dict.fromkeys(plan.ids, watch)
        return run(plan, inputs, identities_of(n), drop=drop, entropy=entropy, tamper=tamper)

    try:
        seen = reference.run(plan, encoded, identities_of(n), entropy, drop=drop)
    except TooFewSurvivors:
        with pytest.raises(TooFewSurvivors):
            real()
        return
    result = real()
    assert {v: sent[v].vectors.tolist() for v in sent} == {
        v: seen.masked.get(v, sent[v].vectors.tolist()) for v in sent
    }
    assert set(seen.masked) <= set(sent)
    assert {row: opened.total.tolist() for row, opened in result.rows.items()} == seen.totals  # type: ignore[attr-defined]
    for row, total in seen.totals.items():
        alive = [v for v in plan.group(row) if v in seen.masked]
        assert total == [int(x) % 2**32 for x in sum(inputs[v] for v in alive)]


def test_real_and_reference_deal_the_same_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(8, Schedule(name="random", size=4, groupings=2))
    inputs = {v: np.zeros(plan.length, np.int64) for v in plan.ids}
    memories: dict[int, Memory] = {}
    original = Memory.__init__

    def remember(self: Memory, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)  # type: ignore[arg-type]
        memories[self.me] = self

    monkeypatch.setattr(Memory, "__init__", remember)

    def entropy(v: int) -> Drbg:
        return Drbg(f"client {v}".encode())

    run(plan, inputs, identities_of(8), entropy=entropy)
    seen = reference.run(plan, {v: [0] * plan.length for v in plan.ids}, identities_of(8), entropy)
    for holder, memory in memories.items():
        for held in memory.held:
            expected = b"".join(x.to_bytes(SHARE_BYTES, "little") for x in seen.shares[held.dealer, holder])
            assert held.shares == expected


def test_reference_runs_in_any_ring() -> None:
    plan = make_plan(5, Schedule(name="random", size=5), length=3)
    inputs = {v: [v, 1, 2 * v] for v in plan.ids}
    seen = reference.run(
        plan,
        inputs,
        identities_of(5),
        lambda v: Drbg(f"client {v}".encode()),
        modulus=7,
        expand=lambda key, length: [word % 7 for word in reference.expand(key, length)],
    )
    assert seen.totals == {(0, 0): [10 % 7, 5, 20 % 7]}


def test_reference_is_one_short_page_without_numba_or_wire() -> None:
    source = Path(reference.__file__).read_text()
    assert len(source.splitlines()) < 300
    imported = {
        name.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom | ast.Import)
        for name in node.names
    }
    assert not imported & {"numba", "wire", "numpy", "Client", "Server"}

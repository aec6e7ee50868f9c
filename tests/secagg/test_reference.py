"""Two implementations agree: `secagg.reference` and the real one, for the same randomness."""

import ast
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import Plan, Schedule, Stage, TooFewSurvivors, reference
from secagg.crypto.shamir import SHARE_BYTES
from secagg.protocol import client_state
from secagg.protocol.client_state import ClientMemory
from secagg.protocol.dealing import HeldShares
from secagg.protocol.messages import MaskedInput, ToServer
from tests.secagg import cluster
from tests.secagg.cluster import run_plan
from tests.secagg.drbg import Drbg

SCHEDULES = [
    (7, Schedule(name="random", size=7)),
    (8, Schedule(name="random", size=4, groupings=2)),
    (9, Schedule(name="transversal", size=3, groupings=2)),
    (12, Schedule(name="atoms", size=6, groupings=3, atom=3)),
    (11, Schedule(name="random", size=5)),  # one client, drawn at random, is left out
]


def make_plan(n: int, schedule: Schedule, length: int = 5) -> Plan:
    return cluster.make_plan(n, schedule=schedule, length=length, bound=1000, colluders=1)


def private_keys(plan: Plan) -> dict[int, bytes]:
    return {v: cluster.identity(v).private for v in plan.ids}


@pytest.mark.parametrize("case", range(len(SCHEDULES)))
@settings(deadline=None, max_examples=8)
@given(data=st.data())
def test_real_and_reference_agree_on_shares_masked_vectors_and_totals(case: int, data: st.DataObject) -> None:
    n, schedule = SCHEDULES[case]
    plan = make_plan(n, schedule)
    drop = data.draw(st.dictionaries(st.sampled_from(plan.ids), st.sampled_from(list(Stage)[:5]), max_size=4))
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
        return run_plan(plan, inputs, drop=drop, entropy=entropy, tamper=tamper)

    try:
        seen = reference.run(plan, encoded, private_keys(plan), entropy, drop=drop)
    except TooFewSurvivors:
        with pytest.raises(TooFewSurvivors):
            real()
        return
    result = real()
    assert {v: sent[v].vectors.tolist() for v in sent} == {
        v: seen.masked.get(v, sent[v].vectors.tolist()) for v in sent
    }
    assert set(seen.masked) <= set(sent)
    assert {row: opened.total.tolist() for row, opened in result.groups.items()} == seen.totals  # type: ignore[attr-defined]
    for row, total in seen.totals.items():
        alive = [v for v in plan.group(row) if v in plan.summed(seen.masked)]
        assert total == [int(x) % 2**32 for x in sum(inputs[v] for v in alive)]


def test_real_and_reference_deal_the_same_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(8, Schedule(name="random", size=4, groupings=2))
    inputs = {v: np.zeros(plan.length, np.int64) for v in plan.ids}
    dealt: dict[int, tuple[HeldShares, ...]] = {}
    forget = client_state.forget_secrets

    def remember(memory: ClientMemory) -> None:
        dealt[memory.me] = memory.held or dealt[memory.me]
        forget(memory)

    monkeypatch.setattr(client_state, "forget_secrets", remember)

    def entropy(v: int) -> Drbg:
        return Drbg(f"client {v}".encode())

    run_plan(plan, inputs, entropy=entropy)
    seen = reference.run(plan, {v: [0] * plan.length for v in plan.ids}, private_keys(plan), entropy)
    assert set(dealt) == set(plan.ids)
    for holder, all_held in dealt.items():
        assert len(all_held) == len(plan.ids)
        for held in all_held:
            expected = b"".join(x.to_bytes(SHARE_BYTES, "little") for x in seen.shares[held.dealer, holder])
            assert held.shares == expected


def test_reference_runs_in_any_ring() -> None:
    plan = make_plan(5, Schedule(name="random", size=5), length=3)
    inputs = {v: [v, 1, 2 * v] for v in plan.ids}
    seen = reference.run(
        plan,
        inputs,
        private_keys(plan),
        lambda v: Drbg(f"client {v}".encode()),
        modulus=7,
        expand=lambda key, length: [word % 7 for word in reference.expand(key, length)],
    )
    assert seen.totals == {(0, 0): [10 % 7, 5, 20 % 7]}


def test_the_reference_shares_no_code_with_what_it_judges() -> None:
    """Labels, errors, types, the plan and message classes are all that it imports of secagg."""
    imported = set()
    for node in ast.walk(ast.parse(Path(reference.__file__).read_text())):
        if isinstance(node, ast.Import):
            imported |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported |= {f"{node.module}.{name.name}" for name in node.names}
        assert not (isinstance(node, ast.Name) and node.id in {"__import__", "import_module"})
    assert {name for name in imported if name.startswith("secagg")} <= {
        "secagg.labels",
        "secagg.errors.PeerError",
        "secagg.errors.TooFewSurvivors",
        "secagg.protocol.messages.Dealer",
        "secagg.protocol.messages.KeyAdvert",
        "secagg.agreement.plan.Plan",
        "secagg.protocol.result.Stage",
        "secagg.types.ClientId",
        "secagg.types.Entropy",
        "secagg.types.GroupId",
    }
    others = {name.split(".")[0] for name in imported} - {"secagg"}
    assert others == {"collections", "cryptography", "dataclasses", "hashlib"}


def test_the_reference_stays_one_page() -> None:
    assert len(Path(reference.__file__).read_text().splitlines()) < 400

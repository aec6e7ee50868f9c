"""Two implementations agree: `secagg.reference` and the real one, for the same randomness."""

import ast
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import Plan, Policy, Schedule, Stage, TooFewSurvivors, reference
from secagg.crypto.shamir import SHARE_BYTES
from secagg.protocol.client_state import ClientMemory
from secagg.protocol.messages import MaskedInput, ToServer
from secagg.simulation.run import make_identities, make_roster, run
from tests.secagg.drbg import Drbg

SCHEDULES = [
    (7, Schedule(name="random", size=7)),
    (8, Schedule(name="random", size=4, groupings=2)),
    (9, Schedule(name="transversal", size=3, groupings=2)),
    (12, Schedule(name="atoms", size=6, groupings=3, atom=3)),
    (11, Schedule(name="random", size=5)),  # one client, drawn at random, is left out
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


def private_keys(n: int) -> dict:
    return {v: identity.private for v, identity in identities_of(n).items()}


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
        seen = reference.run(plan, encoded, private_keys(n), entropy, drop=drop)
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
    memories: dict[int, ClientMemory] = {}
    original = ClientMemory.__init__

    def remember(self: ClientMemory, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)  # type: ignore[arg-type]
        memories[self.me] = self

    monkeypatch.setattr(ClientMemory, "__init__", remember)

    def entropy(v: int) -> Drbg:
        return Drbg(f"client {v}".encode())

    run(plan, inputs, identities_of(8), entropy=entropy)
    seen = reference.run(plan, {v: [0] * plan.length for v in plan.ids}, private_keys(8), entropy)
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
        private_keys(5),
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

"""Saved servers and clients: what comes back, and each contradiction that is found instead."""

import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from secagg.codec import from_bytes, to_bytes
from secagg.errors import UsageError, WireError
from secagg.exposure.audit import Policy
from secagg.privacy.budget import MOST_UNITS
from secagg.whole import Server, Stage, client_state, server_state
from secagg.whole.client_state import ClientMemory, PrivateKey
from secagg.whole.server_state import ServerMemory
from tests.secagg.whole.cast import Cast

CROSSED: dict[str, Any] = {"members": 9, "size": 3, "schedule": "transversal", "groupings": 2}
CALLED: dict[str, Any] = {
    "members": 5,
    "size": 5,
    "roll_call": True,
    "policy": Policy(min_survivors=3, anonymity=3, max_leverage=1.0, memory="round"),
}


def refused(problem: str) -> Any:
    return pytest.raises(UsageError, match=f"^{re.escape(problem)}$")


def half_way(**settings: Any) -> tuple[Cast, ServerMemory]:
    """A server in the middle of a round: some have answered, one sent something else, one signed twice."""
    cast = Cast(**settings)
    box = cast.begin(0, data=b"model")
    for member in list(box)[:4]:
        answer = cast.answer(member, box[member])
        cast.server.receive(member, answer)
        if member == 1:
            cast.server.receive(member, cast.signed(answer, vectors=answer.vectors + np.uint32(1)))
    cast.server.receive(4, b"\1")
    return cast, cast.server._memory


def test_everything_that_a_server_remembers_comes_back() -> None:
    cast, memory = half_way(**CROSSED)
    group = memory.complete[-1]
    memory.spoiled[group] = "ä reason"
    memory.sums.pop(group, None)
    cast.server.receive(5, b"\1")
    found = server_state.restore(server_state.save(memory), cast.agreement)
    for field in fields(ServerMemory):
        before, after = getattr(memory, field.name), getattr(found, field.name)
        if field.name == "sums":
            assert before.keys() == after.keys()
            assert all((before[key] == after[key]).all() and after[key].flags.writeable for key in before)
        else:
            assert before == after, field.name
    assert memory.second
    assert memory.blamed
    assert memory.dropouts.keys() == {4, 5}
    assert isinstance(found.stage, Stage)


def change(**values: Any) -> Callable[[ServerMemory], None]:
    def apply(memory: ServerMemory) -> None:
        for name, value in values.items():
            setattr(memory, name, value(memory) if callable(value) else value)

    return apply


def without_advert(memory: ServerMemory) -> None:
    del memory.adverts[0][0]


def without_a_sum(memory: ServerMemory) -> None:
    del memory.sums[min(memory.sums)]


def with_another_sum(memory: ServerMemory) -> None:
    memory.answers, memory.kept = {}, {}


def short_sums(memory: ServerMemory) -> None:
    memory.sums = {group: total[:-1] for group, total in memory.sums.items()}


STRANGER = "it names a client that is not a member"
ROUND = "it names a round that is not in the agreement"
GROUP = "it names a group that the round does not have"
RECORD = "it has an answer without its record, or a record without its answer"


@pytest.mark.parametrize(
    ("alter", "problem"),
    [
        (change(present=(9,)), STRANGER),
        (change(answers=lambda m: m.answers | {9: (bytes(32), bytes(64))}), STRANGER),
        (change(dropouts={9: "x"}), STRANGER),
        (change(blamed={9: "x"}), STRANGER),
        (change(adverts=lambda m: {0: m.adverts[0] | {9: replace(m.adverts[0][0], sender=9)}}), STRANGER),
        (change(rounds=(8,)), ROUND),
        (change(adverts=lambda m: m.adverts | {8: {0: replace(m.adverts[0][0], round=8)}}), ROUND),
        (change(rounds=()), "a round is open, but it does not say which"),
        (change(complete=lambda m: (*m.complete, (7, 0))), GROUP),
        (change(sums=lambda m: m.sums | {(7, 0): np.zeros(5, np.uint32)}), GROUP),
        (change(spoiled={(7, 0): "x"}), GROUP),
        (without_advert, "group (0, 0) lacks an advert"),
        (without_a_sum, "group (0, 0) has answers without a sum, or a sum without answers"),
        (with_another_sum, "group (0, 0) has answers without a sum, or a sum without answers"),
        (change(kept=lambda m: {}), RECORD),
        (short_sums, "a sum has the wrong length"),
    ],
)
def test_a_saved_server_that_contradicts_its_agreement_is_damaged(
    alter: Callable[[ServerMemory], None], problem: str
) -> None:
    cast, memory = half_way(**CROSSED)
    wrong = deepcopy(memory)
    alter(wrong)
    if "group (0, 0)" in problem:  # the group that is named depends on the seed
        problem = problem.replace("(0, 0)", "GROUP")
        with pytest.raises(UsageError) as caught:
            server_state.restore(server_state.save(wrong), cast.agreement)
        told = re.sub(r"group \(\d+, \d+\)", "group GROUP", str(caught.value))
        assert told == f"this saved server is damaged: {problem}"
        return
    with refused(f"this saved server is damaged: {problem}"):
        server_state.restore(server_state.save(wrong), cast.agreement)


@pytest.mark.parametrize("field", ["sum_ids", "spoiled_ids"])
def test_every_sum_and_every_reason_has_its_group(field: str) -> None:
    cast, memory = half_way(**CROSSED)
    memory.spoiled[memory.complete[-1]] = "half added"
    data = server_state.save(memory)
    header = len(b"secagg whole server 2\n")
    values = from_bytes(server_state._MEMORY, data[header:])
    for wrong in (values[field][:-1], (*values[field], (9, 9))):
        changed = data[:header] + to_bytes(server_state._MEMORY, values | {field: wrong})
        with pytest.raises(UsageError, match=r"^this saved server is damaged: zip"):
            server_state.restore(changed, cast.agreement)


def test_a_new_server_is_its_fingerprint_and_zeros() -> None:
    cast = Cast()
    rest = cast.server.save().removeprefix(b"secagg whole server 2\n" + cast.agreement.fingerprint)
    assert rest == bytes(len(rest))


def test_a_spoiled_group_may_have_answers_without_a_sum() -> None:
    cast, memory = half_way(**CROSSED)
    group = min(memory.sums)
    del memory.sums[group]
    memory.spoiled[group] = "half added"
    assert server_state.restore(server_state.save(memory), cast.agreement).spoiled == {group: "half added"}


def test_a_server_between_rounds_may_have_anything_of_the_last_one() -> None:
    cast, memory = half_way(**CROSSED)
    memory.stage, memory.kept = Stage.IDLE, {}
    assert server_state.restore(server_state.save(memory), cast.agreement).stage is Stage.IDLE


def test_a_saved_roll_call_keeps_the_policy() -> None:
    cast = Cast(**CALLED)
    cast.begin(0, absent=[4])
    memory = cast.server._memory
    assert server_state.restore(server_state.save(memory), cast.agreement).present == (0, 1, 2, 3)
    for present in ((0, 1), (0, 1, 2, 3, 4)):
        wrong = deepcopy(memory)
        wrong.present = present
        problem = "group (0, 0) lacks an advert" if 4 in present else "it has sent a roll call that breaks the policy"
        with refused(f"this saved server is damaged: {problem}"):
            server_state.restore(server_state.save(wrong), cast.agreement)


def test_bytes_of_something_else_are_no_saved_server() -> None:
    cast, memory = half_way(**CROSSED)
    data = server_state.save(memory)
    assert data.startswith(b"secagg whole server 2\n")
    with refused("these bytes are not a saved server of whole groups of this version"):
        Server.restore(data.replace(b"server 2", b"server 1"), cast.agreement)
    with refused("this saved server belongs to another agreement"):
        Server.restore(data, Cast().agreement)
    for wrong in (data[:-1], data + b"\0", data[:60]):
        with pytest.raises(UsageError, match=r"^this saved server is damaged: "):
            Server.restore(wrong, cast.agreement)
    stage = len(b"secagg whole server 2\n") + 32
    assert data[stage] == 1
    with refused("this saved server is damaged: 2 is not a valid Stage"):
        Server.restore(data[:stage] + b"\2" + data[stage + 1 :], cast.agreement)
    two = deepcopy(memory)
    two.rounds = (0, 0)
    with pytest.raises(Exception, match="count 2 exceeds the limit 1"):
        server_state.save(two)


@pytest.mark.parametrize(
    ("field", "most"), [("rounds", 1), ("adverts", 2**20), ("releases", 2**20), ("spoiled", 2**20), ("present", 65535)]
)
def test_a_saved_server_has_at_most_so_many_of_each(field: str, most: int) -> None:
    layout = dict(server_state._MEMORY.fields)[field]
    with refused_bytes(f"{most} values declared, but only 0 bytes follow"):
        from_bytes(layout, most.to_bytes(4, "little"))
    with refused_bytes(f"count {most + 1} exceeds the limit {most}"):
        from_bytes(layout, (most + 1).to_bytes(4, "little"))


def refused_bytes(problem: str) -> Any:
    return pytest.raises(WireError, match=f"^{re.escape(problem)}$")


def test_a_reason_of_a_thousand_characters_of_four_bytes_is_saved() -> None:
    cast, memory = half_way(**CROSSED)
    memory.dropouts[8] = "\U0001d49c" * 1000
    assert server_state.restore(server_state.save(memory), cast.agreement).dropouts[8] == memory.dropouts[8]
    memory.dropouts[8] += "a"
    with refused_bytes("count 4001 exceeds the limit 4000"):
        server_state.save(memory)


# --- clients -------------------------------------------------------------------------------------------------------


def test_everything_that_a_client_remembers_comes_back() -> None:
    keys = tuple(PrivateKey(round, bytes([round]) * 32) for round in range(4))
    memory = ClientMemory(
        me=3, fingerprint=bytes(32), released=1, answered=(7,), last=b"\1" * 32, rho=5, eta=6, keys=keys
    )
    data = client_state.save(memory)
    assert data.startswith(b"secagg whole client 2\n")
    assert client_state.restore(data, 3, bytes(32)) == memory
    with pytest.raises(Exception, match="count 5 exceeds the limit 4"):
        client_state.save(replace(memory, keys=(*keys, keys[0])))
    with pytest.raises(Exception, match="count 2 exceeds the limit 1"):
        client_state.save(replace(memory, answered=(7, 8)))
    new = ClientMemory(me=3, fingerprint=bytes(32))
    assert (new.released, new.answered, new.last, new.rho, new.eta, new.keys) == (0, (), bytes(32), 0, 0, ())


def test_a_saved_client_of_somebody_else_is_refused() -> None:
    memory = ClientMemory(me=3, fingerprint=bytes(32))
    data = client_state.save(memory)
    with refused("these bytes are not a saved client of whole groups of this version"):
        client_state.restore(data.replace(b"client 2", b"client 1"), 3, bytes(32))
    with refused("this saved client belongs to another agreement"):
        client_state.restore(data, 3, b"\1" * 32)
    with refused("this saved client is client 3, expected client 4"):
        client_state.restore(data, 4, bytes(32))
    with refused("this saved client is damaged: 1 extra bytes after the message"):
        client_state.restore(data + b"\0", 3, bytes(32))


@pytest.mark.parametrize("field", ["rho", "eta"])
def test_charges_of_a_saved_client_are_such_that_can_be(field: str) -> None:
    most: dict[str, Any] = {field: MOST_UNITS}
    more: dict[str, Any] = {field: MOST_UNITS + 1}
    memory = ClientMemory(me=3, fingerprint=bytes(32), **most)
    assert client_state.restore(client_state.save(memory), 3, bytes(32)) == memory
    with refused("this saved client is damaged: its charges are too large"):
        client_state.restore(client_state.save(replace(memory, **more)), 3, bytes(32))

"""Attacks that succeeded against version 1, tried against real clients of version 2.

Each test plays the attack with a server that wants to succeed. Where it helps, the same attack is shown to work if the
agreement does not forbid it, so that the test can fail. Attacks on survivors, storage and memory are tested beside the
code that they concern.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from secagg.agreement.agreement import Agreement
from secagg.crypto.keys import Identity
from secagg.errors import AgreementRefused, PeerError, UsageError
from secagg.exposure.audit import Policy
from secagg.simulation import WholeRun, make_agreement
from secagg.whole import Client, Hello, Round, Server, WholeResult
from tests.secagg.drbg import Drbg
from tests.secagg.whole.cast import Cast
from tests.secagg.whole.symbols import allowed, learned, rank, recording

ROUND = Policy(memory="round")  # promises each round alone: what version 1 promised
Floats = npt.NDArray[np.float64]


def made(**settings: Any) -> tuple[Agreement, dict[int, Identity]]:
    usual = {"length": 400, "clip": 8.0, "size": 3, "schedule": "fixed", "entropy": Drbg(b"findings")}
    return make_agreement(**usual | settings)


def updates(n: int, length: int = 400) -> Floats:
    return np.random.default_rng(0).normal(size=(n, length))


def best_estimates(results: Collection[WholeResult], n: int) -> Floats:
    """The least-squares estimate of every update from all opened sums, if updates stand still."""
    rows, sums = [], []
    for result in results:
        for group, opened in result.groups.items():
            rows.append([float(v in opened.members) for v in range(n)])
            sums.append(result.sum(group))
    return np.asarray(np.linalg.pinv(np.array(rows)) @ np.array(sums), float)


def cosines(a: Floats, b: Floats) -> Floats:
    return np.asarray((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1), float)


# --- 1. broken atoms -------------------------------------------------------------------------------------------


def test_1_a_server_that_hides_one_member_of_an_atom_gets_no_sum_without_it() -> None:
    """Round 0 without client X, rounds 1 and 2 with everybody, equal updates: X stays hidden among its atom."""
    policy = Policy(anonymity=3)
    cast = Cast(members=12, size=6, schedule="atoms", atom=3, policy=policy, rounds=3, length=1)
    atoms = cast.agreement.terms.schedule.all_atoms(cast.agreement.terms.ids, cast.agreement.seed)
    hidden = atoms[0][0]
    with recording() as recorder:
        rows, groups = [], {}
        for round in range(3):
            for member, message in cast.begin(round).items():
                answer = cast.answer(member, message)
                if (member, round) != (hidden, 0):
                    cast.server.receive(member, answer)
                    rows += recorder.rows(answer)
            result = cast.server.close()
            assert len(result.groups) == (1 if round == 0 else 2)
            groups |= {(round, group): members for group, members in cast.groups(round).items()}
    assert rank([*learned(rows), *allowed(rows, groups)]) == rank(allowed(rows, groups))
    still = [[int(row.client == v) for row in rows] for v in range(12)]  # one unknown per client in all rounds
    opened = [[sum(map(int.__mul__, one, places)) for places in still] for one in learned(rows)]
    for atom in atoms:
        for v in atom:
            alone = [int(w == v) for w in range(12)]
            assert rank([*opened, alone]) == rank(opened) + 1


# --- 2. the same model in six rounds ----------------------------------------------------------------------------


def six_rounds(policy: Policy, schedule: str) -> tuple[Floats, Floats]:
    given = updates(24)
    agreement, identities = made(members=24, rounds=6, schedule=schedule, policy=policy)
    run = WholeRun(agreement, identities)
    results = [run.round(t, dict(enumerate(given)), data=b"the same model") for t in range(6)]
    return best_estimates(results, 24), given


def test_2_the_same_model_in_six_rounds_shows_sums_of_fixed_clusters_only() -> None:
    estimates, given = six_rounds(Policy(), "fixed")
    assert len({tuple(np.round(one, 3)) for one in estimates}) == 8
    assert cosines(estimates, given).max() < 0.75  # that of a mean of three: 0.58


def test_2_new_clusters_in_every_round_are_refused_because_they_show_every_update() -> None:
    estimates, given = six_rounds(ROUND, "random")
    assert cosines(estimates, given).min() > 0.99
    with pytest.raises(AgreementRefused, match=r"over .*rounds together"):
        made(members=24, rounds=6, schedule="random")


# --- 3. changed and heavy weights ---------------------------------------------------------------------------------


def test_3_weights_cannot_change_between_rounds() -> None:
    """The server knows the agreement with other weights that it would like; no client answers it."""
    agreement, identities = made(members=12, size=12, rounds=2, length=4)
    heavy, _ = made(members=12, size=12, rounds=2, length=4, weights=[1, 1, 1, 1, 3] + [1] * 7)
    signatures = {v: agreement.sign(v, identity) for v, identity in identities.items()}
    client = Client(agreement, signatures, 4, identities[4])
    with pytest.raises(PeerError, match="another agreement"):
        client.receive(Hello(heavy.fingerprint, 1))
    with pytest.raises(PeerError, match="wrong signature"):
        Client(heavy, signatures, 4, identities[4])
    given = dict(enumerate(updates(12, 4)))
    run = WholeRun(agreement, identities)
    first, second = (run.round(t, given).sum() for t in range(2))
    assert (first == second).all()


def test_3_a_round_has_no_place_for_weights_groups_or_a_seed() -> None:
    assert set(Round.__slots__) == {"fingerprint", "round", "data", "groups", "adverts", "releases"}


@pytest.mark.parametrize(("members", "heavy"), [(60, 10), (12, 5)])
def test_3_a_member_whose_weight_drowns_the_others_is_refused(members: int, heavy: int) -> None:
    """Version 1 accepted a leverage of 0.63 in a flat sum of 60, and of 0.69 in one of 12."""
    weights = [heavy] + [1] * (members - 1)
    with pytest.raises(AgreementRefused, match="leverage of client 0 would be"):
        made(members=members, size=members, length=4, weights=weights)


# --- 8. a round number that suits the server -----------------------------------------------------------------------


def test_8_a_round_number_cannot_be_ground() -> None:
    """Version 1: some round number puts the victim with two colluders; the server names that round."""
    agreement, identities = made(members=12, rounds=4, length=4, schedule="random", policy=ROUND)
    signatures = {v: agreement.sign(v, identity) for v, identity in identities.items()}
    schedule, ids = agreement.terms.schedule, agreement.terms.ids
    victim, others = 7, set(ids) - {7}

    def mates(round: int) -> set[int]:
        (group,) = (group for group in schedule.draw(ids, agreement.seed, round)[0] if victim in group)
        return set(group) - {victim}

    permitted = [mates(round) for round in range(4)]
    colluders = next(pair for pair in map(set, combinations(sorted(others), 2)) if pair not in permitted)

    def together(round: int) -> bool:
        return mates(round) == colluders

    suits = next(round for round in range(4, 10**5) if together(round))
    client = Client(agreement, signatures, victim, identities[victim])
    with pytest.raises(PeerError, match=f"round {suits} is not in the agreement: 0 to 3"):
        client.receive(Hello(agreement.fingerprint, suits))
    with pytest.raises(UsageError, match="not in the agreement"):
        Server(agreement).hello(suits)
    assert not any(together(round) for round in range(4))  # what the four rounds hold is known beforehand


def test_8_rounds_go_forward_only() -> None:
    cast = Cast()
    first = cast.begin(0)
    cast.server.close()
    cast.answer(0, cast.begin(2)[0])
    with pytest.raises(PeerError, match="round 2 is answered"):
        cast.clients[0].receive(first[0])
    with pytest.raises(PeerError, match="2 is answered"):
        cast.clients[0].receive(Hello(cast.agreement.fingerprint, 1))


# --- 6, 7. colluders and leverage -----------------------------------------------------------------------------------


def test_6_dropping_honest_mates_does_not_leave_a_client_alone_with_colluders() -> None:
    """Version 1: the server drops the honest members of a group until one is left among colluders."""
    cast = Cast(members=5, size=5, policy=Policy(), length=1)
    victim, colluders = 0, {3, 4}
    with recording() as recorder:
        rows = []
        for member, message in cast.begin().items():
            if member == victim or member in colluders:
                rows += recorder.rows(cast.answer(member, message))
    assert learned([row for row in rows if row.client == victim], colluders) == []
    message = cast.server.outbox()[1]
    without = replace(message, adverts=tuple(advert for advert in message.adverts if advert.sender != 2))
    cast.clients[1].receive(without)
    with pytest.raises(PeerError, match="client 2: no advert"):
        cast.clients[1].answer(cast.clients[1].task, [1])


@pytest.mark.parametrize(("members", "size", "groupings"), [(60, 3, 3), (60, 10, 10)])
def test_7_many_groupings_of_one_round_are_refused_by_default(members: int, size: int, groupings: int) -> None:
    """Version 1 opened what gives estimates at a cosine of 0.85. The default allows a leverage of 0.5."""
    with pytest.raises(AgreementRefused):
        made(members=members, size=size, groupings=groupings, schedule="random", length=4)
    assert Policy().max_leverage == 0.5


def test_7_what_the_default_allows_bounds_the_best_estimate() -> None:
    """A mean over clients of cosine squared is at most the leverage of the groups that may be opened."""
    given = updates(24)
    agreement, identities = made(members=24, size=6, groupings=2, policy=ROUND, schedule="transversal")
    result = WholeRun(agreement, identities).round(0, dict(enumerate(given)))
    assert len(result.groups) == 8
    found = cosines(best_estimates([result], 24), given)
    assert found.max() < np.sqrt(0.5) + 0.1

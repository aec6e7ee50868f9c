"""What an agreement allows is judged before anything is sent: over one round, over all rounds, and over agreements."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from secagg import AgreementRefused, Identity, Policy, UsageError
from secagg.agreement import Agreement, Member, Terms
from secagg.agreement.audit import audit_round, audit_training
from secagg.crypto.segments import Segment
from secagg.exposure import Schedule, revealed
from secagg.simulation import agree_on, make_agreement
from tests.secagg import rational
from tests.secagg.drbg import Drbg

REPORT = Policy(mode="report-even-if-exposed")


def agreed(**more: Any) -> Agreement:
    given: dict[str, Any] = {"members": 12, "size": 3, "length": 1, "clip": 1.0} | more
    return make_agreement(**given)[0]


def all_groups(agreement: Agreement, rounds: Iterable[int]) -> list[tuple[int, ...]]:
    return sorted({group for t in rounds for group in chain.from_iterable(agreement.groupings(t))})


def leverages(groups: list[tuple[int, ...]], weights: dict[int, int]) -> dict[int, float]:
    clients = sorted(set(chain.from_iterable(groups)))
    matrix = np.array([[weights[v] * (v in group) for v in clients] for group in groups], float)
    return dict(zip(clients, np.diag(np.linalg.pinv(matrix) @ matrix).tolist(), strict=True))


def broken(groups: list[tuple[int, ...]], policy: Policy, weights: dict[int, int]) -> bool:
    """Whether these groups together break the policy: exact T, and leverage by the pseudo-inverse."""
    clients = sorted(set(chain.from_iterable(groups)))
    few = min(map(len, groups)) < policy.min_survivors
    light = rational.lightest(groups, clients, policy.anonymity - 1) < policy.anonymity
    return few or light or max(leverages(groups, weights).values()) > policy.max_leverage + 1e-6


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_an_agreement_exists_exactly_if_its_groups_keep_its_policy(data: st.DataObject) -> None:
    draw = data.draw
    name = draw(st.sampled_from(["random", "fixed", "transversal"]))
    members, size = draw(st.integers(6, 13)), draw(st.integers(2, 6))
    groupings, rounds = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    weights = draw(st.none() | st.lists(st.integers(1, 4), min_size=members, max_size=members))
    policy = Policy(
        anonymity=draw(st.integers(2, 4)),
        max_leverage=draw(st.sampled_from([0.3, 0.5, 0.8, 1.0])),
        memory=draw(st.sampled_from(["round", "training"])),
    )
    more = {"members": members, "size": size, "groupings": groupings, "schedule": name, "rounds": rounds}
    more |= {"weights": weights or (), "sample": draw(st.sampled_from([0, 0, members - 1]))}
    seed = draw(st.binary(min_size=8, max_size=8))
    try:
        reported = agreed(**more, policy=replace(policy, mode="report-even-if-exposed"), entropy=Drbg(seed))
    except UsageError:
        assume(False)
    if name == "fixed" and more["sample"] and groupings > 1:
        assume(False)  # which connected parts a sample can hold depends on the seed
    spans = [range(rounds)] if policy.memory == "training" else [range(t, t + 1) for t in range(rounds)]
    every = [all_groups(reported, span) for span in spans]
    if name == "fixed":
        every = [sorted(set(chain.from_iterable(reported.terms.schedule.draw(range(members), reported.seed, 0))))]
    bad = any(broken(groups, policy, dict(reported.terms.weights)) for groups in every)
    # The same members and contributions with the policy enforced give other groups: the terms are hashed in the seed.
    # So the policy is enforced on these groups by judging the reported agreement.
    found = audit_training(reported) if policy.memory == "training" else audit_round(reported)
    assert bool(found.objections) is bad


@pytest.mark.parametrize("schedule", ["transversal", "random"])
@pytest.mark.parametrize("memory", ["round", "training"])
def test_in_groups_that_overlap_a_heavy_member_stands_out_more(schedule: str, memory: str) -> None:
    weights = (4, *(1,) * 11)
    policy = Policy(anonymity=2, max_leverage=0.9, memory=memory, mode="report-even-if-exposed")
    judge = audit_training if memory == "training" else audit_round
    more: dict[str, Any] = {"schedule": schedule, "groupings": 2, "policy": policy, "entropy": Drbg(b"weighted")}
    heavy, equal = agreed(weights=weights, **more), agreed(**more)
    expected = max(leverages(all_groups(heavy, range(1)), dict(enumerate(weights))).values())
    assert expected > 0.9
    assert judge(heavy).leverage == pytest.approx(expected)
    assert judge(heavy).objections
    assert not judge(equal).objections


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.integers(1, 40), st.sampled_from([0, 9]))
def test_atoms_pass_for_any_number_of_rounds_and_samples(groupings: int, rounds: int, sample: int) -> None:
    agreement = agreed(
        members=18, size=6, schedule="atoms", atom=3, groupings=groupings if sample == 0 else 1, rounds=rounds,
        sample=sample,
    )  # fmt: skip
    found = audit_training(agreement)
    assert found.anonymity.lower >= 3
    groups = all_groups(agreement, range(rounds))
    if rounds <= 3:
        assert rational.lightest(groups, range(18), 2) == 3  # none with one or two clients
    seen = revealed(groups)
    assert not seen.exposed
    assert max(seen.leverage.values()) <= found.leverage + 1e-9


def test_fixed_groups_pass_for_any_number_of_rounds() -> None:
    agreement = agreed(rounds=10**6)
    found = audit_training(agreement)
    assert (found.rounds, found.anonymity.lower, found.leverage) == (10**6, 3, pytest.approx(1 / 3))


def test_the_same_model_in_six_rounds_shows_no_update() -> None:
    """Finding 2: version 1's defaults, random groups of 3 among 60, gave all 60 updates at cosine 1."""
    rng = np.random.default_rng(0)
    updates = rng.normal(size=(60, 200))
    loud = agreed(members=60, rounds=6, schedule="random", policy=REPORT)
    assert max(cosines(loud, updates)) > 0.999
    with pytest.raises(AgreementRefused, match=r"pass for single rounds only.*'fixed'.*memory = 'round'"):
        agreed(members=60, rounds=6, schedule="random")
    safe = agreed(members=60, rounds=6)
    assert max(cosines(safe, updates)) < np.sqrt(1 / 3) + 0.2
    assert not revealed(all_groups(safe, range(6))).exposed


def cosines(agreement: Agreement, updates: np.ndarray[Any, Any]) -> list[float]:
    groups = all_groups(agreement, agreement.terms.rounds)
    matrix = np.array([[v in group for v in range(len(updates))] for group in groups], float)
    estimates = np.linalg.pinv(matrix) @ (matrix @ updates)
    return [float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)) for a, b in zip(estimates, updates, strict=True)]


def test_random_groups_pass_for_each_round_alone() -> None:
    agreement = agreed(rounds=50, schedule="random", policy=Policy(memory="round"))
    assert audit_round(agreement).anonymity.lower == 3
    with pytest.raises(AgreementRefused, match=r"over the first .* rounds together"):
        agreed(rounds=50, schedule="random")


def test_a_few_rounds_of_large_random_groups_pass_together() -> None:
    agreement = agreed(members=60, size=20, schedule="random", rounds=2)
    found = audit_training(agreement)
    assert not found.partial
    assert found.leverage < 0.2


def test_a_flat_sum_of_everybody_is_the_same_in_every_round() -> None:
    assert audit_training(agreed(size=12, schedule="random", rounds=1000)).anonymity.lower == 12


def test_a_heavy_member_of_a_flat_sum_is_refused() -> None:
    """A weight of 10 among 59 of 1 has leverage 0.63 in a flat sum (weights were left out of the audit)."""
    weights = [10 if v == 7 else 1 for v in range(60)]
    with pytest.raises(AgreementRefused, match=r"leverage of client 7 would be 0\.629, above 0\.5.*more equal"):
        agreed(members=60, size=60, weights=weights)
    agreed(members=60, size=60, weights=weights, clip=None, bound=1)  # integers are not weighted
    assert audit_round(agreed(members=60, size=60, weights=weights, policy=REPORT)).worst == 7


def test_floats_and_integers_in_one_vector_are_both_judged() -> None:
    """Weights that lower the leverage of some raise that of others; integers always have weight 1."""
    identities = {v: Identity.generate() for v in range(6)}
    terms = Terms(
        name="both",
        members=tuple(Member(v, identities[v].public, weight=9 if v == 2 else 1) for v in range(6)),
        segments=(Segment(name="a", shape=(1,), clip=1.0), Segment(name="b", shape=(1,), bound=5)),
        schedule=Schedule(name="fixed", size=3),
        last_round=0,
    )
    with pytest.raises(AgreementRefused, match="leverage of client 2"):
        agree_on(terms, identities)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"size": 2}, "groups of 2 cannot hide anybody among 3"),
        ({"size": 4, "schedule": "atoms", "atom": 2}, "atoms of 2 cannot hide anybody among 3"),
        ({"size": 3, "groupings": 2, "rounds": 9}, "fewer groupings, larger groups, or the schedule 'atoms'"),
        ({"size": 3, "policy": Policy(max_leverage=0.3)}, "groups of at least 4 members"),
        ({"size": 4, "policy": Policy(min_survivors=5)}, "use groups of at least 5"),
    ],
)
def test_what_breaks_the_policy_is_refused_with_what_fits(more: dict[str, Any], why: str) -> None:
    with pytest.raises(AgreementRefused, match=why):
        agreed(**more)
    agreed(**more | {"policy": REPORT})


def test_too_many_rounds_to_judge_one_by_one_are_refused() -> None:
    with pytest.raises(AgreementRefused, match="too many to judge beforehand"):
        agreed(size=6, groupings=2, schedule="random", rounds=10**6, policy=Policy(memory="round"))


def test_survivors_promise_single_rounds_except_with_atoms() -> None:
    with pytest.raises(AgreementRefused, match=r"memory = 'round'.*can combine them"):
        agreed(size=12, groups="survivors", rounds=2)
    agreed(size=12, groups="survivors", rounds=2, policy=Policy(memory="round"))
    agreed(size=12, groups="survivors", rounds=1)
    agreed(size=6, schedule="atoms", atom=3, groups="survivors", rounds=2)


def test_survivors_with_atoms_keep_the_limits_over_all_rounds() -> None:
    """Groups change with the rounds, so that in the end the sum of each atom is known."""
    atoms = {"size": 6, "schedule": "atoms", "atom": 3, "groups": "survivors"}
    low, heavy = Policy(max_leverage=0.2), [10, *[1] * 11]
    for rounds, more in ((2, {"policy": low}), (2, {"weights": heavy})):
        with pytest.raises(AgreementRefused, match="breaks the policy over all rounds together: the leverage"):
            agreed(rounds=rounds, **atoms, **more)
    agreed(rounds=1, **atoms, policy=low)
    agreed(rounds=2, **atoms, policy=replace(low, memory="round"))


# Agreements that follow others on the same data


def successor(first: Agreement, identities: dict[int, Identity], **changes: Any) -> Agreement:
    terms = replace(first.terms, predecessors=(first.fingerprint,), **changes)
    return agree_on(terms, identities)


def test_a_successor_is_judged_with_its_predecessors() -> None:
    first, identities = make_agreement(members=12, size=3, length=1, clip=1.0)
    second = successor(first, identities)
    with pytest.raises(AgreementRefused, match=r"over all rounds together"):
        second.check([first])
    groups = all_groups(first, [0]) + all_groups(second, [0])
    assert broken(groups, first.terms.policy, dict.fromkeys(range(12), 1))
    wide, identities = make_agreement(members=60, size=20, length=1, clip=1.0)
    successor(wide, identities).check([wide])


def test_a_successor_needs_all_its_predecessors() -> None:
    first, identities = make_agreement(members=60, size=20, length=1, clip=1.0)
    second = successor(first, identities)
    third = agree_on(replace(second.terms, predecessors=(second.fingerprint,)), identities)
    for agreement, earlier in ((second, []), (second, [first, first, second]), (third, [second])):
        with pytest.raises(AgreementRefused, match="predecessors: "):
            agreement.check(earlier)
    both = agree_on(replace(second.terms, predecessors=(first.fingerprint, second.fingerprint)), identities)
    both.check([first, second])


def test_a_successor_that_changes_a_weight_is_refused() -> None:
    """Finding 3: a weight of 5 in one sum and 1 in another isolates a client in a flat sum of 12."""
    first, identities = make_agreement(members=12, size=12, length=1, clip=1.0)
    heavier = tuple(replace(member, weight=2 if member.id == 4 else 1) for member in first.terms.members)
    second = successor(first, identities, members=heavier)
    with pytest.raises(AgreementRefused, match=r"member 4 had weight 1 .* has 2 now"):
        second.check([first])
    successor(first, identities).check([first])


def test_a_member_keeps_its_id() -> None:
    first, identities = make_agreement(members=12, size=12, length=1, clip=1.0)
    moved = tuple(replace(member, id=member.id + 1) for member in first.terms.members)
    second = successor(first, {v + 1: identity for v, identity in identities.items()}, members=moved)
    with pytest.raises(AgreementRefused, match="member 1 was member 0"):
        second.check([first])


def test_a_leaver_from_a_flat_sum_is_refused() -> None:
    first, identities = make_agreement(members=12, size=12, length=1, clip=1.0)
    left = first.terms.members[:-1]
    second = successor(first, identities, members=left, schedule=Schedule(name="fixed", size=11))
    with pytest.raises(AgreementRefused, match="1 of 11 members would be exposed"):
        second.check([first])


def test_naming_predecessors_does_not_evade_the_policy() -> None:
    first, identities = make_agreement(members=60, size=20, length=1, clip=1.0)
    with pytest.raises(AgreementRefused, match="pass for single rounds only"):
        successor(first, identities, schedule=Schedule(name="random", size=20), last_round=50)


def test_survivors_promise_nothing_over_agreements_except_with_atoms() -> None:
    for more, refused in (({"size": 12}, True), ({"size": 6, "schedule": "atoms", "atom": 3}, False)):
        first, identities = make_agreement(members=12, length=1, clip=1.0, groups="survivors", **more)
        second = successor(first, identities)
        with pytest.raises(
            AgreementRefused, match="over several agreements" if refused else "over all rounds together"
        ):
            second.check([first])  # the second agreement has atoms of its own
        alone = successor(first, identities, policy=Policy(memory="round"))
        alone.check([first])


def test_a_sample_in_which_nobody_fits_is_refused() -> None:
    with pytest.raises(UsageError, match=r"sample: 3 fixed groupings connect .* always empty"):
        agreed(members=60, size=12, groupings=3, sample=30)
    agreed(members=60, size=12, sample=30)

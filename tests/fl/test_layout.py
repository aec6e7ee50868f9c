"""What an experiment agrees on, field by field, and each layout that is refused with its whole text."""

import hashlib
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl.config.read import from_tables
from fl.config.schema import LASTING
from fl.errors import ConfigError
from fl.secure import layout
from fl.secure.layout import (
    Layout,
    check_exposure,
    check_size,
    fitting_ratio,
    placeholder_members,
    policy,
    preview,
    simulated_agreement,
    terms_of,
    verdict_of,
)
from secagg import Policy, Schedule, audit
from secagg.agreement import Terms
from secagg.crypto import Segment
from secagg.exposure import Drawn

ROUND = {"memory": "round"}


def of(**tables: Any) -> Any:
    """An experiment whose layout was not checked yet."""
    return from_tables({"clients": 12, "rounds": 7, **tables})


def terms(schedule: Schedule, members: int = 12, **more: Any) -> Terms:
    segments = (Segment(name="update", shape=(5,), clip=8.0), Segment(name="clipped", shape=(), bound=5))
    return Terms(
        name="simulated training",
        members=tuple(placeholder_members(members)),
        segments=segments,
        schedule=schedule,
        **{"last_round": 99_999, "policy": Policy(min_survivors=2, anonymity=3, memory="training"), **more},
    )


ONE_ROUND = Policy(min_survivors=2, anonymity=3, memory="round")
CASES: list[tuple[dict[str, Any], Terms]] = [
    ({"clusters": {"size": 4}}, terms(Schedule(name="fixed", size=4))),
    ({"participation": 0.5, "clusters": {"size": 3}}, terms(Schedule(name="fixed", size=3), sample=6)),
    (
        {"clusters": {"size": 4, "schedule": "random", "groupings": 2}, "privacy": ROUND},
        terms(Schedule(name="random", size=4, groupings=2), last_round=6, policy=ONE_ROUND),
    ),
    (
        {"clusters": {"size": 6, "schedule": "atoms", "atom": 3, "groupings": 2}},
        terms(Schedule(name="atoms", size=6, atom=3, groupings=2)),
    ),
    (
        {"clusters": {"size": 4, "groups": "survivors"}, "privacy": {**ROUND, "threshold": 9, "colluders": 1}},
        terms(Schedule(name="fixed", size=4), groups="survivors", policy=ONE_ROUND, threshold=9, colluders=1),
    ),
    (
        {"clients": 40, "clusters": {"size": 4, "groups": "survivors", "cell": 39}, "privacy": ROUND},
        terms(Schedule(name="fixed", size=4), 40, groups="survivors", policy=ONE_ROUND, cell=39),
    ),
    (
        {"clients": 40, "clusters": {"size": 4, "groups": "survivors", "cell": 40}, "privacy": ROUND},
        terms(Schedule(name="fixed", size=4), 40, groups="survivors", policy=ONE_ROUND),
    ),
    (
        {"clients": 301, "clusters": {"size": 5, "groups": "survivors"}, "privacy": ROUND},
        terms(Schedule(name="fixed", size=5), 301, groups="survivors", policy=ONE_ROUND, cell=300),
    ),
    (
        {"clients": 300, "clusters": {"size": 5, "groups": "survivors"}, "privacy": ROUND},
        terms(Schedule(name="fixed", size=5), 300, groups="survivors", policy=ONE_ROUND),
    ),
    ({"clients": 400, "clusters": {"size": 5}}, terms(Schedule(name="fixed", size=5), 400)),
    ({"method": "fedavg"}, terms(Schedule(name="fixed", size=12), groups="survivors", policy=ONE_ROUND)),
    (
        {"method": "fedavg", "participation": 0.5},
        terms(Schedule(name="random", size=6), groups="survivors", policy=ONE_ROUND, sample=6, last_round=6),
    ),
]


@pytest.mark.parametrize(("tables", "expected"), CASES)
def test_the_terms_of_an_experiment_field_by_field(tables: dict[str, Any], expected: Terms) -> None:
    found = of(**tables)
    assert terms_of(found, placeholder_members(found.clients), 5) == expected


def test_terms_have_the_name_and_length_that_are_asked_for() -> None:
    found = terms_of(of(clusters={"size": 4}), placeholder_members(12), name="other")
    assert (found.name, found.segments[0].shape, found.segments[1].bound) == ("other", (1,), 1)


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ({"clusters": {"size": 4}}, Layout((12,), Schedule(name="fixed", size=4), 3, 12, 1)),
        ({"clusters": {"size": 5}}, Layout((10,), Schedule(name="fixed", size=5), 2, 10, 1)),
        (
            {"clients": 40, "clusters": {"size": 4, "groups": "survivors", "cell": 20}, "privacy": ROUND},
            Layout((20, 20), Schedule(name="fixed", size=4), 10, 40, 1),
        ),
        (
            {"clusters": {"size": 6, "schedule": "atoms", "atom": 3, "groupings": 2}},
            Layout((12,), Schedule(name="atoms", size=6, atom=3, groupings=2), 2, 12, 2),
        ),
        ({"method": "no-share", "participation": 0.5}, Layout((6,), None, 6, 6, 1)),
    ],
)
def test_the_layout_of_an_experiment_field_by_field(tables: dict[str, Any], expected: Layout) -> None:
    assert Layout.of(of(**tables)) == expected


@settings(deadline=None)
@given(
    st.integers(12, 40),
    st.sampled_from([("fixed", 0, 2), ("fixed", 0, 5), ("atoms", 2, 4), ("atoms", 3, 6), ("random", 0, 5)]),
    st.sampled_from(["whole", "survivors"]),
    st.sampled_from([1.0, 0.75]),
)
def test_clients_left_over_are_those_that_no_round_draws(
    clients: int, drawn: tuple[str, int, int], groups: str, participation: float
) -> None:
    name, atom, size = drawn
    clusters = {"schedule": name, "atom": atom, "size": size, "groups": groups, "cell": 13}
    if groups == "whole":
        del clusters["cell"]
    memory = {"memory": "training" if name in LASTING and groups == "whole" else "round"}
    e = of(clients=clients, participation=participation, clusters=clusters, privacy=memory)
    try:
        agreed = terms_of(e, placeholder_members(clients))
    except ConfigError:
        return  # too few clients for these clusters
    seen: set[int] = set()
    for number in range(40):
        cells = agreed.schedule.draw_cells(range(clients), bytes(32), number, agreed.cells, agreed.sample or None)
        seen.update(client for cell in cells for client in cell.clients)
    assert clients - len(seen) == e.left_over


@pytest.mark.parametrize(("clients", "bound"), [(1, 2**31 - 1), (2, 2**30 - 1), (7, 306_783_378)])
def test_counts_of_clipped_coordinates_add_up_to_less_than_half_the_ring(clients: int, bound: int) -> None:
    assert layout.segments_of(2**31 - 1, 1.0, clients)[1].bound == bound
    assert bound * clients < 2**31 <= (bound + 1) * clients


@pytest.mark.parametrize(
    ("problem", "section"),
    [
        *((f"the {word} is wrong", "privacy") for word in ("threshold", "colluders", "policy", "clip", "anonymity")),
        ("the sum could wrap", "privacy"),
        ("too little noise", "privacy"),
        ("12 clients are too few for one group of 13", "clusters"),
    ],
)
def test_a_problem_is_looked_for_in_its_table(problem: str, section: str) -> None:
    assert layout._section(problem) == section


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ({"clusters": {"size": 13}}, "clusters: 12 clients are too few for one group of 13"),
        ({"clusters": {"size": 4, "atom": 2}}, "clusters: "),
        (
            {"clusters": {"size": 4, "groups": "survivors"}, "privacy": {**ROUND, "threshold": 99}},
            "privacy: ",
        ),
    ],
)
def test_terms_that_nobody_could_keep_are_refused(tables: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Layout.of(of(**tables))
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize(
    ("tables", "memory"),
    [
        ({"clusters": {"size": 4}}, "training"),
        ({"clusters": {"size": 4}, "privacy": ROUND}, "round"),
        ({"clusters": {"size": 4, "groups": "survivors"}}, "round"),
        ({"clusters": {"size": 6, "schedule": "atoms", "atom": 3, "groups": "survivors"}}, "training"),
        ({"clusters": {"size": 6, "schedule": "atoms", "atom": 3, "groups": "survivors"}, "privacy": ROUND}, "round"),
        ({"method": "fedavg", "clusters": {"schedule": "atoms", "groups": "survivors"}}, "round"),
    ],
)
def test_sums_of_earlier_rounds_count_where_groups_last(tables: dict[str, Any], memory: str) -> None:
    assert policy(of(**tables)).memory == memory


def test_a_report_even_if_exposed_is_no_enforced_policy() -> None:
    privacy = {"min_survivors": 4, "anonymity": 5, "max_leverage": 0.3}
    for audit_mode, mode in (("enforce", "enforce"), ("report-even-if-exposed", "report-even-if-exposed")):
        found = policy(of(privacy={**privacy, "audit": audit_mode}))
        assert found == Policy(**privacy, mode=mode, memory="training")


def test_members_to_inspect_terms_with_have_no_key_that_anybody_holds() -> None:
    found = placeholder_members(3)
    assert [member.id for member in found] == [0, 1, 2]
    assert [member.identity for member in found] == [hashlib.sha256(b"fl/nobody:%d" % c).digest() for c in range(3)]


def test_entropy_of_a_simulation_follows_from_the_seed_and_never_repeats() -> None:
    one, two, other = (layout._simulated_entropy(seed) for seed in (5, 5, 6))
    first, second = one(32), one(32)
    assert (two(32), two(32)) == (first, second)
    assert len({first, second, other(32)}) == 3
    assert len(one(7)) == 7
    assert first == hashlib.shake_256(b"fl/simulated-entropy/v2:5:0").digest(32)
    assert layout.sampling_seed(5) == hashlib.sha256(b"fl/sampling-seed/v2:5").digest()


@pytest.mark.parametrize("most", [0.3, 0.5, 0.75])
@pytest.mark.parametrize("size", [4, 7])
def test_the_largest_ratio_that_fits_a_group(most: float, size: int) -> None:
    """With one weight r among ones, the leverage of its client is r^2 / (r^2 + size - 1)."""
    ratio = fitting_ratio(of(privacy={"max_leverage": most}), size)
    assert ratio**2 / (ratio**2 + size - 1) <= most
    more = ratio + 0.01
    assert more**2 / (more**2 + size - 1) > most
    assert fitting_ratio(of(privacy={"max_leverage": 1.0}), size) == math.inf


def test_weights_that_do_not_fit_are_refused_with_a_hint_and_equal_ones_without() -> None:
    strict = of(clusters={"size": 4}, privacy={"max_leverage": 0.3, "anonymity": 4})
    with pytest.raises(ConfigError, match=r"^privacy: .*; with privacy\.weight_ratio = 1\.13 any weights fit one gr"):
        simulated_agreement(strict, [1] * 11 + [9], 5)
    simulated_agreement(strict, [1] * 12, 5)
    with pytest.raises(ConfigError, match=r"^privacy: ") as caught:
        simulated_agreement(of(clusters={"size": 4}, privacy={"max_leverage": 0.2}), [1] * 12, 5)
    assert "weight_ratio" not in str(caught.value)


def test_a_simulated_agreement_has_the_weights_and_keys_of_its_members() -> None:
    agreement, identities = simulated_agreement(of(clusters={"size": 4}, clients=8), [3, 3, 3, 3, 4, 3, 3, 3], 6)
    assert [member.weight for member in agreement.terms.members] == [3, 3, 3, 3, 4, 3, 3, 3]
    assert {member.id: member.identity for member in agreement.terms.members} == {
        c: identity.public for c, identity in identities.items()
    }
    assert agreement.terms.segments[0].shape == (6,)


@pytest.mark.parametrize(
    ("tables", "wanted"),
    [
        ({"clusters": {"size": 3}}, 0),
        ({"clusters": {"size": 2}}, 3),
        ({"clusters": {"size": 4}, "privacy": {"anonymity": 5}}, 5),
        ({"clusters": {"size": 4}, "privacy": {"min_survivors": 6}}, 6),
        ({"clusters": {"size": 6}, "privacy": {"min_survivors": 6}}, 0),
        ({"clusters": {"size": 2}, "privacy": {"audit": "report-even-if-exposed"}}, 0),
        ({"clusters": {"size": 2}, "method": "fedavg"}, 0),
    ],
)
def test_clusters_are_as_large_as_the_policy_asks(tables: dict[str, Any], wanted: int) -> None:
    chosen = of(**tables)
    if not wanted:
        check_size(chosen)
        return
    with pytest.raises(ConfigError) as caught:
        check_size(chosen)
    assert str(caught.value) == (
        f"clusters.size: {chosen.clusters.size} clients cannot hide among {wanted} (privacy.anonymity and "
        f"min_survivors); use clusters of at least {wanted}"
    )


OFFER = "schedule = 'atoms' with atom = 3 and size = 6 allows any number; `share plan` compares them"
NEW = (
    "privacy.memory: random clusters are new in every round, so the sums of several rounds together can expose a "
    'client whose update hardly changes; use clusters.schedule = "fixed" or "atoms", or set privacy.memory = "round" '
    "to protect each round alone"
)
DROPOUTS = (
    "privacy.memory: a cluster of survivors changes with its dropouts, so the sums of two rounds can differ by one "
    'client; use clusters.groups = "whole" or clusters.schedule = "atoms", or set privacy.memory = "round" to protect '
    "each round alone"
)
EIGHT: dict[str, Any] = {"size": 3, "groupings": 8, "schedule": "random"}
EXPOSING: list[tuple[dict[str, Any], str]] = [
    ({"clusters": {"size": 3}}, ""),
    ({"clusters": EIGHT, "privacy": {**ROUND, "audit": "report-even-if-exposed"}}, ""),
    ({"method": "no-share"}, ""),
    ({"clusters": {"size": 4, "schedule": "random"}}, NEW),
    ({"clusters": {"size": 4, "groups": "survivors"}}, DROPOUTS),
    ({"clusters": {"size": 4, "groups": "survivors"}, "method": "fedavg"}, ""),
    ({"clusters": {"size": 4, "schedule": "random"}, "privacy": ROUND}, ""),
    ({"clusters": {"size": 6, "groups": "survivors", "schedule": "atoms", "atom": 3}}, ""),
    (
        {"clusters": EIGHT, "privacy": ROUND},
        "clusters.groupings: 8 random groupings in clusters of 3 would expose 12 of 12 clients, so only 5 of 32 sums "
        "could be opened; schedule = 'random' allows groupings = 1; schedule = 'transversal' allows groupings = 1; "
        + OFFER,
    ),
    (
        {"clusters": {"size": 3}, "privacy": {"max_leverage": 0.2}},
        "clusters.groupings: 1 fixed groupings in clusters of 3 would break anonymity 3 or max_leverage, so only 0 of "
        f"4 sums could be opened; {OFFER}",
    ),
    (
        {"clients": 11, "clusters": {"size": 3}, "privacy": {"max_leverage": 0.2}},
        "clusters.groupings: 1 fixed groupings in clusters of 3 would break anonymity 3 or max_leverage, so only 0 of "
        "3 sums could be opened; `share plan` compares them",
    ),
    (
        {"clients": 7, "clusters": {"size": 3}, "privacy": {"max_leverage": 0.2, "anonymity": 2}},
        "clusters.groupings: 1 fixed groupings in clusters of 3 would break anonymity 2 or max_leverage, so only 0 of "
        "2 sums could be opened; `share plan` compares them",
    ),
    (
        {"clients": 8, "clusters": {"size": 4}, "privacy": {"max_leverage": 0.2, "anonymity": 2}},
        "clusters.groupings: 1 fixed groupings in clusters of 4 would break anonymity 2 or max_leverage, so only 0 of "
        "2 sums could be opened; schedule = 'atoms' with atom = 2 and size = 4 allows any number; `share plan` "
        "compares them",
    ),
]


@pytest.mark.parametrize(("tables", "told"), EXPOSING)
def test_clusters_that_would_expose_somebody_are_refused_with_what_would_not(tables: dict[str, Any], told: str) -> None:
    chosen = of(**tables)
    if not told:
        check_exposure(chosen, Layout.of(chosen))
        return
    with pytest.raises(ConfigError) as caught:
        check_exposure(chosen, Layout.of(chosen))
    assert str(caught.value) == told


def test_at_most_ten_groupings_are_tried() -> None:
    """Atoms allow any number; of transversal groupings in clusters of 5 there are five."""
    chosen = of(clients=25, privacy=ROUND)
    assert layout._safe_groupings(24, Schedule(name="atoms", size=6, atom=3), chosen) == 10
    assert layout._safe_groupings(4, Schedule(name="random", size=4), chosen) == 1  # all others would be the same
    assert layout._safe_groupings(25, Schedule(name="transversal", size=5), chosen) == max(
        count
        for count in range(1, 6)
        if not preview(
            25,
            Schedule(name="transversal", size=5, groupings=count),
            policy(chosen),
            groups="whole",
            seed=chosen.seed,
        )[1].closed
    )


def test_no_more_groupings_are_offered_than_a_schedule_can_have() -> None:
    """A transversal has as many as a group has clients, and as many as there are groups; all of them may be safe."""
    chosen = of(clients=20, privacy={**ROUND, "anonymity": 2, "max_leverage": 0.9})
    found = {size: layout._safe_groupings(20, Schedule(name="transversal", size=size), chosen) for size in (3, 4, 5, 6)}
    assert found == {3: 3, 4: 4, 5: 4, 6: 3}
    nine = {"size": 4, "groupings": 9, "schedule": "random"}
    exposing = of(clients=20, clusters=nine, privacy={**ROUND, "anonymity": 2, "max_leverage": 0.9})
    with pytest.raises(ConfigError, match=r"schedule = 'transversal' allows groupings = 4; "):
        check_exposure(exposing, Layout.of(exposing))


RULES = Policy(min_survivors=2, anonymity=3, memory="round")
PAIRED = Schedule(name="fixed", size=4)


def test_a_preview_shows_what_would_be_opened_of_whole_groups_and_of_survivors() -> None:
    (drawn,) = PAIRED.draw_cells(range(12), layout.sampling_seed(0), 2, (12,))
    ((first, *others),) = drawn.groupings
    gone = (first[0],)
    opened, verdict = preview(12, PAIRED, RULES, groups="whole", seed=0, round=2, dropouts=gone)
    assert opened == [others]
    assert len(verdict.opened) == 2
    opened, verdict = preview(12, PAIRED, RULES, groups="survivors", seed=0, round=2, dropouts=gone)
    assert [set(group) for group in opened[0]] == [set(first[1:]), *map(set, others)]
    assert len(verdict.opened) == 3
    opened, verdict = preview(12, PAIRED, RULES, groups="survivors", seed=0, round=2, dropouts=first[:2])
    assert [set(group) for group in opened[0]] == [set(group) for group in others]  # two are too few to hide among
    mixed = Schedule(name="random", size=4)
    first_round, second_round = (preview(12, mixed, RULES, groups="whole", seed=0, round=round) for round in (0, 1))
    assert preview(12, mixed, RULES, groups="whole", seed=0) == first_round != second_round


def test_atoms_of_survivors_stay_whole_only_if_the_policy_is_enforced() -> None:
    atoms = Schedule(name="atoms", size=6, atom=3)
    (drawn,) = atoms.draw_cells(range(12), layout.sampling_seed(0), 0, (12,))
    gone = (drawn.atoms[0][0],)
    kept, _ = preview(12, atoms, RULES, groups="survivors", seed=0, dropouts=gone)
    assert all(set(drawn.atoms[0]).isdisjoint(group) for group in kept[0])
    report = Policy(min_survivors=2, anonymity=3, memory="round", mode="report-even-if-exposed")
    shown, _ = preview(12, atoms, report, groups="survivors", seed=0, dropouts=gone)
    assert any(set(drawn.atoms[0][1:]) <= set(group) for group in shown[0])


@pytest.mark.parametrize(
    ("groups", "rules", "weights"),
    [
        ([(0, 1, 2), (3, 4, 5, 6)], RULES, None),
        ([(0, 1, 2), (3, 4, 5, 6)], Policy(min_survivors=3, anonymity=2, memory="round"), None),
        ([(0, 1, 2)], Policy(min_survivors=2, anonymity=3, max_leverage=1 / 3, memory="round"), None),
        ([(0, 1, 2)], Policy(min_survivors=2, anonymity=3, memory="round", mode="report-even-if-exposed"), None),
        ([(0, 1, 2)], RULES, {0: 3, 1: 4, 2: 5}),  # 25 / 50 is exactly the largest leverage
    ],
)
def test_disjoint_groups_at_the_limit_are_opened_without_an_audit(
    groups: list[tuple[int, ...]], rules: Policy, weights: dict[int, int] | None
) -> None:
    quick = layout._disjoint(groups, rules, weights)
    assert quick is not None
    clients = {client for group in groups for client in group}
    judged = audit([tuple(groups)], clients, rules, weights=weights, plan_hash=b"")
    for name in ("policy", "opened", "closed", "objections", "exposed", "would_expose", "clients", "rank", "sentences"):
        assert getattr(quick, name) == getattr(judged, name), name
    assert quick.leverage == pytest.approx(judged.leverage)
    assert (quick.anonymity.lower, quick.anonymity.upper) == (judged.anonymity.lower, judged.anonymity.upper)


@pytest.mark.parametrize(
    ("groups", "rules", "weights"),
    [
        ([(0, 1), (3, 4, 5)], RULES, None),
        ([(0, 1, 2)], Policy(min_survivors=4, anonymity=3, memory="round"), None),
        ([(0, 1, 2)], Policy(min_survivors=2, anonymity=3, max_leverage=0.33, memory="round"), None),
        ([(0, 1, 2)], RULES, {0: 3, 1: 4, 2: 6}),
    ],
)
def test_one_group_below_the_limit_needs_the_audit(
    groups: list[tuple[int, ...]], rules: Policy, weights: dict[int, int] | None
) -> None:
    assert layout._disjoint(groups, rules, weights) is None
    drawn = Drawn(groupings=(tuple(groups),))
    assert verdict_of(drawn, [groups], rules, weights).closed


def test_empty_groupings_reveal_nothing_and_the_proof_of_columns_needs_all_groups() -> None:
    schedule = Schedule(name="transversal", size=4, groupings=2)
    (drawn,) = schedule.draw_cells(range(16), layout.sampling_seed(0), 0, (16,))
    whole = verdict_of(drawn, drawn.groupings, RULES)
    assert len(whole.opened) == 8
    assert not whole.closed
    part = verdict_of(drawn, [drawn.groupings[0][1:], ()], RULES)
    assert (part.opened, part.clients) == ({(0, 0), (0, 1), (0, 2)}, 12)
    some = verdict_of(drawn, [drawn.groupings[0], drawn.groupings[1][1:]], RULES)
    judged = audit(
        (drawn.groupings[0], drawn.groupings[1][1:]), set(range(16)), RULES, plan_hash=b"", atoms=drawn.atoms
    )
    assert (some.opened, some.closed) == (judged.opened, judged.closed)
    assert str(some.anonymity) == str(judged.anonymity)

"""Limits of agreements at their last permitted value, and what people read about them."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from secagg import AgreementRefused, Identity, Policy, UsageError, WireError
from secagg.agreement import Member, Terms, graph, summarise
from secagg.agreement.audit import MOST_PLACES, audit_training
from secagg.agreement.cells import colluders_in_cell
from secagg.agreement.collusion import alone_in_grouping
from secagg.agreement.draft import is_draft
from secagg.agreement.file import MOST_BYTES, parse
from secagg.agreement.origin import PULSE, Ceremony
from secagg.agreement.statistics import columns, describe, section
from secagg.agreement.statistics.columns import MOST_CELLS, MOST_NUMBER, Bins, Categories, Grid, Numbers
from secagg.agreement.statistics.kinds import Count
from secagg.agreement.statistics.section import Statistics
from secagg.agreement.table import Table
from secagg.codec import from_bytes, to_bytes
from secagg.crypto.pulse import Pulse
from secagg.simulation import make_agreement

KEY = Identity.from_private(bytes(32)).public
ROUND = Policy(memory="round")


def agreed(**more: Any) -> Any:
    return make_agreement(**({"members": 12, "size": 3, "length": 1, "clip": 1.0} | more))[0]


# --- members, names, bytes -----------------------------------------------------------------------------------------


def test_ids_and_weights_have_32_bits() -> None:
    assert Member(2**32 - 1, KEY, weight=2**32 - 1).weight == 2**32 - 1
    for wrong in ({"id": 2**32}, {"id": -1}, {"weight": 2**32}, {"weight": 0}):
        with pytest.raises(UsageError, match="32"):
            Member(**({"id": 0, "identity": KEY} | wrong))


def test_a_name_is_short_and_printable() -> None:
    def named(name: str) -> Terms:
        terms = agreed(members=3).terms
        members = (Member(0, terms.members[0].identity, name), *terms.members[1:])
        return Terms(name="x", members=members, segments=terms.segments, schedule=terms.schedule, last_round=0)

    assert named("a" * 200).members[0].name == "a" * 200
    for wrong in ("a" * 201, "a\n"):
        with pytest.raises(UsageError, match="at most 200 printable characters"):
            named(wrong)


def test_a_roll_call_is_one_byte_that_is_0_or_1() -> None:
    agreement, _ = make_agreement(members=4, size=4, length=1, bound=1, policy=ROUND)
    data = agreement.terms.to_bytes()
    called = Terms(**{**_fields(agreement.terms), "roll_call": True}).to_bytes()
    (place,) = [i for i, (a, b) in enumerate(zip(data, called, strict=True)) if a != b]
    assert (data[place], called[place]) == (0, 1)
    for wrong in (2, 3, 255):
        with pytest.raises(WireError, match="roll_call: expected 0 or 1"):
            Terms.from_bytes(data[:place] + bytes([wrong]) + data[place + 1 :])


def _fields(terms: Terms) -> dict[str, Any]:
    names = ("name", "members", "segments", "schedule", "last_round", "policy")
    return {name: getattr(terms, name) for name in names}


@pytest.mark.parametrize(("field", "most"), [("message", 2048), ("signature", 1024), ("key", 2048)])
def test_the_parts_of_a_pulse_have_these_sizes_at_most(field: str, most: int) -> None:
    parts = {"message": b"", "signature": b"", "key": b""}
    longest = Pulse(**(parts | {field: bytes(most)}))
    assert from_bytes(PULSE, to_bytes(PULSE, longest)) == longest
    data = to_bytes(PULSE, longest)
    place = data.index(most.to_bytes(4, "little"))
    longer = data[:place] + (most + 1).to_bytes(4, "little") + bytes(1) + data[place + 4 :]
    with pytest.raises(WireError):
        from_bytes(PULSE, longer)


def test_a_ceremony_keeps_its_own_parts() -> None:
    origin = agreed().origin
    again = Ceremony(list(origin.commitments), list(origin.reveals))
    assert again == origin
    assert hash(again) == hash(origin)
    with pytest.raises(UsageError, match="reveals"):
        Ceremony(origin.commitments, (1,))  # type: ignore[arg-type]


# --- what an agreement permits -------------------------------------------------------------------------------------


def test_whoever_is_surely_exposed_hides_among_one() -> None:
    called = agreed(members=4, size=4, rounds=3, roll_call=True, policy=ROUND)
    found = audit_training(called)
    assert (found.anonymity.lower, found.anonymity.upper, found.leverage) == (1, 1, 1.0)
    assert found.exposed == set(called.terms.ids)
    report = Policy(mode="report-even-if-exposed")
    drawn = audit_training(agreed(schedule="random", rounds=40, policy=report))
    assert (drawn.anonymity.lower, drawn.anonymity.upper, drawn.leverage) == (1, 1, 1.0)
    assert drawn.exposed == set(range(12))
    assert drawn.partial
    few = audit_training(agreed(schedule="random", rounds=15, policy=report))  # 60 groups: all are judged
    assert (few.rounds, few.partial, len(few.exposed)) == (15, False, 12)


@pytest.mark.parametrize("rounds", [2, 3])
def test_a_refusal_says_over_how_many_rounds(rounds: int) -> None:
    with pytest.raises(AgreementRefused, match=f"over {rounds} rounds together"):
        agreed(schedule="random", groupings=2, rounds=rounds)
    with pytest.raises(AgreementRefused, match="in one round"):
        agreed(schedule="random", groupings=9, rounds=1)


def test_more_rounds_than_can_be_judged_beforehand_are_refused_at_once() -> None:
    rounds = MOST_PLACES // (12 * 2)
    with pytest.raises(AgreementRefused, match=f"{rounds + 1} rounds of 2 new groupings of 12 members are too many"):
        agreed(schedule="random", size=6, groupings=2, rounds=rounds + 1, policy=ROUND)


def test_a_sample_has_no_more_members_than_there_are() -> None:
    assert agreed(sample=12).terms.drawn == agreed(sample=0).terms.drawn == 12
    for wrong in (13, 15):
        with pytest.raises(UsageError, match=r"sample: expected 0 \(all\) to 12 members"):
            agreed(sample=wrong)


def test_survivors_of_a_single_round_may_remember_all_rounds() -> None:
    agreement = agreed(members=9, schedule="random", groups="survivors", colluders=0)
    assert agreement.terms.policy.memory == "training"
    with pytest.raises(AgreementRefused, match="nothing is promised over rounds"):
        agreed(members=9, schedule="random", groups="survivors", colluders=0, rounds=2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"cell": 0},
        {"cell": 11},
        {"colluders": 11},
        {"colluders": -1},
        {"draws": 0},
    ],
)
def test_cells_that_cannot_be_are_refused(wrong: dict[str, int]) -> None:
    numbers = {"members": 10, "colluders": 3, "cell": 5, "draws": 1}
    with pytest.raises(UsageError, match="no cells of"):
        colluders_in_cell(**(numbers | wrong))
    assert colluders_in_cell(10, 10, 10, 1) == 10
    assert colluders_in_cell(10, 3, 1, 1) == 1


@pytest.mark.parametrize(("n", "size", "colluders"), [(4, 2, 2), (6, 2, 3), (6, 3, 2), (7, 3, 4)])
def test_who_is_alone_in_a_group_is_that_of_every_set_of_colluders(n: int, size: int, colluders: int) -> None:
    groups = [set(range(start, start + size)) for start in range(0, n - size + 1, size)]
    every = [set(some) for some in combinations(range(n), colluders)]
    bad = sum(any(len(group - some) == 1 for group in groups) for some in every)
    assert alone_in_grouping(n, colluders, size=size, groups=len(groups)) == bad / len(every)


def test_removing_more_clients_never_looks_safer() -> None:
    """Also beyond the number at which removed clients disconnect the others most often."""
    for n, k in ((20, 4), (50, 6), (51, 4)):
        found = [graph._disconnected(n, k, removed) for removed in range(n - 1)]
        assert found == sorted(found)


def test_the_summary_names_a_tenth_a_fifth_and_a_third_of_the_members() -> None:
    agreement = agreed(members=60, size=6)
    assert set(summarise(agreement).alone) >= {6, 12, 20}
    told = summarise(agreement).to_json()["alone"]
    assert [entry["colluders"] for entry in told] == sorted(summarise(agreement).alone)
    for entry in told:
        once, always = summarise(agreement).alone[entry["colluders"]]
        assert (entry["round"]["probability"], entry["training"]["exact"]) == (once.probability, always.exact)


# --- files ---------------------------------------------------------------------------------------------------------


def test_a_file_that_is_too_long_is_refused_before_it_is_read() -> None:
    with pytest.raises(UsageError, match=f"at most {MOST_BYTES} characters"):
        parse("#" * (MOST_BYTES + 1))


@pytest.mark.parametrize("document", [{}, {"members": []}, {"members": 5}, {"members": "abc"}, {"members": [1]}])
def test_what_has_no_members_is_no_draft(document: dict[str, Any]) -> None:
    assert is_draft(document) is False
    assert is_draft({"members": [{"name": "a"}]}) is True


def test_numbers_of_a_table_have_two_ends() -> None:
    table = Table({"low": 0, "high": 9, "over": 10, "under": -1}, "t", ("low", "high", "over", "under"))
    assert table.whole("low", most=9) == 0
    assert table.whole("high", most=9) == 9
    for name in ("over", "under"):
        with pytest.raises(UsageError, match=f"t.{name}: expected 0 to 9"):
            table.whole(name, most=9)


def test_a_choice_that_is_misspelt_is_told() -> None:
    with pytest.raises(UsageError, match="did you mean 'ceremony'"):
        Table({"from": "ceremny"}, "seed", ("from",)).choice("from", ("ceremony", "beacon"))
    with pytest.raises(UsageError, match=r"got 'xyz'$"):
        Table({"from": "xyz"}, "seed", ("from",)).choice("from", ("ceremony", "beacon"))


# --- statistics ----------------------------------------------------------------------------------------------------


def test_a_range_of_numbers_has_a_beginning_and_an_end() -> None:
    with pytest.raises(UsageError, match="expected low < high, got 3 and 3"):
        Numbers("x", 3, 3)
    assert Numbers("x", -MOST_NUMBER, MOST_NUMBER).high == MOST_NUMBER
    for low, high in ((0, 2 * MOST_NUMBER), (-2 * MOST_NUMBER, 0)):
        with pytest.raises(UsageError, match=r"-2\^100 to 2\^100"):
            Numbers("x", low, high)
        with pytest.raises(UsageError, match=r"-2\^100 to 2\^100"):
            Bins("x", (low, high))


def test_bins_have_edges_in_order_and_at_least_one() -> None:
    assert Bins.even("x", 0, 1, 1).edges == (0.0, 1.0)
    for wrong in (0, MOST_CELLS, True):
        with pytest.raises(UsageError, match="bins of column"):
            Bins.even("x", 0, 1, wrong)
    for edges in ((1.0,), (1.0, 1.0), (2.0, 1.0), tuple(map(float, range(MOST_CELLS + 1)))):
        with pytest.raises(UsageError, match="each larger than the one before"):
            Bins("x", edges)


def test_codes_are_places_among_the_labels() -> None:
    cells = Categories("sex", ("f", "m"))
    found = [cells.labels[code] for code in cells.codes(["m", None, "x", "f"])]
    assert found == ["m", columns.MISSING, columns.OTHER, "f"]


def test_whole_numbers_leave_no_slack_and_others_do() -> None:
    assert Grid(Numbers("age", 0, 120, step=1), 120).slack == 0
    assert Grid(Numbers("far", 2.0**51, 2.0**51 + 8, step=1), 8).slack == 0
    for other in (Numbers("cents", 0, 1.2, step=0.01), Numbers("far", 0, 2.0**53, step=2.0**52)):
        grid = Grid(other, other.steps or 0)
        assert grid.slack == grid.fuzz > 0


@pytest.mark.parametrize(("low", "step"), [(0, 1), (1, 2), (-6, 3), (0, 0.5), (0.25, 0.01)])
def test_a_multiple_of_the_step_is_not_rounded_and_anything_else_is(low: float, step: float) -> None:
    grid = Grid(Numbers("x", low, low + 10 * step, step=step), 10)
    exact = np.array([float(grid.value(code)) for code in range(11)])
    codes, clipped, rounded = grid.codes(exact)
    assert codes.tolist() == list(range(11))
    assert not clipped.any()
    assert not rounded.any()
    codes, clipped, rounded = grid.codes(exact[:-1] + step / 4)
    assert codes.tolist() == list(range(10))
    assert rounded.all()
    assert grid.codes(np.array([low - step, low + 11 * step]))[1].all()


def test_eight_categories_are_shown_and_of_more_the_first_eight() -> None:
    eight = tuple("abcdefgh")
    assert describe._column(Categories("x", eight)) == "'x' (categories a, b, c, d, e, f, g, h)"
    assert describe._column(Categories("x", (*eight, "i"))) == "'x' (categories a, b, c, d, e, f, g, h, ...)"


def test_what_a_statistic_does_not_have_is_zero_in_its_bytes() -> None:
    """So a file from which it was not read cannot bring another meaning (docs/protocol-whole.md)."""
    asked = Statistics(most_rows=5, asked=(Count(name="n", of=None),))
    (flat,) = section._flat(asked)["asked"]
    assert not any(flat[name] for name in ("suppress", "limbs", "intercept", "probabilities"))


def test_a_statistic_without_a_number_of_sites_asks_for_none() -> None:
    found = section._read({"most_rows": 5, "n": {"kind": "count"}})
    assert (found.min_sites, found.asked[0].min_sites) == (0, 0)
    with pytest.raises(UsageError, match=r"statistics.t.rows: expected a table with column, but the key is missing"):
        section._read({"most_rows": 5, "t": {"kind": "contingency"}})


def test_a_policy_that_only_reports_opens_sums_of_one_site() -> None:
    asked = Statistics(most_rows=5, min_sites=2, asked=(Count(name="n", of=None),))
    report = Policy(mode="report-even-if-exposed")
    with pytest.raises(AgreementRefused, match="the policy opens sums of 1"):
        make_agreement(members=6, size=3, statistics=asked, policy=report)

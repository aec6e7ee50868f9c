"""What exceeds a budget, and what openings cost, in words and for programs."""

from functools import partial
from typing import Any

import pytest

from secagg import Budget, UsageError
from secagg.agreement import Noise, Terms, all_rounds, most_per_round, round_figures, worst_round
from secagg.agreement.cost import Figures, check_budget, describe, over_budget, to_json
from secagg.crypto import Segment, SegmentNoise
from secagg.privacy.budget import Charge
from tests.secagg.agreement.common import plain_terms

SEGMENTS = (Segment(name="a", shape=(3,), bound=50), Segment(name="b", shape=(2,), bound=9))
NOISE = Noise(segments=(SegmentNoise(clip=4, sigma=1), SegmentNoise(clip=3, sigma=2)), colluders=2)


def noisy(**more: Any) -> Terms:
    given: dict[str, Any] = {"members": 6, "size": 6, "segments": SEGMENTS, "noise": NOISE}
    return plain_terms(**given | more)


def test_what_is_no_agreement_has_no_cost() -> None:
    wrong: Any = 5
    functions: tuple[Any, ...] = (partial(round_figures, round=0, client=0), worst_round, all_rounds)
    for function in functions:
        with pytest.raises(UsageError, match=r"^training: expected an agreement, got int$"):
            function(wrong)
    with pytest.raises(UsageError, match=r"^terms: expected Terms, got int$"):
        most_per_round(wrong)


def test_a_budget_is_for_an_agreement_with_noise() -> None:
    check_budget(noisy(), Budget(1.0, 1e-5))
    check_budget(plain_terms(), None)
    with pytest.raises(UsageError, match=r"^budget: the agreement has no noise, so nothing bounds what its sums say"):
        check_budget(plain_terms(), Budget(1.0, 1e-5))
    with pytest.raises(UsageError, match=r"^budget: expected Budget, got float$"):
        check_budget(noisy(), 1.0)


def test_what_exceeds_a_budget_is_told_with_the_rounds_and_the_sigma_that_fit() -> None:
    """A round costs a hundredth of what is left, so 100 rounds fit, and 400 need noise of twice the sigma."""
    budget = Budget(1.0, 1e-5)
    noise = Noise(segments=(SegmentNoise(clip=4, sigma=10), SegmentNoise(clip=3, sigma=25)), colluders=1)

    def told(rounds: int, each: int, spent: int = 0) -> str:
        terms = noisy(noise=noise, rounds=rounds)
        return over_budget(terms, Charge(each), budget, Charge(spent))

    limit = budget.limit.rho
    each = limit // 100
    assert told(100, each) == ""
    epsilon = Charge(400 * each).epsilon(1e-5)
    assert told(400, each) == (
        f"its 400 rounds cost epsilon {epsilon:.3g} at delta 1e-05, my budget is 1; "
        "100 rounds or sigma = 20, 50 with 400 rounds would fit"
    )
    spent = limit - each
    epsilon = Charge(spent + 2 * each).epsilon(1e-5)
    gone = Charge(spent).epsilon(1e-5)
    assert told(2, each, spent) == (
        f"its 2 rounds cost epsilon {epsilon:.3g} at delta 1e-05, my budget is 1 ({gone:.3g} is spent); "
        "1 round or sigma = 15, 36 with 2 rounds would fit"
    )
    epsilon = Charge(4 * limit).epsilon(1e-5)
    assert told(1, 4 * limit) == (
        f"its 1 round cost epsilon {epsilon:.3g} at delta 1e-05, my budget is 1; sigma = 21, 51 with 1 round would fit"
    )
    for used in (limit, 2 * limit):
        epsilon, gone = (Charge(one).epsilon(1e-5) for one in (used + each, used))
        assert told(1, each, used) == (
            f"its 1 round cost epsilon {epsilon:.3g} at delta 1e-05, my budget is 1 ({gone:.3g} is spent); "
            "nothing is left"
        )


def test_a_round_that_only_the_grid_makes_dear_is_told_too() -> None:
    budget = Budget(1.0, 1e-5)
    text = over_budget(noisy(rounds=3), Charge(0, budget.limit.eta), budget, Charge())
    assert text.endswith("; 3 rounds or sigma = 1, 1 with 3 rounds would fit")


def test_of_many_segments_the_first_eight_are_told() -> None:
    segments = tuple(Segment(name=str(k), shape=(1,), bound=9) for k in range(9))
    noise = Noise(segments=tuple(SegmentNoise(clip=1, sigma=10 * k + 10) for k in range(9)))
    budget = Budget(1.0, 1e-5)
    text = over_budget(noisy(segments=segments, noise=noise), Charge(4 * budget.limit.rho), budget, Charge())
    assert "; sigma = 21, 41, 61, 81, 101, 121, 141, 161 with 1 round would fit" in text


def test_the_three_figures_in_words_and_for_programs() -> None:
    found = Figures(Charge(2**34), Charge(2**36), Charge(2**40))
    everybody, assumed, local = found.epsilons(1e-6)
    for colluders, who in (
        (0, "0 clients collude or add"),
        (1, "1 client colludes or adds"),
        (2, "2 clients collude or add"),
    ):
        assert describe(found, Noise(segments=NOISE.segments, colluders=colluders), 1e-6) == (
            f"epsilon {assumed:.3g} if {who} no noise; {everybody:.3g} if everybody adds noise; {local:.3g} by the own "
            "noise alone (delta 1e-06)"
        )
    assert to_json(found, 1e-6) == {"everybody": everybody, "assumed": assumed, "local": local, "delta": 1e-6}

"""The paper's theorems on convergence, as far as a test can say something about them, and why reclustering helps."""

import tomllib
from fractions import Fraction
from math import comb, exp
from pathlib import Path

import pytest

import fl
from robust import tolerance
from tests.paper import formulas

CONSTANTS = [1.0, 1e3, 1e6, 1e9]  # that O may hide


@pytest.mark.parametrize("constant", CONSTANTS)
def test_theorem_1_holds_for_small_steps_whatever_is_trained(constant: float) -> None:
    """It says that there are step sizes. Its bound grows without limit as eta falls, and the model stays where it is.

    So for every constant and every gradient at the start there is an eta whose bound is above it: no training can
    contradict the theorem, unless gradients have no noise.
    """
    known = {"L": 1.0, "F": 1.0, "G": 1.0, "B": 1.0, "V2": 0.0, "T": 200, "K": 2, "n": 60, "rest": 0.0}
    bounds = [formulas.paper_theorem_1(sigma=0.01, eta=10.0**-power, **known) for power in range(20)]
    assert bounds == sorted(bounds)
    assert bounds[-1] / constant > 1e6
    quiet = [formulas.paper_theorem_1(sigma=0.0, eta=10.0**-power, **known) for power in range(20)]
    assert len(set(quiet)) == 1, "without noise it is a statement"


class Hill:
    """F(x) = 1 - exp(-x^2/2) in one dimension, for all clients and the server.

    0 <= F < 1, F'' is between -0.45 and 1, so L = 1 and V_3 = 1 for the loss and for its gradient. Clients are equal
    and exact: G = 0, B = 1, and sigma, sigma_g and V_1 are 0.
    """

    K, eta_l, epsilon, clients = 2, 0.1, 0.2, 3

    def loss(self, x: float) -> float:
        return 1 - exp(-x * x / 2)

    def gradient(self, x: float) -> float:
        return x * exp(-x * x / 2)

    def update(self, x: float) -> float:
        """What an honest client sends: K local steps, times its share n_i/n of the data."""
        end = x
        for _ in range(self.K):
            end -= self.eta_l * self.gradient(end)
        return (end - x) / self.clients

    def passes(self, update: float, x: float, eta: float, rho: float) -> bool:
        """Algorithm 2: the score of a cluster, here of one client, is at least -eta epsilon."""
        return -eta * self.gradient(x) * update - rho * update**2 >= -eta * self.epsilon

    def step(self, x: float, sent: list[float], eta: float, rho: float) -> float:
        return x + eta * sum(update for update in sent if self.passes(update, x, eta, rho))


@pytest.mark.parametrize("byzantine", [0, 1])
@pytest.mark.parametrize("constant", CONSTANTS)
def test_theorem_2_does_not_hold_with_any_constant(constant: float, byzantine: int) -> None:
    """With its rho, honest updates fail the test for small eta: the model never moves, and the bound goes to 0.

    One client that sends 0 passes. So that a cluster is chosen in every round, as the proof says, does not help.
    """
    hill, x, alpha = Hill(), 1.0, 1.0
    floor = constant * (1.0 + hill.epsilon)  # V_3 and epsilon; all else inside O is 0
    eta = min(1e-4, (0.1 / floor) ** 2)
    rho = formulas.paper_least_rho(alpha=alpha, eta=eta, K=hill.K, eta_l=hill.eta_l, B=1.0)
    assert eta <= 1 / 2
    assert hill.eta_l**2 <= 1 / (2 * hill.K * (hill.K - 1))
    sent = [hill.update(x)] * (hill.clients - byzantine) + [0.0] * byzantine
    assert [hill.passes(update, x, eta, rho) for update in sent].count(True) == byzantine
    assert hill.step(x, sent, eta, rho) == x, "and so in every later round"
    mean_square = hill.gradient(x) ** 2
    rounds = int(100 / eta)
    bound = formulas.paper_theorem_2(D=hill.loss(x), alpha=alpha, eta=eta, T=rounds, floor=floor)
    assert bound < 0.3 < 0.36 < mean_square
    for larger in (10 * rho, 1e6 * rho):
        assert hill.step(x, sent, eta, larger) == x, "the theorem allows every larger rho"


def test_the_papers_zeno_moves_where_its_theorem_does_not_apply() -> None:
    """The same clients with the rho and eta of the experiments: every honest update passes."""
    hill, x = Hill(), 1.0
    assert hill.passes(hill.update(x), x, 1.0, 1e-4)
    assert hill.step(x, [hill.update(x)] * 3, 1.0, 1e-4) < x


def test_no_experiment_has_the_rho_that_theorem_2_asks_for() -> None:
    """rho is above eta in the theorem, for all other constants, and far below it in every experiment with Zeno."""
    found = 0
    for path in sorted((Path(fl.__file__).parent / "experiments").glob("*.toml")):
        values = tomllib.loads(path.read_text())
        options = values.get("aggregation", {})
        if options.get("rule") == "zeno":
            eta, rho = values.get("server_lr", 1.0), options["options"]["rho"]
            least = formulas.paper_least_rho(alpha=0.0, eta=eta, K=2, eta_l=0.01, B=1.0)
            assert rho == pytest.approx(1e-4), path.name
            assert rho < least == eta
            found += 1
    assert found >= 4


def test_without_clusters_and_adversaries_the_terms_of_clustering_are_those_of_sampling_clients() -> None:
    """The remark after theorem 2: R = 1, m = 1, q = 0 gives the known term, which is 0 if all n updates are used."""
    for n in (10, 60):
        assert formulas.paper_resampling_variance(n, n, 1) == 0
        for taken in range(1, n):
            assert formulas.paper_resampling_variance(n, taken, 1) == Fraction(n - taken, taken * (n - 1))


PANELS = {"a": (60, 6, 10, 0.0200), "b": (60, 30, 4, 0.3704), "c": (100, 6, 25, 0.4037)}


@pytest.mark.parametrize("panel", PANELS)
def test_why_one_clustering_is_enough_in_panel_a_and_not_in_b_and_c(panel: str) -> None:
    """How often no cluster is without a Byzantine client: 2% of the rounds in (a), 37% in (b), 40% in (c).

    Such a round brings nothing, whatever the rule. With ten clusterings it happens in at most 0.012% of the rounds.
    """
    n, q, m, none = PANELS[panel]
    clean = tolerance.clean_clusters(n, q, m)
    assert float(clean[0]) == pytest.approx(none, abs=5e-5)
    assert sum(k * p for k, p in enumerate(clean)) == Fraction(n // m * comb(n - q, m), comb(n, m))
    assert 1 - tolerance.probability_any(1 - clean[0], 10) == clean[0] ** 10 < Fraction(12, 10**5)
    assert (clean[0] < Fraction(1, 20)) == (panel == "a")

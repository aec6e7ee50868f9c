"""Whole runs on one machine: real cryptography, no network. For tests, simulations and first trials.

    >>> from secagg.simulation import secure_sum
    >>> secure_sum([[1, 2], [3, 4], [5, 6], [7, 8]], drop=[3])
    array([ 9, 12])

`make_agreement` makes an agreement of simulated members. `run` runs a round of it, and `clear` gives the same result
without cryptography; `WholeRun` and `clear_whole` do so for whole groups. The names are imported here, and not on first
use, because `run` and `secure_sum` are also the names of modules: `from secagg.simulation import run` always gives the
function.
"""

from typing import TYPE_CHECKING, Any

from secagg.kernels.threads import cores
from secagg.simulation.agree import agree_on, make_agreement
from secagg.simulation.clients import Tamper
from secagg.simulation.cost import Cost
from secagg.simulation.misbehaviour import Misbehaviour
from secagg.simulation.run import clear, make_identities, make_roster, run
from secagg.simulation.secure_sum import secure_mean, secure_sum
from secagg.simulation.whole import WholeRun, clear_whole, run_whole

if TYPE_CHECKING:
    from secagg.simulation.statistics import simulate_statistics

__all__ = ["Cost", "Misbehaviour", "Tamper", "clear", "cores", "make_identities", "make_roster", "run"]
__all__ += ["WholeRun", "agree_on", "clear_whole", "make_agreement", "run_whole", "secure_mean", "secure_sum"]
__all__ += ["simulate_statistics"]


def __getattr__(name: str) -> Any:
    """`simulate_statistics` is imported on first use, so that `import secagg` stays fast."""
    if name == "simulate_statistics":
        from secagg.simulation.statistics import simulate_statistics

        return simulate_statistics
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

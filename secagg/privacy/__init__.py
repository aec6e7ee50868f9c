"""What opened sums of noisy vectors cost in privacy: leverage among colluders, the grid, conversion, a budget.

Pure arithmetic: `secagg.agreement` says what is opened, clients charge it. docs/differential-privacy.md has the promise
and the proof.
"""

from secagg.privacy.budget import Budget, Charge
from secagg.privacy.conversion import epsilon, rho_within
from secagg.privacy.leverage import leverage
from secagg.privacy.smoothing import Kernel, excess, kernel, smoothing

__all__ = ["Budget", "Charge", "Kernel", "epsilon", "excess", "kernel", "leverage", "rho_within", "smoothing"]

"""What group sums reveal about single clients, and which of them may be opened.

    >>> from secagg.exposure import Policy, Schedule, audit
    >>> schedule = Schedule(name="random", size=6, groupings=2)
    >>> groupings = schedule.draw(range(12), bytes(32), round=0)
    >>> audit(groupings, range(12), Policy(), plan_hash=b"").exposed
    frozenset()

`Schedule` draws the groupings, `audit` decides under a `Policy`, and `SeedCeremony` or `Beacon` gives the
training seed. `docs/exposure.md` has the theory. The names are imported here, and not on first use, because
`audit` is also the name of a module: `from secagg.exposure import audit` always gives the function.
"""

from secagg.exposure.audit import (
    ENFORCE,
    MEMORIES,
    REPORT_EVEN_IF_EXPOSED,
    Anonymity,
    Policy,
    Revealed,
    Verdict,
    audit,
    revealed,
)
from secagg.exposure.schedules import SCHEDULES, Drawn, Schedule, components, keep_whole_atoms, shuffled
from secagg.exposure.seed import Beacon, NotCommitted, NotRevealed, SeedCeremony, SeedRefused, WronglyRevealed

__all__ = ["ENFORCE", "MEMORIES", "REPORT_EVEN_IF_EXPOSED", "Anonymity", "Policy", "Revealed", "Verdict", "audit"]
__all__ += ["revealed"]
__all__ += ["SCHEDULES", "Drawn", "Schedule", "components", "keep_whole_atoms", "shuffled"]
__all__ += ["Beacon", "NotCommitted", "NotRevealed", "SeedCeremony", "SeedRefused", "WronglyRevealed"]

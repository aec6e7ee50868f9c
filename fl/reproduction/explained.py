"""What was found out about curves that differ from the published ones by more than 2 points in some round.

Each entry says what was tried and what it showed. A curve that is far off and has no entry is named as unexplained.
"""

from typing import Final

_JUMPS = "without a defence both runs jump: the published curve moves by up to {points} points from round to round"

EXPLAINED: Final[dict[str, str]] = {
    "foe-q3-no-defence": _JUMPS.format(points=16),
}

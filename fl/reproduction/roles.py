"""The part that a curve plays in its panel. It decides the colour, which is the same in all panels."""

from __future__ import annotations

from typing import Final

from fl.reproduction.panels import Curve

SAFE: Final = ("c1", "fixed whole clusters, which expose nobody")
MAIN: Final = "SHARE: the main curve of the panel"
ROLES: Final = {  # the end of a curve's name: (CSS class of its colour, what it is)
    "safe": SAFE,
    "fixed5": SAFE,
    "no-defence": ("c2", "no defence: one sum of all clients"),
    "no-attack": ("c3", "no attack"),
    "m5": ("c4", "clusters of 5 or 5 reclusterings"),
    "R5": ("c4", "clusters of 5 or 5 reclusterings"),
    "m10": ("c5", "clusters of 10 or 20 reclusterings"),
    "R20": ("c5", "clusters of 10 or 20 reclusterings"),
    "m1": ("c6", "single updates, no clusters"),
    "noSHARE": ("c6", "single updates, no clusters"),
    "R1": ("c7", "one clustering in a round"),
}


def role(curve: Curve) -> tuple[str, str]:
    """The CSS class of a curve's colour, and what the colour means.

    >>> role(Curve("foe-q3-no-defence", "no-defence"))
    ('c2', 'no defence: one sum of all clients')
    """
    return next((found for end, found in ROLES.items() if f"-{curve.name}".endswith(f"-{end}")), ("c0", MAIN))

"""How different two colours look: distances of CIE 1976, also for readers who do not see red or green."""

import math

import numpy as np
from numpy.typing import NDArray

LINEAR_TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
)
WHITE = np.array([0.95047, 1.0, 1.08883])
BLIND = {  # linear colours as they look without one kind of cones (Machado, Oliveira and Fernandes 2009)
    "nobody": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
    ),
}


def _lab(colour: str, reader: str) -> NDArray[np.float64]:
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    seen = LINEAR_TO_XYZ @ np.clip(BLIND[reader] @ linear, 0.0, 1.0) / WHITE
    x, y, z = np.where(seen > 216 / 24389, np.cbrt(seen), (24389 / 27 * seen + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def distance(one: str, other: str, reader: str = "nobody") -> float:
    """The distance of two colours such as #2563eb, for a reader who is blind to nothing, to red or to green."""
    return math.dist(_lab(one, reader), _lab(other, reader))

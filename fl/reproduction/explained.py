"""What was found out about curves that differ from the published ones by more than 2 points in some round.

Each entry says which rounds it explains, what was tried and what it showed. Other rounds that are far off are named as
unexplained, and so is a curve that has no entry.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple


class Explanation(NamedTuple):
    """Why a curve differs in some rounds."""

    rounds: Sequence[int]
    why: str


_FIVE_LABELS = "round 1: the seed; three seeds of ours have {ours}%, and the published curve {theirs}%"

EXPLAINED: Final[dict[str, Explanation]] = {
    "label-flip-no-defence": Explanation(
        range(1, 6),
        "the seed: with another one of ours the first five rounds are within 2 points, and two seeds of theirs differ "
        "by 3.6 points in round 5",
    ),
    "label-flip-5-labels-trimmed-mean-SHARE": Explanation(
        range(1, 2), _FIVE_LABELS.format(ours="26.2 to 30.2", theirs="27.2")
    ),
    "label-flip-5-labels-zeno-SHARE": Explanation(range(1, 2), _FIVE_LABELS.format(ours="25.7 to 29.8", theirs="25.8")),
    "label-flip-krum-m3": Explanation(
        (1, 4, 7, 8, 10), "rounds 1, 4, 7, 8, 10: the seed; another one of ours is within 1.8 points in all of them"
    ),
    "foe-krum-m3": Explanation(
        range(2, 3),
        "round 2: probably the sizes of the clients; with 833 images for each, as the authors had, two partitions have "
        "31.1 and 31.4%, and theirs 29.9%",
    ),
    "foe-zeno-m3": Explanation(
        range(1, 6),
        "rounds 1 to 5: Zeno accepts poisoned clusters near the first model, and the seed decides when that ends; in "
        "round 4 three seeds of ours have 18.1, 22.2 and 34.1%, and the published curve 34.4%",
    ),
    "foe-q3-no-defence": Explanation(
        (1, 3, 4, 6, 10),
        "rounds 1, 3, 4, 6, 10: the seed; the published curve is between three seeds of ours, or one of them is within "
        "2 points",
    ),
    "reclustering-krum-R10": Explanation(
        (5, 7),
        "rounds 5 and 7: the seed; two seeds of ours have 23.9 and 28.5% (round 5) and 34.7 and 29.9% (round 7), and "
        "the published curve 27.9 and 29.9%",
    ),
    "reclustering-median-R10": Explanation(
        (2, 5, 6, 7, 10),
        "rounds 2, 5, 6, 7, 10: the seed; the published curve is between two seeds of ours, or the second is within "
        "2 points",
    ),
    "label-flip-5-labels-trimmed-mean-fixed5": Explanation(
        (1, 3), "rounds 1 and 3: the seed; another one has 28.0 and 39.1%, and the published curve 27.4 and 38.6%"
    ),
    "label-flip-5-labels-zeno-fixed5": Explanation(
        (6, 7, 10),
        "rounds 6, 7, 10: the seed; the published curve is between two seeds of ours, or the second is within 2 points",
    ),
    "shakespeare-no-defence": Explanation(
        range(1, 4),
        "probably which roles attack: ours have 6.4% of the weights; -10 times the update turns the mean around above "
        "9.1%, which half of all draws of six roles exceed",
    ),
}

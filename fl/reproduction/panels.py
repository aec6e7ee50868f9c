"""Every panel of the paper that can be run: its curves, and the published curve that each is compared with.

A curve is a packaged experiment, or one of its `[curves]`. Some figures have panels whose numbers the authors did not
publish; their curves have nothing to be compared with. Each panel ends with its main curve under the safe default.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from fl.config.checks import load
from fl.config.read import suggestion
from fl.config.schema import Experiment
from fl.errors import ConfigError

SAFE: Final = (  # fixed whole clusters: what a user gets who sets none of these
    "clusters.groupings=1",
    'clusters.schedule="fixed"',
    'privacy.audit="enforce"',
    'privacy.memory="training"',
)
SAFE_WITH: Final = {"shakespeare-zeno": ("privacy.weight_ratio=1.41",)}
"""What a file needs besides: the lengths of roles differ by a factor of 1,000, and the longest would be exposed."""


class Curve(NamedTuple):
    """One curve: its name, the experiment that trains it, and the published curve, if there is one."""

    name: str
    file: str
    curve: str | None = None
    published: str = ""
    safe: bool = False
    note: str = ""

    def experiment(self, settings: Iterable[str] = ()) -> Experiment:
        """The checked configuration of this curve."""
        named = f'name="{self.name}"'
        safe = (*SAFE, *SAFE_WITH.get(self.file, ())) if self.safe else ()
        return load(self.file, [*safe, *settings, named], self.curve)


class Panel(NamedTuple):
    """One panel: its name, the figure that it is in, and its curves, the main one first."""

    name: str
    figure: str
    curves: tuple[Curve, ...]


NO_ATTACK = Curve("no-attack", "no-defence", "no-attack", "IID-noattack")
LABEL_FLIP_OPEN = Curve("label-flip-no-defence", "no-defence", None, "LF-nodef-q12")
FOE_Q3_OPEN = Curve("foe-q3-no-defence", "no-defence", "foe-q3", "FoE10-nodef-q3")
FOE_Q6_OPEN = Curve("foe-q6-no-defence", "no-defence", "foe-q6", "FoE10-nodef-q6")


def _curves(file: str, *entries: tuple[str, str | None, str], name: str = "") -> Iterator[Curve]:
    """Curves of one file from (ending of the name, curve of the file, published curve), and the first made safe."""
    for ending, curve, published in entries:
        yield Curve(f"{name or file}-{ending}", file, curve, published)
    yield Curve(f"{name or file}-safe", file, entries[0][1], safe=True)


def _sizes(file: str, published: str) -> Iterator[Curve]:
    """The curves of a panel on cluster sizes; the file itself has m = 3."""
    sizes = (("m3", None), ("m5", "m5"), ("m10", "m10"), ("m1", "m1"))
    return _curves(file, *((ending, curve, f"{published}-{ending}") for ending, curve in sizes))


def _reclusterings(file: str, published: str) -> Iterator[Curve]:
    ways = (("R10", None), ("R1", "r1"), ("R5", "r5"), ("R20", "r20"), ("noSHARE", "no-share"))
    return _curves(file, *((ending, curve, f"{published}-{ending}") for ending, curve in ways))


def _five_labels(file: str, published: str) -> Iterator[Curve]:
    """These files have fixed clusters as a curve of their own: the safe default is one of the published curves."""
    ways = (("SHARE", None), ("noSHARE", "no-share"), ("fixed5", "fixed"))
    yield from (Curve(f"{file}-{ending}", file, curve, f"{published}-{ending}") for ending, curve in ways)


def _trimmed_label_flip() -> Iterator[Curve]:
    for curve in _sizes("label-flip-trimmed-mean", "LF-trmean"):
        if curve.published.endswith("m3"):
            note = "the authors' file of this name holds a run of Krum; they published no trimmed mean for m = 3"
            curve = curve._replace(published="LF-trmean-m3-is-krum", note=note)
        yield curve


def _fixed_or_not(rule: str) -> tuple[Curve, ...]:
    file = "foe-5-labels"
    return Curve(f"{file}-{rule}-SHARE", file, rule), Curve(f"{file}-{rule}-fixed5", file, f"{rule}-fixed")


PANELS: Final = (
    Panel("label-flip-zeno", "label flip (a)", (*_sizes("label-flip-zeno", "LF-zeno"), LABEL_FLIP_OPEN, NO_ATTACK)),
    Panel("label-flip-krum", "label flip (b)", (*_sizes("label-flip-krum", "LF-krum"), LABEL_FLIP_OPEN, NO_ATTACK)),
    Panel("label-flip-trimmed-mean", "label flip (c)", (*_trimmed_label_flip(), LABEL_FLIP_OPEN, NO_ATTACK)),
    Panel("foe-zeno", "Fall of Empires, beta = -10", (*_sizes("foe-zeno", "FoE10-zeno"), FOE_Q6_OPEN, NO_ATTACK)),
    Panel("foe-krum", "Fall of Empires, beta = -10", (*_sizes("foe-krum", "FoE10-krum"), FOE_Q3_OPEN, NO_ATTACK)),
    Panel(
        "foe-trimmed-mean",
        "Fall of Empires, beta = -10",
        (*_sizes("foe-trimmed-mean", "FoE10-trmean"), FOE_Q3_OPEN, NO_ATTACK),
    ),
    *(
        Panel(
            f"foe-{rule}-beta-1",
            "Fall of Empires, beta = -1",
            (
                *_curves(f"foe-{rule}", ("m3", "beta-1", ""), name=f"foe-{rule}-beta-1"),
                Curve(f"foe-{q}-beta-1-no-defence", "no-defence", f"foe-{q}-beta-1"),
            ),
        )
        for rule, q in (("zeno", "q6"), ("krum", "q3"), ("trimmed-mean", "q3"))
    ),
    Panel(
        "shakespeare-10",
        "Shakespeare, -10 times the update",
        (
            *_sizes("shakespeare-zeno", "SH10-zeno"),
            Curve("shakespeare-no-defence", "shakespeare-zeno", "no-defence", "SH10-nodef"),
            Curve("shakespeare-no-attack", "shakespeare-zeno", "no-attack", "SH-noattack"),
        ),
    ),
    Panel(
        "shakespeare-1",
        "Shakespeare, -1 times the update",
        (
            *_curves("shakespeare-zeno", ("m3", "minus-1", ""), name="shakespeare-minus-1"),
            Curve("shakespeare-minus-1-no-defence", "shakespeare-zeno", "minus-1-no-defence"),
        ),
    ),
    *(
        Panel(
            f"sign-flip-reclustering-{panel}",
            f"reclustering ({panel})",
            tuple(_curves(file, ("R10", ten, ""), ("R1", one, ""), name=f"{file}-{panel}")),
        )
        for file, panel, ten, one in (
            ("sign-flip-reclustering", "a", "a", "a-r1"),
            ("sign-flip-reclustering", "b", None, "r1"),
            ("sign-flip-reclustering", "c", "c", "c-r1"),
        )
    ),
    *(
        Panel(f"reclustering-{rule}", "non-IID, no attack", tuple(_reclusterings(f"reclustering-{rule}", published)))
        for rule, published in (("median", "NI2-median"), ("krum", "NI2-krum"))
    ),
    Panel(
        "foe-5-labels-median",
        "non-IID, Fall of Empires",
        tuple(_curves("foe-5-labels", ("R10", None, ""), ("R1", "r1", ""), ("noSHARE", "no-share", ""))),
    ),
    Panel(
        "foe-5-labels-krum",
        "non-IID, Fall of Empires",
        tuple(
            _curves(
                "foe-5-labels",
                *(("R10", "krum", ""), ("R1", "krum-r1", ""), ("noSHARE", "krum-no-share", "")),
                name="foe-5-labels-krum",
            )
        ),
    ),
    *(
        Panel(
            f"label-flip-5-labels-{rule}",
            "non-IID, label flip",
            (
                *_five_labels(f"label-flip-5-labels-{rule}", published),
                Curve("5-labels-no-attack", "label-flip-5-labels-trimmed-mean", "no-attack", "NI5-noattack"),
            ),
        )
        for rule, published in (("trimmed-mean", "NI5L-trmean"), ("zeno", "NI5L-zeno"))
    ),
    *(
        Panel(f"fixed-or-reclustering-{rule}", "non-IID, fixed clusters", _fixed_or_not(rule))
        for rule in ("trimmed-mean", "zeno")
    ),
)


def every_curve() -> dict[str, Curve]:
    """All curves by name, each once, in the order of the panels."""
    return {curve.name: curve for panel in PANELS for curve in panel.curves}


def chosen(names: Iterable[str]) -> list[Curve]:
    """The curves of these panels, and curves that are named themselves, each once and in the order given.

    >>> [curve.name for curve in chosen(["fixed-or-reclustering-zeno"])]
    ['foe-5-labels-zeno-SHARE', 'foe-5-labels-zeno-fixed5']
    """
    panels, curves = {panel.name: panel for panel in PANELS}, every_curve()
    found: dict[str, Curve] = {}
    for name in names:
        if name in panels:
            found |= {curve.name: curve for curve in panels[name].curves}
        elif name in curves:
            found[name] = curves[name]
        else:
            raise ConfigError(f"there is no panel and no curve {name!r}{suggestion(name, [*panels, *curves])}")
    return list(found.values())

"""Train a curve of the paper again with one thing as the authors did it.

    python -m tests.paper.explain                                       # what can be tried
    python -m tests.paper.explain foe-krum-m3 their-krum --rounds 5     # one of them
    python -m tests.paper.explain foe-krum-m3 as-here seed-1 seed-2 --rounds 5 --time 150m
    python -m tests.paper.explain foe-krum-m3                           # the table of what has been tried

Each try is `share reproduce` with other settings, in a folder of its own, and continues where it ended. A difference
explains a curve if the try is nearer to the published curve by more than other seeds of ours differ from each other.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fl.cli import main as share
from fl.config.schema import Experiment
from fl.errors import ConfigError
from fl.reporting.table import aligned
from fl.reproduction.compare import HEADS, cells, compare
from fl.reproduction.measured import trained
from fl.reproduction.panels import Curve, chosen

TRIES = {
    "as-here": "nothing is changed",
    "their-krum": "Krum with sums of norms per tensor, and with rows that are sorted too early (their_krum.py)",
    "their-data": "their partition: shards in the order of the file; the random generator is a guess (their_data.py)",
    "same-size": "60 clients with 833 images each, as theirs; of ours, 20 have 834",
    "seed-1": "our own partition, clusters, attackers and first model from another seed",
    "seed-2": "the same from a third seed",
}


def settings(name: str, e: Experiment) -> list[str]:
    """The settings of a try; ConfigError if it does not fit the curve."""
    if name == "their-krum":
        if e.aggregation.rule != "krum":
            raise ConfigError(f"their-krum: this curve has the rule {e.aggregation.rule}, and not krum")
        return ['aggregation.rule="tests.paper.their_krum:their_krum"']
    if name == "their-data":
        deal = {"iid": "iid_60", "shards": f"shards_{e.data.shards_per_client}"}.get(e.data.partition)
        if deal is None or e.data.name != "cifar10":
            raise ConfigError(f"their-data: the clients of {e.data.name} are its roles, as theirs")
        return [f'data.name="tests.paper.their_data:{deal}"', 'data.partition="role"']
    if name == "same-size":
        if e.data.name != "cifar10" or e.clients != 60 or e.data.partition != "iid":
            raise ConfigError("same-size: this curve has no 60 clients with images of CIFAR-10 at random")
        return ['data.name="tests.paper.their_data:same_size"']
    return [f"seed={name.removeprefix('seed-')}"] if name.startswith("seed-") else []


def table(curve: Curve, out: Path) -> list[str]:
    """What has been tried of a curve so far, as lines of a table."""
    found = [("", *HEADS[1:7])]
    for name in TRIES:
        if run := trained([curve], out / name).get(curve.name):
            found.append((name, *cells(compare("", curve, run))[1:7]))
    return aligned(found)


class Asked(NamedTuple):
    """A command that can be run: its options, the curve, and the settings of each try."""

    options: argparse.Namespace
    curve: Curve | None
    changes: dict[str, list[str]]


def asked(arguments: Sequence[str] | None) -> Asked:
    """What a command asks for; it ends the program if there is no such curve or try, or if they do not fit."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.paper.explain", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("curve", nargs="?", help="a curve of `share reproduce --json`")
    parser.add_argument("tries", nargs="*", metavar="TRY", help=", ".join(TRIES))
    parser.add_argument("--rounds", default="10", help="train to this round (10)")
    parser.add_argument("--time", default="", help="stop after this time, such as 150m, for each try")
    parser.add_argument("--out", type=Path, default=Path("explain"), help="folder for the runs")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change one key in every try")
    options = parser.parse_args(arguments)
    if options.curve is None:
        return Asked(options, None, {})
    try:
        (curve,) = chosen([options.curve])
        if unknown := [name for name in options.tries if name not in TRIES]:
            raise ConfigError(f"there is no try {unknown[0]!r}: choose from {', '.join(TRIES)}")
        return Asked(options, curve, {name: settings(name, curve.experiment()) for name in options.tries})
    except ValueError as error:
        parser.error(str(error))


def main(arguments: Sequence[str] | None = None) -> int:
    options, curve, changes = asked(arguments)
    if curve is None:
        print("\n".join(f"{name:<12} {about}" for name, about in TRIES.items()))
        return 0
    code = 0
    for name, changed in changes.items():
        more = [part for setting in (*changed, *options.set) for part in ("--set", setting)]
        limit = ["--time", options.time] if options.time else []
        folder = ["--out", str(options.out / name)]
        code = max(code, share(["reproduce", curve.name, "--rounds", options.rounds, *folder, *limit, *more]))
    print("\n".join(table(curve, options.out)))
    return code


if __name__ == "__main__":
    raise SystemExit(main())

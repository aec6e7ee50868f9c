"""Measure speed on this machine, as ratios within one run.

python -m tests.benchmarks [secagg] [--only ...]     primitives and whole runs of secure aggregation
python -m tests.benchmarks robust [--rule ...]       every rule beside numpy, torch and ByzFL
python -m tests.benchmarks exposure [--write docs]   how many group sums the audit opens under dropouts
python -m tests.benchmarks flower [--nodes ...]      a round over Flower, stage by stage
python -m tests.benchmarks whole [--only ...]        a round of whole groups beside its cryptographic floor
python -m tests.benchmarks net [--only ...]          rounds between processes over HTTPS
python -m tests.benchmarks noise                     the discrete Gaussian beside opendp's
python -m tests.benchmarks privacy [digits|mnist]    what a promise costs: accuracy, counts, means
python -m tests.benchmarks evidence [--keep ...]     size of the evidence of a training, and time to verify it
python -m tests.benchmarks training                  local training beside a plain torch loop
python -m tests.benchmarks convolution               5x5 convolutions beside torch's
python -m tests.benchmarks pages                     a training step with huge pages and without
"""

import importlib
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence

from secagg.errors import SecAggError

PARTS = {
    "secagg": "tests.benchmarks.secagg.command",
    "robust": "tests.benchmarks.robust.command",
    "exposure": "tests.benchmarks.exposure",
    "flower": "tests.benchmarks.flower",
    "whole": "tests.benchmarks.whole",
    "net": "tests.benchmarks.net",
    "noise": "tests.benchmarks.noise",
    "privacy": "tests.benchmarks.privacy",
    "evidence": "tests.benchmarks.evidence",
    "training": "tests.benchmarks.training",
    "convolution": "tests.benchmarks.convolution",
    "pages": "tests.benchmarks.pages",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """0: every bar was met, 1: one was missed, 2: nothing could be measured."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    name = words.pop(0) if words and words[0] in PARTS else "secagg"
    part = importlib.import_module(PARTS[name])
    parser = ArgumentParser(
        prog=f"python -m tests.benchmarks {name}",
        description=f"{part.__doc__}\nAll parts:\n{__doc__}",
        formatter_class=RawDescriptionHelpFormatter,
    )
    part.add_arguments(parser)
    try:
        return int(part.main(parser.parse_args(words)))
    except (SecAggError, OSError) as mistake:
        print(f"benchmarks: {mistake}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

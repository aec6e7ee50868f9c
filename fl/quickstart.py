"""`share quickstart`: the whole idea in about a minute, with nothing to fetch and nothing to configure.

The same clients, of which some attack, train twice on the handwritten digits in the package: with SHARE and
with plain FedAvg. Both use real secure aggregation; only SHARE can tell the attackers' sums from the others.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fl.config.checks import experiment
from fl.config.schema import Experiment
from fl.errors import ConfigError
from fl.reporting.measures import describe_bytes
from fl.reporting.progress import display
from fl.reporting.records import Folder
from fl.reporting.report import report
from fl.training.compilation import announce_compilation
from fl.training.interrupt import Stopped
from fl.training.loop import Trained, run

NAMES = ("SHARE", "FedAvg")
INTRODUCTION = """\
33 clients hold handwritten digits; 4 of them send ten times the opposite of what they learn.
Every sum goes through real secure aggregation, and clients open only sums that expose nobody.
"""


def experiments(seed: int = 0, rounds: int | None = None) -> tuple[Experiment, Experiment]:
    """33 clients in 11 clusters of 3, regrouped once a round so that nobody is exposed; 4 of them attack."""
    tables = {
        "seed": seed,
        "rounds": rounds or 12,
        "clients": 33,
        "byzantine": 4,
        "model": "small-cnn",
        "local": {"epochs": 2, "batch_size": 8, "lr": 0.1},
        "clusters": {"size": 3, "groupings": 2, "schedule": "transversal"},
        "aggregation": {"rule": "multi_krum"},
        "attack": {"name": "sign_flip", "options": {"scale": 10.0}},
    }
    share = experiment(tables, name=NAMES[0])
    return share, experiment(tables, name=NAMES[1], method="fedavg")


def quickstart(out: Path, *, seed: int = 0, rounds: int | None = None) -> int:
    """Train, compare, and write the report; returns the exit code."""
    if any((out / name.lower() / "config.toml").exists() for name in NAMES):
        raise ConfigError(f"{out} holds an earlier quickstart; remove it, or choose another --out")
    print(INTRODUCTION, file=sys.stderr)
    with announce_compilation(lambda text: print(text, file=sys.stderr)):
        share, fedavg = experiments(seed, rounds)
    try:
        trained = [_train(e, out / e.name.lower()) for e in (share, fedavg)]
    except Stopped:
        print("share: stopped", file=sys.stderr)
        return 130
    page, picture = out / "report.html", out / "report.png"
    report([out / name.lower() for name in NAMES], page, picture=picture)
    print()
    print(told(trained))
    print(f"\npicture  {picture.resolve()}\nreport   {page.resolve()}")
    return 0


def _train(e: Experiment, place: Path) -> Trained:
    with Folder.create(place, e) as folder:
        return run(e, folder=folder, show=display())


def told(trained: list[Trained]) -> str:
    """The table at the end."""
    rows = [("", *(t.experiment.name for t in trained))]
    rows.append(("accuracy under attack", *(f"{t.accuracy:.1%}" for t in trained)))
    rows.append(("exposed clients", *(str(len(t.summary["exposed"])) for t in trained)))
    rows.append(("anonymity T", *(str(t.summary["least_anonymity"]) for t in trained)))
    rows.append(("seconds in all", *(f"{t.summary['seconds']['total']:.1f}" for t in trained)))
    rows.append(("  of them cryptography", *(f"{t.summary['seconds']['secure']:.1f}" for t in trained)))
    traffic = (t.summary["bytes_up_per_client"] + t.summary["bytes_down_per_client"] for t in trained)
    rows.append(("per client and round", *map(describe_bytes, traffic)))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )

"""`share quickstart`: a first run of about a minute that needs no download and no configuration.

The same clients, some of which attack, train twice on the handwritten digits in the package: with SHARE and
with plain FedAvg. Both use real secure aggregation. SHARE filters out the sums that attackers spoiled.
"""

import sys
from pathlib import Path

from fl.config.checks import experiment
from fl.config.schema import Experiment
from fl.errors import ConfigError
from fl.planner import aligned
from fl.reporting.measures import describe_bytes
from fl.reporting.progress import display
from fl.reporting.records import Folder
from fl.reporting.report import report
from fl.training.interrupt import Stopped
from fl.training.loop import Trained, announce_compilation, run

NAMES = ("SHARE", "FedAvg")
INTRODUCTION = """\
33 clients hold handwritten digits. 4 of them attack: they send -10 times their update.
All sums use real secure aggregation. Clients open only sums that expose no client.
"""


def experiments(seed: int = 0, rounds: int | None = None) -> tuple[Experiment, Experiment]:
    """SHARE and FedAvg for 33 clients, of which 4 attack. SHARE uses 11 clusters of 3 in two groupings."""
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
    """Train twice, write the report and print a comparison. Returns the exit code."""
    if any((out / name.lower() / "config.toml").exists() for name in NAMES):
        raise ConfigError(f"{out} already contains a quickstart; remove it or choose another --out")
    print(INTRODUCTION, file=sys.stderr)
    with announce_compilation(lambda text: print(text, file=sys.stderr)):
        share, fedavg = experiments(seed, rounds)
    try:
        trained = [_train(experiment, out / experiment.name.lower()) for experiment in (share, fedavg)]
    except Stopped:
        print("share: stopped", file=sys.stderr)
        return 130
    page, picture = out / "report.html", out / "report.png"
    report([out / name.lower() for name in NAMES], page, picture=picture)
    print()
    print(comparison(trained))
    print(f"\npicture  {picture.resolve()}\nreport   {page.resolve()}")
    return 0


def _train(experiment: Experiment, place: Path) -> Trained:
    with Folder.create(place, experiment) as folder:
        return run(experiment, folder=folder, show=display())


def comparison(trained: list[Trained]) -> str:
    """Both runs side by side, as a table."""
    rows = [("", *(t.experiment.name for t in trained))]
    rows.append(("accuracy under attack", *(f"{t.accuracy:.1%}" for t in trained)))
    rows.append(("exposed clients", *(str(len(t.summary["exposed"])) for t in trained)))
    rows.append(("anonymity T", *(str(t.summary["least_anonymity"]) for t in trained)))
    rows.append(("total seconds", *(f"{t.summary['seconds']['total']:.1f}" for t in trained)))
    rows.append(("  for cryptography", *(f"{t.summary['seconds']['secure']:.1f}" for t in trained)))
    traffic = (t.summary["bytes_up_per_client"] + t.summary["bytes_down_per_client"] for t in trained)
    rows.append(("traffic per client and round", *map(describe_bytes, traffic)))
    return "\n".join(aligned(rows))

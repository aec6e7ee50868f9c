"""`share quickstart`: a first run of a few minutes that needs no download and no configuration.

The same clients, some of which attack, train three times on the handwritten digits in the package: in fixed clusters
(the default), with SHARE as the paper has it, and with plain FedAvg. All use real secure aggregation.
"""

import json
import sys
from pathlib import Path

from fl.config.checks import experiment
from fl.config.schema import Experiment
from fl.errors import ConfigError
from fl.reporting.measures import describe_bytes, describe_exposed
from fl.reporting.progress import display
from fl.reporting.records import Folder, holds_run
from fl.reporting.report import report
from fl.reporting.rows import with_folder
from fl.reporting.table import aligned
from fl.training.interrupt import Stopped
from fl.training.loop import Trained, announce_compilation, run

NAMES = {"fixed": "fixed clusters", "share": "SHARE, as in the paper", "fedavg": "FedAvg"}  # folder, name
INTRODUCTION = """\
55 clients hold handwritten digits. 4 of them attack: they send -20 times their update.
They train three times, each time with real secure aggregation:
- fixed clusters of 5 clients and a robust rule (the default);
- SHARE as in the paper: ten new reclusterings in every round, which expose all clients;
- FedAvg: one sum of all clients, without a defence.
"""


def experiments(seed: int = 0, rounds: int | None = None) -> tuple[Experiment, ...]:
    """Fixed clusters, SHARE of the paper and FedAvg for 55 clients, of which 4 attack."""
    tables = {
        "seed": seed,
        "rounds": rounds or 12,
        "clients": 55,
        "byzantine": 4,
        "model": "small-cnn",
        "local": {"epochs": 2, "batch_size": 8, "lr": 0.1},
        "clusters": {"size": 5},
        "aggregation": {"rule": "multi_krum"},
        "attack": {"name": "sign_flip", "options": {"scale": 20.0}},
    }
    papers = {
        "clusters": {"size": 5, "groupings": 10, "schedule": "random"},
        "privacy": {"audit": "report-even-if-exposed", "memory": "round"},
    }
    return (
        experiment(tables, name=NAMES["fixed"]),
        experiment({**tables, **papers}, name=NAMES["share"]),
        experiment(tables, name=NAMES["fedavg"], method="fedavg"),
    )


def quickstart(out: Path, *, seed: int = 0, rounds: int | None = None, as_json: bool = False) -> int:
    """Train three times, write the report and print a comparison, or the summaries. Returns the exit code."""
    if any(holds_run(out / folder) for folder in NAMES):
        raise ConfigError(f"{out} already contains a quickstart; remove it or choose another --out")
    print(INTRODUCTION, file=sys.stderr)
    with announce_compilation(lambda text: print(text, file=sys.stderr)):
        chosen = experiments(seed, rounds)
    try:
        trained = [_train(experiment, out / folder) for folder, experiment in zip(NAMES, chosen, strict=True)]
    except Stopped:
        print("share: stopped", file=sys.stderr)
        return 130
    page, picture = out / "report.html", out / "report.png"
    report([out / folder for folder in NAMES], page, picture=picture)
    if as_json:
        print(json.dumps([with_folder(out / folder) for folder in NAMES], indent=1))
    told = sys.stderr if as_json else sys.stdout
    print(f"\n{comparison(trained)}", file=told)
    print(f"\npicture  {picture.resolve()}\nreport   {page.resolve()}", file=told)
    return 0


def _train(experiment: Experiment, place: Path) -> Trained:
    with Folder.create(place, experiment) as folder:
        return run(experiment, folder=folder, show=display())


def comparison(trained: list[Trained]) -> str:
    """All runs side by side, as a table."""
    found = [t.summary for t in trained]
    rows = [("", *(t.experiment.name for t in trained))]
    rows.append(("accuracy under attack", *(f"{t.accuracy:.1%}" for t in trained)))
    rows.append(("clients exposed in a round", *(describe_exposed(len(s["exposed"])) for s in found)))
    rows.append(
        ("  over the training, if updates stood still", *(describe_exposed(s["exposed_over_training"]) for s in found))
    )
    rows.append(("alone among colluders (probability)", *(f"{s['alone']:.2g}" for s in found)))
    rows.append(("total seconds", *(f"{s['seconds']['total']:.1f}" for s in found)))
    rows.append(("  for cryptography", *(f"{s['seconds']['secure']:.1f}" for s in found)))
    traffic = (s["bytes_up_per_client"] + s["bytes_down_per_client"] for s in found)
    rows.append(("traffic per client and round", *map(describe_bytes, traffic)))
    return "\n".join(aligned(rows))

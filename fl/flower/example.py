"""`share flower new`: a complete app to start from. It runs as it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fl.errors import ConfigError

PYPROJECT: Final = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "share-app"
version = "1.0.0"
description = "Training with SHARE over Flower"
license = "Apache-2.0"
dependencies = ["share-secagg[flower]"]

[tool.hatch.build.targets.wheel]
packages = ["share_app"]

[tool.flwr.app]
publisher = "you"

[tool.flwr.app.components]
serverapp = "share_app.server:app"
clientapp = "share_app.client:app"

[tool.flwr.app.config]
training = "training.toml"      # on the server: the file that all parties agreed on
out = "run"                     # on the server: where the record goes
join-seconds = 120.0            # patience with nodes at the start
stage-seconds = 60.0            # with an answer that needs no training
training-seconds = 600.0        # with one that does
tries = 2                       # of a round before it is skipped
"""

TASK: Final = '''\
"""Your model and your data. Torch is imported here and nowhere else in this app."""

import numpy as np
import torch
from torch import nn

CLASSES = 10


def model(shape, classes):
    """Any torch.nn.Module; every party builds the same one."""
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), 32), nn.ReLU(), nn.Linear(32, classes))


def data(node):
    """What this node trains on: (inputs, labels). Read your own files here; `node` is its name.

    This example deals the digits that come with SHARE: node-0 takes every 8th image from the first on.
    """
    from fl.data import load

    train = load("digits").train
    mine = np.arange(int(node.rpartition("-")[2]), len(train), 8)
    inputs, labels = train.batch(torch.from_numpy(mine))
    return inputs, labels


def test():
    """What the server tests on."""
    from fl.data import load

    found = load("digits").test
    return found.batch(torch.arange(len(found)))
'''

CLIENT: Final = """\
from fl.flower import client_app
from share_app import CLASSES

app = client_app("share_app.task:data", classes=CLASSES)
"""

SERVER: Final = """\
from fl.flower import server_app
from share_app import CLASSES

app = server_app("share_app.task:test", classes=CLASSES)
"""

EXPERIMENT: Final = """\
# What is trained and how; docs/configuration.md has every key. All parties agree on this file.
name = "share-app"
rounds = 3
clients = 8
model = "share_app.task:model"

[local]
epochs = 2
batch_size = 8
lr = 0.1

[clusters]                      # 2 clusters of 4: the server sees the two sums
size = 4

[aggregation]
rule = "mean"
"""

README: Final = """\
# A SHARE app on Flower

`share_app/task.py` has the model and the data: change these two. Eight nodes, three rounds; on one machine:

    ./on-this-machine                     # keys, enrolment, a SuperLink, 8 SuperNodes, the run, the report

On several machines, each command in its place (docs/flower.md of share-secagg explains every step, with TLS):

    share flower identity node            # on every node, once: prints its public key
    share flower enrol experiment.toml members.txt --seed HEX      # once; everybody checks and keeps a copy
    flower-superlink ...                  # on the server
    flower-supernode ... --node-config 'share-node="/path/to/node"'   # on every node
    flwr run . here --stream              # starts the training
"""

ON_THIS_MACHINE: Final = '''\
#!/usr/bin/env python3
"""All parties of experiment.toml on this machine, each in a process of its own."""

import sys
from pathlib import Path

from fl.config.checks import load
from fl.flower.local import run_app
from share_app import task

here = Path(__file__).resolve().parent
e = load(here / "experiment.toml")
sizes = [len(task.data(f"node-{i}")[1]) for i in range(e.clients)]
run_app(e, sizes, here / "run", app=here, tell=lambda line: print(line, file=sys.stderr))
print(f"record: {here / 'run'}\\nreport: share report {here / 'run'}")
'''

FILES: Final = {
    "pyproject.toml": PYPROJECT,
    "experiment.toml": EXPERIMENT,
    "README.md": README,
    "on-this-machine": ON_THIS_MACHINE,
    ".gitignore": "run/\n*.key\n__pycache__/\n",
    "share_app/__init__.py": "CLASSES = 10\n",
    "share_app/task.py": TASK.replace("CLASSES = 10\n\n\n", "\n"),
    "share_app/client.py": CLIENT,
    "share_app/server.py": SERVER,
}


def write_example(folder: Path) -> list[Path]:
    """The files of the app, in a folder that must be new or empty."""
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty")
    written = []
    for name, text in FILES.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, "utf-8")
        written.append(place)
    (folder / "on-this-machine").chmod(0o755)
    return written

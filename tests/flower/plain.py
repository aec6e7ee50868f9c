"""One app for two ways to train: SHARE, and Flower's own FedAvg with the same data, model and local training."""

import json
import time
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fl.config.checks import experiment
from fl.config.schema import Experiment
from fl.flower.client import client_app
from fl.flower.server import connect, deadlines_of, serve
from fl.flower.training import read_training

client = client_app()
server = ServerApp()


def experiment_of(path: Path) -> Experiment:
    return experiment(tomllib.loads(path.read_text())["experiment"])


@client.train()
def train(message: Message, context: Context) -> Message:
    """One client's local training in the clear."""
    from fl.flower.task import task_of
    from fl.training.learner import Learner
    from fl.training.loop import prepare

    folder = Path(str(context.node_config["share-node"]))
    me, round = int(folder.name.rpartition("-")[2]), int(message.content["config"]["server-round"])  # type: ignore
    e = experiment_of(folder / "training.toml")
    data = prepare(e)
    (x,) = message.content["arrays"].to_numpy_ndarrays()  # type: ignore[union-attr]
    with Learner(task_of(e, data)) as learner:
        update = learner.train(x, [me], round_index=round - 1)[0]
    content = {"arrays": ArrayRecord([x + update]), "metrics": MetricRecord({"num-examples": len(data.clients[me])})}
    return Message(RecordDict(content), reply_to=message)  # type: ignore[arg-type]


class Timed(FedAvg):
    """Flower's FedAvg, with the time at which each round begins."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.begun: list[float] = []

    def configure_train(self, *arguments: Any, **more: Any) -> Iterable[Message]:
        self.begun.append(time.time())
        return super().configure_train(*arguments, **more)


@server.main()
def main(grid: Grid, context: Context) -> None:
    settings = context.run_config
    training, out = read_training(str(settings["training"])), Path(str(settings["out"]))
    if settings["way"] == "share":
        serve(connect(grid, training, context.run_id), deadlines_of(settings), out)
        return
    from fl.flower.task import server_data, task_of
    from fl.training.learner import Learner

    e, n = training.experiment, training.experiment.clients
    out.mkdir(parents=True)
    with Learner(task_of(e, server_data(e, None, None, None))) as learner:
        strategy = Timed(fraction_evaluate=0.0, min_train_nodes=n, min_available_nodes=n)

        def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
            (x,) = arrays.to_numpy_ndarrays()
            return MetricRecord({"accuracy": float(learner.evaluate(x.astype(np.float32)).accuracy or 0.0)})

        initial = ArrayRecord([learner.initial()])
        found = strategy.start(grid, initial, num_rounds=e.rounds, evaluate_fn=evaluate)
        times = np.diff([*strategy.begun, time.time()]).tolist()
    (out / "summary.json").write_text(json.dumps({"seconds": times, "last": str(found.evaluate_metrics_serverapp)}))

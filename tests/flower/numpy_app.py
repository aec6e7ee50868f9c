"""A small app in numpy, as somebody would write it for Flower: a line through points that only the node has."""

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod

PARAMETERS = 4


def points(partition: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(partition)
    x = rng.normal(size=(60 + 4 * partition, 3)).astype(np.float32)
    return x, x @ np.array([1.0, -2.0, 0.5], dtype=np.float32) + 3.0


def app_with(mods: list[Mod]) -> ClientApp:
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        weights, bias = message.content["arrays"].to_numpy_ndarrays()  # type: ignore[union-attr]
        x, y = points(int(context.node_config["partition-id"]))
        rate = float(message.content["config"]["lr"])  # type: ignore[arg-type,index]
        for _ in range(5):
            error = x @ weights + bias - y
            weights, bias = weights - rate * x.T @ error / len(y), bias - rate * error.mean(keepdims=True)
        arrays = ArrayRecord([weights.astype(np.float32), bias.astype(np.float32)])
        metrics = MetricRecord({"train_loss": float(np.mean(error**2)), "num-examples": len(y)})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        weights, bias = message.content["arrays"].to_numpy_ndarrays()  # type: ignore[union-attr]
        x, y = points(int(context.node_config["partition-id"]))
        error = x @ weights + bias - y
        found = {"eval_loss": float(np.mean(error**2)), "eval_acc": float(np.mean(np.abs(error) < 0.5))}
        return Message(RecordDict({"metrics": MetricRecord({**found, "num-examples": len(y)})}), reply_to=message)

    @app.query("data")
    def data(message: Message, context: Context) -> Message:
        """A function that the server may call by name: with the mod it must not be reachable."""
        x, y = points(int(context.node_config["partition-id"]))
        return Message(RecordDict({"data": ArrayRecord([x, y])}), reply_to=message)

    return app


def start_arrays() -> ArrayRecord:
    return ArrayRecord([np.zeros(3, np.float32), np.zeros(1, np.float32)])

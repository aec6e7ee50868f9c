"""What the server does: rounds of training and evaluation."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fl.flower import SecureStrategy
from pytorch_app.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    torch.manual_seed(0)
    strategy = SecureStrategy(FedAvg(), context.run_config)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
        num_rounds=context.run_config["num-server-rounds"],
    )
    for round, metrics in result.evaluate_metrics_clientapp.items():
        print(f"after round {round}: accuracy on the nodes {metrics['eval_acc']:.3f}")

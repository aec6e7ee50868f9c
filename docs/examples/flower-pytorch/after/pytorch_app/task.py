"""The model, the data of a node, and the loops that train and test."""

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fl.data import load


class Net(nn.Module):
    """A small convolutional network for images of 8 x 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.hidden = nn.Linear(8 * 4 * 4, 32)
        self.out = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.max_pool2d(torch.relu(self.conv(x.reshape(-1, 1, 8, 8))), 2)
        return self.out(torch.relu(self.hidden(x.flatten(1))))


def load_data(partition: int, partitions: int) -> tuple[DataLoader, DataLoader]:
    """What one node trains on and tests on: every `partitions`-th image. Here your own files would be read."""
    examples = load("digits").train
    inputs, labels = examples.batch(torch.arange(partition, len(examples), partitions))
    cut = len(labels) * 4 // 5
    train, test = TensorDataset(inputs[:cut], labels[:cut]), TensorDataset(inputs[cut:], labels[cut:])
    return DataLoader(train, batch_size=16), DataLoader(test, batch_size=64)


def train(net: Net, batches: DataLoader, epochs: int, rate: float) -> float:
    """Train in place. Returns the mean loss."""
    optimizer, total, count = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9), 0.0, 0
    net.train()
    for _ in range(epochs):
        for inputs, labels in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(inputs), labels)
            loss.backward()
            optimizer.step()
            total, count = total + loss.item(), count + 1
    return total / count


def test(net: Net, batches: DataLoader) -> tuple[float, float]:
    """The mean loss and the accuracy."""
    loss, right, count = 0.0, 0, 0
    net.eval()
    with torch.no_grad():
        for inputs, labels in batches:
            scores = net(inputs)
            loss += nn.functional.cross_entropy(scores, labels, reduction="sum").item()
            right, count = right + int((scores.argmax(1) == labels).sum()), count + len(labels)
    return loss / count, right / count

"""The real data sets, where the folder that SHARE_DATA names has them."""

import os

import pytest
import torch

from fl.data import available, federate, load, shakespeare
from fl.data.folder import read

pytestmark = pytest.mark.data


@pytest.fixture(autouse=True)
def present(request: pytest.FixtureRequest) -> None:
    name = request.node.name.split("_")[1]
    if "SHARE_DATA" not in os.environ:
        pytest.skip("SHARE_DATA names no folder")
    if not any(entry.name == name and entry.present for entry in available()):
        pytest.skip(f"{name} is not in SHARE_DATA")


def test_mnist_has_70000_images():
    data = load("mnist")
    assert (len(data.train), len(data.test)) == (60_000, 10_000)
    assert data.train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    inputs, _ = data.train.batch(torch.arange(60_000))
    assert abs(inputs.mean()) < 1e-3
    assert abs(inputs.std() - 1) < 1e-3


def test_cifar10_has_5000_training_images_of_each_class():
    data = load("cifar10")
    assert torch.bincount(data.train.labels).tolist() == [5000] * 10
    assert torch.bincount(data.test.labels).tolist() == [1000] * 10
    inputs, _ = data.train.batch(torch.arange(0, 50_000, 25))
    assert inputs.mean(dim=(0, 2, 3)).abs().max() < 0.06  # of 2,000 images


def test_shakespeare_gives_leafs_published_counts():
    texts = shakespeare.role_texts(read("shakespeare")["pg100.txt"])
    assert len(texts) == 1129
    assert sum(len(text) - shakespeare.CONTEXT for text in texts.values()) == 4_226_158
    used = set("".join(texts.values()))
    assert len(used) == 79
    assert used == set(shakespeare.VOCABULARY) - {"\n"}


def test_shakespeare_by_role_as_the_paper_deals_it():
    data = federate(load("shakespeare", roles=60), clients=60, seed=0, partition="role", validation=0.05)
    assert len(data.clients) == 60
    assert data.train.shape == (80,)
    assert data.classes == 80

"""CIFAR-10, binary version (Krizhevsky 2009): 50,000 and 10,000 colour images of 32 x 32."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from fl.data.examples import DataSet, Examples, Scaling

FILES = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
SCALING = Scaling(top=255.0, mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))
"""As in the paper's runs. Their std is an average over images; we keep it so that results are comparable."""

RECORD = 1 + 3 * 32 * 32


def parse(contents: Mapping[str, bytes]) -> DataSet:
    """The data set from the contents of its files."""
    batches = [contents[name] for name in FILES if name.startswith("data_batch")]
    return DataSet("cifar10", read_records(*batches), read_records(contents["test_batch.bin"]), classes=10)


def read_records(*contents: bytes) -> Examples:
    """Records of a label byte and 3072 pixels: red, green and blue, each row by row."""
    if odd := [len(content) for content in contents if len(content) % RECORD]:
        raise ValueError(f"expected a multiple of {RECORD} bytes, got {odd[0]}")
    tables = [np.frombuffer(content, dtype=np.uint8).reshape(-1, RECORD) for content in contents]
    images = np.concatenate([table[:, 1:] for table in tables]).reshape(-1, 3, 32, 32)
    labels = np.concatenate([table[:, 0] for table in tables]).astype(np.int64)
    return Examples(torch.from_numpy(images), torch.from_numpy(labels), SCALING)

"""MNIST from its four idx files (LeCun, Cortes and Burges): 60,000 and 10,000 images of 28 x 28."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from fl.data.examples import DataSet, Examples, Scaling

FILES = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
SCALING = Scaling(top=255.0, mean=(0.1307,), std=(0.3081,))
UNSIGNED_BYTE = 8


def parse(contents: Mapping[str, bytes]) -> DataSet:
    """The data set from the contents of its files."""

    def part(images: str, labels: str) -> Examples:
        pixels = read_idx(contents[images])
        if pixels.ndim != 3:
            raise ValueError(f"{images}: expected 3 axes, got {pixels.ndim}")
        inputs = torch.from_numpy(pixels[:, None])
        return Examples(inputs, torch.from_numpy(read_idx(contents[labels]).astype(np.int64)), SCALING)

    return DataSet(
        "mnist",
        part("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
        part("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
        classes=10,
    )


def read_idx(content: bytes) -> NDArray[np.uint8]:
    """An idx file: two zero bytes, the type, the number of axes, their lengths (big-endian), the data."""
    if len(content) < 4 or content[:2] != b"\0\0":
        raise ValueError("not an idx file")
    kind, axes = content[2], content[3]
    if kind != UNSIGNED_BYTE or axes == 0:
        raise ValueError(
            f"idx file: expected type 8 (unsigned bytes) and at least 1 axis, got type {kind} and {axes} axes"
        )
    header = 4 + 4 * axes
    if len(content) < header:
        raise ValueError("idx file: the header is truncated")
    shape = struct.unpack(f">{axes}I", content[4:header])
    expected = header + int(np.prod(shape, dtype=object))
    if len(content) != expected:
        raise ValueError(f"idx file: the header says {expected} bytes, got {len(content)}")
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape).copy()

"""Data sets of images: the handwritten digits in the package, MNIST and CIFAR-10.

Digits: E. Alpaydin and C. Kaynak 1998, UCI Machine Learning Repository, CC BY 4.0; see digits.LICENSE.txt.
A first run needs no download. MNIST: LeCun, Cortes and Burges. CIFAR-10, binary version: Krizhevsky 2009.
"""

import gzip
import struct
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fl.data.examples import DataSet, Examples, Scaling

MNIST_FILES = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
CIFAR10_FILES = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
DIGITS_SCALING = Scaling(top=16.0, mean=(0.3051,), std=(0.3762,))  # of the training part
MNIST_SCALING = Scaling(top=255.0, mean=(0.1307,), std=(0.3081,))
CIFAR10_SCALING = Scaling(top=255.0, mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))
"""As in the paper's runs. Their std is an average over images; we keep it so that results are comparable."""
UNSIGNED_BYTE = 8  # a type in idx files
RECORD = 1 + 3 * 32 * 32


def load_digits() -> DataSet:
    """1,797 images of 8 x 8. One in five of each digit is for testing.

    The file is sorted by writer. If the test set were the end of the file, its writers would differ from
    those of the training set.
    """
    text = gzip.decompress(files("fl.data").joinpath("digits.csv.gz").read_bytes()).decode("ascii")
    table = np.loadtxt(text.splitlines(), delimiter=",", dtype=np.uint8)
    images, labels = table[:, :64].reshape(-1, 1, 8, 8), table[:, 64]
    testing = np.zeros(len(labels), dtype=bool)
    for digit in range(10):
        testing[np.flatnonzero(labels == digit)[4::5]] = True
    train, test = (_examples(images[part], labels[part], DIGITS_SCALING) for part in (~testing, testing))
    return DataSet("digits", train, test, classes=10)


def parse_mnist(contents: Mapping[str, bytes]) -> DataSet:
    """60,000 and 10,000 images of 28 x 28, from the contents of four idx files."""

    def part(images: str, labels: str) -> Examples:
        pixels = read_idx(contents[images])
        if pixels.ndim != 3:
            raise ValueError(f"{images}: expected 3 axes, got {pixels.ndim}")
        return _examples(pixels[:, None], read_idx(contents[labels]), MNIST_SCALING)

    train = part("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
    return DataSet("mnist", train, part("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"), classes=10)


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


def parse_cifar10(contents: Mapping[str, bytes]) -> DataSet:
    """50,000 and 10,000 colour images of 32 x 32, from the contents of six files."""
    batches = [contents[name] for name in CIFAR10_FILES if name.startswith("data_batch")]
    return DataSet("cifar10", read_records(*batches), read_records(contents["test_batch.bin"]), classes=10)


def read_records(*contents: bytes) -> Examples:
    """Records of a label byte and 3072 pixels: red, green and blue, each row by row."""
    if odd := [len(content) for content in contents if len(content) % RECORD]:
        raise ValueError(f"expected a multiple of {RECORD} bytes, got {odd[0]}")
    tables = [np.frombuffer(content, dtype=np.uint8).reshape(-1, RECORD) for content in contents]
    images = np.concatenate([table[:, 1:] for table in tables]).reshape(-1, 3, 32, 32)
    return _examples(images, np.concatenate([table[:, 0] for table in tables]), CIFAR10_SCALING)


def _examples(images: NDArray[np.uint8], labels: NDArray[Any], scaling: Scaling) -> Examples:
    return Examples(torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64)), scaling)

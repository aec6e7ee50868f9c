"""The handwritten digits in the package: 1,797 images of 8 x 8. A first run needs no download.

E. Alpaydin and C. Kaynak 1998, UCI Machine Learning Repository, CC BY 4.0; see digits.LICENSE.txt.
"""

from __future__ import annotations

import gzip
from importlib.resources import files

import numpy as np
import torch

from fl.data.examples import DataSet, Examples, Scaling

SCALING = Scaling(top=16.0, mean=(0.3051,), std=(0.3762,))  # of the training part


def load() -> DataSet:
    """All images. One in five of each digit is for testing.

    The file is sorted by writer. If the test set were the end of the file, its writers would differ from
    those of the training set.
    """
    text = gzip.decompress(files("fl.data").joinpath("digits.csv.gz").read_bytes()).decode("ascii")
    table = np.loadtxt(text.splitlines(), delimiter=",", dtype=np.uint8)
    images, labels = table[:, :64].reshape(-1, 1, 8, 8), table[:, 64].astype(np.int64)
    testing = np.zeros(len(labels), dtype=bool)
    for digit in range(10):
        testing[np.flatnonzero(labels == digit)[4::5]] = True

    def part(chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Examples:
        return Examples(torch.from_numpy(images[chosen]), torch.from_numpy(labels[chosen]), SCALING)

    return DataSet("digits", part(~testing), part(testing), classes=10)

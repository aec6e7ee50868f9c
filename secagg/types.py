"""Types that every layer of secagg shares."""

import struct
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

ClientId = int
Group = tuple[ClientId, ...]  # clients that are summed, ascending
Grouping = tuple[Group, ...]  # a partition of the clients into groups
GroupId = tuple[int, int]  # the number of a grouping, and of a group in it
Ring32 = npt.NDArray[np.uint32]  # numbers modulo 2^32: encoded, masked or summed
Bytes = npt.NDArray[np.uint8]
Entropy = Callable[[int], bytes]  # `os.urandom`, or a fixed stream in tests

u32: Final = struct.Struct("<I").pack  # an id, a count or an index as four bytes, little-endian

"""What a caller gives as numbers, as a plain numpy array; what has no certain meaning as one is refused."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.errors import UsageError

Array = npt.NDArray[Any]
Labels = tuple[Array, ...]  # of rows, and of columns if there are any

_ADVICE: Final = {
    "c": "give the real and the imaginary parts as two arrays",
    "O": "give numbers of one type, for example np.asarray(values, dtype=float)",
    "U": "convert text to numbers first",
    "S": "convert bytes to numbers first",
    "M": "convert times to numbers first",
    "m": "convert durations to numbers first",
    "V": "give one array per field",
}


def plain_array(value: Any, what: str, *, labelled: bool = False) -> Array:
    """Booleans (as 0 and 1), integers, float32 or float64 in native byte order, or UsageError.

    Row labels (`labels_of`) are refused unless they are positions: arrays are added by position. With `labelled`, the
    caller has compared them.

    >>> plain_array([True, False], "votes")
    array([1, 0], dtype=uint8)
    """
    check_source(value, what, labelled=labelled)
    try:
        array = np.asarray(value)
    except Exception:  # whatever the __array__ of a foreign type raises
        kind = type(value).__name__
        raise UsageError(
            f"{what}: expected an array of numbers, got a {kind} that numpy cannot convert; rows need equal lengths, "
            "and a tensor must be detached, on the CPU and of a type that numpy has"
        ) from None
    kind = array.dtype.kind
    if kind in _ADVICE:
        raise UsageError(f"{what}: expected integers or floats, got {array.dtype}; {_ADVICE[kind]}")
    if kind == "b":
        return array.astype(np.uint8)
    if kind == "f" and array.dtype.itemsize not in (4, 8):
        return array.astype(np.float32 if array.dtype.itemsize == 2 else np.float64)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def labels_of(value: Any) -> Labels:
    """The labels of rows and columns, if this is a pandas Series or DataFrame, or built like one; otherwise none."""
    axes = (getattr(value, name, None) for name in ("index", "columns"))
    return tuple(np.asarray(axis) for axis in axes if axis is not None and not callable(axis))


def check_source(value: Any, what: str, *, labelled: bool = False) -> None:
    """Refuse what numpy would convert without a word although something is lost."""
    if isinstance(value, list | tuple):
        for item in value:
            if not isinstance(item, int | float):
                check_source(item, what, labelled=labelled)
        return
    if isinstance(value, np.ma.MaskedArray):  # audit: masked-array-refused
        raise UsageError(
            f"{what}: a masked array would be summed as if nothing was masked; give value.filled(0), or whatever its "
            "masked values shall count as"
        )
    positions = (np.array_equal(labels, np.arange(len(labels))) for labels in labels_of(value))
    if not labelled and not all(positions):  # audit: labels-refused
        raise UsageError(
            f"{what}: rows or columns have labels, but arrays are added by position; bring them into the order that "
            "all clients use, then give value.to_numpy()"
        )

"""Data sets and their partition among clients. All examples are in memory, as tensors."""

from pathlib import Path

from fl.config.own import imported, is_own, same_numbers
from fl.config.schema import DATA_SETS, PARTITIONS
from fl.data import shakespeare
from fl.data.examples import DataSet, Examples, Federated, Index, Scaling, from_clients
from fl.data.folder import Availability, available, data_folder, fetch, import_folder, read
from fl.data.images import load_digits, parse_cifar10, parse_mnist
from fl.data.partition import federate, flip_labels, plant_backdoor
from fl.errors import DataError

__all__ = ["Availability", "DataError", "DataSet", "Examples", "Federated", "Index", "Scaling"]
__all__ += ["available", "data_folder", "federate", "fetch", "flip_labels", "from_clients", "import_folder", "load"]
__all__ += ["plant_backdoor"]
__all__ += ["DATA_SETS", "PARTITIONS"]


def load(name: str, *, folder: Path | str | None = None, roles: int | None = None) -> DataSet:
    """A data set by name, or by the import path `module:function` of a function that returns one.

    The global random generators of torch (on the CPU), numpy and Python are seeded for such a function: a data set is
    the same for every run and every seed.

    `roles` keeps only the first roles of Shakespeare (the paper uses 60). All roles together have 4 million examples.
    """
    if roles is not None and name != "shakespeare":
        raise ValueError(f"only shakespeare has roles, {name} has none")
    if name == "digits":
        return load_digits()
    if name == "mnist":
        return parse_mnist(read(name, folder))
    if name == "cifar10":
        return parse_cifar10(read(name, folder))
    if name == "shakespeare":
        return shakespeare.parse(read(name, folder), roles=roles)
    if not is_own(name):
        raise ValueError(f"unknown data set {name!r}: expected {', '.join(DATA_SETS)}, or module:function")
    function = imported(name, "data.name")
    with same_numbers():
        data = function()
    if not isinstance(data, DataSet):
        raise ValueError(f"data set {name!r}: expected a DataSet, it returned {type(data).__name__}")
    return data

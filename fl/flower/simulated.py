"""Flower's own simulation, in which nothing can be hidden: it is refused before anything else happens."""

from typing import Final

from fl.errors import ConfigError

SIMULATED_GRIDS: Final = ("InMemoryGrid",)


def refuse_simulation(grid: object) -> None:
    """Flower's simulation has no nodes with keys of their own."""
    if type(grid).__name__ in SIMULATED_GRIDS:
        raise ConfigError(
            "this is Flower's simulation, where nodes have no keys of their own, so nothing can be hidden: run the app "
            "with a SuperLink and SuperNodes (`share flower try APP --nodes N` starts them on this machine), or "
            "simulate with `share train`"
        )

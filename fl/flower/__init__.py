"""SHARE over real machines, on Flower (`pip install 'share-secagg[flower]'`).

    app = client_app("my_app.task:data", classes=10)     # on every node
    app = server_app("my_app.task:test", classes=10)     # on the server

docs/flower.md explains a setup of three machines. The names below are loaded on first use, because a node
starts a process for every message and most of them need only one of the two.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl.flower.apps.mod import secure_mod
    from fl.flower.apps.strategy import SecureStrategy
    from fl.flower.client import client_app
    from fl.flower.server import server_app

__all__ = ["SecureStrategy", "client_app", "secure_mod", "server_app"]
MODULES = {"SecureStrategy": "apps.strategy", "client_app": "client", "secure_mod": "apps.mod", "server_app": "server"}


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"fl.flower.{MODULES[name]}"), name)
    raise AttributeError(f"fl.flower has no {name}")

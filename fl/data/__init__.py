"""Data sets, and how they are dealt to clients. Everything lives in memory as tensors."""

from __future__ import annotations

from fl.data.examples import DataSet, Examples, Federated, Index, Scaling, from_clients

__all__ = ["DataSet", "Examples", "Federated", "Index", "Scaling", "from_clients"]

"""The ServerApp of `share flower local`."""

from __future__ import annotations

from fl.flower.server import server_app

app = server_app()

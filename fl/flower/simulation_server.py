"""The ServerApp of `share flower local`."""

from fl.flower.server import server_app

app = server_app()

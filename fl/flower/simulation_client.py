"""The ClientApp of `share flower local`. Each node trains on its part of a data set of `fl`."""

from fl.flower.client import client_app

app = client_app()

"""The ClientApp of `share flower local`: a data set of `fl`, dealt to nodes as the local engine deals it."""

from __future__ import annotations

from fl.flower.client import client_app

app = client_app()

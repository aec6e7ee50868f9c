"""Sums between machines: a hub, and one process per site, over HTTPS with certificates on both ends.

`Hub` and `Site` are asynchronous; `serve` and `join` do the same in one blocking call. Both ends read one signed
agreement with a section `transport` (docs/network.md). This package needs the extra `net`.
"""

from secagg.net.blocking import join, serve
from secagg.net.hub import Hub
from secagg.net.outcome import Outcome
from secagg.net.settings import Deadlines, Limits, Settings, read_settings
from secagg.net.site import Site, Source
from secagg.net.trial import trial

__all__ = [
    "Deadlines",
    "Hub",
    "Limits",
    "Outcome",
    "Settings",
    "Site",
    "Source",
    "join",
    "read_settings",
    "serve",
    "trial",
]

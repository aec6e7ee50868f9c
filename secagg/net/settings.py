"""Everything that an operator may set, with defaults, and the one configuration file that sets it."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from secagg.agreement.table import Table
from secagg.arguments import instance, real, whole
from secagg.errors import UsageError

_LISTEN: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]*):([0-9]{1,5})")


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """Seconds that the hub waits for the sites of a round, for each stage.

    `gather` is for the sites to connect and send their keys: after it, a round begins with those that are there, if
    they are enough. `answers` is the one stage of whole groups; the others are the stages of survivors. `give_up`
    ends a round that cannot begin with an error (0: never).

    >>> Deadlines(answers=5).answers
    5
    """

    gather: float = 60.0
    answers: float = 300.0
    keys: float = 60.0
    shares: float = 60.0
    inputs: float = 300.0
    consistency: float = 60.0
    unmasking: float = 60.0
    give_up: float = 0.0

    def __post_init__(self) -> None:
        for one in fields(self):
            seconds = real(f"deadlines.{one.name}", getattr(self, one.name))
            if not (seconds > 0 or (one.name == "give_up" and seconds == 0)):
                raise UsageError(f"deadlines.{one.name}: expected a positive number of seconds, got {seconds}")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one member may take of the hub, and what a site accepts from it.

    `requests` per second and `connections` are per member, `slowest` is the least rate of a body in bytes per second,
    `patience` the seconds in which a request must begin, and `data` the most bytes of the hub's data for a round.

    >>> Limits(connections=0)
    Traceback (most recent call last):
    secagg.errors.UsageError: limits.connections: expected a positive number, got 0.0
    """

    requests: float = 50.0
    connections: int = 8
    slowest: float = 16384.0
    patience: float = 20.0
    data: int = 2**26

    def __post_init__(self) -> None:
        for one in fields(self):
            value = real(f"limits.{one.name}", getattr(self, one.name))
            if value <= 0:
                raise UsageError(f"limits.{one.name}: expected a positive number, got {value}")
        whole("limits.connections", self.connections, 1)
        whole("limits.data", self.data, 1, 2**30)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What an operator sets for a hub or a site. `read_settings` reads it from a TOML file.

    `listen` is where the hub listens (empty: the port of its first address, on all interfaces), `ops` where it answers
    /healthz and /metrics in plain HTTP (empty: nowhere). `poll` is how long the hub holds a question of a site;
    `retry_most` is the longest pause between two attempts of a site.

    >>> read_settings("[deadlines]\\ngather = 5").deadlines.gather
    5.0
    """

    listen: str = ""
    ops: str = ""
    poll: float = 20.0
    retry_most: float = 15.0
    deadlines: Deadlines = field(default_factory=Deadlines)
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        instance("deadlines", self.deadlines, Deadlines)
        instance("limits", self.limits, Limits)
        for name in ("listen", "ops"):
            if instance(name, getattr(self, name), str):
                host_and_port(name, getattr(self, name))
        for name in ("poll", "retry_most"):
            if real(name, getattr(self, name)) <= 0:
                raise UsageError(f"{name}: expected a positive number of seconds, got {getattr(self, name)}")


def host_and_port(name: str, text: str) -> tuple[str, int]:
    """The two parts of "127.0.0.1:8443"; an empty host means all interfaces, port 0 a free one."""
    found = _LISTEN.fullmatch(text)
    if not found or int(found[2]) > 65535:
        raise UsageError(f"{name}: expected a host and a port, such as 127.0.0.1:8443, got {text!r}")
    return found[1].strip("[]"), int(found[2])


def checked_settings(settings: object) -> Settings:
    """The settings given, or the defaults for None."""
    return Settings() if settings is None else instance("settings", settings, Settings)


def read_settings(text: str) -> Settings:
    """The settings in a configuration file; a key that is not known is refused with the one that was meant.

    >>> read_settings("[deadlines]\\nanswer = 5")
    Traceback (most recent call last):
    secagg.errors.UsageError: deadlines.answer: unknown key; did you mean 'answers'?
    """
    try:
        document = tomllib.loads(instance("text", text, str))
    except (tomllib.TOMLDecodeError, RecursionError) as bad:
        raise UsageError(f"expected a configuration in TOML: {bad}") from None
    names = tuple(one.name for one in fields(Settings))
    top = Table(document, "", names)
    found: dict[str, Any] = {}
    for name in names:
        if name not in top:
            continue
        if name in ("deadlines", "limits"):
            kind: Any = Deadlines if name == "deadlines" else Limits
            table = Table(top.raw(name), name, tuple(one.name for one in fields(kind)))
            values = {one.name: table.number(one.name) for one in fields(kind) if one.name in table}
            whole_numbers = {key: int(value) for key, value in values.items() if key in ("connections", "data")}
            found[name] = kind(**{**values, **whole_numbers})
        else:
            found[name] = top.text(name) if name in ("listen", "ops") else top.number(name)
    return replace(Settings(), **found)

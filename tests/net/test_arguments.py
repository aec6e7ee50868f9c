"""Wrong types in the arguments of the network service are typed errors when they are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import secagg.net
from secagg.agreement import Proposal
from secagg.net import Hub, Settings, Site, join, serve, trial
from tests.secagg.wrong_types import WRONG, outcome
from tests.secagg.wrong_types import _call as described


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Proposal]:
    place = tmp_path_factory.mktemp("world")
    return place, trial(place, members=3, size=3, length=2, bound=9)


def test_wrong_types_are_typed_errors(
    world: tuple[Path, Proposal], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hub and Site are only made; serve and join get an agreement that nobody signed, so that they never run."""
    monkeypatch.chdir(tmp_path)
    place, proposal = world
    unsigned = Proposal.of(proposal.agreement)
    source: Any = lambda round, data: [1, 2]  # noqa: E731
    good: dict[Any, dict[str, Any]] = {
        Hub: {"proposal": proposal, "folder": place / "hub"},
        Site: {"proposal": proposal, "folder": place / "0", "source": source},
        serve: {"proposal": unsigned, "folder": place / "hub"},
        join: {"proposal": unsigned, "folder": place / "0", "source": source},
        secagg.net.Settings: {},
        secagg.net.Deadlines: {},
        secagg.net.Limits: {},
        secagg.net.read_settings: {"text": ""},
    }
    wrong = []
    for made, arguments in good.items():
        [call] = described(made.__name__, made.__name__, lambda made=made: made, made)
        call.good.clear()
        call.good.update(arguments)
        for name in call.names:
            for value in WRONG:
                error = outcome(call, name, value)
                if error is not None:
                    wrong.append(f"{made.__name__}({name}={value!r}): {type(error).__name__}: {error}")
    assert "\n".join(wrong) == ""


def test_what_is_right_is_accepted(world: tuple[Path, Proposal]) -> None:
    place, proposal = world
    Hub(proposal, str(place / "hub"), settings=Settings(), on_event=print)
    Site(proposal, str(place / "0"), print, journal=place / "journal", hubs=["https://127.0.0.1:5"], on_event=print)

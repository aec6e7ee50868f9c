"""What a node and the server of an app write is on disk before anything leaves them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fl.flower.apps.ledger import AGREED, NEXT, Ledger
from fl.flower.node import STATE_KEY, make_node, renew_state_key
from fl.flower.whole_client import STATE, Membership
from secagg import FileJournal
from secagg.simulation import make_agreement
from secagg.whole import Hello
from tests.durable import Disk


def test_the_state_of_a_client_is_synced_before_it_has_its_name_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreement, identities = make_agreement(members=6, size=3, length=2, bound=9, rounds=2)
    make_node(tmp_path / "node", identities[0])
    node: Any = SimpleNamespace(
        place=tmp_path / "node",
        client=0,
        identity=identities[0],
        agreement=agreement,
        signatures={v: agreement.sign(v, identities[v]) for v in identities},
        journal=FileJournal(tmp_path / "journal"),
        budget=None,
        seal=lambda round, content: content,
        unseal=lambda round, content: content,
    )
    (tmp_path / "place").mkdir()
    member = Membership(node, tmp_path / "place")
    disk = Disk(monkeypatch)
    for round in range(2):
        member.client.receive(Hello(agreement.fingerprint, round))
        member.save()
        assert disk.replaced(tmp_path / "place" / STATE)
    assert Membership(node, tmp_path / "place").client.save() == member.client.save()


def test_the_round_of_an_app_is_synced_before_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agreement, _ = make_agreement(members=6, size=3, length=2, bound=9, rounds=3)
    disk = Disk(monkeypatch)
    ledger = Ledger(tmp_path / "record", agreement)
    assert disk.replaced(tmp_path / "record" / AGREED)
    for round in range(2):
        disk.events.clear()
        assert ledger.claim() == round
        assert disk.replaced(tmp_path / "record" / NEXT)
    assert (tmp_path / "record" / NEXT).read_text() == "2\n"


def test_a_new_state_key_is_synced_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its key a node cannot read what it has sealed."""
    disk = Disk(monkeypatch)
    make_node(tmp_path / "node")
    file, folder = disk.events[-2:]
    assert file == ("file", STATE_KEY, (tmp_path / "node" / STATE_KEY).stat().st_size)
    assert folder[:2] == ("folder", "node")


def test_a_state_key_that_takes_the_place_of_another_is_synced_before_it_has_its_name_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_node(tmp_path / "node")
    before = (tmp_path / "node" / STATE_KEY).read_bytes()
    disk = Disk(monkeypatch)
    renew_state_key(tmp_path / "node")
    assert disk.replaced(tmp_path / "node" / STATE_KEY)
    assert (tmp_path / "node" / STATE_KEY).read_bytes() != before

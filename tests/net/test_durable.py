"""What a hub and a site write is on disk when they go on: a power failure leaves the old file or the new one."""

from pathlib import Path

import pytest

from secagg.net.files import replace_file
from tests.durable import Disk


def test_a_file_of_a_hub_is_synced_before_it_has_its_name_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    for parts in ([b"first ", b"state"], [b"the second state"]):
        disk.events.clear()
        replace_file(tmp_path / "state", parts)
        assert len(disk.events) == 3
        assert disk.replaced(tmp_path / "state")
        assert (tmp_path / "state").read_bytes() == b"".join(parts)


def test_what_need_not_survive_is_not_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    replace_file(tmp_path / "status", [b"waiting"], durable=False)
    assert disk.events == [("name", "status", 7)]

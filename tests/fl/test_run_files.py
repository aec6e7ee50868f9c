"""Files that are complete or absent, values in JSON, versions, and the lock of a folder."""

import errno
import hashlib
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from fl.errors import RecordError
from fl.reporting import records

X = np.array([1.5, -2], np.float32)


def test_a_file_is_whole_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Content, then the name, then the folder: a crash in between leaves the old file."""
    seen: list[tuple[bool, bytes]] = []
    handles: list[int] = []
    place = tmp_path / "file"

    def fsync(number: int) -> None:
        handles.append(number)
        found = Path(os.readlink(f"/proc/self/fd/{number}"))
        seen.append((place.exists(), b"folder" if found == tmp_path.resolve() else found.read_bytes()))

    if not Path("/proc/self/fd").exists():
        pytest.skip("Linux only")
    monkeypatch.setattr(records.os, "fsync", fsync)
    records.write(place, b"content")
    assert seen == [(False, b"content"), (True, b"folder")]
    assert place.read_bytes() == b"content"
    for number in handles:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(number)


def test_a_draft_that_could_not_be_written_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(records.os, "replace", broken)
    with pytest.raises(KeyboardInterrupt):
        records.write(tmp_path / "file", b"x")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RecordError, match="No such file or directory"):  # there is no draft to remove
        records.write(tmp_path / "nowhere" / "file", b"x")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOSPC, "full"), "full; free some space, then continue the run with --resume (resume=True)"),
        (OSError(errno.EDQUOT, "quota"), "quota; free some space, then continue the run with --resume (resume=True)"),
        (OSError(errno.EACCES, "not allowed"), "not allowed"),
        (OSError("odd"), "odd"),
    ],
)
def test_an_error_of_the_system_says_what_to_do(error: OSError, told: str) -> None:
    with pytest.raises(RecordError) as caught, records._writing(Path("there")):
        raise error
    assert str(caught.value) == f"cannot write there: {told}"
    assert caught.value.__cause__ is error


def test_tensors_are_read_from_a_safetensors_file_only(tmp_path: Path) -> None:
    place = tmp_path / "t"
    place.write_bytes(save({"a": X}))
    right = hashlib.sha256(place.read_bytes()).hexdigest()
    for sha256 in (None, right):
        assert records.read_tensors(place, sha256)["a"].tolist() == [1.5, -2]
    with pytest.raises(
        RecordError, match=f"^{place} is damaged: checkpoint.json has another SHA-256; put the recorded"
    ):
        records.read_tensors(place, "0" * 64)
    place.write_bytes(b"no such thing")
    with pytest.raises(RecordError, match=f"^{place} is not a safetensors file: "):
        records.read_tensors(place)
    with pytest.raises(RecordError, match=f"^{tmp_path / 'gone'}: No such file or directory$"):
        records.read_tensors(tmp_path / "gone")


def test_values_in_types_that_json_has() -> None:
    given = {1: (np.float64(2.5), np.int8(3), "text"), "b": {"c": frozenset({4})}, "d": np.array([[1, 2]]), "e": True}
    found = records._plain({**given, "f": None, "g": float("-inf"), "h": np.float32("nan"), "i": [], "j": {5}})
    assert found == {
        **{"1": [2.5, 3, "text"], "b": {"c": [4]}, "d": [[1, 2]], "e": True},
        **{"f": None, "g": None, "h": None, "i": [], "j": [5]},
    }
    assert [type(one) for one in found["1"]] == [float, int, str]


def test_versions_and_the_time_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    found = records.versions()
    assert list(found) == [
        "python", "platform", "share-secagg", "numpy", "numba", "torch", "cryptography", "pynacl", "safetensors"
    ]  # fmt: skip
    assert (found["python"], found["platform"]) == (platform.python_version(), platform.platform())
    assert found["numpy"] == np.__version__
    monkeypatch.setattr(records.time, "gmtime", lambda: time.struct_time((2026, 3, 4, 5, 6, 7, 2, 63, 0)))
    assert records.now() == "2026-03-04T05:06:07Z"


class Clock:
    """A clock on which every pause takes a second."""

    def __init__(self) -> None:
        self.now, self.pauses = 100.0, list[float]()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += 1


def test_a_lock_is_waited_for_three_seconds_and_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    real = Path.open

    def watched(self: Path, *given: Any) -> Any:
        opened.append(real(self, *given))
        return opened[-1]

    clock = Clock()
    with records.locked(tmp_path):
        monkeypatch.setattr(records, "time", clock)
        monkeypatch.setattr(Path, "open", watched)
        with pytest.raises(RecordError, match=f"^another process is training in {tmp_path}$"):
            records.locked(tmp_path)
        assert clock.pauses == [0.05] * 4  # at the third second it is tried once more
        assert [file.closed for file in opened] == [True]
    records.locked(tmp_path).close()
    assert len(clock.pauses) == 4


def test_without_locks_of_the_system_a_folder_is_used_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with records.locked(tmp_path) as one, records.locked(tmp_path) as two:
        assert not one.closed
        assert not two.closed

"""Caches of compiled code, of secagg and robust alike: numba reads them with pickle, so only ours may be read."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import robust.kernels.jit
import secagg.kernels.jit

ROOT = Path(__file__).resolve().parent.parent
USES = {
    "secagg": "import numpy, secagg.crypto as c; c.FixedPoint(clients=3, clip=1.0).encode(numpy.zeros(4))",
    "robust": "import numpy, robust; robust.mean(numpy.zeros((5, 6)))",
}
SAYS = {"secagg": "NoCacheWarning: secagg compiles its loops", "robust": "not kept: no safe cache directory"}


class Foreign:
    """A cache entry of somebody else: reading it writes a file."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, (str(self.trace),)


def use(package: str, cache: Path) -> str:
    """What a new process prints on standard error that uses the package with this cache."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(cache), "PYTHONWARNINGS": "default"}
    done = subprocess.run([sys.executable, "-c", USES[package]], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 or not cache.stat().st_mode & 0o022, done.stderr
    return done.stderr


@pytest.mark.parametrize("package", USES)
def test_a_cache_that_others_can_write_to_is_not_read(package: str, tmp_path: Path) -> None:
    cache, trace = tmp_path / "cache", tmp_path / "trace"
    cache.mkdir(mode=0o700)
    use(package, cache)
    entries = list(cache.rglob("*.nbi"))
    assert entries
    for entry in entries:
        entry.write_bytes(pickle.dumps(Foreign(trace)))
    cache.chmod(0o777)
    assert SAYS[package] in use(package, cache)
    assert not trace.exists()
    cache.chmod(0o700)
    use(package, cache)
    assert trace.exists()  # the entry is a working attack wherever the cache is read


@pytest.mark.parametrize("is_private", [secagg.kernels.jit.is_private, robust.kernels.jit.is_private])
def test_only_a_directory_that_nobody_else_can_change_is_private(
    is_private: Callable[[Path], bool], tmp_path: Path
) -> None:
    place = tmp_path / "above" / "cache"
    place.mkdir(parents=True, mode=0o755)
    (tmp_path / "above").chmod(0o755)
    place.chmod(0o755)
    assert is_private(place)
    for mode in (0o775, 0o757, 0o1777):
        place.chmod(mode)
        assert not is_private(place)
    place.chmod(0o700)
    (tmp_path / "above").chmod(0o777)
    assert not is_private(place)
    (tmp_path / "above").chmod(0o1777)  # sticky: others cannot rename what is ours
    assert is_private(place)
    (tmp_path / "above").chmod(0o755)
    if os.getuid() == 0:
        os.chown(place, 12345, -1)
        assert not is_private(place)
    (tmp_path / "link").symlink_to(place)
    assert is_private(tmp_path / "link") == is_private(place)

"""Importing and fetching data sets: whole and checked in their place, or not there at all."""

import functools
import gzip
import hashlib
import http.server
import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fl.data import DataError, available, data_folder, fetch, folder, import_folder, load, shakespeare
from tests.fl.test_data_formats import LONG, idx

IMAGES, LABELS = np.arange(3 * 784).reshape(3, 28, 28) % 256, np.array([1, 0, 9])
MNIST = {name: idx(IMAGES if "images" in name else LABELS) for name in folder.SOURCES["mnist"].files}
CIFAR = {name: bytes([number]) + bytes(3072) for number, name in enumerate(folder.SOURCES["cifar10"].files)}


def digests(files: dict[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


@pytest.fixture(autouse=True)
def small_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """The published checksums, replaced by those of the small files of these tests."""
    sources = folder.SOURCES
    monkeypatch.setitem(sources, "mnist", replace(sources["mnist"], files=digests(MNIST), largest=5000))
    monkeypatch.setitem(sources, "cifar10", replace(sources["cifar10"], files=digests(CIFAR), largest=4000))
    text = {"pg100.txt": shakespeare.fingerprint(LONG.encode())}
    monkeypatch.setitem(sources, "shakespeare", replace(sources["shakespeare"], files=text))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    chosen = tmp_path / "data"
    monkeypatch.setenv("SHARE_DATA", str(chosen))
    return chosen


@pytest.fixture
def offered(tmp_path: Path) -> Path:
    path = tmp_path / "offered"
    path.mkdir()
    return path


@pytest.fixture
def mirror(offered: Path) -> Iterator[str]:
    """A loopback server of the folder `offered`; `cut-` in a path breaks the reply off half way."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.path.startswith("/cut/"):
                super().do_GET()
                return
            content = (offered / self.path.removeprefix("/cut/")).read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2])

        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Handler, directory=str(offered))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def files_under(place: Path) -> list[str]:
    return sorted(str(p.relative_to(place)) for p in place.rglob("*") if p.is_file())


def tar_gz(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def offer_mnist(offered: Path) -> None:
    for name, content in MNIST.items():
        (offered / f"{name}.gz").write_bytes(gzip.compress(content))


def test_the_folder_is_the_argument_then_the_variable_then_the_users_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("SHARE_DATA", str(tmp_path / "named"))
    assert data_folder(tmp_path) == tmp_path
    assert data_folder() == tmp_path / "named"
    monkeypatch.delenv("SHARE_DATA")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert data_folder() == tmp_path / "xdg" / "share-secagg"


def test_only_digits_are_there_at_first(place: Path):
    assert {entry.name: entry.present for entry in available()} == {
        "digits": True,
        "mnist": False,
        "cifar10": False,
        "shakespeare": False,
    }


def test_a_missing_data_set_says_how_to_get_it(place: Path):
    with pytest.raises(DataError, match="share data fetch cifar10"):
        load("cifar10")


@pytest.mark.parametrize("prefix", ["", "MNIST/raw/"])
@pytest.mark.parametrize("packed", [False, True])
def test_import_finds_files_packed_or_not_in_folders_or_not(place: Path, offered: Path, prefix: str, packed: bool):
    for name, content in MNIST.items():
        target = offered / prefix / (f"{name}.gz" if packed else name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(gzip.compress(content) if packed else content)
    assert import_folder("mnist", offered) == place / "mnist"
    assert files_under(place) == sorted(f"mnist/{name}" for name in MNIST)
    assert load("mnist").train.labels.tolist() == LABELS.tolist()
    assert {entry.name for entry in available() if entry.present} == {"digits", "mnist"}


def test_import_reads_the_publishers_archives(place: Path, offered: Path):
    archive = offered / "cifar-10-binary.tar.gz"
    archive.write_bytes(tar_gz({f"cifar-10-batches-bin/{name}": content for name, content in CIFAR.items()}))
    import_folder("cifar10", archive)
    assert load("cifar10").train.labels.tolist() == [0, 1, 2, 3, 4]
    with zipfile.ZipFile(offered / "1994-01-100.zip", "w") as packed:
        packed.writestr("100.txt", LONG)
    import_folder("shakespeare", offered)
    assert len(load("shakespeare").roles or ()) == 4


def test_import_of_an_incomplete_folder_copies_nothing(place: Path, offered: Path):
    offer_mnist(offered)
    (offered / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match="does not contain t10k-labels-idx1-ubyte"):
        import_folder("mnist", offered)
    assert files_under(place) == []


def test_one_changed_byte_is_refused_on_import_and_on_loading(place: Path, offered: Path):
    for name, content in CIFAR.items():
        (offered / name).write_bytes(content)
    import_folder("cifar10", offered)
    damaged = CIFAR["test_batch.bin"][:-1] + b"\x01"
    (offered / "test_batch.bin").write_bytes(damaged)
    with pytest.raises(DataError, match=r"test_batch\.bin.*SHA-256"):
        import_folder("cifar10", offered)
    assert (place / "cifar-10-batches-bin" / "test_batch.bin").read_bytes() == CIFAR["test_batch.bin"]
    (place / "cifar-10-batches-bin" / "test_batch.bin").write_bytes(damaged)
    with pytest.raises(DataError, match="SHA-256"):
        load("cifar10")


def test_the_pickled_version_of_cifar_is_not_even_opened(place: Path, offered: Path):
    (offered / "data_batch_1").write_bytes(b"\x80\x04cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(DataError, match=r"does not contain data_batch_1\.bin"):
        import_folder("cifar10", offered)


def test_another_edition_of_shakespeare_is_refused(place: Path, offered: Path):
    (offered / "pg100.txt").write_text(LONG.replace("fool says", "fool sings"))
    with pytest.raises(DataError, match="is not the published"):
        import_folder("shakespeare", offered)
    (offered / "pg100.txt").write_bytes(b"\xff\xfe not text")
    with pytest.raises(DataError, match="is not the published"):
        import_folder("shakespeare", offered)


def test_importing_from_nowhere_or_an_unknown_name_is_refused(place: Path, offered: Path):
    with pytest.raises(DataError, match="there is no"):
        import_folder("mnist", offered / "missing")
    with pytest.raises(DataError, match="unknown data set 'digits'"):
        import_folder("digits", offered)


def test_an_archive_cannot_write_elsewhere(place: Path, offered: Path):
    members = {f"../../{name}": content for name, content in CIFAR.items()}
    archive = tar_gz({"../escaped": b"", str(offered.parent / "escaped"): b"", **members})
    (offered / "cifar-10-binary.tar.gz").write_bytes(archive)
    import_folder("cifar10", offered)
    assert files_under(place) == sorted(f"cifar-10-batches-bin/{name}" for name in CIFAR)
    assert not (offered.parent / "escaped").exists()


def test_a_packed_file_that_grows_too_large_is_refused(place: Path, offered: Path):
    offer_mnist(offered)
    (offered / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(50_000_000)))
    with pytest.raises(DataError, match="larger than 5000 bytes"):
        import_folder("mnist", offered)


def test_fetch_downloads_checks_and_reports_progress(place: Path, offered: Path, mirror: str):
    offer_mnist(offered)
    seen: list[tuple[str, int, int | None]] = []
    assert fetch("mnist", mirror, progress=lambda *step: seen.append(step)) == place / "mnist"
    assert files_under(place) == sorted(f"mnist/{name}" for name in MNIST)
    assert {name for name, _, _ in seen} == {f"{name}.gz" for name in MNIST}
    assert all(received <= (total or 0) for _, received, total in seen)
    assert len(load("mnist").test) == 3


def wrong_content(offered: Path) -> None:
    (offered / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(100)))


def damaged_gzip(offered: Path) -> None:
    file = offered / "t10k-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-20])


def missing_file(offered: Path) -> None:
    (offered / "t10k-images-idx3-ubyte.gz").unlink()


def too_long(offered: Path) -> None:
    (offered / "t10k-images-idx3-ubyte.gz").write_bytes(os.urandom((16 << 20) + 1))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [(wrong_content, "SHA-256"), (damaged_gzip, "damaged"), (missing_file, "404"), (too_long, "more than")],
)
def test_a_fetch_that_fails_leaves_nothing(
    place: Path, offered: Path, mirror: str, spoil: Callable[[Path], None], message: str
):
    offer_mnist(offered)
    spoil(offered)
    with pytest.raises(DataError, match=message):
        fetch("mnist", mirror)
    assert files_under(place) == []
    assert list(place.iterdir()) == []


def test_a_broken_connection_leaves_what_was_there(place: Path, offered: Path, mirror: str):
    offer_mnist(offered)
    fetch("mnist", mirror)
    with pytest.raises(DataError, match=r"ended after|could not download"):
        fetch("mnist", f"{mirror}/cut/")
    assert files_under(place) == sorted(f"mnist/{name}" for name in MNIST)
    assert len(load("mnist").test) == 3


def test_no_server_and_no_http_are_errors_that_name_the_address(place: Path):
    with pytest.raises(DataError, match=r"could not download http://127\.0\.0\.1:9/"):
        fetch("mnist", "http://127.0.0.1:9/")
    with pytest.raises(DataError, match="expected an http or https address"):
        fetch("mnist", "file:///etc/")


def test_kill_9_in_the_middle_of_a_download_leaves_nothing_in_place(tmp_path: Path):
    """A server that sends half of the archive and then waits; the fetching process is killed there."""
    half_sent, give_up = threading.Event(), threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "4000000")
            self.end_headers()
            self.wfile.write(bytes(2_000_000))
            self.wfile.flush()
            half_sent.set()
            give_up.wait(60)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        program = f"from fl.data import fetch; fetch('cifar10', 'http://127.0.0.1:{server.server_port}')"
        environment = {**os.environ, "SHARE_DATA": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
        process = subprocess.Popen([sys.executable, "-c", program], env=environment)
        assert half_sent.wait(60)
        process.send_signal(signal.SIGKILL)
        process.wait()
        give_up.set()
        server.shutdown()
    assert not (tmp_path / "cifar-10-batches-bin").exists()
    assert not next(entry for entry in available(tmp_path) if entry.name == "cifar10").present

"""The data folder: data sets that are not part of the package, downloaded or imported.

A file is written under a temporary name after its checksum was verified, and then renamed, so it is either complete or
absent. Nothing is unpickled. Only files with expected names are read from an archive, so it cannot write anywhere else.
"""

import gzip
import hashlib
import http.client
import io
import os
import sys
import tarfile
import tempfile
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from fl.data import shakespeare
from fl.data.images import CIFAR10_FILES, MNIST_FILES
from fl.errors import DataError

Progress = Callable[[str, int, int | None], None]
"""Called with the name of a file, the bytes received so far, and the expected number if it is known."""

TIMEOUT = 60.0
CHUNK = 1 << 20


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A data set that is not part of the package: its files and the publisher's address.

    `files` maps each file to its fingerprint. `downloads` are the publisher's file names under `url`.
    `aliases` are other names of the same file in archives.
    """

    about: str
    terms: str
    folder: str
    files: Mapping[str, str]
    largest: int
    url: str
    downloads: tuple[str, ...]
    largest_download: int
    aliases: Mapping[str, str] = field(default_factory=dict)
    fingerprint: Callable[[bytes], str] = sha256

    def target(self, name: str) -> str | None:
        """The file of this data set that `name` stands for, or None."""
        base = name.rsplit("/", 1)[-1]
        return base if base in self.files else self.aliases.get(base)


SOURCES: Final = {
    "mnist": Source(
        about="70,000 handwritten digits, 28x28 (LeCun, Cortes, Burges)",
        terms="see the publisher's page",
        folder="mnist",
        files=MNIST_FILES,
        largest=47_040_016,
        url="https://ossci-datasets.s3.amazonaws.com/mnist/",
        downloads=tuple(f"{name}.gz" for name in MNIST_FILES),
        largest_download=16 << 20,
    ),
    "cifar10": Source(
        about="60,000 colour images of ten things, 32x32 (Krizhevsky 2009), binary version",
        terms="cite Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images",
        folder="cifar-10-batches-bin",
        files=CIFAR10_FILES,
        largest=30_730_000,
        url="https://www.cs.toronto.edu/~kriz/",
        downloads=("cifar-10-binary.tar.gz",),
        largest_download=256 << 20,
    ),
    "shakespeare": Source(
        about="the plays, one role per client (Project Gutenberg's edition of 1994, as LEAF uses it)",
        terms="personal, non-commercial copies only",
        folder="shakespeare",
        files=shakespeare.FILES,
        largest=8 << 20,
        url="https://www.gutenberg.org/files/100/old/",
        downloads=("1994-01-100.zip",),
        largest_download=8 << 20,
        aliases={"100.txt": "pg100.txt"},
        fingerprint=shakespeare.fingerprint,
    ),
}


@dataclass(frozen=True, slots=True)
class Availability:
    """One line of `share data list`."""

    name: str
    about: str
    terms: str
    present: bool
    path: Path | None


def data_folder(folder: Path | str | None = None) -> Path:
    """The given folder, or else the folder in SHARE_DATA, or else the user's data folder."""
    if folder is not None:
        return Path(folder)
    if named := os.environ.get("SHARE_DATA"):
        return Path(named)
    if sys.platform == "win32":
        home = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        home = Path.home() / "Library" / "Application Support"
    else:
        home = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return home / "share-secagg"


def available(folder: Path | str | None = None) -> list[Availability]:
    """All data sets that can be loaded by name, and whether their files exist. Loading checks the files."""
    place = data_folder(folder)
    about = "1,797 handwritten digits, 8x8 (Alpaydin and Kaynak 1998), part of this package"
    found = [Availability("digits", about, "CC BY 4.0", present=True, path=None)]
    for name, source in SOURCES.items():
        here = place / source.folder
        present = all((here / file).is_file() for file in source.files)
        found.append(Availability(name, source.about, source.terms, present, here if present else None))
    return found


def read(name: str, folder: Path | str | None = None) -> dict[str, bytes]:
    """The contents of a data set's files, each checked against its fingerprint."""
    source = _source(name)
    place = data_folder(folder) / source.folder
    contents = {}
    for file in source.files:
        try:
            contents[file] = (place / file).read_bytes()
        except FileNotFoundError:
            raise DataError(
                f"{name} is not in {place}: download it with `share data fetch {name}`, or copy it with "
                f"`share data import {name} FOLDER`"
            ) from None
        _check(source, file, contents[file], str(place / file))
    return contents


def import_folder(name: str, path: Path | str, *, folder: Path | str | None = None) -> Path:
    """Copy a data set from a folder or from the publisher's archive to the data folder.

    Files may be up to three folders deep, compressed or not. Returns the folder of the copies.
    """
    source, origin = _source(name), Path(path)
    if not origin.exists():
        raise DataError(f"there is no file or folder {origin}")
    offers = [origin] if origin.is_file() else sorted(p for depth in ("*", "*/*", "*/*/*") for p in origin.glob(depth))
    return _install(source, (p for p in offers if p.is_file()), data_folder(folder), str(origin))


def fetch(
    name: str, url: str | None = None, *, folder: Path | str | None = None, progress: Progress | None = None
) -> Path:
    """Download a data set from its publisher, or from a mirror of the publisher's files under `url`."""
    source = _source(name)
    base = url or source.url
    if urllib.parse.urlsplit(base).scheme not in ("http", "https"):
        raise DataError(f"expected an http or https address, got {base}")
    place = data_folder(folder)
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=place) as temporary:
        received = [Path(temporary) / download for download in source.downloads]
        for file in received:
            _download(f"{base.rstrip('/')}/{file.name}", file, source.largest_download, progress)
        return _install(source, iter(received), place, base)


def _source(name: str) -> Source:
    if name not in SOURCES:
        raise DataError(f"unknown data set {name!r}: expected one of {', '.join(SOURCES)}")
    return SOURCES[name]


def _check(source: Source, file: str, content: bytes, where: str) -> None:
    try:
        found = source.fingerprint(content)
    except ValueError as error:
        raise DataError(f"{where} is not the published {file}: {error}") from error
    if found != source.files[file]:
        raise DataError(f"{where} is not the published {file}: SHA-256 {found}, expected {source.files[file]}")


def _install(source: Source, offers: Iterator[Path], place: Path, origin: str) -> Path:
    """Write all files of the data set, or none if one is missing or wrong."""
    found: dict[str, bytes] = {}
    for offer in offers:
        try:
            for file, content in _unpack(source, offer):
                if file not in found:
                    _check(source, file, content, f"{file} in {offer}")
                    found[file] = content
        except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise DataError(f"{offer} is damaged: {error}") from error
    if missing := [file for file in source.files if file not in found]:
        raise DataError(f"{origin} does not contain {', '.join(missing)}")
    target = place / source.folder
    target.mkdir(parents=True, exist_ok=True)
    for file, content in found.items():
        _write(target / file, content)
    return target


def _unpack(source: Source, offer: Path) -> Iterator[tuple[str, bytes]]:
    """(file of the data set, content) for each such file at this path."""
    if file := source.target(offer.name.removesuffix(".gz")):
        with gzip.open(offer) if offer.name.endswith(".gz") else offer.open("rb") as stream:
            yield file, _read_all(stream, source.largest, offer)
    elif offer.name in source.downloads and offer.name.endswith(".tar.gz"):
        with tarfile.open(offer, "r:gz") as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isreg() else None
                if content is not None and (file := source.target(member.name)):
                    yield file, _read_all(content, source.largest, offer)
    elif offer.name in source.downloads and offer.name.endswith(".zip"):
        with zipfile.ZipFile(offer) as packed:
            for name in packed.namelist():
                if file := source.target(name):
                    with packed.open(name) as stream:
                        yield file, _read_all(stream, source.largest, offer)


def _read_all(stream: IO[bytes] | io.BufferedIOBase, largest: int, offer: Path) -> bytes:
    content = stream.read(largest + 1)
    if len(content) > largest:
        raise DataError(f"a file in {offer} is larger than {largest} bytes, the most that is expected")
    return content


def _download(url: str, file: Path, largest: int, progress: Progress | None) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "share-secagg"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as reply, file.open("wb") as out:
            length = reply.headers.get("Content-Length")
            expected = int(length) if length and length.isdigit() else None
            received = 0
            while chunk := reply.read(CHUNK):
                out.write(chunk)
                received += len(chunk)
                if received > largest:
                    raise DataError(f"{url} sent more than {largest} bytes, the most that is expected")
                if progress is not None:
                    progress(file.name, received, expected)
    except (OSError, http.client.HTTPException) as error:  # URLError and time-outs are OSErrors
        raise DataError(f"could not download {url}: {error}") from error
    if expected is not None and received != expected:
        raise DataError(f"the download of {url} ended after {received} of {expected} bytes")


def _write(path: Path, content: bytes) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise

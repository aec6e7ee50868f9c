"""The wheel works where only what it declares is installed: without an extra, with `fl`, with `flower`.

Each environment is the unpacked wheel and a folder with links to exactly the distributions that its metadata asks for.
Python runs without its own site-packages, so nothing else can be imported.
"""

import subprocess
import sys
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
NAME = "share-secagg"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    names = listed.stdout.split() if listed.returncode == 0 else []
    kept = names or [str(p.relative_to(ROOT)) for p in ROOT.rglob("*") if p.is_file() and _belongs(p)]
    for name in kept:
        if (ROOT / name).is_file() and not name.startswith("tests/"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*command, str(source)], check=True)
    return next(folder.glob("*.whl"))


def _belongs(path: Path) -> bool:
    top = path.relative_to(ROOT).parts[0]
    return "__pycache__" not in path.parts and (top in ("secagg", "robust", "fl") or path.parent == ROOT)


def needed(here: Distribution, extras: frozenset[str], found: dict[str, Distribution]) -> dict[str, Distribution]:
    """Every installed distribution that this one asks for, and what those ask for in turn."""
    found[here.name.lower()] = here
    for text in here.requires or ():
        requirement = Requirement(text)
        wanted = any(requirement.marker.evaluate({"extra": e}) for e in extras | {""}) if requirement.marker else True
        if not wanted or (requirement.name.lower() in found and not requirement.extras):
            continue
        itself = requirement.name == NAME  # one extra that includes another
        try:
            needed(here if itself else distribution(requirement.name), frozenset(requirement.extras), found)
        except PackageNotFoundError:
            pytest.fail(f"{here.name} asks for {requirement}, which is not installed")
    return found


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files, for all environments: what is compiled for one is there for the next."""
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run(unpacked: Path, links: Path, extra: str, code: str) -> subprocess.CompletedProcess[str]:
    """Run this code with the wheel and what it declares for this extra."""
    itself = Distribution.at(next(unpacked.glob("*.dist-info")))
    found = needed(itself, frozenset({extra} if extra else ()), {})
    del found[NAME]
    for one in found.values():
        for top in {path.parts[0] for path in one.files or () if path.parts[0] not in ("..", "__pycache__")}:
            if not (links / top).exists():
                (links / top).symlink_to(Path(str(one.locate_file(top))))
    paths = f"import sys; sys.path += [{str(unpacked)!r}, {str(links)!r}]\n"
    command = [sys.executable, "-I", "-S", "-c", paths + code]
    return subprocess.run(command, capture_output=True, text=True, cwd=links, check=False)


SECAGG = """
import numpy as np, secagg
assert secagg.secure_sum([[1, 2], [3, 4], [5, 6]]).tolist() == [9, 12]
assert secagg.__version__
import robust
assert robust.median(np.eye(3)).tolist() == [0, 0, 0]
"""
FL = """
import sys, fl.reporting.picture, fl.sweeps.sweep, fl.training.loop
from fl.cli import main
sys.exit(main(["plan", "--help"]))
"""
NET = "import secagg.net; from secagg.cli.main import main; main(['serve', '--help'])"
FLOWER = "from fl.flower import client_app, server_app; import fl.cli; fl.cli.main(['--help'])"


@pytest.mark.parametrize(("extra", "code"), [("", SECAGG), ("net", NET), ("fl", FL), ("flower", FLOWER)])
def test_the_wheel_works_with_what_it_declares(unpacked: Path, tmp_path: Path, extra: str, code: str) -> None:
    done = run(unpacked, tmp_path, extra, code)
    assert done.returncode == 0, done.stderr


def test_without_the_extra_the_command_names_it(unpacked: Path, tmp_path: Path) -> None:
    done = run(unpacked, tmp_path, "", "import sys; from fl.cli import main; sys.exit(main(['quickstart']))")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "pip install '.[fl]'" in done.stderr or "share-secagg[fl]" in done.stderr


def test_without_the_extra_the_network_commands_name_it(unpacked: Path, tmp_path: Path) -> None:
    code = "import sys; from secagg.cli.main import main; sys.exit(main(['serve', 'study.toml', 'hub']))"
    done = run(unpacked, tmp_path, "", code)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "share-secagg[net]" in done.stderr


def test_the_wheel_holds_the_packages_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"secagg", "robust", "fl"}

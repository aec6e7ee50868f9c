"""Who may import whom, and what an import costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = {
    "secagg": {"secagg", "numpy", "numba", "llvmlite", "cryptography", "nacl", "matplotlib"},
    "robust": {"robust", "numpy", "numba", "llvmlite"},
}


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("package", ALLOWED)
def test_package_imports_only_what_it_may(package: str) -> None:
    for path in sorted((ROOT / package).rglob("*.py")):
        foreign = imports_of(path) - set(sys.stdlib_module_names) - ALLOWED[package]
        assert not foreign, path


def test_training_knows_secagg_through_one_file_and_only_the_engine_over_flower_speaks_it() -> None:
    using = {p.relative_to(ROOT / "fl") for p in (ROOT / "fl").rglob("*.py") if "secagg" in imports_of(p)}
    assert {str(p) for p in using if p.parts[0] != "flower"} <= {"secure/layout.py", "planner.py"}


def test_only_the_engine_over_flower_imports_flower() -> None:
    using = {p.relative_to(ROOT / "fl") for p in (ROOT / "fl").rglob("*.py") if "flwr" in imports_of(p)}
    assert {p.parts[0] for p in using} == {"flower"}


def test_importing_secagg_loads_neither_torch_nor_numba_nor_the_other_packages() -> None:
    check = (
        "import sys, secagg; "
        "loaded = {'torch', 'robust', 'fl', 'numba', 'matplotlib'} & set(sys.modules); "
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", check], check=True, cwd=ROOT)


def test_importing_robust_loads_neither_torch_nor_the_other_packages() -> None:
    check = "import sys, robust; assert not {'torch', 'secagg', 'fl'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, cwd=ROOT)


def test_each_module_of_secagg_imports_alone() -> None:
    files = sorted(path.relative_to(ROOT / "secagg") for path in (ROOT / "secagg").rglob("*.py"))
    names = [".".join(path.with_suffix("").parts) for path in files if not path.stem.startswith("__")]
    check = f"""
import importlib, sys
for name in {names}:
    for loaded in [m for m in sys.modules if m.split(".")[0] == "secagg"]:
        del sys.modules[loaded]
    sys.modules["secagg"] = package = type(sys)("secagg")  # without what __init__ would have imported first
    package.__path__ = ["secagg"]
    importlib.import_module("secagg." + name)
"""
    subprocess.run([sys.executable, "-c", check], check=True, cwd=ROOT)


def test_nothing_in_the_packages_loads_a_pickle() -> None:
    for package in ("secagg", "robust", "fl"):
        for path in (ROOT / package).rglob("*.py"):
            assert not imports_of(path) & {"pickle", "cPickle", "dill", "joblib", "shelve"}, path
            source = path.read_text()
            assert "torch.load(" not in source, path
            assert "allow_pickle=True" not in source, path


def test_no_other_generator_is_near_a_mask_or_a_share() -> None:
    for path in (ROOT / "secagg").rglob("*.py"):
        assert "random" not in imports_of(path), path
        assert "np.random" not in path.read_text(), path

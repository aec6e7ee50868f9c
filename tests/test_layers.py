"""Which module may import which, and what an import may load.

`LAYERS` is the one place where the layers are written down. The tests read every import in the sources,
also inside functions and under `if TYPE_CHECKING`: a lazy import only hides a cycle until it runs, and a
module depends on the types that it names. The public names of a package are re-exported by its `__init__`,
so `from secagg.protocol import Plan` counts as an import of `secagg.protocol` itself, and
`from secagg.agreement import plan` as an import of the module `secagg.agreement.plan`.
"""

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Lowest layer first. A module imports from its own room and from rooms in lower layers, not from another room
# of its own layer. The longest name that fits a module says which room it is in.
LAYERS = {
    "secagg": (
        ("secagg.errors", "secagg.labels", "secagg.types"),
        ("secagg.arguments",),
        ("secagg.kernels",),
        ("secagg.crypto", "secagg.exposure", "secagg.codec", "secagg.privacy"),
        ("secagg.agreement",),
        ("secagg.evidence",),  # knows the agreement, and neither the server nor the clients
        ("secagg.protocol",),
        ("secagg.whole",),
        ("secagg.statistics",),
        ("secagg.simulation", "secagg.reference"),
        ("secagg.net",),
        ("secagg.compilation",),
        ("secagg",),  # the public names
        ("secagg.cli",),
        ("secagg.__main__",),
    ),
    "robust": (
        ("robust.kernels",),
        ("robust.rows", "robust.parameters"),
        ("robust.geometry", "robust.rule"),
        ("robust.subsets", "robust.zeno", "robust.attacks"),
        ("robust.aggregators",),
        ("robust.pre_aggregators", "robust.tolerance"),
        ("robust",),  # the public names
    ),
    "fl": (
        ("fl.errors",),
        ("fl.config",),
        ("fl.data",),
        ("fl.secure",),
        ("fl.config.checks",),
        ("fl.reporting",),
        ("fl.exports",),
        ("fl.training",),
        ("fl.sweeps",),
        ("fl",),  # the public names
        ("fl.placement",),
        ("fl.planner", "fl.flower"),
        ("fl.plan_text",),
        ("fl.quickstart", "fl.reproduction"),
        ("fl.cli",),
        ("fl.__main__",),
    ),
}
MAY_USE = {"secagg": (), "robust": (), "fl": ("secagg", "robust")}  # packages of this repository
PUBLIC = (
    "secagg",
    "secagg.crypto",
    "secagg.exposure",
    "secagg.protocol",
    "secagg.simulation",
    "secagg.agreement",
    "secagg.whole",
    "secagg.evidence",
    "secagg.net",
    "secagg.privacy",
    "secagg.statistics",
    "robust",
    "robust.tolerance",
)
THIRD_PARTY = {  # a module may import the packages of every line that its name begins with
    "secagg": {"numpy"},
    "secagg.kernels": {"numba", "llvmlite"},
    "secagg.crypto": {"cryptography", "nacl"},
    "secagg.reference": {"cryptography"},
    "secagg.net": {"aiohttp"},
    "secagg.cli": {"matplotlib"},
    "robust": {"numpy"},
    "robust.kernels": {"numba", "llvmlite"},
    "fl": {"numpy", "torch"},
    "fl.config": {"msgspec", "tomli_w"},
    "fl.training.convolution": {"numba", "llvmlite"},
    "fl.reporting": {"jinja2", "markupsafe", "matplotlib", "rich", "safetensors"},
    "fl.reproduction": {"jinja2", "markupsafe", "matplotlib"},
    "fl.exports": {"mlflow"},
    "fl.flower": {"aiohttp", "cryptography", "flwr", "httpx"},
}


@dataclass(frozen=True)
class Import:
    """One imported module (and name) in one line of a source file."""

    importer: str
    place: str  # file:line
    module: str
    name: str | None

    def __str__(self) -> str:
        return f"{self.place}: {self.importer} imports {self.module}{'.' + self.name if self.name else ''}"


class Tree:
    """The modules of some packages below a folder, and what they import."""

    def __init__(self, root: Path) -> None:
        self.root, self.files = root, dict[str, Path]()
        for path in sorted(path for package in LAYERS for path in (root / package).rglob("*.py")):
            name = ".".join(path.relative_to(root).with_suffix("").parts)
            self.files[name.removesuffix(".__init__")] = path
        self.imports = [found for module in self.files for found in self._imports_of(module)]

    def _imports_of(self, importer: str) -> Iterator[Import]:
        path = self.files[importer]
        package = importer if path.stem == "__init__" else importer.rpartition(".")[0]
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[tuple[str, str | None]] = []
            match node:
                case ast.Import():
                    names = [(alias.name, None) for alias in node.names]
                case ast.ImportFrom(level=0, module=str(module)):
                    names = [(module, alias.name) for alias in node.names]
                case ast.ImportFrom(level=level, module=module):
                    base = package.rsplit(".", level - 1)[0] + (f".{module}" if module else "")
                    names = [(base, alias.name) for alias in node.names]
                case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=module)]):
                    names = [(module, None)]
            for module, name in names:
                place = f"{path.relative_to(self.root)}:{node.lineno}"
                if f"{module}.{name}" in self.files:
                    module, name = f"{module}.{name}", None
                yield Import(importer, place, module, name)

    def cycle(self) -> list[Import]:
        """The imports that make up a cycle between modules, if there is one."""
        inside = [found for found in self.imports if found.module in self.files]
        done: set[str] = set()

        def visit(module: str, path: list[Import]) -> list[Import]:
            for found in inside:
                if found.importer == module and found.module not in done:
                    names = [step.importer for step in path] + [module]
                    if found.module in names:
                        return [*path, found][names.index(found.module) :]
                    if cycle := visit(found.module, [*path, found]):
                        return cycle
            done.add(module)
            return []

        return next((cycle for module in self.files if (cycle := visit(module, []))), [])

    def upward(self) -> list[str]:
        """Every import that goes up, sideways or to another package, with what to change."""
        return [
            f"{found}, which {why}: move what both need to a lower layer, or change LAYERS"
            for found in self.imports
            if found.module in self.files and (why := wrong_direction(found.importer, found.module))
        ]

    def foreign(self) -> list[str]:
        """Every import of a package that the room may not use."""
        return [
            f"{found}: not among the packages that THIRD_PARTY allows there"
            for found in self.imports
            if (package := found.module.partition(".")[0]) not in (*sys.stdlib_module_names, *LAYERS)
            and not any(within(found.importer, room) for room, names in THIRD_PARTY.items() if package in names)
        ]


def within(module: str, room: str) -> bool:
    return f"{module}.".startswith(f"{room}.")


def layer_of(module: str) -> tuple[int, str]:
    """The layer (0 is the lowest) and the room of a module. A package's own name fits its `__init__` only."""
    rooms = [
        (level, room)
        for level, layer in enumerate(LAYERS[module.partition(".")[0]])
        for room in layer
        if (within(module, room) if "." in room else module == room)
    ]
    assert rooms, f"{module} is in no layer: add it to LAYERS in tests/test_layers.py"
    return max(rooms, key=lambda found: len(found[1]))


def wrong_direction(importer: str, imported: str) -> str:
    """Why one module may not import another; empty if it may."""
    ours, theirs = importer.partition(".")[0], imported.partition(".")[0]
    if ours != theirs:
        return "" if theirs in MAY_USE[ours] else f"{ours} must not know"
    (level, room), (target, other) = layer_of(importer), layer_of(imported)
    if room == other or target < level:
        return ""
    return f"lies in a higher layer than {room}" if target > level else f"lies in the same layer as {room}"


@cache
def tree() -> Tree:
    return Tree(ROOT)


def test_imports_go_down_the_layers() -> None:
    assert "\n".join(tree().upward()) == ""


def test_no_modules_import_each_other_in_a_cycle() -> None:
    assert "\n".join(map(str, tree().cycle())) == ""


def test_only_allowed_packages_are_imported() -> None:
    assert "\n".join(tree().foreign()) == ""


def names_used(module: str) -> Iterator[tuple[str, str, str]]:
    """(place, module, name) of every name of secagg and robust that a module of fl uses."""
    path = tree().files[module]
    for found in tree().imports:
        if found.importer == module and found.module.partition(".")[0] in MAY_USE["fl"]:
            if found.name:
                yield found.place, found.module, found.name
            elif found.module not in PUBLIC:
                yield found.place, *found.module.rsplit(".", 1)
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Attribute(value=ast.Name(id="secagg" | "robust" as package), attr=name):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", package, name


def test_fl_uses_only_public_names_of_secagg_and_robust() -> None:
    wrong = []
    for module in tree().files:
        for place, owner, name in names_used(module) if within(module, "fl") else ():
            public = owner in PUBLIC and name in importlib.import_module(owner).__all__
            if not public:
                wrong.append(f"{place}: {owner}.{name} is not in __all__ of a public package (PUBLIC)")
    assert "\n".join(wrong) == ""


def made_up(root: Path, files: Mapping[str, str]) -> Tree:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Tree(root)


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("secagg/crypto/box.py", "from secagg.agreement.plan import Plan", "a higher layer than secagg.crypto"),
        ("secagg/crypto/box.py", "def f():\n    from secagg.agreement import plan", "a higher layer"),
        ("secagg/crypto/box.py", "if TYPE_CHECKING:\n    import secagg.agreement.plan", "a higher layer"),
        ("secagg/crypto/box.py", "from ..agreement import plan", "a higher layer"),
        ("secagg/crypto/box.py", "importlib.import_module('secagg.agreement.plan')", "a higher layer"),
        ("secagg/crypto/box.py", "from secagg import Plan", "a higher layer"),
        ("secagg/crypto/box.py", "from secagg.exposure import audit", "lies in the same layer"),
        ("robust/rule.py", "import secagg.errors", "which robust must not know"),
        ("secagg/cli/main.py", "import fl.data", "which secagg must not know"),
    ],
)
def test_an_import_in_the_wrong_direction_is_found(tmp_path: Path, file: str, text: str, problem: str) -> None:
    others = ("secagg/__init__.py", "secagg/agreement/plan.py", "secagg/exposure/audit.py", "secagg/errors.py")
    tree = made_up(tmp_path, {**dict.fromkeys((*others, "fl/data.py"), ""), file: text})
    [found] = tree.upward()
    assert found.startswith(f"{file}:{text.count(chr(10)) + 1}: ")
    assert problem in found


def test_downward_imports_and_the_own_room_are_fine(tmp_path: Path) -> None:
    text = "from secagg.crypto.box import x\nfrom secagg.codec import y\nimport secagg.errors"
    files = ("secagg/crypto/box.py", "secagg/codec.py", "secagg/errors.py")
    tree = made_up(tmp_path, {**dict.fromkeys(files, ""), "secagg/agreement/plan.py": text})
    assert (tree.upward(), tree.cycle(), tree.foreign()) == ([], [], [])


def test_a_cycle_inside_one_room_is_found_even_if_an_import_is_lazy(tmp_path: Path) -> None:
    files = {
        "fl/data/a.py": "from fl.data import b",
        "fl/data/b.py": "from fl.data.c import x",
        "fl/data/c.py": "def f():\n    import fl.data.a",
        "fl/data/d.py": "import fl.data.a",
    }
    cycle = made_up(tmp_path, files).cycle()
    assert [found.place for found in cycle] == ["fl/data/a.py:1", "fl/data/b.py:1", "fl/data/c.py:2"]


def test_a_module_that_imports_from_its_own_package_makes_a_cycle(tmp_path: Path) -> None:
    files = {"robust/__init__.py": "from robust.rule import x", "robust/rule.py": "from robust import x"}
    assert len(made_up(tmp_path, files).cycle()) == 2


def test_a_package_that_the_room_may_not_use_is_found(tmp_path: Path) -> None:
    text = "import os, numpy\nimport numba"
    tree = made_up(tmp_path, {"secagg/kernels/aes.py": text, "secagg/crypto/box.py": text})
    [found] = tree.foreign()
    assert found.startswith("secagg/crypto/box.py:2: secagg.crypto.box imports numba")


@pytest.mark.parametrize(
    ("package", "unwanted"),
    [
        ("secagg", {"numpy", "cryptography", "secagg.agreement", "secagg.protocol"}),  # names load when they are used
        ("secagg.simulation", {"torch", "robust", "fl", "numba", "matplotlib", "aiohttp", "asyncio"}),
        ("secagg.crypto", {"secagg.agreement", "secagg.protocol"}),
        ("robust", {"torch", "secagg", "fl"}),
    ],
)
def test_importing_a_package_does_not_load(package: str, unwanted: set[str]) -> None:
    check = f"import sys, {package}; loaded = {unwanted!r} & set(sys.modules); assert not loaded, loaded"
    subprocess.run([sys.executable, "-c", check], check=True, cwd=ROOT)


def test_nothing_loads_a_pickle() -> None:
    pickles = {"pickle", "cPickle", "dill", "joblib", "shelve"}
    assert [str(found) for found in tree().imports if found.module.partition(".")[0] in pickles] == []
    for path in tree().files.values():
        source = path.read_text()
        assert "torch.load(" not in source, path
        assert "allow_pickle=True" not in source, path


def test_secagg_uses_no_other_random_generator_for_masks_and_shares() -> None:
    random = [found for found in tree().imports if found.module == "random" and within(found.importer, "secagg")]
    assert random == []
    for name, path in tree().files.items():
        assert not within(name, "secagg") or "np.random" not in path.read_text(), path

"""Build docs/api/ from the docstrings of all public names: `python -m tests.api`.

A public name is in `__all__` of one of `PACKAGES`. Each package becomes one page. `test_api.py` compares the
pages with the code and runs the examples.
"""

import dataclasses
import enum
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "api"
PACKAGES = (
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
    "fl",
)
INTRO = "Made from the docstrings by `python -m tests.api`. [All pages](README.md)."


def public_names(package: str) -> Iterator[tuple[str, object]]:
    """Each public name of a package with its object, in the order of the alphabet."""
    module = importlib.import_module(package)
    for name in sorted(module.__all__, key=str.lower):
        yield name, getattr(module, name)


def documented(thing: object) -> bool:
    """Whether a public object carries a docstring of its own: constants and type aliases do not, rules do."""
    return inspect.isclass(thing) or inspect.isroutine(thing) or "__signature__" in getattr(thing, "__dict__", ())


def pages() -> dict[str, str]:
    """File name and text of every page."""
    home: dict[int, str] = {}
    made = {}
    for package in PACKAGES:
        made[f"{package}.md"] = _page(package, home)
    lines = ["# API reference", "", "One page per package. What these pages list is public; nothing else is.", ""]
    for package in PACKAGES:
        summary = _first_line(importlib.import_module(package).__doc__ or "")
        lines.append(f"- [`{package}`]({package}.md): {summary}")
    made["README.md"] = "\n".join(lines) + "\n"
    return made


def _page(package: str, home: dict[int, str]) -> str:
    lines = [f"# `{package}`", "", INTRO, "", _prose(inspect.getdoc(importlib.import_module(package)) or ""), ""]
    for name, thing in public_names(package):
        if documented(thing) and id(thing) in home:
            lines += [f"## `{name}`", "", f"See [`{home[id(thing)]}`]({home[id(thing)].rpartition('.')[0]}.md).", ""]
            continue
        home[id(thing)] = f"{package}.{name}"
        lines += _entry(name, thing)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def _entry(name: str, thing: object) -> list[str]:
    if isinstance(thing, ModuleType):
        return [f"## `{name}`", "", f"Module: {_first_line(thing.__doc__ or '')}", ""]
    if not documented(thing):
        shown = thing if isinstance(thing, str | int | float | tuple | frozenset) else type(thing).__name__
        return [f"## `{name}`", "", f"`{shown}`"[:200], ""]
    lines = [
        f"## `{name}`",
        "",
        "```python",
        _signature(name, thing),
        "```",
        "",
        _prose(inspect.getdoc(thing) or ""),
        "",
    ]
    if inspect.isclass(thing):
        for member, value in _members(thing):
            lines += [f"**`{member}`**: {_prose(inspect.getdoc(value) or '')}", ""]
    return lines


def _members(thing: type) -> Iterator[tuple[str, object]]:
    """Public methods and properties that a class of ours defines or inherits from one of ours."""
    for name, value in inspect.getmembers_static(thing):
        owner = next((base for base in thing.__mro__ if name in vars(base)), object)
        ours = owner.__module__.partition(".")[0] in ("secagg", "robust", "fl")
        if name.startswith("_") or not ours:
            continue
        if isinstance(value, property):
            yield name, value
        elif isinstance(value, staticmethod | classmethod) or inspect.isfunction(value):
            function = getattr(thing, name)
            yield _signature(name, function), function


def _signature(name: str, thing: object) -> str:
    if inspect.isclass(thing) and issubclass(thing, enum.Enum):
        return f"class {name}({', '.join(member.name for member in thing)})"
    try:
        text = str(inspect.signature(thing))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        text = "(...)"
    text = re.sub(r"<(?:built-in )?function ([\w.]+)(?: at 0x[0-9a-f]+)?>", r"\1", text)
    text = re.sub(r"<([\w.]+) object at 0x[0-9a-f]+>", r"\1()", text).replace("<factory>", "...")
    prefix = "class " if inspect.isclass(thing) else ""
    if dataclasses.is_dataclass(thing):
        text = text.removesuffix(" -> None")
    return f"{prefix}{name}{text}".replace("'", "").replace('"', "'")


def _prose(text: str) -> str:
    """A docstring as Markdown: examples become code blocks."""
    out, inside = [], False
    for line in text.splitlines():
        example = line.lstrip().startswith(">>>")
        if example and not inside:
            out += ["", "```pycon"]
            inside = True
        if inside and not line.strip():
            out.append("```")
            inside = False
        out.append(line.strip() if inside else line)
    if inside:
        out.append("```")
    return "\n".join(out)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.md"):
        old.unlink()
    for name, text in pages().items():
        (FOLDER / name).write_text(text)
    print(f"{FOLDER}: {len(PACKAGES) + 1} pages")
    return 0


if __name__ == "__main__":
    sys.exit(main())

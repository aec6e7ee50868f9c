"""The reference of all keys, as text for a terminal and as Markdown for docs/configuration.md."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

from fl.config.schema import Experiment, Key, Section, is_section, keys

NOT_SET = "not set"


def sections(section: type[Section] = Experiment, path: str = "") -> Iterator[tuple[str, str, list[Key]]]:
    """(dotted path, description, keys) of each section. The path of an array of tables ends in []."""
    found = keys(section).values()
    yield path, (section.__doc__ or "").partition("\n")[0], [key for key in found if not is_section(key.kind)]
    for key in found:
        inner, suffix = key.kind, ""
        if get_origin(inner) is tuple:
            inner, suffix = get_args(inner)[0], "[]"
        if is_section(inner):
            yield from sections(inner, f"{path}.{key.name}{suffix}".removeprefix("."))


def _name(path: str, key: Key) -> str:
    return f"{path}.{key.name}".removeprefix(".")


def _kind(kind: Any) -> str:
    if get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        return "tables" if is_section(inner) else f"list of {_kind(inner)}s"
    if get_origin(kind) is Mapping:
        return "table"
    return {bool: "true/false", int: "integer", float: "number", str: "text"}[kind]


def _default(key: Key) -> str:
    return NOT_SET if key.default is None else json.dumps(key.default)


def _about(key: Key) -> str:
    choices = f"; one of {', '.join(f'`{choice}`' for choice in key.choices)}" if key.choices else ""
    return key.about + choices + (", or your own as `module:function`" if key.or_path else "")


def describe() -> str:
    """The reference as plain text."""
    lines: list[str] = []
    for path, about, found in sections():
        lines += ["", f"[{path}]  {about}" if path else about]
        for key in found:
            lines.append(f"  {_name(path, key)} ({_kind(key.kind)}; {_default(key)})")
            lines.append(f"      {_about(key).replace('`', '')}")
    return "\n".join(lines).strip() + "\n"


def describe_markdown() -> str:
    """The reference as docs/configuration.md."""
    lines = [
        "# Configuration",
        "",
        "This page is generated from `fl/config/schema.py` by `share config --describe --markdown`.",
        "",
        "All keys are optional. To change a key on the command line, use its dotted name:",
        "`share train FILE.toml --set clusters.size=5`.",
    ]
    for path, about, found in sections():
        name = path.removesuffix("[]")
        title = "Top level" if not path else f"`[{name}]`" if name == path else f"`[[{name}]]`"
        lines += ["", f"## {title}", "", about, "", "| key | type | default | meaning |", "|---|---|---|---|"]
        for key in found:
            default = _default(key) if key.default is None else f"`{_default(key)}`"
            lines.append(f"| `{_name(path, key)}` | {_kind(key.kind)} | {default} | {_about(key)} |")
    return "\n".join(lines) + "\n"

"""The reference of all keys, as text for a terminal and as Markdown for docs/configuration.md."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, get_args, get_origin

from fl.config.schema import Experiment, Key, Section, is_section, keys


class Entry(NamedTuple):
    """One key in the reference."""

    name: str
    kind: str
    default: str
    about: str
    unset: bool


class Table(NamedTuple):
    """One section in the reference. The path of an array of tables ends in []."""

    path: str
    about: str
    entries: list[Entry]


def reference(section: type[Section] = Experiment, path: str = "") -> list[Table]:
    """All sections with their keys, in the order of the schema."""
    entries: list[Entry] = []
    inner: list[Table] = []
    for key in keys(section).values():
        full = f"{path}.{key.name}" if path else key.name
        if is_section(key.kind):
            inner += reference(key.kind, full)
            continue
        entries.append(_entry(full, key))
        arguments = get_args(key.kind)
        if arguments and is_section(arguments[0]):
            inner += reference(arguments[0], f"{full}[]")
    return [Table(path, (section.__doc__ or "").strip(), entries), *inner]


def _entry(full: str, key: Key) -> Entry:
    about = key.meta.description or ""
    if key.choices:
        about += f"; one of {', '.join(f'`{choice}`' for choice in key.choices)}"
    if key.or_path:
        about += ", or your own as `module:function`"
    default = key.unset or json.dumps(key.default)
    return Entry(full, _kind(key.kind), default, about, bool(key.unset))


def _kind(kind: Any) -> str:
    if get_origin(kind) is tuple:
        (inner, _) = get_args(kind)
        return "tables" if is_section(inner) else f"list of {_kind(inner)}s"
    if get_origin(kind) is Mapping:
        return "table"
    return {bool: "true/false", int: "integer", float: "number", str: "text"}[kind]


def describe() -> str:
    """The reference as plain text."""
    lines: list[str] = []
    for path, about, entries in reference():
        lines += ["", f"[{path}]  {about}" if path else about]
        for entry in entries:
            lines.append(f"  {entry.name} ({entry.kind}; {entry.default})")
            lines.append(f"      {entry.about.replace('`', '')}")
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
    for path, about, entries in reference():
        name = path.removesuffix("[]")
        title = "Top level" if not path else f"`[{name}]`" if name == path else f"`[[{name}]]`"
        lines += ["", f"## {title}", "", about, "", "| key | type | default | meaning |", "|---|---|---|---|"]
        for entry in entries:
            default = entry.default if entry.unset else f"`{entry.default}`"
            lines.append(f"| `{entry.name}` | {entry.kind} | {default} | {entry.about} |")
    return "\n".join(lines) + "\n"

"""The reference of all keys, as text for a terminal and as Markdown for docs/configuration.md."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

from fl.config.schema import Experiment, Key, Section, is_section, keys

NOT_SET = "not set"
HEAD = """\
# Configuration

This page is generated from `fl/config/schema.py` by `share config --describe --markdown`.

All keys are optional. To change a key on the command line, use its dotted name:
`share train FILE.toml --set clusters.size=5`."""


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


def _kind(kind: Any) -> str:
    if get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        return "tables" if is_section(inner) else f"list of {_kind(inner)}s"
    if get_origin(kind) is Mapping:
        return "table"
    return {bool: "true/false", int: "integer", float: "number", str: "text"}[kind]


def _rows(path: str, found: Sequence[Key]) -> Iterator[tuple[str, str, str, str]]:
    """(dotted name, type, default, meaning) of each key. The default is empty if there is none."""
    for key in found:
        choices = f"; one of {', '.join(f'`{choice}`' for choice in key.choices)}" if key.choices else ""
        meaning = key.about + choices + (", or your own as `module:function`" if key.or_path else "")
        default = "" if key.default is None else json.dumps(key.default)
        yield f"{path}.{key.name}".removeprefix("."), _kind(key.kind), default, meaning


def describe() -> str:
    """The reference as plain text."""
    lines: list[str] = []
    for path, about, found in sections():
        lines += ["", f"[{path}]  {about}" if path else about]
        for name, kind, default, meaning in _rows(path, found):
            lines += [f"  {name} ({kind}; {default or NOT_SET})", f"      {meaning.replace('`', '')}"]
    return "\n".join(lines).strip() + "\n"


def describe_markdown() -> str:
    """The reference as docs/configuration.md."""
    lines = [HEAD]
    for path, about, found in sections():
        name = path.removesuffix("[]")
        title = "Top level" if not path else f"`[{name}]`" if name == path else f"`[[{name}]]`"
        lines += ["", f"## {title}", "", about, "", "| key | type | default | meaning |", "|---|---|---|---|"]
        for row, kind, default, meaning in _rows(path, found):
            lines.append(f"| `{row}` | {kind} | {f'`{default}`' if default else NOT_SET} | {meaning} |")
    return "\n".join(lines) + "\n"

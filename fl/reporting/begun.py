"""Whether a resumed run is the one that began: its data, its initial model, and the functions of its user."""

from collections.abc import Mapping
from typing import Any, Final

ATTRIBUTES: Final = "attributes of the model"  # beside the code of functions: what a model's parts hold


def difference(info: Mapping[str, Any], fingerprints: Mapping[str, str], code: Mapping[str, str]) -> str:
    """What differs from the fingerprints in run.json, and what to do; empty if nothing does.

    `code` has the fingerprints of functions by what they are for.

    >>> difference({"data_fingerprint": "1", "code": {}}, {"data_fingerprint": "1"}, {})
    ''
    >>> difference({"code": {"task.loss": "1"}}, {}, {"task.loss": "2"}).partition(";")[0]
    'the code of task.loss is not what the run began with'
    """
    for name, value in fingerprints.items():
        if info.get(name) != value:
            random = ". Data that are drawn at random need generators with a seed" if "data" in name else ""
            return (
                f"the {name.replace('_', ' ')} is not what the run began with; resume with the same data and model, or "
                f"train in another folder{random}"
            )
    if "code" not in info:  # an earlier version did not record it
        return ""
    before: Mapping[str, str] = info["code"]
    if ATTRIBUTES not in before:  # an earlier version did not record them
        code = {name: value for name, value in code.items() if name != ATTRIBUTES}
    changed = [name for name in dict.fromkeys((*before, *code)) if _hash(before, name) != _hash(code, name)]
    if not changed:
        return ""
    same, functions = "functions", [name for name in changed if name != ATTRIBUTES]
    found = f"the code of {', '.join(functions)} is not what the run began with"
    if not functions:
        same, functions = "attributes", changed
        found = (
            "an attribute of the model, such as a number or a function that one of its parts holds, is not what the "
            "run began with (a time or a random number, which every process has anew, does not belong there)"
        )
    pythons = [dict.fromkeys(each.get(name, "").partition(" ")[2] for name in functions) for each in (before, code)]
    if "" not in {*pythons[0], *pythons[1]} and pythons[0] != pythons[1]:
        was, now = (", ".join(each) for each in pythons)
        found += f", or it reads differently because {was} is now {now}"
        libraries = "Python and torch" if same == "attributes" else "Python"
        return f"{found}; resume with the same {same} and the same {libraries}, or train in another folder"
    return f"{found}; resume with the same {same}, or train in another folder"


def _hash(prints: Mapping[str, str], name: str) -> str | None:
    """A fingerprint without its version of Python."""
    return prints[name].partition(" ")[0] if name in prints else None

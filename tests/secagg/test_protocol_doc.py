"""The tables and diagrams of docs/protocol.md agree with the code."""

import re
from pathlib import Path

import pytest

from secagg import errors, labels
from secagg.agreement import plan
from secagg.codec import Codec, Struct
from secagg.crypto import box, keys, shamir
from secagg.exposure import schedules
from secagg.protocol import client, client_state, server, server_state, wire
from secagg.protocol.client_state import State
from secagg.protocol.result import Stage
from tests.vectors.check import FORMAT, OPERATIONS

DOC = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text("utf-8")


def tables(text: str = DOC) -> dict[str, list[list[str]]]:
    """Every table, by the two lines before it."""
    found: dict[str, list[list[str]]] = {}
    title, lines = "", text.splitlines()
    for place, line in enumerate(lines):
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            found.setdefault(title, []).append(cells)
        elif line:
            title = f"{lines[place - 1]} {line}" if place else line
    return {title: rows[2:] for title, rows in found.items()}  # without the header


def table(ending: str) -> list[list[str]]:
    (rows,) = [rows for title, rows in tables().items() if title.removesuffix(" †").endswith(ending)]
    return rows


def shown(codec: Codec, name: str) -> list[str]:
    return [name, codec.layout, str(codec.most) if hasattr(codec, "most") else ""]


def layout_of(struct: Struct) -> list[list[str]]:
    return [shown(codec, name) for name, codec in struct.fields]


@pytest.mark.parametrize("tag", wire.LAYOUTS)
def test_the_layout_of_every_message_is_documented(tag: int) -> None:
    struct = wire.LAYOUTS[tag]
    rows = table(f"### Type {tag}: {struct.cls.__name__}")
    assert [row[:3] for row in rows] == layout_of(struct)


def test_no_other_message_is_documented() -> None:
    assert re.findall(r"^### Type (\d+):", DOC, re.M) == [str(tag) for tag in wire.LAYOUTS]


@pytest.mark.parametrize(
    ("title", "struct"),
    [
        ("Plan", plan.LAYOUT),
        ("A saved client is `secagg client 2` and a newline, then", client_state._MEMORY),
        ("A saved server is `secagg server 2` and a newline, then", server_state._MEMORY),
        ("Content of an opening record", client_state.OPENING),
    ],
)
def test_the_layouts_of_plans_states_and_records_are_documented(title: str, struct: Struct) -> None:
    assert [row[:3] for row in table(title)] == layout_of(struct)


def test_saved_bytes_begin_as_documented() -> None:
    assert client_state._SAVED_CLIENT == b"secagg client 2\n"
    assert server_state._SAVED_SERVER == b"secagg server 2\n"
    states = ", ".join(f"{s.value} {s.name}" for s in State if s not in (State.FAILED, State.DONE))
    assert states in DOC


def test_every_label_is_documented_and_no_other() -> None:
    documented = {row[0]: f"secagg/v2/{row[1]}\n".encode() for row in table("Labels")}
    assert documented == {
        name: value for name, value in vars(labels).items() if name[0].isupper() and type(value) is bytes
    }
    for label in (labels.SCHEDULE, labels.SEED_CONTRIBUTION, labels.TRAINING_SEED, labels.BEACON_SEED):
        assert f'F("{label.decode().removeprefix("secagg/v2/").strip()}", ' in DOC


def test_every_part_of_a_plan_is_documented_and_no_other() -> None:
    assert [(row[0], tuple(row[1].split(", "))) for row in table("Parts")] == list(plan.PARTS.items())


def test_every_error_is_documented_and_no_other() -> None:
    found = {name: value for name, value in vars(errors).items() if isinstance(value, type)}
    classes = [name for name, value in found.items() if issubclass(value, errors.SecAggError)]
    assert [row[0] for row in table("Errors")] == classes


def test_documented_limits_agree_with_the_code() -> None:
    found = {name: getattr(module, name) for module in (plan, shamir, box) for name in vars(module) if name.isupper()}
    for name, value, _ in table("Limits"):
        assert found[name] == int(value), name
    assert {row[0] for row in table("Limits")} >= {name for name in found if name.startswith("MOST_")}


def test_schedules_and_modes_have_the_documented_numbers() -> None:
    numbered = ", ".join(f"{place} {name}" for place, name in enumerate(schedules.SCHEDULES))
    assert numbered in DOC
    assert ", ".join(f"{place} {name}" for place, name in enumerate(plan.MODES)) in DOC


def test_documented_low_order_points_agree_with_the_code() -> None:
    for point in keys.LOW_ORDER_POINTS:
        value = int.from_bytes(point, "little")
        assert point.hex() in DOC or value in (0, 1, 2**255 - 20)
    assert len(keys.LOW_ORDER_POINTS) == 5


def test_every_operation_of_the_vectors_is_documented_and_no_other() -> None:
    assert [row[0] for row in table("Operations")] == list(OPERATIONS)
    assert f"`{FORMAT}`" in DOC


def arrows(diagram: int) -> set[tuple[str, str, str]]:
    text = re.findall(r"```mermaid\nstateDiagram-v2\n(.*?)```", DOC, re.S)[diagram]
    return set(re.findall(r"^    (\w+) --> (\w+): (.+)$", text, re.M))


def test_the_client_diagram_agrees_with_its_steps() -> None:
    steps = {(before.name, after.name, message.__name__) for (before, message), (_, after) in client.STEPS.items()}
    failures = {(state.name, "FAILED", "anything else") for state in State if state is not State.FAILED}
    assert arrows(0) == steps | failures | {("NEW", "ADVERTISED", "hello")}


def test_the_server_diagram_agrees_with_its_steps() -> None:
    takes = {(stage.name, stage.name, message.__name__) for stage, message in server.STEPS}
    closes = {(stage.name, Stage(stage + 1).name, "advance") for stage in server.CLOSE}
    failures = {(stage.name, "FAILED", "advance with too few") for stage in server.CLOSE if stage < Stage.CONSISTENCY}
    assert arrows(1) == takes | closes | failures


def test_sections_are_numbered_and_linked() -> None:
    headings = re.findall(r"^## (\d+)\. (.+)$", DOC, re.M)
    assert [int(number) for number, _ in headings] == list(range(1, len(headings) + 1))
    for number, title in headings:
        anchor = re.sub(r"[^\w -]", "", f"{number} {title}".lower()).replace(" ", "-")
        assert f"](#{anchor})" in DOC, title

"""The tables of docs/protocol-whole.md agree with the code."""

import re
from pathlib import Path

import pytest

from secagg import labels
from secagg.agreement import canonical
from secagg.agreement.noise import NOISE
from secagg.codec import Codec, Struct
from secagg.whole import messages
from tests.secagg.test_protocol_doc import tables

DOC = (Path(__file__).parents[2] / "docs" / "protocol-whole.md").read_text("utf-8")


def table(ending: str) -> list[list[str]]:
    (rows,) = [rows for title, rows in tables(DOC).items() if title.removesuffix(" †").endswith(ending)]
    return rows


def layout_of(struct: Struct) -> list[list[str]]:
    def shown(name: str, codec: Codec) -> list[str]:
        return [name, codec.layout, str(codec.most) if hasattr(codec, "most") else ""]

    return [shown(name, codec) for name, codec in struct.fields]


@pytest.mark.parametrize("tag", messages.LAYOUTS)
def test_the_layout_of_every_message_is_documented(tag: int) -> None:
    struct = messages.LAYOUTS[tag]
    assert [row[:3] for row in table(f"### Type {tag}: {struct.cls.__name__}")] == layout_of(struct)


def test_no_other_message_is_documented() -> None:
    assert re.findall(r"^### Type (\d+):", DOC, re.M) == [str(tag) for tag in messages.LAYOUTS]


def test_the_layout_of_terms_is_documented() -> None:
    assert [row[:3] for row in table("Terms")] == layout_of(canonical.LAYOUT)


def test_labels_have_the_documented_names() -> None:
    for name, text, _ in table("Labels of whole groups"):
        assert getattr(labels, name) == f"secagg/v{labels.VERSION}/{text}\n".encode()


def test_the_layout_of_the_section_of_noise_is_documented() -> None:
    assert [row[:3] for row in table("Section noise")] == layout_of(NOISE.layout)

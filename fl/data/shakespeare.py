"""Shakespeare by role, from Project Gutenberg's Complete Works, with LEAF's conventions.

Caldas et al. 2018 (LEAF), after McMahan et al. 2017: every speaking role of every play is a client, and an
example is 80 characters of what the role says and the character that follows. The edition of 1994 gives
LEAF's published counts: 1,129 roles and 4,226,158 examples. This module follows LEAF's rules:

- A play begins at its author line. Its title is the last line of text at least two lines above.
- Two spaces, a name and a full stop start a speech. Lines indented by four continue it. The Comedy of Errors
  is not indented: there, each line continues the speech until a stage direction in angle brackets.
- Names that differ only in case ("Sir Toby", "SIR TOBY") are one role.
- A work with fewer than two roles is not a play. A role with fewer than three lines does not count.
- The lines of a role are joined by spaces, and repeated spaces become one. Windows slide over the whole text.
- The first examples of a role are for training and the last for testing. 79 examples between them are left
  out, so that no test example shares text with a training example.

Roles are in the order in which they first speak. The edition may be copied for personal, non-commercial use
only, so it is not part of this package.
"""

import hashlib
import re
from collections.abc import Mapping

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from fl.data.examples import DataSet, Examples, consecutive

CONTEXT = 80
VOCABULARY = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 characters. The first, a line break, never occurs, because lines are joined by spaces."""

FILES = {"pg100.txt": "7635b6820eeb486b017ef73fe791d332b457d22b0090005ca1dd305a459e6ca9"}
"""Made by `fingerprint`; not the checksum of the file."""

AUTHOR = "by William Shakespeare"
SPEECH = re.compile(r"  ([a-zA-Z][a-zA-Z ]*)\. (.*)")
MORE = re.compile(r"    (.*)")
FLAT_PLAY = "THE COMEDY OF ERRORS"
FLAT_SPEECH = re.compile(r"([a-zA-Z][a-zA-Z ]*)\. (.*)")


def parse(contents: Mapping[str, bytes], *, roles: int | None = None, train_fraction: float = 0.8) -> DataSet:
    """The data set from the text of the edition, with its first `roles` roles or all of them."""
    if not 0 < train_fraction < 1:
        raise ValueError(f"train_fraction: expected a number between 0 and 1, got {train_fraction}")
    spoken = list(role_texts(contents["pg100.txt"]).items())[:roles]
    if roles is not None and len(spoken) < roles:
        raise ValueError(f"expected at most the {len(spoken)} roles of the text, got {roles}")
    train, test = [], []
    for _, text in spoken:
        windows = sliding_window_view(encode(text), CONTEXT + 1)
        cut = max(1, int(train_fraction * len(windows)))
        train.append(windows[:cut])
        test.append(windows[cut + CONTEXT - 1 :])
    rows = consecutive([len(part) for part in train])
    named = tuple((name, part) for (name, _), part in zip(spoken, rows, strict=True))
    return DataSet("shakespeare", _examples(train), _examples(test), len(VOCABULARY), named)


def role_texts(content: bytes) -> dict[str, str]:
    """What each role says, as one line of text. Roles with too little text for one example are left out."""
    found: dict[str, str] = {}
    for title, speeches in plays(content.decode("utf-8-sig")):
        for name, lines in speeches.items():
            text = re.sub(r"  +", " ", "".join(line + " " for line in lines))
            if len(lines) > 2 and len(text) > CONTEXT:
                found[f"{title}: {name}"] = text
    return found


def plays(text: str) -> list[tuple[str, dict[str, list[str]]]]:
    """(title, lines of each role) of each play."""
    lines = text.splitlines()
    found: list[tuple[str, dict[str, list[str]]]] = []
    speeches: dict[str, list[str]] = {}
    speaker: str | None = None
    flat = False
    for number, line in enumerate(lines):
        if AUTHOR in line:
            above = [other.strip() for other in lines[max(number - 7, 0) : max(number - 1, 0)]]
            title = next((other for other in reversed(above) if other), "")
            flat, speaker, speeches = title == FLAT_PLAY, None, {}
            found.append((title, speeches))
        elif opening := (FLAT_SPEECH if flat else SPEECH).match(line):
            speaker = opening[1].upper()
            if flat and speaker.startswith("ACT "):
                speaker = None
            else:
                speeches.setdefault(speaker, []).append(opening[2])
        elif speaker is not None:
            if flat and line.startswith("<"):
                speaker = None
            elif flat:
                speeches[speaker].append(line)
            elif more := MORE.match(line):
                speeches[speaker].append(more[1])
    return [(title, speeches) for title, speeches in found if len(speeches) > 1]


def fingerprint(content: bytes) -> str:
    """SHA-256 over all roles and what they say.

    Gutenberg's copies of this edition differ in byte-order mark, line ends and licence text. The checksum
    covers only the text that is used.
    """
    digest = hashlib.sha256()
    for name, text in role_texts(content).items():
        digest.update(f"{name}\n{text}\n".encode())
    return digest.hexdigest()


def encode(text: str) -> NDArray[np.uint8]:
    """Characters as their numbers in VOCABULARY."""
    if unknown := set(text) - set(VOCABULARY):
        raise ValueError(f"character {min(unknown, key=text.index)!r} is not in the vocabulary")
    table = np.zeros(256, dtype=np.uint8)
    table[np.frombuffer(VOCABULARY.encode("ascii"), dtype=np.uint8)] = np.arange(len(VOCABULARY))
    return table[np.frombuffer(text.encode("ascii"), dtype=np.uint8)]


def _examples(windows: list[NDArray[np.uint8]]) -> Examples:
    table = np.concatenate(windows)
    inputs, labels = np.ascontiguousarray(table[:, :CONTEXT]), table[:, CONTEXT].astype(np.int64)
    return Examples(torch.from_numpy(inputs), torch.from_numpy(labels))

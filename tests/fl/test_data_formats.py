"""The publishers' formats, on small files made here."""

import struct

import numpy as np
import pytest
import torch

from fl.data import images, shakespeare


def idx(array: np.ndarray, kind: int = 8) -> bytes:
    return (
        bytes([0, 0, kind, array.ndim])
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.astype(np.uint8).tobytes()
    )


def test_idx_files_give_back_what_was_written():
    array = np.arange(24).reshape(2, 3, 4)
    assert np.array_equal(images.read_idx(idx(array)), array)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an idx file"),
        (b"\x80\x04\x95\x00", "not an idx file"),  # how a pickle begins
        (idx(np.zeros(3), kind=13), "type 13"),
        (b"\0\0\x08\x03\0\0", "header is truncated"),
        (idx(np.zeros(3))[:-1], "header says 11 bytes, got 10"),
        (idx(np.zeros(3)) + b"\0", "header says 11 bytes, got 12"),
        (b"\0\0\x08\x02" + b"\xff" * 8, "header says 18446744065119617037"),
    ],
)
def test_inconsistent_idx_files_are_rejected(content: bytes, message: str):
    with pytest.raises(ValueError, match=message):
        images.read_idx(content)


def test_mnist_images_have_one_channel():
    pixels, labels = np.arange(2 * 28 * 28).reshape(2, 28, 28) % 256, np.array([7, 3])
    data = images.parse_mnist(
        {
            "train-images-idx3-ubyte": idx(pixels),
            "train-labels-idx1-ubyte": idx(labels),
            "t10k-images-idx3-ubyte": idx(pixels[:1]),
            "t10k-labels-idx1-ubyte": idx(labels[:1]),
        }
    )
    assert data.train.shape == (1, 28, 28)
    assert np.array_equal(data.train.inputs[:, 0].numpy(), pixels)
    assert data.train.labels.tolist() == [7, 3]
    assert len(data.test) == 1


def test_cifar_records_are_label_then_red_green_blue_rows():
    pixels = np.arange(2 * 3072).reshape(2, 3, 32, 32) % 251
    content = b"".join(
        bytes([label]) + image.astype(np.uint8).tobytes() for label, image in zip([9, 2], pixels, strict=True)
    )
    examples = images.read_records(content)
    assert np.array_equal(examples.inputs.numpy(), pixels)
    assert examples.labels.tolist() == [9, 2]
    assert examples.inputs[1, 2, 0, 5] == pixels[1, 2, 0, 5]  # image 1, blue, first row, sixth pixel


def test_cifar_batches_are_joined_in_order():
    def batch(label: int) -> bytes:
        return bytes([label]) + bytes(3072)

    contents = {name: batch(number) for number, name in enumerate(images.CIFAR10_FILES)}
    data = images.parse_cifar10(contents)
    assert data.train.labels.tolist() == [0, 1, 2, 3, 4]
    assert data.test.labels.tolist() == [5]


def test_a_cut_record_is_refused():
    with pytest.raises(ValueError, match="multiple of 3073 bytes"):
        images.read_records(bytes(3072))


PLAYS = """\ufeffThe Project Gutenberg EBook

1601

THE TRAGEDY OF TESTS

by William Shakespeare


ACT I

  FIRST FOOL. Here is a  line that the first fool says
    and it goes on   here.
Enter NOBODY
  Second fool. And I reply.
  FIRST FOOL. A third line of mine, long enough for the eighty characters it takes.
  SECOND FOOL. Twice.
    Thrice, and then I shall speak for as long as it takes to fill a window.
  MUTE. One.
  MUTE. Two.
  BRIEF. A.
  BRIEF. B.
  BRIEF. C.

1602

THE COMEDY OF ERRORS

by William Shakespeare

ACT I. SCENE 1
Nobody. speaks here, before the first act has begun in earnest, and is a role.
It goes on without any indentation,
and on,
<stage directions end it>
and this line is lost.
ACT II. SCENE 2
also lost.
TWIN. Another role, which has to say enough that there is one window at the very least,
and more than two lines,
three in all.

1609

A POEM

by William Shakespeare

  A line. Of verse that looks like a speech but is the only role
    and so is no play.
"""

LONG = PLAYS.replace("long enough", "long " * 80 + "enough")


def test_roles_are_parsed_as_leaf_does():
    found = shakespeare.role_texts(PLAYS.encode())
    assert list(found) == [
        "THE TRAGEDY OF TESTS: FIRST FOOL",
        "THE TRAGEDY OF TESTS: SECOND FOOL",
        "THE COMEDY OF ERRORS: NOBODY",
        "THE COMEDY OF ERRORS: TWIN",
    ]
    assert found["THE TRAGEDY OF TESTS: FIRST FOOL"] == (
        "Here is a line that the first fool says and it goes on here. "
        "A third line of mine, long enough for the eighty characters it takes. "
    )
    assert found["THE TRAGEDY OF TESTS: SECOND FOOL"].startswith("And I reply. Twice. Thrice")
    assert found["THE COMEDY OF ERRORS: NOBODY"].endswith("indentation, and on, ")
    # LEAF keeps the blank lines of the flat play as lines, so runs of spaces meet at its end
    assert found["THE COMEDY OF ERRORS: TWIN"].endswith("three in all. 1609 A POEM ")


def test_an_example_is_eighty_characters_and_the_next():
    data = shakespeare.parse({"pg100.txt": LONG.encode()}, roles=1, train_fraction=0.5)
    text = shakespeare.role_texts(LONG.encode())["THE TRAGEDY OF TESTS: FIRST FOOL"]
    spell = "".join
    for row in range(len(data.train)):
        inputs, label = data.train.batch(torch.tensor([row]))
        assert spell(shakespeare.VOCABULARY[i] for i in inputs[0]) == text[row : row + 80]
        assert shakespeare.VOCABULARY[label] == text[row + 80]


def test_test_examples_share_no_text_with_training_examples():
    data = shakespeare.parse({"pg100.txt": LONG.encode()}, roles=1)
    text = shakespeare.role_texts(LONG.encode())["THE TRAGEDY OF TESTS: FIRST FOOL"]
    windows = len(text) - 80
    cut = int(0.8 * windows)
    assert len(data.train) == cut
    assert len(data.test) == windows - cut - 79
    # the label of the last training example is the character before the first test example's context
    first_test = cut + 79
    assert shakespeare.VOCABULARY[data.train.labels[-1]] == text[first_test]
    assert shakespeare.VOCABULARY[data.test.inputs[0, 0]] == text[first_test]


def test_rows_of_the_roles_are_disjoint_and_complete():
    data = shakespeare.parse({"pg100.txt": LONG.encode()})
    assert data.roles is not None
    assert len(data.roles) == 4
    assert np.array_equal(np.concatenate([rows for _, rows in data.roles]), np.arange(len(data.train)))


def test_more_roles_than_the_text_has_are_refused():
    with pytest.raises(ValueError, match="the 4 roles"):
        shakespeare.parse({"pg100.txt": PLAYS.encode()}, roles=5)


def test_the_fingerprint_is_of_what_the_roles_say():
    plain = shakespeare.fingerprint(PLAYS.encode())
    assert shakespeare.fingerprint(PLAYS.removeprefix("\ufeff").replace("\n", "\r\n").encode()) == plain
    assert shakespeare.fingerprint(PLAYS.replace("Gutenberg", "Gutenburg").encode()) == plain
    assert shakespeare.fingerprint(PLAYS.replace("fool says", "fool sings").encode()) != plain


def test_the_vocabulary_is_leafs():
    assert len(shakespeare.VOCABULARY) == len(set(shakespeare.VOCABULARY)) == 80


@pytest.mark.parametrize("text", ["a~b", "café"])
def test_characters_outside_the_vocabulary_are_refused(text: str):
    with pytest.raises(ValueError, match="not in the vocabulary"):
        shakespeare.encode(text)

"""Domain separation: no label can be mistaken for another."""

from itertools import permutations

from secagg import labels


def test_no_label_is_the_beginning_of_another() -> None:
    assert len(labels.ALL) >= 20
    for one, other in permutations(labels.ALL, 2):
        assert not other.startswith(one)


def test_labels_carry_the_version() -> None:
    assert all(label.startswith(b"secagg/v%d/" % labels.VERSION) for label in labels.ALL)
    assert all(label.index(b"\n") == len(label) - 1 for label in labels.ALL)

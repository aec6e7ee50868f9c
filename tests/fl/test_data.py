import ast
from pathlib import Path

import numpy as np
import pytest
import torch

import fl.data
from fl.data import DataSet, Examples, Federated, Scaling, from_clients, load


def some(count: int = 4, **changes: object) -> Examples:
    inputs = torch.arange(count * 4, dtype=torch.float32).reshape(count, 1, 2, 2)
    fields = {"inputs": inputs, "labels": torch.arange(count) % 2, **changes}
    return Examples(**fields)  # type: ignore[arg-type]


def test_digits_are_the_1797_published_images():
    data = load("digits")
    everything = torch.cat([data.train.labels, data.test.labels])
    assert torch.bincount(everything).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert data.train.shape == (1, 8, 8)
    assert data.train.inputs.max() == 16
    # the first image of the file, a zero, as UCI prints it
    assert data.train.inputs[0, 0, 0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    assert data.train.labels[0] == 0


def test_a_fifth_of_every_digit_is_for_testing():
    data = load("digits")
    for digit in range(10):
        train, test = (data.train.labels == digit).sum(), (data.test.labels == digit).sum()
        assert test == (train + test) // 5


def test_digits_are_scaled_to_mean_zero_and_variance_one():
    data = load("digits")
    inputs, _ = data.train.batch(torch.arange(len(data.train)))
    assert inputs.dtype == torch.float32
    assert abs(inputs.mean()) < 1e-3
    assert abs(inputs.std() - 1) < 1e-3


def test_scaling_is_per_channel():
    examples = Examples(
        torch.tensor([[[[255]], [[51]]]], dtype=torch.uint8),
        torch.tensor([0]),
        Scaling(top=255.0, mean=(0.5, 0.0), std=(0.5, 0.1)),
    )
    inputs, _ = examples.batch(torch.tensor([0]))
    assert inputs.flatten().tolist() == pytest.approx([1.0, 2.0])


def test_bytes_without_scaling_are_tokens():
    examples = Examples(torch.tensor([[3, 255]], dtype=torch.uint8), torch.tensor([0]))
    inputs, _ = examples.batch(torch.tensor([0]))
    assert inputs.dtype == torch.int64
    assert inputs.tolist() == [[3, 255]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": torch.zeros(4, dtype=torch.float64)}, "int64"),
        ({"labels": torch.zeros(3, dtype=torch.int64)}, "one input row per label"),
        ({"inputs": torch.zeros(4, 2, dtype=torch.float64)}, "float32, uint8 or int64"),
        ({"scaling": Scaling(255.0, (0.0,), (1.0,))}, "needs uint8"),
        (
            {"inputs": torch.zeros(4, 2, 2, 2, dtype=torch.uint8), "scaling": Scaling(255.0, (0.0,), (1.0,))},
            "1 channels, inputs 2",
        ),
    ],
)
def test_inconsistent_examples_are_rejected(changes: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        some(**changes)


@pytest.mark.parametrize("fields", [(0.0, (0.0,), (1.0,)), (1.0, (0.0,), (0.0,)), (1.0, (), ())])
def test_scaling_that_cannot_be_applied_is_refused(fields: tuple[float, tuple[float, ...], tuple[float, ...]]):
    with pytest.raises(ValueError, match=r"positive|one mean and one std"):
        Scaling(*fields)


def test_labels_beyond_the_classes_are_refused():
    with pytest.raises(ValueError, match="labels from 0 to 1, 1 classes"):
        DataSet("mine", some(), some(), classes=1)


def test_train_and_test_inputs_must_have_one_shape():
    other = Examples(torch.zeros(1, 3), torch.tensor([0]))
    with pytest.raises(ValueError, match="train inputs"):
        DataSet("mine", some(), other, classes=2)


@pytest.mark.parametrize(
    ("rows", "message"), [([], "no examples"), ([4], "outside the 4 training"), ([-1], "outside the 4 training")]
)
def test_a_client_must_hold_examples_that_exist(rows: list[int], message: str):
    with pytest.raises(ValueError, match=message):
        Federated(some(), (np.array(rows, dtype=np.int64),), some(), classes=2)


def test_client_data_sets_become_one_federation():
    clients = [some(3), some(1), some(2)]
    data = from_clients(clients, some(), classes=2)
    assert data.sizes.tolist() == [3, 1, 2]
    for client, rows in zip(clients, data.clients, strict=True):
        assert torch.equal(data.train.take(rows).inputs, client.inputs)


def test_client_data_sets_of_different_shapes_are_refused():
    with pytest.raises(ValueError, match="one shape"):
        from_clients([some(), Examples(torch.zeros(1, 3), torch.tensor([0]))], some(), classes=2)


def test_a_data_set_of_your_own_is_loaded_by_its_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "own_data.py").write_text(
        "import torch\n"
        "from fl.data import DataSet, Examples\n"
        "def coins():\n"
        "    some = Examples(torch.rand(8, 3), torch.arange(8) % 2)\n"
        "    return DataSet('coins', train=some, test=some, classes=2)\n"
        "def nothing():\n"
        "    return 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert load("own_data:coins").name == "coins"
    with pytest.raises(ValueError, match="expected a DataSet, it returned int"):
        load("own_data:nothing")
    with pytest.raises(ValueError, match="has no missing"):
        load("own_data:missing")


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match="digits, mnist, cifar10, shakespeare, or module:function"):
        load("imagenet")


def test_roles_belong_to_shakespeare():
    with pytest.raises(ValueError, match="only shakespeare has roles"):
        load("digits", roles=3)


def test_no_code_that_touches_data_can_unpickle():
    """`load` of numpy and torch unpickles, so it may not be called; pickle may not be imported."""
    folder = Path(fl.data.__file__).parent
    sources = [*folder.glob("*.py"), *folder.parent.glob("training/*.py")]
    assert len(sources) > 8
    for source in sources:
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                assert not {"pickle", "marshal", "shelve", "joblib"} & set(names), source
            if isinstance(node, ast.Attribute) and node.attr == "load":
                assert getattr(node.value, "id", "") not in ("np", "numpy", "torch"), source

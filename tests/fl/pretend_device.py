"""A device that torch takes for another one: it computes on the CPU, and refuses tensors that were left there.

No GPU is needed to find a tensor on the wrong device. `python -m tests.fl.pretend_device` trains and measures on the
device `pretend` and on the CPU, and compares. It needs its own process, because torch has room for one such device.

A tensor of `pretend` is an empty shell. Its values are a CPU tensor in `BEHIND`, found by the shell's storage, which
torch's own copies of the shell share. Every operator without a kernel of its own comes to `compute`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "pretend"
BEHIND: dict[int, Tensor] = {}
COPIES = ("aten::_to_copy", "aten::copy_", "aten::_copy_from", "aten::_copy_from_and_resize")
BY_TORCH = ("aten::detach", "aten::convolution_overrideable", "aten::convolution_backward_overrideable")
KEY = "PrivateUse1"


def is_there(value: object) -> bool:
    return isinstance(value, Tensor) and value.device.type == NAME


def behind(value: Any) -> Any:
    """The values of a shell; anything else as it is."""
    return BEHIND[value.untyped_storage()._cdata] if is_there(value) else value


def shell(values: Tensor) -> Tensor:
    found: Tensor = torch._C._acc.create_empty_tensor(values.shape, values.dtype)
    BEHIND[found.untyped_storage()._cdata] = values
    return found


def compute(op: Any, *args: Any, **options: Any) -> Any:
    """Any operator: on the values, with shells of the results. Tensors of the CPU among shells are an error."""
    name, device = op.overloadpacket._qualified_op_name, options.get("device")
    tensors = [leaf for leaf in tree_leaves((args, options)) if isinstance(leaf, Tensor)]
    if name not in COPIES and any(not is_there(tensor) and tensor.dim() for tensor in tensors):
        raise RuntimeError(f"{name}: expected tensors on one device, got {sorted({str(t.device) for t in tensors})}")
    given, more = tree_map(behind, args), tree_map(behind, options)
    if name.startswith("aten::_copy_from"):
        given[1].resize_(given[0].shape).copy_(given[0])
        return args[1]
    if name == "aten::_fused_sgd_":  # its kernel expects gradients laid out as the parameters are
        given = (given[0], [gradient.contiguous() for gradient in given[1]], *given[2:])
    if name in ("aten::view", "aten::_unsafe_view"):  # a shell is always contiguous, its values may not be
        op = torch.ops.aten.reshape.default
    if device is not None:
        more["device"] = torch.device("cpu")
    results = op(*given, **more)
    if device is not None and device.type == "cpu":
        return results
    same = {id(behind(tensor)): tensor for tensor in tensors if is_there(tensor)}
    shared = {behind(tensor).untyped_storage()._cdata for tensor in tensors}

    def covered(result: Any) -> Any:
        if not isinstance(result, Tensor):
            return result
        if id(result) in same:
            return same[id(result)]
        return shell(result if result.untyped_storage()._cdata in shared else result.contiguous())

    return tree_map(covered, results)


def install() -> list[torch.library.Library]:
    """Make the device known to torch. The libraries must be kept as long as it is used."""
    _setup_privateuseone_for_python_backend(NAME)
    rest, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    rest.fallback(compute, KEY)
    for full in torch._C._dispatch_get_all_op_names():
        generic = torch._C._dispatch_has_kernel_for_dispatch_key(full, "CompositeExplicitAutograd")
        if full.startswith("aten::") and full not in BY_TORCH and generic:
            name, _, overload = full.removeprefix("aten::").partition(".")
            op = getattr(getattr(torch.ops.aten, name), overload or "default")
            aten.impl(op, partial(compute, op), KEY)
    forward, backward = torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default
    aten.impl("convolution_overrideable", partial(compute, forward), KEY)
    aten.impl(
        "convolution_backward_overrideable",
        lambda slope, x, kernel, *rest: compute(backward, slope, x, kernel, [len(kernel)], *rest),
        KEY,
    )
    return [rest, aten]


def main() -> None:
    """Everything that a Learner does, on both devices."""
    kept = install()
    from fl.data import federate, flip_labels, load
    from fl.training.learner import Learner, LocalTraining, Task
    from fl.training.workers import open_trainer

    data = flip_labels(federate(load("digits"), clients=20, seed=1, validation=0.1), [1])
    local = LocalTraining(epochs=1, batch_size=16, lr=0.05, proximal=0.01)
    task = Task("small-cnn", data, local, 7, metrics={"accuracy": "accuracy", "f1": "f1"})
    here = Learner(task)
    x = here.initial()
    with open_trainer(task, device=NAME) as chosen:
        assert isinstance(chosen, Learner)
        assert (chosen.together, chosen.not_together) == (16, "")
        assert all(is_there(p) for p in chosen._parameters)
        for there in (chosen, Learner(task, device=NAME, together=1)):
            shift = np.random.default_rng(0).normal(0, 0.01, (3, len(x))).astype(np.float32)
            for ours, theirs in (
                (here.train(x, [0, 1, 19], round_index=3), there.train(x, [0, 1, 19], round_index=3)),
                tuple(learner.train(x, [0, 1, 19], round_index=3, shift=shift) for learner in (here, there)),
                (here.gradient(x), there.gradient(x)),
                (here.losses(np.stack([x, x / 2])), there.losses(np.stack([x, x / 2]))),
                (here.server_update(x, round_index=0), there.server_update(x, round_index=0)),
            ):
                assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(ours).max(), "the devices differ"
            assert here.evaluate(x).metrics == there.evaluate(x).metrics
            assert here.evaluate(x).accuracy == there.evaluate(x).accuracy
            assert here.class_accuracies(x) == there.class_accuracies(x)
            assert here.client_accuracies(x, [0, 1, 19]) == there.client_accuracies(x, [0, 1, 19])
    assert Learner(Task("lstm", _text(), local, 7), device="meta").not_together == "torch cannot stack recurrent layers"
    text = Task(_next_token, _text(), local, 7)
    x, both = Learner(text).initial(), (Learner(text), Learner(text, device=NAME))
    ours, theirs = (learner.train(x, [0, 1], round_index=0) for learner in both)
    assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(ours).max()
    print("same results on both devices")
    chosen._batches = lambda rows, count: (torch.arange(count),)  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="expected tensors on one device"):
        chosen.evaluate(here.initial())
    print("found an index that was left on the CPU")
    del kept


def _text() -> Any:
    from fl.data import Examples, from_clients

    random = np.random.default_rng(0)
    rows = [random.integers(0, 80, (6, 10)).astype(np.uint8) for _ in range(2)]
    parts = [Examples(torch.from_numpy(some), torch.from_numpy(some[:, 0].astype(np.int64))) for some in rows]
    return from_clients(parts, parts[0], classes=80)


def _next_token(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Embedding(classes, 4), torch.nn.Flatten(), torch.nn.Linear(4 * shape[0], classes)
    )


if __name__ == "__main__":
    main()

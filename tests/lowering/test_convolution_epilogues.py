"""Which nodes become one kernel with a convolution. That its values are right is tested with the kernel's products."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from torch_max_backend.aten_functions.registry import aten_functions, map_to
from torch_max_backend.compile.compiler import put_off
from torch_max_backend.lowering.convolution_epilogues import Chain, convolution_chains
from torch_max_backend.partition.partitioner import Plan, _Cut

aten = torch.ops.aten
Function = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]


def chains(function: Function, dtype: torch.dtype = torch.float32, dynamic: bool = False) -> list[list[str]]:
    """The op names of every chain in the only region of ``function`` of an image, filters and a vector."""
    inputs = (torch.randn(2, 4, 9, 9, dtype=dtype), torch.randn(4, 4, 3, 3, dtype=dtype), torch.rand(4, dtype=dtype))
    plans: list[Plan] = []
    make = _Cut.plan
    with pytest.MonkeyPatch.context() as patch, put_off(), torch.no_grad():
        patch.setattr(_Cut, "plan", lambda cut: plans.append(make(cut)) or plans[-1])
        torch.compile(function, backend="max_backend", dynamic=dynamic, options={"fallback": "error"})(*inputs)
    (region,) = plans[-1].regions
    return [_names(chain) for chain in convolution_chains(region)]


def _names(chain: Chain) -> list[str]:
    return [str(getattr(n.target, "overloadpacket", "pick")).removeprefix("aten.") for n in chain.nodes]


def convolved(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x, w, v, padding=1)


def normed(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(convolved(x, w, v), v, v, v, v)


NORM = ["convolution", "_native_batch_norm_legit_no_training", "pick"]


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda x, w, v: F.relu(normed(x, w, v) + x), [[*NORM, "add", "relu"]]),
        (lambda x, w, v: F.relu6(normed(x, w, v)).exp(), [[*NORM, "hardtanh"]]),
        (lambda x, w, v: convolved(x, w, v).clamp(max=2.0), [["convolution", "clamp"]]),
        (lambda x, w, v: x + convolved(x, w, v), [["convolution", "add"]]),
        (lambda x, w, v: convolved(x, w, v) + convolved(x, w, v.exp()), [["convolution", "add"]]),
        (lambda x, w, v: F.relu(convolved(F.relu(convolved(x, w, v)), w, v)), [["convolution", "relu"]] * 2),
        (lambda x, w, v: F.relu(convolved(x, w, v)) + x, [["convolution", "relu"]]),
        (lambda x, w, v: F.batch_norm(F.relu(convolved(x, w, v)), v, v), [["convolution", "relu"]]),
        (lambda x, w, v: F.batch_norm(convolved(x, w, v) + x, v, v), [["convolution", "add"]]),
        (lambda x, w, v: F.batch_norm(normed(x, w, v), v, v), [NORM]),
        (lambda x, w, v: convolved(x, w, v) + x + x, [["convolution", "add"]]),
        (lambda x, w, v: F.relu6(F.relu(convolved(x, w, v))), [["convolution", "relu"]]),
        (convolved, []),
    ],
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_is_one_kernel(function: Function, found: list[list[str]], dynamic: bool) -> None:
    assert chains(function, dynamic=dynamic) == found


def _read_twice(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> object:
    y = convolved(x, w, v)
    return F.relu(y), y


def _added_to_itself(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> object:
    y = convolved(x, w, v)
    return y + y


@pytest.mark.parametrize(
    "function",
    [
        _read_twice,
        _added_to_itself,
        lambda x, w, v: torch.add(x, convolved(x, w, v), alpha=2),
        lambda x, w, v: convolved(x, w, v) + v.view(4, 1, 1),
        lambda x, w, v: convolved(x, w, v).clamp(2.0, 1.0),
        lambda x, w, v: F.relu(F.conv_transpose2d(x, w, v)),
        lambda x, w, v: F.batch_norm(convolved(x, w, v), None, None, v, v, training=True),
        lambda x, w, v: F.batch_norm(x, v, v),
    ],
)
def test_what_stays_apart(function: Function) -> None:
    assert chains(function) == []


def test_narrow_floats_are_rounded_between() -> None:
    assert chains(lambda x, w, v: F.relu(normed(x, w, v)), torch.bfloat16) == []


def test_a_lowering_of_the_user_is_called() -> None:
    own = aten_functions.lowerings[aten.relu.default]
    try:
        map_to(aten.relu.default)(lambda self: self)
        assert chains(lambda x, w, v: F.relu(normed(x, w, v))) == [NORM]
    finally:
        aten_functions.lowerings[aten.relu.default] = own

"""In which strides gradients leave. Graphs are traced and cut; one test compiles and runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd

from torch_max_backend.capture.joint_graph import partition
from torch_max_backend.capture.user_controlled_ops import left_to_torch

pytestmark = pytest.mark.any_runner("graph passes, which come before the partition")

F = torch.nn.functional
Strides = tuple[int, ...]


def strides_of_gradients(function: Callable[..., torch.Tensor], *inputs: torch.Tensor, **how: Any) -> list[Strides]:
    """The strides in which the backward gives the gradients of inputs, all of which want one."""
    found = []

    def backward(gm: fx.GraphModule, _: list[Any]) -> fx.GraphModule:
        found.extend(n.meta["val"].stride() for n in gm.graph.output_node().args[0] if n is not None)
        return gm

    backend = aot_autograd(fw_compiler=lambda gm, _: gm, bw_compiler=backward, partition_fn=partition)
    torch._dynamo.reset()
    torch.compile(function, backend=backend, fullgraph=True, **how)(*inputs).sum().backward()
    return found


def image(*, channels_last: bool = True) -> torch.Tensor:
    x = torch.randn(2, 8, 6, 5)
    return (x.to(memory_format=torch.channels_last) if channels_last else x).requires_grad_()


def reflected(x: torch.Tensor) -> torch.Tensor:
    return F.pad(x, (1, 1, 2, 2), "reflect")


def test_a_gradient_lies_as_what_it_is_a_gradient_of() -> None:
    x = image()
    assert strides_of_gradients(reflected, x) == [x.stride()]


def test_a_transposed_matrix_has_a_transposed_gradient() -> None:
    x, w = torch.randn(4, 8).t().requires_grad_(), torch.randn(4, requires_grad=True)
    assert strides_of_gradients(lambda x, w: F.layer_norm(x, (4,), w), x, w) == [(1, 8), (1,)]


def test_a_contiguous_one_stays() -> None:
    assert strides_of_gradients(reflected, image(channels_last=False)) == [(240, 30, 5, 1)]


def test_what_is_not_dense_has_a_contiguous_gradient() -> None:
    x = torch.randn(4, 9)[:, :8].requires_grad_()
    assert strides_of_gradients(lambda x: x.sin() * 2, x) == [(8, 1)]


def test_symbolic_sizes_stay() -> None:
    x = image()
    assert len(strides_of_gradients(reflected, x, dynamic=True)[0]) == 4


def test_what_users_give_to_torch_is_not_inserted() -> None:
    with left_to_torch(("aten.clone",)):
        assert strides_of_gradients(reflected, image()) == [(240, 30, 5, 1)]


def test_gradients_are_right() -> None:
    x, y = image(), image()
    with torch.no_grad():
        y.copy_(x)
    reflected(x).sin().sum().backward()
    torch._dynamo.reset()
    torch.compile(reflected, backend="max_backend")(y).sin().sum().backward()
    assert x.grad is not None and y.grad is not None and y.grad.stride() == x.grad.stride()
    torch.testing.assert_close(y.grad, x.grad)

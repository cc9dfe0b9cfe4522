"""GELU that is written out, with its gradient. Graphs are traced and rewritten, and nothing is compiled.

Autograd runs on the CPU, and what it traced is then given the values that it has on a GPU.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.utils._python_dispatch import _disable_current_modes

from torch_max_backend.aten_functions.registry import aten_functions
from torch_max_backend.base.target import Machine
from torch_max_backend.capture.gelu_pattern import recognize_gelu
from torch_max_backend.capture.joint_graph import drop_aliases, partition

pytestmark = pytest.mark.any_runner("a graph pass, which comes before the partition")

aten = torch.ops.aten
F = torch.nn.functional
Function = Callable[..., torch.Tensor]
SCALE = math.sqrt(2.0 / math.pi)
BOTH = [aten.gelu.default, aten.gelu_backward.default]
FLOATS = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def elsewhere() -> Iterator[None]:
    with Machine.parse("cuda:sm_90a").pretended():
        yield


def plain(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.tanh(SCALE * (x + 0.044715 * torch.pow(x, 3.0))))


def mixed(x: torch.Tensor) -> torch.Tensor:
    """As a GPU computes it under autocast."""
    return 0.5 * x * (1.0 + torch.tanh(SCALE * (x + 0.044715 * torch.pow(x.float(), 3.0))))


def factored(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5 * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))


def rounded(x: torch.Tensor) -> torch.Tensor:
    return mixed(x).to(x.dtype)


def block(x: torch.Tensor, bias: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """GPT-2's, whose products are of matrices."""
    hidden = torch.addmm(bias, x.view(-1, 8), first).view(2, 3, 32)
    return (mixed(hidden).view(-1, 32).to(x.dtype) @ second).view(2, 3, 8)


def joint(function: Function, *primals: torch.Tensor) -> fx.GraphModule:
    """The graph of forward and backward on a GPU, named as AOTAutograd does."""

    def both(primals: list[torch.Tensor], tangents: list[torch.Tensor]) -> Any:
        y = function(*primals)
        return y, *torch.autograd.grad(y, primals, tangents)

    primals = tuple(x.requires_grad_() for x in primals)
    with _disable_current_modes():
        tangents = [torch.randn_like(function(*primals))]
        gm = make_fx(both)(list(primals), tangents)
    drop_aliases(gm)
    inputs = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cuda") for t in (*primals, *tangents)]
    move(gm, "cuda")
    FakeTensorProp(gm, inputs[0].fake_mode).propagate_dont_convert_inputs(*inputs)
    return gm


def move(gm: fx.GraphModule, device: str) -> None:
    for node in gm.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": torch.device(device)}
    gm.recompile()


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    with _disable_current_modes():
        return torch.randn(shape, dtype=dtype)


def ops(gm: fx.GraphModule) -> list[Any]:
    return [n.target for n in gm.graph.nodes if n.op == "call_function"]


@pytest.mark.parametrize("function", [plain, factored], ids=["plain", "factored"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_one_op_each(function: Function, dtype: torch.dtype) -> None:
    gm = joint(function, randn(3, 4, dtype=dtype))
    recognize_gelu(gm)
    gm.graph.lint()
    assert ops(gm) == BOTH
    assert all(n.meta["val"].dtype == dtype and n.meta["val"].is_cuda for n in gm.graph.nodes if n.op != "output")


def test_that_of_transformers() -> None:
    activation = pytest.importorskip("transformers.activations").NewGELUActivation()
    gm = joint(activation, randn(3, 4))
    recognize_gelu(gm)
    assert ops(gm) == BOTH


@pytest.mark.parametrize("dtype", FLOATS[1:], ids=str)
def test_autocast_leaves_nothing_in_float32(dtype: torch.dtype) -> None:
    gm = joint(block, *(randn(*shape, dtype=dtype) for shape in [(2, 3, 8), (32,), (8, 32), (32, 8)]))
    assert torch.float32 in {n.meta["val"].dtype for n in gm.graph.nodes if n.op != "output"}
    before = [tuple(n.meta["val"].stride()) for n in gm.graph.output_node().args[0]]
    recognize_gelu(gm)
    gm.graph.lint()
    assert [op for op in BOTH if op in ops(gm)] == BOTH and not set(ops(gm)) & {aten.tanh.default, aten.mul.Tensor}
    assert {n.meta["val"].dtype for n in gm.graph.nodes if n.op != "output"} == {dtype}
    assert [tuple(n.meta["val"].stride()) for n in gm.graph.output_node().args[0]] == before


@pytest.mark.parametrize("function", [plain, rounded], ids=["plain", "autocast"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_results_are_no_less_exact(function: Function, dtype: torch.dtype) -> None:
    """In 16 bits they are closer to float64; in float32 both are within a few roundings. The ops are torch's here."""
    gm = joint(function, randn(1, dtype=dtype))
    written_out = joint(function, randn(1, dtype=dtype))
    recognize_gelu(gm)
    assert [op for op in ops(gm) if op in BOTH] == BOTH
    with _disable_current_modes():
        x, g = torch.linspace(-6, 6, 4001).to(dtype), torch.randn(4001).to(dtype)
        wide, slope = x.double(), g.double()
        exact = F.gelu(wide, approximate="tanh"), aten.gelu_backward(slope, wide, approximate="tanh")
        for each in (gm, written_out):
            move(each, "cpu")
        for new, old, right in zip(gm([x], [g]), written_out([x], [g]), exact, strict=True):
            assert (new.shape, new.dtype) == (right.shape, dtype) == (old.shape, old.dtype)
            error, before = ((t.double() - right).abs().max() for t in (new, old))
            assert error <= max(before, 8 * torch.finfo(torch.float32).eps * right.abs().max())


def read_inside(x: torch.Tensor) -> torch.Tensor:
    tanh = torch.tanh(SCALE * (x + 0.044715 * torch.pow(x, 3.0)))
    return torch.stack([0.5 * x * (1.0 + tanh), tanh])


def unlike(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.tanh(SCALE * (x + 0.0447 * torch.pow(x, 3.0))))


def partly_cut(x: torch.Tensor) -> torch.Tensor:
    """The gradient is another."""
    return 0.5 * x * (1.0 + torch.tanh(SCALE * (x + 0.044715 * torch.pow(x.detach(), 3.0))))


def read_wide(x: torch.Tensor) -> torch.Tensor:
    """A result in float32 that is not rounded before it is used."""
    return (mixed(x) * x).to(x.dtype)


def read_twice(x: torch.Tensor) -> torch.Tensor:
    """The gradient of the float32 result is a sum, and no rounded value."""
    y = mixed(x)
    return torch.cat([y.to(x.dtype), y.to(x.dtype)])


def rounded_inside(x: torch.Tensor) -> torch.Tensor:
    tanh = torch.tanh(SCALE * (x + 0.044715 * torch.pow(x, 3.0)).bfloat16())
    return 0.5 * x * (1.0 + tanh)


def amid_other_terms(x: torch.Tensor) -> torch.Tensor:
    """Autograd adds the gradient of the sine first, and GELU's terms to that."""
    return plain(x) + x.sin()


def stretched(x: torch.Tensor) -> torch.Tensor:
    inner = torch.tanh(SCALE * (x + 0.044715 * torch.pow(x, 3.0)))
    return 0.5 * x[:1] * (1.0 + inner)


@pytest.mark.parametrize(
    "function", [read_inside, unlike, partly_cut, read_wide, read_twice, rounded_inside, amid_other_terms, stretched]
)
def test_what_stays(function: Function) -> None:
    dtype = torch.bfloat16 if function in (read_wide, read_twice) else torch.float32
    gm = joint(function, randn(3, 4, dtype=dtype))
    gm.graph.eliminate_dead_code()
    before = str(gm.graph)
    recognize_gelu(gm)
    assert str(gm.graph) == before


def test_what_else_becomes_of_x() -> None:
    """Autograd adds up all that comes of ``x``: here GELU's terms first, and cosine's after them."""
    gm = joint(lambda x: x.sin() + plain(x), randn(3, 4))
    recognize_gelu(gm)
    assert [op for op in ops(gm) if op in BOTH] == BOTH and aten.cos.default in ops(gm)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_forward_alone(dtype: torch.dtype) -> None:
    gm = make_fx(rounded)(torch.empty(3, 4, dtype=dtype, device="cuda"))
    recognize_gelu(gm)
    assert ops(gm) == [aten.gelu.default]


@pytest.mark.parametrize("op", [*BOTH, aten.tanh.default, aten.tanh_backward.default, aten.pow.Tensor_Scalar], ids=str)
def test_a_users_lowering_sees_its_op(monkeypatch: pytest.MonkeyPatch, op: Any) -> None:
    gm = joint(plain, randn(3, 4))
    before = str(gm.graph)
    theirs = dataclasses.replace(aten_functions.lowerings[op], function=lambda *args, **kwargs: None)
    monkeypatch.setitem(aten_functions.lowerings, op, theirs)
    recognize_gelu(gm)
    assert str(gm.graph) == before


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_what_is_saved(dtype: torch.dtype) -> None:
    """Nothing as wide as the hidden layer but what goes into GELU, and its result for the product behind."""
    primals = [randn(*shape, dtype=dtype) for shape in [(2, 3, 8), (32,), (8, 32), (32, 8)]]
    gm = joint(block, *primals)
    forward, _ = partition(gm, [], num_fwd_outputs=1, static_lifetime_input_indices=[])
    wide = [n for n in forward.graph.output_node().args[0][1:] if n.meta["val"].numel() == 2 * 3 * 32]
    assert ops(gm).count(aten.gelu.default) == ops(gm).count(aten.gelu_backward.default) == 1
    assert wide[0].target is aten.addmm.default and len(wide) <= 2
    assert all(n.meta["val"].dtype == dtype for n in wide)

"""Constant folding, before the partition (whole nodes) and inside a MAX graph. Nothing is compiled here."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from max.dtype import DType
from max.graph import DeviceRef, Graph, TensorType, TensorValue, ops
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from torch_max_backend.capture.constant_folding import LARGEST_CONSTANT, fold_constants
from torch_max_backend.lowering.constant_ops import fold_constant_ops

pytestmark = pytest.mark.any_runner("graph passes, and lowerings that are called by the test itself")

aten = torch.ops.aten
CPU = DeviceRef.CPU()


def folded(function: Callable[..., object], *inputs: torch.Tensor, dynamic: bool = False) -> fx.GraphModule:
    gm = make_fx(function, tracing_mode="symbolic" if dynamic else "fake")(*inputs)
    fold_constants(gm)
    return gm


def targets(gm: fx.GraphModule) -> list[object]:
    return [n.target for n in gm.graph.nodes if n.op == "call_function"]


def test_a_mask_becomes_one_attribute() -> None:
    def masked(x: torch.Tensor) -> torch.Tensor:
        n = torch.arange(x.shape[-1])
        return x.masked_fill(n[:, None] < n[None, :], 0.0)

    x = torch.randn(3, 5, 5)
    gm = folded(masked, x)
    assert targets(gm) == [aten.masked_fill.Scalar]
    assert [n.op for n in gm.graph.nodes].count("get_attr") == 1
    assert torch.equal(gm(x), masked(x))


def test_a_value_that_repeats_one_number_stays_a_fill() -> None:
    gm = folded(lambda x: x + torch.ones(4, dtype=torch.int64).to(torch.float32), torch.randn(4))
    assert targets(gm) == [aten.full.default, aten.add.Tensor]
    gm = folded(lambda x: x + torch.tensor([0.0, -0.0]).neg(), torch.randn(2))
    assert aten.full.default not in targets(gm)  # 0.0 and -0.0 are equal but not the same


def _shuffled(x: torch.Tensor) -> torch.Tensor:
    return x[torch.randperm(x.shape[0])]


def _large(x: torch.Tensor) -> torch.Tensor:
    return x + torch.arange(LARGEST_CONSTANT // 8 + 1).sin()[0]


def _returned(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    places = torch.arange(4) * 2
    return x + places, places.view(2, 2)


@pytest.mark.parametrize(
    ("function", "op"),
    [
        pytest.param(_shuffled, aten.randperm.default, id="random"),
        pytest.param(lambda x: x + torch.empty(4), aten.empty.memory_format, id="uninitialised"),
        pytest.param(_large, aten.sin.default, id="too-large"),
        pytest.param(_returned, aten.mul.Tensor, id="shares-memory-with-an-output"),
    ],
)
def test_what_is_not_folded(function: Callable[..., object], op: object) -> None:
    assert op in targets(folded(function, torch.randn(4)))


def test_what_raises_raises_when_it_is_called() -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        return x + torch.arange(3)[torch.tensor([5])]

    gm = folded(wrong, torch.randn(1))
    with pytest.raises(IndexError):
        gm(torch.randn(1))


def test_sizes_that_vary_are_not_folded() -> None:
    gm = folded(lambda x: x + torch.arange(x.shape[0]) * 2, torch.randn(4), dynamic=True)
    assert any(t is aten.mul.Tensor for t in targets(gm))


def graph_ops(build: Callable[[TensorValue], TensorValue]) -> tuple[list[str], str]:
    """Names of the ops that are left in a graph of one float32 [2, 3] input, and its text."""
    with Graph("graph", input_types=[TensorType(DType.float32, [2, 3], CPU)]) as graph:
        graph.output(build(graph.inputs[0].tensor))
        fold_constant_ops(graph)
    names = [op.operation.name for op in graph._graph_body.operations]
    return [n for n in names if n not in ("mo.constant", "mo.chain.create", "mo.output")], str(graph)


def number(value: float, dtype: DType = DType.float32) -> TensorValue:
    return ops.constant(value, dtype, CPU)


@pytest.mark.parametrize(
    ("build", "left", "value"),
    [
        (lambda x: x * (number(2.0) / number(7.0)), ["rmo.mul"], "0.285714298"),
        (lambda x: x * ops.cast(number(3, DType.int64), DType.float32), ["rmo.mul"], "3.000000e+00"),
        (
            lambda x: x + ops.cast(ops.range(0, 3, 1, 3, dtype=DType.int64, device=CPU), DType.float32),
            ["rmo.add"],
            "2.0",
        ),
        (lambda x: ops.where(number(1.0) > number(2.0), x, number(5.0) - 1), ["rmo.select"], "4.000000e+00"),
        (lambda x: x + ops.cast(ops.cast(number(1e10), DType.int32), DType.float32), None, "mo.cast"),
        (lambda x: x + ops.max(number(float("nan")), number(1.0)), None, "rmo.max"),
        (lambda x: x * ops.cast(number(0, DType.int64), DType.float32), None, "mo.cast"),
        (lambda x: x * (number(2.0) - number(2.0)), None, "rmo.sub"),
        (lambda x: x * ops.broadcast_to(number(2.0), [2, 3]), ["rmo.broadcast_to", "rmo.mul"], "rmo.broadcast_to"),
    ],
)
def test_arithmetic_on_constants(
    build: Callable[[TensorValue], TensorValue], left: list[str] | None, value: str
) -> None:
    names, text = graph_ops(build)
    assert value in text
    assert left is None or names == left


@pytest.mark.parametrize("divisor", [lambda: number(7.0), lambda: ops.broadcast_to(number(7.0), [2, 3])])
def test_divisors_are_hidden(divisor: Callable[[], TensorValue]) -> None:
    """MAX takes 10 s for what it sees in a constant divisor."""
    names, _ = graph_ops(lambda x: x / divisor())
    assert names[-3:] == ["rmo.equal", "rmo.select", "rmo.div"]
    assert graph_ops(lambda x: number(7.0) / x)[0] == ["rmo.div"]


def test_divisors_of_integers_are_hidden() -> None:
    """Their quotients stay integers, which are rounded in further steps."""
    with Graph("graph", input_types=[TensorType(DType.int64, [2, 3], CPU)]) as graph:
        graph.output(ops.floor_div(graph.inputs[0].tensor, number(7, DType.int64)))
        fold_constant_ops(graph)
    text = str(graph)
    (division,) = [line for line in text.splitlines() if "rmo.div" in line]
    (hidden,) = [line for line in text.splitlines() if "rmo.select" in line]
    assert hidden.split()[0] in division and division.endswith("-> !mo.tensor<[2, 3], si64>")

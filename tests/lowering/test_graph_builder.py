"""The lowering walk's own checks, on graphs that are built and not compiled."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from max.dtype import DType
from max.graph import DeviceRef, Dim, Graph, TensorType, TensorValue, ops

from torch_max_backend.lowering.graph_builder import second_broadcast

pytestmark = pytest.mark.any_runner("the MAX graphs are built by the test itself")

Build = Callable[[TensorValue, TensorValue, TensorValue], TensorValue]


@pytest.mark.parametrize(
    ("build", "sizes"),
    [
        (lambda x, row, column: x * row * column, []),
        (lambda x, row, column: x * (row * 2), []),
        (lambda x, row, column: (x - row) * ops.exp(column), []),
        (lambda x, row, column: x + row * column, ["b", "n", "m"]),
        (lambda x, row, column: x + ops.cast(ops.greater(row, column), DType.float32), ["b", "n", "m"]),
        (lambda x, row, column: ops.where(ops.greater(row, column), x, x), ["b", "n", "m"]),
        (lambda x, row, column: x + ops.unsqueeze(row * column, 0), ["b", "n", "m"]),
    ],
)
def test_second_broadcasts_are_found(build: Build, sizes: list[str]) -> None:
    cpu = DeviceRef.CPU()
    shapes: list[list[str | int]] = [["b", "n", "m"], ["n", 1], [1, "m"]]
    with Graph("graph", input_types=[TensorType(DType.float32, s, cpu) for s in shapes]) as graph:
        inputs = [v.tensor for v in graph.inputs]
        found = second_broadcast([build(*inputs)], {v._mlir_value for v in inputs})
        graph.output()
    assert found == [Dim(s) for s in sizes]

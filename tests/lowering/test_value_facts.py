"""What is remembered of a graph's values, on graphs that are built and not compiled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from max.dtype import DType
from max.graph import DeviceRef, Graph, TensorType, TensorValue

from torch_max_backend.aten_functions.support.tensor_ops import (
    broadcast_to,
    narrow,
    permute,
    permuted_from,
    rebind,
    reshape,
    reshapes_of,
    transpose_of,
)
from torch_max_backend.aten_functions.support.value_facts import (
    Facts,
    GraphFacts,
    Unfinished,
    facts_of,
    finish,
    mark_unfinished,
    remembering,
    unfinished_of,
)


@pytest.fixture
def x() -> Iterator[TensorValue]:
    """An input [2, 3, 4] of a graph that is being built."""
    with Graph("graph", input_types=[TensorType(DType.bfloat16, [2, 3, 4], DeviceRef.CPU())]) as graph:
        yield graph.inputs[0].tensor
        graph.output()


def test_where_values_come_from(x: TensorValue) -> None:
    with remembering(GraphFacts()):
        turned = permute(x, [0, 2, 1])
        assert permuted_from(turned) == (x, (0, 2, 1))
        assert transpose_of(turned) is x
        assert permute(turned, [0, 2, 1]) is x
        flat = reshape(x, [6, 4])
        assert reshapes_of(flat) == [x]
        assert reshape(flat, [2, 3, 4]) is x
        assert narrow(broadcast_to(broadcast_to(x, [5, 2, 3, 4]), [7, 5, 2, 3, 4])) is x
        matrices = transpose_of(reshape(turned, [1, 2, 4, 3]))
        assert matrices is not None and list(matrices.shape) == [1, 2, 3, 4]


def test_facts_are_of_the_object_and_of_one_walk(x: TensorValue) -> None:
    facts = GraphFacts()
    with remembering(facts):
        turned = permute(x, [2, 1, 0])
        assert facts_of(TensorValue(turned)) == Facts()
        with remembering(GraphFacts()):
            assert facts_of(turned) == Facts()
        assert facts.of(turned).permuted_from == (x, (2, 1, 0))
    assert facts_of(turned) == Facts()
    assert permuted_from(permute(x, [2, 1, 0])) is None, "outside of a walk nothing is remembered"


def test_unfinished_until_the_value_is_needed(x: TensorValue) -> None:
    class Part(Unfinished):
        def reshaped(self, shape: object) -> Unfinished:
            return self

    part = Part()
    with remembering(GraphFacts()):
        mark_unfinished(x, part)
        mark_unfinished(x, None)
        flat = reshape(x, [6, 4])
        assert unfinished_of(x) is part
        assert unfinished_of(flat) is part
        assert unfinished_of(2.0) is None
        assert reshapes_of(flat) == [x]
        finish(flat)
        assert unfinished_of(flat) is None
        (anew,) = reshapes_of(flat)
        assert anew is not x, "it is named anew, so that nothing is asked of it"
        finish(x)
        mark_unfinished(flat, part)
        assert reshapes_of(flat) == []


def test_nothing_is_noted_on_values_themselves(x: TensorValue) -> None:
    with remembering(GraphFacts()):
        made = [permute(x, [0, 2, 1]), reshape(x, [6, 4]), broadcast_to(x, [5, 2, 3, 4]), rebind(x, [2, 3, 4])]
        mark_unfinished(made[0], Unfinished())
    private = {name for value in made for name in vars(value) if name.startswith("_")}
    assert private == {"_mlir_value"}

"""What is asked for twice is computed once, but for what the graph returns."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torch_max_backend.capture.equal_nodes import share_equal_nodes

pytestmark = pytest.mark.any_runner("graph passes, which come before the partition")

aten = torch.ops.aten


def counts(function: object, *inputs: torch.Tensor) -> dict[str, int]:
    gm = make_fx(function, tracing_mode="fake")(*inputs)
    output = gm.graph.output_node()
    if isinstance(output.args[0], torch.fx.Node):
        output.args = ((output.args[0],),)
    share_equal_nodes(gm)
    names = [str(n.target.overloadpacket).split(".")[-1] for n in gm.graph.nodes if n.op == "call_function"]
    return {name: names.count(name) for name in names}


X = torch.ones(3, 4)


def test_equal_nodes_are_one() -> None:
    assert counts(lambda x: (x.exp() + 1) * (x.exp() + 1), X) == {"exp": 1, "add": 1, "mul": 1}


def test_what_leaves_is_memory_of_its_own() -> None:
    assert counts(lambda x: (x.exp(), x.exp()), X) == {"exp": 2}


def test_numbers_are_told_apart() -> None:
    assert counts(lambda x: (x + 0.0).exp() + (x + -0.0).exp() + (x + 1).exp() + (x + True).exp(), X)["exp"] == 4


def test_random_numbers_are_drawn_each_time() -> None:
    assert counts(lambda x: aten.rand_like(x) * aten.rand_like(x), X)["rand_like"] == 2


def test_a_graph_that_writes_stays_as_it_is() -> None:
    assert counts(lambda x: (aten.copy_(x, x.exp() * x.exp()),), X)["exp"] == 2

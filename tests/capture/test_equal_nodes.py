"""What is asked for twice is computed once, but for what the graph returns."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from torch_max_backend.capture import joint_graph
from torch_max_backend.capture.equal_nodes import share_equal_nodes

pytestmark = pytest.mark.any_runner("graph passes, which come before the partition")

aten = torch.ops.aten


def counts(function: object, *inputs: torch.Tensor) -> dict[str, int]:
    gm = make_fx(function, tracing_mode="fake")(*inputs)
    output = gm.graph.output_node()
    if isinstance(output.args[0], torch.fx.Node):
        output.args = ((output.args[0],),)
    share_equal_nodes(gm)
    names = [n.target.__name__.split(".")[0] for n in gm.graph.nodes if n.op == "call_function"]
    return {name: names.count(name) for name in names}


X = torch.ones(3, 4)


def test_equal_nodes_are_one() -> None:
    assert counts(lambda x: (x.exp() + 1) * (x.exp() + 1), X) == {"exp": 1, "add": 1, "mul": 1}


def test_what_leaves_is_memory_of_its_own() -> None:
    assert counts(lambda x: (x.exp(), x.exp()), X) == {"exp": 2}


def test_what_leaves_through_views_is_memory_of_its_own() -> None:
    assert counts(lambda x: (x.exp().view(-1), x.exp().view(-1)), X) == {"exp": 2, "view": 2}
    assert counts(lambda x: (x.sort()[0], x.sort()[0]), X)["sort"] == 2
    given, other = torch.compile(lambda x: (x.exp().view(-1), x.exp().view(-1)), backend="max_backend")(X)
    assert given.data_ptr() != other.data_ptr()


def test_ops_of_several_results_and_their_results_are_one() -> None:
    assert counts(lambda x: x.sort()[0] * x.sort()[0], X) == {"sort": 1, "getitem": 2, "mul": 1}  # of 0 and of 1


def test_what_nobody_has_written_stays() -> None:
    assert counts(lambda x: (aten.empty_like(x) * 0 + aten.empty_like(x), x), X)["empty_like"] == 2


def test_numbers_are_told_apart() -> None:
    assert counts(lambda x: (x + 0.0).exp() + (x + -0.0).exp() + (x + 1).exp() + (x + True).exp(), X)["exp"] == 4


def test_random_numbers_are_drawn_each_time() -> None:
    assert counts(lambda x: aten.rand_like(x) * aten.rand_like(x), X)["rand_like"] == 2


def test_a_graph_that_writes_stays_as_it_is() -> None:
    assert counts(lambda x: (aten.copy_(x, x.exp() * x.exp()),), X)["exp"] == 2


# -- forward and backward together -------------------------------------------------------------------------------------
def cut(function: Any, *inputs: torch.Tensor) -> list[fx.GraphModule]:
    """The forward and the backward of a function, as they are compiled."""
    found: list[fx.GraphModule] = []
    made = joint_graph.partition

    def noted(*args: Any, **how: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        found.extend(made(*args, **how))
        return found[0], found[1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch_max_backend.capture.joint_graph.partition", noted)
        torch.compile(function, backend="max_backend")(*inputs)
    return found


def test_a_forward_and_its_backward_share_what_is_equal() -> None:
    """With what is saved as small as by torch's own pass."""
    x = torch.randn(64, 8, requires_grad=True)
    forward, backward = cut(lambda x: (x.exp() * x.exp()).sin() * x.exp(), x)
    assert [n.target for n in forward.graph.nodes].count(aten.exp.default) == 1
    assert [n.target for n in backward.graph.nodes].count(aten.exp.default) <= 1


def test_training_imports_no_lowering_of_inductor() -> None:
    """Which takes a second."""
    program = (
        "import sys, torch, torch._functorch.config\n"
        "torch._functorch.config.enable_autograd_cache = False\n"
        "x = torch.ones(8, requires_grad=True)\n"
        "torch.compile(lambda x: x.sin() * 2, backend='max_backend')(x).sum().backward()\n"
        "assert x.grad is not None\n"
        "print([m for m in ('torch._inductor.lowering', 'torch._inductor.pattern_matcher') if m in sys.modules])\n"
    )
    env = os.environ | {"TORCH_MAX_BACKEND_BEARTYPE": "0", "TORCH_MAX_BACKEND_EXECUTOR": "auto"}  # which starts sooner
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.strip() == "[]"

"""Training programs agree with eager: losses, gradients, parameters, buffers, and the state of the generator."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from tests.harness import STRICT, TOLERANCE
from tests.training import PROGRAMS, Perceptron, Training
from torch_max_backend import compile_together
from torch_max_backend.options import resolve

pytestmark = pytest.mark.xdist_group("training")

_failed: dict[str, str] | None = None


def compile(function: Any) -> Any:
    return torch.compile(function, backend="max_backend", options=STRICT)


def run(program: Training, how: Any) -> Any:
    torch._dynamo.reset()
    torch.manual_seed(0)
    return program.run(how)


def prepared() -> dict[str, str]:
    """Compile the graphs of all programs together, once; gives the error texts of those that were not lowered."""
    global _failed
    if _failed is None:
        _failed = {}
        with compile_together(resolve(STRICT), graphs_per_module=40):
            for program in PROGRAMS:
                try:
                    run(program, compile)
                except Exception:
                    _failed[program.name] = traceback.format_exc(limit=-2)
    return _failed


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_training(program: Training) -> None:
    failed = prepared()
    assert program.name not in failed, failed[program.name]
    wanted, given = run(program, lambda function: function), run(program, compile)
    compare(given, wanted, program)


def compare(given: Any, wanted: Any, program: Training) -> None:
    left, right = pytree.tree_leaves_with_path(given), pytree.tree_leaves_with_path(wanted)
    assert [path for path, _ in left] == [path for path, _ in right]
    for (path, a), (_, b) in zip(left, right, strict=True):
        if not isinstance(b, torch.Tensor):
            assert a == b, pytree.keystr(path)
            continue
        rtol, atol = TOLERANCE.get(b.dtype, (0.0, 0.0))
        rtol, atol = program.rtol or rtol, program.atol or atol
        torch.testing.assert_close(
            a, b, rtol=rtol, atol=atol, check_stride=True, msg=lambda m, path=path: f"{pytree.keystr(path)}: {m}"
        )


def test_a_second_derivative_is_refused() -> None:
    prepared()
    model, x = Perceptron(), torch.randn(5, 12, requires_grad=True)
    (grad,) = torch.autograd.grad(compile(model)(x).square().mean(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        grad.sum().backward()

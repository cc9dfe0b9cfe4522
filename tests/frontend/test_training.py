"""Training programs agree with eager: losses, gradients, parameters, buffers, and the state of the generator."""

from __future__ import annotations

import functools
import traceback
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from tests.support.harness import STRICT, TOLERANCE
from tests.support.training_programs import CORE, REST, Perceptron, Training
from torch_max_backend import compile_together
from torch_max_backend.compile.compiler import put_off
from torch_max_backend.options import resolve

pytestmark = [pytest.mark.xdist_group("training"), pytest.mark.sampled]

EAGER = pytest.mark.any_runner("Dynamo leaves fused optimizers to eager, by torch.compiler.disable")
PARTS = {"core": CORE, "rest": REST}


def compile(function: Any) -> Any:
    return torch.compile(function, backend="max_backend", options=STRICT)


def run(program: Training, how: Any) -> Any:
    torch._dynamo.reset()
    torch.manual_seed(0)
    return program.run(how)


@functools.cache
def prepared(part: str) -> dict[str, str]:
    """Compile the graphs of a part's programs together, once; gives the error texts of those that were not lowered."""
    failed = {}
    with compile_together(resolve(STRICT), graphs_per_module=40):
        for program in PARTS[part]:
            try:
                run(program, compile)
            except Exception:
                failed[program.name] = traceback.format_exc(limit=-2)
    return failed


@pytest.mark.full
@pytest.mark.parametrize(
    ("part", "program"),
    [pytest.param("core", p, id=p.name) for p in CORE]
    + [
        pytest.param("rest", p, id=p.name, marks=[pytest.mark.full, *([EAGER] if p.name.endswith("_fused") else [])])
        for p in REST
    ],
)
def test_as_max_graphs(part: str, program: Training) -> None:
    failed = prepared(part)
    assert program.name not in failed, failed[program.name]
    wanted, given = run(program, lambda function: function), run(program, compile)
    compare(given, wanted, program)


@pytest.mark.parametrize("program", [*CORE, *REST], ids=[p.name for p in [*CORE, *REST]])
def test_as_generated_kernels(program: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_MAX_BACKEND_EXECUTOR", "auto")
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
    model, x = Perceptron(), torch.randn(5, 12, requires_grad=True)
    with put_off():  # nothing of it depends on the compiler
        (grad,) = torch.autograd.grad(compile(model)(x).square().mean(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="double backward"):
            grad.sum().backward()

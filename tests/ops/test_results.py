"""Results and gradients of public ops against their references in float64, whose gradients are PyTorch's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.ops.cases import CASES, OpCase
from torch_max_backend.ops.declaration import Tolerance, declaration_of, gradient

pytestmark = pytest.mark.any_runner("ops in eager, which programs compute")
HALF = (torch.bfloat16, torch.float16)


def in_float64(x: Any) -> Any:
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def results_of(found: Any) -> list[torch.Tensor]:
    return [found] if isinstance(found, torch.Tensor) else list(found)


def hold(found: torch.Tensor, wanted: torch.Tensor, tolerance: Tolerance, dtype: torch.dtype, what: str) -> None:
    """Compare a result with the reference's by its declaration's tolerance. ``dtype`` is the arguments'."""
    assert found.shape == wanted.shape, what
    assert found.is_contiguous(), what
    if not found.is_floating_point():
        assert torch.equal(found, wanted.to(found.dtype)), what
        return
    scale = float(wanted.abs().max()) if wanted.numel() else 0.0
    far = float((found.double() - wanted).abs().max()) if wanted.numel() else 0.0
    assert far <= tolerance.of(dtype if tolerance.of_arguments else found.dtype) * scale, (
        f"{what}: {far} away from values up to {scale}"
    )


def check(case: OpCase, dtype: torch.dtype) -> None:
    declaration = declaration_of(case.op)
    args = case.made(dtype)
    own = [
        x.detach().requires_grad_() if n in declaration.differentiable and isinstance(x, torch.Tensor) else x
        for n, x in zip(declaration.names, args)
    ]
    wide = [
        in_float64(x).detach().requires_grad_(isinstance(x, torch.Tensor) and x.requires_grad)
        if isinstance(x, torch.Tensor)
        else x
        for x in own
    ]
    found, wanted = results_of(case.call(*own)), results_of(declaration.reference(*wide))
    for k, (f, w) in enumerate(zip(found, wanted, strict=True)):
        hold(f, w, declaration.tolerance, dtype, f"result {k}")
    backward = gradient(declaration)
    if backward is None:
        assert not any(f.requires_grad for f in found)
        return
    generator = torch.Generator().manual_seed(3)
    wanted = [w for f, w in zip(found, wanted) if f.requires_grad]
    found = [f for f in found if f.requires_grad]
    slopes = [torch.randn(f.shape, generator=generator, dtype=torch.float64).to(f.dtype) for f in found]
    places = [k for k, x in enumerate(own) if isinstance(x, torch.Tensor) and x.requires_grad]
    ours = torch.autograd.grad(found, [own[k] for k in places], slopes)
    theirs = torch.autograd.grad(wanted, [wide[k] for k in places], [s.double() for s in slopes])
    for k, f, w in zip(places, ours, theirs, strict=True):
        hold(f, w, backward.tolerance, dtype, f"gradient of {declaration.names[k]}")


FIRST = {case.op: case for case in reversed(CASES)}
"""The first row of each op."""


@pytest.mark.parametrize("case", CASES, ids=str)
def test_float32(case: OpCase) -> None:
    check(case, torch.float32)


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_other_dtypes(case: OpCase, dtype: torch.dtype) -> None:
    check(case, dtype)

"""Results and gradients of public ops against their references in float64, whose gradients are PyTorch's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.ops.cases import CASES, OpCase
from tests.support.cases import on_device
from torch_max_backend import reports
from torch_max_backend.ops.declaration import Tolerance, declaration_of, gradient


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


def with_gradients(case: OpCase, args: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
    """Arguments that record gradients where the op has them, and the same in float64."""
    declaration = declaration_of(case.op)
    has = [n in declaration.differentiable and isinstance(x, torch.Tensor) for n, x in zip(declaration.names, args)]
    own = [x.detach().requires_grad_() if h else x for h, x in zip(has, args)]
    wide = [in_float64(x).detach().requires_grad_() if h else in_float64(x) for h, x in zip(has, args)]
    return own, wide


def check(case: OpCase, dtype: torch.dtype, device: str = "cpu") -> None:
    """Call an op in eager, and compare results and gradients; all of it must be programs."""
    declaration, known = declaration_of(case.op), len(reports())
    args = tuple(on_device(x, device) if isinstance(x, torch.Tensor) else x for x in case.made(dtype))
    own, wide = with_gradients(case, args)
    found, wanted = results_of(case.call(*own)), results_of(declaration.reference(*wide))
    for k, (f, w) in enumerate(zip(found, wanted, strict=True)):
        hold(f, w, declaration.tolerance, dtype, f"result {k}")
    if declaration.differentiable:
        _check_gradients(case, dtype, (own, wide), (found, wanted))
    else:
        assert not any(f.requires_grad for f in found)
    assert all(r.stats.regions == r.stats.programs for r in reports()[known:])


def _check_gradients(case: OpCase, dtype: torch.dtype, args: Any, results: Any) -> None:
    declaration = declaration_of(case.op)
    backward = gradient(declaration)
    assert backward is not None
    (own, wide), (found, wanted) = args, results
    wanted = [w for f, w in zip(found, wanted) if f.requires_grad]
    found = [f for f in found if f.requires_grad]
    generator = torch.Generator().manual_seed(3)
    slopes = [torch.randn(f.shape, generator=generator, dtype=torch.float64).to(f) for f in found]
    places = [k for k, x in enumerate(own) if isinstance(x, torch.Tensor) and x.requires_grad]
    ours = torch.autograd.grad(found, [own[k] for k in places], slopes)
    theirs = torch.autograd.grad(wanted, [wide[k] for k in places], [s.double() for s in slopes])
    for k, f, w in zip(places, ours, theirs, strict=True):
        hold(f, w, backward.tolerance, dtype, f"gradient of {declaration.names[k]}")


QUICK = ("add_rms_norm", "layer_norm-sliced", "reduce-columns", "swiglu", "linear_cross_entropy", "rope_at-half")
"""Rows that the ordinary run has: what programs of all ops compute is tested in one graph."""


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=[] if str(c).startswith(QUICK) else pytest.mark.full) for c in CASES],
    ids=str,
)
def test_float32(case: OpCase) -> None:
    check(case, torch.float32)


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_other_dtypes(case: OpCase, dtype: torch.dtype) -> None:
    check(case, dtype)

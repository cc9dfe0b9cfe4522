"""Public ops on a GPU, and ops of Mojo files there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.ops.cases import CASES, OpCase
from tests.ops.test_mojo_op import made
from tests.ops.test_results import check
from tests.ops.test_structures import kabsch, pairs
from torch_max_backend import ops, reports
from torch_max_backend.ops.declaration import declaration_of
from torch_max_backend.ops.eager_call import EagerCall
from torch_max_backend.ops.structures import best_rotation


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_and_gradients(case: OpCase, dtype: torch.dtype) -> None:
    check(case, dtype, "cuda")


def test_a_size_that_varies_becomes_symbolic() -> None:
    """The first sizes are numbers, a batch that differs in a later call is not, and a third one compiles nothing."""
    call, known = EagerCall(declaration_of("rms_norm")), len(reports())
    for rows, width, compiles in ((40, 264, 1), (56, 264, 2), (72, 264, 2), (40, 264, 2), (72, 520, 3), (80, 520, 3)):
        x, weight = torch.randn(rows, width, device="cuda"), torch.randn(width, device="cuda")
        expected = torch.nn.functional.rms_norm(x, (width,), weight, 1e-6)
        torch.testing.assert_close(call(x, weight, 1e-6), expected)
        assert len(reports()) - known == compiles, (rows, width)


def test_structures() -> None:
    for what, (a, b) in pairs().items():
        found, rotation = ops.rmsd_aligned(a.cuda(), b.cuda())
        wanted = kabsch(a, b)
        scale = max(float(b.abs().max()), float(a.abs().max()))
        assert abs(float(found) - wanted) <= 2e-7 * scale, what
        torch.testing.assert_close(rotation @ rotation.T, torch.eye(3).double().cuda(), msg=what)


def test_rotations_are_those_of_a_cpu() -> None:
    covariance = torch.randn(3001, 3, 3, dtype=torch.float64)
    torch.testing.assert_close(best_rotation(covariance.cuda()).cpu(), best_rotation(covariance))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_a_file_of_mojo(tmp_path: Path, dtype: torch.dtype) -> None:
    op = made(tmp_path, "tmb_test_gpu_mix")
    for shape in ((3, 5, 7), (300, 200), (1, 1), (0, 4)):
        x, y = torch.randn(shape).to(dtype), torch.randn(shape[-1]).to(dtype)
        wanted = (x.double() + y.double() * 0.5 + 1).to(dtype)
        torch.testing.assert_close(op(x.cuda(), y.cuda(), 0.5).cpu(), wanted)
    strict = {"fallback": "error", "executor": "auto"}
    compiled = torch.compile(lambda x, y: op(x * 2, y, 1.0).sin(), backend="max_backend", options=strict)
    x, y = torch.randn(60, 8, device="cuda", dtype=dtype), torch.randn(8, device="cuda", dtype=dtype)
    torch.testing.assert_close(compiled(x, y), (x * 2 + y + 1).sin(), rtol=2e-3, atol=2e-3)

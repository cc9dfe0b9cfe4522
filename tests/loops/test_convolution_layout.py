"""Transposed convolutions have channels last in memory, also where their results leave, and give eager's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from torch_max_backend import reports

pytestmark = pytest.mark.sampled

OPTIONS = {"fallback": "error", "executor": "auto"}
TOLERANCE = {torch.float32: {"rtol": 1e-4, "atol": 1e-4}, torch.bfloat16: {"rtol": 3e-2, "atol": 3e-2}}


@pytest.mark.parametrize(("size", "copies"), [(30, 3), (5, 1)], ids=["large", "small"])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_result_that_leaves_is_copied_back_if_it_is_large(dtype: torch.dtype, size: int, copies: int) -> None:
    torch._dynamo.reset()
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(s, generator=generator).to(dtype) for s in ((2, 12, size, size), (8, 12, 3, 3)))
    run = torch.compile(lambda x, w: F.conv_transpose2d(x, w.transpose(0, 1)), backend="max_backend", options=OPTIONS)
    given, wanted = run(x, w), F.conv_transpose2d(x, w.transpose(0, 1))
    torch.testing.assert_close(given, wanted, **TOLERANCE[dtype])
    assert given.stride() == wanted.stride()
    assert reports()[-1].programs[0].launches == copies

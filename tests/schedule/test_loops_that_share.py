"""Several neighbours along a loop for a thread of a GPU, where they share what is computed: where, and right."""

from __future__ import annotations

import pytest
import torch

from tests.codegen.test_emulated_kernels import for_gpu
from tests.support.grid_programs import check_emulated
from torch_max_backend.loops.rules import views
from torch_max_backend.loops.rules.registry import rules
from torch_max_backend.loops.tensor import Tensor, pointwise
from torch_max_backend.schedule import grid_limits
from torch_max_backend.schedule.grid_nest import GridNest
from torch_max_backend.schedule.machine import GPU
from torch_max_backend.schedule.plan import schedule

pytestmark = pytest.mark.any_runner("programs without a graph")


def enlarged(x: Tensor) -> tuple[Tensor, ...]:
    """Images whose channels lie side by side."""
    bilinear = rules()[torch.ops.aten.upsample_bilinear2d.default]
    n, h, w, c = (s.constant for s in x.shape)
    y = bilinear(views.permute(x, [0, 3, 1, 2]), [h * 5 // 3, w * 2 - 1], True, None, None)
    return (views.reshaped(views.permute(y, [0, 2, 3, 1]), [n, h * 5 // 3, w * 2 - 1, c]),)


def turned(x: Tensor) -> tuple[Tensor, ...]:
    return (pointwise(lambda a: a + a, views.permute(x, [1, 0, 2])),)


@pytest.fixture(autouse=True)
def as_if_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_limits, "BUSY", 8)


@pytest.mark.parametrize("images", [8, 9, 11])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_images_share_places_and_weights(images: int, dtype: torch.dtype) -> None:
    """Also where their number is no multiple of those that a thread has."""
    x = torch.randn(images, 9, 8, 6, generator=torch.Generator().manual_seed(0)).to(dtype)
    made = for_gpu(enlarged, x)
    (nest,) = (n for n in schedule(made.program, GPU).steps if isinstance(n, GridNest))
    assert nest.each > 1 and nest.repeated == nest.outer[0]
    source = made.written().source
    assert source.count("store") == nest.each and ("imin(j" in source) == (images % nest.each != 0)
    check_emulated(made)


def test_where_little_is_computed_blocks_are_apart() -> None:
    made = for_gpu(turned, (torch.arange(8 * 9 * 24) % 61).view(8, 9, 24).to(torch.int8))
    (nest,) = (n for n in schedule(made.program, GPU).steps if isinstance(n, GridNest))
    assert nest.each > 1 and nest.repeated is None
    check_emulated(made)

"""What library calls allocate, as programs count it, against torch's own records of the same call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks.allocations import allocations
from torch_max_backend.codegen.library_workspaces import totals
from torch_max_backend.loops.index import Index
from torch_max_backend.loops.program import Call, Called, Ref
from torch_max_backend.runtime.packed_products import MM_OF_PACKED

pytestmark = pytest.mark.any_runner("torch's libraries alone are called")
aten = torch.ops.aten

TOLERANCE = 0.05
"""oneDNN has scratch memory of some KiB beside what is counted."""


def counted(target: Any, *args: Any) -> int:
    """The peak of a call as a program has it."""

    def planned(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        return Ref("x", tuple(map(Index.of, x.shape)), tuple(map(Index.of, x.stride())), Index.of(0))

    results = target(*args)
    results = [results] if isinstance(results, torch.Tensor) else list(results)
    called = [
        None if r is None else Called("y", r.dtype, tuple(map(Index.of, r.shape)), tuple(map(Index.of, r.stride())))
        for r in results
    ]
    own = sum(r.untyped_storage().nbytes() for r in results if r is not None)
    return max([own, *map(int, totals(Call("ATen", target, tuple(map(planned, args)), {}, tuple(called))))])


def agree(target: Any, *args: Any) -> None:
    given = [x.contiguous() if isinstance(x, torch.Tensor) and x._is_view() else x for x in args]
    expected = counted(target, *given)
    with allocations() as found:
        kept = target(*given)
    assert expected == pytest.approx(found.peak, rel=TOLERANCE, abs=16 << 10), found.changes
    del kept


def plain(x: torch.Tensor) -> torch.Tensor:
    return x


def last(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last)


Layout = Callable[[torch.Tensor], torch.Tensor]


@pytest.mark.parametrize("layout", [plain, last])
@pytest.mark.parametrize(
    ("channels", "filters", "side", "kernel", "step", "groups"),
    [(3, 64, 64, 7, 2, 1), (64, 64, 24, 3, 1, 1), (20, 28, 24, 3, 1, 1), (256, 256, 4, 3, 1, 1), (64, 64, 24, 1, 1, 1),
     (64, 64, 24, 3, 1, 64), (64, 64, 24, 3, 1, 4)],
)  # fmt: skip
def test_a_convolution(
    layout: Layout, channels: int, filters: int, side: int, kernel: int, step: int, groups: int
) -> None:
    image, weight = (
        layout(torch.randn(4, channels, side, side)),
        torch.randn(filters, channels // groups, kernel, kernel),
    )
    pad = kernel // 2
    agree(aten.convolution.default, image, layout(weight), None, [step] * 2, [pad] * 2, [1] * 2, False, [0] * 2, groups)


def test_a_convolution_in_float64() -> None:
    image, weight = torch.randn(2, 8, 12, 12, dtype=torch.float64), torch.randn(8, 8, 3, 3, dtype=torch.float64)
    agree(aten.convolution.default, image, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)


@pytest.mark.parametrize("layout", [plain, last])
@pytest.mark.parametrize("wanted", [[True, True, False], [False, True, False]])
@pytest.mark.parametrize(("groups", "kernel"), [(1, 3), (1, 5), (64, 3)])
def test_gradients_of_a_convolution(layout: Layout, wanted: list[bool], groups: int, kernel: int) -> None:
    image, gradient = (layout(torch.randn(4, 64, 24, 24)) for _ in range(2))
    weight = layout(torch.randn(64, 64 // groups, kernel, kernel))
    how = ([64], [1, 1], [kernel // 2] * 2, [1, 1], False, [0, 0], groups, wanted)
    agree(aten.convolution_backward.default, gradient, image, weight, *how)


def test_wide_kernels_of_one_channel_have_large_gradients() -> None:
    """With channels last: a block of 16 x 16 for every element."""
    image, gradient, weight = (last(torch.randn(n, c, s, s)) for n, c, s in ((4, 96, 6), (4, 96, 6), (96, 1, 5)))
    how = ([96], [1, 1], [2, 2], [1, 1], False, [0, 0], 96, [True, True, False])
    agree(aten.convolution_backward.default, gradient, image, weight, *how)


@pytest.mark.parametrize(("length", "width"), [(128, 32), (300, 64), (1024, 64)])
def test_attention(length: int, width: int) -> None:
    queries = torch.randn(2, 4, length, width)
    agree(aten._scaled_dot_product_flash_attention_for_cpu.default, queries, queries, queries)


def test_a_product() -> None:
    agree(aten.mm.default, torch.randn(64, 128), torch.randn(128, 32))


@pytest.mark.parametrize("features", [8195, 8223])
def test_a_product_of_packed_integers(features: int) -> None:
    x, packed = torch.randn(64, 256).to(torch.bfloat16), torch.randint(-9, 9, (features, 256)).to(torch.int8)
    agree(MM_OF_PACKED, x, packed)

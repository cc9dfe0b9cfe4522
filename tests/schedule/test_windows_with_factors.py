"""Windows whose taps have weights of their own: a vector runs along the row of windows, where it meets them again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.codegen.test_written_source import program
from tests.support.loop_programs import LoopProgram, check_generated, check_passes
from torch_max_backend.loops.convolution_loops import convolved
from torch_max_backend.loops.expr import constant, op
from torch_max_backend.loops.rules import views
from torch_max_backend.loops.tensor import Tensor, pointwise
from torch_max_backend.schedule.nest import Nest
from torch_max_backend.schedule.plan import schedule


def separable(size: int, stride: int = 1, dilation: int = 1) -> Callable[..., tuple[Tensor, ...]]:
    """A depthwise convolution ``[n, h, w, channels] -> [n, h', w', channels]`` and a clamp."""

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        image, channels = views.permute(x, [0, 3, 1, 2]), int(x.shape[3].constant)
        padding = [size // 2] * 2
        found = convolved([image, weight, bias, [stride] * 2, padding, [dilation] * 2, False, [0, 0], channels])
        return (views.permute(pointwise(lambda a: op("maximum", a, constant(0, a.dtype)), found), [0, 2, 3, 1]),)

    return function


def made(function: Callable[..., tuple[Tensor, ...]], channels: int, h: int, w: int, size: int) -> LoopProgram:
    generator = torch.Generator().manual_seed(0)
    sizes = (2, h, w, channels), (channels, 1, size, size), (channels,)
    return program(function, *(torch.randint(-3, 4, s, generator=generator).float() for s in sizes))


def test_a_row_of_windows_is_the_innermost_loop() -> None:
    *_, found = schedule(made(separable(3), 40, 20, 30, 3).program).steps
    assert isinstance(found, Nest)
    assert found.vector is not None and found.vector.size == 40
    assert [v.size for v in found.outer] == [2, 20, 40]
    assert [v.size for s in found.stages for v in s.free] == [1, 28, 1], "cut where the borders are"


def test_what_is_no_window_is_read_in_its_own_order() -> None:
    def affine(x: Tensor, *factors: Tensor) -> tuple[Tensor, ...]:
        a, b, c, d = (views.expand(f, x.shape) for f in factors)
        return (pointwise(lambda x, a, b, c, d: (x - a) * b * c + d, x, a, b, c, d),)

    x, *factors = torch.randn(500, 40), *torch.randn(4, 40)
    (found,) = schedule(program(affine, x, *factors).program).steps
    assert isinstance(found, Nest)
    assert [s.vector.size for s in found.stages if s.vector is not None] == [40]


@pytest.mark.parametrize(
    ("size", "stride", "dilation", "channels", "h", "w"),
    [(3, 1, 1, 40, 9, 11), (3, 2, 1, 17, 12, 9), (5, 1, 1, 16, 7, 7), (3, 1, 2, 20, 8, 6), (7, 1, 1, 24, 5, 4)],
)
def test_results(size: int, stride: int, dilation: int, channels: int, h: int, w: int, tmp_path: Path) -> None:
    p = made(separable(size, stride, dilation), channels, h, w, size)
    check_generated([p], [check_passes(p)], tmp_path)

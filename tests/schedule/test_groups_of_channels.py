"""Norms of groups of few channels, which memory has last: vectors have channels of several groups, and are right."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.codegen.test_written_source import program
from tests.support.loop_programs import check_generated, check_passes
from torch_max_backend.loops.rules import views
from torch_max_backend.loops.rules.registry import rules
from torch_max_backend.loops.tensor import Tensor, pointwise
from torch_max_backend.schedule.plan import schedule

pytestmark = pytest.mark.any_runner("programs without a graph")
aten = torch.ops.aten
SIZES = [(3, 16, 30, 20, 4), (1, 40, 50, 40, 8), (2, 9, 40, 21, 3)]
"""Images, channels, rows, columns, groups."""


def group_norm(images: int, channels: int, rows: int, columns: int, groups: int) -> list[object]:
    def norm(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        found = rules()[aten.native_group_norm.default](x, w, b, images, channels, rows * columns, groups, 1e-5)
        return (views.permute(found[0], (0, 2, 3, 1)),)

    x = torch.randn(images, channels, rows, columns, generator=torch.Generator().manual_seed(0)) + 3
    return [norm, x.to(memory_format=torch.channels_last), torch.rand(channels) + 0.5, torch.randn(channels)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_norms_of_groups(sizes: tuple[int, ...], tmp_path: Path) -> None:
    norm, *inputs = group_norm(*sizes)
    made = program(norm, *inputs, smooth=True)  # type: ignore[arg-type]
    check_generated([made], [check_passes(made)], tmp_path)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_long_loops_have_vectors_of_all_channels(sizes: tuple[int, ...]) -> None:
    """Or of those of several places, where few channels would leave much of a vector empty."""
    norm, *inputs = group_norm(*sizes)
    text = str(schedule(program(norm, *inputs).program))  # type: ignore[arg-type]
    channels = sizes[1]
    kernels = [k for k in text.split("kernel over") if "x0[" in k]
    assert len(kernels) == 2 and f":{channels} in vectors" in kernels[0]
    assert (f":{channels} in vectors" if channels >= 16 else "_rows0[") in kernels[1]


def gradients(images: int, channels: int, rows: int, columns: int, groups: int) -> list[object]:
    def backward(g: Tensor, x: Tensor, m: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        every = [True, True, True]
        rule = rules()[aten.native_group_norm_backward.default]
        found = rule(g, x, m, r, w, images, channels, rows * columns, groups, every)
        return (views.permute(found[0], (0, 2, 3, 1)), found[1], found[2])

    generator = torch.Generator().manual_seed(1)
    shape = (images, channels, rows, columns)
    g, x = (torch.randn(shape, generator=generator).to(memory_format=torch.channels_last) for _ in range(2))
    m, r = torch.randn(images, groups, generator=generator), torch.rand(images, groups, generator=generator) + 0.5
    return [backward, g, x, m, r, torch.rand(channels, generator=generator) + 0.5]


@pytest.mark.parametrize("sizes", [*SIZES, (2, 6, 3, 1, 2)], ids=str)
def test_gradients_of_groups(sizes: tuple[int, ...], tmp_path: Path) -> None:
    backward, *inputs = gradients(*sizes)
    made = program(backward, *inputs, smooth=True)  # type: ignore[arg-type]
    check_generated([made], [check_passes(made)], tmp_path)


def test_gradients_read_images_twice_in_vectors_of_all_channels() -> None:
    backward, *inputs = gradients(1, 40, 50, 40, 8)
    text = str(schedule(program(backward, *inputs).program))  # type: ignore[arg-type]
    kernels = [k for k in text.split("kernel over") if "x0[" in k]
    assert len(kernels) == 2 and all(":40 in vectors" in k and "x1[" in k for k in kernels)


def test_few_elements_stay_one_kernel() -> None:
    norm, *inputs = group_norm(2, 8, 6, 6, 2)
    text = str(schedule(program(norm, *inputs).program))  # type: ignore[arg-type]
    assert sum("x0[" in k for k in text.split("kernel over")) == 1


def test_what_is_guarded_is_not_read_beyond_its_end(tmp_path: Path) -> None:
    """Groups of one tensor, joined with another: those behind the first one's end do not exist."""

    def joined(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        groups = views.reshaped(views.expand(views.unsqueeze(y, 2), [2, 2, 4]), [2, 1, 8])
        rest = views.reshaped(z, [2, 1, 8])
        every = views.expand(views.cat([groups, rest], 2), [2, 700, 16])
        return (pointwise(lambda a, b: a - b, x, every),)

    inputs = [torch.randn(s, generator=torch.Generator().manual_seed(0)) for s in ((2, 700, 16), (2, 2), (2, 8))]
    made = program(joined, *inputs, smooth=True)
    assert "_each" not in str(schedule(made.program))
    check_generated([made], [check_passes(made)], tmp_path)

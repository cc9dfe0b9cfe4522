"""Gradients of convolutions of one tap are products, and eager's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torch_max_backend import reports

pytestmark = pytest.mark.sampled

OPTIONS = {"fallback": "error", "executor": "auto"}
TOLERANCE = {torch.float32: {"rtol": 1e-4, "atol": 1e-4}, torch.bfloat16: {"rtol": 3e-2, "atol": 3e-2}}


def steps(x: torch.Tensor) -> list[int]:
    """The strides along which there is a step."""
    return [step for size, step in zip(x.shape, x.stride(), strict=True) if size > 1]


def calls_of(model: nn.Module, x: torch.Tensor) -> dict[str, int]:
    """The library calls of a backward whose gradients are eager's, and lie so."""
    run = torch.compile(model, backend="max_backend", options=OPTIONS)
    leaves = [t for t in (x, *model.parameters()) if t.requires_grad]
    wanted = torch.autograd.grad(model(x).float().square().mean(), leaves)
    given = torch.autograd.grad(run(x).float().square().mean(), leaves)
    torch.testing.assert_close(given, wanted, **TOLERANCE[x.dtype])
    assert [steps(g) for g in given] == [steps(g) for g in wanted]
    return reports()[-1].library_calls


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rank", [3, 4, 5])
def test_gradients(rank: int, dtype: torch.dtype) -> None:
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 3]
    model = nn.Sequential(kind(6, 10, 1), nn.Tanh(), kind(10, 4, 1, bias=False), nn.Tanh()).to(dtype)
    x = torch.randn(3, 6, *(5, 4, 2)[: rank - 2], dtype=dtype)
    assert calls_of(model, x) == {}, "small products are loops"


def test_gradients_with_channels_last() -> None:
    model = nn.Sequential(nn.Conv2d(6, 10, 3), nn.ReLU(), nn.Conv2d(10, 4, 1), nn.Tanh())
    x = torch.randn(3, 6, 5, 7).to(memory_format=torch.channels_last)
    assert calls_of(model, x) == {"ATen aten.convolution_backward.default": 1}


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(6, 10, 1, stride=2), (3, 6, 5, 7)),
        (nn.Conv2d(6, 10, 1, groups=2), (3, 6, 5, 7)),
        (nn.Conv2d(6, 10, 1, padding=1), (3, 6, 5, 7)),
        (nn.Conv2d(6, 10, 1), (1, 6, 64, 64)),
    ],
)
def test_others_are_left(layer: nn.Module, shape: tuple[int, ...]) -> None:
    assert calls_of(nn.Sequential(layer, nn.Tanh()), torch.randn(shape)) == {
        "ATen aten.convolution_backward.default": 1
    }


def test_a_gradient_that_leaves() -> None:
    """The caller of a backward gets the image's gradient in the strides that torch promises."""
    x = torch.randn(3, 6, 5, 7, requires_grad=True)
    assert calls_of(nn.Sequential(nn.Conv2d(6, 10, 1), nn.Tanh()), x) == {"ATen aten.convolution_backward.default": 1}

"""Small convolutions, and depthwise ones of few taps, are loops that give eager's results in eager's strides."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.codegen.test_emulated_kernels import for_gpu
from tests.support.grid_emulator import emulated
from torch_max_backend import reports
from torch_max_backend.loops import convolution_loops
from torch_max_backend.loops.tensor import Tensor

pytestmark = pytest.mark.sampled

OPTIONS = {"fallback": "error", "executor": "auto"}
TOLERANCE = {
    torch.float64: {"rtol": 1e-12, "atol": 1e-12},
    torch.float32: {"rtol": 1e-5, "atol": 1e-5},
    torch.float16: {"rtol": 2e-3, "atol": 2e-3},
    torch.bfloat16: {"rtol": 1e-2, "atol": 1e-2},
}
CONVOLUTION = {"ATen aten.convolution.default": 1}


def calls_of(layer: nn.Module, x: torch.Tensor) -> dict[str, int]:
    """The library calls of an activation, ``layer`` and another one, which give float64's results."""
    torch._dynamo.reset()
    layer = layer.to(x.dtype)

    def whole(x: torch.Tensor) -> torch.Tensor:
        return layer(x.abs()).sigmoid()

    with torch.no_grad():
        given, wanted = torch.compile(whole, backend="max_backend", options=OPTIONS)(x), whole(x)
        layer.double()
        exact = whole(x.double())
    torch.testing.assert_close(given.double(), exact, **TOLERANCE[x.dtype])
    assert given.stride() == wanted.stride()
    return reports()[-1].library_calls


SMALL = {
    "line": (nn.Conv1d(3, 5, 3), (2, 3, 17)),
    "image": (nn.Conv2d(3, 8, 3, padding=1), (1, 3, 12, 12)),
    "no bias": (nn.Conv2d(3, 8, 3, bias=False), (1, 3, 12, 12)),
    "stride and dilation": (nn.Conv2d(4, 6, (3, 2), stride=(2, 3), padding=(2, 0), dilation=(1, 2)), (2, 4, 9, 13)),
    "groups": (nn.Conv2d(8, 12, 3, groups=4), (2, 8, 7, 5)),
    "groups of a channel": (nn.Conv2d(6, 18, 3, groups=6, padding=1), (2, 6, 6, 6)),
    "volume": (nn.Conv3d(2, 3, 2), (1, 2, 5, 6, 7)),
    "more padding than image": (nn.Conv2d(2, 3, 3, padding=4), (1, 2, 2, 1)),
    "transposed": (nn.ConvTranspose2d(6, 4, 3), (1, 6, 6, 7)),
}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", SMALL)
def test_small(name: str, dtype: torch.dtype) -> None:
    layer, shape = SMALL[name]
    if isinstance(layer, nn.ConvTranspose2d) and dtype not in (torch.float32, torch.bfloat16):
        pytest.skip("stays transposed")
    assert calls_of(layer, torch.randn(shape).to(dtype)) == {}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("taps", "stride"), [(3, 1), (3, 2), ((1, 9), 1), (5, 1), (7, 1)], ids=str)
def test_depthwise(
    taps: int | tuple[int, int], stride: int, dtype: torch.dtype, layout: torch.memory_format,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(convolution_loops, "SMALL", 0)
    layer = nn.Conv2d(20, 20, taps, stride, padding=2, groups=20)
    few = taps in (3, (1, 9))
    read_well = dtype is torch.float32  # what is computed for a convolution lies as it likes
    x = torch.randn(2, 20, 15, 18).to(dtype).to(memory_format=layout)
    assert calls_of(layer, x) == ({} if few or read_well else CONVOLUTION)


def test_many_taps_of_an_image_that_lies_otherwise() -> None:
    torch._dynamo.reset()
    layer, x = nn.Conv2d(20, 20, 7, groups=20), torch.randn(2, 20, 30, 30)
    with torch.no_grad():
        given = torch.compile(layer, backend="max_backend", options=OPTIONS)(x)
        torch.testing.assert_close(given, layer(x))
    assert reports()[-1].library_calls == CONVOLUTION


@pytest.mark.parametrize(("taps", "calls"), [(3, {}), (5, CONVOLUTION)])
def test_one_plane(taps: int, calls: dict[str, int]) -> None:
    assert calls_of(nn.Conv2d(1, 20, taps), torch.randn(4, 1, 28, 28)) == calls


def test_several_features_of_a_channel() -> None:
    assert calls_of(nn.Conv2d(12, 24, 3, groups=12), torch.randn(2, 12, 30, 30)) == {}


def test_a_chain_of_separable_convolutions_calls_a_library_for_products_alone() -> None:
    layers = [
        nn.Sequential(nn.Conv2d(24, 24, 3, padding=1, groups=24), nn.BatchNorm2d(24), nn.ReLU(), nn.Conv2d(24, 24, 1))
        for _ in range(3)
    ]
    calls = calls_of(nn.Sequential(*layers).eval(), torch.randn(1, 24, 40, 40))
    assert sum(calls.values()) == 3


def test_no_images() -> None:
    """There are no images."""
    assert calls_of(nn.Conv2d(2, 3, 3), torch.randn(0, 2, 5, 5)) == CONVOLUTION


@pytest.mark.parametrize("features", [6, 12])
def test_depthwise_on_a_gpu_takes_nothing_from_beside_the_image(features: int) -> None:
    """By the emulator. What is infinite or NaN at a border is in the windows that have it, and in no others."""
    x = torch.randn(2, 6, 9, 7, generator=torch.Generator().manual_seed(0))
    x[0, 0, 0, 0], x[1, 5, -1, -1], x[1, 2, 4, 0] = float("inf"), float("nan"), -float("inf")
    weight = torch.randn(features, 1, 3, 3, generator=torch.Generator().manual_seed(1))
    settings = ([2, 1], [2, 1], [1, 2])

    def function(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        return (convolution_loops.convolved([x, weight, None, *settings, False, [0, 0], 6], branches=False),)

    (found,) = emulated(for_gpu(function, x, weight, smooth=True).written())(x, weight)
    torch.testing.assert_close(found, torch.conv2d(x, weight, None, *settings, 6), equal_nan=True)

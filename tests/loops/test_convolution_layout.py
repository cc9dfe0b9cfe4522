"""Transposed convolutions, and those of groups of few channels, have channels last in memory, also where their results
leave, and give eager's."""

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

    def convolved(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv_transpose2d(x, w.transpose(0, 1), stride=2)

    given, wanted = torch.compile(convolved, backend="max_backend", options=OPTIONS)(x, w), convolved(x, w)
    torch.testing.assert_close(given, wanted, **TOLERANCE[dtype])
    assert given.stride() == wanted.stride()
    assert reports()[-1].programs[0].launches == copies


@pytest.mark.parametrize(("channels", "features", "groups", "launches"), [
    (8, 16, 4, 2), (8, 16, 1, 2), (64, 16, 4, 0), (64, 8, 4, 2), (8, 16, 8, 1),
])  # fmt: skip
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_narrow_groups(dtype: torch.dtype, channels: int, features: int, groups: int, launches: int) -> None:
    """The image is copied, and the result copied back. With a channel in each, the convolution is a loop."""
    torch._dynamo.reset()
    generator = torch.Generator().manual_seed(0)
    taps = 3
    sizes = ((2, channels, 40, 40), (features, channels // groups, taps, taps), (features,))
    x, w, b = (torch.randn(s, generator=generator).to(dtype) for s in sizes)

    def convolved(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w, b, padding=taps // 2, groups=groups)

    given, wanted = torch.compile(convolved, backend="max_backend", options=OPTIONS)(x, w, b), convolved(x, w, b)
    torch.testing.assert_close(given, wanted, **TOLERANCE[dtype])
    assert given.stride() == wanted.stride()
    assert reports()[-1].programs[0].launches == launches


@pytest.mark.parametrize(("channels", "features", "taps", "launches"), [
    (32, 16, 3, 3),
    (16, 16, 5, 3),
    (256, 300, 3, 2),  # a large weight
])  # fmt: skip
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_all_channels_in_one_group(dtype: torch.dtype, channels: int, features: int, taps: int, launches: int) -> None:
    """The image is turned, and the result turned back as the bias is added, unless the weight is large."""
    torch._dynamo.reset()
    generator = torch.Generator().manual_seed(0)
    sizes = ((2, channels, 24, 24), (features, channels, taps, taps), (features, 1, 1))
    x, w, b = (torch.randn(s, generator=generator).to(dtype) for s in sizes)

    def convolved(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w * channels**-0.5, None, padding=1) + b

    given, wanted = torch.compile(convolved, backend="max_backend", options=OPTIONS)(x, w, b), convolved(x, w, b)
    torch.testing.assert_close(given, wanted, **TOLERANCE[dtype])
    assert given.stride() == wanted.stride()
    assert reports()[-1].programs[0].launches == launches


@pytest.mark.parametrize(("channels", "outside", "launches"), [(4, 4, 2), (8, 2, 2), (4, 1, 0), (16, 4, 0)])
def test_transposed_groups_of_few_channels(channels: int, outside: int, launches: int) -> None:
    """As above, unless they are depthwise."""
    torch._dynamo.reset()
    x, w = torch.randn(2, channels, 40, 40), torch.randn(channels, outside, 3, 3)

    def convolved(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv_transpose2d(x, w, stride=2, groups=4)

    given, wanted = torch.compile(convolved, backend="max_backend", options=OPTIONS)(x, w), convolved(x, w)
    torch.testing.assert_close(given, wanted, **TOLERANCE[torch.float32])
    assert given.stride() == wanted.stride()
    assert reports()[-1].programs[0].launches == launches

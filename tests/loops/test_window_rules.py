"""Pools, pads and interpolation as generated programs: equal to torch, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import torch_max_backend
from torch_max_backend.capture.whole_image_ops import pad_circular

pytestmark = pytest.mark.sampled

Function = Callable[..., Any]


@dataclass(frozen=True)
class Row:
    """A function of one image, and images that it is tried on."""

    name: str
    function: Function
    shape: tuple[int, ...] = (2, 3, 9, 21)
    gradient: bool = True
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


def _pool(function: Function, *args: Any, **kwargs: Any) -> Function:
    return lambda x: function(x, *args, **kwargs)


# Gradients of slices are for the rules of indexing: rows without a gradient are joined from slices.
ROWS = [
    Row("max_pool2d", _pool(F.max_pool2d, 2)),
    Row("max_pool2d, overlapping", _pool(F.max_pool2d, 3, 2, 1)),
    Row("max_pool2d, ceil", _pool(F.max_pool2d, 3, 2, 1, ceil_mode=True), (2, 3, 10, 40)),
    Row("max_pool2d, dilated", _pool(F.max_pool2d, 3, 2, 1, 2), (2, 3, 11, 37)),
    Row("max_pool2d, long strides", _pool(F.max_pool2d, (2, 3), (3, 4), (1, 1)), (1, 2, 11, 90)),
    Row("max_pool2d, large windows", _pool(F.max_pool2d, 5, 1, 2), (1, 2, 11, 40)),
    Row("max_pool2d, indices", lambda x: F.max_pool2d(x, 3, 1, 1, return_indices=True)),
    Row("max_pool2d, one image", _pool(F.max_pool2d, 3, 2, 1), (3, 9, 21)),
    Row("max_pool2d, no image", _pool(F.max_pool2d, 3, 2, 1), (0, 3, 9, 21)),
    Row("max_pool1d", _pool(F.max_pool1d, 3, 2, 1), (2, 3, 41)),
    Row("max_pool3d", _pool(F.max_pool3d, (1, 2, 3), (1, 2, 1), (0, 1, 1)), (2, 2, 3, 6, 19)),
    Row("avg_pool1d", _pool(F.avg_pool1d, 3, 2, 1), (2, 3, 41)),
    Row("avg_pool2d", _pool(F.avg_pool2d, 2)),
    Row("avg_pool2d, overlapping", _pool(F.avg_pool2d, 3, 1, 1)),
    Row("avg_pool2d, without pads", _pool(F.avg_pool2d, 3, 2, 1, count_include_pad=False)),
    Row("avg_pool2d, ceil", _pool(F.avg_pool2d, 3, 2, 1, ceil_mode=True), (2, 3, 10, 40)),
    Row("avg_pool2d, ceil without pads", _pool(F.avg_pool2d, 3, 2, 1, True, False), (2, 3, 10, 40)),
    Row("avg_pool2d, divisor", _pool(F.avg_pool2d, (3, 2), (2, 3), (1, 0), divisor_override=5)),
    Row("avg_pool2d, no image", _pool(F.avg_pool2d, 3, 2, 1), (0, 3, 9, 21)),
    Row("avg_pool3d", _pool(F.avg_pool3d, (1, 2, 3), (1, 2, 1), (0, 1, 1), False, False), (2, 2, 3, 6, 19)),
    Row("lp_pool2d", lambda x: F.lp_pool2d(x.abs() + 1, 2, 3, 2)),
    Row("adaptive_avg_pool1d", _pool(F.adaptive_avg_pool1d, 5), (2, 3, 41)),
    Row("adaptive_avg_pool2d, whole", _pool(F.adaptive_avg_pool2d, (3, 7))),
    Row("adaptive_avg_pool2d", _pool(F.adaptive_avg_pool2d, (4, 5))),
    Row("adaptive_avg_pool2d, more", _pool(F.adaptive_avg_pool2d, (12, 50))),
    Row("adaptive_avg_pool2d, one", _pool(F.adaptive_avg_pool2d, 1)),
    Row("adaptive_avg_pool3d", _pool(F.adaptive_avg_pool3d, (2, 4, 5)), (2, 2, 3, 6, 19)),
    Row("adaptive_max_pool1d", _pool(F.adaptive_max_pool1d, 5), (2, 3, 41)),
    Row("adaptive_max_pool2d", _pool(F.adaptive_max_pool2d, (4, 5))),
    Row("adaptive_max_pool2d, indices", lambda x: F.adaptive_max_pool2d(x, (4, 20), return_indices=True)),
    Row("adaptive_max_pool3d", _pool(F.adaptive_max_pool3d, (2, 4, 5)), (2, 2, 3, 6, 19)),
    Row("reflect 1d", _pool(F.pad, (3, 2), "reflect"), (2, 3, 41)),
    Row("reflect 2d", _pool(F.pad, (3, 2, 1, 4), "reflect")),
    Row("reflect 3d", _pool(F.pad, (3, 2, 1, 4, 2, 1), "reflect"), (1, 2, 3, 6, 19)),
    Row("reflect, nearly all", _pool(F.pad, (5, 5, 5, 5), "reflect"), (1, 2, 6, 6)),
    Row("replicate 1d", _pool(F.pad, (3, 2), "replicate"), (2, 3, 41)),
    Row("replicate 2d", _pool(F.pad, (3, 2, 1, 4), "replicate")),
    Row("replicate 3d", _pool(F.pad, (1, 2, 1, 0, 2, 1), "replicate"), (1, 2, 3, 6, 19)),
    Row("replicate, cropped", _pool(F.pad, (-2, 3, 1, -1), "replicate")),
    Row("circular", _pool(F.pad, (3, 2, 1, 4), "circular"), gradient=False),
    Row("circular of less", _pool(F.pad, (-1, 2, 1, -2), "circular"), gradient=False),
    Row("circular, all of it", _pool(F.pad, (4, 0, 0, 4), "circular"), (1, 2, 4, 4), gradient=False),
    Row("constant", _pool(F.pad, (3, 2, 1, 4), "constant", 1.5)),
    Row("constant, cropped", _pool(F.pad, (-3, 2, 1, -4))),
    Row("nearest 1d", _pool(F.interpolate, scale_factor=1.7, mode="nearest"), (2, 3, 41)),
    Row("nearest, twice", _pool(F.interpolate, scale_factor=2, mode="nearest")),
    Row("nearest, half", _pool(F.interpolate, scale_factor=0.5, mode="nearest")),
    Row("nearest, 1.7", _pool(F.interpolate, scale_factor=1.7, mode="nearest")),
    Row("nearest, size", _pool(F.interpolate, size=(17, 50), mode="nearest")),
    Row("nearest 3d", _pool(F.interpolate, size=(5, 6, 40), mode="nearest"), (1, 2, 3, 6, 19)),
    Row("exact, twice", _pool(F.interpolate, scale_factor=2, mode="nearest-exact")),
    Row("exact, 0.6", _pool(F.interpolate, scale_factor=0.6, mode="nearest-exact")),
    Row("exact 1d", _pool(F.interpolate, size=77, mode="nearest-exact"), (2, 3, 41)),
    Row("exact 3d", _pool(F.interpolate, size=(2, 9, 25), mode="nearest-exact"), (1, 2, 3, 6, 19)),
    Row("linear", _pool(F.interpolate, scale_factor=1.7, mode="linear"), (2, 3, 41)),
    Row("bilinear, twice", _pool(F.interpolate, scale_factor=2, mode="bilinear")),
    Row("bilinear, half", _pool(F.interpolate, scale_factor=0.5, mode="bilinear"), (2, 3, 10, 44)),
    Row("bilinear, thrice", _pool(F.interpolate, size=(27, 63), mode="bilinear")),
    Row("bilinear, 1.7", _pool(F.interpolate, scale_factor=1.7, mode="bilinear")),
    Row("bilinear, 0.4", _pool(F.interpolate, scale_factor=0.4, mode="bilinear")),
    Row("bilinear, corners", _pool(F.interpolate, scale_factor=2, mode="bilinear", align_corners=True)),
    Row("bilinear, corners, fewer", _pool(F.interpolate, size=(5, 1), mode="bilinear", align_corners=True)),
    Row("bilinear, same", _pool(F.interpolate, size=(9, 40), mode="bilinear")),
    Row("trilinear", _pool(F.interpolate, size=(5, 6, 40), mode="trilinear"), (1, 2, 3, 6, 19)),
    Row("bicubic", _pool(F.interpolate, size=(17, 23), mode="bicubic")),
    Row("bicubic, twice", _pool(F.interpolate, scale_factor=2, mode="bicubic")),
    Row("bicubic, corners", _pool(F.interpolate, size=(5, 40), mode="bicubic", align_corners=True)),
    Row("area", _pool(F.interpolate, size=(4, 8), mode="area")),
    Row("unfold", _pool(F.unfold, 3, padding=1)),
    Row("unfold, dilated", _pool(F.unfold, (2, 3), 2, 1, (1, 3))),
    Row("fold", lambda x: F.fold(F.unfold(x, 3, padding=1, stride=2), (9, 21), 3, padding=1, stride=2)),
    Row("pixel_shuffle", _pool(F.pixel_shuffle, 2), (2, 8, 5, 19)),
    Row("pixel_unshuffle", _pool(F.pixel_unshuffle, 2), (2, 3, 6, 38)),
    Row("channel_shuffle", _pool(F.channel_shuffle, 2), (2, 8, 5, 19)),
    Row("relu and sums about a pool", lambda x: F.max_pool2d(F.relu(x), 3, 2, 1).sum((2, 3)) + x.mean((2, 3))),
    Row(
        "bilinear, and what its gradient is summed to",
        lambda x: F.interpolate(x * x.sum((0, 2, 3), True), scale_factor=2, mode="bilinear"),
        (1, 24, 12, 9),
    ),
    Row("triangles", lambda x: x.tril(3) + x.triu(-2) * 2, (2, 3, 33, 40)),
    Row(
        "joined and rolled",
        lambda x: torch.roll(torch.cat((x, x * 2, x[..., :5]), -1), (3, -2), (2, 3)),
        gradient=False,
    ),
]
CHEAP = [
    r for r in ROWS if r.name in ("max_pool2d, overlapping", "avg_pool2d, without pads", "reflect 2d", "bilinear, 1.7")
]

# Sums of a window have as many roundings as taps (at most 60 here), and weights of an interpolation some more: each is
# half an ulp of the largest element. Floats of 16 bits are rounded once more, and torch may add gradients in them.
EPS_UNITS = {torch.float32: 64, torch.float64: 64, torch.bfloat16: 6}


def _run(function: Function, x: torch.Tensor, gradient: bool) -> list[torch.Tensor]:
    x = x.detach().requires_grad_(gradient)
    found = function(x)
    results = list(found) if isinstance(found, tuple) else [found]
    if gradient:
        ramp = torch.linspace(0.5, 1.5, results[0].numel(), dtype=x.dtype).reshape(results[0].shape)
        (results[0] * ramp).sum().backward()
        assert x.grad is not None
        results.append(x.grad)
    return [r.detach() for r in results]


def _check(row: Row, x: torch.Tensor, gradient: bool) -> None:
    before = len(torch_max_backend.reports())
    compiled = torch.compile(
        row.function, backend="max_backend", options={"fallback": "error", "executor": "auto"}, dynamic=False
    )
    got, want = _run(compiled, x, gradient), _run(row.function, x, gradient)
    for report in torch_max_backend.reports()[before:]:
        assert report.stats.programs == report.stats.regions, row.name
    assert torch_max_backend.reports()[-1].stats.programs >= 1
    for g, w in zip(got, want, strict=True):
        assert g.dtype is w.dtype and g.shape == w.shape
        if not w.dtype.is_floating_point:
            assert torch.equal(g, w)
            continue
        unit = torch.finfo(w.dtype).eps * max(1.0, float(w.abs().max()) if w.numel() else 0.0)
        torch.testing.assert_close(g, w, rtol=0, atol=EPS_UNITS[w.dtype] * unit, equal_nan=True)


def _image(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_forward_and_backward(row: Row) -> None:
    _check(row, _image(row.shape), row.gradient and 0 not in row.shape)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("row", [r for r in ROWS if len(r.shape) == 4], ids=str)
def test_dtypes(row: Row, dtype: torch.dtype) -> None:
    _check(row, _image(row.shape, dtype), False)


# Torch gives a pool to one place in channels_last as a view by strides, for which programs have no rule.
IN_CHANNELS_LAST = [
    r
    for r in ROWS
    if len(r.shape) == 4 and r.shape[0] and "fold" not in r.name and r.name != "adaptive_avg_pool2d, one"
]


@pytest.mark.parametrize("row", IN_CHANNELS_LAST, ids=str)
def test_channels_last(row: Row) -> None:
    b, c, h, w = row.shape
    _check(row, _image((b, 8 * c, h, w)).to(memory_format=torch.channels_last), row in CHEAP)


def test_circular_pads_repeat_what_a_negative_number_leaves() -> None:
    """Where torch reads what it may not have written. If none is left there is nothing to repeat."""
    x = torch.arange(8.0).view(1, 2, 4)

    def padded(x: torch.Tensor) -> list[torch.Tensor]:
        return [F.pad(x, pad, "circular") for pad in ((-2, 3), (4, -1))]

    found = torch.compile(padded, backend="max_backend", options={"fallback": "error", "executor": "auto"})(x)
    assert found[0][0, 0].tolist() == [2, 3, 2, 3, 2] and found[1][0, 0].tolist() == [2, 0, 1, 2, 0, 1, 2]
    with pytest.raises(RuntimeError, match=r"circular pad of \(4, -4\) leaves none of 4 elements of dimension 2"):
        pad_circular(x, (4, -4))


def test_places_of_nan_and_of_equal_elements() -> None:
    x = _image((1, 2, 6, 40)).round()
    x[0, 0, 2, 3] = x[0, 0, 2, 4] = x[0, 1, 5, 39] = float("nan")
    x[0, 1, :3] = float("-inf")
    _check(Row("", lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True)), x, False)
    _check(Row("", lambda x: F.adaptive_max_pool2d(x, (3, 17), return_indices=True)), x, False)


def test_integers() -> None:
    x = torch.randint(-50, 50, (1, 2, 6, 40))
    _check(Row("", lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True)), x, False)
    _check(Row("", lambda x: F.pad(x, (1, 2, 3, 1))), x, False)


def test_places_without_a_gradient() -> None:
    """Nothing of a graph's fake tensors reaches a rule that computes places."""
    with torch.no_grad():
        _check(Row("", _pool(F.interpolate, size=(7, 25), mode="nearest")), _image((1, 2, 6, 40)), False)

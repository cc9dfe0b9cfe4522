"""Convolutions on a GPU against float64: geometries, layouts, dtypes, TF32, gradients, and networks.

The measure is the largest error that eager makes: the library is the same, but may choose another of its algorithms.
With TF32 eager may have taken an algorithm without it, and in float64 the reference is eager: these bounds are
derived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.aten_functions.pool.cases_pooling import WINDOWS
from tests.gpu.checks import Call, bilinear_error, check_calls
from tests.support.cases import randn

aten = torch.ops.aten
FACTOR = 4.0
"""How many times eager's largest error is allowed: algorithms differ in the order of their additions."""

DTYPES = {
    # dtype, and whether float32 may be rounded to TF32
    "bf16": (torch.bfloat16, True),
    "f16": (torch.float16, True),
    "f32": (torch.float32, False),
    "tf32": (torch.float32, True),
    "f64": (torch.float64, True),
}
LAYOUTS = {"first": torch.contiguous_format, "last": torch.channels_last}

PLANE = [
    # name, image, filter, stride, padding, dilation, groups
    ("three channels", (2, 3, 17, 19), (8, 3, 3, 3), 2, 1, 1, 1),
    ("one channel", (2, 1, 17, 19), (8, 1, 3, 3), 1, 1, 1, 1),
    ("large", (2, 16, 256, 256), (32, 16, 3, 3), 1, 0, 1, 1),
    ("stem", (2, 3, 33, 31), (64, 3, 7, 7), 2, 3, 1, 1),
    ("oblong", (1, 5, 9, 11), (7, 5, 1, 3), (2, 1), (0, 2), 1, 1),
    ("dilated", (3, 16, 14, 14), (32, 16, 3, 3), 1, 2, 2, 1),
    ("depthwise", (2, 32, 15, 15), (32, 1, 3, 3), 2, 1, 1, 32),
    ("grouped", (2, 32, 15, 15), (64, 8, 3, 3), 1, 1, 1, 4),
    ("pointwise", (2, 64, 14, 14), (128, 64, 1, 1), 2, 0, 1, 1),
    ("one filter", (2, 1, 8, 8), (1, 1, 2, 2), 1, 0, 1, 1),
    ("one pixel", (1, 16, 4, 4), (8, 16, 4, 4), 1, 0, 1, 1),
    ("no pixels beside", (4, 32, 1, 1), (16, 32, 1, 1), 1, 0, 1, 1),
    ("wide", (2, 256, 14, 14), (512, 256, 3, 3), 1, 1, 1, 1),
]


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def _image(shape: tuple[int, ...], dtype: torch.dtype, layout: torch.memory_format) -> Any:
    make = randn(*shape, dtype=dtype)
    return lambda generator: make(generator).to(memory_format=layout)


def _derived(function: Callable[..., Any], kind: str) -> Any:
    """The bound of a call where eager is no measure."""
    dtype = DTYPES[kind][0]
    if kind not in ("tf32", "f64"):
        return None
    return lambda inputs, exact: bilinear_error(function, inputs, dtype, tf32=kind == "tf32")


def _plain(stride: Any, padding: Any, dilation: Any, groups: int) -> Callable[..., torch.Tensor]:
    def run(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w, b, stride, padding, dilation, groups)

    return run


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", DTYPES)
def test_geometries(kind: str, layout: str) -> None:
    dtype, tf32 = DTYPES[kind]
    calls = [
        Call(
            name,
            _plain(*geometry),
            (_image(image, dtype, LAYOUTS[layout]), _image(taps, dtype, LAYOUTS[layout]), randn(taps[0], dtype=dtype)),
            allowed=_derived(_plain(*geometry), kind),
            factor=FACTOR,
        )
        for name, image, taps, *geometry in PLANE
    ]
    with _tf32(tf32):
        check_calls(calls)


def _lines_and_volumes(dtype: torch.dtype) -> list[Call]:
    def call(name: str, function: Callable[..., torch.Tensor], *shapes: tuple[int, ...]) -> Call:
        return Call(name, function, tuple(randn(*s, dtype=dtype) for s in shapes), factor=FACTOR)

    return [
        call("line", lambda x, w: F.conv1d(x, w, stride=2, padding=2), (2, 4, 40), (8, 4, 5)),
        call("depthwise line", lambda x, w: F.conv1d(x, w, None, 1, 3, 2, 8), (1, 8, 33), (8, 1, 4)),
        call("volume", lambda x, w: F.conv3d(x, w, padding=1), (1, 4, 6, 7, 8), (8, 4, 3, 3, 3)),
        call("strided volume", lambda x, w: F.conv3d(x, w, None, (2, 1, 2)), (2, 8, 5, 7, 9), (8, 8, 2, 3, 1)),
        call("padded as asked", lambda x, w: F.conv2d(x, w, padding="same"), (1, 4, 7, 7), (4, 4, 2, 2)),
        call(
            "transposed", lambda x, w: F.conv_transpose2d(x, w, None, 2, 1, 1), (2, 8, 7, 9), (8, 4, 3, 3)
        ),
        call(
            "transposed groups", lambda x, w: F.conv_transpose2d(x, w, None, 2, 1, 0, 2), (2, 8, 7, 9), (8, 4, 4, 4)
        ),
        call("transposed line", lambda x, w: F.conv_transpose1d(x, w, None, 3, 2, 2), (2, 6, 11), (6, 4, 5)),
        call("transposed volume", lambda x, w: F.conv_transpose3d(x, w, None, 2, 1), (1, 4, 3, 4, 5), (4, 4, 3, 3, 3)),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["bf16", "f32", "f64"])
def test_lines_volumes_and_transposed(kind: str) -> None:
    dtype, tf32 = DTYPES[kind]
    with _tf32(tf32):
        check_calls(_lines_and_volumes(dtype))


def _gradients(stride: int, padding: int, dilation: int, groups: int) -> Callable[..., Any]:
    def run(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> Any:
        return aten.convolution_backward(
            g, x, w, [w.shape[0]], [stride] * 2, [padding] * 2, [dilation] * 2, False, [0, 0], groups, [True] * 3
        )

    return run


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["bf16", "f32", "f64"])
def test_gradients(kind: str, layout: str) -> None:
    dtype, tf32 = DTYPES[kind]
    shapes = [
        ("stem", (2, 3, 17, 19), (16, 3, 3, 3), (2, 16, 9, 10), (2, 1, 1, 1)),
        ("plain", (2, 16, 14, 14), (32, 16, 3, 3), (2, 32, 14, 14), (1, 1, 1, 1)),
        ("depthwise", (2, 32, 14, 14), (32, 1, 3, 3), (2, 32, 14, 14), (1, 1, 1, 32)),
        ("dilated groups", (2, 16, 13, 13), (32, 4, 3, 3), (2, 32, 7, 7), (2, 2, 2, 4)),
        ("pointwise", (2, 16, 8, 8), (64, 16, 1, 1), (2, 64, 8, 8), (1, 0, 1, 1)),
    ]
    calls = [
        Call(
            name,
            _gradients(*geometry),
            tuple(_image(s, dtype, LAYOUTS[layout]) for s in sizes),
            allowed=_derived(_gradients(*geometry), kind),
            factor=FACTOR,
        )
        for name, *sizes, geometry in shapes
    ]
    with _tf32(tf32):
        check_calls(calls)


def _block(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Convolutions with what stands between them: a norm, a sum, activations, pools and a join."""
    y = F.relu(F.batch_norm(F.conv2d(x, w, v, padding=1), v, v.abs() + 0.5, v, v))
    y = F.max_pool2d(F.conv2d(y, w, padding=1) + x, 3, 2, 1)
    y = torch.cat([y, F.silu(F.avg_pool2d(y, 3, 1, 1))], 1)
    return F.conv2d(y, torch.cat([w, w], 1), stride=2) * y.mean((2, 3), keepdim=True).tanh()[:, :16]


def _finished(bias: bool, norm: str, add: bool, bound: str) -> Callable[..., torch.Tensor]:
    """A convolution and what one kernel computes behind it."""

    def block(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        y = F.conv2d(x, w, v if bias else None, padding=1)
        if norm:
            weight, shift = (v - 1 if name in norm else None for name in ("weight", "shift"))
            y = F.batch_norm(y, v, v.abs() + 0.5, weight, shift)
        y = r + y if add else y
        return {"": y, "relu": F.relu(y), "relu6": F.relu6(y)}[bound]

    return block


FINISHES = [
    _finished(bias, norm, add, bound)
    for bias, norm, add, bound in [
        (True, "", False, "relu"),
        (False, "weight and shift", False, ""),
        (False, "weight and shift", True, "relu"),
        (True, "none of them", True, "relu6"),
        (False, "shift", False, "relu6"),
    ]
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_follows(dtype: torch.dtype, layout: str) -> None:
    """Channels that fill vectors of every width, fewer and more than a block has threads; NaN stays."""
    calls = []
    for channels in (3, 20, 64, 2056):
        shapes = (3, 4, 9, 11), (channels, 4, 3, 3), (3, channels, 9, 11)
        images = tuple(_image(s, dtype, LAYOUTS[layout]) for s in shapes)
        for i, block in enumerate(FINISHES if channels < 100 else FINISHES[2:3]):
            inputs = (*images, randn(channels, dtype=dtype))
            calls.append(Call(f"{channels} channels, {i}", block, inputs, factor=FACTOR))
    (x, w, r), v = images, randn(channels, dtype=dtype)
    calls.append(Call("NaN", FINISHES[2], (lambda g: x(g).log(), w, r, v), factor=FACTOR))
    calls.append(Call("dynamic", FINISHES[2], (x, w, r, v), factor=FACTOR, dynamic=True))
    check_calls(calls)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_stands_between(dynamic: bool, layout: str) -> None:
    images = (_image(shape, torch.float32, LAYOUTS[layout]) for shape in ((3, 16, 20, 22), (16, 16, 3, 3)))
    with _tf32(False):
        check_calls([Call("block", _block, (*images, randn(16)), factor=FACTOR, dynamic=dynamic)])


def test_strides_are_torchs() -> None:
    """Results lie in memory as eager's do, in whatever order they were computed."""
    for layout in LAYOUTS.values():
        x = torch.randn(2, 8, 9, 9, device="cuda").to(memory_format=layout)
        w = torch.randn(16, 8, 3, 3, device="cuda").to(memory_format=layout)
        with torch.no_grad():
            given = torch.compile(F.conv2d, backend="max_backend", options={"fallback": "error"})(x, w)
        assert given.stride() == F.conv2d(x, w).stride()


def max_pools(x: torch.Tensor) -> Any:
    results = []
    for window in WINDOWS:
        values, places = aten.max_pool2d_with_indices(x, *window)
        gradient = aten.max_pool2d_with_indices_backward(values * 2, x, *window, places)
        results += [values, places, gradient, F.max_pool2d(x, *window[:4], window[4])]
    return tuple(results)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_max_pools(dtype: torch.dtype, layout: str) -> None:
    """Channels that are looked at one by one and eight at a time."""
    shapes = [(2, 3, 17, 19), (3, 16, 14, 15), (1, 72, 9, 8)]

    def images(shape: tuple[int, ...]) -> Callable[[torch.Generator], torch.Tensor]:
        return lambda g: torch.randn(shape, generator=g).to(dtype).to(memory_format=LAYOUTS[layout])

    check_calls([Call(str(shape), max_pools, (images(shape),)) for shape in shapes])

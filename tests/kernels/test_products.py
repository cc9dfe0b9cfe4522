"""Products and convolutions of many sizes: every path of the kernel, and every edge of its tiles and panels.

Sizes are symbolic, so that a few graphs do for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support.harness import STRICT, TOLERANCE
from torch_max_backend import compile_together
from torch_max_backend.options import resolve

F = torch.nn.functional
SIZES = [
    # rows, columns, depth: few rows, tiles of 12, 4 and 1 rows, part of a panel, whole panels, a depth in pieces
    (2, 3, 5),
    (8, 65, 17),
    (9, 31, 2),
    (13, 32, 511),
    (24, 33, 513),
    (60, 200, 1300),
    (257, 40, 64),
    (300, 70, 31),
]
PRODUCTS = {
    "plain": (lambda a, b: a @ b, torch.float32),
    "transposed": (lambda a, b: a @ b.t(), torch.float32),
    "transposed in pairs": (lambda a, b: a @ b.t(), torch.bfloat16),
    "in pairs": (lambda a, b: a @ b, torch.bfloat16),
    "halves": (lambda a, b: a @ b.t(), torch.float16),
    "double": (lambda a, b: torch.stack([a, a * 2]) @ torch.stack([b, b + 1]), torch.float64),
    "batched, transposed": (lambda a, b: torch.stack([a, a * 2]) @ torch.stack([b, b + 1]).mT, torch.float32),
    "whole numbers": (lambda a, b: a @ b, torch.int64),
}


def _operands(rows: int, columns: int, depth: int, dtype: torch.dtype, transposed: bool) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(rows)
    shapes = [(rows, depth), (columns, depth) if transposed else (depth, columns)]
    if not dtype.is_floating_point:
        return [torch.randint(-(2**40), 2**40, s, generator=g, dtype=dtype) for s in shapes]
    return [torch.randn(s, generator=g, dtype=torch.float64).to(dtype) for s in shapes]


def _image(sizes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(1)).to(dtype)


def _normed(y: torch.Tensor, w: torch.Tensor, plain: bool = False) -> torch.Tensor:
    """An inference batch norm of ``y`` with statistics made of the filters."""
    mean, variance, weight, bias = (w.flatten(1)[:, 0] * k for k in (0.3, 1.0, 2.0, -1.0))
    return F.batch_norm(y, mean, variance**2, None if plain else weight, None if plain else bias)


def _residual(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A block with a second convolution beside the first: one of the two adds the other."""
    y = _normed(F.conv2d(x, w, w.flatten(1)[:, 1], padding=1), w)
    return F.relu(y + _normed(F.conv2d(x, w[:, :, 1:2, 1:2]), w, plain=True))


CONVOLUTIONS: dict[str, tuple[Callable[..., torch.Tensor], tuple[int, ...]]] = {
    "strides and padding": (lambda x, w: F.conv2d(x, w, stride=2, padding=1), (7, 5, 3, 3)),
    "dilation": (lambda x, w: F.conv2d(x, w, padding=(0, 2), dilation=(1, 2)), (4, 5, 2, 3)),
    "groups": (lambda x, w: F.conv2d(x, w, groups=5, padding=1), (20, 1, 3, 3)),
    "depthwise": (lambda x, w: F.conv2d(x, w, groups=5, padding=1), (5, 1, 3, 3)),
    "depthwise, stride 2": (lambda x, w: F.conv2d(x, w, groups=5, padding=2, stride=2), (5, 1, 5, 5)),
    "depthwise, stride 3": (lambda x, w: F.conv2d(x, w, groups=5, stride=3, dilation=2), (10, 1, 2, 2)),
    "one tap": (lambda x, w: F.conv2d(x, w), (6, 5, 1, 1)),
    "one tap, stride 2": (lambda x, w: F.conv2d(x, w, stride=2), (6, 5, 1, 1)),
    "norm": (lambda x, w: _normed(F.conv2d(x, w, stride=2), w), (13, 5, 3, 3)),
    "bias and bounds": (lambda x, w: F.relu6(F.conv2d(x, w, w.flatten(1)[:, 0])) + 1, (14, 5, 3, 3)),
    "depthwise, norm and bounds": (lambda x, w: _normed(F.conv2d(x, w, groups=5), w).clamp(-0.5, 2), (10, 1, 3, 3)),
    "groups, norm, sum": (
        lambda x, w: _normed(F.conv2d(x, w, groups=5, padding=1), w) + x.repeat(1, 4, 1, 1),
        (20, 1, 3, 3),
    ),
    "sum behind bounds": (lambda x, w: F.relu(F.conv2d(x, w, padding=1)) + x, (5, 5, 3, 3)),
    "block": (_residual, (13, 5, 3, 3)),
    "transposed": (lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1), (5, 6, 3, 3)),
}
IMAGES = [(8, 5, 11, 9), (3, 5, 33, 34), (4, 5, 12, 70)]
"""No size of the first is a filter's: torch would take the two for one, and trace again where they differ."""


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, backend="max_backend", dynamic=True, fullgraph=True, options=STRICT)


@pytest.fixture(scope="module")
def prepared() -> None:
    """All graphs of this file, compiled together."""
    with compile_together(resolve(STRICT)), torch.no_grad():
        for name, (function, dtype) in PRODUCTS.items():
            torch._dynamo.reset()
            _compiled(function)(*_operands(*SIZES[0], dtype, "transposed" in name or name == "halves"))
        for function, shape in CONVOLUTIONS.values():
            torch._dynamo.reset()
            _compiled(function)(_image(IMAGES[0]), _image(shape))


@pytest.mark.full
@pytest.mark.xdist_group("products")
@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str) -> None:
    function, dtype = PRODUCTS[name]
    torch._dynamo.reset()
    compiled = _compiled(function)
    for size in SIZES:
        operands = _operands(*size, dtype, "transposed" in name or name == "halves")
        exact = function(*(x.to(torch.float64) if dtype.is_floating_point else x for x in operands))
        given = compiled(*operands)
        assert given.dtype == dtype
        # Sums of n terms of size 1 in float32, rounded once: the scale is that of the sum, sqrt(n).
        rtol, atol = TOLERANCE.get(dtype, (0, 0))
        torch.testing.assert_close(given, exact.to(dtype), rtol=rtol, atol=atol * size[2] ** 0.5)


@pytest.mark.full
@pytest.mark.xdist_group("products")
@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str) -> None:
    function, shape = CONVOLUTIONS[name]
    torch._dynamo.reset()
    compiled = _compiled(function)
    for sizes in IMAGES:
        x, w = _image(sizes), _image(shape)
        wanted = function(x.double(), w.double()).float()
        torch.testing.assert_close(compiled(x, w), wanted, rtol=1.3e-5, atol=1.5e-5)

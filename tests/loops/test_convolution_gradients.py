"""Gradients of convolutions on a CPU are eager's, with channels last where that pays, and planned as ATen gives them.

What a forward saves for them lies as they read it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.support.loop_programs import noted_programs
from torch_max_backend.loops.program import Call
from torch_max_backend.runtime import program as programs

pytestmark = pytest.mark.sampled

aten = torch.ops.aten
OPTIONS = {"fallback": "error", "executor": "auto"}
IMAGE, LAST = torch.contiguous_format, torch.channels_last


@pytest.fixture
def no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that has to copy a result, since a library gave it with other strides than planned, fails."""
    as_planned = programs.as_planned

    def checked(x: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
        assert all(n < 2 or a == b for n, a, b in zip(size, x.stride(), stride, strict=True)), (x.stride(), stride)
        return as_planned(x, size, stride)

    monkeypatch.setattr(programs, "as_planned", checked)


def gradients(function: Any, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Those of a weighted sum of results."""
    own = [x.detach().clone(memory_format=torch.preserve_format).requires_grad_() for x in inputs]
    y = function(*own)
    return list(torch.autograd.grad((y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum(), own))


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def check_against_float64(given: Sequence[Any], eager: Sequence[Any], exact: Sequence[Any]) -> None:
    """The largest error is at most twice eager's own, and a unit of rounding of the largest value."""
    for x, y, wanted in zip(given, eager, exact, strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        error, eagers = ((v.double() - wanted).abs().max() for v in (x, y))
        assert error <= 2 * eagers + torch.finfo(x.dtype).eps * wanted.abs().max(), (error, eagers)


def is_last(x: Any) -> bool:
    """Whether an argument of a call has its channels last."""
    return int(x.strides[1].constant) == 1


@pytest.mark.usefixtures("no_copies")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", [IMAGE, LAST], ids=["contiguous", "channels last"])
@pytest.mark.parametrize(("image", "weight", "step", "groups"), [
    ((2, 16, 20, 20), (24, 16, 3, 3), 1, 1),
    ((2, 16, 20, 20), (24, 16, 3, 3), 2, 1),
    ((2, 16, 20, 20), (16, 1, 5, 5), 2, 16),
    ((2, 16, 20, 20), (32, 4, 3, 3), 1, 4),
    ((1, 160, 6, 6), (192, 160, 3, 3), 1, 1),  # more weights than pixels
    ((2, 8, 3, 3), (8, 8, 3, 3), 1, 1),  # too small for a copy
    ((2, 8, 1, 1), (8, 8, 3, 3), 1, 1),  # in both ways at once
])  # fmt: skip
def test_results_lie_as_planned(
    image: tuple[int, ...], weight: tuple[int, ...], step: int, groups: int, layout: Any, dtype: torch.dtype
) -> None:
    torch._dynamo.reset()

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x.sin(), w, stride=step, padding=weight[-1] // 2, groups=groups).tanh()

    inputs = numbers(*image, dtype=dtype).contiguous(memory_format=layout), numbers(*weight, dtype=dtype)
    given = gradients(torch.compile(function, backend="max_backend", options=OPTIONS), inputs)
    check_against_float64(given, gradients(function, inputs), gradients(function, [x.double() for x in inputs]))


@pytest.mark.parametrize(("image", "weight", "groups", "expected"), [
    ((2, 32, 32, 32), (32, 1, 3, 3), 32, [True, False]),
    ((2, 32, 32, 32), (32, 32, 3, 3), 1, [True, False]),
    ((1, 192, 6, 6), (192, 192, 3, 3), 1, [False, False]),
    ((8, 192, 32, 32), (256, 192, 3, 3), 1, [True, True]),
], ids=["depthwise", "few weights", "more weights than pixels", "a large weight"])  # fmt: skip
def test_channels_are_last_where_it_pays(
    monkeypatch: pytest.MonkeyPatch, image: tuple[int, ...], weight: tuple[int, ...], groups: int, expected: list[bool]
) -> None:
    """Of a contiguous image that enters: it is copied."""
    torch._dynamo.reset()
    found = noted_programs(monkeypatch)

    def function(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        padding = [weight[-1] // 2] * 2
        mask = [True, True, False]
        return aten.convolution_backward(g, x, w, None, [1, 1], padding, [1, 1], False, [0, 0], groups, mask)[:2]

    g = numbers(image[0], weight[0], *image[2:])
    inputs = g, numbers(*image), numbers(*weight)
    given = torch.compile(function, backend="max_backend", options=OPTIONS)(*inputs)
    # oneDNN adds up in another order for channels last: farther off for images (8 times here), nearer for weights
    wanted = function(*(x.double() for x in inputs))
    layouts = [function(*(x.contiguous(memory_format=layout) for x in inputs)) for layout in (IMAGE, LAST)]
    worse = [
        max(pair, key=lambda y, z=z: (y.double() - z).abs().max()) for *pair, z in zip(*layouts, wanted, strict=True)
    ]
    check_against_float64(given, worse, wanted)
    (call,) = (s for s in found[-1].steps if isinstance(s, Call))
    assert [is_last(x) for x in call.args[1:3]] == expected
    assert is_last(call.args[0]) is expected[0]


class Joined(nn.Module):
    """A convolution of one tap, and what it is joined with."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(32, 64, 1, bias=False), nn.BatchNorm2d(64)
        self.second, self.last = nn.Conv2d(64, 16, 3, padding=1), nn.BatchNorm2d(48)
        self.third = nn.Conv2d(48, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(F.relu(self.norm(self.first(x))))
        return self.third(F.relu(self.last(torch.cat([x, y], 1))))


def test_what_is_saved_lies_as_the_backward_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product's result leaves as the image that it is, without a copy; joined images have their channels last."""
    torch._dynamo.reset()
    found = noted_programs(monkeypatch)
    torch.manual_seed(0)
    model, x = Joined(), numbers(2, 32, 24, 24)
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    for called, image in (
        (torch.compile(model, backend="max_backend", options=OPTIONS), x),
        (eager, x),
        (exact, x.double()),
    ):
        called(image.clone().requires_grad_()).square().mean().backward()
    forward = found[0]
    (strides,) = (k for _, k in forward.views.values())
    assert [int(s.constant) for s in strides] == [64 * 576, 1, 24 * 64, 64]
    images = [k for k in forward.free.values() if len(k) == 4]
    assert images
    assert all(k[1] == 1 for k in images)
    check_against_float64(*([p.grad for p in m.parameters()] for m in (model, eager, exact)))

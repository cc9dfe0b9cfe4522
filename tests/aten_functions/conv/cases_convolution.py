"""Convolutions: strides, paddings, dilations, groups, depthwise, transposed, 1 to 3 spatial sizes, and gradients."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from tests.support.cases import Case, randn

SUMS = "sums of up to a few thousand products in another order"
LOOSE = {"rtol": 1e-4, "atol": 1e-4, "why": SUMS}

# Every distinct geometry and shape is a kernel of its own, at about ten seconds of compiling: each call below is there
# for something the others do not have.


def plain(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        F.conv2d(x, w, b, padding=1),
        F.conv2d(x, w, stride=2, padding=(1, 2)),
        F.conv2d(x, w, b, stride=(1, 2), dilation=2, padding=2),
        F.conv2d(x, w[:, :, :1, :1], b),
        F.conv2d(x[0], w[:, :, :1, :1]),
    )


def grouped(x: torch.Tensor, w: torch.Tensor, d: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return F.conv2d(x, w, padding=1, groups=2), F.conv2d(x, d, stride=2, padding=1, groups=6)


def one_size(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        F.conv1d(x, w, b, padding=2, dilation=2),
        F.conv_transpose1d(x, w.transpose(0, 1), None, stride=3, padding=1, output_padding=2),
    )


def three_sizes(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        F.conv3d(x, w[:, :2], b, groups=2, padding=(1, 0, 2)),
        F.conv_transpose3d(x, w.transpose(0, 1), stride=2, padding=1, output_padding=1),
    )


def transposed(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        F.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=1),
        F.conv_transpose2d(x, w, stride=(2, 3), padding=(0, 2), output_padding=(1, 0)),
        F.conv_transpose2d(x, w, stride=2, padding=2, dilation=2, output_padding=1),
        F.conv_transpose2d(x, w[:, :, :1, :1], stride=3, output_padding=2),
        F.conv_transpose2d(x, w[:, :3], b, stride=2, padding=1, groups=2),
        F.conv_transpose2d(x, w, padding=3, dilation=2, output_padding=1),
    )


def gradients(x: tuple[int, ...], w: tuple[int, ...], **geometry: object) -> Case:
    """All three gradients of a convolution with this geometry, by the op that training graphs contain."""
    spatial = len(x) - 2

    def each(name: str, default: int) -> list[int]:
        value = geometry.get(name, default)
        return list(value) if isinstance(value, tuple) else [value] * spatial  # type: ignore[list-item]

    numbers = (each("stride", 1), each("padding", 0), each("dilation", 1))
    rest = (bool(geometry.get("transposed")), each("output_padding", 0), geometry.get("groups", 1))

    def run(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        sizes = [grad.shape[1]]
        return torch.ops.aten.convolution_backward(grad, x, w, sizes, *numbers, *rest, (True, True, True))

    y = torch.ops.aten.convolution(torch.empty(x), torch.empty(w), None, *numbers, *rest)
    inputs = (randn(*y.shape), randn(*x), randn(*w, scale=0.2))
    return Case(f"gradient_{geometry['name']}", run, inputs, **LOOSE)  # type: ignore[arg-type]


def depthwise(x, w, b):
    return (
        F.conv2d(x, w, b, padding=2, groups=6),
        F.conv2d(x, w, stride=(2, 1), padding=(1, 0), dilation=(1, 3), groups=6),
        F.conv2d(x[..., :4, :2], w, padding=(2, 3), stride=3, groups=6),
        F.conv2d(x[:, :3], w, padding=1, groups=3),
        F.conv1d(x[..., 0], w[:, :, 0], stride=2, padding=1, groups=6),
    )


SPECIAL = torch.arange(120.0).remainder(7).sub(3).view(2, 3, 4, 5)
SPECIAL[0, 0, 0, 0] = SPECIAL[1, 1, 3, 4] = torch.inf
SPECIAL[0, 2, 1, 4] = torch.nan


def depthwise_small(x, w, b):
    return (
        F.conv2d(x, w, b, padding=2, groups=37).relu(),
        F.conv2d(x, w, stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=37),
        F.conv2d(x[..., :2, :2], w, b, padding=4, stride=3, dilation=2, groups=37),
        F.conv2d(x[:1], w, padding=4, groups=37),
    )


def depthwise_special(x, w, g):
    """Infinities and NaN reach what they are multiplied with, and nothing beside it; zeros around count as nothing."""
    w = torch.cat([w[:2], torch.full_like(w[2:], torch.inf)])
    found = []
    for times in (1, 4):  # three channels, and as many as fill vectors
        channels = 3 * times
        many = [t.repeat(*[times if i == dim else 1 for i in range(4)]) for dim, t in ((1, g), (1, x), (0, w))]
        window = ([1, 1], [1, 1], [1, 1], False, [0, 0], channels)
        gradients = torch.ops.aten.convolution_backward(*many, [channels], *window, (True, True, True))
        found += [F.conv2d(many[1], many[2], padding=1, groups=channels), *gradients]
    return tuple(found)


class Layers(torch.nn.Module):
    """Layers whose weights have sizes that are known, as in a model."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.down = torch.nn.Conv2d(4, 6, 3, stride=2, padding=1)
            self.point = torch.nn.Conv2d(6, 5, 1)
            self.up = torch.nn.ConvTranspose2d(5, 3, 3, stride=2, padding=1, output_padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(self.point(self.down(x)))


class Gradients(torch.nn.Module):
    """The gradients of a layer whose weight has sizes that are known."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 432).view(12, 4, 3, 3))

    def forward(self, x: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.ops.aten.convolution_backward(
            grad, x, self.weight, [12], [2, 2], [1, 1], [1, 1], False, [0, 0], 1, (True, True, True)
        )


CASES = [
    Case("plain_f32", plain, (randn(2, 4, 11, 13), randn(6, 4, 3, 3), randn(6)), **LOOSE),
    Case("grouped_f32", grouped, (randn(2, 6, 11, 13), randn(4, 3, 3, 3), randn(6, 1, 3, 3)), **LOOSE),
    Case("one_size_f32", one_size, (randn(2, 4, 17), randn(6, 4, 3), randn(6)), **LOOSE),
    Case("three_sizes_f32", three_sizes, (randn(2, 4, 7, 8, 9), randn(6, 4, 3, 3, 3), randn(6)), **LOOSE),
    Case("transposed_f32", transposed, (randn(2, 4, 7, 8), randn(4, 6, 3, 3), randn(6)), **LOOSE),
    *(
        Case(
            f"padded_{str(d)[6:]}",
            lambda x, w: F.conv2d(x, w, padding=1),
            (randn(2, 4, 11, 13, dtype=d), randn(6, 4, 3, 3, dtype=d)),
            rtol=r,
            atol=r,
            why=SUMS,
        )
        for d, r in ((torch.float64, 1e-7), (torch.bfloat16, 3e-2), (torch.float16, 4e-3))
    ),
    Case(
        "channels_last",
        lambda x, w: F.conv2d(x, w, padding=1),
        (
            lambda g: torch.randn(2, 4, 11, 13, generator=g).to(memory_format=torch.channels_last),
            lambda g: torch.randn(6, 4, 3, 3, generator=g).to(memory_format=torch.channels_last),
        ),
        **LOOSE,
    ),
    Case(
        "empty",
        lambda x, w, b: (F.conv2d(x[:0], w, b, padding=1), F.conv_transpose2d(x[:0], w.transpose(0, 1), stride=2)),
        (randn(2, 4, 7, 8), randn(6, 4, 3, 3), randn(6)),
    ),
    Case(
        "not_finite",
        lambda x, w: F.conv2d(x, w, padding=1),
        (
            lambda g: torch.randn(2, 4, 11, 13, generator=g).masked_fill(torch.arange(13) == 3, float("nan")),
            randn(6, 4, 3, 3),
        ),
        **LOOSE,
    ),
    gradients((2, 4, 27, 33), (13, 4, 3, 3), padding=1, name="plain"),
    gradients((2, 3, 16, 17), (40, 3, 7, 7), padding=3, stride=2, name="stem"),
    gradients((2, 4, 11, 13), (9, 4, 3, 3), padding=2, dilation=2, stride=2, name="dilated"),
    gradients((2, 4, 11, 13), (6, 4, 1, 1), stride=2, name="pointwise"),
    gradients((2, 6, 11, 13), (18, 3, 3, 3), padding=1, groups=2, name="grouped"),
    gradients((2, 38, 5, 6), (23, 38, 1, 1), name="pointwise_wide"),
    gradients((2, 38, 5, 6), (10, 19, 1, 1), groups=2, name="pointwise_grouped"),
    gradients((2, 6, 11, 13), (6, 1, 3, 3), padding=1, stride=2, groups=6, name="depthwise"),
    gradients((3, 40, 9, 7), (40, 1, 5, 5), padding=2, groups=40, name="depthwise_small"),
    gradients((2, 37, 7, 8), (37, 1, 5, 3), padding=(3, 1), stride=(2, 1), groups=37, name="depthwise_small_strided"),
    gradients((3, 16, 2, 2), (16, 1, 5, 5), padding=4, dilation=2, groups=16, name="depthwise_tiny"),
    Case("depthwise_small", depthwise_small, (randn(3, 37, 6, 7), randn(37, 1, 5, 3), randn(37)), **LOOSE),
    Case(
        "depthwise_small_f64",
        depthwise_small,
        (
            randn(3, 37, 6, 7, dtype=torch.float64),
            randn(37, 1, 5, 3, dtype=torch.float64),
            randn(37, dtype=torch.float64),
        ),
        rtol=1e-13,
        atol=1e-13,
        why=SUMS,
    ),
    gradients(
        (2, 6, 11, 13), (6, 1, 3, 2), padding=(2, 1), stride=(1, 3), dilation=(2, 1), groups=6, name="depthwise_far"
    ),
    gradients((2, 5, 9, 11), (5, 1, 1, 2), stride=3, groups=5, name="depthwise_gaps"),
    gradients((2, 6, 13), (6, 1, 4), padding=1, stride=2, groups=6, name="depthwise_sequence"),
    Case("depthwise", depthwise, (randn(2, 6, 19, 23), randn(6, 1, 5, 3), randn(6)), **LOOSE),
    Case("depthwise_special", depthwise_special, (SPECIAL, randn(3, 1, 3, 3), randn(2, 3, 4, 5)), **LOOSE),
    gradients((2, 4, 7, 8), (4, 3, 3, 3), padding=1, stride=2, groups=2, transposed=True, name="transposed"),
    gradients((2, 4, 17), (6, 4, 3), padding=2, stride=2, name="one_size"),
    gradients((2, 4, 7, 8, 9), (9, 4, 3, 3, 3), padding=1, stride=2, name="three_sizes"),
    gradients((2, 4, 5, 6), (9, 4, 2, 2), name="small"),
    Case(
        "finished",
        lambda x, w, r, v: torch.relu(F.batch_norm(F.conv2d(x, w, v), v, v.abs() + 0.5, v, v) + r),
        (
            randn(2, 4, 7, 8, dtype=torch.bfloat16),
            randn(16, 4, 3, 3, dtype=torch.bfloat16),
            randn(2, 16, 5, 6, dtype=torch.bfloat16),
            randn(16, dtype=torch.bfloat16),
        ),
    ),
    Case("dynamic", Layers(), (randn(2, 4, 11, 13),), dynamic=True, second=(randn(3, 4, 16, 14),), **LOOSE),
    Case(
        "dynamic_gradient",
        Gradients(),
        (randn(2, 4, 13, 15), randn(2, 12, 7, 8)),
        dynamic=True,
        second=(randn(3, 4, 17, 19), randn(3, 12, 9, 10)),
        **LOOSE,
    ),
]

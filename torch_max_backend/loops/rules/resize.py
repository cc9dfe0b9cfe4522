"""Interpolation: each output is a weighted sum of a few inputs along every dimension, and gradients the reverse.

Places are computed as torch computes them on a CPU: in float32 for every dtype but float64. Where the ratio of the
sizes is an integer, or where integers give the same places, they are integers, which loops can be split by.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from torch_max_backend.loops.expr import Scalar, as_index, cast, compare_index, constant, from_index, op
from torch_max_backend.loops.index import Index, clamped, least
from torch_max_backend.loops.rules.registry import LeftToLibrary, add_rule, aten
from torch_max_backend.loops.rules.windows import counts, in_range, known, where_all
from torch_max_backend.loops.tensor import Shape, Tensor, computed_in, define, reduce

Tap = tuple[Index, Scalar | None]
"""An input and its weight; no weight is 1."""
Sizes = Sequence[int | Index]


@dataclass(frozen=True)
class Axis:
    """How ``outputs`` lie over ``inputs`` along a dimension; ``dtype`` is what places are computed in."""

    inputs: int
    outputs: int
    mode: str
    align_corners: bool
    given: float | None
    dtype: torch.dtype

    @property
    def scale(self) -> float:
        """Inputs for each output."""
        if self.align_corners:
            return (self.inputs - 1) / (self.outputs - 1) if self.outputs > 1 else 0.0
        if self.given is not None and self.given > 0:
            return 1.0 / self.given
        return self.inputs / self.outputs

    @property
    def is_whole(self) -> bool:
        """Whether one of the sizes is a multiple of the other one, and the scale is their ratio."""
        n, m = self.inputs, self.outputs
        return not self.align_corners and (n % m == 0 or m % n == 0) and self.scale == n / m

    def taps(self, o: Index) -> list[Tap]:
        """The inputs that an output is made of."""
        if self.inputs == self.outputs and self.mode != "cubic" and (self.mode == "linear" or self.is_whole):
            return [(o, None)]
        return {"nearest": _nearest, "exact": _nearest, "linear": _linear, "cubic": _cubic}[self.mode](self, o)

    def source(self, o: Index) -> Scalar:
        """The place of an output among the inputs, a float."""
        at, scale = cast(from_index(o), self.dtype), constant(self.scale, self.dtype)
        if self.align_corners or self.mode == "nearest":
            return at * scale
        if self.mode == "exact":
            return (at + 0.5) * scale
        return (at + 0.5) * scale - 0.5

    def halves(self, o: Index) -> tuple[Index, int]:
        """The place of an output as a fraction that is exact, not for aligned corners."""
        n, m = self.inputs, self.outputs
        return (2 * o + 1) * n - m, 2 * m

    def reach(self) -> tuple[Callable[[Index], Index], int]:
        """For the gradient: the first output that an input may be part of, as a function, and how many follow."""
        return _reach(self)


def _nearest(a: Axis, o: Index) -> list[Tap]:
    n, m = a.inputs, a.outputs
    half = int(a.mode == "exact")
    exact = [min((2 * k + half) * n // (2 * m), n - 1) for k in range(m)]
    if exact == _places(a):
        return [(((2 * o + half) * n) // (2 * m), None)]
    place = as_index(cast(op("floor", a.source(o)), torch.int64), 0, None)
    return [(least(place, Index.of(n - 1)), None)]


@functools.lru_cache(maxsize=256)
def _places(a: Axis) -> list[int]:
    """The inputs that torch takes for each output of nearest interpolation."""
    at = torch.arange(a.outputs, dtype=a.dtype) + (0.5 if a.mode == "exact" else 0.0)
    scale = torch.tensor(a.scale, dtype=torch.float64).to(a.dtype)
    return [min(int(x), a.inputs - 1) for x in torch.floor(at * scale).tolist()]


def _linear(a: Axis, o: Index) -> list[Tap]:
    last = Index.of(a.inputs - 1)
    one = constant(1, a.dtype)
    if a.is_whole:
        place, whole = a.halves(o)
        low, part = place // whole, place % whole
        weight = cast(from_index(part), a.dtype) * constant(1 / whole, a.dtype)
        zero = Index.of(0)
        return [(clamped(low, zero, last), one - weight), (clamped(low + 1, zero, last), weight)]
    source = a.source(o)
    if not a.align_corners:
        source = op("maximum", source, constant(0, a.dtype))
    low = least(as_index(cast(source, torch.int64), 0, None), last)
    weight = op("minimum", source - cast(from_index(low), a.dtype), one)
    return [(low, one - weight), (least(low + 1, last), weight)]


def _cubic(a: Axis, o: Index) -> list[Tap]:
    """Keys' cubic convolution with a = -0.75."""
    zero, last = Index.of(0), Index.of(a.inputs - 1)
    if a.is_whole:
        place, whole = a.halves(o)
        low = place // whole
        t = cast(from_index(place % whole), a.dtype) * constant(1 / whole, a.dtype)
    else:
        source = a.source(o)
        floor = op("floor", source)
        low, t = as_index(cast(floor, torch.int64)), source - floor

    def near(x: Scalar) -> Scalar:  # |x| <= 1
        return (x * 1.25 - 2.25) * x * x + 1

    def far(x: Scalar) -> Scalar:  # 1 < |x| < 2
        return ((x * -0.75 + 3.75) * x - 6) * x + 3

    weights = [far(t + 1), near(t), near(1 - t), far(2 - t)]
    return [(clamped(low + k, zero, last), w) for k, w in zip(range(-1, 3), weights, strict=True)]


@functools.lru_cache(maxsize=256)
def _reach(a: Axis) -> tuple[Callable[[Index], Index], int]:
    n, m = a.inputs, a.outputs
    is_nearest = a.mode in ("nearest", "exact")
    parts = [[x] for x in _places(a)] if is_nearest else [_touched(a, o) for o in range(m)]
    first, last = [m] * n, [-1] * n
    for o, inputs in enumerate(parts):
        for i in inputs:
            first[i], last[i] = min(first[i], o), max(last[i], o)
    top, bottom = (n - 1, m - 1) if a.align_corners and n > 1 and m > 1 else (n, m)
    if not a.align_corners and a.given is not None and a.given > 0:
        top, bottom = 1 << 16, round(a.given * (1 << 16))
    shift = min((first[i] - i * bottom // top for i in range(n) if last[i] >= 0), default=0)
    count = max((last[i] - i * bottom // top - shift + 1 for i in range(n) if last[i] >= 0), default=1)
    return lambda i: (i * bottom) // top + shift, count


def _touched(a: Axis, o: int) -> list[int]:
    """The inputs that may have a weight in an output, and one more on each side for what rounding may move."""
    scale = a.scale
    source = scale * o if a.align_corners else scale * (o + 0.5) - 0.5
    reach = 1 if a.mode == "linear" else 2
    if a.is_whole or a.inputs == a.outputs:
        low = ((2 * o + 1) * a.inputs - a.outputs) // (2 * a.outputs)
        found = range(low - reach + 1, low + reach + 1)
    else:
        low_f, high_f = int(source - 1e-3 * reach - 1) + 1 - 1, int(source + 1e-3 * reach) + 1
        found = range(low_f - reach + 1, high_f + reach)
    return sorted({min(max(i, 0), a.inputs - 1) for i in found})


# -- rules -------------------------------------------------------------------------------------------------------------
def _axes(
    inputs: Sequence[Index], outputs: Sizes, mode: str, align: bool, scales: Sequence[float | None], dtype: torch.dtype
) -> list[Axis]:
    computed = torch.float64 if dtype is torch.float64 else torch.float32
    return [
        Axis(known(n), known(Index.of(m)), mode, align, scale, computed)
        for n, m, scale in zip(inputs, outputs, [*scales, *[None] * 3], strict=False)
    ]


def _resized(x: Tensor, axes: Sequence[Axis]) -> Tensor:
    first = x.rank - len(axes)
    shape = (*x.shape[:first], *counts([a.outputs for a in axes]))
    inner = computed_in(x.dtype)
    plain = all(a.mode in ("nearest", "exact") for a in axes)

    def at(index: Shape) -> Scalar:
        taps = [a.taps(o) for a, o in zip(axes, index[first:], strict=True)]

        def summed(place: Shape, rest: list[list[Tap]]) -> Scalar:
            if not rest:
                found = x.at((*index[:first], *place))
                return found if plain else cast(found, inner)
            total: Scalar | None = None
            for i, weight in rest[0]:
                part = summed((*place, i), rest[1:])
                part = part if weight is None else part * cast(weight, inner)
                total = part if total is None else total + part
            assert total is not None
            return total

        return summed((), taps)

    return Tensor(shape, x.dtype, at) if plain else define(shape, x.dtype, at)


def _gradient(grad: Tensor, shape: Shape, axes: Sequence[Axis]) -> Tensor:
    first = len(shape) - len(axes)
    inner = computed_in(grad.dtype)
    reaches = [a.reach() for a in axes]

    def at(index: Shape, place: Shape) -> Scalar:
        zero = constant(0, inner)
        outputs, conditions = [], []
        weight: Scalar = constant(1, inner)
        for a, (start, _), i, k in zip(axes, reaches, index[first:], place, strict=True):
            o = start(i) + k
            outputs.append(o)
            conditions += in_range(o, a.outputs)
            total: Scalar = zero
            for tap, w in a.taps(o):
                here = where_all(
                    [compare_index("eq", tap, i)], constant(1, inner) if w is None else cast(w, inner), zero
                )
                total = here if total == zero else total + here
            weight = total if weight == constant(1, inner) else weight * total
        value = cast(grad.at((*index[:first], *outputs)), inner) * weight
        return where_all(conditions, value, zero)

    return reduce("sum", shape, counts([count for _, count in reaches]), at, grad.dtype)


def _forward(mode: str, aligns: bool) -> Callable[..., Tensor]:
    # upsample_bilinear2d(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None,
    #     float? scales_w=None) -> Tensor
    def resize(self: Tensor, output_size: Sizes, *options: bool | float | None, **named: bool | float | None) -> Tensor:
        if mode in ("linear", "cubic") and not self.dtype.is_floating_point:
            raise LeftToLibrary
        align, scales = _options(options, named, aligns)
        inputs = self.shape[self.rank - len(output_size) :]
        return _resized(self, _axes(inputs, output_size, mode, align, scales, self.dtype))

    return resize


def _backward(mode: str, aligns: bool) -> Callable[..., Tensor]:
    # upsample_bilinear2d_backward(Tensor grad_output, SymInt[2] output_size, SymInt[4] input_size, bool align_corners,
    #     float? scales_h=None, float? scales_w=None) -> Tensor
    def gradient(
        grad_output: Tensor,
        output_size: Sizes,
        input_size: Sizes,
        *options: bool | float | None,
        **named: bool | float | None,
    ) -> Tensor:
        align, scales = _options(options, named, aligns)
        shape = tuple(map(Index.of, input_size))
        inputs = shape[len(shape) - len(output_size) :]
        return _gradient(grad_output, shape, _axes(inputs, output_size, mode, align, scales, grad_output.dtype))

    return gradient


def _options(
    options: Sequence[bool | float | None], named: dict[str, bool | float | None], aligns: bool
) -> tuple[bool, list[float | None]]:
    """``align_corners`` and the scales along the dimensions, as they were given."""
    rest = list(options)
    align = bool(rest.pop(0) if aligns and rest else named.get("align_corners", False))
    given = {k: v for k, v in named.items() if k != "align_corners"}
    order = [k for k in ("scales", "scales_d", "scales_h", "scales_w") if k in given]
    return align, [*rest, *(given[k] for k in order)]


for _name, _mode, _aligns in [
    *((f"upsample_nearest{d}d", "nearest", False) for d in "123"),
    *((f"_upsample_nearest_exact{d}d", "exact", False) for d in "123"),
    ("upsample_linear1d", "linear", True),
    ("upsample_bilinear2d", "linear", True),
    ("upsample_trilinear3d", "linear", True),
    ("upsample_bicubic2d", "cubic", True),
]:
    add_rule(_forward(_mode, _aligns), getattr(aten, _name).default)
    add_rule(_backward(_mode, _aligns), getattr(aten, f"{_name}_backward").default)

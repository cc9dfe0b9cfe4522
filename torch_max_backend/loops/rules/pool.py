"""Pools: reductions over windows, and their gradients, gathered from the windows that an input lies in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from torch_max_backend.loops.expr import Scalar, cast, constant, from_index, op, rounded, select
from torch_max_backend.loops.index import Index, product
from torch_max_backend.loops.rules.registry import aten, rule
from torch_max_backend.loops.rules.windows import AdaptiveWindow, AnyWindow, counts, known, where_all, windows_of
from torch_max_backend.loops.tensor import Shape, Tensor, computed_in, define, reduce

Ints = Sequence[int] | int


def _parts(index: Shape, rank: int) -> tuple[Shape, Shape]:
    """An index as that of the plane and the one inside it."""
    return index[: len(index) - rank], index[len(index) - rank :]


def _outputs(x: Tensor, windows: Sequence[AnyWindow]) -> Shape:
    return (*_parts(x.shape, len(windows))[0], *counts([w.outputs for w in windows]))


def _smallest(dtype: torch.dtype) -> Scalar:
    return constant(float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min, dtype)


# -- maximum -----------------------------------------------------------------------------------------------------------
def max_pool(x: Tensor, windows: Sequence[AnyWindow]) -> tuple[Tensor, Tensor]:
    """The greatest element of each window, and its place in the plane: of equal ones the first, of NaNs the last."""
    rank, shape = len(windows), _outputs(x, windows)
    taps = counts([w.taps for w in windows])
    inner = computed_in(x.dtype)
    places = (
        torch.int32
        if all(s.is_constant for s in x.shape) and product(x.shape[-rank:]).constant < 2**30
        else torch.int64
    )

    def position(index: Shape, place: Shape) -> tuple[Shape, Shape]:
        plane, o = _parts(index, rank)
        return plane, tuple(w.nearest(i, r) for w, i, r in zip(windows, o, place, strict=True))

    def value(index: Shape, place: Shape) -> Scalar:
        plane, inside = position(index, place)
        return cast(x.at((*plane, *inside)), inner)

    greatest = reduce("maximum", shape, taps, value)

    def key(index: Shape, place: Shape) -> Scalar:
        """Greatest for the element that is meant: above 0 for a NaN."""
        _, inside = position(index, place)
        flat = Index.of(0)
        for size, i in zip(x.shape[-rank:], inside, strict=True):
            flat = flat * size + i
        here, at = value(index, place), cast(from_index(flat), places)
        found = select(here.equals(greatest.at(index)), -at, _smallest(places))
        return select(op("is_nan", here), at + 1, found) if inner.is_floating_point else found

    keys = reduce("maximum", shape, taps, key)

    def decoded(index: Shape) -> Scalar:
        found = keys.at(index)
        return cast(select(found > 0, found - 1, -found), torch.int64)

    values = (
        define(shape, x.dtype, lambda index: rounded(greatest.at(index), x.dtype)) if inner is not x.dtype else greatest
    )
    return values, define(shape, torch.int64, decoded)


def max_pool_gradient(grad: Tensor, x: Tensor, windows: Sequence[AnyWindow], indices: Tensor) -> Tensor:
    """For each input, the gradients of the windows whose greatest element it is."""
    rank, inner = len(windows), computed_in(grad.dtype)

    def at(index: Shape, k: Shape) -> Scalar:
        plane, inside = _parts(index, rank)
        found = [w.covering(i, r) for w, i, r in zip(windows, inside, k, strict=True)]
        o = (*plane, *(place for place, _ in found))
        here = Index.of(0)
        for size, i in zip(x.shape[-rank:], inside, strict=True):
            here = here * size + i
        zero = constant(0, inner)
        chosen = select(indices.at(o).equals(from_index(here)), cast(grad.at(o), inner), zero)
        return where_all([c for _, conditions in found for c in conditions], chosen, zero)

    return reduce("sum", x.shape, counts([w.coverings for w in windows]), at, grad.dtype)


# max_pool2d_with_indices(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1,
#     bool ceil_mode=False) -> (Tensor, Tensor)
@rule(aten.max_pool2d_with_indices.default)
def max_pool2d(
    self: Tensor,
    kernel_size: Ints,
    stride: Ints = (),
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    rank: int = 2,
) -> tuple[Tensor, Tensor]:
    return max_pool(self, windows_of(self, kernel_size, stride, padding, dilation, ceil_mode, rank))


# max_pool3d_with_indices(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, int[3] dilation=1,
#     bool ceil_mode=False) -> (Tensor, Tensor)
@rule(aten.max_pool3d_with_indices.default)
def max_pool3d(
    self: Tensor,
    kernel_size: Ints,
    stride: Ints = (),
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    return max_pool2d(self, kernel_size, stride, padding, dilation, ceil_mode, 3)


# max_pool2d_with_indices_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] stride, int[2] padding,
#     int[2] dilation, bool ceil_mode, Tensor indices) -> Tensor
@rule(aten.max_pool2d_with_indices_backward.default)
def max_pool2d_backward(
    grad_output: Tensor,
    self: Tensor,
    kernel_size: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool,
    indices: Tensor,
    rank: int = 2,
) -> Tensor:
    windows = windows_of(self, kernel_size, stride, padding, dilation, ceil_mode, rank)
    return max_pool_gradient(grad_output, self, windows, indices)


# max_pool3d_with_indices_backward(Tensor grad_output, Tensor self, int[3] kernel_size, int[3] stride, int[3] padding,
#     int[3] dilation, bool ceil_mode, Tensor indices) -> Tensor
@rule(aten.max_pool3d_with_indices_backward.default)
def max_pool3d_backward(
    grad_output: Tensor,
    self: Tensor,
    kernel_size: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    return max_pool2d_backward(grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, indices, 3)


# -- averages ----------------------------------------------------------------------------------------------------------
def avg_pool(x: Tensor, windows: Sequence[AnyWindow], divisor: Callable[[Shape], Index]) -> Tensor:
    """The sum of each window over its divisor."""
    rank, shape, inner = len(windows), _outputs(x, windows), computed_in(x.dtype)

    def at(index: Shape, place: Shape) -> Scalar:
        plane, o = _parts(index, rank)
        inside = [w.position(i, r) for w, i, r in zip(windows, o, place, strict=True)]
        conditions = [c for w, i, r in zip(windows, o, place, strict=True) for c in w.inside(i, r)]
        return where_all(conditions, cast(x.at((*plane, *inside)), inner), constant(0, inner))

    sums = reduce("sum", shape, counts([w.taps for w in windows]), at)

    def mean(index: Shape) -> Scalar:
        return rounded(_over(sums.at(index), divisor(_parts(index, rank)[1])), x.dtype)

    return define(shape, x.dtype, mean)


def _over(x: Scalar, divisor: Index) -> Scalar:
    """A sum over a count; integers are divided with their rest left out."""
    n = cast(from_index(divisor), x.dtype)
    return x / n if x.dtype.is_floating_point else op("trunc_div", x, n)


def avg_pool_gradient(
    grad: Tensor, x: Tensor, windows: Sequence[AnyWindow], divisor: Callable[[Shape], Index]
) -> Tensor:
    """For each input, the gradients of the windows that it lies in, over their divisors."""
    rank, inner = len(windows), computed_in(grad.dtype)

    def at(index: Shape, k: Shape) -> Scalar:
        plane, inside = _parts(index, rank)
        found = [w.covering(i, r) for w, i, r in zip(windows, inside, k, strict=True)]
        o = tuple(place for place, _ in found)
        share = _over(cast(grad.at((*plane, *o)), inner), divisor(o))
        return where_all([c for _, conditions in found for c in conditions], share, constant(0, inner))

    return reduce("sum", x.shape, counts([w.coverings for w in windows]), at, grad.dtype)


def _divisor(
    windows: Sequence[AnyWindow], count_include_pad: bool = True, divisor_override: int | None = None
) -> Callable[[Shape], Index]:
    def divisor(o: Shape) -> Index:
        if divisor_override is not None:
            return Index.of(divisor_override)
        pairs = list(zip(windows, o, strict=True))
        return product(w.padded_count(i) if count_include_pad else w.count(i) for w, i in pairs)

    return divisor


# avg_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, bool ceil_mode=False,
#     bool count_include_pad=True, int? divisor_override=None) -> Tensor
@rule(aten.avg_pool2d.default)
def avg_pool2d(
    self: Tensor,
    kernel_size: Ints,
    stride: Ints = (),
    padding: Ints = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    rank: int = 2,
) -> Tensor:
    windows = windows_of(self, kernel_size, stride, padding, (1,), ceil_mode, rank)
    return avg_pool(self, windows, _divisor(windows, count_include_pad, divisor_override))


# avg_pool3d(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, bool ceil_mode=False,
#     bool count_include_pad=True, int? divisor_override=None) -> Tensor
@rule(aten.avg_pool3d.default)
def avg_pool3d(
    self: Tensor,
    kernel_size: Ints,
    stride: Ints = (),
    padding: Ints = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    return avg_pool2d(self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, 3)


# avg_pool1d(Tensor self, int[1] kernel_size, int[1] stride=[], int[1] padding=[0], bool ceil_mode=False,
#     bool count_include_pad=True) -> Tensor
@rule(aten.avg_pool1d.default)
def avg_pool1d(
    self: Tensor,
    kernel_size: Ints,
    stride: Ints = (),
    padding: Ints = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    return avg_pool2d(self, kernel_size, stride, padding, ceil_mode, count_include_pad, None, 1)


# avg_pool2d_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] stride, int[2] padding, bool
#     ceil_mode,
#     bool count_include_pad, int? divisor_override) -> Tensor
@rule(aten.avg_pool2d_backward.default)
def avg_pool2d_backward(
    grad_output: Tensor,
    self: Tensor,
    kernel_size: Ints,
    stride: Ints,
    padding: Ints,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
    rank: int = 2,
) -> Tensor:
    windows = windows_of(self, kernel_size, stride, padding, (1,), ceil_mode, rank)
    return avg_pool_gradient(grad_output, self, windows, _divisor(windows, count_include_pad, divisor_override))


# avg_pool3d_backward(Tensor grad_output, Tensor self, int[3] kernel_size, int[3] stride, int[3] padding, bool
#     ceil_mode,
#     bool count_include_pad, int? divisor_override) -> Tensor
@rule(aten.avg_pool3d_backward.default)
def avg_pool3d_backward(
    grad_output: Tensor,
    self: Tensor,
    kernel_size: Ints,
    stride: Ints,
    padding: Ints,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    return avg_pool2d_backward(
        grad_output, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, 3
    )


# -- adaptive ----------------------------------------------------------------------------------------------------------
def _adaptive(x: Tensor, outputs: Sequence[int | Index]) -> list[AnyWindow]:
    rank = len(outputs)
    return [AdaptiveWindow(known(x.shape[x.rank - rank + d]), known(Index.of(outputs[d]))) for d in range(rank)]


# _adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor
@rule(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def adaptive_avg_pool(self: Tensor, output_size: Sequence[int | Index]) -> Tensor:
    windows = _adaptive(self, output_size)
    return avg_pool(self, windows, _divisor(windows))


# adaptive_max_pool2d(Tensor self, int[2] output_size) -> (Tensor, Tensor)
@rule(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
def adaptive_max_pool(self: Tensor, output_size: Sequence[int | Index]) -> tuple[Tensor, Tensor]:
    return max_pool(self, _adaptive(self, output_size))


# _adaptive_avg_pool2d_backward(Tensor grad_output, Tensor self) -> Tensor
@rule(aten._adaptive_avg_pool2d_backward.default)
def adaptive_avg_pool2d_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    windows = _adaptive(self, grad_output.shape[-2:])
    return avg_pool_gradient(grad_output, self, windows, _divisor(windows))


# _adaptive_avg_pool3d_backward(Tensor grad_output, Tensor self) -> Tensor
@rule(aten._adaptive_avg_pool3d_backward.default)
def adaptive_avg_pool3d_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    windows = _adaptive(self, grad_output.shape[-3:])
    return avg_pool_gradient(grad_output, self, windows, _divisor(windows))


# adaptive_max_pool2d_backward(Tensor grad_output, Tensor self, Tensor indices) -> Tensor
@rule(aten.adaptive_max_pool2d_backward.default)
def adaptive_max_pool2d_backward(grad_output: Tensor, self: Tensor, indices: Tensor) -> Tensor:
    return max_pool_gradient(grad_output, self, _adaptive(self, grad_output.shape[-2:]), indices)


# adaptive_max_pool3d_backward(Tensor grad_output, Tensor self, Tensor indices) -> Tensor
@rule(aten.adaptive_max_pool3d_backward.default)
def adaptive_max_pool3d_backward(grad_output: Tensor, self: Tensor, indices: Tensor) -> Tensor:
    return max_pool_gradient(grad_output, self, _adaptive(self, grad_output.shape[-3:]), indices)


# -- windows as columns ------------------------------------------------------------------------------------------------
# im2col(Tensor self, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride) -> Tensor
@rule(aten.im2col.default)
def im2col(self: Tensor, kernel_size: Ints, dilation: Ints, padding: Ints, stride: Ints) -> Tensor:
    windows = windows_of(self, kernel_size, stride, padding, dilation)
    *batch, channels, _, _ = self.shape
    high, wide = (w.outputs for w in windows)
    rows, columns = (w.size for w in windows)

    def at(index: Shape) -> Scalar:
        line, place = index[-2], index[-1]
        taps = (line // columns % rows, line % columns)
        o = (place // wide, place % wide)
        inside = [w.position(i, r) for w, i, r in zip(windows, o, taps, strict=True)]
        conditions = [c for w, i, r in zip(windows, o, taps, strict=True) for c in w.inside(i, r)]
        found = self.at((*index[:-2], line // (rows * columns), *inside))
        return where_all(conditions, found, constant(0, self.dtype))

    return Tensor((*batch, channels * (rows * columns), Index.of(high * wide)), self.dtype, at)


# col2im(Tensor self, SymInt[2] output_size, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride) ->
#     Tensor
@rule(aten.col2im.default)
def col2im(
    self: Tensor, output_size: Sequence[int | Index], kernel_size: Ints, dilation: Ints, padding: Ints, stride: Ints
) -> Tensor:
    rows, columns = (kernel_size, kernel_size) if isinstance(kernel_size, int) else kernel_size
    *batch, lines, _ = self.shape
    shape = (*batch, lines // (rows * columns), *map(Index.of, output_size))
    image = Tensor(shape, self.dtype, self.at)
    windows = windows_of(image, kernel_size, stride, padding, dilation)
    inner = computed_in(self.dtype)

    def at(index: Shape, taps: Shape) -> Scalar:
        places, conditions = [], []
        for w, i, tap in zip(windows, index[-2:], taps, strict=True):
            o, when = w.under(i, tap)
            places.append(o)
            conditions += when
        line = index[-3] * (rows * columns) + taps[0] * columns + taps[1]
        found = self.at((*index[:-3], line, places[0] * windows[1].outputs + places[1]))
        return where_all(conditions, cast(found, inner), constant(0, inner))

    return reduce("sum", shape, counts([rows, columns]), at, self.dtype)

"""Distances between rows: of two sets (``cdist``) and within one (``pdist``), with their gradients.

A distance is a norm of the differences of two rows, computed as a reduction that MAX fuses with the differences. The
Euclidean distance of many rows is a matrix product in torch, and then here too, since it is less exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from max.dtype import DType
from max.graph import TensorValue, ops

from torch_max_backend.aten_functions.matmul.products import product
from torch_max_backend.aten_functions.reduce.reductions import extreme_axes
from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.support.axis_reductions import largest, sum_along
from torch_max_backend.aten_functions.support.elementary import pow_float
from torch_max_backend.aten_functions.support.mojo_ops import mojo_op
from torch_max_backend.aten_functions.support.node_context import out_shape
from torch_max_backend.aten_functions.support.tensor_ops import (
    broadcast_shape,
    broadcast_to,
    constant,
    full,
    numel,
    reshape,
    static,
)
from torch_max_backend.base.errors import NeedsStatic, Unsupported

MANY_ROWS = 25  # torch multiplies matrices from here on, if not told otherwise
ALWAYS, NEVER = 1, 2


def _number(value: int | float, like: TensorValue) -> TensorValue:
    return constant(value, like.dtype, like.device)


def _check(x: TensorValue) -> None:
    if x.dtype not in (DType.float32, DType.float64):
        raise Unsupported(f"distances are of float32 and float64 rows, got {x.dtype}")


# -- norms -----------------------------------------------------------------------------------------------------------
def _norm(difference: TensorValue, p: float, skip_nan: bool) -> TensorValue:
    """The ``p``-norm along the last axis, which is dropped. Torch's maximum skips NaN in ``cdist``."""
    axis = difference.rank - 1
    size = ops.abs(difference)
    if math.isinf(p):
        known = ops.where(ops.is_nan(size), _number(0, size), size) if skip_nan else size
        return ops.squeeze(extreme_axes(known, [axis], largest), axis)
    if p == 0:
        one, zero = _number(1, size), _number(0, size)
        part = ops.where(ops.is_nan(size), size, ops.where(ops.equal(size, zero), zero, one))
    elif p == 2:
        part = ops.mul(difference, difference)
    else:
        part = size if p == 1 else pow_float(size, constant(p, DType.float64, size.device))
    total = ops.squeeze(sum_along(part, axis), axis)
    if p == 2:
        return ops.sqrt(total)
    return total if p in (0, 1) else pow_float(total, constant(1 / p, DType.float64, size.device))


def _slope(difference: TensorValue, distance: TensorValue, p: float) -> TensorValue:
    """The derivative of the ``p``-norm by each difference, as torch defines it at zeros."""
    zero, one = _number(0, difference), _number(1, difference)
    size = ops.abs(difference)
    sign = ops.where(
        ops.greater(difference, zero), one, ops.where(ops.greater(zero, difference), _number(-1, difference), zero)
    )
    if p == 1:
        return sign
    if math.isinf(p):
        return ops.where(ops.equal(size, distance), sign, zero)

    def power(base: TensorValue, exponent: float) -> TensorValue:
        return pow_float(base, constant(exponent, DType.float64, base.device))

    if p == 2:
        result = ops.div(difference, distance)
    elif p < 2:
        result = ops.mul(sign, ops.div(power(size, p - 1), power(distance, p - 1)))
        result = ops.where(ops.equal(difference, zero), zero, result) if p < 1 else result
    else:
        result = ops.div(ops.mul(difference, power(size, p - 2)), power(distance, p - 1))
    return ops.where(ops.equal(distance, zero), zero, result)


# -- two sets of rows --------------------------------------------------------------------------------------------------
def _batches(x1: TensorValue, x2: TensorValue) -> tuple[TensorValue, TensorValue]:
    """Both as ``[batches, rows, columns]`` of one number of batches."""
    lead = broadcast_shape(x1.shape[:-2], x2.shape[:-2])
    wide = (broadcast_to(x, [*lead, *x.shape[-2:]]) for x in (x1, x2))
    first, second = (reshape(x, [numel(lead), *x.shape[-2:]]) for x in wide)
    return first, second


def _differences(x1: TensorValue, x2: TensorValue) -> TensorValue:
    """``[batches, rows of x1, rows of x2, columns]``."""
    shape = [x1.shape[0], x1.shape[1], x2.shape[1], x1.shape[2]]
    first, second = broadcast_to(ops.unsqueeze(x1, 2), shape), broadcast_to(ops.unsqueeze(x2, 1), shape)
    return ops.sub(first, second)


def _by_product(x1: TensorValue, x2: TensorValue) -> TensorValue:
    """Euclidean distances as torch computes them from squares of lengths and one matrix product."""

    def extended(x: TensorValue, factor: float, lengths_first: bool) -> TensorValue:
        lengths = sum_along(ops.mul(x, x), 2)
        ends = [lengths, full(1, lengths.shape, x.dtype, x.device)]
        scaled = x if factor == 1 else ops.mul(x, _number(factor, x))
        return ops.concat([scaled, *(ends if lengths_first else reversed(ends))], 2)

    squares = product(extended(x1, -2, True), ops.permute(extended(x2, 1, False), [0, 2, 1]))
    zero = _number(0, squares)
    return ops.sqrt(ops.where(ops.greater(zero, squares), zero, squares))


def _multiplies(x1: TensorValue, x2: TensorValue, p: float, mode: int | None) -> bool:
    if p != 2 or mode == NEVER:
        return False
    if mode == ALWAYS:
        return True
    rows = [static(x.shape[-2]) for x in (x1, x2)]
    if any(r is not None and r > MANY_ROWS for r in rows):
        return True
    if any(r is None for r in rows):
        problem = f"the Euclidean distance of many rows is a product; their numbers must be known, got {rows}"
        raise NeedsStatic(problem, x1.shape[-2], x2.shape[-2])
    return False


# _cdist_forward(Tensor x1, Tensor x2, float p, int? compute_mode) -> Tensor
@map_to(aten._cdist_forward.default, limits="float32 and float64")
def _cdist_forward(x1: TensorValue, x2: TensorValue, p: float, compute_mode: int | None) -> TensorValue:
    _check(x1)
    shape = out_shape()
    if any(static(d) == 0 for d in [*shape, x1.shape[-1]]):
        return full(0, shape, x1.dtype, x1.device)
    first, second = _batches(x1, x2)
    by_product = _multiplies(x1, x2, p, compute_mode)
    result = _by_product(first, second) if by_product else _norm(_differences(first, second), p, skip_nan=True)
    return reshape(result, shape)


# _cdist_backward(Tensor grad_output, Tensor x1, Tensor x2, float p, Tensor cdist) -> Tensor
@map_to(aten._cdist_backward.default, limits="float32 and float64")
def _cdist_backward(
    grad_output: TensorValue, x1: TensorValue, x2: TensorValue, p: float, cdist: TensorValue
) -> TensorValue:
    """The gradient of the rows of ``x1``; of a batch that torch broadcasts it promises all of it."""
    _check(x1)
    shape = out_shape()
    if p == 0 or any(static(d) == 0 for d in [*shape, *x2.shape, *grad_output.shape]):
        return full(0, shape, x1.dtype, x1.device)
    first, second = _batches(x1, x2)
    difference = _differences(first, second)
    grad, distance = (
        broadcast_to(reshape(v, [*difference.shape[:3], 1]), difference.shape) for v in (grad_output, cdist)
    )
    return reshape(sum_along(ops.mul(_slope(difference, distance, p), grad), 2), shape)


# -- one set of rows ---------------------------------------------------------------------------------------------------
def _pair_differences(x: TensorValue) -> tuple[TensorValue, Callable[[int], TensorValue]]:
    """``[pairs, columns]``, and a function that gives the numbers of the first or second rows."""
    rows = x.shape[0]
    pairs = rows * (rows - 1) // 2
    numbers = mojo_op("tmb_pairs", [x], [(DType.int64, [pairs])] * 2)
    first, second = (ops.gather(x, n, 0) for n in numbers)
    return ops.sub(first, second), lambda i: numbers[i]


# _pdist_forward(Tensor self, float p=2.) -> Tensor
@map_to(aten._pdist_forward.default, limits="float32 and float64")
def _pdist_forward(self: TensorValue, p: float = 2.0) -> TensorValue:
    _check(self)
    shape = out_shape()
    if any(static(d) == 0 for d in [*shape, *self.shape]):
        return full(0, shape, self.dtype, self.device)
    difference, _ = _pair_differences(self)
    return reshape(_norm(difference, p, skip_nan=False), shape)


# _pdist_backward(Tensor grad_output, Tensor self, float p, Tensor pdist) -> Tensor
@map_to(aten._pdist_backward.default, limits="float32 and float64")
def _pdist_backward(grad_output: TensorValue, self: TensorValue, p: float, pdist: TensorValue) -> TensorValue:
    """Seen as distances of all rows to all rows, of which pairs above the diagonal count twice with opposite signs."""
    _check(self)
    rows, columns = self.shape
    if p == 0 or any(static(d) == 0 for d in [*self.shape, *grad_output.shape]):
        return full(0, self.shape, self.dtype, self.device)
    difference, numbers = _pair_differences(self)
    wide = [broadcast_to(ops.unsqueeze(v, 1), difference.shape) for v in (grad_output, pdist)]
    part = ops.mul(_slope(difference, wide[1], p), wide[0])
    result = full(0, [rows, columns], self.dtype, self.device)
    for i, addend in enumerate((part, ops.negate(part))):
        result = ops.scatter_nd_add(result, addend, ops.unsqueeze(numbers(i), 1))
    return result

"""Softmax, log-softmax and the negative log-likelihood, with their backward formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from max.dtype import DType
from max.graph import Dim, TensorValue, ops

from torch_max_backend.aten_functions.reduce.reductions import at_least_1d, sum_axes
from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.support.axis_reductions import largest, sum_along
from torch_max_backend.aten_functions.support.cublaslt_products import padded_width, without_zeros
from torch_max_backend.aten_functions.support.dtypes import accumulator
from torch_max_backend.aten_functions.support.elementary import exp
from torch_max_backend.aten_functions.support.index_checks import always
from torch_max_backend.aten_functions.support.index_tensors import readable
from torch_max_backend.aten_functions.support.node_context import out_dtype, out_shape
from torch_max_backend.aten_functions.support.row_kernels import (
    RowLosses,
    likelihood_gradient,
    row_losses,
    row_softmax,
    serves,
)
from torch_max_backend.aten_functions.support.tensor_ops import (
    axis_of,
    before_widening,
    broadcast_to,
    cast,
    constant,
    converted_from,
    full,
    iota,
    numel,
    reshape,
    tensor,
)
from torch_max_backend.base.errors import Unsupported


# -- softmax ---------------------------------------------------------------------------------------------------------
def _poison(x: TensorValue, axis: int) -> TensorValue:
    """0 per row, but NaN where a row holds NaN or +inf: MAX's fused softmax kernels give finite values there."""
    zero, inf, nan = (constant(v, x.dtype, x.device) for v in (0.0, math.inf, math.nan))
    return sum_along(ops.where(ops.greater(inf, x), zero, nan), axis)


def _shifted(x: TensorValue, axis: int) -> tuple[TensorValue, TensorValue]:
    """``x - max(x)`` and its exponential (NaN for NaN), in the accumulator of x's dtype."""
    x = cast(x, accumulator(x.dtype))
    distance = x - largest(x, axis)
    return distance, exp(distance)


def _has_kernel(x: TensorValue, axis: int) -> bool:
    """Whether MAX's fused kernel serves: along the last axis, and not in float64, where its exp has nine digits."""
    return axis == x.rank - 1 and x.dtype != DType.float64


def _refuse_converted_integers(x: TensorValue) -> None:
    """Results for integers are compared to the bit, and the order of torch's float64 sum is its own."""
    source = converted_from(x) if x.dtype == DType.float64 else None
    if source is not None and not source.dtype.is_float():
        raise Unsupported("a float64 softmax of integers, whose last bit torch rounds in its own way")


def _softmax_along(x: TensorValue, axis: int) -> TensorValue:
    if _has_kernel(x, axis):
        return ops.softmax(x) + _poison(x, axis)
    exponential = _shifted(x, axis)[1]
    return exponential / sum_along(exponential, axis)


def _log_softmax_along(x: TensorValue, axis: int) -> TensorValue:
    if _has_kernel(x, axis):
        return ops.logsoftmax(x) + _poison(x, axis)
    distance, exponential = _shifted(x, axis)
    return distance - ops.log(sum_along(exponential, axis))


def _along(
    x: TensorValue, dim: int, function: Callable[[TensorValue, int], TensorValue], dtype: DType | None = None
) -> TensorValue:
    x = x if dtype is None else cast(x, dtype)
    _refuse_converted_integers(x)
    x = at_least_1d(x)
    return reshape(cast(function(x, axis_of(dim, x.rank)), out_dtype()), out_shape())


def _by_rows(x: TensorValue, dim: int, is_log: bool) -> TensorValue | None:
    """The result of the kernel of rows, where there is one."""
    if not x.rank or axis_of(dim, x.rank) != x.rank - 1:
        return None
    narrow = before_widening(x)
    rows = reshape(narrow, [numel(x.shape[:-1]), x.shape[-1]])
    return reshape(row_softmax(rows, out_dtype(), is_log), out_shape()) if serves(rows) else None


# _softmax(Tensor self, int dim, bool half_to_float) -> Tensor
@map_to(aten._softmax.default)
def _softmax(self: TensorValue, dim: int, half_to_float: bool) -> TensorValue:
    by_rows = _by_rows(self, dim, is_log=False)
    return by_rows if by_rows is not None else _along(self, dim, _softmax_along, out_dtype())


# _log_softmax(Tensor self, int dim, bool half_to_float) -> Tensor
@map_to(aten._log_softmax.default)
def _log_softmax(self: TensorValue, dim: int, half_to_float: bool) -> TensorValue:
    by_rows = _by_rows(self, dim, is_log=True)
    return by_rows if by_rows is not None else _along(self, dim, _log_softmax_along, out_dtype())


# _safe_softmax(Tensor self, int dim, ScalarType? dtype=None) -> Tensor
@map_to(aten._safe_softmax.default)
def _safe_softmax(self: TensorValue, dim: int, dtype: torch.dtype | None = None) -> TensorValue:
    return _along(self, dim, _safe_softmax_along, out_dtype())


def _safe_softmax_along(x: TensorValue, axis: int) -> TensorValue:
    """Softmax that is 0 where a row is -inf throughout; one sum of marks finds those rows and the ones with NaN."""
    inf, masked, nan, zero, one = (constant(v, x.dtype, x.device) for v in (math.inf, -math.inf, math.nan, 0.0, 1.0))
    marks = ops.where(ops.greater(inf, x), ops.where(ops.equal(x, masked), zero, one), nan)
    marked = sum_along(marks, axis)
    y = ops.softmax(x) if _has_kernel(x, axis) else cast(_softmax_along(x, axis), x.dtype)
    return ops.where(ops.is_nan(marked), nan, ops.where(ops.equal(marked, zero), zero, y))


# _softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> Tensor
@map_to(aten._softmax_backward_data.default)
def _softmax_backward_data(
    grad_output: TensorValue, output: TensorValue, dim: int, input_dtype: torch.dtype
) -> TensorValue:
    grad, y = (at_least_1d(cast(v, accumulator(v.dtype))) for v in (grad_output, output))
    product = grad * y
    result = product - y * sum_along(product, axis_of(dim, y.rank))
    return reshape(cast(result, out_dtype()), out_shape())


# _log_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> Tensor
@map_to(aten._log_softmax_backward_data.default)
def _log_softmax_backward_data(
    grad_output: TensorValue, output: TensorValue, dim: int, input_dtype: torch.dtype
) -> TensorValue:
    grad, y = (at_least_1d(cast(v, accumulator(v.dtype))) for v in (grad_output, output))
    result = grad - exp(y) * sum_along(grad, axis_of(dim, y.rank))
    return reshape(cast(result, out_dtype()), out_shape())


# -- negative log-likelihood -----------------------------------------------------------------------------------------
_MEAN, _SUM = 1, 2


@dataclass(frozen=True)
class Loss:
    """The arguments of ``nll_loss_forward`` but the log-probabilities."""

    target: TensorValue
    weight: TensorValue | None
    reduction: int
    ignore_index: int


def _class_axis(rank: int) -> int:
    """Where the classes are: the only axis of a vector, else the second."""
    return 0 if rank == 1 else 1


def _checked_target(target: TensorValue, ignored: TensorValue, classes: Dim) -> TensorValue:
    """The target as an index that is safe to read with, 0 where ignored. Any other target outside the classes raises.

    Torch raises for it; MAX's gather does on a CPU, so the classes are read through one. On a GPU it is reported.
    """
    zero = constant(0, target.dtype, target.device)
    if target.device.is_gpu():
        return readable(ops.where(ignored, zero, target), classes, wraps=False)
    negative = ops.logical_and(target < zero, ops.logical_not(ignored))
    beyond = constant(torch.iinfo(torch.int64).max, DType.int64, target.device)
    index = ops.where(negative, beyond, cast(ops.where(ignored, zero, target), DType.int64))
    return ops.gather(iota(classes, DType.int64, target.device), index, axis=0)


def nll_loss_forward(
    self: TensorValue, target: TensorValue, weight: TensorValue | None, reduction: int, ignore_index: int
) -> tuple[TensorValue | None, ...]:
    axis = _class_axis(self.rank)
    classes, shape = self.shape[axis], [numel(self.shape[:axis]), numel(self.shape[axis + 1 :])]
    target = reshape(target, shape)
    ignored = _is_ignored(target, ignore_index)
    index = _checked_target(target, ignored, classes)
    chosen = _chosen(self, shape, classes, index)
    weights = _weights(index, ignored, weight, chosen.dtype)
    losses = ops.where(ignored, constant(0, chosen.dtype, chosen.device), -chosen * weights)
    return _reduced(losses, weights, reduction)


def _is_ignored(target: TensorValue, ignore_index: int) -> TensorValue:
    return ops.equal(target, constant(ignore_index, target.dtype, target.device))


def _weights(index: TensorValue, ignored: TensorValue, weight: TensorValue | None, dtype: DType) -> TensorValue:
    """The weights of the classes ``index``, by default 1, and 0 where ignored."""
    weights = full(1, index.shape, dtype, index.device)
    if weight is not None:
        weights = cast(ops.gather(weight, index, axis=0), dtype)
    return ops.where(ignored, constant(0, dtype, index.device), weights)


def _reduced(losses: TensorValue, weights: TensorValue, reduction: int) -> tuple[TensorValue | None, ...]:
    """The loss and the sum of the weights, both of which are of two dimensions."""
    if reduction not in (_MEAN, _SUM):
        return reshape(cast(losses, out_dtype()), out_shape()), full(0, [], out_dtype(1), losses.device)
    loss, total = sum_axes(losses, [0, 1]), sum_axes(weights, [0, 1])
    loss = loss / total if reduction == _MEAN else loss
    return tuple(reshape(cast(v, out_dtype(i)), out_shape(i)) for i, v in enumerate((loss, total)))


def _chosen(x: TensorValue, shape: list[Dim], classes: Dim, index: TensorValue) -> TensorValue:
    """The elements of the classes ``index``, which is of ``shape`` [outer, inner], among those of ``x``."""
    outer, inner = shape
    row, column = (iota(size, DType.int64, x.device) for size in (outer, inner))
    width, plane = (tensor(size, DType.int64, x.device) for size in (inner, classes * inner))
    at = reshape(row * plane, [outer, 1]) + reshape(index, shape) * width + column
    return cast(ops.gather(reshape(x, [outer * classes * inner]), at, axis=0), accumulator(x.dtype))


def losses_of_logits(x: TensorValue, loss: Loss, out: DType) -> RowLosses:
    """The loss of each row of ``x`` [rows, classes], on a GPU: in ``out``, or float32 if more is computed from it."""
    is_last = loss.weight is None and loss.reduction not in (_MEAN, _SUM)
    target = reshape(cast(loss.target, DType.int64), x.shape[:1])
    return row_losses(x, target, loss.ignore_index, out if is_last else DType.float32)


def losses_beside(x: TensorValue, largest: TensorValue, logarithm: TensorValue, loss: Loss) -> RowLosses:
    """:func:`losses_of_logits`, in float32, where a row's maximum and logarithm are known."""
    rows, classes = x.shape
    ignored = _is_ignored(loss.target, loss.ignore_index)
    numbers = [reshape(v, [rows]) for v in (largest, logarithm)]
    logit = _chosen(x, [rows, Dim(1)], classes, _checked_target(loss.target, ignored, classes))
    losses = -(reshape(logit, [rows]) - numbers[0] - numbers[1])
    return RowLosses(ops.where(reshape(ignored, [rows]), constant(0, losses.dtype, losses.device), losses), *numbers)


def nll_loss_of_rows(losses: TensorValue, classes: Dim, loss: Loss) -> tuple[TensorValue | None, ...]:
    """:func:`nll_loss_forward` of the log-softmax of logits, from the ``losses`` of its rows, 0 where ignored."""
    shape = [losses.shape[0], Dim(1)]
    target, losses = reshape(loss.target, shape), reshape(losses, shape)
    ignored = _is_ignored(target, loss.ignore_index)
    index = target if loss.weight is None else _checked_target(target, ignored, classes)
    weights = _weights(index, ignored, loss.weight, losses.dtype)
    return _reduced(losses if loss.weight is None else losses * weights, weights, loss.reduction)


def nll_loss_backward(
    grad_output: TensorValue,
    self: TensorValue,
    target: TensorValue,
    weight: TensorValue | None,
    reduction: int,
    ignore_index: int,
    total_weight: TensorValue,
) -> TensorValue:
    """No scatter: a comparison of the class numbers with the target fuses with the log-softmax backward after it."""
    axis = _class_axis(self.rank)
    dtype = accumulator(self.dtype)
    classes, outer, inner = self.shape[axis], numel(self.shape[:axis]), numel(self.shape[axis + 1 :])
    target = reshape(target, [outer, 1, inner])
    numbers = cast(reshape(iota(classes, DType.int64, self.device), [1, classes, 1]), target.dtype)
    ignored = _is_ignored(target, ignore_index)
    grad = -cast(grad_output, dtype)
    if reduction == _MEAN:
        grad = grad / cast(total_weight, dtype)
    grad = reshape(grad, [outer, 1, inner] if reduction not in (_MEAN, _SUM) else [1, 1, 1])
    if weight is not None:
        grad = grad * reshape(cast(weight, dtype), [1, classes, 1])
    hit = ops.logical_and(ops.equal(numbers, target), ops.logical_not(ignored))
    result = ops.where(hit, grad, constant(0, dtype, self.device))
    return reshape(cast(broadcast_to(result, [outer, classes, inner]), out_dtype()), out_shape())


def gradient_of_logits(
    x: TensorValue,
    opposite: TensorValue,
    logarithm: TensorValue,
    loss: tuple[TensorValue, TensorValue, int, int, TensorValue],
    *,
    has_kernel: bool,
    pads: bool,
) -> TensorValue:
    """The gradient of logits ``x`` [rows, classes] whose log-probabilities are ``x + opposite - logarithm``.

    Args:
        loss: The arguments of :func:`nll_loss_backward` but ``self`` and ``weight``.
        has_kernel: Whether it is one kernel, which gives the dtype that is promised; else it is in float32.
        pads: Whether the kernel may leave its rows as a product of the library wants them.
    """
    grad, target, reduction, ignore_index, total_weight = loss
    (rows, classes), device = x.shape, x.device
    ignored = _is_ignored(target, ignore_index)
    grad = -grad / total_weight if reduction == _MEAN else -grad
    grad = reshape(grad, [rows if reduction not in (_MEAN, _SUM) else Dim(1)])
    of_row = ops.where(ignored, constant(0, grad.dtype, device), grad)
    if has_kernel:
        opposite, logarithm = (reshape(v, [rows]) for v in (opposite, logarithm))
        width = padded_width(x, out_dtype()) if pads else classes
        of_row = broadcast_to(of_row, [rows])
        y = likelihood_gradient(x, opposite, logarithm, cast(target, DType.int64), of_row, out_dtype(), width)
        return y if width == classes else without_zeros(y, classes)
    of_row = reshape(of_row, [rows, 1])
    hit = ops.equal(
        reshape(cast(iota(classes, DType.int64, device), target.dtype), [1, classes]), ops.unsqueeze(target, 1)
    )
    at_target = ops.where(hit, of_row, constant(0, of_row.dtype, device))
    return at_target - exp(x + opposite - logarithm) * of_row


# nll_loss_forward(Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index)
#     -> (Tensor output, Tensor total_weight)
# nll_loss2d_forward(Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index)
#     -> (Tensor output, Tensor total_weight)
map_to(
    aten.nll_loss_forward.default,
    aten.nll_loss2d_forward.default,
    out_of_range=always("Target {index} is out of bounds."),
)(nll_loss_forward)

# nll_loss_backward(Tensor grad_output, Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index,
#     Tensor total_weight) -> Tensor
# nll_loss2d_backward(Tensor grad_output, Tensor self, Tensor target, Tensor? weight, int reduction,
#     SymInt ignore_index, Tensor total_weight) -> Tensor
map_to(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)(nll_loss_backward)

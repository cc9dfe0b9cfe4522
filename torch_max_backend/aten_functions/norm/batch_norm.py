"""Batch norms, with their backward formulas: by kernels in training, and as one multiply-add by known statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from max.dtype import DType
from max.graph import Dim, TensorValue

from torch_max_backend.aten_functions.norm.layer_norm import finish_all, reciprocal_root
from torch_max_backend.aten_functions.reduce.reductions import are_columns, count, moments, sum_axes
from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.support.channels_last import (
    as_rows,
    channels_first,
    channels_last,
    from_rows,
    is_channels_last,
)
from torch_max_backend.aten_functions.support.cpu_batch_norm import channel_gradients, channel_statistics
from torch_max_backend.aten_functions.support.dtypes import accumulator
from torch_max_backend.aten_functions.support.node_context import is_read_later, now_stored, out_dtype, out_shape
from torch_max_backend.aten_functions.support.row_kernels import (
    BatchGradients,
    batch_gradients,
    batch_statistics,
    scaled_columns,
)
from torch_max_backend.aten_functions.support.tensor_ops import (
    before_widening,
    cast,
    constant,
    full,
    is_float_on_cpu,
    reshape,
)


def _laid_out(x: TensorValue) -> tuple[TensorValue, int]:
    """``x`` as it is computed with, in the order of memory, and the axis of its channels; a CPU takes rows."""
    if not is_channels_last(x):
        return x, 1
    return (channels_last(x), x.rank - 1) if x.device.is_gpu() else (as_rows(x), 1)


def _as_image(y: TensorValue, x: TensorValue) -> TensorValue:
    """The inverse of :func:`_laid_out` of ``x``."""
    return channels_first(y) if is_channels_last(x) and y.rank == x.rank else from_rows(y, x)


def _per_channel(v: TensorValue, x: TensorValue, axis: int, dtype: DType) -> TensorValue:
    """A vector over channels, shaped to broadcast over ``x``, whose channels are ``axis``."""
    return cast(reshape(v, [d if i == axis else Dim(1) for i, d in enumerate(x.shape)]), dtype)


def _apply_stats(
    x: TensorValue,
    axis: int,
    mean: TensorValue,
    rstd: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
) -> TensorValue:
    """``(x - mean) * rstd * weight + bias`` as one multiply-add; ``mean`` and ``rstd`` are per-channel already."""
    scale = rstd if weight is None else _per_channel(weight, x, axis, rstd.dtype) * rstd
    shift = -mean * scale if bias is None else _per_channel(bias, x, axis, rstd.dtype) - mean * scale
    return cast(x, rstd.dtype) * scale + shift


def _other_axes(x: TensorValue, axis: int) -> list[int]:
    return [a for a in range(x.rank) if a != axis]


@dataclass(frozen=True)
class _BatchNorm:
    """The output, and per channel mean and ``1 / sqrt(variance + eps)``, of the batch or the running ones.

    ``moved`` has the running mean and variance after the batch, if it has moved them.
    """

    y: TensorValue
    mean: TensorValue
    rstd: TensorValue
    moved: tuple[TensorValue, ...] = ()


def _batch_norm(
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    running: tuple[TensorValue | None, TensorValue | None],
    training: bool,
    momentum: float,
    eps: float,
) -> _BatchNorm:
    """A batch norm; in training it moves the ``running`` mean and variance, if there are any."""
    dtype, image = accumulator(x.dtype), x
    x, axis = _laid_out(x)
    given = None if running[0] is None or running[1] is None else (running[0], running[1])
    if (training or given is None) and are_columns(x, _other_axes(x, axis)):
        return _column_batch_norm(x, image, weight, bias, given, momentum, eps)
    if (training or given is None) and is_float_on_cpu(x):
        return _channel_batch_norm(x, weight, bias, given, momentum, eps)
    if training or given is None:
        mean, variance = moments(x, _other_axes(x, axis))
    else:
        mean, variance = (_per_channel(v, x, axis, dtype) for v in given)
    rstd = reciprocal_root(variance, eps)
    y = _as_image(_apply_stats(x, axis, mean, rstd, weight, bias), image)
    moved = _moved_statistics(x, axis, mean, variance, given, momentum) if training and given else ()
    return _BatchNorm(y, mean, rstd, moved)


def _column_batch_norm(
    x: TensorValue,
    image: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    running: tuple[TensorValue, TensorValue] | None,
    momentum: float,
    eps: float,
) -> _BatchNorm:
    """A batch norm of ``x`` [*rows, columns] by the batch's statistics, by kernels; ``x`` is ``image``'s."""
    vectors = [None if v is None else cast(v, DType.float32) for v in (weight, bias, *(running or (None, None)))]
    given = None if vectors[2] is None or vectors[3] is None else (vectors[2], vectors[3])
    found = batch_statistics(before_widening(x), vectors[0], vectors[1], given, momentum, eps)
    y = _as_image(scaled_columns(x, found.scale, found.shift), image)
    return _BatchNorm(y, found.mean, found.rstd, (found.moved_mean, found.moved_variance))


def _channel_batch_norm(
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    running: tuple[TensorValue, TensorValue] | None,
    momentum: float,
    eps: float,
) -> _BatchNorm:
    """A batch norm of ``x`` [N, C, *S] by the batch's statistics, which a kernel computes; MAX scales."""
    dtype = accumulator(x.dtype)
    weight, bias = (None if v is None else cast(v, dtype) for v in (weight, bias))
    given = None if running is None else (cast(running[0], dtype), cast(running[1], dtype))
    found = channel_statistics(before_widening(x), weight, bias, given, momentum, eps)
    scale, shift = (_per_channel(v, x, 1, dtype) for v in (found.scale, found.shift))
    y = cast(x, dtype) * scale + shift
    return _BatchNorm(y, found.mean, found.rstd, (found.moved_mean, found.moved_variance) if running else ())


def _saved(mean: TensorValue, rstd: TensorValue) -> list[TensorValue]:
    """What is kept for backward; torch promises empty tensors where nothing is."""
    result = []
    for i, v in ((1, mean), (2, rstd)):
        empty = out_shape(i) == [Dim(0)]
        result.append(full(0, [0], out_dtype(i), v.device) if empty else v)
    return result


# _native_batch_norm_legit_no_training(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean,
#     Tensor running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor)
@map_to(aten._native_batch_norm_legit_no_training.default)
def _native_batch_norm_legit_no_training(
    input: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    running_mean: TensorValue,
    running_var: TensorValue,
    momentum: float,
    eps: float,
) -> tuple[TensorValue | None, ...]:
    norm = _batch_norm(input, weight, bias, (running_mean, running_var), False, momentum, eps)
    return finish_all([norm.y, *_saved(norm.mean, norm.rstd)])


# _native_batch_norm_legit.no_stats(Tensor input, Tensor? weight, Tensor? bias, bool training, float momentum,
#     float eps) -> (Tensor, Tensor, Tensor)
@map_to(aten._native_batch_norm_legit.no_stats)
def _native_batch_norm_legit_no_stats(
    input: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[TensorValue | None, ...]:
    norm = _batch_norm(input, weight, bias, (None, None), True, momentum, eps)
    return finish_all([norm.y, *_saved(norm.mean, norm.rstd)])


# _native_batch_norm_legit_functional(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean,
#     Tensor running_var, bool training, float momentum, float eps)
#     -> (Tensor, Tensor, Tensor, Tensor running_mean_out, Tensor running_var_out)
@map_to(aten._native_batch_norm_legit_functional.default)
def _native_batch_norm_legit_functional(
    input: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    running_mean: TensorValue,
    running_var: TensorValue,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[TensorValue | None, ...]:
    running = (running_mean, running_var)
    norm = _batch_norm(input, weight, bias, running, training, momentum, eps)
    return finish_all([norm.y, *_saved(norm.mean, norm.rstd), *(norm.moved or running)])


def _moved_statistics(
    x: TensorValue,
    axis: int,
    mean: TensorValue,
    variance: TensorValue,
    running: tuple[TensorValue, TensorValue],
    momentum: float,
) -> tuple[TensorValue, ...]:
    """The running mean and variance, moved towards those of the batch."""
    size = count(x, _other_axes(x, axis), variance.dtype)
    unbiased = variance * (size / (size - constant(1, size.dtype, size.device)))
    return tuple(
        _per_channel(old, x, axis, new.dtype) * constant(1 - momentum, new.dtype, new.device)
        + new * constant(momentum, new.dtype, new.device)
        for old, new in zip(running, (mean, unbiased), strict=True)
    )


# _batch_norm_with_update_functional(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean,
#     Tensor running_var, float momentum, float eps)
#     -> (Tensor, Tensor, Tensor, Tensor, Tensor running_mean_out, Tensor running_var_out)
@map_to(aten._batch_norm_with_update_functional.default)
def _batch_norm_with_update_functional(
    input: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    running_mean: TensorValue,
    running_var: TensorValue,
    momentum: float,
    eps: float,
) -> tuple[TensorValue | None, ...]:
    """In training; the fourth output is what a backward of other devices needs, and empty."""
    norm = _batch_norm(input, weight, bias, (running_mean, running_var), True, momentum, eps)
    reserve = full(0, out_shape(3), out_dtype(3), input.device)
    return finish_all([norm.y, *_saved(norm.mean, norm.rstd), reserve, *norm.moved])


# _batch_norm_no_update(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var,
#     float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor)
@map_to(aten._batch_norm_no_update.default)
def _batch_norm_no_update(
    input: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    running_mean: TensorValue | None,
    running_var: TensorValue | None,
    momentum: float,
    eps: float,
) -> tuple[TensorValue | None, ...]:
    """By the running statistics, where there are any."""
    norm = _batch_norm(input, weight, bias, (running_mean, running_var), False, momentum, eps)
    return finish_all([norm.y, *_saved(norm.mean, norm.rstd), full(0, out_shape(3), out_dtype(3), input.device)])


# native_batch_norm_backward(Tensor grad_out, Tensor input, Tensor? weight, Tensor? running_mean, Tensor? running_var,
#     Tensor? save_mean, Tensor? save_invstd, bool train, float eps, bool[3] output_mask) -> (Tensor, Tensor, Tensor)
@map_to(aten.native_batch_norm_backward.default)
def native_batch_norm_backward(
    grad_out: TensorValue,
    input: TensorValue,
    weight: TensorValue | None,
    running_mean: TensorValue | None,
    running_var: TensorValue | None,
    save_mean: TensorValue | None,
    save_invstd: TensorValue | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[TensorValue | None, ...]:
    dtype, image, operand = accumulator(input.dtype), input, grad_out
    if is_channels_last(input) or is_channels_last(grad_out):
        image, grad_out = (channels_first(channels_last(v)) for v in (input, grad_out))
    (input, axis), (grad_out, _) = _laid_out(image), _laid_out(grad_out)
    axes = _other_axes(input, axis)
    if train:
        assert save_mean is not None
        assert save_invstd is not None
        mean, rstd = (_per_channel(v, input, axis, dtype) for v in (save_mean, save_invstd))
    else:
        assert running_mean is not None
        assert running_var is not None
        mean = _per_channel(running_mean, input, axis, dtype)
        rstd = reciprocal_root(_per_channel(running_var, input, axis, dtype), eps)
    grad, x = cast(grad_out, dtype), cast(input, dtype)
    if train and are_columns(input, axes) and are_columns(grad_out, axes):
        keeps = is_read_later(operand) and before_widening(grad_out).dtype == operand.dtype
        grad, *found = _column_batch_norm_gradients(grad_out, input, image, weight, (mean, rstd), output_mask, keeps)
        if grad is not grad_out:
            now_stored(operand, channels_first(grad) if axis > 1 else grad)
        return tuple(found)
    if train and is_float_on_cpu(input):
        return _channel_batch_norm_gradients(grad_out, input, weight, (mean, rstd), output_mask)
    # What is read twice MAX stores, in float32: x - mean and mean - x differ by their sign alone, and exactly.
    along, total = sum_axes(grad * (x - mean), axes), sum_axes(grad, axes)
    scale = rstd if weight is None else rstd * _per_channel(weight, input, axis, dtype)
    results: list[TensorValue | None] = [None, None, None]
    if output_mask[0] and train:
        size = count(input, axes, dtype)
        results[0] = (grad - total / size + (mean - x) * (along * rstd * rstd / size)) * scale
    elif output_mask[0]:
        results[0] = grad * scale
    if results[0] is not None:
        results[0] = _as_image(results[0], image)
    if output_mask[1]:
        results[1] = along * rstd
    if output_mask[2]:
        results[2] = total
    return finish_all(results)


def _of_input(found: BatchGradients, mean: TensorValue, grad: TensorValue, x: TensorValue, axis: int) -> TensorValue:
    """The gradient of the input ``x`` of a batch norm in training; ``mean`` is [channels]."""
    numbers = (mean, found.offset, found.factor, found.scale)
    mean, offset, factor, scale = (_per_channel(v, x, axis, mean.dtype) for v in numbers)
    return (cast(grad, mean.dtype) - offset + (mean - cast(x, mean.dtype)) * factor) * scale


def _channel_batch_norm_gradients(
    grad: TensorValue,
    x: TensorValue,
    weight: TensorValue | None,
    statistics: tuple[TensorValue, TensorValue],
    output_mask: Sequence[bool],
) -> tuple[TensorValue | None, ...]:
    """The gradients of a batch norm of ``x`` [N, C, *S] in training, whose sums a kernel computes."""
    mean, rstd = (reshape(v, [x.shape[1]]) for v in statistics)
    weight = None if weight is None else cast(weight, mean.dtype)
    found = channel_gradients(before_widening(grad), before_widening(x), mean, rstd, weight)
    gradients = (_of_input(found, mean, grad, x, 1) if output_mask[0] else None, found.weight, found.bias)
    return finish_all([v if wanted else None for v, wanted in zip(gradients, output_mask, strict=True)])


def _column_batch_norm_gradients(
    grad: TensorValue,
    x: TensorValue,
    image: TensorValue,
    weight: TensorValue | None,
    statistics: tuple[TensorValue, TensorValue],
    output_mask: Sequence[bool],
    keeps: bool,
) -> tuple[TensorValue, TensorValue | None, TensorValue | None, TensorValue | None]:
    """``grad``, as it lies in memory then if a kernel ``keeps`` it, and the gradients of a batch norm in training.

    ``x``, as ``grad``, is [*rows, columns], and belongs to ``image``.
    """
    axis = x.rank - 1
    mean, rstd = (reshape(v, [x.shape[axis]]) for v in statistics)
    weight = None if weight is None else cast(weight, DType.float32)
    found = batch_gradients(before_widening(grad), before_widening(x), mean, rstd, weight, keeps)
    of_x = None
    if output_mask[0]:
        of_x = _as_image(_of_input(found, mean, found.grad if keeps else grad, x, axis), image)
    weight, bias = (
        v if wanted else None for v, wanted in zip((found.weight, found.bias), output_mask[1:], strict=True)
    )
    return found.grad if keeps else grad, *finish_all([of_x, weight, bias])


# batch_norm_backward(Tensor grad_out, Tensor input, Tensor weight, Tensor? running_mean, Tensor? running_var,
#     Tensor? save_mean, Tensor? save_var, bool update, float eps, bool[3] output_mask, Tensor reserve)
#     -> (Tensor, Tensor, Tensor)
@map_to(aten.batch_norm_backward.default)
def batch_norm_backward(
    grad_out: TensorValue,
    input: TensorValue,
    weight: TensorValue,
    running_mean: TensorValue | None,
    running_var: TensorValue | None,
    save_mean: TensorValue | None,
    save_var: TensorValue | None,
    update: bool,
    eps: float,
    output_mask: Sequence[bool],
    reserve: TensorValue,
) -> tuple[TensorValue | None, ...]:
    """What is named ``save_var`` is ``1 / sqrt(variance + eps)``, as in the other backward."""
    statistics = (running_mean, running_var, save_mean, save_var)
    return native_batch_norm_backward(grad_out, input, weight, *statistics, update, eps, output_mask)

"""Batch norms, forward and backward: in training by the batch's statistics, else by the running ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from torch_max_backend.loops.expr import Scalar, cast, constant, op
from torch_max_backend.loops.index import Index, product
from torch_max_backend.loops.rules.reduce import as_number, moments, over, pointwise_of
from torch_max_backend.loops.rules.registry import aten, rule
from torch_max_backend.loops.rules.views import reshaped
from torch_max_backend.loops.tensor import Tensor, builder, computed_in, define, pointwise

Optional = Tensor | None


def _per_channel(v: Tensor, x: Tensor) -> Tensor:
    """A vector over channels, shaped to broadcast over ``x``."""
    return reshaped(v, [1, x.shape[1], *[1] * (x.rank - 2)])


def _others(x: Tensor) -> list[int]:
    return [d for d in range(x.rank) if d != 1]


def _inverse(variance: Tensor, eps: float, compute: torch.dtype) -> Tensor:
    return pointwise(lambda v: op("rsqrt", v + eps), variance, compute=compute, dtype=compute)


def _promised(k: int, x: Tensor | None) -> Tensor:
    """What torch promises as output ``k``: the vector ``x``, or an empty one where nothing is kept for backward."""
    value = builder().promise[k]
    if x is None or value.shape[0] == 0:
        return define((Index.of(0),), value.dtype, lambda index: constant(0, value.dtype))
    return pointwise_of(reshaped(x, [-1]), lambda e: e, value.dtype)


def _running(k: int, statistics: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The running statistics as outputs from ``k`` on: torch promises float32 ones where the buffers have 16 bits."""
    return tuple(pointwise_of(x, lambda e: e, builder().promise[k + i].dtype) for i, x in enumerate(statistics))


def _batch_norm(
    x: Tensor,
    weight: Optional,
    bias: Optional,
    running: tuple[Optional, Optional],
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...]]:
    """The output, mean and ``1 / sqrt(variance + eps)``, and the running statistics after the batch if they move."""
    compute = computed_in(x.dtype)
    moved: tuple[Tensor, ...] = ()
    if training or running[0] is None or running[1] is None:
        mean, variance = moments(x, _others(x), 0, compute)
        if running[0] is not None and running[1] is not None:
            moved = _moved(x, mean, variance, (running[0], running[1]), momentum)
    else:
        mean, variance = (_per_channel(v, x) for v in running if v is not None)
    inverse = _inverse(variance, eps, compute)
    operands = [_per_channel(v, x) for v in (weight, bias) if v is not None]

    def formula(e: Scalar, m: Scalar, r: Scalar, *rest: Scalar) -> Scalar:
        scale = r if weight is None else r * rest[0]
        y = (e - m) * scale
        return y if bias is None else y + rest[-1]

    y = pointwise(formula, x, mean, inverse, *operands, compute=compute, dtype=x.dtype)
    return y, mean, inverse, moved


def _moved(
    x: Tensor, mean: Tensor, variance: Tensor, running: tuple[Tensor, Tensor], momentum: float
) -> tuple[Tensor, ...]:
    n = product(x.shape[d] for d in _others(x))

    def unbiased(v: Scalar) -> Scalar:
        return v * (as_number(n, v.dtype) / as_number(n - 1, v.dtype))

    # Where all is bfloat16, ATen rounds each step of the mean's average; it averages anything else in wide numbers.
    narrow = builder().promise[1].dtype is running[0].dtype is torch.bfloat16

    def average(old: Scalar, new: Scalar, *, steps: bool) -> Scalar:
        def step(x: Scalar) -> Scalar:
            return cast(cast(x, torch.bfloat16), x.dtype) if steps else x

        of_new, of_old = (step(constant(k, new.dtype)) for k in (momentum, 1 - momentum))
        return step(of_new * step(new)) + step(of_old * old)

    compute = mean.dtype
    return (
        pointwise(partial(average, steps=narrow), running[0], reshaped(mean, [-1]), compute=compute, dtype=compute),
        pointwise(
            lambda old, v: average(old, unbiased(v), steps=False),
            running[1],
            reshaped(variance, [-1]),
            compute=compute,
            dtype=compute,
        ),
    )


# _native_batch_norm_legit_functional(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean,
#     Tensor running_var, bool training, float momentum, float eps)
#     -> (Tensor, Tensor, Tensor, Tensor running_mean_out, Tensor running_var_out)
@rule(aten._native_batch_norm_legit_functional.default)
def native_batch_norm_legit_functional(
    input: Tensor,
    weight: Optional,
    bias: Optional,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    running = (running_mean, running_var)
    y, mean, inverse, moved = _batch_norm(input, weight, bias, running, training, momentum, eps)
    return y, _promised(1, mean), _promised(2, inverse), *_running(3, moved or running)


# _native_batch_norm_legit.no_stats(Tensor input, Tensor? weight, Tensor? bias, bool training, float momentum,
#     float eps) -> (Tensor, Tensor, Tensor)
@rule(aten._native_batch_norm_legit.no_stats)
def native_batch_norm_legit_no_stats(
    input: Tensor, weight: Optional, bias: Optional, training: bool, momentum: float, eps: float
) -> tuple[Tensor, ...]:
    y, mean, inverse, _ = _batch_norm(input, weight, bias, (None, None), True, momentum, eps)
    return y, _promised(1, mean), _promised(2, inverse)


# _native_batch_norm_legit_no_training(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean,
#     Tensor running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor)
@rule(aten._native_batch_norm_legit_no_training.default)
def native_batch_norm_legit_no_training(
    input: Tensor,
    weight: Optional,
    bias: Optional,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    y, mean, inverse, _ = _batch_norm(input, weight, bias, (running_mean, running_var), False, momentum, eps)
    return y, _promised(1, mean), _promised(2, inverse)


# _batch_norm_with_update_functional(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean,
#     Tensor running_var, float momentum, float eps)
#     -> (Tensor, Tensor, Tensor, Tensor, Tensor running_mean_out, Tensor running_var_out)
@rule(aten._batch_norm_with_update_functional.default)
def batch_norm_with_update_functional(
    input: Tensor,
    weight: Optional,
    bias: Optional,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    y, mean, inverse, moved = _batch_norm(input, weight, bias, (running_mean, running_var), True, momentum, eps)
    return y, _promised(1, mean), _promised(2, inverse), _promised(3, None), *moved


# _batch_norm_no_update(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var,
#     float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor)
@rule(aten._batch_norm_no_update.default)
def batch_norm_no_update(
    input: Tensor,
    weight: Optional,
    bias: Optional,
    running_mean: Optional,
    running_var: Optional,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    y, mean, inverse, _ = _batch_norm(input, weight, bias, (running_mean, running_var), False, momentum, eps)
    return y, _promised(1, mean), _promised(2, inverse), _promised(3, None)


# native_batch_norm_backward(Tensor grad_out, Tensor input, Tensor? weight, Tensor? running_mean, Tensor? running_var,
#     Tensor? save_mean, Tensor? save_invstd, bool train, float eps, bool[3] output_mask) -> (Tensor, Tensor, Tensor)
@rule(aten.native_batch_norm_backward.default)
def native_batch_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    weight: Optional,
    running_mean: Optional,
    running_var: Optional,
    save_mean: Optional,
    save_invstd: Optional,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[Optional, ...]:
    compute = computed_in(input.dtype)
    mean, other = (save_mean, save_invstd) if train else (running_mean, running_var)
    assert mean is not None
    assert other is not None
    mean, other = _per_channel(mean, input), _per_channel(other, input)
    inverse = other if train else _inverse(other, eps, compute)
    dims = _others(input)
    n = product(input.shape[d] for d in dims)
    both = pointwise(lambda g, x, m: g * (x - m), grad_out, input, mean, compute=compute, dtype=compute)
    along = over("sum", both, dims, True, compute=compute)
    total = over("sum", grad_out, dims, True, compute=compute)
    scale = [] if weight is None else [_per_channel(weight, input)]
    results: list[Tensor | None] = [None, None, None]

    def into(g: Scalar, x: Scalar, m: Scalar, r: Scalar, a: Scalar, t: Scalar, *w: Scalar) -> Scalar:
        count = as_number(n, g.dtype)
        centred = g - t / count - (x - m) * (a * r * r / count) if train else g
        return centred * (r * w[0] if w else r)

    if output_mask[0]:
        results[0] = pointwise(
            into, grad_out, input, mean, inverse, along, total, *scale, compute=compute, dtype=input.dtype
        )
    if output_mask[1]:
        of_weight = pointwise(lambda a, r: a * r, along, inverse, compute=compute, dtype=compute)
        results[1] = _promised(1, of_weight)
    if output_mask[2]:
        results[2] = _promised(2, total)
    return tuple(results)


# batch_norm_backward(Tensor grad_out, Tensor input, Tensor weight, Tensor? running_mean, Tensor? running_var,
#     Tensor? save_mean, Tensor? save_var, bool update, float eps, bool[3] output_mask, Tensor reserve)
#     -> (Tensor, Tensor, Tensor)
@rule(aten.batch_norm_backward.default)
def batch_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    weight: Tensor,
    running_mean: Optional,
    running_var: Optional,
    save_mean: Optional,
    save_var: Optional,
    update: bool,
    eps: float,
    output_mask: Sequence[bool],
    reserve: Tensor,
) -> tuple[Optional, ...]:
    return native_batch_norm_backward(
        grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask
    )

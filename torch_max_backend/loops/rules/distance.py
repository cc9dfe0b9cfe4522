"""Distances between rows, forward and backward."""

from __future__ import annotations

from typing import Any

from torch_max_backend.loops.expr import Scalar, cast, constant, op, select
from torch_max_backend.loops.rules.pointwise import to_copy
from torch_max_backend.loops.rules.reduce import over, vector_norm
from torch_max_backend.loops.rules.registry import aten, rule
from torch_max_backend.loops.rules.views import unsqueeze
from torch_max_backend.loops.tensor import Tensor, builder, computed_in, pointwise


# _cdist_forward(Tensor x1, Tensor x2, float p, int? compute_mode) -> Tensor
@rule(aten._cdist_forward.default)
def cdist_forward(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Tensor:
    compute = computed_in(x1.dtype)
    difference = pointwise(lambda a, b: a - b, unsqueeze(x1, -2), unsqueeze(x2, -3), compute=compute, dtype=compute)
    if p == float("inf"):  # NaN is no largest difference, and of nothing that is 0
        if x1.shape[-1] == 0:
            return Tensor(difference.shape[:-1], x1.dtype, lambda index: constant(0, x1.dtype))
        return over("maximum", difference, [-1], formula=_known, compute=compute, dtype=x1.dtype)
    if p == 0:
        counted = _is_not_0 if builder().is_for_gpu else _differs
        return over("sum", difference, [-1], formula=counted, compute=compute, dtype=x1.dtype)
    return to_copy(vector_norm(difference, p, [-1]), x1.dtype)


def _known(x: Scalar) -> Scalar:
    return select(op("is_nan", x), constant(0, x.dtype), op("absolute", x))


def _differs(x: Scalar) -> Scalar:
    """1 where there is a difference; NaN stays, as it does in torch's kernels for CPUs."""
    return select(op("is_nan", x), x, _is_not_0(x))


def _is_not_0(x: Scalar) -> Scalar:
    return cast(op("ne", x, constant(0, x.dtype)), x.dtype)


# _cdist_backward(Tensor grad, Tensor x1, Tensor x2, float p, Tensor cdist) -> Tensor
@rule(aten._cdist_backward.default)
def cdist_backward(grad: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor) -> Tensor:
    compute = computed_in(x1.dtype)

    def formula(g: Scalar, a: Scalar, b: Scalar, d: Scalar) -> Scalar:
        e, zero = a - b, constant(0, a.dtype)
        size = op("absolute", e)
        if p == 0:
            return zero
        if p == 1:
            return g * op("sign", e)
        if p == float("inf"):
            return g * op("sign", e) * cast(size.equals(d), e.dtype)
        if p < 1:
            found = op("sign", e) * _power(size, p - 1) * g * _power(d, 1 - p)
            return select(d.equals(0) | (e.equals(0)), zero, found)
        found = g * e / d if p == 2 else e * _power(size, p - 2) * g / _power(d, p - 1)
        if p < 2:
            return select(d.equals(0) | e.equals(0), zero, found)
        return select(d.equals(0), zero, found)

    operands: list[Any] = [unsqueeze(grad, -1), unsqueeze(x1, -2), unsqueeze(x2, -3), unsqueeze(cdist, -1)]
    parts = pointwise(formula, *operands, compute=compute, dtype=compute)
    return over("sum", parts, [-2], compute=compute, dtype=x1.dtype)


def _power(x: Scalar, exponent: float) -> Scalar:
    return op("pow", x, constant(exponent, x.dtype))

"""Reductions: sums, extrema, moments, and what is a few of them, such as softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_max_backend.loops.expr import Scalar, cast, constant, from_index, op, rounded, select
from torch_max_backend.loops.index import Index, product
from torch_max_backend.loops.rules.pointwise import to_copy
from torch_max_backend.loops.rules.registry import LeftToLibrary, aten, prims, rule
from torch_max_backend.loops.rules.views import reshaped, unsqueeze
from torch_max_backend.loops.tensor import Shape, Tensor, builder, computed_in, converted, define, pointwise, reduce

Dims = int | Sequence[int] | None
Formula = Callable[[Scalar], Scalar]


def _dims(x: Tensor, dim: Dims) -> list[int]:
    if x.rank == 0:
        return []
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return list(range(x.rank))
    return sorted({x.dim(d) for d in ([dim] if isinstance(dim, int) else dim)})


def over(
    combiner: str,
    x: Tensor,
    dim: Dims,
    keepdim: bool = False,
    formula: Formula = lambda x: x,
    compute: torch.dtype | None = None,
    finish: Formula | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Reduce dimensions of ``x`` with a combiner.

    Args:
        formula: Applied to each element, which is in ``compute``.
        compute: The dtype that is reduced in; by default that of ``x``, float32 for floats of 16 bits.
        finish: Applied to each result.
        dtype: The result's dtype; by default that of ``x``.
    """
    dims = _dims(x, dim)
    inner = compute or computed_in(x.dtype)
    kept = [d for d in range(x.rank) if d not in dims]

    def at(index: Shape, place: Shape) -> Scalar:
        full = [place[dims.index(d)] if d in dims else index[kept.index(d)] for d in range(x.rank)]
        return formula(cast(x.at(tuple(full)), inner))

    found = reduce(combiner, [x.shape[d] for d in kept], [x.shape[d] for d in dims], at)
    wanted = dtype or (x.dtype if compute is None else found.dtype)
    if finish is not None:
        found = pointwise_of(found, finish, wanted)
    elif wanted is torch.float16 and combiner in ("sum", "product"):  # it may be infinite there, whatever follows
        total = found
        found = define(total.shape, wanted, lambda index: cast(total.at(index), wanted))
    elif found.dtype is not wanted:
        found = converted(found, wanted)
    if keepdim:
        for d in dims:
            found = unsqueeze(found, d)
    return found


def pointwise_of(x: Tensor, formula: Formula, dtype: torch.dtype) -> Tensor:
    """``formula`` of each element as it is, rounded to ``dtype``."""
    return define(x.shape, dtype, lambda index: rounded(formula(x.at(index)), dtype))


def count_of(x: Tensor, dim: Dims) -> Index:
    """How many elements are reduced into one."""
    return product(x.shape[d] for d in _dims(x, dim))


def _sum_dtypes(x: Tensor, dtype: torch.dtype | None) -> tuple[torch.dtype, torch.dtype]:
    """The dtype of a sum, and the one that it is added up in."""
    result = dtype or (x.dtype if x.dtype.is_floating_point else torch.int64)
    return result, computed_in(result)


def _as(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """``x`` in the dtype that a reduction was asked for: torch converts before it reduces."""
    if dtype is None or dtype is x.dtype:
        return x
    return define(x.shape, dtype, lambda index: cast(x.at(index), dtype))


# sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor
@rule(aten.sum.dim_IntList)
def sum_dims(self: Tensor, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    result, inner = _sum_dtypes(self, dtype)
    return over("sum", _as(self, dtype), dim, keepdim, compute=inner, dtype=result)


# sum(Tensor self, *, ScalarType? dtype=None) -> Tensor
@rule(aten.sum.default)
def sum_all(self: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return sum_dims(self, None, False, dtype)


# mean.dim(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor
@rule(aten.mean.dim)
def mean(self: Tensor, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    result = dtype or self.dtype
    n = count_of(self, dim)
    x, inner = _as(self, dtype), computed_in(result)
    return over("sum", x, dim, keepdim, compute=inner, dtype=result, finish=lambda s: s / as_number(n, s.dtype))


# mean(Tensor self, *, ScalarType? dtype=None) -> Tensor
@rule(aten.mean.default)
def mean_all(self: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return mean(self, None, False, dtype)


def as_number(n: Index, dtype: torch.dtype) -> Scalar:
    """A count as a scalar."""
    return cast(from_index(n), dtype)


# prod.dim_int(Tensor self, int dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor
@rule(aten.prod.dim_int)
def prod(self: Tensor, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    result, inner = _sum_dtypes(self, dtype)
    return over("product", _as(self, dtype), dim, keepdim, compute=inner, dtype=result)


# prod(Tensor self, *, ScalarType? dtype=None) -> Tensor
@rule(aten.prod.default)
def prod_all(self: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return prod(self, None, False, dtype)


def _extremum(combiner: str, x: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    if x.dtype is torch.bool:
        return over("any" if combiner == "maximum" else "all", x, dim, keepdim)
    return over(combiner, x, dim, keepdim, compute=x.dtype)


# amax(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor
@rule(aten.amax.default)
def amax(self: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    return _extremum("maximum", self, dim, keepdim)


# amin(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor
@rule(aten.amin.default)
def amin(self: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    return _extremum("minimum", self, dim, keepdim)


# max(Tensor self) -> Tensor
@rule(aten.max.default)
def max_all(self: Tensor) -> Tensor:
    return amax(self)


# min(Tensor self) -> Tensor
@rule(aten.min.default)
def min_all(self: Tensor) -> Tensor:
    return amin(self)


# argmax(Tensor self, int? dim=None, bool keepdim=False) -> Tensor
@rule(aten.argmax.default)
def argmax(self: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _place("argmax", self, dim, keepdim)


# argmin(Tensor self, int? dim=None, bool keepdim=False) -> Tensor
@rule(aten.argmin.default)
def argmin(self: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _place("argmin", self, dim, keepdim)


def _place(combiner: str, x: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    compute = torch.uint8 if x.dtype is torch.bool else x.dtype
    return over(combiner, x, dim, keepdim, compute=compute, dtype=torch.int64)


# max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)
@rule(aten.max.dim)
def max_dim(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return amax(self, dim, keepdim), argmax(self, dim, keepdim)


# min.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)
@rule(aten.min.dim)
def min_dim(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return amin(self, dim, keepdim), argmin(self, dim, keepdim)


# aminmax(Tensor self, *, int? dim=None, bool keepdim=False) -> (Tensor min, Tensor max)
@rule(aten.aminmax.default)
def aminmax(self: Tensor, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return amin(self, dim, keepdim), amax(self, dim, keepdim)


# any.dim(Tensor self, int dim, bool keepdim=False) -> Tensor
@rule(aten.any.dim, aten.any.default)
def any_(self: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return _truth("any", self, dim, keepdim)


# any.dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor
@rule(aten.any.dims)
def any_dims(self: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return _truths("any", self, dim, keepdim)


# all.dim(Tensor self, int dim, bool keepdim=False) -> Tensor
@rule(aten.all.dim, aten.all.default)
def all_(self: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return _truth("all", self, dim, keepdim)


# all.dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor
@rule(aten.all.dims)
def all_dims(self: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return _truths("all", self, dim, keepdim)


def _truth(combiner: str, x: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    result = torch.uint8 if x.dtype is torch.uint8 else torch.bool
    if not isinstance(dim, int | None) and not dim:  # over no dimension
        return pointwise_of(x, lambda e: cast(cast(e, torch.bool), result), result)
    return over(combiner, x, dim, keepdim, lambda e: cast(e, torch.bool), x.dtype, dtype=result)


def _truths(combiner: str, x: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    """An empty list reduces nothing, unlike in other reductions."""
    if dim is None or isinstance(dim, int) or len(dim) > 0:
        return _truth(combiner, x, dim, keepdim)
    return pointwise_of(x, lambda e: cast(e, torch.bool), torch.uint8 if x.dtype is torch.uint8 else torch.bool)


# -- moments -----------------------------------------------------------------------------------------------------------
def moments(
    x: Tensor, dim: Dims, correction: float, compute: torch.dtype, adds_in: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Mean and variance in ``compute``, reduced dimensions kept; the deviations are summed in a second pass.

    Args:
        adds_in: The dtype in which the mean is found, if that is another one.
    """
    n = count_of(x, dim)
    average = over("sum", x, dim, True, compute=adds_in or compute, finish=lambda s: s / as_number(n, s.dtype))
    average = _rounded(average, compute)

    def deviation(index: Shape) -> Scalar:
        at = tuple(Index.of(0) if one == 1 else i for i, one in zip(index, average.shape, strict=True))
        d = cast(x.at(index), compute) - average.at(at)
        return d * d

    squares = Tensor(x.shape, compute, deviation)

    def divide(s: Scalar) -> Scalar:
        if not n.is_constant:
            left = as_number(n, s.dtype) - correction
            return s / op("maximum", left, constant(0, s.dtype))
        return s / constant(max(0.0, n.constant - correction), s.dtype)

    return average, over("sum", squares, dim, True, compute=compute, finish=divide)


def _unkept(x: Tensor, like: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    if keepdim:
        return x
    gone = _dims(like, dim)
    return reshaped(x, [s for d, s in enumerate(x.shape) if d not in gone])


# var.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor
@rule(aten.var.correction, prims.var.default)
def var(
    self: Tensor, dim: Dims = None, correction: float | None = None, keepdim: bool = False, **kwargs: Any
) -> Tensor:
    _, found = moments(self, dim, 1 if correction is None else correction, computed_in(self.dtype))
    return _rounded(_unkept(found, self, dim, keepdim), self.dtype)


# var_mean.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> (Tensor, Tensor)
@rule(aten.var_mean.correction)
def var_mean(
    self: Tensor, dim: Dims = None, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    return _spread_and_mean(self, dim, correction, keepdim, lambda v: v)


# std_mean.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> (Tensor, Tensor)
@rule(aten.std_mean.correction)
def std_mean(
    self: Tensor, dim: Dims = None, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    return _spread_and_mean(self, dim, correction, keepdim, lambda v: op("sqrt", v))


def _spread_and_mean(
    x: Tensor, dim: Dims, correction: float | None, keepdim: bool, of_variance: Formula
) -> tuple[Tensor, Tensor]:
    compute = computed_in(x.dtype)
    average, found = moments(x, dim, 1 if correction is None else correction, compute, _dtype_of_means(x))
    spread = pointwise_of(_unkept(found, x, dim, keepdim), of_variance, x.dtype)
    return spread, _rounded(_unkept(average, x, dim, keepdim), x.dtype)


def _dtype_of_means(x: Tensor) -> torch.dtype | None:
    """A mean of float32 that is returned beside a variance is found in float64 on a CPU, as torch does there."""
    b = builder()
    is_read = b.wanted is None or 1 in b.wanted
    on_cpu = b.promise is not None and b.promise[1].device.type == "cpu"
    return torch.float64 if x.dtype is torch.float32 and is_read and on_cpu else None


# std.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor
@rule(aten.std.correction)
def std(self: Tensor, dim: Dims = None, correction: float | None = None, keepdim: bool = False) -> Tensor:
    _, found = moments(self, dim, 1 if correction is None else correction, computed_in(self.dtype))
    return pointwise_of(_unkept(found, self, dim, keepdim), lambda v: op("sqrt", v), self.dtype)


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x if x.dtype is dtype else converted(x, dtype)


# -- norms of vectors, log-sum-exp -------------------------------------------------------------------------------------
# linalg_vector_norm(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None)
#     -> Tensor
@rule(aten.linalg_vector_norm.default)
def vector_norm(
    self: Tensor, ord: float = 2, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Tensor:
    result = dtype or self.dtype
    inner = computed_in(result)
    formulas: dict[float, tuple[str, Formula, Formula | None]] = {
        2.0: ("sum", lambda x: x * x, lambda s: op("sqrt", s)),
        1.0: ("sum", lambda x: op("absolute", x), None),
        0.0: ("sum", lambda x: cast(op("ne", x, constant(0, x.dtype)), x.dtype), None),
        float("inf"): ("maximum", lambda x: op("absolute", x), None),
        float("-inf"): ("minimum", lambda x: op("absolute", x), None),
    }
    if float(ord) not in formulas:
        power = float(ord)
        formulas[power] = (
            "sum",
            lambda x: op("pow", op("absolute", x), constant(power, x.dtype)),
            lambda s: op("pow", s, constant(1 / power, s.dtype)),
        )
    combiner, formula, finish = formulas[float(ord)]
    return over(combiner, _as(self, dtype), dim, keepdim, formula, inner, finish, result)


# logsumexp(Tensor self, int[1] dim, bool keepdim=False) -> Tensor
@rule(aten.logsumexp.default)
def logsumexp(self: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    if not self.dtype.is_floating_point:
        self = to_copy(self, torch.get_default_dtype())
    compute = computed_in(self.dtype)
    top = over("maximum", self, dim, True, compute=compute)
    safe = pointwise_of(top, lambda m: select(op("is_inf", m), constant(0, m.dtype), m), compute)
    shifted = pointwise(lambda x, m: op("exp", x - m), self, safe, dtype=compute, compute=compute)
    rounded = torch.float16 if self.dtype is torch.float16 else compute  # which overflows, as in eager
    total = over("sum", shifted, dim, True, compute=compute, dtype=rounded)
    found = pointwise(lambda s, m: op("log", s) + m, total, safe, dtype=self.dtype, compute=compute)
    return _unkept(found, self, dim, keepdim)


# -- softmax -----------------------------------------------------------------------------------------------------------
# _softmax(Tensor self, int dim, bool half_to_float) -> Tensor
@rule(aten._softmax.default)
def softmax(self: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    _leave_float64(self)
    return _softmax_of(self, dim, torch.float32 if half_to_float else self.dtype)


def _leave_float64(x: Tensor) -> None:
    """Softmax of integers is one of float64, which users compare to the bit: ATen's own order of additions."""
    if x.dtype is torch.float64:
        raise LeftToLibrary


def _softmax_of(self: Tensor, dim: int, result: torch.dtype) -> Tensor:
    compute = computed_in(result)
    top = over("maximum", self, dim, True, compute=compute)
    power = pointwise(lambda x, m: op("exp", x - m), self, top, dtype=compute, compute=compute)
    total = over("sum", power, dim, True, compute=compute)
    return pointwise(lambda e, s: e / s, power, total, dtype=result, compute=compute)


# _safe_softmax(Tensor self, int dim, ScalarType? dtype=None) -> Tensor
@rule(aten._safe_softmax.default)
def safe_softmax(self: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    x = self if dtype in (None, self.dtype) else to_copy(self, dtype)
    top = over("maximum", x, dim, True, compute=computed_in(x.dtype))
    return pointwise(
        lambda y, m: select(m.equals(float("-inf")), constant(0, y.dtype), y), _softmax_of(x, dim, x.dtype), top,
        dtype=x.dtype, compute=top.dtype,
    )  # fmt: skip


# _log_softmax(Tensor self, int dim, bool half_to_float) -> Tensor
@rule(aten._log_softmax.default)
def log_softmax(self: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    _leave_float64(self)
    result = torch.float32 if half_to_float else self.dtype
    compute = computed_in(result)
    top = over("maximum", self, dim, True, compute=compute)
    power = pointwise(lambda x, m: op("exp", x - m), self, top, dtype=compute, compute=compute)
    total = over("sum", power, dim, True, compute=compute, finish=lambda s: op("log", s))
    return pointwise(lambda x, m, s: x - m - s, self, top, total, dtype=result, compute=compute)


# _softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> Tensor
@rule(aten._softmax_backward_data.default)
def softmax_backward(grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    """``g y - y sum(g y)``, as torch's kernels for a GPU and its decomposition have it.

    In a row whose gradient is zero both products are rounded alike, unlike those of ``y (g - sum(g y))``: the sum of a
    million such rows is a tenth as far off.
    """
    compute = computed_in(grad_output.dtype)
    both = pointwise(lambda g, y: g * y, grad_output, output, dtype=compute, compute=compute)
    total = over("sum", both, dim, True, compute=compute)
    return pointwise(lambda b, y, s: b - y * s, both, output, total, dtype=input_dtype, compute=compute)


# _log_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> Tensor
@rule(aten._log_softmax_backward_data.default)
def log_softmax_backward(grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    compute = computed_in(grad_output.dtype)
    total = over("sum", grad_output, dim, True, compute=compute)
    return pointwise(
        lambda g, y, s: g - op("exp", y) * s, grad_output, output, total, dtype=input_dtype, compute=compute
    )

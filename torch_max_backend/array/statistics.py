"""Reductions and scans of the standard, and ``all``, ``any`` and ``diff``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_max_backend.array import dtypes
from torch_max_backend.array.array_object import Array
from torch_max_backend.array.carriers import carried
from torch_max_backend.array.declaration import function
from torch_max_backend.array.elementwise import subtract
from torch_max_backend.array.expression import Node, Op, op, record
from torch_max_backend.array.manipulation import concat
from torch_max_backend.array.operands import axes_in, axis_in, cast, node_of
from torch_max_backend.base.errors import ArrayValueError

SECTION, UTILITY = "statistical", "utility"

Axis = int | tuple[int, ...] | None


def _over(of_axes: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A reduction that leaves an array as it is where no axis is reduced."""

    def run(x: torch.Tensor, *, axes: tuple[int, ...], keepdims: bool, **others: Any) -> torch.Tensor:
        if not axes:
            x, axes, keepdims = x.unsqueeze(0), (0,), False
        return of_axes(x, axes, keepdims, **others)

    return run


def _prod_over(x: torch.Tensor, axes: tuple[int, ...], keepdims: bool) -> torch.Tensor:
    for axis in sorted(axes, reverse=True):
        x = torch.prod(x, axis, keepdim=keepdims, dtype=x.dtype)
    return x


_sum = Op("sum", carried(_over(lambda x, axes, keepdims: torch.sum(x, axes, keepdim=keepdims, dtype=x.dtype))))
_prod = Op("prod", carried(_over(_prod_over)))
_max = Op("max", carried(_over(lambda x, axes, keepdims: torch.amax(x, axes, keepdim=keepdims)), ordered=True))
_min = Op("min", carried(_over(lambda x, axes, keepdims: torch.amin(x, axes, keepdim=keepdims)), ordered=True))
_mean = Op("mean", _over(lambda x, axes, keepdims: torch.mean(x, axes, keepdim=keepdims)))
_all = Op("all", _over(lambda x, axes, keepdims: torch.all(x, axes, keepdim=keepdims)))
_any = Op("any", _over(lambda x, axes, keepdims: torch.any(x, axes, keepdim=keepdims)))


def _var_over(x: torch.Tensor, axes: tuple[int, ...], keepdims: bool, correction: float) -> torch.Tensor:
    return torch.var(x, axes, correction=correction, keepdim=keepdims)


def _std_over(x: torch.Tensor, axes: tuple[int, ...], keepdims: bool, correction: float) -> torch.Tensor:
    return torch.std(x, axes, correction=correction, keepdim=keepdims)


_var, _std = Op("var", _over(_var_over)), Op("std", _over(_std_over))


def _reduced(op: Op, node: Node, axis: Axis, keepdims: bool, **others: Any) -> Array:
    axes = axes_in(axis, len(node.shape))
    return Array(record(op, (node,), node.device, axes=axes, keepdims=bool(keepdims), **others))


def summed_dtype(dtype: torch.dtype) -> torch.dtype:
    """What sums and products of a data type are by default: the widest integer of its sort, or itself."""
    if dtype in dtypes.SIGNED:
        return dtypes.int64
    return dtypes.uint64 if dtype in dtypes.UNSIGNED else dtype


def _for_sum(function: str, x: Any, dtype: torch.dtype | None) -> Node:
    node = node_of(x)
    dtypes.check(function, node.dtype, "numeric")
    return cast(node, summed_dtype(node.dtype) if dtype is None else dtype)


@function(SECTION)
def sum(x: Any, /, *, axis: Axis = None, dtype: torch.dtype | None = None, keepdims: bool = False) -> Array:
    """Sums over axes, or over all elements."""
    return _reduced(_sum, _for_sum("sum", x, dtype), axis, keepdims)


@function(SECTION)
def prod(x: Any, /, *, axis: Axis = None, dtype: torch.dtype | None = None, keepdims: bool = False) -> Array:
    """Products over axes, or over all elements."""
    return _reduced(_prod, _for_sum("prod", x, dtype), axis, keepdims)


def _extreme(op: Op, x: Any, axis: Axis, keepdims: bool) -> Array:
    node = node_of(x)
    dtypes.check(op.name, node.dtype, "real numeric")
    if 0 in [node.shape[a] for a in axes_in(axis, len(node.shape))]:
        raise ArrayValueError(f"{op.name} over no elements: the shape is {node.shape}")
    return _reduced(op, node, axis, keepdims)


@function(SECTION)
def max(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Largest elements over axes, or of all.

    Raises:
        ArrayValueError: There is none.
    """
    return _extreme(_max, x, axis, keepdims)


@function(SECTION)
def min(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Smallest elements over axes, or of all.

    Raises:
        ArrayValueError: There is none.
    """
    return _extreme(_min, x, axis, keepdims)


def _of_floats(function: str, x: Any, kind: str) -> Node:
    node = node_of(x)
    dtypes.check(function, node.dtype, kind)
    return node


@function(SECTION)
def mean(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Means over axes, or of all elements."""
    return _reduced(_mean, _of_floats("mean", x, "floating"), axis, keepdims)


@function(SECTION)
def var(x: Any, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """Variances over axes, or of all elements; ``correction`` is taken from the count."""
    return _reduced(_var, _of_floats("var", x, "real floating"), axis, keepdims, correction=correction)


@function(SECTION)
def std(x: Any, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """Standard deviations over axes, or of all elements; ``correction`` is taken from the count."""
    return _reduced(_std, _of_floats("std", x, "real floating"), axis, keepdims, correction=correction)


@function(UTILITY)
def all(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Whether all elements are other than zero."""
    return _reduced(_all, _truth(x), axis, keepdims)


@function(UTILITY)
def any(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Whether an element is other than zero."""
    return _reduced(_any, _truth(x), axis, keepdims)


def _nonzero_of(x: torch.Tensor) -> torch.Tensor:
    return x != 0


_nonzero = op(_nonzero_of)


def _truth(x: Any) -> Node:
    node = node_of(x)
    return node if node.dtype is torch.bool else record(_nonzero, (node,), node.device)


_count = Op("count_nonzero", _over(lambda x, axes, keepdims: torch.sum(x, axes, keepdim=keepdims, dtype=torch.int64)))


@function("searching")
def count_nonzero(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """How many elements over axes, or of all, are other than zero."""
    return _reduced(_count, _truth(x), axis, keepdims)


_cumsum = Op("cumulative_sum", carried(lambda x, *, axis: torch.cumsum(x, axis, dtype=x.dtype)))
_cumprod = Op("cumulative_prod", carried(lambda x, *, axis: torch.cumprod(x, axis, dtype=x.dtype)))


def _scanned(op: Op, x: Any, axis: int | None, dtype: torch.dtype | None, initial: int | None) -> Array:
    from torch_max_backend.array.creation import full

    node = _for_sum(op.name, x, dtype)
    ndim = len(node.shape)
    if ndim == 0 or (axis is None and ndim > 1):
        raise ArrayValueError(f"{op.name} needs an axis, and the shape is {node.shape}")
    place = axis_in(0 if axis is None else axis, ndim)
    result = Array(record(op, (node,), node.device, axis=place))
    if initial is None:
        return result
    first = full((*node.shape[:place], 1, *node.shape[place + 1 :]), initial, dtype=node.dtype, device=node.device)
    return concat([first, result], axis=place)


@function(SECTION)
def cumulative_sum(
    x: Any, /, *, axis: int | None = None, dtype: torch.dtype | None = None, include_initial: bool = False
) -> Array:
    """Sums of the elements so far, along an axis; with the zero before the first, if asked for."""
    return _scanned(_cumsum, x, axis, dtype, 0 if include_initial else None)


@function(SECTION)
def cumulative_prod(
    x: Any, /, *, axis: int | None = None, dtype: torch.dtype | None = None, include_initial: bool = False
) -> Array:
    """Products of the elements so far, along an axis; with the one before the first, if asked for."""
    return _scanned(_cumprod, x, axis, dtype, 1 if include_initial else None)


@function(UTILITY)
def diff(x: Any, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None) -> Array:
    """Differences of neighbours along an axis, ``n`` times.

    Raises:
        ArrayValueError: ``n`` is negative, or there is no such axis.
    """
    place = axis_in(axis, len(node_of(x).shape))
    dtypes.check("diff", x.dtype, "numeric")
    if n < 0:
        raise ArrayValueError(f"diff {n} times")
    parts = [part for part in (prepend, x, append) if part is not None]
    result = concat(parts, axis=place) if len(parts) > 1 else x
    before = (slice(None),) * place
    for _ in range(n):
        result = subtract(result[(*before, slice(1, None))], result[(*before, slice(None, -1))])
    return result

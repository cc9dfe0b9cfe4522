"""Arguments of functions as nodes of one data type and device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from torch_max_backend.array import dtypes
from torch_max_backend.array.array_object import Array
from torch_max_backend.array.expression import Node, leaf, op, record, view_op
from torch_max_backend.base.errors import ArrayTypeError, ArrayValueError

Scalar = bool | int | float | complex


def _constant_of(*, value: Scalar, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.full((), value, dtype=dtype, device=device)


_constant = view_op(_constant_of)


def _astype_of(x: torch.Tensor, *, dtype: torch.dtype) -> torch.Tensor:
    if x.is_complex() and not dtype.is_complex:
        x = torch.view_as_real(x)[..., 0]
    return x.to(dtype)


_astype = op(_astype_of)


def node_of(x: object) -> Node:
    """The node of an array.

    Raises:
        ArrayTypeError: It is no array of this library.
    """
    if not isinstance(x, Array):
        raise ArrayTypeError(f"expected an array of torch_max_backend.array, got {type(x).__name__}: use asarray")
    return x._node


def cast(x: Node, dtype: torch.dtype) -> Node:
    """A node of another data type, or itself."""
    return x if x.dtype == dtype else record(_astype, (x,), x.device, dtype=dtype)


def scalar(value: Scalar, dtype: torch.dtype, device: torch.device) -> Node:
    """A Python number as a node.

    Small whole numbers and halves are part of the form of an expression, since programs are better for knowing them.
    Others are inputs, so that another number is the same form.
    """
    if isinstance(value, bool) or (not isinstance(value, complex) and _is_simple(value)):
        return record(_constant, (), device, value=value, dtype=dtype, device=device)
    if isinstance(value, int) and dtype.is_floating_point:
        value = float(value)
    return leaf(torch.tensor(value, dtype=dtype, device=device))


def _is_simple(value: float) -> bool:
    """Whether a number is a small whole number or a half, and not minus zero, which is equal to zero."""
    return abs(value) <= 16 and 2 * value == int(2 * value) and not (value == 0 and math.copysign(1.0, value) < 0)


def together(function: str, values: Sequence[Any], kind: str = "all") -> tuple[list[Node], torch.dtype]:
    """Arrays and Python numbers as nodes of the data type that they promote to, and that data type.

    Raises:
        ArrayTypeError: No array is among them, or their data types don't go together, or aren't of the kind.
        OverflowError: An integer doesn't fit the data type of the arrays.
    """
    arrays = [x for x in values if isinstance(x, Array)]
    if not arrays:
        raise ArrayTypeError(f"{function} needs an array among its arguments")
    dtype = arrays[0]._node.dtype
    for x in arrays[1:]:
        dtype = dtypes.promote(dtype, x._node.dtype)
    for x in values:
        if not isinstance(x, Array):
            dtype = dtypes.with_scalar(dtype, x)
    dtypes.check(function, dtype, kind)
    device = arrays[0]._node.device
    return [cast(x._node, dtype) if isinstance(x, Array) else scalar(x, dtype, device) for x in values], dtype


def axis_in(axis: int, ndim: int) -> int:
    """An axis counted from the front.

    Raises:
        ArrayValueError: There is no such axis.
    """
    if isinstance(axis, bool) or not hasattr(axis, "__index__"):
        raise ArrayTypeError(f"an axis is an integer, got {type(axis).__name__}")
    found = axis.__index__()
    if not -ndim <= found < ndim:
        raise ArrayValueError(f"axis {found} of an array of {ndim} dimensions")
    return found % ndim


def axes_in(axis: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Axes counted from the front; all of them for ``None``.

    Raises:
        ArrayValueError: There is no such axis, or one is named twice.
    """
    if axis is None:
        return tuple(range(ndim))
    axes = tuple(axis_in(a, ndim) for a in (axis if isinstance(axis, list | tuple) else (axis,)))
    if len(set(axes)) != len(axes):
        raise ArrayValueError(f"an axis is named twice in {axis}")
    return axes


def broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape that shapes are broadcast to.

    Raises:
        ArrayValueError: There is none.
    """
    ndim = max(map(len, shapes), default=0)
    result = [1] * ndim
    for shape in shapes:
        for k, n in enumerate(shape, ndim - len(shape)):
            if n != 1:
                if result[k] not in (1, n):
                    raise ArrayValueError(f"shapes {' and '.join(map(str, map(tuple, shapes)))} don't broadcast")
                result[k] = n
    return tuple(result)

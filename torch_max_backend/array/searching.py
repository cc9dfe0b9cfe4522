"""Searching, sorting and sets. What has a shape that depends on values is computed at once, by torch."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import torch

from torch_max_backend.array import dtypes
from torch_max_backend.array.array_object import Array
from torch_max_backend.array.carriers import carried
from torch_max_backend.array.declaration import AT_ONCE, function
from torch_max_backend.array.expression import Op, leaf, record
from torch_max_backend.array.manipulation import reshape
from torch_max_backend.array.operands import axis_in, cast, node_of, together
from torch_max_backend.base.errors import ArrayValueError

SEARCHING, SORTING, SETS = "searching", "sorting", "sets"


def _argmax_of(x: torch.Tensor, *, axis: int, keepdims: bool) -> torch.Tensor:
    return torch.argmax(x, axis, keepdim=keepdims)


def _argmin_of(x: torch.Tensor, *, axis: int, keepdims: bool) -> torch.Tensor:
    return torch.argmin(x, axis, keepdim=keepdims)


_argmax = Op("argmax", carried(_argmax_of, ordered=True, back=False))
_argmin = Op("argmin", carried(_argmin_of, ordered=True, back=False))


def _position(op: Op, x: Any, axis: int | None, keepdims: bool) -> Array:
    node = node_of(x)
    dtypes.check(op.name, node.dtype, "real numeric")
    if axis is None:
        flat = reshape(x, (x.size,))._node
        if not x.size:
            raise ArrayValueError(f"{op.name} of no elements")
        result = Array(record(op, (flat,), node.device, axis=0, keepdims=False))
        return reshape(result, (1,) * x.ndim) if keepdims else result
    place = axis_in(axis, len(node.shape))
    if node.shape[place] == 0:
        raise ArrayValueError(f"{op.name} over no elements: the shape is {node.shape}")
    return Array(record(op, (node,), node.device, axis=place, keepdims=bool(keepdims)))


@function(SEARCHING)
def argmax(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """Where the largest elements are, the first ones of equal ones.

    Raises:
        ArrayValueError: There are none.
    """
    return _position(_argmax, x, axis, keepdims)


@function(SEARCHING)
def argmin(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """Where the smallest elements are, the first ones of equal ones.

    Raises:
        ArrayValueError: There are none.
    """
    return _position(_argmin, x, axis, keepdims)


@function(SEARCHING, AT_ONCE)
def nonzero(x: Any, /) -> tuple[Array, ...]:
    """Indices of the elements other than zero, an array for each dimension.

    Raises:
        ArrayValueError: There are no dimensions.
    """
    if not node_of(x).shape:
        raise ArrayValueError("nonzero of an array of no dimensions")
    return tuple(Array(leaf(found)) for found in torch.nonzero(x.to_torch() != 0, as_tuple=True))


def _found_of(a: torch.Tensor, b: torch.Tensor, *, right: bool) -> torch.Tensor:
    return torch.searchsorted(a.contiguous(), b.contiguous(), right=right)


_searchsorted = Op("searchsorted", carried(_found_of, ordered=True, back=False))


@function(SEARCHING)
def searchsorted(x1: Any, x2: Any, /, *, side: str = "left", sorter: Any = None) -> Array:
    """Where elements of ``x2`` would be put into the sorted ``x1``.

    Raises:
        ArrayValueError: ``x1`` is no vector, or the side is neither "left" nor "right".
    """
    if side not in ("left", "right"):
        raise ArrayValueError(f"side {side!r}: use 'left' or 'right'")
    if len(node_of(x1).shape) != 1:
        raise ArrayValueError(f"searchsorted takes a vector, and got the shape {x1.shape}")
    if sorter is not None:
        from torch_max_backend.array.indexing import take

        x1 = take(x1, sorter)
    nodes, _ = together("searchsorted", (x1, x2), "real numeric")
    return Array(record(_searchsorted, nodes, nodes[0].device, right=side == "right"))


_where = Op("where", lambda condition, a, b: torch.where(condition, a, b))


@function(SEARCHING)
def where(condition: Any, x1: Any, x2: Any, /) -> Array:
    """Elements of ``x1`` where the condition holds, of ``x2`` elsewhere."""
    choice = node_of(condition)
    dtypes.check("where", choice.dtype, "bool")
    if isinstance(x1, Array) or isinstance(x2, Array):
        nodes, _ = together("where", (x1, x2))
    else:
        from torch_max_backend.array.creation import asarray
        from torch_max_backend.array.manipulation import result_type

        dtype = result_type(dtypes.of_scalar(x1), x2) if not isinstance(x1, bool) else dtypes.bool
        nodes = [asarray(x, dtype=dtype, device=choice.device)._node for x in (x1, x2)]
    return Array(record(_where, (choice, *nodes), choice.device))


def _sorted_of(x: torch.Tensor, *, axis: int, descending: bool, stable: bool) -> torch.Tensor:
    return torch.sort(x, dim=axis, descending=descending, stable=stable).values


def _order_of(x: torch.Tensor, *, axis: int, descending: bool, stable: bool) -> torch.Tensor:
    return torch.sort(x, dim=axis, descending=descending, stable=stable).indices


_sort = Op("sort", carried(_sorted_of, ordered=True))
_argsort = Op("argsort", carried(_order_of, ordered=True, back=False))


def _ordered(op: Op, x: Any, axis: int, descending: bool, stable: bool) -> Array:
    node = node_of(x)
    dtypes.check(op.name, node.dtype, "real numeric")
    place = axis_in(axis, len(node.shape))
    return Array(record(op, (node,), node.device, axis=place, descending=descending, stable=stable))


@function(SORTING)
def sort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """Elements in order along an axis."""
    return _ordered(_sort, x, axis, descending, stable)


@function(SORTING)
def argsort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """Indices that put elements in order along an axis."""
    return _ordered(_argsort, x, axis, descending, stable)


UniqueAll = namedtuple("UniqueAll", ["values", "indices", "inverse_indices", "counts"])
"""What ``unique_all`` returns."""


UniqueCounts = namedtuple("UniqueCounts", ["values", "counts"])
"""What ``unique_counts`` returns."""


UniqueInverse = namedtuple("UniqueInverse", ["values", "inverse_indices"])
"""What ``unique_inverse`` returns."""


def _unique(x: Any) -> UniqueAll:
    node = cast(node_of(x), node_of(x).dtype)
    value = x.to_torch()
    flat = value.reshape(-1)
    if node.dtype.is_complex:
        values, inverse, counts = _unique_complex(flat)
    else:
        values, inverse, counts = torch.unique(flat, sorted=True, return_inverse=True, return_counts=True)
    first = torch.full(values.shape, flat.numel(), dtype=torch.int64, device=flat.device)
    places = torch.arange(flat.numel(), device=flat.device)
    first = first.scatter_reduce(0, inverse, places, "amin")
    if not node.dtype.is_complex:  # of equal elements, as zeros of both signs are, the first one
        values = flat[first]
    found = (values, first, inverse.reshape(value.shape), counts)
    return UniqueAll(*(Array(leaf(t)) for t in found))


def _unique_complex(flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    pairs, inverse, counts = torch.unique(
        torch.view_as_real(flat), dim=0, sorted=True, return_inverse=True, return_counts=True
    )
    return torch.view_as_complex(pairs.contiguous()), inverse, counts


@function(SETS, AT_ONCE)
def unique_all(x: Any, /) -> UniqueAll:
    """Different elements in order, where each is first, which of them each element is, and how often each is there."""
    return _unique(x)


@function(SETS, AT_ONCE)
def unique_counts(x: Any, /) -> UniqueCounts:
    """Different elements in order, and how often each is there."""
    found = _unique(x)
    return UniqueCounts(found.values, found.counts)


@function(SETS, AT_ONCE)
def unique_inverse(x: Any, /) -> UniqueInverse:
    """Different elements in order, and which of them each element is."""
    found = _unique(x)
    return UniqueInverse(found.values, found.inverse_indices)


@function(SETS, AT_ONCE)
def unique_values(x: Any, /) -> Array:
    """Different elements in order."""
    return _unique(x).values

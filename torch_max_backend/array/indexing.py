"""Elements by index: ``x[key]``, ``x[key] = value``, ``take`` and ``take_along_axis``.

A key of integers, slices, ``...`` and ``None`` is recorded, with its bounds as sizes, so that other bounds are the same
form. Integer arrays are recorded as well; a boolean array is looked at, since the shape depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from torch_max_backend.array import dtypes
from torch_max_backend.array.array_object import Array
from torch_max_backend.array.carriers import moved
from torch_max_backend.array.declaration import function
from torch_max_backend.array.expression import Node, leaf, op, record, view_op
from torch_max_backend.array.operands import axis_in, broadcast, cast, node_of, scalar
from torch_max_backend.base.errors import ArrayIndexError, ArrayTypeError, ArrayValueError

SECTION = "indexing"

Kinds = tuple[tuple[str, int], ...]


@dataclass
class _Basic:
    """A key of integers, slices and new dimensions: what happens to each dimension, and the numbers for it."""

    kinds: list[tuple[str, int]]
    sizes: list[int]


def _expanded(key: Any, ndim: int) -> list[Any]:
    """The parts of a key, with slices in place of ``...`` and of what is missing.

    Raises:
        ArrayIndexError: There are more indices than dimensions, or two ``...``.
    """
    parts = list(key) if isinstance(key, tuple) else [key]
    taken = 0
    dots = 0
    for part in parts:
        dots += part is Ellipsis
        taken += part is not Ellipsis and part is not None
    if dots > 1:
        raise ArrayIndexError("an index has one ... at most")
    if taken > ndim:
        raise ArrayIndexError(f"{taken} indices for {ndim} dimensions")
    if not dots:
        parts.append(Ellipsis)
    at = next(k for k, part in enumerate(parts) if part is Ellipsis)
    return [*parts[:at], *[slice(None)] * (ndim - taken), *parts[at + 1 :]]


def _integer(part: Any, n: int) -> int:
    if isinstance(part, bool) or not hasattr(part, "__index__"):
        raise ArrayIndexError(f"an index is an integer, a slice, ..., None or an array, got {type(part).__name__}")
    index = part.__index__()
    if not -n <= index < n:
        raise ArrayIndexError(f"index {index} in a dimension of size {n}")
    return index + n if index < 0 else index


def _basic(parts: list[Any], shape: tuple[int, ...]) -> _Basic:
    found = _Basic([], [])
    dim = 0
    for part in parts:
        if part is None:
            found.kinds.append(("new", 0))
            continue
        n = shape[dim]
        dim += 1
        if not isinstance(part, slice):
            found.kinds.append(("at", 0))
            found.sizes.append(_integer(part, n))
            continue
        start, stop, step = part.indices(n)
        count = len(range(start, stop, step))
        if (start, count, step) == (0, n, 1):
            found.kinds.append(("all", 0))
            continue
        last = start + (count - 1) * step
        low, high = (0, 0) if count == 0 else (min(start, last), max(start, last) + 1)
        found.kinds.append(("slice", step))
        found.sizes += [low, high]
    return found


def _walk(x: torch.Tensor, sizes: tuple[Any, ...], kinds: Kinds) -> list[tuple[torch.Tensor, tuple[Any, ...]]]:
    """The views that a key takes one after another, each with how it was taken from the one before."""
    views: list[tuple[torch.Tensor, tuple[Any, ...]]] = [(x, ())]
    dim, given = 0, iter(sizes)
    for kind, step in kinds:
        if kind == "new":
            x = x.unsqueeze(dim)
            views.append((x, ("new", dim)))
        elif kind == "at":
            index = next(given)
            x = x.select(dim, index)
            views.append((x, ("at", dim, index)))
            dim -= 1
        elif kind == "slice":
            low, high = next(given), next(given)
            x = torch.ops.aten.slice.Tensor(x, dim, low, high, abs(step))
            views.append((x, ("slice", dim, low, high, abs(step))))
            if step < 0:
                x = x.flip(dim)
                views.append((x, ("flip", dim)))
        dim += 1
    return views


def _view_of(x: torch.Tensor, *, sizes: tuple[Any, ...], kinds: Kinds) -> torch.Tensor:
    return _walk(x, sizes, kinds)[-1][0]


_view = view_op(_view_of)


def _written(x: torch.Tensor, value: torch.Tensor, *, sizes: tuple[Any, ...], kinds: Kinds) -> torch.Tensor:
    """``x`` with a value where the key points to: the value is put into each view in turn, from the last one."""
    views = _walk(x, sizes, kinds)
    result = value.expand(views[-1][0].shape)
    for (base, _), (_, how) in zip(views[-2::-1], views[:0:-1], strict=True):
        if how[0] == "new":
            result = result.squeeze(how[1])
        elif how[0] == "flip":
            result = result.flip(how[1])
        elif how[0] == "at":
            result = torch.select_scatter(base, result, how[1], how[2])
        else:
            result = torch.slice_scatter(base, result, how[1], how[2], how[3], how[4])
    return result.clone() if len(views) == 1 else result


_write = op(moved(_written))


def _indexed(x: torch.Tensor, *indices: torch.Tensor, places: tuple[bool, ...]) -> torch.Tensor:
    given = iter(indices)
    return torch.ops.aten.index.Tensor(x, [next(given) if here else None for here in places])


_gather = op(moved(_indexed))


def _put(x: torch.Tensor, value: torch.Tensor, *indices: torch.Tensor, places: tuple[bool, ...]) -> torch.Tensor:
    given = iter(indices)
    return torch.ops.aten.index_put.default(x, [next(given) if here else None for here in places], value)


_scatter = op(moved(_put))


def _select_of(mask: torch.Tensor, value: torch.Tensor, x: torch.Tensor, *, ndim: int) -> torch.Tensor:
    return torch.where(mask.reshape(list(mask.shape) + [1] * (ndim - mask.dim())), value, x)


_select = op(_select_of)


def _indices(parts: list[Any], shape: tuple[int, ...]) -> tuple[list[Node], tuple[bool, ...]]:
    """Integer arrays of a key, and which dimensions have one; an integer beside them is an array too.

    Raises:
        ArrayIndexError: An array is not of integers, or there are slices or new dimensions of other sorts beside it.
    """
    arrays = [p for p in parts if isinstance(p, Array)]
    nodes: list[Node] = []
    places: list[bool] = []
    for part, n in zip(parts, shape, strict=True):
        if isinstance(part, slice):
            if part != slice(None):
                raise ArrayIndexError("a slice beside an integer array has no bounds: index twice")
            places.append(False)
            continue
        places.append(True)
        if isinstance(part, Array):
            if part.dtype not in dtypes.KINDS["integral"]:
                raise ArrayIndexError(f"an index array is of integers, got {dtypes.name(part.dtype)}")
            nodes.append(cast(part._node, torch.int64))
        else:
            nodes.append(scalar(_integer(part, n), torch.int64, arrays[0].device))
    broadcast(*[x.shape for x in nodes])
    return nodes, tuple(places)


def _is_mask(part: Any) -> bool:
    return isinstance(part, Array) and part.dtype is torch.bool


def _mask_of(key: Any) -> Array | None:
    """The boolean array of a key that is one.

    Raises:
        ArrayIndexError: It is one of several indices.
    """
    if isinstance(key, tuple) and len(key) == 1:
        key = key[0]
    if _is_mask(key):
        return key
    if isinstance(key, tuple) and any(map(_is_mask, key)):
        raise ArrayIndexError("a boolean array is the only index of its key")
    return None


def _has_arrays(key: Any) -> bool:
    return (isinstance(key, Array) and key.ndim > 0) or (
        isinstance(key, tuple) and any(isinstance(p, Array) and p.ndim > 0 for p in key)
    )


def _parts_with_arrays(key: Any, ndim: int) -> list[Any]:
    parts = _expanded(key, ndim)
    if any(p is None for p in parts):
        raise ArrayIndexError("None beside an integer array: use expand_dims")
    return parts


def get(x: Array, key: Any) -> Array:
    """``x[key]``.

    Raises:
        ArrayIndexError: The key doesn't fit the shape.
    """
    node = x._node
    mask = _mask_of(key)
    if mask is not None:
        if mask.shape != x.shape[: mask.ndim]:
            raise ArrayIndexError(f"a boolean index of shape {mask.shape} for the shape {x.shape}")
        return Array(leaf(x.to_torch()[mask.to_torch()]))
    if _has_arrays(key):
        nodes, places = _indices(_parts_with_arrays(key, x.ndim), x.shape)
        return Array(record(_gather, (node, *nodes), node.device, places=places))
    basic = _basic(_expanded(key, x.ndim), x.shape)
    return Array(record(_view, (node,), node.device, sizes=tuple(basic.sizes), kinds=tuple(basic.kinds)))


def updated(x: Array, key: Any, value: Any) -> Node:
    """The node of ``x`` after ``x[key] = value``.

    Raises:
        ArrayIndexError: The key doesn't fit the shape.
        ArrayTypeError: The value's data type is of another kind, or wider.
        ArrayValueError: The value's shape isn't broadcast to that of ``x[key]``.
    """
    node = x._node
    new = _value_for(x, value)
    mask = _mask_of(key)
    if mask is not None:
        if mask.shape != x.shape[: mask.ndim]:
            raise ArrayIndexError(f"a boolean index of shape {mask.shape} for the shape {x.shape}")
        if not new.shape:
            return record(_select, (mask._node, new, node), node.device, ndim=x.ndim)
        return leaf(_put_masked(x.to_torch(), mask.to_torch(), Array(new).to_torch()))
    if _has_arrays(key):
        nodes, places = _indices(_parts_with_arrays(key, x.ndim), x.shape)
        return record(_scatter, (node, new, *nodes), node.device, places=places)
    basic = _basic(_expanded(key, x.ndim), x.shape)
    sizes, kinds = tuple(basic.sizes), tuple(basic.kinds)
    target = record(_view, (node,), node.device, sizes=sizes, kinds=kinds).shape
    if broadcast(new.shape, target) != target:
        raise ArrayValueError(f"a value of shape {new.shape} isn't broadcast to {target}")
    return record(_write, (node, new), node.device, sizes=sizes, kinds=kinds)


def _value_for(x: Array, value: Any) -> Node:
    if isinstance(value, Array):
        if dtypes.promote(x.dtype, value.dtype) != x.dtype:
            raise ArrayTypeError(f"{dtypes.name(value.dtype)} doesn't go into an array of {dtypes.name(x.dtype)}")
        return cast(value._node, x.dtype)
    if dtypes.with_scalar(x.dtype, value) != x.dtype:
        raise ArrayTypeError(f"{type(value).__name__} doesn't go into an array of {dtypes.name(x.dtype)}")
    return scalar(value, x.dtype, x.device)


def _put_masked(x: torch.Tensor, mask: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return moved(lambda x, value: torch.index_put(x, (mask,), value))(x, value)


def _not_negative(indices: torch.Tensor, n: Any) -> torch.Tensor:
    return torch.where(indices < 0, indices + n, indices)


def _taken(x: torch.Tensor, indices: torch.Tensor, *, axis: int) -> torch.Tensor:
    return torch.ops.aten.index.Tensor(x, [None] * axis + [indices])


_take = op(moved(_taken))


def _taken_along(x: torch.Tensor, indices: torch.Tensor, *, sizes: tuple[Any, ...], axis: int) -> torch.Tensor:
    others = list(sizes)
    others[axis] = x.shape[axis]
    mine = list(sizes)
    mine[axis] = indices.shape[axis]
    return torch.gather(x.expand(others), axis, _not_negative(indices, x.shape[axis]).expand(mine))


_take_along = op(moved(_taken_along))


def _index_array(indices: Any) -> Node:
    node = node_of(indices)
    dtypes.check("an index array", node.dtype, "integral")
    return cast(node, torch.int64)


@function(SECTION)
def take(x: Any, indices: Any, /, *, axis: int | None = None) -> Array:
    """Elements along an axis, which may be left out for one dimension.

    Raises:
        ArrayValueError: There is no such axis, or the indices are no vector.
    """
    node, index = node_of(x), _index_array(indices)
    if axis is None and len(node.shape) != 1:
        raise ArrayValueError(f"take needs an axis for {len(node.shape)} dimensions")
    if len(index.shape) != 1:
        raise ArrayValueError(f"take needs a vector of indices, and got the shape {index.shape}")
    place = axis_in(0 if axis is None else axis, len(node.shape))
    return Array(record(_take, (node, index), node.device, axis=place))


@function(SECTION)
def take_along_axis(x: Any, indices: Any, /, *, axis: int = -1) -> Array:
    """Elements along an axis, by indices of the same number of dimensions.

    Raises:
        ArrayValueError: There is no such axis, or the shapes don't broadcast.
    """
    node, index = node_of(x), _index_array(indices)
    if len(index.shape) != len(node.shape):
        raise ArrayValueError(f"indices of {len(index.shape)} dimensions for an array of {len(node.shape)}")
    place = axis_in(axis, len(node.shape))
    mine, others = list(node.shape), list(index.shape)
    mine[place] = others[place] = 1
    sizes = broadcast(mine, others)
    return Array(record(_take_along, (node, index), node.device, sizes=sizes, axis=place))

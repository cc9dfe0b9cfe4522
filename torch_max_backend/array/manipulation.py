"""Functions that change shapes, data types, or where elements are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_max_backend.array import dtypes
from torch_max_backend.array.array_object import Array
from torch_max_backend.array.carriers import moved
from torch_max_backend.array.creation import as_device
from torch_max_backend.array.declaration import INFORMATION, function
from torch_max_backend.array.expression import leaf, op, record, view_op
from torch_max_backend.array.operands import axes_in, axis_in, broadcast, cast, node_of, together
from torch_max_backend.base.errors import ArrayIndexError, ArrayTypeError, ArrayValueError

SECTION, DATA_TYPES = "manipulation", "data types"


# -- data types ----------------------------------------------------------------------------------------------------
@function(DATA_TYPES)
def astype(x: Any, dtype: torch.dtype, /, *, copy: bool = True, device: Any = None) -> Array:
    """An array in another data type.

    Raises:
        ArrayTypeError: Complex numbers into real ones.
    """
    node = node_of(x)
    if node.dtype.is_complex and not dtype.is_complex and dtype is not dtypes.bool:
        raise ArrayTypeError(f"{dtypes.name(node.dtype)} to {dtypes.name(dtype)}: take real or imag")
    if node.dtype.is_complex and dtype is dtypes.bool:
        return astype(x != 0, dtype)
    moved_to = x if device is None else x.to_device(as_device(device))
    if node.dtype == dtype and not copy:
        return moved_to
    if node.dtype == dtype:
        return Array(record(_copy, (moved_to._node,), moved_to.device))
    return Array(cast(moved_to._node, dtype))


_copy = op(torch.clone)


@function(DATA_TYPES, INFORMATION)
def can_cast(from_: Any, to: torch.dtype, /) -> bool:
    """Whether a data type becomes another one by promotion."""
    dtype = from_.dtype if isinstance(from_, Array) else from_
    try:
        return dtypes.promote(dtype, to) == to
    except ArrayTypeError:
        return False


@function(DATA_TYPES, INFORMATION)
def finfo(type: Any, /) -> dtypes.FloatInfo:
    """What floating-point numbers of a data type can be."""
    return dtypes.float_info(type.dtype if isinstance(type, Array) else type)


@function(DATA_TYPES, INFORMATION)
def iinfo(type: Any, /) -> dtypes.IntInfo:
    """What integers of a data type can be."""
    return dtypes.int_info(type.dtype if isinstance(type, Array) else type)


@function(DATA_TYPES, INFORMATION)
def isdtype(dtype: torch.dtype, kind: Any) -> bool:
    """Whether a data type is of a kind: a name of the standard, a data type, or a tuple of these.

    Raises:
        ArrayValueError: The name is unknown.
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    if isinstance(kind, str):
        if kind not in dtypes.KINDS:
            raise ArrayValueError(f"unknown kind {kind!r}: use one of {', '.join(dtypes.KINDS)}")
        return dtype in dtypes.KINDS[kind]
    if not isinstance(kind, torch.dtype):
        raise ArrayTypeError(f"a kind is a name or a data type, got {type(kind).__name__}")
    return dtype == kind


@function(DATA_TYPES, INFORMATION)
def result_type(*arrays_and_dtypes: Any) -> torch.dtype:
    """The data type that arrays, data types and Python numbers promote to.

    Raises:
        ArrayTypeError: They don't, or no array or data type is among them.
    """
    scalars = [x for x in arrays_and_dtypes if not isinstance(x, Array | torch.dtype)]
    found = [x.dtype if isinstance(x, Array) else x for x in arrays_and_dtypes if isinstance(x, Array | torch.dtype)]
    if not found:
        raise ArrayTypeError("result_type needs an array or a data type")
    dtype = found[0]
    for other in found[1:]:
        dtype = dtypes.promote(dtype, other)
    for x in scalars:
        dtype = dtypes.with_scalar(dtype, x)
    return dtype


# -- broadcasting ------------------------------------------------------------------------------------------------
def _expand_of(x: torch.Tensor, *, sizes: tuple[Any, ...]) -> torch.Tensor:
    return x.expand(sizes)


_expand = view_op(_expand_of)


@function(SECTION)
def broadcast_to(x: Any, /, shape: Sequence[int]) -> Array:
    """An array in a shape that it is broadcast to.

    Raises:
        ArrayValueError: It isn't.
    """
    node, sizes = node_of(x), tuple(shape)
    if broadcast(node.shape, sizes) != sizes:
        raise ArrayValueError(f"the shape {node.shape} isn't broadcast to {sizes}")
    return Array(record(_expand, (node,), node.device, sizes=sizes))


@function(SECTION)
def broadcast_arrays(*arrays: Any) -> list[Array]:
    """Arrays in their common shape."""
    nodes = [node_of(x) for x in arrays]
    sizes = broadcast(*[x.shape for x in nodes])
    return [Array(record(_expand, (x,), x.device, sizes=sizes)) for x in nodes]


# -- shapes ------------------------------------------------------------------------------------------------------
def _reshape_of(x: torch.Tensor, *, sizes: tuple[Any, ...]) -> torch.Tensor:
    return x.reshape(sizes)


_reshape = view_op(_reshape_of)


@function(SECTION)
def reshape(x: Any, /, shape: Sequence[int], *, copy: bool | None = None) -> Array:
    """The same elements in another shape, of which one size may be -1.

    Raises:
        ArrayValueError: The number of elements is another, or ``copy=False`` where memory has to be copied.
    """
    node = node_of(x)
    sizes = (shape,) if isinstance(shape, int) else tuple(n.__index__() for n in shape)
    known, count = 1, 1
    for n in sizes:
        known *= n if n >= 0 else 1
    for n in node.shape:
        count *= n
    free = [k for k, n in enumerate(sizes) if n < 0]
    if len(free) > 1 or any(n < -1 for n in sizes) or (free and (not known or count % known)):
        raise ArrayValueError(f"reshape of {node.shape} to {sizes}")
    full = tuple(count // known if n < 0 else n for n in sizes)
    if not free and known != count:
        raise ArrayValueError(f"reshape of {node.shape} to {sizes}")
    if copy is False and node.value is not None:
        try:
            node.value.view(full)
        except RuntimeError as error:
            raise ArrayValueError(f"reshape of {node.shape} to {full} needs a copy") from error
    as_given = _free_size(node.shape, full)
    result = Array(record(_reshape, (node,), node.device, sizes=as_given))
    return Array(record(_copy, (result._node,), node.device)) if copy else result


def _free_size(old: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...]:
    """A shape with -1 for a size that the old shape doesn't have, so that it follows from the others."""
    if 0 in new:
        return new
    odd = [k for k, n in enumerate(new) if n > 1 and n not in old]
    return tuple(-1 if odd and k == odd[0] else n for k, n in enumerate(new))


def _permute_of(x: torch.Tensor, *, axes: tuple[int, ...]) -> torch.Tensor:
    return x.permute(axes)


_permute = view_op(_permute_of)


@function(SECTION)
def permute_dims(x: Any, /, axes: Sequence[int]) -> Array:
    """Dimensions in another order.

    Raises:
        ArrayValueError: ``axes`` is no order of all of them.
    """
    node = node_of(x)
    found = axes_in(tuple(axes), len(node.shape))
    if len(found) != len(node.shape):
        raise ArrayValueError(f"permute_dims of {len(node.shape)} dimensions by {tuple(axes)}")
    return Array(record(_permute, (node,), node.device, axes=found))


@function(SECTION)
def moveaxis(x: Any, source: Any, destination: Any, /) -> Array:
    """Dimensions at other places, the rest in their order.

    Raises:
        ArrayValueError: There are not as many places as dimensions.
    """
    ndim = node_of(x).shape
    sources, places = axes_in(source, len(ndim)), axes_in(destination, len(ndim))
    if len(sources) != len(places):
        raise ArrayValueError(f"moveaxis of {source} to {destination}")
    order = [d for d in range(len(ndim)) if d not in sources]
    for place, d in sorted(zip(places, sources, strict=True)):
        order.insert(place, d)
    return permute_dims(x, tuple(order))


@function("linear algebra")
def matrix_transpose(x: Any, /) -> Array:
    """The transpose of matrices.

    Raises:
        ArrayValueError: There are fewer than two dimensions.
    """
    node = node_of(x)
    if len(node.shape) < 2:
        raise ArrayValueError(f"a matrix has two dimensions at least, and the shape is {node.shape}")
    last = len(node.shape) - 1
    return Array(record(_permute, (node,), node.device, axes=(*range(last - 1), last, last - 1)))


def _unsqueeze_of(x: torch.Tensor, *, axes: tuple[int, ...]) -> torch.Tensor:
    for axis in axes:
        x = x.unsqueeze(axis)
    return x


_unsqueeze = view_op(_unsqueeze_of)


@function(SECTION)
def expand_dims(x: Any, /, *, axis: int = 0) -> Array:
    """One more dimension of size 1.

    Raises:
        IndexError: There is no such place.
    """
    node = node_of(x)
    ndim = len(node.shape) + 1
    if not -ndim <= axis < ndim:
        raise ArrayIndexError(f"axis {axis} of an array of {ndim} dimensions")
    return Array(record(_unsqueeze, (node,), node.device, axes=(axis % ndim,)))


def _squeeze_of(x: torch.Tensor, *, axes: tuple[int, ...]) -> torch.Tensor:
    return x.squeeze(axes)


_squeeze = view_op(_squeeze_of)


@function(SECTION)
def squeeze(x: Any, /, axis: Any) -> Array:
    """Without dimensions of size 1.

    Raises:
        ArrayValueError: One is of another size.
    """
    node = node_of(x)
    axes = axes_in(axis, len(node.shape))
    if any(node.shape[a] != 1 for a in axes):
        raise ArrayValueError(f"squeeze of axes {axes} of the shape {node.shape}: they aren't of size 1")
    return Array(record(_squeeze, (node,), node.device, axes=axes))


# -- order -------------------------------------------------------------------------------------------------------
def _flip_of(x: torch.Tensor, *, axes: tuple[int, ...]) -> torch.Tensor:
    return x.flip(axes)


_flip = op(_flip_of)


@function(SECTION)
def flip(x: Any, /, *, axis: Any = None) -> Array:
    """Elements in reverse order along some axes, or all."""
    node = node_of(x)
    return Array(record(_flip, (node,), node.device, axes=axes_in(axis, len(node.shape))))


def _roll_of(x: torch.Tensor, *, sizes: tuple[Any, ...], axes: tuple[int, ...] | None) -> torch.Tensor:
    flat = x.reshape(-1) if axes is None else x
    return torch.roll(flat, sizes, (0,) if axes is None else axes).reshape(x.shape)


_roll = op(_roll_of)


@function(SECTION)
def roll(x: Any, /, shift: Any, *, axis: Any = None) -> Array:
    """Elements moved along axes, those beyond the end to the beginning; without an axis, as one long row.

    Raises:
        ArrayValueError: There are not as many shifts as axes.
    """
    node = node_of(x)
    if axis is None:
        shifts, axes, lengths = [shift], None, [x.size]
    else:
        given = tuple(axis) if isinstance(axis, list | tuple) else (axis,)
        axes = tuple(axis_in(a, len(node.shape)) for a in given)
        shifts = list(shift) if isinstance(shift, list | tuple) else [shift] * len(axes)
        lengths = [node.shape[a] for a in axes]
    if len(shifts) != len(lengths):
        raise ArrayValueError(f"roll by {shift} along {axis}")
    if not x.size:
        return Array(record(_copy, (node,), node.device))
    sizes = tuple(int(s) % n for s, n in zip(shifts, lengths, strict=True))
    return Array(record(_roll, (node,), node.device, sizes=sizes, axes=axes))


# -- several arrays ----------------------------------------------------------------------------------------------
def _concat_of(*tensors: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.cat(tensors, axis)


_concat = op(moved(_concat_of))


@function(SECTION)
def concat(arrays: Sequence[Any], /, *, axis: int | None = 0) -> Array:
    """Arrays one after the other along an axis; without one, as one long row.

    Raises:
        ArrayValueError: The other sizes differ, or there is no array.
    """
    if not arrays:
        raise ArrayValueError("concat of no array")
    if axis is None:
        arrays, axis = [reshape(x, (-1,)) if x.size else reshape(x, (0,)) for x in arrays], 0
    nodes, _ = together("concat", list(arrays))
    shapes = {len(x.shape) for x in nodes}
    if len(shapes) > 1:
        raise ArrayValueError("concat takes arrays of one number of dimensions")
    place = axis_in(axis, shapes.pop())
    if len({(*x.shape[:place], *x.shape[place + 1 :]) for x in nodes}) > 1:
        raise ArrayValueError(f"concat of shapes {', '.join(str(x.shape) for x in nodes)} along {axis}")
    return Array(record(_concat, nodes, nodes[0].device, axis=place))


@function(SECTION)
def stack(arrays: Sequence[Any], /, *, axis: int = 0) -> Array:
    """Arrays of one shape along a new axis.

    Raises:
        ArrayValueError: The shapes differ, or there is no array.
    """
    if not arrays:
        raise ArrayValueError("stack of no array")
    if len({node_of(x).shape for x in arrays}) > 1:
        raise ArrayValueError("stack takes arrays of one shape")
    place = axis_in(axis, arrays[0].ndim + 1)
    return concat([expand_dims(x, axis=place) for x in arrays], axis=place)


@function(SECTION)
def unstack(x: Any, /, *, axis: int = 0) -> tuple[Array, ...]:
    """The arrays along an axis."""
    node = node_of(x)
    place = axis_in(axis, len(node.shape))
    before = (slice(None),) * place
    return tuple(x[(*before, k)] for k in range(node.shape[place]))


def _repeat_of(x: torch.Tensor, *, sizes: tuple[Any, ...], axis: int) -> torch.Tensor:
    shape = list(x.shape)
    shape.insert(axis + 1, sizes[0])
    return x.unsqueeze(axis + 1).expand(shape).flatten(axis, axis + 1)


_repeat = op(_repeat_of)


@function(SECTION)
def repeat(x: Any, repeats: Any, /, *, axis: int | None = None) -> Array:
    """Each element so many times along an axis; without one, of one long row.

    An array of repeats is looked at, since the shape depends on it.
    """
    if axis is None:
        x, axis = reshape(x, (x.size,)), 0
    node = node_of(x)
    place = axis_in(axis, len(node.shape))
    if isinstance(repeats, Array):
        dtypes.check("repeat", repeats.dtype, "integral")
        counts = repeats.to_torch().to(torch.int64)
        broadcast(counts.shape, (node.shape[place],))
        counts = counts.expand(node.shape[place]) if counts.numel() == 1 else counts
        return Array(leaf(torch.repeat_interleave(x.to_torch(), counts, place)))
    return Array(record(_repeat, (node,), node.device, sizes=(int(repeats),), axis=place))


def _tile_of(x: torch.Tensor, *, sizes: tuple[Any, ...]) -> torch.Tensor:
    return x.repeat(sizes)


_tile = op(_tile_of)


@function(SECTION)
def tile(x: Any, repetitions: Sequence[int], /) -> Array:
    """The whole array so many times along each axis."""
    node = node_of(x)
    times = tuple(repetitions)
    times = (1,) * (len(node.shape) - len(times)) + times
    return Array(record(_tile, (node,), node.device, sizes=times))

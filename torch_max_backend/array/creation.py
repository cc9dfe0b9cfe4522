"""Arrays from nothing, from Python, and from other libraries' memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from torch_max_backend.array import dtypes
from torch_max_backend.array.array_object import Array
from torch_max_backend.array.declaration import AT_ONCE, function
from torch_max_backend.array.expression import leaf, op, record, view_op
from torch_max_backend.array.operands import cast, node_of, scalar
from torch_max_backend.base.errors import ArrayTypeError, ArrayValueError

SECTION = "creation"
_default_device = torch.device("cpu")


def as_device(device: Any) -> torch.device:
    """A device of torch, by itself or by its name; the CPU for ``None``.

    Raises:
        ArrayValueError: There is no such device.
    """
    if device is None:
        return _default_device
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ArrayValueError(f"unknown device {device!r}") from error
    if found.type not in ("cpu", "cuda"):
        raise ArrayValueError(f"arrays are on a CPU or on CUDA, not on {found}")
    if found.type == "cuda" and found.index is None:
        found = torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu") if found.type == "cpu" else found


def _lengths(shape: Any) -> tuple[int, ...]:
    sizes = tuple(n.__index__() for n in shape) if isinstance(shape, list | tuple) else (shape.__index__(),)
    if any(n < 0 for n in sizes):
        raise ArrayValueError(f"negative sizes in {sizes}")
    return sizes


def _full_of(fill: torch.Tensor, *, sizes: tuple[Any, ...]) -> torch.Tensor:
    return fill.expand(sizes)


_full = view_op(_full_of)


@function(SECTION)
def full(shape: Any, fill_value: Any, *, dtype: torch.dtype | None = None, device: Any = None) -> Array:
    """An array of one number."""
    found = dtypes.of_scalar(fill_value) if dtype is None else dtype
    if dtype is not None and isinstance(fill_value, bool) and dtype is not dtypes.bool:
        fill_value = int(fill_value)
    where = as_device(device)
    return Array(record(_full, (scalar(fill_value, found, where),), where, sizes=_lengths(shape)))


@function(SECTION)
def zeros(shape: Any, *, dtype: torch.dtype | None = None, device: Any = None) -> Array:
    """An array of zeros, of the default floating-point data type if none is given."""
    return full(shape, 0, dtype=dtypes.default_floating() if dtype is None else dtype, device=device)


@function(SECTION)
def ones(shape: Any, *, dtype: torch.dtype | None = None, device: Any = None) -> Array:
    """An array of ones, of the default floating-point data type if none is given."""
    return full(shape, 1, dtype=dtypes.default_floating() if dtype is None else dtype, device=device)


@function(SECTION)
def empty(shape: Any, *, dtype: torch.dtype | None = None, device: Any = None) -> Array:
    """An array of whatever its memory holds."""
    where = as_device(device)
    return Array(leaf(torch.empty(_lengths(shape), dtype=dtype or dtypes.default_floating(), device=where)))


def _like(x: Any, dtype: torch.dtype | None, device: Any) -> dict[str, Any]:
    node = node_of(x)
    return {"dtype": node.dtype if dtype is None else dtype, "device": node.device if device is None else device}


@function(SECTION)
def full_like(x: Any, /, fill_value: Any, *, dtype: torch.dtype | None = None, device: Any = None) -> Array:
    """An array of one number, of another array's shape."""
    return full(x.shape, fill_value, **_like(x, dtype, device))


@function(SECTION)
def zeros_like(x: Any, /, *, dtype: torch.dtype | None = None, device: Any = None) -> Array:
    """An array of zeros, of another array's shape."""
    return full(x.shape, 0, **_like(x, dtype, device))


@function(SECTION)
def ones_like(x: Any, /, *, dtype: torch.dtype | None = None, device: Any = None) -> Array:
    """An array of ones, of another array's shape."""
    return full(x.shape, 1, **_like(x, dtype, device))


@function(SECTION)
def empty_like(x: Any, /, *, dtype: torch.dtype | None = None, device: Any = None) -> Array:
    """An array of whatever its memory holds, of another array's shape."""
    return empty(x.shape, **_like(x, dtype, device))


def _arange_of(start: torch.Tensor, step: torch.Tensor, *, sizes: tuple[Any, ...]) -> torch.Tensor:
    return torch.arange(sizes[0], dtype=start.dtype, device=start.device) * step + start


_arange = op(_arange_of)


@function(SECTION)
def arange(
    start: Any,
    /,
    stop: Any = None,
    step: Any = 1,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
) -> Array:
    """Evenly spaced numbers in ``[start, stop)``, or in ``[0, start)``.

    Raises:
        ArrayValueError: The step is zero.
    """
    if stop is None:
        start, stop = 0, start
    if step == 0:
        raise ArrayValueError("the step of arange is zero")
    is_whole = all(isinstance(v, int) for v in (start, stop, step))
    found = dtype or (dtypes.int64 if is_whole else dtypes.default_floating())
    if found is dtypes.bool:
        raise ArrayTypeError("arange makes numbers, not bool")
    count = max(0, -((start - stop) // step)) if is_whole else max(0, math.ceil((stop - start) / step))
    where = as_device(device)
    computed = torch.int64 if not (found.is_floating_point or found.is_complex) else torch.float64
    first = start - 2**64 if computed is torch.int64 and start >= 2**63 else start
    nodes = [scalar(v, computed, where) for v in (first, step)]
    return Array(cast(record(_arange, nodes, where, sizes=(int(count),)), found))


@function(SECTION, AT_ONCE)
def linspace(
    start: Any,
    stop: Any,
    /,
    num: int,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    endpoint: bool = True,
) -> Array:
    """So many evenly spaced numbers from ``start`` to ``stop``, which is the last of them if ``endpoint``."""
    if num < 0:
        raise ArrayValueError(f"linspace of {num} numbers")
    is_complex = isinstance(start, complex) or isinstance(stop, complex)
    found = dtype or (dtypes.default_complex() if is_complex else dtypes.default_floating())
    computed = np.linspace(start, stop, num, endpoint=endpoint)
    return Array(leaf(torch.from_numpy(computed).to(device=as_device(device), dtype=found)))


def _eye_of(*, sizes: tuple[Any, ...], k: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    rows = torch.arange(sizes[0], device=device).unsqueeze(1)
    return (torch.arange(sizes[1], device=device) - rows == k).to(dtype)


_eye = op(_eye_of)


@function(SECTION)
def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: torch.dtype | None = None, device: Any = None
) -> Array:
    """Ones on the ``k``-th diagonal, and zeros elsewhere."""
    sizes = _lengths((n_rows, n_rows if n_cols is None else n_cols))
    where = as_device(device)
    found = dtype or dtypes.default_floating()
    return Array(record(_eye, (), where, sizes=sizes, k=int(k), dtype=found, device=where))


def _triangle_of(x: torch.Tensor, *, k: int, is_lower: bool) -> torch.Tensor:
    rows = torch.arange(x.shape[-2], device=x.device).unsqueeze(1)
    columns = torch.arange(x.shape[-1], device=x.device)
    inside = columns - rows <= k if is_lower else columns - rows >= k
    return torch.where(inside, x, torch.zeros((), dtype=x.dtype, device=x.device))


_triangle = op(_triangle_of)


def _of_matrices(x: Any, name: str) -> Any:
    node = node_of(x)
    if len(node.shape) < 2:
        raise ArrayValueError(f"{name} needs at least two dimensions, and the shape is {node.shape}")
    return node


@function(SECTION)
def tril(x: Any, /, *, k: int = 0) -> Array:
    """Matrices with zeros above the ``k``-th diagonal."""
    node = _of_matrices(x, "tril")
    return Array(record(_triangle, (node,), node.device, k=int(k), is_lower=True))


@function(SECTION)
def triu(x: Any, /, *, k: int = 0) -> Array:
    """Matrices with zeros below the ``k``-th diagonal."""
    node = _of_matrices(x, "triu")
    return Array(record(_triangle, (node,), node.device, k=int(k), is_lower=False))


def _along_of(x: torch.Tensor, *, sizes: tuple[Any, ...], axis: int) -> torch.Tensor:
    return x.reshape([-1 if d == axis else 1 for d in range(len(sizes))]).expand(sizes)


_along = view_op(_along_of)


@function(SECTION)
def meshgrid(*arrays: Any, indexing: str = "xy") -> tuple[Array, ...]:
    """Coordinate matrices of coordinate vectors; ``indexing`` is "xy" or "ij".

    Raises:
        ArrayValueError: An array has more than one dimension, or the indexing is unknown.
        ArrayTypeError: The arrays have different data types.
    """
    if indexing not in ("xy", "ij"):
        raise ArrayValueError(f"indexing {indexing!r}: use 'xy' or 'ij'")
    nodes = [node_of(x) for x in arrays]
    if any(len(x.shape) > 1 for x in nodes):
        raise ArrayValueError(f"meshgrid takes vectors, and got shapes {', '.join(str(x.shape) for x in nodes)}")
    if len({x.dtype for x in nodes}) > 1:
        raise ArrayTypeError("meshgrid takes arrays of one data type")
    places = list(range(len(nodes)))
    if indexing == "xy" and len(nodes) > 1:
        places[:2] = [1, 0]
    sizes = [1] * len(nodes)
    for place, x in zip(places, nodes, strict=True):
        sizes[place] = x.shape[0] if x.shape else 1
    return tuple(
        Array(record(_along, (x,), x.device, sizes=tuple(sizes), axis=place))
        for place, x in zip(places, nodes, strict=True)
    )


@function(SECTION)
def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Array:
    """An array over the memory of an object that has ``__dlpack__``.

    Raises:
        BufferError: ``copy=False``, and the memory is on another device or can't be shared.
    """
    if isinstance(x, Array):
        return _placed(x.to_torch(), device, copy)
    if isinstance(x, np.ndarray) and not x.flags.writeable:  # NumPy exports no memory that nobody may write to
        if copy is False:
            raise BufferError("NumPy doesn't share an array that is read-only")
        return _placed(torch.from_numpy(x.copy()), device, None)
    value = x.detach() if isinstance(x, torch.Tensor) else torch.from_dlpack(x)
    return _placed(value, device, copy)


def _placed(value: torch.Tensor, device: Any, copy: bool | None, dtype: torch.dtype | None = None) -> Array:
    where = value.device if device is None else as_device(device)
    changes = where != value.device or (dtype is not None and dtype != value.dtype)
    if changes and copy is False:
        raise BufferError(f"{dtypes.name(value.dtype)} on {value.device} as it is asked for needs a copy")
    found = value.to(device=where, dtype=value.dtype if dtype is None else dtype)
    return Array(leaf(found.clone() if copy and not changes else found))


@function(SECTION)
def asarray(obj: Any, /, *, dtype: torch.dtype | None = None, device: Any = None, copy: bool | None = None) -> Array:
    """An array of an array, of an object with ``__dlpack__`` or the buffer protocol, of numbers or lists of them.

    Memory is shared where data type and device allow it, unless ``copy`` is true.

    Raises:
        ValueError: ``copy=False``, and memory can't be shared.
    """
    if isinstance(obj, Array):
        return _of_array(obj, dtype, device, copy)
    if isinstance(obj, np.generic) or (isinstance(obj, np.ndarray) and obj.dtype == object):
        obj = obj.tolist()
    if hasattr(obj, "__dlpack__"):
        try:
            value = from_dlpack(obj, copy=False if copy is False else None).to_torch()
            return _placed(value, device, copy, dtype)
        except BufferError as error:
            if copy is False:
                raise ArrayValueError(f"asarray with copy=False: {error}") from error
            value = torch.from_numpy(np.array(obj))
            return _placed(value, device, None, dtype)
    if isinstance(obj, bytes | bytearray | memoryview):
        obj = np.asarray(memoryview(obj))
        return asarray(obj, dtype=dtype, device=device, copy=copy)
    if copy is False:
        raise ArrayValueError(f"asarray with copy=False of {type(obj).__name__}, which has no memory to share")
    return _placed(_of_numbers(obj, dtype), as_device(device), None, dtype)


def _of_array(x: Array, dtype: torch.dtype | None, device: Any, copy: bool | None) -> Array:
    where = x.device if device is None else as_device(device)
    found = x.dtype if dtype is None else dtype
    if copy is False and (where != x.device or found != x.dtype):
        raise ArrayValueError("asarray with copy=False to another data type or device")
    if where != x.device:
        return _placed(x.to_torch(), where, None, dtype)
    if found != x.dtype:
        return Array(cast(x._node, found))
    return Array(leaf(x.to_torch().clone())) if copy else x


def _of_numbers(obj: Any, dtype: torch.dtype | None) -> torch.Tensor:
    values = np.array(_plain(obj))
    if dtype is None:
        kinds = {"b": dtypes.bool, "i": dtypes.int64, "f": dtypes.default_floating(), "c": dtypes.default_complex()}
        if values.dtype.kind not in "biufc":
            raise ArrayTypeError(f"asarray of {type(obj).__name__}: expected numbers")
        return torch.from_numpy(values).to(kinds.get(values.dtype.kind, dtypes.uint64))
    if values.dtype.kind not in "biufcO":
        raise ArrayTypeError(f"asarray of {type(obj).__name__}: expected numbers")
    if dtype in (torch.bfloat16, torch.float16):
        return torch.from_numpy(values).to(dtype)
    return torch.from_numpy(values.astype(dtypes.name(dtype)))


def _plain(obj: Any) -> Any:
    if isinstance(obj, Array):
        return obj.to_torch().cpu().numpy()
    return [_plain(x) for x in obj] if isinstance(obj, list | tuple) else obj

"""Helpers that many lowerings share: constants, casts, promotion, broadcasting, reshapes with symbolic sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from max.dtype import DType
from max.graph import DeviceRef, Dim, StaticDim, TensorValue, ops

from torch_max_backend.aten_functions.support.dtypes import Operand, result_type
from torch_max_backend.aten_functions.support.value_facts import facts_of, mark_unfinished
from torch_max_backend.base.errors import NeedsStatic

Shape = Sequence[Dim | int]


# -- constants and casts -------------------------------------------------------------------------------------------
def constant(value: bool | int | float, dtype: DType, device: DeviceRef) -> TensorValue:
    """A 0-d constant with C's conversion to ``dtype``, as torch casts a Python number (no range check)."""
    if dtype == DType.bool:
        value = bool(value)
    elif dtype.is_integral():
        bits = dtype.size_in_bytes * 8
        value = int(value) & ((1 << bits) - 1)
        if not dtype.is_unsigned_integral() and value >> (bits - 1):
            value -= 1 << bits
    else:
        value = float(value)
        if dtype == DType.float32 and math.isfinite(value):
            with np.errstate(over="ignore"):
                value = float(np.float32(value))
    return ops.constant(value, dtype, device)


def cast(x: TensorValue, dtype: DType) -> TensorValue:
    """``x`` in ``dtype``; the value itself if it has that dtype, also if it was widened from it.

    Anything but zero becomes True for bool.
    """
    if x.dtype == dtype:
        return x
    if (source := before_widening(x)).dtype == dtype:
        return source
    moved = permuted_from(x)
    if moved is not None:
        return permute(cast(moved[0], dtype), moved[1])
    if dtype == DType.bool:
        return ops.logical_not(ops.equal(x, constant(0, x.dtype, x.device)))  # not_equal is False for NaN
    if facts_of(x).unfinished is None:
        for source in reshapes_of(x)[:1]:  # with what it is computed from, or MAX stores it in its present dtype
            if not is_stored(source):
                return reshape(cast(source, dtype), x.shape)
    return ops.cast(x, dtype)


def tensor(x: Operand, dtype: DType, device: DeviceRef) -> TensorValue:
    """A tensor, symbolic size or number as a graph value of ``dtype`` on ``device``; numbers become 0-d."""
    if isinstance(x, TensorValue):
        value = x if x.device == device else ops.transfer_to(x, device)
        return cast(value, dtype)
    if isinstance(x, StaticDim):
        x = int(x)
    if isinstance(x, Dim):
        value = ops.reshape(ops.shape_to_tensor([x]), [])
        value = value if value.device == device else ops.transfer_to(value, device)
        return cast(value, dtype)
    return constant(x, dtype, device)


def device_of(*operands: Operand) -> DeviceRef:
    """The device a computation runs on: that of a tensor with dimensions, else of any tensor."""
    tensors = [x for x in operands if isinstance(x, TensorValue)]
    chosen = next((x for x in tensors if x.rank), tensors[0] if tensors else None)
    return chosen.device if chosen is not None else DeviceRef.CPU()


def promote(*operands: Operand, dtype: DType | None = None) -> list[TensorValue]:
    """All operands in torch's promoted dtype (or ``dtype``), on one device. Shapes are left to broadcast."""
    target = result_type(*operands) if dtype is None else dtype
    device = device_of(*operands)
    return [tensor(x, target, device) for x in operands]


# -- shapes --------------------------------------------------------------------------------------------------------
def is_float_on_cpu(x: TensorValue) -> bool:
    """Whether the kernels that normalize on a CPU take ``x``: float32, float64, bfloat16 or float16 there."""
    return not x.device.is_gpu() and x.dtype in (DType.float32, DType.float64, DType.bfloat16, DType.float16)


def static(dim: Dim | int) -> int | None:
    """The size as an int if it is known at compile time."""
    return int(dim) if isinstance(dim, int | StaticDim) else None


def known(size: Dim | int, name: str) -> int:
    """The size as an int.

    Raises:
        NeedsStatic: It is symbolic; the graph is then specialised on its value.
    """
    number = static(size)
    if number is None:
        raise NeedsStatic(f"{name} must be known when the graph is built, got {size}", size)
    return number


def numel(shape: Iterable[Dim | int]) -> Dim:
    """The product of ``shape`` (1 for a 0-d shape)."""
    total = Dim(1)
    for d in shape:
        total = total * d
    return total


def same_shape(a: Iterable[Dim | int], b: Iterable[Dim | int]) -> bool:
    """Whether the two shapes are provably equal at compile time."""
    left, right = [Dim(d) for d in a], [Dim(d) for d in b]
    return len(left) == len(right) and all(x == y for x, y in zip(left, right, strict=True))


def rebind(x: TensorValue, shape: Shape) -> TensorValue:
    """``x`` with the dims spelled as ``shape``; checked when the graph runs where it cannot be proved."""
    if same_shape(x.shape, shape):
        return x
    moved = permuted_from(x)
    if moved is not None:
        source, dims = moved
        return permute(rebind(source, [shape[dims.index(i)] for i in range(x.rank)]), dims)
    result = ops.rebind(x, [Dim(d) for d in shape])
    _remember_transpose(result, x, rebind)
    return result


def reshape(x: TensorValue, shape: Shape) -> TensorValue:
    """Row-major reshape; sizes that MAX cannot prove equal are asserted at run time."""
    target = [Dim(d) for d in shape]
    if same_shape(x.shape, target):
        return x
    have, want = numel(x.shape), numel(target)
    if have == want:
        for source in reshapes_of(x):
            if same_shape(source.shape, target):
                return source
        result = ops.reshape(x, target)
        facts = facts_of(x)
        facts_of(result).reshaped_from = x
        if len(target) > 1 and same_shape(x.shape[-2:], target[-2:]):
            _remember_transpose(result, x, reshape)
        if facts.unfinished is not None:
            mark_unfinished(result, facts.unfinished.reshaped(target))
        if facts.columns_of is not None and same_shape(x.shape[:2], target[:2]):
            facts_of(result).columns_of = facts.columns_of
        return result
    flat = ops.rebind(ops.reshape(x, [have]), [want])
    return ops.reshape(flat, target)


def reshapes_of(x: TensorValue) -> list[TensorValue]:
    """The values that ``x`` is a reshape of by :func:`reshape`, the nearest first.

    They are as unfinished as ``x`` is: the list ends before one whose product could no longer be activated, and values
    are named anew where ``x`` is finished and they are not.
    """
    found: list[TensorValue] = []
    is_unfinished = facts_of(x).unfinished is not None
    source = facts_of(x).reshaped_from
    while source is not None:
        facts = facts_of(source)
        if is_unfinished and facts.unfinished is None:
            break
        found.append(source if is_unfinished or facts.unfinished is None else TensorValue(source))
        source = facts.reshaped_from
    return found


def converted_from(x: TensorValue) -> TensorValue | None:
    """What ``x`` is the conversion of to its dtype, in the shape of ``x``; :func:`cast` may have made it."""
    for value in (x, *reshapes_of(x)):
        operation = value._mlir_value.owner
        if type(operation).__name__ == "CastOp":
            return reshape(TensorValue(operation.operands[0].value), x.shape)
    return None


_WIDENED = {DType.float32: (DType.bfloat16, DType.float16), DType.int64: (DType.int16,)}
"""Dtypes whose values are the same in a wider one, which is asked for where a kernel would rather read the shorter."""


def before_widening(x: TensorValue) -> TensorValue:
    """What ``x`` was converted from without losing anything, for a kernel that reads the shorter dtype as well."""
    source = converted_from(x) if x.dtype in _WIDENED else None
    return x if source is None or source.dtype not in _WIDENED[x.dtype] else source


def is_stored(x: TensorValue) -> bool:
    """Whether ``x`` lies in memory when it is read, so that a reshape of it costs nothing: an input, or a kernel's."""
    return type(x._mlir_value.owner).__name__ in ("Block", "CustomOp")


def broadcast_to(x: TensorValue, shape: Shape) -> TensorValue:
    """``x`` expanded to ``shape`` by torch's broadcasting rules."""
    target = [Dim(d) for d in shape]
    if same_shape(x.shape, target):
        return x
    result = ops.broadcast_to(x, target)
    facts_of(result).expanded_from = x
    return result


def narrow(x: TensorValue) -> TensorValue:
    """What ``x`` was expanded from, if it was: for those that need not have all of it in memory."""
    while (source := facts_of(x).expanded_from) is not None:
        x = source
    return x


def broadcast_shape(*shapes: Shape) -> list[Dim]:
    """The common shape by torch's rules; where sizes differ in spelling only, the first one that is not 1 is taken."""
    rank = max(len(s) for s in shapes)
    result: list[Dim] = []
    for i in range(rank):
        dim = Dim(1)
        for s in shapes:
            at = i - (rank - len(s))
            if at >= 0 and dim == 1:
                dim = Dim(s[at])
        result.append(dim)
    return result


def full(value: bool | int | float, shape: Shape, dtype: DType, device: DeviceRef) -> TensorValue:
    """A tensor filled with a number."""
    return broadcast_to(constant(value, dtype, device), shape)


def iota(size: Dim | int, dtype: DType, device: DeviceRef) -> TensorValue:
    """``[0, 1, …, size-1]``."""
    stop = tensor(Dim(size), DType.int64, DeviceRef.CPU())
    zero, one = (constant(v, DType.int64, DeviceRef.CPU()) for v in (0, 1))
    return cast(ops.range(zero, stop, one, out_dim=Dim(size), dtype=DType.int64, device=device), dtype)


def axis_of(dim: int, rank: int) -> int:
    """A non-negative axis; a 0-d tensor counts as having one."""
    return dim % max(rank, 1)


def axes_of(dims: int | Sequence[int] | None, rank: int) -> list[int]:
    """Sorted non-negative axes; ``None`` and the empty list mean all of them."""
    if dims is None or (not isinstance(dims, int) and not len(dims)):
        return list(range(rank))
    listed = [dims] if isinstance(dims, int) else list(dims)
    return sorted({axis_of(d, rank) for d in listed})


def permute(x: TensorValue, dims: Sequence[int]) -> TensorValue:
    """``x.permute(dims)``: one permutation for several in a row, and none where nothing moves in memory."""
    if list(dims) == list(range(x.rank)):
        return x
    moved = permuted_from(x)
    if moved is not None:
        source, first = moved
        return permute(source, [first[d] for d in dims])
    wide = [d for d in dims if static(x.shape[d]) != 1]
    if wide == sorted(wide):
        return reshape(x, [x.shape[d] for d in dims])
    transposes = list(dims) == [*range(x.rank - 2), x.rank - 1, x.rank - 2]
    source = transpose_of(x) if transposes else None
    if source is not None:
        return source
    result = ops.permute(x, list(dims))
    facts_of(result).permuted_from = x, tuple(dims)
    if transposes:
        facts_of(result).transpose_of = lambda: x
    unfinished = facts_of(x).unfinished
    if unfinished is not None:
        mark_unfinished(result, unfinished.permuted(dims))
    return result


def permuted_from(x: TensorValue) -> tuple[TensorValue, tuple[int, ...]] | None:
    """The value that ``x`` is a permutation of, and the order of its dims, if ``x`` was made from one."""
    return facts_of(x).permuted_from


def in_memory(x: TensorValue) -> TensorValue:
    """What :func:`permute` made ``x`` from, in its own order; ``x`` itself if it did not."""
    moved = permuted_from(x)
    return x if moved is None else moved[0]


def memory_order(x: TensorValue) -> tuple[int, ...]:
    """The order of the dimensions of ``x`` in which :func:`permute` gives what is in memory."""
    moved = permuted_from(x)
    dims = tuple(range(x.rank)) if moved is None else moved[1]
    return tuple(dims.index(i) for i in range(x.rank))


def drop_axis(x: TensorValue, axis: int) -> TensorValue:
    """``x`` without an axis of size 1; a permutation stays the last thing that was done."""
    moved = permuted_from(x)
    if moved is not None:
        origin, order = moved
        gone = order[axis]
        return permute(drop_axis(origin, gone), [d - (d > gone) for d in order if d != gone])
    return reshape(x, [d for i, d in enumerate(x.shape) if i != axis])


def remember_columns(result: TensorValue, x: TensorValue, axis: int, first: int) -> None:
    """``result`` is what ``x`` has from ``first`` on along ``axis``."""
    inner = [static(d) for d in x.shape[2:]]
    if axis < 2 or None in inner or any(d != 1 for d in inner[: axis - 2]):
        return
    source, start = facts_of(x).columns_of or (x, 0)
    facts_of(result).columns_of = source, start + first * math.prod(d or 0 for d in inner[axis - 1 :])


def columns_of(x: TensorValue) -> tuple[TensorValue, int] | None:
    """The tensor that ``x`` is columns of, from which on, if all but two dimensions of both are flattened."""
    return facts_of(x).columns_of


def transpose_of(x: TensorValue) -> TensorValue | None:
    """The value whose matrices are those of ``x`` transposed, if ``x`` was made from one: it saves the transpose."""
    source = facts_of(x).transpose_of
    return None if source is None else source()


def _remember_transpose(result: TensorValue, x: TensorValue, same: Callable[[TensorValue, Shape], TensorValue]) -> None:
    """``same`` made ``result`` from ``x`` and left its matrices alone, so it can be done before they are transposed."""
    source, shape = facts_of(x).transpose_of, result.shape
    if source is not None:
        swapped = [*shape[:-2], shape[-1], shape[-2]]
        facts_of(result).transpose_of = lambda: same(source(), swapped)


def is_in_memory(x: TensorValue) -> bool:
    """Whether ``x`` is an input of the graph or what a kernel of this project wrote: MAX has nothing to fuse there."""
    value = x._mlir_value
    while "Reshape" in type(value.owner).__name__:
        value = getattr(value.owner.operands[0], "value", value.owner.operands[0])
    return type(value.owner).__name__ in ("Block", "CustomOp")


def move_axis(x: TensorValue, source: int, destination: int) -> TensorValue:
    """``torch.movedim``."""
    order = [i for i in range(x.rank) if i != source]
    order.insert(destination, source)
    return permute(x, order)


def materialized(x: TensorValue) -> TensorValue:
    """``x``, written to memory before anything reads it, where its sizes are symbolic.

    With symbolic sizes MAX's fusion reads wrong elements where an elementwise result that contains a broadcast is
    itself broadcast: ``s[b,h,n,n] + (i[n,1] >= j[1,n])`` sees the same truth value everywhere. A cumulative sum along
    a new axis of size 1 is a kernel of its own that is never fused, and changes no value.
    """
    if all(static(d) is not None for d in x.shape):
        return x
    moved = permuted_from(x)
    if moved is not None:
        return permute(materialized(moved[0]), moved[1])
    if x.dtype == DType.bool:
        return cast(materialized(cast(x, DType.uint8)), DType.bool)
    return ops.squeeze(ops.cumsum(ops.unsqueeze(x, -1), axis=-1), -1)

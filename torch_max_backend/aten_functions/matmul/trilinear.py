"""The three-operand product behind ``nn.Bilinear``."""

from __future__ import annotations

from collections.abc import Sequence

from max.dtype import DType
from max.graph import Dim, TensorValue, ops

from torch_max_backend.aten_functions.matmul.products import product
from torch_max_backend.aten_functions.reduce.reductions import reduce_axes
from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.support.axis_reductions import sum_along
from torch_max_backend.aten_functions.support.dtypes import accumulator
from torch_max_backend.aten_functions.support.node_context import out_dtype, out_shape
from torch_max_backend.aten_functions.support.tensor_ops import (
    axis_of,
    broadcast_shape,
    broadcast_to,
    cast,
    full,
    numel,
    permute,
    reshape,
    static,
)
from torch_max_backend.base.errors import Unsupported

Ints = Sequence[int]


# _trilinear(Tensor i1, Tensor i2, Tensor i3, int[] expand1, int[] expand2, int[] expand3, int[] sumdim,
#     int unroll_dim=1) -> Tensor
@map_to(aten._trilinear.default)
def _trilinear(
    i1: TensorValue,
    i2: TensorValue,
    i3: TensorValue,
    expand1: Ints,
    expand2: Ints,
    expand3: Ints,
    sumdim: Ints,
    unroll_dim: int = 1,
) -> TensorValue:
    """``i1 * i2 * i3``, each with new axes at ``expand``, summed over ``sumdim``.

    Where the axes of ``i2`` are kept ones of its own and summed ones, as in ``nn.Bilinear``, it is a matrix.
    """
    if i1.dtype == DType.bool:
        raise Unsupported("products of three numbers, got torch.bool")
    rank = i1.rank + len(expand1)
    expands = [[axis_of(a, rank) for a in e] for e in (expand1, expand2, expand3)]
    summed = sorted({axis_of(a, rank) for a in sumdim})
    values = [_expanded(cast(v, accumulator(v.dtype)), e) for v, e in zip((i1, i2, i3), expands, strict=True)]
    shape = broadcast_shape(*(v.shape for v in values))
    kept = [d for i, d in enumerate(shape) if i not in summed]
    if any(static(d) == 0 for d in shape):
        return full(0, out_shape(), out_dtype(), i1.device)
    own = [i for i in range(rank) if i not in summed and i in expands[0] and i in expands[2]]
    batch = [i for i in range(rank) if i not in summed and i in expands[1]]
    if sorted([*own, *batch, *summed]) == list(range(rank)) and not set(summed) & set(expands[1]):
        both = [1 if i in own else d for i, d in enumerate(shape)]
        pairs = ops.mul(broadcast_to(values[0], both), broadcast_to(values[2], both))
        left = _matrix(pairs, batch + own, summed)
        right = _matrix(values[1], summed, own + batch)
        rows = reshape(product(left, right), [shape[i] for i in batch + own])
        order = sorted(range(len(kept)), key=(batch + own).__getitem__)
        return cast(reshape(permute(rows, order), out_shape()), out_dtype())
    wide = [broadcast_to(v, shape) for v in values]
    total = reduce_axes(ops.mul(ops.mul(wide[0], wide[1]), wide[2]), summed, sum_along)
    return cast(reshape(total, out_shape()), out_dtype())


def _expanded(x: TensorValue, axes: Ints) -> TensorValue:
    for axis in sorted(axes):
        x = ops.unsqueeze(x, axis)
    return x


def _matrix(x: TensorValue, rows: Ints, columns: Ints) -> TensorValue:
    """Two groups of axes as a matrix."""
    sizes: list[list[Dim]] = [[x.shape[i] for i in group] for group in (rows, columns)]
    return reshape(permute(x, [*rows, *columns]), [numel(sizes[0]), numel(sizes[1])])

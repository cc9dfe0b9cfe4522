"""Products of matrices and vectors, which are recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_max_backend.array.array_object import Array
from torch_max_backend.array.carriers import carried
from torch_max_backend.array.declaration import function
from torch_max_backend.array.expression import Op, record
from torch_max_backend.array.operands import axis_in, broadcast, together
from torch_max_backend.base.errors import ArrayValueError

SECTION = "linear algebra"


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.device.type == "cuda" and not (a.is_floating_point() or a.is_complex()):  # cuBLAS has no such product
        left = a.unsqueeze(0) if a.dim() == 1 else a
        right = b.unsqueeze(1) if b.dim() == 1 else b
        result = (left.unsqueeze(-1) * right.unsqueeze(-3)).sum(-2, dtype=a.dtype)
        result = result.squeeze(-1) if b.dim() == 1 else result
        return result.squeeze(-1 if b.dim() == 1 else -2) if a.dim() == 1 else result
    return torch.matmul(a, b)


_matmul = Op("matmul", carried(_product))


@function(SECTION)
def matmul(x1: Any, x2: Any, /) -> Array:
    """The product of matrices, or with a vector.

    Raises:
        ArrayValueError: An array has no dimensions, or the sizes don't fit.
    """
    nodes, _ = together("matmul", (x1, x2), "numeric")
    a, b = (x.shape for x in nodes)
    if not a or not b:
        raise ArrayValueError("matmul takes at least one dimension")
    if a[-1] != b[-2 if len(b) > 1 else 0]:
        raise ArrayValueError(f"matmul of shapes {a} and {b}")
    return Array(record(_matmul, nodes, nodes[0].device))


def _dot(a: torch.Tensor, b: torch.Tensor, *, axis: int) -> torch.Tensor:
    return torch.sum(torch.conj_physical(a) * b if a.is_complex() else a * b, axis, dtype=a.dtype)


_vecdot = Op("vecdot", carried(_dot))


@function(SECTION)
def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Array:
    """Dot products along an axis, of the conjugate of ``x1``.

    Raises:
        ArrayValueError: The sizes of that axis differ, or the other shapes don't broadcast.
    """
    nodes, _ = together("vecdot", (x1, x2), "numeric")
    a, b = (x.shape for x in nodes)
    ndim = max(len(a), len(b))
    if not -min(len(a), len(b)) <= axis < ndim or not a or not b:
        raise ArrayValueError(f"vecdot along {axis} of shapes {a} and {b}")
    place = axis_in(axis, ndim) - ndim
    if -place > min(len(a), len(b)) or a[place] != b[place]:
        raise ArrayValueError(f"vecdot along {axis} of shapes {a} and {b}")
    broadcast(a, b)
    return Array(record(_vecdot, nodes, nodes[0].device, axis=place))


def _contracted(a: torch.Tensor, b: torch.Tensor, *, axes: tuple[tuple[int, ...], tuple[int, ...]]) -> torch.Tensor:
    left = [d for d in range(a.dim()) if d not in axes[0]]
    right = [d for d in range(b.dim()) if d not in axes[1]]
    shape = [a.shape[d] for d in left] + [b.shape[d] for d in right]
    length: Any = 1
    for d in axes[0]:
        length = length * a.shape[d]
    rows: Any = 1
    for d in left:
        rows = rows * a.shape[d]
    columns: Any = 1
    for d in right:
        columns = columns * b.shape[d]
    m = a.permute([*left, *axes[0]]).reshape(rows, length)
    n = b.permute([*axes[1], *right]).reshape(length, columns)
    return _product(m, n).reshape(shape)


_tensordot = Op("tensordot", carried(_contracted))


@function(SECTION)
def tensordot(x1: Any, x2: Any, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Array:
    """Sums of products over axes: the last of ``x1`` with the first of ``x2``, or those that are given.

    Raises:
        ArrayValueError: The sizes of these axes differ.
    """
    nodes, _ = together("tensordot", (x1, x2), "numeric")
    a, b = (x.shape for x in nodes)
    if isinstance(axes, int):
        if not 0 <= axes <= min(len(a), len(b)):
            raise ArrayValueError(f"tensordot over {axes} axes of shapes {a} and {b}")
        pairs = tuple(range(len(a) - axes, len(a))), tuple(range(axes))
    else:
        pairs = tuple(axis_in(d, len(a)) for d in axes[0]), tuple(axis_in(d, len(b)) for d in axes[1])
    if len(pairs[0]) != len(pairs[1]) or any(a[i] != b[j] for i, j in zip(*pairs, strict=True)):
        raise ArrayValueError(f"tensordot over {axes} of shapes {a} and {b}")
    return Array(record(_tensordot, nodes, nodes[0].device, axes=pairs))

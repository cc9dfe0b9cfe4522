"""Products of float32 by oneDNN, with long sums in parts: what is one, and how its operands are cut.

Where that is faster than MKL, and how long a part is, is in :mod:`torch_max_backend.capture.onednn_products`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_max_backend.capture import onednn_products
from torch_max_backend.loops.index import Index
from torch_max_backend.loops.program import Ref
from torch_max_backend.loops.rules import views
from torch_max_backend.loops.tensor import Tensor

aten = torch.ops.aten


@dataclass(frozen=True)
class Product:
    """``rows`` times the transpose of ``columns``, and a vector that is added to each row."""

    rows: Tensor
    columns: Tensor
    bias: Tensor | None

    @property
    def depth(self) -> int:
        """How many numbers are added up."""
        return int(self.rows.shape[1].constant)

    @property
    def part(self) -> int:
        """How many of them are a part."""
        return onednn_products.part_of(self.depth)


# mm(Tensor self, Tensor mat2) -> Tensor
# addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor
def product_of(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Product | None:
    """The product that a call of ``target``, which may be any op, is; ``None`` if it is none for oneDNN."""
    if target not in (aten.mm.default, aten.addmm.default) or any(factor != 1 for factor in kwargs.values()):
        return None
    if not all(isinstance(y, Tensor) and y.dtype is torch.float32 for y in args):
        return None
    *bias, rows, matrix = args
    sizes = [*rows.shape, matrix.shape[1]]
    if not all(s.is_constant for s in sizes) or not onednn_products.pays(*(int(s.constant) for s in sizes)):
        return None
    if bias and (bias[0].rank != 1 or bias[0].shape[0] != matrix.shape[1]):
        return None
    return Product(rows, views.transpose(matrix, 0, 1), bias[0] if bias else None)


def lies_turned(columns: Ref | None) -> bool:
    """Whether a matrix of columns lies so that any part of each is as oneDNN reads it: row by row, without gaps.

    With gaps, it has a kernel that takes a thousand times as long.
    """
    return columns is not None and columns.strides[0] == 1 and columns.strides[1] == columns.sizes[0]


def in_parts(x: Tensor, part: int) -> tuple[Tensor, Tensor | None]:
    """A matrix ``[rows, depth]`` as ``[parts, rows, part]``, and what is left of its depth."""
    rows, depth = x.shape[0], int(x.shape[1].constant)
    count = depth // part
    shape = Index.of(count), rows, Index.of(part)
    whole = Tensor(shape, x.dtype, lambda index: x.at((index[1], index[0] * part + index[2])))
    return whole, views.slice_(x, 1, count * part) if depth % part else None

"""Products of a few rows with a large matrix whose columns are contiguous, as loops: a linear of 2 to 8 rows.

Such a product takes the time of reading its matrix, as with one row. MKL and oneDNN take longer, because they copy the
matrix into panels first.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_max_backend.loops.program import Ref
from torch_max_backend.loops.tensor import Tensor

ROWS = {torch.float32: range(4, 9), torch.bfloat16: range(2, 9)}
"""The numbers of rows for which loops are faster than a library, by the dtype of the operands."""
LARGE = {torch.float32: 1 << 20, torch.bfloat16: 1 << 19}
"""Elements of a matrix from which that is so."""
LONG, MANY = 256, 64
"""The least rows and columns of it."""


def is_product(args: Sequence[Tensor], matrix: Ref | None) -> bool:
    """Whether ``mm`` or ``addmm`` of these arguments is one.

    Args:
        matrix: The second operand as it lies in memory, if it does.
    """
    rows, (depth, columns) = args[-2].shape[0], args[-1].shape
    if matrix is None or matrix.strides[0] != 1 or not all(n.is_constant for n in (rows, depth, columns)):
        return False
    sizes = int(depth.constant), int(columns.constant)
    dtype = args[-1].dtype
    is_few = int(rows.constant) in ROWS.get(dtype, ())
    return is_few and sizes[0] >= LONG and sizes[1] >= MANY and sizes[0] * sizes[1] >= LARGE[dtype]

"""Products on a GPU with columns that are no multiple of 16 bytes: an op of its own, for programs.

cuBLASLt has no fast kernel for such a result, not even with gaps between its rows, and takes up to eight times as long.
Its columns up to a multiple are one product, and the few behind them another: the second factor is not copied.
"""

from __future__ import annotations

import torch

ROW = 8
"""Elements of 16 bits in 16 bytes."""

_library = torch.library.Library("torch_max_backend", "FRAGMENT")
_library.define("mm_of_odd_columns(Tensor self, Tensor mat2, Tensor? bias) -> Tensor")


def mm_of_odd_columns(self: torch.Tensor, mat2: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``self @ mat2 + bias``, rounded as ``torch.addmm`` rounds.

    Args:
        self: ``[rows, depth]``, of bfloat16 or float16.
        mat2: ``[depth, columns]``, of the same dtype, whose columns are contiguous and begin at multiples of ``ROW``
            elements, as those of a linear's weight.
        bias: ``[columns]``, of the same dtype, or none.

    Returns:
        ``[rows, columns]``, with gaps of up to ``ROW - 1`` elements between rows.
    """
    whole = self.new_empty_strided((self.shape[0], mat2.shape[1]), (even(mat2.shape[1]), 1))
    multiply(self, mat2, whole, bias)
    return whole


MM_OF_ODD_COLUMNS = torch.ops.torch_max_backend.mm_of_odd_columns.default
_library.impl("mm_of_odd_columns", mm_of_odd_columns, "CompositeExplicitAutograd")


def even(size: int) -> int:
    """The next multiple of ``ROW``: how far apart the rows of a result are, in elements."""
    return -(-size // ROW) * ROW


def multiply(x: torch.Tensor, matrix: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None = None) -> None:
    """Write ``x @ matrix + bias`` into ``out``, whose rows begin at multiples of ``ROW`` elements."""
    columns = matrix.shape[1]
    cut = columns // ROW * ROW
    for part in (slice(0, cut), slice(cut, columns)):
        if part.start == part.stop:
            continue
        if bias is None:
            torch.mm(x, matrix[:, part], out=out[:, part])
        else:
            torch.addmm(bias[part], x, matrix[:, part], out=out[:, part])

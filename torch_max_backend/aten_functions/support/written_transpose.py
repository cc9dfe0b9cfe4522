"""Transposes that are written to memory on a GPU.

MAX reads a transposed operand where it is used, element by element, at a fifth of the memory's speed. A kernel that
writes the transpose first reads and writes whole lines.
"""

from __future__ import annotations

from collections.abc import Sequence

from max.graph import Dim, TensorValue

from torch_max_backend.aten_functions.support.mojo_ops import mojo_op
from torch_max_backend.aten_functions.support.tensor_ops import numel, reshape, static
from torch_max_backend.aten_functions.support.value_facts import facts_of

_NARROW = 8
"""A matrix with fewer rows or columns is left to MAX: most of a tile would be empty."""


def as_matrices(shape: Sequence[Dim], order: Sequence[int]) -> tuple[Dim, Dim, Dim] | None:
    """``[batch, rows, columns]`` if ``permute(order)`` of a tensor of ``shape`` transposes matrices, else ``None``."""
    kept = [d for d in order if static(shape[d]) != 1]
    runs: list[list[int]] = []
    for d in kept:
        before = [e for e in range(d) if static(shape[e]) != 1]
        if runs and before and runs[-1][-1] == before[-1]:
            runs[-1].append(d)
        else:
            runs.append([d])
    if len(runs) == 2:
        runs.insert(0, [])
    if len(runs) != 3 or not runs[0] <= runs[2] <= runs[1]:
        return None
    batch, columns, rows = (numel(shape[d] for d in run) for run in runs)
    sizes = [static(s) for s in (rows, columns)]
    return None if any(s is not None and s < _NARROW for s in sizes) else (batch, rows, columns)


def written_transpose(x: TensorValue, order: Sequence[int]) -> TensorValue | None:
    """``x.permute(order)`` by the kernel, or ``None`` where that is none of its transposes."""
    matrices = as_matrices(x.shape, order)
    if matrices is None or not x.device.is_gpu() or x.dtype.size_in_bytes not in (1, 2, 4, 8):
        return None
    batch, rows, columns = matrices
    result = mojo_op("tmb_transpose", [reshape(x, [batch, rows, columns])], [(x.dtype, [batch, columns, rows])])[0]
    transposed = reshape(result, [x.shape[d] for d in order])
    if list(order) == [*range(x.rank - 2), x.rank - 1, x.rank - 2]:
        facts_of(transposed).transpose_of = lambda: x  # a product reads x
    return transposed

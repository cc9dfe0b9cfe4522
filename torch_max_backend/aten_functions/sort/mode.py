"""The most frequent element along a dimension."""

from __future__ import annotations

import torch
from max.dtype import DType
from max.graph import TensorValue, ops

from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.sort.sorting import _KEYS, Pair, _restored, _rows
from torch_max_backend.aten_functions.support.mojo_ops import mojo_op
from torch_max_backend.aten_functions.support.node_context import out_dtype, out_shape
from torch_max_backend.aten_functions.support.tensor_ops import full, static


def _limits(self: torch.Tensor, dim: int = -1, keepdim: bool = False) -> str | None:
    """On a GPU torch has an algorithm of its own, which was seen to find other elements in rows with ties and NaN."""
    return None if self.device.type == "cpu" else f"mode takes tensors of the CPU, got one on {self.device.type}"


# mode(Tensor self, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)
@map_to(aten.mode.default, supports=_limits, limits="CPU")
def mode(self: TensorValue, dim: int = -1, keepdim: bool = False) -> Pair:
    """The least of the most frequent elements, and one of its places: the one that torch's sort leaves last."""
    if any(static(d) == 0 for d in out_shape(0)):
        return tuple(full(0, out_shape(i), out_dtype(i), self.device) for i in range(2))
    rows = _rows(self, dim)
    one = [rows.shape[0]]
    outputs = [(rows.dtype, one), (DType.int64, one), (_KEYS.get(rows.dtype, rows.dtype), rows.shape)]
    outputs.append((DType.int64, rows.shape))
    values, indices, *_ = mojo_op("tmb_mode", [rows], outputs)
    return tuple(_restored(ops.unsqueeze(v, 1), self, dim, i) for i, v in enumerate((values, indices)))

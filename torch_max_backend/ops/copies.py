"""Copies in another order."""

from __future__ import annotations

import torch

from torch_max_backend.ops.declaration import BenchmarkCase, Tolerance
from torch_max_backend.ops.define import gradient_of, public_op


@public_op(
    "copy_transpose(Tensor x) -> Tensor",
    shapes={"x": "... m n"},
    results=["... n m"],
    differentiable=("x",),
    tolerance=Tolerance(0, 0, 0, 0, "a copy"),
    flops=lambda sizes: 0,
    cases=(BenchmarkCase("matrix", lambda new: (new(new.rows, new.columns),), lambda x: x.mT.contiguous()),),
)
def copy_transpose(x: torch.Tensor) -> torch.Tensor:
    """The last two dimensions exchanged, in memory of its own.

    Args:
        x: [..., m, n].
    """
    return x.transpose(-1, -2)


@gradient_of("copy_transpose")
def _copy_transpose_backward(grad: torch.Tensor) -> tuple[torch.Tensor]:
    return (grad.transpose(-1, -2),)

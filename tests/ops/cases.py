"""What public ops are called with: a row for each op and layout. Arguments are made in a dtype, by a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torch_max_backend import ops

Make = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class OpCase:
    """A call of an op: ``args(make)`` gives its arguments, where ``make(*shape)`` is a random tensor."""

    op: str
    layout: str
    args: Callable[[Make], tuple[Any, ...]]

    def __str__(self) -> str:
        return f"{self.op}-{self.layout}"

    def call(self, *args: Any) -> Any:
        return getattr(ops, self.op)(*args)

    def made(self, dtype: torch.dtype) -> tuple[Any, ...]:
        generator = torch.Generator().manual_seed(7)
        return self.args(lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype))


def classes(*shape: int, below: int = 50) -> torch.Tensor:
    found = torch.randint(0, below, shape, generator=torch.Generator().manual_seed(1))
    found.view(-1)[0] = -100
    return found


def angles(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    angle = torch.arange(rows).unsqueeze(1) * 10.0 ** -torch.arange(columns)
    return angle.cos(), angle.sin()


CASES = [
    OpCase("rms_norm", "contiguous", lambda make: (make(5, 7, 33), make(33))),
    OpCase("rms_norm", "transposed", lambda make: (make(67, 40).t(), None)),
    OpCase("add_rms_norm", "expanded", lambda make: (make(3, 4, 40), make(4, 40).expand(3, 4, 40), make(40))),
    OpCase("layer_norm", "sliced", lambda make: (make(6, 8, 100)[::2, 1:7, 3:90], make(87), make(87))),
    OpCase("layer_norm", "row", lambda make: (make(100), None, make(100))),
    OpCase("add_layer_norm", "contiguous", lambda make: (make(9, 65), make(9, 65), make(65), make(65))),
    OpCase("softmax_online", "contiguous", lambda make: (make(4, 5, 37) * 4,)),
    OpCase("softmax_online", "columns", lambda make: (make(6, 41, 5).transpose(0, 2), 1)),
    OpCase("gelu", "sliced", lambda make: (make(6, 100)[:, 1:98], "none")),
    OpCase("gelu", "tanh", lambda make: (make(3, 67), "tanh")),
    OpCase("bias_gelu", "contiguous", lambda make: (make(4, 3, 70), make(70), "tanh")),
    OpCase("swiglu", "halves", lambda make: tuple(make(7, 98).chunk(2, -1))),
    OpCase("geglu", "transposed", lambda make: (make(40, 9).t(), make(9, 40), "none")),
    OpCase("reduce", "rows", lambda make: (make(3, 5, 40), "sum", [-1])),
    OpCase("reduce", "columns", lambda make: (make(33, 4, 40), "mean", [0, 2], True)),
    OpCase("reduce", "largest", lambda make: (make(50, 34).t(), "amax", [1])),
    OpCase("reduce", "smallest", lambda make: (make(6, 35), "amin")),
    OpCase("reduce", "product", lambda make: (make(4, 3, 5).abs() + 0.5, "prod", [0, 2])),
    OpCase("copy_transpose", "contiguous", lambda make: (make(3, 37, 70),)),
    OpCase("copy_transpose", "sliced", lambda make: (make(40, 150)[:, ::2],)),
    OpCase("fused_linear_gelu", "contiguous", lambda make: (make(2, 9, 40), make(48, 40) / 6, make(48), "tanh")),
    OpCase(
        "fused_linear_bias_residual",
        "transposed",
        lambda make: (make(40, 33).t(), make(40, 48).t() / 6, None, make(48).expand(33, 48)),
    ),
    OpCase("rope", "half", lambda make: (make(2, 40, 3, 12).transpose(1, 2), *angles(40, 6))),
    OpCase("rope", "interleaved", lambda make: (make(3, 40, 12), *angles(40, 6), True)),
    OpCase("rope_at", "half", lambda make: (make(2, 3, 40, 64), (torch.arange(40) * 999).expand(2, 3, 40))),
    OpCase("rope_at", "interleaved", lambda make: (make(5, 12), torch.arange(5, dtype=torch.int32), 500.0, True)),
    OpCase("cross_entropy", "contiguous", lambda make: (make(4, 9, 50) * 3, classes(4, 9))),
    OpCase("cross_entropy", "smoothed", lambda make: (make(50, 40).t() * 3, classes(40), -100, 0.1)),
    OpCase("linear_cross_entropy", "contiguous", lambda make: (make(3, 11, 40), make(50, 40) / 3, classes(3, 11))),
    OpCase("pairwise_distance", "frames", lambda make: (make(3, 34, 3),)),
    OpCase("contact_map", "frames", lambda make: (make(3, 37, 3), 1.5)),
    OpCase("contact_map_packed", "transposed", lambda make: (make(3, 37).t(), 1.5)),
    OpCase("rmsd", "expanded", lambda make: (make(5, 40, 3), make(40, 3).expand(5, 40, 3))),
    OpCase("rmsd_aligned", "frames", lambda make: (make(5, 40, 3), make(40, 3).expand(5, 40, 3))),
]

FIRST = list({case.op: case for case in reversed(CASES)}.values())[::-1]
"""The first row of each op."""

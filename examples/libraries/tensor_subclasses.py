"""A tensor subclass with two inner tensors, as a parameter: rows of 8-bit integers with a scale each.

python examples/libraries/tensor_subclasses.py
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import return_and_correct_aliasing
from what_ran import print_what_ran


class Int8Rows(torch.Tensor):
    """Looks like a float32 matrix; keeps int8 ``rows`` and float32 ``scales``, one a row."""

    def __new__(cls, rows: torch.Tensor, scales: torch.Tensor) -> Int8Rows:
        return torch.Tensor._make_wrapper_subclass(cls, rows.shape, dtype=scales.dtype, device=rows.device)

    def __init__(self, rows: torch.Tensor, scales: torch.Tensor) -> None:
        self.rows, self.scales = rows, scales

    @classmethod
    def of(cls, matrix: torch.Tensor) -> Int8Rows:
        """The nearest matrix of this kind."""
        scales = matrix.detach().abs().amax(1, keepdim=True) / 127
        return cls((matrix.detach() / scales).round().to(torch.int8), scales)

    def __repr__(self) -> str:
        return f"Int8Rows(shape={tuple(self.shape)})"

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["rows", "scales"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, torch.Tensor], context: None, size: Any, stride: Any) -> Int8Rows:
        return cls(inner["rows"], inner["scales"])

    def plain(self) -> torch.Tensor:
        """As an ordinary tensor."""
        return self.rows * self.scales

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op in (torch.ops.aten.detach.default, torch.ops.aten.clone.default):
            twin = cls(op(args[0].rows), op(args[0].scales))
            return return_and_correct_aliasing(op, args, kwargs or {}, twin)
        plain = torch.utils._pytree.tree_map_only(cls, cls.plain, (args, kwargs or {}))
        return op(*plain[0], **plain[1])


def main() -> None:
    """Run and differentiate in eager and compiled, and compare."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8))
    for layer in (model[0], model[2]):
        layer.weight = nn.Parameter(Int8Rows.of(layer.weight), requires_grad=False)
    compiled = torch.compile(model, backend="max_backend", fullgraph=True)
    x = torch.randn(4, 32, requires_grad=True)
    for run, results in ((model, wanted := []), (compiled, given := [])):
        y = run(x)
        results += [y.detach(), *torch.autograd.grad(y.sum(), [x, model[0].bias])]
    torch.testing.assert_close(given, wanted, rtol=1e-4, atol=1e-5)
    print("a model with weights of int8: the same, with gradients")
    print_what_ran()


if __name__ == "__main__":
    main()

"""``torch.func``: gradients, per-sample gradients, Jacobians, tangents and an ensemble, compiled whole.

python examples/libraries/function_transforms.py
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vjp, vmap
from what_ran import print_what_ran


def main() -> None:
    """Run each transform in eager and compiled, and compare."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    params = {name: p.detach() for name, p in model.named_parameters()}
    others = [nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)) for _ in range(3)]
    x, labels, stacked = torch.randn(5, 4), torch.randint(3, (5,)), stack_module_state(others)[0]

    def run(weights: dict[str, torch.Tensor], row: torch.Tensor) -> torch.Tensor:
        return functional_call(model, weights, (row,))

    def loss(weights: dict[str, torch.Tensor], row: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(run(weights, row), label)

    def norm(row: torch.Tensor) -> torch.Tensor:
        return run(params, row).square().sum()

    transforms: dict[str, Callable[[], object]] = {
        "grad": lambda: grad(loss)(params, x, labels),
        "vmap of grad": lambda: vmap(grad(loss), (None, 0, 0))(params, x, labels),
        "jvp": lambda: jvp(lambda row: run(params, row), (x,), (torch.ones_like(x),)),
        "vjp": lambda: vjp(lambda row: run(params, row), x)[1](torch.ones(5, 3)),
        "jacrev": lambda: vmap(jacrev(lambda row: run(params, row)))(x),
        "jacfwd": lambda: vmap(jacfwd(lambda row: run(params, row)))(x),
        "hessian": lambda: hessian(norm)(x[0]),
        "ensemble": lambda: vmap(run, (0, None))(stacked, x),
    }
    for name, transform in transforms.items():
        given = torch.compile(transform, backend="max_backend", fullgraph=True)()
        torch.testing.assert_close(given, transform(), rtol=1e-4, atol=1e-5)
        print(f"{name}: the same")
    print_what_ran()


if __name__ == "__main__":
    main()

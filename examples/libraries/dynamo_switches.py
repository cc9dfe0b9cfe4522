"""``fullgraph``, ``dynamic``, and the switches of Dynamo that change what a backend is given.

python examples/libraries/dynamo_switches.py
"""

from __future__ import annotations

import torch
from torch import nn
from what_ran import print_what_ran


def selected(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The softmax of those elements that are chosen: how many depends on data."""
    return x[mask].softmax(0) * 2 + 1


def scaled(x: torch.Tensor) -> torch.Tensor:
    """Uses a number of the tensor's own."""
    return (x - 1).tanh() * x.sum().item()


class Counted(nn.Module):
    """Has a number that changes from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.linear = 0, nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.linear(x).relu() * self.calls


def main() -> None:
    """Run in eager and compiled, and compare."""
    torch.manual_seed(0)
    config = torch._dynamo.config
    whole = {"backend": "max_backend", "fullgraph": True}

    with config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        x = torch.randn(10)
        for limit in (0.0, 0.5):
            torch.testing.assert_close(torch.compile(selected, **whole)(x, x > limit), selected(x, x > limit))
        torch.testing.assert_close(torch.compile(scaled, **whole)(x), scaled(x), rtol=1e-4, atol=1e-5)
    print("sizes and numbers that depend on data, in one graph: the same")

    for switch in ("allow_unspec_int_on_nn_module", "specialize_float", "prefer_deferred_runtime_asserts_over_guards"):
        with config.patch({switch: not getattr(config, switch)}):
            torch._dynamo.reset()
            model, other = Counted(), Counted()
            other.load_state_dict(model.state_dict())
            run = torch.compile(model, backend="max_backend", dynamic=True)
            for rows in (2, 3, 5):
                y = torch.randn(rows, 4)
                torch.testing.assert_close(run(y), other(y), rtol=1e-4, atol=1e-5)
        print(f"{switch} the other way: the same")

    with config.patch(assume_static_by_default=False, automatic_dynamic_shapes=False):
        torch._dynamo.reset()
        run = torch.compile(nn.functional.gelu, backend="max_backend")
        for rows in (2, 7):
            y = torch.randn(rows, 3)
            torch.testing.assert_close(run(y), nn.functional.gelu(y), rtol=1e-4, atol=1e-5)
    print("no size static: the same")

    with config.patch(compiled_autograd=True):
        torch._dynamo.reset()
        linear, y = nn.Linear(4, 4), torch.randn(3, 4)

        def step() -> torch.Tensor:
            linear.zero_grad()
            linear(y).tanh().sum().backward()
            return linear.weight.grad.clone()

        torch.testing.assert_close(torch.compile(step, backend="max_backend")(), step(), rtol=1e-4, atol=1e-5)
    print("compiled autograd: the same gradients")
    print_what_ran()


if __name__ == "__main__":
    main()

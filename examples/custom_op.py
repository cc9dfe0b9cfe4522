"""An op of one's own: defined for PyTorch with torch.library, lowered to MAX with @map_to.

    uv run python examples/custom_op.py

The op squashes values softly into (-cap, cap), as some language models do with their logits. PyTorch needs a kernel
(here other PyTorch ops), a fake one for shapes, and a gradient; the backend needs one function for the op and one for
its gradient.
"""

from __future__ import annotations

import torch
from max.graph import TensorValue, ops

from torch_max_backend import map_to, reports


# -- for PyTorch ---------------------------------------------------------------------------------------------------
@torch.library.custom_op("examples::softcap", mutates_args=())
def softcap(x: torch.Tensor, cap: float) -> torch.Tensor:
    """``cap * tanh(x / cap)``."""
    return cap * torch.tanh(x / cap)


@softcap.register_fake
def _(x: torch.Tensor, cap: float) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("examples::softcap_backward", mutates_args=())
def softcap_backward(grad: torch.Tensor, result: torch.Tensor, cap: float) -> torch.Tensor:
    """The gradient, from the result: ``grad * (1 - (result / cap)^2)``."""
    return grad * (1 - (result / cap).square())


@softcap_backward.register_fake
def _(grad: torch.Tensor, result: torch.Tensor, cap: float) -> torch.Tensor:
    return torch.empty_like(grad)


def _keep(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(output)
    ctx.cap = inputs[1]


def _backward(ctx, grad):  # type: ignore[no-untyped-def]
    return softcap_backward(grad, *ctx.saved_tensors, ctx.cap), None


softcap.register_autograd(_backward, setup_context=_keep)


# -- for MAX -------------------------------------------------------------------------------------------------------
# examples::softcap(Tensor x, float cap) -> Tensor
@map_to(torch.ops.examples.softcap.default)
def lower_softcap(x: TensorValue, cap: float) -> TensorValue:
    """The same in MAX's ops, which MAX fuses with what stands around them."""
    return ops.mul(ops.tanh(ops.div(x, cap)), cap)


# examples::softcap_backward(Tensor grad, Tensor result, float cap) -> Tensor
@map_to(torch.ops.examples.softcap_backward.default)
def lower_softcap_backward(grad: TensorValue, result: TensorValue, cap: float) -> TensorValue:
    """The gradient in MAX's ops."""
    share = ops.div(result, cap)
    return ops.mul(grad, ops.sub(1.0, ops.mul(share, share)))


def logits(x: torch.Tensor) -> torch.Tensor:
    """A program that uses the op."""
    return softcap(x * 3 + 1, 30.0) - 1


def main() -> None:
    """Run the program and its gradient in eager and compiled, and compare."""
    # Strict: an op that torch would have to run is an error.
    compiled = torch.compile(logits, backend="max_backend", options={"fallback": "error"})
    results = []
    for run in (logits, compiled):
        x = torch.linspace(-40, 40, 1000).requires_grad_()
        y = run(x)
        y.sum().backward()
        results.append((y.detach(), x.grad))
    (wanted, wanted_grad), (given, given_grad) = results
    for report in reports():
        print(report.summary())
    differences = [float((a - b).abs().max()) for a, b in ((given, wanted), (given_grad, wanted_grad))]
    print("largest difference: result {:.1e}, gradient {:.1e}".format(*differences))
    assert reports(), "nothing was compiled"
    torch.testing.assert_close(given, wanted, rtol=1e-5, atol=1e-5)
    # Where the op saturates, the gradient is a difference of nearly equal numbers: it has an absolute error.
    torch.testing.assert_close(given_grad, wanted_grad, rtol=1e-5, atol=1e-5)
    print("The same result and gradient as eager.")


if __name__ == "__main__":
    main()

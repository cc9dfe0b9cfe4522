"""Cases of activations and their gradients."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.aten_functions.pointwise.cases_pointwise import BF16, F16, F64, edges
from tests.support.cases import Case, rand, randn

aten = torch.ops.aten


def forward(x):
    """Every activation with its defaults and with arguments."""
    return (
        F.relu(x), F.relu6(x), F.hardtanh(x), F.hardtanh(x, -0.3, 0.4), F.leaky_relu(x), F.leaky_relu(x, 0.3), F.elu(x),
        F.elu(x, 0.7), F.celu(x, 1.3), F.selu(x), F.softplus(x), F.softplus(x, 2, 3), F.silu(x), F.mish(x),
        F.hardswish(x), F.hardsigmoid(x), F.logsigmoid(x), F.sigmoid(x), F.tanh(x), F.threshold(x, 0.1, 20.0),
        F.softshrink(x), F.hardshrink(x, 0.3), F.tanhshrink(x), F.softsign(x),
    )  # fmt: skip


def backward(g, x):
    """Every gradient formula."""
    y, t = torch.sigmoid(x), torch.tanh(x)
    return (
        aten.sigmoid_backward(g, y), aten.tanh_backward(g, t), aten.threshold_backward(g, x, 0.1),
        aten.threshold_backward(g, x, 0), aten.gelu_backward(g, x), aten.gelu_backward(g, x, approximate="tanh"),
        aten.silu_backward(g, x), aten.hardswish_backward(g, x), aten.hardsigmoid_backward(g, x),
        aten.hardtanh_backward(g, x, -0.5, 0.5), aten.leaky_relu_backward(g, x, 0.2, False),
        aten.elu_backward(g, 1.2, 1.1, 0.9, False, x), aten.elu_backward(g, 1.2, 1.1, 0.9, True, x),
        aten.softplus_backward(g, x, 1.5, 2.0), aten.mish_backward(g, x), aten.softshrink_backward(g, x, 0.4),
        aten.hardshrink_backward(g, x, 0.4), aten.log_sigmoid_backward(g, x, torch.exp(-x.abs())),
        aten.rrelu_with_noise_backward(g, x, y, 0.1, 0.3, True, False),
        aten.rrelu_with_noise_backward(g, x, y, 0.1, 0.3, False, False),
    )  # fmt: skip


def gelus(x):
    """Both forms."""
    return F.gelu(x), F.gelu(x, approximate="tanh")


def glus(x):
    """Along each dimension."""
    return F.glu(x), F.glu(x, 0), F.glu(x, -2)


FINITE = torch.cat([edges()[:1], edges()[3:]])

CASES = [
    Case("forward_f32", forward, (randn(4, 33, scale=3),)),
    Case("forward_edges", forward, (edges(),)),
    Case("forward_bf16", forward, (randn(4, 33, dtype=BF16, scale=3),)),
    Case("forward_f16", forward, (randn(4, 33, dtype=F16, scale=3),)),
    Case("forward_f64", forward, (randn(4, 33, dtype=F64, scale=3),)),
    Case("forward_far", forward, (torch.linspace(-100, 100, 61),)),
    Case("forward_zero_dim", forward, (randn(),)),
    Case("forward_empty", forward, (torch.ones(0, 3),)),
    Case("gelus_f32", gelus, (randn(4, 33, scale=3),)),
    Case("gelus_far", gelus, (torch.cat([torch.linspace(-20, 20, 81), FINITE]),)),
    Case("gelus_bf16", gelus, (randn(4, 33, dtype=BF16, scale=3),)),
    Case("gelus_f16", gelus, (randn(4, 33, dtype=F16, scale=3),)),
    Case("gelus_f64", gelus, (randn(4, 33, dtype=F64, scale=3),)),
    Case("backward_f32", backward, (randn(4, 33), randn(4, 33, scale=2))),
    Case("backward_far", backward, (randn(61), torch.linspace(-30, 30, 61))),
    Case("backward_nan", backward, (randn(64), edges()[:1].expand(64))),
    Case("backward_bf16", backward, (randn(4, 33, dtype=BF16), randn(4, 33, dtype=BF16, scale=2)), rtol=3e-2, atol=1e-2,
         why="torch rounds some intermediate results to 16 bits"),
    Case("backward_f64", backward, (randn(4, 33, dtype=F64), randn(4, 33, dtype=F64, scale=2))),
    Case("glu", glus, (randn(4, 6, 8),)),
    Case("glu_bf16", glus, (randn(4, 6, 8, dtype=BF16),)),
    Case("prelu", lambda x, w: (F.prelu(x, w), F.prelu(x, w[:1])), (randn(4, 6, 8), rand(6))),
    Case("hardtanh_integers", lambda x: F.hardtanh(x, -2, 2), (torch.arange(-5, 5),)),
    Case("dynamic", lambda x: (F.gelu(x), F.silu(x), F.glu(x), F.hardswish(x), F.softplus(x)), (randn(3, 4),),
         dynamic=True, second=(randn(6, 10),)),
]  # fmt: skip

"""Models that ``torchao.quantization.pt2e`` has quantised and exported: programs alone, and right against eager."""

from __future__ import annotations

from operator import attrgetter

import pytest
import torch
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
    X86InductorQuantizer,
    get_default_x86_inductor_quantization_config,
)

import torch_max_backend
from torch_max_backend.capture import quantized_decomposed_ops

OPTIONS = {"fallback": "error", "executor": "auto"}


def linears() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(288, 4)
    )


def exported(model: nn.Module, x: torch.Tensor, dynamic: bool) -> torch.nn.Module:
    """A model with int8 weights by channel, and activations by tensor: of a calibration, or of the call."""
    quantizer = X86InductorQuantizer().set_global(get_default_x86_inductor_quantization_config(is_dynamic=dynamic))
    prepared = prepare_pt2e(torch.export.export(model.eval(), (x,)).module(), quantizer)
    prepared(x)
    return convert_pt2e(prepared)


@pytest.mark.sampled
@pytest.mark.parametrize("dynamic", [False, True], ids=["calibrated", "dynamic"])
@pytest.mark.parametrize(
    ("make", "shape"),
    [(linears, (1, 64)), (linears, (5, 64)), (convolutions, (2, 3, 16, 16))],
    ids=["one row", "rows", "images"],
)
def test_right_against_eager(make: object, shape: tuple[int, ...], dynamic: bool) -> None:
    """Sums in another order may move an activation to the next of 256 steps: half of one on the average of all."""
    torch.manual_seed(0)
    x = torch.randn(shape)
    model = exported(make(), x, dynamic)  # type: ignore[operator]
    assert any("quantized_decomposed" in str(node.target) for node in model.graph.nodes)  # type: ignore[union-attr]
    with torch.no_grad():
        wanted = model(x)
        found = torch.compile(model, backend="max_backend", fullgraph=True, options=OPTIONS)(x)
    report = torch_max_backend.reports()[-1]
    assert report.stats.regions == report.stats.programs == 1
    assert not report.islands
    assert (found - wanted).norm() <= wanted.norm() / 512
    if shape[0] == 1:
        assert report.programs[0].library_calls == ()


def ops() -> dict[str, tuple[object, ...]]:
    """Calls of the ops, by overload; numbers at ties, beyond the range, and of 16 bits among them."""
    x = torch.cat([torch.randn(60) * 3, torch.tensor([0.25, -0.75, 1e6, -1e6])]).view(8, 8)
    codes = torch.randint(-128, 128, (8, 8)).to(torch.int8)
    scale = torch.tensor(0.05, dtype=torch.float64)
    zero, low, high = (torch.tensor(k) for k in (3, 0, 255))
    scales, zeros = torch.rand(8) + 0.01, torch.randint(-9, 9, (8,))
    signed = (-128, 127, torch.int8)
    return {
        "quantize_per_tensor.default": (x, 0.5, 0, *signed),
        "quantize_per_tensor.tensor": (x.bfloat16(), scale, zero, 0, 255, torch.uint8),
        "quantize_per_tensor.tensor2": (x, scale, zero, low, high, torch.uint8),
        "dequantize_per_tensor.default": (codes, 0.1, -4, *signed),
        "dequantize_per_tensor.tensor": (codes, scale, zero, *signed),
        "dequantize_per_tensor.tensor2": (codes, scale, zero, low, high, torch.int8),
        "quantize_per_channel.default": (x, scales, zeros, 1, *signed),
        "dequantize_per_channel.default": (codes, scales, zeros, 0, *signed),
        "choose_qparams.tensor": (x, 0, 255, 1e-7, torch.uint8),
        "choose_qparams_symmetric.tensor": (x.half(), -127, 127, 1e-7, torch.int8),
    }


@pytest.mark.sampled
def test_ops_are_equal_to_eager() -> None:
    """To the bit, scale and zero of a call included."""
    torch.manual_seed(0)
    calls = {attrgetter(name)(torch.ops.quantized_decomposed): arguments for name, arguments in ops().items()}
    assert calls.keys() == quantized_decomposed_ops.quantized_decomposed_rules().keys()

    def function() -> list[object]:
        return [op(*arguments) for op, arguments in calls.items()]

    torch._dynamo.reset()
    found = torch.compile(function, backend="max_backend", fullgraph=True, options=OPTIONS)()
    for op, a, b in zip(calls, found, function(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True, msg=str(op))

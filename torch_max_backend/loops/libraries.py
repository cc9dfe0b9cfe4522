"""Which ops a library computes, and which library that is."""

from __future__ import annotations

import torch

aten = torch.ops.aten

_ATEN = [
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.baddbmm.default,
    aten.addbmm.default,
    aten._int_mm.default,
    aten._trilinear.default,
    aten.mv.default,
    aten.dot.default,
    aten.addmv.default,
    aten.convolution.default,
    aten.convolution_backward.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
]

LIBRARY: dict[object, str] = dict.fromkeys(_ATEN, "ATen")
"""Products, convolutions and attention, by op: the library that computes them. "ATen" is torch's own kernel, which on a
CPU is MKL's or oneDNN's."""

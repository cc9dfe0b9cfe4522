"""Lowerings that no op case can reach, each with the reason, and a call that would reach it if the reason went away."""

from __future__ import annotations

import torch

from tests.support.cases import Case, randn

aten = torch.ops.aten

AUTOGRAD = "torch takes it apart while it traces, by a rule for autograd that no decomposition table overrides"
COMPOSITE = "torch takes it apart before a backend sees it, since it is a composite"
GPU = "eager has it on a GPU only; tests/gpu has its tests"
GONE = "functionalization removes it"

MATRIX, ROWS, IMAGE, VOLUME = randn(3, 4), randn(2, 3, 8), randn(2, 3, 6, 8), randn(1, 2, 3, 6, 8)
HEADS = randn(2, 4, 5, 16)
HALF = randn(1, 3, 3, dtype=torch.bfloat16)


def _flash_backward(x, sums, state):
    rest = (sums, None, None, 5, 5, 0.0, False, state, state)
    return aten._scaled_dot_product_flash_attention_backward(x, x, x, x, x, *rest)


def _cudnn_backward(x, sums, state):
    rest = (sums, state, state, None, None, None, 5, 5, 0.0, False)
    return aten._scaled_dot_product_cudnn_attention_backward(x, x, x, x, x, *rest)


STATE = (randn(2, 4, 5), torch.zeros((), dtype=torch.int64))

UNREACHED = [
    Case("aten._efficientzerotensor.default", lambda x: x + aten._efficientzerotensor([3, 4]), (MATRIX,), why=GONE),
    Case("aten.lift.default", lambda x: aten.lift(x) + 1, (MATRIX,), why=GONE),
    Case("aten.lift_fresh.default", lambda x: aten.lift_fresh(x) + 1, (MATRIX,), why=GONE),
    Case(
        "aten._fused_rms_norm.default", lambda x: aten._fused_rms_norm(x, [4], None, 1e-5)[0], (MATRIX,), why=COMPOSITE
    ),
    Case("aten.avg_pool1d.default", lambda x: aten.avg_pool1d(x, [2]), (ROWS,), why=COMPOSITE),
    Case("aten.isclose.default", lambda x: aten.isclose(x, x), (MATRIX,), why=COMPOSITE),
    Case("aten.isfinite.default", aten.isfinite, (MATRIX,), why=COMPOSITE),
    Case("aten.linear.default", lambda x: aten.linear(x, x), (MATRIX,), why=COMPOSITE),
    Case("aten.true_divide.Tensor", lambda x: aten.true_divide(x, x), (MATRIX,), why=COMPOSITE),
    Case(
        "aten.scaled_dot_product_attention.default",
        lambda x: aten.scaled_dot_product_attention(x, x, x),
        (HEADS,),
        why=f"{COMPOSITE}; on a GPU it stays whole (capture/composite_ops.py)",
    ),
    Case("aten.hardshrink.default", lambda x: aten.hardshrink(x), (MATRIX,), why=AUTOGRAD),
    Case("aten.softshrink.default", lambda x: aten.softshrink(x), (MATRIX,), why=AUTOGRAD),
    Case(
        "aten.upsample_bicubic2d.default", lambda x: aten.upsample_bicubic2d(x, [9, 5], False), (IMAGE,), why=AUTOGRAD
    ),
    Case(
        "aten.upsample_bilinear2d.default", lambda x: aten.upsample_bilinear2d(x, [9, 5], True), (IMAGE,), why=AUTOGRAD
    ),
    *(
        Case(
            f"aten.{name}{n}d.default",
            lambda x, op=f"{name}{n}d", n=n: getattr(aten, op)(x, [7] * n),
            (x,),
            why=AUTOGRAD,
        )
        for name in ("upsample_nearest", "_upsample_nearest_exact")
        for n, x in ((1, ROWS), (2, IMAGE), (3, VOLUME))
    ),
    Case("aten.mm.dtype", lambda x: aten.mm.dtype(x[0], x[0], torch.float32), (HALF,), why=GPU),
    Case("aten.bmm.dtype", lambda x: aten.bmm.dtype(x, x, torch.float32), (HALF,), why=GPU),
    Case("aten.addmm.dtype", lambda x: aten.addmm.dtype(x[0].float(), x[0], x[0], torch.float32), (HALF,), why=GPU),
    Case("aten.baddbmm.dtype", lambda x: aten.baddbmm.dtype(x.float(), x, x, torch.float32), (HALF,), why=GPU),
    *(
        Case(f"aten.{op}.default", lambda x, op=op, rest=rest: getattr(aten, op)(x, x, x, *rest)[0], (HEADS,), why=GPU)
        for op, rest in (
            ("_scaled_dot_product_cudnn_attention", (None, False)),
            ("_scaled_dot_product_efficient_attention", (None, False)),
            ("_scaled_dot_product_flash_attention", ()),
            ("_scaled_dot_product_fused_attention_overrideable", ()),
        )
    ),
    Case("aten._scaled_dot_product_flash_attention_backward.default", _flash_backward, (HEADS, *STATE), why=GPU),
    Case("aten._scaled_dot_product_cudnn_attention_backward.default", _cudnn_backward, (HEADS, *STATE), why=GPU),
]
"""A case's name is the overload, and ``why`` the reason."""

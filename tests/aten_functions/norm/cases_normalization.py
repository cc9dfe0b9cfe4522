"""Softmax, negative log-likelihood, layer, group, batch and weight normalization, forward and backward."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.support.cases import Case, ints, rand, randn, special

aten = torch.ops.aten
NAN, INF = float("nan"), float("inf")
BF16, F16, F64 = torch.bfloat16, torch.float16, torch.float64


def hard_rows(width: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Rows with NaN, +inf, -inf, nothing but -inf, both infinities, large and equal values."""
    x = torch.randn(9, width, generator=torch.Generator().manual_seed(1)) * 3
    x[0, 2] = NAN
    x[1] = -INF
    x[2, 1] = INF
    x[3, 0] = -INF
    x[4] = 1e4
    x[5] = -1e30
    x[6, 0], x[6, 1] = INF, -INF
    x[7] = NAN
    return x.to(dtype)


def softmaxes(x):
    return x.softmax(-1), x.log_softmax(-1), aten._safe_softmax(x, -1)


def softmaxes_outer(x):
    return x.softmax(0), x.log_softmax(0), aten._safe_softmax(x, 0)


def softmaxes_3d(x):
    return (
        x.softmax(1),
        x.log_softmax(1),
        x.softmax(-1),
        x.log_softmax(2),
        x.softmax(0),
        aten._safe_softmax(x, 1),
    )


def softmax_dtypes(x):
    return x.softmax(-1, dtype=torch.float32), x.log_softmax(0, dtype=torch.float32), x.softmax(0)


def softmax_backward(g, x):
    y, z = x.softmax(1), x.log_softmax(1)
    return (
        aten._softmax_backward_data(g, y, 1, x.dtype),
        aten._log_softmax_backward_data(g, z, 1, x.dtype),
        aten._softmax_backward_data(g, y, -1, x.dtype),
        aten._log_softmax_backward_data(g, z, 0, x.dtype),
    )


def handwritten_softmax(x):
    e = (x - x.max(-1, keepdim=True).values).exp()
    return e / e.sum(-1, keepdim=True), x - torch.logsumexp(x, -1, keepdim=True)


def layer_norms(x, w, b):
    n = x.shape[-1]
    return (
        F.layer_norm(x, (n,), w, b),
        F.layer_norm(x, (n,), w),
        F.layer_norm(x, (n,), None, b, 1e-3),
        F.layer_norm(x, (n,)),
        F.layer_norm(x, x.shape[1:]),
        F.layer_norm(x, (n,), w, b, 0.0),
        *aten.native_layer_norm(x, [n], w, b, 1e-5),
        *aten.native_layer_norm(x, [x.shape[1], n], None, None, 1e-5),
        F.layer_norm(x[0, 0], (n,), w, b),
    )


def layer_norm_backward(g, x, w, b):
    n = x.shape[-1]
    _, mean, rstd = aten.native_layer_norm(x, [n], w, b, 1e-5)
    _, mean2, rstd2 = aten.native_layer_norm(x, list(x.shape[1:]), None, None, 1e-5)
    return (
        *aten.native_layer_norm_backward(g, x, [n], mean, rstd, w, b, [True, True, True]),
        aten.native_layer_norm_backward(g, x, [n], mean, rstd, w, b, [True, False, False])[0],
        aten.native_layer_norm_backward(g, x, list(x.shape[1:]), mean2, rstd2, None, None, [True, False, False])[0],
    )


def group_norms(x, w, b):
    c = x.shape[1]
    return (
        F.group_norm(x, 2, w, b),
        F.group_norm(x, 3, w),
        F.group_norm(x, c),
        F.group_norm(x, 1, None, b, 1e-2),
        F.group_norm(x[:, :, 0, 0], 2, w, b),
        *aten.native_group_norm(x, w, b, x.shape[0], c, x.shape[2] * x.shape[3], 2, 1e-5),
    )


def group_norm_backward(g, x, w):
    n, c, h, k = x.shape
    _, mean, rstd = aten.native_group_norm(x, w, None, n, c, h * k, 2, 1e-5)
    return (
        *aten.native_group_norm_backward(g, x, mean, rstd, w, n, c, h * k, 2, [True, True, True]),
        aten.native_group_norm_backward(g, x, mean, rstd, None, n, c, h * k, 2, [True, False, False])[0],
    )


def batch_norm_inference(x, w, b, m, v):
    return (
        F.batch_norm(x, m, v, w, b),
        F.batch_norm(x, m, v, w),
        F.batch_norm(x, m, v, None, b, eps=1e-2),
        F.batch_norm(x, m, v),
        F.batch_norm(x.flatten(2), m, v, w, b),
        F.batch_norm(x[:, :, 0, 0], m, v, w, b),
        F.batch_norm(x[..., None], m, v, w, b),
    )


def batch_norm_training(x, w, b, m, v):
    return (
        F.batch_norm(x, m, v, w, b, training=True, momentum=0.3),
        F.batch_norm(x, None, None, w, b, training=True),
        F.batch_norm(x[:, :, 0, 0], None, None, training=True),
        F.instance_norm(x, weight=w, bias=b),
        *aten._native_batch_norm_legit.no_stats(x, w, b, True, 0.1, 1e-5),
    )


def batch_norm_moves(*tensors):
    """Output and running statistics, where these have 16 bits; torch traces them in float32."""
    results = []
    for x, w, b, m, v in (tensors[:5], tensors[5:]):
        results += [F.batch_norm(x, m, v, w, b, training=True, momentum=0.3), m, v]
    return tuple(results)


def batch_norm_functional(x, w, b, m, v):
    return aten._native_batch_norm_legit_functional(x, w, b, m, v, True, 0.2, 1e-5)


def batch_norm_updates(x, w, b, m, v):
    return (
        *aten._batch_norm_with_update(x, w, b, m, v, 0.2, 1e-5),
        *aten._batch_norm_with_update_functional(x, w, b, m, v, 0.1, 1e-3),
        *aten._batch_norm_no_update(x, w, b, m, v, 0.1, 1e-5),
    )


def statistics_of_columns(x, g, w, m, v):
    """Of images with their channels last, with more pixels than a thread of a GPU goes through."""
    mean, rstd = x.float().mean((0, 2, 3)), x.float().var((0, 2, 3)).rsqrt()
    return (
        *aten._native_batch_norm_legit_functional(x, w, v, m, v, True, 0.2, 1e-5),
        *aten.native_batch_norm_backward(g, x, w, m, v, mean, rstd, True, 1e-5, [True] * 3),
        *torch.var_mean(x[:, :, 0].flatten(0, 1).float(), 0),
    )


def batch_norm_update_backward(g, x, w, m, v, is_training=True):
    _, mean, rstd, reserve = aten._batch_norm_with_update(x, w, w, m.clone(), v.clone(), 0.2, 1e-5)
    all_three = [True, True, True]
    return aten.batch_norm_backward(g, x, w, m, v, mean, rstd, is_training, 1e-5, all_three, reserve)


def batch_norm_backward(g, x, w, m, v):
    dims = [0, *range(2, x.dim())]
    mean, rstd = x.float().mean(dims).to(m.dtype), (x.float().var(dims, correction=0) + 1e-5).rsqrt().to(m.dtype)
    all_three = [True, True, True]
    return (
        *aten.native_batch_norm_backward(g, x, w, m, v, mean, rstd, True, 1e-5, all_three),
        *aten.native_batch_norm_backward(g, x, w, m, v, mean, rstd, False, 1e-5, all_three),
        aten.native_batch_norm_backward(g, x, None, m, v, mean, rstd, True, 1e-5, [True, False, False])[0],
    )


def batch_norms_of_sizes(*xs, offset=0.0):
    """In training, with gradients: each of ``xs`` is an image less an offset and, in another order, a gradient."""
    found = []
    for x in xs:
        weight = torch.linspace(0.5, 2, x.shape[1], dtype=x.dtype)
        image = x + offset
        y, mean, rstd = aten._native_batch_norm_legit.no_stats(image, weight, None, True, 0.1, 1e-5)
        found += [y, mean, rstd]
        found += aten.native_batch_norm_backward(
            x.flip(0), image, weight, None, None, mean, rstd, True, 1e-5, [True] * 3
        )
    return tuple(found)


def likelihoods(x, t, w):
    return (
        F.nll_loss(x, t),
        F.nll_loss(x, t, reduction="sum"),
        F.nll_loss(x, t, reduction="none"),
        F.nll_loss(x, t, w),
        F.nll_loss(x, t, w, reduction="sum", ignore_index=1),
        F.nll_loss(x, t, w, reduction="none", ignore_index=1),
        F.nll_loss(x, t, ignore_index=2),
        F.cross_entropy(x, t),
        F.cross_entropy(x, t, w, label_smoothing=0.1, ignore_index=0),
    )


def likelihood_backward(g, gn, x, t, w):
    forward, backward = aten.nll_loss_forward, aten.nll_loss_backward
    if x.dim() == 4:
        forward, backward = aten.nll_loss2d_forward, aten.nll_loss2d_backward
    total = forward(x, t, w, 1, 1)[1]
    return (
        total,
        backward(g, x, t, w, 1, 1, total),
        backward(g, x, t, None, 2, -100, total),
        backward(gn, x, t, w, 0, 2, total),
        backward(g, x, t, None, 1, -100, forward(x, t, None, 1, -100)[1]),
    )


def written_rms_norm(x, w):
    wide = x.to(torch.float32)
    return w * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def shifted_rms_norm(x, w):
    wide = x.float()
    return (wide * torch.rsqrt((wide * wide).mean((-1,), True) + 1e-6) * (1 + w.float())).type_as(x)


def rms_norms(x, r, w):
    return (
        written_rms_norm(x, w),
        shifted_rms_norm(x, w),
        written_rms_norm(x, 1),
        F.rms_norm(x, x.shape[-1:], w),
        F.rms_norm(x, x.shape[-2:]),
        *norms_of_sums(x, r, w),
    )


def norms_of_sums(x, r, w):
    a, b, c = x + r, x + 2 * r, r + x
    return a, written_rms_norm(a, w), F.layer_norm(b, w.shape, w, w), b, F.layer_norm(c, w.shape), c * w


def norms_of_rows(x, r, w):
    y = x + r
    mixed = x + r.bfloat16()
    return (
        F.layer_norm(x, w.shape, w, w),
        F.rms_norm(y, w.shape, w),
        y,
        r.softmax(-1),
        F.layer_norm(mixed, w.shape, w, w).view(-1).bfloat16(),
        mixed,
    )


def layer_norm_gradients(g, x, r, w):
    y, mean, rstd = aten.native_layer_norm(x, w.shape, w, w, 1e-5)
    gx, gw, gb = aten.native_layer_norm_backward(g.float(), x, w.shape, mean, rstd, w, w, [True] * 3)
    total = r + gx
    alone, *_ = aten.native_layer_norm_backward(g.float(), x, w.shape, mean, rstd, None, None, [True, False, False])
    return total, total.bfloat16(), gw, gb, alone.bfloat16(), y


def loss_and_gradient(x, t, how, ignored=1):
    """What a cross-entropy's backward is cut into: the forward gives two numbers a row, and no log-probabilities."""
    largest = aten.amax(x, [1], True)
    distance = aten.sub(x, largest)
    logarithm = aten.log(aten.sum(aten.exp(distance), [1], True))
    loss, total = aten.nll_loss_forward(aten.sub(distance, logarithm), t, None, 1, ignored)
    y = aten.sub(aten.add(x, aten.neg(largest)), logarithm)
    like = aten.expand(aten.full([1, 1], 0.0, device=x.device), x.shape)
    first = aten.nll_loss_backward(x[:, 0] if how == 0 else loss, like, t, None, how, ignored, total)
    gradient = aten.sub(first, aten.mul(aten.exp(y), aten.sum(first, [1], True)))
    return loss, largest, logarithm, gradient


def likelihoods_of_logits(x, t, w):
    wide = x.float()
    return (
        *loss_and_gradient(x.float(), t, 1),
        *loss_and_gradient(x + 1, t, 2),
        *loss_and_gradient(x * 2, t, 0),
        F.cross_entropy(x, t),
        F.cross_entropy(x, t, reduction="none"),
        F.cross_entropy(x, t, w, ignore_index=1),
        F.cross_entropy(x, t, w, reduction="sum"),
        F.cross_entropy(wide.reshape(-1, x.shape[1]), t, ignore_index=2),
        F.nll_loss((x + 1).log_softmax(-1), t),
    )


def weight_norm_backward(g, v, k0, k2):
    n0, n2 = v.norm(2, (1, 2), keepdim=True), v.norm(2, (0, 1), keepdim=True)
    return (
        *aten._weight_norm_interface_backward(g, v, k0, n0, 0),
        *aten._weight_norm_interface_backward(g, v, k2, n2, 2),
    )


def dynamic_norms(x, w, b, t):
    c = x.shape[1]
    return (
        x.softmax(-1),
        x.log_softmax(1),
        aten._safe_softmax(x, -1),
        F.layer_norm(x, x.shape[-1:]),
        F.group_norm(x.reshape(x.shape[0], 4, -1), 2, w, b),
        F.batch_norm(x, None, None, w, b, training=True),
        F.batch_norm(x, w, b.abs() + 1, w, b),
        F.nll_loss(x.reshape(-1, c), t),
        *aten.native_layer_norm(x, [x.shape[-1]], None, None, 1e-5),
    )


IMAGE = (randn(3, 6, 4, 5), randn(6), randn(6))
STATS = (randn(6), rand(6, low=0.5, high=2.0))
IMAGE_BF16 = (randn(3, 6, 4, 5, dtype=BF16), randn(6, dtype=BF16), randn(6, dtype=BF16))
STATS_BF16 = (randn(6, dtype=BF16), rand(6, low=0.5, high=2.0, dtype=BF16))
IMAGE_F16 = (randn(3, 6, 4, 5, dtype=torch.float16), *[randn(6, dtype=torch.float16)] * 2)
STATS_F16 = (randn(6, dtype=torch.float16), rand(6, low=0.5, high=2.0, dtype=torch.float16))
ROUNDING = "16-bit results differ by one rounding step of the largest term"
LAST = torch.randn(5, 32, 7, 8, generator=torch.Generator().manual_seed(0)).to(memory_format=torch.channels_last)

CASES = [
    Case("rms_norms", rms_norms, (randn(2, 3, 24), randn(2, 3, 24), randn(24))),
    Case(
        "rms_norms_bf16",
        rms_norms,
        (randn(2, 3, 24, dtype=BF16), randn(2, 3, 24, dtype=BF16), randn(24, dtype=BF16)),
        atol=3e-2,
        why=ROUNDING,
    ),
    Case("norms_of_rows", norms_of_rows, (randn(5, 24), randn(5, 24), randn(24))),
    Case("norms_of_long_rows", norms_of_rows, (randn(2, 20000), randn(2, 20000), randn(20000))),
    Case(
        "layer_norm_gradients",
        layer_norm_gradients,
        (randn(70, 24, dtype=BF16), randn(70, 24), randn(70, 24), randn(24)),
    ),
    Case("likelihoods_of_logits", likelihoods_of_logits, (randn(7, 5), ints(7, low=0, high=5), rand(5))),
    Case("softmaxes_rows", softmaxes, (hard_rows(40),)),
    Case("layer_norms", layer_norms, (randn(2, 3, 24), randn(24), randn(24))),
    Case("batch_norm_inference", batch_norm_inference, (*IMAGE, *STATS)),
    Case("likelihoods", likelihoods, (randn(7, 5), ints(7, low=0, high=5), rand(5))),
    Case("softmaxes_odd_rows", softmaxes, (hard_rows(37),)),
    Case("softmaxes_narrow_rows", softmaxes, (hard_rows(3),)),
    Case("softmaxes_columns", softmaxes_outer, (hard_rows(40).t().contiguous(),)),
    Case("softmaxes_bf16", softmaxes, (hard_rows(40, BF16),), atol=1e-3, why=ROUNDING),
    Case("softmaxes_f16", softmaxes, (hard_rows(40).clamp(-6e4).to(F16),), rtol=2e-3, atol=1e-4, why=ROUNDING),
    Case("softmaxes_f64", softmaxes, (hard_rows(40, F64),)),
    Case("softmaxes_columns_bf16", softmaxes_outer, (hard_rows(40, BF16).t().contiguous(),), atol=1e-3, why=ROUNDING),
    Case("softmaxes_long_rows", softmaxes, (randn(3, 5000),)),
    Case("softmaxes_3d", softmaxes_3d, (randn(3, 4, 20),)),
    Case("softmax_dtypes", softmax_dtypes, (randn(3, 20, dtype=BF16),), atol=1e-3, why=ROUNDING),
    Case("softmax_zero_dim", lambda x: (x.softmax(0), x.log_softmax(-1)), (torch.tensor(2.0),)),
    Case(
        "softmax_empty",
        lambda x, y: (x.softmax(1), x.log_softmax(1), y.softmax(1), y.log_softmax(0)),
        (torch.zeros(3, 0), torch.zeros(0, 3)),
    ),
    Case("softmax_backward", softmax_backward, (randn(5, 20), randn(5, 20))),
    Case(
        "softmax_backward_bf16",
        softmax_backward,
        (randn(5, 20, dtype=BF16), randn(5, 20, dtype=BF16)),
        atol=1.6e-2,
        why=ROUNDING,
    ),
    Case("handwritten_softmax", handwritten_softmax, (randn(5, 40, scale=3.0),)),
    Case(
        "layer_norms_bf16",
        layer_norms,
        (randn(2, 3, 24, dtype=BF16), randn(24, dtype=BF16), randn(24, dtype=BF16)),
        atol=2e-2,
        why=ROUNDING,
    ),
    Case(
        "layer_norm_mixed",
        lambda x, w, b: F.layer_norm(x, (24,), w, b),
        (randn(2, 3, 24, dtype=BF16), randn(24), randn(24)),
        atol=2e-2,
        why=ROUNDING,
    ),
    Case("layer_norms_f64", layer_norms, (randn(2, 3, 24, dtype=F64), randn(24, dtype=F64), randn(24, dtype=F64))),
    Case("layer_norm_hard_rows", lambda x: F.layer_norm(x, (40,)), (hard_rows(40),)),
    Case(
        "layer_norm_offset",
        lambda x: (F.layer_norm(x, (200,)), *aten.native_layer_norm(x, [200], None, None, 1e-5)),
        (rand(4, 200, low=100.0, high=101.0),),
        rtol=1e-3,
        atol=1e-3,
        why="the offset takes three digits",
    ),
    Case(
        "layer_norm_empty",
        lambda x, y: (F.layer_norm(x, (4,)), F.layer_norm(y, (0,))),
        (torch.zeros(0, 4), torch.zeros(4, 0)),
    ),
    Case("layer_norm_backward", layer_norm_backward, (randn(4, 3, 24), randn(4, 3, 24), randn(24), randn(24))),
    Case(
        "layer_norm_backward_bf16",
        layer_norm_backward,
        (randn(4, 3, 24, dtype=BF16), randn(4, 3, 24, dtype=BF16), randn(24, dtype=BF16), randn(24, dtype=BF16)),
        atol=4e-2,
        why=ROUNDING,
    ),
    Case(
        "layer_norm_backward_f64",
        layer_norm_backward,
        (randn(4, 3, 37, dtype=F64), randn(4, 3, 37, dtype=F64), randn(37, dtype=F64), randn(37, dtype=F64)),
    ),
    # Rows of several tasks and blocks, and rows of several pieces, on a CPU.
    Case("layer_norms_of_many_rows", layer_norms, (randn(300, 2, 125), randn(125), randn(125))),
    Case(
        "layer_norm_backward_of_many_rows",
        layer_norm_backward,
        (randn(300, 2, 125), randn(300, 2, 125), randn(125), randn(125)),
        atol=1e-4,
        why="eager adds up 600 products in float32: partial sums of 25, each rounded by 1e-6, at random 25 of them",
    ),
    Case(
        "layer_norm_backward_of_long_rows",
        layer_norm_backward,
        (randn(3, 2, 2501), randn(3, 2, 2501), randn(2501), randn(2501)),
    ),
    Case(
        "layer_norm_backward_dynamic",
        layer_norm_backward,
        (randn(4, 3, 24), randn(4, 3, 24), randn(24), randn(24)),
        dynamic=True,
        second=(randn(5, 2, 40), randn(5, 2, 40), randn(40), randn(40)),
    ),
    Case("group_norms", group_norms, IMAGE),
    Case("group_norms_bf16", group_norms, IMAGE_BF16, atol=3e-2, why=ROUNDING),
    Case(
        "group_norm_backward",
        group_norm_backward,
        (randn(3, 6, 4, 5), *IMAGE[:2]),
        atol=1e-4,
        why="sums of products of 40 elements cancel",
    ),
    Case("batch_norm_inference_bf16", batch_norm_inference, (*IMAGE_BF16, *STATS_BF16), atol=3e-2, why=ROUNDING),
    Case(
        "batch_norm_inference_mixed", batch_norm_inference, (IMAGE_BF16[0], *IMAGE[1:], *STATS), atol=3e-2, why=ROUNDING
    ),
    Case("batch_norm_training", batch_norm_training, (*IMAGE, *STATS)),
    Case(
        "batch_norm_training_bf16",
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        IMAGE_BF16,
        atol=3e-2,
        why=ROUNDING,
    ),
    Case(
        "batch_norm_training_16_bits",
        batch_norm_moves,
        (*IMAGE_BF16, *STATS_BF16, *IMAGE_F16, *STATS_F16),
        atol=3e-2,
        why=ROUNDING,
    ),
    Case("statistics_of_columns", statistics_of_columns, (LAST, LAST.flip(0), *[rand(32, low=0.5)] * 3)),
    Case(
        "batch_norm_sizes",
        batch_norms_of_sizes,
        (randn(2, 3, 70, 71), randn(5, 4, 3, 3), randn(3, 40, 5, 7), randn(9, 5), randn(2, 3, 37), randn(2, 66, 8, 8)),
        rtol=1e-4,
        atol=1e-4,
        why="sums of some thousand products cancel",
    ),
    Case(
        "batch_norm_far_from_zero",
        lambda x, y: (*batch_norms_of_sizes(x, offset=1000), *batch_norms_of_sizes(y, offset=-30)),
        (randn(2, 3, 70, 71), randn(4, 3, 2, 2)),
        rtol=1e-3,
        atol=2e-3,
        why="what is near 1000 has an absolute rounding error of 6e-5",
    ),
    Case(
        "batch_norm_special",
        batch_norms_of_sizes,
        (special().reshape(2, 4, 2), special().reshape(2, 4, 2).nan_to_num(1.0, 2.0, 3.0)),
        rtol=1e-4,
        why="sums in another order, of numbers of many sizes",
    ),
    Case("batch_norm_functional", batch_norm_functional, (*IMAGE, *STATS)),
    Case("batch_norm_updates", batch_norm_updates, (*IMAGE, *STATS)),
    Case("batch_norm_update_backward", batch_norm_update_backward, (randn(3, 6, 4, 5), *IMAGE[:2], *STATS)),
    Case("batch_norm_update_given", batch_norm_update_backward, (randn(3, 6, 4, 5), *IMAGE[:2], *STATS, False)),
    Case(
        "batch_norm_backward",
        batch_norm_backward,
        (randn(3, 6, 4, 5), *IMAGE[:2], *STATS),
        atol=1e-4,
        why="sums of products of 60 elements cancel",
    ),
    Case("likelihoods_images", likelihoods, (randn(2, 5, 3, 4), ints(2, 3, 4, low=0, high=5), rand(5))),
    Case("likelihoods_one", likelihoods, (randn(5), torch.tensor(3), rand(5))),
    Case(
        "likelihoods_bf16",
        likelihoods,
        (randn(7, 5, dtype=BF16), ints(7, low=0, high=5), rand(5, dtype=BF16)),
        atol=2e-2,
        why=ROUNDING,
    ),
    Case("likelihood_all_ignored", lambda x, t: F.nll_loss(x, t, ignore_index=1), (randn(4, 5), torch.ones(4).long())),
    Case("likelihood_backward", likelihood_backward, (randn(), randn(7), randn(7, 5), ints(7, low=0, high=5), rand(5))),
    Case(
        "likelihood_backward_images",
        likelihood_backward,
        (randn(), randn(2, 3, 4), randn(2, 5, 3, 4), ints(2, 3, 4, low=0, high=5), rand(5)),
    ),
    Case("weight_norm", lambda v, g: torch._weight_norm(v, g, 0), (randn(4, 3, 5), randn(4, 1, 1))),
    Case(
        "weight_norm_backward", weight_norm_backward, (randn(4, 3, 5), randn(4, 3, 5), randn(4, 1, 1), randn(1, 1, 5))
    ),
    Case("rms_norm", lambda x, w: (F.rms_norm(x, (24,), w, 1e-6), F.rms_norm(x, (24,))), (randn(2, 3, 24), randn(24))),
    Case(
        "dynamic",
        dynamic_norms,
        (randn(3, 4, 5), randn(4), randn(4), ints(15, low=0, high=4)),
        dynamic=True,
        second=(randn(2, 4, 7), randn(4), randn(4), ints(14, low=0, high=4)),
    ),
]

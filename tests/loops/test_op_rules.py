"""Ops as generated programs: the same as eager, whatever the dtype, size, stride or alias."""

# ruff: noqa: E501 (one case a line)
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import torch_max_backend

pytestmark = pytest.mark.sampled

Row = tuple[str, Callable[..., Any], Sequence[Any]]

TOLERANCES = {
    # torch's own vector functions and these ones are each within 2 units in the last place of 2^-23
    torch.float32: (4 * 2**-23, 1e-6),
    torch.float64: (4 * 2**-52, 1e-14),
    # one rounding of 16 bits: eager rounds between ops, and a program once
    torch.float16: (2 * 2**-10, 1e-3),
    torch.bfloat16: (2 * 2**-7, 1e-2),
}
"""Relative and absolute difference to eager."""


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The same numbers for the same shape."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + len(shape))).to(dtype)


def integers(*shape: int, low: int = -9, high: int = 9, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Whole numbers, the same for the same shape."""
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(7)).to(dtype)


def check(function: Callable[..., Any], inputs: Sequence[Any]) -> None:
    """Compile ``function`` to programs alone, and compare results, strides and its inputs afterwards with eager's."""
    mine, theirs = ([x.clone() if isinstance(x, torch.Tensor) else x for x in inputs] for _ in range(2))
    mine = [_alike(x, y) for x, y in zip(mine, inputs, strict=True)]
    theirs = [_alike(x, y) for x, y in zip(theirs, inputs, strict=True)]
    compiled = torch.compile(
        function, backend="max_backend", fullgraph=True, options={"fallback": "error", "executor": "auto"}
    )
    found, wanted = compiled(*mine), function(*theirs)
    assert torch_max_backend.reports()[-1].stats.programs >= 1
    compare(found, wanted)
    compare(mine, theirs)


def _alike(copy: Any, x: Any) -> Any:
    """A copy in memory like ``x``: its strides, and its offset."""
    if not isinstance(x, torch.Tensor):
        return x
    storage = x.untyped_storage().clone()
    return torch.empty((), dtype=x.dtype).set_(storage, x.storage_offset(), x.shape, x.stride())


def compare(found: Any, wanted: Any) -> None:
    """Values, dtypes, shapes and strides."""
    mine, theirs = (torch.utils._pytree.tree_leaves(x) for x in (found, wanted))
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs, strict=True):
        if not isinstance(b, torch.Tensor):
            assert a == b
            continue
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if b.numel() > 1:
            assert a.stride() == b.stride()
        rtol, atol = TOLERANCES.get(b.dtype, (0, 0))
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)


def _nll(reduction: str, weighted: bool, ignore_index: int = -100) -> Callable[..., Any]:
    def loss(x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.nll_loss(x, target, weight if weighted else None, reduction=reduction, ignore_index=ignore_index)

    return loss


def _batch_norm(training: bool) -> Callable[..., Any]:
    def norm(x: Any, mean: Any, variance: Any, weight: Any, bias: Any) -> Any:
        return F.batch_norm(x, mean, variance, weight, bias, training)

    return norm


STATISTICS = [randn(3), randn(3).abs() + 0.5, randn(3), randn(3)]
SPECIAL = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.5, -1.5, 1e-40, 3.0])

ROWS: list[Row] = [
    # losses and norms
    *(
        (f"nll_loss {reduction} {weighted} {ignored}", _nll(reduction, weighted, ignored), [x, target, randn(5)])
        for reduction in ("none", "mean", "sum")
        for weighted, ignored in ((False, -100), (True, 2))
        for x, target in ((randn(7, 5), integers(7, low=0, high=5)),)
    ),
    ("nll_loss of an image", _nll("mean", True, 1), [randn(2, 5, 3, 4), integers(2, 3, 4, low=0, high=5), randn(5)]),
    ("nll_loss of a vector", _nll("sum", False), [randn(5), torch.tensor(3), randn(5)]),
    ("nll_loss of nothing but ignored", _nll("mean", False, 1), [randn(3, 5), torch.ones(3).long(), randn(5)]),
    ("batch_norm in training", _batch_norm(True), [randn(4, 3, 5, 2), *STATISTICS]),
    ("batch_norm of rows in training", _batch_norm(True), [randn(9, 3), *STATISTICS]),
    ("batch_norm in evaluation", _batch_norm(False), [randn(4, 3, 5), *STATISTICS]),
    ("batch_norm without statistics", lambda x: F.batch_norm(x, None, None, training=True), [randn(4, 3, 5)]),
    (
        "batch_norm of channels last",
        _batch_norm(True),
        [randn(4, 3, 5, 2).to(memory_format=torch.channels_last), *STATISTICS],
    ),
    ("batch_norm of bfloat16", _batch_norm(True), [randn(4, 3, 5).bfloat16(), *STATISTICS]),
    # reductions of nothing and of one
    *(
        (f"{name} of {list(x.shape)}", function, [x])
        for x in (torch.tensor(2.5), randn(1), randn(1, 1))
        for name, function in {
            "sum": lambda x: x.sum(),
            "amax": lambda x: x.amax(),
            "argmax": lambda x: x.argmax(),
            "var": lambda x: x.var(correction=0),
            "softmax": lambda x: x.softmax(-1),
            "prod": lambda x: x.prod(),
            "any": lambda x: x.any(),
            "std_mean": lambda x: torch.std_mean(x, correction=0),
        }.items()
    ),
    *(
        (f"{name} of no element", function, [torch.zeros(3, 0)])
        for name, function in {
            "sum": lambda x: (x.sum(), x.sum(1), x.sum(0)),
            "mean": lambda x: x.mean(1),
            "prod": lambda x: x.prod(1),
            "all": lambda x: (x.all(), x.any(1)),
            "add": lambda x: x + 1,
            "roll": lambda x: x.roll(1, 1),
            "softmax": lambda x: x.softmax(1),
            "repeat": lambda x: x.repeat(2, 3),
            "cat": lambda x: torch.cat([x, x + 1], 1),
        }.items()
    ),
    ("softmax of rows without a number", lambda x: torch.ops.aten._safe_softmax(x, -1), [torch.tensor([[-torch.inf] * 3, [0.0, 1.0, -torch.inf]])]),
    # whole numbers
    *(
        (f"{name} of {dtype}", function, [integers(40, dtype=dtype), integers(40, low=1, dtype=dtype)])
        for dtype in (torch.int64, torch.int8, torch.uint8)
        for name, function in {
            "floor_divide": lambda a, b: a // b,
            "remainder": lambda a, b: (a % b, a % 3, a % -3 if a.dtype.is_signed else a % 5),
            "fmod": torch.fmod,
            "trunc division": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
            "true division": lambda a, b: a / b,
            "power": lambda a, b: (a**b, a**2, a**7, a**0),
            "shifts": lambda a, b: (a << (b % 5), a >> (b % 5)),
            "sum": lambda a, b: (a.sum(), a.amax(), b.prod(), a.argmin()),
            "comparisons": lambda a, b: (a < b, a.eq(3), (a > 0) & (b > 2), a.clamp(-3, 5), a.clamp(max=300)),
            "abs and sign": lambda a, b: (a.abs(), a.sign(), -a, ~a),
            "hardtanh": lambda a, b: F.hardtanh(a, 0, 4),
            "numbers": lambda a, b: (a + 1, a * 2.5, 3 - a, torch.where(a > 0, a, 2.5)),
        }.items()
    ),
    ("powers of whole numbers", lambda a, b: a**b, [torch.tensor([2, -1, -1, 1, 0, 3, -2]), torch.tensor([62, -3, -4, -9, 0, -1, 63])]),
    *(
        (f"powers of {dtype}", lambda a, b: (a**b, 3**b, a[:, None] ** b, a.int() ** b.abs()), [integers(40, dtype=dtype), torch.cat([integers(37), torch.tensor([63, 100, -100])]).to(dtype)])
        for dtype in (torch.int64, torch.int32, torch.int8)
    ),
    ("powers of bytes", lambda a, b: (a**b, a**200, a**0), [integers(40, low=0, high=255, dtype=torch.uint8), integers(40, low=0, high=255, dtype=torch.uint8)]),
    ("true and false", lambda a, b: (a + b, a * b, a & b, a | b, a ^ b, ~a, a.sum(), a.to(torch.float32).mean(), a < b), [randn(9) > 0, randn(9, dtype=torch.float64) < 0]),
    # numbers beside the ordinary
    *(
        (f"{name} of NaN and infinities", function, [SPECIAL])
        for name, function in {
            "minimum": lambda x: (torch.minimum(x, x.flip(0)), torch.fmax(x, x.flip(0)), x.clamp(-1, 1)),
            "amax": lambda x: (x.amax(), x.argmax(), x[1:3].argmin(), x[3:].amin()),
            "relu": lambda x: (x.relu(), F.leaky_relu(x), F.hardtanh(x), F.elu(x)),
            "comparisons": lambda x: (x < 1, x.ne(x), x.isnan(), x.isinf(), x.isfinite(), x.signbit()),
            "rounding": lambda x: (x.round(), x.floor(), x.ceil(), x.trunc(), x.frac()),
            "division": lambda x: (x / 0, 1 / x, x // 2, x % 2, torch.fmod(x, 2.0), x // -1.5),
            "exponents": lambda x: (x.exp(), x.log(), x.sqrt(), x.rsqrt(), x.sigmoid(), x.tanh(), x.log1p()),
            "powers": lambda x: (x**2, x**0.5, x**-1, x**3.3, 2**x, x**0),
            "signs": lambda x: (x.abs(), x.sign(), torch.copysign(torch.ones(9), x), -x, x.sgn()),
            "truth": lambda x: (x.any(), x.all(), x.logical_not(), x.bool(), x.nan_to_num()),
            "sums": lambda x: (x[3:].sum(), x.logsumexp(0), x[1:].cumsum(0)[:1], x.softmax(0)),
            "closeness": lambda x: (x.isclose(x), x.isclose(x, equal_nan=True), x.isclose(x + 1e-7)),
            "casts": lambda x: (x[3:].to(torch.int32), x.half(), x.bfloat16(), x.double(), x.bool()),
        }.items()
    ),
    ("signs of zeros", lambda x: (x.relu().signbit(), x.clamp(-1, 1).signbit(), x.clamp(min=0.0).signbit(), x.clamp(max=0).signbit()), [SPECIAL.repeat(8)]),
    ("trunc division of bfloat16", lambda a, b: torch.div(a, b, rounding_mode="trunc"), [randn(50, dtype=torch.bfloat16) * 9, randn(50, dtype=torch.bfloat16).abs() + 0.5]),
    ("sums in a dtype", lambda x, i: (x.sum(1, dtype=torch.bfloat16), x.mean(0, dtype=torch.float64), i.sum(dtype=torch.int16), i.prod(0, dtype=torch.float32), i.mean(1, dtype=torch.bfloat16)), [randn(3, 4), integers(3, 4)]),
    ("gradients at NaN", lambda g, x: [f(g, x) for f in (torch.ops.aten.hardswish_backward, lambda g, x: torch.ops.aten.hardtanh_backward(g, x, -0.5, 0.5), lambda g, x: torch.ops.aten.elu_backward(g, 1.2, 1.1, 0.9, False, x), lambda g, x: torch.ops.aten.softshrink_backward(g, x, 0.4))], [randn(64), torch.full((64,), float("nan"))]),
    ("functions of whole numbers", lambda x: (x.exp(), x.erf(), x.log1p(), x.lgamma(), x.sqrt(), x.atan(), x.rsqrt()), [integers(64, low=0, high=20)]),
    ("functions of truth", lambda x: (x.exp(), x.log(), x.sigmoid(), x.rsqrt(), x.cos(), x.digamma()), [randn(64) > 0]),
    # parts of floats, and bits
    *(
        (f"parts of {x.dtype}", lambda x: (*torch.frexp(x), x.angle()), [x])
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16)
        for x in (torch.cat([SPECIAL.to(dtype), randn(7, dtype=dtype), torch.tensor([torch.finfo(dtype).max, torch.finfo(dtype).tiny, -torch.finfo(dtype).tiny / 4], dtype=dtype)]),)
    ),
    *(
        (f"nextafter of {dtype}", lambda x, y: (torch.nextafter(x, y), torch.nextafter(y, x), torch.nextafter(x, x)), [SPECIAL.to(dtype)[:, None], torch.cat([SPECIAL, randn(7)]).to(dtype)])
        for dtype in (torch.float32, torch.float64, torch.bfloat16)
    ),
    ("angles of whole numbers", lambda a: (a.angle(), (a > 0).angle()), [integers(9)]),
    *(
        (f"bits of {x.dtype}", lambda x, dtype=dtype: (x.view(dtype).clone(), (x + 1).view(dtype), x.view(dtype) + 1), [x])
        for x, dtype in (
            (SPECIAL, torch.int32),
            (randn(3, 8, dtype=torch.bfloat16), torch.int16),
            (SPECIAL.double(), torch.int64),
            (integers(3, 8, dtype=torch.int32), torch.float32),
            (integers(3, 8, dtype=torch.uint8), torch.int8),
            (integers(3, 8, dtype=torch.int16), torch.float16),
        )
    ),
    ("bits of a number", lambda x: (x + 1).view(torch.int32), [torch.tensor(1.5)]),
    ("windows", lambda x: (x.unfold(1, 3, 2) + 1, x.unfold(0, 2, 1), x.sum().unfold(0, 1, 1) + 1), [randn(4, 9)]),
    ("copied views", lambda x: (torch.select_copy(x, 0, 1), torch.slice_copy(x, 1, 2, 7, 2), *torch.split_copy(x, 2), torch.detach_copy(x), torch.as_strided_copy(x, (2, 3), (4, 2), 1), torch.unfold_copy(x, 1, 3, 2)), [randn(4, 9)]),
    ("places written into", lambda x, y: (torch.as_strided_scatter(x, y[:2, :3], (2, 3), (12, 2), 1), torch.as_strided_scatter(x, y[:3], (3, 4), (4, 1), 4), torch.as_strided_scatter(x, y[0, 0], (), (), 5), torch.as_strided_scatter(x.t().contiguous().t(), y[:2, :3], (2, 3), (3, 1), 2), torch.as_strided_scatter(x, y[:0], (0, 4), (4, 1), 1)), [randn(8, 5), randn(4, 4)]),
    ("truth along no dimension", lambda x: (torch.any(x, ()), torch.all(x, ()), torch.any(x.byte(), ())), [torch.tensor([[0.0, 2.0]])]),
    ("logsumexp of whole numbers", lambda x: x.logsumexp(0), [integers(9)]),
    ("logsumexp that overflows", lambda x: (x.logsumexp(0), x.float().logsumexp(0)), [torch.zeros(70_000, dtype=torch.float16)]),
    ("addcmul and addcdiv in place", lambda x, a, b: (x.addcmul_(a, b, value=0.5), x.addcdiv_(a, b, value=-2), x.add_(a, alpha=3)), [randn(9), randn(3, 3).flatten(), randn(9).abs() + 1]),
    # strides, offsets, views
    ("expanded", lambda x: x.expand(4, 3, 5) + 1, [randn(3, 1)]),
    ("transposed", lambda x: (x.t() * 2, x.t().contiguous()), [randn(4, 5).t()]),
    ("with an offset", lambda x: x * 2, [randn(10)[3:]]),
    ("with gaps", lambda x: (x + 1, x.sum(0)), [randn(8, 6)[::2, 1::2]]),
    ("strides of 0", lambda x: x + 1, [randn(3, 1).expand(3, 4)]),
    ("channels last", lambda x: (x * 2, x.mean((2, 3))), [randn(2, 3, 4, 5).to(memory_format=torch.channels_last)]),
    ("size 1", lambda x: (x + x.transpose(0, 2), x.squeeze(), x.sum(1, keepdim=True)), [randn(1, 3, 1)]),
    ("reshapes of nothing", lambda x: x.reshape(3, 0, 2).permute(2, 1, 0).reshape(0, 6) + 1, [torch.zeros(2, 0, 3)]),
    # what is returned
    ("an input", lambda x: (x, x + 1), [randn(3)]),
    ("a view of an input", lambda x: (x[1:], x.t(), x * 2), [randn(3, 3)]),
    ("a value twice", lambda x: (lambda y: (y, y))(x + 1), [randn(3)]),
    ("a value and its view", lambda x: (lambda y: (y, y.view(6), y[0]))(x + 1), [randn(2, 3)]),
    ("constants", lambda x: (torch.full((2, 3), 7), torch.arange(5), torch.zeros(2), x + torch.ones(3)), [randn(3)]),
    *(
        (f"linspace of {dtype}", lambda x, dtype=dtype: [torch.linspace(*ends, dtype=dtype) for ends in [(4.3, 50, 50), (0, 7, 50), (5, -9.9, 33), (2, 9, 1), (2, 9, 2), (0, 1, 0)]] + [x + 1], [randn(3)])
        for dtype in (torch.int64, torch.int8, torch.float32, torch.float64, torch.bfloat16)
    ),
    ("nothing computed", lambda x: (torch.zeros(2, 0), x * 1), [randn(2)]),
    # what is written in place
    ("add_", lambda x: x.add_(1), [randn(4)]),
    ("add_ and a read before", lambda x: (x * 2, x.add_(1), x * 3), [randn(4)]),
    ("copy_ of its own transpose", lambda x: x.copy_(x.t() + 1), [randn(4, 4)]),
    ("copy_ of its own end", lambda x: x[1:].copy_(x[:-1] * 2), [randn(6)]),
    ("copy_ between inputs", lambda x, y: (x.copy_(y), y.add_(1), x * 2), [randn(4), randn(4, dtype=torch.float64)]),
    ("swap", lambda x, y: (lambda a: (x.copy_(y), y.copy_(a)))(x + 0), [randn(4), randn(4, 1)[:, 0] + 1]),
    ("one value into two inputs", lambda x, y: (lambda v: (x.copy_(v), y.copy_(v), v))(x * y), [randn(4), randn(4) + 1]),
    ("a part of a strided input", lambda x: (x[:, 1].mul_(2), x.sum()), [randn(4, 3).t()]),
    ("fill_ with a number", lambda x: (x.fill_(3), x.sum()), [randn(4)]),
    ("an input overwritten by a sum of it", lambda x: x.copy_((x - x.sum(0)).contiguous()), [randn(5, 4)]),
    ("an expanded value stored", lambda x, y: x.copy_(y), [randn(4, 3), randn(3)]),
    # 16 bits
    *(
        (f"{name} of {dtype}", function, [randn(6, 9).to(dtype), randn(6, 9).to(dtype) + 1])
        for dtype in (torch.float16, torch.bfloat16)
        for name, function in {
            "sum": lambda a, b: (a.sum(), a.mean(0), a.var(1)),
            "softmax": lambda a, b: (a.softmax(1), a.log_softmax(0)),
            "layer_norm": lambda a, b: F.layer_norm(a, (9,)),
            "comparisons": lambda a, b: (a < b, a.argmax(1), a.amax(0)),
            "numbers": lambda a, b: (a + 1, a * 0.1, b / 3, a.float() + b),
            "sign of zero": lambda a, b: torch.copysign(b, a * 0.0),
        }.items()
    ),
    # distances
    *(
        (f"cdist of norm {p}", lambda a, b, p=p: torch.cdist(a, b, p, compute_mode="donot_use_mm_for_euclid_dist"), [randn(2, 3, 4), randn(2, 5, 4)])
        for p in (0.0, 0.5, 1.0, 2.0, 3.0, float("inf"))
    ),
    *(
        (f"cdist of norm {p} of NaN", lambda a, b, p=p: torch.cdist(a, b, p), [SPECIAL.view(3, 3), randn(2, 3)])
        for p in (0.0, 1.0, 2.0, 3.0, float("inf"))
    ),
    ("cdist of rows of nothing", lambda a, b: (torch.cdist(a, b, float("inf")), torch.cdist(a, b, 0.0), torch.cdist(a, b, 1.0)), [randn(4, 0), randn(5, 0)]),
    # what a library reads
    ("a product's operand that leaves", lambda a, b: (lambda t: (t, torch.mm(b, t)))(a.t() * 2), [randn(4, 3), randn(5, 3)]),
    ("a product's operand that is stored", lambda a, b: (torch.mm(b, a + 1), a.add_(1)), [randn(4, 3).t(), randn(5, 3)]),
    ("addbmm", torch.addbmm, [randn(3, 5), randn(2, 3, 4), randn(2, 4, 5)]),
]  # fmt: skip


@pytest.mark.parametrize(("function", "inputs"), [r[1:] for r in ROWS], ids=[r[0] for r in ROWS])
def test_an_op_is_a_program(function: Callable[..., Any], inputs: Sequence[Any]) -> None:
    check(function, inputs)


GRADIENTS: list[Row] = [
    (
        "nll_loss",
        lambda x, y: _nll("mean", True, 2)(x, y, STATISTICS[1].repeat(2)[:5]),
        [randn(7, 5), integers(7, low=0, high=5)],
    ),
    ("nll_loss of each", _nll("none", False), [randn(7, 5), integers(7, low=0, high=5), randn(5)]),
    ("nll_loss of an image", _nll("sum", False), [randn(2, 5, 3), integers(2, 3, low=0, high=5), randn(5)]),
    ("cross_entropy", F.cross_entropy, [randn(7, 5), integers(7, low=0, high=5)]),
    ("batch_norm", lambda x, w, b: F.batch_norm(x, None, None, w, b, True), [randn(4, 3, 5), randn(3), randn(3)]),
    (
        "batch_norm in evaluation",
        lambda x, w, b: F.batch_norm(x, STATISTICS[0], STATISTICS[1], w, b),
        [randn(4, 3, 5), randn(3), randn(3)],
    ),
    ("weight_norm", torch._weight_norm, [randn(5, 4), randn(5, 1)]),
    ("group_norm", lambda x, w, b: F.group_norm(x, 2, w, b), [randn(3, 4, 5, 2), randn(4), randn(4)]),
    ("layer_norm", lambda x, w, b: F.layer_norm(x, (5,), w, b), [randn(3, 5), randn(5), randn(5)]),
    ("rms_norm", lambda x, w: F.rms_norm(x, (5,), w), [randn(3, 5), randn(5)]),
    (
        "attention with a mask",
        lambda q, k, mask: F.scaled_dot_product_attention(q, k, k, mask),
        [randn(2, 2, 3, 8), randn(2, 2, 6, 8), randn(3, 6)],
    ),
    ("hardshrink", lambda x: (F.hardshrink(x), F.softshrink(x)), [randn(9)]),
    ("cdist", torch.cdist, [randn(3, 4), randn(5, 4)]),
    ("cdist of norm 1", lambda a, b: torch.cdist(a, b, 1.0), [randn(3, 4), randn(5, 4)]),
    *(
        (name, function, [randn(6, 3), randn(6, 3) + 0.3])
        for name, function in {
            "mse_loss": F.mse_loss,
            "smooth_l1_loss": F.smooth_l1_loss,
            "huber_loss": F.huber_loss,
            "kl_div": lambda a, b: F.kl_div(a.log_softmax(1), b.softmax(1), reduction="batchmean"),
            "binary_cross_entropy": lambda a, b: F.binary_cross_entropy(a.sigmoid(), b.sigmoid()),
            "binary_cross_entropy_with_logits": F.binary_cross_entropy_with_logits,
            "soft_margin_loss": lambda a, b: F.soft_margin_loss(a, b.detach().sign()),
            "poisson_nll_loss": F.poisson_nll_loss,
            "cosine_similarity": F.cosine_similarity,
            "norms": lambda a, b: (a.norm(), b.norm(p=3, dim=1), (a - b).norm(p=1)),
            "std_mean": lambda a, b: (*torch.std_mean(a, 1), b.var(0)),
            "logsigmoid": lambda a, b: F.logsigmoid(a) * F.softplus(b),
        }.items()
    ),
]


@pytest.mark.parametrize(("function", "inputs"), [r[1:] for r in GRADIENTS], ids=[r[0] for r in GRADIENTS])
def test_gradients_are_programs(function: Callable[..., Any], inputs: Sequence[Any]) -> None:
    options = {"fallback": "error", "executor": "auto"}
    compiled = torch.compile(function, backend="max_backend", fullgraph=True, options=options)
    results = []
    for call in (compiled, function):
        own = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
        found = call(*own)
        outputs = found if isinstance(found, tuple) else (found,)
        torch.autograd.backward(outputs, [torch.cos(torch.arange(y.numel())).view(y.shape) for y in outputs])
        results.append([*(y.detach() for y in outputs), *(x.grad for x in own if x.grad is not None)])
    assert all(r.stats.programs == r.stats.regions for r in torch_max_backend.reports()[-2:])
    compare(*results)


def test_gradients_of_a_softmax_that_are_zero_add_up_to_little() -> None:
    """Each is the difference of two numbers that are rounded alike, and not a factor of one that is rounded."""

    def gradient(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        g = torch.full_like(y, 0.1)
        return (torch.ops.aten._softmax_backward_data(g, y, -1, y.dtype) * x).double().sum(0)

    x = randn(100_000, 31)
    y = x.softmax(-1)
    compiled = torch.compile(
        gradient, backend="max_backend", fullgraph=True, options={"fallback": "error", "executor": "auto"}
    )
    factored = y * (0.1 - (0.1 * y).sum(-1, keepdim=True))
    assert compiled(y, x).abs().max() < 0.5 * (factored * x).double().sum(0).abs().max()

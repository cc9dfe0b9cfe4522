"""Matrix products: every overload, dtypes, transposed operands, empty sizes, and products added to a tensor."""

from __future__ import annotations

import torch

from tests.support.cases import Case, ints, randn

F32, F64, BF16, F16 = torch.float32, torch.float64, torch.bfloat16, torch.float16
NAN = float("nan")
SUMS = "both round a sum of 16-bit products once, from sums in another order"


# Every distinct shape, dtype and epilogue of a product is a kernel of its own, at several seconds of compiling: most
# operands here are 17 × 17.


def products(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.mm(a, b), a @ b.t(), a.t() @ b


def turned(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """As the gradient of a weight with more rows than columns."""
    return a.t() @ b


def batched(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.bmm(a, b), a @ a.transpose(1, 2), a.transpose(1, 2) @ a


def added(s: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        torch.addmm(s[0], a, b),
        torch.addmm(s, a, b, beta=0.5, alpha=2),
        torch.addmm(s * NAN, a, b, beta=0),
        torch.addmm(s, a * NAN, b, alpha=0),
    )


def batch_added(s: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        torch.baddbmm(s, a, b, beta=0.5, alpha=2),
        torch.baddbmm(s * NAN, a, b, beta=0),
        torch.baddbmm(s, a * NAN, b, alpha=0),
        torch.addbmm(s[0], a, b, beta=2),
    )


def vectors(m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        torch.mv(m, v),
        torch.addmv(v, m, v, beta=0.5, alpha=2),
        torch.dot(v, v),
        torch.vdot(v, v),
        torch.addr(m, v, v, alpha=2),
        torch.outer(v, v),
    )


def integers(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return a @ b, torch.addmm(a[:, :1], a, b, beta=2, alpha=3)


def layers(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    linear = torch.nn.functional.linear
    return linear(x, w, b), linear(x[0], w), linear(x[0, 0], w, b)


def empties(a: torch.Tensor, b: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        torch.mm(a, b),
        torch.mm(b, s),
        torch.bmm(a.expand(2, 3, 0), b.expand(2, 0, 5)),
        torch.addmm(s.t()[:3], a, b),
        torch.mm(a[:0], b),
        torch.mv(a, b[:, 0]),
        torch.dot(a[0], a[0]),
    )


CASES = [
    *(
        Case(f"products_{str(d)[6:]}", products, (randn(17, 17, dtype=d), randn(17, 17, dtype=d)), atol=a, why=SUMS)
        for d, a in ((F32, None), (F64, None), (BF16, 2e-2), (F16, 4e-3))
    ),
    Case("batched_f32", batched, (randn(3, 17, 17), randn(3, 17, 17))),
    Case(
        "batched_bf16",
        torch.bmm,
        (randn(3, 17, 17, dtype=BF16), randn(3, 17, 17, dtype=BF16)),
        atol=2e-2,
        why=SUMS,
    ),
    Case(
        "odd_width_bf16",
        torch.mm,
        (randn(64, 65, dtype=BF16), randn(65, 257, dtype=BF16)),
        atol=4e-2,
        why=SUMS,
    ),
    Case("addmm_f32", added, (randn(17, 17), randn(17, 17), randn(17, 17))),
    Case(
        "addmm_bf16",
        lambda s, a, b: torch.addmm(s, a, b, beta=0.5, alpha=2),
        (randn(17, 17, dtype=BF16), randn(17, 17, dtype=BF16), randn(17, 17, dtype=BF16)),
        atol=6e-2,
        why="eager rounds alpha times the product before it adds",
    ),
    Case("turned_f32", turned, (ints(601, 131, dtype=F32), ints(601, 33, dtype=F32))),
    Case("turned_bf16", turned, (randn(45, 131, dtype=BF16), randn(45, 33, dtype=BF16)), atol=6e-2, why=SUMS),
    Case("turned_i64", turned, (ints(17, 40), ints(17, 20))),
    Case("baddbmm_f32", batch_added, (randn(3, 17, 17), randn(3, 17, 17), randn(3, 17, 17))),
    Case("vectors_f32", vectors, (randn(17, 17), randn(17))),
    Case("integers_i64", integers, (ints(17, 17), ints(17, 17))),
    Case("integers_i32", torch.mm, (ints(17, 17, dtype=torch.int32), ints(17, 17, dtype=torch.int32))),
    Case(
        "integers_wrap_i8",
        torch.mm,
        (ints(17, 17, low=-99, high=99, dtype=torch.int8), ints(17, 17, low=-99, high=99, dtype=torch.int8)),
    ),
    Case(
        "int_mm",
        torch._int_mm,
        (ints(32, 64, low=-128, high=128, dtype=torch.int8), ints(64, 16, low=-128, high=128, dtype=torch.int8)),
    ),
    Case("empty", empties, (randn(3, 0), randn(0, 5), randn(5, 5))),
    Case(
        "not_finite",
        lambda a, b: (a @ b, b @ a),
        (torch.tensor([[float("inf"), 1.0], [NAN, 2.0]]), torch.tensor([[0.0, 1.0], [1.0, -float("inf")]])),
    ),
    Case(
        "dynamic_linear",
        layers,
        (randn(2, 9, 33), randn(17, 33), randn(17)),
        dynamic=True,
        second=(randn(3, 7, 33), randn(17, 33), randn(17)),
    ),
    Case(
        "dynamic_batched",
        batched,
        (randn(3, 9, 33), randn(3, 33, 21)),
        dynamic=True,
        second=(randn(4, 5, 32), randn(4, 32, 6)),
    ),
    Case(
        "dynamic_addbmm",
        torch.addbmm,
        (randn(9, 21), randn(3, 9, 33), randn(3, 33, 21)),
        dynamic=True,
        second=(randn(8, 20), randn(2, 8, 30), randn(2, 30, 20)),
    ),
]

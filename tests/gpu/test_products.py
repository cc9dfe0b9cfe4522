"""Matrix products on a GPU, over sizes, layouts, dtypes and precisions, against float64.

Tolerances are derived, element by element. ``a @ b`` is a sum of K terms kept in float32 (float64 for float64), whose
partial sums are no larger than ``|a| @ |b|``; K roundings of them add up like a random walk. Then it is rounded once to
the dtype of the result. Where something is added to the product, eager and MAX may round the product before that, to
the same dtype. An activation multiplies what came in by its steepest slope and adds an error of its own. With TF32
operands lose the end of their fraction, which is allowed only below the precision "highest": there a float32 product
has to be as exact as eager's. cuBLAS may add up parts of a sum that it has rounded to 16 bits, unless torch is told
otherwise, as it is here: with its own settings products are those of eager.

Every test compiles a few products as one module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tests.gpu.checks import Allowed, Call, accumulator, assert_within, check_calls, product_error, rounding, unit
from tests.support.cases import randn
from tests.support.harness import STRICT
from torch_max_backend import compile_together
from torch_max_backend.options import resolve

F = torch.nn.functional

SIZES = [
    # M, N, K
    (1, 1, 1),
    (1, 1000, 768),
    (5, 7, 3),
    (33, 65, 129),
    (10, 2, 18),
    (130, 138, 66),
    (256, 384, 128),
    (1000, 1, 512),
    (64, 8, 1),
    (17, 768, 2049),
    (128, 1001, 768),
    (8192, 768, 256),
    (128, 50257, 768),
    (1, 50257, 768),
]
"""Ones, odd sizes, sizes of 2 modulo 8, multiples of 128, and the head of a language model."""

FEW = [(1, 33, 65), (33, 65, 129), (130, 138, 66), (256, 384, 128)]
"""Sizes for forms that differ from a plain product in what is around it."""

HUGE = (8192, 50257, 768)

DTYPES = {
    "bf16": (torch.bfloat16, "highest"),
    "f16": (torch.float16, "highest"),
    "f32": (torch.float32, "highest"),
    "f32 high": (torch.float32, "high"),
    "f32 medium": (torch.float32, "medium"),
    "f64": (torch.float64, "highest"),
}

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Form:
    """A way to multiply.

    Args:
        function: Of ``a``, ``b`` and perhaps a third tensor.
        shapes: Of M, N and K: the shapes of the operands.
        sides: Of the operands: the two that are multiplied, as ``left @ right``.
        rest: What follows the product, of the product and the operands.
        slope: The steepest slope of what follows.
    """

    function: Callable[..., torch.Tensor]
    shapes: Callable[[int, int, int], Shapes]
    sides: Callable[..., tuple[torch.Tensor, torch.Tensor]] = lambda a, b, *c: (a, b)
    rest: Callable[..., torch.Tensor] | None = None
    slope: float = 1.0

    def allowed(self, dtype: torch.dtype, tf32: bool) -> Allowed:
        """What each element may be off by."""

        def bound(inputs: list[Any], exact: torch.Tensor) -> torch.Tensor:
            left, right = self.sides(*inputs)
            error = product_error(left, right, dtype, tf32)
            if self.rest is None:
                return error.reshape(exact.shape)
            before = self.rest(left @ right, *inputs)
            error = (error + rounding(before, dtype)) * self.slope
            return error + 8 * unit(accumulator(dtype)) * before.abs() + rounding(exact, dtype)

        return bound


SETTINGS = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")


@pytest.fixture(autouse=True)
def sums_in_float32(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No part of a sum is rounded to 16 bits, but in tests of torch's own settings."""
    for name in SETTINGS if "own_settings" not in request.node.name else ():
        monkeypatch.setattr(torch.backends.cuda.matmul, name, False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [(10, 2, 18), (17, 768, 2049), (259, 320, 1030)])
def test_own_settings(size: tuple[int, int, int], dtype: torch.dtype) -> None:
    m, n, k = size
    a, b = (randn(*s, dtype=dtype)(torch.Generator().manual_seed(0)).cuda() for s in ((m, k), (k, n)))
    found = torch.compile(torch.mm, backend="max_backend", dynamic=False, options=STRICT)(a, b)
    assert torch.equal(found, a @ b)


def _linear(m: int, n: int, k: int) -> Shapes:
    return (m, k), (n, k), (n,)


def _transposed(a: torch.Tensor, b: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return a, b.mT


def _biased(product: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return product + c


def _behind_linear(activation: Callable[[torch.Tensor], torch.Tensor], slope: float = 1.0) -> Form:
    return Form(lambda a, b, c: activation(F.linear(a, b, c)), _linear, _transposed, _biased, slope)


PLAIN = {
    "mm": Form(torch.mm, lambda m, n, k: ((m, k), (k, n))),
    "mm, [N, K]": Form(lambda a, b: a @ b.t(), lambda m, n, k: ((m, k), (n, k)), _transposed),
}
FORMS = {
    "mm, [K, M]": Form(lambda a, b: a.t() @ b, lambda m, n, k: ((k, m), (k, n)), lambda a, b: (a.t(), b)),
    "mm, [K, M] and [N, K]": Form(
        lambda a, b: a.t() @ b.t(), lambda m, n, k: ((k, m), (n, k)), lambda a, b: (a.t(), b.t())
    ),
    "mv": Form(torch.mv, lambda m, n, k: ((m, k), (k,)), lambda a, b: (a, b[:, None])),
    "linear": Form(F.linear, lambda m, n, k: ((m, k), (n, k)), _transposed),
    "linear of a batch": Form(F.linear, lambda m, n, k: ((2, m, k), (n, k)), _transposed),
    "linear, bias": Form(F.linear, _linear, _transposed, _biased),
    "addmm": Form(
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=-2),
        lambda m, n, k: ((m, n), (m, k), (k, n)),
        lambda c, a, b: (-2 * a, b),
        lambda product, c, a, b: product + 0.5 * c,
    ),
    "addmm, a row": Form(
        torch.addmm,
        lambda m, n, k: ((n,), (m, k), (k, n)),
        lambda c, a, b: (a, b),
        lambda product, c, a, b: product + c,
    ),
    "bmm": Form(torch.bmm, lambda m, n, k: ((3, m, k), (3, k, n))),
    "bmm, [N, K]": Form(lambda a, b: a @ b.mT, lambda m, n, k: ((3, m, k), (3, n, k)), _transposed),
    "baddbmm": Form(
        lambda c, a, b: torch.baddbmm(c, a, b, beta=2, alpha=0.5),
        lambda m, n, k: ((3, m, n), (3, m, k), (3, k, n)),
        lambda c, a, b: (0.5 * a, b),
        lambda product, c, a, b: product + 2 * c,
    ),
    "relu": _behind_linear(F.relu),
    "gelu": _behind_linear(F.gelu, 1.13),
    "gelu by tanh": _behind_linear(lambda x: F.gelu(x, approximate="tanh"), 1.13),
    "silu": _behind_linear(F.silu, 1.1),
    "a sum behind": Form(
        lambda a, b, c: a @ b.t() + c,
        lambda m, n, k: ((m, k), (n, k), (m, n)),
        _transposed,
        _biased,
    ),
}


def _calls(name: str, form: Form, dtype_name: str, sizes: list[tuple[int, int, int]]) -> list[Call]:
    dtype, precision = DTYPES[dtype_name]
    allowed = form.allowed(dtype, precision != "highest" and dtype == torch.float32)
    return [
        Call(
            f"{name} {dtype_name} M={m} N={n} K={k}",
            form.function,
            tuple(randn(*s, dtype=dtype) for s in form.shapes(m, n, k)),
            allowed=allowed,
            precision=precision,
        )
        for m, n, k in sizes
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PLAIN)
def test_sizes(name: str, dtype: str) -> None:
    check_calls(_calls(name, PLAIN[name], dtype, SIZES))


FORM_NAMES = list(FORMS)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("names", [FORM_NAMES[i : i + 5] for i in range(0, len(FORM_NAMES), 5)], ids="; ".join)
def test_forms(names: list[str], dtype: str) -> None:
    check_calls([call for name in names for call in _calls(name, FORMS[name], dtype, FEW)])


ODD = [(130, 257, 1027), (259, 320, 1030), (1030, 1027, 259)]
"""Sizes at which rows of either operand are padded."""


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_rows_that_begin_between_16_bytes(dtype: str) -> None:
    forms = PLAIN | {name: FORMS[name] for name in ("mm, [K, M]", "mm, [K, M] and [N, K]", "linear")}
    check_calls([call for name, form in forms.items() for call in _calls(name, form, dtype, ODD)])


@pytest.mark.parametrize("name", PLAIN)
def test_a_huge_product(name: str) -> None:
    """The head of a language model, for all tokens of a batch: rows of odd width, 400 million of them checked."""
    check_calls(_calls(name, PLAIN[name], "bf16", [HUGE]))


def test_float32_is_as_exact_as_in_eager() -> None:
    """At the precision "highest", no error is much larger than eager's largest."""
    calls = []
    for name, form in (PLAIN | FORMS).items():
        for m, n, k in [(130, 138, 66), (128, 1001, 768), (256, 384, 4096)]:
            inputs = tuple(randn(*s) for s in form.shapes(m, n, k))
            calls.append(Call(f"{name} M={m} N={n} K={k}", form.function, inputs, factor=4.0))
    check_calls(calls)


@pytest.mark.parametrize("dtype", ["bf16", "f32", "f32 high"])
def test_symbolic_sizes(dtype: str) -> None:
    """One graph for all sizes."""
    kind, precision = DTYPES[dtype]
    torch.set_float32_matmul_precision(precision)
    sizes = [(5, 7, 4), (33, 65, 129), (256, 384, 128), (128, 1001, 768), (130, 138, 66)]
    names = ["mm", "mm, [N, K]", "bmm", "linear, bias", "gelu", "addmm"]
    forms = {name: (PLAIN | FORMS)[name] for name in names}

    def compiled(form: Form) -> Callable[..., torch.Tensor]:
        torch._dynamo.reset()
        return torch.compile(form.function, backend="max_backend", dynamic=True, fullgraph=True, options=STRICT)

    def operands(form: Form, size: tuple[int, int, int]) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        return [randn(*s, dtype=kind)(generator).cuda() for s in form.shapes(*size)]

    with compile_together(resolve(STRICT)):
        for form in forms.values():
            compiled(form)(*operands(form, sizes[0]))
    for name, form in forms.items():
        function, before = compiled(form), _graphs()
        allowed = form.allowed(kind, precision != "highest" and kind == torch.float32)
        for size in sizes:
            wide = [x.double() for x in operands(form, size)]
            exact = form.function(*wide)
            assert_within(function(*operands(form, size)), exact, allowed(wide, exact), f"{name} {size}")
        assert _graphs() == before + 1, f"{name}: compiled again for other sizes"


def _graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def test_operands_that_are_views() -> None:
    """Operands that come in with permuted strides, with gaps, or spread over a dimension."""

    def allowed(inputs: list[Any], exact: torch.Tensor) -> torch.Tensor:
        return product_error(*inputs, torch.bfloat16)

    def view(make: Callable[[torch.Tensor], torch.Tensor], *shape: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(sum(shape))
        return make(torch.randn(shape, generator=generator).bfloat16())

    operands = {
        "transposed": (view(torch.t, 128, 64), view(torch.t, 136, 128)),
        "gaps": (view(lambda x: x[:, :128], 64, 200), view(lambda x: x[:, 3:139], 128, 200)),
        "every other": (view(lambda x: x[::2, ::2], 128, 256), view(lambda x: x[::2], 256, 136)),
        "spread": (view(lambda x: x.expand(64, 128), 1, 128), view(lambda x: x.expand(128, 136), 128, 1)),
        "heads": (
            view(lambda x: x.view(2, 33, 4, 16).transpose(1, 2), 2, 33, 64),
            view(lambda x: x.view(2, 33, 4, 16).transpose(1, 2).mT, 2, 33, 64),
        ),
    }
    calls = []
    for name, pair in operands.items():
        made = tuple((lambda g, x=x: x) for x in pair)
        calls.append(Call(name, torch.matmul, made, allowed=allowed))
    check_calls(calls)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["relu", "gelu", "gelu by tanh"])
@pytest.mark.parametrize("columns", [768, 1001])
def test_an_activation_keeps_what_is_no_number(name: str, columns: int, dtype: torch.dtype) -> None:
    """Infinities and NaN that a product or its bias has, at the places where eager has them."""
    function = FORMS[name].function
    torch.manual_seed(0)
    a, b, c = (torch.randn(shape, device="cuda", dtype=dtype) for shape in ((1000, 512), (columns, 512), (columns,)))
    a[1, 1], a[2, 2], a[3, 3] = float("nan"), float("inf"), -float("inf")
    c[5], c[6], c[7] = float("nan"), float("inf"), -float("inf")
    torch._dynamo.reset()
    found, wanted = (
        torch.compile(function, backend="max_backend", fullgraph=True, options=STRICT)(a, b, c),
        function(a, b, c),
    )
    assert torch.equal(found.isnan(), wanted.isnan()) and torch.equal(found.isinf(), wanted.isinf())
    assert wanted.isnan().sum() >= columns + 1000

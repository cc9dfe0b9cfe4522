"""Products of float32 by oneDNN, where MKL is slower: which, and as exact as MKL's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from tests.support.loop_programs import noted_programs
from torch_max_backend import reports
from torch_max_backend.capture import onednn_products
from torch_max_backend.loops.program import Call, Ref

pytestmark = pytest.mark.skipif(onednn_products.LINEAR is None, reason="this torch has no oneDNN")

DECIDES = onednn_products.is_faster
"""What decides, which no test's stand-in has replaced yet."""
OPTIONS = {"fallback": "error", "executor": "auto"}
FIRST, NEXT = "oneDNN mkldnn._linear_pointwise.default", "oneDNN mkldnn._linear_pointwise.binary"
CLONE = "ATen aten.clone.default"
MM, ADDMM = "ATen aten.mm.default", "ATen aten.addmm.default"
GENERATOR = torch.Generator().manual_seed(0)


def drawn(*shape: int, dtype: torch.dtype = torch.float32, positive: bool = False) -> torch.Tensor:
    return (torch.rand if positive else torch.randn)(shape, generator=GENERATOR).to(dtype)


@pytest.fixture(params=[True, False], ids=["oneDNN", "MKL"])
def is_faster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(onednn_products, "is_faster", lambda: request.param)
    return bool(request.param)


@pytest.fixture
def onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn_products, "is_faster", lambda: True)


def compiled(function: Callable[..., torch.Tensor], folder: Path) -> Callable[..., torch.Tensor]:
    torch._dynamo.reset()
    return torch.compile(function, backend="max_backend", options={**OPTIONS, "cache_dir": str(folder)})


def check(function: Callable[..., torch.Tensor], folder: Path, *given: torch.Tensor) -> dict[str, int]:
    """The library calls of a function, whose errors against float64 are about eager's."""
    found, eager = compiled(function, folder)(*given), function(*given)
    exact = function(*(x.double() for x in given))
    assert found.stride() == eager.stride()
    error, allowed = (found.double() - exact).abs(), (eager.double() - exact).abs()
    assert error.max() <= 4 * allowed.max() + 2 * torch.finfo(torch.float32).eps * exact.abs().max()
    if DECIDES():  # what other processors' MKL adds up in which parts, nobody has looked at
        assert error.mean() <= 1.5 * allowed.mean()
    return reports()[-1].library_calls


X, W, B = drawn(130, 320), drawn(410, 320), drawn(410)
S, T = drawn(190, 160), drawn(170, 160)
CASES: dict[str, tuple[Callable[..., torch.Tensor], list[torch.Tensor], dict[str, int]]] = {
    "a linear": (F.linear, [X, W, B], {FIRST: 1, NEXT: 1}),
    "a linear of a batch": (F.linear, [X.view(13, 10, 320), W, B], {FIRST: 1, NEXT: 1}),
    "without a bias": (F.linear, [X, W], {FIRST: 1, NEXT: 1}),
    "in one part": (F.linear, [S, T, drawn(170)], {FIRST: 1}),
    "both untransposed": (torch.mm, [X, drawn(320, 410)], {FIRST: 1, NEXT: 1}),
    "both transposed": (lambda x, w: x.t() @ w.t(), [drawn(320, 130), W], {FIRST: 1, NEXT: 1}),
    "a weight's gradient": (lambda x, w: x.t() @ w, [drawn(320, 130), drawn(320, 410)], {FIRST: 1, NEXT: 1}),
    "transposed in one part": (lambda x, w: x.t() @ w.t(), [drawn(160, 190), T], {FIRST: 1}),
    "a part that is left": (F.linear, [drawn(130, 700), drawn(410, 700), B], {FIRST: 1, NEXT: 2}),
    "an uneven one": (F.linear, [drawn(197, 389), drawn(389, 389)], {FIRST: 1, NEXT: 1}),
    "every second column": (lambda x, w: x[:, ::2] @ w[:, ::2].t(), [drawn(190, 320), drawn(170, 320)], {FIRST: 1}),
    "rows with gaps": (
        lambda x, w: x[:, :320] @ w[:, :320].t(),
        [drawn(130, 400), drawn(410, 400)],
        {FIRST: 1, NEXT: 1},
    ),
    "columns with gaps": (lambda x, w: x @ w[:, :410], [X, drawn(320, 500)], {FIRST: 1, NEXT: 1}),
    "what is computed before": (lambda x, w: F.gelu(x) @ (w * 2).t(), [X, W], {FIRST: 1, NEXT: 1}),
    "what is computed after": (lambda x, w: F.gelu(x @ w.t()).softmax(-1), [X, W], {FIRST: 1, NEXT: 1}),
    "an operand of two": (lambda x, w, v: x @ w.t() + x @ v.t(), [X, W, W.flip(0)], {FIRST: 2, NEXT: 2}),
    "a convolution of one tap": (
        lambda x, w: F.relu(F.conv2d(x, w)).sum(1),
        [drawn(1, 256, 14, 14), drawn(1024, 256, 1, 1)],
        {FIRST: 1, NEXT: 1},
    ),
    "a matrix that is added": (torch.addmm, [drawn(130, 410), X, W.t()], {ADDMM: 1}),
    "a factor": (lambda b, x, w: torch.addmm(b, x, w.t(), alpha=0.5), [B, X, W], {ADDMM: 1}),
    "nothing is added": (lambda b, x, w: torch.addmm(b, x, w.t(), beta=0), [B, X, W], {ADDMM: 1}),
    "a small one": (torch.mm, [X[:50], W.t()], {MM: 1}),
    "float64": (torch.mm, [X.double(), W.t().double()], {MM: 1}),
}


@pytest.mark.parametrize("name", CASES)
def test_products(name: str, is_faster: bool, tmp_path: Path) -> None:
    function, given, calls = CASES[name]
    found = check(function, tmp_path, *given)
    if is_faster or FIRST not in calls:
        assert {name: n for name, n in found.items() if name != CLONE} == calls
    else:
        assert not found.keys() & {FIRST, NEXT}


@pytest.mark.parametrize("positive", [False, True], ids=["normal", "positive"])
@pytest.mark.parametrize("depth", [64, 192, 200, 256, 480, 512, 768, 1000, 1024, 2048, 4096, 16384])
def test_errors_are_about_as_large_as_mkls(depth: int, positive: bool, onednn: None, tmp_path: Path) -> None:
    x, w = (drawn(n, depth, positive=positive) for n in (256, 330))
    assert FIRST in check(F.linear, tmp_path, x, w)


def test_what_is_not_finite(onednn: None, tmp_path: Path) -> None:
    x = drawn(130, 320)
    x[3, 5], x[7, 200], x[8, 319] = float("inf"), float("nan"), float("-inf")
    torch.testing.assert_close(compiled(F.linear, tmp_path)(x, W, B).isfinite(), F.linear(x, W, B).isfinite())


@pytest.mark.parametrize(
    "weight",
    [drawn(410, 400)[:, :320].t(), drawn(320, 500)[:, :410], W.t(), W.t().contiguous(), drawn(410, 150)[:, :140].t()],
    ids=["rows with gaps", "columns with gaps", "rows", "columns", "rows with gaps in one part"],
)
def test_no_operand_has_gaps(
    weight: torch.Tensor, onednn: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """oneDNN computes products of weights with gaps a thousand times as slowly."""
    found = noted_programs(monkeypatch)
    compiled(torch.mm, tmp_path)(drawn(190, weight.shape[0]), weight)
    (program,) = found
    operands = [
        x for s in program.steps if isinstance(s, Call) and s.library == "oneDNN" for x in s.args if isinstance(x, Ref)
    ]
    assert len(operands) >= 2
    for ref in operands:
        (rows, length), strides = (tuple(int(n.constant) for n in of) for of in (ref.sizes, ref.strides))
        assert strides in ((length, 1), (1, rows))


def test_frozen_weights_are_not_packed_for_mkl(is_faster: bool, tmp_path: Path) -> None:
    model = torch.nn.Linear(320, 410).requires_grad_(False)
    torch._dynamo.reset()
    frozen = torch.compile(
        model, backend="max_backend", options={**OPTIONS, "cache_dir": str(tmp_path), "freeze": True}
    )
    torch.testing.assert_close(frozen(X), model(X), rtol=1e-4, atol=1e-4)
    assert (FIRST in reports()[-1].library_calls) == is_faster


def test_gradients(is_faster: bool, tmp_path: Path) -> None:
    w, b = W.clone().requires_grad_(), B.clone().requires_grad_()

    def loss(x: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(x, w, b)).square().mean()

    compiled(loss, tmp_path)(X).backward()
    found = [y.grad.clone() for y in (w, b) if y.grad is not None]
    wanted = torch.autograd.grad(loss(X), (w, b))
    torch.testing.assert_close(found, list(wanted), rtol=1e-4, atol=1e-6)
    assert (FIRST in reports()[-1].library_calls) == is_faster

"""Products of float32 by oneDNN, where MKL is slower: which, and right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from torch_max_backend import reports
from torch_max_backend.loops import onednn_products

DECIDES = onednn_products.is_faster
"""What decides, which no test's stand-in has replaced yet."""
OPTIONS = {"fallback": "error", "executor": "auto"}
LINEAR, MM, ADDMM = "oneDNN mkldnn._linear_pointwise.default", "ATen aten.mm.default", "ATen aten.addmm.default"


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


X, W, B, XT, WT = randn(90, 160), randn(170, 160), randn(170), randn(160, 90), randn(160, 170)
CASES: dict[str, tuple[Callable[..., torch.Tensor], list[torch.Tensor], str]] = {
    "a linear": (F.linear, [X, W, B], LINEAR),
    "a linear of a batch": (F.linear, [X.view(9, 10, 160), W, B], LINEAR),
    "without a bias": (F.linear, [X, W], LINEAR),
    "both untransposed": (torch.mm, [X, WT], LINEAR),
    "both transposed": (lambda x, w: x.t() @ w.t(), [XT, W], LINEAR),
    "every second column": (lambda x, w: x[:, ::2] @ w[:, ::2].t(), [randn(90, 320), randn(170, 320)], LINEAR),
    "a matrix that is added": (torch.addmm, [randn(90, 170), X, WT], ADDMM),
    "a factor": (lambda b, x, w: torch.addmm(b, x, w, alpha=0.5), [B, X, WT], ADDMM),
    "a small one": (torch.mm, [X[:50], WT], MM),
    "float64": (torch.mm, [X.double(), WT.double()], MM),
}


@pytest.fixture(params=[True, False], ids=["oneDNN", "MKL"])
def is_faster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(onednn_products, "is_faster", lambda: request.param)
    torch._dynamo.reset()
    return bool(request.param)


@pytest.mark.parametrize("name", CASES)
def test_products(name: str, is_faster: bool, tmp_path: Path) -> None:
    function, args, library = CASES[name]
    options = {**OPTIONS, "cache_dir": str(tmp_path)}
    found, wanted = torch.compile(function, backend="max_backend", options=options)(*args), function(*args)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert found.stride() == wanted.stride()
    (call,) = reports()[-1].library_calls
    if is_faster or library != LINEAR:
        assert call == library
    else:
        assert call in (MM, ADDMM)


def test_gradients(is_faster: bool, tmp_path: Path) -> None:
    w, b = W.clone().requires_grad_(), B.clone().requires_grad_()

    def loss(x: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(x, w, b)).square().mean()

    compiled = torch.compile(loss, backend="max_backend", options={**OPTIONS, "cache_dir": str(tmp_path)})
    compiled(X).backward()
    found = [y.grad.clone() for y in (w, b) if y.grad is not None]
    wanted = torch.autograd.grad(loss(X), (w, b))
    torch.testing.assert_close(found, list(wanted), rtol=1e-4, atol=1e-6)
    assert (LINEAR in reports()[-1].library_calls) == is_faster


def test_who_made_the_processor_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    is_faster = DECIDES.__wrapped__
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    for vendor, wanted in (("AuthenticAMD", True), ("GenuineIntel", False), ("", False)):
        monkeypatch.setattr(onednn_products, "_vendor", lambda vendor=vendor: vendor)
        assert is_faster() == (wanted and torch.backends.mkl.is_available())
    monkeypatch.setattr(onednn_products, "_vendor", lambda: "AuthenticAMD")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert not is_faster()

"""Large tensors of programs on a CPU have large pages where the system gives them."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import torch_max_backend
from tests.support.absent_gpu import noted_plans, trace
from torch_max_backend.runtime.large_pages import LARGE, in_large_pages

pytestmark = pytest.mark.any_runner("programs alone have them")

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
PAGE = 4096


def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def test_fewer_pages_are_handed_out() -> None:
    if not SETTING.exists() or "[never]" in SETTING.read_text():
        pytest.skip("this system gives no large pages")
    x = torch.rand(16 << 20)
    compiled = torch.compile(twice, backend="max_backend", options={"executor": "auto", "fallback": "error"})
    compiled(x)
    before = faults()
    result = compiled(x)
    assert faults() - before < result.nbytes / PAGE / 4
    assert torch.equal(result, twice(x))


@pytest.mark.parametrize(("size", "is_large"), [(LARGE // 4, True), (LARGE // 4 - 64, False)])
def test_from_which_size_on(monkeypatch: pytest.MonkeyPatch, size: int, is_large: bool) -> None:
    found = noted_plans(monkeypatch)
    compiled = torch.compile(twice, backend="max_backend", options={"executor": "auto", "fallback": "error"})
    compiled(torch.rand(size))
    assert torch_max_backend.reports()[-1].stats.programs == 1
    (program,) = found[-1][1].values()
    assert ("in_large_pages" in program.written.spec.source) == is_large


def test_a_gpu_has_its_own_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    found = noted_plans(monkeypatch)
    trace(twice, lambda: torch.empty(16 << 20, device="cuda"))
    (program,) = found[-1][1].values()
    assert "in_large_pages" not in program.written.spec.source


@pytest.mark.parametrize("size", [0, 1, PAGE, 3 * PAGE + 5])
def test_any_tensor_is_given_back_as_it_is(size: int) -> None:
    x = torch.arange(size)
    assert in_large_pages(x) is x
    assert torch.equal(x, torch.arange(size))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_products_write_into_large_pages(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """Also in a training step, whose inputs require gradients; what stays smaller makes its result itself."""
    found = noted_plans(monkeypatch)

    def step(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.addmm(b, x, w).relu().sum() + torch.bmm(x[:64].view(2, 32, -1), w.expand(2, -1, -1)).sum()

    def gradients(function: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
        given = [v.detach().requires_grad_() for v in (x, w, b)]
        return torch.autograd.grad(function(*given), given)

    generator = torch.Generator().manual_seed(0)
    x, w, b = (torch.randint(-1, 2, shape, generator=generator).to(dtype) for shape in ((4096, 16), (16, 600), (600,)))
    compiled = torch.compile(step, backend="max_backend", options={"executor": "auto", "fallback": "error"})
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, w, b), step(x, w, b))
    for got, wanted in zip(gradients(compiled), gradients(step), strict=True):
        torch.testing.assert_close(got, wanted)
    text = "".join(p.written.spec.source for _, programs in found for p in programs.values())
    assert "out=in_large_pages(empty(" in text
    lines = [line for line in text.splitlines() if "= op" in line]
    assert any("out=" not in line for line in lines)

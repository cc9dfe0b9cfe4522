"""The option ``verify``: what is right passes, and of what is wrong the op, the line and a file are named."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.diagnostics.verify.injection import inject, wrong_in_company
from torch_max_backend import reports
from torch_max_backend.base.errors import ExecutionError, MaxBackendError, VerifyError
from torch_max_backend.frontend.warm_start import reason_against
from torch_max_backend.options import Options

pytestmark = pytest.mark.sampled

ROOT = Path(__file__).resolve().parents[3]
Verified = Callable[..., Callable[..., Any]]


@pytest.fixture
def verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verified:
    """Compile as programs and verify; what is written goes to a temporary folder, the store too."""
    monkeypatch.setenv("TORCH_MAX_BACKEND_CACHE_DIR", str(tmp_path / "store"))
    monkeypatch.setenv("TORCH_MAX_BACKEND_EXECUTOR", "auto")
    options = {"verify": True, "repro_dir": tmp_path / "repros"}

    def compiled(function: Callable[..., Any], **how: Any) -> Callable[..., Any]:
        return torch.compile(function, backend="max_backend", options=options, **how)

    return compiled


def fails(function: Callable[..., Any], *args: Any) -> VerifyError:
    with pytest.raises(VerifyError) as caught:
        function(*args)
    return caught.value


def network(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.relu(x @ w)
    z = torch.tanh(y + 1)
    return torch.softmax(z, -1), z.argmax(-1)


def run(path: Path, *how: str, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run([sys.executable, *how, str(path)], env=own, capture_output=True, text=True, check=False)


# -- a wrong rule --------------------------------------------------------------------------------------------------
def test_the_first_wrong_op_is_named(verified: Verified, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        inject(patch)
        error = fails(verified(network), torch.randn(8, 16), torch.randn(16, 32))
        assert isinstance(error, MaxBackendError)
        assert error.op == "aten.tanh.default"
        assert "in network: z = torch.tanh(y + 1)" in error.where
        assert error.repro is not None and error.repro.parent == tmp_path / "repros"
        first, region, fault, *loops, last = str(error).splitlines()
        assert first.startswith("aten.tanh.default (at ")
        assert "is wrong by itself: 256 of 256 elements are wrong" in first
        assert "region 0 of" in region and "torch's largest is" in region
        assert fault.strip() == "the loops are wrong as the rules make them:" and any("tanh(" in line for line in loops)
        assert last.strip() == f"python {error.repro} shows it"
        text = error.repro.read_text()
        assert "torch.ops.aten.tanh.default(x0)" in text and "torch.randn((1, 1), generator=drawn)" in text
        assert "max_backend_repros" not in os.listdir()
        with pytest.raises(SystemExit, match="max_backend is wrong"):
            runpy.run_path(str(error.repro), run_name="__main__")
    torch._dynamo.reset()
    runpy.run_path(str(error.repro), run_name="__main__")  # the rule is right again


@pytest.mark.full
@pytest.mark.own_processes
def test_it_does_so_by_its_exit_status(verified: Verified, monkeypatch: pytest.MonkeyPatch) -> None:
    inject(monkeypatch)
    error = fails(verified(network), torch.randn(8, 16), torch.randn(16, 32))
    assert error.repro is not None
    wrong = run(error.repro, "-m", "tests.diagnostics.verify.injection")
    assert wrong.returncode == 1 and "max_backend is wrong" in wrong.stderr
    right = run(error.repro)
    assert right.returncode == 0, right.stderr
    assert "max_backend and torch agree" in right.stdout


def test_an_op_that_is_wrong_in_company_alone(verified: Verified, monkeypatch: pytest.MonkeyPatch) -> None:
    inject(monkeypatch, wrong_in_company)
    error = fails(verified(network), torch.randn(8, 16), torch.randn(16, 32))
    assert error.op == "aten.tanh.default"
    assert "in a part of 2 ops" in str(error)
    assert error.repro is not None and "torch.ops.aten.add.Tensor(x0, 1)" in error.repro.read_text()


def test_inputs_that_show_more_than_random_ones_are_kept(verified: Verified, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_max_backend.loops.expr import constant, op, select
    from torch_max_backend.loops.rules.pointwise import pointwise

    def wrong_above_100(self: Any) -> Any:
        return pointwise(lambda x: select(x > constant(100, x.dtype), x, op("tanh", x)), self)

    inject(monkeypatch, wrong_above_100)
    few = fails(verified(lambda x: x.tanh() + 1), torch.tensor([0.0, 200.0, float("nan")]))
    assert few.repro is not None and "torch.tensor([200.0], dtype=torch.float32)" in few.repro.read_text()
    torch._dynamo.reset()
    many = fails(verified(lambda x: x.tanh() + 1, dynamic=True), torch.linspace(0, 200, 100))
    assert many.repro is not None
    (saved,) = torch.load(many.repro.with_suffix(".pt"))
    assert torch.equal(saved, torch.linspace(0, 200, 100))


def test_a_wrong_backward_is_found(verified: Verified, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_max_backend.loops.rules import registry
    from torch_max_backend.loops.rules.pointwise import pointwise

    op = torch.ops.aten.tanh_backward.default
    monkeypatch.setitem(registry.rules(), op, lambda g, y: pointwise(lambda g, y: g * (1 - y), g, y))
    x = torch.randn(4, 8, requires_grad=True)
    result = verified(lambda x: torch.tanh(x).sin())(x)
    error = fails(result.sum().backward)
    assert error.op == str(op)


def test_a_wrong_store_is_found_and_taken_back(verified: Verified, monkeypatch: pytest.MonkeyPatch) -> None:
    inject(monkeypatch)

    def stores(x: torch.Tensor) -> torch.Tensor:
        x.copy_((x + 1).tanh())
        return x.t()

    x = torch.randn(3, 4)
    before = x.clone()
    assert fails(verified(stores), x).op == "aten.tanh.default"
    assert torch.equal(x, before)


def test_a_wrong_op_of_symbolic_sizes(verified: Verified, monkeypatch: pytest.MonkeyPatch) -> None:
    inject(monkeypatch)
    compiled = verified(lambda x: (x @ x.t()).tanh() + x.shape[0], dynamic=True)
    error = fails(compiled, torch.randn(3, 5))
    assert error.op == "aten.tanh.default"
    assert error.repro is not None and "dynamic=True" in error.repro.read_text()


def test_what_torch_raises_for_is_wrong(verified: Verified, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_max_backend.diagnostics.verify import region_check

    class Raises:
        def __init__(self, *args: Any) -> None:
            raise IndexError("index out of range in self")

    compiled = verified(lambda x: x.tanh())
    compiled(torch.randn(4))
    monkeypatch.setattr(region_check, "References", Raises)
    with pytest.raises(VerifyError, match="torch raises IndexError for the inputs of region 0, which returned: index"):
        compiled(torch.randn(4))


def test_a_search_that_fails_hides_nothing(verified: Verified, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_max_backend.diagnostics.verify import region_check

    def broken(*args: Any) -> None:
        raise RuntimeError("not today")

    inject(monkeypatch)
    monkeypatch.setattr(region_check, "smallest_wrong_part", broken)
    error = fails(verified(lambda x: x.tanh()), torch.randn(4))
    assert "elements are wrong" in str(error) and "RuntimeError: not today" in str(error)
    assert error.repro is None


def test_what_is_wrong_in_its_region_alone_is_said_to_be(verified: Verified, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.MonkeyPatch.context() as patch:
        inject(patch)
        compiled = verified(lambda x: x.tanh())
        fails(compiled, torch.randn(4))  # compiled with the wrong rule, which is gone for the search of the next call
    error = fails(compiled, torch.randn(4))
    assert "no part of the region is wrong when it is compiled by itself" in str(error)
    assert "the search for the op at fault failed" not in str(error)


# -- what is right -------------------------------------------------------------------------------------------------
def test_a_training_step(verified: Verified) -> None:
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5))
    step = verified(lambda x, y: nn.functional.cross_entropy(net(x), y))
    for _ in range(2):
        step(torch.randn(4, 8), torch.tensor([1, 4, 0, 2])).backward()
    assert sum(len(r.programs) for r in reports()[-2:]) >= 2


def test_writes_views_and_aliases(verified: Verified) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.add_(y)
        part = x[1:]
        part.mul_(2)
        return part.t(), x, y + x, y

    compiled = verified(function)
    for y in (torch.randn(4, 6), torch.randn(6, 4).t(), torch.randn(1, 6).expand(4, 6)):
        x, own = torch.ones(4, 6), torch.ones(4, 6)
        torch.testing.assert_close(compiled(x, y), function(own, y))
        torch.testing.assert_close(x, own)
    assert reports()[-1].programs


def test_symbolic_sizes_and_decisions(verified: Verified) -> None:
    """Whether a sum is above its own mean, and a rounding to integers, may turn over by rounding alone."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        s = (x @ x.t()).softmax(-1)
        return s > s.mean(-1, keepdim=True), (s * 255).round().to(torch.uint8), s.argmax(-1) + x.shape[0]

    compiled = verified(function, dynamic=True)
    for size in (3, 7, 64):
        compiled(torch.randn(size, 9))
    assert reports()[-1].programs


def test_low_precision_nan_and_masks(verified: Verified) -> None:
    def function(x: torch.Tensor, w: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        masked = (x @ w).masked_fill(mask, torch.finfo(x.dtype).min)
        return masked, masked.softmax(-1), x.log(), x.var(-1)

    for dtype in (torch.bfloat16, torch.float64):
        x, w = torch.randn(8, 16, dtype=dtype), torch.randn(16, 16, dtype=dtype)
        x[0, 0], x[1] = float("inf"), 0.3
        verified(function)(x, w, torch.eye(8, 16) > 0)
        assert reports()[-1].programs


def test_threads(verified: Verified) -> None:
    compiled = verified(lambda x: x.sin().sum(-1))
    compiled(torch.randn(4, 4))
    failed: list[Exception] = []

    def work() -> None:
        try:
            for _ in range(10):
                compiled(torch.randn(4, 4))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and reports()[-1].programs


def test_random_numbers_are_drawn_as_without(verified: Verified) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout((x * 2).tanh(), 0.5, True)

    torch.manual_seed(3)
    right = function(torch.ones(64))
    torch.manual_seed(3)
    torch.testing.assert_close(verified(function)(torch.ones(64)), right)
    assert reports()[-1].programs


@pytest.mark.full
def test_regions_of_max(verified: Verified, tmp_path: Path) -> None:
    options = {"verify": True, "executor": "graph", "repro_dir": tmp_path / "repros"}
    compiled = torch.compile(network, backend="max_backend", options=options)
    compiled(torch.randn(8, 16), torch.randn(16, 32))
    assert not reports()[-1].programs


# -- beside the comparison -----------------------------------------------------------------------------------------
def test_without_it_the_call_path_is_what_it_was(verified: Verified, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_max_backend.runtime.call_path import CallSpec

    found: list[str] = []
    build = CallSpec.build

    def noted(self: CallSpec, *args: object) -> object:
        found.append(self.source)
        return build(self, *args)

    monkeypatch.setattr(CallSpec, "build", noted)
    torch.compile(torch.sin, backend="max_backend", options={"executor": "auto"})(torch.randn(3))
    torch._dynamo.reset()
    verified(torch.sin)(torch.randn(3))
    without, checked = found
    assert "check" not in without
    assert [line for line in checked.splitlines() if ".before(" in line or ".after(" in line]


@pytest.mark.any_runner("a setting")
def test_graphs_are_not_taken_from_aotautograd_s_cache() -> None:
    assert "verify" in reason_against(Options(verify=True))


def test_an_index_out_of_range_is_still_that(verified: Verified) -> None:
    with pytest.raises(ExecutionError, match="out of range"):
        verified(lambda x, i: x.index_select(0, i) + 1)(torch.randn(3, 4), torch.tensor([5]))

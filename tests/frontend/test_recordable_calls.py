"""Which calls PyTorch's CUDA graphs may hold, and what is said of the others. Nothing is run, and no GPU is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from torch_max_backend.base.target import Machine
from torch_max_backend.codegen import call_path_writer
from torch_max_backend.frontend import pipeline
from torch_max_backend.frontend.prebuild import regions_of
from torch_max_backend.options import Options

pytestmark = pytest.mark.any_runner("call paths, of which nothing is run")


@pytest.fixture
def reason(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Why a function of tensors of these shapes is not recorded."""
    found: list[str] = []

    def noted(plan: Any, gm: Any, programs: Any) -> None:
        found.append(call_path_writer.call_spec(gm, plan, frozenset(), Options(), programs).unrecordable)

    monkeypatch.setattr(pipeline, "report_strides", noted)

    def of(function: Callable[..., Any], *shapes: tuple[int, ...], dynamic: bool = False, **options: Any) -> str:
        def run() -> None:
            inputs = [torch.empty(shape, device="cuda") for shape in shapes]
            compiled = torch.compile(
                function, backend="max_backend", dynamic=dynamic, options={"executor": "auto", **options}
            )
            compiled(*inputs)

        with Machine.parse("cuda:sm_90a").pretended(), torch.no_grad():
            regions_of(run, "cuda")
        return found[-1]

    return of


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_call_of_programs_may_be_recorded(reason: Callable[..., str], dynamic: bool) -> None:
    assert reason(lambda x, y: torch.softmax(x @ y, -1), (8, 16), (16, 32), dynamic=dynamic) == ""


@pytest.mark.filterwarnings("ignore:max_backend")
def test_what_pytorch_runs_is_named(reason: Callable[..., str]) -> None:
    options = {"torch_executed_ops": ["aten.flip"]}
    assert reason(lambda x: x.sin().flip(0).cos(), (8, 16), **options) == "PyTorch runs aten.flip.default in it"


def test_a_tensor_on_the_cpu_is_named(reason: Callable[..., str]) -> None:
    assert reason(lambda x: (x.sin(), torch.arange(3, device="cpu") + x.shape[0]), (8, 16)).endswith("is on the CPU")


def test_results_that_are_large_are_told_with_the_limit(
    reason: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_path_writer, "COPY_LIMIT", 1 << 20)
    said = reason(lambda x: x.sin(), (1024, 512))
    assert said == "its results, which are copied, have 2 MiB, more than 1"

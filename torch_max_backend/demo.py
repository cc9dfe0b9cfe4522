"""``torch-max-backend demo``: two real models with random weights, in eager and through the backend, side by side."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torch_max_backend.backend import max_backend
from torch_max_backend.base.errors import MaxBackendError
from torch_max_backend.base.waiting import waiting
from torch_max_backend.compile.pending import wait_for_compiles
from torch_max_backend.diagnostics import report


@dataclass(frozen=True)
class Row:
    """What was measured for one model. Times in seconds, differences absolute."""

    name: str
    parameters: int
    regions: int
    islands: int
    from_cache: int
    compile_s: float
    first_s: float
    eager_s: float
    backend_s: float
    work: int
    unit: str
    max_difference: float
    mean_difference: float
    largest_value: float


class Logits(nn.Module):
    """A language model that returns its logits only."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits [B, L, V] of tokens [B, L]."""
        return self.model(input_ids=tokens, use_cache=False).logits


def gpt2(batch: int) -> tuple[nn.Module, tuple[torch.Tensor, ...], int, str]:
    """GPT-2 small (124 M parameters), 128 tokens a sequence."""
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError as error:
        raise MaxBackendError("the demo needs transformers: install torch-max-backend[demo]") from error
    tokens = torch.randint(0, 50257, (batch, 128))
    return Logits(GPT2LMHeadModel(GPT2Config())), (tokens,), tokens.numel(), "tokens/s"


def resnet50(batch: int) -> tuple[nn.Module, tuple[torch.Tensor, ...], int, str]:
    """ResNet-50 on 224 x 224 images."""
    try:
        from timm import create_model
    except ImportError as error:
        raise MaxBackendError("the demo needs timm: install torch-max-backend[demo]") from error
    return create_model("resnet50", pretrained=False), (torch.randn(batch, 3, 224, 224),), batch, "images/s"


MODELS: dict[str, Callable[[int], tuple[nn.Module, tuple[torch.Tensor, ...], int, str]]] = {
    "gpt2": gpt2,
    "resnet50": resnet50,
}


@dataclass
class _Started:
    """A model whose graphs are compiled in the background, and the names that torch gave these graphs."""

    name: str
    model: nn.Module
    compiled: Any
    inputs: tuple[torch.Tensor, ...]
    work: int
    unit: str
    compile_ids: list[str]
    first_s: float


def run(names: Sequence[str], device: str, dtype: torch.dtype, batch: int, repeats: int = 9) -> list[Row]:
    """Build models, compile them side by side, run each both ways and measure.

    Args:
        names: Keys of :data:`MODELS`.
        repeats: Interleaved timing rounds; the medians are reported.
    """
    torch._dynamo.reset()
    report.clear()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("always")
        with waiting(f"Building {' and '.join(names)}"):
            started = [_start(name, device, dtype, batch, workers=len(names)) for name in names]
        wait_for_compiles()
        with waiting(f"Measuring {' and '.join(names)}"):
            return [_measure(s, device, repeats) for s in started]


def _start(name: str, device: str, dtype: torch.dtype, batch: int, workers: int) -> _Started:
    torch.manual_seed(0)
    model, inputs, work, unit = MODELS[name](batch)
    model = model.eval().to(device=device, dtype=dtype)
    inputs = tuple(x.to(device=device, dtype=dtype if x.is_floating_point() else x.dtype) for x in inputs)
    options = {"compile": "background", "compile_workers": workers}
    compile_ids: list[str] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        compile_ids.append(str(torch._guards.CompileContext.current_compile_id()))
        return max_backend(gm, example_inputs, options=options)

    compiled: Any = torch.compile(model, backend=backend)
    start = time.perf_counter()
    compiled(*inputs)
    _synchronize(device)
    return _Started(name, model, compiled, inputs, work, unit, compile_ids, time.perf_counter() - start)


def _measure(started: _Started, device: str, repeats: int) -> Row:
    model, compiled, inputs = started.model, started.compiled, started.inputs
    eager_s, backend_s = _interleaved([lambda: model(*inputs), lambda: compiled(*inputs)], device, repeats)
    reports = [r for r in report.reports() if r.compile_id in started.compile_ids]
    wanted, given = model(*inputs).double(), compiled(*inputs).double()
    difference = (given - wanted).abs()
    return Row(
        started.name,
        sum(p.numel() for p in model.parameters()),
        sum(r.stats.regions for r in reports),
        sum(len(r.islands) for r in reports),
        sum(r.stats.hits for r in reports),
        sum(r.stats.compile_s for r in reports),
        started.first_s,
        eager_s,
        backend_s,
        started.work,
        started.unit,
        float(difference.max()),
        float(difference.mean()),
        float(wanted.abs().max()),
    )


def _synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _interleaved(functions: list[Callable[[], object]], device: str, repeats: int) -> list[float]:
    """Median seconds of each function, taking turns so that a noisy moment hits all of them."""
    for function in functions:
        function()
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats):
        for record, function in zip(times, functions, strict=True):
            _synchronize(device)
            start = time.perf_counter()
            function()
            _synchronize(device)
            record.append(time.perf_counter() - start)
    return [statistics.median(t) for t in times]

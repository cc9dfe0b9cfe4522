"""What the cache, islands and hints at performance print, and the pages of a structured trace."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torch_max_backend.base import torch_logs
from torch_max_backend.compile.compiler import put_off
from torch_max_backend.diagnostics import function_hints, logs
from torch_max_backend.options import Options

pytestmark = pytest.mark.sampled

Printed = Callable[..., list[str]]


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Printed]:
    """The lines that an artifact prints while a function is compiled for several arguments, one after the other."""
    monkeypatch.delenv("TORCH_LOGS", raising=False)
    torch_logs.register()

    def call(name: str, function: Callable[..., Any], *arguments: tuple[Any, ...], **options: Any) -> list[str]:
        torch._logging.set_logs(modules={name: True})
        own = {"executor": "auto", "cache_dir": str(tmp_path), **options}
        compiled = torch.compile(function, backend="max_backend", options=own)
        for args in arguments:
            compiled(*args)
        marked = capsys.readouterr().err.splitlines()
        return [line.split(f"[__{name}] ")[1] for line in marked if f"[__{name}]" in line]

    yield call
    torch._logging.set_logs()
    logs.configure(Options())


def spectrum(x: torch.Tensor) -> torch.Tensor:
    return torch.fft.rfft(x * 2).abs() + 1


def twice(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1) * 2


# -- the cache -----------------------------------------------------------------------------------------------------
def test_the_cache_says_of_each_lookup_what_it_found(printed: Printed, tmp_path: Path) -> None:
    x = torch.randn(4, 8)
    (missed,) = printed("max_backend_cache", twice, (x,))
    assert missed.startswith("region ") and missed.endswith("miss: no such region was compiled yet")
    assert str(tmp_path) in missed
    torch._dynamo.reset()
    (found,) = printed("max_cache", twice, (x,))
    assert found == missed.replace("miss: no such region was compiled yet", "hit")


# -- islands -------------------------------------------------------------------------------------------------------
def test_each_island_is_named_with_its_reason_and_line(printed: Printed) -> None:
    lines = printed("max_islands", spectrum, (torch.randn(4, 8),))
    assert "torch runs" in lines[0]
    (fft,) = [line for line in lines if line.startswith("aten._fft_r2c.default at ")]
    assert "in spectrum: return torch.fft.rfft(x * 2).abs() + 1: MAX has no Fourier transform" in fft
    torch._dynamo.reset()
    assert printed("max_islands", twice, (torch.randn(4, 8),)) == []


# -- hints ---------------------------------------------------------------------------------------------------------
HINTS = "max_perf_hints"


@pytest.mark.any_runner("torch runs this op in any case")
def test_an_island_is_a_hint(printed: Printed) -> None:
    lines = printed(HINTS, spectrum, (torch.randn(4, 8),))
    assert any(line.startswith("op ran in torch: 1 x aten._fft_r2c.default (first at ") for line in lines)


def test_a_function_without_limits_has_no_hint(printed: Printed) -> None:
    assert printed(HINTS, twice, (torch.randn(4, 8),)) == []


@pytest.mark.any_runner("Dynamo compiles a function again whoever runs its ops")
def test_a_recompile_names_the_argument(printed: Printed) -> None:
    def scaled(x: torch.Tensor, factor: int) -> torch.Tensor:
        return x * factor

    x = torch.randn(4, 8)
    lines = printed(HINTS, scaled, (x, 2), (torch.randn(5, 8), 2))
    (line,) = [line for line in lines if line.startswith("recompiled")]
    assert line.startswith("recompiled: scaled is compiled the 2. time: x is float32[s")
    assert "was float32[4, 8]" in line and "mark_dynamic" in line
    assert "factor" not in line


@pytest.mark.any_runner("Dynamo breaks a graph whoever runs its ops")
def test_a_graph_break_is_told_where_the_function_goes_on(printed: Printed) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y * 2

    lines = printed(HINTS, broken, (torch.randn(4, 8),))
    begins = broken.__code__.co_firstlineno
    (line,) = [line for line in lines if line.startswith("graph break: ")]
    assert f"broken goes on at {__file__}:{begins + 3} in a graph of its own" in line


def test_a_copied_input_is_a_hint(printed: Printed) -> None:
    x = torch.randn(4, 16)[:, ::2]
    with put_off():
        (line,) = printed(HINTS, twice, (x,), executor="graph")
    assert "is float32[4, 8] of strides (16, 2), which is not dense" in line and "in twice: return" in line
    torch._dynamo.reset()
    assert printed(HINTS, twice, (x,)) == [], "a program reads it where it is"


@pytest.mark.any_runner("nothing is computed unless it is asked for")
def test_nothing_is_kept_for_hints_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(*_: Any) -> str:
        raise AssertionError("described for nobody")

    monkeypatch.setattr(function_hints, "described", told)
    monkeypatch.setattr(torch._logging._internal.trace_log, "handlers", [])  # pytest has some there
    torch.compile(lambda x: x * 2, backend="max_backend", options={"executor": "auto"})(torch.randn(3))


# -- torch's structured trace --------------------------------------------------------------------------------------
class _Pages(logging.Handler):
    """Collects the pages of a structured trace: metadata and text, as torch writes them to ``TORCH_TRACE``."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(torch._logging._internal.TorchLogsFormatter(trace=True))
        self.found: dict[str, list[tuple[dict[str, Any], str]]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if "artifact" in getattr(record, "metadata", {}):
            first, *lines = self.format(record).splitlines()
            metadata = json.loads(first[first.index("{") :])
            text = "\n".join(line.removeprefix("\t") for line in lines)
            self.found.setdefault(metadata["artifact"]["name"], []).append((metadata, text))


@pytest.fixture
def pages() -> Iterator[_Pages]:
    found = _Pages()
    torch._logging._internal.trace_log.addHandler(found)
    yield found
    torch._logging._internal.trace_log.removeHandler(found)


def test_a_structured_trace_has_our_pages(pages: _Pages) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1))
    torch.compile(model, backend="max_backend", options={"executor": "auto", "fallback": "error"})(torch.randn(4, 8))
    own = {name for name in pages.found if name.startswith("max_backend")}
    assert own >= {"max_backend_graph", "max_backend_loops", "max_backend_schedule", "max_backend_kernels"}
    (loops,) = [text for _, text in pages.found["max_backend_loops"]]
    assert "maximum over" in loops
    metadata, graph = pages.found["max_backend_graph"][0]
    assert metadata["frame_id"] == 0 and metadata["artifact"]["encoding"] == "string"
    assert "nodes: 1 program(s)" in graph and "def " in graph


@pytest.mark.any_runner("torch's handlers")
def test_without_a_trace_no_page_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: list[Any] = []
    monkeypatch.setattr(torch._logging._internal.trace_log, "handlers", handlers)
    assert not torch_logs.is_wanted("max_backend_loops")
    handlers.append(logging.NullHandler())
    assert torch_logs.is_wanted("max_backend_loops")

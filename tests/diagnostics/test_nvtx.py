"""What a tool that reads NVTX ranges sees of a call: kernels, by name, inside of the user's modules."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torch_max_backend.runtime import profiler_ranges
from torch_max_backend.runtime.profiler_ranges import RangeOfBoth, is_watched

HERE = Path(__file__).parent
pytestmark = pytest.mark.sampled

PROGRAM = """
import sys
from collections import OrderedDict
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.activation = nn.Linear(512, 512), nn.Softmax(-1)

    def forward(self, x):
        return self.activation(self.inner(x))

model = nn.Sequential(OrderedDict(first=Block(), second=Block()))
options = {"executor": "auto", "fallback": "error", "profile": True}
compiled, x = torch.compile(model, backend="max_backend", options=options), torch.randn(64, 512)
compiled(x).sum().backward()
print("the second call", file=sys.stderr)
if sys.argv[1] == "emit":
    torch.cuda.synchronize = lambda: None  # what emit_nvtx begins with; there may be no GPU
    with torch.autograd.profiler.emit_nvtx():
        compiled(x).sum().backward()
else:
    compiled(x).sum().backward()
"""


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that such a tool would load."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler to build the tool's library with")
    library = tmp_path_factory.mktemp("nvtx") / "recorder.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(HERE / "nvtx_recorder.c")], check=True)
    return library


@pytest.mark.own_processes
@pytest.mark.any_runner("a process of its own")
@pytest.mark.skipif(not hasattr(torch._C, "_nvtx"), reason="this torch was built without NVTX")
@pytest.mark.parametrize("how", ["alone", "emit"])
def test_a_tool_sees_each_kernel_once_inside_of_its_module(recorder: Path, tmp_path: Path, how: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    own = {**os.environ, "NVTX_INJECTION64_PATH": str(recorder), "TORCH_MAX_BACKEND_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, str(tmp_path / "program.py"), how]
    done = subprocess.run(command, env=own, capture_output=True, text=True, check=True)
    ranges = [
        (int(depth), name.partition(", op_id")[0].removeprefix("max_backend::"))
        for depth, name in (
            line.removeprefix("NVTX ").split(" ", 1)
            for line in done.stderr.partition("the second call")[2].splitlines()
            if line.startswith("NVTX ") and "max_backend::" in line
        )
    ]
    inside: dict[str, list[str]] = {}
    around: dict[int, str] = {}
    for depth, name in ranges:
        around[depth] = name
        if not name.startswith(("module", "program")):
            inside.setdefault(around[depth - 1], []).append(name)
    for path in ("first.inner", "second.inner"):
        names = inside[f"module {path}"]
        assert any("addmm" in name or "_linear_pointwise" in name for name in names), "ATen's product or oneDNN's"
    last = inside["module second.activation"]
    assert sum("softmax" in name and "backward" not in name for name in last) == 1, done.stderr
    assert any("softmax_backward_data" in name for name in inside["module first.activation"])
    assert all("[" in name for names in inside.values() for name in names if name.startswith("kernel"))


# -- with a stub of NVTX -------------------------------------------------------------------------------------------
@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", lambda name: calls.append(name))
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: calls.append("end"))
    return calls


@pytest.mark.any_runner("ranges alone")
def test_ranges_are_nested_and_end_where_an_error_leaves_them(told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler_ranges, "_Range", RangeOfBoth)
    with profiler_ranges.module_range("layers.0"), profiler_ranges.profiler_range("kernel0 add", 2000):
        pass
    assert told == ["max_backend::module layers.0", "max_backend::kernel0 add [2 KB]", "end", "end"]
    told.clear()
    with pytest.raises(IndexError), profiler_ranges.profiler_range("kernel1"):
        raise IndexError
    assert told == ["max_backend::kernel1", "end"]


@pytest.mark.any_runner("ranges alone")
def test_only_a_process_with_a_tool_has_them(told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NVTX_INJECTION64_PATH", raising=False)
    assert not is_watched()
    with profiler_ranges.profiler_range("kernel0"):
        pass
    assert told == []

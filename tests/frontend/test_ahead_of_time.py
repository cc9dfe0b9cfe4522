"""Functions that are compiled in one process, saved, and loaded in another one without a cache or a compiler."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import Processes

pytestmark = [pytest.mark.xdist_group("processes"), pytest.mark.own_processes, pytest.mark.sampled]

PRELUDE = """
import json, sys
import torch

class Model(torch.nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.weight = torch.nn.Parameter(torch.randn(8))
        self.register_buffer("shift", torch.rand(8))

    def forward(self, x):
        return (x * self.weight).sin() + self.shift

def compiled(dynamic=None, **options):
    torch._dynamo.config.enable_aot_compile = True
    options = {"fallback": "error", **options}
    function = torch.compile(Model(0), backend="max_backend", fullgraph=True, dynamic=dynamic, options=options)
    return function.forward.aot_compile(((torch.randn(4, 8),), {}))

def load():
    with open(PATH, "rb") as file:
        return torch.compiler.load_compiled_function(file)

def tell(**more):
    from torch_max_backend import reports
    found = reports()
    lowering = "torch_max_backend.lowering.graph_builder" in sys.modules
    programs = [r.stats.programs for r in found]
    print(json.dumps({"warm": [r.warm for r in found], "programs": programs, "lowering": lowering, **more}))
"""

SAVE = """
with torch.no_grad():
    function = compiled()
    function.save_compiled_function(PATH)
tell()
"""

LOAD = """
with torch.no_grad():
    function = load()
    x = torch.randn(4, 8)
    results = []
    for seed in (0, 1):
        model = Model(seed)
        results.append(function(model, x))
        torch.testing.assert_close(results[-1], model(x))
    model.weight.mul_(3)
    torch.testing.assert_close(function(model, x), model(x))
    model.weight.data = torch.randn(8)
    torch.testing.assert_close(function(model, x), model(x))
    torch.testing.assert_close(function(Model(0), x), results[0])
tell(differ=not torch.equal(*results))
"""

Run = Callable[..., "tuple[dict[str, Any], str]"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "function.aot"


@pytest.fixture
def run(tmp_path: Path, file: Path, processes: Processes) -> Run:
    """Runs a program in a process of its own; gives what it told, and its errors."""

    def call(program: str, **environment: str) -> tuple[dict[str, Any], str]:
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torch")}
        source = f"PATH = {str(file)!r}\n{PRELUDE}{textwrap.dedent(program)}"
        done = processes.run(source, tmp_path, **{**caches, **environment})
        return done.told, done.errors

    return call


def elsewhere(tmp_path: Path) -> dict[str, str]:
    """A machine that has the file only: its caches are empty."""
    return {
        "TORCH_MAX_BACKEND_CACHE_DIR": str(tmp_path / "empty"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "empty-torch"),
    }


@pytest.mark.parametrize("executor", [pytest.param("graph", marks=pytest.mark.full), "auto"])
def test_a_saved_function_needs_no_cache_and_takes_other_weights(run: Run, tmp_path: Path, executor: str) -> None:
    """As a MAX graph, and as a program of generated kernels."""
    saved, errors = run(SAVE, TORCH_MAX_BACKEND_EXECUTOR=executor)
    assert saved["warm"] == [False] and saved["programs"] == [int(executor == "auto")], errors
    loaded, errors = run(LOAD, **elsewhere(tmp_path))
    assert loaded == {"warm": [True], "programs": saved["programs"], "lowering": False, "differ": True}, errors
    assert not list((tmp_path / "empty").rglob("*.mef"))


def test_a_saved_program_of_library_calls_alone(run: Run, tmp_path: Path) -> None:
    sorts = "Model.forward = lambda self, x: x.sort(-1).values\n"
    run(sorts + SAVE, TORCH_MAX_BACKEND_EXECUTOR="auto")
    load = "torch.set_grad_enabled(False)\nx = torch.randn(4, 8)\n"
    load += "assert torch.equal(load()(Model(0), x), x.sort(-1).values)\ntell()\n"
    loaded, errors = run(sorts + load, **elsewhere(tmp_path))
    assert loaded.get("warm") == [True] and loaded["programs"] == [1], errors


def test_damaged_and_foreign_files(run: Run, file: Path) -> None:
    run(SAVE)
    sound = file.read_bytes()
    middle = sound.index(b"torch_max_backend ahead of time") + 4000
    file.write_bytes(sound[:middle] + bytes([sound[middle] ^ 1]) + sound[middle + 1 :])
    assert "SavedFunctionError: the saved function is damaged" in run(LOAD)[1]
    file.write_bytes(sound)
    for part, name in [("cpu_target = lambda", "processor"), ("package_version = lambda package", "version of MAX")]:
        pretend = f"import torch_max_backend.base.digests as d\nd.{part}: 'other'\n"
        assert f"SavedFunctionError: the saved function was compiled for another {name}" in run(pretend + LOAD)[1]


def test_what_cannot_be_saved(run: Run, tmp_path: Path) -> None:
    cleared = SAVE.replace("    function.save", "    import shutil\n    shutil.rmtree(FOLDER)\n    function.save")
    folder = str(tmp_path / "own")
    errors = run(f"FOLDER = {folder!r}\n" + cleared, TORCH_MAX_BACKEND_CACHE_DIR=folder)[1]
    assert "SavedFunctionError: the artifact of region" in errors and "is that folder writable?" in errors


@pytest.mark.any_runner("an error of torch's")
def test_saving_needs_torchs_cache(run: Run) -> None:
    off = "import torch\ntorch.compiler.config.force_disable_caches = True\n"
    errors = run(off + SAVE)[1]
    assert "force_disable_caches" in errors and "Error" in errors


@pytest.mark.full
def test_without_the_cache_and_in_the_background(run: Run, tmp_path: Path) -> None:
    """The file is complete even if nothing is kept, and a function to be saved is always waited for."""
    run(SAVE.replace("compiled()", "compiled(cache=False, compile='background')"))
    loaded, errors = run(LOAD, **elsewhere(tmp_path))
    assert loaded.get("warm") == [True], errors


TRAIN = """
function = {function}
model, twin, x = Model(0), Model(0), torch.randn(4, 8)
function(model, x).square().sum().backward()
twin(x).square().sum().backward()
torch.testing.assert_close(model.weight.grad, twin.weight.grad)
{then}
tell()
"""


@pytest.mark.full
def test_training(run: Run, tmp_path: Path) -> None:
    save = TRAIN.replace("{function}", "compiled()").replace("{then}", "function.save_compiled_function(PATH)")
    saved, errors = run(save)
    assert saved.get("warm") == [False, False], errors
    loaded, errors = run(TRAIN.replace("{function}", "load()").replace("{then}", ""), **elsewhere(tmp_path))
    assert loaded.get("warm") == [True, True], errors


@pytest.mark.full
def test_symbolic_sizes(run: Run, tmp_path: Path) -> None:
    run(SAVE.replace("compiled()", "compiled(dynamic=True)"))
    program = """
    model = Model(3)
    with torch.no_grad():
        function = load()
        for size in (2, 4, 7):
            x = torch.randn(size, 8)
            torch.testing.assert_close(function(model, x), model(x))
        try:
            function(model, torch.randn(4, 9))
        except Exception as error:
            tell(refused=type(error).__name__)
    """
    loaded, errors = run(program, **elsewhere(tmp_path))
    assert loaded.get("warm") == [True] and loaded.get("refused"), errors

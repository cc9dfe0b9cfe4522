"""Compiling for a machine that is not this one, and asking what a function would find in the store."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tests.support.absent_gpu import trace
from tests.support.harness import STRICT
from torch_max_backend import reports
from torch_max_backend.base.errors import CompileError, EnvironmentUnsupportedError
from torch_max_backend.base.target import Machine, elsewhere
from torch_max_backend.cli import app
from torch_max_backend.compile import programs
from torch_max_backend.compile.cache.key import cpu_target
from torch_max_backend.compile.cache.store import Store
from torch_max_backend.compile.compiler import put_off
from torch_max_backend.compile.program_libraries import launcher_job
from torch_max_backend.compile.stats import CompileStats
from torch_max_backend.diagnostics import report
from torch_max_backend.diagnostics.report import GraphReport
from torch_max_backend.frontend import compiled_graph
from torch_max_backend.frontend.compiled_graph import SavedGraph
from torch_max_backend.frontend.prebuild import load_function, regions_of
from torch_max_backend.options import resolve
from torch_max_backend.runtime.call_path import CallSpec
from torch_max_backend.runtime.cuda_launch import CUBIN, LAUNCHER
from torch_max_backend.runtime.program import ProgramSpec
from torch_max_backend.runtime.session import check_device, get_accelerators, target_for

pytestmark = pytest.mark.sampled

PROGRAM = """
import torch

def shifted(x):
    return (x.cos() + torch.arange(x.shape[-1], device=x.device)).sum(-1)

def run(device):
    model = torch.nn.Linear(4, 4).to(device)
    x = torch.randn(2, 4, device=device)
    assert x.device.type == device
    model.weight.data.mul_(2)
    with torch.no_grad():
        torch.compile(shifted, backend="max_backend", options={"fallback": "error"})(x + model.bias)

def broken(device):
    raise RuntimeError("not today")

def nothing(device):
    pass
"""

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def program(tmp_path: Path) -> str:
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(PROGRAM))
    return str(file)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("TORCH_MAX_BACKEND_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    return Store(tmp_path / "cache")


def cache(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["cache", *arguments])
    return result.exit_code, result.output


# -- whose key it is -----------------------------------------------------------------------------------------------
@pytest.mark.any_runner("names of machines")
@pytest.mark.parametrize(
    ("text", "api", "arch"),
    [("cpu", "", ""), ("cuda:sm_90a", "cuda", "sm_90a"), ("hip:gfx942", "hip", "gfx942")],
)
def test_a_machine_is_named_by_api_and_architecture(text: str, api: str, arch: str) -> None:
    machine = Machine.parse(text)
    assert (machine.api, machine.arch) == (api, arch)
    assert machine.device == ("cuda" if api else "cpu")


@pytest.mark.any_runner("names of machines")
@pytest.mark.parametrize("text", ["cuda", "cuda:0", "tpu:v5", "sm_90a", ""])
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(EnvironmentUnsupportedError, match="cuda:sm_90a"):
        Machine.parse(text)


@pytest.mark.any_runner("names of machines")
def test_the_target_is_that_of_a_machine_with_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gpu:
        api, architecture_name = "cuda", "sm_90a"

    devices = {torch.device("cuda", 0), torch.device("cpu")}
    with Machine.parse("cuda:sm_90a").pretended():
        absent = target_for(devices), target_for({torch.device("cpu")})
        check_device(torch.device("cuda", 0))
    monkeypatch.setattr("torch_max_backend.runtime.session.get_accelerators", lambda: (Gpu(),))
    assert elsewhere() is None
    assert absent == (target_for(devices), target_for({torch.device("cpu")}))
    with Machine.parse("cuda:sm_90a", host="x86_64-0123", cpu="x86-64-v3").pretended():
        target, name = target_for(devices)
    assert name == "x86_64-0123+cuda:sm_90a"
    assert target.cpu == "x86-64-v3"


# -- what is compiled for an absent GPU ------------------------------------------------------------------------------
@pytest.mark.parametrize("made", [lambda x: torch.tensor(2.0, device="cuda"), lambda x: torch.tensor(2).type_as(x)])
def test_numbers_may_go_to_the_gpu_inside_of_a_graph(made: Callable[..., Any], store: Store) -> None:
    trace(lambda x: x.exp() * made(x), lambda: torch.ones(8, device="cuda"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch asks the GPU that is here")
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_attention_is_laid_out_as_on_a_gpu(store: Store, dtype: torch.dtype) -> None:
    """Fused kernels put heads behind positions, so that rows of all heads are a view; float64 has no fused kernel."""

    def rows(x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.scaled_dot_product_attention(x, x, x)
        return y.transpose(1, 2).flatten(2) + 1

    def run(device: str) -> None:
        x = torch.randn(2, 3, 8, 16, device=device, dtype=dtype)
        with torch.no_grad():
            assert torch.compile(rows, backend="max_backend", options=STRICT)(x).shape == (2, 8, 48)

    with Machine.parse("cuda:sm_90a").pretended():
        batch = regions_of(run, "cuda")
    ((job, _),) = batch.looked_up
    assert "aten.scaled_dot_product_attention" in job.region.text
    assert ("aten.clone" in job.region.text) == (dtype == torch.float64)


@pytest.mark.any_runner("a fake tensor's strides")
@pytest.mark.skipif(torch.cuda.is_available(), reason="torch asks the GPU that is here")
@pytest.mark.parametrize("last", ["image", "filter", "neither", "image, float64"])
def test_convolutions_are_laid_out_as_on_a_gpu(last: str) -> None:
    dtype = torch.float64 if "float64" in last else torch.bfloat16
    formats = [torch.channels_last if name in last else torch.contiguous_format for name in ("image", "filter")]
    with Machine.parse("cuda:sm_90a").pretended():
        x, w = (
            torch.empty(s, device="cuda", dtype=dtype, memory_format=f)
            for s, f in zip([(2, 3, 8, 8), (4, 3, 3, 3)], formats, strict=True)
        )
        y = torch.conv2d(x, w)
    assert y.is_contiguous(memory_format=torch.channels_last) == (last in ("image", "filter"))
    assert y.is_contiguous() == (last not in ("image", "filter"))


# -- the command ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("device", ["cuda:sm_90a", pytest.param("cpu", marks=pytest.mark.full)])
def test_prebuild(program: str, store: Store, tmp_path: Path, device: str) -> None:
    if device != "cpu" and get_accelerators():
        pytest.skip("tells nothing where there is a GPU")
    bundle = tmp_path / "bundle"
    code, text = cache("prebuild", f"{program}:run", "--device", device, "--export", str(bundle))
    assert code == 0, text
    assert "1 compiled, 0 in the cache already" in text
    (record,) = store.records()
    name = cpu_target() if device == "cpu" else f"{cpu_target()}+{device}"
    assert record.parts["target"] == name
    assert store.get(record.key) is not None
    assert name in cache("list")[1]
    compiled = store.blob_path(record.sha).stat().st_mtime_ns

    code, text = cache("prebuild", f"{program}:run", "--device", device)
    assert code == 0, text
    assert "0 compiled, 1 in the cache already" in text
    assert len(store.blobs()) == 1
    assert compiled <= store.blob_path(record.sha).stat().st_mtime_ns

    store.clear()
    assert cache("import", str(bundle))[0] == 0
    assert store.records() == [record]
    code, text = cache("explain", f"{program}:run", "--device", device)
    assert code == 0, text
    assert "hit" in text and "miss" not in text


SOFTMAX = """
import torch

def softmax(x):
    return torch.softmax(x, -1) * 2

def run(device):
    x = torch.randn(64, 4096, device=device)
    with torch.no_grad():
        torch.compile(softmax, backend="max_backend", options={"fallback": "error", "executor": "auto"})(x)
"""


@pytest.mark.any_runner("a program of generated kernels")
def test_prebuild_of_generated_kernels(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cubin for an absent GPU, without MAX, and what launches it on the other machine's processor."""
    if get_accelerators():
        pytest.skip("tells nothing where there is a GPU")
    file, bundle = tmp_path / "softmax.py", tmp_path / "bundle"
    file.write_text(SOFTMAX)
    monkeypatch.setattr("torch_max_backend.compile.compiler.submit", None)
    machine = ["--device", "cuda:sm_90a", "--host", "x86_64-0123", "--cpu", "x86-64-v3"]

    assert "miss: no such region was compiled yet" in cache("explain", f"{file}:run", "--device", "cuda:sm_90a")[1]
    assert store.usage() == (0, 0)
    code, text = cache("prebuild", f"{file}:run", *machine, "--export", str(bundle))
    assert code == 0 and "1 compiled, 0 in the cache already" in text, text
    kinds = {record.graph: record for record in store.records()}
    assert kinds.keys() == {CUBIN, LAUNCHER}
    assert kinds[CUBIN].parts["target"] == "cuda:sm_90a" and kinds[LAUNCHER].parts["target"] == "x86_64-0123"
    assert all(store.blob_path(record.sha).read_bytes().startswith(b"\x7fELF") for record in kinds.values())

    code, text = cache("prebuild", f"{file}:run", *machine)
    assert code == 0 and "0 compiled, 1 in the cache already" in text, text
    assert "hit" in cache("explain", f"{file}:run", "--device", "cuda:sm_90a")[1]
    store.clear()
    assert cache("import", str(bundle))[0] == 0
    assert {record.graph: record for record in store.records()} == kinds


@pytest.mark.any_runner("a program of generated kernels")
def test_an_image_finds_the_kernels_of_its_cpu(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Built, exported, imported into an empty store, checked, and loaded by a program that compiles nothing."""
    file, bundle = tmp_path / "softmax.py", tmp_path / "bundle"
    file.write_text(SOFTMAX)
    monkeypatch.setattr("torch_max_backend.compile.compiler.submit", None)
    code, text = cache("explain", f"{file}:run", "--check")
    assert code == 1 and "1 regions are not in the cache" in text, text
    code, text = cache("prebuild", f"{file}:run", "--device", "cpu", "--export", str(bundle))
    assert code == 0 and "1 compiled, 0 in the cache already" in text, text
    store.clear()
    assert cache("import", str(bundle))[0] == 0
    code, text = cache("explain", f"{file}:run", "--check")
    assert code == 0 and "hit" in text, text
    report.clear()
    load_function(f"{file}:run")("cpu")
    assert [(r.stats.programs, r.stats.hits) for r in reports()] == [(1, 1)]


@pytest.mark.any_runner("a program of generated kernels")
def test_kernels_for_another_cpu_are_compiled_for_it(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled_for: list[str] = []
    build = programs.build_shared_library

    def noted(*args: Any, cpu: str = "", **how: Any) -> bytes:
        compiled_for.append(cpu)
        return build(*args, cpu=cpu, **how)

    monkeypatch.setattr(programs, "build_shared_library", noted)
    (tmp_path / "softmax.py").write_text(SOFTMAX)
    machine = ["--device", "cpu", "--host", "x86_64-0123", "--cpu", "x86-64-v3"]
    code, text = cache("prebuild", f"{tmp_path / 'softmax.py'}:run", *machine)
    assert code == 0 and "1 compiled" in text, text
    (record,) = store.records()
    assert record.parts["target"] == "x86_64-0123"
    assert compiled_for == ["x86-64-v3"]


@pytest.mark.any_runner("a program of generated kernels")
def test_a_prebuild_that_fails_is_told(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if get_accelerators():
        pytest.skip("tells nothing where there is a GPU")
    (tmp_path / "softmax.py").write_text(SOFTMAX)

    def refused(*_: Any, **__: Any) -> bytes:
        raise CompileError("no kernels today")

    monkeypatch.setattr("torch_max_backend.compile.programs.build_cubin", refused)
    code, text = cache("prebuild", f"{tmp_path / 'softmax.py'}:run", "--device", "cuda:sm_90a")
    assert code == 1 and "0 compiled, 0 in the cache already" in text and "1 regions did not compile" in text


@pytest.mark.any_runner("a program of generated kernels")
def test_a_saved_graph_finds_kernels_and_what_launches_them(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """In another process, on the GPU of each region. Without the launcher, it is compiled."""
    store.put(b"kernels", {"ab" * 32: CUBIN}, {})
    saved = SavedGraph(b"", ("ab" * 32, "", "ab" * 32), GraphReport("", 1, 1, (), CompileStats()), resolve())
    regions = tuple(ProgramSpec("", {}, (), gpus=(gpu,)) for gpu in (0, 0, 1))
    made: list[tuple[Any, ...]] = []
    monkeypatch.setattr(compiled_graph.GridLibrary, "__init__", lambda self, *args: made.append(args))
    first, none, last = compiled_graph.models_of(saved, CallSpec("", regions), saved.options)
    launcher = store.get(launcher_job(store).key)
    assert first and last and none is None and launcher is not None and launcher.graph == LAUNCHER
    assert [(cubin, place, gpu) for cubin, _, place, gpu in made] == [(b"kernels", launcher.blob, k) for k in (0, 1)]


def test_the_cpu_entries_are_what_a_program_finds(program: str, store: Store) -> None:
    assert cache("prebuild", f"{program}:run", "--device", "cpu")[0] == 0
    torch._dynamo.reset()
    scope: dict[str, Any] = {}
    exec(Path(program).read_text(), scope)
    report.clear()
    scope["run"]("cpu")
    assert [(r.stats.regions, r.stats.hits) for r in reports()] == [(1, 1)]


def test_explain_names_what_differs_and_compiles_nothing(program: str, store: Store) -> None:
    code, text = cache("explain", f"{program}:run")
    assert code == 0, text
    assert "miss: no such region was compiled yet" in text
    assert "program.py:5" in text
    assert store.usage() == (0, 0)
    with put_off() as batch:
        torch._dynamo.reset()
        load_function(f"{program}:run")("cpu")
    ((job, there),) = batch.looked_up
    assert not there
    store.put(b"of another version", {"ab" * 32: "g"}, {"ab" * 32: job.parts | {"max": "26.6.0"}})
    code, text = cache("explain", f"{program}:run")
    assert code == 0, text
    assert "miss: differs in max" in text and "was 26.6.0" in text
    assert job.key[:12] in text


@pytest.mark.any_runner("nothing gets to the partition")
def test_a_function_that_raises_or_compiles_nothing_is_told(program: str, store: Store) -> None:
    code, text = cache("prebuild", f"{program}:broken", "--device", "cpu")
    assert code == 1 and "not today" in text
    code, text = cache("prebuild", f"{program}:nothing", "--device", "cpu")
    assert code == 1 and "compiled nothing with max_backend" in text
    code, text = cache("prebuild", f"{program}:absent", "--device", "cpu")
    assert code == 1 and "absent" in text
    code, text = cache("prebuild", f"{program}:run", "--device", "cuda")
    assert code == 1 and "cuda:sm_90a" in text
    assert store.usage() == (0, 0)

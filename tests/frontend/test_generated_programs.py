"""Programs of generated kernels in the product: memory, warm starts, threads, forks, and what happens without Mojo."""

from __future__ import annotations

import logging
import os
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from tests.support.processes import Processes
from torch_max_backend import max_backend, reports
from torch_max_backend.base.errors import CompileError, ProgramError, Unsupported
from torch_max_backend.compile import programs as compile_programs
from torch_max_backend.diagnostics import report
from torch_max_backend.loops import from_region
from torch_max_backend.loops.rules.registry import rules
from torch_max_backend.loops.tensor import Tensor

pytestmark = pytest.mark.sampled


@pytest.fixture(autouse=True)
def only_own_reports() -> None:
    report.clear()


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    chosen = {"fallback": "error", "executor": "auto", **options}
    return torch.compile(function, backend=lambda gm, inputs: max_backend(gm, inputs, options=chosen), dynamic=False)


def agrees(function: Callable[..., Any], *inputs: torch.Tensor, programs: int = 1, **options: Any) -> None:
    """Results and written inputs are eager's, and so many regions were programs."""
    mine, theirs = ([x.clone(memory_format=torch.preserve_format) for x in inputs] for _ in range(2))
    torch.testing.assert_close(compiled(function, **options)(*mine), function(*theirs))
    torch.testing.assert_close(mine, theirs)
    assert reports()[-1].stats.programs == programs


def softmax_of_rows(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2, -1) + x.sum()


# -- memory ------------------------------------------------------------------------------------------------------------
def returns_and_multiplies(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.relu()
    return y, y @ w


def stores_and_multiplies(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x.relu() + 1
    x.copy_(y)
    return y @ w


def stores_what_was_reshaped(x: torch.Tensor) -> torch.Tensor:
    rows = x.reshape(3, 4)
    x.copy_((rows * 2 + rows.sum(1, keepdim=True)).reshape(12))
    return x.sum()


def stores_and_reads_elsewhere(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    before = x.flip(0) * y
    x.copy_(y.reshape(4, 3).t().reshape(12) * x.roll(1))
    return before


def reshapes_nothing(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    nothing = x.new_empty((0, 3)) + x.sum()
    return nothing.reshape(3, 0) * 2, nothing.reshape(0, 1, 3).repeat(1, 2, 1), nothing.sum(0)


def test_what_a_library_reads_keeps_its_memory() -> None:
    x, w = torch.randn(6, 4).t(), torch.randn(6, 5)
    agrees(returns_and_multiplies, x, w)
    agrees(stores_and_multiplies, x, w)


def test_a_store_may_have_other_loops_than_its_target() -> None:
    agrees(stores_what_was_reshaped, torch.randn(12))
    agrees(stores_and_reads_elsewhere, torch.randn(12), torch.randn(12))


def test_shapes_without_elements() -> None:
    agrees(reshapes_nothing, torch.randn(3, 4))


def test_the_executor_graph_has_no_programs() -> None:
    agrees(softmax_of_rows, torch.randn(3, 4), programs=0, executor="graph")


# -- ops without loops -------------------------------------------------------------------------------------------------
def floor_between(x: torch.Tensor, written: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows = (x * 2).softmax(-1)
    steps = (rows * 5).floor()
    written.add_(steps.sum())
    return steps.sum(0) + rows[0], rows


@pytest.mark.xdist_group("processes")
def test_max_runs_what_has_no_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    floors = (torch.ops.aten.floor.default, torch.ops.prims.floor.default)
    without = {target: rule for target, rule in rules().items() if target not in floors}
    monkeypatch.setattr(from_region, "rule_of", without.get)
    agrees(floor_between, torch.randn(3, 4), torch.randn(2), programs=2)
    assert reports()[-1].stats.regions == 3 and not reports()[-1].islands


# -- without a compiler ------------------------------------------------------------------------------------------------
def broken(*args: Any, **kwargs: Any) -> bytes:
    raise CompileError("Mojo's compiler is broken")


def softmaxes_of_integers(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.softmax(1, dtype=torch.float64), x.log_softmax(1, dtype=torch.float64), x.softmax(0, dtype=torch.float64)


def functions_of_integers(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.cos(x), torch.sigmoid(x), torch.special.i0e(x), torch.special.entr(x), torch.rsqrt(x), x.exp() + 1


def test_programs_run_what_max_does_not() -> None:
    """Results of integers are eager's to the bit, and its graph compiler has other functions."""
    x = torch.arange(-3, 40)
    made = compiled(functions_of_integers)(x)
    torch.testing.assert_close(made, functions_of_integers(x), rtol=0, atol=0, equal_nan=True)
    assert reports()[-1].stats.programs == 1
    with pytest.raises(BackendCompilerFailed, match=r"MAX cannot run aten\.cos\.default: an integer argument"):
        compiled(functions_of_integers, executor="graph")(x)


def test_softmax_of_integers_is_equal_to_the_bit() -> None:
    x = torch.randint(-9, 10, (40, 23))
    made = compiled(softmaxes_of_integers)(x)
    torch.testing.assert_close(made, softmaxes_of_integers(x), rtol=0, atol=0)
    assert reports()[-1].stats.programs == 1


def test_long_sums_are_more_accurate_than_eagers() -> None:
    """The mean of half a million numbers that nearly cancel each other: parts of it are added up in float64."""
    mean, ours, eagers = compiled(torch.mean), [], []
    for seed in range(30):
        torch.manual_seed(seed)
        x = torch.randn(8, 4, 16377)
        exact = x.double().mean()
        ours.append(mean(x) - exact)
        eagers.append(x.mean() - exact)
    assert torch.stack(ours).norm() < 0.7 * torch.stack(eagers).norm()


@pytest.mark.parametrize("function", [torch.var_mean, torch.std_mean])
def test_a_mean_beside_a_variance_is_eagers(function: Any) -> None:
    """Torch finds it in float64, so that numbers which cancel each other leave no error."""
    x = torch.randn(163, 33)[:, :25]
    torch.testing.assert_close(compiled(function)(x)[1], x.double().mean().float(), rtol=2**-23, atol=0)
    columns = x - x.double().mean(0).float()
    made = compiled(lambda c: function(c, 0))(columns)[1]
    torch.testing.assert_close(made, columns.double().mean(0).float(), rtol=2**-23, atol=0)


def test_a_sum_of_float16_that_is_too_large_is_infinite() -> None:
    """Also if it is divided next: kernels keep float32 between ops, in which it would be finite."""
    x = torch.full((3, 1000), 100.0, dtype=torch.float16)
    agrees(lambda x: (x.sum() / 1000, x.sum(1, keepdim=True) * 0.5, x[:, :40].float().prod(1)), x)
    agrees(lambda x: torch.nn.functional.kl_div(x, x * 8, reduction="batchmean"), x)


def test_nobody_runs_what_neither_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that declines what MAX cannot run leaves it to torch, and what is around it to a program."""

    def declines(x: Tensor) -> Tensor:
        raise Unsupported("not on a Wednesday")

    monkeypatch.setitem(rules(), torch.ops.aten.cos.default, declines)
    x = torch.arange(1, 40)
    with pytest.raises(BackendCompilerFailed, match=r"MAX cannot run aten\.cos\.default: an integer argument"):
        compiled(functions_of_integers)(x)
    with pytest.warns(UserWarning, match=r"aten\.cos"):
        agrees(functions_of_integers, x, fallback="eager")


def test_strict_mode_says_that_mojo_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compile_programs, "build_shared_library", broken)
    with pytest.raises(BackendCompilerFailed, match="Mojo's compiler is broken") as caught:
        compiled(softmax_of_rows, cache_dir=str(tmp_path))(torch.randn(3, 4))
    assert isinstance(caught.value.inner_exception, ProgramError)


@pytest.mark.xdist_group("processes")
def test_max_takes_over_from_mojo(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compile_programs, "build_shared_library", broken)
    monkeypatch.setenv("TORCH_MAX_BACKEND_EXECUTOR", "auto")
    with caplog.at_level(logging.WARNING, "torch_max_backend"):
        agrees(softmax_of_rows, torch.randn(3, 4), programs=0, fallback="eager", min_block_size=1)
    assert [r.message.count("MAX compiles the graph instead") for r in caplog.records] == [1]


# -- threads and processes ---------------------------------------------------------------------------------------------
def test_calls_from_several_threads() -> None:
    function = compiled(softmax_of_rows)
    inputs = [torch.randn(70, 500, generator=torch.Generator().manual_seed(k)) for k in range(4)]
    wanted = [softmax_of_rows(x) for x in inputs]
    function(inputs[0])
    wrong: list[int] = []

    def work(k: int) -> None:
        for _ in range(50):
            if not torch.allclose(function(inputs[k]), wanted[k], rtol=1e-5, atol=1e-4):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.parametrize("count", [1, 2, 3])
def test_any_number_of_threads(count: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        agrees(softmax_of_rows, torch.randn(300, 700))
        agrees(lambda x: (x.sum(0), x.t() * 2, x.amax()), torch.randn(301, 703))
    finally:
        torch.set_num_threads(before)


FORKED = """
x = torch.rand(300, 700)
torch.set_num_threads(1)
function, wanted = compiled(f), f(x)
same(function(x), wanted)
child = os.fork()
if child == 0:
    os._exit(0 if torch.allclose(function(x), wanted, rtol=1e-5, atol=1e-4) else 3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
tell()
"""
PRELUDE = """
import json, os, torch

def compiled(function, **options):
    from torch_max_backend import max_backend
    options = {"fallback": "error", "executor": "auto", **options}
    return torch.compile(function, backend=lambda gm, inputs: max_backend(gm, inputs, options=options), dynamic=False)

def same(given, wanted):
    torch.testing.assert_close(given, wanted)

def f(x):
    return torch.softmax(x * 2, -1) + x.sum()

def tell():
    from torch_max_backend import reports
    found = reports()[-1]
    stats = found.stats
    print(json.dumps({
        "warm": found.warm, "programs": stats.programs, "hits": stats.hits, "compiled": stats.compile_s > 0,
        "kernels": sum(p.kernels for p in found.programs),
    }))
"""
WARM = """
x = torch.rand(300, 700)
same(compiled(f)(x), f(x))
tell()
"""


def _run(processes: Processes, program: str, folder: Path, **environment: str) -> dict[str, Any]:
    own = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "torch"), "TORCH_MAX_BACKEND_CACHE_DIR": str(folder / "cache")}
    done = processes.run(PRELUDE + textwrap.dedent(program), folder, **{**own, **environment})
    assert done.told, done.errors[-4000:]
    return done.told


@pytest.mark.xdist_group("processes")
@pytest.mark.own_processes
def test_a_forked_child_runs_programs(processes: Processes, tmp_path: Path) -> None:
    assert _run(processes, FORKED, tmp_path)["programs"] == 1


@pytest.mark.xdist_group("processes")
@pytest.mark.own_processes
def test_a_second_process_compiles_nothing(processes: Processes, tmp_path: Path) -> None:
    first, second = (_run(processes, WARM, tmp_path) for _ in range(2))
    assert first["compiled"] and not first["warm"]
    assert second == {**first, "compiled": False, "warm": True, "hits": 1}


@pytest.mark.xdist_group("processes")
@pytest.mark.own_processes
@pytest.mark.parametrize("harm", ["delete", *(pytest.param(h, marks=pytest.mark.full) for h in ("shorten", "zero"))])
def test_a_damaged_library_is_compiled_again(processes: Processes, tmp_path: Path, harm: str) -> None:
    _run(processes, WARM, tmp_path)
    (library,) = (tmp_path / "cache" / "v1" / "blobs").glob("*/*")
    if harm == "delete":
        os.unlink(library)
    else:
        library.write_bytes(library.read_bytes()[:100] if harm == "shorten" else b"\0" * library.stat().st_size)
    again = _run(processes, WARM, tmp_path)
    assert again["compiled"] and not again["warm"]
    assert not _run(processes, WARM, tmp_path)["compiled"]

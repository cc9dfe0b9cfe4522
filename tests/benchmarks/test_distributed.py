"""The benchmark of several ranks: what it counts, and all of it on two processes without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import overlap
from benchmarks.distributed import cells, note, problem_of, ratio
from benchmarks.distributed_models import SHAPES, mesh_of
from benchmarks.distributed_worker import in_units
from benchmarks.verdict import verdict
from tests.support.processes import ROOT

pytestmark = pytest.mark.any_runner("the benchmark's own arithmetic, and its strict mode, which fails by itself")


# -- overlap -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("communication", "computing", "wanted"),
    [
        ([(0, 10)], [(2, 5), (4, 6), (20, 30)], 0.4),
        ([(0, 4), (2, 10)], [(9, 12)], 0.1),
        ([(0, 1), (3, 4)], [(1, 3)], 0.0),
        ([(5, 6), (0, 1)], [(0, 6)], 1.0),
        ([(0, 1)], [], 0.0),
        ([], [(0, 1)], None),
    ],
)
def test_share_of_communication_that_is_hidden(
    communication: list[overlap.Interval], computing: list[overlap.Interval], wanted: float | None
) -> None:
    assert overlap.share(communication, computing) == (wanted if wanted is None else pytest.approx(wanted))


def test_work_of_a_gpu_in_a_trace() -> None:
    """Annotations are no work, also where they bear a collective's name, and neither is the host's part of it."""

    def event(cat: str, name: str, ts: float, dur: float = 1) -> dict[str, Any]:
        return {"cat": cat, "name": name, "ts": ts, "dur": dur}

    events = [
        event("kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 0, 4),
        event("kernel", "gemm", 3, 2),
        event("gpu_memcpy", "Memcpy DtoD", 8),
        event("gpu_user_annotation", "nccl:all_reduce", 0, 9),
        event("cpu_op", "aten::mm", 0, 9),
        {"ph": "M", "name": "process_name"},
    ]
    collective, other = overlap.kernels({"traceEvents": events})
    assert collective == [(0, 4)] and other == [(3, 5), (8, 9)]
    assert overlap.share(collective, other) == 0.25


# -- losses --------------------------------------------------------------------------------------------------------
def test_losses_in_float32_may_differ_by_the_order_of_sums() -> None:
    assert in_units([2.0, 3.0], [2.0, 3.0], None) == 0
    assert in_units([2.0, 3.0 + 4e-4], [2.0, 3.0], None) > 1 > in_units([2.0, 3.0 + 2e-4], [2.0, 3.0], None)


def test_losses_in_bfloat16_may_differ_by_twice_what_rounding_does() -> None:
    assert in_units([2.03], [2.0], 0.01) > 1 > in_units([2.015], [2.0], 0.01)
    assert in_units([2.0], [2.0], 0.0) == 0
    assert in_units([2.0001], [2.0], 0.0) > 1


# -- meshes and rows -----------------------------------------------------------------------------------------------
def test_meshes() -> None:
    assert mesh_of("2d", 2) == ((2, 1), ("dp", "tp"))
    assert mesh_of("2d", 4) == ((2, 2), ("dp", "tp"))
    assert mesh_of("tp", 4) == ((4,), ("tp",)) and mesh_of("fsdp2", 4) == ((4,), ("dp",))
    with pytest.raises(ValueError, match="even number of ranks, got 3"):
        mesh_of("2d", 3)


def test_the_large_models_are_those_that_they_are_called() -> None:
    medium, llama = SHAPES["gpt2-medium"], SHAPES["llama-1b"]
    assert (medium.layers, medium.width, medium.heads, medium.words) == (24, 1024, 16, 50257)
    assert (llama.layers, llama.width, llama.heads, llama.shared_heads, llama.words) == (16, 2048, 32, 8, 128256)


def told(**own: Any) -> dict[str, Any]:
    """What a group tells."""

    def entry(ms: float, memory: int) -> dict[str, Any]:
        wall = {"median": ms / 1e3, "q1": ms / 1e3, "q3": ms / 1e3}
        return {"times": {"wall": wall}, "memory": {"peak": memory}, "loss_units": 0.5, "overlap": 0.25}

    contenders = {"eager": entry(3, 300), "inductor": entry(2, 200), "max": {**entry(1, 210), "islands": 0}}
    return {"compiles": 4, "twice": 0, "compiled_while_timed": 0, "contenders": contenders, **own}


def test_a_row() -> None:
    suite = {"judged_by": "wall", "against": ["inductor"]}
    row: dict[str, Any] = {"case": "gpt2 ddp", "contenders": {}}
    note(row, told())
    assert verdict(row, suite).speedup == ratio(row, "time") == 2 and ratio(row, "memory") == 1.05
    assert cells(row)[1:5] == ["0.50", "3.0 / 2.0 / 1.0", "2.00", "0 / 0 / 0"]
    note(row, told(twice=1))
    assert (
        verdict(row, suite).speedup is None
        and row["contenders"]["max"]["problem"] == "1 library(s) were compiled twice"
    )
    note(row, {"compiles": 1, "twice": 0, "error": "out of memory"})
    assert ratio(row, "time") is None and cells(row)[-1] == "out of memory"


def test_what_spoils_a_row() -> None:
    assert problem_of({"loss_units": 1.0, "islands": 0}, 0, 0) == ""
    found = problem_of({"loss_units": 1.5, "islands": 2}, 3, 4)
    assert all(word in found for word in ("1.5 of the limit", "2 island(s)", "3 graph(s)", "4 library(s)"))


# -- all of it -----------------------------------------------------------------------------------------------------
@pytest.mark.full
@pytest.mark.own_processes
@pytest.mark.parametrize("model", ["gpt2-medium", "llama-1b"])
def test_small_models_on_two_processes(model: str, tmp_path: Path) -> None:
    """In bfloat16, and in a way that is compiled as a whole beside one that is compiled block by block."""
    small = ["--layers=2", "--width=512", "--words=512", "--batch=2", "--length=32", "--steps=30", "--rounds=2"]
    ways = ["--way=tp", "--way=2d", "--at-once=2", "--dtype=bfloat16", "--timeout=400"]
    command = ["-m", "benchmarks.distributed", f"--model={model}", *small, *ways, f"--save={tmp_path / 'r.json'}"]
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths, "TORCH_MAX_BACKEND_EXECUTOR": "auto"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert [row["case"] for row in rows] == [f"{model} tp", f"{model} 2d"]
    for row in rows:
        assert row["compiles"] and not row["twice"] and not row["compiled_while_timed"]
        assert row["contenders"]["max"]["loss_units"] <= 1

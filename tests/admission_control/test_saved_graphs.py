"""A second process knows what a call needs, and what may run instead, without tracing."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.support.processes import Processes

pytestmark = [
    pytest.mark.own_processes,
    pytest.mark.sampled,
    pytest.mark.any_runner("the processes are others"),
]

PROGRAM = """
import json, sys, torch
from torch_max_backend import admission, loaded, reports

torch.backends.mkldnn.enabled = False  # the same products as in eager, and the same memory, on every processor

def mixed(x, w):
    return ((x @ w).softmax(0) @ w.t()).relu() + torch.ones(256, 1024).tril()

x, w = torch.randn(256, 1024), torch.randn(1024, 1024)
f = torch.compile(mixed, backend="max_backend", options={{"executor": "auto", "memory_budget": "{budget}"}})
decision = admission(f, x, w)
try:
    torch.testing.assert_close(f(x, w), mixed(x, w))
    loaded().clear()
    torch.testing.assert_close(f(x, w), mixed(x, w))
    error = ""
except torch.OutOfMemoryError as refused:
    error = str(refused)
print(json.dumps({{
    "warm": reports()[-1].warm, "decision": type(decision).__name__, "needed": decision.needed, "error": error,
    "rejected": len(reports()[-1].admission.rejected), "loads": loaded().loads,
    "lowering": "torch_max_backend.lowering.graph_builder" in sys.modules,
}}))
"""


def test_a_warm_process_judges_as_the_first_one_did(processes: Processes, tmp_path: Path) -> None:
    folders = {"TORCH_MAX_BACKEND_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torch")}
    told = []
    for budget in ("1GiB", "1GiB", "8.5MiB", "6MiB"):
        done = processes.run(textwrap.dedent(PROGRAM.format(budget=budget)), tmp_path, **folders)
        assert done.told, done.errors[-3000:]
        told.append(done.told)
    assert [t["warm"] for t in told] == [False, True, True, True]
    assert not any(t["lowering"] for t in told[1:])
    assert [t["decision"] for t in told] == ["Admit", "Admit", "Reject", "Reject"]
    assert {t["needed"] for t in told} == {told[0]["needed"]}
    assert [t["rejected"] for t in told] == [0, 0, 1, 0]
    assert [t["loads"] for t in told] == [1, 1, 1, 0]
    assert [bool(t["error"]) for t in told] == [False, False, False, True]

"""Peak memory of a contender: on a GPU by torch's allocator, on a CPU by the system, in a process of its own.

On a CPU nobody counts what a process allocates, and what compilers leave behind counts as well. So each contender has a
process, in which it is warmed up; then the system's high-water mark is reset, and some calls are made.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torch_max_backend.evidence.cases import Case, load_cases
from torch_max_backend.evidence.contenders import compiled, stepping, subject
from torch_max_backend.measurement.clocks import Call

CALLS = 3
NO_PROCESS = {"problem": "not available: the case is not from a file, so no other process can make it"}
STATUS = Path("/proc/self/status")
RESET = Path("/proc/self/clear_refs")
LIMIT_S = 1800


def of_the_allocator(call: Call, device: str) -> dict[str, Any]:
    """What torch's CUDA allocator has at its peak in a call; other allocators' memory is not in it."""
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call(0)
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device)
    return {"peak": peak, "over_inputs": peak - before, "of": "torch's CUDA allocator"}


def in_a_process(case: Case, contender: str, training: bool) -> dict[str, Any]:
    """Resident memory of a process that runs one contender on the CPU: at its peak, and over model and inputs."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        task = {"origin": case.origin, "case": case.name, "contender": contender, "training": training}
        command = [sys.executable, "-m", __name__, json.dumps(task), str(answer)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            return {"problem": f"not available: its process took more than {LIMIT_S} s"}
        if done.returncode or not answer.exists():
            last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
            return {"problem": f"not available: its process ended with {last}"}
        return json.loads(answer.read_text())


def resident(field: str) -> int | None:
    """``VmRSS`` or ``VmHWM`` of this process in bytes; None where the system has no such file."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), None)


def measured(task: dict[str, Any]) -> dict[str, Any]:
    """What a process of its own answers."""
    case = next(c for c in load_cases(task["origin"], "cpu") if c.name == task["case"])
    before = resident("VmRSS")
    with torch.set_grad_enabled(task["training"]):
        function, _ = subject(task["contender"], case.function)
        parameters = list(function.parameters()) if isinstance(function, nn.Module) else []
        ready = compiled(task["contender"], function)
        call = stepping(task["contender"], case.caller(ready, parameters, task["training"]))
        for number in range(CALLS):
            call(number)
        try:
            RESET.write_text("5")
        except OSError as error:
            return {"problem": f"not available: {error}"}
        for number in range(CALLS):
            call(number)
    peak = resident("VmHWM")
    if peak is None or before is None:
        return {"problem": f"not available: {STATUS} does not tell"}
    return {"peak": peak, "over_inputs": peak - before, "of": "the resident memory of a process of its own"}


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(measured(json.loads(sys.argv[1]))))
    sys.stderr.flush()
    os._exit(0)  # compilers' threads are not waited for

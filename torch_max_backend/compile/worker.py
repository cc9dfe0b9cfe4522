"""A compile worker: a process of its own that turns MAX graphs (as bytecode) into artifacts.

Run as ``python -m torch_max_backend.compile.worker PARENT NICENESS``, with its parent's process id and how much it
gives way to other processes. It reads one JSON job a line from standard input and answers with one JSON line on its
original standard output; whatever the compiler prints goes to standard error, which the parent keeps for the error
message. A crash of the compiler ends this process and nothing else.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any


def _die_with_parent(parent: int) -> None:
    """Ask Linux to kill this process when its parent dies, so that no compile outlives the program."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)
        if os.getppid() != parent:  # it died before it could be asked for
            os._exit(1)


def _session(target: dict[str, Any]) -> Any:
    """A session for the CPU, or for GPUs described by their architecture, which need not be attached."""
    from max import driver, engine

    if target["cpu"]:
        driver.set_virtual_cpu_target(target["cpu"])
    if target["count"]:
        driver.set_virtual_device_api(target["api"])
        driver.set_virtual_device_target_arch(target["arch"])
        driver.set_virtual_device_count(target["count"])
        devices = [driver.Accelerator(i) for i in range(target["count"])]
        return engine.InferenceSession(devices=[*devices, driver.CPU()])
    return engine.InferenceSession(devices=[driver.CPU()])


def compile_to_file(session: Any, job: dict[str, Any]) -> None:
    """Compile the bytecode file of a job and write the artifact to its target path."""
    from max import mlir
    from max._core import Operation
    from max.graph import Module

    module = Module(mlir_module=Operation.from_bytecode(Path(job["bytecode"]).read_bytes(), mlir.Context()))
    compiled = session.compile(module, custom_extensions=[Path(p) for p in job["extensions"]])
    compiled.export_mef(job["artifact"])


def main() -> None:
    """Serve jobs until standard input closes."""
    _die_with_parent(int(sys.argv[1]))
    os.nice(int(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    session = None
    for line in sys.stdin:
        job = json.loads(line)
        try:
            session = session or _session(job["target"])
            compile_to_file(session, job)
            answer: dict[str, Any] = {"ok": True}
        except Exception:
            answer = {"ok": False, "error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
    os._exit(0)  # the engine's threads have been seen to abort in an ordinary exit


if __name__ == "__main__":
    main()

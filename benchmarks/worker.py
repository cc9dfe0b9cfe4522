"""A process that measures: reads tasks as lines of JSON from its input, and answers on the pipe that it was given.

Everything that libraries print goes to the log. A line ``{"at": ...}`` says which contender runs next; a line with
``result`` or ``error`` ends a task.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any


def run(task: dict[str, Any], at: Any) -> Any:
    """The result of one task."""
    from benchmarks import measure
    from benchmarks.suites import Case
    from torch_max_backend.measurement.machine import device_facts
    from torch_max_backend.measurement.roofs import copy_bandwidth

    if task["task"] == "ceilings":
        return {"copy_bytes_per_s": copy_bandwidth(task["device"]), **device_facts(task["device"])}
    case = Case(**task["case"])
    if task["task"] == "compile":
        at(task["contenders"][0])
        return measure.compile_case(case, task["contenders"][0])
    return measure.time_case(case, task["contenders"], task["rounds"], task["sample_s"], at)


def main() -> None:
    """Serve until the input ends."""
    answers = os.fdopen(int(sys.argv[1]), "w", buffering=1)

    def send(**message: Any) -> None:
        answers.write(json.dumps(message) + "\n")

    for line in sys.stdin:
        try:
            send(result=run(json.loads(line), lambda name: send(at=name)))
        except Exception as error:
            traceback.print_exc()
            send(error=f"{type(error).__name__}: {error}"[-600:])
        if not _device_is_well():
            break
    sys.stderr.flush()
    os._exit(0)  # MAX's and Inductor's threads are not waited for


def _device_is_well() -> bool:
    """Whether the next case can use this process: after an illegal access every CUDA call fails."""
    import torch

    if not torch.cuda.is_initialized():
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


if __name__ == "__main__":
    main()

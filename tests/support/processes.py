"""Programs in processes of their own, which start with torch imported and nothing of this package.

Importing torch and Dynamo takes longer than most of these programs do. So a server imports them once, and each program
is a fork of it. Run as ``python -m tests.support.processes``, it takes JSON lines: a program's path and environment.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Done:
    """How a program ended: what it told (the last line of its output, as JSON), and its errors."""

    told: dict[str, Any]
    errors: str


class Processes:
    """Starts programs below ``folder``."""

    def __init__(self) -> None:
        own = {
            "PYTHONPATH": self._path(),
            "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "TORCH_MAX_BACKEND_BEARTYPE": "0",  # as quick_processes, which comes later than a server
        }
        self.server = subprocess.Popen(
            [sys.executable, "-m", "tests.support.processes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, **own},
            text=True,
        )

    @staticmethod
    def _path() -> str:
        return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

    def run(self, program: str, folder: Path, **environment: str) -> Done:
        """Run a program to its end. What it told is empty if it raised."""
        file, job = folder / "program.py", self.server
        file.write_text(program)
        assert job.stdin is not None and job.stdout is not None
        job.stdin.write(json.dumps({"program": str(file), "environment": environment}) + "\n")
        job.stdin.flush()
        code = int(job.stdout.readline())
        output, errors = (folder / "out").read_text(), (folder / "errors").read_text()
        return Done(json.loads(output.splitlines()[-1]) if code == 0 else {}, errors)

    def close(self) -> None:
        """End the server."""
        assert self.server.stdin is not None
        self.server.stdin.close()
        self.server.wait(30)


def _serve() -> None:
    import torch._dynamo
    import torch._functorch.aot_autograd  # noqa: F401

    assert not any(name.startswith(("max", "torch_max_backend.")) for name in sys.modules)
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            os._exit(_run(Path(job["program"]), job["environment"]))
        answers.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        answers.flush()


def _run(program: Path, environment: dict[str, str]) -> int:
    os.environ.update(environment)
    for number, name in ((1, "out"), (2, "errors")):
        os.dup2(os.open(program.with_name(name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    try:
        runpy.run_path(str(program), run_name="__main__")
        code = 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    _serve()

"""Programs on several ranks, started by torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.processes import ROOT
from torch_max_backend.compile.cache.store import Store


@dataclass(frozen=True)
class Group:
    """How the ranks of a group ended: exit status, and what all of them printed."""

    status: int
    output: str

    @property
    def told(self) -> Any:
        """The last line that is JSON."""
        return json.loads([line for line in self.output.splitlines() if line.startswith(("{", "["))][-1])


def environment_of(store: Path) -> dict[str, str]:
    """What ranks that share a store see."""
    return {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "TORCHINDUCTOR_CACHE_DIR": f"{store}-of-torch",
        "TORCH_MAX_BACKEND_BEARTYPE": "0",
        "TORCH_MAX_BACKEND_CACHE_DIR": str(store),
        "TORCH_MAX_BACKEND_EXECUTOR": "auto",
    }


def torchrun(
    ranks: int, module: str, *args: object, store: Path, timeout: float = 180, flags: tuple[str, ...] = (), **env: str
) -> Group:
    """Run a module on so many ranks of this machine, which share ``store``.

    Raises:
        subprocess.TimeoutExpired: They hang.
    """
    command = ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *flags, "-m", module]
    done = subprocess.run(
        [sys.executable, "-m", *command, *map(str, args)],
        cwd=ROOT,
        env={**os.environ, **environment_of(store), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    return Group(done.returncode, done.stdout)


def compiles(store: Path) -> list[str]:
    """The keys that were compiled into a store, one for each compile."""
    return [str(e["key"]) for e in Store(store).lookups() if str(e["answer"]).startswith("miss")]

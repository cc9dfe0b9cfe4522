"""Ranks as forks of one process, which has imported what they need: much sooner there than what torchrun starts."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.distributed.torchrun import Group, environment_of
from tests.support.processes import Processes

PROGRAM = """
import json, os, runpy, sys, traceback
import tests.distributed.ways, torch_max_backend.frontend.pipeline

def run(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    sys.argv = {argv!r}
    try:
        runpy.run_module({module!r}, run_name="__main__")
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0

children = []
for rank in range({ranks}):
    children.append(os.fork())
    if not children[-1]:
        code = run(rank)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
print(json.dumps({{"status": [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]}}))
"""


def forked(processes: Processes, folder: Path, ranks: int, module: str, *args: object, store: Path) -> Group:
    """Run a module on so many ranks, which share ``store``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks)}

    program = PROGRAM.format(argv=[module, *map(str, args)], module=module, ranks=ranks)
    own["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "torch")
    done = processes.run(program, folder, **{**environment_of(store), **own})
    output = (folder / "out").read_text()
    return Group(max(done.told["status"]), f"{done.errors}\n{output.rpartition('{')[0]}")

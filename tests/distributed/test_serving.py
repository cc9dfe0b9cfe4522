"""The example of serving: two replicas answer alike, refuse what is no batch, and one of them compiles."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.distributed.torchrun import compiles, environment_of
from tests.support.processes import ROOT


def ask(port: int, body: object) -> object:
    """What a replica answers."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


@pytest.mark.full
@pytest.mark.own_processes
def test_two_replicas_answer(tmp_path: Path) -> None:
    """Once both say that they are ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    server = subprocess.Popen(
        [*command, str(ROOT / "examples/serve_replicas.py"), "--port", str(port)],
        env={**os.environ, **environment_of(tmp_path / "store")},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        ready = {server.stdout.readline().split()[1] for _ in range(2)}
        assert ready == {"0", "1"}
        rows = [[1.0, 2.0, 3.0, 4.0]] * 5
        first, second = (ask(port + rank, rows) for rank in range(2))
        assert first == second and len(first) == 5
        with pytest.raises(urllib.error.HTTPError, match="400"):
            ask(port, [[1.0, 2.0]])
    finally:
        server.terminate()
        server.wait(30)
    keys = compiles(tmp_path / "store")
    assert keys and len(keys) == len(set(keys))

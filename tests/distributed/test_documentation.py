"""The how-to page's program runs by the page's own line."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.torchrun import environment_of
from tests.docs.test_documentation import blocks

PAGE = "docs/distributed.md"


@pytest.mark.full
@pytest.mark.own_processes
def test_the_line_runs_the_program(tmp_path: Path) -> None:
    """As a user would type it."""
    (program,), (line,) = blocks(PAGE, "python"), blocks(PAGE, "sh")
    (tmp_path / "train.py").write_text(program)
    name, *args = shlex.split(line)
    assert name == "torchrun"
    command = [sys.executable, "-m", "torch.distributed.run", *args]
    own = {**os.environ, **environment_of(tmp_path / "store")}
    done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0 and done.stdout.strip() == "trained", done.stderr[-4000:]

"""The how-to page's programs run by the page's own lines."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.torchrun import environment_of
from tests.docs.test_documentation import blocks
from tests.support.processes import ROOT

PAGE = "docs/distributed.md"


def lines() -> list[str]:
    """The page's commands."""
    return [line for block in blocks(PAGE, "sh") for line in block.splitlines()]


def programs() -> dict[str, str]:
    """The page's programs by file name."""
    names = re.findall(r'```python title="(.*)"', (ROOT / PAGE).read_text())
    return dict(zip(names, blocks(PAGE, "python"), strict=True))


@pytest.mark.full
@pytest.mark.own_processes
@pytest.mark.parametrize("line", lines())
def test_the_line_runs_the_program(line: str, tmp_path: Path) -> None:
    """As a user would type it."""
    name, *args = shlex.split(line)
    assert name == "torchrun"
    (tmp_path / args[-1]).write_text(programs()[args[-1]])
    command = [sys.executable, "-m", "torch.distributed.run", *args]
    own = {**os.environ, **environment_of(tmp_path / "store")}
    done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0 and done.stdout.strip() == "trained", done.stderr[-4000:]

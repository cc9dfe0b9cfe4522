"""``torch.compiler.save_cache_artifacts``: a second machine, with empty caches, compiles nothing.

    python examples/libraries/cache_artifacts.py

Both machines are processes here. What travels is one file: torch's own entries and this backend's compiled regions.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = """
import sys, torch
from pathlib import Path
from torch import nn

file = Path(sys.argv[1])
if file.exists():
    print(torch.compiler.load_cache_artifacts(file.read_bytes()).artifacts.keys())
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.LayerNorm(32), nn.Linear(32, 4))
x = torch.randn(8, 16)
compiled = torch.compile(model, backend="max_backend")
given = compiled(x)
torch.testing.assert_close(given, model(x), rtol=1e-4, atol=1e-5)
given.sum().backward()
if not file.exists():
    file.write_bytes(torch.compiler.save_cache_artifacts()[0])
from what_ran import print_what_ran
print_what_ran()
"""


def run(folder: Path, machine: str) -> str:
    """What the program prints on a machine whose caches are its own."""
    own = {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / machine / "torch"),
        "TORCH_MAX_BACKEND_CACHE_DIR": str(folder / machine / "regions"),
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
    }
    command = [sys.executable, "-c", PROGRAM, str(folder / "artifacts")]
    done = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def main() -> None:
    """Compile on one machine, run on the other."""
    with tempfile.TemporaryDirectory() as folder:
        for machine in ("first", "second"):
            told = run(Path(folder), machine)
            print(f"{machine}:\n{told}")
    assert told.count("not traced again") == 2, "forward and backward come from the file"


if __name__ == "__main__":
    main()

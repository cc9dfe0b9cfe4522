"""Training on several ranks: losses, step time, memory and compiles of DDP, FSDP2, tensor parallel and a 2-D mesh.

    python -m benchmarks.distributed                                   # GPT-2, two ranks, every way
    python -m benchmarks.distributed --model llama --ranks 4 --way 2d --way tp
    python -m benchmarks.distributed --way ddp --steps 20 --json out.json

Ranks are started by torchrun, on gloo and CPUs, or on NCCL and a GPU each where there are as many GPUs as ranks. In
each way eager, Inductor and this backend (in strict mode) train the same small model on the same batches:

- `losses`: the largest difference of a loss from eager's in the same step, in units of what float32 sums of another
  order may differ by (1e-5, and 1e-4 of the loss; AdamW is left out, since it makes steps of noise).
- `step`: the median of steps in which contenders take turns, in milliseconds on the slowest rank, with the ratio to
  Inductor's in the same rounds.
- `memory`: the most that rank 0 holds after its steps, in MiB: resident on a CPU, allocated on a GPU. Contenders share
  the process, so it is one number a way.
- `compiles`: libraries that the group compiled into an empty store, and how many of these twice.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.startup import versions
from torch_max_backend.compile.cache.store import Store

WAYS = ("ddp", "fsdp2", "tp", "2d")
ROOT = Path(__file__).resolve().parents[1]


def launch(way: str, task: dict[str, Any], ranks: int, folder: Path, timeout: float) -> dict[str, Any]:
    """What rank 0 tells of one way, and what its store says."""
    store = folder / way
    own = {
        "PYTHONPATH": str(ROOT),
        "TORCH_MAX_BACKEND_CACHE_DIR": str(store),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / f"{way}-torch"),
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // ranks)),
    }
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"]
    done = subprocess.run(
        [*start, "benchmarks.distributed_worker", json.dumps({"way": way, **task})],
        cwd=ROOT,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    if done.returncode:
        said_by_ranks = [line for line in done.stderr.splitlines() if line.startswith("[rank") and ":W" not in line]
        return {"way": way, "error": "\n".join(said_by_ranks or done.stderr.splitlines())[-4000:]}
    told = json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])
    keys = [e["key"] for e in Store(store).lookups() if str(e["answer"]).startswith("miss")]
    return {"way": way, **told, "compiles": len(keys), "twice": len(keys) - len(set(keys))}


def main(
    model: str = typer.Option("gpt2", help="gpt2 or llama."),
    ranks: int = typer.Option(2, min=2, help="Processes; a 2-D mesh wants a multiple of 4."),
    way: list[str] = typer.Option([], help="Ways to train; all that the ranks allow if none is given."),
    layers: int = typer.Option(2, help="Layers of the model."),
    width: int = typer.Option(256, help="Its width."),
    batch: int = typer.Option(2, help="Sequences on a rank."),
    length: int = typer.Option(128, help="Their length."),
    steps: int = typer.Option(20, help="Steps whose losses are compared."),
    rounds: int = typer.Option(15, help="Rounds of steps that are timed."),
    timeout: float = typer.Option(900, help="Seconds a way may take."),
    json_file: Path | None = typer.Option(None, "--json", help="Also write the figures there."),
) -> None:
    """Measure, and print a table."""
    ways = way or [w for w in WAYS if w != "2d" or ranks % 4 == 0]
    shape = {"model": model, "layers": layers, "width": width, "batch": batch, "length": length}
    with tempfile.TemporaryDirectory() as folder:
        rows = [launch(w, {**shape, "steps": steps, "rounds": rounds}, ranks, Path(folder), timeout) for w in ways]
    table = Table(title=f"{model}, {layers} layers of width {width}, {ranks} ranks")
    for name in ("way", "loss difference", "eager ms", "inductor ms", "max ms", "to Inductor", "MiB", "compiles"):
        table.add_column(name)
    for row in rows:
        if "error" in row:
            table.add_row(row["way"], row["error"].strip().splitlines()[-1])
            continue
        times = [f"{row['step_ms'][c]:.1f}" for c in ("eager", "inductor", "max")]
        loss = f"{row['loss_units']:.2g} of the limit"
        ratio, twice = f"{row['to_inductor']:.2f}", f"{row['compiles']}, {row['twice']} twice"
        table.add_row(row["way"], loss, *times, ratio, f"{row['memory_mib']:.0f}", twice)
    Console().print(table)
    if json_file is not None:
        json_file.write_text(json.dumps({"versions": versions(), "ranks": ranks, **shape, "rows": rows}, indent=1))
    if any("error" in row or row["loss_units"] > 1 or row["twice"] for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)

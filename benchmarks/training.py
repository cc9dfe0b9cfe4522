"""What a training step takes on the CPU: its memory with GPT-2 small, and the time of six models' steps.

    python benchmarks/training.py                        # everything
    python benchmarks/training.py --part memory --batch 4
    python benchmarks/training.py --part steps --only resnet18 --only vit --json out.json

A step is `zero_grad`, the loss, `backward()` and AdamW's step; contenders are eager, Inductor and this backend, with
loss and step compiled, in strict mode. Dropout is off, because Inductor draws other masks. Parts:

- `memory`: a process each. A first one compiles; a second one, with warm caches, makes a first step and is measured in
  the next ones: the most memory it holds (resident, as the kernel counts it) above what it held before its first step,
  so parameters and inputs are left out, and gradients, optimizer state, activations and libraries are not.
- `steps`: a process for each model, in which contenders take turns. A contender's first gradients must be as close to
  those in float64 as `benchmarks/checking.py` asks, or its row says how they differ. Ratios are of rounds, their
  medians and range, and of the least times, which other work on the machine disturbs least.

What must hold: at most 1.1 times Inductor's memory, and 1.5 times its time.
"""

from __future__ import annotations

import enum
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.startup import Caches, Failed, versions
from benchmarks.training_worker import MODELS

CONTENDERS = ("eager", "inductor", "max")
OURS, RIVAL = "max", "inductor"
MEMORY_LIMIT, TIME_LIMIT = 1.1, 1.5


class Part(enum.StrEnum):
    """The measurements."""

    memory = "memory"
    steps = "steps"


def measure(caches: Caches, timeout: float, **task: Any) -> dict[str, Any]:
    """What a process of `training_worker` prints."""
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.training_worker", json.dumps(task)],
            env=caches.environment() | {"TORCH_MAX_BACKEND_FALLBACK": "error"},
            cwd=Path(__file__).resolve().parents[1],
            capture_output=True,
            text=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"longer than {timeout:.0f} s") from error
    if done.returncode:
        raise Failed((done.stderr or done.stdout).strip()[-1500:])
    return json.loads(done.stdout.strip().splitlines()[-1])


def memory(caches: Caches, timeout: float, progress: Progress, shape: dict[str, int]) -> tuple[Table, dict[str, Any]]:
    """The table of the peaks, in MiB, and what was measured."""
    found = {}
    for name in CONTENDERS:
        task = progress.add_task(f"memory: {name}", total=2)
        for _ in range(2):  # the first one compiles
            found[name] = measure(caches, timeout, part="memory", contender=name, **shape)
            progress.advance(task)
    title = f"GPT-2 small, {shape['batch']} x {shape['length']} tokens: MiB above what was held before the first step"
    columns = ("contender", "in loss and backward", "in AdamW's step", "held after it", "step, s", "peak / inductor")
    table = Table(*columns, title=title, caption=f"required: at most {MEMORY_LIMIT} times Inductor's peak")
    for name, run in found.items():
        ratio = f"{run['peak'] / found[RIVAL]['peak']:.2f}"
        cells = (run["peaks"]["gradients"], run["peaks"]["update"], run["held"])
        table.add_row(name, *(f"{c:.0f}" for c in cells), f"{run['step_s']:.2f}", ratio)
    return table, found


def steps(
    caches: Caches, timeout: float, progress: Progress, only: list[str], rounds: int
) -> tuple[Table, dict[str, Any]]:
    """The table of the times, in ms, and what was measured."""
    title = "a training step, ms: loss and backward + AdamW, medians of rounds in turns"
    columns = ("model", *CONTENDERS, "/ eager", "/ inductor", "range of it", "least / least", "check")
    table = Table(*columns, title=title, caption=f"required: at most {TIME_LIMIT} times Inductor's time")
    found: dict[str, Any] = {}
    for model in progress.track(only, description="steps"):
        try:
            run = measure(caches, timeout, part="steps", model=model, contenders=CONTENDERS, rounds=rounds, seconds=0.3)
        except Failed as error:
            table.add_row(model, "FAILED", str(error)[-300:])
            progress.console.print(model, "FAILED")
            found[model] = {"failed": str(error)}
            continue
        found[model] = run
        whole = {
            name: [a + b for a, b in zip(t["gradients"], t["update"], strict=True)] for name, t in run["times"].items()
        }
        ratios = {other: [a / b for a, b in zip(whole[OURS], whole[other], strict=True)] for other in CONTENDERS[:-1]}
        cells = []
        for name in CONTENDERS:
            parts = [statistics.median(run["times"][name][part]) * 1e3 for part in ("gradients", "update")]
            cells.append(f"{parts[0]:.1f} + {parts[1]:.1f}")
        middle = {other: statistics.median(values) for other, values in ratios.items()}
        spread = f"{min(ratios[RIVAL]):.2f} to {max(ratios[RIVAL]):.2f}"
        least = min(whole[OURS]) / min(whole[RIVAL])
        checks = "; ".join(f"{name}: {text}" for name, text in run["wrong"].items() if text) or "ok"
        row = (model, *cells, f"{middle['eager']:.2f}", f"{middle[RIVAL]:.2f}", spread, f"{least:.2f}", checks)
        table.add_row(*row)
        progress.console.print(*row)
    return table, found


def main(
    part: list[Part] = typer.Option(list(Part), help="What to measure; may be given several times."),
    only: list[str] = typer.Option(list(MODELS), help="Models whose steps are measured."),
    batch: int = typer.Option(2, min=1, help="Texts in a step of GPT-2 small."),
    length: int = typer.Option(256, min=1, help="Tokens in a text."),
    measured: int = typer.Option(3, min=1, help="Steps in which memory is measured."),
    rounds: int = typer.Option(9, min=1, help="Rounds in which contenders take turns."),
    timeout: float = typer.Option(1800.0, help="Seconds that one process may take."),
    caches: Path | None = typer.Option(None, help="Folder of caches that is kept, instead of a temporary one."),
    output: Path | None = typer.Option(None, "--json", help="Also write everything to this file."),
) -> None:
    """Measure, and print tables."""
    console, data = Console(width=None if sys.stdout.isatty() else 140), {}
    console.print(", ".join(f"{k} {v}" for k, v in versions().items()))
    with Progress(console=Console(stderr=True)) as progress, tempfile.TemporaryDirectory(prefix="training-") as folder:
        kept = Caches((caches or Path(folder)).resolve())
        if Part.memory in part:
            shape = {"batch": batch, "length": length, "measured": measured}
            table, data["memory"] = memory(kept, timeout, progress, shape)
            console.print(table)
        if Part.steps in part:
            table, data["steps"] = steps(kept, timeout, progress, only, rounds)
            console.print(table)
    if output is not None:
        output.write_text(json.dumps({"versions": versions(), "parts": data}, indent=1))


if __name__ == "__main__":
    typer.run(main)

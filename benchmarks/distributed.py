"""Training on several ranks: losses, step time, memory, overlap and compiles of DDP, FSDP2, tensor parallel and a mesh.

    python -m benchmarks.distributed                                   # a small GPT-2, two ranks, every way
    python -m benchmarks.distributed --model llama --ranks 4 --way 2d --way tp
    python -m benchmarks.distributed --model gpt2-small --way ddp      # 124 M parameters, two CPU processes
    python -m benchmarks.distributed --model gpt2-medium --dtype bfloat16 --steps 30 --at-once 4 --save gpus.json
    python -m benchmarks.distributed --faults --folder kept --save gpus.json

Ranks are started by torchrun, on gloo and CPUs, or on NCCL and a GPU each where there are as many GPUs as ranks. In
each way eager, Inductor and this backend (in strict mode) train the same model on the same batches. `2d` is FSDP2 over
tensor parallel on a mesh of (2, ranks / 2): on two ranks its tensor-parallel part has one rank, with DTensors and
without communication. With `--at-once`, ways compile and compare losses side by side; each is timed alone, while the
ranks of the others wait.

- `losses`: the largest difference of a loss from eager's in the same step on any rank, in units of a limit. In float32
  that is what sums of another order may make (1e-5, and 1e-4 of the loss; AdamW is left out, since it makes steps of
  noise). In bfloat16 it is measured: eager trains once more with float32 arithmetic, its parameters rounded to bfloat16
  after each step. The largest distance of eager's losses from these, in any step on any rank, is what rounding does to
  a loss; two contenders that are no farther from float32 are at most twice that from each other, which is the limit. It
  wants some dozens of steps, since the largest of few distances says little. The record has Inductor's units beside.
- `step`: the median of steps in which contenders take turns, on the slowest rank, with the ratio to Inductor's.
- `memory`: on rank 0 and a GPU, what torch's allocator has given out for the contender when it was built and had its
  steps, gradients freed, and the peak above that within one more step. On a CPU there is the process's resident peak.
- `overlap`: on rank 0 and a GPU, of the time that NCCL's kernels run in a trace of some steps, the share in which other
  work of the GPU runs too. NCCL's kernels also run while they wait for the other rank.
- `compiles`: libraries that the group compiled into its store since this was empty, and how many of these twice. Each
  case has a store of its own, in `--folder`; with a folder that is kept, a second run counts those of the first.

`--faults` has the cases of benchmarks/distributed_faults.py instead.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks import record as records
from benchmarks.distributed_faults import FAULTS, fact
from benchmarks.distributed_launch import Group, side_by_side
from benchmarks.distributed_models import SHAPES, Shape
from benchmarks.suites import Suite
from benchmarks.verdict import judged

WAYS = ("ddp", "fsdp2", "tp", "2d")
MODELS = f"Of {', '.join(SHAPES)}."
FAULT = f"Of {', '.join(FAULTS)}; all if none is given."
WIDTH = 200
"""Of the table, at least."""
WARM_UP = 3
"""Rounds before those that count."""
ABOUT = (
    "Training steps of {ranks} ranks with SGD; speed-up over Inductor. Memory is what a contender holds, parameters "
    "included, and the peak of a step above that"
)


def command() -> str:
    """This run as it can be repeated, without the places of this machine's files."""
    words = [w if "/" not in w or w.startswith("benchmarks/") else Path(w).name for w in sys.argv[1:]]
    return shlex.join(["python", "-m", "benchmarks.distributed", *words])


def suite_of(device: str, dtype: str, ranks: int, rounds: int) -> Suite:
    """The suite of a record."""
    contenders, about = ("eager", "inductor", "max"), ABOUT.format(ranks=ranks)
    how: dict[str, Any] = {"required": 1.0, "rounds": rounds, "fresh_process": True}
    return Suite(f"distributed-{dtype}-{ranks}", about, "distributed", device, dtype, contenders, ("inductor",), **how)


def problem_of(entry: dict[str, Any], compiled_while_timed: int, twice: int) -> str:
    """Why times of this backend do not count; empty if they do."""
    found = []
    if entry["loss_units"] > 1:
        found.append(f"a loss differs by {entry['loss_units']:.2g} of the limit")
    if entry["islands"]:
        found.append(f"{entry['islands']} island(s)")
    if compiled_while_timed:
        found.append(f"{compiled_while_timed} graph(s) were compiled while times were taken")
    if twice:
        found.append(f"{twice} library(s) were compiled twice")
    return "; ".join(found)


def note(row: dict[str, Any], answer: dict[str, Any]) -> None:
    """Write into a row what a group has told."""
    if "error" in answer:
        row["contenders"] = {"max": {"problem": answer.pop("error")}}
        row.update(answer)
        return
    row.update(answer)
    ours = row["contenders"]["max"]
    if problem := problem_of(ours, row["compiled_while_timed"], row["twice"]):
        ours["problem"] = problem


def is_measured(row: dict[str, Any]) -> bool:
    """Whether there is nothing left to do."""
    return "times" in row["contenders"].get("max", {})


def ratio(row: dict[str, Any], what: str) -> float | None:
    """Inductor's time over ours, or our memory over Inductor's; None where one of them was not measured."""
    ours, other = row["contenders"].get("max", {}), row["contenders"].get("inductor", {})
    if what == "memory":
        found = [e.get("memory", {}).get("peak") for e in (ours, other)]
        return found[0] / found[1] if all(found) else None
    times = [judged(row, name, "wall") for name in ("inductor", "max")]
    return times[0]["median"] / times[1]["median"] if times[0] and times[1] else None


def cells(row: dict[str, Any]) -> list[str]:
    """A line of the table."""

    def of(name: str, *keys: str, scale: float = 1, digits: int = 1) -> str:
        found: Any = row["contenders"].get(name, {})
        for key in keys:
            found = (found or {}).get(key)
        return "–" if found is None else f"{found * scale:.{digits}f}"

    names = ("eager", "inductor", "max")
    quotients = [ratio(row, "time"), ratio(row, "memory")]
    speed, memory = ("–" if q is None else f"{q:.2f}" for q in quotients)
    return [
        row["case"],
        of("max", "loss_units", digits=2),
        " / ".join(of(n, "times", "wall", "median", scale=1e3) for n in names),
        speed,
        " / ".join(of(n, "memory", "peak", scale=2**-20, digits=0) for n in names),
        memory,
        " / ".join(of(n, "overlap", digits=2) for n in names),
        f"{row.get('compiles', '–')}, {row.get('twice', '–')} twice",
        row["contenders"].get("max", {}).get("problem", "")[-300:],
    ]


def show(record: records.Record, console: Console) -> None:
    """The tables of a record."""
    for name in record["suites"]:
        table = Table(title=name, title_justify="left")
        for title in ("case", "loss units", "ms: eager / inductor / max", "speed-up"):
            table.add_column(title)
        for title in ("MiB: eager / inductor / max", "of inductor's", "overlap", "compiles", "problem"):
            table.add_column(title)
        for row in record["rows"]:
            if row["suite"] == name:
                table.add_row(*map(escape, cells(row)))
        console.print(table)
    for fault in record.get("faults", []):
        word = "as it should" if fault["passed"] else "WRONG"
        told = f"{fault['fault']} ({fault['backend']}): {word}, {fault['seconds']} s: {fault['said'][:300]}"
        console.print(told, markup=False, highlight=False)


@contextlib.contextmanager
def place(folder: Path | None) -> Iterator[Path]:
    """A folder that is kept, or one that is not."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder.resolve()
        return
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


class Run:
    """A record that is being made. It is saved after each case, to ``save``."""

    def __init__(self, record: records.Record, save: Path | None, ranks: int, limit_s: float) -> None:
        self.record, self.save, self.ranks, self.limit_s = record, save, ranks, limit_s
        self.begin = time.monotonic()
        has_gpus = torch.cuda.is_available() and torch.cuda.device_count() >= ranks
        self.device = "cuda" if has_gpus else "cpu"

    def keep(self, told: str) -> None:
        """Save, and say what was done."""
        print(f"{time.monotonic() - self.begin:.0f} s: {told}", file=sys.stderr, flush=True)
        if self.save is not None:
            records.save(self.record, self.save)

    def try_faults(self, names: list[str], where: Path) -> None:
        """Add what comes of some faults."""
        for name in names:
            self.record.setdefault("faults", []).append(fact(name, where, self.device, self.limit_s))
            self.keep(f"{name} passed: {self.record['faults'][-1]['passed']}")

    def train(self, shapes: dict[str, Shape], ways: list[str], how: dict[str, Any], at_once: int, where: Path) -> None:
        """Add a row for each model and way that was not measured yet."""
        suite = suite_of(self.device, how["dtype"], self.ranks, how["rounds"])
        rows: dict[str, dict[str, Any]] = {}
        tasks: dict[str, dict[str, Any]] = {}
        for (model, shape), way in itertools.product(shapes.items(), ways):
            sizes = dataclasses.asdict(shape)
            facts = {**sizes, "way": way, "ranks": self.ranks, "steps": how["steps"]}
            row = records.row_for(self.record, suite, f"{model} {way}", model, facts)
            row["unit"], row["units"] = "token", shape.batch * shape.length * (1 if way == "tp" else self.ranks)
            if not is_measured(row):
                rows[f"{model}-{way}"] = row
                tasks[f"{model}-{way}"] = {"shape": sizes, "way": way, "warm_up": WARM_UP, **how}
        is_cold = not any((where / name).exists() for name in tasks)
        compiling = {"side_by_side": at_once, "caches": "empty" if is_cold else "used before"}
        self.record["compiling"] = self.record["compiling"] or compiling
        names = list(tasks)
        for first in range(0, len(names), at_once):
            together = {n: tasks[n] for n in names[first : first + at_once]}
            for group in side_by_side(together, where, self.ranks, self.limit_s):
                answer = group.answer()
                if "device" in answer:
                    self.record["devices"][self.device] = answer.pop("device")
                note(rows[group.name], answer)
                self.keep(told_of(group))


def told_of(group: Group) -> str:
    """A line for who waits for the table."""
    ready = "never ready" if group.ready_s is None else f"ready after {group.ready_s:.0f} s"
    return f"{group.name}: {ready}, status {group.process.returncode}"


def main(
    model: list[str] = typer.Option(["gpt2"], help=MODELS),
    ranks: int = typer.Option(2, min=2, help="Processes; a 2-D mesh wants an even number."),
    way: list[str] = typer.Option([], help="Ways to train; all if none is given."),
    dtype: str = typer.Option("float32", help="float32 or bfloat16, of parameters and arithmetic."),
    layers: int = typer.Option(0, help="Layers; 0 and below likewise: the model's own."),
    width: int = typer.Option(0, help="Width."),
    words: int = typer.Option(0, help="Size of the vocabulary."),
    batch: int = typer.Option(0, help="Sequences on a rank."),
    length: int = typer.Option(0, help="Their length."),
    steps: int = typer.Option(20, help="Steps whose losses are compared."),
    rounds: int = typer.Option(15, help="Rounds of steps that are timed."),
    at_once: int = typer.Option(1, min=1, help="Cases that compile side by side; together they must fit the GPUs."),
    timeout: float = typer.Option(900, help="Seconds that cases of one time may take."),
    faults: bool = typer.Option(False, "--faults", help="Ranks that die, are late, or differ, instead of training."),
    fault: list[str] = typer.Option([], help=FAULT),
    folder: Path | None = typer.Option(None, help="Keep what is compiled there, for another run."),
    show_only: bool = typer.Option(False, "--show", help="Measure nothing: print what the record says."),
    save: Path | None = typer.Option(None, help="Write a record there, or go on with it: cases it has are left out."),
) -> None:
    """Measure, and print a table."""
    console = Console(width=max(WIDTH, Console().width))
    if show_only:
        if save is None:
            raise typer.BadParameter("--show wants --save")
        show(records.load(save), console)
        return
    if unknown := (set(way) - set(WAYS)) | (set(model) - set(SHAPES)) | (set(fault) - set(FAULTS)):
        raise typer.BadParameter(f"there is no {', '.join(sorted(unknown))}")
    if dtype not in ("float32", "bfloat16"):
        raise typer.BadParameter(f"--dtype is float32 or bfloat16, got {dtype}")
    own = {"layers": layers, "width": width, "words": words, "batch": batch, "length": length}
    changed: dict[str, Any] = {k: v for k, v in own.items() if v}
    shapes = {m: dataclasses.replace(SHAPES[m], **changed) for m in model}
    try:
        record = records.resume(save, command()) if save is not None else records.new(command())
    except records.RecordError as error:
        raise typer.BadParameter(str(error)) from None
    run = Run(record, save, ranks, timeout)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that ranks are ended
    with place(folder) as where:
        if faults:
            run.try_faults(fault or list(FAULTS), where)
        else:
            run.train(shapes, way or list(WAYS), {"dtype": dtype, "steps": steps, "rounds": rounds}, at_once, where)
    show(record, console)
    wrong = [e["problem"] for r in record["rows"] for e in r["contenders"].values() if e.get("problem")]
    if wrong or not all(f["passed"] for f in record.get("faults", [])):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)

"""How long a user waits: warm and cold starts, compiling in the background, many sizes, a saved function.

    python benchmarks/startup.py                     # everything, with medians of five: hours on two cores
    python benchmarks/startup.py --part sizes --part background
    python benchmarks/startup.py --part warm --layers 2 --repeats 2 --json out.json

Every measurement is a process of its own, which prints its times; contenders take turns. Parts:

- `warm`: a second process with every cache warm, from its first line to the first result, for this backend, Inductor,
  and `backend="eager"`, which is what imports and Dynamo take. Of the backend also its own part of the first call: what
  is spent in its modules and what they call (importing MAX, loading), Dynamo, AOTAutograd and the model excluded.
- `background`: the first call with `compile="background"` and an empty cache, against `backend="eager"`.
- `cold`: the first call with every cache empty, GPT-2 and ResNet-50, and GPT-2 with four times the layers.
- `sizes`: 20 pairs of batch and sequence length with `dynamic=True`: how often something is compiled.
- `saved`: a function that `torch.compiler` saved, in a new process to the first result, against `import torch`.
"""

from __future__ import annotations

import enum
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

# What a measured process runs. It begins with its own clock, and prints one JSON line at its end.
BEGIN = """
import time; begin = time.perf_counter()
import json, random, sys
import torch
imported = time.perf_counter() - begin
arguments = json.loads(sys.argv[1])

def model_of(name, layers):
    torch.manual_seed(0)
    if name == "gpt2":
        from transformers import GPT2Config, GPT2LMHeadModel
        model = GPT2LMHeadModel(GPT2Config(n_layer=layers)).eval()
        return (lambda tokens: model(input_ids=tokens, use_cache=False).logits), (torch.randint(0, 50257, (1, 128)),)
    if name == "resnet50":
        from timm import create_model
        return create_model("resnet50", pretrained=False).eval(), (torch.randn(1, 3, 224, 224),)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
    return torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval(), (torch.randn(2, 16, 64),)

def options_of():
    return {"backend": arguments["backend"], "options": arguments.get("options") or None}

def report(**found):
    own = None
    if arguments["backend"] == "max_backend":
        from torch_max_backend import reports
        own = [vars(r.stats) | {"islands": len(r.islands)} for r in reports()]
    print(json.dumps({"import_s": imported, "graphs": own, **found}))
"""

FIRST_CALL = (
    BEGIN
    + """
import threading

class Sampler(threading.Thread):
    # Looks every millisecond where the main thread is, and adds the time since the last look to: "torch" where Dynamo
    # or AOTAutograd are further in than this backend, "model" where MAX computes, else "own".
    def __init__(self):
        super().__init__(daemon=True)
        self.seconds, self.is_over = {}, False
        import importlib.util, os
        self.folder = os.path.dirname(importlib.util.find_spec("torch_max_backend").origin)
        self.thread = threading.main_thread().ident

    def run(self):
        last = time.perf_counter()
        while not self.is_over:
            time.sleep(0.001)
            where, now = self.where(sys._current_frames()[self.thread]), time.perf_counter()
            self.seconds[where] = self.seconds.get(where, 0.0) + now - last
            last = now

    def where(self, frame):
        if frame.f_code.co_filename.endswith("region_call.py") and frame.f_code.co_name == "__call__":
            return "model"
        while frame is not None:
            file = frame.f_code.co_filename
            if file.startswith(self.folder):
                return "own"
            if "/torch/_dynamo/" in file or "/torch/_functorch/" in file:
                return "torch"
            frame = frame.f_back
        return "torch"

with torch.no_grad():
    function, inputs = model_of(arguments["model"], arguments["layers"])
    built = time.perf_counter()
    compiled = torch.compile(function, **options_of())
    sampler = Sampler() if arguments.get("sample") else None
    if sampler:
        sampler.start()
    compiled(*inputs)
    first = time.perf_counter()
    if sampler:
        sampler.is_over = True
        sampler.join()
    again = time.perf_counter()
    compiled(*inputs)
    second = time.perf_counter()

report(model_s=built - begin - imported, first_s=first - built, second_s=second - again, total_s=first - begin,
       parts=sampler.seconds if sampler else None)
if arguments.get("finish"):
    from torch_max_backend import wait_for_compiles
    wait_for_compiles()
"""
)

SIZES = (
    BEGIN
    + """
import logging
model, _ = model_of("encoder", arguments["layers"])
compiled = torch.compile(model, dynamic=True, **options_of())
choice, rows = random.Random(0), []
pairs = [(choice.randint(1, 64), choice.randint(16, 512)) for _ in range(arguments["pairs"])]
from torch._dynamo.utils import counters
with torch.no_grad():
    for batch, length in pairs:
        x = torch.randn(batch, length, 64)
        before, start = counters["stats"]["unique_graphs"], time.perf_counter()
        given = compiled(x)
        seconds = time.perf_counter() - start
        difference = float((given - model(x)).abs().max())
        rows.append([batch, length, seconds, counters["stats"]["unique_graphs"] - before, difference])
report(rows=rows, graphs_compiled=counters["stats"]["unique_graphs"])
"""
)

SAVE = (
    BEGIN
    + """
torch._dynamo.config.enable_aot_compile = True
model, inputs = model_of("encoder", arguments["layers"])

def run(model, x):
    return model(x)

with torch.no_grad():
    saved = torch.compile(run, fullgraph=True, **options_of()).aot_compile(((model, *inputs), {}))
    saved.save_compiled_function(arguments["file"])
report()
"""
)

LOAD = (
    BEGIN
    + """
model, inputs = model_of("encoder", arguments["layers"])
built = time.perf_counter()
with torch.no_grad(), open(arguments["file"], "rb") as file:
    function = torch.compiler.load_compiled_function(file)
    result = function(model, *inputs)
    total = time.perf_counter() - begin
    torch.testing.assert_close(result, model(*inputs))
report(total_s=total, load_s=begin + total - built)
"""
)

IMPORT = (
    BEGIN
    + """
import torch._dynamo.aot_compile
print(json.dumps({"import_s": imported, "loader_s": time.perf_counter() - begin}))
"""
)


class Part(enum.StrEnum):
    """The measurements."""

    warm = "warm"
    background = "background"
    cold = "cold"
    sizes = "sizes"
    saved = "saved"


class Failed(Exception):
    """A measured process did not end well; the message is the end of its output."""


@dataclass
class Caches:
    """Folders that take the place of every cache of torch, MAX and this package."""

    folder: Path

    def environment(self) -> dict[str, str]:
        """Variables for a process that shall use these caches and no others."""
        cleaned = {k: v for k, v in os.environ.items() if not k.startswith(("TORCH_MAX_BACKEND_", "MODULAR_"))}
        places = {
            "HOME": "home",
            "XDG_CACHE_HOME": "cache",
            "TORCH_MAX_BACKEND_CACHE_DIR": "regions",
            "TORCHINDUCTOR_CACHE_DIR": "torch",
            "MODULAR_CACHE_DIR": "modular",
            "TMPDIR": "tmp",
        }
        for name in places.values():
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        telemetry = {"MODULAR_TELEMETRY_ENABLED": "0"}
        return cleaned | telemetry | {k: str(self.folder / v) for k, v in places.items()}


@dataclass
class Bench:
    """Runs measured processes, and collects rows of (part, what, value, unit)."""

    repeats: int
    layers: int
    deep: int
    pairs: int
    timeout: float
    progress: Progress
    rows: list[tuple[str, str, str]] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def run(self, text: str, caches: Caches, **arguments: Any) -> dict[str, Any]:
        """What a process prints on its last line."""
        task = self.progress.add_task(
            " ".join(f"{v}" for v in arguments.values() if isinstance(v, str | int)), total=None
        )
        try:
            done = subprocess.run(
                [sys.executable, "-W", "ignore", "-c", text, json.dumps({"layers": self.layers, **arguments})],
                env=caches.environment(),
                capture_output=True,
                text=True,
                timeout=self.timeout,
            )
        except subprocess.TimeoutExpired as error:
            raise Failed(f"longer than {self.timeout:.0f} s") from error
        finally:
            self.progress.remove_task(task)
        if done.returncode:
            raise Failed((done.stderr or done.stdout).strip()[-1500:])
        return json.loads(done.stdout.strip().splitlines()[-1])

    def add(self, part: str, what: str, values: list[float], unit: str = "s", digits: int = 2) -> None:
        """A row with the median and the range of ``values``."""
        middle = f"{statistics.median(values):.{digits}f} {unit}"
        spread = f" ({min(values):.{digits}f} to {max(values):.{digits}f})" if len(values) > 1 else ""
        self.rows.append((part, what, middle + spread))
        self.data.setdefault(part, {})[what] = {"values": values, "unit": unit}

    # -- the parts ---------------------------------------------------------------------------------------------
    def warm(self, folder: Path) -> None:
        """Second processes, contenders in turns."""
        found: dict[str, list[dict[str, Any]]] = {"max_backend": [], "inductor": [], "eager": []}
        caches = {name: Caches(folder / name) for name in found}
        for name in found:
            self.run(FIRST_CALL, caches[name], model="gpt2", backend=name)
        for _ in range(self.repeats):
            for name, runs in found.items():
                runs.append(self.run(FIRST_CALL, caches[name], model="gpt2", backend=name))
        for name, runs in found.items():
            self.add("warm", f"{name}: first line to first result", [r["total_s"] for r in runs])
            self.add("warm", f"{name}: import torch", [r["import_s"] for r in runs])
            self.add("warm", f"{name}: first call", [r["first_s"] for r in runs])
        ours = {"model": "gpt2", "backend": "max_backend", "sample": 1}
        parts = [self.run(FIRST_CALL, caches["max_backend"], **ours)["parts"] for _ in range(self.repeats)]
        self.add("warm", "max_backend: its own part of the first call", [p.get("own", 0.0) for p in parts])
        self.add("warm", "max_backend: Dynamo's and AOTAutograd's part", [p.get("torch", 0.0) for p in parts])
        self.add("warm", "max_backend: the model itself, a second call", [r["second_s"] for r in found["max_backend"]])
        regions = [sum(g["regions"] for g in r["graphs"]) for r in found["max_backend"]]
        hits = [sum(g["hits"] for g in r["graphs"]) for r in found["max_backend"]]
        self.add("warm", "max_backend: regions", regions, "", 0)
        self.add("warm", "max_backend: of these from the cache", hits, "", 0)

    def background(self, folder: Path) -> None:
        """First calls that compile nothing, or do it behind the user's back."""
        found: dict[str, list[float]] = {"eager": [], "max_backend": []}
        for number in range(self.repeats):
            for name, times in found.items():
                options = {"compile": "background"} if name == "max_backend" else {}
                caches = Caches(folder / f"{name}{number}")
                times.append(self.run(FIRST_CALL, caches, model="gpt2", backend=name, options=options)["first_s"])
        for name, times in found.items():
            self.add("background", f"first call, {name}", times)
        ratio = [b / e for b, e in zip(found["max_backend"], found["eager"], strict=True)]
        self.add("background", "max_backend / eager", ratio, "")

    def cold(self, folder: Path) -> None:
        """First calls with empty caches."""
        cases = [("gpt2", self.layers), ("gpt2", self.deep), ("resnet50", 0)]
        found: dict[tuple[str, str, int], list[float]] = {}
        for number in range(self.repeats):
            for model, layers in cases:
                for name in ("max_backend", "inductor"):
                    caches = Caches(folder / f"{name}{number}{model}{layers}")
                    run = self.run(FIRST_CALL, caches, model=model, layers=layers, backend=name)
                    found.setdefault((name, model, layers), []).append(run["first_s"])
        for (name, model, layers), times in found.items():
            self.add("cold", f"{name}: {model}" + (f", {layers} layers" if layers else ""), times)
        for name in ("max_backend", "inductor"):
            few, many = found[name, "gpt2", self.layers], found[name, "gpt2", self.deep]
            growth = [m / f for f, m in zip(few, many, strict=True)]
            self.add("cold", f"{name}: {self.deep} layers / {self.layers} layers", growth, "")

    def sizes(self, folder: Path) -> None:
        """One function, many sizes."""
        for name in ("max_backend", "inductor"):
            run = self.run(SIZES, Caches(folder / name), backend=name, layers=2, pairs=self.pairs)
            rows = run["rows"]
            first, *rest = [row[2] for row in rows if row[3]]
            self.add("sizes", f"{name}: graphs compiled for {len(rows)} pairs", [run["graphs_compiled"]], "", 0)
            self.add("sizes", f"{name}: first call", [first])
            self.add("sizes", f"{name}: calls that compiled again", [len(rest)], "", 0)
            self.add("sizes", f"{name}: calls that compiled nothing", [row[2] for row in rows if not row[3]], "s", 4)
            self.add("sizes", f"{name}: largest difference to eager", [max(row[4] for row in rows)], "", 9)
            self.data["sizes"][f"{name}: batch, length, seconds, compiled, difference"] = rows

    def saved(self, folder: Path) -> None:
        """A saved function in a process that compiles nothing."""
        caches, file = Caches(folder / "saved"), str(folder / "function")
        try:
            self.run(SAVE, caches, layers=2, backend="max_backend", file=file)
            runs = [self.run(LOAD, caches, layers=2, backend="max_backend", file=file) for _ in range(self.repeats)]
        except Failed as error:
            self.rows.append(("saved", "not supported", str(error).splitlines()[-1][:100]))
            self.data["saved"] = {"not supported": str(error)}
            return
        imports = [self.run(IMPORT, caches) for _ in range(self.repeats)]
        self.add("saved", "first line to first result", [r["total_s"] for r in runs])
        self.add("saved", "of this: loading and the first call", [r["load_s"] for r in runs])
        self.add("saved", "import torch", [i["import_s"] for i in imports])
        self.add("saved", "import torch, and Dynamo for torch's loader", [i["loader_s"] for i in imports])


def versions() -> dict[str, str]:
    """What was measured, and where."""
    names = ["torch", "max", "mojo-compiler", "transformers", "timm", "torch-max-backend"]
    found = {name: importlib.metadata.version(name) for name in names}
    return found | {"python": platform.python_version(), "cpus": str(os.cpu_count()), "machine": platform.machine()}


def main(
    part: list[Part] = typer.Option(list(Part), help="What to measure; may be given several times."),
    repeats: int = typer.Option(5, min=1, help="Processes per contender."),
    layers: int = typer.Option(12, min=1, help="Layers of GPT-2."),
    deep: int = typer.Option(48, min=1, help="Layers of the deep GPT-2."),
    pairs: int = typer.Option(20, min=1, help="Pairs of batch and sequence length."),
    timeout: float = typer.Option(1800.0, help="Seconds that one process may take."),
    output: Path | None = typer.Option(None, "--json", help="Also write everything to this file."),
) -> None:
    """Measure, and print a table."""
    failed = False
    with Progress(console=Console(stderr=True)) as progress, tempfile.TemporaryDirectory(prefix="startup-") as folder:
        bench = Bench(repeats, layers, deep, pairs, timeout, progress)
        for chosen in dict.fromkeys(part):
            try:
                getattr(bench, chosen.value)(Path(folder) / chosen.value)
            except Failed as error:
                failed = True
                bench.rows.append((chosen.value, "FAILED", str(error)))
    table = Table("part", "what", "median (range)", title=", ".join(f"{k} {v}" for k, v in versions().items()))
    for row in bench.rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    if output is not None:
        output.write_text(json.dumps({"versions": versions(), "repeats": repeats, "parts": bench.data}, indent=1))
    if failed:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)

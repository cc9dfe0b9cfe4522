"""Public ops beside plain PyTorch, in eager and by Inductor, and beside a copy of as many bytes.

    python -m benchmarks.public_ops
    python -m benchmarks.public_ops --only rms_norm --dtype bfloat16 --threads 2
    python -m benchmarks.public_ops --device cuda --dtype bfloat16 --rows 16384 --columns 8192 --save FILE.jsonl
    python -m benchmarks.public_ops --large-loss --device cuda --dtype bfloat16 --rows 8192

The cases stand in the ops' declarations, and each has a gradient's row where the op has one. All contenders take turns
in one process; a figure is the lower quartile of their times, since what disturbs a call makes it longer. On a GPU the
times are of kernels. A copy reads and writes half of the bytes each, which are those that the op must move.
``--save`` adds lines to a file, from which ``python -m torch_max_backend.ops.page --write`` makes the documentation's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch._functorch.config
import typer
from torch.nn import functional as F

from benchmarks.allocations import allocations
from benchmarks.record import environment
from torch_max_backend import ops
from torch_max_backend.measurement.clocks import Call, clock_for
from torch_max_backend.measurement.turns import interleave
from torch_max_backend.ops.declaration import BenchmarkCase, Declaration, Maker, declarations, gradient

OTHERS = ("eager", "Inductor", "clone", "copy")
SAMPLE_S = 2e-3
"""Seconds that the calls of a sample take in all."""
VOCABULARY, FEATURES = 128256, 2048
"""Of the loss whose memory is measured."""


def lower_quartiles(contenders: dict[str, Call], device: str, rounds: int) -> dict[str, float]:
    """Seconds that a call of each takes."""
    found, errors = interleave(contenders, clock_for(device, SAMPLE_S), rounds)
    if errors:
        raise RuntimeError(f"{errors}")
    samples = {name: sorted(times.device or times.wall) for name, times in found.items()}
    return {name: own[len(own) // 4] for name, own in samples.items()}


def row(name: str, moved: int, contenders: dict[str, Call], device: str, rounds: int) -> dict[str, Any]:
    """What is measured of a call that moves so many bytes."""
    source = torch.empty(max(1, moved // 2), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copies: dict[str, Call] = {"clone": lambda i: source.clone(), "copy": lambda i: target.copy_(source)}
    return {"op": name, "bytes": moved, "s": lower_quartiles({**contenders, **copies}, device, rounds)}


def rows_of(declaration: Declaration, case: BenchmarkCase, maker: Maker, rounds: int) -> Iterator[dict[str, Any]]:
    """The rows of an op and of its gradient."""
    torch._dynamo.reset()
    args = case.arguments(maker)
    op, plain = getattr(ops, declaration.name), torch.compile(case.plain, backend="inductor", dynamic=False)
    name = f"{declaration.name} {case.name}"
    with torch.no_grad():
        functions = {"op": op, "eager": case.plain, "Inductor": plain}
        calls = {n: _call(f, args) for n, f in functions.items()}
        yield row(name, int(declaration.bytes(args)), calls, maker.device, rounds)
    backward = gradient(declaration)
    if backward is None:
        return
    named = {n: k for k, n in enumerate(declaration.names)}
    wanted = [k for k in (named[n] for n in declaration.differentiable) if k < len(args) and args[k] is not None]
    own = [x.detach().requires_grad_() if k in wanted else x for k, x in enumerate(args)]
    calls, moved = {}, 0
    for contender, function in {"op": op, "eager": case.plain, "Inductor": plain}.items():
        found = function(*own)
        results = [r for r in (found if isinstance(found, tuple) else (found,)) if r.requires_grad]
        slopes = [torch.randn_like(r) for r in results]
        inputs = [own[k] for k in wanted]
        calls[contender] = _gradients(results, inputs, slopes)
        if contender == "op":
            every = found if isinstance(found, tuple) else (found,)
            moved = _gradient_bytes(declaration, backward, own, every, slopes)
    yield row(f"{name}, gradient", moved, calls, maker.device, rounds)


def _call(function: Callable[..., Any], args: Sequence[Any]) -> Call:
    return lambda i: function(*args)


def _gradients(results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], slopes: Sequence[torch.Tensor]) -> Call:
    return lambda i: torch.autograd.grad(results, inputs, slopes, retain_graph=True, allow_unused=True)


def _gradient_bytes(
    declaration: Declaration,
    backward: Declaration,
    args: Sequence[Any],
    results: Sequence[torch.Tensor],
    slopes: Sequence[torch.Tensor],
) -> int:
    """Bytes that the gradient's op must move: its arguments, each once, and its results."""
    values: dict[str, Any] = dict(zip(declaration.names, declaration.filled(args), strict=True))
    names = [r.name for r in declaration.overload._schema.returns]
    one = declaration.returns_one
    values |= {"result": results[0], "grad": slopes[0]} if one else dict(zip(names, results, strict=True))
    if not one:
        values |= dict(zip((f"grad_{n}" for n in names), slopes))
    wanted = [isinstance(values[n], torch.Tensor) for n in backward.differentiable]
    return int(backward.bytes([*(values[n] for n in backward.names[:-1]), wanted]))


def line(found: dict[str, Any]) -> str:
    """A row of the table."""
    times = found["s"]
    shown = " | ".join(f"{1e3 * t:.4f}" for t in times.values())
    shares = " | ".join(f"{times[other] / times['op']:.2f}" for other in OTHERS)
    return f"| {found['op']} | {found['bytes'] / 1e6:.1f} | {shown} | {shares} |"


# -- a large loss --------------------------------------------------------------------------------------------------
def large_loss(dtype: torch.dtype, device: str, rows: int) -> dict[str, tuple[int, float]]:
    """The most bytes at once, beyond the arguments, of a loss with its gradients by the op and by plain code; and
    seconds."""
    maker = Maker(dtype, device)
    x, weight = maker(rows, FEATURES).requires_grad_(), maker(VOCABULARY, FEATURES).requires_grad_()
    target = maker.integers(VOCABULARY, rows)

    def plain(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(F.linear(x, weight), target)

    compiled = torch.compile(plain, backend="inductor", dynamic=False)
    losses = {
        "op": lambda: ops.linear_cross_entropy(x, weight, target).mean(),
        "eager": lambda: plain(x, weight),
        "eager, logits in float32": lambda: F.cross_entropy(F.linear(x, weight).float(), target),
        "Inductor": lambda: compiled(x, weight),
    }
    found = {}
    for name, loss in losses.items():
        call = _call(lambda loss=loss: torch.autograd.grad(loss(), (x, weight)), ())  # type: ignore[misc]
        peak = _peak(call, device)
        found[name] = peak, lower_quartiles({name: call}, device, 5)[name]
    return found


def _peak(call: Call, device: str) -> int:
    call(0)
    if device == "cpu":
        with allocations() as found:
            call(0)
        return found.peak
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call(0)
    return torch.cuda.max_memory_allocated() - before


def main(
    only: list[str] = typer.Option([], help="Names of ops; all of them if none is given."),
    dtype: str = typer.Option("float32", help="float32, bfloat16 or float16."),
    rounds: int = typer.Option(15, help="Samples of each contender."),
    threads: int = typer.Option(2, help="PyTorch's threads."),
    device: str = typer.Option("cpu", help="cpu or cuda."),
    rows: int = typer.Option(1024, help="Of matrices."),
    columns: int = typer.Option(4096, help="Of matrices."),
    save: Path = typer.Option(None, help="Add what was measured to this file, a line of JSON each."),
    large: bool = typer.Option(False, "--large-loss", help="Memory and time of linear_cross_entropy alone."),
) -> None:
    """Time public ops, and print a table: milliseconds, and how many times as fast the op is."""
    torch.set_num_threads(threads)
    torch._functorch.config.donated_buffer = False  # a gradient is computed again and again
    kind = getattr(torch, dtype)
    if large:
        losses = large_loss(kind, device, rows)
        own_peak, own_s = losses["op"]
        for name, (peak, seconds) in losses.items():
            print(f"{name}: {peak / 1e6:.0f} MB, {own_peak / peak:.3f}; {1e3 * seconds:.2f} ms, {seconds / own_s:.2f}")
        return
    facts = {"dtype": dtype, "device": device, "rows": rows, "columns": columns, **environment()}
    if device == "cuda":
        facts["gpu"] = torch.cuda.get_device_name()
    print(f"| op | MB | op ms | {' | '.join(f'{o} ms' for o in OTHERS)} | {' | '.join(f'x {o}' for o in OTHERS)} |")
    print(f"|{'---|' * 11}")
    for declaration in declarations():
        if declaration.gradient_of or (only and declaration.name not in only):
            continue
        for case in declaration.cases:
            for found in rows_of(declaration, case, Maker(kind, device, rows, columns), rounds):
                print(line(found), flush=True)
                if save is not None:
                    with save.open("a", encoding="utf-8") as file:
                        file.write(json.dumps({**found, **facts}) + "\n")


if __name__ == "__main__":
    typer.run(main)

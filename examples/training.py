"""What the two training examples share: the loop, the comparison with eager and the plot."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn

Batch = tuple[torch.Tensor, torch.Tensor]
Loss = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass
class Run:
    """A finished training: the loss of every step, the trained model, and seconds a step (median)."""

    losses: torch.Tensor
    model: nn.Module
    step_s: float


def train(name: str, model: nn.Module, batches: list[Batch], loss_of: Loss, learning_rate: float, how: str) -> Run:
    """Train a copy of ``model`` with AdamW, one step a batch, from one seed.

    ``how`` is ``"eager"`` or a backend of ``torch.compile``, which then also compiles the optimizer's step.
    """
    model = copy.deepcopy(model).train()
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate)
    compute, update = loss_of, optimizer.step
    if how != "eager":
        compute = torch.compile(loss_of, backend=how)
        update = torch.compile(optimizer.step, backend=how)
    torch.manual_seed(1)  # dropout
    losses, times = [], []
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, TextColumn("loss {task.fields[loss]:.4f}")) as progress:
        task = progress.add_task(name, total=len(batches), loss=float("nan"))
        for inputs, wanted in batches:
            start = time.perf_counter()
            optimizer.zero_grad()
            loss = compute(model, inputs, wanted)
            loss.backward()
            update()
            losses.append(loss.detach())
            times.append(time.perf_counter() - start)
            progress.update(task, advance=1, loss=float(losses[-1]))
    return Run(torch.stack(losses), model, sorted(times)[len(times) // 2])


NUDGES = 4
"""Eager runs from nudged parameters. They leave eager's path at different steps, so one says little."""


def nudged(model: nn.Module, seed: int = 2) -> nn.Module:
    """A copy whose parameters are moved by at most two units in the last place (a factor within ``1 ± 2**-23``)."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(1 + (torch.rand(p.shape, generator=generator, dtype=torch.float64) * 2 - 1) * 2**-23)
    return other


def check(compiled: Run, eager: Run, nudged: list[Run], factor: float = 8.0) -> str:
    """Hold a compiled training against eager's, step by step; gives one line, or raises ``AssertionError``.

    Two float32 trainings whose sums are added in another order drift apart, however right both are. How fast is
    measured: ``nudged`` are eager's trainings from parameters that differ in the last place. The compiled losses may
    differ from eager's by ``factor`` times what any of them has differed by so far, and so may the final parameters (by
    their norm). That the factor is not 1 is because a compiled step rounds otherwise at every step and not only at the
    first; that it is 8 is chosen.
    """
    floor = 4 * torch.finfo(torch.float32).eps * eager.losses.abs().amax()
    moved = torch.stack([(run.losses - eager.losses).abs() for run in nudged]).amax(0)
    allowed = factor * torch.maximum(moved.cummax(0).values, floor)
    apart = (compiled.losses - eager.losses).abs()
    worst = int((apart / allowed).argmax())
    assert bool((apart <= allowed).all()), f"step {worst}: losses differ by {apart[worst]:.2e} > {allowed[worst]:.2e}"

    def distance(run: Run) -> float:
        pairs = zip(run.model.parameters(), eager.model.parameters(), strict=True)
        return float(torch.stack([(a.detach() - b.detach()).norm() for a, b in pairs]).norm())

    given, limit = distance(compiled), factor * max(distance(run) for run in nudged)
    assert given <= limit, f"the final parameters are {given:.2e} apart, allowed is {limit:.2e}"
    return (
        f"as eager: largest share of the allowed difference {float((apart / allowed).amax()):.2f} (step {worst}), "
        f"final parameters {given:.2e} apart, allowed {limit:.2e}"
    )


def plot(runs: dict[str, Run], path: Path, title: str) -> None:
    """Write the loss curves as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for (name, run), style in zip(runs.items(), ["-", "--", ":"], strict=False):
        axes.plot(run.losses.numpy(), style, label=f"{name}, {run.step_s * 1e3:.0f} ms a step")
    axes.set(title=title, xlabel="step", ylabel="loss", yscale="log")
    axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def compare(
    model: nn.Module,
    batches: list[Batch],
    loss_of: Loss,
    learning_rate: float,
    plot_to: Path,
    title: str,
    backend: str = "max_backend",
) -> dict[str, Run]:
    """Train in eager, in eager from nudged parameters, and compiled; check, print and plot."""
    starts = [nudged(model, seed) for seed in range(2, 2 + NUDGES)]
    others = [train("eager, nudged", start, batches, loss_of, learning_rate, "eager") for start in starts]
    runs = {
        "eager": train("eager", model, batches, loss_of, learning_rate, "eager"),
        backend: train(backend, model, batches, loss_of, learning_rate, backend),
    }
    plot({"eager": runs["eager"], backend: runs[backend]}, plot_to, title)
    print(f"losses: first {float(runs[backend].losses[0]):.4f}, last {float(runs[backend].losses[-1]):.4f}; {plot_to}")
    print(check(runs[backend], runs["eager"], others))
    print(f"step: eager {runs['eager'].step_s * 1e3:.1f} ms, {backend} {runs[backend].step_s * 1e3:.1f} ms")
    return runs

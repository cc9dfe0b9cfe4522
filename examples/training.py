"""What the two training examples share: the loop, the comparison with eager and the plot."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn

Batch = tuple[torch.Tensor, torch.Tensor]
Loss = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass
class Run:
    """A finished training: the loss of every step, the trained model, seconds a step (median), and how it computed."""

    losses: torch.Tensor
    model: nn.Module
    step_s: float
    compute: Loss


@dataclass
class Nudge:
    """Moves parameters while gradients are computed: each by a random factor within ``1 ± size``, others every time."""

    size: float
    seed: int

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)

    @contextmanager
    def moved(self, model: nn.Module) -> Iterator[None]:
        """Inside, the parameters are moved; afterwards they are what they were."""
        kept = [p.detach().clone() for p in model.parameters()]
        with torch.no_grad():
            for p in model.parameters():
                chosen = torch.rand(p.shape, generator=self.generator, dtype=torch.float64) * 2 - 1
                p.copy_(p * (1 + self.size * chosen))
        yield
        with torch.no_grad():
            for p, before in zip(model.parameters(), kept, strict=True):
                p.copy_(before)


def train(
    name: str,
    model: nn.Module,
    batches: list[Batch],
    loss_of: Loss,
    learning_rate: float,
    how: str,
    nudge: Nudge | None = None,
) -> Run:
    """Train a copy of ``model`` with AdamW, one step a batch, from one seed.

    ``how`` is ``"eager"`` or a backend of ``torch.compile``, which then also compiles the optimizer's step.
    """
    model = copy.deepcopy(model).train()
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate)
    compute, update = loss_of, optimizer.step
    if how != "eager":
        compute = torch.compile(loss_of, backend=how)
        update = torch.compile(optimizer.step, backend=how)
    torch.manual_seed(SEED)  # dropout
    losses, times = [], []
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, TextColumn("loss {task.fields[loss]:.4f}")) as progress:
        task = progress.add_task(name, total=len(batches), loss=float("nan"))
        for inputs, wanted in batches:
            start = time.perf_counter()
            optimizer.zero_grad()
            with nudge.moved(model) if nudge is not None else nullcontext():
                loss = compute(model, inputs, wanted)
                loss.backward()
            update()
            losses.append(loss.detach())
            times.append(time.perf_counter() - start)
            progress.update(task, advance=1, loss=float(losses[-1]))
    return Run(torch.stack(losses), model, sorted(times)[len(times) // 2], compute)


SEED = 1
NUDGES = 4
"""Nudged eager runs. A ReLU that is close to zero turns in some of them and not in others, so one says little."""
FACTOR = 8.0
"""How much further than eager's own rounding the nudges move the gradients, and how much more gradients may err."""
COMPARED = 5
"""Batches whose gradients are compared. The median counts, since a ReLU may turn in one of them."""


def gradients(compute: Loss, model: nn.Module, batch: Batch) -> list[torch.Tensor]:
    """Gradients of a batch, with one seed; running statistics stay as they are."""
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    model.zero_grad()
    torch.manual_seed(SEED)
    compute(model, *batch).backward()
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.load_state_dict(kept)
    return found


def exact_gradients(loss_of: Loss, model: nn.Module, batch: Batch) -> list[torch.Tensor]:
    """The same in float64."""
    inputs, wanted = (t.double() if t.is_floating_point() else t for t in batch)
    return gradients(loss_of, copy.deepcopy(model).double(), (inputs, wanted))


def apart(some: Iterable[torch.Tensor], others: Iterable[torch.Tensor]) -> float:
    """The norm of the difference of two lists of tensors, as of one vector."""
    pairs = zip(some, others, strict=True)
    return float(torch.stack([(a.detach().double() - b.detach().double()).norm() for a, b in pairs]).norm())


def nudge_size(model: nn.Module, batches: list[Batch], loss_of: Loss) -> float:
    """How large nudges must be to move gradients ``FACTOR`` times as far as float32 moves eager's from float64's."""
    model = copy.deepcopy(model).train()
    one, ratios = Nudge(2.0**-23, 2), []
    for batch in batches[:COMPARED]:
        eager, exact = gradients(loss_of, model, batch), exact_gradients(loss_of, model, batch)
        with one.moved(model):
            moved = gradients(loss_of, model, batch)
        ratios.append(apart(eager, exact) / apart(moved, eager))
    return FACTOR * one.size * statistics.median(ratios)


def check_gradients(compiled: Run, eager: Run, batches: list[Batch], loss_of: Loss) -> str:
    """Hold compiled gradients against float64's, at eager's final parameters; a line, or ``AssertionError``.

    Their distance may be ``FACTOR`` times that of eager's, in the median of some batches. AdamW divides gradients by
    their size and drift hides little errors, so losses alone would not tell.
    """
    compiled.model.load_state_dict(eager.model.state_dict())
    ratios = []
    for batch in batches[:COMPARED]:
        exact = exact_gradients(loss_of, eager.model, batch)
        given = apart(gradients(compiled.compute, compiled.model, batch), exact)
        ratios.append(given / apart(gradients(loss_of, eager.model, batch), exact))
    ratio = statistics.median(ratios)
    assert ratio <= FACTOR, f"gradients are {ratio:.1f} times as far from float64's as eager's, allowed is {FACTOR:.0f}"
    return f"gradients at eager's final parameters: {ratio:.2f} times as far from float64's as eager's"


def check(compiled: Run, eager: Run, nudged: list[Run]) -> str:
    """Hold a compiled training against eager's, step by step; gives one line, or raises ``AssertionError``.

    Two float32 trainings whose sums are added in another order drift apart, however right both are. How fast is
    measured: ``nudged`` are eager's trainings with gradients that err, in every step, ``FACTOR`` times as much as
    float32 makes eager's err (see ``nudge_size``). The compiled losses may differ from eager's by what any of them has
    differed by so far, or by four units in the last place of the largest loss; and so may the final parameters (by
    their norm). That is enough if the compiled gradients err as much as eager's do, independently: a number drawn from
    a normal distribution is larger than ``FACTOR`` times the largest of ``NUDGES`` others in one of 3500 cases.
    """
    floor = 4 * torch.finfo(torch.float32).eps * eager.losses.abs().amax()
    moved = torch.stack([(run.losses - eager.losses).abs() for run in nudged]).amax(0)
    allowed = torch.maximum(moved.cummax(0).values, floor)
    drift = (compiled.losses - eager.losses).abs()
    worst = int((drift / allowed).argmax())
    assert bool((drift <= allowed).all()), f"step {worst}: losses differ by {drift[worst]:.2e} > {allowed[worst]:.2e}"

    def distance(run: Run) -> float:
        return apart(run.model.parameters(), eager.model.parameters())

    given, limit = distance(compiled), max(distance(run) for run in nudged)
    assert given <= limit, f"the final parameters are {given:.2e} apart, allowed is {limit:.2e}"
    return (
        f"as eager: largest share of the allowed difference {float((drift / allowed).amax()):.2f} (step {worst}), "
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
    """Train in eager, in eager with nudges, and compiled; check, print and plot."""
    runs = {"eager": train("eager", model, batches, loss_of, learning_rate, "eager")}
    size = nudge_size(model, batches, loss_of)
    nudges = [Nudge(size, seed) for seed in range(2, 2 + NUDGES)]
    others = [train("eager, nudged", model, batches, loss_of, learning_rate, "eager", nudge) for nudge in nudges]
    runs[backend] = train(backend, model, batches, loss_of, learning_rate, backend)
    plot({"eager": runs["eager"], backend: runs[backend]}, plot_to, title)
    print(f"losses: first {float(runs[backend].losses[0]):.4f}, last {float(runs[backend].losses[-1]):.4f}; {plot_to}")
    print(f"nudges of {size / 2**-24:.1f} times half a unit in the last place")
    print(check(runs[backend], runs["eager"], others))
    print(check_gradients(runs[backend], runs["eager"], batches, loss_of))
    print(f"step: eager {runs['eager'].step_s * 1e3:.1f} ms, {backend} {runs[backend].step_s * 1e3:.1f} ms")
    return runs

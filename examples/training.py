"""What the two training examples share: the loop, the comparison with eager and the plot."""

from __future__ import annotations

import copy
import functools
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
                p.addcmul_(p, torch.rand(p.shape, generator=self.generator) * 2 - 1, value=self.size)
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
NUDGES = 8
"""Nudged eager runs, from which is learned how far trainings drift apart."""
ERRORS = 0.01
"""How often a right run fails: half of it by any of its losses, half by its final parameters."""
FACTOR = 8.0
"""How much more than eager's a right run's gradients may err. The nudges move gradients that far."""
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


@functools.cache
def deviations(count: int, share: float) -> float:
    """How many standard deviations above the mean of ``count`` numbers one more is with the probability ``share``.

    The numbers have a Gumbel distribution, of whatever place and width: the answer is found by drawing a million sets.
    """
    drawn = torch.empty(2**20, count + 1).exponential_(generator=torch.Generator().manual_seed(0)).log_().neg_()
    seen, one_more = drawn[:, :-1], drawn[:, -1]
    ordered = ((one_more - seen.mean(1)) / seen.std(1)).sort(descending=True).values
    return float(ordered[int(share * len(ordered))])


def predicted(seen: torch.Tensor, share: float) -> float:
    """What one more number like those ``seen`` is above with the probability ``share``.

    Their logarithms are taken to have a Gumbel distribution, as the largest of many random numbers has. Its mean and
    width are known from these few only, which the limit allows for.
    """
    logs = seen.double().log()
    return float((logs.mean() + deviations(len(logs), share) * logs.std()).exp())


def usual(drifts: torch.Tensor, floor: torch.Tensor) -> torch.Tensor:
    """How far runs ([run, step]) have been from eager up to each step: the largest root mean square so far."""
    return torch.maximum(drifts.square().mean(0).sqrt().cummax(0).values, floor)


def check(compiled: Run, eager: Run, nudged: list[Run]) -> str:
    """Hold a compiled training against eager's, step by step; gives one line, or raises ``AssertionError``.

    Two float32 trainings whose sums are added in another order drift apart, however right both are, until they are as
    far apart as any two trainings. ``nudged`` are eager's trainings with gradients that err, in every step, ``FACTOR``
    times as far as float32 makes eager's err (see ``nudge_size``). A compiled run whose gradients err so is one more of
    them, in every phase of the training, and may be held to what they do:

    - a run's excess is its distance from eager's loss as a multiple of what is `usual` for the other runs, in the step
      where that is largest, or one. It is one number a run, so the steps need not be counted. What one more run's
      excess is above with the probability ``ERRORS / 2`` is `predicted` from the nudged runs', and times the usual
      distance it is what the compiled losses may differ by. Distances are shares of eager's loss, which has to be
      positive.
    - the distance of its final parameters from eager's (by their norm) is predicted in the same way.
    """
    # No loss is known better than the last place of the largest one.
    place = torch.finfo(torch.float32).eps * eager.losses.amax() / eager.losses
    drifts = torch.stack([(run.losses / eager.losses - 1).abs() for run in nudged]).maximum(place)
    excess = []
    for k, drift in enumerate(drifts):
        others = torch.cat([drifts[:k], drifts[k + 1 :]])
        excess.append((drift / usual(others, 4 * place)).amax())
    factor = predicted(torch.stack(excess).clamp(min=1), ERRORS / 2)
    allowed = factor * usual(drifts, 4 * place) * eager.losses
    drift = (compiled.losses - eager.losses).abs()
    wrong = (~(drift <= allowed)).nonzero().flatten().tolist()
    if wrong:
        raise AssertionError(f"step {wrong[0]}: losses differ by {drift[wrong[0]]:.2e} > {allowed[wrong[0]]:.2e}")
    worst = int((drift / allowed).argmax())

    def distance(run: Run) -> float:
        return apart(run.model.parameters(), eager.model.parameters())

    given, limit = distance(compiled), predicted(torch.tensor([distance(run) for run in nudged]), ERRORS / 2)
    assert given <= limit, f"the final parameters are {given:.2e} apart, allowed is {limit:.2e}"
    return (
        f"as eager: losses may differ by {factor:.1f} times what is usual for nudged runs, and the largest share of "
        f"that is {float((drift / allowed)[worst]):.2f} (step {worst}: {drift[worst]:.2e}); "
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

"""How well a call's need of memory is known before it runs, on twenty models: ``python -m benchmarks.admission``.

For each model, what was estimated before the call is set beside what torch's allocator gave out during it. Then the
budget is set to a share of what was measured, and the call is made again: it runs op by op, or is refused. What its
memory is then is measured too.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import typer
from torch import nn

from benchmarks.admission_models import MODELS
from benchmarks.allocations import allocations, bytes_of
from torch_max_backend import NotAdmittedError
from torch_max_backend.diagnostics import report


@dataclass(frozen=True)
class Row:
    """Bytes at the peak of a call or training step; ``outcome`` and ``under_budget`` are those with the budget."""

    name: str
    estimated: int
    measured: int
    held: int
    budget: int
    outcome: str
    under_budget: int

    @property
    def ratio(self) -> float:
        """Estimated to measured, weights included."""
        return self.estimated / self.measured

    @property
    def ratio_of_new(self) -> float:
        """The same of what the call allocates alone."""
        return (self.estimated - self.held) / (self.measured - self.held)

    @property
    def of_budget(self) -> float:
        """What was measured under the budget, as a share of it; 0 for a call that was refused before it began."""
        return self.under_budget / self.budget


class Loss(nn.Module):
    """A model with a scalar result, so that a training step is the compiled graphs and nothing else."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.model(*inputs).float().square().mean()


def row_of(name: str, training: bool, share: float) -> Row:
    """Measure one model."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model = Loss(model).train() if training else model.eval()

    def step(compiled: Any) -> Any:
        model.zero_grad()
        with torch.set_grad_enabled(training):
            result = compiled(*inputs)
        if training:
            result.backward()
        return result

    compiled = _compiled(model)
    step(compiled)
    model.zero_grad()
    with allocations() as found:
        step(compiled)
    reports = report.reports()
    estimated = max(sum(e.needed for e in r.admission.estimates) for r in reports)
    constants = max(sum(e.constants for e in r.admission.estimates) for r in reports)
    model.zero_grad()
    held = bytes_of(model, inputs) + constants
    measured = held + found.peak
    budget = int(share * measured)
    compiled = _compiled(model, memory_budget=str(budget))
    outcome = "as it is"
    with allocations() as found:
        try:
            step(compiled)
        except NotAdmittedError:
            outcome = "refused"
    if any(r.admission.rejected for r in report.reports()):
        outcome = "op by op" if outcome == "as it is" else outcome
    under = 0 if outcome == "refused" else held + found.peak
    return Row(name, estimated, measured, held, budget, outcome, under)


def _compiled(model: nn.Module, **options: Any) -> Any:
    torch._dynamo.reset()
    report.clear()
    own = {"executor": "auto", "memory_budget": "", **options}
    return torch.compile(model, backend="max_backend", dynamic=False, options=own)


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Models; all of them without this.")] = None,
    training: Annotated[bool, typer.Option(help="Measure a training step.")] = False,
    share: Annotated[float, typer.Option(help="The budget, as a share of what was measured.")] = 0.6,
) -> None:
    """Print a row for each model."""
    warnings.simplefilter("ignore")
    print(f"{'model':14}{'estimated':>11}{'measured':>11}{'ratio':>8}{'new':>8}  budget {share:.0%}")
    for name in names or MODELS:
        r = row_of(name, training, share)
        under = "nothing allocated" if r.outcome == "refused" else f"{r.of_budget:.3f} of it"
        print(
            f"{r.name:14}{r.estimated / 1e6:9.2f}MB{r.measured / 1e6:9.2f}MB{r.ratio:8.3f}{r.ratio_of_new:8.3f}  "
            f"{r.outcome}, {under}",
            flush=True,
        )


if __name__ == "__main__":
    typer.run(main)

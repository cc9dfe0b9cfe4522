"""A user's function against torch: every region of it, and what it returns in the end.

``torch-max-backend verify`` prints what is found. Regions are judged by what they were given, each for itself; so what
the function returns is compared too, and where that alone is wrong, the stage is looked for that made it so.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import nn
from torch.utils import _pytree as pytree

from torch_max_backend.diagnostics.coverage import model_and_arguments
from torch_max_backend.diagnostics.verify.collect import CheckedRegion, collected
from torch_max_backend.diagnostics.verify.judgement import Difference, judge
from torch_max_backend.diagnostics.verify.references import RUNS, SEED, UNITS, unit
from torch_max_backend.diagnostics.verify.stages import options_for, wrong_stage

Outcome = dict[str, torch.Tensor]
"""What a call gives and changes, by name: results, gradients, arguments and the model's own tensors afterwards."""


@dataclass(frozen=True)
class Verified:
    """What was found: each region that ran, results of the function that are wrong, and the stage at fault for these.

    ``judged`` says why what the function returns was not compared; empty if it was.
    """

    regions: tuple[CheckedRegion, ...]
    wrong: Mapping[str, Difference | str]
    compared: int
    judged: str
    stage: str

    @property
    def is_right(self) -> bool:
        """Whether nothing is wrong."""
        return not self.wrong and all(r.error is None for r in self.regions)

    def table(self) -> Table:
        """The regions, one a row."""
        table = Table("graph", "region", "ops", "begins at", "against torch", title=f"{len(self.regions)} region(s)")
        for r in self.regions:
            table.add_row(r.graph, str(r.number), str(r.ops), r.where, "wrong" if r.error else "right")
        return table

    def lines(self) -> Iterator[str]:
        """What is wrong, and how much was compared."""
        for r in self.regions:
            if r.error is not None:
                yield f"graph {r.graph}: {r.error}"
        for name, difference in self.wrong.items():
            yield f"{name} of the function is wrong: {difference}"
        if self.stage:
            yield f"At fault is {self.stage}"
        yield self.judged or f"{self.compared} tensors that the function gives or changes were compared with eager's"

    def as_dict(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        regions = [{**dataclasses.asdict(r), "error": str(r.error) if r.error else None} for r in self.regions]
        for told, r in zip(regions, self.regions, strict=True):
            told["op"] = r.error.op if r.error else None
            told["repro"] = str(r.error.repro) if r.error and r.error.repro else None
        wrong = {name: str(difference) for name, difference in self.wrong.items()}
        return {"regions": regions, "wrong": wrong, "compared": self.compared, "stage": self.stage}


def verify(make: Callable[..., Any], device: str = "cpu", training: bool = False, repro_dir: str = "") -> Verified:
    """Run what ``make`` gives in eager, in float64 and compiled, and compare.

    Args:
        make: Gives ``(model_or_function, args)``, or with keyword arguments behind them; gets the device if it takes
            an argument.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        training: With gradients of all that the function returns.
        repro_dir: Where files that show a difference go; ``max_backend_repros`` if empty.
    """
    call = _Call(*_moved(model_and_arguments(make(*_device(make, device))), device), training)
    options = {"verify": True, "compile": "wait", "fallback": "eager", "repro_dir": repro_dir}
    eager = call.outcome()
    torch._dynamo.reset()
    with collected() as regions:
        ours = call.outcome("max_backend", options)
    judge_of, told = _judge_of(call, eager)
    wrong = judge_of(ours)
    stage = ""
    if wrong and all(r.error is None for r in regions):
        plain = {**options, "verify": False}
        at_fault = wrong_stage(lambda backend: bool(judge_of(call.outcome(backend, options_for(backend, plain)))))
        stage = at_fault.name
        if at_fault.before:
            stage += f"; {_written(Path(repro_dir or 'max_backend_repros'), at_fault.before, at_fault.after)}"
    torch._dynamo.reset()
    return Verified(tuple(regions), wrong, len(eager), told, stage)


def run_once(make: Callable[..., Any], device: str, training: bool) -> None:
    """Compile what ``make`` gives, and call it, with the options that the environment has."""
    torch._dynamo.reset()
    call = _Call(*_moved(model_and_arguments(make(*_device(make, device))), device), training)
    call.outcome("max_backend", {"compile": "wait"}, told=True)


def _device(make: Callable[..., Any], device: str) -> tuple[str, ...]:
    return (device,) if inspect.signature(make).parameters else ()


def _moved(made: tuple[Any, Sequence[Any], Mapping[str, Any]], device: str) -> tuple[Any, Any, Any]:
    fn, args, kwargs = made
    args, kwargs = pytree.tree_map_only(torch.Tensor, lambda x: x.to(device), (tuple(args), dict(kwargs)))
    return fn.to(device) if isinstance(fn, nn.Module) else fn, args, kwargs


def _written(folder: Path, before: str, after: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "wrong_graph_pass.txt"
    path.write_text(f"# Before the pass\n{before}\n# Behind it\n{after}\n", encoding="utf-8")
    return f"{path} has the graphs before and behind it"


# -- a call --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Call:
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    training: bool

    def outcome(self, backend: str = "", options: dict[str, Any] | None = None, told: bool = False) -> Outcome:
        """What a call of copies gives; eagerly without a backend. ``told`` lets warnings out."""
        return _outcome(*copy.deepcopy((self.fn, self.args, self.kwargs)), self.training, backend, options, told)

    def changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Outcome:
        """What a call of copies gives in eager, whose floating-point tensors are changed before."""
        fn, args, kwargs = copy.deepcopy((self.fn, self.args, self.kwargs))
        if isinstance(fn, nn.Module):
            for x in (*fn.parameters(), *fn.buffers()):
                x.data = change(x.data) if x.is_floating_point() else x.data

        def other(x: torch.Tensor) -> torch.Tensor:
            return change(x.detach()).requires_grad_(x.requires_grad) if x.is_floating_point() else x

        args, kwargs = pytree.tree_map_only(torch.Tensor, other, (args, kwargs))
        return _outcome(fn, args, kwargs, self.training)


def _outcome(
    fn: Any,
    args: Any,
    kwargs: Any,
    training: bool,
    backend: str = "",
    options: dict[str, Any] | None = None,
    told: bool = False,
) -> Outcome:
    torch.manual_seed(0)
    called = torch.compile(fn, backend=backend, options=options) if backend else fn
    with warnings.catch_warnings(), nullcontext() if training else torch.no_grad():
        if not told:
            warnings.simplefilter("ignore")  # what torch runs is no difference
        results = [x for x in pytree.tree_leaves(called(*args, **kwargs)) if isinstance(x, torch.Tensor)]
        wanted = [x for x in results if x.requires_grad]
        if training and wanted:
            torch.autograd.backward(wanted, [torch.ones_like(x) for x in wanted])
    given = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    found = {f"result {k}": x for k, x in enumerate(results)}
    found |= {f"argument {k} afterwards": x for k, x in enumerate(given)}
    found |= {f"the gradient of argument {k}": x.grad for k, x in enumerate(given) if x.is_leaf and x.grad is not None}
    if isinstance(fn, nn.Module):
        found |= {f"buffer {name} afterwards": x for name, x in fn.named_buffers()}
        found |= {f"the gradient of {name}": x.grad for name, x in fn.named_parameters() if x.grad is not None}
    return {name: x.detach() for name, x in found.items() if x.layout is torch.strided}


# -- what is wrong -------------------------------------------------------------------------------------------------
Judge = Callable[[Outcome], dict[str, Difference | str]]


def _judge_of(call: _Call, eager: Outcome) -> tuple[Judge, str]:
    """What says which tensors of an outcome are wrong, and why none is judged, if that is so."""
    try:
        exact = call.changed(torch.Tensor.double)
    except Exception as error:  # a dtype is written in the function, or an op has no float64
        return lambda ours: {}, (
            f"What the function returns was not compared: it does not run in float64 ({type(error).__name__})"
        )
    if exact.keys() != eager.keys():
        return lambda ours: {}, "What the function returns was not compared: in float64 it returns something else"
    moved: Outcome = {}

    def spread(name: str) -> torch.Tensor:
        """How far a result moves when everything that the function is given is rounded otherwise."""
        if not moved:
            moved.update({n: torch.zeros(x.shape, dtype=torch.float64, device=x.device) for n, x in eager.items()})
            for run in range(RUNS):
                for n, x in call.changed(_Nudge(SEED + run)).items():
                    apart = (x.double() - exact[n].double()).abs().nan_to_num(nan=torch.inf)
                    moved[n] = torch.maximum(moved[n], apart)
        return moved[name]

    def wrong(ours: Outcome) -> dict[str, Difference | str]:
        found: dict[str, Difference | str] = {name: "it is missing" for name in eager if name not in ours}
        for name, x in ours.items():
            right = eager.get(name)
            if right is None or x.shape != right.shape or x.dtype != right.dtype:
                found[name] = f"it is {x.dtype}{list(x.shape)}, and torch has none such"
                continue
            if x.is_complex():
                x, right, t = (torch.view_as_real(v.resolve_conj()) for v in (x, right, exact[name]))
            else:
                t = exact[name]
            difference = judge(x, right, t, lambda name=name, shape=x.shape: spread(name).expand(shape))  # type: ignore[misc]
            if difference is not None:
                found[name] = difference
        return found

    return wrong, ""


class _Nudge:
    """Moves elements by up to half of ``UNITS`` units of their dtype, in float64."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        generator = torch.Generator(x.device).manual_seed(self.seed)
        random = torch.rand(x.shape, dtype=torch.float64, device=x.device, generator=generator) * 2 - 1
        return x.double() + torch.where(x.isfinite(), unit(x.double(), x.dtype) * (UNITS / 2) * random, 0.0)

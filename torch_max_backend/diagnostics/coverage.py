"""Who would run what a function computes: a dry run on fake tensors, which compiles nothing."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch._functorch.config
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeCopyMode,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils import _pytree as pytree

from torch_max_backend.base.errors import CoverageError, EnvironmentUnsupportedError
from torch_max_backend.base.target import Machine, architecture, on_fake_tensors
from torch_max_backend.capture.fake_modules import conversion_of_fake_modules
from torch_max_backend.diagnostics.dry_run import HOST, ISLAND, RUNNERS, GraphCoverage, NodeCoverage, dry_run

ABSENT_GPU = "sm_90a"
"""What is assumed of a GPU that is not here."""


@dataclass(frozen=True)
class Share:
    """What one of several runs: so many nodes, which read and give so many bytes, and which parts of all these are."""

    runner: str
    nodes: int
    bytes: int
    node_share: float
    byte_share: float


@dataclass(frozen=True)
class Coverage:
    """Graphs in the order in which torch traced them. ``str()`` is a table."""

    graphs: tuple[GraphCoverage, ...]

    @property
    def nodes(self) -> tuple[NodeCoverage, ...]:
        """The nodes of all graphs."""
        return tuple(node for graph in self.graphs for node in graph.nodes)

    @property
    def islands(self) -> tuple[NodeCoverage, ...]:
        """What torch would run because this backend cannot."""
        return tuple(node for node in self.nodes if node.runner == ISLAND)

    @property
    def shares(self) -> tuple[Share, ...]:
        """What each of them runs, without what only computes sizes, in the order of ``dry_run.RUNNERS``."""
        counted = [n for n in self.nodes if n.runner != HOST]
        total, moved = max(1, len(counted)), max(1, sum(n.bytes for n in counted))
        found = []
        for runner in RUNNERS:
            own = [n for n in counted if n.runner == runner]
            if own:
                size = sum(n.bytes for n in own)
                found.append(Share(runner, len(own), size, len(own) / total, size / moved))
        return tuple(found)

    def as_dict(self) -> dict[str, Any]:
        """All of it but the graphs' code, as JSON has it."""
        return {
            "islands": len(self.islands),
            "shares": [dataclasses.asdict(share) for share in self.shares],
            "graphs": [{"kind": g.kind, "nodes": [dataclasses.asdict(n) for n in g.nodes]} for g in self.graphs],
        }

    def tables(self) -> tuple[Table, Table]:
        """The shares, and the ops: one row for equal ops that the same one runs for the same reason."""
        summary = Table("run by", "ops", "of all", "bytes", "of all", title=f"{len(self.graphs)} graph(s)")
        for s in self.shares:
            name, parts = RUNNERS[s.runner], (f"{s.node_share:.1%}", f"{s.byte_share:.1%}")
            summary.add_row(name, str(s.nodes), parts[0], _size(s.bytes), parts[1])
        ops = Table("graph", "op", "run by", "ops", "bytes")
        ops.add_column("library or reason; first line", overflow="fold")
        order = list(RUNNERS)
        for (kind, op, runner, detail), nodes in sorted(self._groups(), key=lambda g: -order.index(g[0][2])):
            where = next((n.where for n in nodes if n.where), "")
            told = escape("; ".join(text for text in (detail, where) if text))
            ops.add_row(kind, op, RUNNERS[runner], str(len(nodes)), _size(sum(n.bytes for n in nodes)), told)
        return summary, ops

    def _groups(self) -> list[tuple[tuple[str, str, str, str], list[NodeCoverage]]]:
        groups: dict[tuple[str, str, str, str], list[NodeCoverage]] = {}
        for graph in self.graphs:
            for n in graph.nodes:
                groups.setdefault((graph.kind, n.op, n.runner, n.detail), []).append(n)
        return list(groups.items())

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=160, force_jupyter=False)
        for table in self.tables():
            console.print(table)
        return console.file.getvalue().rstrip()  # type: ignore[attr-defined]


def coverage(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Coverage:
    """Who would run what ``fn(*args, **kwargs)`` computes. It is traced on fake tensors, and no compiler runs.

    With gradients on, and a parameter or an argument that wants one, that is forward and backward; else the inference.
    Functions that were compiled before are forgotten, as by ``torch._dynamo.reset``.

    Args:
        fn: A function or module, not compiled yet.
        args: Its arguments; tensors may be real or fake, on the CPU or a GPU.

    Raises:
        CoverageError: The function needs the value of a tensor.
    """
    own = list(fn.parameters()) if isinstance(fn, nn.Module) else []
    wants = any(getattr(x, "requires_grad", False) for x in [*own, *pytree.tree_leaves((args, kwargs))])
    devices = [x.device for x in [*own, *pytree.tree_leaves((args, kwargs))] if isinstance(x, torch.Tensor)]
    gpu = next((d for d in devices if d.type == "cuda"), None)
    with _machine("cuda" if gpu else "cpu") as mode:
        return _covered(_faked(fn, mode), _faked(args, mode), _faked(kwargs, mode), wants and torch.is_grad_enabled())


def coverage_of(make: Callable[..., Any], device: str = "cpu", training: bool = False) -> Coverage:
    """Who would run what a model computes.

    Args:
        make: Gives ``(model_or_function, args)``, or with keyword arguments behind them. It runs on fake tensors, and
            gets the device if it takes an argument; what it gives is moved to the device.
        device: ``cpu``, ``cuda``, or a GPU by its architecture, as ``cuda:sm_90a``, which need not be here.
        training: Forward and backward, and not the inference.

    Raises:
        CoverageError: The function needs the value of a tensor, or ``make`` gives something else.
        EnvironmentUnsupportedError: Gradients on a GPU that is not here.
    """
    with _machine(device, training) as mode, conversion_of_fake_modules():
        kind = device.partition(":")[0]
        fn, args, kwargs = model_and_arguments(make(*((kind,) if inspect.signature(make).parameters else ())))
        fn, args, kwargs = _faked(fn, mode), _faked(args, mode), _faked(kwargs, mode)
        if isinstance(fn, nn.Module):
            fn = fn.to(kind)
        args, kwargs = pytree.tree_map_only(torch.Tensor, lambda x: x.to(kind), (args, kwargs))
        return _covered(fn, args, kwargs, training)


def model_and_arguments(made: Any) -> tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]:
    """The three parts of what a user's function gives.

    Raises:
        CoverageError: It is something else.
    """
    if isinstance(made, tuple) and len(made) in (2, 3) and callable(made[0]):
        fn, args, kwargs = (*made, {})[:3]
        if isinstance(args, tuple | list) and isinstance(kwargs, dict):
            return fn, args, kwargs
    raise CoverageError(
        f"expected (model, args) or (model, args, kwargs), with a tuple and a dict, and got {type(made).__name__}"
    )


# -- the dry run ---------------------------------------------------------------------------------------------------
@contextmanager
def _machine(device: str, training: bool = False) -> Iterator[FakeTensorMode]:
    """Fake tensors of this machine, or of one with the GPU."""
    if device == "cpu":
        with on_fake_tensors() as mode:
            yield mode
        return
    here = torch.cuda.is_available()
    if training and not here:
        raise EnvironmentUnsupportedError(
            f"the backward on {device} cannot be traced: torch asks the GPU itself, and there is none here. Leave "
            "training out, or look at it on the CPU"
        )
    arch = architecture(torch.cuda.current_device()) if here else ABSENT_GPU
    with Machine.parse(device if ":" in device else f"{device}:{arch}").pretended() as mode:
        yield mode


def _faked(value: Any, mode: FakeTensorMode) -> Any:
    """``value`` with fake tensors in place of real ones; a module's are those of a copy."""
    if isinstance(value, nn.Module):
        with FakeCopyMode(mode):
            return copy.deepcopy(value)

    def fake(x: torch.Tensor) -> torch.Tensor:
        return x if isinstance(x, FakeTensor) else mode.from_tensor(x)

    return pytree.tree_map_only(torch.Tensor, fake, value)


def _covered(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], training: bool) -> Coverage:
    torch._dynamo.reset()
    options = {"fallback": "eager", "compile": "wait", "verify": False}
    always_traced = torch._functorch.config.patch(enable_autograd_cache=False)
    compiled = torch.compile(fn, backend="max_backend", options=options)
    try:
        with dry_run() as graphs, always_traced, warnings.catch_warnings():
            with nullcontext() if training else torch.no_grad():
                results = compiled(*args, **kwargs)
            if training:
                _backward(results)
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise CoverageError(
            f"the function needs the value of a tensor ({error.func}), which a dry run does not have: give a part of "
            "it that does not"
        ) from error
    finally:
        torch._dynamo.reset()
    return Coverage(tuple(graphs))


def _backward(results: Any) -> None:
    """Have the backward traced."""
    wanted = [x for x in pytree.tree_leaves(results) if isinstance(x, torch.Tensor) and x.requires_grad]
    if wanted:
        torch.autograd.backward(wanted, [torch.empty_like(x) for x in wanted])


def _size(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"

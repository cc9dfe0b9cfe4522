"""Who would run each node of a graph that is cut into regions, noted while nothing is compiled."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from torch import fx
from torch._ops import OpOverload

from torch_max_backend.capture.fake_tensors import hint, tensors_of, user_line, value_of
from torch_max_backend.capture.fx_nodes import is_getitem
from torch_max_backend.capture.joint_graph import SAVED_FROM
from torch_max_backend.compile.programs import Program
from torch_max_backend.loops.program import Call
from torch_max_backend.partition.classify import Runner
from torch_max_backend.partition.partitioner import Plan

LOOP, LIBRARY, MAX, TORCH, ISLAND, HOST = "loop", "library", "max", "torch", "island", "host"
RUNNERS = {
    LOOP: "generated kernels",
    LIBRARY: "library calls of programs",
    MAX: "MAX graphs",
    TORCH: "torch, by design",
    ISLAND: "torch, as islands",
    HOST: "Python, on sizes",
}
"""Who may run a node, and what that is."""


@dataclass(frozen=True)
class NodeCoverage:
    """A node: its op, who runs it, the library or why torch does, the user's line.

    ``bytes`` are those of the tensors that it reads and gives, as if it ran alone, symbolic sizes as they were traced;
    none for a view, nor for a number.
    """

    op: str
    runner: str
    detail: str
    where: str
    bytes: int


@dataclass(frozen=True)
class GraphCoverage:
    """A graph of ATen ops: inference, forward or backward, its nodes in order, and its code."""

    kind: str
    nodes: tuple[NodeCoverage, ...]
    code: str


_noted: ContextVar[list[GraphCoverage] | None] = ContextVar("torch_max_backend_dry_run", default=None)


@contextmanager
def dry_run() -> Iterator[list[GraphCoverage]]:
    """Compile nothing inside the block, where functions run in torch: every graph is noted instead."""
    noted: list[GraphCoverage] = []
    token = _noted.set(noted)
    try:
        yield noted
    finally:
        _noted.reset(token)


def is_wanted() -> bool:
    """Whether graphs are noted and not compiled."""
    return _noted.get() is not None


def note(gm: fx.GraphModule, plan: Plan, programs: Mapping[int, Program]) -> None:
    """Note a graph. ``programs`` are those regions that are programs, by position."""
    noted = _noted.get()
    assert noted is not None
    runners = _Runners(plan, programs)
    nodes = [n for n in gm.graph.nodes if n.op == "call_function" and not is_getitem(n)]
    code = gm.print_readable(print_output=False)
    noted.append(GraphCoverage(_kind(gm), tuple(map(runners.coverage, nodes)), code))


def _kind(gm: fx.GraphModule) -> str:
    if any(str(n.target).startswith("tangents") for n in gm.graph.find_nodes(op="placeholder")):
        return "backward"
    return "forward" if SAVED_FROM in gm.graph.output_node().meta else "inference"


class _Runners:
    def __init__(self, plan: Plan, programs: Mapping[int, Program]) -> None:
        self.plan = plan
        self.native: dict[fx.Node, str] = {}
        self.libraries: dict[str, str] = {}
        for k, region in enumerate(plan.regions):
            for node in region.nodes:
                self.native.setdefault(node, LOOP if k in programs else MAX)
        for program in programs.values():
            self.libraries.update((s.node, s.library) for s in program.loops.steps if isinstance(s, Call))

    def coverage(self, node: fx.Node) -> NodeCoverage:
        """Who runs a node."""
        runner, detail = self._runner(node)
        return NodeCoverage(str(node.target), runner, detail, user_line(node), 0 if runner == HOST else _bytes(node))

    def _runner(self, node: fx.Node) -> tuple[str, str]:
        verdict = self.plan.verdicts[node]
        if verdict.runner is Runner.ISLAND:
            return ISLAND, verdict.reason
        if verdict.runner is Runner.HOST:
            return HOST, ""
        if verdict.runner is Runner.STORE:
            source = node.args[1]
            if node in self.plan.copies or source not in self.native:
                return TORCH, "a write into an input that no region can do"
            return self.native[source], ""
        if verdict.runner is Runner.TORCH or node not in self.native:
            return TORCH, verdict.reason or "a view or constant that torch alone reads"
        if self.native[node] == LOOP and node.name in self.libraries:
            return LIBRARY, self.libraries[node.name]
        return self.native[node], ""


def _bytes(node: fx.Node) -> int:
    if isinstance(node.target, OpOverload) and node.target.is_view:
        return 0
    values = [value_of(node), *(value_of(n) for n in node.all_input_nodes)]
    return sum(math.prod(map(hint, t.shape)) * t.element_size() for v in values for t in tensors_of(v))

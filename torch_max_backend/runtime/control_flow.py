"""Control flow between compiled graphs: what the call path calls for ``torch.cond``, loops and scans.

Each function takes what the higher-order op of its name takes, with compiled graphs in place of the op's graphs. Such a
graph takes a list of arguments, which it empties, and returns a list or tuple. A predicate on a GPU is read to the
host, which waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

Graph = Callable[[list[Any]], Sequence[Any]]


def cond(predicate: Any, true_graph: Graph, false_graph: Graph, operands: Sequence[Any]) -> Sequence[Any]:
    """The results of one of two graphs."""
    return (true_graph if predicate else false_graph)(list(operands))


def switch(index: Any, graphs: Sequence[Graph], operands: Sequence[Any]) -> Sequence[Any]:
    """The results of one of several graphs; an index out of range is the nearest one."""
    return graphs[min(max(int(index), 0), len(graphs) - 1)](list(operands))


def _function(graph: Graph) -> Callable[..., Sequence[Any]]:
    """A graph as a function of its arguments one by one, which some have without a list."""
    direct: Callable[..., Sequence[Any]] | None = getattr(graph, "direct", None)
    return direct if direct is not None else lambda *args: graph(list(args))


def while_loop(
    condition: Graph, body: Graph, carried: Sequence[Any], additional: Sequence[Any], mutated: str = ""
) -> Sequence[Any]:
    """What ``carried`` has become when ``condition`` gives false."""
    values: Sequence[Any] = [x.clone() if isinstance(x, torch.Tensor) else x for x in carried]
    goes_on, step = _function(condition), _function(body)
    while goes_on(*values, *additional)[0]:
        values = step(*values, *additional)
    return values


def while_loop_stack_output(
    condition: Graph, body: Graph, carried: Sequence[Any], additional: Sequence[Any], mutated: str = ""
) -> Sequence[Any]:
    """What ``carried`` becomes in all iterations, stacked; without any iteration, what it is."""
    values, all_values = carried, []
    goes_on, step = _function(condition), _function(body)
    while goes_on(*values, *additional)[0]:
        values = step(*values, *additional)
        all_values.append(values)
    return [torch.stack(column) for column in zip(*(all_values or [values]), strict=True)]


def scan(
    combine: Graph, init: Sequence[Any], xs: Sequence[torch.Tensor], additional: Sequence[Any], mutated: str = ""
) -> Sequence[Any]:
    """The last carry, and what ``combine`` gives beside it for each slice of ``xs`` along dimension 0."""
    carry, count = init, len(init)
    stacks, step = _Stacks(xs[0].shape[0]), _function(combine)
    for row in zip(*(x.unbind(0) for x in xs), strict=True):
        results = step(*carry, *row, *additional)
        carry = results[:count]
        stacks.add(results[count:])
    if not stacks.count:
        carry = [x.clone() if isinstance(x, torch.Tensor) else x for x in init]
        stacks.add(step(*init, *_zeros(xs), *additional)[count:])
    return [*carry, *stacks.whole]


def map_impl(graph: Graph, xs: Sequence[torch.Tensor], additional: Sequence[Any], mutated: str = "") -> Sequence[Any]:
    """What ``graph`` gives for each slice of ``xs`` along dimension 0."""
    stacks, step = _Stacks(xs[0].shape[0]), _function(graph)
    for row in zip(*(x.unbind(0) for x in xs), strict=True):
        stacks.add(step(*row, *additional))
    if not stacks.count:
        stacks.add(step(*_zeros(xs), *additional))
    return stacks.whole


def _zeros(xs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What stands for a slice of tensors without any, where a step shall tell the shapes of its results."""
    return [x.new_zeros(x.shape[1:]) for x in xs]


class _Stacks:
    """Results of ``count`` steps, in the places where they stay; what is no tensor is kept as it is."""

    def __init__(self, count: int) -> None:
        self.count, self.steps = count, 0
        self.whole: list[Any] = []
        self.places: list[Sequence[torch.Tensor] | None] = []

    def add(self, results: Iterable[Any]) -> None:
        """The results of the next step."""
        if not self.steps:
            for x in (results := list(results)):
                is_tensor = isinstance(x, torch.Tensor)
                self.whole.append(x.new_empty((self.count, *x.shape)) if is_tensor else x)
                self.places.append(self.whole[-1].unbind(0) if is_tensor else None)
        for places, x in zip(self.places, results, strict=True):
            if places:
                places[self.steps].copy_(x)
        self.steps += 1


RUN: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (cond, switch, while_loop, while_loop_stack_output, scan, map_impl)
}
"""What a call path calls, by the name of the higher-order op."""

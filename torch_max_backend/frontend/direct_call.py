"""Calls without AOTAutograd's wrapper, where that has nothing to do.

The wrapper puts parameters in front, turns autograd and autocast off, gives gradients and views to what is returned,
and writes what was changed back into inputs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from torch_max_backend.frontend.warm_start import graphs_of_trace


@contextlib.contextmanager
def graphs_of_a_trace() -> Iterator[list[Any]]:
    """A list to which each graph that is made or loaded while AOTAutograd traces adds itself."""
    made: list[Any] = []
    token = graphs_of_trace.set(made)
    try:
        yield made
    finally:
        graphs_of_trace.reset(token)


def direct_call(gm: fx.GraphModule, example_inputs: Sequence[Any], graphs: Sequence[Any]) -> Callable[..., Any] | None:
    """The function of a Dynamo graph that was made one compiled graph, if it may be called as it is.

    That is so where the compiled graph takes what Dynamo gives and returns what Dynamo takes, all of it new tensors, no
    argument is written to, no gradient is asked for and autocast is off. Dynamo guards what is asked for here: both
    modes, which arguments require gradients, and their types.

    Args:
        gm: The graph that Dynamo captured.
        example_inputs: Its inputs.
        graphs: The compiled graphs that were made of it.
    """
    if len(graphs) != 1 or graphs[0].direct is None:
        return None
    outputs = gm.graph.output_node().args[0]
    results = len(outputs) if isinstance(outputs, list | tuple) else 1
    if graphs[0].plain != (len(example_inputs), results):
        return None
    if torch._C._is_any_autocast_enabled():
        return None
    if next(gm.parameters(), None) is not None or next(gm.buffers(), None) is not None:
        return None
    if any(n.target is torch._C._set_grad_enabled for n in gm.graph.nodes):
        return None
    wants_gradients = torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in example_inputs)
    return None if wants_gradients or not all(map(_is_plain, example_inputs)) else graphs[0].direct


def _is_plain(value: object) -> bool:
    if not isinstance(value, torch.Tensor):
        return isinstance(value, int | float | torch.SymInt | torch.SymFloat)
    kind = type(value)
    return kind in (torch.Tensor, torch.nn.Parameter) or isinstance(value, torch._subclasses.FakeTensor)

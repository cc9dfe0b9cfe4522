"""Smaller inputs on which a graph is still wrong."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from torch_max_backend.diagnostics.verify.smallest import Compiled, Wrong, wrong_results

log = logging.getLogger("torch_max_backend")

SECONDS = 15.0
"""After so long no other size is tried; each try is a compile."""


def shrunk(wrong: Wrong, compiled: Compiled) -> Wrong:
    """The same graph with sizes that are as small as can be, as long as it is wrong.

    A size is a number that dimensions of inputs have in common, and lists among the arguments of nodes, as those of
    ``expand``. What the ops do not accept then, or what is right, is not taken.
    """
    end = time.monotonic() + SECONDS
    if compiled.dynamic:
        return wrong
    sizes = {n for x in wrong.inputs if isinstance(x, torch.Tensor) for n in x.shape}
    for old in sorted(sizes - {0, 1}, reverse=True):
        for new in _powers_of_two(old):
            if time.monotonic() > end:
                return wrong
            found = _still_wrong(wrong, old, new, compiled)
            if found is not None:
                wrong = found
                break
    return wrong


def _powers_of_two(limit: int) -> Iterator[int]:
    """1, 2, 4, … below ``limit``."""
    new = 1
    while new < limit:
        yield new
        new *= 2


def _still_wrong(wrong: Wrong, old: int, new: int, compiled: Compiled) -> Wrong | None:
    gm = _resized(wrong.gm, old, new)
    inputs = [_cut(x, wrong, old, new) if isinstance(x, torch.Tensor) else x for x in wrong.inputs]
    try:
        found = [w for w in wrong_results(gm, inputs, compiled) if w.result == wrong.result]
    except Exception as error:  # ops refuse sizes in every way
        log.debug("a part of a region does not take %d in place of %d: %s", new, old, error)
        return None
    return found[0] if found else None


def _cut(x: torch.Tensor, wrong: Wrong, old: int, new: int) -> torch.Tensor:
    """``x`` with ``new`` elements along dimensions of size ``old``, around the worst element if that is among them."""
    index: Sequence[int] = wrong.difference.index
    for d in range(x.dim()):
        if x.shape[d] == old:
            at = len(index) - x.dim() + d  # dimensions are counted from the last, as for broadcasting
            start = min(index[at], old - new) if at >= 0 else 0
            x = x.narrow(d, max(0, start), new)
    return x.clone()


def _resized(gm: fx.GraphModule, old: int, new: int) -> fx.GraphModule:
    """A copy of the graph with ``new`` for ``old`` in lists of numbers."""

    def resized(arg: Any) -> Any:
        if isinstance(arg, list | tuple):
            return type(arg)(new if type(a) is int and a == old else resized(a) for a in arg)
        return arg

    graph = fx.Graph()
    output = graph.graph_copy(gm.graph, {})
    for node in graph.nodes:
        node.args = tuple(resized(a) for a in node.args)
    graph.output(output)
    return fx.GraphModule(torch.nn.Module(), graph)

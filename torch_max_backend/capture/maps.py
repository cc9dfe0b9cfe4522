"""``map`` as plain ops on all slices at once, where that takes little memory."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from torch_max_backend.capture.fake_tensors import symbols_of, tensors_of, value_of
from torch_max_backend.capture.inlining import graph_of, higher_order_nodes, inline

MOST = 64 << 20
"""Bytes of everything that all slices compute, above which they are computed one after the other, as eager does."""


def inline_maps(gm: fx.GraphModule) -> None:
    """Replace ``map`` by its graph over all slices, which ``torch.vmap`` makes of it.

    Left alone: graphs with random numbers, writes, higher-order ops or ops that ``vmap`` repeats, no slices or a
    symbolic number of them, and what would take more than :data:`MOST` bytes.
    """
    for node in higher_order_nodes(gm, "map_impl"):
        graph = graph_of(gm, node.args[0])
        xs = tensors_of([value_of(n) for n in node.args[1]])
        if graph is not None and xs and _is_plain(graph) and 0 < _bytes_of_all(graph, xs[0].shape[0]) <= MOST:
            with contextlib.suppress(_NotBatchedError), _batched():
                inline(gm, node, map_slices)


def map_slices(graph: Callable[..., Any], xs: Sequence[torch.Tensor], additional: Sequence[Any]) -> list[torch.Tensor]:
    """What ``graph`` gives for each slice of ``xs`` along dimension 0, stacked."""
    of_all = torch.vmap(lambda *row: tuple(graph(*row, *additional)), in_dims=(0,) * len(xs))
    return list(of_all(*xs))


def _is_plain(graph: fx.GraphModule) -> bool:
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            return False
        if node.op != "call_function" or not isinstance(node.target, OpOverload):
            continue
        if node.target._schema.is_mutable or torch.Tag.nondeterministic_seeded in node.target.tags:
            return False
    results = graph.graph.output_node().args[0]
    return all(isinstance(r, fx.Node) and isinstance(value_of(r), torch.Tensor) for r in results)


def _bytes_of_all(graph: fx.GraphModule, count: int | torch.SymInt) -> int:
    """The bytes of what all slices compute; 0 where sizes are symbolic."""
    values = [value_of(n) for n in graph.graph.nodes if n.op == "call_function"]
    if not isinstance(count, int) or any(map(symbols_of, values)):
        return 0
    return count * sum(math.prod(t.shape) * t.element_size() for v in values for t in tensors_of(v))


class _NotBatchedError(Exception):
    """``vmap`` has no rule for an op."""


@contextlib.contextmanager
def _batched() -> Iterator[None]:
    """Raise where ``vmap`` cannot, or would run an op slice by slice."""
    functorch = torch._C._functorch
    was = functorch._is_vmap_fallback_enabled()
    functorch._set_vmap_fallback_enabled(False)
    try:
        yield
    except Exception as error:  # whatever a batching rule raises; the call path runs the slices then
        raise _NotBatchedError(str(error)) from error
    finally:
        functorch._set_vmap_fallback_enabled(was)

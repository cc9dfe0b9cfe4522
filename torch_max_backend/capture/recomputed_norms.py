"""Norms whose result a backward computes again, from the input and the statistics that it reads anyway.

Min-cut computes again what it knows to be cheap, and a norm reads its input twice. So an activation behind a norm had
the norm's result saved beside the norm's input. Before the cut a result is written out in elementwise ops, which
min-cut knows; in the forward it is the norm's own again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from torch_max_backend.capture.fake_tensors import order_of, tensor_of
from torch_max_backend.capture.fx_nodes import call_node, calls_like, is_getitem
from torch_max_backend.capture.user_controlled_ops import is_taken

aten = torch.ops.aten

NORM = "torch_max_backend_norm"
"""What the last node of a written out norm calls the norm's name in its ``meta``."""


def write_out_norms(gm: fx.GraphModule) -> None:
    """Write the results of norms out in elementwise ops, as ``(x - mean) * rstd * weight + bias``."""
    order = {n: k for k, n in enumerate(gm.graph.nodes)}
    for op, written in _NORMS.items():
        nodes = gm.graph.find_nodes(op="call_function", target=op)
        for node in nodes if not is_taken(op) else ():
            results = {n.args[1]: n for n in node.users if is_getitem(n)}
            if 0 not in results or not tensor_of(results[0]).is_floating_point():
                continue
            with gm.graph.inserting_before(max(results.values(), key=order.__getitem__).next):
                end = written(calls_like(gm, results[0]), node, results)
                wanted = order_of(tensor_of(results[0]))
                if end is not None and order_of(tensor_of(end)) != wanted:
                    end = _contiguous(gm, end, results[0]) if wanted == tuple(range(len(wanted or ()))) else None
            if end is not None:
                end.meta[NORM] = node.name
                results[0].replace_all_uses_with(end)
                gm.graph.erase_node(results[0])
    gm.graph.eliminate_dead_code()


def restore_norms(forward: fx.GraphModule) -> None:
    """Have a forward take the results of norms from the norms."""
    names = {n.name: n for n in forward.graph.nodes}
    for end in list(forward.graph.nodes):
        norm = names.get(end.meta.get(NORM, ""))
        if norm is None:
            continue
        with forward.graph.inserting_after(norm):
            result = forward.graph.call_function(operator.getitem, (norm, 0))
        result.meta = {k: v for k, v in end.meta.items() if k != NORM}
        end.replace_all_uses_with(result)
    forward.graph.eliminate_dead_code()
    forward.recompile()


Call = Callable[..., fx.Node]
"""Adds a node: ``call(op, *args, **kwargs)``."""
Results = Mapping[int, fx.Node]


def _contiguous(gm: fx.GraphModule, node: fx.Node, origin: fx.Node) -> fx.Node:
    return call_node(gm, aten.clone.default, (node,), origin, memory_format=torch.contiguous_format)


def _layer(call: Call, norm: fx.Node, results: Results) -> fx.Node | None:
    x, _, weight, bias, _ = norm.args
    return _applied(call, x, results.get(1), results.get(2), weight, bias, results[0])


def _group(call: Call, norm: fx.Node, results: Results) -> fx.Node | None:
    x, weight, bias, n, channels, _, groups, _ = norm.args
    ones = [1] * (tensor_of(x).dim() - 2)
    if not all(isinstance(size, int) for size in (n, channels)):
        return None

    def of_channels(statistic: fx.Node | None) -> fx.Node | None:
        if statistic is None:
            return None
        wide = call(aten.expand.default, call(aten.unsqueeze.default, statistic, 2), [n, groups, channels // groups])
        return call(aten.view.default, call(aten.clone.default, wide), [n, channels, *ones])

    def vector(v: fx.Node | None) -> fx.Node | None:
        return None if v is None else call(aten.view.default, v, [1, channels, *ones])

    return _applied(
        call, x, of_channels(results.get(1)), of_channels(results.get(2)), vector(weight), vector(bias), results[0]
    )


def _batch(call: Call, norm: fx.Node, results: Results) -> fx.Node | None:
    x, weight, bias, *_ = norm.args
    return _of_channels(call, x, results.get(1), results.get(2), weight, bias, results[0])


def _batch_in_training(call: Call, norm: fx.Node, results: Results) -> fx.Node | None:
    return _batch(call, norm, results) if norm.args[5] is True else None


def _batch_without_running(call: Call, norm: fx.Node, results: Results) -> fx.Node | None:
    return _batch(call, norm, results) if norm.args[3] is True else None


def _batch_by_running(call: Call, norm: fx.Node, results: Results) -> fx.Node | None:
    x, weight, bias, mean, variance, _, eps = norm.args
    rstd = call(aten.rsqrt.default, call(aten.add.Tensor, variance, eps))
    return _of_channels(call, x, mean, rstd, weight, bias, results[0])


def _of_channels(call: Call, x: fx.Node, mean: Any, rstd: Any, weight: Any, bias: Any, like: fx.Node) -> fx.Node | None:
    """A batch norm, whose weight multiplies the statistic."""
    shape = [1, -1, *[1] * (tensor_of(x).dim() - 2)]
    if mean is None or rstd is None:
        return None
    scale = rstd if weight is None else call(aten.mul.Tensor, rstd, weight)
    mean, scale, bias = (None if v is None else call(aten.view.default, v, shape) for v in (mean, scale, bias))
    return _applied(call, x, mean, scale, None, bias, like)


def _applied(
    call: Call, x: fx.Node, mean: fx.Node | None, rstd: fx.Node | None, weight: Any, bias: Any, like: fx.Node
) -> fx.Node | None:
    """``(x - mean) * rstd * weight + bias`` in the dtype of the statistics, rounded to that of ``like``.

    None where the forward keeps no statistics, or such as are rounded themselves.
    """
    if mean is None or rstd is None or tensor_of(rstd).dtype not in (torch.float32, torch.float64):
        return None
    dtype = tensor_of(rstd).dtype
    y = x if tensor_of(x).dtype == dtype else call(aten._to_copy.default, x, dtype=dtype)
    y = call(aten.mul.Tensor, call(aten.sub.Tensor, y, mean), rstd)
    y = y if weight is None else call(aten.mul.Tensor, y, weight)
    y = y if bias is None else call(aten.add.Tensor, y, bias)
    wanted = tensor_of(like).dtype
    return y if tensor_of(y).dtype == wanted else call(aten._to_copy.default, y, dtype=wanted)


_NORMS: dict[Any, Callable[[Call, fx.Node, Results], fx.Node | None]] = {
    aten.native_layer_norm.default: _layer,
    aten.native_group_norm.default: _group,
    aten._native_batch_norm_legit_functional.default: _batch_in_training,
    aten._native_batch_norm_legit.no_stats: _batch_without_running,
    aten._batch_norm_with_update_functional.default: _batch,
    aten._native_batch_norm_legit_no_training.default: _batch_by_running,
}

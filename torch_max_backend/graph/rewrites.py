"""Graph passes between AOTAutograd and the partition, in the order in which they run."""

from __future__ import annotations

import torch
from torch import fx

from torch_max_backend.graph.folding import fold_constants
from torch_max_backend.graph.tensors import order_of, value_of

aten = torch.ops.aten


def rewrite(gm: fx.GraphModule) -> fx.GraphModule:
    """Run all passes."""
    for step in PASSES:
        step(gm)
    gm.graph.lint()
    return gm


def free_random_ops(gm: fx.GraphModule) -> None:
    """Let random ops that only look at a tensor's shape read an empty one, so that they need not wait for it.

    ``bernoulli.p`` and the ``*_like`` ops then run before the first region instead of splitting it.
    """
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target not in _SHAPE_ONLY:
            continue
        like = node.args[0]
        value = value_of(like)
        if not isinstance(like, fx.Node) or order_of(value) is None or _has_symbols(value):
            continue
        with gm.graph.inserting_before(node):
            size, stride = list(value.shape), list(value.stride())  # type: ignore[attr-defined]
            kwargs = {"dtype": value.dtype, "device": value.device}  # type: ignore[attr-defined]
            empty = gm.graph.call_function(aten.empty_strided.default, (size, stride), kwargs)
            empty.meta.update(val=value, stack_trace=node.meta.get("stack_trace"))
        node.replace_input_with(like, empty)


_SHAPE_ONLY = {
    aten.bernoulli.p,
    aten.rand_like.default,
    aten.randn_like.default,
    aten.randint_like.default,
    aten.randint_like.low_dtype,
}


def _has_symbols(value: torch.Tensor) -> bool:
    return any(isinstance(s, torch.SymInt) for s in (*value.shape, *value.stride()))


PASSES = [fold_constants, free_random_ops]

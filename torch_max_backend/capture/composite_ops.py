"""Composite ops that are lowered whole: those of users, and attention on a GPU.

Torch takes a composite op (``aten.linear``) apart while it records gradients, before a decomposition table is asked.
For the length of a trace this is switched off for the composites that are wanted, the way ``torch.export`` does.

Torch takes attention with a mask apart into products of float32 in many cases in which a fused kernel could compute it,
and repeats keys that several heads share.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from torch_max_backend.aten_functions.registry import aten_functions, can_stay_whole


def users_composites() -> list[OpOverload]:
    """Composite overloads that a user registered a lowering of, by name."""
    users = [low.overload for low in aten_functions.of_users()]
    return sorted((op for op in users if isinstance(op, OpOverload) and can_stay_whole(op)), key=str)


OWN_ON_GPUS = (torch.ops.aten.scaled_dot_product_attention.default,)
"""Composites that this backend lowers whole, on a GPU and without gradients."""


def records_gradients(inputs: Sequence[Any]) -> bool:
    """Whether a graph of these inputs is traced with its backward."""
    return torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs)


def lay_masks_in_rows(gm: fx.GraphModule) -> None:
    """Copy the masks of attention on a GPU of which neighbours along a row are not neighbours in memory.

    This is for a graph of Dynamo's that records gradients. A mask that says the same of all keys often has a step of 0
    along them, and torch takes attention with such a mask apart into products of float32.
    """
    for part in (m for m in gm.modules() if isinstance(m, fx.GraphModule)):
        found = [n for n in part.graph.nodes if n.target is torch.nn.functional.scaled_dot_product_attention]
        if sum(_lay_in_rows(node) for node in found):
            part.recompile()


def _lay_in_rows(node: fx.Node) -> bool:
    mask = node.kwargs.get("attn_mask", node.args[3] if len(node.args) > 3 else None)
    value = mask.meta.get("example_value") if isinstance(mask, fx.Node) else None
    if not isinstance(value, torch.Tensor) or not value.is_cuda or not value.dim():
        return False
    if not isinstance(value.shape[-1], int) or value.shape[-1] == 1 or value.stride(-1) == 1:
        return False
    assert isinstance(mask, fx.Node)
    with node.graph.inserting_before(node):
        copied = node.graph.call_method("contiguous", (mask,))
    copied.meta["example_value"] = value.contiguous()
    node.replace_input_with(mask, copied)
    return True


def stay_whole(inputs: Sequence[Any]) -> AbstractContextManager[None]:
    """Keep torch from taking apart the composites that a user lowers, while AOTAutograd traces inside the block.

    Where the graph records gradients they are taken apart, with a warning: torch knows derivatives of the parts alone.
    """
    records = records_gradients(inputs)
    composites = users_composites()
    if composites and records:
        names = ", ".join(map(str, composites))
        warnings.warn(
            f"your lowering of {names} is not used in a graph that records gradients: torch has derivatives only of "
            "the ops that a composite op consists of. Call the function under torch.no_grad(), or lower these ops.",
            stacklevel=2,
        )
    if any(isinstance(x, torch.Tensor) and x.is_cuda for x in inputs):
        composites += [op for op in OWN_ON_GPUS if op not in composites]
    if records or not composites:
        return nullcontext()
    return _keeping(composites)


@contextmanager
def _keeping(composites: Sequence[OpOverload]) -> Iterator[None]:
    from torch._subclasses.fake_impls import register_op_impl
    from torch.export.exported_program import _override_composite_implicit_decomp

    if not torch.cuda.is_available():
        for op in set(OWN_ON_GPUS).intersection(composites):
            register_op_impl(op)(_attention_on_absent_gpu)  # torch removes it at the end of the block below
    with _override_composite_implicit_decomp(dict.fromkeys(composites, _whole)):
        yield


def _attention_on_absent_gpu(mode: Any, op: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    """The result of attention, laid out as by torch's fused kernels: it would not ask them where there is no GPU.

    Heads lie behind positions, so that what becomes of them is a view. In float64 there is no fused kernel.
    """
    *outer, length, _ = query.shape
    if len(outer) != 2 or query.dtype == torch.float64:
        return query.new_empty((*outer, length, value.shape[-1]))
    batch, heads = outer
    return query.new_empty((batch, length, heads, value.shape[-1])).transpose(1, 2)


def _whole(*args: Any, **kwargs: Any) -> Any:
    """What torch asks of an op that shall not be taken apart."""
    return NotImplemented

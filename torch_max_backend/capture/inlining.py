"""Nodes that are replaced by what a function makes of their arguments: higher-order ops, which hold graphs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import HigherOrderOperator
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import _disable_current_modes

from torch_max_backend.capture.decompositions import decomposition_table
from torch_max_backend.capture.fake_tensors import order_of, tensors_of, value_of
from torch_max_backend.capture.fx_nodes import is_getitem, map_nodes, source_of
from torch_max_backend.capture.user_controlled_ops import names_for_torch

NOT_INLINED = "torch_max_backend_not_inlined"
"""What the ``meta`` of a higher-order node calls the reason why it is left to torch."""


def higher_order_nodes(gm: fx.GraphModule, *names: str) -> list[fx.Node]:
    """The nodes of higher-order ops of these names."""
    return [n for n in gm.graph.nodes if name_of(n) in names]


def name_of(node: fx.Node) -> str:
    """The name of a node's higher-order op; empty for other nodes."""
    return node.target.name() if isinstance(node.target, HigherOrderOperator) else ""


def graph_of(gm: fx.GraphModule | None, arg: object) -> fx.GraphModule | None:
    """The graph that an argument names, if it names one."""
    found = getattr(gm, str(arg.target), None) if isinstance(arg, fx.Node) and arg.op == "get_attr" else None
    return found if isinstance(found, fx.GraphModule) else None


def inline(
    gm: fx.GraphModule,
    node: fx.Node,
    function: Callable[..., Any],
    rules: Mapping[Any, Callable[..., Any]] = MappingProxyType({}),
) -> None:
    """Put the ATen ops of ``function`` in the place of ``node``.

    Args:
        function: Gets the node's arguments: fake tensors, numbers, and graphs as functions. Gives what the node gives,
            which is then laid out as the node promises.
        rules: Decompositions beside those of every graph.
    """
    inputs = [n for n in node.all_input_nodes if graph_of(gm, n) is None]
    promised = value_of(node)

    def call(*values: Any) -> Any:
        known = dict(zip(inputs, values, strict=True))
        args = map_nodes(node.args, lambda n: known[n] if n in known else graph_of(gm, n))
        return _laid_out(function(*args), promised)

    with nothing_else_active(), tensors_of(promised)[0].fake_mode, enable_python_dispatcher():
        table = decomposition_table(names_for_torch()) | dict(rules)
        traced = make_fx(call, decomposition_table=table)(*map(value_of, inputs))
    traced.graph.eliminate_dead_code()
    copies = dict(zip(traced.graph.find_nodes(op="placeholder"), inputs, strict=True))
    with gm.graph.inserting_before(node):
        for inner in traced.graph.nodes:
            if inner.op == "get_attr":
                name = f"_of_{node.name}_{inner.target}"
                setattr(gm, name, getattr(traced, inner.target))
                copies[inner] = gm.graph.get_attr(name)
                copies[inner].meta.update(inner.meta)
            elif inner.op == "call_function":
                copies[inner] = gm.graph.node_copy(inner, copies.__getitem__)
                copies[inner].meta.update({"stack_trace": None, **source_of(node)})
    _hand_over(gm, node, map_nodes(traced.graph.output_node().args[0], copies.__getitem__))


def _hand_over(gm: fx.GraphModule, node: fx.Node, value: Any) -> None:
    if isinstance(value, fx.Node):
        node.replace_all_uses_with(value)
    else:
        for user in list(node.users):
            assert is_getitem(user), f"{user} reads all results of {node}"
            _hand_over(gm, user, value[user.args[1]])
    gm.graph.erase_node(node)


def _laid_out(value: Any, promised: Any) -> Any:
    """``value`` with the promised data types and the promised order in memory."""
    if isinstance(value, list | tuple):
        return tuple(map(_laid_out, value, promised))
    if not isinstance(value, torch.Tensor) or not isinstance(promised, torch.Tensor):
        return value
    order = order_of(promised) or tuple(range(promised.dim()))
    whole = value.to(promised.dtype).permute(order).contiguous()
    return whole.permute([order.index(d) for d in range(len(order))])


@contextlib.contextmanager
def nothing_else_active() -> Iterator[None]:
    """No mode, gradient, autocast or inference mode of the caller."""
    autocast = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(
        torch._C.DispatchKey.AutocastCUDA
    )
    with (
        _disable_current_modes(),
        torch.inference_mode(False),
        torch.no_grad(),
        torch._C._ExcludeDispatchKeyGuard(autocast),
    ):
        yield

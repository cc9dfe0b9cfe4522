"""Who runs a node: MAX, torch by design, torch as an island, or nobody because it is host arithmetic on sizes."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload

from torch_max_backend.aten_functions.registry import aten_functions
from torch_max_backend.aten_functions.support.dtypes import TO_MAX
from torch_max_backend.aten_functions.torch_executed.collectives import COLLECTIVES
from torch_max_backend.base.dtypes import FLOAT8
from torch_max_backend.capture.device_copies import BETWEEN_DEVICES
from torch_max_backend.capture.fake_tensors import expr_of, is_plain, symbols_of, tensors_of, value_of
from torch_max_backend.capture.fx_nodes import is_getitem, map_nodes
from torch_max_backend.capture.user_controlled_ops import is_named
from torch_max_backend.capture.view_ops import VIEWS_OF_SIZES
from torch_max_backend.partition.control_flow import REASON, why_no_control_flow
from torch_max_backend.runtime.frozen import Frozen


class Runner(enum.Enum):
    """Who runs a node."""

    MAX = "max"
    TORCH = "torch"
    ISLAND = "island"
    HOST = "host"
    STORE = "store"


@dataclass(frozen=True)
class Verdict:
    """The runner of a node, and why torch runs it: for an island the limit that was hit.

    The reason of a node in a region is why it may only be in a program.
    """

    runner: Runner
    reason: str = ""


MayHaveLoops = Callable[[fx.Node], bool]
"""Whether a program can be tried for a node that MAX's graph compiler cannot run."""


def classify(
    node: fx.Node,
    refused: Mapping[fx.Node, str],
    torch_executed: Collection[str],
    may_have_loops: MayHaveLoops = lambda node: False,
) -> Verdict:
    """Decide who runs ``node``.

    Args:
        refused: Nodes that a lowering declined while a graph was built, with the limit.
        torch_executed: Op names that the user wants torch to run.
    """
    value = value_of(node)
    if is_getitem(node):
        return classify(node.args[0], refused, torch_executed, may_have_loops)
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) and not _reads_tensor_data(node):
        return Verdict(Runner.HOST)
    target = node.target
    if target is torch.ops.aten.copy_.default and _is_placeholder(node.args[0]):
        return Verdict(Runner.STORE)
    if target in COLLECTIVES:
        in_program = node not in refused and may_have_loops(node) and not _why_not(node)
        return Verdict(Runner.MAX if in_program else Runner.TORCH, aten_functions.torch_ops[target])
    if node in refused:
        return Verdict(Runner.ISLAND, refused[node])
    if isinstance(target, HigherOrderOperator | Frozen):
        return _of_higher_order(node, target)
    if not isinstance(target, OpOverload):
        return Verdict(Runner.ISLAND, "not an ATen op")
    if is_named(target, torch_executed):
        return Verdict(Runner.ISLAND, "listed in torch_executed_ops")
    if node.meta.get(BETWEEN_DEVICES):
        return Verdict(Runner.TORCH, "a copy to another device")
    if target in aten_functions.torch_ops:
        return Verdict(Runner.TORCH, aten_functions.torch_ops[target])
    if target in aten_functions.islands:
        return Verdict(Runner.ISLAND, aten_functions.islands[target])
    reason = _why_not(node)
    if not reason:
        limit = _limit_of_dtypes(node) or _limit_of_lowering(node, target)
        if not limit or may_have_loops(node):
            return Verdict(Runner.MAX, limit)
        reason = limit
    return Verdict(Runner.ISLAND, reason)


def _of_higher_order(node: fx.Node, target: HigherOrderOperator | Frozen) -> Verdict:
    if isinstance(target, Frozen):
        return Verdict(Runner.TORCH, "computed once from the parameters, which are frozen")
    checkpointed = _checkpointed(node, target)
    if checkpointed in aten_functions.torch_ops:
        return Verdict(Runner.TORCH, aten_functions.torch_ops[checkpointed])
    reason = why_no_control_flow(node)
    return Verdict(Runner.ISLAND, reason) if reason else Verdict(Runner.TORCH, REASON)


def as_run_by_torch(target: Any) -> Any:
    """What torch runs for a node's target: for a view, a reshape.

    A view was traced with the strides of fake tensors, and some ops give others: a batch norm on a CPU makes transposed
    images contiguous, where its fake result keeps their strides.
    """
    return torch.ops.aten.reshape.default if target in VIEWS_OF_SIZES else target


def _checkpointed(node: fx.Node, target: HigherOrderOperator) -> object:
    """The op, mostly a random one, that checkpointing runs and later runs again with the generator's old state."""
    if target.name() in ("run_and_save_rng_state", "graphsafe_run_with_rng_state"):
        return node.args[0]
    return node.args[1] if target.name() == "run_with_rng_state" else None


def _why_not(node: fx.Node) -> str:
    """Why no region can have a node."""
    values = [value_of(node), *(value_of(n) for n in node.all_input_nodes)]
    for tensor in (t for v in values for t in tensors_of(v)):
        if not is_plain(tensor):
            return f"a {tensor.layout} tensor{' with a lazy conj or neg bit' if tensor.layout is torch.strided else ''}"
        if tensor.dtype not in TO_MAX and tensor.dtype not in FLOAT8:
            return f"MAX has no dtype for {tensor.dtype}"
        if tensor.device.type not in ("cpu", "cuda"):
            return f"MAX has no device for {tensor.device}"
    symbols = symbols_of(values[0])
    if symbols and symbols - set().union(*(symbols_of(v) for v in values[1:])):
        return "the size of its result depends on data"
    return ""


def _limit_of_dtypes(node: fx.Node) -> str:
    """Why MAX's graph compiler cannot run a node whose tensors a program may have."""
    values = [value_of(node), *(value_of(n) for n in node.all_input_nodes)]
    found = next((t.dtype for v in values for t in tensors_of(v) if t.dtype not in TO_MAX), None)
    return f"MAX has no dtype for {found}" if found is not None else ""


def _limit_of_lowering(node: fx.Node, target: OpOverload) -> str:
    """Why MAX's graph compiler cannot run a node."""
    lowering = aten_functions.get(target)
    if lowering is None:
        return "no lowering is registered for it"
    if lowering.supports is None:
        return ""
    args = map_nodes(node.args, concrete)
    kwargs = {k: map_nodes(v, concrete) for k, v in node.kwargs.items()}
    return lowering.supports(*args, **kwargs) or ""


def concrete(node: fx.Node) -> object:
    """The value of a node; a size that has been specialised as the int it is."""
    value = value_of(node)
    return int(value) if isinstance(value, torch.SymInt) and expr_of(value).is_number else value


def _reads_tensor_data(node: fx.Node) -> bool:
    """Whether a size-valued node reads a tensor's contents (``item``), and not only its shape."""
    target = node.target
    if not isinstance(target, OpOverload):
        return node.op == "call_function" and any(tensors_of(value_of(n)) for n in node.all_input_nodes)
    return target.overloadpacket not in (
        torch.ops.aten.sym_size,
        torch.ops.aten.sym_stride,
        torch.ops.aten.sym_numel,
        torch.ops.aten.sym_storage_offset,
    ) and any(tensors_of(value_of(n)) for n in node.all_input_nodes)


def _is_placeholder(arg: object) -> bool:
    return isinstance(arg, fx.Node) and arg.op == "placeholder"

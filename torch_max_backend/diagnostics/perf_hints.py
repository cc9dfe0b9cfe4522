"""What slows a graph down and can be changed in the program, said when it is compiled: ``TORCH_LOGS=max_perf_hints``.

Here are hints that need the graph; ``function_hints`` has those about the function, and places that know a limit say it
themselves (``base.torch_logs.show``). Where nobody reads hints, nothing is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import fx

from torch_max_backend.base.torch_logs import PERF_HINTS, is_wanted, show
from torch_max_backend.capture.fake_tensors import order_of, user_line, value_of
from torch_max_backend.diagnostics.function_hints import described
from torch_max_backend.partition.partitioner import Plan
from torch_max_backend.partition.region import Region

aten = torch.ops.aten
PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default, aten.convolution.default)


def hint_at_graph(gm: fx.GraphModule, plan: Plan, is_program: Callable[[int], bool]) -> None:
    """Say what slows a graph down that was cut into regions."""
    if not is_wanted(PERF_HINTS):
        return
    hints = [*_islands(plan), *_copies(plan, is_program), *_waits(gm), *_precision(gm)]
    if hints:
        show(PERF_HINTS, "%s", "\n".join(hints))


def _islands(plan: Plan) -> Iterator[str]:
    counts: dict[tuple[str, str], list[str]] = {}
    for island in plan.islands:
        counts.setdefault((island.op, island.reason), []).append(island.where)
    for (op, reason), where in counts.items():
        place = f" (first at {where[0]})" if where[0] else ""
        yield f"op ran in torch: {len(where)} x {op}{place}: {reason}. Nothing is fused across it"


def _copies(plan: Plan, is_program: Callable[[int], bool]) -> Iterator[str]:
    """Inputs of MAX graphs that are not dense, and writes into inputs that no region does."""
    for k, region in enumerate(plan.regions):
        for port in () if is_program(k) else region.inputs:
            if order_of(port.value) is None:
                text = f"input copied: {port.node} is {described(port.value)}, which is not dense, and is read by a"
                yield f"{text} MAX graph{_place(region)}: each call copies it. Hand over a contiguous tensor"
    for node in plan.copies:
        where = f" (at {user_line(node)})" if user_line(node) else ""
        yield f"result copied: torch writes {node.args[1]} into the argument {node.args[0]} after the regions{where}"


def _place(region: Region) -> str:
    where = region.begins_at()
    return f" (from {where})" if where else ""


def _waits(gm: fx.GraphModule) -> Iterator[str]:
    for node in gm.graph.find_nodes(op="call_function", target=aten._local_scalar_dense.default):
        if isinstance(node.args[0], fx.Node) and _device_of(node.args[0]) == "cuda":
            where = f" at {user_line(node)}" if user_line(node) else ""
            yield f"host waits: a number is read from the GPU{where}, so that the host waits for all that is before it"


def _precision(gm: fx.GraphModule) -> Iterator[str]:
    if torch.get_float32_matmul_precision() != "highest":
        return
    products = [n for op in PRODUCTS for n in gm.graph.find_nodes(op="call_function", target=op)]
    count = sum(_device_of(n) == "cuda" and _dtype_of(n) is torch.float32 for n in products)
    if count:
        yield (
            f"float32 products: {count} on the GPU are computed without tensor cores; "
            'torch.set_float32_matmul_precision("high") allows TF32, which has 10 bits of mantissa'
        )


def _device_of(node: fx.Node) -> str:
    value = value_of(node)
    return value.device.type if isinstance(value, torch.Tensor) else ""


def _dtype_of(node: fx.Node) -> torch.dtype | None:
    value = value_of(node)
    return value.dtype if isinstance(value, torch.Tensor) else None

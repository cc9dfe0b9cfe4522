"""The front door: ``torch.compile(model, backend="max_backend")`` arrives here.

Where AOTAutograd has kept the graph, nothing behind this module is needed, so what compiles is imported on first use.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd

from torch_max_backend.base.versions import check_this_environment
from torch_max_backend.base.waiting import SOON_S, waiting
from torch_max_backend.capture.composite_ops import lay_masks_in_rows, records_gradients, stay_whole
from torch_max_backend.capture.whole_image_ops import image_ops_stay_whole
from torch_max_backend.diagnostics import logs
from torch_max_backend.diagnostics.function_hints import hint_at_function
from torch_max_backend.diagnostics.minifier import backward_for_minifier, is_after_aot, ready_for_minifier
from torch_max_backend.frontend.direct_call import direct_call, graphs_of_a_trace
from torch_max_backend.frontend.warm_start import is_ahead_of_time, warm_start
from torch_max_backend.options import Options, resolve


def max_backend(
    gm: fx.GraphModule,
    example_inputs: list[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a Dynamo graph with MAX.

    Args:
        gm: The graph that Dynamo captured.
        example_inputs: Its inputs, as fake or real tensors and numbers.
        mode: ``torch.compile``'s mode: default, reduce-overhead, max-autotune or max-autotune-no-cudagraphs.
        options: See :class:`torch_max_backend.options.Options`.

    Returns:
        A function with the graph's signature.

    Raises:
        OptionError: An unknown option or mode.
        EnvironmentUnsupportedError: A tensor is on a device that this backend cannot drive, or a version is missing.
        UnsupportedOpError: With ``fallback="error"``, an op that MAX cannot run.
    """
    check_this_environment()
    chosen = resolve(options, mode)
    if is_ahead_of_time():
        chosen = dataclasses.replace(chosen, compile="wait")
    logs.configure(chosen)
    hint_at_function(gm, example_inputs)
    devices = {value.device for value in example_inputs if isinstance(value, torch.Tensor)}
    _check_devices(devices, chosen)
    trace = functools.partial(_trace, options=chosen, devices=devices)
    if chosen.compile == "background" and chosen.fallback != "error":  # which promises to raise here
        from torch_max_backend.frontend.background_tracing import TracedLater, can_trace_later

        if can_trace_later(gm, example_inputs):
            return TracedLater(gm, trace)
    return trace(gm, example_inputs)


def _trace(
    gm: fx.GraphModule, example_inputs: list[Any], *, options: Options, devices: set[torch.device]
) -> Callable[..., Any]:
    """Have AOTAutograd trace the graph, or find what it made of it in another process."""
    compiler = _compiler(options)
    if is_after_aot():
        from torch_max_backend.frontend.after_aot import under_minifier

        compiler = under_minifier(compiler, options)
    if records_gradients(example_inputs):
        lay_masks_in_rows(gm)
    common = {
        "decompositions": _Decompositions(options.torch_executed_ops),
        "partition_fn": functools.partial(_cut, options.torch_executed_ops),
        "keep_inference_input_mutations": True,
    }
    kept = warm_start(options, devices)
    whole = nullcontext() if options.executor == "graph" else image_ops_stay_whole()
    compilers = {"fw_compiler": compiler} if kept is None else kept.compilers(compiler)
    settings = nullcontext() if kept is None else kept.settings()
    with (
        graphs_of_a_trace() as graphs,
        settings,
        whole,
        stay_whole(example_inputs),
        backward_for_minifier(),
        waiting("PyTorch traces a function", after=SOON_S),
    ):
        function = aot_autograd(**compilers, **common)(gm, example_inputs)
    if kept is not None and is_ahead_of_time():
        from torch_max_backend.frontend.ahead_of_time import AheadOfTimeFunction

        return AheadOfTimeFunction.of(function)
    direct = None if is_after_aot() else direct_call(gm, example_inputs, graphs)
    return ready_for_minifier(direct or function)


def _cut(torch_executed_ops: tuple[str, ...], *args: Any, **how: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    from torch_max_backend.capture.joint_graph import partition
    from torch_max_backend.capture.user_controlled_ops import left_to_torch

    with left_to_torch(torch_executed_ops):
        return partition(*args, **how)


def _compiler(options: Options) -> Callable[..., Any]:
    def compile_graph(gm: fx.GraphModule, example_inputs: list[Any]) -> Any:
        from torch_max_backend.frontend import pipeline

        with waiting(f"Lowering a graph of {len(gm.graph.nodes)} nodes", after=SOON_S):
            return pipeline.compile_graph(gm, example_inputs, options=options)

    return compile_graph


def _check_devices(devices: set[torch.device], options: Options) -> None:
    if any(device.type != "cpu" for device in devices):
        from torch_max_backend.runtime.session import check_device, choose_memory_share

        choose_memory_share(options.gpu_memory_share, options.device_graphs)
        for device in devices:
            check_device(device)


class _Decompositions(Mapping[Any, Any]):
    """The decomposition table, made when AOTAutograd traces: it depends on every lowering there is."""

    def __init__(self, left_whole: tuple[str, ...]) -> None:
        self.left_whole = left_whole

    @functools.cached_property
    def table(self) -> dict[Any, Any]:
        """The table itself."""
        from torch_max_backend.capture.decompositions import decomposition_table

        return decomposition_table(self.left_whole)

    def __getitem__(self, op: Any) -> Any:
        return self.table[op]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.table)

    def __len__(self) -> int:
        return len(self.table)

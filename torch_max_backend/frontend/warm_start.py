"""Warm starts: AOTAutograd keeps what this backend made of a graph, and another process takes it from there.

Torch's cache (``TORCHINDUCTOR_CACHE_DIR``) has the graph's call path and the keys of its regions; the regions
themselves are in the store. Everything used here is private to torch. Where a part of it is missing, or the user
switched that cache off, graphs are traced in every process and only the regions are reused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any

import torch

from torch_max_backend.aten_functions.registry import aten_functions
from torch_max_backend.base.digests import cpu_target, digest, kernels_digest, package_digest, package_version
from torch_max_backend.base.errors import EnvironmentUnsupportedError
from torch_max_backend.base.target import elsewhere
from torch_max_backend.base.torch_logs import needs_traces
from torch_max_backend.capture import onednn_products
from torch_max_backend.diagnostics.minifier import is_after_aot
from torch_max_backend.frontend.cache_key import light_cache_key
from torch_max_backend.options import Options

log = logging.getLogger("torch_max_backend")

FORMAT = "1"
_NO_CODE = (
    "verbose",
    "compile",
    "compile_workers",
    "cache_dir",
    "cache_limit",
    "device_graphs",
    "gpu_memory_share",
    "memory_budget",
    "repro_dir",
)
"""Options that change nothing in what is compiled. A graph whose regions another folder lacks is traced again."""

options_of_call: ContextVar[Options | None] = ContextVar("torch_max_backend_options_of_call", default=None)
"""The options of the call that loads a kept graph: another mode may have kept it."""

graphs_of_trace: ContextVar[list[Any] | None] = ContextVar("torch_max_backend_graphs_of_trace", default=None)
"""Where each graph that is made or loaded while AOTAutograd traces notes itself."""

try:
    from torch._functorch import config as _functorch_config
    from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
    from torch._inductor.output_code import OutputCode
    from torch.compiler import config as _compiler_config

    _missing = [
        name
        for module, name in [
            (_functorch_config, "bundled_autograd_cache"),
            (_functorch_config, "enable_autograd_cache"),
            (_compiler_config, "cache_key_tag"),
        ]
        if not hasattr(module, name)
    ]
except ImportError as _error:
    _missing = [str(_error)]


def tag_of(options: Options, devices: set[torch.device]) -> str | None:
    """A digest of what decides, besides the graph, what is made of it; ``None`` where that cannot be told."""
    user = _user_lowerings()
    if user is None:
        return None
    parts = [
        FORMAT,
        package_digest(),
        kernels_digest(),
        package_version("max"),
        package_version("mojo-compiler"),
        cpu_target(),
        torch.get_float32_matmul_precision(),
        f"{torch.backends.cudnn.allow_tf32} {torch.backends.cudnn.deterministic}",
        f"{torch.are_deterministic_algorithms_enabled()}",
        f"{torch.backends.mkldnn.enabled} {onednn_products.is_faster()}",
        user,
    ]
    if any(d.type == "cuda" for d in devices):
        from torch_max_backend.runtime.session import target_for

        parts.append(target_for(devices)[1])
    values = dataclasses.asdict(options)
    parts += [f"{name}={values[name]!r}" for name in sorted(values) if name not in _NO_CODE]
    return digest("\n".join(parts))


def _user_lowerings() -> str | None:
    """The sources of the lowerings that users registered; ``None`` if one has none that another process could read."""
    sources = []
    for lowering in aten_functions.of_users():
        try:
            sources.append(f"{lowering.overload}:{inspect.getsource(lowering.function)}")
        except (OSError, TypeError):
            log.info(
                "graphs are traced again in other processes: the lowering of %s has no source file", lowering.overload
            )
            return None
    return "\n".join(sorted(sources))


def reason_against(options: Options) -> str:
    """Why AOTAutograd's cache cannot be used; empty if it can."""
    if not options.cache:
        return "the option cache is off"
    if options.verify:
        return "the option verify is on, which needs the graph"
    if is_after_aot():
        return "the minifier is on, which needs the graph"
    if _missing:
        return f"this version of torch lacks {', '.join(_missing)}"
    if elsewhere() is not None:
        return "it is compiled for another machine"
    if needs_traces():
        return "what is logged needs the graph"
    return ""


class WarmStart:
    """What AOTAutograd needs to keep the graphs of one call of the backend."""

    def __init__(self, tag: str, options: Options) -> None:
        self.tag, self.options = tag, options

    def compilers(self, compile_graph: Callable[..., Any]) -> dict[str, Any]:
        """The compilers for :func:`aot_autograd`, marked as making something that can be kept."""

        def backward(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
            graph = compile_graph(gm, example_inputs)
            if not _functorch_config.bundled_autograd_cache:  # in the first backward, long after `settings` ended
                _keep_next(graph)
            return graph

        forward = SerializableAOTDispatchCompiler(OutputCode, compile_graph)
        return {
            "fw_compiler": forward,
            "inference_compiler": SerializableAOTDispatchCompiler(OutputCode, compile_graph),
            "bw_compiler": SerializableAOTDispatchCompiler(OutputCode, backward),
        }

    @contextlib.contextmanager
    def settings(self) -> Iterator[None]:
        """Torch's settings while it looks up and saves: whole graphs are kept, and our tag is part of their key."""
        tag = f"{_compiler_config.cache_key_tag}max_backend:{self.tag}"
        wanted = {"bundled_autograd_cache": True}
        if is_ahead_of_time():  # AOTAutograd makes no entry otherwise
            wanted["enable_autograd_cache"] = True
        token = options_of_call.set(self.options)
        try:
            with _compiler_config.patch(cache_key_tag=tag), _functorch_config.patch(wanted), light_cache_key():
                yield
        finally:
            options_of_call.reset(token)


def _keep_next(graph: Any) -> None:
    """Have AOTAutograd save the entry that it makes right after the compiler of the backward returns.

    It asks a setting whether entries hold whole graphs. So the setting is on from here until the entry is made, which
    ends in ``prepare_for_serialization``, or until the graph is called if no entry is made.
    """
    stack = ExitStack()
    stack.enter_context(_functorch_config.patch(bundled_autograd_cache=True))
    call = graph.call

    def first_call(args: list[Any]) -> Any:
        end()
        return graph.call(args)

    def end() -> None:
        stack.close()
        graph.before_saving = None
        if graph.call is first_call:
            graph.call = call

    graph.call, graph.before_saving = first_call, end


def is_ahead_of_time() -> bool:
    """Whether torch compiles a function now in order to save it."""
    names = ("bypass_autograd_cache_key", "bundled_autograd_cache", "force_non_lazy_backward_lowering")
    return all(getattr(torch._functorch.config, name, False) for name in names)


def warm_start(options: Options, devices: set[torch.device]) -> WarmStart | None:
    """How graphs are kept in AOTAutograd's cache; ``None``, and a line in the log, if they are not.

    Raises:
        EnvironmentUnsupportedError: A function is to be saved, and this torch lacks what that needs.
    """
    if is_ahead_of_time():
        if _missing:
            lacking = ", ".join(_missing)
            raise EnvironmentUnsupportedError(f"this torch cannot save compiled functions: it lacks {lacking}")
        return WarmStart("ahead of time", options)
    reason = reason_against(options)
    if reason:
        log.debug("graphs are traced in every process: %s", reason)
        return None
    tag = tag_of(options, devices)
    return None if tag is None else WarmStart(tag, options)

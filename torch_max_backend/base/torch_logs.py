"""The names by which torch's own logging knows this package, for ``TORCH_LOGS`` and ``torch._logging.set_logs``.

Torch loads the entry point :func:`register` at the end of ``import torch``, so this module imports little. It
registers ``base/cache_artifacts.py`` as well. Artifacts
are off unless they are named. What the package logs otherwise goes to its own logger, ``torch_max_backend``, which is
the application's to configure; ``diagnostics/logs.py`` gives it to torch where torch is asked for it.
"""

from __future__ import annotations

import logging

from torch_max_backend.base import cache_artifacts

COMPONENT = "max_backend"
"""The name of the package's log in ``TORCH_LOGS``: ``TORCH_LOGS="+max_backend"``."""

TORCH_LOGGER = "torch.max_backend"
"""The logger that torch configures for it."""

LOOPS, SCHEDULE, KERNELS = "max_backend_loops", "max_backend_schedule", "max_backend_kernels"
CACHE, ISLANDS, PERF_HINTS = "max_backend_cache", "max_backend_islands", "max_backend_perf_hints"

ARTIFACTS = {
    LOOPS: "Every program of max_backend as loops: a line a tensor",
    SCHEDULE: "Which loops of a program share a kernel, in which order and in what vectors they run",
    KERNELS: "The Mojo source of a program's kernels, and the Python function that calls them",
    CACHE: "Every lookup of a compiled region by max_backend: a hit, or a miss and why",
    ISLANDS: "Every op that torch runs between max_backend's regions, with the reason and the line",
    PERF_HINTS: "What slows a function down and can be changed in it: recompiles, graph breaks, copies, islands",
}
"""Names of artifacts, and what torch says of them in ``TORCH_LOGS=+help``; each has a shorter name as well."""

OF_A_TRACE = (LOOPS, SCHEDULE, KERNELS, PERF_HINTS)
"""Artifacts that a graph from AOTAutograd's cache does not have."""


def short(name: str) -> str:
    """The shorter name of an artifact: ``max_kernels``."""
    return name.replace("max_backend_", "max_")


def register() -> None:
    """Tell torch the names, once. It reads ``TORCH_LOGS`` after this (2.15), or has read it already (2.11)."""
    from torch._logging import _internal as torch_logging

    cache_artifacts.register()
    if COMPONENT in torch_logging.log_registry.log_alias_to_log_qnames:
        return
    for name in (COMPONENT, "torch_max_backend"):  # the package's name would have torch import every module of it
        torch_logging.register_log(name, TORCH_LOGGER)
    for name, meaning in ARTIFACTS.items():
        torch_logging.register_artifact(name, meaning, off_by_default=True)
        torch_logging.register_artifact(short(name), f"The same as {name}", off_by_default=True)


def artifact(name: str) -> logging.Logger:
    """The logger of an artifact, by the name that is asked for; its level is ``DEBUG`` if the artifact is on."""
    from torch._logging import getArtifactLogger

    register()  # torch may have been told to load no entry points
    own, other = (getArtifactLogger(TORCH_LOGGER, n) for n in (name, short(name)))
    return other if other.level == logging.DEBUG and own.level != logging.DEBUG else own


def needs_traces() -> bool:
    """Whether an artifact is on that only a traced graph has."""
    return any(artifact(name).level == logging.DEBUG for name in OF_A_TRACE)


def is_wanted(name: str) -> bool:
    """Whether somebody reads an artifact: it is on, or torch writes a structured trace."""
    from torch._logging._internal import trace_log

    return bool(trace_log.handlers) or artifact(name).level == logging.DEBUG


def show(name: str, text: str, *args: object) -> None:
    """Print an artifact where it is on, and make it a page of torch's structured trace (``TORCH_TRACE``).

    Args:
        text: A format for ``args``, as in ``logging``.
    """
    artifact(name).debug(text, *args)
    add_page(name, text, *args)


def add_page(name: str, text: str, *args: object) -> None:
    """Make a text a page of torch's structured trace, which ``tlparse`` shows beside torch's own of the same graph."""
    from torch._logging import trace_structured

    def page() -> str:
        return text % args if args else text

    metadata = {"name": name, "encoding": "string"}
    trace_structured("artifact", metadata_fn=lambda: metadata, payload_fn=page, expect_trace_id=False)

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

ARTIFACTS = {
    LOOPS: "Every program of max_backend as loops: a line a tensor",
    SCHEDULE: "Which loops of a program share a kernel, in which order and in what vectors they run",
    KERNELS: "The Mojo source of a program's kernels, and the Python function that calls them",
}
"""Names of artifacts, and what torch says of them in ``TORCH_LOGS=+help``."""


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


def artifact(name: str) -> logging.Logger:
    """The logger of an artifact; its level is ``DEBUG`` if the artifact is on."""
    from torch._logging import getArtifactLogger

    register()  # torch may have been told to load no entry points
    return getArtifactLogger(TORCH_LOGGER, name)


def any_artifact() -> bool:
    """Whether an artifact is on."""
    return any(artifact(name).level == logging.DEBUG for name in ARTIFACTS)

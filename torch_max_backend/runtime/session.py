"""The process-wide MAX session and what devices it has.

The session is the engine's own: ``max.engine`` around it imports MAX's graph library, which takes half a second and is
needed only where something is compiled.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from pathlib import Path

import torch
from max import driver
from max._core.engine import InferenceSession, Model, read

from torch_max_backend.base.digests import cpu_target
from torch_max_backend.base.errors import EnvironmentUnsupportedError
from torch_max_backend.base.target import Target, elsewhere

POOL_PERCENT = "MODULAR_DEVICE_CONTEXT_MEMORY_MANAGER_SIZE_PERCENT"
"""MAX's variable for the share of a GPU's memory that its pool may have; read when a GPU is opened."""
POOL_SIZE = "MODULAR_DEVICE_CONTEXT_MEMORY_MANAGER_SIZE"
"""MAX's variable for the pool's size in bytes; 0 is no pool."""
SHARE, SHARE_WITH_RECORDINGS = 60, 25
"""Percent. A pool grows on demand up to its share, and keeps what it had. Beyond it the driver allocates, and waits for
the GPU whenever memory is given back. The first device graph that is recorded makes MAX reserve all of its share."""

CHOSEN = "TMB_CHOSEN_SHARE_OF_MEMORY"
"""Our variable beside it: the share where this package chose it, and not the user, for processes that inherit both."""

log = logging.getLogger("torch_max_backend")

_lock = threading.Lock()
_session: InferenceSession | None = None
_share = SHARE
_unheard: set[tuple[int, bool]] = set()
"""Shares that came too late, and whether they were for recordings: told when MAX's pool is first used."""


@functools.cache
def get_accelerators() -> tuple[driver.Device, ...]:
    """The GPUs that MAX can use on this machine, in MAX's order; empty on a CPU-only machine."""
    if os.environ.get(POOL_PERCENT) == os.environ.get(CHOSEN):  # neither is set, or both by a process before this one
        os.environ[POOL_PERCENT] = os.environ[CHOSEN] = str(_share)
        if _share == 0:
            os.environ.setdefault(POOL_SIZE, "0")
    return tuple(driver.Accelerator(i) for i in range(driver.accelerator_count()))


@functools.cache
def choose_memory_share(percent: int, records: bool) -> None:
    """Choose the share of a GPU's memory for MAX's pool, which has no effect once a GPU is open.

    Args:
        percent: The option ``gpu_memory_share``; -1 leaves the choice to this package.
        records: Whether device graphs will be recorded, for which the pool reserves its share.
    """
    global _share
    wanted = percent if percent >= 0 else SHARE_WITH_RECORDINGS if records else _share
    opened = get_accelerators.cache_info().currsize and os.environ.get(POOL_PERCENT) == os.environ.get(CHOSEN)
    if not opened:
        _share = wanted
    elif wanted != _share and get_accelerators():
        _unheard.add((wanted, records))


def _warn_of_share() -> None:
    """Say once what MAX's pool has where another share was chosen for it. Programs have no part in the pool."""
    while _unheard:
        wanted, records = _unheard.pop()
        log.warning(
            "MAX's pool has %s %% of the GPU's memory, not %s, because functions that did not ask for it came first in "
            "this process%s. Compile one that does first, or set %s.",
            _share,
            wanted,
            ": the first device graph that is recorded reserves all of it" if records else "",
            POOL_PERCENT,
        )


def session() -> InferenceSession:
    """The session for the CPU and every GPU, made on first use."""
    global _session
    with _lock:
        if _session is None:
            _session = InferenceSession([*get_accelerators(), driver.CPU()], [])
        return _session


_loaded: dict[str, dict[str, Model]] = {}


def load(blob: Path | bytes, sha: str) -> dict[str, Model]:
    """The models in an artifact (a file, or its bytes) by graph name; an artifact is loaded once a process.

    Raises:
        Exception: The engine refuses the file (a foreign or damaged one).
    """
    _warn_of_share()
    with _lock:
        known = _loaded.get(sha)
    if known is None:
        engine = session()
        models = engine._load_all(engine._wrap_compiled(read(blob)), {})
        known = {model.name: model for model in models}
        with _lock:
            _loaded[sha] = known
    return known


def check_device(device: torch.device) -> None:
    """Refuse a device this backend cannot drive.

    Raises:
        EnvironmentUnsupportedError: The device type is neither cpu nor cuda, or MAX sees no such GPU.
    """
    if device.type == "cpu":
        return
    if device.type != "cuda":
        raise EnvironmentUnsupportedError(
            f"device {str(device)!r} is not supported by max_backend: use 'cpu' or 'cuda' tensors"
        )
    index = device.index or 0
    machine = elsewhere()
    if machine is not None and machine.api and index < machine.count:
        return
    if index >= len(get_accelerators()):
        raise EnvironmentUnsupportedError(
            f"a tensor is on {str(device)!r}, but MAX sees {len(get_accelerators())} GPU(s): check the driver, "
            "or move the model to 'cpu'"
        )


def target_for(devices: set[torch.device]) -> tuple[Target, str]:
    """What to compile for, and its name in the cache key (architectures, not indices)."""
    gpu = any(d.type != "cpu" for d in devices)
    machine = elsewhere()
    if machine is not None:
        return machine.target(gpu, cpu_target())
    if not gpu:
        return Target(), cpu_target()
    device = get_accelerators()[0]
    arch = device.architecture_name
    return Target(device.api, arch, len(get_accelerators())), f"{cpu_target()}+{device.api}:{arch}"

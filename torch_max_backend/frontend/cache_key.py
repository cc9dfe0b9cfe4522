"""A key of AOTAutograd's cache without what only Inductor's code depends on.

Torch makes the key of a graph out of the graph, its inputs, and everything that Inductor's generated code may depend
on: a hash of Triton's installation and of all of torch's sources, and Inductor's templates, which it imports for their
sources. That is most of a second process's first call of a small model. What this backend makes depends on none of it:
its own versions are in the tag (:mod:`torch_max_backend.frontend.warm_start`), and a released torch is told by its
version. All names used here are private to torch; where one is missing, torch's own part of the key stays.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch


@functools.cache
def _is_released() -> bool:
    """Whether the version of torch tells its sources: not so where it is built from a checkout."""
    return "git" not in torch.__version__ and "a0" not in torch.__version__


def _version() -> bytes:
    return f"{torch.__version__} {torch.version.git_version}".encode()


def _system() -> dict[str, Any]:
    """What of torch's description of the system is neither about Triton nor in the tag."""
    return {"cuda": torch.version.cuda, "hip": torch.version.hip}


def _nothing(*_: Any) -> None:
    """In place of what imports Inductor's templates and code generators, for their sources and the user's passes."""


@contextlib.contextmanager
def light_cache_key() -> Iterator[None]:
    """Inside, torch's keys have versions in place of hashes of installations."""
    from torch._inductor import codecache, config

    replaced: list[tuple[dict[str, Any] | type, str, Any]] = [
        (vars(config), "_cache_config_serializer", _nothing),
        (vars(codecache), "init_backend_registration", _nothing),
        (codecache.CacheBase, "get_system", staticmethod(_system)),
    ]
    if _is_released():
        replaced.append((vars(codecache), "torch_key", _version))
    with contextlib.ExitStack() as stack:
        for holder, name, value in replaced:
            stack.enter_context(_replaced(holder, name, value))
        yield


@contextlib.contextmanager
def _replaced(holder: dict[str, Any] | type, name: str, value: Any) -> Iterator[None]:
    """A module's or a class's attribute for a while; nothing where there is no such name."""
    names = vars(holder) if isinstance(holder, type) else holder
    if name not in names:
        yield
        return
    before = names[name]
    put = functools.partial(setattr, holder) if isinstance(holder, type) else holder.__setitem__
    put(name, value)
    try:
        yield
    finally:
        put(name, before)

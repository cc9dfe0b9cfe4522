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
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import torch

_is_light: ContextVar[bool] = ContextVar("torch_max_backend_is_light", default=False)
_lock, _users = threading.Lock(), 0
_put_back: list[Callable[[], object]] = []


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
    """Inside, torch's keys have versions in place of hashes of installations; those of other threads are as ever.

    Graphs may be traced in several threads at once: the first one replaces torch's functions, the last one puts them
    back, and each replacement asks whose call it is.
    """
    global _users
    with _lock:
        if not _users:
            _put_back.extend(_replaced(*names) for names in _replacements())
        _users += 1
    token = _is_light.set(True)
    try:
        yield
    finally:
        _is_light.reset(token)
        with _lock:
            _users -= 1
            while not _users and _put_back:
                _put_back.pop()()


def _replacements() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Whose attribute of which name is replaced, and by what."""
    from torch._inductor import codecache, config

    yield config, "_cache_config_serializer", _nothing
    yield codecache, "init_backend_registration", _nothing
    yield codecache.CacheBase, "get_system", _system
    if _is_released():
        yield codecache, "torch_key", _version


def _replaced(holder: Any, name: str, light: Callable[..., Any]) -> Callable[[], object]:
    """Replace an attribute of a module or class, if there is one, and return what puts it back."""
    if name not in vars(holder):
        return lambda: None
    before, plain = vars(holder)[name], getattr(holder, name)

    def chosen(*args: Any) -> Any:
        return (light if _is_light.get() else plain)(*args)

    def put(value: Any) -> None:
        if isinstance(holder, type):
            setattr(holder, name, value)
        else:
            vars(holder)[name] = value  # torch's modules of settings take no other names

    put(staticmethod(chosen) if isinstance(holder, type) else chosen)
    return lambda: put(before)

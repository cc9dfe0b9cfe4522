"""Modules with fake parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def conversion_of_fake_modules() -> Iterator[None]:
    """Let ``module.to(device)`` work on fake parameters, which torch cannot swap in place.

    They are replaced, each once in a conversion, so that parameters which are shared stay so.
    """
    from torch._subclasses.fake_tensor import FakeTensor

    original, replaced = nn.Module._apply, dict[int, tuple[Any, Any]]()
    depth = 0

    def apply(self: nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> nn.Module:
        nonlocal depth
        if not any(isinstance(p, FakeTensor) for p in self.parameters()):
            return original(self, fn, recurse)
        depth += 1
        try:
            for child in self.children() if recurse else ():
                child._apply(fn)
            for key, parameter in self._parameters.items():
                if parameter is not None:
                    self._parameters[key] = _once(parameter, lambda p: nn.Parameter(fn(p), p.requires_grad))
            for key, buffer in self._buffers.items():
                if buffer is not None:
                    self._buffers[key] = _once(buffer, fn)
        finally:
            depth -= 1
            if not depth:
                replaced.clear()
        return self

    def _once(old: Any, make: Callable[[Any], Any]) -> Any:
        if id(old) not in replaced:
            with torch.no_grad():
                replaced[id(old)] = old, make(old)
        return replaced[id(old)][1]

    nn.Module._apply = apply
    try:
        yield
    finally:
        nn.Module._apply = original

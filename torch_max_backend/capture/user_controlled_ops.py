"""Ops that a user decides about: passes leave nodes of them as they are, and do not make any."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch._ops import OpOverload

from torch_max_backend.aten_functions.registry import aten_functions

_for_torch: ContextVar[Collection[str]] = ContextVar("torch_max_backend_torch_executed_ops", default=())


@contextmanager
def left_to_torch(names: Collection[str]) -> Iterator[None]:
    """Within it, ops of these names are the user's: see ``torch_executed_ops`` in :mod:`torch_max_backend.options`."""
    token = _for_torch.set(names)
    try:
        yield
    finally:
        _for_torch.reset(token)


def names_for_torch() -> Collection[str]:
    """The names that :func:`left_to_torch` has now."""
    return _for_torch.get()


def is_named(op: OpOverload, names: Collection[str]) -> bool:
    """Whether the op is listed, as an overload or with all of its overloads."""
    return not {str(op), str(op.overloadpacket)}.isdisjoint(names)


def is_taken(*ops: Any) -> bool:
    """Whether the user has a lowering for any of these ops, or wants torch to run it, and so sees every node of it."""
    for op in ops:
        lowering = aten_functions.get(op)
        if (lowering is not None and not lowering.is_own) or (
            isinstance(op, OpOverload) and is_named(op, _for_torch.get())
        ):
            return True
    return False

"""What a lowering may know about the node it lowers: the outputs that torch promises and which of them are used.

The compiler sets it around every call of a lowering. A lowering that needs nothing but its arguments ignores it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from max.dtype import DType
from max.graph import DeviceRef, Dim, TensorValue


@dataclass(frozen=True)
class Promise:
    """One output as torch's fake tensor promises it.

    ``shape`` holds a :class:`max.graph.Dim` per dimension, static or symbolic. ``order`` is the permutation of the
    dimensions in which whoever is handed the output wants it in memory; ``None`` if it stays in the region.
    """

    dtype: DType
    shape: tuple[Dim, ...]
    device: DeviceRef
    order: tuple[int, ...] | None = None


@dataclass(frozen=True)
class NodeContext:
    """The node being lowered.

    ``outputs`` has one entry per output (``None`` where the output is not a tensor); ``used`` holds the indices of
    the outputs that somebody reads; ``settings`` is what of torch's global state changes code. ``shared`` has the
    operands that other nodes read later, and ``stored`` collects what :func:`now_stored` is told. Where no index is
    checked, ``report`` is ``None``.
    """

    name: str
    outputs: tuple[Promise | None, ...]
    used: frozenset[int]
    settings: CodeSettings
    shared: tuple[TensorValue, ...] = ()
    stored: list[tuple[TensorValue, TensorValue]] = field(default_factory=list)
    report: IndexReport | None = None


@dataclass(frozen=True)
class IndexReport:
    """Where a node on a GPU reports indices that are out of range.

    ``address`` is the region's input for it, 0-d int64; ``sites`` has the region's number of each of the node's checks.
    """

    address: TensorValue
    sites: tuple[int, ...]


@dataclass(frozen=True)
class CodeSettings:
    """What else changes what a lowering emits; part of the cache key.

    ``float32_matmul_precision`` is torch's setting, ``gpu`` the programming interface of the region's GPU (``cuda``,
    ``hip``), empty on a CPU, ``check_indices`` whether indices on a GPU are checked. The others are those of
    ``torch.backends.cudnn``.
    """

    float32_matmul_precision: str = "highest"
    gpu: str = ""
    convolution_tf32: bool = True
    deterministic: bool = False
    check_indices: bool = True


_current: ContextVar[NodeContext] = ContextVar("torch_max_backend_node")


@contextmanager
def lowering_node(context: NodeContext) -> Iterator[None]:
    """Make ``context`` the current one."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


def promise(index: int = 0) -> Promise:
    """Output ``index`` of the current node as torch promises it.

    Raises:
        LookupError: No node is being lowered, or that output is not a tensor.
    """
    found = _current.get().outputs[index]
    if found is None:
        raise LookupError(f"output {index} of {_current.get().name} is not a tensor")
    return found


def out_shape(index: int = 0) -> list[Dim]:
    """The promised shape of output ``index``."""
    return list(promise(index).shape)


def out_dtype(index: int = 0) -> DType:
    """The promised dtype of output ``index``."""
    return promise(index).dtype


def is_used(index: int) -> bool:
    """Whether anything reads output ``index``; a lowering may return ``None`` for one that nobody reads."""
    return index in _current.get().used


def is_read_later(operand: TensorValue) -> bool:
    """Whether other nodes read this operand of the current one, and all of them later."""
    return any(operand is value for value in _current.get().shared)


def now_stored(operand: TensorValue, value: TensorValue) -> None:
    """Say that a kernel has written an operand of the current node to memory, as ``value``, which later nodes read."""
    _current.get().stored.append((operand, value))


def settings() -> CodeSettings:
    """Torch's settings that change code."""
    return _current.get().settings


def index_report() -> IndexReport | None:
    """Where the current node reports indices that are out of range; ``None`` if it does not."""
    return _current.get().report

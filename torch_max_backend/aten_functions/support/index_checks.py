"""Indices on a GPU, where a kernel cannot raise: each is checked as it is read, and reported if it is out of range.

What an op reads is declared where it is registered: ``map_to(..., out_of_range=…)`` gives eager's message for each of
its checks, and the lowering names the check by its number. The functions here make such messages; ``{index}`` and
``{size}`` in them are filled in when an index is found. ``runtime/index_reports.py`` says how the host is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from max.dtype import DType
from max.graph import DeviceRef, Dim, TensorValue, ops

from torch_max_backend.aten_functions.support.mojo_ops import mojo_op
from torch_max_backend.aten_functions.support.node_context import index_report
from torch_max_backend.aten_functions.support.tensor_ops import axis_of, broadcast_to, constant, tensor

IN_SELF = "index out of range in self"


# -- messages ------------------------------------------------------------------------------------------------------
def always(*messages: str) -> Callable[..., Sequence[str]]:
    """The messages of an op that depend on no argument."""
    return lambda *_, **__: messages


def of_dim(dim: int) -> str:
    """What most ops say of an index along ``dim``."""
    return f"index {{index}} is out of bounds for dimension {dim} with size {{size}}"


def along_dim(self: torch.Tensor, dim: int, *_: Any, **__: Any) -> Sequence[str]:
    """The message of ops with one index along ``dim``."""
    return [of_dim(axis_of(dim, self.dim()))]


def along_dims(self: torch.Tensor, indices: Sequence[torch.Tensor | None], *_: Any, **__: Any) -> Sequence[str]:
    """The messages of ops with an index tensor for each dimension, or none."""
    return [of_dim(dim) for dim, index in enumerate(indices) if index is not None]


# -- checks --------------------------------------------------------------------------------------------------------
def in_range(indices: TensorValue, size: Dim, *, wraps: bool, check: int) -> TensorValue:
    """int64 indices in [0, size) on a GPU: what is out of range is moved into it, and reported if that is asked for.

    Args:
        indices: int64, on a GPU.
        wraps: Whether negative indices count from the end; where they do not, they are out of range.
        check: The number of this check among those of the node.
    """
    end = tensor(size, DType.int64, indices.device)
    report = index_report()
    if report is None:
        at = ops.where(indices < 0, indices + end, indices) if wraps else indices
        return ops.max(ops.min(at, end - 1), 0)
    site = constant(report.sites[check], DType.int64, indices.device)
    numbers = [broadcast_to(x, indices.shape) for x in (end, site, report.address)]
    name = "tmb_index_from_either_end" if wraps else "tmb_index"
    return mojo_op(name, [indices, *numbers], [(DType.int64, indices.shape)])[0]


def report_operands(device: DeviceRef, check: int = 0) -> tuple[list[TensorValue], bool]:
    """For kernels that check indices themselves: the report and the site, and whether anything is reported."""
    report = index_report() if device.is_gpu() else None
    site = report.sites[check] if report is not None else 0
    address = report.address if report is not None else constant(0, DType.int64, device)
    return [address, ops.constant(site, DType.int64, DeviceRef.CPU())], report is not None

"""What calling a region that MAX has compiled takes, besides MAX.

A process that runs programs alone imports nothing of MAX, whose driver takes 70 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch_max_backend.base.index_sites import Site


@runtime_checkable
class Model(Protocol):
    """What is used of the engine's ``Model``."""

    def _execute_device_tensors(self, tensors: Sequence[Any]) -> list[Any]: ...

    def _capture(self, graph_keys: Sequence[int], inputs: Sequence[Any]) -> list[Any]: ...

    def _replay(self, graph_keys: Sequence[int], inputs: Sequence[Any]) -> None: ...

    def _release_captured_graph(self, graph_keys: Sequence[int]) -> None: ...


@dataclass(frozen=True)
class RegionSpec:
    """What calling a region takes, besides its model.

    ``orders`` has per input the permutation that makes it contiguous, or ``None`` if it is contiguous as it is;
    ``static`` and ``mutable`` are positions of inputs, ``may_alias`` of outputs that MAX may give as a view of an
    input. ``host_values`` counts the sizes and scalars that are passed in after the tensors; ``gpus`` are the indices
    of the GPUs it runs on, ``on_host`` tells whether it has a tensor on the CPU, ``scalars`` how many of the host
    values are scalars, ``flat`` whether tensors are passed in as one dimension; on a CPU one table of their addresses
    and sizes is passed in then. ``sites`` are where it checks indices on the GPUs ``reporting``, for each of which a
    report is passed in behind all others.
    """

    orders: tuple[tuple[int, ...] | None, ...]
    static: frozenset[int]
    mutable: frozenset[int]
    may_alias: tuple[int, ...]
    host_values: int
    gpus: tuple[int, ...]
    on_host: bool = False
    scalars: int = 0
    flat: bool = False
    sites: tuple[Site, ...] = ()
    reporting: tuple[int, ...] = ()


ALIGNMENT = 16
"""Bytes: what MAX's kernels on a GPU take for granted of every address, because they read vectors."""


def why_not_captured(spec: RegionSpec) -> str:
    """Why a region is never captured; empty if it may be.

    MAX reports what it cannot capture, but too late: the stream stays in an unusable state unless it is put right.
    """
    if len(spec.gpus) != 1:
        return "it does not run on one GPU alone"
    if spec.on_host:
        return "a part of it runs on the processor"
    if spec.scalars:
        return "it takes a number that the processor computes"
    return ""

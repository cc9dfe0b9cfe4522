"""The loop program of a region, by the walk over its nodes for the device that it is on."""

from __future__ import annotations

from torch_max_backend.loops.from_region import FromRegion, device_of
from torch_max_backend.loops.on_gpu import OnGpu
from torch_max_backend.loops.program import Program
from torch_max_backend.loops.tensor import building
from torch_max_backend.partition.region import Region


def program_of(region: Region) -> Program:
    """The loop program of a region.

    Raises:
        NodesWithoutLoopsError: Nodes have neither rule nor library call.
        Unsupported: The region has what programs do not.
        LoweringError: A rule broke torch's promise.
    """
    is_for_gpu = device_of(region).type == "cuda"
    with building(is_for_gpu) as builder:
        return (OnGpu if is_for_gpu else FromRegion)(region, builder).program()

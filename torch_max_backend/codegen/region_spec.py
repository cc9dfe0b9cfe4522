"""What calling a region of MAX takes: a ``RegionSpec``, from the region."""

from __future__ import annotations

import torch
from torch import fx

from torch_max_backend.capture.fake_tensors import tensors_of, value_of
from torch_max_backend.capture.fx_nodes import is_getitem
from torch_max_backend.capture.view_ops import BITS, MOVEMENT
from torch_max_backend.partition.index_checks import IndexChecks, index_checks
from torch_max_backend.partition.region import Region
from torch_max_backend.runtime.region_spec import RegionSpec


def region_spec(region: Region, static: frozenset[int], check_indices: bool = True) -> RegionSpec:
    """What calling ``region`` takes; ``static`` are the positions of inputs whose memory stays."""
    checks = index_checks(region) if check_indices else IndexChecks()
    values = [v for n in region.nodes for v in tensors_of(value_of(n))] + [p.value for p in region.inputs]
    gpus = {v.device.index or 0 for v in values if v.device.type == "cuda"}
    return RegionSpec(
        tuple(p.order if p.is_permuted else None for p in region.inputs),
        static,
        frozenset(k for k, p in enumerate(region.inputs) if p.mutable),
        tuple(k for k, p in enumerate(region.outputs) if _is_movement(p.node, region)),
        len(region.carriers) + len(region.scalars),
        tuple(sorted(gpus)),
        any(v.device.type == "cpu" for v in values),
        len(region.scalars),
        bool(region.updates),
        checks.sites,
        tuple(device.index or 0 for device in checks.devices),
    )


def _is_movement(node: fx.Node, region: Region) -> bool:
    """Whether the value comes from an input by movement of data alone; a conversion to another dtype is none."""
    inputs = {p.node for p in region.inputs}
    seen = set()
    stack = [node]
    while stack:
        at = stack.pop()
        if at in inputs:
            return True
        if at in seen:
            continue
        seen.add(at)
        if at.target in MOVEMENT or is_getitem(at):
            stack += [n for n in at.all_input_nodes if at.target in BITS or _dtypes(n) & _dtypes(at)]
    return False


def _dtypes(node: fx.Node) -> set[torch.dtype]:
    return {t.dtype for t in tensors_of(value_of(node))}

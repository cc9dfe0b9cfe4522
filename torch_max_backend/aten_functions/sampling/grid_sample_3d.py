"""Sampling of volumes at given places."""

from __future__ import annotations

from collections.abc import Sequence

from max.graph import TensorValue

from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.sampling.interpolation import grid_sample, grid_sample_backward


# grid_sampler_3d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor
@map_to(aten.grid_sampler_3d.default)
def grid_sampler_3d(
    input: TensorValue, grid: TensorValue, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> TensorValue:
    return grid_sample("tmb_grid_sampler_3d", input, grid, interpolation_mode, padding_mode, align_corners)


# grid_sampler_3d_backward(Tensor grad_output, Tensor input, Tensor grid, int interpolation_mode, int padding_mode,
#   bool align_corners, bool[2] output_mask) -> (Tensor, Tensor)
@map_to(aten.grid_sampler_3d_backward.default, limits="linear and nearest")
def grid_sampler_3d_backward(
    grad_output: TensorValue,
    input: TensorValue,
    grid: TensorValue,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> list[TensorValue | None]:
    modes = (interpolation_mode, padding_mode, align_corners)
    return grid_sample_backward("tmb_grid_sampler_3d", grad_output, input, grid, *modes, output_mask)
